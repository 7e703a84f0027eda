/* elementwise.c - operations that treat each element alone. */
#include <string.h>

#include "compute/cpu/cpu.h"
#include "compute/cpu/kernels.h"

typedef struct binary {
    qn_tensor y, a, b;
    bool one_row; /* b has one row, used for all */
    float s;
    qn_act kind;
    const qn_cpu_kernels *k;
} binary;

static void check_same(qn_tensor a, qn_tensor b) { qn_check(a.rows == b.rows && a.cols == b.cols); }

static void act_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const binary *o = arg;
    for (uint32_t r = r0; r < r1; r++)
        o->k->act(qn_cpu_row(o->y, r), qn_cpu_row(o->a, r), o->a.cols, o->kind);
}

qn_tensor qn_cpu_act(qn_run *r, qn_tensor x, qn_act kind)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    binary o = {.y = qn_cpu_take(c, x.rows, x.cols), .a = x, .kind = kind, .k = c->cpu->k};
    qn_cpu_rows(c, act_rows, &o, x.rows, x.cols);
    return o.y;
}

static void glu_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const binary *o = arg;
    for (uint32_t r = r0; r < r1; r++)
        o->k->glu(qn_cpu_row(o->y, r), qn_cpu_row(o->a, r), qn_cpu_row(o->b, r), o->a.cols,
                  o->kind);
}

qn_tensor qn_cpu_glu(qn_run *r, qn_tensor gate, qn_tensor up, qn_act kind)
{
    check_same(gate, up);
    qn_cpu_run *c = (qn_cpu_run *)r;
    binary o = {.y = qn_cpu_take(c, gate.rows, gate.cols), .a = gate, .b = up, .kind = kind,
                .k = c->cpu->k};
    qn_cpu_rows(c, glu_rows, &o, gate.rows, gate.cols);
    return o.y;
}

static void softcap_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const binary *o = arg;
    for (uint32_t r = r0; r < r1; r++)
        o->k->softcap(qn_cpu_row(o->y, r), qn_cpu_row(o->a, r), o->a.cols, o->s);
}

qn_tensor qn_cpu_softcap(qn_run *r, qn_tensor x, float cap)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    binary o = {.y = qn_cpu_take(c, x.rows, x.cols), .a = x, .s = cap, .k = c->cpu->k};
    qn_cpu_rows(c, softcap_rows, &o, x.rows, x.cols);
    return o.y;
}

/* The plain operations round once per element, so the compiler may vectorize them as it likes. */
static void add_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const binary *o = arg;
    for (uint32_t r = r0; r < r1; r++) {
        float *y = qn_cpu_row(o->y, r);
        const float *a = qn_cpu_row(o->a, r), *b = qn_cpu_row(o->b, o->one_row ? 0 : r);
        for (uint32_t i = 0; i < o->a.cols; i++) y[i] = a[i] + b[i];
    }
}

static void mul_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const binary *o = arg;
    for (uint32_t r = r0; r < r1; r++) {
        float *y = qn_cpu_row(o->y, r);
        const float *a = qn_cpu_row(o->a, r), *b = qn_cpu_row(o->b, o->one_row ? 0 : r);
        for (uint32_t i = 0; i < o->a.cols; i++) y[i] = a[i] * b[i];
    }
}

static qn_tensor with_rows(qn_run *r, qn_tensor a, qn_tensor b, qn_cpu_rows_fn fn)
{
    qn_check(a.cols == b.cols && (b.rows == a.rows || b.rows == 1));
    qn_cpu_run *c = (qn_cpu_run *)r;
    binary o = {.y = qn_cpu_take(c, a.rows, a.cols), .a = a, .b = b, .one_row = b.rows == 1};
    qn_cpu_rows(c, fn, &o, a.rows, a.cols);
    return o.y;
}

qn_tensor qn_cpu_add(qn_run *r, qn_tensor a, qn_tensor b) { return with_rows(r, a, b, add_rows); }
qn_tensor qn_cpu_mul(qn_run *r, qn_tensor a, qn_tensor b) { return with_rows(r, a, b, mul_rows); }

void qn_cpu_accumulate(qn_run *r, qn_tensor *x, qn_tensor y)
{
    check_same(*x, y);
    binary o = {.y = *x, .a = *x, .b = y};
    qn_cpu_rows((qn_cpu_run *)r, add_rows, &o, y.rows, y.cols);
}

static void scale_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const binary *o = arg;
    for (uint32_t r = r0; r < r1; r++) {
        float *y = qn_cpu_row(o->y, r);
        const float *a = qn_cpu_row(o->a, r);
        for (uint32_t i = 0; i < o->a.cols; i++) y[i] = a[i] * o->s;
    }
}

qn_tensor qn_cpu_scale(qn_run *r, qn_tensor x, float s)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    binary o = {.y = qn_cpu_take(c, x.rows, x.cols), .a = x, .s = s};
    qn_cpu_rows(c, scale_rows, &o, x.rows, x.cols);
    return o.y;
}

static void scale_each_row(const void *arg, uint32_t r0, uint32_t r1)
{
    const binary *o = arg;
    for (uint32_t r = r0; r < r1; r++) {
        float *y = qn_cpu_row(o->y, r), s = qn_cpu_row(o->b, r)[0];
        const float *a = qn_cpu_row(o->a, r);
        for (uint32_t i = 0; i < o->a.cols; i++) y[i] = a[i] * s;
    }
}

qn_tensor qn_cpu_mul_rows(qn_run *r, qn_tensor x, qn_tensor s)
{
    qn_check(s.rows == x.rows && s.cols == 1);
    qn_cpu_run *c = (qn_cpu_run *)r;
    binary o = {.y = qn_cpu_take(c, x.rows, x.cols), .a = x, .b = s};
    qn_cpu_rows(c, scale_each_row, &o, x.rows, x.cols);
    return o.y;
}

typedef struct pos_job {
    qn_tensor y, x;
    const uint32_t *pos; /* [T] */
    qn_pos_scale how;
} pos_job;

static void scale_positions(const void *arg, uint32_t r0, uint32_t r1)
{
    const pos_job *j = arg;
    for (uint32_t r = r0; r < r1; r++) {
        float *y = qn_cpu_row(j->y, r), s = qn_pos_factor(&j->how, j->pos[r]);
        const float *x = qn_cpu_row(j->x, r);
        for (uint32_t i = 0; i < j->x.cols; i++) y[i] = x[i] * s;
    }
}

qn_tensor qn_cpu_scale_by_pos(qn_run *r, qn_tensor x, const qn_pos_scale *how)
{
    qn_check(x.rows == r->batch->n_tokens);
    qn_cpu_run *c = (qn_cpu_run *)r;
    pos_job j = {qn_cpu_take(c, x.rows, x.cols), x, r->batch->pos, *how};
    qn_cpu_rows(c, scale_positions, &j, x.rows, x.cols);
    return j.y;
}

typedef struct pick_job {
    qn_tensor y, x, tail;
    uint32_t d, from, n;
} pick_job;

static void pick_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const pick_job *j = arg;
    for (uint32_t r = r0; r < r1; r++) {
        float *y = qn_cpu_row(j->y, r);
        for (uint32_t c = 0; c < j->x.cols; c += j->d) {
            memcpy(y, qn_cpu_row(j->x, r) + c + j->from, j->n * sizeof *y);
            y += j->n;
            if (j->tail.cols) memcpy(y, qn_cpu_row(j->tail, r), j->tail.cols * sizeof *y);
            y += j->tail.cols;
        }
    }
}

qn_tensor qn_cpu_head_part(qn_run *r, qn_tensor x, uint32_t d, uint32_t from, uint32_t n, qn_tensor tail)
{
    qn_check(n && from <= d && n <= d - from && x.cols % d == 0);
    qn_check(!tail.addr == !tail.cols && (!tail.addr || tail.rows == x.rows));
    qn_cpu_run *c = (qn_cpu_run *)r;
    pick_job j = {qn_cpu_take(c, x.rows, x.cols / d * (n + tail.cols)), x, tail, d, from, n};
    qn_cpu_rows(c, pick_rows, &j, x.rows, j.y.cols);
    return j.y;
}

/* Everything is float32 already. */
qn_tensor qn_cpu_widen(qn_run *r, qn_tensor x)
{
    (void)r;
    return x;
}

qn_tensor qn_cpu_cast_like(qn_run *r, qn_tensor x, qn_tensor like)
{
    (void)r;
    (void)like;
    return x;
}
