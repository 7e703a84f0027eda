/* ref_attend.c - attention as MLX's fallback graph computes it: whole rows of scores rounded to T,
 * a softmax in float32 with one serial sum, rounded probabilities, then the values in order.
 *
 * Masked positions are left out: in MLX they add exact zeros. So the result does not depend on
 * chunks or on what else is in the batch. The order of sums is that of positions, but for windows
 * that mlx-lm's rotating cache has wrapped around (qn_ref_visible_to).
 *
 * Over quantized keys or values the products are MLX's quantized ones: each product and each sum is
 * rounded to T. Whether an item sees them so depends on its first position (ref_kv.h).
 */
#include <math.h>
#include <string.h>

#include "compute/ref/ref_kv.h"

typedef struct job {
    qn_ref_run *run;
    const qn_attend *a;
    const qn_kv_layer *layer;
    const qn_ref_place *place;
    qn_tensor q, y;
    qn_dtype type;      /* T = promote(q, k, v) */
    const float *sinks; /* [H] of type T, or NULL */
} job;

/* How an item sees keys and values: where they lie in a block, and what its sums round to. */
typedef struct view {
    size_t k, v;
    qn_dtype k_chain, v_chain;
} view;

static view view_of(const job *j, const qn_item *item)
{
    const qn_ref_place *p = j->place;
    view w = {p->k, p->v, QN_F32, QN_F32};
    uint32_t start = j->run->base.kv->spec.quantized_start;
    if (item->n_past <= item->n_brought || item->n_past < start) return w;
    if (qn_kv_quantized(j->layer->k_codec)) w.k = p->k_codes, w.k_chain = j->type;
    if (qn_kv_quantized(j->layer->v_codec)) w.v = p->v_codes, w.v_chain = j->type;
    return w;
}

/* What one thread works in: parts of its scratch. */
typedef struct bench {
    float *q, *acc, *segment; /* [QN_REF_MAX_HEAD] each; segment holds one block's scores */
    float *s;                 /* [max_positions + 16] scores, then probabilities */
} bench;

static bench thread_bench(const qn_ref_run *r, uint32_t thread)
{
    float *p = qn_ref_thread(r, thread);
    return (bench){p, p + QN_REF_MAX_HEAD, p + 2 * QN_REF_MAX_HEAD, p + 3 * QN_REF_MAX_HEAD};
}

/* In a call of one token mlx-lm hands the keys over as they lie in the ring: behind those that are
 * kept `window` slots, the position p in slot (p - base) mod window. The base is the number of tokens
 * that came before in larger calls, which leave the cache in order and full; that of the kept ones if
 * they did not fill it. */
qn_ref_visible qn_ref_visible_to(const qn_kv_group *group, const qn_item *item, uint32_t pos)
{
    qn_ref_visible v = {.end = {pos + 1}, .n = pos + 1};
    const uint32_t window = group->window, keep = group->keep, from = item->decode_from;
    if (group->rule == QN_KV_CHUNKED) {
        v.first[0] = qn_kv_first_seen(group, pos);
        v.n -= v.first[0];
    }
    if (group->rule != QN_KV_SLIDING || v.n <= keep + window) return v;
    v = (qn_ref_visible){.end = {keep, pos + 1}, .first = {0, pos + 1 - window}, .n = keep + window};
    if (!from || pos < from) return v;
    const uint32_t base = from >= keep + window ? from : keep;
    v.first[1] = pos - (pos - base) % window; /* in the first slot */
    v.first[2] = pos + 1 - window;
    v.end[2] = v.first[1];
    return v;
}

/* Positions [p0, p1) in one block. */
typedef struct segment {
    const float *block;
    uint32_t at, n; /* first position inside the block, positions */
} segment;

static segment segment_from(const job *j, const qn_item *item, uint32_t p0, uint32_t p1)
{
    const qn_kv *kv = j->run->base.kv;
    uint32_t at = p0 % kv->spec.block_tokens, room = kv->spec.block_tokens - at;
    return (segment){qn_ref_kv_block(kv, item, j->layer->group, p0), at,
                     p1 - p0 < room ? p1 - p0 : room};
}

/* Scores of positions [p0, p1) against head hk, to s. */
static void score(const job *j, const bench *w, const qn_item *item, uint32_t hk, uint32_t p0,
                  uint32_t p1, float *s)
{
    uint32_t d = j->layer->d_k;
    view how = view_of(j, item);
    for (uint32_t p = p0; p < p1;) {
        segment g = segment_from(j, item, p, p1);
        uint32_t t0 = g.at / QN_REF_KEY_TILE, t1 = (g.at + g.n - 1) / QN_REF_KEY_TILE + 1;
        const float *k = g.block + how.k + hk * j->place->k_head +
                         (size_t)t0 * QN_REF_KEY_TILE * d;
        j->run->ref->k->scores(w->segment, w->q, k, d, t1 - t0, how.k_chain);
        memcpy(s + (p - p0), w->segment + g.at - t0 * QN_REF_KEY_TILE, g.n * sizeof *w->s);
        p += g.n;
    }
}

void qn_ref_softmax(const qn_ref_kernels *k, float *s, uint32_t n, const float *sink, qn_dtype t)
{
    float max = sink ? *sink : s[0], sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) max = s[i] > max ? s[i] : max;
    if (sink) sum = qn_ref_expf(*sink - max);
    k->exp_shifted(s, s, n, max);
    for (uint32_t i = 0; i < n; i++) sum = sum + s[i];
    float inverse = 1.0f / sum;
    for (uint32_t i = 0; i < n; i++) s[i] = s[i] * inverse;
    k->round(s, t, n);
}

/* acc += the values of positions [p0, p1) times their probabilities s. */
static void add_values(const job *j, const bench *w, const qn_item *item, uint32_t hk, uint32_t p0,
                       uint32_t p1, const float *s)
{
    uint32_t v_ld = j->place->v_ld;
    view how = view_of(j, item);
    for (uint32_t p = p0; p < p1;) {
        segment g = segment_from(j, item, p, p1);
        const float *v = g.block + how.v + hk * j->place->v_head + (size_t)g.at * v_ld;
        j->run->ref->k->add_values(w->acc, s + (p - p0), v, g.n, v_ld, how.v_chain);
        p += g.n;
    }
}

static void attend_head(const job *j, const bench *w, const qn_item *item, uint32_t row, uint32_t h)
{
    const qn_ref_kernels *k = j->run->ref->k;
    const qn_kv_layer *l = j->layer;
    const qn_kv_group *group = &j->run->base.kv->spec.groups[l->group];
    uint32_t hk = h / (j->a->n_heads / l->n_kv_heads);
    uint32_t pos = item->n_past + (row - item->row0);
    qn_check(pos < j->run->limits.max_positions);
    const qn_ref_visible see = qn_ref_visible_to(group, item, pos);
    const uint32_t n = see.n;

    float scale = qn_ref_round(j->a->scale, j->type);
    k->widen(w->q, qn_ref_at(j->q, row, h * l->d_k), j->q.dtype, l->d_k);
    for (uint32_t i = 0; i < l->d_k; i++) w->q[i] = w->q[i] * scale;
    k->round(w->q, j->type, l->d_k);

    float *s = w->s;
    for (uint32_t i = 0; i < QN_REF_RUNS; s += see.end[i] - see.first[i], i++)
        score(j, w, item, hk, see.first[i], see.end[i], s);
    k->round(w->s, j->type, n);
    if (j->a->softcap > 0)
        for (uint32_t i = 0; i < n; i++)
            w->s[i] = qn_ref_softcap_of(w->s[i], j->a->softcap, j->type);
    qn_ref_softmax(k, w->s, n, j->sinks ? &j->sinks[h] : NULL, j->type);
    memset(w->acc, 0, j->place->v_ld * sizeof *w->acc);
    s = w->s;
    for (uint32_t i = 0; i < QN_REF_RUNS; s += see.end[i] - see.first[i], i++)
        add_values(j, w, item, hk, see.first[i], see.end[i], s);
    k->narrow(qn_ref_at(j->y, row, h * l->d_v), j->type, w->acc, l->d_v);
}

static const qn_item *item_of(const qn_batch *b, uint32_t row)
{
    uint32_t lo = 0, hi = b->n_items; /* the last item that starts at or before the row */
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (b->items[mid].row0 <= row) lo = mid;
        else hi = mid;
    }
    return &b->items[lo];
}

/* One part is one head of one row. */
static void attend_part(void *arg, uint32_t part, uint32_t thread)
{
    const job *j = arg;
    bench w = thread_bench(j->run, thread);
    uint32_t row = part / j->a->n_heads, h = part % j->a->n_heads;
    attend_head(j, &w, item_of(j->run->base.batch, row), row, h);
}

qn_tensor qn_ref_attend(qn_run *r, qn_tensor q, const qn_attend *a)
{
    qn_ref_run *run = (qn_ref_run *)(void *)r;
    const qn_kv *kv = r->kv;
    qn_check(a->layer < kv->spec.n_layers);
    const qn_kv_layer *l = &kv->spec.layers[a->layer];
    const qn_ref_place *place = &kv->place[a->layer];
    qn_check(q.rows == r->batch->n_tokens && q.cols == a->n_heads * l->d_k && l->n_kv_heads);
    qn_check(a->n_heads % l->n_kv_heads == 0);
    qn_dtype t = qn_ref_promote(q.dtype, qn_ref_promote(place->k_type, place->v_type));
    job j = {.run = run, .a = a, .layer = l, .place = place, .q = q, .type = t};
    j.y = qn_ref_take(run, q.rows, a->n_heads * l->d_v, t);
    size_t to = run->used;
    if (a->sinks.addr) {
        float *sinks = qn_ref_bytes(run, a->n_heads * sizeof *sinks);
        qn_check(a->sinks.rows == 1 && a->sinks.cols == a->n_heads);
        if (!run->measures) {
            run->ref->k->widen(sinks, qn_ref_at(a->sinks, 0, 0), a->sinks.dtype, a->n_heads);
            run->ref->k->round(sinks, t, a->n_heads);
        }
        j.sinks = sinks;
    }
    qn_ref_parts(run, attend_part, &j, q.rows * a->n_heads);
    run->used = to;
    return j.y;
}
