/* trace.c - spans and their line. */
#include "engine/trace.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/buf.h"

enum { MAX_SPANS = 512, MAX_NAME = 132 };

struct qn_trace {
    char id[17], request_id[MAX_NAME], route[MAX_NAME];
    double start_ms;
    bool shared;
    uint32_t n, n_dropped;
    qn_span spans[MAX_SPANS];
};

qn_code qn_trace_new(qn_trace **out, const char *request_id, const char *route, double start_ms,
                     qn_err *err)
{
    qn_trace *t = *out = calloc(1, sizeof *t);
    if (!t) return qn_err_set(err, QN_NOMEM, "trace: out of memory");
    uint64_t id = 0;
    if (getrandom(&id, sizeof id, 0) != sizeof id) id = (uint64_t)(uintptr_t)t;
    snprintf(t->id, sizeof t->id, "%016llx", (unsigned long long)id);
    snprintf(t->request_id, sizeof t->request_id, "%s", request_id ? request_id : "");
    snprintf(t->route, sizeof t->route, "%s", route ? route : "");
    t->start_ms = start_ms;
    return QN_OK;
}

void qn_trace_free(qn_trace *t)
{
    free(t);
}

void qn_trace_add(qn_trace *t, const qn_span *span)
{
    if (t->n == MAX_SPANS) t->n_dropped++;
    else t->spans[t->n++] = *span;
}

void qn_trace_shared(qn_trace *t)
{
    t->shared = true;
}

/* ---- the line ---- */

/* Spans in the order of their starts; equal ones in the order of their ends. */
static int by_start(const void *a, const void *b)
{
    const qn_span *x = a, *y = b;
    if (x->start_ms != y->start_ms) return x->start_ms < y->start_ms ? -1 : 1;
    return (x->end_ms > y->end_ms) - (x->end_ms < y->end_ms);
}

static void put_number(json_t *o, const char *key, int64_t v)
{
    if (v >= 0) json_object_set_new(o, key, json_integer(v));
}

static json_t *event_of(const qn_trace *t, const qn_span *s)
{
    json_t *e = json_object(), *a = json_object();
    json_object_set_new(e, "phase", json_string(s->phase));
    json_object_set_new(e, "startMs", json_real(s->start_ms - t->start_ms));
    json_object_set_new(e, "durationMs", json_real(s->end_ms - s->start_ms));
    json_object_set_new(a, "mechanism", json_string(t->shared ? "continuous" : "serial"));
    if (s->boundary) json_object_set_new(a, "boundary", json_string(s->boundary));
    put_number(a, "promptTokens", s->prompt_tokens);
    put_number(a, "cachedTokens", s->cached_tokens);
    put_number(a, "startToken", s->start_token);
    put_number(a, "tokens", s->tokens);
    if (s->final) json_object_set_new(a, "final", json_true());
    json_object_set_new(e, "attributes", a);
    return e;
}

static json_t *record_of(const qn_trace *t, const char *outcome, double end_ms)
{
    json_t *r = json_object(), *events = json_array();
    json_object_set_new(r, "version", json_integer(1));
    json_object_set_new(r, "traceId", json_string(t->id));
    json_object_set_new(r, "requestId", json_string(t->request_id));
    json_object_set_new(r, "route", json_string(t->route));
    json_object_set_new(r, "clock", json_string("monotonic-ms"));
    json_object_set_new(r, "outcome", json_string(outcome));
    json_object_set_new(r, "startedAtMs", json_real(t->start_ms));
    json_object_set_new(r, "totalMs", json_real(end_ms - t->start_ms));
    for (uint32_t i = 0; i < t->n; i++) json_array_append_new(events, event_of(t, &t->spans[i]));
    json_object_set_new(r, "events", events);
    if (t->n_dropped)
        json_object_set_new(r, "attributes", json_pack("{s:i}", "droppedEvents", (int)t->n_dropped));
    return r;
}

void qn_trace_print(const qn_trace *t, const char *outcome, double end_ms)
{
    qn_trace *sorted = malloc(sizeof *sorted);
    if (!sorted) return;
    *sorted = *t;
    qsort(sorted->spans, sorted->n, sizeof *sorted->spans, by_start);
    json_t *r = record_of(sorted, outcome, end_ms);
    char *text = json_dumps(r, JSON_COMPACT | JSON_REAL_PRECISION(12));
    qn_buf line = {0};
    if (text) qn_buf_printf(&line, "[p2r] %s\n", text);
    /* One write, so that lines of several threads do not mix. */
    if (line.len && write(STDERR_FILENO, line.data, line.len) < 0) line.len = 0;
    qn_buf_release(&line);
    free(text);
    json_decref(r);
    free(sorted);
}
