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

/* 16 elements of a key or value tile. */
V16_INLINE v16 load_kv(const void *base, size_t at, const qn_kv_codec codec)
{
    switch (codec) {
    case QN_KV_F32: return v16_load((const float *)base + at);
    case QN_KV_F16: return v16_load_f16((const uint16_t *)base + at);
    case QN_KV_BF16: return v16_load_bf16((const uint16_t *)base + at);
    }
    QN_UNREACHABLE();
}

V16_INLINE uint32_t element_bytes(const qn_kv_codec codec) { return codec == QN_KV_F32 ? 4 : 2; }

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
                           const qn_kv_codec codec)
{
    uint32_t t0, t1;
    tile_range(job, r0, rows, &t0, &t1);
    for (uint32_t t = t0; t < t1; t++) {
        const float *q = job->q + (size_t)r0 * job->d_k;
        const void *ahead = t + 2 < t1 ? job->k[t + 2] : job->v[t + 2 == t1 ? t0 : t1 - 1];
        v16 a[V16_SCORE_ROWS];
        for (uint32_t i = 0; i < rows; i++) a[i] = v16_set(0.0f);
        for (uint32_t d = 0; d < job->d_k; d++) {
            v16 k = load_kv(job->k[t], (size_t)d * 16, codec);
            if (rows <= 4) fetch_ahead(ahead, (size_t)d * 16 * element_bytes(codec));
            for (uint32_t i = 0; i < rows; i++)
                a[i] = v16_fma(v16_set(q[(size_t)i * job->d_k + d]), k, a[i]);
        }
        float *p = job->p + (size_t)r0 * QN_KV_SPLIT + t * QN_KV_TILE;
        for (uint32_t i = 0; i < rows; i++) v16_store(p + (size_t)i * QN_KV_SPLIT, a[i]);
    }
}

/* Block sizes are constants here, so that the accumulators are registers. */
V16_INLINE void score_all(const qn_attend_job *job, const qn_kv_codec codec)
{
    for (uint32_t r = 0; r < job->n_rows;) {
        uint32_t left = job->n_rows - r;
        uint32_t rows = left >= V16_SCORE_ROWS ? V16_SCORE_ROWS : left >= 4 ? 4 : left;
        switch (rows) {
        case 1: score_rows(job, r, 1, codec); break;
        case 2: score_rows(job, r, 2, codec); break;
        case 3: score_rows(job, r, 3, codec); break;
        case 4: score_rows(job, r, 4, codec); break;
        default: score_rows(job, r, V16_SCORE_ROWS, codec); break;
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
                           const uint32_t vecs, uint32_t j0, uint32_t j1, const qn_kv_codec codec)
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
        size_t at = (size_t)(j % QN_KV_TILE) * job->v_ld + d0;
        for (uint32_t c = 0; c < 16 * vecs * element_bytes(codec); c += 64)
            fetch_ahead(ahead, at * element_bytes(codec) + c);
        v16 v[V16_PV_VECS];
        for (uint32_t c = 0; c < vecs; c++) v[c] = load_kv(tile, at + 16 * c, codec);
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
                            uint32_t j1, const qn_kv_codec codec)
{
    for (uint32_t j = j0, end; j < j1; j = end) {
        uint32_t d = 0, next = (j / QN_KV_TILE + 1) * QN_KV_TILE;
        end = next < j1 ? next : j1;
        for (; d + 16 * V16_PV_VECS <= job->v_ld; d += 16 * V16_PV_VECS)
            value_rows(job, r0, rows, d, V16_PV_VECS, j, end, codec);
        for (; d < job->v_ld; d += 16) value_rows(job, r0, rows, d, 1, j, end, codec);
    }
}

V16_INLINE void value_codec(const qn_attend_job *job, uint32_t r0, uint32_t rows, uint32_t j0,
                            uint32_t j1, const qn_kv_codec codec)
{
    switch (rows) {
    case 1: value_width(job, r0, 1, j0, j1, codec); return;
    case 2: value_width(job, r0, 2, j0, j1, codec); return;
    case 3: value_width(job, r0, 3, j0, j1, codec); return;
    default: value_width(job, r0, V16_PV_ROWS, j0, j1, codec); return;
    }
}

/* acc += p * v of keys j0 <= j < j1 for rows that all see them. */
static void value_span(const qn_attend_job *job, uint32_t r0, uint32_t rows, uint32_t j0,
                       uint32_t j1)
{
    switch (job->codec) {
    case QN_KV_F32: value_codec(job, r0, rows, j0, j1, QN_KV_F32); return;
    case QN_KV_F16: value_codec(job, r0, rows, j0, j1, QN_KV_F16); return;
    case QN_KV_BF16: value_codec(job, r0, rows, j0, j1, QN_KV_BF16); return;
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

void QN_ISA(qn_attend_split)(const qn_attend_job *job)
{
    switch (job->codec) {
    case QN_KV_F32: score_all(job, QN_KV_F32); break;
    case QN_KV_F16: score_all(job, QN_KV_F16); break;
    case QN_KV_BF16: score_all(job, QN_KV_BF16); break;
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
