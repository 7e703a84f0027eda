/* encoder.h - encoding a model's prompts, remembering the last ones.
 *
 * A conversation comes back every turn with all that was said before. An encoder keeps the last few
 * long prompts with their ids (text/prompt.h); a text that goes on from one of them is encoded only
 * behind the last place that is safe. The ids are always those of qn_tokenizer_encode.
 * Ownership: an encoder borrows its tokenizer, which must outlive it, and owns what it remembers.
 * Threads: every function may be called from any thread; texts are encoded outside the lock.
 */
#ifndef QN_TEXT_ENCODER_H
#define QN_TEXT_ENCODER_H

#include "text/tokenizer.h"

enum {
    QN_ENCODER_PROMPTS = 16,           /* remembered at most */
    QN_ENCODER_BYTES = 32 << 20,       /* of all of them, texts and ids */
    QN_ENCODER_SHORT = 2048            /* bytes; shorter texts are not worth remembering */
};

typedef struct qn_encoder qn_encoder;

typedef struct qn_encoder_stats {
    uint64_t texts;         /* encoded so far */
    uint64_t bytes;         /* of these texts */
    uint64_t encoded_bytes; /* the part that was not known already */
    size_t n_kept;          /* prompts remembered now */
    size_t kept_bytes;      /* and their memory */
} qn_encoder_stats;

/* Make an encoder. max_prompts and max_bytes bound what it remembers; 0: the limits above. The
 * caller frees it. Errors: QN_INVALID (more prompts than QN_ENCODER_PROMPTS), QN_NOMEM. */
qn_code qn_encoder_new(qn_encoder **out, const qn_tokenizer *t, size_t max_prompts,
                       size_t max_bytes, qn_err *err);

/* Free; NULL is allowed. No other thread may be inside (no failure). */
void qn_encoder_free(qn_encoder *e);

/* Append the ids of text [n bytes] to out, exactly as qn_tokenizer_encode with these flags.
 * Errors: those of qn_tokenizer_encode. */
qn_code qn_encoder_encode(qn_encoder *e, const char *text, size_t n, unsigned flags, qn_ids *out,
                          qn_err *err);

/* What was done and is remembered (no failure). */
qn_encoder_stats qn_encoder_get_stats(qn_encoder *e);

#endif
