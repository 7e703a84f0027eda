/* qmm_avx512.c - products with quantized panels for AVX-512 VNNI.
 *
 * Up to FEW rows of activations, as decode and verification have them: codes are unpacked in
 * registers and used at once, so that the panels stream from memory. More rows: a block of a panel
 * is unpacked to bytes in scratch and used for all tiles of rows. Both give exact integer dot
 * products and share one float epilogue.
 */
#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "compute/cpu/panel.h"
#include "compute/cpu/unroll.h"

enum {
    FEW = 8,
    BLOCK_MANY = 1024, /* inputs of a block when a chunk of rows is large, */
    BLOCK_FEW = 4096,  /* and when it is small */
    ROWS_CHUNK = 128   /* rows of activations that share a pass over the panels */
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

INLINE __m512i quad_at(const int8_t *x)
{
    int32_t v;
    memcpy(&v, x, 4);
    return _mm512_set1_epi32(v);
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

/* ---- few rows ---- */

/* Dot products of one group: acc[r][plane][set]; one row uses two sets for shorter chains. */
INLINE void few_group(__m512i acc[FEW][2][2], const uint8_t *codes, uint32_t n, const int8_t *x,
                      uint32_t rows, uint32_t planes, uint32_t bits, bool e2m1)
{
    const uint32_t quads = step_quads(bits), sets = rows == 1 ? 2 : 1;
    UNROLLED (r, rows)
        UNROLLED (pl, planes) acc[r][pl][0] = acc[r][pl][1] = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n / (4 * quads); i++) {
        __m512i v[8];
        unpack_step(v, codes, n, i, bits, e2m1);
        UNROLL
        for (uint32_t j = 0; j < quads; j++, x += rows * planes * 4)
            UNROLLED (r, rows)
                UNROLLED (pl, planes)
                    acc[r][pl][j % sets] = _mm512_dpbusd_epi32(acc[r][pl][j % sets], v[j],
                                                               quad_at(x + (r * planes + pl) * 4));
    }
    if (sets == 1) return;
    UNROLLED (pl, planes) acc[0][pl][0] = _mm512_add_epi32(acc[0][pl][0], acc[0][pl][1]);
}

INLINE void few_panels(float *y, uint32_t ld, const qn_panels *w, const qn_qacts *acts, uint32_t p0,
                       uint32_t p1, uint32_t rows, uint32_t planes, uint32_t bits, bool e2m1)
{
    const uint32_t n = w->spec.group_size;
    const uint8_t *group = w->data + p0 * w->panel_bytes;
    for (uint32_t p = p0; p < p1; p++) {
        const int8_t *x = acts->xq;
        const float *pair = acts->ax;
        __m512 sum[FEW];
        UNROLLED (r, rows) sum[r] = _mm512_setzero_ps();
        for (uint32_t g = 0; g < w->n_groups; g++) {
            __m512i acc[FEW][2][2];
            few_group(acc, group, n, x, rows, planes, bits, e2m1);
            scales sb = load_scales(group + w->code_bytes, w->scale);
            UNROLLED (r, rows) {
                __m512i dots[2] = {acc[r][0][0],
                                   planes == 2 ? acc[r][1][0] : _mm512_setzero_si512()};
                sum[r] = add_group(sum[r], dots, planes, sb, pair + 2 * r);
            }
            x += (size_t)n * rows * planes;
            pair += rows * 2;
            group += w->group_bytes;
        }
        UNROLLED (r, rows)
            _mm512_mask_storeu_ps(y + (size_t)r * ld + p * QN_PANEL_ROWS, panel_mask(w, p), sum[r]);
    }
}

/* One function per code width, number of rows and number of planes. */
#define FEW_ARGS \
    float *y, uint32_t ld, const qn_panels *w, const qn_qacts *x, uint32_t p0, uint32_t p1
#define FEW_BODY(name, bits, e2m1, rows, planes)                   \
    static void few_##name##_##rows##x##planes(FEW_ARGS)           \
    {                                                              \
        few_panels(y, ld, w, x, p0, p1, rows, planes, bits, e2m1); \
    }
#define FEW_ROWS(name, bits, e2m1, rows) \
    FEW_BODY(name, bits, e2m1, rows, 1)  \
    FEW_BODY(name, bits, e2m1, rows, 2)
#define FEW_PAIR(name, rows) {few_##name##_##rows##x1, few_##name##_##rows##x2}
#define FEW_BODIES(name, bits, e2m1)                                       \
    FEW_ROWS(name, bits, e2m1, 1)                                          \
    FEW_ROWS(name, bits, e2m1, 2)                                          \
    FEW_ROWS(name, bits, e2m1, 3)                                          \
    FEW_ROWS(name, bits, e2m1, 4)                                          \
    FEW_ROWS(name, bits, e2m1, 5)                                          \
    FEW_ROWS(name, bits, e2m1, 6)                                          \
    FEW_ROWS(name, bits, e2m1, 7)                                          \
    FEW_ROWS(name, bits, e2m1, 8)                                          \
    static void (*const few_##name[FEW][2])(FEW_ARGS) = {                  \
        FEW_PAIR(name, 1), FEW_PAIR(name, 2), FEW_PAIR(name, 3),           \
        FEW_PAIR(name, 4), FEW_PAIR(name, 5), FEW_PAIR(name, 6),           \
        FEW_PAIR(name, 7), FEW_PAIR(name, 8),                              \
    };
_Static_assert(FEW == 8, "one body per number of rows");
FEW_BODIES(2, 2, false)
FEW_BODIES(3, 3, false)
FEW_BODIES(4, 4, false)
FEW_BODIES(5, 5, false)
FEW_BODIES(6, 6, false)
FEW_BODIES(8, 8, false)
FEW_BODIES(e2m1, 4, true)

static void few(FEW_ARGS)
{
    const uint32_t r = x->n_rows - 1, pl = x->n_planes - 1;
    if (w->spec.mode != QN_Q_AFFINE) {
        few_e2m1[r][pl](y, ld, w, x, p0, p1);
        return;
    }
    switch (w->spec.bits) {
    case 2: few_2[r][pl](y, ld, w, x, p0, p1); return;
    case 3: few_3[r][pl](y, ld, w, x, p0, p1); return;
    case 4: few_4[r][pl](y, ld, w, x, p0, p1); return;
    case 5: few_5[r][pl](y, ld, w, x, p0, p1); return;
    case 6: few_6[r][pl](y, ld, w, x, p0, p1); return;
    case 8: few_8[r][pl](y, ld, w, x, p0, p1); return;
    default: QN_UNREACHABLE();
    }
}

/* ---- many rows ---- */

/* Groups of a panel as bytes: quads [n_groups * group_size / 4] vectors, scale pairs [n_groups]. */
typedef struct block {
    uint32_t n_groups;
    __m512i *quads;
    scales *scales;
} block;

INLINE void unpack_groups(const block *b, const uint8_t *group, const qn_panels *w, uint32_t bits,
                          bool e2m1)
{
    const uint32_t n = w->spec.group_size, quads = step_quads(bits);
    __m512i *dst = b->quads;
    for (uint32_t g = 0; g < b->n_groups; g++, group += w->group_bytes) {
        for (uint32_t i = 0; i < n / (4 * quads); i++, dst += quads) {
            __m512i v[8];
            unpack_step(v, group, n, i, bits, e2m1);
            UNROLLED (j, quads) dst[j] = v[j];
        }
        b->scales[g] = load_scales(group + w->code_bytes, w->scale);
    }
}

static void unpack_block(const block *b, const uint8_t *group, const qn_panels *w)
{
    if (w->spec.mode != QN_Q_AFFINE) {
        unpack_groups(b, group, w, 4, true);
        return;
    }
    switch (w->spec.bits) {
    case 2: unpack_groups(b, group, w, 2, false); return;
    case 3: unpack_groups(b, group, w, 3, false); return;
    case 4: unpack_groups(b, group, w, 4, false); return;
    case 5: unpack_groups(b, group, w, 5, false); return;
    case 6: unpack_groups(b, group, w, 6, false); return;
    case 8: unpack_groups(b, group, w, 8, false); return;
    default: QN_UNREACHABLE();
    }
}

/* A tile of rows times a block, added to y (started at 0 when `first`). x, pair: the tile's data of
 * the block's first group. */
INLINE void tile_rows(float *y, uint32_t ld, __mmask16 mask, const block *b, uint32_t group_size,
                      const int8_t *x, const float *pair, bool first, uint32_t rows,
                      uint32_t planes)
{
    __m512 sum[QN_ACT_TILE];
    UNROLLED (r, rows)
        sum[r] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, y + (size_t)r * ld);
    const __m512i *w = b->quads;
    for (uint32_t g = 0; g < b->n_groups; g++) {
        __m512i acc[QN_ACT_TILE][2];
        UNROLLED (r, rows) acc[r][0] = acc[r][1] = _mm512_setzero_si512();
        for (uint32_t j = 0; j < group_size / 4; j++, w++, x += rows * planes * 4) {
            const __m512i v = *w;
            UNROLLED (r, rows)
                UNROLLED (pl, planes)
                    acc[r][pl] =
                        _mm512_dpbusd_epi32(acc[r][pl], v, quad_at(x + (r * planes + pl) * 4));
        }
        const scales sb = b->scales[g];
        UNROLLED (r, rows) sum[r] = add_group(sum[r], acc[r], planes, sb, pair + 2 * r);
        pair += rows * 2;
    }
    UNROLLED (r, rows) _mm512_mask_storeu_ps(y + (size_t)r * ld, mask, sum[r]);
}

#define TILE_ARGS                                                                                \
    float *y, uint32_t ld, __mmask16 mask, const block *b, uint32_t group_size, const int8_t *x, \
        const float *pair, bool first
#define TILE_BODY(rows, planes)                                              \
    static void tile_##rows##x##planes(TILE_ARGS)                            \
    {                                                                        \
        tile_rows(y, ld, mask, b, group_size, x, pair, first, rows, planes); \
    }
#define TILE_BODIES(rows) TILE_BODY(rows, 1) TILE_BODY(rows, 2)
TILE_BODIES(1)
TILE_BODIES(2)
TILE_BODIES(3)
TILE_BODIES(4)
TILE_BODIES(5)
TILE_BODIES(6)
TILE_BODIES(7)
TILE_BODIES(8)
_Static_assert(QN_ACT_TILE == 8, "one body per number of rows in a tile");

static void (*const tiles[2][QN_ACT_TILE])(TILE_ARGS) = {
    {tile_1x1, tile_2x1, tile_3x1, tile_4x1, tile_5x1, tile_6x1, tile_7x1, tile_8x1},
    {tile_1x2, tile_2x2, tile_3x2, tile_4x2, tile_5x2, tile_6x2, tile_7x2, tile_8x2},
};

/* Groups [g0, g0 + b->n_groups) of a panel times the rows [t0, t1). */
static void block_rows(float *y, uint32_t ld, __mmask16 mask, const block *b, const qn_qacts *x,
                       uint32_t g0, uint32_t t0, uint32_t t1)
{
    for (uint32_t t = t0; t < t1; t += QN_ACT_TILE) {
        uint32_t rows = qn_qacts_tile_rows(x, t);
        const int8_t *quads = qn_qacts_quad(x, t, g0 * x->group_size / 4);
        tiles[x->n_planes - 1][rows - 1](y + (size_t)t * ld, ld, mask, b, x->group_size, quads,
                                         qn_qacts_pair(x, t, g0), g0 == 0);
    }
}

/* Inputs of a block, at most, and the scratch that it takes. */
_Static_assert(BLOCK_FEW * 16 + BLOCK_FEW / 16 * sizeof(scales) <= QN_MM_SCRATCH, "scratch fits");

static void many(float *y, uint32_t ld, const qn_panels *w, const qn_qacts *x, uint32_t p0,
                 uint32_t p1, void *scratch)
{
    for (uint32_t t0 = 0; t0 < x->n_rows; t0 += ROWS_CHUNK) {
        const uint32_t t1 = x->n_rows - t0 < ROWS_CHUNK ? x->n_rows : t0 + ROWS_CHUNK;
        const uint32_t inputs = t1 - t0 <= 4 * QN_ACT_TILE ? BLOCK_FEW : BLOCK_MANY;
        const uint32_t per_block = inputs / w->spec.group_size;
        for (uint32_t g0 = 0; g0 < w->n_groups; g0 += per_block) {
            const uint32_t left = w->n_groups - g0;
            block b = {.n_groups = left < per_block ? left : per_block, .quads = scratch};
            b.scales = (scales *)(b.quads + (size_t)b.n_groups * w->spec.group_size / 4);
            for (uint32_t p = p0; p < p1; p++) {
                unpack_block(&b, w->data + p * w->panel_bytes + g0 * w->group_bytes, w);
                block_rows(y + p * QN_PANEL_ROWS, ld, panel_mask(w, p), &b, x, g0, t0, t1);
            }
        }
    }
}

void qn_qmm_avx512(float *y, uint32_t ld, const qn_panels *w, const qn_qacts *x, uint32_t p0,
                   uint32_t p1, void *scratch)
{
    assert(w->kind == QN_PANEL_CODES && x->group_size == w->spec.group_size && x->n_in == w->n_in);
    if (x->n_rows <= FEW) few(y, ld, w, x, p0, p1);
    else many(y, ld, w, x, p0, p1, scratch);
}
