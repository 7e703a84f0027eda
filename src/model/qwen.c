/* qwen.c - Qwen families with experts or gated delta layers: qwen2_moe, qwen3_moe, qwen3_5 (spec
 * models 5.3, 5.4). */
#include <string.h>

#include "model/families.h"
#include "model/like.h"

static void expert_names(qn_desc *d)
{
    d->names.router = "mlp.gate";
    d->names.e_gate = "mlp.switch_mlp.gate_proj";
    d->names.e_up = "mlp.switch_mlp.up_proj";
    d->names.e_down = "mlp.switch_mlp.down_proj";
    d->names.experts = "mlp.experts";
    d->names.s_gate = "mlp.shared_expert.gate_proj";
    d->names.s_up = "mlp.shared_expert.up_proj";
    d->names.s_down = "mlp.shared_expert.down_proj";
    d->names.s_mix = "mlp.shared_expert_gate";
}

static qn_code read_experts(qn_desc *d, const json_t *cfg, qn_err *err)
{
    qn_moe *m = &d->moe;
    qn_code rc;
    if ((rc = qn_cfg_u32(cfg, "num_experts", 0, 4096, &m->n_experts, err)) || !m->n_experts)
        return rc;
    if ((rc = qn_cfg_u32(cfg, "num_experts_per_tok", 1, 64, &m->router.k, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "moe_intermediate_size", 1, 1u << 20, &m->d_ff, err))) return rc;
    if (m->router.k > m->n_experts) {
        return qn_err_set(err, QN_FORMAT,
                          "config.json: num_experts_per_tok (%u) is more than num_experts (%u)",
                          m->router.k, m->n_experts);
    }
    m->router.kind = QN_ROUTE_SOFTMAX_ALL;
    expert_names(d);
    return QN_OK;
}

qn_code qn_qwen2_moe_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {
        .qkv_bias = QN_BIAS_ALWAYS, .never_tied = true, .no_scaling = true, .theta = 1000000};
    (void)f;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = read_experts(d, cfg, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "shared_expert_intermediate_size", 1, 1u << 20, &d->moe.d_ff_shared,
                         err)))
        return rc;
    for (uint32_t i = 0; i < d->n_layers; i++) d->layers[i].sparse = d->moe.n_experts > 0;
    return QN_OK;
}

static bool listed(const json_t *list, uint32_t i)
{
    size_t k;
    json_t *v;
    json_array_foreach(list, k, v) {
        if (json_integer_value(v) == (json_int_t)i) return true;
    }
    return false;
}

qn_code qn_qwen3_moe_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true, .use_head_dim = true, .no_scaling = true};
    (void)f;
    uint32_t every;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = read_experts(d, cfg, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "decoder_sparse_step", 1, QN_MAX_LAYERS, &every, err))) return rc;
    if ((rc = qn_cfg_bool_or(cfg, "norm_topk_prob", false, &d->moe.router.normalize, err)))
        return rc;
    const json_t *dense = json_object_get(cfg, "mlp_only_layers");
    for (uint32_t i = 0; i < d->n_layers; i++) {
        d->layers[i].sparse = d->moe.n_experts > 0 && !listed(dense, i) && (i + 1) % every == 0;
    }
    d->qk_norm = QN_QK_HEAD;
    return QN_OK;
}

/* ---- Qwen 3.5: gated attention every `interval` layers, Gated DeltaNet between ---- */

static qn_code read_gdn(qn_desc *d, const json_t *cfg, qn_err *err)
{
    qn_gdn *g = &d->gdn;
    uint32_t kernel;
    qn_code rc;
    if ((rc = qn_cfg_u32_or(cfg, "linear_num_key_heads", 16, 4096, &g->n_k_heads, err))) return rc;
    if ((rc = qn_cfg_u32_or(cfg, "linear_num_value_heads", 64, 4096, &g->n_v_heads, err)))
        return rc;
    if ((rc = qn_cfg_u32_or(cfg, "linear_key_head_dim", 192, 1024, &g->d_k, err))) return rc;
    if ((rc = qn_cfg_u32_or(cfg, "linear_value_head_dim", 128, 1024, &g->d_v, err))) return rc;
    if ((rc = qn_cfg_u32_or(cfg, "linear_conv_kernel_dim", 4, 64, &kernel, err))) return rc;
    if (!g->n_k_heads || !g->d_k || !g->d_v || kernel < 2 || !g->n_v_heads ||
        g->n_v_heads % g->n_k_heads) {
        return qn_err_set(err, QN_FORMAT,
                          "config.json: linear_num_value_heads (%u) must be a multiple of "
                          "linear_num_key_heads (%u), and the linear_* sizes positive",
                          g->n_v_heads, g->n_k_heads);
    }
    g->conv_width = kernel - 1;
    d->names.g_qkv = "linear_attn.in_proj_qkv";
    d->names.g_z = "linear_attn.in_proj_z";
    d->names.g_b = "linear_attn.in_proj_b";
    d->names.g_a = "linear_attn.in_proj_a";
    d->names.g_conv = "linear_attn.conv1d.weight";
    d->names.g_dt_bias = "linear_attn.dt_bias";
    d->names.g_a_log = "linear_attn.A_log";
    d->names.g_norm = "linear_attn.norm.weight";
    d->names.g_out = "linear_attn.out_proj";
    return QN_OK;
}

static qn_code read_rope_parameters(qn_desc *d, const json_t *cfg, qn_arena *a, qn_err *err)
{
    const json_t *p = json_object_get(cfg, "rope_parameters");
    bool nested = json_is_object(p);
    double part;
    qn_code rc = qn_cfg_f64_or(nested ? p : cfg, "partial_rotary_factor", 0.25, &part, err);
    if (rc) return rc;
    if (!(part > 0 && part <= 1)) {
        return qn_err_set(err, QN_FORMAT,
                          "config.json: partial_rotary_factor is %g, must be over 0 and at most 1", part);
    }
    uint32_t dims = (uint32_t)(d->layers[0].d_head * part);
    if ((rc = qn_rope_plain(&d->ropes[0], nested ? p : cfg, dims, 100000, false, err))) return rc;
    d->n_ropes = 1;
    return qn_rope_scaling(&d->ropes[0], nested ? p : json_object_get(cfg, "rope_scaling"), cfg, a,
                           err);
}

/* Raw releases store the convolution as [C, 1, K] and norms without their 1; MLX files [C, K, 1]
 * and whole norms. */
static bool is_raw(qn_folder *f)
{
    const qn_shards *s = qn_folder_shards(f);
    for (size_t i = 0; i < qn_shards_count(s); i++) {
        const qn_stored *t = qn_shards_at(s, i);
        if (strstr(t->name, "conv1d.weight") && t->rank == 3 && t->dims[2] != 1) return true;
    }
    return false;
}

static qn_code qwen3_5_names(qn_desc *d, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const struct { const char *probe, *prefix, *head; } forms[] = {
        {"language_model.model.norm.weight", "language_model.model.", "language_model.lm_head"},
        {"model.language_model.norm.weight", "model.language_model.", "lm_head"},
        {"model.norm.weight", "model.", "lm_head"},
    };
    static const char *const dropped[] = {"mtp.", "vision_tower", "model.visual", "visual."};
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        qn_folder_drop_prefix(f, dropped[i]);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (qn_folder_has(f, forms[i].probe))
            return qn_desc_prefix(d, forms[i].prefix, forms[i].head, a, err);
    }
    return qn_err_set(err, QN_FORMAT, "no final norm: expected the tensor \"%s\"", forms[0].probe);
}

qn_code qn_qwen3_5_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.use_head_dim = true,
                                 .untied_by_default = true,
                                 .no_scaling = true,
                                 .theta = 100000,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "attention_bias"};
    uint32_t interval, n_experts;
    const json_t *text = json_object_get(cfg, "text_config");
    if (json_is_object(text)) cfg = text;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = read_gdn(d, cfg, err)) || (rc = read_rope_parameters(d, cfg, a, err)) ||
        (rc = qn_cfg_u32_or(cfg, "full_attention_interval", 4, QN_MAX_LAYERS, &interval, err)) ||
        (rc = qn_cfg_u32_or(cfg, "num_experts", 0, 4096, &n_experts, err))) {
        return rc;
    }
    if (!interval)
        return qn_err_set(err, QN_FORMAT, "config.json: full_attention_interval must be positive");
    if (n_experts) {
        if ((rc = read_experts(d, cfg, err))) return rc;
        if ((rc = qn_cfg_u32(cfg, "shared_expert_intermediate_size", 1, 1u << 20,
                             &d->moe.d_ff_shared, err)))
            return rc;
        if ((rc = qn_cfg_bool_or(cfg, "norm_topk_prob", true, &d->moe.router.normalize, err)))
            return rc;
    }
    for (uint32_t i = 0; i < d->n_layers; i++) {
        d->layers[i].recurrent = (i + 1) % interval != 0;
        d->layers[i].sparse = n_experts > 0;
    }
    d->qk_norm = QN_QK_HEAD;
    d->attn_gate = true;
    d->norm = is_raw(f) ? QN_NORM_RMS1 : QN_NORM_RMS;
    return qwen3_5_names(d, f, a, err);
}
