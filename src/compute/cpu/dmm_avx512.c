/* dmm_avx512.c - products of float32 activations with dense, mxfp8 and float32 affine panels for
 * AVX-512; same order of sums as qmm_portable.c.
 *
 * Few rows: weights are widened in registers and used at once. More rows: a block of a panel is
 * widened into scratch and used for all tiles of rows; the two partial sums of every output wait in
 * scratch between blocks.
 */
#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "compute/cpu/panel.h"
#include "compute/cpu/unroll.h"

enum {
    FEW = 4,
    TILE = 8,           /* rows of activations in registers */
    BLOCK = 512,        /* inputs of a widened block, even */
    ROWS_CHUNK = 256,   /* most rows between two readings of a panel */
    X_BYTES = 512 << 10 /* activations that should stay in the second-level cache */
};

/* Two partial sums of an output: even and odd inputs. */
typedef struct pair {
    __m512 even, odd;
} pair;

_Static_assert(BLOCK * 64 + ROWS_CHUNK * sizeof(pair) <= QN_MM_SCRATCH, "scratch fits");

/* ---- widening: the weights of input k of a panel ---- */

INLINE __m512 load_f32(const qn_panels *w, const uint8_t *panel, uint32_t k)
{
    (void)w;
    return _mm512_loadu_ps(panel + (size_t)k * 64);
}

INLINE __m512 load_f16(const qn_panels *w, const uint8_t *panel, uint32_t k)
{
    (void)w;
    return _mm512_cvtph_ps(
        _mm256_loadu_si256((const __m256i *)(const void *)(panel + (size_t)k * 32)));
}

INLINE __m512 load_bf16(const qn_panels *w, const uint8_t *panel, uint32_t k)
{
    (void)w;
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(panel + (size_t)k * 32));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

/* mxfp8: the bits of E4M3 put in place mean the value times 2^-120; 0x7f is NaN. Groups have 32
 * inputs. */
INLINE __m512 load_e4m3(const qn_panels *w, const uint8_t *panel, uint32_t k)
{
    const uint8_t *group = panel + k / 32 * w->group_bytes;
    const __m512i low = _mm512_set1_epi32(0x7f);
    __m512i c = _mm512_srli_epi32(_mm512_loadu_si512(group + k % 32 / 4 * 64), k % 4 * 8);
    __m512i sign = _mm512_slli_epi32(_mm512_and_si512(c, _mm512_set1_epi32(0x80)), 24);
    __m512i rest = _mm512_and_si512(c, low);
    __m512i bits = _mm512_or_si512(sign, _mm512_slli_epi32(rest, 20));
    __m512 v = _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
    v = _mm512_mask_mov_ps(v, _mm512_cmpeq_epi32_mask(rest, low), _mm512_set1_ps(NAN));
    __m512i e = _mm512_cvtepu8_epi32(
        _mm_loadu_si128((const __m128i *)(const void *)(group + w->code_bytes)));
    __m512i s = _mm512_max_epu32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(0x400000));
    return _mm512_mul_ps(v, _mm512_castsi512_ps(s));
}

/* One plane's part of the codes of input k of a group. */
INLINE __m512i load_plane(const uint8_t *plane, uint32_t bits, uint32_t k)
{
    const uint32_t at = k / 4 * bits; /* bits of a byte before this quad's */
    const __m128i shift = _mm_cvtsi32_si128((int)(at % 8 + k % 4 * 8));
    return _mm512_and_si512(_mm512_srl_epi32(_mm512_loadu_si512(plane + at / 8 * 64), shift),
                            _mm512_set1_epi32((1 << bits) - 1));
}

INLINE __m512 load_codes(const qn_panels *w, const uint8_t *panel, uint32_t k)
{
    const uint32_t n = w->spec.group_size, low = qn_panel_low_bits(w->spec.bits);
    const uint32_t high = w->spec.bits - low;
    const uint8_t *group = panel + (k >> __builtin_ctz(n)) * w->group_bytes;
    const uint8_t *scales = group + w->code_bytes;
    k &= n - 1;
    __m512i q = load_plane(group, low, k);
    if (high)
        q = _mm512_or_si512(
            q, _mm512_sll_epi32(load_plane(group + n * low / 32 * 64, high, k),
                                _mm_cvtsi32_si128((int)low)));
    return _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(scales), _mm512_cvtepi32_ps(q)),
                         _mm512_loadu_ps(scales + 64));
}

typedef __m512 (*load_fn)(const qn_panels *w, const uint8_t *panel, uint32_t k);

INLINE __mmask16 panel_mask(const qn_panels *w, uint32_t p)
{
    uint32_t left = w->n_out - p * QN_PANEL_ROWS;
    return left >= QN_PANEL_ROWS ? 0xffff : (__mmask16)((1u << left) - 1u);
}

/* ---- few rows ---- */

INLINE void few_panels(float *y, uint32_t ld, const qn_panels *w, const float *x, uint32_t x_ld,
                       uint32_t p0, uint32_t p1, uint32_t rows, load_fn load)
{
    const uint32_t n = w->n_in;
    for (uint32_t p = p0; p < p1; p++) {
        const uint8_t *panel = w->data + p * w->panel_bytes;
        __m512 acc[FEW][2];
        UNROLLED (r, rows) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
        uint32_t k = 0;
        for (; k + 2 <= n; k += 2) {
            const __m512 w0 = load(w, panel, k), w1 = load(w, panel, k + 1);
            UNROLLED (r, rows) {
                const float *xr = x + (size_t)r * x_ld + k;
                acc[r][0] = _mm512_fmadd_ps(w0, _mm512_set1_ps(xr[0]), acc[r][0]);
                acc[r][1] = _mm512_fmadd_ps(w1, _mm512_set1_ps(xr[1]), acc[r][1]);
            }
        }
        UNROLLED (r, rows) {
            if (k < n) {
                __m512 xk = _mm512_set1_ps(x[(size_t)r * x_ld + k]);
                acc[r][0] = _mm512_fmadd_ps(load(w, panel, k), xk, acc[r][0]);
            }
            _mm512_mask_storeu_ps(y + (size_t)r * ld + p * QN_PANEL_ROWS, panel_mask(w, p),
                                  _mm512_add_ps(acc[r][0], acc[r][1]));
        }
    }
}

#define FEW_ARGS                                                                               \
    float *y, uint32_t ld, const qn_panels *w, const float *x, uint32_t x_ld, uint32_t n_rows, \
        uint32_t p0, uint32_t p1
#define FEW_BODY(name)                                                         \
    static void few_##name(FEW_ARGS)                                           \
    {                                                                          \
        switch (n_rows) {                                                      \
        case 1: few_panels(y, ld, w, x, x_ld, p0, p1, 1, load_##name); return; \
        case 2: few_panels(y, ld, w, x, x_ld, p0, p1, 2, load_##name); return; \
        case 3: few_panels(y, ld, w, x, x_ld, p0, p1, 3, load_##name); return; \
        case 4: few_panels(y, ld, w, x, x_ld, p0, p1, 4, load_##name); return; \
        default: QN_UNREACHABLE();                                             \
        }                                                                      \
    }
FEW_BODY(f32)
FEW_BODY(f16)
FEW_BODY(bf16)
FEW_BODY(e4m3)
FEW_BODY(codes)

static void few(FEW_ARGS)
{
    switch (w->kind) {
    case QN_PANEL_F32: few_f32(y, ld, w, x, x_ld, n_rows, p0, p1); return;
    case QN_PANEL_F16: few_f16(y, ld, w, x, x_ld, n_rows, p0, p1); return;
    case QN_PANEL_BF16: few_bf16(y, ld, w, x, x_ld, n_rows, p0, p1); return;
    case QN_PANEL_E4M3: few_e4m3(y, ld, w, x, x_ld, n_rows, p0, p1); return;
    case QN_PANEL_WIDE_CODES: few_codes(y, ld, w, x, x_ld, n_rows, p0, p1); return;
    case QN_PANEL_CODES: QN_UNREACHABLE();
    }
}

/* ---- many rows ---- */

INLINE void widen(__m512 *dst, const qn_panels *w, const uint8_t *panel, uint32_t k0, uint32_t n,
                  load_fn load)
{
    for (uint32_t k = 0; k < n; k++) dst[k] = load(w, panel, k0 + k);
}

static void widen_block(__m512 *dst, const qn_panels *w, const uint8_t *panel, uint32_t k0,
                        uint32_t n)
{
    switch (w->kind) {
    case QN_PANEL_F32: widen(dst, w, panel, k0, n, load_f32); return;
    case QN_PANEL_F16: widen(dst, w, panel, k0, n, load_f16); return;
    case QN_PANEL_BF16: widen(dst, w, panel, k0, n, load_bf16); return;
    case QN_PANEL_E4M3: widen(dst, w, panel, k0, n, load_e4m3); return;
    case QN_PANEL_WIDE_CODES: widen(dst, w, panel, k0, n, load_codes); return;
    case QN_PANEL_CODES: QN_UNREACHABLE();
    }
}

/* A tile of rows times n widened inputs, added to acc [rows]. x: the block's first input. */
INLINE void tile_rows(pair *acc, const __m512 *w, uint32_t n, const float *x, uint32_t x_ld,
                      uint32_t rows)
{
    pair a[TILE];
    UNROLLED (r, rows) a[r] = acc[r];
    uint32_t k = 0;
    for (; k + 2 <= n; k += 2) {
        const __m512 w0 = w[k], w1 = w[k + 1];
        UNROLLED (r, rows) {
            const float *xr = x + (size_t)r * x_ld + k;
            a[r].even = _mm512_fmadd_ps(w0, _mm512_set1_ps(xr[0]), a[r].even);
            a[r].odd = _mm512_fmadd_ps(w1, _mm512_set1_ps(xr[1]), a[r].odd);
        }
    }
    UNROLLED (r, rows) {
        if (k < n)
            a[r].even = _mm512_fmadd_ps(w[k], _mm512_set1_ps(x[(size_t)r * x_ld + k]), a[r].even);
        acc[r] = a[r];
    }
}

#define TILE_BODY(rows)                                                                            \
    static void tile_##rows(pair *acc, const __m512 *w, uint32_t n, const float *x, uint32_t x_ld) \
    {                                                                                              \
        tile_rows(acc, w, n, x, x_ld, rows);                                                       \
    }
TILE_BODY(1)
TILE_BODY(2)
TILE_BODY(3)
TILE_BODY(4)
TILE_BODY(5)
TILE_BODY(6)
TILE_BODY(7)
TILE_BODY(8)
_Static_assert(TILE == 8, "one body per number of rows in a tile");

static void (*const tiles[TILE])(pair *, const __m512 *, uint32_t, const float *, uint32_t) = {
    tile_1, tile_2, tile_3, tile_4, tile_5, tile_6, tile_7, tile_8,
};

/* Rows of activations between two readings of a panel. */
static uint32_t chunk_rows(uint32_t n_in)
{
    uint32_t rows = X_BYTES / 4 / n_in / TILE * TILE;
    return rows < 2 * TILE ? 2 * TILE : rows > ROWS_CHUNK ? ROWS_CHUNK : rows;
}

static void many(float *y, uint32_t ld, const qn_panels *w, const float *x, uint32_t x_ld,
                 uint32_t n_rows, uint32_t p, void *scratch)
{
    __m512 *wide = scratch;
    pair *acc = (pair *)(wide + BLOCK);
    const uint8_t *panel = w->data + p * w->panel_bytes;
    memset((void *)acc, 0, n_rows * sizeof *acc);
    for (uint32_t k0 = 0; k0 < w->n_in; k0 += BLOCK) {
        const uint32_t n = w->n_in - k0 < BLOCK ? w->n_in - k0 : BLOCK;
        widen_block(wide, w, panel, k0, n);
        for (uint32_t t = 0; t < n_rows; t += TILE) {
            const uint32_t rows = n_rows - t < TILE ? n_rows - t : TILE;
            tiles[rows - 1](acc + t, wide, n, x + (size_t)t * x_ld + k0, x_ld);
        }
    }
    for (uint32_t t = 0; t < n_rows; t++)
        _mm512_mask_storeu_ps(y + (size_t)t * ld + p * QN_PANEL_ROWS, panel_mask(w, p),
                              _mm512_add_ps(acc[t].even, acc[t].odd));
}

void qn_dmm_avx512(float *y, uint32_t ld, const qn_panels *w, const float *x, uint32_t x_ld,
                   uint32_t n_rows, uint32_t p0, uint32_t p1, void *scratch)
{
    if (n_rows <= FEW) {
        few(y, ld, w, x, x_ld, n_rows, p0, p1);
        return;
    }
    const uint32_t chunk = chunk_rows(w->n_in);
    for (uint32_t t0 = 0; t0 < n_rows; t0 += chunk) {
        const uint32_t n = n_rows - t0 < chunk ? n_rows - t0 : chunk;
        for (uint32_t p = p0; p < p1; p++)
            many(y + (size_t)t0 * ld, ld, w, x + (size_t)t0 * x_ld, x_ld, n, p, scratch);
    }
}
