/* embed.h - the vector of a text: the last token's hidden state, of length 1.
 *
 * For embedding models (Qwen3-Embedding and its like). The prompt runs as an ordinary row of the
 * engine: beside others, in chunks, with known prefixes from the cache; the result does not depend
 * on any of that.
 * Threads: any; the call waits for the result.
 */
#ifndef QN_ENGINE_EMBED_H
#define QN_ENGINE_EMBED_H

#include "engine/engine.h"

/* out [d_model] float32 becomes the hidden state of the last of ids [n] after the final norm,
 * divided by its Euclidean length (a state of zeros stays so). `cancel`, polled every 50 ms, ends the
 * wait when it gives true; NULL: never. Errors: those of qn_engine_submit and of the step,
 * QN_CANCELLED. */
qn_code qn_engine_embed(qn_engine *e, const uint32_t *ids, size_t n, bool (*cancel)(void *user),
                        void *user, float *out, qn_err *err);

/* Elements of that vector: the model's d_model (no failure). */
uint32_t qn_engine_embed_width(const qn_engine *e);

#endif
