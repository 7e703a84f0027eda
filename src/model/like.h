/* like.h - reading the config of families that are llama but for a few fields.
 *
 * A family is one qn_like record and, where needed, a few lines after reading it.
 * Threads: any.
 */
#ifndef QN_MODEL_LIKE_H
#define QN_MODEL_LIKE_H

#include "model/desc.h"

typedef enum qn_bias { /* where the bias flag of a projection comes from */
    QN_BIAS_NONE = 0,
    QN_BIAS_ALWAYS,
    QN_BIAS_KEY /* the config key beside it; absent: false */
} qn_bias;

typedef struct qn_like {
    const char *layers_key, *eps_key;         /* NULL: num_hidden_layers, rms_norm_eps */
    bool kv_required, use_head_dim;           /* see qn_desc_heads */
    qn_bias qkv_bias, o_bias, mlp_bias;
    const char *qkv_key, *o_key, *mlp_key;    /* for QN_BIAS_KEY */
    bool untied_by_default;                   /* tie_word_embeddings absent: false */
    bool never_tied;                          /* the field is not read; there is always a head */
    bool always_tied;                         /* the field is not read; there is never a head */
    bool traditional; /* rotary pairs are (2i, 2i+1); rope_traditional is read when false */
    bool no_scaling;                          /* rope_scaling is not read */
    double theta;                             /* default of rope_theta; 0: required */
} qn_like;

/* Read a config into *d by the record. Errors: QN_FORMAT, QN_UNSUPPORTED. */
qn_code qn_like_read(qn_desc *d, const qn_like *like, const json_t *cfg, qn_arena *a, qn_err *err);

/* The same rotary table with its scaling object read or not, `dims` rotated elements. Errors:
 * QN_FORMAT, QN_UNSUPPORTED. */
qn_code qn_like_rope(qn_rope_desc *r, const qn_like *like, const json_t *cfg, uint32_t dims,
                     qn_arena *a, qn_err *err);

#endif
