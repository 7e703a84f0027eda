/* ref_kv.c - pools of KV blocks, and writing keys and values into them. ref_kv.h has the layout. */
#include "compute/ref/ref_kv.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Floats that hold the codes of a head of d elements. */
static size_t raw_floats(qn_kv_codec c, size_t d)
{
    return qn_kv_code_words(c, d) + 2 * (d / c.group);
}

/* Room for what quantized heads of d elements have beside the floats that were computed: the floats
 * that codes stand for, a head of `head` of them, and the codes. Returns what comes after. */
static size_t place_codes(const qn_kv_spec *spec, const qn_kv_layer *l, qn_kv_codec c, uint32_t d,
                          size_t head, size_t at, size_t *floats, size_t *raw)
{
    *floats = at;
    *raw = at + l->n_kv_heads * head;
    return *raw + (size_t)l->n_kv_heads * spec->block_tokens * raw_floats(c, d);
}

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
        if (qn_kv_quantized(l->k_codec))
            at = place_codes(spec, l, l->k_codec, l->d_k, p.k_head, at, &p.k_codes, &p.k_raw);
        if (qn_kv_quantized(l->v_codec))
            at = place_codes(spec, l, l->v_codec, l->d_v, p.v_head, at, &p.v_codes, &p.v_raw);
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
    uint32_t head = qn_kv_head_blocks(&kv->spec.groups[g], kv->spec.block_tokens);
    qn_check(qn_kv_entry_held(i, head, item->dropped[g]));
    return block_at(kv, g, item->blocks[g][qn_kv_entry(i, head, item->dropped[g])]);
}

typedef struct write_job {
    const qn_ref_run *run;
    uint32_t layer;
    qn_tensor k, v;
} write_job;

/* A head's codes as MLX has them, scales and biases of type t. */
typedef struct coded {
    uint32_t words[QN_REF_MAX_HEAD / 4];
    float scales[QN_REF_MAX_HEAD / 32], biases[QN_REF_MAX_HEAD / 32]; /* memory for any type */
    qn_dtype t;
} coded;

static qn_qspec qspec_of(qn_kv_codec c)
{
    return (qn_qspec){QN_Q_AFFINE, qn_kv_form_bits(c.form), c.group};
}

static void encode(coded *e, const float *x, uint32_t n, qn_kv_codec c, qn_dtype t)
{
    qn_qspec spec = qspec_of(c);
    e->t = t;
    qn_quantize_row(&spec, t, x, n, e->words, e->scales, e->biases);
}

/* x [n]: each value as MLX's products with codes have it. */
static void decode(float *x, const coded *e, uint32_t n, qn_kv_codec c)
{
    qn_matrix m = {.spec = qspec_of(c), .n_experts = 1, .n_out = 1, .n_in = n, .weight = e->words,
                   .scales = e->scales, .biases = e->biases, .dtype = e->t};
    qn_matrix_row(&m, 0, true, x);
}

/* The codes of place `at` of a head; `raw` has those of all heads. */
static float *raw_at(const qn_kv *kv, float *raw, qn_kv_codec c, uint32_t d, uint32_t h, uint32_t at)
{
    return raw + ((size_t)h * kv->spec.block_tokens + at) * raw_floats(c, d);
}

static void put_raw(float *raw, const coded *e, uint32_t n, qn_kv_codec c)
{
    size_t n_words = qn_kv_code_words(c, n), n_groups = n / c.group;
    memcpy(raw, e->words, n_words * sizeof *raw);
    qn_widen(raw + n_words, e->scales, e->t, n_groups);
    qn_widen(raw + n_words + n_groups, e->biases, e->t, n_groups);
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

static void put_key_codes(const qn_kv *kv, const qn_kv_layer *l, const qn_ref_place *p,
                          float *block, uint32_t h, uint32_t at, const coded *e)
{
    float head[QN_REF_MAX_HEAD];
    decode(head, e, l->d_k, l->k_codec);
    put_key(block + p->k_codes + h * p->k_head, at, head, l->d_k);
    put_raw(raw_at(kv, block + p->k_raw, l->k_codec, l->d_k, h, at), e, l->d_k, l->k_codec);
}

static void put_value_codes(const qn_kv *kv, const qn_kv_layer *l, const qn_ref_place *p,
                            float *block, uint32_t h, uint32_t at, const coded *e)
{
    float head[QN_REF_MAX_HEAD];
    decode(head, e, l->d_v, l->v_codec);
    put_value(block + p->v_codes + h * p->v_head, at, head, l->d_v, p->v_ld);
    put_raw(raw_at(kv, block + p->v_raw, l->v_codec, l->d_v, h, at), e, l->d_v, l->v_codec);
}

/* One key head, and one value head, in every form that the layer has; x is of type t. */
static void write_key(const qn_kv *kv, uint32_t layer, float *block, uint32_t h, uint32_t at,
                      const float *x, qn_dtype t)
{
    const qn_kv_layer *l = &kv->spec.layers[layer];
    const qn_ref_place *p = &kv->place[layer];
    put_key(block + p->k + h * p->k_head, at, x, l->d_k);
    if (!qn_kv_quantized(l->k_codec)) return;
    coded e;
    encode(&e, x, l->d_k, l->k_codec, t);
    put_key_codes(kv, l, p, block, h, at, &e);
}

static void write_value(const qn_kv *kv, uint32_t layer, float *block, uint32_t h, uint32_t at,
                        const float *x, qn_dtype t)
{
    const qn_kv_layer *l = &kv->spec.layers[layer];
    const qn_ref_place *p = &kv->place[layer];
    put_value(block + p->v + h * p->v_head, at, x, l->d_v, p->v_ld);
    if (!qn_kv_quantized(l->v_codec)) return;
    coded e;
    encode(&e, x, l->d_v, l->v_codec, t);
    put_value_codes(kv, l, p, block, h, at, &e);
}

/* All heads of one batch row at its position. */
static void write_row(const write_job *w, const qn_item *item, uint32_t row)
{
    const qn_kv *kv = w->run->base.kv;
    const qn_ref_kernels *kernels = w->run->ref->k;
    const qn_kv_layer *l = &kv->spec.layers[w->layer];
    uint32_t pos = item->n_past + (row - item->row0), at = pos % kv->spec.block_tokens;
    float *block = qn_ref_kv_block(kv, item, l->group, pos), head[QN_REF_MAX_HEAD];
    for (uint32_t h = 0; h < l->n_kv_heads; h++) {
        kernels->widen(head, qn_ref_at(w->k, row, h * l->d_k), w->k.dtype, l->d_k);
        write_key(kv, w->layer, block, h, at, head, w->k.dtype);
        kernels->widen(head, qn_ref_at(w->v, row, h * l->d_v), w->v.dtype, l->d_v);
        write_value(kv, w->layer, block, h, at, head, w->v.dtype);
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
    write_job w = {(qn_ref_run *)(void *)r, layer, k, v};
    qn_ref_rows((qn_ref_run *)(void *)r, write_rows, &w, k.rows, k.cols + v.cols);
}

/* ---- to and from host memory ---- */

/* The block of places [at, at + n), which all lie in it. */
static float *places(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n)
{
    qn_check(layer < kv->spec.n_layers && at + n <= kv->spec.block_tokens);
    return block_at(kv, kv->spec.layers[layer].group, block);
}

/* Head number i, counted over positions from place `at` and their heads. */
typedef struct spot {
    uint32_t h, at;
} spot;

static spot spot_of(const qn_kv_layer *l, uint32_t at, size_t i)
{
    return (spot){(uint32_t)(i % l->n_kv_heads), at + (uint32_t)(i / l->n_kv_heads)};
}

static void get_key(float *x, const float *keys, uint32_t at, uint32_t n)
{
    const float *tile = keys + (size_t)(at / QN_REF_KEY_TILE) * QN_REF_KEY_TILE * n;
    for (uint32_t d = 0; d < n; d++) x[d] = tile[d * QN_REF_KEY_TILE + at % QN_REF_KEY_TILE];
}

void qn_ref_kv_get(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                   float *k, float *v)
{
    const float *b = places(kv, layer, block, at, n);
    const qn_kv_layer *l = &kv->spec.layers[layer];
    const qn_ref_place *p = &kv->place[layer];
    for (size_t i = 0; i < (size_t)n * l->n_kv_heads; i++) {
        spot s = spot_of(l, at, i);
        if (k) get_key(k + i * l->d_k, b + p->k + s.h * p->k_head, s.at, l->d_k);
        if (v)
            memcpy(v + i * l->d_v, b + p->v + s.h * p->v_head + (size_t)s.at * p->v_ld,
                   l->d_v * sizeof *v);
    }
}

void qn_ref_kv_put(qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                   const float *k, const float *v)
{
    float *b = places(kv, layer, block, at, n);
    const qn_kv_layer *l = &kv->spec.layers[layer];
    for (size_t i = 0; i < (size_t)n * l->n_kv_heads; i++) {
        spot s = spot_of(l, at, i);
        if (k) write_key(kv, layer, b, s.h, s.at, k + i * l->d_k, l->k_codec.scales);
        if (v) write_value(kv, layer, b, s.h, s.at, v + i * l->d_v, l->v_codec.scales);
    }
}

static void get_raw(const qn_kv_codes *x, const float *raw, uint32_t n, qn_kv_codec c)
{
    size_t n_words = qn_kv_code_words(c, n), n_groups = n / c.group;
    memcpy(x->words, raw, n_words * sizeof *raw);
    qn_narrow(x->scales, c.scales, raw + n_words, n_groups);
    qn_narrow(x->biases, c.scales, raw + n_words + n_groups, n_groups);
}

void qn_ref_kv_get_codes(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                         const qn_kv_codes *k, const qn_kv_codes *v)
{
    float *b = places(kv, layer, block, at, n);
    const qn_kv_layer *l = &kv->spec.layers[layer];
    const qn_ref_place *p = &kv->place[layer];
    qn_kv_codec kc = l->k_codec, vc = l->v_codec;
    qn_check(!(k->words && !qn_kv_quantized(kc)) && !(v->words && !qn_kv_quantized(vc)));
    for (size_t i = 0; i < (size_t)n * l->n_kv_heads; i++) {
        spot s = spot_of(l, at, i);
        if (k->words) {
            qn_kv_codes x = qn_kv_codes_at(k, kc, l->d_k, i);
            get_raw(&x, raw_at(kv, b + p->k_raw, kc, l->d_k, s.h, s.at), l->d_k, kc);
        }
        if (v->words) {
            qn_kv_codes x = qn_kv_codes_at(v, vc, l->d_v, i);
            get_raw(&x, raw_at(kv, b + p->v_raw, vc, l->d_v, s.h, s.at), l->d_v, vc);
        }
    }
}

/* Head i of codes in host memory. */
static void take_codes(coded *e, const qn_kv_codes *codes, qn_kv_codec c, uint32_t d, size_t i)
{
    qn_kv_codes x = qn_kv_codes_at(codes, c, d, i);
    e->t = c.scales;
    memcpy(e->words, x.words, qn_kv_code_words(c, d) * sizeof *e->words);
    memcpy(e->scales, x.scales, qn_kv_scale_bytes(c, d));
    memcpy(e->biases, x.biases, qn_kv_scale_bytes(c, d));
}

void qn_ref_kv_put_codes(qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                         const qn_kv_codes *k, const qn_kv_codes *v)
{
    float *b = places(kv, layer, block, at, n);
    const qn_kv_layer *l = &kv->spec.layers[layer];
    const qn_ref_place *p = &kv->place[layer];
    qn_kv_codec kc = l->k_codec, vc = l->v_codec;
    qn_check(!(k->words && !qn_kv_quantized(kc)) && !(v->words && !qn_kv_quantized(vc)));
    for (size_t i = 0; i < (size_t)n * l->n_kv_heads; i++) {
        spot s = spot_of(l, at, i);
        coded e;
        if (k->words) {
            take_codes(&e, k, kc, l->d_k, i);
            put_key_codes(kv, l, p, b, s.h, s.at, &e);
        }
        if (v->words) {
            take_codes(&e, v, vc, l->d_v, i);
            put_value_codes(kv, l, p, b, s.h, s.at, &e);
        }
    }
}
