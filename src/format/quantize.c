/* quantize.c - from weights to codes, with the arithmetic of MLX's CPU backend (spec numerics 2.2
 * and 2.5): affine in float32, the floating-point modes step by step in the weight's own type.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "format/quant.h"

enum { MAX_GROUP = 128 };

static float round_to(float f, qn_dtype t)
{
    if (t == QN_BF16) return qn_bf16_f32(qn_f32_bf16(f));
    return t == QN_F16 ? qn_f16_f32(qn_f32_f16(f)) : f;
}

static void store_scale(void *p, size_t i, qn_dtype t, float f)
{
    qn_narrow((char *)p + i * qn_dtype_size(t), t, &f, 1);
}

typedef struct affine_fit {
    float scale, bias;
} affine_fit;

/* The end of the range with the larger magnitude is hit exactly: the scale is adjusted so that it
 * is a whole number of steps away from zero. */
static affine_fit fit_affine(const float *x, uint32_t n, uint32_t bits)
{
    float lo = INFINITY, hi = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    bool negative = fabsf(lo) > fabsf(hi);
    float step = fmaxf((hi - lo) / (float)((1u << bits) - 1u), 1e-7f);
    float scale = negative ? step : -step, edge = negative ? lo : hi;
    float steps = rintf(edge / scale);
    if (steps != 0.0f) return (affine_fit){edge / steps, edge};
    return (affine_fit){scale, 0.0f};
}

/* Clamps with comparisons that send NaN to 0, and before rounding: the ends are whole numbers. What
 * is left rounds to even by adding and taking away 1.5 * 2^23. */
static uint8_t affine_code(float x, affine_fit fit, float top)
{
    float q = (x - fit.bias) / fit.scale;
    q = q > 0.0f ? q : 0.0f;
    q = q < top ? q : top;
    return (uint8_t)(int)((q + 0x1.8p23f) - 0x1.8p23f);
}

void qn_affine_encode(uint32_t bits, uint32_t group, const float *x, size_t n, uint8_t *codes,
                      float *scales, float *biases)
{
    assert(group && n % group == 0 && bits >= 1 && bits <= 8);
    float top = (float)((1u << bits) - 1u);
    for (size_t at = 0; at < n; at += group) {
        affine_fit fit = fit_affine(x + at, group, bits);
        for (size_t i = at; i < at + group; i++) codes[i] = affine_code(x[i], fit, top);
        scales[at / group] = fit.scale;
        biases[at / group] = fit.bias;
    }
}

static void affine_row(const qn_qspec *s, qn_dtype t, const float *x, uint32_t n_in, void *words,
                       void *scales, void *biases)
{
    uint8_t codes[MAX_GROUP];
    assert(s->group_size <= MAX_GROUP);
    for (uint32_t at = 0; at < n_in; at += s->group_size) {
        float scale, bias;
        qn_affine_encode(s->bits, s->group_size, x + at, s->group_size, codes, &scale, &bias);
        for (uint32_t i = 0; i < s->group_size; i++) qn_qcode_put(words, s->bits, at + i, codes[i]);
        store_scale(scales, at / s->group_size, t, scale);
        store_scale(biases, at / s->group_size, t, bias);
    }
}

/* max |x| over a group divided by the largest value of the element type, in type t. */
static float group_scale(const float *x, uint32_t n, float largest, qn_dtype t)
{
    float amax = 0.0f;
    for (uint32_t i = 0; i < n; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    return round_to(amax / largest, t);
}

/* The power of two nearest to s by its logarithm, or the next one where that would be under s and
 * the largest weight would not fit (MLX 0.32.4; before, it was the nearest). Stored as an E8M0
 * byte, *value is it in type t. The byte wraps for exponents under -127, as the reference's
 * conversion does. */
static uint8_t e8m0_scale(float s, qn_dtype t, float *value)
{
    int e = 0;
    if (isfinite(s) && s != 0.0f) {
        e = (int)rintf(round_to(log2f(s), t));
        if (ldexpf(1.0f, e) < s) e++;
    }
    *value = round_to(ldexpf(1.0f, e), t);
    return (uint8_t)(unsigned)(e + 127);
}

/* The first of the 16 E2M1 values that is nearest to q, differences rounded to type t: the
 * definition. NaN and infinity are equally far from all of them: code 0. */
static uint32_t e2m1_code_searched(float q, qn_dtype t)
{
    uint32_t best = 0;
    float best_distance = INFINITY;
    for (uint32_t c = 0; c < 16; c++) {
        float distance = fabsf(round_to(q - qn_e2m1_f32((uint8_t)c), t));
        if (distance < best_distance) {
            best = c;
            best_distance = distance;
        }
    }
    return best;
}

/* The same by thresholds where it is certain: up to 8 the two smallest differences are exact in
 * every type, so halves go to the first, the smaller magnitude. */
static uint32_t e2m1_code(float q, qn_dtype t)
{
    float a = fabsf(q);
    if (!(a <= 8.0f)) return e2m1_code_searched(q, t);
    int halves = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) +
                 (a > 5.0f);
    uint32_t code = (uint32_t)halves;
    return code && q < 0.0f ? code + 8 : code;
}

static void float_row(const qn_qspec *s, qn_dtype t, const float *x, uint32_t n_in, void *words,
                      uint8_t *scales)
{
    float largest = s->mode == QN_Q_MXFP8 ? 448.0f : 6.0f;
    for (uint32_t at = 0; at < n_in; at += s->group_size) {
        float scale = group_scale(x + at, s->group_size, largest, t);
        uint8_t *byte = scales + at / s->group_size;
        if (s->mode == QN_Q_NVFP4) {
            *byte = qn_f32_e4m3(scale);
            scale = round_to(qn_e4m3_f32(*byte), t);
        } else {
            *byte = e8m0_scale(scale, t, &scale);
        }
        for (uint32_t i = at; i < at + s->group_size; i++) {
            float q = round_to(x[i] / scale, t);
            uint32_t code =
                s->bits == 8 ? qn_f32_e4m3(q) : e2m1_code(q, s->mode == QN_Q_NVFP4 ? QN_F32 : t);
            qn_qcode_put(words, s->bits, i, code);
        }
    }
}

void qn_quantize_row(const qn_qspec *s, qn_dtype dtype, const float *x, uint32_t n_in, void *words,
                     void *scales, void *biases)
{
    assert(s->mode != QN_Q_NONE && n_in % s->group_size == 0);
    memset(words, 0, qn_qrow_bytes(s, n_in));
    if (s->mode == QN_Q_AFFINE) affine_row(s, dtype, x, n_in, words, scales, biases);
    else float_row(s, dtype, x, n_in, words, scales);
}
