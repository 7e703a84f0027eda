/* v16_math.h - exp, tanh and the activations on 16 lanes, one formula for every instruction set.
 *
 * Polynomials are minimax fits of our own. Included after one of the v16_ISA.h headers.
 */
#ifndef QN_COMPUTE_CPU_V16_MATH_H
#define QN_COMPUTE_CPU_V16_MATH_H

#include "compute/ops.h"

/* e^x: x = n ln 2 + r, e^r = 1 + r + r^2 P(r), times 2^n. Below -87: 0; above 88: e^88. */
V16_INLINE v16 v16_exp(v16 x)
{
    v16 magic = v16_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    v16 top = v16_min(v16_set(88.0f), x);
    v16 big = v16_fma(top, v16_set(1.44269504f), magic);
    v16 n = v16_sub(big, magic);
    v16 r = v16_fnma(n, v16_set(0.693147182f), top);
    r = v16_fnma(n, v16_set(-1.90465421e-9f), r);
    v16 p = v16_fma(v16_set(0.00138144637f), r, v16_set(0.00836878084f));
    p = v16_fma(p, r, v16_set(0.0416683927f));
    p = v16_fma(p, r, v16_set(0.166665196f));
    p = v16_fma(p, r, v16_set(0.49999994f));
    p = v16_fma(v16_mul(r, r), p, r);
    p = v16_add(p, v16_set(1.0f));
    return v16_if_less(x, v16_set(-87.0f), v16_set(0.0f), v16_mul(p, v16_pow2(big)));
}

/* tanh: x + x^3 T(x^2) below 0.625, else 1 - 2/(e^2|x| + 1) with the sign of x. */
V16_INLINE v16 v16_tanh(v16 x)
{
    v16 a = v16_abs(x), z = v16_mul(x, x);
    v16 t = v16_fma(v16_set(-0.00570270745f), z, v16_set(0.0206371285f));
    t = v16_fma(t, z, v16_set(-0.0537391417f));
    t = v16_fma(t, z, v16_set(0.133314356f));
    t = v16_fma(t, z, v16_set(-0.333332807f));
    t = v16_fma(v16_mul(z, x), t, x);
    v16 e = v16_add(v16_exp(v16_add(a, a)), v16_set(1.0f));
    v16 u = v16_sub(v16_set(1.0f), v16_div(v16_set(2.0f), e));
    return v16_if_less(a, v16_set(0.625f), t, v16_copysign(u, x));
}

/* 1 + e^-x: what SiLU and the tanh form of GELU divide by. */
V16_INLINE v16 v16_one_plus_exp_neg(v16 x)
{
    return v16_add(v16_set(1.0f), v16_exp(v16_sub(v16_set(0.0f), x)));
}

/* x/2 erfc(-x/sqrt 2), where erfc(z) = e^(-z^2) t Q(t), t = 1/(1 + 0.35 z), for z = |x|/sqrt 2. */
V16_INLINE v16 v16_gelu(v16 x)
{
    v16 z = v16_mul(v16_abs(x), v16_set(0.707106781f));
    v16 t = v16_div(v16_set(1.0f), v16_fma(v16_set(0.35f), z, v16_set(1.0f)));
    v16 q = v16_fma(v16_set(0.0384010859f), t, v16_set(-0.158928454f));
    q = v16_fma(q, t, v16_set(0.181461588f));
    q = v16_fma(q, t, v16_set(-0.0277060681f));
    q = v16_fma(q, t, v16_set(0.0870190486f));
    q = v16_fma(q, t, v16_set(0.146042064f));
    q = v16_fma(q, t, v16_set(0.151186228f));
    q = v16_fma(q, t, v16_set(0.187902391f));
    q = v16_fma(q, t, v16_set(0.197138354f));
    q = v16_fma(q, t, v16_set(0.197483778f));
    v16 e = v16_exp(v16_mul(v16_mul(x, x), v16_set(-0.5f)));
    v16 c = v16_mul(v16_mul(e, t), q); /* erfc(z) */
    c = v16_if_less(x, v16_set(0.0f), c, v16_sub(v16_set(2.0f), c));
    return v16_mul(v16_mul(v16_set(0.5f), x), c);
}

/* x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): equal to x/2 (1 + tanh u). */
V16_INLINE v16 v16_gelu_tanh(v16 x)
{
    v16 cube = v16_fma(v16_mul(v16_mul(x, x), v16_set(0.044715f)), x, x);
    return v16_div(x, v16_one_plus_exp_neg(v16_mul(cube, v16_set(1.59576912f))));
}

V16_INLINE v16 v16_act(v16 x, const qn_act kind)
{
    switch (kind) {
    case QN_SILU: return v16_div(x, v16_one_plus_exp_neg(x));
    case QN_GELU: return v16_gelu(x);
    case QN_GELU_TANH: return v16_gelu_tanh(x);
    case QN_RELU2: x = v16_max(v16_set(0.0f), x); return v16_mul(x, x);
    case QN_SIGMOID: return v16_div(v16_set(1.0f), v16_one_plus_exp_neg(x));
    }
    QN_UNREACHABLE();
}

#endif
