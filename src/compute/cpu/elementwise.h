/* elementwise.h - norms and activations of one row, once per instruction set.
 *
 * All variants compute the same bits: sums run over 64 lanes (element i goes to lane i mod 64),
 * lanes are added in one fixed tree, every multiply-add that is fused in one variant is fused in
 * all, and exp, tanh and erfc are polynomials of our own (elementwise_body.h).
 *
 *   rms_norm    y = x / sqrt(mean(x^2) + eps) * w
 *   layer_norm  y = (x - mean) / sqrt(var + eps) * w + b
 *   act         y = act(x)
 *   glu         y = act(gate) * up
 *   softcap     y = tanh(x / cap) * cap
 * Accuracy: exp within 1 ulp, tanh within 3 ulp; SiLU and sigmoid within 3 ulp; the relative error
 * of both GELU forms grows with the exponent in their negative tail (7 and 20 ulp at x = -4).
 * Shapes: x, y, gate, up, w, b [n] float32; y may be x, gate or up; w and b may be NULL. Threads:
 * any.
 */
#ifndef QN_COMPUTE_CPU_ELEMENTWISE_H
#define QN_COMPUTE_CPU_ELEMENTWISE_H

#include <stdint.h>

#include "compute/ops.h"

/* The five functions of a variant (no failure). */
#define QN_ELEMENTWISE_DECLARE(isa)                                                               \
    void qn_rms_norm_##isa(float *y, const float *x, const float *w, uint32_t n, float eps);      \
    void qn_layer_norm_##isa(float *y, const float *x, const float *w, const float *b, uint32_t n, \
                             float eps);                                                          \
    void qn_act_##isa(float *y, const float *x, uint32_t n, qn_act kind);                         \
    void qn_glu_##isa(float *y, const float *gate, const float *up, uint32_t n, qn_act kind);     \
    void qn_softcap_##isa(float *y, const float *x, uint32_t n, float cap)

QN_ELEMENTWISE_DECLARE(portable);
QN_ELEMENTWISE_DECLARE(avx2);
QN_ELEMENTWISE_DECLARE(avx512);

#endif
