/* ref_math.c - MLX's unary functions, formula by formula (docs/numerics.md; spec numerics 4 and 7).
 *
 * "own" functions are MLX's approximations with fused multiply-adds; log1p and tanh are the C
 * library's, as in MLX. Functions that take a type round to it wherever MLX has an operation of its
 * own.
 */
#include <math.h>
#include <string.h>

#include "compute/ref/ref.h"
#include "core/mlx_exp.h"

float qn_ref_round(float v, qn_dtype t)
{
    if (t == QN_BF16) return qn_bf16_f32(qn_f32_bf16(v));
    return t == QN_F16 ? qn_f16_f32(qn_f32_f16(v)) : v;
}

/* ---- float32 ---- */

float qn_ref_expf(float x) { return qn_mlx_expf(x); }

/* The argument reduced by multiples of pi/4, in three steps of decreasing size; *j is the (even)
 * multiple. */
static float reduce_quarter_pi(float a, uint32_t *j)
{
    *j = ((uint32_t)(a * 1.27323954473516f) + 1u) & ~1u;
    float y = (float)*j;
    a = fmaf(y, -0.78515625f, a);
    a = fmaf(y, -2.4187564849853515625e-4f, a);
    return fmaf(y, -3.77489497744594108e-8f, a);
}

static float cosine_part(float z)
{
    float y = fmaf(z, 2.443315711809948e-5f, -1.388731625493765e-3f);
    y = fmaf(y, z, 4.166664568298827e-2f) * z;
    y = y * z;
    return fmaf(z, -0.5f, y) + 1.0f;
}

static float sine_part(float a, float z)
{
    float y = fmaf(z, -1.9515295891e-4f, 8.3321608736e-3f);
    y = fmaf(y, z, -1.6666654611e-1f) * z;
    return fmaf(a, y, a);
}

/* MLX leaves arguments above 2^23 to the C library. NaN takes the same way here: its conversion to
 * an integer is undefined. */
static bool is_small(float x) { return fabsf(x) <= 8388608.0f; }

float qn_ref_sinf(float x)
{
    if (!is_small(x)) return sinf(x);
    uint32_t j;
    float a = reduce_quarter_pi(fabsf(x), &j), z = a * a;
    float y = j & 2u ? cosine_part(z) : sine_part(a, z);
    return (x < 0) != ((j & 4u) != 0) ? -y : y;
}

float qn_ref_cosf(float x)
{
    if (!is_small(x)) return cosf(x);
    uint32_t j;
    float a = reduce_quarter_pi(fabsf(x), &j), z = a * a;
    float y = j & 2u ? sine_part(a, z) : cosine_part(z);
    return (j - 2u) & 4u ? y : -y;
}

/* ---- in type t ---- */

float qn_ref_exp(float x, qn_dtype t) { return qn_ref_round(qn_ref_expf(x), t); }

float qn_ref_sigmoid(float x, qn_dtype t)
{
    float y = 1.0f / (1.0f + qn_ref_exp(fabsf(x), t));
    return qn_ref_round(x < 0 ? y : 1.0f - y, t);
}

float qn_ref_erf(float x, qn_dtype t)
{
    float u = 1.0f / fmaf(0.3275911f, fabsf(x), 1.0f);
    float q = fmaf(1.061405429f, u, -1.453152027f);
    q = fmaf(q, u, 1.421413741f);
    q = fmaf(q, u, -0.284496736f);
    q = fmaf(q, u, 0.254829592f);
    float e = -qn_ref_expf(-x * x);
    float y = qn_ref_round(fmaf(e * u, q, 1.0f), t);
    return x > 0 ? y : -y;
}

float qn_ref_logaddexp(float a, float b, qn_dtype t)
{
    float hi = isnan(a) || a > b ? a : b, lo = isnan(a) || a < b ? a : b;
    if (lo == -INFINITY || hi == INFINITY) return hi;
    float e = qn_ref_exp(qn_ref_round(lo - hi, t), t);
    return qn_ref_round(hi + qn_ref_round(log1pf(e), t), t);
}

/* x * (1 + erf(x / sqrt 2)) / 2 */
static float gelu(float x, qn_dtype t)
{
    float root = qn_ref_round((float)1.4142135623730951, t);
    float a = qn_ref_round(x / root, t);
    float b = qn_ref_round(1.0f + qn_ref_erf(a, t), t);
    return qn_ref_round(qn_ref_round(x * b, t) / 2.0f, t);
}

/* 0.5 x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) */
static float gelu_tanh(float x, qn_dtype t)
{
    float half = qn_ref_round(0.5f * x, t);
    float cube = qn_ref_round(powf(x, 3.0f), t);
    float u = qn_ref_round(qn_ref_round(0.044715f, t) * cube, t);
    float v = qn_ref_round(x + u, t);
    float w = qn_ref_round(qn_ref_round((float)0.7978845608028654, t) * v, t);
    float z = qn_ref_round(1.0f + qn_ref_round(tanhf(w), t), t);
    return qn_ref_round(half * z, t);
}

float qn_ref_act_of(float x, qn_act kind, qn_dtype t)
{
    float y;
    switch (kind) {
    case QN_SILU: return qn_ref_round(x * qn_ref_sigmoid(x, t), t);
    case QN_GELU: return gelu(x, t);
    case QN_GELU_TANH: return gelu_tanh(x, t);
    case QN_RELU2: y = isnan(x) || x > 0.0f ? x : 0.0f; return qn_ref_round(y * y, t);
    case QN_SIGMOID: return qn_ref_sigmoid(x, t);
    }
    QN_UNREACHABLE();
}

float qn_ref_softcap_of(float x, float cap, qn_dtype t)
{
    float c = qn_ref_round(cap, t);
    float y = qn_ref_round(tanhf(qn_ref_round(x / c, t)), t);
    return qn_ref_round(y * c, t);
}
