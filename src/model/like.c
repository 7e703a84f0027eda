/* like.c - llama but for a few fields. */
#include "model/like.h"

static qn_code read_bias(bool *out, qn_bias from, const char *key, const json_t *cfg, qn_err *err)
{
    *out = from == QN_BIAS_ALWAYS;
    return from == QN_BIAS_KEY ? qn_cfg_bool_or(cfg, key, false, out, err) : QN_OK;
}

qn_code qn_like_rope(qn_rope_desc *r, const qn_like *like, const json_t *cfg, uint32_t dims,
                     qn_arena *a, qn_err *err)
{
    double theta = like->theta;
    bool traditional = like->traditional;
    qn_code rc;
    if (theta == 0 && (rc = qn_cfg_f64(cfg, "rope_theta", &theta, err))) return rc;
    if (!traditional && (rc = qn_cfg_bool_or(cfg, "rope_traditional", false, &traditional, err)))
        return rc;
    if ((rc = qn_rope_plain(r, cfg, dims, theta, traditional, err))) return rc;
    return like->no_scaling ? QN_OK
                            : qn_rope_scaling(r, json_object_get(cfg, "rope_scaling"), cfg, a, err);
}

qn_code qn_like_read(qn_desc *d, const qn_like *like, const json_t *cfg, qn_arena *a, qn_err *err)
{
    qn_code rc;
    rc = qn_desc_base(d, cfg, like->layers_key ? like->layers_key : "num_hidden_layers",
                      like->eps_key ? like->eps_key : "rms_norm_eps", a, err);
    if (rc) return rc;
    if ((rc = qn_desc_heads(d, cfg, like->kv_required, like->use_head_dim, err))) return rc;
    if ((rc = read_bias(&d->qkv_bias, like->qkv_bias, like->qkv_key, cfg, err))) return rc;
    if ((rc = read_bias(&d->o_bias, like->o_bias, like->o_key, cfg, err))) return rc;
    if ((rc = read_bias(&d->mlp_bias, like->mlp_bias, like->mlp_key, cfg, err))) return rc;
    d->tied = like->always_tied;
    if (!like->always_tied && !like->never_tied) {
        rc = qn_cfg_bool_or(cfg, "tie_word_embeddings", !like->untied_by_default, &d->tied, err);
        if (rc) return rc;
    }
    d->n_ropes = 1;
    return qn_like_rope(&d->ropes[0], like, cfg, d->layers[0].d_head, a, err);
}
