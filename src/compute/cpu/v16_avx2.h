/* v16_avx2.h - 16 float32 lanes in two AVX registers. v16_portable.h says what each does.
 * Included only by *_avx2.c, which are compiled for AVX2, FMA and F16C. */
#ifndef QN_COMPUTE_CPU_V16_H
#define QN_COMPUTE_CPU_V16_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define V16_INLINE static inline __attribute__((always_inline))

enum { V16_SCORE_ROWS = 4, V16_PV_ROWS = 4, V16_PV_VECS = 1 };

typedef struct v16 { __m256 a, b; } v16; /* lanes 0..7, 8..15 */

#define V16_BOTH(op, y) (v16){op(x.a, y.a), op(x.b, y.b)}

V16_INLINE v16 v16_set(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
V16_INLINE v16 v16_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

V16_INLINE void v16_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

V16_INLINE v16 v16_load_n(const float *p, uint32_t n)
{
    float f[16] = {0};
    memcpy(f, p, n * sizeof *p);
    return v16_load(f);
}

V16_INLINE void v16_store_n(float *p, v16 x, uint32_t n)
{
    float f[16];
    v16_store(f, x);
    memcpy(p, f, n * sizeof *p);
}

V16_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}

V16_INLINE __m256 v16_half_bf16(const uint16_t *p)
{
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}

V16_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    return (v16){v16_half_bf16(p), v16_half_bf16(p + 8)};
}

V16_INLINE v16 v16_from_u8(__m128i x)
{
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}

/* The low or the high halves of 16 bytes. */
V16_INLINE __m128i v16_halves(__m128i x, uint32_t high)
{
    return _mm_and_si128(high ? _mm_srli_epi16(x, 4) : x, _mm_set1_epi8(15));
}

V16_INLINE v16 v16_load_u8(const uint8_t *p)
{
    return v16_from_u8(_mm_loadu_si128((const __m128i *)(const void *)p));
}

V16_INLINE v16 v16_load_half_bytes(const uint8_t *p, uint32_t high)
{
    return v16_from_u8(v16_halves(_mm_loadu_si128((const __m128i *)(const void *)p), high));
}

V16_INLINE v16 v16_load_u4(const uint8_t *p)
{
    __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return v16_from_u8(_mm_unpacklo_epi8(v16_halves(x, 0), v16_halves(x, 1)));
}

V16_INLINE v16 v16_add(v16 x, v16 y) { return V16_BOTH(_mm256_add_ps, y); }
V16_INLINE v16 v16_sub(v16 x, v16 y) { return V16_BOTH(_mm256_sub_ps, y); }
V16_INLINE v16 v16_mul(v16 x, v16 y) { return V16_BOTH(_mm256_mul_ps, y); }
V16_INLINE v16 v16_div(v16 x, v16 y) { return V16_BOTH(_mm256_div_ps, y); }
V16_INLINE v16 v16_min(v16 x, v16 y) { return V16_BOTH(_mm256_min_ps, y); }
V16_INLINE v16 v16_max(v16 x, v16 y) { return V16_BOTH(_mm256_max_ps, y); }

V16_INLINE v16 v16_fma(v16 x, v16 y, v16 z)
{
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

V16_INLINE v16 v16_fnma(v16 x, v16 y, v16 z)
{
    return (v16){_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}

V16_INLINE v16 v16_if_less(v16 a, v16 b, v16 x, v16 y)
{
    return (v16){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
                 _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}

V16_INLINE __m256 v16_half_copysign(__m256 a, __m256 s)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, s));
}

V16_INLINE v16 v16_copysign(v16 a, v16 s)
{
    return (v16){v16_half_copysign(a.a, s.a), v16_half_copysign(a.b, s.b)};
}

V16_INLINE v16 v16_abs(v16 a) { return v16_copysign(a, v16_set(0.0f)); }

/* Lanes whose index first + i is in lo <= index < hi take x, the others `fill`. */
V16_INLINE __m256 v16_half_keep(__m256 x, int lo, int hi, __m256 fill)
{
    __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i in = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), i),
                                     _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), i));
    return _mm256_blendv_ps(fill, x, _mm256_castsi256_ps(in));
}

V16_INLINE v16 v16_keep(v16 x, int lo, int hi, v16 fill)
{
    return (v16){v16_half_keep(x.a, lo, hi, fill.a), v16_half_keep(x.b, lo - 8, hi - 8, fill.b)};
}

V16_INLINE __m256 v16_half_pow2(__m256 a)
{
    __m256i u = _mm256_add_epi32(_mm256_castps_si256(a), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 23));
}

V16_INLINE v16 v16_pow2(v16 a) { return (v16){v16_half_pow2(a.a), v16_half_pow2(a.b)}; }

V16_INLINE float v16_sum(v16 a)
{
    __m256 x = _mm256_add_ps(a.a, a.b);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

V16_INLINE float v16_largest(v16 a)
{
    __m256 x = _mm256_max_ps(a.a, a.b);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

#endif
