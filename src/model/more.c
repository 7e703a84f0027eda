/* more.c - dense families with another layout than llama's: phi, phi3, glm, glm4, olmo2, olmo3,
 * cohere2, exaone4, starcoder2, llama4 text, lille (spec models 5.1, 5.7, 5.11). */
#include <math.h>
#include <string.h>

#include "model/families.h"
#include "model/like.h"

static qn_code partial_dims(const qn_desc *d, const json_t *cfg, double dflt, uint32_t *dims,
                            qn_err *err)
{
    double part;
    qn_code rc = qn_cfg_f64_or(cfg, "partial_rotary_factor", dflt, &part, err);
    if (rc) return rc;
    if (!(part > 0 && part <= 1)) {
        return qn_err_set(err, QN_FORMAT,
                          "config.json: partial_rotary_factor is %g, must be over 0 and at most 1",
                          part);
    }
    *dims = (uint32_t)(d->layers[0].d_head * part);
    return QN_OK;
}

qn_code qn_phi_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.eps_key = "layer_norm_eps",
                                 .qkv_bias = QN_BIAS_ALWAYS,
                                 .o_bias = QN_BIAS_ALWAYS,
                                 .mlp_bias = QN_BIAS_ALWAYS,
                                 .never_tied = true,
                                 .no_scaling = true,
                                 .theta = 10000};
    (void)f;
    uint32_t dims = 0;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = partial_dims(d, cfg, 0.4, &dims, err))) return rc;
    d->layout = QN_LAYOUT_PARALLEL;
    d->attn_f32 = true;
    d->norm = QN_NORM_LAYER;
    d->mlp = QN_MLP_TWO;
    d->act = QN_GELU_TANH;
    d->head_bias = true;
    d->names.n2 = NULL;
    d->names.o = "self_attn.dense";
    d->names.up = "mlp.fc1";
    d->names.down = "mlp.fc2";
    d->names.final_norm = "model.final_layernorm";
    return qn_like_rope(&d->ropes[0], &like, cfg, dims, a, err);
}

qn_code qn_phi3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.untied_by_default = true, .no_scaling = true, .theta = 10000};
    (void)f;
    uint32_t dims = 0;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = partial_dims(d, cfg, 1, &dims, err))) return rc;
    if ((rc = qn_like_rope(&d->ropes[0], &like, cfg, dims, a, err))) return rc;
    d->mlp = QN_MLP_GLU_FUSED;
    d->names.qkv = "self_attn.qkv_proj";
    d->names.gate_up = "mlp.gate_up_proj";
    const json_t *scaling = json_object_get(cfg, "rope_scaling");
    const char *type = json_string_value(json_object_get(scaling, "type"));
    if (scaling && !json_is_null(scaling) && (!type || !json_object_get(scaling, "long_factor"))) {
        return qn_err_set(err, QN_FORMAT,
                          "config.json: rope_scaling must have the keys long_factor and type");
    }
    bool known =
        type && (!strcmp(type, "longrope") || !strcmp(type, "su") || !strcmp(type, "linear"));
    return known ? qn_rope_scaling(&d->ropes[0], scaling, cfg, a, err) : QN_OK;
}

qn_code qn_glm_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true,
                                 .use_head_dim = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .traditional = true,
                                 .no_scaling = true,
                                 .theta = 10000};
    (void)f;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    d->mlp = QN_MLP_GLU_FUSED;
    d->names.gate_up = "mlp.gate_up_proj";
    return rc;
}

qn_code qn_glm4_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true,
                                 .use_head_dim = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .never_tied = true,
                                 .no_scaling = true};
    (void)f;
    uint32_t dims = 0;
    bool traditional;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = partial_dims(d, cfg, 0, &dims, err))) return rc;
    if ((rc = qn_cfg_bool_or(cfg, "rope_traditional", true, &traditional, err))) return rc;
    if ((rc = qn_like_rope(&d->ropes[0], &like, cfg, dims, a, err))) return rc;
    d->ropes[0].traditional = traditional;
    d->layout = QN_LAYOUT_SANDWICH;
    d->mlp = QN_MLP_GLU_FUSED;
    d->names.n2 = "post_self_attn_layernorm";
    d->names.n3 = "post_attention_layernorm";
    d->names.n4 = "post_mlp_layernorm";
    d->names.gate_up = "mlp.gate_up_proj";
    return QN_OK;
}

static void post_norm(qn_desc *d, qn_qk_norm qk)
{
    d->layout = QN_LAYOUT_POST;
    d->qk_norm = qk;
    d->names.n1 = "post_attention_layernorm";
    d->names.n2 = "post_feedforward_layernorm";
}

qn_code qn_olmo2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.use_head_dim = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "attention_bias",
                                 .mlp_bias = QN_BIAS_KEY,
                                 .mlp_key = "mlp_bias",
                                 .theta = 10000};
    (void)f;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    post_norm(d, QN_QK_FULL);
    return rc;
}

/* Sliding layers rotate plainly, full layers with the scaling object. */
qn_code qn_olmo3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.use_head_dim = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "attention_bias",
                                 .untied_by_default = true};
    (void)f;
    uint32_t window;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = qn_cfg_u32(cfg, "sliding_window", 1, 1u << 30, &window, err))) return rc;
    if (!json_is_array(json_object_get(cfg, "layer_types"))) {
        for (uint32_t i = 0; i < d->n_layers; i++) d->layers[i].window = (i + 1) % 4 ? window : 0;
    } else if ((rc = qn_desc_layer_types(d, cfg, err))) {
        return rc;
    }
    d->ropes[1] = d->ropes[0];
    d->ropes[1].freqs = NULL;
    d->ropes[1].pos_scale = d->ropes[1].mscale = 1;
    d->n_ropes = 2;
    for (uint32_t i = 0; i < d->n_layers; i++) d->layers[i].rope = d->layers[i].window ? 1 : 0;
    post_norm(d, QN_QK_FULL);
    return QN_OK;
}

qn_code qn_cohere2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.eps_key = "layer_norm_eps",
                                 .use_head_dim = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "attention_bias",
                                 .always_tied = true,
                                 .traditional = true,
                                 .no_scaling = true,
                                 .theta = 50000};
    (void)f;
    double scale;
    uint32_t window, pattern;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = qn_cfg_f64_or(cfg, "logit_scale", 0.0625, &scale, err)) ||
        (rc = qn_cfg_u32_or(cfg, "sliding_window", 4096, 1u << 30, &window, err)) ||
        (rc = qn_cfg_u32_or(cfg, "sliding_window_pattern", 4, QN_MAX_LAYERS, &pattern, err))) {
        return rc;
    }
    if (pattern == 0 || window == 0) {
        return qn_err_set(
            err, QN_FORMAT,
            "config.json: sliding_window and sliding_window_pattern must be positive");
    }
    d->layout = QN_LAYOUT_PARALLEL;
    d->norm = QN_NORM_LAYER;
    d->logits_scale = (float)scale;
    d->names.n2 = NULL;
    for (uint32_t i = 0; i < d->n_layers; i++) {
        if ((i + 1) % pattern) d->layers[i].window = window;
        else d->layers[i].rope = QN_NO_ROPE;
    }
    return QN_OK;
}

/* sliding_window_pattern: a string of L and G, repeated; G layers are full and do not rotate. */
qn_code qn_exaone4_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true, .use_head_dim = true};
    (void)f;
    const char *pattern;
    uint32_t window;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = qn_cfg_str_or(cfg, "sliding_window_pattern", NULL, &pattern, err))) return rc;
    post_norm(d, QN_QK_HEAD);
    if (!pattern || !*pattern) return QN_OK;
    if ((rc = qn_cfg_u32(cfg, "sliding_window", 1, 1u << 30, &window, err))) return rc;
    for (uint32_t i = 0; i < d->n_layers; i++) {
        if (pattern[i % strlen(pattern)] == 'L') d->layers[i].window = window;
        else d->layers[i].rope = QN_NO_ROPE;
    }
    return QN_OK;
}

qn_code qn_starcoder2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.eps_key = "norm_epsilon",
                                 .kv_required = true,
                                 .qkv_bias = QN_BIAS_ALWAYS,
                                 .o_bias = QN_BIAS_ALWAYS,
                                 .mlp_bias = QN_BIAS_ALWAYS,
                                 .no_scaling = true,
                                 .theta = 100000};
    (void)f;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    d->norm = QN_NORM_LAYER;
    d->mlp = QN_MLP_TWO;
    d->act = QN_GELU;
    d->names.up = "mlp.c_fc";
    d->names.down = "mlp.c_proj";
    return rc;
}

qn_code qn_llama4_text_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {
        .kv_required = true, .use_head_dim = true, .traditional = true, .no_scaling = true};
    (void)f;
    bool qk_norm;
    uint32_t d_ff;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = qn_cfg_bool_or(cfg, "use_qk_norm", false, &qk_norm, err)) ||
        (rc = qn_cfg_u32(cfg, "intermediate_size_mlp", 1, 1u << 22, &d_ff, err))) {
        return rc;
    }
    const json_t *list = json_object_get(cfg, "no_rope_layers");
    if (!json_is_array(list) || json_array_size(list) != d->n_layers) {
        return qn_err_set(err, QN_FORMAT,
                          "config.json: no_rope_layers must be a list of %u numbers", d->n_layers);
    }
    for (uint32_t i = 0; i < d->n_layers; i++) {
        d->layers[i].d_ff = d_ff;
        if (json_integer_value(json_array_get(list, i)) == 0) d->layers[i].rope = QN_NO_ROPE;
    }
    d->qk_norm = qk_norm ? QN_QK_HEAD : QN_QK_NONE;
    d->names.q_norm = d->names.k_norm = NULL; /* head norms without a weight */
    d->names.gate = "feed_forward.gate_proj";
    d->names.up = "feed_forward.up_proj";
    d->names.down = "feed_forward.down_proj";
    d->names.head = "output";
    return QN_OK;
}

/* lille: its own field names, an inner width that follows from the model width, the norm inside
 * each block. */
qn_code qn_lille_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.layers_key = "num_hidden_layers",
                                 .kv_required = true,
                                 .always_tied = true,
                                 .traditional = true,
                                 .no_scaling = true};
    static const struct { const char *own, *common;
    } keys[] = {
        {"n_embd", "hidden_size"},
        {"n_head", "num_attention_heads"},
        {"n_kv_heads", "num_key_value_heads"},
        {"n_layer", "num_hidden_layers"},
        {"layer_norm_eps", "rms_norm_eps"},
        {"block_size", "max_position_embeddings"},
        {"rope_theta", "rope_theta"},
        {"vocab_size", "vocab_size"},
    };
    (void)f;
    json_t *common = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_object_set(common, keys[i].common, json_object_get(cfg, keys[i].own));
    }
    double width = json_number_value(json_object_get(cfg, "n_embd"));
    json_object_set_new(common, "intermediate_size",
                        json_integer(256 * (json_int_t)rint(floor(8 * width / 3) / 256)));
    qn_code rc = qn_like_read(d, &like, common, a, err);
    json_decref(common);
    d->names = (qn_names){
        .embed = "transformer.tok_embeddings",
        .layers = "transformer.layers",
        .final_norm = "transformer.norm",
        .head = "lm_head",
        .n1 = "attention.norm",
        .n2 = "feed_forward.norm",
        .qkv = "attention.qkv_proj",
        .o = "attention.out_proj",
        .gate = "feed_forward.gate_proj",
        .up = "feed_forward.up_proj",
        .down = "feed_forward.down_proj",
    };
    return rc;
}
