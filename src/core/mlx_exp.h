/* mlx_exp.h - the exponential function of MLX's CPU backend, which is its own approximation.
 *
 * Whoever has to give MLX's bits uses it: rotary tables, the reference device, exact sampling.
 * Threads: any.
 */
#ifndef QN_CORE_MLX_EXP_H
#define QN_CORE_MLX_EXP_H

/* exp(x) in float32, bit for bit as MLX computes it: 0 below -88, infinity above 88, NaN stays
 * (no failure). Source: docs/numerics.md. */
float qn_mlx_expf(float x);

#endif
