/* mlx_cache.h - mlx-lm's prompt cache files: safetensors with the caches of every layer.
 *
 * docs/formats.md has the names of tensors and metadata. Written is the form of mlx-lm 0.32; read is
 * that one and the one before, which kept the numbers of a cache in the metadata. KVCache,
 * QuantizedKVCache, RotatingKVCache, ChunkedKVCache and ArraysCache are known; the file is checked
 * against the model's KV spec.
 * Threads: any, one call per file.
 */
#ifndef QN_CACHE_MLX_CACHE_H
#define QN_CACHE_MLX_CACHE_H

#include "cache/image.h"
#include "core/buf.h"
#include "format/shard.h"

enum { QN_MAX_CACHE_TOKENS = 1 << 24 }; /* positions of a cache file */

/* Can a file hold an image of n_tokens, coded or not? To be asked before it is computed. Errors:
 * QN_UNSUPPORTED (a layer that mlx-lm has no cache for: names it). */
qn_code qn_mlx_cache_check(const qn_kv_spec *spec, bool coded, qn_err *err);

/* Write the image. `model` and `tokenizer_config` (JSON) become metadata. The file appears whole or
 * not at all. Errors: QN_IO, QN_NOMEM, those of qn_mlx_cache_check. */
qn_code qn_mlx_cache_write(const char *path, const qn_image *img, const qn_kv_spec *spec,
                           const char *model, const char *tokenizer_config, qn_err *err);

/* The file's name as mlx-lm writes it: with .safetensors at the end. Errors: QN_LIMIT (longer than
 * cap). */
qn_code qn_mlx_cache_path(char *out, size_t cap, const char *name, qn_err *err);

/* Append the name of the model that a file was made for, nothing if it does not say. Errors: QN_IO,
 * QN_NOT_FOUND, QN_FORMAT, QN_NOMEM. */
qn_code qn_mlx_cache_model(const char *path, qn_buf *model, qn_err *err);

/* The codecs of a file's layers, for pools that take what it holds: codecs[spec->n_layers], of layers
 * that are not quantized the spec's float form. *coded: some are quantized. Errors: QN_IO,
 * QN_NOT_FOUND, QN_FORMAT, QN_INVALID (made for another model), QN_UNSUPPORTED (another kind of
 * cache, bits other than 8 and 4), QN_LIMIT. */
qn_code qn_mlx_cache_codecs(const char *path, const qn_kv_spec *spec, qn_kv_codec *codecs,
                            bool *coded, qn_err *err);

/* To how many positions a file limits the layers to which the spec gives no window, and how many of
 * these are the first ones; 0 and 0: there is no limit. Errors: those of qn_mlx_cache_codecs;
 * QN_UNSUPPORTED (layers with different limits). */
qn_code qn_mlx_cache_limit(const char *path, const qn_kv_spec *spec, uint32_t *max_size,
                           uint32_t *keep, qn_err *err);

/* Read a file into a new image. If it has quantized layers, the spec's codecs must be the file's;
 * else the spec may have any. Errors: QN_IO, QN_NOT_FOUND, QN_FORMAT, QN_INVALID (made for another
 * model, or quantized in another way), QN_UNSUPPORTED (another kind of cache), QN_LIMIT, QN_NOMEM. */
qn_code qn_mlx_cache_read(const char *path, const qn_kv_spec *spec, qn_image **out, qn_err *err);

/* The same from an open safetensors file. Errors: the same. */
qn_code qn_mlx_cache_read_codecs(const qn_shard *file, const qn_kv_spec *spec, qn_kv_codec *codecs,
                                 bool *coded, qn_err *err);
qn_code qn_mlx_cache_read_limit(const qn_shard *file, const qn_kv_spec *spec, uint32_t *max_size,
                                uint32_t *keep, qn_err *err);
qn_code qn_mlx_cache_parse(const qn_shard *file, const qn_kv_spec *spec, qn_image **out,
                           qn_err *err);

#endif
