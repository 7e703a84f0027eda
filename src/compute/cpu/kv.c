/* kv.c - pools of KV blocks, and writing keys and values into them. kv_layout.h has the layout. */
#include "compute/cpu/kv_layout.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "format/dtype.h"
#include "format/quant.h"

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

/* Lay the layers of a group out; returns the block's bytes. `place` may be NULL. */
static size_t place_layers(const qn_kv_spec *spec, uint32_t group, qn_kv_place *place)
{
    size_t at = 0;
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        const qn_kv_layer *l = &spec->layers[i];
        if (l->group != group || l->n_kv_heads == 0) continue;
        qn_kv_place p = {.v_ld = (l->d_v + 15) & ~15u};
        p.k_tile = QN_KV_TILE * qn_kv_codec_bytes(l->k_codec, l->d_k);
        p.v_tile = QN_KV_TILE * qn_kv_codec_bytes(l->v_codec, p.v_ld);
        p.k_head = spec->block_tokens / QN_KV_TILE * p.k_tile;
        p.v_head = spec->block_tokens / QN_KV_TILE * p.v_tile;
        p.k = at;
        p.v = align64(p.k + l->n_kv_heads * p.k_head);
        at = align64(p.v + l->n_kv_heads * p.v_head);
        if (place) place[i] = p;
    }
    return at;
}

size_t qn_cpu_kv_block_bytes(const qn_device *d, const qn_kv_spec *spec, uint32_t group)
{
    (void)d;
    return place_layers(spec, group, NULL);
}

static qn_code map_pools(qn_kv *kv, const uint32_t *n_blocks, qn_err *err)
{
    for (uint32_t g = 0; g < kv->spec.n_groups; g++) {
        kv->block_bytes[g] = place_layers(&kv->spec, g, kv->place);
        kv->n_blocks[g] = n_blocks[g];
        size_t bytes;
        if (qn_mul_size(kv->block_bytes[g], n_blocks[g], &bytes))
            return qn_err_set(err, QN_NOMEM, "KV pool of %u blocks is too large", n_blocks[g]);
        if (bytes == 0) continue;
        kv->pool[g] = qn_cpu_map(bytes);
        if (!kv->pool[g])
            return qn_err_set(err, QN_NOMEM, "out of memory: %zu bytes for the KV cache", bytes);
        kv->pool_bytes[g] = bytes;
    }
    kv->state_bytes = qn_cpu_state_bytes(NULL, &kv->spec);
    if (!kv->state_bytes || !kv->spec.n_states) return QN_OK;
    kv->states = qn_cpu_map(kv->state_bytes * kv->spec.n_states);
    if (!kv->states) return qn_err_set(err, QN_NOMEM, "out of memory: %u state slots", kv->spec.n_states);
    return QN_OK;
}

qn_code qn_cpu_kv_new(qn_device *d, const qn_kv_spec *spec, const uint32_t *n_blocks, qn_kv **out,
                      qn_err *err)
{
    (void)d;
    *out = NULL;
    qn_code rc = qn_kv_spec_check(spec, QN_CPU_MAX_HEAD, err);
    if (rc) return rc;
    qn_kv *kv = calloc(1, sizeof *kv);
    if (!kv) return qn_err_set(err, QN_NOMEM, "out of memory for the KV cache");
    kv->spec = *spec;
    kv->spec.layers = calloc(spec->n_layers + 1u, sizeof *kv->spec.layers);
    kv->place = calloc(spec->n_layers + 1u, sizeof *kv->place);
    if (!kv->spec.layers || !kv->place) {
        rc = qn_err_set(err, QN_NOMEM, "out of memory for the KV cache");
        goto fail;
    }
    if (spec->n_layers)
        memcpy(kv->spec.layers, spec->layers, spec->n_layers * sizeof *spec->layers);
    if ((rc = map_pools(kv, n_blocks, err))) goto fail;
    *out = kv;
    return QN_OK;
fail:
    qn_cpu_kv_free(kv);
    return rc;
}

void qn_cpu_kv_free(qn_kv *kv)
{
    if (!kv) return;
    for (uint32_t g = 0; g < QN_MAX_KV_GROUPS; g++) qn_cpu_unmap(kv->pool[g], kv->pool_bytes[g]);
    qn_cpu_unmap(kv->states, kv->state_bytes * kv->spec.n_states);
    free(kv->spec.layers);
    free(kv->place);
    free(kv);
}

static uint8_t *block_at(const qn_kv *kv, uint32_t group, uint32_t block)
{
    qn_check(group < kv->spec.n_groups && block < kv->n_blocks[group]);
    return kv->pool[group] + block * kv->block_bytes[group];
}

void qn_cpu_kv_copy(qn_kv *kv, uint32_t group, uint32_t dst, uint32_t src)
{
    if (dst != src)
        memcpy(block_at(kv, group, dst), block_at(kv, group, src), kv->block_bytes[group]);
}

void qn_cpu_kv_read(qn_kv *kv, uint32_t group, uint32_t block, void *host)
{
    memcpy(host, block_at(kv, group, block), kv->block_bytes[group]);
}

void qn_cpu_kv_store(qn_kv *kv, uint32_t group, uint32_t block, const void *host)
{
    memcpy(block_at(kv, group, block), host, kv->block_bytes[group]);
}

uint8_t *qn_cpu_kv_block(const qn_kv *kv, const qn_item *item, uint32_t g, uint32_t pos)
{
    uint32_t i = pos / kv->spec.block_tokens;
    uint32_t head = qn_kv_head_blocks(&kv->spec.groups[g], kv->spec.block_tokens);
    qn_check(qn_kv_entry_held(i, head, item->dropped[g]));
    return block_at(kv, g, item->blocks[g][qn_kv_entry(i, head, item->dropped[g])]);
}

typedef struct write_job {
    qn_cpu_run *run;
    const qn_kv_layer *layer;
    const qn_kv_place *place;
    qn_tensor k, v;
} write_job;

/* The element type of a form that is not quantized. */
static qn_dtype float_type(qn_kv_form form)
{
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    return types[form];
}

/* Store n floats as elements of a form that is not quantized. */
static void narrow(void *dst, qn_kv_form form, const float *src, uint32_t n)
{
    qn_narrow(dst, float_type(form), src, n);
}

/* Scale and bias of each of a head's groups into column `lane` of the tile's tables. */
static void write_scales(uint8_t *tables, uint32_t lane, qn_kv_codec c, const float *scale,
                         const float *bias, uint32_t n_groups)
{
    size_t size = qn_dtype_size(c.scales);
    uint8_t *biases = tables + QN_KV_TILE * n_groups * size;
    for (uint32_t g = 0; g < n_groups; g++) {
        size_t at = (g * QN_KV_TILE + lane) * size;
        qn_narrow(tables + at, c.scales, &scale[g], 1);
        qn_narrow(biases + at, c.scales, &bias[g], 1);
    }
}

/* A quantized head as MLX packs it: bytes of codes (at 4 bits the even element in the low half),
 * which are the bytes of both tiles too. */
typedef struct encoded {
    uint8_t bytes[QN_CPU_MAX_HEAD];
    float scale[QN_CPU_MAX_GROUPS], bias[QN_CPU_MAX_GROUPS];
} encoded;

static size_t code_bytes(qn_kv_codec c, uint32_t n) { return n * qn_kv_form_bits(c.form) / 8; }

static void encode(encoded *e, qn_kv_codec c, const float *x, uint32_t n)
{
    uint8_t *b = e->bytes;
    qn_affine_encode(qn_kv_form_bits(c.form), c.group, x, n, b, e->scale, e->bias);
    if (c.form == QN_KV_Q8) return;
    for (uint32_t d = 0; d < n; d += 2) b[d / 2] = (uint8_t)(b[d] | b[d + 1] << 4);
}

static void write_key_codes(uint8_t *tile, uint32_t lane, qn_kv_codec c, const encoded *e,
                            uint32_t n)
{
    size_t bytes = code_bytes(c, n);
    for (size_t i = 0; i < bytes; i++) tile[i * QN_KV_TILE + lane] = e->bytes[i];
    write_scales(tile + QN_KV_TILE * bytes, lane, c, e->scale, e->bias, n / c.group);
}

static void write_value_codes(uint8_t *tile, uint32_t lane, qn_kv_codec c, const encoded *e,
                              uint32_t n)
{
    size_t bytes = code_bytes(c, n);
    memcpy(tile + lane * bytes, e->bytes, bytes);
    write_scales(tile + QN_KV_TILE * bytes, lane, c, e->scale, e->bias, n / c.group);
}

/* One key head into column `lane` of its tile. */
static void write_key(uint8_t *tile, uint32_t lane, qn_kv_codec c, const float *x, uint32_t n)
{
    if (qn_kv_quantized(c)) {
        encoded e;
        encode(&e, c, x, n);
        write_key_codes(tile, lane, c, &e, n);
    } else if (c.form == QN_KV_F32) {
        float *t = (float *)(void *)tile;
        for (uint32_t d = 0; d < n; d++) t[d * QN_KV_TILE + lane] = x[d];
    } else {
        uint16_t half[QN_CPU_MAX_HEAD], *t = (uint16_t *)(void *)tile;
        narrow(half, c.form, x, n);
        for (uint32_t d = 0; d < n; d++) t[d * QN_KV_TILE + lane] = half[d];
    }
}

/* One value head, or latent key, into row `lane` of its tile; a row has v_ld elements. */
static void write_value(uint8_t *tile, uint32_t lane, qn_kv_codec c, const float *x, uint32_t n,
                        uint32_t v_ld)
{
    if (!qn_kv_quantized(c)) {
        narrow(tile + lane * qn_kv_codec_bytes(c, v_ld), c.form, x, n);
        return;
    }
    encoded e;
    encode(&e, c, x, n);
    write_value_codes(tile, lane, c, &e, n);
}

/* The tiles of head h that have place `at` of a block. */
static uint8_t *keys_at(const qn_kv_place *p, uint8_t *block, uint32_t h, uint32_t at)
{
    return block + p->k + h * p->k_head + at / QN_KV_TILE * p->k_tile;
}

static uint8_t *values_at(const qn_kv_place *p, uint8_t *block, uint32_t h, uint32_t at)
{
    return block + p->v + h * p->v_head + at / QN_KV_TILE * p->v_tile;
}

/* All heads of one position at its place in a block; k or v may be NULL. */
static void write_heads(const qn_kv_layer *l, const qn_kv_place *p, uint8_t *block, uint32_t at,
                        const float *k, const float *v)
{
    uint32_t lane = at % QN_KV_TILE;
    for (uint32_t h = 0; h < l->n_kv_heads; h++) {
        if (k && l->latent)
            write_value(keys_at(p, block, h, at), lane, l->k_codec, k, l->d_k, l->d_k);
        else if (k)
            write_key(keys_at(p, block, h, at), lane, l->k_codec, k + (size_t)h * l->d_k, l->d_k);
        if (v)
            write_value(values_at(p, block, h, at), lane, l->v_codec, v + (size_t)h * l->d_v,
                        l->d_v, p->v_ld);
    }
}

/* A row of n of its tile's v_ld elements. */
static void read_value(float *x, const uint8_t *tile, uint32_t lane, qn_kv_codec c, uint32_t n,
                       uint32_t v_ld)
{
    qn_widen(x, tile + lane * qn_kv_codec_bytes(c, v_ld), float_type(c.form), n);
}

static void read_key(float *x, const uint8_t *tile, uint32_t lane, qn_kv_codec c, uint32_t n)
{
    size_t size = qn_kv_codec_bytes(c, 1);
    for (uint32_t d = 0; d < n; d++)
        qn_widen(&x[d], tile + (d * QN_KV_TILE + lane) * size, float_type(c.form), 1);
}

/* The block of places [at, at + n), which all lie in it. */
static uint8_t *places(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n)
{
    qn_check(layer < kv->spec.n_layers && at + n <= kv->spec.block_tokens);
    return block_at(kv, kv->spec.layers[layer].group, block);
}

/* Head number i, counted over positions from place `at` and their heads. */
typedef struct spot {
    uint32_t h, at, lane;
} spot;

static spot spot_of(const qn_kv_layer *l, uint32_t at, size_t i)
{
    at += (uint32_t)(i / l->n_kv_heads);
    return (spot){(uint32_t)(i % l->n_kv_heads), at, at % QN_KV_TILE};
}

void qn_cpu_kv_get(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                   float *k, float *v)
{
    uint8_t *b = places(kv, layer, block, at, n);
    const qn_kv_layer *l = &kv->spec.layers[layer];
    const qn_kv_place *p = &kv->place[layer];
    qn_check(!(k && qn_kv_quantized(l->k_codec)) && !(v && qn_kv_quantized(l->v_codec)));
    for (size_t i = 0; i < (size_t)n * l->n_kv_heads; i++) {
        spot s = spot_of(l, at, i);
        const uint8_t *keys = keys_at(p, b, s.h, s.at);
        if (k && l->latent) read_value(k + i * l->d_k, keys, s.lane, l->k_codec, l->d_k, l->d_k);
        else if (k) read_key(k + i * l->d_k, keys, s.lane, l->k_codec, l->d_k);
        if (v)
            read_value(v + i * l->d_v, values_at(p, b, s.h, s.at), s.lane, l->v_codec, l->d_v, p->v_ld);
    }
}

void qn_cpu_kv_put(qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                   const float *k, const float *v)
{
    uint8_t *b = places(kv, layer, block, at, n);
    const qn_kv_layer *l = &kv->spec.layers[layer];
    for (uint32_t i = 0; i < n; i++)
        write_heads(l, &kv->place[layer], b, at + i,
                    k ? k + (size_t)i * l->n_kv_heads * l->d_k : NULL,
                    v ? v + (size_t)i * l->n_kv_heads * l->d_v : NULL);
}

/* A head's codes out of a tile: byte i at first + i*step; then its column of the tables. */
static void read_codes(const qn_kv_codes *x, const uint8_t *tile, uint32_t lane, qn_kv_codec c,
                       uint32_t n, size_t first, size_t step)
{
    size_t bytes = code_bytes(c, n), size = qn_dtype_size(c.scales), n_groups = n / c.group;
    const uint8_t *tables = tile + QN_KV_TILE * bytes + lane * size;
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)x->words)[i] = tile[first + i * step];
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *scale = tables + g * QN_KV_TILE * size;
        memcpy((char *)x->scales + g * size, scale, size);
        memcpy((char *)x->biases + g * size, scale + n_groups * QN_KV_TILE * size, size);
    }
}

void qn_cpu_kv_get_codes(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                         const qn_kv_codes *k, const qn_kv_codes *v)
{
    uint8_t *b = places(kv, layer, block, at, n);
    const qn_kv_layer *l = &kv->spec.layers[layer];
    const qn_kv_place *p = &kv->place[layer];
    qn_kv_codec kc = l->k_codec, vc = l->v_codec;
    qn_check(!(k->words && !qn_kv_quantized(kc)) && !(v->words && !qn_kv_quantized(vc)));
    for (size_t i = 0; i < (size_t)n * l->n_kv_heads; i++) {
        spot s = spot_of(l, at, i);
        if (k->words) {
            qn_kv_codes x = qn_kv_codes_at(k, kc, l->d_k, i);
            read_codes(&x, keys_at(p, b, s.h, s.at), s.lane, kc, l->d_k, s.lane, QN_KV_TILE);
        }
        if (v->words) {
            qn_kv_codes x = qn_kv_codes_at(v, vc, l->d_v, i);
            read_codes(&x, values_at(p, b, s.h, s.at), s.lane, vc, l->d_v, s.lane * code_bytes(vc, l->d_v),
                       1);
        }
    }
}

static void take_codes(encoded *e, const qn_kv_codes *x, qn_kv_codec c, uint32_t n)
{
    memcpy(e->bytes, x->words, code_bytes(c, n));
    qn_widen(e->scale, x->scales, c.scales, n / c.group);
    qn_widen(e->bias, x->biases, c.scales, n / c.group);
}

void qn_cpu_kv_put_codes(qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                         const qn_kv_codes *k, const qn_kv_codes *v)
{
    uint8_t *b = places(kv, layer, block, at, n);
    const qn_kv_layer *l = &kv->spec.layers[layer];
    const qn_kv_place *p = &kv->place[layer];
    qn_kv_codec kc = l->k_codec, vc = l->v_codec;
    qn_check(!(k->words && !qn_kv_quantized(kc)) && !(v->words && !qn_kv_quantized(vc)));
    for (size_t i = 0; i < (size_t)n * l->n_kv_heads; i++) {
        spot s = spot_of(l, at, i);
        encoded e;
        if (k->words) {
            qn_kv_codes x = qn_kv_codes_at(k, kc, l->d_k, i);
            take_codes(&e, &x, kc, l->d_k);
            write_key_codes(keys_at(p, b, s.h, s.at), s.lane, kc, &e, l->d_k);
        }
        if (v->words) {
            qn_kv_codes x = qn_kv_codes_at(v, vc, l->d_v, i);
            take_codes(&e, &x, vc, l->d_v);
            write_value_codes(values_at(p, b, s.h, s.at), s.lane, vc, &e, l->d_v);
        }
    }
}

/* All heads of one batch row at its position. */
static void write_row(const write_job *w, const qn_item *item, uint32_t row)
{
    const qn_kv *kv = w->run->base.kv;
    const qn_kv_layer *l = w->layer;
    uint32_t pos = item->n_past + (row - item->row0);
    write_heads(l, w->place, qn_cpu_kv_block(kv, item, l->group, pos), pos % kv->spec.block_tokens,
                qn_cpu_row(w->k, row), qn_cpu_row(w->v, row));
}

static void write_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const write_job *w = arg;
    const qn_batch *b = w->run->base.batch;
    for (uint32_t i = 0; i < b->n_items; i++) {
        const qn_item *item = &b->items[i];
        uint32_t from = item->row0 > r0 ? item->row0 : r0;
        uint32_t end = item->row0 + item->n_new < r1 ? item->row0 + item->n_new : r1;
        for (uint32_t row = from; row < end; row++) write_row(w, item, row);
    }
}

void qn_cpu_kv_write(qn_run *r, uint32_t layer, qn_tensor k, qn_tensor v)
{
    qn_kv *kv = r->kv;
    qn_check(layer < kv->spec.n_layers);
    const qn_kv_layer *l = &kv->spec.layers[layer];
    qn_check(k.rows == r->batch->n_tokens && v.rows == k.rows);
    qn_check(k.cols == l->n_kv_heads * l->d_k && v.cols == l->n_kv_heads * l->d_v);
    write_job w = {(qn_cpu_run *)r, l, &kv->place[layer], k, v};
    qn_cpu_rows(w.run, write_rows, &w, k.rows, k.cols + v.cols);
}
