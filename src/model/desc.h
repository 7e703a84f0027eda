/* desc.h - one record describes most families; dense.c interprets it.
 *
 * A family is a function that reads config.json into a qn_desc and names its tensors; the forward
 * pass, the binding of tensors and the KV needs follow from the record (spec models 4). The record
 * and its per-layer array live in the model's arena.
 */
#ifndef QN_MODEL_DESC_H
#define QN_MODEL_DESC_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/ops.h"
#include "core/arena.h"
#include "format/folder.h"
#include "model/model.h"

enum { QN_MAX_ROPES = 2, QN_MAX_LAYERS = 512, QN_NO_ROPE = 255 };

/* x: the residual stream; A: attention; M: the MLP; n1..n4: the norms. */
typedef enum qn_layout {
    QN_LAYOUT_PRE = 0,  /* h = x + A(n1(x));      y = h + M(n2(h)) */
    QN_LAYOUT_POST,     /* h = x + n1(A(x));      y = h + n2(M(h)) */
    QN_LAYOUT_SANDWICH, /* h = x + n2(A(n1(x)));  y = h + n4(M(n3(h))) */
    QN_LAYOUT_PARALLEL  /* y = x + A(n1(x)) + M(n1(x)) */
} qn_layout;

typedef enum qn_norm_kind {
    QN_NORM_RMS = 0, /* weight w */
    QN_NORM_RMS1,    /* weight 1 + w, the sum rounded to the weight's type */
    QN_NORM_LAYER    /* layer norm; its bias tensor is optional */
} qn_norm_kind;

typedef enum qn_mlp_kind {
    QN_MLP_GLU = 0,   /* down(act(gate x) * up x) */
    QN_MLP_GLU_FUSED, /* gate and up are the halves of one matrix */
    QN_MLP_TWO        /* down(act(up x)) */
} qn_mlp_kind;

typedef enum qn_qk_norm { QN_QK_NONE = 0, QN_QK_HEAD, QN_QK_FULL } qn_qk_norm;

/* Names below "LAYERS.N."; NULL where a family has no such tensor. */
typedef struct qn_names {
    const char *embed, *layers, *final_norm, *head; /* "model.embed_tokens", "model.layers", ... */
    const char *n1, *n2, *n3, *n4;
    const char *q, *k, *v, *o, *qkv; /* qkv: rows [q | k | v] of one matrix, instead of q, k, v */
    const char *q_norm, *k_norm;
    const char *gate, *up, *down, *gate_up;
    const char *q_a, *q_b, *kv_a, *kv_b;     /* latent attention; q_a NULL: q alone */
    const char *q_a_norm, *kv_a_norm, *embed_q, *unembed; /* or kv_b, of raw checkpoints or for good */
    const char *router;                      /* of sparse layers */
    const char *router_bias;                 /* for the choice of experts only; NULL: none */
    const char *e_gate, *e_up, *e_down;      /* stacks of expert matrices */
    const char *turned_gate_up, *turned_down; /* raw checkpoints: tensors of transposed stacks, or NULL */
    const char *experts; /* raw checkpoints: "EXPERTS.e.gate_proj" and so on, stacked at load */
    const char *s_gate, *s_up, *s_down, *s_mix; /* shared expert and its gate; NULL: none */
    const char *g_qkv, *g_z, *g_b, *g_a, *g_conv, *g_dt_bias, *g_a_log, *g_norm,
        *g_out; /* gated delta layers */
} qn_names;

typedef struct qn_layer_desc {
    uint32_t n_heads, n_kv_heads, d_head, d_ff;
    uint32_t window; /* 0: full attention */
    bool chunked;    /* the window is a chunk: it does not slide */
    uint8_t rope;    /* index into qn_desc.ropes, or QN_NO_ROPE */
    bool sparse;     /* experts instead of one MLP */
    bool recurrent;  /* gated delta rule instead of attention */
    bool latent;     /* latent attention (qn_mla): d_head is that of its queries */
} qn_layer_desc;

/* Experts of the sparse layers (spec models 3.6, 3.7). */
typedef struct qn_moe {
    uint32_t n_experts, d_ff, d_ff_shared; /* d_ff_shared 0: no shared expert */
    qn_router router;
} qn_moe;

/* Gated DeltaNet of the recurrent layers (spec models 3.8). */
typedef struct qn_gdn {
    uint32_t n_k_heads, n_v_heads, d_k, d_v, conv_width; /* conv_width: K-1 */
} qn_gdn;

/* Latent attention (spec models 3.10): sizes of the latents of q (0: none) and of k and v, of the
 * parts of a query head without and with position, and of a head's result. */
typedef struct qn_mla {
    uint32_t q_lora, kv_lora, d_nope, d_rope, d_v;
    float eps; /* of the latents' norms */
    bool expands; /* the heads' keys and values are made by kv_b and stored, as if there were no latent */
} qn_mla;

typedef struct qn_desc {
    uint32_t n_vocab, n_layers, d_model, max_positions;
    qn_layer_desc *layers; /* [n_layers] */
    qn_names names;
    qn_layout layout;
    qn_norm_kind norm;
    float norm_eps;
    qn_qk_norm qk_norm;
    bool rope_before_norm;              /* q and k are rotated before their norm */
    bool qk_norm_rotated;               /* only layers that rotate q and k norm them */
    float qk_norm_eps;                  /* 0: norm_eps */
    qn_pos_scale query_scale;           /* of queries in layers that do not rotate */
    bool qkv_bias, o_bias, mlp_bias, head_bias;
    qn_mlp_kind mlp;
    qn_act act;
    bool attn_f32; /* queries are widened to float32 for attention, its result cast back */
    bool attn_gate; /* q has a gate beside every head; attention is multiplied by its sigmoid */
    qn_moe moe;
    qn_gdn gdn;
    qn_mla mla;
    bool tied;                          /* the head is the embedding */
    bool drop_head_if_tied;             /* a lm_head.weight beside a tied head is ignored */
    qn_rope_desc ropes[QN_MAX_ROPES];   /* freqs point into the arena */
    uint32_t n_ropes;
    float attn_scale;                   /* 0: 1/sqrt(d_head) */
    float attn_softcap, logits_softcap; /* 0: none */
    float embed_scale, residual_scale; /* 1: none */
    float head_in_scale, logits_scale; /* before and after the head; 1: none */
    uint32_t extra_init_draws; /* layers that mlx-lm builds and drops (qn_model_info.n_init_draws) */
} qn_desc;

/* A family: model_type and the function that reads its config. `cfg` is the text model's config.
 * Errors: QN_FORMAT (a field), QN_UNSUPPORTED (a value that this program cannot run). */
typedef struct qn_family {
    const char *model_type;
    qn_code (*read)(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err);
} qn_family;

/* The entry of a model_type, aliases resolved; NULL if there is none (no failure). */
const qn_family *qn_family_find(const char *model_type);

/* Fill in what most families share: sizes (layers_key and eps_key name two of them), names of the
 * llama layout, scalars of 1 (no tensors are touched). Errors: QN_FORMAT. */
qn_code qn_desc_base(qn_desc *d, const json_t *cfg, const char *layers_key, const char *eps_key,
                     qn_arena *a, qn_err *err);

/* Heads, the same in every layer. kv_required: null or a missing num_key_value_heads is an error,
 * else it is num_attention_heads. use_head_dim: head_dim is read; absent or unread it is
 * hidden_size / heads. Errors: QN_FORMAT. */
qn_code qn_desc_heads(qn_desc *d, const json_t *cfg, bool kv_required, bool use_head_dim,
                      qn_err *err);

/* layer_types: "sliding_attention" layers get the window sliding_window; at least one layer must be
 * full. Absent or null: all full. Errors: QN_FORMAT, QN_UNSUPPORTED. */
qn_code qn_desc_layer_types(qn_desc *d, const json_t *cfg, qn_err *err);

/* Name embedding, layers and final norm under another prefix ("language_model.model."), and the
 * head. Errors: QN_NOMEM. */
qn_code qn_desc_prefix(qn_desc *d, const char *prefix, const char *head, qn_arena *a, qn_err *err);

/* A rotary description without scaling: rope_theta (or theta_dflt), `dims` rotated elements.
 * Errors: QN_FORMAT. */
qn_code qn_rope_plain(qn_rope_desc *out, const json_t *cfg, uint32_t dims, double theta_dflt,
                      bool traditional, qn_err *err);

/* Give a plain description its table of base^(2k/d), for references that build one. Errors:
 * QN_NOMEM. */
qn_code qn_rope_table(qn_rope_desc *r, qn_arena *a, qn_err *err);

/* Apply a scaling object (NULL or null: none) to a plain description. Kinds: default, linear,
 * llama3, yarn and its aliases, longrope. Errors: QN_FORMAT, QN_UNSUPPORTED (an unknown kind: names
 * it). */
qn_code qn_rope_scaling(qn_rope_desc *out, const json_t *scaling, const json_t *cfg, qn_arena *a,
                        qn_err *err);

/* Bind the tensors that `d` names, load them onto the device, and make the model. Takes `arena`
 * in every case. Errors: QN_FORMAT (missing, extra or misshaped tensors), and the device's. */
qn_code qn_dense_open(qn_model **out, const qn_desc *d, qn_folder *f, qn_device *dev,
                      qn_arena *arena, const qn_model_opts *opts, qn_err *err);

#endif
