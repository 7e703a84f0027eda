/* gguf_family.h - the GGUF architectures that can be imported, and their numbers.
 *
 * Shared by gguf_import.c (tensors) and gguf_config.c (config.json). Threads: any.
 */
#ifndef QN_TUNE_GGUF_FAMILY_H
#define QN_TUNE_GGUF_FAMILY_H

#include "tune/job.h"

enum { /* what a family's tensors and config have beside the plain llama shape */
    QN_FAM_PERMUTED = 1,  /* Q and K rows are interleaved for rope */
    QN_FAM_QK_NORM = 2,   /* norms on the heads of Q and K */
    QN_FAM_EXPERTS = 4,   /* the MLP is a router with expert stacks */
    QN_FAM_NORM_PLUS = 8, /* norm gains are stored with 1 added */
    QN_FAM_SANDWICH = 16, /* norms before and after attention and MLP */
    QN_FAM_BIAS = 32,     /* Q, K and V have biases in every model of the family */
    QN_FAM_GELU = 64
};

typedef struct qn_gguf_family {
    const char *arch, *model_type, *class_name;
    unsigned traits; /* QN_FAM_ bits */
} qn_gguf_family;

typedef struct qn_gguf_dims { /* read from the keys; the comment gives the key behind "ARCH." */
    uint64_t n_layers;        /* block_count */
    uint64_t d_model;         /* embedding_length */
    uint64_t d_ff;            /* feed_forward_length */
    uint64_t n_heads, n_kv_heads; /* attention.head_count, attention.head_count_kv */
    uint64_t d_head;          /* attention.key_length, else d_model / n_heads */
    uint64_t context;         /* context_length */
    double rope_theta;        /* rope.freq_base */
} qn_gguf_dims;

/* The family of general.architecture. Errors: QN_UNSUPPORTED, listing the supported ones. */
qn_code qn_gguf_family_of(const qn_gguf *g, const qn_gguf_family **out, qn_err *err);

/* Read the dimensions. Errors: QN_NOT_FOUND or QN_FORMAT naming the key; QN_UNSUPPORTED for
 * features that the family's MLX model does not have. */
qn_code qn_gguf_read_dims(const qn_gguf *g, const qn_gguf_family *f, qn_gguf_dims *d, qn_err *err);

/* Build job->config, model_type and name. `dtype` is the type that floats are written in.
 * Errors: QN_FORMAT, QN_UNSUPPORTED, QN_NOMEM. */
qn_code qn_gguf_config(qn_job *job, const qn_gguf_family *f, const qn_gguf_dims *d, qn_dtype dtype,
                       qn_err *err);

#endif
