/* ref_lanes_portable.h - four lanes in plain C: the definition of what the other ref_lanes_ISA.h
 * do. Included only by *_portable.c, before ref_body.h. */
#ifndef QN_COMPUTE_REF_LANES_H
#define QN_COMPUTE_REF_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "format/dtype.h"

#define LANES_INLINE static inline __attribute__((always_inline))

enum { LANES = 4 };

typedef float lanes __attribute__((vector_size(16)));
typedef uint32_t lanes_u __attribute__((vector_size(16)));
typedef int32_t lanes_i __attribute__((vector_size(16)));

/* a*b + c, rounded once. */
LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    for (int i = 0; i < LANES; i++) a[i] = fmaf(a[i], b[i], c[i]);
    return a;
}

/* float16 bits of float32 values and back; NaN need not keep its payload. */
LANES_INLINE void lanes_store_f16(uint16_t *p, lanes x)
{
    for (int i = 0; i < LANES; i++) p[i] = qn_f32_f16(x[i]);
}

LANES_INLINE lanes lanes_load_f16(const uint16_t *p)
{
    return (lanes){qn_f16_f32(p[0]), qn_f16_f32(p[1]), qn_f16_f32(p[2]), qn_f16_f32(p[3])};
}

LANES_INLINE lanes lanes_round_f16(lanes x)
{
    uint16_t h[LANES];
    lanes_store_f16(h, x);
    return lanes_load_f16(h);
}

/* LANES words of each of LANES rows, `stride` bytes apart and unaligned, to out[word][lane], out_ld
 * words from one word to the next. */
LANES_INLINE void lanes_transpose(uint32_t *out, uint32_t out_ld, const uint8_t *const rows[LANES])
{
    for (uint32_t i = 0; i < LANES; i++)
        for (uint32_t w = 0; w < LANES; w++) memcpy(out + w * out_ld + i, rows[i] + 4 * w, 4);
}

#endif
