/* qacts_avx512.c - activation quantization for AVX-512; same bits as qmm_portable.c. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "compute/cpu/panel.h"

/* The largest |x| of n values (a multiple of 16) as its bits. */
static inline uint32_t max_bits(const float *x, uint32_t n)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i max = _mm512_setzero_si512();
    for (uint32_t k = 0; k < n; k += 16)
        max = _mm512_max_epi32(max, _mm512_and_si512(_mm512_loadu_si512(x + k), magnitude));
    return (uint32_t)_mm512_reduce_max_epi32(max);
}

/* Four quads of one row, `step` bytes from one quad to the next. */
static inline void store_int8(int8_t *dst, size_t step, __m512i xq)
{
    __m128i v = _mm512_cvtepi32_epi8(xq);
    int32_t quad[4];
    if (step == 4) {
        _mm_storeu_si128((__m128i *)(void *)dst, v);
        return;
    }
    _mm_storeu_si128((__m128i *)(void *)quad, v);
    for (uint32_t j = 0; j < 4; j++) memcpy(dst + j * step, quad + j, 4);
}

static inline void store_int16(int8_t *dst, size_t step, __m512i xq)
{
    __m512i high = _mm512_srai_epi32(_mm512_add_epi32(xq, _mm512_set1_epi32(128)), 8);
    __m128i lo = _mm512_cvtepi32_epi8(xq), hi = _mm512_cvtepi32_epi8(high);
    __m128i v[2] = {_mm_unpacklo_epi32(lo, hi), _mm_unpackhi_epi32(lo, hi)};
    if (step == 8) {
        _mm_storeu_si128((__m128i *)(void *)dst, v[0]);
        _mm_storeu_si128((__m128i *)(void *)(dst + 16), v[1]);
        return;
    }
    for (uint32_t j = 0; j < 2; j++) {
        _mm_storel_epi64((__m128i *)(void *)(dst + 2 * j * step), v[j]);
        _mm_storel_epi64((__m128i *)(void *)(dst + (2 * j + 1) * step), _mm_srli_si128(v[j], 8));
    }
}

/* Quantize n values with a factor; returns the sum of the integers. */
static inline int32_t store_group(int8_t *dst, size_t step, const float *x, uint32_t n,
                                  float factor, uint32_t n_planes)
{
    __m512i sum = _mm512_setzero_si512();
    const __m512 f = _mm512_set1_ps(factor);
    for (uint32_t k = 0; k < n; k += 16, dst += 4 * step) {
        __m512i xq = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + k), f));
        sum = _mm512_add_epi32(sum, xq);
        if (n_planes == 2) store_int16(dst, step, xq);
        else store_int8(dst, step, xq);
    }
    return _mm512_reduce_add_epi32(sum);
}

static inline void store_zeros(int8_t *dst, size_t step, uint32_t n, uint32_t n_planes)
{
    for (uint32_t k = 0; k < n; k += 4, dst += step) memset(dst, 0, 4 * n_planes);
}

void qn_qacts_avx512(qn_qacts *q, const float *x, uint32_t x_ld, uint32_t t0, uint32_t t1)
{
    const float range = q->n_planes == 2 ? 32512.0f : 127.0f;
    const uint32_t n = q->group_size, planes = q->n_planes;
    for (uint32_t t = t0; t < t1; t++) {
        const size_t tile_rows = qn_qacts_tile_rows(q, t - t % QN_ACT_TILE);
        const size_t step = tile_rows * planes * 4;
        const float *row = x + (size_t)t * x_ld;
        int8_t *dst = qn_qacts_quad(q, t, 0);
        float *pair = qn_qacts_pair(q, t, 0);
        for (uint32_t g = 0; g < q->n_groups; g++) {
            union {
                uint32_t u;
                float f;
            } max = {.u = max_bits(row, n)};
            if (max.u >= 0x0f800000u && max.u < 0x7f800000u) {
                int32_t sum = store_group(dst, step, row, n, range / max.f, planes);
                pair[0] = max.f / range;
                pair[1] = pair[0] * (float)sum;
            } else {
                store_zeros(dst, step, n, planes);
                pair[0] = pair[1] = max.u > 0x7f7fffffu ? NAN : 0.0f;
            }
            row += n;
            dst += n / 4 * step;
            pair += tile_rows * 2;
        }
    }
}
