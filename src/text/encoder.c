/* encoder.c - see encoder.h. */
#include "text/encoder.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "text/prompt.h"
#include "text/tok_impl.h"

typedef struct kept {
    qn_prompt *prompt;
    unsigned flags;
    size_t bytes;
} kept;

struct qn_encoder {
    const qn_tokenizer *t;
    size_t max_prompts, max_bytes;
    pthread_mutex_t lock; /* guards what follows */
    kept list[QN_ENCODER_PROMPTS + 1]; /* last used first; one more while a new one comes in */
    size_t n;
    qn_encoder_stats stats;
};

qn_code qn_encoder_new(qn_encoder **out, const qn_tokenizer *t, size_t max_prompts,
                       size_t max_bytes, qn_err *err)
{
    *out = NULL;
    if (max_prompts > QN_ENCODER_PROMPTS) {
        return qn_err_set(err, QN_INVALID, "encoder: %zu prompts are more than the limit of %d",
                          max_prompts, QN_ENCODER_PROMPTS);
    }
    qn_encoder *e = calloc(1, sizeof *e);
    if (!e) return qn_err_set(err, QN_NOMEM, "encoder: out of memory");
    e->t = t;
    e->max_prompts = max_prompts ? max_prompts : QN_ENCODER_PROMPTS;
    e->max_bytes = max_bytes ? max_bytes : QN_ENCODER_BYTES;
    pthread_mutex_init(&e->lock, NULL);
    *out = e;
    return QN_OK;
}

void qn_encoder_free(qn_encoder *e)
{
    if (!e) return;
    for (size_t i = 0; i < e->n; i++) qn_prompt_free(e->list[i].prompt);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

/* Take number i out of the list; the caller owns it. */
static kept take_out(qn_encoder *e, size_t i)
{
    kept k = e->list[i];
    memmove(e->list + i, e->list + i + 1, (e->n - i - 1) * sizeof *e->list);
    e->n--;
    e->stats.kept_bytes -= k.bytes;
    return k;
}

/* Take the prompt that the text goes on from. One that would lose more than an eighth of its text
 * stays: the text is another conversation with the same start. */
static kept take(qn_encoder *e, const char *text, size_t n, unsigned flags)
{
    kept k = {.flags = flags};
    size_t best = 0, at = 0;
    pthread_mutex_lock(&e->lock);
    for (size_t i = 0; i < e->n; i++) {
        if (e->list[i].flags != flags) continue;
        size_t old = qn_prompt_length(e->list[i].prompt);
        size_t common = qn_prompt_common(e->list[i].prompt, text, n);
        if (common <= best || common < old - old / 8) continue;
        best = common;
        at = i;
    }
    if (best) k = take_out(e, at);
    pthread_mutex_unlock(&e->lock);
    return k;
}

/* Put a prompt in front and forget the oldest ones over the bounds. */
static void put(qn_encoder *e, kept k, size_t n, size_t known)
{
    kept gone[QN_ENCODER_PROMPTS + 1];
    size_t n_gone = 0;
    k.bytes = qn_prompt_bytes(k.prompt);
    pthread_mutex_lock(&e->lock);
    e->stats.texts++;
    e->stats.bytes += n;
    e->stats.encoded_bytes += n - known;
    memmove(e->list + 1, e->list, e->n * sizeof *e->list);
    e->list[0] = k;
    e->n++;
    e->stats.kept_bytes += k.bytes;
    while (e->n && (e->n > e->max_prompts || e->stats.kept_bytes > e->max_bytes)) {
        gone[n_gone++] = take_out(e, e->n - 1);
    }
    pthread_mutex_unlock(&e->lock);
    for (size_t i = 0; i < n_gone; i++) qn_prompt_free(gone[i].prompt);
}

static qn_code encode_short(qn_encoder *e, const char *text, size_t n, unsigned flags, qn_ids *out,
                            qn_err *err)
{
    pthread_mutex_lock(&e->lock);
    e->stats.texts++;
    e->stats.bytes += n;
    e->stats.encoded_bytes += n;
    pthread_mutex_unlock(&e->lock);
    return qn_tokenizer_encode(e->t, text, n, flags, out, err);
}

/* A long, well-formed text. */
static qn_code encode_long(qn_encoder *e, const char *text, size_t n, unsigned flags, qn_ids *out,
                           qn_err *err)
{
    kept k = take(e, text, n, flags);
    const qn_ids *ids;
    qn_code rc = k.prompt ? QN_OK : qn_prompt_new(&k.prompt, e->t, flags, err);
    if (!rc) rc = qn_prompt_encode(k.prompt, text, n, &ids, err);
    if (rc) {
        qn_prompt_free(k.prompt);
        return rc;
    }
    qn_ids_put(out, ids->data, ids->len);
    put(e, k, n, qn_prompt_kept(k.prompt));
    return out->failed ? qn_err_set(err, QN_NOMEM, "encoder: out of memory") : QN_OK;
}

qn_code qn_encoder_encode(qn_encoder *e, const char *text, size_t n, unsigned flags, qn_ids *out,
                          qn_err *err)
{
    if (n < QN_ENCODER_SHORT) return encode_short(e, text, n, flags, out, err);
    qn_buf clean = {0};
    qn_code rc = tok_clean(&text, &n, &clean, err); /* prompts keep the well-formed text */
    if (!rc) rc = encode_long(e, text, n, flags, out, err);
    qn_buf_release(&clean);
    return rc;
}

qn_encoder_stats qn_encoder_get_stats(qn_encoder *e)
{
    pthread_mutex_lock(&e->lock);
    qn_encoder_stats s = e->stats;
    s.n_kept = e->n;
    pthread_mutex_unlock(&e->lock);
    return s;
}
