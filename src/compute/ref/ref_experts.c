/* ref_experts.c - routing, products with stacks of expert matrices, and the weighted sum.
 *
 * MLX chooses experts with argpartition and sums their results in the order it leaves, so that
 * order is the order of the ids here.
 */
#include <math.h>
#include <string.h>

#include "compute/ref/ref.h"
#include "compute/ref/ref_select.h"

enum { MAX_PRODUCTS = 4, MAX_TOP_K = 64, CHUNK = 256 };

/* ---- routing ---- */

/* w / sum(w). The sum is float32 and rounded once (MLX 0.32.4; before, it was kept in T). */
static void normalize(float *w, uint32_t n, qn_dtype t)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) sum = sum + w[i];
    sum = qn_ref_round(sum, t);
    for (uint32_t i = 0; i < n; i++) w[i] = qn_ref_round(w[i] / sum, t);
}

/* The k largest of x [n], in the order that MLX leaves them in. */
static void largest(const float *x, uint32_t n, uint32_t k, uint32_t *idx)
{
    for (uint32_t i = 0; i < n; i++) idx[i] = i;
    qn_ref_argpartition(idx, x, n, n - k);
    memmove(idx, idx + n - k, k * sizeof *idx);
}

static void route_row(const qn_ref_kernels *k, const qn_router *how, float *x, uint32_t n,
                      uint32_t *idx, float *w, qn_dtype t)
{
    if (how->kind == QN_ROUTE_SOFTMAX_ALL) qn_ref_softmax(k, x, n, NULL, t);
    largest(x, n, how->k, idx);
    for (uint32_t j = 0; j < how->k; j++) w[j] = x[idx[j]];
    if (how->kind == QN_ROUTE_SOFTMAX_TOP) qn_ref_softmax(k, w, how->k, NULL, t);
    else if (how->normalize) normalize(w, how->k, t);
}

/* Experts outside the best groups count as 0. c [n], negated; idx: room for n_groups. */
static void drop_groups(const qn_router *how, float *c, uint32_t n, uint32_t *idx, float *score)
{
    const uint32_t width = n / how->n_groups, n_dropped = how->n_groups - how->n_kept;
    if (!n_dropped) return;
    for (uint32_t g = 0; g < how->n_groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t i = 0; i < width; i++) {
            float x = -c[g * width + i];
            if (x > first) second = first, first = x;
            else if (x > second) second = x;
        }
        score[g] = how->kind == QN_ROUTE_SIGMOID ? first + second : first;
        idx[g] = g;
    }
    qn_ref_argpartition(idx, score, how->n_groups, n_dropped - 1);
    for (uint32_t i = 0; i < n_dropped; i++)
        for (uint32_t e = 0; e < width; e++) c[idx[i] * width + e] = -0.0f;
}

/* The k experts with the largest of -c: MLX partitions the negated values and takes the first. */
static void choose(const qn_router *how, float *c, uint32_t n, uint32_t *idx, float *score)
{
    if (how->n_groups > 1) drop_groups(how, c, n, idx, score);
    for (uint32_t i = 0; i < n; i++) idx[i] = i;
    qn_ref_argpartition(idx, c, n, how->k - 1);
}

/* Sigmoids x [n] with selection by x + bias; area has 2n floats. */
static void route_sigmoid(const qn_router *how, float *x, const float *bias, uint32_t n,
                          uint32_t *idx, float *w, float *area)
{
    float *c = area, sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = qn_ref_sigmoid(x[i], QN_F32);
        c[i] = -(x[i] + bias[i]);
    }
    choose(how, c, n, idx, area + n);
    for (uint32_t j = 0; j < how->k; j++) sum = sum + (w[j] = x[idx[j]]);
    sum = sum + how->eps;
    for (uint32_t j = 0; j < how->k; j++) {
        if (how->k > 1 && how->normalize) w[j] = w[j] / sum;
        w[j] = w[j] * how->scale;
    }
}

/* Probabilities x [n] in T; one that was dropped weighs nothing. */
static void route_groups(const qn_ref_kernels *k, const qn_router *how, float *x, uint32_t n,
                         uint32_t *idx, float *w, float *area, qn_dtype t)
{
    float *c = area, scale = qn_ref_round(how->scale, t);
    qn_ref_softmax(k, x, n, NULL, t);
    for (uint32_t i = 0; i < n; i++) c[i] = -x[i];
    choose(how, c, n, idx, area + n);
    for (uint32_t j = 0; j < how->k; j++) w[j] = qn_ref_round(-c[idx[j]] * scale, t);
}

/* The largest of x [n] alone, weighed by its sigmoid; area has 2n floats. */
static void route_input(const qn_router *how, const float *x, uint32_t n, uint32_t *idx, float *w,
                        float *area)
{
    for (uint32_t i = 0; i < n; i++) area[i] = -x[i];
    choose(how, area, n, idx, area + n);
    w[0] = qn_ref_sigmoid(x[idx[0]], QN_F32);
}

qn_routing qn_ref_route(qn_run *r, qn_tensor logits, const qn_router *how)
{
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    const qn_ref_kernels *k = c->ref->k;
    const bool sigmoid = how->kind == QN_ROUTE_SIGMOID;
    const uint32_t n = logits.cols;
    const bool input = how->kind == QN_ROUTE_SIGMOID_INPUT;
    const qn_dtype type = sigmoid || input ? QN_F32 : logits.dtype;
    qn_check(how->k >= 1 && how->k <= MAX_TOP_K && how->k <= n && (!input || how->k == 1));
    qn_check(how->n_groups <= 1 || (n % how->n_groups == 0 && how->n_kept <= how->n_groups));
    qn_routing out = {.ids = qn_ref_take(c, logits.rows, how->k, QN_U32),
                      .weights = qn_ref_take(c, logits.rows, how->k, type)};
    size_t to = c->used;
    float *x = qn_ref_bytes(c, 3 * n * sizeof *x), w[MAX_TOP_K];
    uint32_t *idx = qn_ref_bytes(c, n * sizeof *idx);
    const float *bias = qn_ref_vector(c, how->bias, n);
    for (uint32_t t = 0; t < logits.rows && !c->measures; t++) {
        k->widen(x, qn_ref_at(logits, t, 0), logits.dtype, n);
        if (sigmoid) route_sigmoid(how, x, bias, n, idx, w, x + n);
        else if (input) route_input(how, x, n, idx, w, x + n);
        else if (how->kind == QN_ROUTE_SOFTMAX_GROUPS) route_groups(k, how, x, n, idx, w, x + n, type);
        else route_row(k, how, x, n, idx, w, logits.dtype);
        memcpy(qn_ref_at(out.ids, t, 0), idx, how->k * sizeof *idx);
        k->narrow(qn_ref_at(out.weights, t, 0), type, w, how->k);
    }
    c->used = to;
    return out;
}

/* ---- products ---- */

typedef struct expert_task {
    qn_ref_run *run;
    const float *x; /* [T or T*k, n_in] */
    uint32_t share; /* pairs that use the same row of x */
    qn_tensor ids;
    size_t n;
    const qn_linear *const *w;
    const float *bias[MAX_PRODUCTS]; /* [E, n_out] or NULL */
    qn_dtype type[MAX_PRODUCTS];     /* of the sums */
    qn_tensor *y;
    uint32_t blocks[MAX_PRODUCTS + 1]; /* first block of each product; the last: of all */
} expert_task;

/* One block of outputs of one pair. */
static void pair_part(void *arg, uint32_t part, uint32_t thread)
{
    const expert_task *t = arg;
    const qn_ref_kernels *k = t->run->ref->k;
    uint32_t pair = part / t->blocks[t->n], block = part % t->blocks[t->n], i = 0, e;
    while (block >= t->blocks[i + 1]) i++;
    const qn_matrix *stack = &t->w[i]->w->m;
    memcpy(&e, qn_ref_at(t->ids, pair / t->ids.cols, pair % t->ids.cols), sizeof e);
    qn_check(e < stack->n_experts);
    qn_matrix m = qn_ref_matrix_of(stack, e);
    qn_ref_mm job = {
        .m = &m,
        .x = t->x + (size_t)(pair / t->share) * m.n_in,
        .bias = t->bias[i] ? t->bias[i] + (size_t)e * m.n_out : NULL,
        .round_first = true, /* the bias is an addition of its own */
        .n_rows = 1,
        .type = t->type[i],
        .y_type = t->y[i].dtype,
        .y = qn_ref_at(t->y[i], pair, 0),
        .y_ld = t->y[i].ld,
    };
    k->mm(&job, (block - t->blocks[i]) * k->block, qn_ref_thread(t->run, thread));
}

/* The biases of all experts as float32. */
static const float *widen_biases(qn_ref_run *r, qn_tensor bias)
{
    return bias.addr ? qn_ref_widen_rows(r, bias) : NULL;
}

void qn_ref_expert_linear(qn_run *r, size_t n, qn_tensor *y, qn_tensor x, qn_tensor ids,
                          const qn_linear *const *w)
{
    qn_ref_run *run = (qn_ref_run *)(void *)r;
    uint32_t block = run->ref->k->block, n_pairs = ids.rows * ids.cols;
    qn_check(n && n <= MAX_PRODUCTS && ids.dtype == QN_U32);
    qn_check(x.rows == ids.rows || x.rows == n_pairs);
    expert_task t = {.run = run,
                     .x = qn_ref_widen_rows(run, x),
                     .ids = ids,
                     .n = n,
                     .w = w,
                     .y = y,
                     .share = x.rows == ids.rows ? ids.cols : 1};
    for (size_t i = 0; i < n; i++) {
        const qn_matrix *m = &w[i]->w->m;
        qn_check(m->n_in == x.cols);
        t.type[i] = qn_ref_chain_type(m, x.dtype);
        t.bias[i] = widen_biases(run, w[i]->bias);
        qn_dtype y_type = t.bias[i] ? qn_ref_promote(t.type[i], w[i]->bias.dtype) : t.type[i];
        y[i] = qn_ref_take(run, n_pairs, m->n_out, y_type);
        t.blocks[i + 1] = t.blocks[i] + (m->n_out + block - 1) / block;
    }
    qn_ref_parts(run, pair_part, &t, n_pairs * t.blocks[n]);
}

/* ---- the weighted sum ---- */

typedef struct combine_job {
    const qn_ref_kernels *k;
    qn_tensor y, w, out;
    qn_dtype type; /* of the products, and of the sum once it is complete */
} combine_job;

static void combine_chunk(const combine_job *j, uint32_t row, uint32_t c, uint32_t n)
{
    float sum[CHUNK] = {0}, v[CHUNK], w[MAX_TOP_K];
    j->k->widen(w, qn_ref_at(j->w, row, 0), j->w.dtype, j->w.cols);
    for (uint32_t s = 0; s < j->w.cols; s++) {
        j->k->widen(v, qn_ref_at(j->y, row * j->w.cols + s, c), j->y.dtype, n);
        for (uint32_t i = 0; i < n; i++) v[i] = v[i] * w[s];
        j->k->round(v, j->type, n);
        for (uint32_t i = 0; i < n; i++) sum[i] = sum[i] + v[i];
    }
    j->k->round(sum, j->type, n);
    j->k->narrow(qn_ref_at(j->out, row, c), j->out.dtype, sum, n);
}

static void combine_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const combine_job *j = arg;
    for (uint32_t r = r0; r < r1; r++)
        for (uint32_t c = 0; c < j->out.cols; c += CHUNK)
            combine_chunk(j, r, c, j->out.cols - c < CHUNK ? j->out.cols - c : CHUNK);
}

qn_tensor qn_ref_combine(qn_run *r, qn_tensor y, qn_tensor weights)
{
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    qn_check(y.rows == weights.rows * weights.cols && weights.cols <= MAX_TOP_K);
    combine_job j = {c->ref->k, y, weights, qn_ref_take(c, weights.rows, y.cols, y.dtype),
                     qn_ref_promote(y.dtype, weights.dtype)};
    qn_ref_rows(c, combine_rows, &j, weights.rows, y.cols * weights.cols);
    return j.out;
}
