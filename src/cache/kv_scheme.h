/* kv_scheme.h - which codec each layer's keys and values get: from the words of a flag, from the
 * model's kv_config.json, or from a prompt cache file (docs/formats.md).
 *
 * A scheme is a small value of the caller's. It is applied to a model's KV spec before pools are
 * made of it; layers that it leaves alone keep the model's float type. Layers without KV
 * (recurrent ones) are passed over.
 * Threads: any.
 */
#ifndef QN_CACHE_KV_SCHEME_H
#define QN_CACHE_KV_SCHEME_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/kv.h"
#include "core/err.h"

enum {
    QN_KV_KEEP = 4,                /* first positions that a limited cache keeps, as mlx_lm does */
    QN_KV_GROUP = 64,              /* elements of a group where nothing else is said */
    QN_KV_CONFIG_BYTES = 1 << 20   /* most bytes of a kv_config.json */
};

typedef struct qn_kv_scheme {
    bool config;             /* codecs of kv_config.json; the next fields are not used */
    bool config_required;    /* an error when there is none; else nothing is quantized */
    uint32_t k_bits, v_bits; /* 8 or 4 for every layer; 0: the model's float type */
    uint32_t group;          /* 32, 64 or 128; 0: QN_KV_GROUP, or the cache file's */
    uint32_t max_size;       /* most positions of layers without a window, QN_KV_KEEP of them the first
                              * ones; 0: all, or what the cache file says */
    uint32_t start;          /* qn_kv_spec.quantized_start */
    const char *cache_file;  /* mlx-lm's file that a sequence will start from: if it is quantized, its
                              * codecs are taken and must be those asked for; NULL: none. Borrowed */
} qn_kv_scheme;

/* Read "off", "config", "8", "4", or keys and values apart: "k8v4", "k8v16" (16: not quantized).
 * Touches config, k_bits and v_bits. Errors: QN_INVALID (names the choices), QN_UNSUPPORTED
 * (turbo). */
qn_code qn_kv_scheme_parse(qn_kv_scheme *s, const char *text, qn_err *err);

/* Set the codecs of a spec's layers, and with max_size the window of those that have none; `dir` is
 * the model's folder. Errors: QN_NOT_FOUND (no kv_config.json, if required), those of
 * qn_kv_config_apply, qn_mlx_cache_codecs and qn_mlx_cache_limit, QN_UNSUPPORTED (a head that is not
 * whole groups: names layer, size and group), QN_INVALID (the cache file has other codecs, or another
 * limit, than were asked for: names both). */
qn_code qn_kv_scheme_apply(const qn_kv_scheme *s, const char *dir, qn_kv_spec *kv, qn_err *err);

/* Set codecs by the text of a kv_config.json. Errors: QN_FORMAT (names entry and field),
 * QN_UNSUPPORTED (bits other than 8 and 4), QN_NOMEM. */
qn_code qn_kv_config_apply(const char *text, size_t n, qn_kv_spec *kv, qn_err *err);

#endif
