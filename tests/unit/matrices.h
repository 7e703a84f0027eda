/* matrices.h - random matrices of every stored form, for tests of the matrix products.
 *
 * A test matrix owns its memory and describes it as a qn_matrix. Rows are random; the scales of
 * some groups are tiny, large, negative or zero. */
#ifndef TESTS_MATRICES_H
#define TESTS_MATRICES_H

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/quant.h"

typedef struct form { /* how a matrix is stored */
    const char *name;
    qn_qspec spec;
    qn_dtype dtype;
} form;

static const form forms[] = {
    {"2 bit g32", {QN_Q_AFFINE, 2, 32}, QN_BF16},   {"2 bit g64", {QN_Q_AFFINE, 2, 64}, QN_F16},
    {"2 bit g128", {QN_Q_AFFINE, 2, 128}, QN_F32},  {"3 bit g32", {QN_Q_AFFINE, 3, 32}, QN_F16},
    {"3 bit g64", {QN_Q_AFFINE, 3, 64}, QN_F32},    {"3 bit g128", {QN_Q_AFFINE, 3, 128}, QN_BF16},
    {"4 bit g32", {QN_Q_AFFINE, 4, 32}, QN_F32},    {"4 bit g64", {QN_Q_AFFINE, 4, 64}, QN_BF16},
    {"4 bit g128", {QN_Q_AFFINE, 4, 128}, QN_F16},  {"5 bit g32", {QN_Q_AFFINE, 5, 32}, QN_BF16},
    {"5 bit g64", {QN_Q_AFFINE, 5, 64}, QN_F16},    {"5 bit g128", {QN_Q_AFFINE, 5, 128}, QN_F32},
    {"6 bit g32", {QN_Q_AFFINE, 6, 32}, QN_F16},    {"6 bit g64", {QN_Q_AFFINE, 6, 64}, QN_F32},
    {"6 bit g128", {QN_Q_AFFINE, 6, 128}, QN_BF16}, {"8 bit g32", {QN_Q_AFFINE, 8, 32}, QN_F32},
    {"8 bit g64", {QN_Q_AFFINE, 8, 64}, QN_BF16},   {"8 bit g128", {QN_Q_AFFINE, 8, 128}, QN_F16},
    {"mxfp4", {QN_Q_MXFP4, 4, 32}, QN_BF16},        {"mxfp8", {QN_Q_MXFP8, 8, 32}, QN_BF16},
    {"nvfp4", {QN_Q_NVFP4, 4, 16}, QN_BF16},        {"float32", {QN_Q_NONE, 0, 0}, QN_F32},
    {"float16", {QN_Q_NONE, 0, 0}, QN_F16},         {"bfloat16", {QN_Q_NONE, 0, 0}, QN_BF16},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

static uint64_t rng_state = 0x9e3779b97f4a7c15u;

static inline uint64_t rng_next(void)
{
    uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Sum of four uniforms: a bell between -2 and 2. */
static inline float rng_bell(void)
{
    float sum = -2.0f;
    for (int i = 0; i < 4; i++) sum += (float)(rng_next() >> 40) * 0x1p-24f;
    return sum;
}

static inline void *rng_bytes(size_t n)
{
    uint8_t *p = malloc(n);
    assert(p);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(rng_next() >> 32);
    return p;
}

/* n floats of type t with standard deviation about 0.6 * size; one in 16 is 0, one in 16 is tiny.
 */
static inline void *rng_floats(qn_dtype t, size_t n, float size)
{
    float *f = malloc(n * sizeof *f);
    void *out = malloc(n * qn_dtype_size(t));
    assert(f && out);
    for (size_t i = 0; i < n; i++) {
        uint64_t kind = rng_next() >> 60;
        f[i] = kind == 0 ? 0.0f : rng_bell() * size * (kind == 1 ? 1e-4f : 1.0f);
    }
    qn_narrow(out, t, f, n);
    free(f);
    return out;
}

/* The E4M3 code 0x7f is NaN; quantizers never write it. */
static inline void replace_nans(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((p[i] & 0x7f) == 0x7f) p[i] ^= 1;
}

/* Bytes of scales that stay in the middle of their range. */
static inline void *rng_scale_bytes(qn_qmode mode, size_t n)
{
    uint8_t *p = rng_bytes(n);
    for (size_t i = 0; i < n; i++) {
        if (mode == QN_Q_NVFP4) p[i] = p[i] % 0x7f;
        else p[i] = (uint8_t)(p[i] % 64 ? 120 + p[i] % 10 : p[i] % 3); /* some near 2^-127 */
    }
    return p;
}

static inline qn_matrix matrix_new(const form *f, uint32_t n_experts, uint32_t n_out, uint32_t n_in)
{
    const size_t rows = (size_t)n_experts * n_out;
    qn_matrix m = {
        .spec = f->spec, .n_experts = n_experts, .n_out = n_out, .n_in = n_in, .dtype = f->dtype};
    if (f->spec.mode == QN_Q_NONE) {
        m.weight = rng_floats(f->dtype, rows * n_in, 0.1f);
        return m;
    }
    const size_t groups = rows * (n_in / f->spec.group_size);
    m.weight = rng_bytes(rows * qn_qrow_bytes(&f->spec, n_in));
    if (f->spec.mode == QN_Q_AFFINE) {
        m.scales = rng_floats(f->dtype, groups, 0.02f);
        m.biases = rng_floats(f->dtype, groups, 0.1f);
    } else {
        m.scales = rng_scale_bytes(f->spec.mode, groups);
        if (f->spec.mode == QN_Q_MXFP8) replace_nans((uint8_t *)m.weight, rows * n_in);
    }
    return m;
}

static inline void matrix_free(qn_matrix *m)
{
    free((void *)m->weight);
    free((void *)m->scales);
    free((void *)m->biases);
}

/* Activations [rows, n_in]: row t is of kind t mod 6: bells of size 1; all zero; one value; huge
 * values; groups from denormal to large; one outlier. */
static inline float *acts_new(uint32_t rows, uint32_t n_in)
{
    float *x = malloc((size_t)rows * n_in * sizeof *x);
    assert(x);
    for (uint32_t t = 0; t < rows; t++) {
        float *r = x + (size_t)t * n_in;
        for (uint32_t k = 0; k < n_in; k++) {
            switch (t % 6) {
            case 1: r[k] = 0.0f; break;
            case 2: r[k] = k == t * 7 % n_in ? -1.5f : 0.0f; break;
            case 3: r[k] = rng_bell() * 1e30f; break;
            case 4: r[k] = rng_bell() * exp2f((float)(int)(k / 16 * 29 % 160) - 150.0f); break;
            case 5: r[k] = k == 3 ? 1e4f : rng_bell() * 0.1f; break;
            default: r[k] = rng_bell();
            }
        }
    }
    return x;
}

#endif
