/* ref_body.h - the functions of ref_kernels.h, compiled once per instruction set.
 *
 * The including file has included ref_lanes_ISA.h and defines QN_ISA(name) as name_ISA. Only
 * compiler vectors and the functions of that header are used. One lane is one output; nothing here
 * adds lanes together, and products and sums are rounded one by one (-ffp-contract=off).
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "compute/ref/ref_kernels.h"
#include "core/err.h"

enum { VECS = 4, BLOCK = VECS * LANES }; /* outputs side by side: enough to hide a sum's latency */

_Static_assert((int)BLOCK <= (int)QN_REF_MAX_BLOCK,
               "scratch is laid out for at most MAX_BLOCK outputs");

/* ---- lanes ---- */

LANES_INLINE lanes load(const float *p)
{
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

LANES_INLINE void store(float *p, lanes v) { memcpy(p, &v, sizeof v); }

LANES_INLINE lanes_u load_u(const uint32_t *p)
{
    lanes_u v;
    memcpy(&v, p, sizeof v);
    return v;
}

LANES_INLINE lanes all(float x) { return x - (lanes){0}; } /* keeps the sign of -0 */

LANES_INLINE lanes choose(lanes_i mask, lanes a, lanes b)
{
    return (lanes)(((lanes_i)a & mask) | ((lanes_i)b & ~mask));
}

/* The nearest bfloat16. NaNs stay NaNs; `narrow` gives them their one form. */
LANES_INLINE lanes round_bf16(lanes x)
{
    lanes_u u = (lanes_u)x;
    u += ((u >> 16) & 1u) + 0x7FFFu;
    return (lanes)(u & 0xFFFF0000u);
}

LANES_INLINE lanes round_to(lanes x, const qn_dtype t)
{
    return t == QN_BF16 ? round_bf16(x) : t == QN_F16 ? lanes_round_f16(x) : x;
}

LANES_INLINE lanes to_float(lanes_i v) { return __builtin_convertvector(v, lanes); }

/* ---- conversions ---- */

LANES_INLINE void round_row(float *x, const qn_dtype t, uint32_t n)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) store(x + i, round_to(load(x + i), t));
    if (i == n) return;
    float rest[LANES] = {0};
    memcpy(rest, x + i, (n - i) * sizeof *x);
    store(rest, round_to(load(rest), t));
    memcpy(x + i, rest, (n - i) * sizeof *x);
}

void QN_ISA(qn_ref_round)(float *x, qn_dtype t, uint32_t n)
{
    if (t == QN_BF16) round_row(x, QN_BF16, n);
    else if (t == QN_F16) round_row(x, QN_F16, n);
}

static lanes widen_bf16(const uint16_t *p)
{
    lanes_u u;
    for (int i = 0; i < LANES; i++) u[i] = (uint32_t)p[i] << 16;
    return (lanes)u;
}

void QN_ISA(qn_ref_widen)(float *dst, const void *src, qn_dtype t, uint32_t n)
{
    if (t == QN_F32) {
        memcpy(dst, src, n * sizeof *dst);
        return;
    }
    const uint8_t *p = src;
    for (uint32_t i = 0; i < n; i += LANES) {
        uint32_t m = n - i < LANES ? n - i : LANES;
        uint16_t h[LANES] = {0};
        memcpy(h, p + 2 * (size_t)i, 2 * m);
        lanes v = t == QN_BF16 ? widen_bf16(h) : lanes_load_f16(h);
        if (m == LANES) store(dst + i, v);
        else memcpy(dst + i, &v, m * sizeof *dst);
    }
}

/* MLX's NaNs: 0x7FC0, or the sign and 0x7D00. */
static void mend_nans(uint16_t *h, const float *x, qn_dtype t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (x[i] != x[i]) h[i] = t == QN_BF16 ? qn_f32_bf16(x[i]) : qn_f32_f16(x[i]);
}

void QN_ISA(qn_ref_narrow)(void *dst, qn_dtype t, const float *src, uint32_t n)
{
    uint8_t *p = dst;
    if (t == QN_F32) {
        memcpy(p, src, n * sizeof *src);
        return;
    }
    for (uint32_t i = 0; i < n; i += LANES) {
        uint32_t m = n - i < LANES ? n - i : LANES;
        float x[LANES] = {0};
        uint16_t h[LANES];
        memcpy(x, src + i, m * sizeof *x);
        lanes v = load(x);
        if (t == QN_F16) {
            lanes_store_f16(h, v);
        } else {
            lanes_u u = (lanes_u)round_bf16(v);
            for (int j = 0; j < LANES; j++) h[j] = (uint16_t)(u[j] >> 16);
        }
        mend_nans(h, x, t, m);
        memcpy(p + 2 * (size_t)i, h, 2 * m);
    }
}

/* ---- matrix products ---- */

typedef struct mm_scratch {
    uint32_t words[QN_REF_STRIP][BLOCK]; /* packed words of a strip, one lane per row */
    float w[QN_REF_STRIP][BLOCK];        /* its weights, or codes' values in the fp modes */
    float acc[QN_REF_MM_ROWS][BLOCK];
    float scale[QN_REF_STRIP / 16][BLOCK], bias[QN_REF_STRIP / 16][BLOCK]; /* of its groups */
} mm_scratch;

_Static_assert(sizeof(mm_scratch) <= QN_REF_MM_SCRATCH, "mm's scratch");

/* n_words words of the block's rows, n_bytes from byte `at` of each. Rows past the end repeat the
 * last one. */
static void load_words(uint32_t (*out)[BLOCK], const uint8_t *first, size_t row_bytes,
                       uint32_t n_rows, size_t at, uint32_t n_bytes)
{
    uint32_t n_words = n_bytes / 4;
    for (uint32_t j = 0; j < BLOCK; j += LANES) {
        const uint8_t *rows[LANES];
        for (uint32_t i = 0; i < LANES; i++)
            rows[i] = first + (j + i < n_rows ? j + i : n_rows - 1) * row_bytes + at;
        uint32_t w = 0;
        for (; w + LANES <= n_words; w += LANES) {
            lanes_transpose(&out[w][j], BLOCK, rows);
            for (uint32_t i = 0; i < LANES; i++) rows[i] += 4 * LANES;
        }
        for (uint32_t i = 0; i < LANES; i++) {
            for (uint32_t k = w; k < n_words; k++) memcpy(&out[k][j + i], rows[i] + 4 * (k - w), 4);
            uint32_t rest = n_bytes % 4; /* half a word: an odd number of 16-bit weights */
            if (rest) memcpy(&out[n_words][j + i], rows[i] + 4 * (n_words - w), rest);
        }
    }
}

/* Code k of each lane: bits [k*bits, k*bits+bits) of its words. */
LANES_INLINE lanes_u code_at(const uint32_t (*words)[BLOCK], uint32_t j, uint32_t k, uint32_t bits)
{
    uint32_t bit = k * bits, shift = bit % 32;
    lanes_u c = load_u(&words[bit / 32][j]) >> shift;
    if (shift + bits > 32) c |= load_u(&words[bit / 32 + 1][j]) << (32 - shift);
    return c & ((1u << bits) - 1u);
}

/* 0 .5 1 1.5 2 3 4 6 and their negatives, through twice the magnitude as an integer. */
LANES_INLINE lanes value_e2m1(lanes_u c)
{
    lanes_u exponent = (c >> 1) & 3u, fraction = c & 1u;
    lanes_u normal = (lanes_u)(exponent != 0);
    lanes_u twice = ((fraction | 2u) << ((exponent - 1u) & 31u) & normal) | (fraction & ~normal);
    lanes v = to_float((lanes_i)twice) * 0.5f;
    return (lanes)((lanes_u)v | (c & 8u) << 28);
}

/* Sign, 4 bits of exponent, 3 of fraction; 0x7F and 0xFF are NaN. */
LANES_INLINE lanes value_e4m3(lanes_u c)
{
    lanes_u exponent = (c >> 3) & 15u, fraction = c & 7u;
    lanes_u normal = ((exponent + 120u) << 23) | (fraction << 20);
    lanes small = to_float((lanes_i)fraction) * 0x1p-9f;
    lanes_u v = (lanes_u)choose((lanes_i)(exponent != 0), (lanes)normal, small);
    v |= (lanes_u)((c & 127u) == 127u) & 0x7FC00000u;
    return (lanes)(v | (c & 128u) << 24);
}

/* Scales and biases of the strip's groups, as float32 values of their own type. */
static void load_scales(mm_scratch *s, const qn_matrix *m, uint32_t n0, uint32_t n_rows,
                        uint32_t g0, uint32_t n_groups)
{
    uint32_t per_row = m->n_in / m->spec.group_size;
    for (uint32_t i = 0; i < BLOCK; i++) {
        size_t at = (size_t)(n0 + (i < n_rows ? i : n_rows - 1)) * per_row + g0;
        float v[QN_REF_STRIP / 16], b[QN_REF_STRIP / 16];
        if (m->spec.mode == QN_Q_AFFINE) {
            size_t size = qn_dtype_size(m->dtype);
            qn_widen(v, (const uint8_t *)m->scales + at * size, m->dtype, n_groups);
            qn_widen(b, (const uint8_t *)m->biases + at * size, m->dtype, n_groups);
        } else {
            const uint8_t *bytes = (const uint8_t *)m->scales + at;
            for (uint32_t g = 0; g < n_groups; g++) {
                v[g] = m->spec.mode == QN_Q_NVFP4 ? qn_e4m3_f32(bytes[g]) : qn_e8m0_f32(bytes[g]);
                b[g] = 0.0f;
            }
        }
        for (uint32_t g = 0; g < n_groups; g++) {
            s->scale[g][i] = v[g];
            s->bias[g][i] = b[g];
        }
    }
}

/* w[k] = r(r(scale*code) + bias) */
LANES_INLINE void unpack_affine(mm_scratch *s, uint32_t n, uint32_t group, const uint32_t bits,
                                const qn_dtype t)
{
    for (uint32_t j = 0; j < BLOCK; j += LANES) {
        for (uint32_t k0 = 0, g = 0; k0 < n; k0 += group, g++) {
            lanes scale = load(&s->scale[g][j]), bias = load(&s->bias[g][j]);
            uint32_t end = k0 + group < n ? k0 + group : n;
            for (uint32_t k = k0; k < end; k++) {
                lanes code = to_float((lanes_i)code_at(s->words, j, k, bits));
                store(&s->w[k][j], round_to(round_to(scale * code, t) + bias, t));
            }
        }
    }
}

LANES_INLINE void unpack_affine_bits(mm_scratch *s, uint32_t n, const qn_qspec *q, const qn_dtype t)
{
    switch (q->bits) {
    case 4: unpack_affine(s, n, q->group_size, 4, t); return;
    case 8: unpack_affine(s, n, q->group_size, 8, t); return;
    default: unpack_affine(s, n, q->group_size, q->bits, t);
    }
}

static void unpack_codes(mm_scratch *s, uint32_t n, const qn_qspec *q)
{
    for (uint32_t j = 0; j < BLOCK; j += LANES) {
        for (uint32_t k = 0; k < n; k++) {
            lanes_u c = code_at(s->words, j, k, q->bits);
            store(&s->w[k][j], q->bits == 8 ? value_e4m3(c) : value_e2m1(c));
        }
    }
}

static void unpack_dense(mm_scratch *s, uint32_t n, qn_dtype t)
{
    if (t == QN_F32) {
        memcpy(s->w, s->words, n * sizeof s->w[0]);
        return;
    }
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t j = 0; j < BLOCK; j += LANES) {
            lanes_u pair = load_u(&s->words[k / 2][j]);
            lanes_u half = k % 2 ? pair >> 16 : pair & 0xFFFFu;
            lanes v = (lanes)(half << 16);
            if (t == QN_F16) {
                uint16_t h[LANES];
                for (int i = 0; i < LANES; i++) h[i] = (uint16_t)half[i];
                v = lanes_load_f16(h);
            }
            store(&s->w[k][j], v);
        }
    }
}

/* Weights [k0, k0+n) of the block into s->w. */
LANES_INLINE void unpack(mm_scratch *s, const qn_matrix *m, uint32_t n0, uint32_t n_rows,
                         uint32_t k0, uint32_t n, const qn_dtype t)
{
    bool dense = m->spec.mode == QN_Q_NONE;
    uint32_t bits = dense ? 8 * (uint32_t)qn_dtype_size(m->dtype) : m->spec.bits;
    size_t row_bytes = (size_t)m->n_in * bits / 8;
    load_words(s->words, (const uint8_t *)m->weight + n0 * row_bytes, row_bytes, n_rows,
               (size_t)k0 * bits / 8, n * bits / 8);
    if (dense) {
        unpack_dense(s, n, m->dtype);
        return;
    }
    uint32_t group = m->spec.group_size;
    load_scales(s, m, n0, n_rows, k0 / group, (n + group - 1) / group);
    if (m->spec.mode == QN_Q_AFFINE) unpack_affine_bits(s, n, &m->spec, t);
    else unpack_codes(s, n, &m->spec);
}

/* acc = r(acc + r(x*w)), k ascending; float32: products and sums are rounded once each. */
LANES_INLINE void chain(float *acc, const float (*w)[BLOCK], const float *x, uint32_t n,
                        const qn_dtype t)
{
    lanes a[VECS];
    for (int j = 0; j < VECS; j++) a[j] = load(acc + j * LANES);
    for (uint32_t k = 0; k < n; k++) {
        lanes xk = all(x[k]);
        for (int j = 0; j < VECS; j++) {
            lanes product = round_to(xk * load(&w[k][j * LANES]), t);
            a[j] = round_to(a[j] + product, t);
        }
    }
    for (int j = 0; j < VECS; j++) store(acc + j * LANES, a[j]);
}

/* The fp modes sum a group's codes first: acc = r(acc + r(scale*g)). */
LANES_INLINE void chain_groups(float *acc, const mm_scratch *s, const float *x, uint32_t n,
                               uint32_t group, const qn_dtype t)
{
    for (uint32_t k0 = 0, i = 0; k0 < n; k0 += group, i++) {
        float g[BLOCK] = {0};
        chain(g, s->w + k0, x + k0, group, t);
        for (int j = 0; j < BLOCK; j += LANES) {
            lanes scale = round_to(load(&s->scale[i][j]), t);
            lanes sum = load(acc + j) + round_to(scale * load(g + j), t);
            store(acc + j, round_to(sum, t));
        }
    }
}

static void finish(const qn_ref_mm *job, const float *acc, uint32_t row, uint32_t n0, uint32_t n)
{
    float sum[BLOCK];
    memcpy(sum, acc, sizeof sum);
    if (job->round_first) QN_ISA(qn_ref_round)(sum, job->type, n);
    if (job->bias)
        for (uint32_t i = 0; i < n; i++) sum[i] = sum[i] + job->bias[n0 + i];
    uint8_t *y = job->y + ((size_t)row * job->y_ld + n0) * qn_dtype_size(job->y_type);
    QN_ISA(qn_ref_narrow)(y, job->y_type, sum, n);
}

/* Rows [r0, r1) of the block. Dense sums are float32 for every type. */
LANES_INLINE void mm_rows(const qn_ref_mm *job, uint32_t n0, uint32_t r0, uint32_t r1,
                          mm_scratch *s, const qn_dtype t)
{
    const qn_matrix *m = job->m;
    uint32_t n_rows = m->n_out - n0 < BLOCK ? m->n_out - n0 : BLOCK;
    memset(s->acc, 0, (r1 - r0) * sizeof s->acc[0]);
    for (uint32_t k0 = 0; k0 < m->n_in; k0 += QN_REF_STRIP) {
        uint32_t n = m->n_in - k0 < QN_REF_STRIP ? m->n_in - k0 : QN_REF_STRIP;
        unpack(s, m, n0, n_rows, k0, n, t);
        for (uint32_t r = r0; r < r1; r++) {
            const float *x = job->x + (size_t)r * m->n_in + k0;
            float *acc = s->acc[r - r0];
            const float(*w)[BLOCK] = (const float(*)[BLOCK])s->w;
            if (m->spec.mode == QN_Q_NONE) chain(acc, w, x, n, QN_F32);
            else if (m->spec.mode == QN_Q_AFFINE) chain(acc, w, x, n, t);
            else chain_groups(acc, s, x, n, m->spec.group_size, t);
        }
    }
    for (uint32_t r = r0; r < r1; r++) finish(job, s->acc[r - r0], r, n0, n_rows);
}

void QN_ISA(qn_ref_mm)(const qn_ref_mm *job, uint32_t n0, void *scratch)
{
    assert(n0 < job->m->n_out);
    for (uint32_t r = 0; r < job->n_rows; r += QN_REF_MM_ROWS) {
        uint32_t end = job->n_rows - r < QN_REF_MM_ROWS ? job->n_rows : r + QN_REF_MM_ROWS;
        switch (job->type) {
        case QN_BF16: mm_rows(job, n0, r, end, scratch, QN_BF16); break;
        case QN_F16: mm_rows(job, n0, r, end, scratch, QN_F16); break;
        default: mm_rows(job, n0, r, end, scratch, QN_F32); break;
        }
    }
}

/* ---- attention ---- */

enum { TILE_VECS = 16 / LANES };

/* n tiles at once, so that several sums are under way. */
LANES_INLINE void score_tiles(float *s, const float *q, const float *k, uint32_t d,
                              const uint32_t n, const qn_dtype t)
{
    lanes a[4 * TILE_VECS];
    for (uint32_t j = 0; j < n * TILE_VECS; j++) a[j] = all(0.0f);
    for (uint32_t i = 0; i < d; i++) {
        lanes qi = all(q[i]);
        for (uint32_t j = 0; j < n * TILE_VECS; j++) {
            size_t tile = j / TILE_VECS, at = j % TILE_VECS * LANES;
            a[j] = round_to(a[j] + round_to(qi * load(k + (tile * d + i) * 16 + at), t), t);
        }
    }
    for (uint32_t j = 0; j < n * TILE_VECS; j++) store(s + j * LANES, a[j]);
}

LANES_INLINE void score_all(float *s, const float *q, const float *k, uint32_t d, uint32_t n_tiles,
                            const qn_dtype chain)
{
    uint32_t t = 0;
    for (; t + 4 <= n_tiles; t += 4)
        score_tiles(s + t * 16, q, k + (size_t)t * d * 16, d, 4, chain);
    for (; t < n_tiles; t++) score_tiles(s + t * 16, q, k + (size_t)t * d * 16, d, 1, chain);
}

void QN_ISA(qn_ref_scores)(float *s, const float *q, const float *k, uint32_t d, uint32_t n_tiles,
                           qn_dtype chain)
{
    switch (chain) {
    case QN_BF16: score_all(s, q, k, d, n_tiles, QN_BF16); break;
    case QN_F16: score_all(s, q, k, d, n_tiles, QN_F16); break;
    default: score_all(s, q, k, d, n_tiles, QN_F32); break;
    }
}

LANES_INLINE void add_columns(float *acc, const float *p, const float *v, uint32_t n, uint32_t cols,
                              const uint32_t vecs, const qn_dtype t)
{
    lanes a[4];
    for (uint32_t j = 0; j < vecs; j++) a[j] = load(acc + j * LANES);
    for (uint32_t i = 0; i < n; i++) {
        lanes pi = all(p[i]);
        for (uint32_t j = 0; j < vecs; j++)
            a[j] = round_to(a[j] + round_to(pi * load(v + (size_t)i * cols + j * LANES), t), t);
    }
    for (uint32_t j = 0; j < vecs; j++) store(acc + j * LANES, a[j]);
}

LANES_INLINE void add_all(float *acc, const float *p, const float *v, uint32_t n, uint32_t cols,
                          const qn_dtype t)
{
    uint32_t c = 0;
    for (; c + BLOCK <= cols; c += BLOCK) add_columns(acc + c, p, v + c, n, cols, VECS, t);
    for (; c < cols; c += LANES) add_columns(acc + c, p, v + c, n, cols, 1, t);
}

void QN_ISA(qn_ref_add_values)(float *acc, const float *p, const float *v, uint32_t n,
                               uint32_t cols, qn_dtype chain)
{
    switch (chain) {
    case QN_BF16: add_all(acc, p, v, n, cols, QN_BF16); break;
    case QN_F16: add_all(acc, p, v, n, cols, QN_F16); break;
    default: add_all(acc, p, v, n, cols, QN_F32); break;
    }
}

/* MLX's exp (docs/numerics.md): 2^i times a polynomial of the rest. */
LANES_INLINE lanes mlx_exp(lanes x)
{
    lanes t = x * 1.442695f, half_up = t + 0.5f;
    /* The conversion of lanes that do not fit is not used: they take 0 or infinity below. */
    lanes_i in = (lanes_i)(x >= -88.0f) & (lanes_i)(x <= 88.0f);
    half_up = (lanes)((lanes_i)half_up & in);
    lanes_i i = __builtin_convertvector(half_up, lanes_i);
    i += (lanes_i)(to_float(i) > half_up); /* -1 where the conversion rounded up */
    lanes f = t - to_float(i), p = all(1.535336188319500e-4f);
    p = lanes_fma(p, f, all(1.339887440266574e-3f));
    p = lanes_fma(p, f, all(9.618437357674640e-3f));
    p = lanes_fma(p, f, all(5.550332471162809e-2f));
    p = lanes_fma(p, f, all(2.402264791363012e-1f));
    p = lanes_fma(p, f, all(6.931472028550421e-1f));
    p = lanes_fma(p, f, all(1.0f));
    lanes y = (lanes)((lanes_u)(i + 127) << 23) * p;
    y = choose((lanes_i)(x > 88.0f), all(INFINITY), y);
    y = choose((lanes_i)(x < -88.0f), all(0.0f), y);
    return choose((lanes_i)(x != x), x, y);
}

void QN_ISA(qn_ref_exp_shifted)(float *e, const float *s, uint32_t n, float shift)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) store(e + i, mlx_exp(load(s + i) - shift));
    if (i == n) return;
    float rest[LANES] = {0};
    memcpy(rest, s + i, (n - i) * sizeof *s);
    store(rest, mlx_exp(load(rest) - shift));
    memcpy(e + i, rest, (n - i) * sizeof *s);
}
