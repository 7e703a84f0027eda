/* kv.c - sizes of KV codecs, and the checks of a spec that all devices share. */
#include "compute/kv.h"

enum { LEAST_BLOCK = 16 };

uint32_t qn_kv_first_seen(const qn_kv_group *g, uint32_t pos)
{
    if (g->rule == QN_KV_CHUNKED) return pos - pos % g->window;
    return g->rule == QN_KV_SLIDING && pos >= g->window ? pos - g->window + 1 : 0;
}

bool qn_kv_quantized(qn_kv_codec c) { return c.form == QN_KV_Q8 || c.form == QN_KV_Q4; }

uint32_t qn_kv_form_bits(qn_kv_form f)
{
    static const uint8_t bits[] = {32, 16, 16, 8, 4};
    return bits[f];
}

size_t qn_kv_codec_bytes(qn_kv_codec c, size_t n)
{
    size_t bytes = n * qn_kv_form_bits(c.form) / 8;
    return qn_kv_quantized(c) ? bytes + 2 * qn_kv_scale_bytes(c, n) : bytes;
}

size_t qn_kv_code_words(qn_kv_codec c, size_t d) { return d * qn_kv_form_bits(c.form) / 32; }

size_t qn_kv_scale_bytes(qn_kv_codec c, size_t d) { return d / c.group * qn_dtype_size(c.scales); }

qn_kv_codes qn_kv_codes_at(const qn_kv_codes *x, qn_kv_codec c, size_t d, size_t n_heads)
{
    size_t at = n_heads * qn_kv_scale_bytes(c, d);
    return (qn_kv_codes){x->words + n_heads * qn_kv_code_words(c, d), (char *)x->scales + at,
                         (char *)x->biases + at};
}

size_t qn_kv_layer_bytes(const qn_kv_layer *l)
{
    return l->n_kv_heads *
           (qn_kv_codec_bytes(l->k_codec, l->d_k) + qn_kv_codec_bytes(l->v_codec, l->d_v));
}

static qn_code check_codec(uint32_t layer, const char *what, qn_kv_codec c, uint32_t head,
                           qn_err *err)
{
    if ((unsigned)c.form > QN_KV_Q4)
        return qn_err_set(err, QN_UNSUPPORTED, "KV layer %u: not supported yet: codec %d", layer,
                          (int)c.form);
    if (!qn_kv_quantized(c)) return QN_OK;
    if (c.group != 32 && c.group != 64 && c.group != 128)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "KV layer %u: groups of %u; 32, 64 and 128 are supported", layer,
                          c.group);
    if (head % c.group)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "KV layer %u: %s heads of %u elements are not whole groups of %u; choose "
                          "another group size, or no KV quantization", layer, what, head, c.group);
    return QN_OK;
}

static qn_code check_latent(const qn_kv_layer *l, uint32_t i, uint32_t max_head, qn_err *err)
{
    if (qn_kv_quantized(l->k_codec) || qn_kv_quantized(l->v_codec))
        return qn_err_set(err, QN_UNSUPPORTED,
                          "KV layer %u has latent attention (MLA), whose cache cannot be quantized; choose "
                          "no KV quantization", i);
    if (l->n_kv_heads != 1 || l->d_k % QN_KV_LATENT_UNIT || l->d_v % QN_KV_LATENT_UNIT ||
        l->d_k + l->d_v > max_head || l->k_codec.form != l->v_codec.form)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "KV layer %u: not supported yet: a latent row of %u and %u elements; multiples of "
                          "%d of together at most %u, in one form, are supported", i, l->d_k, l->d_v,
                          QN_KV_LATENT_UNIT, max_head);
    return QN_OK;
}

static qn_code check_layer(const qn_kv_spec *spec, uint32_t i, uint32_t max_head, qn_err *err)
{
    const qn_kv_layer *l = &spec->layers[i];
    if (l->n_kv_heads == 0) return QN_OK;
    if (l->group >= spec->n_groups)
        return qn_err_set(err, QN_UNSUPPORTED, "KV layer %u: group %u of only %u", i, l->group,
                          spec->n_groups);
    if (!l->d_k || !l->d_v || l->d_k > max_head || l->d_v > max_head)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "KV layer %u: head sizes %u and %u, from 1 to %u are supported", i,
                          l->d_k, l->d_v, max_head);
    qn_code rc = l->latent ? check_latent(l, i, max_head, err) : QN_OK;
    if (rc || (rc = check_codec(i, "key", l->k_codec, l->d_k, err))) return rc;
    return check_codec(i, "value", l->v_codec, l->d_v, err);
}

qn_code qn_kv_spec_check(const qn_kv_spec *spec, uint32_t max_head, qn_err *err)
{
    uint32_t bt = spec->block_tokens;
    if (bt < LEAST_BLOCK || bt > QN_KV_SPLIT || (bt & (bt - 1)))
        return qn_err_set(err, QN_UNSUPPORTED,
                          "KV blocks of %u tokens: a power of two from 16 to 256 is needed", bt);
    for (uint32_t g = 0; g < spec->n_groups; g++) {
        const qn_kv_group *x = &spec->groups[g];
        if ((unsigned)x->rule > QN_KV_CHUNKED || x->keep > QN_KV_SPLIT ||
            (x->rule != QN_KV_SLIDING && x->keep) || (x->rule != QN_KV_FULL) != (x->window > 0))
            return qn_err_set(err, QN_UNSUPPORTED,
                              "KV group %u: rule %d with a window of %u that keeps %u tokens", g,
                              (int)x->rule, x->window, x->keep);
    }
    qn_code rc = QN_OK;
    for (uint32_t i = 0; !rc && i < spec->n_layers; i++) rc = check_layer(spec, i, max_head, err);
    return rc;
}
