/* families.h - the config readers of all families; their contract is qn_family.read in desc.h.
 *
 * Each reads one config.json layout into the descriptor. Errors: QN_FORMAT (a field),
 * QN_UNSUPPORTED. Threads: any.
 */
#ifndef QN_MODEL_FAMILIES_H
#define QN_MODEL_FAMILIES_H

#include "model/desc.h"

/* One function per family. Errors: as above. */
qn_code qn_llama_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_qwen2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_qwen3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_smollm3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_seed_oss_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_internlm3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_telechat3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_mimo_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_helium_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_ernie4_5_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_granite_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_minicpm_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_hunyuan_dense_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a,
                              qn_err *err);
qn_code qn_exaone_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_qwen_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_gemma_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_gemma2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_gemma3_text_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_phi_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_phi3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_glm_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_glm4_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_olmo2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_olmo3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_deepseek_v2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_deepseek_v3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_glm4_moe_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_glm4_moe_lite_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a,
                              qn_err *err);
qn_code qn_kimi_k25_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_cohere2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_exaone4_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_starcoder2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_llama4_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_llama4_text_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_lille_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_qwen2_moe_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_qwen3_moe_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_qwen3_5_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
qn_code qn_gemma3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);

#endif
