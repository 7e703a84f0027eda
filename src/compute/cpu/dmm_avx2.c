/* dmm_avx2.c - products of float32 activations with dense, mxfp8 and float32 affine panels for
 * AVX2; same order of sums as qmm_portable.c.
 *
 * A block of a panel is widened into scratch and used for all rows of activations, two at a time;
 * the two partial sums of every output wait in scratch between blocks.
 */
#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "compute/cpu/panel.h"
#include "compute/cpu/unroll.h"

enum {
    BLOCK = 256,        /* inputs of a widened block, even and a multiple of mxfp8's groups */
    ROWS_CHUNK = 256,   /* most rows between two readings of a panel */
    X_BYTES = 512 << 10 /* activations that should stay in the second-level cache */
};

/* Partial sums of the 16 outputs of a row: even and odd inputs. */
typedef struct sums {
    float of[2][QN_PANEL_ROWS];
} sums;

_Static_assert(BLOCK * 64 + ROWS_CHUNK * sizeof(sums) <= QN_MM_SCRATCH, "scratch fits");

/* ---- widening: half h of the weights of input k ---- */

INLINE __m256 load_f32(const qn_panels *w, const uint8_t *panel, uint32_t k, uint32_t h)
{
    (void)w;
    return _mm256_loadu_ps((const float *)(const void *)(panel + (size_t)k * 64 + h * 32));
}

INLINE __m256 load_f16(const qn_panels *w, const uint8_t *panel, uint32_t k, uint32_t h)
{
    (void)w;
    return _mm256_cvtph_ps(
        _mm_loadu_si128((const __m128i *)(const void *)(panel + (size_t)k * 32 + h * 16)));
}

INLINE __m256 load_bf16(const qn_panels *w, const uint8_t *panel, uint32_t k, uint32_t h)
{
    (void)w;
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(panel + (size_t)k * 32 + h * 16));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

/* mxfp8: the bits of E4M3 put in place mean the value times 2^-120; 0x7f is NaN. Groups have 32
 * inputs. */
INLINE __m256 load_e4m3(const qn_panels *w, const uint8_t *panel, uint32_t k, uint32_t h)
{
    const uint8_t *group = panel + k / 32 * w->group_bytes,
                  *words = group + k % 32 / 4 * 64 + h * 32;
    const __m256i low = _mm256_set1_epi32(0x7f);
    __m256i c = _mm256_srl_epi32(_mm256_loadu_si256((const __m256i *)(const void *)words),
                                 _mm_cvtsi32_si128((int)(k % 4 * 8)));
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(c, _mm256_set1_epi32(0x80)), 24);
    __m256i rest = _mm256_and_si256(c, low);
    __m256i bits = _mm256_or_si256(sign, _mm256_slli_epi32(rest, 20));
    __m256 v = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
    v = _mm256_blendv_ps(v, _mm256_set1_ps(NAN),
                         _mm256_castsi256_ps(_mm256_cmpeq_epi32(rest, low)));
    const uint8_t *scale = group + w->code_bytes + h * 8;
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)scale));
    __m256i s = _mm256_max_epu32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x400000));
    return _mm256_mul_ps(v, _mm256_castsi256_ps(s));
}

/* One plane's part of the codes of input k of a group. */
INLINE __m256i load_plane(const uint8_t *plane, uint32_t bits, uint32_t k, uint32_t h)
{
    const uint32_t at = k / 4 * bits; /* bits of a byte before this quad's */
    const uint8_t *words = plane + at / 8 * 64 + h * 32;
    const __m128i shift = _mm_cvtsi32_si128((int)(at % 8 + k % 4 * 8));
    return _mm256_and_si256(
        _mm256_srl_epi32(_mm256_loadu_si256((const __m256i *)(const void *)words), shift),
        _mm256_set1_epi32((1 << bits) - 1));
}

INLINE __m256 load_codes(const qn_panels *w, const uint8_t *panel, uint32_t k, uint32_t h)
{
    const uint32_t n = w->spec.group_size, low = qn_panel_low_bits(w->spec.bits);
    const uint32_t high = w->spec.bits - low;
    const uint8_t *group = panel + (k >> __builtin_ctz(n)) * w->group_bytes;
    const float *scales = (const float *)(const void *)(group + w->code_bytes) + h * 8;
    k &= n - 1;
    __m256i q = load_plane(group, low, k, h);
    if (high)
        q = _mm256_or_si256(
            q, _mm256_sll_epi32(load_plane(group + n * low / 32 * 64, high, k, h),
                                _mm_cvtsi32_si128((int)low)));
    return _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(scales), _mm256_cvtepi32_ps(q)),
                         _mm256_loadu_ps(scales + 16));
}

typedef __m256 (*load_fn)(const qn_panels *w, const uint8_t *panel, uint32_t k, uint32_t h);

INLINE void widen(float *dst, const qn_panels *w, const uint8_t *panel, uint32_t k0, uint32_t n,
                  load_fn load)
{
    for (uint32_t k = 0; k < n; k++, dst += QN_PANEL_ROWS) {
        _mm256_storeu_ps(dst, load(w, panel, k0 + k, 0));
        _mm256_storeu_ps(dst + 8, load(w, panel, k0 + k, 1));
    }
}

static void widen_block(float *dst, const qn_panels *w, const uint8_t *panel, uint32_t k0,
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

/* ---- sums ---- */

/* One input: its 16 weights times x[k] of `rows` rows, added to acc[row][half]. */
INLINE void add_input(__m256 acc[2][2], const float *w, const float *x, uint32_t x_ld,
                      uint32_t rows)
{
    const __m256 w0 = _mm256_loadu_ps(w), w1 = _mm256_loadu_ps(w + 8);
    UNROLLED (r, rows) {
        const __m256 xk = _mm256_set1_ps(x[(size_t)r * x_ld]);
        acc[r][0] = _mm256_fmadd_ps(w0, xk, acc[r][0]);
        acc[r][1] = _mm256_fmadd_ps(w1, xk, acc[r][1]);
    }
}

/* `rows` rows times n widened inputs, added to their partial sums. */
INLINE void tile_rows(sums *s, const float *w, uint32_t n, const float *x, uint32_t x_ld,
                      uint32_t rows)
{
    __m256 even[2][2], odd[2][2];
    UNROLLED (r, rows)
        UNROLLED (h, 2) {
            even[r][h] = _mm256_loadu_ps(s[r].of[0] + h * 8);
            odd[r][h] = _mm256_loadu_ps(s[r].of[1] + h * 8);
        }
    uint32_t k = 0;
    for (; k + 2 <= n; k += 2) {
        add_input(even, w + k * 16, x + k, x_ld, rows);
        add_input(odd, w + k * 16 + 16, x + k + 1, x_ld, rows);
    }
    if (k < n) add_input(even, w + k * 16, x + k, x_ld, rows);
    UNROLLED (r, rows)
        UNROLLED (h, 2) {
            _mm256_storeu_ps(s[r].of[0] + h * 8, even[r][h]);
            _mm256_storeu_ps(s[r].of[1] + h * 8, odd[r][h]);
        }
}

static void panel_rows(float *y, uint32_t ld, const qn_panels *w, const float *x, uint32_t x_ld,
                       uint32_t n_rows, uint32_t p, void *scratch)
{
    float *wide = scratch;
    sums *s = (sums *)(void *)(wide + BLOCK * QN_PANEL_ROWS);
    const uint8_t *panel = w->data + p * w->panel_bytes;
    memset(s, 0, n_rows * sizeof *s);
    for (uint32_t k0 = 0; k0 < w->n_in; k0 += BLOCK) {
        const uint32_t n = w->n_in - k0 < BLOCK ? w->n_in - k0 : BLOCK;
        widen_block(wide, w, panel, k0, n);
        uint32_t t = 0;
        for (; t + 2 <= n_rows; t += 2)
            tile_rows(s + t, wide, n, x + (size_t)t * x_ld + k0, x_ld, 2);
        if (t < n_rows) tile_rows(s + t, wide, n, x + (size_t)t * x_ld + k0, x_ld, 1);
    }
    const uint32_t left = w->n_out - p * QN_PANEL_ROWS,
                   rows = left < QN_PANEL_ROWS ? left : QN_PANEL_ROWS;
    for (uint32_t t = 0; t < n_rows; t++) {
        float *out = y + (size_t)t * ld + p * QN_PANEL_ROWS;
        for (uint32_t i = 0; i < rows; i++) out[i] = s[t].of[0][i] + s[t].of[1][i];
    }
}

/* Rows of activations between two readings of a panel. */
static uint32_t chunk_rows(uint32_t n_in)
{
    uint32_t rows = X_BYTES / 4 / n_in / 2 * 2;
    return rows < 16 ? 16 : rows > ROWS_CHUNK ? ROWS_CHUNK : rows;
}

void qn_dmm_avx2(float *y, uint32_t ld, const qn_panels *w, const float *x, uint32_t x_ld,
                 uint32_t n_rows, uint32_t p0, uint32_t p1, void *scratch)
{
    assert(w->kind != QN_PANEL_CODES);
    const uint32_t chunk = chunk_rows(w->n_in);
    for (uint32_t t0 = 0; t0 < n_rows; t0 += chunk) {
        const uint32_t n = n_rows - t0 < chunk ? n_rows - t0 : chunk;
        for (uint32_t p = p0; p < p1; p++)
            panel_rows(y + (size_t)t0 * ld, ld, w, x + (size_t)t0 * x_ld, x_ld, n, p, scratch);
    }
}
