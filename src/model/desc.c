/* desc.c - config.json fields that most families share. */
#include <string.h>

#include "model/desc.h"

static const qn_names llama_names = {
    .embed = "model.embed_tokens",
    .layers = "model.layers",
    .final_norm = "model.norm",
    .head = "lm_head",
    .n1 = "input_layernorm",
    .n2 = "post_attention_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};

qn_code qn_desc_base(qn_desc *d, const json_t *cfg, const char *layers_key, const char *eps_key,
                     qn_arena *a, qn_err *err)
{
    double eps;
    qn_code rc;
    uint32_t d_ff;
    *d = (qn_desc){.names = llama_names,
                   .act = QN_SILU,
                   .embed_scale = 1,
                   .residual_scale = 1,
                   .head_in_scale = 1,
                   .logits_scale = 1,
                   .drop_head_if_tied = true};
    if ((rc = qn_cfg_u32(cfg, "hidden_size", 1, 1u << 20, &d->d_model, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, layers_key, 1, QN_MAX_LAYERS, &d->n_layers, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "intermediate_size", 1, 1u << 22, &d_ff, err))) return rc;
    if ((rc = qn_cfg_u32(cfg, "vocab_size", 1, 1u << 24, &d->n_vocab, err))) return rc;
    if ((rc = qn_cfg_u32_or(cfg, "max_position_embeddings", 0, 1u << 30, &d->max_positions, err)))
        return rc;
    if ((rc = qn_cfg_f64(cfg, eps_key, &eps, err))) return rc;
    d->norm_eps = (float)eps;
    d->layers = qn_arena_take(a, d->n_layers, sizeof *d->layers);
    if (!d->layers) return qn_err_set(err, QN_NOMEM, "model: out of memory");
    for (uint32_t i = 0; i < d->n_layers; i++) d->layers[i].d_ff = d_ff;
    return QN_OK;
}

qn_code qn_desc_heads(qn_desc *d, const json_t *cfg, bool kv_required, bool use_head_dim,
                      qn_err *err)
{
    uint32_t h, hk, dh = 0;
    qn_code rc;
    if ((rc = qn_cfg_u32(cfg, "num_attention_heads", 1, 1u << 12, &h, err))) return rc;
    rc = kv_required ? qn_cfg_u32(cfg, "num_key_value_heads", 1, 1u << 12, &hk, err)
                     : qn_cfg_u32_or(cfg, "num_key_value_heads", h, 1u << 12, &hk, err);
    if (rc) return rc;
    if (use_head_dim && (rc = qn_cfg_u32_or(cfg, "head_dim", 0, 1u << 12, &dh, err))) return rc;
    if (!dh) dh = d->d_model / h;
    if (!hk || h % hk) {
        return qn_err_set(err, QN_FORMAT,
                          "config.json: num_attention_heads (%u) must be a multiple of "
                          "num_key_value_heads (%u)",
                          h, hk);
    }
    if (!dh) return qn_err_set(err, QN_FORMAT, "config.json: head_dim is 0");
    for (uint32_t i = 0; i < d->n_layers; i++) {
        d->layers[i].n_heads = h;
        d->layers[i].n_kv_heads = hk;
        d->layers[i].d_head = dh;
    }
    return QN_OK;
}

qn_code qn_desc_layer_types(qn_desc *d, const json_t *cfg, qn_err *err)
{
    const json_t *types = json_object_get(cfg, "layer_types");
    if (!types || json_is_null(types)) return QN_OK;
    if (!json_is_array(types) || json_array_size(types) != d->n_layers) {
        return qn_err_set(err, QN_FORMAT, "config.json: layer_types must be a list of %u names",
                          d->n_layers);
    }
    uint32_t n_full = 0;
    for (uint32_t i = 0; i < d->n_layers; i++) {
        const char *t = json_string_value(json_array_get(types, i));
        if (t && !strcmp(t, "full_attention")) {
            n_full++;
        } else if (t && !strcmp(t, "sliding_attention")) {
            qn_code rc = qn_cfg_u32(cfg, "sliding_window", 1, 1u << 30, &d->layers[i].window, err);
            if (rc) return rc;
        } else {
            return qn_err_set(err, QN_UNSUPPORTED,
                              "config.json: layer_types[%u] is \"%s\"; supported: "
                              "full_attention, sliding_attention",
                              i, t ? t : "?");
        }
    }
    if (!n_full)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "config.json: layer_types has no full_attention layer");
    return QN_OK;
}

qn_code qn_desc_prefix(qn_desc *d, const char *prefix, const char *head, qn_arena *a, qn_err *err)
{
    d->names.embed = qn_arena_printf(a, "%sembed_tokens", prefix);
    d->names.layers = qn_arena_printf(a, "%slayers", prefix);
    d->names.final_norm = qn_arena_printf(a, "%snorm", prefix);
    d->names.head = head;
    if (d->names.embed && d->names.layers && d->names.final_norm) return QN_OK;
    return qn_err_set(err, QN_NOMEM, "model: out of memory");
}
