/* rope.c - inverse frequencies of rotary tables, bit for bit as MLX computes them. */
#include <math.h>
#include <string.h>

#include "compute/ops.h"

/* MLX's exp (spec numerics 4.1). */
static float mlx_exp(float x)
{
    static const float high_to_low[] = {1.535336188319500e-4f, 1.339887440266574e-3f,
                                        9.618437357674640e-3f, 5.550332471162809e-2f,
                                        2.402264791363012e-1f, 6.931472028550421e-1f, 1.0f};
    if (x < -88.0f) return 0.0f;
    if (x > 88.0f) return INFINITY;
    float t = x * 1.442695f;
    double whole = floor((double)t + 0.5);
    float f = t - (float)whole, p = high_to_low[0];
    for (int i = 1; i < 7; i++) p = fmaf(p, f, high_to_low[i]);
    uint32_t bits = (uint32_t)((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power * p;
}

void qn_rope_inv(const qn_rope_desc *desc, float *inv)
{
    uint32_t half = desc->dims / 2;
    float c = logf(desc->base) / (float)half;
    for (uint32_t k = 0; k < half; k++)
        inv[k] = desc->freqs ? 1.0f / desc->freqs[k] : mlx_exp(-(float)k * c);
}
