/* linear.c - products of activations with matrices, and embedding rows.
 *
 * The matrices of one call share the preparation of x: activations are quantized once per distinct
 * group size, then all panels of all matrices are one task of the pool. Work is divided over
 * outputs only, so that neither threads nor parts can change a sum.
 */
#include <string.h>

#include "compute/cpu/cpu.h"
#include "compute/cpu/kernels.h"
#include "compute/cpu/weights.h"

enum {
    MAX_PRODUCTS = 16,    /* matrices of one call */
    PARTS_PER_THREAD = 4, /* parts of a task, for balance */
    SERIAL_ROWS = 8       /* up to so many rows are quantized by the caller */
};

typedef struct product {
    const qn_panels *w;
    const qn_qacts *acts; /* NULL: float activations */
    qn_tensor bias, y;
    uint32_t part0, n_parts;
} product;

typedef struct task {
    qn_cpu_run *run;
    qn_tensor x;
    size_t n;
    product products[MAX_PRODUCTS];
    qn_qacts acts[QN_GROUP_SIZES]; /* by slot; n_rows 0: not needed */
} task;

static uint32_t threads_of(const qn_cpu_run *r)
{
    return qn_pool_threads(r->cpu->pool);
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- activations ---- */

typedef struct quantize_task {
    const qn_cpu *cpu;
    qn_qacts *acts;
    qn_tensor x;
    uint32_t n_parts;
} quantize_task;

static void quantize_part(void *arg, uint32_t part, uint32_t thread)
{
    const quantize_task *q = arg;
    const uint32_t tiles = (q->x.rows - 1) / QN_ACT_TILE + 1;
    const uint32_t t0 = (uint32_t)((uint64_t)tiles * part / q->n_parts) * QN_ACT_TILE;
    const uint32_t t1 = (uint32_t)((uint64_t)tiles * (part + 1) / q->n_parts) * QN_ACT_TILE;
    (void)thread;
    q->cpu->k->qacts(q->acts, qn_cpu_row(q->x, 0), q->x.ld, t0, smaller(t1, q->x.rows));
}

static void quantize(qn_cpu_run *r, qn_qacts *acts, qn_tensor x)
{
    quantize_task q = {.cpu = r->cpu, .acts = acts, .x = x, .n_parts = 1};
    if (x.rows > SERIAL_ROWS)
        q.n_parts = smaller((x.rows - 1) / QN_ACT_TILE + 1, threads_of(r) * PARTS_PER_THREAD);
    qn_cpu_parts(r, quantize_part, &q, q.n_parts);
}

/* The quantized activations that a matrix wants, made at its first use. */
static const qn_qacts *prepare(task *t, const qn_panels *w)
{
    if (w->kind != QN_PANEL_CODES) return NULL;
    qn_qacts *acts = &t->acts[qn_group_slot(w->spec.group_size)];
    if (acts->n_rows) return acts;
    size_t bytes = qn_qacts_init(acts, t->run->cpu->act, t->x.rows, w->n_in, w->spec.group_size);
    qn_qacts_place(acts, qn_cpu_bytes(t->run, bytes));
    quantize(t->run, acts, t->x);
    return acts;
}

/* ---- products ---- */

static void add_bias(qn_tensor y, qn_tensor bias, uint32_t c0, uint32_t c1)
{
    const float *b = qn_cpu_row(bias, 0);
    for (uint32_t t = 0; t < y.rows; t++) {
        float *row = qn_cpu_row(y, t);
        for (uint32_t c = c0; c < c1; c++) row[c] += b[c];
    }
}

static void product_part(void *arg, uint32_t part, uint32_t thread)
{
    const task *t = arg;
    const product *p = t->products;
    while (part >= p->part0 + p->n_parts) p++;
    const qn_panels *w = p->w;
    const uint64_t i = part - p->part0;
    const uint32_t p0 = (uint32_t)(w->n_panels * i / p->n_parts);
    const uint32_t p1 = (uint32_t)(w->n_panels * (i + 1) / p->n_parts);
    const qn_cpu_kernels *k = t->run->cpu->k;
    void *scratch = qn_cpu_thread(t->run, thread);
    if (p->acts) {
        k->qmm(qn_cpu_row(p->y, 0), p->y.ld, w, p->acts, p0, p1, scratch);
    } else {
        k->dmm(qn_cpu_row(p->y, 0), p->y.ld, w, qn_cpu_row(t->x, 0), t->x.ld, t->x.rows, p0, p1,
               scratch);
    }
    if (p->bias.addr)
        add_bias(p->y, p->bias, p0 * QN_PANEL_ROWS, smaller(p1 * QN_PANEL_ROWS, w->n_out));
}

/* Cut the products into parts of about equal bytes; returns their number. */
static uint32_t divide(task *t)
{
    size_t total = 0;
    uint32_t n_parts = 0;
    for (size_t i = 0; i < t->n; i++) total += t->products[i].w->expert_bytes;
    const double per_byte = (double)(threads_of(t->run) * PARTS_PER_THREAD) / (double)total;
    for (size_t i = 0; i < t->n; i++) {
        product *p = &t->products[i];
        uint32_t parts = (uint32_t)((double)p->w->expert_bytes * per_byte + 0.5);
        p->part0 = n_parts;
        p->n_parts = parts ? smaller(parts, p->w->n_panels) : 1;
        n_parts += p->n_parts;
    }
    return n_parts;
}

void qn_cpu_linear(qn_run *r, size_t n, qn_tensor *y, qn_tensor x, const qn_linear *const *w)
{
    qn_cpu_run *run = (qn_cpu_run *)(void *)r;
    qn_check(n && n <= MAX_PRODUCTS && run->need.thread >= QN_MM_SCRATCH);
    task t = {.run = run, .x = x, .n = n};
    for (size_t i = 0; i < n; i++) {
        const qn_panels *panels = &w[i]->w->panels;
        qn_check(panels->n_in == x.cols);
        y[i] = qn_cpu_take(run, x.rows, panels->n_out);
        t.products[i] = (product){.w = panels, .bias = w[i]->bias, .y = y[i]};
    }
    if (!x.rows) return;
    const size_t mark = run->used;
    for (size_t i = 0; i < n; i++) t.products[i].acts = prepare(&t, t.products[i].w);
    qn_cpu_parts(run, product_part, &t, divide(&t));
    run->used = mark;
}

/* ---- embedding ---- */

typedef struct embed_task {
    const qn_panels *w;
    const uint32_t *ids;
    qn_tensor y;
    uint32_t n_parts;
} embed_task;

static void embed_part(void *arg, uint32_t part, uint32_t thread)
{
    const embed_task *e = arg;
    const uint32_t t0 = (uint32_t)((uint64_t)e->y.rows * part / e->n_parts);
    const uint32_t t1 = (uint32_t)((uint64_t)e->y.rows * (part + 1) / e->n_parts);
    (void)thread;
    for (uint32_t t = t0; t < t1; t++) {
        qn_check(e->ids[t] < e->w->n_out);
        qn_panels_row(e->w, 0, e->ids[t], qn_cpu_row(e->y, t));
    }
}

qn_tensor qn_cpu_embed(qn_run *r, const qn_weight *w)
{
    qn_cpu_run *run = (qn_cpu_run *)(void *)r;
    embed_task e = {.w = &w->panels, .ids = r->batch->ids};
    e.y = qn_cpu_take(run, r->batch->n_tokens, w->panels.n_in);
    e.n_parts = smaller(e.y.rows, threads_of(run) * PARTS_PER_THREAD);
    qn_cpu_parts(run, embed_part, &e, e.n_parts);
    for (uint32_t i = 0; i < r->batch->n_items; i++) {
        const qn_item *it = &r->batch->items[i];
        for (uint32_t t = 0; it->given && t < it->n_new; t++) {
            memcpy(qn_cpu_row(e.y, it->row0 + t), it->given + (size_t)t * e.y.cols,
                   e.y.cols * sizeof *it->given);
        }
    }
    return e.y;
}
