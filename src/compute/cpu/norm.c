/* norm.c - RMS norm and layer norm. One row (or head) is one reduction of fixed shape. */
#include "compute/cpu/cpu.h"
#include "compute/cpu/kernels.h"

typedef struct norm {
    qn_tensor y, x;
    const float *weight, *bias; /* NULL: absent */
    uint32_t width;
    float eps;
    const qn_cpu_kernels *k;
} norm;

static const float *vector_of(qn_tensor t, uint32_t cols)
{
    if (!t.addr) return NULL;
    qn_check(t.rows == 1 && t.cols == cols);
    return qn_cpu_row(t, 0);
}

static void rms_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const norm *o = arg;
    for (uint32_t r = r0; r < r1; r++) {
        float *y = qn_cpu_row(o->y, r);
        const float *x = qn_cpu_row(o->x, r);
        for (uint32_t c = 0; c < o->x.cols; c += o->width)
            o->k->rms_norm(y + c, x + c, o->weight, o->width, o->eps);
    }
}

qn_tensor qn_cpu_rms_norm(qn_run *r, qn_tensor x, qn_tensor weight, uint32_t width, float eps)
{
    qn_check(width && x.cols % width == 0);
    qn_cpu_run *c = (qn_cpu_run *)r;
    norm o = {qn_cpu_take(c, x.rows, x.cols), x, vector_of(weight, width), NULL, width, eps,
              c->cpu->k};
    qn_cpu_rows(c, rms_rows, &o, x.rows, x.cols);
    return o.y;
}

static void layer_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const norm *o = arg;
    for (uint32_t r = r0; r < r1; r++)
        o->k->layer_norm(qn_cpu_row(o->y, r), qn_cpu_row(o->x, r), o->weight, o->bias, o->width,
                         o->eps);
}

qn_tensor qn_cpu_layer_norm(qn_run *r, qn_tensor x, qn_tensor weight, qn_tensor bias, float eps)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    norm o = {qn_cpu_take(c, x.rows, x.cols), x, vector_of(weight, x.cols),
              vector_of(bias, x.cols), x.cols, eps, c->cpu->k};
    qn_cpu_rows(c, layer_rows, &o, x.rows, x.cols);
    return o.y;
}
