/* deepseek.c - families with experts chosen by sigmoids, most of them with latent attention:
 * deepseek_v3 and its relatives, glm4_moe (spec models 3.10, 5.8, 5.9). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/families.h"
#include "model/like.h"

/* mlx-lm has a default for every number. */
static json_t *with_defaults(const json_t *cfg, json_t *defaults)
{
    const char *key;
    json_t *value, *all = defaults;
    json_object_foreach((json_t *)(uintptr_t)cfg, key, value) {
        if (all && json_object_set(all, key, value)) json_decref(all), all = NULL;
    }
    return all;
}

static qn_code read_mla(qn_desc *d, const json_t *cfg, qn_err *err)
{
    qn_mla *m = &d->mla;
    uint32_t heads;
    qn_code rc;
    if ((rc = qn_cfg_u32(cfg, "num_attention_heads", 1, 1u << 12, &heads, err))) return rc;
    if ((rc = qn_cfg_u32_or(cfg, "q_lora_rank", 0, 1u << 16, &m->q_lora, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "kv_lora_rank", 1, 1u << 16, &m->kv_lora, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "qk_nope_head_dim", 1, 1024, &m->d_nope, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "qk_rope_head_dim", 1, 1024, &m->d_rope, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "v_head_dim", 1, 1024, &m->d_v, err))) return rc;
    if ((rc = qn_cfg_bool_or(cfg, "attention_bias", false, &d->qkv_bias, err))) return rc;
    d->o_bias = d->qkv_bias;
    for (uint32_t i = 0; i < d->n_layers; i++) {
        d->layers[i].latent = true;
        d->layers[i].n_heads = heads;
        d->layers[i].n_kv_heads = m->expands ? heads : 1;
        d->layers[i].d_head = m->d_nope + m->d_rope;
    }
    d->names.q_a = "self_attn.q_a_proj";
    d->names.q_a_norm = "self_attn.q_a_layernorm";
    d->names.q_b = "self_attn.q_b_proj";
    d->names.kv_a = "self_attn.kv_a_proj_with_mqa";
    d->names.kv_a_norm = "self_attn.kv_a_layernorm";
    d->names.kv_b = "self_attn.kv_b_proj";
    d->names.embed_q = "self_attn.embed_q";
    d->names.unembed = "self_attn.unembed_out";
    return QN_OK;
}

/* The rotary table and the scale of scores, which the scaling's factor enters. */
static qn_code read_positions(qn_desc *d, const json_t *cfg, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.traditional = true};
    const json_t *scaling = json_object_get(cfg, "rope_scaling");
    double all = 0, factor = 1, scale = pow(d->mla.d_nope + d->mla.d_rope, -0.5);
    qn_code rc = qn_like_rope(&d->ropes[0], &like, cfg, d->mla.d_rope, a, err);
    d->n_ropes = 1;
    if (rc) return rc;
    if (json_is_object(scaling)) {
        if ((rc = qn_cfg_f64_or(scaling, "mscale_all_dim", 0, &all, err))) return rc;
        if (all != 0 && (rc = qn_cfg_f64(scaling, "factor", &factor, err))) return rc;
    }
    if (factor > 1) {
        double s = 0.1 * all * log(factor) + 1.0;
        scale = scale * s * s;
    }
    d->attn_scale = (float)scale;
    return QN_OK;
}

static void expert_names(qn_names *n)
{
    n->router = "mlp.gate";
    n->router_bias = "mlp.gate.e_score_correction_bias";
    n->e_gate = "mlp.switch_mlp.gate_proj";
    n->e_up = "mlp.switch_mlp.up_proj";
    n->e_down = "mlp.switch_mlp.down_proj";
    n->experts = "mlp.experts";
    n->s_gate = "mlp.shared_experts.gate_proj";
    n->s_up = "mlp.shared_experts.up_proj";
    n->s_down = "mlp.shared_experts.down_proj";
}

/* A word that must be the only one that mlx-lm knows. */
static qn_code check_word(const json_t *cfg, const char *key, const char *right, qn_err *err)
{
    const char *word;
    qn_code rc = qn_cfg_str_or(cfg, key, right, &word, err);
    if (rc || !strcmp(word, right)) return rc;
    return qn_err_set(err, QN_UNSUPPORTED, "config.json: not supported yet: %s \"%.40s\"; \"%s\" is",
                      key, word, right);
}

static qn_code check_groups(const qn_moe *m, qn_err *err)
{
    const qn_router *r = &m->router;
    if (r->k > m->n_experts)
        return qn_err_set(err, QN_FORMAT,
                          "config.json: num_experts_per_tok (%u) is more than n_routed_experts (%u)",
                          r->k, m->n_experts);
    if (r->n_groups > 1 && (m->n_experts % r->n_groups || m->n_experts < 2 * r->n_groups ||
                            r->n_kept > r->n_groups))
        return qn_err_set(err, QN_FORMAT,
                          "config.json: %u experts in %u groups (n_group) of which %u (topk_group) are "
                          "kept; groups must be equal, of two experts or more, and as many as are kept",
                          m->n_experts, r->n_groups, r->n_kept);
    return QN_OK;
}

typedef qn_code router_fn(qn_router *r, const json_t *cfg, qn_err *err);

static qn_code read_sigmoids(qn_router *r, const json_t *cfg, qn_err *err)
{
    double scale;
    qn_code rc;
    if ((rc = check_word(cfg, "topk_method", "noaux_tc", err))) return rc;
    if ((rc = check_word(cfg, "scoring_func", "sigmoid", err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "num_experts_per_tok", 1, 64, &r->k, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "n_group", 1, 4096, &r->n_groups, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "topk_group", 1, 4096, &r->n_kept, err))) return rc;
    if ((rc = qn_cfg_bool_or(cfg, "norm_topk_prob", true, &r->normalize, err))) return rc;
    if ((rc = qn_cfg_f64(cfg, "routed_scaling_factor", &scale, err))) return rc;
    r->kind = QN_ROUTE_SIGMOID;
    r->scale = (float)scale;
    return QN_OK;
}

/* deepseek_v2's: a softmax over all experts; groups only when the method says so. */
static qn_code read_softmax(qn_router *r, const json_t *cfg, qn_err *err)
{
    const char *method;
    double scale;
    qn_code rc;
    if ((rc = qn_cfg_str_or(cfg, "topk_method", "greedy", &method, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "num_experts_per_tok", 1, 64, &r->k, err))) return rc;
    if ((rc = qn_cfg_f64(cfg, "routed_scaling_factor", &scale, err))) return rc;
    r->kind = QN_ROUTE_SOFTMAX_GROUPS;
    r->scale = (float)scale;
    r->n_groups = r->n_kept = 1;
    if (strcmp(method, "group_limited_greedy")) return QN_OK;
    if ((rc = qn_cfg_u32(cfg, "n_group", 1, 4096, &r->n_groups, err))) return rc;
    return qn_cfg_u32(cfg, "topk_group", 1, 4096, &r->n_kept, err);
}

static qn_code read_experts(qn_desc *d, const json_t *cfg, router_fn *read_router, qn_err *err)
{
    qn_moe *m = &d->moe;
    uint32_t n_shared, first, every;
    qn_code rc;
    if ((rc = qn_cfg_u32_or(cfg, "n_routed_experts", 0, 4096, &m->n_experts, err)) || !m->n_experts)
        return rc;
    if ((rc = qn_cfg_u32_or(cfg, "n_shared_experts", 0, 64, &n_shared, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "moe_intermediate_size", 1, 1u << 20, &m->d_ff, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "first_k_dense_replace", 0, QN_MAX_LAYERS, &first, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "moe_layer_freq", 1, QN_MAX_LAYERS, &every, err))) return rc;
    if ((rc = read_router(&m->router, cfg, err)) || (rc = check_groups(m, err))) return rc;
    m->d_ff_shared = n_shared * m->d_ff;
    for (uint32_t i = 0; i < d->n_layers; i++) d->layers[i].sparse = i >= first && i % every == 0;
    expert_names(&d->names);
    if (m->router.kind != QN_ROUTE_SIGMOID) d->names.router_bias = NULL;
    return QN_OK;
}

/* Layers past the last one predict more tokens ahead (MTP): no graph uses them. `layers` is their
 * prefix, "model.layers". */
static void drop_later_layers(const qn_desc *d, qn_folder *f)
{
    const qn_shards *s = qn_folder_shards(f);
    const size_t n = strlen(d->names.layers);
    for (size_t i = 0; i < qn_shards_count(s); i++) {
        const char *name = qn_shards_at(s, i)->name;
        if (strncmp(name, d->names.layers, n) || name[n] != '.' || name[n + 1] < '0' || name[n + 1] > '9')
            continue;
        if (strtoul(name + n + 1, NULL, 10) >= d->n_layers) qn_folder_drop(f, name);
    }
}

/* Releases in fp8 with scales of blocks, and in 4 bits packed into words of their own. */
static qn_code check_forms(qn_folder *f, qn_err *err)
{
    static const char *const tails[] = {".weight_scale_inv", ".weight_packed"};
    const qn_shards *s = qn_folder_shards(f);
    for (size_t i = 0; i < 2 * qn_shards_count(s); i++) {
        const char *name = qn_shards_at(s, i / 2)->name, *tail = tails[i % 2];
        const size_t n = strlen(name), m = strlen(tail);
        if (n < m || strcmp(name + n - m, tail)) continue;
        return qn_err_set(err, QN_UNSUPPORTED,
                          "tensor \"%.100s\": not supported yet: checkpoints in fp8 or packed int4; take one "
                          "in bfloat16 or in an MLX form", name);
    }
    return QN_OK;
}

/* What all have in common, with the numbers that `defaults` (taken) fills in. */
static qn_code read_family(qn_desc *d, const json_t *given, json_t *defaults, bool expands, qn_folder *f,
                           qn_arena *a, qn_err *err)
{
    json_t *cfg = with_defaults(given, defaults);
    if (!cfg) return qn_err_set(err, QN_NOMEM, "model: out of memory");
    qn_code rc = check_forms(f, err);
    if (!rc) rc = qn_desc_base(d, cfg, "num_hidden_layers", "rms_norm_eps", a, err);
    if (!rc) d->mla.expands = expands;
    if (!rc) rc = read_mla(d, cfg, err);
    if (!rc) rc = read_positions(d, cfg, a, err);
    if (!rc) rc = read_experts(d, cfg, expands ? read_softmax : read_sigmoids, err);
    json_decref(cfg);
    return rc;
}

static json_t *deepseek_defaults(void)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, "
                     "s:i, s:f, s:f}",
                     "vocab_size", 102400, "hidden_size", 4096, "intermediate_size", 11008,
                     "moe_intermediate_size", 1407, "num_hidden_layers", 30, "num_attention_heads", 32,
                     "routed_scaling_factor", 1.0, "kv_lora_rank", 512, "q_lora_rank", 1536,
                     "qk_rope_head_dim", 64, "v_head_dim", 128, "qk_nope_head_dim", 128, "n_group", 1,
                     "topk_group", 1, "num_experts_per_tok", 1, "moe_layer_freq", 1,
                     "first_k_dense_replace", 0, "max_position_embeddings", 2048, "rms_norm_eps", 1e-6,
                     "rope_theta", 10000.0);
}

qn_code qn_deepseek_v3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    qn_code rc = read_family(d, cfg, deepseek_defaults(), false, f, a, err);
    d->mla.eps = 1e-6f;
    if (!rc) drop_later_layers(d, f);
    return rc;
}

/* Keys and values per head, which are stored as such; a rotary scaling is not optional. */
qn_code qn_deepseek_v2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    if (!json_is_object(json_object_get(cfg, "rope_scaling")))
        return qn_err_set(err, QN_FORMAT, "config.json: rope_scaling must be an object");
    qn_code rc = read_family(d, cfg, deepseek_defaults(), true, f, a, err);
    d->mla.eps = 1e-6f;
    return rc;
}

/* deepseek_v3 as the text part of a model that sees. */
qn_code qn_kimi_k25_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const char *const dropped[] = {"vision_tower.", "vision_model.", "multi_modal_projector.",
                                          "mm_projector."};
    const json_t *text = json_object_get(cfg, "text_config");
    if (!json_is_object(text))
        return qn_err_set(err, QN_FORMAT, "config.json: text_config must be an object");
    qn_code rc = read_family(d, text, deepseek_defaults(), false, f, a, err);
    if (!rc) rc = qn_desc_prefix(d, "language_model.model.", "language_model.lm_head", a, err);
    if (rc) return rc;
    d->mla.eps = 1e-6f;
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++) qn_folder_drop_prefix(f, dropped[i]);
    drop_later_layers(d, f);
    return QN_OK;
}

qn_code qn_glm4_moe_lite_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    json_t *defaults = json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, "
        "s:f, s:i, s:i}",
        "vocab_size", 154880, "hidden_size", 2048, "intermediate_size", 10240, "moe_intermediate_size",
        1536, "num_hidden_layers", 47, "num_attention_heads", 20, "routed_scaling_factor", 1.8,
        "kv_lora_rank", 512, "q_lora_rank", 768, "qk_rope_head_dim", 64, "v_head_dim", 256,
        "qk_nope_head_dim", 192, "n_group", 1, "topk_group", 1, "num_experts_per_tok", 4, "moe_layer_freq",
        1, "first_k_dense_replace", 1, "max_position_embeddings", 202752, "rms_norm_eps", 1e-5,
        "rope_theta", 1000000.0, "n_shared_experts", 1, "n_routed_experts", 64);
    qn_code rc = read_family(d, cfg, defaults, false, f, a, err);
    if (rc) return rc;
    d->mla.eps = d->norm_eps;
    d->moe.router.eps = 1e-20f;
    drop_later_layers(d, f);
    return QN_OK;
}

/* Keys and values per head; the experts are those of the others. */
qn_code qn_glm4_moe_read(qn_desc *d, const json_t *given, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true,
                                 .use_head_dim = true,
                                 .never_tied = true,
                                 .no_scaling = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias"};
    json_t *cfg = with_defaults(given, json_pack("{s:i}", "moe_layer_freq", 1));
    double part;
    bool norms = false;
    if (!cfg) return qn_err_set(err, QN_NOMEM, "model: out of memory");
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (!rc) rc = qn_cfg_f64(cfg, "partial_rotary_factor", &part, err);
    if (!rc && !(part > 0 && part <= 1))
        rc = qn_err_set(err, QN_FORMAT,
                        "config.json: partial_rotary_factor is %g, must be over 0 and at most 1", part);
    if (!rc) rc = qn_like_rope(&d->ropes[0], &like, cfg, (uint32_t)(d->layers[0].d_head * part), a, err);
    if (!rc) rc = qn_cfg_bool_or(cfg, "use_qk_norm", false, &norms, err);
    if (!rc) rc = read_experts(d, cfg, read_sigmoids, err);
    json_decref(cfg);
    if (rc) return rc;
    d->qk_norm = norms ? QN_QK_HEAD : QN_QK_NONE;
    drop_later_layers(d, f);
    return QN_OK;
}
