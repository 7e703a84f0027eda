/* elementwise_body.h - the functions of elementwise.h, compiled once per instruction set.
 *
 * The including file has included v16_ISA.h and defines QN_ISA(name) as name_ISA.
 */
#include <math.h>

#include "compute/cpu/elementwise.h"
#include "compute/cpu/v16_math.h"

/* Lanes of a sum: 4 vectors in turn, so that four additions are under way at once. */
enum { SUM_VECS = 4 };

V16_INLINE v16 load_upto(const float *x, uint32_t i, uint32_t n)
{
    return n - i >= 16 ? v16_load(x + i) : v16_load_n(x + i, n - i);
}

V16_INLINE void store_upto(float *y, v16 v, uint32_t i, uint32_t n)
{
    if (n - i >= 16) v16_store(y + i, v);
    else v16_store_n(y + i, v, n - i);
}

V16_INLINE float sum_lanes(const v16 s[SUM_VECS])
{
    return v16_sum(v16_add(v16_add(s[0], s[1]), v16_add(s[2], s[3])));
}

static float sum_row(const float *x, uint32_t n)
{
    v16 s[SUM_VECS] = {v16_set(0), v16_set(0), v16_set(0), v16_set(0)};
    uint32_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (uint32_t j = 0; j < SUM_VECS; j++) s[j] = v16_add(v16_load(x + i + 16 * j), s[j]);
    for (uint32_t j = 0; i < n; i += 16, j++) s[j] = v16_add(load_upto(x, i, n), s[j]);
    return sum_lanes(s);
}

/* sum (x - mean)^2 */
static float sum_squares(const float *x, uint32_t n, float mean)
{
    v16 s[SUM_VECS] = {v16_set(0), v16_set(0), v16_set(0), v16_set(0)};
    v16 m = v16_set(mean);
    uint32_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (uint32_t j = 0; j < SUM_VECS; j++) {
            v16 c = v16_sub(v16_load(x + i + 16 * j), m);
            s[j] = v16_fma(c, c, s[j]);
        }
    for (uint32_t j = 0; i < n; i += 16, j++) {
        v16 c = v16_keep(v16_sub(load_upto(x, i, n), m), 0, (int)(n - i), v16_set(0));
        s[j] = v16_fma(c, c, s[j]);
    }
    return sum_lanes(s);
}

/* 1/sqrt(sum/n + eps) */
static float inverse_root(float sum, uint32_t n, float eps)
{
    return 1.0f / sqrtf(sum * (1.0f / (float)n) + eps);
}

void QN_ISA(qn_rms_norm)(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    v16 s = v16_set(inverse_root(sum_squares(x, n, 0.0f), n, eps));
    for (uint32_t i = 0; i < n; i += 16) {
        v16 v = v16_mul(load_upto(x, i, n), s);
        if (w) v = v16_mul(v, load_upto(w, i, n));
        store_upto(y, v, i, n);
    }
}

void QN_ISA(qn_layer_norm)(float *y, const float *x, const float *w, const float *b, uint32_t n,
                           float eps)
{
    float mean = sum_row(x, n) * (1.0f / (float)n);
    v16 m = v16_set(mean), s = v16_set(inverse_root(sum_squares(x, n, mean), n, eps));
    for (uint32_t i = 0; i < n; i += 16) {
        v16 v = v16_mul(v16_sub(load_upto(x, i, n), m), s);
        if (w) v = v16_mul(v, load_upto(w, i, n));
        if (b) v = v16_add(v, load_upto(b, i, n));
        store_upto(y, v, i, n);
    }
}

V16_INLINE void act_row(float *y, const float *x, const float *up, uint32_t n, const qn_act kind)
{
    for (uint32_t i = 0; i < n; i += 16) {
        v16 v = v16_act(load_upto(x, i, n), kind);
        if (up) v = v16_mul(v, load_upto(up, i, n));
        store_upto(y, v, i, n);
    }
}

/* One loop per kind, so that the choice is made outside it. */
V16_INLINE void act_kind(float *y, const float *x, const float *up, uint32_t n, qn_act kind)
{
    switch (kind) {
    case QN_SILU: act_row(y, x, up, n, QN_SILU); return;
    case QN_GELU: act_row(y, x, up, n, QN_GELU); return;
    case QN_GELU_TANH: act_row(y, x, up, n, QN_GELU_TANH); return;
    case QN_RELU2: act_row(y, x, up, n, QN_RELU2); return;
    case QN_SIGMOID: act_row(y, x, up, n, QN_SIGMOID); return;
    }
    QN_UNREACHABLE();
}

void QN_ISA(qn_act)(float *y, const float *x, uint32_t n, qn_act kind)
{
    act_kind(y, x, NULL, n, kind);
}

void QN_ISA(qn_glu)(float *y, const float *gate, const float *up, uint32_t n, qn_act kind)
{
    act_kind(y, gate, up, n, kind);
}

void QN_ISA(qn_softcap)(float *y, const float *x, uint32_t n, float cap)
{
    v16 c = v16_set(cap);
    for (uint32_t i = 0; i < n; i += 16)
        store_upto(y, v16_mul(v16_tanh(v16_div(load_upto(x, i, n), c)), c), i, n);
}
