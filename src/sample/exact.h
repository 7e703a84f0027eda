/* exact.h - sampling with mlx-lm's bits, private to src/sample.
 *
 * The same chain as sampler.c in the order and the number types of mlx-lm on MLX's CPU backend
 * (docs/numerics.md): every step rounds to the type of the logits, and random numbers come from
 * MLX's one generator, which a draw advances by a split (two with xtc). Draw k depends on the seed
 * and k, as in sampler.h. Threads: one at a time per object.
 */
#ifndef QN_SAMPLE_EXACT_H
#define QN_SAMPLE_EXACT_H

#include "sample/sampler.h"

typedef struct qn_exact qn_exact;

/* `o` is checked already and has a desk; it is copied, its arrays are borrowed until qn_exact_free.
 * `seed` is the one in use. Errors: QN_NOMEM. */
qn_code qn_exact_new(qn_exact **out, const qn_sampling *o, uint64_t seed, uint32_t n_vocab,
                     qn_err *err);
void qn_exact_free(qn_exact *s);

/* As qn_sampler_draw: logits [n_vocab] float32 holding values of `type`, overwritten (no failure).
 */
void qn_exact_draw(qn_exact *s, float *logits, qn_dtype type, const uint32_t *history,
                   size_t n_history, uint64_t k, qn_sample *out);

/* As qn_sampler_score (no failure). */
void qn_exact_score(qn_exact *s, float *logits, qn_dtype type, uint32_t token, qn_sample *out);

#endif
