/* gemma.c - gemma, gemma2, gemma3 text: norms of 1 + weight, embeddings times sqrt(E) (spec models 5.5). */
#include <math.h>

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
    if (!(scalar > 0)) return qn_err_set(err, QN_FORMAT, "config.json: query_pre_attn_scalar is %g, must be positive", scalar);
    d->attn_scale = (float)pow(scalar, -0.5);
    return QN_OK;
}

qn_code qn_gemma_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true, .use_head_dim = true, .always_tied = true, .no_scaling = true,
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

/* Local layers: window and rope_local_base_freq; every pattern-th layer is global with rope_theta. */
qn_code qn_gemma3_text_read(qn_desc *d, const json_t *cfg, qn_folder *f, qn_arena *a, qn_err *err)
{
    static const qn_like like = {.kv_required = true, .use_head_dim = true, .always_tied = true, .theta = 1000000};
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
        return qn_err_set(err, QN_FORMAT, "config.json: sliding_window and sliding_window_pattern must be positive");
    }
    gemma_common(d, QN_GELU_TANH);
    sandwich_names(d);
    d->qk_norm = QN_QK_HEAD;
    d->tied = !qn_folder_has(f, "lm_head.weight");
    if ((rc = qn_rope_plain(&d->ropes[1], NULL, d->layers[0].d_head, local, false, err))) return rc;
    d->n_ropes = 2;
    for (uint32_t i = 0; i < d->n_layers; i++) {
        if ((i + 1) % pattern == 0) continue;
        d->layers[i].window = window;
        d->layers[i].rope = 1;
    }
    return QN_OK;
}
