/* qmm_avx512.c - products with quantized panels for AVX-512 VNNI.
 *
 * A tile of up to 8 rows of activations goes over a panel at once: codes are unpacked in registers
 * and used there, and every sum stays in a register. Unpacking again for the next tile costs less
 * than keeping the bytes: it takes the execution units that the dot products leave idle. Blocks of
 * inputs keep the activations of all tiles in the second cache.
 */
#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "compute/cpu/panel.h"
#include "compute/cpu/unroll.h"

enum {
    ROWS_CHUNK = 64,        /* rows of activations that share a pass over the panels */
    BLOCK_ACTS = 128 << 10, /* activations of a block, 1 or 2 bytes each */
    AHEAD = 8 << 10         /* bytes from the codes in use to those that are fetched: the processor's
                             * own prefetcher stops at every page */
};

/* ---- unpacking ---- */

/* Quads of one plane: v[j] gets the plane's bits of quad j, shifted to `low`. */
INLINE void or_plane(__m512i *v, const uint8_t *words, uint32_t n_quads, uint32_t bits,
                     uint32_t low)
{
    const uint32_t per_word = 8 / bits;
    const __m512i mask = _mm512_set1_epi8((char)(((1u << bits) - 1u) << low));
    UNROLLED (j, n_quads) {
        const int at = (int)(bits * (j % per_word)) - (int)low;
        __m512i word = _mm512_loadu_si512(words + j / per_word * 64);
        if (at > 0) word = _mm512_srli_epi32(word, (unsigned)at);
        if (at < 0) word = _mm512_slli_epi32(word, (unsigned)-at);
        word = bits == 8 ? word : _mm512_and_si512(word, mask);
        v[j] = low ? _mm512_or_si512(v[j], word) : word;
    }
}

/* Quads of a step are 4 for 4-bit codes (nvfp4 has groups of 16), else 8. */
INLINE uint32_t step_quads(uint32_t bits)
{
    return bits == 4 ? 4 : 8;
}

/* The quads of step `i` of a group of n inputs: bytes of codes. `e2m1` maps 4-bit float codes. */
INLINE void unpack_step(__m512i *v, const uint8_t *codes, uint32_t n, uint32_t i, uint32_t bits,
                        bool e2m1)
{
    const uint32_t quads = step_quads(bits);
    const uint32_t low = bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits;
    or_plane(v, codes + i * (quads * low / 8) * 64, quads, low, 0);
    if (bits != low) {
        const uint8_t *plane = codes + (size_t)n * low / 32 * 64;
        or_plane(v, plane + i * (quads * (bits - low) / 8) * 64, quads, bits - low, low);
    }
    if (e2m1) {
        const __m512i table = _mm512_broadcast_i32x4(
            _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        UNROLLED (j, quads) v[j] = _mm512_shuffle_epi8(table, v[j]);
    }
}

typedef struct scales {
    __m512 s, b;
} scales;

/* E4M3 bytes as float32: the bits put in place mean the value times 2^-120; 0x7f is NaN. */
INLINE __m512 e4m3_ps(__m512i c)
{
    const __m512i low = _mm512_set1_epi32(0x7f);
    __m512i sign = _mm512_slli_epi32(_mm512_and_si512(c, _mm512_set1_epi32(0x80)), 24);
    __m512i rest = _mm512_and_si512(c, low);
    __m512i bits = _mm512_or_si512(sign, _mm512_slli_epi32(rest, 20));
    __m512 v = _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
    return _mm512_mask_mov_ps(v, _mm512_cmpeq_epi32_mask(rest, low), _mm512_set1_ps(NAN));
}

/* Scales and biases of a group; the kinds are told apart by a predictable branch. */
INLINE scales load_scales(const uint8_t *p, qn_scale_kind kind)
{
    if (kind == QN_SCALE_BF16) {
        __m512i v = _mm512_loadu_si512(p);
        return (scales){
            _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000)))};
    }
    if (kind == QN_SCALE_F16) {
        __m512i v = _mm512_loadu_si512(p);
        return (scales){_mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)),
                        _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16)))};
    }
    __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m512 s = kind == QN_SCALE_E4M3 ? e4m3_ps(c)
                                     : _mm512_castsi512_ps(_mm512_max_epu32(
                                           _mm512_slli_epi32(c, 23), _mm512_set1_epi32(0x400000)));
    return (scales){_mm512_mul_ps(s, _mm512_set1_ps(0.5f)),
                    _mm512_mul_ps(s, _mm512_set1_ps(-6.0f))};
}

/* ---- shared arithmetic ---- */

/* Add the products of a quad of codes and a quad of activations, which the instruction broadcasts
 * itself. As intrinsics, compilers load and copy more than they multiply, and spill the sums. */
INLINE void dot_quad(__m512i *acc, __m512i w, const int8_t *x)
{
    typedef int8_t quad[4];
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(*acc) : "v"(w), "m"(*(const quad *)x));
}

/* y plus one group: the formula of panel.h. acc[0] lo, acc[1] hi. */
INLINE __m512 add_group(__m512 y, const __m512i *acc, uint32_t planes, scales w, const float *pair)
{
    __m512i dot = acc[0];
    if (planes == 2) dot = _mm512_add_epi32(dot, _mm512_slli_epi32(acc[1], 8));
    y = _mm512_fmadd_ps(_mm512_mul_ps(w.s, _mm512_set1_ps(pair[0])), _mm512_cvtepi32_ps(dot), y);
    return _mm512_fmadd_ps(w.b, _mm512_set1_ps(pair[1]), y);
}

INLINE __mmask16 panel_mask(const qn_panels *w, uint32_t p)
{
    uint32_t left = w->n_out - p * QN_PANEL_ROWS;
    return left >= QN_PANEL_ROWS ? 0xffff : (__mmask16)((1u << left) - 1u);
}

/* ---- a tile of rows ---- */

/* Dot products of one group: acc[r][plane][set]; one and two rows use two sets, since so few chains
 * of instructions would wait for each other. */
INLINE void dot_group(__m512i acc[QN_ACT_TILE][2][2], const uint8_t *codes, uint32_t n,
                      const int8_t *x, uint32_t rows, uint32_t planes, uint32_t bits, bool e2m1)
{
    const uint32_t quads = step_quads(bits), sets = rows <= 2 ? 2 : 1;
    UNROLLED (r, rows)
        UNROLLED (pl, planes) acc[r][pl][0] = acc[r][pl][1] = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n / (4 * quads); i++) {
        __m512i v[8];
        unpack_step(v, codes, n, i, bits, e2m1);
        UNROLL
        for (uint32_t j = 0; j < quads; j++, x += rows * planes * 4)
            UNROLLED (r, rows)
                UNROLLED (pl, planes)
                    dot_quad(&acc[r][pl][j % sets], v[j], x + (r * planes + pl) * 4);
    }
    if (sets == 1) return;
    UNROLLED (r, rows)
        UNROLLED (pl, planes)
            acc[r][pl][0] = _mm512_add_epi32(acc[r][pl][0], acc[r][pl][1]);
}

/* Some groups of a panel times one tile of activations, added to y (started at 0 when `first`). */
typedef struct tile_job {
    float *y;
    uint32_t ld;
    __mmask16 mask;
    bool first;
    const uint8_t *group;
    size_t ahead; /* bytes from a group to what is fetched beside it */
    const int8_t *x;
    const float *pair;
    uint32_t n_groups;
} tile_job;

INLINE void fetch(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64) _mm_prefetch((const char *)(p + i), _MM_HINT_T1);
}

INLINE void tile_rows(const tile_job *job, const qn_panels *w, uint32_t rows, uint32_t planes,
                      uint32_t bits, bool e2m1)
{
    const uint32_t n = w->spec.group_size;
    const size_t ld = job->ld;
    const uint8_t *group = job->group;
    const int8_t *x = job->x;
    const float *pair = job->pair;
    __m512 sum[QN_ACT_TILE];
    UNROLLED (r, rows)
        sum[r] = job->first ? _mm512_setzero_ps()
                            : _mm512_maskz_loadu_ps(job->mask, job->y + r * ld);
    for (uint32_t g = 0; g < job->n_groups; g++, group += w->group_bytes) {
        __m512i acc[QN_ACT_TILE][2][2];
        /* One row uses up codes as fast as memory brings them: nothing comes early. */
        if (rows > 1) fetch(group + job->ahead, w->group_bytes);
        dot_group(acc, group, n, x, rows, planes, bits, e2m1);
        const scales sb = load_scales(group + w->code_bytes, w->scale);
        UNROLLED (r, rows) {
            __m512i dots[2] = {acc[r][0][0], planes == 2 ? acc[r][1][0] : _mm512_setzero_si512()};
            sum[r] = add_group(sum[r], dots, planes, sb, pair + 2 * r);
        }
        x += (size_t)n * rows * planes;
        pair += rows * 2;
    }
    UNROLLED (r, rows) _mm512_mask_storeu_ps(job->y + r * ld, job->mask, sum[r]);
}

/* One function per code width, number of rows and number of planes. */
typedef void (*tile_fn)(const tile_job *, const qn_panels *);
#define TILE_BODY(name, bits, e2m1, rows, planes)                                       \
    static void tile_##name##_##rows##x##planes(const tile_job *job, const qn_panels *w) \
    {                                                                                   \
        tile_rows(job, w, rows, planes, bits, e2m1);                                    \
    }
#define TILE_ROWS(name, bits, e2m1, rows) \
    TILE_BODY(name, bits, e2m1, rows, 1)  \
    TILE_BODY(name, bits, e2m1, rows, 2)
#define TILE_PAIR(name, rows) {tile_##name##_##rows##x1, tile_##name##_##rows##x2}
#define TILE_BODIES(name, bits, e2m1)                              \
    TILE_ROWS(name, bits, e2m1, 1)                                 \
    TILE_ROWS(name, bits, e2m1, 2)                                 \
    TILE_ROWS(name, bits, e2m1, 3)                                 \
    TILE_ROWS(name, bits, e2m1, 4)                                 \
    TILE_ROWS(name, bits, e2m1, 5)                                 \
    TILE_ROWS(name, bits, e2m1, 6)                                 \
    TILE_ROWS(name, bits, e2m1, 7)                                 \
    TILE_ROWS(name, bits, e2m1, 8)                                 \
    static const tile_fn tiles_##name[QN_ACT_TILE][2] = {          \
        TILE_PAIR(name, 1), TILE_PAIR(name, 2), TILE_PAIR(name, 3), \
        TILE_PAIR(name, 4), TILE_PAIR(name, 5), TILE_PAIR(name, 6), \
        TILE_PAIR(name, 7), TILE_PAIR(name, 8),                    \
    };
_Static_assert(QN_ACT_TILE == 8, "one body per number of rows in a tile");
TILE_BODIES(2, 2, false)
TILE_BODIES(3, 3, false)
TILE_BODIES(4, 4, false)
TILE_BODIES(5, 5, false)
TILE_BODIES(6, 6, false)
TILE_BODIES(8, 8, false)
TILE_BODIES(e2m1, 4, true)

static tile_fn pick_tile(const qn_panels *w, uint32_t rows, uint32_t planes)
{
    const uint32_t r = rows - 1, pl = planes - 1;
    if (w->spec.mode != QN_Q_AFFINE) return tiles_e2m1[r][pl];
    switch (w->spec.bits) {
    case 2: return tiles_2[r][pl];
    case 3: return tiles_3[r][pl];
    case 4: return tiles_4[r][pl];
    case 5: return tiles_5[r][pl];
    case 6: return tiles_6[r][pl];
    case 8: return tiles_8[r][pl];
    default: QN_UNREACHABLE();
    }
}

/* ---- all rows ---- */

/* Groups [g0, g0 + n_groups) of panel p times the rows [t0, t1). */
static void panel_rows(float *y, uint32_t ld, const qn_panels *w, const qn_qacts *x, uint32_t p,
                       uint32_t g0, uint32_t n_groups, uint32_t t0, uint32_t t1)
{
    tile_job job = {.ld = ld,
                    .mask = panel_mask(w, p),
                    .first = g0 == 0,
                    .group = w->data + p * w->panel_bytes + g0 * w->group_bytes,
                    .n_groups = n_groups};
    for (uint32_t t = t0; t < t1; t += QN_ACT_TILE) {
        job.y = y + (size_t)t * ld + p * QN_PANEL_ROWS;
        job.x = qn_qacts_quad(x, t, g0 * x->group_size / 4);
        job.pair = qn_qacts_pair(x, t, g0);
        job.ahead = t > t0 ? 0 : n_groups == w->n_groups ? AHEAD : w->panel_bytes;
        pick_tile(w, qn_qacts_tile_rows(x, t), x->n_planes)(&job, w);
    }
}

void qn_qmm_avx512(float *y, uint32_t ld, const qn_panels *w, const qn_qacts *x, uint32_t p0,
                   uint32_t p1, void *scratch)
{
    assert(w->kind == QN_PANEL_CODES && x->group_size == w->spec.group_size && x->n_in == w->n_in);
    (void)scratch;
    for (uint32_t t0 = 0; t0 < x->n_rows; t0 += ROWS_CHUNK) {
        const uint32_t t1 = x->n_rows - t0 < ROWS_CHUNK ? x->n_rows : t0 + ROWS_CHUNK;
        const uint32_t per_block = BLOCK_ACTS / (t1 - t0) / w->spec.group_size;
        for (uint32_t g0 = 0; g0 < w->n_groups; g0 += per_block) {
            const uint32_t left = w->n_groups - g0, n = left < per_block ? left : per_block;
            for (uint32_t p = p0; p < p1; p++) panel_rows(y, ld, w, x, p, g0, n, t0, t1);
        }
    }
}
