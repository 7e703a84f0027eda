/* ref_kv.c - pools of KV blocks, and writing keys and values into them. ref_kv.h has the layout. */
#include "compute/ref/ref_kv.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Lay the layers of a group out; returns the block's floats. `place` may be NULL. */
static size_t place_layers(const qn_kv_spec *spec, uint32_t group, qn_ref_place *place)
{
    size_t at = 0;
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        const qn_kv_layer *l = &spec->layers[i];
        if (l->group != group || l->n_kv_heads == 0) continue;
        qn_ref_place p = {.v_ld = (l->d_v + 15) & ~15u};
        p.k_head = (size_t)spec->block_tokens * l->d_k;
        p.v_head = (size_t)spec->block_tokens * p.v_ld;
        p.k = at;
        p.v = p.k + l->n_kv_heads * p.k_head;
        at = p.v + l->n_kv_heads * p.v_head;
        p.k_codes = p.k, p.v_codes = p.v;
        if (qn_kv_quantized(l->k_codec)) p.k_codes = at, at += l->n_kv_heads * p.k_head;
        if (qn_kv_quantized(l->v_codec)) p.v_codes = at, at += l->n_kv_heads * p.v_head;
        if (place) place[i] = p;
    }
    return at;
}

size_t qn_ref_kv_block_bytes(const qn_device *d, const qn_kv_spec *spec, uint32_t group)
{
    (void)d;
    return place_layers(spec, group, NULL) * sizeof(float);
}

static qn_code map_pools(qn_kv *kv, const uint32_t *n_blocks, qn_err *err)
{
    for (uint32_t g = 0; g < kv->spec.n_groups; g++) {
        kv->block_floats[g] = place_layers(&kv->spec, g, kv->place);
        kv->n_blocks[g] = n_blocks[g];
        size_t bytes;
        if (qn_mul_size(kv->block_floats[g] * sizeof(float), n_blocks[g], &bytes))
            return qn_err_set(err, QN_NOMEM, "KV pool of %u blocks is too large", n_blocks[g]);
        if (bytes == 0) continue;
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            return qn_err_set(err, QN_NOMEM, "out of memory: %zu bytes for the KV cache", bytes);
        kv->pool[g] = p;
        kv->pool_bytes[g] = bytes;
    }
    kv->state_floats = qn_ref_state_bytes(NULL, &kv->spec) / sizeof(float);
    if (!kv->state_floats || !kv->spec.n_states) return QN_OK;
    kv->states = calloc(kv->spec.n_states, kv->state_floats * sizeof(float));
    if (!kv->states)
        return qn_err_set(err, QN_NOMEM, "out of memory: %u state slots", kv->spec.n_states);
    return QN_OK;
}

qn_code qn_ref_kv_new(qn_device *d, const qn_kv_spec *spec, const uint32_t *n_blocks, qn_kv **out,
                      qn_err *err)
{
    (void)d;
    *out = NULL;
    qn_code rc = qn_kv_spec_check(spec, QN_REF_MAX_HEAD, err);
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
    qn_ref_kv_free(kv);
    return rc;
}

void qn_ref_kv_free(qn_kv *kv)
{
    if (!kv) return;
    for (uint32_t g = 0; g < QN_MAX_KV_GROUPS; g++)
        if (kv->pool[g]) munmap(kv->pool[g], kv->pool_bytes[g]);
    free(kv->spec.layers);
    free(kv->place);
    free(kv->states);
    free(kv);
}

static float *block_at(const qn_kv *kv, uint32_t group, uint32_t block)
{
    qn_check(group < kv->spec.n_groups && block < kv->n_blocks[group]);
    return kv->pool[group] + block * kv->block_floats[group];
}

static size_t block_bytes(const qn_kv *kv, uint32_t group)
{
    return kv->block_floats[group] * sizeof(float);
}

void qn_ref_kv_copy(qn_kv *kv, uint32_t group, uint32_t dst, uint32_t src)
{
    if (dst != src)
        memcpy(block_at(kv, group, dst), block_at(kv, group, src), block_bytes(kv, group));
}

void qn_ref_kv_read(qn_kv *kv, uint32_t group, uint32_t block, void *host)
{
    memcpy(host, block_at(kv, group, block), block_bytes(kv, group));
}

void qn_ref_kv_store(qn_kv *kv, uint32_t group, uint32_t block, const void *host)
{
    memcpy(block_at(kv, group, block), host, block_bytes(kv, group));
}

float *qn_ref_kv_block(const qn_kv *kv, const qn_item *item, uint32_t g, uint32_t pos)
{
    uint32_t i = pos / kv->spec.block_tokens;
    qn_check(i >= item->first[g]);
    return block_at(kv, g, item->blocks[g][i - item->first[g]]);
}

typedef struct write_job {
    const qn_ref_run *run;
    const qn_kv_layer *layer;
    const qn_ref_place *place;
    qn_tensor k, v;
} write_job;

/* x [n] of type t through the codes of c: each value as MLX's products with codes have it. */
static void through_codes(float *x, uint32_t n, qn_kv_codec c, qn_dtype t)
{
    float scales[QN_REF_MAX_HEAD / 32], biases[QN_REF_MAX_HEAD / 32]; /* of type t */
    uint32_t words[QN_REF_MAX_HEAD / 4];
    qn_matrix m = {.spec = {QN_Q_AFFINE, qn_kv_form_bits(c.form), c.group}, .n_experts = 1,
                   .n_out = 1, .n_in = n, .weight = words, .scales = scales, .biases = biases,
                   .dtype = t};
    qn_quantize_row(&m.spec, t, x, n, words, scales, biases);
    qn_matrix_row(&m, 0, true, x);
}

static void put_key(float *keys, uint32_t at, const float *x, uint32_t n)
{
    float *tile = keys + (size_t)(at / QN_REF_KEY_TILE) * QN_REF_KEY_TILE * n;
    for (uint32_t d = 0; d < n; d++) tile[d * QN_REF_KEY_TILE + at % QN_REF_KEY_TILE] = x[d];
}

static void put_value(float *values, uint32_t at, const float *x, uint32_t n, uint32_t v_ld)
{
    float *row = values + (size_t)at * v_ld;
    memcpy(row, x, n * sizeof *x);
    memset(row + n, 0, (v_ld - n) * sizeof *x); /* a reused block has anything */
}

/* All heads of one batch row at its position. */
static void write_row(const write_job *w, const qn_item *item, uint32_t row)
{
    const qn_kv *kv = w->run->base.kv;
    const qn_ref_kernels *kernels = w->run->ref->k;
    const qn_kv_layer *l = w->layer;
    const qn_ref_place *p = w->place;
    uint32_t pos = item->n_past + (row - item->row0), at = pos % kv->spec.block_tokens;
    float *block = qn_ref_kv_block(kv, item, l->group, pos), head[QN_REF_MAX_HEAD];
    for (uint32_t h = 0; h < l->n_kv_heads; h++) {
        kernels->widen(head, qn_ref_at(w->k, row, h * l->d_k), w->k.dtype, l->d_k);
        put_key(block + p->k + h * p->k_head, at, head, l->d_k);
        if (qn_kv_quantized(l->k_codec)) {
            through_codes(head, l->d_k, l->k_codec, w->k.dtype);
            put_key(block + p->k_codes + h * p->k_head, at, head, l->d_k);
        }
        kernels->widen(head, qn_ref_at(w->v, row, h * l->d_v), w->v.dtype, l->d_v);
        put_value(block + p->v + h * p->v_head, at, head, l->d_v, p->v_ld);
        if (qn_kv_quantized(l->v_codec)) {
            through_codes(head, l->d_v, l->v_codec, w->v.dtype);
            put_value(block + p->v_codes + h * p->v_head, at, head, l->d_v, p->v_ld);
        }
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

void qn_ref_kv_write(qn_run *r, uint32_t layer, qn_tensor k, qn_tensor v)
{
    qn_kv *kv = r->kv;
    qn_check(layer < kv->spec.n_layers);
    const qn_kv_layer *l = &kv->spec.layers[layer];
    qn_check(k.rows == r->batch->n_tokens && v.rows == k.rows);
    qn_check(k.cols == l->n_kv_heads * l->d_k && v.cols == l->n_kv_heads * l->d_v);
    kv->place[layer].k_type = k.dtype;
    kv->place[layer].v_type = v.dtype;
    write_job w = {(qn_ref_run *)(void *)r, l, &kv->place[layer], k, v};
    qn_ref_rows((qn_ref_run *)(void *)r, write_rows, &w, k.rows, k.cols + v.cols);
}

void qn_ref_kv_get(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, float *k, float *v)
{
    const qn_kv_layer *l = &kv->spec.layers[layer];
    const qn_ref_place *p = &kv->place[layer];
    qn_check(!qn_kv_quantized(l->k_codec) && !qn_kv_quantized(l->v_codec));
    const float *b = block_at(kv, l->group, block);
    for (uint32_t h = 0; h < l->n_kv_heads; h++) {
        const float *tile = b + p->k + h * p->k_head +
                            (size_t)(at / QN_REF_KEY_TILE) * QN_REF_KEY_TILE * l->d_k;
        for (uint32_t d = 0; d < l->d_k; d++)
            k[(size_t)h * l->d_k + d] = tile[d * QN_REF_KEY_TILE + at % QN_REF_KEY_TILE];
        memcpy(v + (size_t)h * l->d_v, b + p->v + h * p->v_head + (size_t)at * p->v_ld,
               l->d_v * sizeof *v);
    }
}

void qn_ref_kv_put(qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, const float *k,
                   const float *v)
{
    const qn_kv_layer *l = &kv->spec.layers[layer];
    const qn_ref_place *p = &kv->place[layer];
    qn_check(!qn_kv_quantized(l->k_codec) && !qn_kv_quantized(l->v_codec));
    float *b = block_at(kv, l->group, block);
    for (uint32_t h = 0; h < l->n_kv_heads; h++) {
        put_key(b + p->k + h * p->k_head, at, k + (size_t)h * l->d_k, l->d_k);
        put_value(b + p->v + h * p->v_head, at, v + (size_t)h * l->d_v, l->d_v, p->v_ld);
    }
}
