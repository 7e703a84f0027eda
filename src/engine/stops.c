/* stops.c - see stops.h. */
#include "engine/stops.h"

#include <stdlib.h>
#include <string.h>

typedef struct stop_string {
    char text[QN_MAX_STOP_BYTES + 1];
    size_t n; /* bytes */
} stop_string;

struct qn_stops {
    qn_buf held;      /* text not shown yet: always the start of a stop string, or empty */
    size_t n_checked; /* bytes of `held` in which no stop string ends */
    const stop_string *met;
    size_t n;
    stop_string list[QN_MAX_STOPS];
};

static qn_code add(qn_stops *s, const char *text, qn_err *err)
{
    size_t n = strlen(text);
    if (!n) return QN_OK;
    if (n > QN_MAX_STOP_BYTES) {
        return qn_err_set(err, QN_LIMIT, "a stop string has %zu bytes; at most %d are allowed", n,
                          QN_MAX_STOP_BYTES);
    }
    if (s->n == QN_MAX_STOPS) {
        return qn_err_set(err, QN_LIMIT, "too many stop strings; at most %d are allowed",
                          QN_MAX_STOPS);
    }
    stop_string *one = &s->list[s->n++];
    memcpy(one->text, text, n);
    one->n = n;
    return QN_OK;
}

qn_code qn_stops_new(qn_stops **out, const char *const *texts, size_t n, qn_err *err)
{
    *out = NULL;
    qn_stops *s = calloc(1, sizeof *s);
    if (!s) return qn_err_set(err, QN_NOMEM, "stop strings: out of memory");
    qn_code rc = QN_OK;
    for (size_t i = 0; i < n && !rc; i++) rc = add(s, texts[i], err);
    if (rc) {
        qn_stops_free(s);
        return rc;
    }
    *out = s;
    return QN_OK;
}

void qn_stops_free(qn_stops *s)
{
    if (!s) return;
    qn_buf_release(&s->held);
    free(s);
}

/* The longest stop string that ends at byte `end` of the held text, or NULL. */
static const stop_string *ending_at(const qn_stops *s, size_t end)
{
    const stop_string *best = NULL;
    for (size_t i = 0; i < s->n; i++) {
        const stop_string *one = &s->list[i];
        if (one->n > end || memcmp(s->held.data + end - one->n, one->text, one->n)) continue;
        if (!best || one->n > best->n) best = one;
    }
    return best;
}

/* Bytes at the end of the held text that begin some stop string and must stay hidden. */
static size_t hidden_tail(const qn_stops *s)
{
    size_t best = 0;
    for (size_t i = 0; i < s->n; i++) {
        const stop_string *one = &s->list[i];
        size_t n = one->n - 1 < s->held.len ? one->n - 1 : s->held.len;
        while (n > best && memcmp(s->held.data + s->held.len - n, one->text, n)) n--;
        if (n > best) best = n;
    }
    return best;
}

bool qn_stops_push(qn_stops *s, const char *text, size_t n, qn_buf *out)
{
    if (s->met) return true;
    if (!n) return false;
    qn_buf_put(&s->held, text, n);
    if (s->held.failed) out->failed = true;
    for (size_t end = s->n_checked + 1; end <= s->held.len && !s->met; end++) {
        s->met = ending_at(s, end);
        if (s->met) qn_buf_put(out, s->held.data, end - s->met->n);
    }
    if (s->met) {
        qn_buf_clear(&s->held);
        s->n_checked = 0;
        return true;
    }
    size_t sure = s->held.len - hidden_tail(s);
    if (sure) {
        qn_buf_put(out, s->held.data, sure);
        qn_buf_drop(&s->held, sure);
    }
    s->n_checked = s->held.len;
    return false;
}

bool qn_stops_flush(qn_stops *s, qn_buf *out)
{
    if (s->held.len) qn_buf_put(out, s->held.data, s->held.len);
    qn_buf_clear(&s->held);
    s->n_checked = 0;
    return s->met != NULL;
}

const char *qn_stops_met(const qn_stops *s)
{
    return s->met ? s->met->text : NULL;
}
