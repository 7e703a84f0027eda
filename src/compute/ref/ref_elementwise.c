/* ref_elementwise.c - operations that treat each element alone. Types meet by promotion, and every
 * operation rounds once to the result's type. */
#include "compute/ref/ref.h"

enum { CHUNK = 256 }; /* elements widened at a time */

typedef enum binary_op { ADD, MUL } binary_op;

typedef struct job {
    const qn_ref *ref;
    qn_tensor y, a, b;
    binary_op op;
    qn_act act;
    float s;
} job;

/* ---- one operand ---- */

/* act(x) of n values of type t, in place. */
static void act_chunk(const qn_ref *ref, float *v, uint32_t n, qn_act kind, qn_dtype t)
{
    if (t == QN_F32 || t != ref->table_type) {
        for (uint32_t i = 0; i < n; i++) v[i] = qn_ref_act_of(v[i], kind, t);
        return;
    }
    const uint16_t *table = ref->act_table + ((size_t)kind << 16);
    uint16_t h[CHUNK];
    ref->k->narrow(h, t, v, n);
    for (uint32_t i = 0; i < n; i++) h[i] = table[h[i]];
    ref->k->widen(v, h, t, n);
}

typedef void (*chunk_fn)(const job *j, float *v, uint32_t n);

static void unary_rows(const job *j, uint32_t r0, uint32_t r1, chunk_fn fn)
{
    const qn_ref_kernels *k = j->ref->k;
    float v[CHUNK];
    for (uint32_t r = r0; r < r1; r++) {
        for (uint32_t c = 0; c < j->a.cols; c += CHUNK) {
            uint32_t n = j->a.cols - c < CHUNK ? j->a.cols - c : CHUNK;
            k->widen(v, qn_ref_at(j->a, r, c), j->a.dtype, n);
            fn(j, v, n);
            k->narrow(qn_ref_at(j->y, r, c), j->y.dtype, v, n);
        }
    }
}

static void act_values(const job *j, float *v, uint32_t n)
{
    act_chunk(j->ref, v, n, j->act, j->a.dtype);
}

static void scale_values(const job *j, float *v, uint32_t n)
{
    float s = qn_ref_round(j->s, j->a.dtype);
    for (uint32_t i = 0; i < n; i++) v[i] = v[i] * s;
}

static void softcap_values(const job *j, float *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) v[i] = qn_ref_softcap_of(v[i], j->s, j->a.dtype);
}

static void act_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    unary_rows(arg, r0, r1, act_values);
}
static void scale_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    unary_rows(arg, r0, r1, scale_values);
}

static void softcap_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    unary_rows(arg, r0, r1, softcap_values);
}

static qn_tensor unary(qn_run *r, qn_tensor x, job j, qn_ref_rows_fn fn)
{
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    j.ref = c->ref;
    j.a = x;
    j.y = qn_ref_take(c, x.rows, x.cols, x.dtype);
    qn_ref_rows(c, fn, &j, x.rows, x.cols);
    return j.y;
}

qn_tensor qn_ref_act(qn_run *r, qn_tensor x, qn_act kind)
{
    return unary(r, x, (job){.act = kind}, act_rows);
}
qn_tensor qn_ref_scale(qn_run *r, qn_tensor x, float s)
{
    return unary(r, x, (job){.s = s}, scale_rows);
}

qn_tensor qn_ref_softcap(qn_run *r, qn_tensor x, float cap)
{
    return unary(r, x, (job){.s = cap}, softcap_rows);
}

/* ---- two operands ---- */

static void combine(float *v, const float *b, uint32_t n, binary_op op)
{
    if (op == ADD)
        for (uint32_t i = 0; i < n; i++) v[i] = v[i] + b[i];
    else
        for (uint32_t i = 0; i < n; i++) v[i] = v[i] * b[i];
}

static void binary_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const job *j = arg;
    const qn_ref_kernels *k = j->ref->k;
    float v[CHUNK], b[CHUNK];
    for (uint32_t r = r0; r < r1; r++) {
        for (uint32_t c = 0; c < j->a.cols; c += CHUNK) {
            uint32_t n = j->a.cols - c < CHUNK ? j->a.cols - c : CHUNK;
            k->widen(v, qn_ref_at(j->a, r, c), j->a.dtype, n);
            k->widen(b, qn_ref_at(j->b, j->b.rows == 1 ? 0 : r, c), j->b.dtype, n);
            combine(v, b, n, j->op);
            k->narrow(qn_ref_at(j->y, r, c), j->y.dtype, v, n);
        }
    }
}

static qn_tensor binary(qn_run *r, qn_tensor a, qn_tensor b, binary_op op)
{
    qn_check(a.cols == b.cols && (b.rows == a.rows || b.rows == 1));
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    qn_dtype t = qn_ref_promote(a.dtype, b.dtype);
    job j = {.ref = c->ref, .y = qn_ref_take(c, a.rows, a.cols, t), .a = a, .b = b, .op = op};
    qn_ref_rows(c, binary_rows, &j, a.rows, a.cols);
    return j.y;
}

qn_tensor qn_ref_add(qn_run *r, qn_tensor a, qn_tensor b) { return binary(r, a, b, ADD); }
qn_tensor qn_ref_mul(qn_run *r, qn_tensor a, qn_tensor b) { return binary(r, a, b, MUL); }

static void glu_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const job *j = arg;
    const qn_ref_kernels *k = j->ref->k;
    float v[CHUNK], b[CHUNK];
    for (uint32_t r = r0; r < r1; r++) {
        for (uint32_t c = 0; c < j->a.cols; c += CHUNK) {
            uint32_t n = j->a.cols - c < CHUNK ? j->a.cols - c : CHUNK;
            k->widen(v, qn_ref_at(j->a, r, c), j->a.dtype, n);
            k->widen(b, qn_ref_at(j->b, r, c), j->b.dtype, n);
            act_chunk(j->ref, v, n, j->act, j->a.dtype);
            combine(v, b, n, MUL);
            k->narrow(qn_ref_at(j->y, r, c), j->y.dtype, v, n);
        }
    }
}

qn_tensor qn_ref_glu(qn_run *r, qn_tensor gate, qn_tensor up, qn_act kind)
{
    qn_check(gate.rows == up.rows && gate.cols == up.cols);
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    qn_dtype t = qn_ref_promote(gate.dtype, up.dtype);
    job j = {.ref = c->ref,
             .y = qn_ref_take(c, gate.rows, gate.cols, t),
             .a = gate,
             .b = up,
             .act = kind};
    qn_ref_rows(c, glu_rows, &j, gate.rows, gate.cols);
    return j.y;
}

/* x times one factor per row. */
static void mul_each_row(const void *arg, uint32_t r0, uint32_t r1)
{
    const job *j = arg;
    const qn_ref_kernels *k = j->ref->k;
    float v[CHUNK], s;
    for (uint32_t r = r0; r < r1; r++) {
        k->widen(&s, qn_ref_at(j->b, r, 0), j->b.dtype, 1);
        for (uint32_t c = 0; c < j->a.cols; c += CHUNK) {
            uint32_t n = j->a.cols - c < CHUNK ? j->a.cols - c : CHUNK;
            k->widen(v, qn_ref_at(j->a, r, c), j->a.dtype, n);
            for (uint32_t i = 0; i < n; i++) v[i] = v[i] * s;
            k->narrow(qn_ref_at(j->y, r, c), j->y.dtype, v, n);
        }
    }
}

qn_tensor qn_ref_mul_rows(qn_run *r, qn_tensor x, qn_tensor s)
{
    qn_check(s.rows == x.rows && s.cols == 1);
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    qn_dtype t = qn_ref_promote(x.dtype, s.dtype);
    job j = {.ref = c->ref, .y = qn_ref_take(c, x.rows, x.cols, t), .a = x, .b = s};
    qn_ref_rows(c, mul_each_row, &j, x.rows, x.cols);
    return j.y;
}

typedef struct pos_job {
    const qn_ref_kernels *k;
    qn_tensor y, x;
    const uint32_t *pos; /* [T] */
    qn_pos_scale how;
} pos_job;

/* The factors are float32, and the products are cast back. */
static void scale_positions(const void *arg, uint32_t r0, uint32_t r1)
{
    const pos_job *j = arg;
    float v[CHUNK];
    for (uint32_t r = r0; r < r1; r++) {
        const float s = qn_pos_factor(&j->how, j->pos[r]);
        for (uint32_t c = 0; c < j->x.cols; c += CHUNK) {
            uint32_t n = j->x.cols - c < CHUNK ? j->x.cols - c : CHUNK;
            j->k->widen(v, qn_ref_at(j->x, r, c), j->x.dtype, n);
            for (uint32_t i = 0; i < n; i++) v[i] = v[i] * s;
            j->k->narrow(qn_ref_at(j->y, r, c), j->y.dtype, v, n);
        }
    }
}

qn_tensor qn_ref_scale_by_pos(qn_run *r, qn_tensor x, const qn_pos_scale *how)
{
    qn_check(x.rows == r->batch->n_tokens);
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    pos_job j = {c->ref->k, qn_ref_take(c, x.rows, x.cols, x.dtype), x, r->batch->pos, *how};
    qn_ref_rows(c, scale_positions, &j, x.rows, x.cols);
    return j.y;
}

static void copy_values(const job *j, float *v, uint32_t n)
{
    (void)j;
    (void)v;
    (void)n; /* unary_rows rounds to the result's type */
}

static void copy_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    unary_rows(arg, r0, r1, copy_values);
}

static qn_tensor cast(qn_run *r, qn_tensor x, qn_dtype t)
{
    if (x.dtype == t) return x;
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    job j = {.ref = c->ref, .a = x, .y = qn_ref_take(c, x.rows, x.cols, t)};
    qn_ref_rows(c, copy_rows, &j, x.rows, x.cols);
    return j.y;
}

qn_tensor qn_ref_widen(qn_run *r, qn_tensor x) { return cast(r, x, QN_F32); }
qn_tensor qn_ref_cast_like(qn_run *r, qn_tensor x, qn_tensor like)
{
    return cast(r, x, like.dtype);
}

qn_tensor qn_ref_head_part(qn_run *r, qn_tensor x, uint32_t d, uint32_t from, uint32_t n, qn_tensor tail)
{
    qn_check(n && from <= d && n <= d - from && x.cols % d == 0);
    qn_check(!tail.addr == !tail.cols && (!tail.addr || (tail.rows == x.rows && tail.dtype == x.dtype)));
    qn_ref_run *run = (qn_ref_run *)(void *)r;
    const uint32_t width = n + tail.cols, size = (uint32_t)qn_dtype_size(x.dtype);
    qn_tensor y = qn_ref_take(run, x.rows, x.cols / d * width, x.dtype);
    for (uint32_t t = 0; t < x.rows && !run->measures; t++) {
        for (uint32_t h = 0; h < x.cols / d; h++) {
            __builtin_memcpy(qn_ref_at(y, t, h * width), qn_ref_at(x, t, h * d + from), n * size);
            if (tail.cols)
                __builtin_memcpy(qn_ref_at(y, t, h * width + n), qn_ref_at(tail, t, 0), tail.cols * size);
        }
    }
    return y;
}

/* Give x the wider type where it is: from the last element down, because the new ones take more
 * room and start at the same address. */
static void widen_in_place(const qn_ref_run *r, qn_tensor *x)
{
    qn_check(x->ld == x->cols); /* a view has neighbours in the room it would grow into */
    size_t n = r->measures ? 0 : (size_t)x->rows * x->cols;
    const uint16_t *from = (const uint16_t *)(void *)qn_ref_at(*x, 0, 0);
    float *to = (float *)(void *)qn_ref_at(*x, 0, 0);
    for (size_t i = n; i-- > 0;) {
        uint16_t h;
        __builtin_memcpy(&h, from + i, sizeof h);
        float f = x->dtype == QN_BF16 ? qn_bf16_f32(h) : qn_f16_f32(h);
        __builtin_memcpy(to + i, &f, sizeof f);
    }
    x->dtype = QN_F32;
}

void qn_ref_accumulate(qn_run *r, qn_tensor *x, qn_tensor y)
{
    qn_check(x->rows == y.rows && x->cols == y.cols);
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    if (qn_ref_promote(x->dtype, y.dtype) != x->dtype) widen_in_place(c, x);
    job j = {.ref = c->ref, .y = *x, .a = *x, .b = y, .op = ADD};
    qn_ref_rows(c, binary_rows, &j, y.rows, y.cols);
}
