/* reply.c - see reply.h. */
#include "engine/reply.h"

#include <stdlib.h>

struct qn_reply {
    qn_detok *detok;
    qn_stops *stops;
    qn_buf fresh; /* text between the two */
};

qn_code qn_reply_new(qn_reply **out, const qn_tokenizer *tok, const char *const *stops,
                     size_t n_stops, qn_err *err)
{
    *out = NULL;
    qn_reply *r = calloc(1, sizeof *r);
    if (!r) return qn_err_set(err, QN_NOMEM, "reply: out of memory");
    qn_code rc = qn_stops_new(&r->stops, stops, n_stops, err);
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
    qn_stops_free(r->stops);
    qn_buf_release(&r->fresh);
    free(r);
}

static bool pass_on(qn_reply *r, qn_buf *out)
{
    bool met = qn_stops_push(r->stops, r->fresh.data, r->fresh.len, out);
    if (r->fresh.failed) out->failed = true;
    qn_buf_clear(&r->fresh);
    return met;
}

/* Step 11 of the data path. For callers that want the plain text. */
bool qn_reply_push(qn_reply *r, uint32_t token, qn_buf *out)
{
    if (qn_stops_met(r->stops)) return true;
    if (qn_detok_push(r->detok, token, &r->fresh, NULL)) out->failed = true;
    return pass_on(r, out);
}

bool qn_reply_finish(qn_reply *r, qn_buf *out)
{
    if (qn_stops_met(r->stops)) return true;
    if (qn_detok_finish(r->detok, &r->fresh, NULL)) out->failed = true;
    return pass_on(r, out) || qn_stops_flush(r->stops, out);
}

const char *qn_reply_stop(const qn_reply *r)
{
    return qn_stops_met(r->stops);
}
