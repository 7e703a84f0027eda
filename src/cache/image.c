/* image.c - between pools and host memory. */
#include "cache/image.h"

#include <stdlib.h>

#include "cache/blocks.h"

/* n * a * b floats, or NULL. */
static float *floats(size_t n, size_t a, size_t b)
{
    if (qn_mul_size(n, a, &n) || qn_mul_size(n, b, &n) || qn_mul_size(n, sizeof(float), &n))
        return NULL;
    return malloc(n ? n : 1);
}

static qn_code add_layer(qn_image *img, uint32_t i, const qn_kv_spec *spec, qn_err *err)
{
    const qn_kv_layer *l = &spec->layers[i];
    const qn_state_layer *s = &l->state;
    qn_image_layer *x = &img->layers[i];
    if (l->n_kv_heads) {
        if (qn_kv_quantized(l->k_codec) || qn_kv_quantized(l->v_codec))
            return qn_err_set(err, QN_UNSUPPORTED,
                              "not supported yet: saved caches of a quantized KV cache (layer %u)",
                              i);
        const qn_kv_group *g = &spec->groups[l->group];
        x->n = img->n_tokens;
        if (g->rule == QN_KV_SLIDING && x->n > g->window) x->n = g->window;
        x->first = img->n_tokens - x->n;
        x->k = floats(x->n, l->n_kv_heads, l->d_k);
        x->v = floats(x->n, l->n_kv_heads, l->d_v);
        if (!x->k || !x->v) return qn_err_set(err, QN_NOMEM, "saved cache: out of memory");
    }
    if (s->n_heads) {
        x->conv = floats(1, s->conv_width, s->conv_channels);
        x->s = floats(s->n_heads, s->d_v, s->d_k);
        if (!x->conv || !x->s) return qn_err_set(err, QN_NOMEM, "saved cache: out of memory");
    }
    return QN_OK;
}

qn_code qn_image_new(qn_image **out, const qn_kv_spec *spec, uint32_t n_tokens, qn_err *err)
{
    *out = NULL;
    qn_image *img = calloc(1, sizeof *img);
    if (img) img->layers = calloc(spec->n_layers + 1u, sizeof *img->layers);
    if (!img || !img->layers) {
        free(img);
        return qn_err_set(err, QN_NOMEM, "saved cache: out of memory");
    }
    img->n_tokens = n_tokens;
    img->n_layers = spec->n_layers;
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        qn_code rc = add_layer(img, i, spec, err);
        if (!rc) continue;
        qn_image_free(img);
        return rc;
    }
    *out = img;
    return QN_OK;
}

void qn_image_free(qn_image *img)
{
    if (!img) return;
    for (uint32_t i = 0; i < img->n_layers; i++) {
        free(img->layers[i].k);
        free(img->layers[i].v);
        free(img->layers[i].conv);
        free(img->layers[i].s);
    }
    free(img->layers);
    free(img);
}

/* The block of a position. */
static uint32_t block_of(const qn_table *t, const qn_kv_spec *spec, uint32_t g, uint32_t pos)
{
    uint32_t i = pos / spec->block_tokens;
    qn_check(i >= t->first[g] && i < t->first[g] + t->n[g]);
    return t->ids[g][i - t->first[g]];
}

static void copy(const qn_image *img, bool save, qn_device *dev, const qn_kv_spec *spec,
                 const qn_blocks *b, const qn_table *t, uint32_t slot)
{
    qn_kv *kv = qn_blocks_kv(b);
    qn_check(img->n_layers == spec->n_layers);
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        const qn_kv_layer *l = &spec->layers[i];
        const qn_image_layer *x = &img->layers[i];
        for (uint32_t p = 0; p < x->n; p++) {
            uint32_t pos = x->first + p, block = block_of(t, spec, l->group, pos);
            float *k = x->k + (size_t)p * l->n_kv_heads * l->d_k;
            float *v = x->v + (size_t)p * l->n_kv_heads * l->d_v;
            if (save) dev->ops->kv_get(kv, i, block, pos % spec->block_tokens, k, v);
            else dev->ops->kv_put(kv, i, block, pos % spec->block_tokens, k, v);
        }
        if (x->s && save) dev->ops->state_get(kv, i, slot, x->conv, x->s);
        else if (x->s) dev->ops->state_put(kv, i, slot, x->conv, x->s);
    }
}

void qn_image_save(qn_image *img, qn_device *dev, const qn_kv_spec *spec, const qn_blocks *b,
                   const qn_table *t, uint32_t slot)
{
    copy(img, true, dev, spec, b, t, slot);
}

void qn_image_load(const qn_image *img, qn_device *dev, const qn_kv_spec *spec, const qn_blocks *b,
                   const qn_table *t, uint32_t slot)
{
    copy(img, false, dev, spec, b, t, slot);
}
