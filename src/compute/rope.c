/* rope.c - numbers that depend on positions: inverse frequencies of rotary tables, bit for bit as MLX
 * computes them, and factors of queries. */
#include <math.h>

#include "compute/ops.h"
#include "core/mlx_exp.h"

void qn_rope_inv(const qn_rope_desc *desc, float *inv)
{
    uint32_t half = desc->dims / 2;
    float c = logf(desc->base) / (float)half;
    for (uint32_t k = 0; k < half; k++)
        inv[k] = desc->freqs ? 1.0f / desc->freqs[k] : qn_mlx_expf(-(float)k * c);
}

float qn_pos_factor(const qn_pos_scale *how, uint32_t pos)
{
    float n = floorf((float)(pos + 1) / how->step);
    return logf(n + 1.0f) * how->rate + 1.0f;
}
