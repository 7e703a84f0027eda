/* v16_portable.h - 16 float32 lanes in plain C; the definition of v16_avx2.h and v16_avx512.h.
 *
 * Every operation gives the same bits in all three. Included only by *_portable.c, before
 * v16_math.h. fmaf rounds once, as the instructions of the other variants do.
 */
#ifndef QN_COMPUTE_CPU_V16_H
#define QN_COMPUTE_CPU_V16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "format/dtype.h"

#define V16_INLINE static inline /* not forced: instrumented builds would become enormous */

/* How many vectors the kernels keep in registers: rows of scores; rows x vectors of values. */
enum { V16_SCORE_ROWS = 4, V16_PV_ROWS = 4, V16_PV_VECS = 1 };

typedef struct v16 { float f[16]; } v16;

#define V16_EACH(expr)                        \
    v16 r;                                    \
    for (int i = 0; i < 16; i++) r.f[i] = (expr); \
    return r

V16_INLINE v16 v16_set(float x) { V16_EACH(x); }
V16_INLINE v16 v16_load(const float *p) { V16_EACH(p[i]); }
V16_INLINE void v16_store(float *p, v16 x) { memcpy(p, x.f, sizeof x.f); }

/* The first n lanes; the others are 0 or are not stored. */
V16_INLINE v16 v16_load_n(const float *p, uint32_t n) { V16_EACH((uint32_t)i < n ? p[i] : 0.0f); }
V16_INLINE void v16_store_n(float *p, v16 x, uint32_t n) { memcpy(p, x.f, n * sizeof(float)); }

V16_INLINE v16 v16_load_f16(const uint16_t *p) { V16_EACH(qn_f16_f32(p[i])); }
V16_INLINE v16 v16_load_bf16(const uint16_t *p) { V16_EACH(qn_bf16_f32(p[i])); }

/* 16 one byte codes; 16 half byte codes: the low (high 0) or high halves of 16 bytes, or of 8 bytes
 * the low and the high half in turn. */
V16_INLINE v16 v16_load_u8(const uint8_t *p) { V16_EACH((float)p[i]); }
V16_INLINE v16 v16_load_half_bytes(const uint8_t *p, uint32_t high)
{
    V16_EACH((float)(p[i] >> 4 * high & 15));
}
V16_INLINE v16 v16_load_u4(const uint8_t *p) { V16_EACH((float)(p[i / 2] >> 4 * (i % 2) & 15)); }

V16_INLINE v16 v16_add(v16 a, v16 b) { V16_EACH(a.f[i] + b.f[i]); }
V16_INLINE v16 v16_sub(v16 a, v16 b) { V16_EACH(a.f[i] - b.f[i]); }
V16_INLINE v16 v16_mul(v16 a, v16 b) { V16_EACH(a.f[i] * b.f[i]); }
V16_INLINE v16 v16_div(v16 a, v16 b) { V16_EACH(a.f[i] / b.f[i]); }
V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { V16_EACH(fmaf(a.f[i], b.f[i], c.f[i])); }  /* ab+c */
V16_INLINE v16 v16_fnma(v16 a, v16 b, v16 c) { V16_EACH(fmaf(-a.f[i], b.f[i], c.f[i])); } /* c-ab */

/* The second operand where the comparison is false, so a NaN in b stays. */
V16_INLINE v16 v16_min(v16 a, v16 b) { V16_EACH(a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
V16_INLINE v16 v16_max(v16 a, v16 b) { V16_EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }

/* a < b ? x : y */
V16_INLINE v16 v16_if_less(v16 a, v16 b, v16 x, v16 y)
{
    V16_EACH(a.f[i] < b.f[i] ? x.f[i] : y.f[i]);
}

V16_INLINE v16 v16_abs(v16 a) { V16_EACH(fabsf(a.f[i])); }
V16_INLINE v16 v16_copysign(v16 a, v16 s) { V16_EACH(copysignf(a.f[i], s.f[i])); }

/* x in lanes lo <= i < hi, `fill` elsewhere. */
V16_INLINE v16 v16_keep(v16 x, int lo, int hi, v16 fill)
{
    V16_EACH(i >= lo && i < hi ? x.f[i] : fill.f[i]);
}

/* 2^n of lanes that hold 1.5 * 2^23 + n, |n| < 127. */
V16_INLINE v16 v16_pow2(v16 a)
{
    v16 r;
    for (int i = 0; i < 16; i++) {
        uint32_t u;
        memcpy(&u, &a.f[i], 4);
        u = (u + 127u) << 23;
        memcpy(&r.f[i], &u, 4);
    }
    return r;
}

/* Lanes 8 apart are added, then 4, 2, 1. */
V16_INLINE float v16_sum(v16 a)
{
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) a.f[i] = a.f[i] + a.f[i + h];
    return a.f[0];
}

V16_INLINE float v16_largest(v16 a)
{
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) a.f[i] = a.f[i] > a.f[i + h] ? a.f[i] : a.f[i + h];
    return a.f[0];
}

#endif
