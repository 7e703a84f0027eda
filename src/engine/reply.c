/* reply.c - see reply.h. */
#include "engine/reply.h"

#include <stdlib.h>
#include <string.h>

typedef struct stop_string {
    char text[QN_MAX_STOP_BYTES + 1];
    size_t n; /* bytes */
} stop_string;

struct qn_reply {
    qn_detok *detok;
    qn_buf held;      /* text not shown yet: always the start of a stop string, or empty */
    size_t n_checked; /* bytes of `held` in which no stop string ends */
    const stop_string *met;
    size_t n_stops;
    stop_string stops[QN_MAX_STOPS];
};

static qn_code add_stop(qn_reply *r, const char *text, qn_err *err)
{
    size_t n = strlen(text);
    if (!n) return QN_OK;
    if (n > QN_MAX_STOP_BYTES) {
        return qn_err_set(err, QN_LIMIT, "a stop string has %zu bytes; at most %d are allowed", n,
                          QN_MAX_STOP_BYTES);
    }
    if (r->n_stops == QN_MAX_STOPS) {
        return qn_err_set(err, QN_LIMIT, "too many stop strings; at most %d are allowed",
                          QN_MAX_STOPS);
    }
    stop_string *s = &r->stops[r->n_stops++];
    memcpy(s->text, text, n);
    s->n = n;
    return QN_OK;
}

qn_code qn_reply_new(qn_reply **out, const qn_tokenizer *tok, const char *const *stops,
                     size_t n_stops, qn_err *err)
{
    *out = NULL;
    qn_reply *r = calloc(1, sizeof *r);
    if (!r) return qn_err_set(err, QN_NOMEM, "reply: out of memory");
    qn_code rc = QN_OK;
    for (size_t i = 0; i < n_stops && !rc; i++) rc = add_stop(r, stops[i], err);
    if (!rc) rc = qn_detok_new(&r->detok, tok, QN_DETOK_SKIP_SPECIAL | QN_DETOK_TRIM, err);
    if (rc) {
        qn_reply_free(r);
        return rc;
    }
    *out = r;
    return QN_OK;
}

void qn_reply_free(qn_reply *r)
{
    if (!r) return;
    qn_detok_free(r->detok);
    qn_buf_release(&r->held);
    free(r);
}

/* The longest stop string that ends at byte `end` of the held text, or NULL. */
static const stop_string *ending_at(const qn_reply *r, size_t end)
{
    const stop_string *best = NULL;
    for (size_t i = 0; i < r->n_stops; i++) {
        const stop_string *s = &r->stops[i];
        if (s->n > end || memcmp(r->held.data + end - s->n, s->text, s->n)) continue;
        if (!best || s->n > best->n) best = s;
    }
    return best;
}

/* Bytes at the end of the held text that begin some stop string and must stay hidden. */
static size_t hidden_tail(const qn_reply *r)
{
    size_t best = 0;
    for (size_t i = 0; i < r->n_stops; i++) {
        const stop_string *s = &r->stops[i];
        size_t n = s->n - 1 < r->held.len ? s->n - 1 : r->held.len;
        while (n > best && memcmp(r->held.data + r->held.len - n, s->text, n)) n--;
        if (n > best) best = n;
    }
    return best;
}

/* Look at the new bytes of the held text and show what is certain. */
static void show(qn_reply *r, bool over, qn_buf *out)
{
    if (r->held.failed) out->failed = true;
    for (size_t end = r->n_checked + 1; end <= r->held.len && !r->met; end++) {
        r->met = ending_at(r, end);
        if (r->met) qn_buf_put(out, r->held.data, end - r->met->n);
    }
    if (r->met) {
        qn_buf_clear(&r->held);
        r->n_checked = 0;
        return;
    }
    size_t n = r->held.len - (over ? 0 : hidden_tail(r));
    if (n) {
        qn_buf_put(out, r->held.data, n);
        qn_buf_drop(&r->held, n);
    }
    r->n_checked = r->held.len;
}

/* Step 11 of the data path. */
bool qn_reply_push(qn_reply *r, uint32_t token, qn_buf *out)
{
    if (r->met) return true;
    if (qn_detok_push(r->detok, token, &r->held, NULL)) out->failed = true;
    show(r, false, out);
    return r->met != NULL;
}

bool qn_reply_finish(qn_reply *r, qn_buf *out)
{
    if (r->met) return true;
    if (qn_detok_finish(r->detok, &r->held, NULL)) out->failed = true;
    show(r, true, out);
    return r->met != NULL;
}

const char *qn_reply_stop(const qn_reply *r)
{
    return r->met ? r->met->text : NULL;
}
