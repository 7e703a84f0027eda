/* gemma.c - gemma, gemma2, gemma3 text: norms of 1 + weight, embeddings times sqrt(E) (spec
 * models 5.5). */
#include <math.h>
#include <stdio.h>

#include "model/families.h"
#include "model/like.h"

static void gemma_common(qn_desc *d, qn_act act)
{
    d->norm = QN_NORM_RMS1;
    d->act = act;
    d->embed_scale = (float)sqrt(d->d_model);
}

static void sandwich_names(qn_desc *d)
{
    d->layout = QN_LAYOUT_SANDWICH;
    d->names.n2 = "post_attention_layernorm";
    d->names.n3 = "pre_feedforward_layernorm";
    d->names.n4 = "post_feedforward_layernorm";
}

static qn_code query_scale(qn_desc *d, const json_t *cfg, double dflt, qn_err *err)
{
    double scalar;
    qn_code rc = qn_cfg_f64_or(cfg, "query_pre_attn_scalar", dflt, &scalar, err);
    if (rc) return rc;
    if (!(scalar > 0))
        return qn_err_set(err, QN_FORMAT,
                          "config.json: query_pre_attn_scalar is %g, must be positive", scalar);
    d->attn_scale = (float)pow(scalar, -0.5);
    return QN_OK;
}

qn_code qn_gemma_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true,
                                 .use_head_dim = true,
                                 .always_tied = true,
                                 .no_scaling = true,
                                 .theta = 10000};
    (void)f;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    gemma_common(d, QN_GELU);
    return rc;
}

qn_code qn_gemma2_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    double attn_cap, final_cap;
    qn_code rc = qn_gemma_read(d, cfg, f, a, err);
    if (rc || (rc = query_scale(d, cfg, 144, err)) ||
        (rc = qn_cfg_f64_or(cfg, "attn_logit_softcapping", 50, &attn_cap, err)) ||
        (rc = qn_cfg_f64_or(cfg, "final_logit_softcapping", 30, &final_cap, err))) {
        return rc;
    }
    d->act = QN_GELU_TANH;
    d->attn_softcap = (float)attn_cap;
    d->logits_softcap = (float)final_cap;
    sandwich_names(d);
    return QN_OK;
}

/* The wrapper's text model lies under language_model; its other towers are not loaded. */
static qn_code nested_names(qn_desc *d, qn_folder *f, qn_arena *a, qn_err *err)
{
    qn_folder_drop_prefix(f, "vision_tower");
    qn_folder_drop_prefix(f, "multi_modal_projector");
    return qn_desc_prefix(d, "language_model.model.", "language_model.lm_head", a, err);
}

/* Local layers: window and rope_local_base_freq; every pattern-th layer is global with rope_theta.
 */
static qn_code read_gemma3(qn_desc *d, const json_t *cfg, bool nested, qn_folder *f, qn_arena *a,
                           qn_err *err)
{
    static const qn_like like = {
        .kv_required = true, .use_head_dim = true, .always_tied = true, .theta = 1000000};
    uint32_t window, pattern;
    double local;
    qn_code rc = qn_like_read(d, &like, cfg, a, err);
    if (rc || (rc = query_scale(d, cfg, 256, err)) ||
        (rc = qn_cfg_u32_or(cfg, "sliding_window", 512, 1u << 30, &window, err)) ||
        (rc = qn_cfg_u32_or(cfg, "sliding_window_pattern", 6, QN_MAX_LAYERS, &pattern, err)) ||
        (rc = qn_cfg_f64_or(cfg, "rope_local_base_freq", 10000, &local, err))) {
        return rc;
    }
    if (pattern == 0 || window == 0) {
        return qn_err_set(
            err, QN_FORMAT,
            "config.json: sliding_window and sliding_window_pattern must be positive");
    }
    gemma_common(d, QN_GELU_TANH);
    sandwich_names(d);
    d->qk_norm = QN_QK_HEAD;
    if (nested && (rc = nested_names(d, f, a, err))) return rc;
    char head[96];
    snprintf(head, sizeof head, "%s.weight", d->names.head);
    d->tied = !qn_folder_has(f, head);
    if ((rc = qn_rope_plain(&d->ropes[1], NULL, d->layers[0].d_head, local, false, err))) return rc;
    d->n_ropes = 2;
    for (uint32_t i = 0; i < d->n_layers; i++) {
        if ((i + 1) % pattern == 0) continue;
        d->layers[i].window = window;
        d->layers[i].rope = 1;
    }
    return QN_OK;
}

qn_code qn_gemma3_text_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    return read_gemma3(d, cfg, false, f, a, err);
}

/* The vision model's wrapper: text_config with the vocabulary of the top level and defaults of its
 * own. */
qn_code qn_gemma3_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const struct { const char *key; double value;
    } defaults[] = {
        {"hidden_size", 1152},
        {"num_hidden_layers", 26},
        {"intermediate_size", 6912},
        {"num_attention_heads", 8},
        {"head_dim", 256},
        {"num_key_value_heads", 4},
        {"max_position_embeddings", 32768},
    };
    json_t *text = json_copy((json_t *)(uintptr_t)json_object_get(cfg, "text_config"));
    if (!json_is_object(text)) {
        json_decref(text);
        return qn_err_set(err, QN_FORMAT, "config.json: text_config is missing or not an object");
    }
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        if (!json_object_get(text, defaults[i].key)) {
            json_object_set_new(text, defaults[i].key, json_integer((json_int_t)defaults[i].value));
        }
    }
    if (!json_object_get(text, "rms_norm_eps"))
        json_object_set_new(text, "rms_norm_eps", json_real(1e-6));
    json_t *vocab = json_object_get(cfg, "vocab_size");
    if (vocab) json_object_set(text, "vocab_size", vocab);
    else json_object_set_new(text, "vocab_size", json_integer(262208));
    qn_code rc = read_gemma3(d, text, true, f, a, err);
    json_decref(text);
    return rc;
}
