/* qmm_avx2.c - products with quantized panels for AVX2.
 *
 * A block of a panel is unpacked to bytes in scratch, then used for all rows of activations. Byte
 * products are added in pairs to 16 bits (vpmaddubsw) as long as that is exact, then to 32 bits;
 * 8-bit codes go as two nibbles. Sums of a quad's products of codes up to c are at most c*256: c =
 * 15: 3840, 24 (e2m1): 6144, 31: 7936: four quads fit into 16 bits;  63: 16128: two quads.
 */
#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "compute/cpu/panel.h"
#include "compute/cpu/unroll.h"

enum {
    BLOCK_MANY = 1024, /* inputs of a block */
    BLOCK_FEW = 256,   /* with few rows: the panel should stream */
    FEW = 16,
    ROWS_CHUNK = 128, /* rows of activations that share a pass over the panels */
    AHEAD = 8 << 10   /* bytes from the codes in use to those that are fetched, with more than a row */
};

/* Scales and biases of 16 rows. */
typedef struct scales {
    float s[16], b[16];
} scales;

/* Groups of a panel as bytes: quads [n_groups * group_size / 4][64], scale pairs [n_groups]. */
typedef struct block {
    uint32_t n_groups;
    uint8_t *quads;
    scales *scales;
} block;

_Static_assert(BLOCK_MANY * 16 + BLOCK_MANY / 16 * sizeof(scales) <= QN_MM_SCRATCH, "scratch fits");

INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE void store(void *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

/* ---- unpacking ---- */

/* Quads of one plane of 8 rows (half a panel): bytes of the plane's bits, shifted to `low`. */
INLINE void or_plane(__m256i *v, const uint8_t *words, uint32_t n_quads, uint32_t bits,
                     uint32_t low)
{
    const uint32_t per_word = 8 / bits;
    const __m256i mask = _mm256_set1_epi8((char)(((1u << bits) - 1u) << low));
    UNROLLED (j, n_quads) {
        const int at = (int)(bits * (j % per_word)) - (int)low;
        __m256i word = load(words + j / per_word * 64);
        if (at > 0) word = _mm256_srli_epi32(word, at);
        if (at < 0) word = _mm256_slli_epi32(word, -at);
        word = bits == 8 ? word : _mm256_and_si256(word, mask);
        v[j] = low ? _mm256_or_si256(v[j], word) : word;
    }
}

/* One group of n inputs: both halves, 4 quads at a time for 4-bit codes, else 8. */
INLINE void unpack_group(uint8_t *dst, const uint8_t *codes, uint32_t n, uint32_t bits, bool e2m1)
{
    const uint32_t quads = bits == 4 ? 4 : 8;
    const uint32_t low = bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits;
    const uint8_t *high = codes + (size_t)n * low / 32 * 64;
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    for (uint32_t i = 0; i < n / (4 * quads); i++, dst += quads * 64) {
        UNROLLED (half, 2) {
            __m256i v[8];
            or_plane(v, codes + i * (quads * low / 8) * 64 + half * 32, quads, low, 0);
            if (bits != low)
                or_plane(v, high + i * (quads * (bits - low) / 8) * 64 + half * 32, quads,
                         bits - low, low);
            UNROLLED (j, quads)
                store(dst + j * 64 + half * 32, e2m1 ? _mm256_shuffle_epi8(table, v[j]) : v[j]);
        }
    }
}

static void unpack_codes(uint8_t *dst, const uint8_t *codes, const qn_panels *w)
{
    const uint32_t n = w->spec.group_size;
    if (w->spec.mode != QN_Q_AFFINE) {
        unpack_group(dst, codes, n, 4, true);
        return;
    }
    switch (w->spec.bits) {
    case 2: unpack_group(dst, codes, n, 2, false); return;
    case 3: unpack_group(dst, codes, n, 3, false); return;
    case 4: unpack_group(dst, codes, n, 4, false); return;
    case 5: unpack_group(dst, codes, n, 5, false); return;
    case 6: unpack_group(dst, codes, n, 6, false); return;
    case 8: unpack_group(dst, codes, n, 8, false); return;
    default: QN_UNREACHABLE();
    }
}

/* E4M3 bytes as float32: the bits put in place mean the value times 2^-120; 0x7f is NaN. */
INLINE __m256 e4m3_ps(__m256i c)
{
    const __m256i low = _mm256_set1_epi32(0x7f);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(c, _mm256_set1_epi32(0x80)), 24);
    __m256i rest = _mm256_and_si256(c, low);
    __m256i bits = _mm256_or_si256(sign, _mm256_slli_epi32(rest, 20));
    __m256 v = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
    __m256 bad = _mm256_castsi256_ps(_mm256_cmpeq_epi32(rest, low));
    return _mm256_blendv_ps(v, _mm256_set1_ps(NAN), bad);
}

INLINE __m256 byte_scale(const uint8_t *p, qn_scale_kind kind)
{
    __m256i c = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    if (kind == QN_SCALE_E4M3) return e4m3_ps(c);
    return _mm256_castsi256_ps(
        _mm256_max_epu32(_mm256_slli_epi32(c, 23), _mm256_set1_epi32(0x400000)));
}

/* The low or high 16 bits of 8 words as float16, widened. */
INLINE __m256 half_ps(__m256i v)
{
    __m256i packed = _mm256_packus_epi32(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)), v);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}

static void unpack_scales(scales *out, const uint8_t *p, qn_scale_kind kind)
{
    for (uint32_t half = 0; half < 2; half++) {
        __m256 s, b;
        if (kind == QN_SCALE_BF16) {
            __m256i v = load(p + half * 32);
            s = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
            b = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000)));
        } else if (kind == QN_SCALE_F16) {
            __m256i v = load(p + half * 32);
            s = half_ps(v);
            b = half_ps(_mm256_srli_epi32(v, 16));
        } else {
            __m256 scale = byte_scale(p + half * 8, kind);
            s = _mm256_mul_ps(scale, _mm256_set1_ps(0.5f));
            b = _mm256_mul_ps(scale, _mm256_set1_ps(-6.0f));
        }
        _mm256_storeu_ps(out->s + half * 8, s);
        _mm256_storeu_ps(out->b + half * 8, b);
    }
}

/* Unpack a block, and fetch what lies `ahead` bytes after it; 0: nothing. */
static void unpack_block(const block *b, const uint8_t *group, const qn_panels *w, size_t ahead)
{
    for (uint32_t g = 0; g < b->n_groups; g++, group += w->group_bytes) {
        for (size_t i = 0; ahead && i < w->group_bytes; i += 64)
            _mm_prefetch((const char *)(group + ahead + i), _MM_HINT_T1);
        unpack_codes(b->quads + (size_t)g * w->spec.group_size * 16, group, w);
        unpack_scales(&b->scales[g], group + w->code_bytes, w->scale);
    }
}

/* ---- dot products ---- */

/* What a tile body works on: rows r0.. of a tile of activations, halves h0.. of a panel. Constant
 * where it is inlined, except `step`, the bytes from one quad of a row to the next. */
typedef struct tile {
    uint32_t rows, halves, planes, chain; /* chain: quads that may be added in 16 bits */
    bool nibbles;                         /* 8-bit codes as two nibbles */
    size_t step;
} tile;

/* Products of `chain` quads added in 16 bits: sum[row][half][plane], codes already at w. */
INLINE void add_quads(__m256i acc[2][2][2], const uint8_t *w, const int8_t *x, tile t,
                      uint32_t shift)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i sum[2][2][2];
    UNROLLED (j, t.chain) {
        __m256i v[2];
        UNROLLED (h, t.halves) {
            v[h] = load(w + j * 64 + h * 32);
            if (t.nibbles)
                v[h] = _mm256_and_si256(shift ? _mm256_srli_epi32(v[h], 4) : v[h], nibble);
        }
        UNROLLED (r, t.rows)
            UNROLLED (pl, t.planes) {
                int32_t quad;
                memcpy(&quad, x + j * t.step + (r * t.planes + pl) * 4, 4);
                const __m256i xq = _mm256_set1_epi32(quad);
                UNROLLED (h, t.halves) {
                    __m256i p = _mm256_maddubs_epi16(v[h], xq);
                    sum[r][h][pl] = j ? _mm256_add_epi16(sum[r][h][pl], p) : p;
                }
            }
    }
    UNROLLED (r, t.rows)
        UNROLLED (h, t.halves)
            UNROLLED (pl, t.planes) {
                __m256i wide = _mm256_madd_epi16(sum[r][h][pl], _mm256_set1_epi16(1));
                if (shift) wide = _mm256_slli_epi32(wide, 4);
                acc[r][h][pl] = _mm256_add_epi32(acc[r][h][pl], wide);
            }
}

/* Lanes of a half panel that are rows of the matrix. */
INLINE __m256i half_mask(uint32_t rows_left, uint32_t half)
{
    const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                          _mm256_set1_epi32((int)half * 8));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)rows_left), lane);
}

/* Some rows times a block, added to y (started at 0 when `first`); h0 is the first half. */
INLINE void tile_rows(float *y, uint32_t ld, uint32_t rows_left, const block *b,
                      uint32_t group_size, const int8_t *x, const float *pair, size_t pair_step,
                      bool first, uint32_t h0, tile t)
{
    __m256 sum[2][2];
    UNROLLED (r, t.rows)
        UNROLLED (h, t.halves)
            sum[r][h] = first ? _mm256_setzero_ps()
                              : _mm256_maskload_ps(y + (size_t)r * ld + (h0 + h) * 8,
                                                   half_mask(rows_left, h0 + h));
    const uint8_t *w = b->quads + h0 * 32;
    for (uint32_t g = 0; g < b->n_groups; g++, pair += pair_step) {
        __m256i acc[2][2][2];
        UNROLLED (r, t.rows)
            UNROLLED (h, t.halves) acc[r][h][0] = acc[r][h][1] = _mm256_setzero_si256();
        for (uint32_t j = 0; j < group_size / 4;
             j += t.chain, w += t.chain * 64, x += t.chain * t.step) {
            add_quads(acc, w, x, t, 0);
            if (t.nibbles) add_quads(acc, w, x, t, 4);
        }
        UNROLLED (r, t.rows)
            UNROLLED (h, t.halves) {
                __m256i dot = acc[r][h][0];
                if (t.planes == 2) dot = _mm256_add_epi32(dot, _mm256_slli_epi32(acc[r][h][1], 8));
                const __m256 s = _mm256_loadu_ps(b->scales[g].s + (h0 + h) * 8);
                const __m256 bias = _mm256_loadu_ps(b->scales[g].b + (h0 + h) * 8);
                sum[r][h] = _mm256_fmadd_ps(_mm256_mul_ps(s, _mm256_set1_ps(pair[2 * r])),
                                            _mm256_cvtepi32_ps(dot), sum[r][h]);
                sum[r][h] = _mm256_fmadd_ps(bias, _mm256_set1_ps(pair[2 * r + 1]), sum[r][h]);
            }
    }
    UNROLLED (r, t.rows)
        UNROLLED (h, t.halves)
            _mm256_maskstore_ps(y + (size_t)r * ld + (h0 + h) * 8, half_mask(rows_left, h0 + h),
                                sum[r][h]);
}

/* All rows of one tile of activations times a block: one row with both halves, or two rows with
 * one. */
INLINE void tile_block(float *y, uint32_t ld, uint32_t rows_left, const block *b, const qn_qacts *x,
                       uint32_t g0, uint32_t t0, uint32_t planes, uint32_t chain, bool nibbles)
{
    const uint32_t n = x->group_size, rows = qn_qacts_tile_rows(x, t0);
    const size_t step = (size_t)rows * planes * 4;
    for (uint32_t r = 0; r < rows; r += 2) {
        const int8_t *quads = qn_qacts_quad(x, t0 + r, g0 * n / 4);
        const float *pair = qn_qacts_pair(x, t0 + r, g0);
        float *out = y + (size_t)(t0 + r) * ld;
        if (r + 1 == rows) {
            const tile one = {1, 2, planes, chain, nibbles, step};
            tile_rows(out, ld, rows_left, b, n, quads, pair, rows * 2, g0 == 0, 0, one);
            return;
        }
        const tile two = {2, 1, planes, chain, nibbles, step};
        tile_rows(out, ld, rows_left, b, n, quads, pair, rows * 2, g0 == 0, 0, two);
        tile_rows(out, ld, rows_left, b, n, quads, pair, rows * 2, g0 == 0, 1, two);
    }
}

#define TILE_ARGS                                                                              \
    float *y, uint32_t ld, uint32_t rows_left, const block *b, const qn_qacts *x, uint32_t g0, \
        uint32_t t0
#define TILE_BODY(name, planes, chain, nibbles)                             \
    static void tile_##name(TILE_ARGS)                                      \
    {                                                                       \
        tile_block(y, ld, rows_left, b, x, g0, t0, planes, chain, nibbles); \
    }
TILE_BODY(small1, 1, 4, false)
TILE_BODY(small2, 2, 4, false)
TILE_BODY(six1, 1, 2, false)
TILE_BODY(six2, 2, 2, false)
TILE_BODY(eight1, 1, 4, true)
TILE_BODY(eight2, 2, 4, true)

typedef void (*tile_fn)(TILE_ARGS);

static tile_fn pick_tile(const qn_panels *w, uint32_t planes)
{
    if (w->spec.bits == 8) return planes == 2 ? tile_eight2 : tile_eight1;
    if (w->spec.bits == 6) return planes == 2 ? tile_six2 : tile_six1;
    return planes == 2 ? tile_small2 : tile_small1;
}

/* Panels [p0, p1) times the rows [t0, t1), blocks of `inputs` outermost so that the activations of
 * a block stay in cache; with few rows panels are outermost and each is read in one go. */
static void chunk(float *y, uint32_t ld, const qn_panels *w, const qn_qacts *x, uint32_t p0,
                  uint32_t p1, uint32_t t0, uint32_t t1, uint32_t g0, uint32_t g1, void *scratch)
{
    const tile_fn run = pick_tile(w, x->n_planes);
    const uint32_t inputs = t1 - t0 <= FEW ? BLOCK_FEW : BLOCK_MANY;
    const uint32_t per_block = inputs / w->spec.group_size;
    const size_t ahead = t1 - t0 == 1 ? 0 : g1 - g0 == w->n_groups ? AHEAD : w->panel_bytes;
    for (uint32_t p = p0; p < p1; p++) {
        const uint32_t row0 = p * QN_PANEL_ROWS;
        for (uint32_t g = g0; g < g1; g += per_block) {
            block b = {.n_groups = g1 - g < per_block ? g1 - g : per_block, .quads = scratch};
            b.scales = (scales *)(void *)(b.quads + (size_t)b.n_groups * w->spec.group_size * 16);
            unpack_block(&b, w->data + p * w->panel_bytes + g * w->group_bytes, w, ahead);
            for (uint32_t t = t0; t < t1; t += QN_ACT_TILE)
                run(y + row0, ld, w->n_out - row0, &b, x, g, t);
        }
    }
}

void qn_qmm_avx2(float *y, uint32_t ld, const qn_panels *w, const qn_qacts *x, uint32_t p0,
                 uint32_t p1, void *scratch)
{
    assert(w->kind == QN_PANEL_CODES && x->group_size == w->spec.group_size && x->n_in == w->n_in);
    const uint32_t per_pass = x->n_rows <= FEW ? w->n_groups : BLOCK_MANY / w->spec.group_size;
    for (uint32_t t0 = 0; t0 < x->n_rows; t0 += ROWS_CHUNK) {
        const uint32_t t1 = x->n_rows - t0 < ROWS_CHUNK ? x->n_rows : t0 + ROWS_CHUNK;
        for (uint32_t g0 = 0; g0 < w->n_groups; g0 += per_pass) {
            const uint32_t g1 = w->n_groups - g0 < per_pass ? w->n_groups : g0 + per_pass;
            chunk(y, ld, w, x, p0, p1, t0, t1, g0, g1, scratch);
        }
    }
}
