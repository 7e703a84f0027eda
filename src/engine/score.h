/* score.h - the logits of every position of one sequence, without sampling.
 *
 * For `quern logits`, perplexity and comparisons: the same forward pass, blocks and kernels as
 * generation, with logits wanted for all rows.
 * Threads: one thread at a time per model; no engine may run over the model meanwhile.
 */
#ifndef QN_ENGINE_SCORE_H
#define QN_ENGINE_SCORE_H

#include <stdint.h>

#include "model/model.h"

/* Called per chunk: logits [n, n_vocab] float32 of positions first .. first+n-1, valid during the
 * call. Another code than QN_OK ends the run with that code (the callee fills err). */
typedef qn_code (*qn_score_fn)(void *user, uint32_t first, uint32_t n, const float *logits,
                               qn_err *err);

typedef struct qn_score_opts {
    const uint32_t
        *chunks; /* [n_chunks] sizes of the first forward passes; the rest follows in one or more */
    size_t n_chunks;
    uint32_t max_chunk;     /* most tokens of a pass after those; 0: 128; 1: passes of one token */
    uint32_t block_tokens;  /* of the KV cache; 0: 64 */
} qn_score_opts;

/* Run ids [n] through the model. The logits do not depend on the chunks, but for models with windows
 * on `ref`: there a chunk of one token that was asked for has the bits of mlx-lm's decode steps.
 * Errors: QN_INVALID (no ids, an id outside the vocabulary, chunks
 * that are 0 or longer than the ids), QN_NOMEM, and fn's. */
qn_code qn_score(qn_model *m, const uint32_t *ids, uint32_t n, const qn_score_opts *opts,
                 qn_score_fn fn, void *user, qn_err *err);

#endif
