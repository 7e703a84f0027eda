/* rope_scaling.c - config.json's rope fields to a rotary description (spec models 3.3). */
#include <math.h>
#include <string.h>

#include "model/desc.h"

static const double PI = 3.14159265358979323846;

static float *freq_table(qn_rope_desc *r, qn_arena *a, qn_err *err)
{
    float *t = qn_arena_take(a, r->dims / 2, sizeof *t);
    if (!t) {
        qn_err_set(err, QN_NOMEM, "rotary table: out of memory");
        return NULL;
    }
    /* base^(2k/d) in float32 steps, as the reference's array expression computes it. */
    for (uint32_t k = 0; k < r->dims / 2; k++)
        t[k] = powf(r->base, (float)(2 * k) / (float)r->dims);
    return t;
}

static qn_code read_llama3(qn_rope_desc *r, const json_t *s, qn_arena *a, qn_err *err)
{
    double factor, lo, hi, orig;
    qn_code rc;
    if ((rc = qn_cfg_f64(s, "factor", &factor, err))) return rc;
    if ((rc = qn_cfg_f64_or(s, "low_freq_factor", 1, &lo, err))) return rc;
    if ((rc = qn_cfg_f64_or(s, "high_freq_factor", 4, &hi, err))) return rc;
    if ((rc = qn_cfg_f64_or(s, "original_max_position_embeddings", 8192, &orig, err))) return rc;
    if (!(factor > 0) || !(lo > 0) || !(hi > lo) || !(orig > 0)) {
        return qn_err_set(err, QN_FORMAT,
                          "rope_scaling llama3: factor, low_freq_factor, high_freq_factor and "
                          "original_max_position_embeddings must be positive, and high above low");
    }
    float *t = freq_table(r, a, err);
    if (!t) return QN_NOMEM;
    float low_wavelen = (float)(orig / lo), high_wavelen = (float)(orig / hi);
    for (uint32_t k = 0; k < r->dims / 2; k++) {
        float wavelen = (float)(2 * PI) * t[k];
        float scaled = wavelen > low_wavelen ? t[k] * (float)factor : t[k];
        if (wavelen > high_wavelen && wavelen < low_wavelen) {
            float smooth = ((float)orig / wavelen - (float)lo) / (float)(hi - lo);
            scaled = scaled / ((1 - smooth) / (float)factor + smooth);
        }
        t[k] = scaled;
    }
    r->freqs = t;
    return QN_OK;
}

static double yarn_dim(double rotations, double dims, double base, double orig)
{
    return dims * log(orig / (rotations * 2 * PI)) / (2 * log(base));
}

static double yarn_mscale(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

static qn_code read_yarn(qn_rope_desc *r, const json_t *s, qn_arena *a, qn_err *err)
{
    double factor, orig, fast, slow, m, m_all;
    qn_code rc;
    if ((rc = qn_cfg_f64_or(s, "factor", 1, &factor, err))) return rc;
    if ((rc = qn_cfg_f64_or(s, "original_max_position_embeddings", 4096, &orig, err))) return rc;
    if ((rc = qn_cfg_f64_or(s, "beta_fast", 32, &fast, err))) return rc;
    if ((rc = qn_cfg_f64_or(s, "beta_slow", 1, &slow, err))) return rc;
    if ((rc = qn_cfg_f64_or(s, "mscale", 1, &m, err))) return rc;
    if ((rc = qn_cfg_f64_or(s, "mscale_all_dim", 0, &m_all, err))) return rc;
    if (!(factor > 0) || !(orig > 0) || !(fast > 0) || !(slow > 0)) {
        return qn_err_set(err, QN_FORMAT,
                          "rope_scaling yarn: factor, original_max_position_embeddings, beta_fast "
                          "and beta_slow must be positive");
    }
    float *t = freq_table(r, a, err);
    if (!t) return QN_NOMEM;
    double low = floor(yarn_dim(fast, r->dims, r->base, orig)),
           high = ceil(yarn_dim(slow, r->dims, r->base, orig));
    if (low < 0) low = 0;
    if (high > r->dims - 1) high = r->dims - 1;
    if (low == high) high += 0.001;
    for (uint32_t k = 0; k < r->dims / 2; k++) {
        float ramp = ((float)k - (float)low) / (float)(high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        float mask = 1 - ramp, extra = t[k], inter = (float)factor * t[k];
        t[k] = (inter * extra) / (inter * mask + extra * (1 - mask));
    }
    r->freqs = t;
    r->mscale = (float)(yarn_mscale(factor, m) / yarn_mscale(factor, m_all));
    return QN_OK;
}

static qn_code read_longrope(qn_rope_desc *r, const json_t *s, const json_t *cfg, qn_arena *a,
                             qn_err *err)
{
    const json_t *list = json_object_get(s, "long_factor");
    if (!json_is_array(list) || json_array_size(list) != r->dims / 2) {
        return qn_err_set(err, QN_FORMAT,
                          "rope_scaling longrope: long_factor must be a list of %u numbers",
                          r->dims / 2);
    }
    double orig, max, given;
    qn_code rc;
    if ((rc = qn_cfg_f64_or(s, "original_max_position_embeddings", 0, &orig, err))) return rc;
    if (orig == 0 &&
        (rc = qn_cfg_f64_or(cfg, "original_max_position_embeddings", 4096, &orig, err)))
        return rc;
    if ((rc = qn_cfg_f64_or(cfg, "max_position_embeddings", 131072, &max, err))) return rc;
    if ((rc = qn_cfg_f64_or(s, "long_mscale", 0, &given, err))) return rc;
    float *t = freq_table(r, a, err);
    if (!t) return QN_NOMEM;
    for (uint32_t k = 0; k < r->dims / 2; k++) {
        const json_t *v = json_array_get(list, k);
        if (!json_is_number(v))
            return qn_err_set(err, QN_FORMAT,
                              "rope_scaling longrope: long_factor[%u] is not a number", k);
        t[k] = (float)json_number_value(v) * t[k];
    }
    r->freqs = t;
    double f = max / orig;
    r->mscale = (float)(given > 0 ? given : f <= 1 ? 1 : sqrt(1 + log(f) / log(orig)));
    return QN_OK;
}

qn_code qn_rope_scaling(qn_rope_desc *r, const json_t *s, const json_t *cfg, qn_arena *a,
                        qn_err *err)
{
    if (!s || json_is_null(s)) return QN_OK;
    if (!json_is_object(s))
        return qn_err_set(err, QN_FORMAT, "config.json: rope_scaling must be an object or null");
    const char *type = json_string_value(json_object_get(s, "type"));
    if (!type) type = json_string_value(json_object_get(s, "rope_type"));
    if (!type || !strcmp(type, "default") || !strcmp(type, "mrope")) return QN_OK;
    if (!strcmp(type, "linear")) {
        double factor;
        qn_code rc = qn_cfg_f64(s, "factor", &factor, err);
        if (rc) return rc;
        if (!(factor > 0))
            return qn_err_set(err, QN_FORMAT, "rope_scaling linear: factor must be positive");
        r->pos_scale = (float)(1 / factor);
        return QN_OK;
    }
    if (!strcmp(type, "llama3")) return read_llama3(r, s, a, err);
    if (!strcmp(type, "yarn") || !strcmp(type, "deepseek_yarn") ||
        !strcmp(type, "telechat3-yarn")) {
        return read_yarn(r, s, a, err);
    }
    if (!strcmp(type, "longrope") || !strcmp(type, "su")) return read_longrope(r, s, cfg, a, err);
    return qn_err_set(err, QN_UNSUPPORTED,
                      "not supported yet: rope_scaling of type \"%s\" (supported: default, "
                      "linear, llama3, yarn, longrope)",
                      type);
}

qn_code qn_rope_table(qn_rope_desc *r, qn_arena *a, qn_err *err)
{
    r->freqs = freq_table(r, a, err);
    return r->freqs ? QN_OK : QN_NOMEM;
}

qn_code qn_rope_plain(qn_rope_desc *out, const json_t *cfg, uint32_t dims, double theta_dflt,
                      bool traditional, qn_err *err)
{
    double theta;
    qn_code rc = qn_cfg_f64_or(cfg, "rope_theta", theta_dflt, &theta, err);
    if (rc) return rc;
    if (dims == 0 || dims % 2) {
        return qn_err_set(err, QN_FORMAT,
                          "config.json: %u rotary elements per head; it must be even and positive",
                          dims);
    }
    if (!(theta > 0))
        return qn_err_set(err, QN_FORMAT, "config.json: rope_theta is %g, must be positive", theta);
    *out = (qn_rope_desc){.dims = dims,
                          .traditional = traditional,
                          .base = (float)theta,
                          .pos_scale = 1,
                          .mscale = 1};
    return QN_OK;
}
