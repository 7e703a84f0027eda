/* qacts_avx2.c - activation quantization for AVX2; same bits as qmm_portable.c. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "compute/cpu/panel.h"

static inline __m256i load(const float *x)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)x);
}

/* The largest |x| of n values (a multiple of 8) as its bits. */
static inline uint32_t max_bits(const float *x, uint32_t n)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i max = _mm256_setzero_si256();
    for (uint32_t k = 0; k < n; k += 8)
        max = _mm256_max_epi32(max, _mm256_and_si256(load(x + k), magnitude));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* Two quads of one row, `step` bytes from one quad to the next. Byte shuffles collect the low bytes
 * of the integers of a quad in front, those of `high` behind them. */
static inline void store_quads(int8_t *dst, size_t step, __m256i xq, uint32_t n_planes)
{
    const __m256i low_bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m256i behind = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1));
    __m256i high = _mm256_srai_epi32(_mm256_add_epi32(xq, _mm256_set1_epi32(128)), 8);
    __m256i v =
        _mm256_or_si256(_mm256_shuffle_epi8(xq, low_bytes), _mm256_shuffle_epi8(high, behind));
    int64_t first = _mm256_extract_epi64(v, 0), second = _mm256_extract_epi64(v, 2);
    memcpy(dst, &first, 4 * n_planes);
    memcpy(dst + step, &second, 4 * n_planes);
}

/* Quantize n values with a factor; returns the sum of the integers. */
static inline int32_t store_group(int8_t *dst, size_t step, const float *x, uint32_t n,
                                  float factor, uint32_t n_planes)
{
    __m256i sum = _mm256_setzero_si256();
    const __m256 f = _mm256_set1_ps(factor);
    for (uint32_t k = 0; k < n; k += 8, dst += 2 * step) {
        __m256i xq = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + k), f));
        sum = _mm256_add_epi32(sum, xq);
        if (n_planes == 2) store_quads(dst, step, xq, 2);
        else store_quads(dst, step, xq, 1);
    }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

void qn_qacts_avx2(qn_qacts *q, const float *x, uint32_t x_ld, uint32_t t0, uint32_t t1)
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
                for (uint32_t j = 0; j < n / 4; j++) memset(dst + j * step, 0, 4 * planes);
                pair[0] = pair[1] = max.u > 0x7f7fffffu ? NAN : 0.0f;
            }
            row += n;
            dst += n / 4 * step;
            pair += tile_rows * 2;
        }
    }
}
