/* ref_lanes_avx512.h - 16 lanes in one AVX-512 register. ref_lanes_portable.h says what each
 * function does. Included only by *_avx512.c, which are compiled for that instruction set. */
#ifndef QN_COMPUTE_REF_LANES_H
#define QN_COMPUTE_REF_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "format/dtype.h"

#define LANES_INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };

typedef float lanes __attribute__((vector_size(64)));
typedef uint32_t lanes_u __attribute__((vector_size(64)));
typedef int32_t lanes_i __attribute__((vector_size(64)));

LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return (lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

LANES_INLINE void lanes_store_f16(uint16_t *p, lanes x)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
}

LANES_INLINE lanes lanes_load_f16(const uint16_t *p)
{
    return (lanes)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

LANES_INLINE lanes lanes_round_f16(lanes x)
{
    return (lanes)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
}

/* Pairs of words, then of double words, then of 128-bit parts change places. */
LANES_INLINE void lanes_transpose(uint32_t *out, uint32_t out_ld, const uint8_t *const rows[LANES])
{
    __m512i r[16], a[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(rows[i]);
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
        a[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
    }
    for (int i = 0; i < 8; i++) {
        uint32_t *lo = out + (uint32_t)i * out_ld, *hi = out + (uint32_t)(i + 8) * out_ld;
        _mm512_storeu_si512(lo, _mm512_shuffle_i32x4(a[i], a[i + 8], 0x88));
        _mm512_storeu_si512(hi, _mm512_shuffle_i32x4(a[i], a[i + 8], 0xDD));
    }
}

#endif
