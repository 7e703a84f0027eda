/* latent.c - latent attention (MLA) in the absorbed form, for any number of new tokens: queries are
 * brought to the latent by each head's own matrix, attend.c sums latents, and another matrix brings
 * the sums to the heads' results. Keys and values of the heads are never made, and a row's bits do
 * not depend on how many rows a call has.
 */
#include <string.h>

#include "compute/cpu/cpu.h"
#include "compute/cpu/kernels.h"
#include "compute/cpu/kv_layout.h"
#include "compute/cpu/weights.h"

enum { PARTS_PER_THREAD = 4 }; /* parts of a task, for balance */

/* y[t][h] = W[h] x[t][h] for every head: runs of n_in columns of x, n_out of y. */
typedef struct heads_task {
    qn_cpu_run *run;
    const qn_panels *w;          /* one matrix per head */
    qn_tensor x, y;
    uint32_t x_step, y_step;     /* columns from one head to the next */
    uint32_t parts_per_head;
    qn_qacts *acts;              /* [H]; NULL: float activations */
} heads_task;

static const float *head_of(const heads_task *t, uint32_t h)
{
    return qn_cpu_row(t->x, 0) + (size_t)h * t->x_step;
}

static void quantize_part(void *arg, uint32_t h, uint32_t thread)
{
    (void)thread;
    const heads_task *t = arg;
    t->run->cpu->k->qacts(&t->acts[h], head_of(t, h), t->x.ld, 0, t->x.rows);
}

static void multiply_part(void *arg, uint32_t part, uint32_t thread)
{
    const heads_task *t = arg;
    const qn_cpu_kernels *k = t->run->cpu->k;
    uint32_t h = part / t->parts_per_head;
    uint64_t i = part % t->parts_per_head;
    qn_panels w = *t->w;
    uint32_t p0 = (uint32_t)(w.n_panels * i / t->parts_per_head);
    uint32_t p1 = (uint32_t)(w.n_panels * (i + 1) / t->parts_per_head);
    if (p0 == p1) return;
    w.data += h * w.expert_bytes;
    float *y = qn_cpu_row(t->y, 0) + (size_t)h * t->y_step;
    void *scratch = qn_cpu_thread(t->run, thread);
    if (t->acts) k->qmm(y, t->y.ld, &w, &t->acts[h], p0, p1, scratch);
    else k->dmm(y, t->y.ld, &w, head_of(t, h), t->x.ld, t->x.rows, p0, p1, scratch);
}

static void multiply_heads(heads_task *t)
{
    const uint32_t n_heads = t->w->n_experts, threads = qn_pool_threads(t->run->cpu->pool);
    const size_t mark = t->run->used;
    qn_check(t->run->need.thread >= QN_MM_SCRATCH);
    if (t->w->kind == QN_PANEL_CODES) {
        t->acts = qn_cpu_bytes(t->run, n_heads * sizeof *t->acts);
        for (uint32_t h = 0; h < n_heads; h++) {
            qn_qacts acts;
            size_t bytes = qn_qacts_init(&acts, t->run->cpu->act, t->x.rows, t->w->n_in,
                                         t->w->spec.group_size);
            void *at = qn_cpu_bytes(t->run, bytes);
            if (t->run->measures) continue;
            qn_qacts_place(&acts, at);
            t->acts[h] = acts;
        }
        qn_cpu_parts(t->run, quantize_part, t, n_heads);
    }
    t->parts_per_head = threads * PARTS_PER_THREAD / n_heads + 1;
    qn_cpu_parts(t->run, multiply_part, t, n_heads * t->parts_per_head);
    t->run->used = mark;
}

/* The rotated parts of queries, `n` elements behind each head's first `from` columns. */
typedef struct rotated_job {
    qn_tensor q, y;
    uint32_t n_heads, from, to, n;
} rotated_job;

static void copy_rotated(const void *arg, uint32_t r0, uint32_t r1)
{
    const rotated_job *j = arg;
    for (uint32_t r = r0; r < r1; r++) {
        const float *q = qn_cpu_row(j->q, r) + j->from;
        float *y = qn_cpu_row(j->y, r) + j->to;
        for (uint32_t h = 0; h < j->n_heads; h++)
            memcpy(y + (size_t)h * (j->to + j->n), q + (size_t)h * (j->from + j->n), j->n * sizeof *y);
    }
}

/* Queries as attend.c reads them over a latent layer: [T, H*(Dk+Dv)]. */
static qn_tensor absorb(qn_cpu_run *run, qn_tensor q, const qn_latent *a, const qn_kv_layer *l)
{
    const qn_panels *w = &a->embed->panels;
    qn_tensor y = qn_cpu_take(run, q.rows, a->n_heads * (l->d_k + l->d_v));
    qn_check(w->n_experts == a->n_heads && w->n_out == l->d_k);
    qn_check(q.cols == a->n_heads * (w->n_in + l->d_v));
    heads_task t = {.run = run, .w = w, .x = q, .y = y,
                    .x_step = w->n_in + l->d_v, .y_step = l->d_k + l->d_v};
    multiply_heads(&t);
    rotated_job j = {q, y, a->n_heads, w->n_in, l->d_k, l->d_v};
    qn_cpu_rows(run, copy_rotated, &j, q.rows, a->n_heads * l->d_v);
    return y;
}

qn_tensor qn_cpu_attend_latent(qn_run *r, qn_tensor q, const qn_latent *a)
{
    qn_cpu_run *run = (qn_cpu_run *)(void *)r;
    qn_check(a->layer < r->kv->spec.n_layers);
    const qn_kv_layer *l = &r->kv->spec.layers[a->layer];
    const qn_panels *w = &a->unembed->panels;
    qn_check(l->latent && w->n_experts == a->n_heads && w->n_in == l->d_k);
    qn_tensor y = qn_cpu_take(run, q.rows, a->n_heads * w->n_out);
    const size_t mark = run->used;
    const qn_attend sums = {.layer = a->layer, .n_heads = a->n_heads, .scale = a->scale};
    qn_tensor latents = qn_cpu_attend(r, absorb(run, q, a, l), &sums);
    heads_task t = {.run = run, .w = w, .x = latents, .y = y, .x_step = l->d_k, .y_step = w->n_out};
    multiply_heads(&t);
    run->used = mark;
    return y;
}
