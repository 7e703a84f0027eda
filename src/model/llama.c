/* llama.c - the llama family and those that differ from it in fields and names only (spec
 * models 5.1, 5.2). */
#include "model/families.h"

#include <math.h>
#include <string.h>

#include "model/like.h"

qn_code qn_llama_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
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
    return rc ? rc : qn_desc_layer_types(d, cfg, err);
}

qn_code qn_qwen2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true, .qkv_bias = QN_BIAS_ALWAYS, .theta = 1000000};
    (void)f;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (!rc && !d->max_positions) d->max_positions = 32768;
    return rc;
}

qn_code qn_qwen3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true, .use_head_dim = true};
    (void)f;
    if (!json_is_boolean(json_object_get(cfg, "tie_word_embeddings"))) {
        return qn_err_set(err, QN_FORMAT, "config.json: tie_word_embeddings must be true or false");
    }
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    d->qk_norm = QN_QK_HEAD;
    return rc;
}

/* no_rope_layers[i] is 1 where layer i rotates; else every interval-th layer does not. */
qn_code qn_smollm3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    uint32_t interval;
    qn_code rc = qn_llama_read(d, cfg, f, a, err);
    if (rc || (rc = qn_cfg_u32_or(cfg, "no_rope_layer_interval", 4, QN_MAX_LAYERS, &interval, err)))
        return rc;
    const json_t *list = json_object_get(cfg, "no_rope_layers");
    bool given = json_is_array(list);
    if ((given && json_array_size(list) != d->n_layers) || (!given && interval == 0)) {
        return qn_err_set(err, QN_FORMAT, "config.json: no_rope_layers must have %u entries, and "
                          "no_rope_layer_interval must be positive", d->n_layers);
    }
    for (uint32_t i = 0; i < d->n_layers; i++) {
        bool rotates =
            given ? json_integer_value(json_array_get(list, i)) != 0 : (i + 1) % interval != 0;
        if (!rotates) d->layers[i].rope = QN_NO_ROPE;
        d->layers[i].window = 0; /* the reference keeps plain caches: windows are not applied */
    }
    return QN_OK;
}

qn_code qn_seed_oss_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true,
                                 .use_head_dim = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "attention_out_bias",
                                 .mlp_bias = QN_BIAS_KEY,
                                 .mlp_key = "mlp_bias",
                                 .theta = 10000};
    (void)f;
    return qn_like_read(d, &like, cfg, a, err);
}

qn_code qn_internlm3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "qkv_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "qkv_bias",
                                 .mlp_bias = QN_BIAS_KEY,
                                 .mlp_key = "bias",
                                 .untied_by_default = true,
                                 .theta = 10000};
    (void)f;
    return qn_like_read(d, &like, cfg, a, err);
}

qn_code qn_telechat3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true,
                                 .use_head_dim = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "attention_bias",
                                 .mlp_bias = QN_BIAS_KEY,
                                 .mlp_key = "mlp_bias",
                                 .untied_by_default = true};
    (void)f;
    return qn_like_read(d, &like, cfg, a, err);
}

qn_code qn_mimo_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {
        .kv_required = true, .qkv_bias = QN_BIAS_ALWAYS, .untied_by_default = true, .theta = 10000};
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    qn_folder_drop_prefix(f, "model.mtp_layers.");
    return rc;
}

qn_code qn_helium_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .mlp_bias = QN_BIAS_KEY,
                                 .mlp_key = "mlp_bias",
                                 .traditional = true,
                                 .no_scaling = true,
                                 .never_tied = true};
    (void)f;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    d->extra_init_draws = 1; /* the head is built twice */
    return rc;
}

qn_code qn_ernie4_5_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true,
                                 .use_head_dim = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "use_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "use_bias",
                                 .mlp_bias = QN_BIAS_KEY,
                                 .mlp_key = "use_bias",
                                 .traditional = true,
                                 .no_scaling = true};
    (void)f;
    return qn_like_read(d, &like, cfg, a, err);
}

qn_code qn_granite_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "attention_bias",
                                 .mlp_bias = QN_BIAS_KEY,
                                 .mlp_key = "mlp_bias"};
    (void)f;
    double embed, attention, residual, logits;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = qn_cfg_f64(cfg, "embedding_multiplier", &embed, err)) ||
        (rc = qn_cfg_f64(cfg, "attention_multiplier", &attention, err)) ||
        (rc = qn_cfg_f64(cfg, "residual_multiplier", &residual, err)) ||
        (rc = qn_cfg_f64(cfg, "logits_scaling", &logits, err))) {
        return rc;
    }
    if (logits == 0 || attention <= 0) {
        return qn_err_set(err, QN_FORMAT,
                          "config.json: logits_scaling and attention_multiplier must not be 0");
    }
    d->embed_scale = (float)embed;
    d->attn_scale = (float)attention;
    d->residual_scale = (float)residual;
    d->logits_scale = (float)(1 / logits);
    return QN_OK;
}

qn_code qn_minicpm_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true, .untied_by_default = true, .theta = 1000000};
    double depth, embed, base;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = qn_cfg_f64(cfg, "scale_depth", &depth, err)) ||
        (rc = qn_cfg_f64(cfg, "scale_emb", &embed, err)) ||
        (rc = qn_cfg_f64(cfg, "dim_model_base", &base, err))) {
        return rc;
    }
    d->embed_scale = (float)embed;
    d->residual_scale = (float)(depth / sqrt(d->n_layers));
    if (!d->tied) d->head_in_scale = (float)(base / d->d_model);
    if (!d->tied && !qn_folder_has(f, "lm_head.weight"))
        d->tied = true; /* the head is a copy of the embedding */
    return QN_OK;
}

qn_code qn_hunyuan_dense_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true,
                                 .use_head_dim = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "attention_bias",
                                 .untied_by_default = true,
                                 .no_scaling = true,
                                 .theta = 10000};
    (void)f;
    bool qk_norm;
    double alpha;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = qn_cfg_bool_or(cfg, "use_qk_norm", true, &qk_norm, err))) return rc;
    rc = qn_cfg_f64_or(json_object_get(cfg, "rope_scaling"), "alpha", 1, &alpha, err);
    if (rc) return rc;
    double dims = d->ropes[0].dims;
    d->ropes[0].base = (float)(d->ropes[0].base * pow(alpha, dims / (dims - 2)));
    if ((rc = qn_rope_table(&d->ropes[0], a, err))) return rc;
    d->qk_norm = qk_norm ? QN_QK_HEAD : QN_QK_NONE;
    d->rope_before_norm = true;
    d->names.q_norm = "self_attn.query_layernorm";
    d->names.k_norm = "self_attn.key_layernorm";
    return QN_OK;
}

qn_code qn_exaone_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.layers_key = "num_layers",
                                 .eps_key = "layer_norm_epsilon",
                                 .kv_required = true,
                                 .use_head_dim = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "attention_bias",
                                 .mlp_bias = QN_BIAS_KEY,
                                 .mlp_key = "mlp_bias"};
    (void)f;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    d->names = (qn_names){
        .embed = "transformer.wte",
        .layers = "transformer.h",
        .final_norm = "transformer.ln_f",
        .head = "lm_head",
        .n1 = "ln_1",
        .n2 = "ln_2",
        .q = "attn.attention.q_proj",
        .k = "attn.attention.k_proj",
        .v = "attn.attention.v_proj",
        .o = "attn.attention.out_proj",
        .gate = "mlp.c_fc_0",
        .up = "mlp.c_fc_1",
        .down = "mlp.c_proj",
    };
    return rc;
}

/* Qwen 1: fused qkv with bias, an MLP half as wide as stated, the activation on w2. */
qn_code qn_qwen_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.eps_key = "layer_norm_epsilon",
                                 .qkv_bias = QN_BIAS_ALWAYS,
                                 .never_tied = true,
                                 .no_scaling = true,
                                 .theta = 10000};
    (void)f;
    bool no_bias;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = qn_cfg_bool_or(cfg, "no_bias", true, &no_bias, err))) return rc;
    if ((rc = qn_rope_plain(&d->ropes[0], NULL, d->layers[0].d_head, 10000, false, err))) return rc;
    d->o_bias = d->mlp_bias = d->head_bias = !no_bias;
    for (uint32_t i = 0; i < d->n_layers; i++) d->layers[i].d_ff /= 2;
    d->names = (qn_names){
        .embed = "transformer.wte",
        .layers = "transformer.h",
        .final_norm = "transformer.ln_f",
        .head = "lm_head",
        .n1 = "ln_1",
        .n2 = "ln_2",
        .qkv = "attn.c_attn",
        .o = "attn.c_proj",
        .gate = "mlp.w2",
        .up = "mlp.w1",
        .down = "mlp.c_proj",
    };
    return QN_OK;
}
