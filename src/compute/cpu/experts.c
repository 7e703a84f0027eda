/* experts.c - routing, products with stacks of expert matrices, and the weighted sum of their
 * results.
 *
 * The (row, rank) pairs of a batch are sorted by expert; each expert's rows are gathered and
 * multiplied as one small product, so that its weights are read once. A pair's result depends on
 * its row and its expert only. Ties between experts go to the lower one.
 */
#include <math.h>
#include <string.h>

#include "compute/cpu/cpu.h"
#include "compute/cpu/kernels.h"
#include "compute/cpu/weights.h"

enum { MAX_PRODUCTS = 4, MAX_TOP_K = 64, PARTS_PER_THREAD = 4 };

/* ---- routing ---- */

static uint32_t *ids_row(qn_tensor ids, uint32_t row)
{
    return (uint32_t *)(uintptr_t)ids.addr + (size_t)row * ids.ld;
}

/* The k largest of x [n], largest first. */
static void top_k(const float *x, uint32_t n, uint32_t k, uint32_t *out)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = found;
        while (j > 0 && x[i] > x[out[j - 1]]) j--;
        if (j == k) continue;
        if (found < k) found++;
        memmove(out + j + 1, out + j, (found - 1 - j) * sizeof *out);
        out[j] = i;
    }
}

static void softmax(float *w, const float *x, const uint32_t *which, uint32_t n)
{
    float max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++) max = fmaxf(max, x[which ? which[i] : i]);
    for (uint32_t i = 0; i < n; i++) sum += w[i] = expf(x[which ? which[i] : i] - max);
    for (uint32_t i = 0; i < n; i++) w[i] /= sum;
}

static void route_row(const qn_router *how, const float *x, uint32_t n, float *p, uint32_t *ids,
                      float *w)
{
    top_k(x, n, how->k, ids);
    if (how->kind == QN_ROUTE_SOFTMAX_TOP) {
        softmax(w, x, ids, how->k);
        return;
    }
    softmax(p, x, NULL, n);
    float sum = 0;
    for (uint32_t j = 0; j < how->k; j++) sum += w[j] = p[ids[j]];
    for (uint32_t j = 0; how->normalize && j < how->k; j++) w[j] /= sum;
}

/* Experts outside the best groups count as 0. c [n]; score and best: room for n_groups. */
static void drop_groups(const qn_router *how, float *c, uint32_t n, float *score, uint32_t *best)
{
    const uint32_t width = n / how->n_groups;
    const bool sums = how->kind == QN_ROUTE_SIGMOID;
    for (uint32_t g = 0; g < how->n_groups; g++) {
        uint32_t two[2];
        top_k(c + g * width, width, sums ? 2 : 1, two);
        score[g] = c[g * width + two[0]];
        if (sums) score[g] += c[g * width + two[1]];
    }
    top_k(score, how->n_groups, how->n_kept, best);
    for (uint32_t g = 0; g < how->n_groups; g++) {
        bool kept = false;
        for (uint32_t i = 0; i < how->n_kept; i++) kept |= best[i] == g;
        if (!kept) memset(c + g * width, 0, width * sizeof *c);
    }
}

/* s and c: room for n and 2n floats, best for n groups. */
static void route_sigmoid(const qn_router *how, const float *x, uint32_t n, float *s, float *c,
                          uint32_t *best, uint32_t *ids, float *w)
{
    const float *bias = qn_cpu_row(how->bias, 0);
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        s[i] = 1.0f / (1.0f + expf(-x[i]));
        c[i] = s[i] + bias[i];
    }
    if (how->n_groups > 1) drop_groups(how, c, n, c + n, best);
    top_k(c, n, how->k, ids);
    for (uint32_t j = 0; j < how->k; j++) sum += w[j] = s[ids[j]];
    for (uint32_t j = 0; j < how->k; j++) {
        if (how->normalize && how->k > 1) w[j] /= sum + how->eps;
        w[j] *= how->scale;
    }
}

/* c: room for 2n floats. */
static void route_groups(const qn_router *how, const float *x, uint32_t n, float *c, uint32_t *best,
                         uint32_t *ids, float *w)
{
    softmax(c, x, NULL, n);
    if (how->n_groups > 1) drop_groups(how, c, n, c + n, best);
    top_k(c, n, how->k, ids);
    for (uint32_t j = 0; j < how->k; j++) w[j] = c[ids[j]] * how->scale;
}

static void route_input(const float *x, uint32_t n, uint32_t *ids, float *w)
{
    top_k(x, n, 1, ids);
    w[0] = 1.0f / (1.0f + expf(-x[ids[0]]));
}

qn_routing qn_cpu_route(qn_run *r, qn_tensor logits, const qn_router *how)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    const uint32_t n = logits.cols;
    const bool sigmoid = how->kind == QN_ROUTE_SIGMOID;
    qn_check(how->k >= 1 && how->k <= MAX_TOP_K && how->k <= n);
    qn_check(how->kind != QN_ROUTE_SIGMOID_INPUT || how->k == 1);
    qn_check(!sigmoid || (how->bias.rows == 1 && how->bias.cols == n));
    qn_check(how->n_groups <= 1 || (n % how->n_groups == 0 && how->n_kept <= how->n_groups &&
                                    (!sigmoid || n >= 2 * how->n_groups)));
    qn_routing out = {.ids = qn_cpu_take(c, logits.rows, how->k),
                      .weights = qn_cpu_take(c, logits.rows, how->k)};
    out.ids.dtype = QN_U32;
    float *p = qn_cpu_bytes(c, 3 * n * sizeof *p);
    uint32_t *best = qn_cpu_bytes(c, n * sizeof *best);
    for (uint32_t t = 0; t < logits.rows && !c->measures; t++) {
        const float *x = qn_cpu_row(logits, t);
        uint32_t *ids = ids_row(out.ids, t);
        float *w = qn_cpu_row(out.weights, t);
        if (sigmoid) route_sigmoid(how, x, n, p, p + n, best, ids, w);
        else if (how->kind == QN_ROUTE_SIGMOID_INPUT) route_input(x, n, ids, w);
        else if (how->kind == QN_ROUTE_SOFTMAX_GROUPS) route_groups(how, x, n, p, best, ids, w);
        else route_row(how, x, n, p, ids, w);
    }
    return out;
}

/* ---- products ---- */

typedef struct bucket { /* the pairs of one expert */
    uint32_t expert, first, n; /* pairs order[first .. first+n) */
    float *x;                  /* [n, n_in] gathered rows */
    qn_qacts acts[MAX_PRODUCTS];
} bucket;

typedef struct expert_task {
    qn_cpu_run *run;
    qn_tensor x, ids;
    size_t n;
    const qn_linear *const *w;
    qn_tensor *y;
    uint32_t k, n_buckets, parts_per_bucket;
    uint32_t *order; /* [T*k] pair numbers, sorted by expert */
    bucket *buckets; /* [min(E, T*k)] */
    uint8_t *area;   /* for what the buckets have */
} expert_task;

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

/* The first product before p that wants the same quantized activations; p: none. */
static size_t same_acts(const expert_task *t, size_t p)
{
    const qn_panels *w = &t->w[p]->w->panels;
    size_t same = 0;
    while (same < p && (t->w[same]->w->panels.kind != QN_PANEL_CODES ||
                        t->w[same]->w->panels.spec.group_size != w->spec.group_size))
        same++;
    return same;
}

/* Bytes for n gathered rows and, once per distinct group size, their quantized form; with a bucket,
 * which gets them from `at`. */
static size_t place_rows(const expert_task *t, uint32_t n, bucket *b, uint8_t *at)
{
    size_t bytes = align64((size_t)n * t->x.cols * sizeof(float));
    if (b) b->x = (float *)(void *)at;
    for (size_t p = 0; p < t->n; p++) {
        const qn_panels *w = &t->w[p]->w->panels;
        if (b) b->acts[p].n_rows = 0;
        if (w->kind != QN_PANEL_CODES || same_acts(t, p) < p) continue;
        qn_qacts acts;
        size_t more = qn_qacts_init(&acts, t->run->cpu->act, n, w->n_in, w->spec.group_size);
        if (b) {
            b->acts[p] = acts;
            qn_qacts_place(&b->acts[p], at + bytes);
        }
        bytes += align64(more);
    }
    return bytes;
}

/* Memory for all buckets, however the pairs fall into them: as much as for one with all pairs, and
 * what each bucket loses to alignment. */
static void take_memory(expert_task *t, uint32_t n_experts, uint32_t **count)
{
    uint32_t n_pairs = t->ids.rows * t->k, most = n_experts < n_pairs ? n_experts : n_pairs;
    *count = qn_cpu_bytes(t->run, (n_experts + 1) * sizeof **count);
    t->order = qn_cpu_bytes(t->run, n_pairs * sizeof *t->order);
    t->buckets = qn_cpu_bytes(t->run, most * sizeof *t->buckets);
    size_t pads = 64 * (1 + 2 * t->n); /* the rows; codes and tables of each product */
    t->area = qn_cpu_bytes(t->run, place_rows(t, n_pairs, NULL, NULL) + most * pads);
}

/* Sort the pairs by expert, keeping their order inside one. */
static void sort_pairs(expert_task *t, uint32_t n_experts, uint32_t *count)
{
    uint32_t n_pairs = t->ids.rows * t->k;
    memset(count, 0, (n_experts + 1) * sizeof *count);
    for (uint32_t i = 0; i < n_pairs; i++) {
        uint32_t e = ids_row(t->ids, i / t->k)[i % t->k];
        qn_check(e < n_experts);
        count[e + 1]++;
    }
    for (uint32_t e = 0; e < n_experts; e++) {
        if (count[e + 1])
            t->buckets[t->n_buckets++] =
                (bucket){.expert = e, .first = count[e], .n = count[e + 1]};
        count[e + 1] += count[e];
    }
    for (uint32_t i = 0; i < n_pairs; i++)
        t->order[count[ids_row(t->ids, i / t->k)[i % t->k]]++] = i;
}

static void gather(void *arg, uint32_t part, uint32_t thread)
{
    (void)thread;
    expert_task *t = arg;
    bucket *b = &t->buckets[part];
    uint32_t n_in = t->x.cols, shared = t->x.rows == t->ids.rows ? t->k : 1;
    for (uint32_t i = 0; i < b->n; i++) {
        memcpy(b->x + (size_t)i * n_in, qn_cpu_row(t->x, t->order[b->first + i] / shared),
               n_in * sizeof(float));
    }
    for (size_t p = 0; p < t->n; p++) {
        if (b->acts[p].n_rows) t->run->cpu->k->qacts(&b->acts[p], b->x, n_in, 0, b->n);
    }
}

static const qn_qacts *acts_for(const bucket *b, size_t n, uint32_t group_size)
{
    for (size_t p = 0; p < n; p++) {
        if (b->acts[p].n_rows && b->acts[p].group_size == group_size) return &b->acts[p];
    }
    QN_UNREACHABLE();
}

/* Panels [p0, p1) of one product of one bucket, into a scratch area, then scattered to the pairs'
 * rows. */
static void multiply(const expert_task *t, const bucket *b, size_t product, uint32_t p0,
                     uint32_t p1, uint32_t thread)
{
    const qn_cpu_kernels *k = t->run->cpu->k;
    qn_panels w = t->w[product]->w->panels;
    w.data += b->expert * w.expert_bytes;
    void *scratch = qn_cpu_thread(t->run, thread);
    qn_tensor y = t->y[product];
    uint32_t c0 = p0 * QN_PANEL_ROWS,
             c1 = p1 * QN_PANEL_ROWS < w.n_out ? p1 * QN_PANEL_ROWS : w.n_out;
    /* y's rows of a bucket are contiguous in sorted order: see qn_cpu_expert_linear. */
    float *out = qn_cpu_row(y, b->first);
    if (w.kind == QN_PANEL_CODES)
        k->qmm(out, y.ld, &w, acts_for(b, t->n, w.spec.group_size), p0, p1, scratch);
    else k->dmm(out, y.ld, &w, b->x, t->x.cols, b->n, p0, p1, scratch);
    if (!t->w[product]->bias.addr) return;
    const float *bias = qn_cpu_row(t->w[product]->bias, b->expert);
    for (uint32_t i = 0; i < b->n; i++) {
        float *row = out + (size_t)i * y.ld;
        for (uint32_t c = c0; c < c1; c++) row[c] += bias[c];
    }
}

static void multiply_part(void *arg, uint32_t part, uint32_t thread)
{
    const expert_task *t = arg;
    const bucket *b = &t->buckets[part / t->parts_per_bucket];
    uint64_t i = part % t->parts_per_bucket;
    for (size_t p = 0; p < t->n; p++) {
        uint64_t n_panels = t->w[p]->w->panels.n_panels;
        uint32_t p0 = (uint32_t)(n_panels * i / t->parts_per_bucket);
        uint32_t p1 = (uint32_t)(n_panels * (i + 1) / t->parts_per_bucket);
        if (p0 < p1) multiply(t, b, p, p0, p1, thread);
    }
}

static void multiply_all(expert_task *t, uint32_t *count)
{
    sort_pairs(t, t->w[0]->w->panels.n_experts, count);
    size_t at = 0;
    for (uint32_t i = 0; i < t->n_buckets; i++)
        at += place_rows(t, t->buckets[i].n, &t->buckets[i], t->area + at);
    qn_cpu_parts(t->run, gather, t, t->n_buckets);
    uint32_t threads = qn_pool_threads(t->run->cpu->pool);
    t->parts_per_bucket = threads * PARTS_PER_THREAD / t->n_buckets + 1;
    qn_cpu_parts(t->run, multiply_part, t, t->n_buckets * t->parts_per_bucket);
}

/* From sorted order back to the pairs' own. */
static qn_tensor scatter(const expert_task *t, qn_tensor sorted)
{
    qn_tensor y = qn_cpu_take(t->run, sorted.rows, sorted.cols);
    for (uint32_t i = 0; i < sorted.rows && !t->run->measures; i++) {
        memcpy(qn_cpu_row(y, t->order[i]), qn_cpu_row(sorted, i), sorted.cols * sizeof(float));
    }
    return y;
}

void qn_cpu_expert_linear(qn_run *r, size_t n, qn_tensor *y, qn_tensor x, qn_tensor ids,
                          const qn_linear *const *w)
{
    qn_cpu_run *run = (qn_cpu_run *)r;
    qn_tensor sorted[MAX_PRODUCTS];
    expert_task t = {.run = run, .x = x, .ids = ids, .n = n, .w = w, .y = sorted, .k = ids.cols};
    qn_check(n && n <= MAX_PRODUCTS && ids.dtype == QN_U32);
    qn_check(x.rows == ids.rows || x.rows == ids.rows * ids.cols);
    if (!x.rows) QN_UNREACHABLE(); /* a batch has at least one token */
    uint32_t *count;
    take_memory(&t, w[0]->w->panels.n_experts, &count);
    for (size_t p = 0; p < n; p++) {
        qn_check(w[p]->w->panels.n_in == x.cols);
        sorted[p] = qn_cpu_take(run, ids.rows * ids.cols, w[p]->w->panels.n_out);
    }
    if (!run->measures) multiply_all(&t, count);
    for (size_t p = 0; p < n; p++) y[p] = scatter(&t, sorted[p]);
}

/* ---- the weighted sum ---- */

typedef struct combine_job {
    qn_tensor y, w, out;
} combine_job;

static void combine_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const combine_job *j = arg;
    for (uint32_t t = r0; t < r1; t++) {
        float *out = qn_cpu_row(j->out, t);
        const float *w = qn_cpu_row(j->w, t);
        memset(out, 0, j->out.cols * sizeof *out);
        for (uint32_t s = 0; s < j->w.cols; s++) {
            const float *y = qn_cpu_row(j->y, t * j->w.cols + s);
            for (uint32_t i = 0; i < j->out.cols; i++) out[i] += w[s] * y[i];
        }
    }
}

qn_tensor qn_cpu_combine(qn_run *r, qn_tensor y, qn_tensor weights)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    qn_check(y.rows == weights.rows * weights.cols);
    combine_job j = {y, weights, qn_cpu_take(c, weights.rows, y.cols)};
    qn_cpu_rows(c, combine_rows, &j, weights.rows, y.cols * weights.cols);
    return j.out;
}
