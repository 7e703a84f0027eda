/* ref_lanes_avx2.h - eight lanes in one AVX register. ref_lanes_portable.h says what each function
 * does. Included only by *_avx2.c, which are compiled for AVX2, FMA and F16C. */
#ifndef QN_COMPUTE_REF_LANES_H
#define QN_COMPUTE_REF_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "format/dtype.h"

#define LANES_INLINE static inline __attribute__((always_inline))

enum { LANES = 8 };

typedef float lanes __attribute__((vector_size(32)));
typedef uint32_t lanes_u __attribute__((vector_size(32)));
typedef int32_t lanes_i __attribute__((vector_size(32)));

LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return (lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

LANES_INLINE void lanes_store_f16(uint16_t *p, lanes x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
}

LANES_INLINE lanes lanes_load_f16(const uint16_t *p)
{
    return (lanes)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

LANES_INLINE lanes lanes_round_f16(lanes x)
{
    return (lanes)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
}

LANES_INLINE void lanes_transpose(uint32_t *out, uint32_t out_ld, const uint8_t *const rows[LANES])
{
    __m256 r[8], a[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps((const float *)(const void *)rows[i]);
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xEE);
        r[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        float *lo = (float *)(void *)(out + (uint32_t)i * out_ld);
        float *hi = (float *)(void *)(out + (uint32_t)(i + 4) * out_ld);
        _mm256_storeu_ps(lo, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(hi, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

#endif
