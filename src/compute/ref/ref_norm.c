/* ref_norm.c - RMS norm and layer norm: float32 sums, one element after the other. */
#include <math.h>

#include "compute/ref/ref.h"

enum { CHUNK = 256 }; /* elements rounded at a time */

typedef struct norm {
    const qn_ref_kernels *k;
    qn_tensor y, x;
    const float *weight, *bias; /* NULL: absent */
    uint32_t width;
    float eps;
} norm;

/* sum of (x - shift)^power over a run of n elements from column c0. */
static float sum_powers(const norm *o, uint32_t row, uint32_t c0, uint32_t n, float shift,
                        int power)
{
    float v[CHUNK], sum = 0.0f;
    for (uint32_t c = 0; c < n; c += CHUNK) {
        uint32_t m = n - c < CHUNK ? n - c : CHUNK;
        o->k->widen(v, qn_ref_at(o->x, row, c0 + c), o->x.dtype, m);
        for (uint32_t i = 0; i < m; i++) {
            float d = v[i] - shift;
            sum = sum + (power == 2 ? d * d : d);
        }
    }
    return sum;
}

/* y = r(r((x - shift)*s) * weight) + bias, rounded after each step. */
static void write_run(const norm *o, uint32_t row, uint32_t c0, float shift, float s)
{
    float v[CHUNK];
    qn_dtype t = o->y.dtype;
    for (uint32_t c = 0; c < o->width; c += CHUNK) {
        uint32_t m = o->width - c < CHUNK ? o->width - c : CHUNK;
        o->k->widen(v, qn_ref_at(o->x, row, c0 + c), o->x.dtype, m);
        for (uint32_t i = 0; i < m; i++) v[i] = (v[i] - shift) * s;
        if (o->weight) {
            o->k->round(v, t, m);
            for (uint32_t i = 0; i < m; i++) v[i] = v[i] * o->weight[c + i];
        }
        if (o->bias) {
            o->k->round(v, t, m);
            for (uint32_t i = 0; i < m; i++) v[i] = v[i] + o->bias[c + i];
        }
        o->k->narrow(qn_ref_at(o->y, row, c0 + c), t, v, m);
    }
}

static void rms_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const norm *o = arg;
    float per = (float)(1.0 / (double)o->width);
    for (uint32_t r = r0; r < r1; r++) {
        for (uint32_t c = 0; c < o->x.cols; c += o->width) {
            float mean = sum_powers(o, r, c, o->width, 0.0f, 2) * per;
            write_run(o, r, c, 0.0f, 1.0f / sqrtf(mean + o->eps));
        }
    }
}

static void layer_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const norm *o = arg;
    float per = (float)(1.0 / (double)o->width);
    for (uint32_t r = r0; r < r1; r++) {
        float mean = sum_powers(o, r, 0, o->width, 0.0f, 1) * per;
        float variance = sum_powers(o, r, 0, o->width, mean, 2) * per;
        write_run(o, r, 0, mean, 1.0f / sqrtf(variance + o->eps));
    }
}

static qn_tensor run_norm(qn_run *r, qn_tensor x, qn_tensor weight, qn_tensor bias, uint32_t width,
                          float eps, qn_ref_rows_fn fn)
{
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    qn_check(width && x.cols % width == 0);
    qn_dtype t = x.dtype;
    if (weight.addr) t = qn_ref_promote(t, weight.dtype);
    if (bias.addr) t = qn_ref_promote(t, bias.dtype);
    norm o = {
        .k = c->ref->k, .y = qn_ref_take(c, x.rows, x.cols, t), .x = x, .width = width, .eps = eps};
    size_t to = c->used;
    o.weight = qn_ref_vector(c, weight, width);
    o.bias = qn_ref_vector(c, bias, width);
    qn_ref_rows(c, fn, &o, x.rows, x.cols);
    c->used = to;
    return o.y;
}

qn_tensor qn_ref_rms_norm(qn_run *r, qn_tensor x, qn_tensor weight, uint32_t width, float eps)
{
    return run_norm(r, x, weight, (qn_tensor){0}, width, eps, rms_rows);
}

qn_tensor qn_ref_layer_norm(qn_run *r, qn_tensor x, qn_tensor weight, qn_tensor bias, float eps)
{
    return run_norm(r, x, weight, bias, x.cols, eps, layer_rows);
}
