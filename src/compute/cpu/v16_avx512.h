/* v16_avx512.h - 16 float32 lanes in one AVX-512 register. v16_portable.h says what each does.
 * Included only by *_avx512.c, which are compiled for that instruction set. */
#ifndef QN_COMPUTE_CPU_V16_H
#define QN_COMPUTE_CPU_V16_H

#include <immintrin.h>
#include <stdint.h>

#define V16_INLINE static inline __attribute__((always_inline))

enum { V16_SCORE_ROWS = 8, V16_PV_ROWS = 4, V16_PV_VECS = 4 };

typedef __m512 v16;

V16_INLINE __mmask16 v16_first(uint32_t n) { return (__mmask16)((1u << n) - 1); }

V16_INLINE v16 v16_set(float x) { return _mm512_set1_ps(x); }
V16_INLINE v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
V16_INLINE void v16_store(float *p, v16 x) { _mm512_storeu_ps(p, x); }

V16_INLINE v16 v16_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(v16_first(n), p);
}

V16_INLINE void v16_store_n(float *p, v16 x, uint32_t n)
{
    _mm512_mask_storeu_ps(p, v16_first(n), x);
}

V16_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

V16_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

V16_INLINE v16 v16_from_u8(__m128i x)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x));
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

V16_INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
V16_INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
V16_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
V16_INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
V16_INLINE v16 v16_fnma(v16 a, v16 b, v16 c) { return _mm512_fnmadd_ps(a, b, c); }
V16_INLINE v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
V16_INLINE v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }

V16_INLINE v16 v16_if_less(v16 a, v16 b, v16 x, v16 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

V16_INLINE v16 v16_abs(v16 a) { return _mm512_abs_ps(a); }

V16_INLINE v16 v16_copysign(v16 a, v16 s)
{
    __m512 sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, s));
}

V16_INLINE v16 v16_keep(v16 x, int lo, int hi, v16 fill)
{
    uint32_t below_hi = hi >= 16 ? 0xFFFFu : hi <= 0 ? 0u : (1u << hi) - 1;
    uint32_t below_lo = lo >= 16 ? 0xFFFFu : lo <= 0 ? 0u : (1u << lo) - 1;
    return _mm512_mask_blend_ps((__mmask16)(below_hi & ~below_lo), fill, x);
}

V16_INLINE v16 v16_pow2(v16 a)
{
    __m512i u = _mm512_add_epi32(_mm512_castps_si512(a), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 23));
}

V16_INLINE float v16_sum(v16 a)
{
    __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

V16_INLINE float v16_largest(v16 a)
{
    __m256 x = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

#endif
