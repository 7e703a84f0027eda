/* llama4.c - the text model of Llama 4: chunked attention with rotation in three of four layers, full
 * attention without in the fourth, one expert per token (spec models 3.7, R5). */
#include "model/families.h"
#include "model/like.h"

enum { FULL_EVERY = 4 };

/* Layers that do not rotate have queries that grow with the position. */
static qn_code read_positions(qn_desc *d, const json_t *cfg, qn_err *err)
{
    const json_t *tuning = json_object_get(cfg, "attn_temperature_tuning"); /* true, or a number: 4 */
    const bool off = json_is_false(tuning) || (json_is_number(tuning) && json_number_value(tuning) == 0);
    double step, rate;
    uint32_t chunk;
    qn_code rc;
    if ((rc = qn_cfg_f64_or(cfg, "floor_scale", 8192, &step, err))) return rc;
    if ((rc = qn_cfg_f64_or(cfg, "attn_scale", 0.1, &rate, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "attention_chunk_size", 1, 1u << 30, &chunk, err))) return rc;
    if (!(step >= 1))
        return qn_err_set(err, QN_FORMAT, "config.json: floor_scale is %g, must be at least 1", step);
    if (!off) d->query_scale = (qn_pos_scale){(float)step, (float)rate};
    for (uint32_t i = 0; i < d->n_layers; i++) {
        qn_layer_desc *l = &d->layers[i];
        if ((i + 1) % FULL_EVERY == 0) {
            l->rope = QN_NO_ROPE;
        } else {
            l->window = chunk;
            l->chunked = true;
        }
    }
    return QN_OK;
}

/* intermediate_size is that of experts, and of the one that all tokens share. */
static qn_code read_experts(qn_desc *d, const json_t *cfg, qn_err *err)
{
    qn_moe *m = &d->moe;
    uint32_t every, d_ff;
    qn_code rc;
    if ((rc = qn_cfg_u32(cfg, "interleave_moe_layer_step", 1, QN_MAX_LAYERS, &every, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "intermediate_size_mlp", 1, 1u << 22, &d_ff, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "num_local_experts", 1, 4096, &m->n_experts, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "num_experts_per_tok", 1, 4096, &m->router.k, err))) return rc;
    if (m->router.k != 1)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "config.json: not supported yet: num_experts_per_tok %u; llama4 with 1 is",
                          m->router.k);
    m->router.kind = QN_ROUTE_SIGMOID_INPUT;
    m->d_ff = m->d_ff_shared = d->layers[0].d_ff;
    for (uint32_t i = 0; i < d->n_layers; i++) {
        d->layers[i].sparse = i % every == every - 1;
        d->layers[i].d_ff = d_ff;
    }
    return QN_OK;
}

static void set_names(qn_names *n)
{
    n->q_norm = n->k_norm = NULL; /* head norms without a weight */
    n->gate = "feed_forward.gate_proj";
    n->up = "feed_forward.up_proj";
    n->down = "feed_forward.down_proj";
    n->router = "feed_forward.router";
    n->e_gate = "feed_forward.experts.gate_proj";
    n->e_up = "feed_forward.experts.up_proj";
    n->e_down = "feed_forward.experts.down_proj";
    n->turned_gate_up = "feed_forward.experts.gate_up_proj";
    n->turned_down = "feed_forward.experts.down_proj";
    n->s_gate = "feed_forward.shared_expert.gate_proj";
    n->s_up = "feed_forward.shared_expert.up_proj";
    n->s_down = "feed_forward.shared_expert.down_proj";
}

qn_code qn_llama4_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true,
                                 .use_head_dim = true,
                                 .never_tied = true,
                                 .traditional = true,
                                 .qkv_bias = QN_BIAS_KEY,
                                 .qkv_key = "attention_bias",
                                 .o_bias = QN_BIAS_KEY,
                                 .o_key = "attention_bias"};
    const json_t *text = json_object_get(cfg, "text_config");
    bool norms;
    qn_code rc;
    if (!json_is_object(text))
        return qn_err_set(err, QN_FORMAT, "config.json: text_config must be an object");
    if ((rc = qn_like_read(d, &like, text, a, err)) || (rc = read_positions(d, text, err)) ||
        (rc = read_experts(d, text, err)) ||
        (rc = qn_cfg_bool_or(text, "use_qk_norm", false, &norms, err)) ||
        (rc = qn_desc_prefix(d, "language_model.model.", "language_model.lm_head", a, err)))
        return rc;
    d->qk_norm = norms ? QN_QK_HEAD : QN_QK_NONE;
    d->qk_norm_eps = 1e-6f;
    d->qk_norm_rotated = d->rope_before_norm = true;
    set_names(&d->names);
    qn_folder_drop_prefix(f, "vision_model");
    qn_folder_drop_prefix(f, "multi_modal_projector");
    return QN_OK;
}
