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

/* Codes of n heads of d elements; false when memory is out. */
static bool codes(qn_kv_codes *out, qn_kv_codec c, size_t n, size_t d)
{
    size_t words, scales;
    if (qn_mul_size(n, qn_kv_code_words(c, d) * sizeof(uint32_t), &words) ||
        qn_mul_size(n, qn_kv_scale_bytes(c, d), &scales))
        return false;
    out->words = malloc(words ? words : 1);
    out->scales = malloc(scales ? scales : 1);
    out->biases = malloc(scales ? scales : 1);
    return out->words && out->scales && out->biases;
}

/* Keys, or values, of n positions: floats or codes. */
static bool add_heads(const qn_image *img, const qn_kv_layer *l, qn_kv_codec c, size_t n, size_t d,
                      float **x, qn_kv_codes *coded)
{
    if (img->coded && qn_kv_quantized(c))
        return !qn_mul_size(n, l->n_kv_heads, &n) && codes(coded, c, n, d);
    return (*x = floats(n, l->n_kv_heads, d));
}

static qn_code add_layer(qn_image *img, uint32_t i, const qn_kv_spec *spec, qn_err *err)
{
    const qn_kv_layer *l = &spec->layers[i];
    const qn_state_layer *s = &l->state;
    qn_image_layer *x = &img->layers[i];
    if (l->n_kv_heads) {
        const qn_kv_group *g = &spec->groups[l->group];
        x->n = img->n_tokens;
        if (g->rule == QN_KV_SLIDING && x->n > (uint64_t)g->keep + g->window) {
            x->n = g->keep + g->window;
            x->keep = g->keep;
            x->first = img->n_tokens - g->window;
        }
        if (g->rule == QN_KV_CHUNKED) {
            x->first = qn_kv_first_seen(g, img->n_tokens);
            x->n = img->n_tokens - x->first;
        }
        if (!add_heads(img, l, l->k_codec, x->n, l->d_k, &x->k, &x->k_codes) ||
            !add_heads(img, l, l->v_codec, x->n, l->d_v, &x->v, &x->v_codes))
            return qn_err_set(err, QN_NOMEM, "saved cache: out of memory");
    }
    if (s->n_heads) {
        x->conv = floats(1, s->conv_width, s->conv_channels);
        x->s = floats(s->n_heads, s->d_v, s->d_k);
        if (!x->conv || !x->s) return qn_err_set(err, QN_NOMEM, "saved cache: out of memory");
    }
    return QN_OK;
}

bool qn_image_is_coded(const qn_kv_spec *spec, uint32_t n_tokens)
{
    if (n_tokens < spec->quantized_start) return false;
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        const qn_kv_layer *l = &spec->layers[i];
        if (qn_kv_quantized(l->k_codec) || qn_kv_quantized(l->v_codec)) return true;
    }
    return false;
}

qn_code qn_image_new(qn_image **out, const qn_kv_spec *spec, uint32_t n_tokens, bool coded,
                     qn_err *err)
{
    *out = NULL;
    qn_image *img = calloc(1, sizeof *img);
    if (img) img->layers = calloc(spec->n_layers + 1u, sizeof *img->layers);
    if (!img || !img->layers) {
        free(img);
        return qn_err_set(err, QN_NOMEM, "saved cache: out of memory");
    }
    img->n_tokens = n_tokens;
    img->coded = coded;
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

static void free_codes(qn_kv_codes *x)
{
    free(x->words);
    free(x->scales);
    free(x->biases);
}

void qn_image_free(qn_image *img)
{
    if (!img) return;
    for (uint32_t i = 0; i < img->n_layers; i++) {
        free(img->layers[i].k);
        free(img->layers[i].v);
        free_codes(&img->layers[i].k_codes);
        free_codes(&img->layers[i].v_codes);
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
    uint32_t head = qn_kv_head_blocks(&spec->groups[g], spec->block_tokens);
    uint32_t entry = qn_kv_entry(i, head, t->dropped[g]);
    qn_check(qn_kv_entry_held(i, head, t->dropped[g]) && entry < t->n[g]);
    return t->ids[g][entry];
}

/* Copy n positions of a layer, from the p-th one of the image, to or from places from `at` of a
 * block. */
static void copy_places(const qn_image_layer *x, bool save, const qn_device *dev, qn_kv *kv,
                        const qn_kv_layer *l, uint32_t layer, uint32_t p, uint32_t block,
                        uint32_t at, uint32_t n)
{
    size_t heads = (size_t)p * l->n_kv_heads;
    float *k = x->k ? x->k + heads * l->d_k : NULL, *v = x->v ? x->v + heads * l->d_v : NULL;
    if (save && (k || v)) dev->ops->kv_get(kv, layer, block, at, n, k, v);
    else if (k || v) dev->ops->kv_put(kv, layer, block, at, n, k, v);
    if (k && v) return;
    qn_kv_codes kc = {0}, vc = {0};
    if (!k) kc = qn_kv_codes_at(&x->k_codes, l->k_codec, l->d_k, heads);
    if (!v) vc = qn_kv_codes_at(&x->v_codes, l->v_codec, l->d_v, heads);
    if (save) dev->ops->kv_get_codes(kv, layer, block, at, n, &kc, &vc);
    else dev->ops->kv_put_codes(kv, layer, block, at, n, &kc, &vc);
}

static void copy(const qn_image *img, bool save, qn_device *dev, const qn_kv_spec *spec,
                 const qn_blocks *b, const qn_table *t, uint32_t slot)
{
    qn_kv *kv = qn_blocks_kv(b);
    qn_check(img->n_layers == spec->n_layers);
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        const qn_kv_layer *l = &spec->layers[i];
        const qn_image_layer *x = &img->layers[i];
        for (uint32_t p = 0, n; p < x->n; p += n) {
            uint32_t pos = qn_image_position(x, p), at = pos % spec->block_tokens;
            uint32_t run = p < x->keep ? x->keep - p : x->n - p; /* positions in a row */
            n = spec->block_tokens - at < run ? spec->block_tokens - at : run;
            copy_places(x, save, dev, kv, l, i, p, block_of(t, spec, l->group, pos), at, n);
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
