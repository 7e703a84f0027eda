/* attend_body.h - the functions of attend.h, compiled once per instruction set.
 *
 * The including file has included v16_ISA.h and defines QN_ISA(name) as name_ISA. Rows are taken in
 * blocks of V16_SCORE_ROWS (scores) and V16_PV_ROWS (values) so that a loaded key or value meets
 * several of them; each row's own order of additions is the same in any block.
 */
#include <math.h>
#include <string.h>

#include "compute/cpu/attend.h"
#include "compute/cpu/v16_math.h"

#define QUANTIZED(form) ((form) == QN_KV_Q8 || (form) == QN_KV_Q4)

enum { MAX_TABLE = 1024 / 32 * QN_KV_TILE }; /* scales of a tile */

/* Bytes of n elements or codes. */
V16_INLINE size_t form_bytes(const qn_kv_form form, size_t n)
{
    switch (form) {
    case QN_KV_F32: return n * 4;
    case QN_KV_F16:
    case QN_KV_BF16: return n * 2;
    case QN_KV_Q8: return n;
    case QN_KV_Q4: return n / 2;
    }
    QN_UNREACHABLE();
}

/* 16 elements of a tile that is not quantized. */
V16_INLINE v16 load_plain(const void *tile, size_t at, const qn_kv_form form)
{
    if (form == QN_KV_F32) return v16_load((const float *)tile + at);
    if (form == QN_KV_F16) return v16_load_f16((const uint16_t *)tile + at);
    return v16_load_bf16((const uint16_t *)tile + at);
}

/* The 16 positions' scales (part 0) or biases (part 1) of group g of a quantized tile with n
 * elements a position. */
static v16 load_table(const void *tile, qn_kv_codec c, const qn_kv_form form, uint32_t n,
                      uint32_t part, uint32_t g)
{
    const uint8_t *tables = (const uint8_t *)tile + form_bytes(form, (size_t)n * QN_KV_TILE);
    size_t at = ((size_t)part * (n / c.group) + g) * QN_KV_TILE;
    if (c.scales == QN_F32) return v16_load((const float *)(const void *)tables + at);
    const uint16_t *half = (const uint16_t *)(const void *)tables + at;
    return c.scales == QN_F16 ? v16_load_f16(half) : v16_load_bf16(half);
}

/* Element d of the 16 keys of a tile; the group's scales and biases when it is quantized. */
V16_INLINE v16 load_key(const void *tile, uint32_t d, const qn_kv_form form, v16 scale, v16 bias)
{
    const uint8_t *codes = tile;
    size_t at = (size_t)d * QN_KV_TILE;
    if (form == QN_KV_Q8) return v16_fma(scale, v16_load_u8(codes + at), bias);
    if (form == QN_KV_Q4)
        return v16_fma(scale, v16_load_half_bytes(codes + d / 2 * QN_KV_TILE, d % 2), bias);
    return load_plain(tile, at, form);
}

/* A value tile's scales and biases in float32: [group][position]. */
typedef struct table {
    uint32_t group;
    float scale[MAX_TABLE], bias[MAX_TABLE];
} table;

static void load_tables(table *t, const qn_attend_job *job, const void *tile, const qn_kv_form form)
{
    t->group = job->v_codec.group;
    for (uint32_t g = 0; g < job->v_ld / t->group; g++) {
        v16_store(t->scale + g * QN_KV_TILE, load_table(tile, job->v_codec, form, job->v_ld, 0, g));
        v16_store(t->bias + g * QN_KV_TILE, load_table(tile, job->v_codec, form, job->v_ld, 1, g));
    }
}

/* Elements d .. d+15 of the value at `lane` of a tile. */
V16_INLINE v16 load_value(const void *tile, uint32_t lane, uint32_t v_ld, uint32_t d,
                          const qn_kv_form form, const table *t)
{
    size_t at = (size_t)lane * v_ld + d;
    if (!QUANTIZED(form)) return load_plain(tile, at, form);
    const uint8_t *codes = tile;
    v16 code = form == QN_KV_Q8 ? v16_load_u8(codes + at) : v16_load_u4(codes + at / 2);
    uint32_t i = d / t->group * QN_KV_TILE + lane;
    return v16_fma(v16_set(t->scale[i]), code, v16_set(t->bias[i]));
}

/* Ask for a line that is read two tiles from now. Into the second level cache: it may be dropped
 * from the first one before its turn. */
V16_INLINE void fetch_ahead(const void *tile, size_t at)
{
    __builtin_prefetch((const char *)tile + at, 0, 1);
}

/* The tile indices that hold the visible keys of rows r0 .. r0+rows-1: t0 <= t < t1. */
V16_INLINE void tile_range(const qn_attend_job *job, uint32_t r0, uint32_t rows, uint32_t *t0,
                           uint32_t *t1)
{
    uint32_t lo = job->lo[r0], hi = job->hi[r0];
    for (uint32_t i = 1; i < rows; i++) {
        if (job->lo[r0 + i] < lo) lo = job->lo[r0 + i];
        if (job->hi[r0 + i] > hi) hi = job->hi[r0 + i];
    }
    *t0 = lo / QN_KV_TILE;
    *t1 = (hi + QN_KV_TILE - 1) / QN_KV_TILE;
}

/* p[row][key] = q[row] . k[key] for `rows` rows. With few rows (decode) the keys come from memory
 * and the processor's own prefetching stops at every page, so lines are asked for two tiles ahead:
 * of keys, then of the values that follow. */
V16_INLINE void score_rows(const qn_attend_job *job, uint32_t r0, const uint32_t rows,
                           const qn_kv_form form)
{
    const uint32_t per_line = 64 / form_bytes(form, QN_KV_TILE), stride = form == QN_KV_Q4 ? 2 : 1;
    uint32_t t0, t1, group = QUANTIZED(form) ? job->k_codec.group : job->d_k;
    tile_range(job, r0, rows, &t0, &t1);
    for (uint32_t t = t0; t < t1; t++) {
        const float *q = job->q + (size_t)r0 * job->d_k;
        const void *ahead = t + 2 < t1 ? job->k[t + 2] : job->v[t + 2 == t1 ? t0 : t1 - 1];
        v16 a[V16_SCORE_ROWS], scale = v16_set(0.0f), bias = scale;
        for (uint32_t i = 0; i < rows; i++) a[i] = v16_set(0.0f);
        for (uint32_t g = 0, d = 0; d < job->d_k; g++) {
            if (QUANTIZED(form)) {
                scale = load_table(job->k[t], job->k_codec, form, job->d_k, 0, g);
                bias = load_table(job->k[t], job->k_codec, form, job->d_k, 1, g);
            }
            for (uint32_t end = d + group; d < end; d += stride) {
                if (rows <= 4 && d % per_line == 0)
                    fetch_ahead(ahead, form_bytes(form, (size_t)d * QN_KV_TILE));
                for (uint32_t e = 0; e < stride; e++) {
                    v16 k = load_key(job->k[t], d + e, form, scale, bias);
                    for (uint32_t i = 0; i < rows; i++)
                        a[i] = v16_fma(v16_set(q[(size_t)i * job->d_k + d + e]), k, a[i]);
                }
            }
        }
        float *p = job->p + (size_t)r0 * QN_KV_SPLIT + t * QN_KV_TILE;
        for (uint32_t i = 0; i < rows; i++) v16_store(p + (size_t)i * QN_KV_SPLIT, a[i]);
    }
}

/* The same for latent keys, which are rows: sums over 16 lanes of the row, then across the lanes.
 * Rows of q meet several keys at once, so that what is loaded of either meets several of the other. */
V16_INLINE void score_latent_rows(const qn_attend_job *job, uint32_t r0, const uint32_t rows,
                                  const qn_kv_form form)
{
    enum { KEYS = V16_PV_VECS };
    _Static_assert(QN_KV_TILE % KEYS == 0, "keys of a block lie in one tile");
    uint32_t t0, t1;
    tile_range(job, r0, rows, &t0, &t1);
    const float *q = job->q + (size_t)r0 * job->d_k;
    for (uint32_t j = t0 * QN_KV_TILE; j < t1 * QN_KV_TILE; j += KEYS) {
        const uint32_t t = j / QN_KV_TILE, lane = j % QN_KV_TILE;
        v16 a[V16_PV_ROWS][KEYS];
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t c = 0; c < KEYS; c++) a[i][c] = v16_set(0.0f);
        for (uint32_t d = 0; d < job->d_k; d += 16) {
            const bool value = d < job->v_ld;
            const void *tile = value ? job->v[t] : job->k[t];
            const uint32_t ld = value ? job->v_ld : job->k_ld;
            const size_t at = (size_t)lane * ld + (value ? d : d - job->v_ld);
            v16 k[KEYS];
            for (uint32_t c = 0; c < KEYS; c++) k[c] = load_plain(tile, at + (size_t)c * ld, form);
            for (uint32_t i = 0; i < rows; i++) {
                v16 x = v16_load(q + (size_t)i * job->d_k + d);
                for (uint32_t c = 0; c < KEYS; c++) a[i][c] = v16_fma(x, k[c], a[i][c]);
            }
        }
        float *p = job->p + (size_t)r0 * QN_KV_SPLIT + j;
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t c = 0; c < KEYS; c++) p[(size_t)i * QN_KV_SPLIT + c] = v16_sum(a[i][c]);
    }
}

V16_INLINE void score_latent(const qn_attend_job *job, const qn_kv_form form)
{
    uint32_t r = 0;
    for (; r + V16_PV_ROWS <= job->n_rows; r += V16_PV_ROWS)
        score_latent_rows(job, r, V16_PV_ROWS, form);
    for (; r < job->n_rows; r++) score_latent_rows(job, r, 1, form);
}

/* Block sizes are constants here, so that the accumulators are registers. */
V16_INLINE void score_all(const qn_attend_job *job, const qn_kv_form form)
{
    for (uint32_t r = 0; r < job->n_rows;) {
        uint32_t left = job->n_rows - r;
        uint32_t rows = left >= V16_SCORE_ROWS ? V16_SCORE_ROWS : left >= 4 ? 4 : left;
        switch (rows) {
        case 1: score_rows(job, r, 1, form); break;
        case 2: score_rows(job, r, 2, form); break;
        case 3: score_rows(job, r, 3, form); break;
        case 4: score_rows(job, r, 4, form); break;
        default: score_rows(job, r, V16_SCORE_ROWS, form); break;
        }
        r += rows;
    }
}

/* Scores to exp(score - max) in place; the row's max and sum. */
static void soften_row(const qn_attend_job *job, uint32_t r)
{
    int lo = (int)job->lo[r], hi = (int)job->hi[r];
    int t0 = lo / QN_KV_TILE * QN_KV_TILE;
    float *p = job->p + (size_t)r * QN_KV_SPLIT;
    v16 hidden = v16_set(-INFINITY), most = hidden, cap = v16_set(job->softcap);
    for (int j = t0; j < hi; j += QN_KV_TILE) {
        v16 s = v16_load(p + j);
        if (job->softcap > 0) s = v16_mul(v16_tanh(v16_div(s, cap)), cap);
        s = v16_keep(s, lo - j, hi - j, hidden);
        v16_store(p + j, s);
        most = v16_max(most, s);
    }
    float max = v16_largest(most);
    v16 m = v16_set(max), sum = v16_set(0.0f);
    for (int j = t0; j < hi; j += QN_KV_TILE) {
        v16 e = v16_exp(v16_sub(v16_load(p + j), m));
        v16_store(p + j, e);
        sum = v16_add(sum, e);
    }
    job->out.max[r] = max;
    job->out.sum[r] = v16_sum(sum);
}

/* acc[row][d0 .. d0+16*vecs) += p[row][j] * v[j] for j0 <= j < j1 of one tile, ascending. */
V16_INLINE void value_rows(const qn_attend_job *job, uint32_t r0, const uint32_t rows, uint32_t d0,
                           const uint32_t vecs, uint32_t j0, uint32_t j1, const qn_kv_form form,
                           const table *tables)
{
    uint32_t t = j0 / QN_KV_TILE;
    const void *tile = job->v[t], *ahead = job->v[t + 2 < QN_SPLIT_TILES ? t + 2 : t];
    float *acc = job->out.acc + (size_t)r0 * job->v_ld + d0;
    const float *p = job->p + (size_t)r0 * QN_KV_SPLIT;
    v16 a[V16_PV_ROWS][V16_PV_VECS];
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t c = 0; c < vecs; c++)
            a[i][c] = v16_load(acc + (size_t)i * job->v_ld + 16 * c);
    for (uint32_t j = j0; j < j1; j++) {
        size_t at = form_bytes(form, (size_t)(j % QN_KV_TILE) * job->v_ld + d0);
        for (uint32_t c = 0; c < form_bytes(form, 16 * vecs); c += 64) fetch_ahead(ahead, at + c);
        v16 v[V16_PV_VECS];
        for (uint32_t c = 0; c < vecs; c++)
            v[c] = load_value(tile, j % QN_KV_TILE, job->v_ld, d0 + 16 * c, form, tables);
        for (uint32_t i = 0; i < rows; i++) {
            v16 x = v16_set(p[(size_t)i * QN_KV_SPLIT + j]);
            for (uint32_t c = 0; c < vecs; c++) a[i][c] = v16_fma(x, v[c], a[i][c]);
        }
    }
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t c = 0; c < vecs; c++)
            v16_store(acc + (size_t)i * job->v_ld + 16 * c, a[i][c]);
}

/* The same over the whole width of v and any keys, tile by tile: values are read in the order they
 * lie in. */
V16_INLINE void value_width(const qn_attend_job *job, uint32_t r0, const uint32_t rows, uint32_t j0,
                            uint32_t j1, const qn_kv_form form)
{
    table tables;
    for (uint32_t j = j0, end; j < j1; j = end) {
        uint32_t d = 0, next = (j / QN_KV_TILE + 1) * QN_KV_TILE;
        end = next < j1 ? next : j1;
        if (QUANTIZED(form)) load_tables(&tables, job, job->v[j / QN_KV_TILE], form);
        for (; d + 16 * V16_PV_VECS <= job->v_ld; d += 16 * V16_PV_VECS)
            value_rows(job, r0, rows, d, V16_PV_VECS, j, end, form, &tables);
        for (; d < job->v_ld; d += 16) value_rows(job, r0, rows, d, 1, j, end, form, &tables);
    }
}

V16_INLINE void value_form(const qn_attend_job *job, uint32_t r0, uint32_t rows, uint32_t j0,
                           uint32_t j1, const qn_kv_form form)
{
    switch (rows) {
    case 1: value_width(job, r0, 1, j0, j1, form); return;
    case 2: value_width(job, r0, 2, j0, j1, form); return;
    case 3: value_width(job, r0, 3, j0, j1, form); return;
    default: value_width(job, r0, V16_PV_ROWS, j0, j1, form); return;
    }
}

/* acc += p * v of keys j0 <= j < j1 for rows that all see them. */
static void value_span(const qn_attend_job *job, uint32_t r0, uint32_t rows, uint32_t j0,
                       uint32_t j1)
{
    switch (job->v_codec.form) {
    case QN_KV_F32: value_form(job, r0, rows, j0, j1, QN_KV_F32); return;
    case QN_KV_F16: value_form(job, r0, rows, j0, j1, QN_KV_F16); return;
    case QN_KV_BF16: value_form(job, r0, rows, j0, j1, QN_KV_BF16); return;
    case QN_KV_Q8: value_form(job, r0, rows, j0, j1, QN_KV_Q8); return;
    case QN_KV_Q4: value_form(job, r0, rows, j0, j1, QN_KV_Q4); return;
    }
    QN_UNREACHABLE();
}

/* A block of rows: together where all of them see the keys, one by one before and after. */
static void value_block(const qn_attend_job *job, uint32_t r0, uint32_t rows)
{
    uint32_t lo = 0, hi = QN_KV_SPLIT, end = r0 + rows;
    for (uint32_t r = r0; r < end; r++) {
        if (job->lo[r] > lo) lo = job->lo[r];
        if (job->hi[r] < hi) hi = job->hi[r];
    }
    if (lo >= hi) {
        for (uint32_t r = r0; r < end; r++) value_span(job, r, 1, job->lo[r], job->hi[r]);
        return;
    }
    for (uint32_t r = r0; r < end; r++)
        if (job->lo[r] < lo) value_span(job, r, 1, job->lo[r], lo);
    value_span(job, r0, rows, lo, hi);
    for (uint32_t r = r0; r < end; r++)
        if (job->hi[r] > hi) value_span(job, r, 1, hi, job->hi[r]);
}

/* Keys and values of a latent layer have one form, which is not quantized. */
V16_INLINE void score_plain(const qn_attend_job *job, const qn_kv_form form)
{
    if (job->k_ld) score_latent(job, form);
    else score_all(job, form);
}

void QN_ISA(qn_attend_split)(const qn_attend_job *job)
{
    switch (job->k_codec.form) {
    case QN_KV_F32: score_plain(job, QN_KV_F32); break;
    case QN_KV_F16: score_plain(job, QN_KV_F16); break;
    case QN_KV_BF16: score_plain(job, QN_KV_BF16); break;
    case QN_KV_Q8: score_all(job, QN_KV_Q8); break;
    case QN_KV_Q4: score_all(job, QN_KV_Q4); break;
    }
    for (uint32_t r = 0; r < job->n_rows; r++) soften_row(job, r);
    memset(job->out.acc, 0, (size_t)job->n_rows * job->v_ld * sizeof(float));
    for (uint32_t r = 0; r < job->n_rows; r += V16_PV_ROWS) {
        uint32_t left = job->n_rows - r;
        value_block(job, r, left < V16_PV_ROWS ? left : V16_PV_ROWS);
    }
}

void QN_ISA(qn_attend_merge)(const qn_attend_part *a, const qn_attend_part *b, uint32_t n_rows,
                             uint32_t v_ld)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        v16 ma = v16_set(a->max[r]), mb = v16_set(b->max[r]), m = v16_max(ma, mb);
        v16 ca = v16_exp(v16_sub(ma, m)), cb = v16_exp(v16_sub(mb, m));
        v16 sum = v16_fma(v16_set(b->sum[r]), cb, v16_mul(v16_set(a->sum[r]), ca));
        v16_store_n(&a->max[r], m, 1);
        v16_store_n(&a->sum[r], sum, 1);
        float *to = a->acc + (size_t)r * v_ld;
        const float *from = b->acc + (size_t)r * v_ld;
        for (uint32_t d = 0; d < v_ld; d += 16)
            v16_store(to + d, v16_fma(v16_load(from + d), cb, v16_mul(v16_load(to + d), ca)));
    }
}
