/* mlx_exp.c - 2^whole times a polynomial in the fraction, by fused multiply-adds. */
#include "core/mlx_exp.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

float qn_mlx_expf(float x)
{
    static const float high_to_low[] = {1.535336188319500e-4f, 1.339887440266574e-3f,
                                        9.618437357674640e-3f, 5.550332471162809e-2f,
                                        2.402264791363012e-1f, 6.931472028550421e-1f, 1.0f};
    if (isnan(x)) return x;
    if (x > 88.0f) return INFINITY;
    if (x < -88.0f) return 0.0f;
    float t = x * 1.442695f; /* not log2(e) rounded: MLX's literal */
    float whole = (float)floor((double)t + 0.5), f = t - whole, p = high_to_low[0];
    for (int i = 1; i < 7; i++) p = fmaf(p, f, high_to_low[i]);
    uint32_t bits = (uint32_t)((int32_t)whole + 127) << 23; /* 0 for 2^-127: the result is 0 */
    float power;
    memcpy(&power, &bits, sizeof power);
    return power * p;
}
