/* detok.c - the streaming detokenizer: the decoder chain fed one id at a time. */
#include "text/detok.h"

#include <stdlib.h>

#include "text/tok_impl.h"

struct qn_detok {
    tok_dec_run run;
    unsigned flags;
    bool started;  /* some text came out: a leading space is no longer first */
    bool byte_level;
    qn_buf held;   /* text that waits: a lone space */
    uint32_t shown[QN_DETOK_MAX_SHOWN]; /* special tokens that are not skipped */
    size_t n_shown;
};

qn_code qn_detok_new(qn_detok **out, const qn_tokenizer *t, unsigned flags, qn_err *err)
{
    *out = NULL;
    qn_detok *d = calloc(1, sizeof *d);
    if (!d) return qn_err_set(err, QN_NOMEM, "detokenizer: out of memory");
    qn_code rc = tok_dec_init(&d->run, t, err);
    if (rc) {
        free(d);
        return rc;
    }
    d->flags = flags;
    d->byte_level = t->n_decs == 1 && t->decs[0].kind == DEC_BYTE_LEVEL;
    *out = d;
    return QN_OK;
}

void qn_detok_show(qn_detok *d, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n && d->n_shown < QN_DETOK_MAX_SHOWN; i++) {
        d->shown[d->n_shown++] = ids[i];
    }
}

static bool is_skipped(const qn_detok *d, uint32_t id)
{
    if (!(d->flags & QN_DETOK_SKIP_SPECIAL) || !qn_tokenizer_is_special(d->run.t, id)) return false;
    for (size_t i = 0; i < d->n_shown; i++) {
        if (d->shown[i] == id) return false;
    }
    return true;
}

void qn_detok_free(qn_detok *d)
{
    if (!d) return;
    tok_dec_release(&d->run);
    qn_buf_release(&d->held);
    free(d);
}

void qn_detok_reset(qn_detok *d)
{
    d->run.out = NULL;
    tok_dec_reset(&d->run);
    qn_buf_clear(&d->held);
    d->started = false;
}

static qn_code release_held(qn_detok *d, qn_buf *out, qn_err *err)
{
    size_t skip = 0;
    if (d->held.len && !d->started) {
        skip = d->flags & QN_DETOK_TRIM && d->held.data[0] == ' ';
        d->started = true;
    }
    if (d->held.len) qn_buf_put(out, d->held.data + skip, d->held.len - skip);
    bool failed = d->held.failed || out->failed;
    qn_buf_clear(&d->held);
    return failed ? qn_err_set(err, QN_NOMEM, "detokenizer: out of memory") : QN_OK;
}

qn_code qn_detok_push(qn_detok *d, uint32_t id, qn_buf *out, qn_err *err)
{
    tok_str token;
    const qn_tokenizer *t = d->run.t;
    token.s = qn_tokenizer_token(t, id, &token.n);
    if (!token.s || is_skipped(d, id)) return QN_OK;
    size_t before = d->held.len;
    d->run.out = &d->held;
    tok_dec_push(&d->run, token);
    bool space = d->byte_level && d->held.len == before + 1 && d->held.data[before] == ' ';
    if (space && !d->held.failed) return QN_OK;
    return release_held(d, out, err);
}

qn_code qn_detok_finish(qn_detok *d, qn_buf *out, qn_err *err)
{
    d->run.out = &d->held;
    tok_dec_finish(&d->run);
    qn_code rc = release_held(d, out, err);
    d->started = false;
    return rc;
}
