/* llama.h - config readers of the llama-shaped families; see qn_family in desc.h for the contract.
 * Errors: QN_FORMAT, QN_UNSUPPORTED. Threads: any. */
#ifndef QN_MODEL_LLAMA_H
#define QN_MODEL_LLAMA_H

#include "model/desc.h"

/* llama, mistral (spec models 5.1). Errors: as above. */
qn_code qn_llama_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);

/* qwen2: bias on q, k, v; no head norms (spec models 5.2). Errors: as above. */
qn_code qn_qwen2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);

/* qwen3: head norms on q and k (spec models 5.2). Errors: as above. */
qn_code qn_qwen3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);

#endif
