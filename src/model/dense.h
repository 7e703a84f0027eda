/* dense.h - the interpreter of qn_desc, private to src/model: what a bound model holds. */
#ifndef QN_MODEL_DENSE_H
#define QN_MODEL_DENSE_H

#include "model/desc.h"

typedef struct qn_norm {
    qn_tensor w, b; /* [1, n]; b absent unless the layer norm has one */
} qn_norm;

typedef struct qn_layer {
    const qn_layer_desc *d;
    qn_norm n1, n2, n3, n4, q_norm, k_norm;
    qn_linear q, k, v, o, qkv; /* qkv or q, k, v */
    qn_linear gate, up, down, gate_up;
    qn_linear q_a, kv_a, kv_b, embed_q, unembed; /* latent attention; q is q_b if there is q_a */
    qn_tensor router_bias;
    qn_linear router, e_gate, e_up, e_down, s_gate, s_up, s_down, s_mix;
    qn_linear g_qkv, g_z, g_b, g_a, g_out;
    qn_tensor g_conv, g_dt_bias, g_a_log, g_norm;
} qn_layer;

typedef struct qn_dense {
    qn_model base;
    qn_desc d;
    qn_arena arena;
    qn_layer *layers; /* [n_layers] */
    qn_linear embed, head;
    qn_norm final_norm;
    qn_rope *ropes[QN_MAX_ROPES];
} qn_dense;

/* kv_b.c: the matrix `kv_b` [H*(n + v), L] of a raw checkpoint as the stacks `embed` [H, L, n] and
 * `unembed` [H, v, L], in the arena; quantized ones are decoded, split and quantized again, as mlx-lm
 * does. Errors: QN_NOMEM, QN_UNSUPPORTED (a form that cannot be split: names `path`). */
qn_code qn_kv_b_split(const qn_matrix *m, uint32_t n_heads, uint32_t n, uint32_t v, const char *path,
                      qn_arena *a, qn_matrix *embed, qn_matrix *unembed, qn_err *err);

/* dense.c: the forward pass. Step 7 of the data path. Shapes: logits [n_out - n_hidden, V], hidden
 * [n_hidden, E] (no failure). */
qn_tensor qn_dense_forward(qn_model *m, qn_run *r, qn_tensor *hidden);


#endif
