/* kv.c - pools of KV blocks, and writing keys and values into them. kv_layout.h has the layout. */
#include "compute/cpu/kv_layout.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "format/dtype.h"

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

/* Lay the layers of a group out; returns the block's bytes. `place` may be NULL. */
static size_t place_layers(const qn_kv_spec *spec, uint32_t group, qn_kv_place *place)
{
    size_t at = 0;
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        const qn_kv_layer *l = &spec->layers[i];
        if (l->group != group || l->n_kv_heads == 0) continue;
        size_t element = qn_kv_codec_size(l->codec);
        qn_kv_place p = {.v_ld = (l->d_v + 15) & ~15u};
        p.k_tile = QN_KV_TILE * l->d_k * element;
        p.v_tile = QN_KV_TILE * p.v_ld * element;
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

static qn_code check_spec(const qn_kv_spec *spec, qn_err *err)
{
    uint32_t bt = spec->block_tokens;
    if (bt < QN_KV_TILE || bt > QN_KV_SPLIT || (bt & (bt - 1)))
        return qn_err_set(err, QN_UNSUPPORTED,
                          "KV blocks of %u tokens: a power of two from 16 to 256 is needed", bt);
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        const qn_kv_layer *l = &spec->layers[i];
        if (l->n_kv_heads == 0) continue;
        if (l->group >= spec->n_groups)
            return qn_err_set(err, QN_UNSUPPORTED, "KV layer %u: group %u of only %u", i, l->group,
                              spec->n_groups);
        if (l->codec > QN_KV_BF16)
            return qn_err_set(err, QN_UNSUPPORTED, "KV layer %u: not supported yet: codec %d", i,
                              (int)l->codec);
        if (!l->d_k || !l->d_v || l->d_k > QN_CPU_MAX_HEAD || l->d_v > QN_CPU_MAX_HEAD)
            return qn_err_set(err, QN_UNSUPPORTED,
                              "KV layer %u: head sizes %u and %u, from 1 to %d are supported", i,
                              l->d_k, l->d_v, QN_CPU_MAX_HEAD);
    }
    return QN_OK;
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
    qn_code rc = check_spec(spec, err);
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
    qn_check(i >= item->first[g]);
    return block_at(kv, g, item->blocks[g][i - item->first[g]]);
}

typedef struct write_job {
    qn_cpu_run *run;
    const qn_kv_layer *layer;
    const qn_kv_place *place;
    qn_tensor k, v;
} write_job;

/* Encode n elements: the bits of the codec at dst. */
static void encode(void *dst, qn_kv_codec codec, const float *src, uint32_t n)
{
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    qn_narrow(dst, types[codec], src, n);
}

/* One key head into column `lane` of its tile. */
static void write_key(uint8_t *tile, uint32_t lane, qn_kv_codec codec, const float *x, uint32_t n)
{
    if (codec == QN_KV_F32) {
        float *t = (float *)(void *)tile;
        for (uint32_t d = 0; d < n; d++) t[d * 16 + lane] = x[d];
        return;
    }
    uint16_t half[QN_CPU_MAX_HEAD], *t = (uint16_t *)(void *)tile;
    encode(half, codec, x, n);
    for (uint32_t d = 0; d < n; d++) t[d * 16 + lane] = half[d];
}

/* All heads of one batch row at its position. */
static void write_row(const write_job *w, const qn_item *item, uint32_t row)
{
    const qn_kv *kv = w->run->base.kv;
    const qn_kv_layer *l = w->layer;
    const qn_kv_place *p = w->place;
    uint32_t pos = item->n_past + (row - item->row0);
    uint8_t *block = qn_cpu_kv_block(kv, item, l->group, pos);
    uint32_t tile = pos % kv->spec.block_tokens / QN_KV_TILE, lane = pos % QN_KV_TILE;
    const float *k = qn_cpu_row(w->k, row), *v = qn_cpu_row(w->v, row);
    size_t v_row = p->v_tile / QN_KV_TILE;
    for (uint32_t h = 0; h < l->n_kv_heads; h++) {
        uint8_t *keys = block + p->k + h * p->k_head + tile * p->k_tile;
        uint8_t *values = block + p->v + h * p->v_head + tile * p->v_tile + lane * v_row;
        write_key(keys, lane, l->codec, k + (size_t)h * l->d_k, l->d_k);
        encode(values, l->codec, v + (size_t)h * l->d_v, l->d_v);
    }
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
