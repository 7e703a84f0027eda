/* folder.h - a model folder: config.json, its quantization block, and its matrices by module path.
 *
 * Owns the parsed config and the mapped tensors. Families (src/model) ask it for fields and
 * tensors; nothing here knows an architecture.
 * Threads: open and close from one thread; reads from any thread after that.
 */
#ifndef QN_FORMAT_FOLDER_H
#define QN_FORMAT_FOLDER_H

#include <jansson.h>
#include <stdbool.h>

#include "core/err.h"
#include "format/quant.h"
#include "format/shard.h"

typedef struct qn_folder qn_folder;

/* Open DIR: config.json (generation_config.json's eos_token_id replaces config's when truthy), and
 * the tensors unless config_only. Errors: QN_NOT_FOUND "not a model folder" when config.json is
 * missing, QN_FORMAT, and those of qn_shards_open. */
qn_code qn_folder_open(qn_folder **out, const char *dir, bool config_only, qn_err *err);
void qn_folder_close(qn_folder *f);

const char *qn_folder_dir(const qn_folder *f);
const json_t *qn_folder_config(const qn_folder *f);     /* borrowed until close */
const json_t *qn_folder_generation(const qn_folder *f); /* generation_config.json or NULL */
const qn_shards *qn_folder_shards(const qn_folder *f);  /* NULL if config_only */

/* End-of-text ids from generation_config/config (top level only): writes up to cap ids, returns how
 * many there are (no failure). */
size_t qn_folder_eos(const qn_folder *f, uint32_t *ids, size_t cap);

/* The quantization of module `path` by the rules of spec models 1.3: a per-module entry wins; else
 * quantized iff `<path>.scales` exists, with the top-level values. Entries without `mode` are
 * affine if `<path>.biases` exists. A config_only folder answers from config.json alone, as if the
 * module were quantized when the file says so for the folder.
 * Errors: QN_FORMAT, QN_UNSUPPORTED, QN_INVALID. */
qn_code qn_folder_qspec(const qn_folder *f, const char *path, qn_qspec *out, qn_err *err);

/* Bind the matrix of module `path` ("model.layers.0.self_attn.q_proj"): `.weight` and, if
 * quantized, `.scales` and `.biases`, with shapes checked against [n_experts,] n_out, n_in
 * (0 = take from the file). Marks the tensors as used. Errors: QN_NOT_FOUND (names the tensor),
 * QN_FORMAT (names the tensor, what it has and what is right), QN_INVALID. */
qn_code qn_folder_matrix(qn_folder *f, const char *path, uint32_t n_experts, uint32_t n_out,
                         uint32_t n_in, qn_matrix *out, qn_err *err);

/* Bind a vector or small tensor `name` with the given element count (0 = any). Marks it as used.
 * Errors: QN_NOT_FOUND for a missing tensor (with optional=true it is QN_OK and *out NULL),
 * QN_FORMAT for another count. */
qn_code qn_folder_vector(qn_folder *f, const char *name, uint64_t count, bool optional,
                         const qn_stored **out, qn_err *err);

/* True if the folder has this tensor (no failure). */
bool qn_folder_has(const qn_folder *f, const char *name);

/* Mark a tensor as deliberately dropped by a sanitize rule (no failure; unknown names are fine). */
void qn_folder_drop(qn_folder *f, const char *name);

/* The same for every tensor whose name starts with `prefix` (no failure). */
void qn_folder_drop_prefix(qn_folder *f, const char *prefix);

/* After binding: error naming the first unused tensors and their number. Errors: QN_FORMAT. */
qn_code qn_folder_check_all_used(const qn_folder *f, qn_err *err);

/* ---- config fields, shared by families. "null" is reported as absent by the *_or forms unless the
 * family asks with qn_cfg_is_null. Integral floats are integers. ---- */

/* True if the key is there and holds null (no failure). */
bool qn_cfg_is_null(const json_t *cfg, const char *key);

/* Required fields. Errors: QN_FORMAT naming the key, what it holds and what is right. */
qn_code qn_cfg_u32(const json_t *cfg, const char *key, uint32_t min, uint32_t max, uint32_t *out,
                   qn_err *err);
qn_code qn_cfg_f64(const json_t *cfg, const char *key, double *out, qn_err *err);

/* Optional fields, a default for absent or null. Errors: QN_FORMAT for a wrong type or range. */
qn_code qn_cfg_u32_or(const json_t *cfg, const char *key, uint32_t dflt, uint32_t max,
                      uint32_t *out, qn_err *err);
qn_code qn_cfg_f64_or(const json_t *cfg, const char *key, double dflt, double *out, qn_err *err);
qn_code qn_cfg_bool_or(const json_t *cfg, const char *key, bool dflt, bool *out, qn_err *err);
/* NULL dflt allowed; the string is borrowed from cfg. Errors: QN_FORMAT for a wrong type. */
qn_code qn_cfg_str_or(const json_t *cfg, const char *key, const char *dflt, const char **out,
                      qn_err *err);

#endif
