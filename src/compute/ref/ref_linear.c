/* ref_linear.c - products of activations with matrices, and embedding rows.
 *
 * The matrices of one call share the widened activations; all blocks of outputs of all matrices are
 * one task of the pool.
 */
#include <string.h>

#include "compute/ref/ref.h"

enum { MAX_PRODUCTS = 16 }; /* matrices of one call */

typedef struct task {
    qn_ref_run *run;
    size_t n;
    qn_ref_mm products[MAX_PRODUCTS];
    uint32_t part0[MAX_PRODUCTS + 1]; /* first block of each product */
} task;

static void product_part(void *arg, uint32_t part, uint32_t thread)
{
    const task *t = arg;
    size_t i = 0;
    while (part >= t->part0[i + 1]) i++;
    const qn_ref_kernels *k = t->run->ref->k;
    k->mm(&t->products[i], (part - t->part0[i]) * k->block, qn_ref_thread(t->run, thread));
}

const float *qn_ref_widen_rows(qn_ref_run *r, qn_tensor x)
{
    if (x.dtype == QN_F32 && x.ld == x.cols) return (const float *)(void *)qn_ref_at(x, 0, 0);
    float *wide = qn_ref_bytes(r, (size_t)x.rows * x.cols * sizeof *wide);
    for (uint32_t i = 0; i < x.rows && !r->measures; i++)
        r->ref->k->widen(wide + (size_t)i * x.cols, qn_ref_at(x, i, 0), x.dtype, x.cols);
    return wide;
}

/* Type of the products and sums: affine and dense weights take part in the promotion, the fp modes
 * follow the activations. */
qn_dtype qn_ref_chain_type(const qn_matrix *m, qn_dtype x)
{
    bool fp = m->spec.mode != QN_Q_NONE && m->spec.mode != QN_Q_AFFINE;
    return fp ? x : qn_ref_promote(x, m->dtype);
}

qn_matrix qn_ref_matrix_of(const qn_matrix *stack, uint32_t i)
{
    qn_matrix one = *stack;
    bool dense = stack->spec.mode == QN_Q_NONE, affine = stack->spec.mode == QN_Q_AFFINE;
    size_t row = dense ? stack->n_in * qn_dtype_size(stack->dtype)
                       : qn_qrow_bytes(&stack->spec, stack->n_in);
    size_t at = (size_t)i * stack->n_out;
    one.n_experts = 1;
    one.weight = (const uint8_t *)stack->weight + at * row;
    if (dense) return one;
    size_t groups = stack->n_in / stack->spec.group_size * (affine ? qn_dtype_size(stack->dtype) : 1);
    one.scales = (const uint8_t *)stack->scales + at * groups;
    if (affine) one.biases = (const uint8_t *)stack->biases + at * groups;
    return one;
}

static qn_ref_mm make_product(qn_ref_run *r, const qn_linear *l, qn_tensor x, const float *wide,
                              qn_tensor *y)
{
    const qn_matrix *m = &l->w->m;
    qn_check(x.cols == m->n_in);
    qn_dtype type = qn_ref_chain_type(m, x.dtype);
    qn_dtype y_type = l->bias.addr ? qn_ref_promote(type, l->bias.dtype) : type;
    *y = qn_ref_take(r, x.rows, m->n_out, y_type);
    return (qn_ref_mm){
        .m = m,
        .x = wide,
        .bias = qn_ref_vector(r, l->bias, m->n_out),
        .n_rows = x.rows,
        .type = type,
        .y_type = y_type,
        .y = qn_ref_at(*y, 0, 0),
        .y_ld = y->ld,
    };
}

void qn_ref_linear(qn_run *r, size_t n, qn_tensor *y, qn_tensor x, const qn_linear *const *w)
{
    qn_ref_run *run = (qn_ref_run *)(void *)r;
    uint32_t block = run->ref->k->block;
    qn_check(n && n <= MAX_PRODUCTS);
    task t = {.run = run, .n = n};
    const float *wide = qn_ref_widen_rows(run, x);
    for (size_t i = 0; i < n; i++) {
        t.products[i] = make_product(run, w[i], x, wide, &y[i]);
        t.part0[i + 1] = t.part0[i] + (w[i]->w->m.n_out + block - 1) / block;
    }
    if (x.rows) qn_ref_parts(run, product_part, &t, t.part0[n]);
}

/* ---- embedding ---- */

typedef struct embed_job {
    const qn_ref *ref;
    const qn_matrix *m;
    const uint32_t *ids;
    qn_tensor y;
    float *wide; /* [T, n_in] */
} embed_job;

static void embed_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const embed_job *j = arg;
    for (uint32_t r = r0; r < r1; r++) {
        float *row = j->wide + (size_t)r * j->m->n_in;
        qn_check(j->ids[r] < j->m->n_out);
        qn_matrix_row(j->m, j->ids[r], true, row);
        j->ref->k->narrow(qn_ref_at(j->y, r, 0), j->y.dtype, row, j->m->n_in);
    }
}

qn_tensor qn_ref_embed(qn_run *r, const qn_weight *w)
{
    qn_ref_run *run = (qn_ref_run *)(void *)r;
    const qn_matrix *m = &w->m;
    embed_job j = {.ref = run->ref, .m = m, .ids = r->batch->ids};
    j.y = qn_ref_take(run, r->batch->n_tokens, m->n_in, m->dtype);
    size_t to = run->used;
    j.wide = qn_ref_bytes(run, (size_t)j.y.rows * m->n_in * sizeof(float));
    qn_ref_rows(run, embed_rows, &j, j.y.rows, j.y.cols);
    run->used = to;
    for (uint32_t i = 0; i < r->batch->n_items; i++) {
        const qn_item *it = &r->batch->items[i];
        for (uint32_t t = 0; it->given && t < it->n_new; t++) {
            run->ref->k->narrow(qn_ref_at(j.y, it->row0 + t, 0), j.y.dtype,
                                it->given + (size_t)t * m->n_in, m->n_in);
        }
    }
    return j.y;
}
