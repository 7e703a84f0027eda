/* attend.c - attention over the block tables: cuts the work into parts and merges the splits. Over a
 * latent layer it takes queries that latent.c has brought to the latent, and gives sums of latents.
 *
 * The rows of an item for one KV head are its query heads at each new position: row i is head
 * i mod G (of the G = H/Hk heads that share the KV head) at new token i / G. A unit is up to
 * tile_rows such rows. There are two ways through, with the same arithmetic per row:
 *   by unit   a part of the pool's work is a unit; it goes through its splits and merges as it goes
 *   by split  when there are few units (decode): a part is one split of one unit; partials go to
 *             run->partials and are merged afterwards, as many splits per round as fit
 * Keys that a window keeps at the start of a sequence are a split of their own, the first one: split
 * numbers below count it as 0 where a group has any.
 * Neither the tiling nor the way changes any order of additions (attend.h).
 */
#include "compute/cpu/attend.h"

#include <math.h>
#include <string.h>

#include "compute/cpu/kernels.h"
#include "compute/cpu/kv_layout.h"

enum {
    LEAST_TILE_ROWS = 8,       /* rows of a unit are halved down to this to occupy the threads */
    PARTS_PER_THREAD = 4,
    SMALL_WORK = 64 << 10      /* multiply-adds that are not worth waking a thread for */
};

typedef struct attend {
    qn_cpu_run *run;
    const qn_kv *kv;
    const qn_kv_layer *layer;
    const qn_kv_place *place;
    const qn_attend *a;
    qn_tensor q, y;
    uint32_t q_head, y_head;   /* elements of a query head, and of its result */
    uint32_t v_ld;             /* of a value: y_head rounded up to 16 */
    uint32_t group_heads;      /* G */
    const qn_kv_group *group;
    uint32_t keep;             /* keys at the start that are seen as well */
    uint32_t tile_rows, n_units;
    uint32_t first_split, n_splits; /* of the round (by split) */
    size_t slot_floats;        /* one partial of a unit: max, sum, acc */
} attend;

typedef struct unit {
    const qn_item *item;
    uint32_t kv_head;
    uint32_t row0, n_rows; /* rows of (item, KV head) */
} unit;

/* The areas of a thread's scratch. */
typedef struct thread_area {
    float *q, *p;
    uint32_t *lo, *hi;
    qn_attend_part split, total;
} thread_area;

static uint32_t item_tiles(const attend *w, const qn_item *item)
{
    return (item->n_new * w->group_heads + w->tile_rows - 1) / w->tile_rows;
}

static unit find_unit(const attend *w, uint32_t i)
{
    const qn_item *item = w->run->base.batch->items;
    for (;; item++) {
        uint32_t tiles = item_tiles(w, item), n = tiles * w->layer->n_kv_heads;
        if (i >= n) {
            i -= n;
            continue;
        }
        unit u = {.item = item, .kv_head = i / tiles, .row0 = i % tiles * w->tile_rows};
        uint32_t left = item->n_new * w->group_heads - u.row0;
        u.n_rows = left < w->tile_rows ? left : w->tile_rows;
        return u;
    }
}

/* The keys that row i of the unit sees: from <= position < to, and if that does not begin with them,
 * the kept ones. */
static void row_keys(const attend *w, const unit *u, uint32_t i, uint32_t *from, uint32_t *to)
{
    *to = u->item->n_past + (u->row0 + i) / w->group_heads + 1;
    *from = qn_kv_first_seen(w->group, *to - 1);
    if (*from <= w->keep) *from = 0;
}

/* Split number 0 is that of the kept keys, if there are any. */
static bool is_kept(const attend *w, uint32_t s) { return w->keep && !s; }

/* First position of a split. */
static uint32_t split_start(const attend *w, uint32_t s)
{
    return is_kept(w, s) ? 0 : (s - (w->keep > 0)) * QN_KV_SPLIT;
}

/* The splits that some row of the unit needs: s0 <= s < s1. */
static void unit_splits(const attend *w, const unit *u, uint32_t *s0, uint32_t *s1)
{
    uint32_t from, to;
    row_keys(w, u, 0, &from, &to);
    *s0 = w->keep ? 0 : from / QN_KV_SPLIT;
    row_keys(w, u, u->n_rows - 1, &from, &to);
    *s1 = (to - 1) / QN_KV_SPLIT + 1 + (w->keep > 0);
}

/* The rows of the unit that see a key of split s: *r0 <= r < *r1 (positions ascend with rows), and
 * their keys relative to the split. False when there are none. */
static bool split_rows(const attend *w, const unit *u, uint32_t s, uint32_t *r0, uint32_t *r1,
                       uint32_t *lo, uint32_t *hi)
{
    uint32_t base = split_start(w, s);
    *r0 = u->n_rows, *r1 = 0;
    for (uint32_t r = 0; r < u->n_rows; r++) {
        uint32_t from, to;
        row_keys(w, u, r, &from, &to);
        if (is_kept(w, s)) {
            if (!from) continue; /* they are among the others */
            from = 0, to = w->keep;
        }
        if (to <= base || from >= base + QN_KV_SPLIT) continue;
        if (r < *r0) *r0 = r;
        *r1 = r + 1;
        lo[r] = from > base ? from - base : 0;
        hi[r] = to < base + QN_KV_SPLIT ? to - base : QN_KV_SPLIT;
    }
    return *r0 < *r1;
}

static thread_area area_of(const attend *w, uint32_t thread)
{
    size_t v_ld = w->v_ld;
    float *f = qn_cpu_thread(w->run, thread);
    thread_area t;
    t.q = f, f += QN_ATTEND_ROWS * ((w->q_head + 15) & ~15u);
    t.p = f, f += QN_ATTEND_ROWS * QN_KV_SPLIT;
    t.split.acc = f, f += QN_ATTEND_ROWS * v_ld;
    t.total.acc = f, f += QN_ATTEND_ROWS * v_ld;
    t.split.max = f, f += QN_ATTEND_ROWS;
    t.split.sum = f, f += QN_ATTEND_ROWS;
    t.total.max = f, f += QN_ATTEND_ROWS;
    t.total.sum = f, f += QN_ATTEND_ROWS;
    t.lo = (uint32_t *)(void *)f;
    t.hi = t.lo + QN_ATTEND_ROWS;
    return t;
}

static size_t area_bytes(const attend *w)
{
    size_t row = ((w->q_head + 15) & ~15u) + QN_KV_SPLIT + 2 * (size_t)w->v_ld + 6;
    return (QN_ATTEND_ROWS * row * sizeof(float) + 63) / 64 * 64;
}

_Static_assert(QN_ATTEND_ROWS * (3 * QN_CPU_MAX_HEAD + QN_KV_SPLIT + 6) * sizeof(float) <=
                   QN_CPU_THREAD_BYTES, "a thread's scratch holds the areas of attention");

/* The unit's queries, multiplied by the scale, as rows of q_head. */
static void gather_q(const attend *w, const unit *u, float *q)
{
    uint32_t d_k = w->q_head, heads = w->group_heads;
    for (uint32_t r = 0; r < u->n_rows; r++) {
        uint32_t row = u->row0 + r, head = u->kv_head * heads + row % heads;
        const float *from = qn_cpu_row(w->q, u->item->row0 + row / heads) + (size_t)head * d_k;
        for (uint32_t d = 0; d < d_k; d++) q[(size_t)r * d_k + d] = from[d] * w->a->scale;
    }
}

/* Where the tiles of keys lo <= j < hi of split s lie; the tiles beside them take the pointers of
 * the first or last of these. */
static void point_tiles(const attend *w, const unit *u, uint32_t s, uint32_t lo, uint32_t hi,
                        qn_attend_job *job)
{
    const qn_kv_place *p = w->place;
    uint32_t first = lo / QN_KV_TILE, last = (hi - 1) / QN_KV_TILE;
    for (uint32_t t = 0; t < QN_SPLIT_TILES; t++) {
        uint32_t seen = t < first ? first : t > last ? last : t;
        uint32_t pos = split_start(w, s) + seen * QN_KV_TILE;
        const uint8_t *block = qn_cpu_kv_block(w->kv, u->item, w->layer->group, pos);
        uint32_t tile = pos % w->kv->spec.block_tokens / QN_KV_TILE;
        const uint8_t *k = block + p->k + u->kv_head * p->k_head + tile * p->k_tile;
        const uint8_t *v = block + p->v + u->kv_head * p->v_head + tile * p->v_tile;
        job->k[t] = w->layer->latent ? v : k; /* attend.h: a latent is the value */
        job->v[t] = w->layer->latent ? k : v;
    }
}

static qn_attend_part part_rows(qn_attend_part p, uint32_t r, size_t v_ld)
{
    return (qn_attend_part){p.max + r, p.sum + r, p.acc + r * v_ld};
}

/* The partials of the unit's rows in split s, into `out`; the rows are *r0 <= r < *r1. */
static bool split_partial(const attend *w, const unit *u, uint32_t s, const thread_area *t,
                          qn_attend_part out, uint32_t *r0, uint32_t *r1)
{
    if (!split_rows(w, u, s, r0, r1, t->lo, t->hi)) return false;
    qn_attend_job job = {
        .k_codec = w->layer->k_codec,
        .v_codec = w->layer->v_codec,
        .n_rows = *r1 - *r0,
        .d_k = w->q_head,
        .v_ld = w->v_ld,
        .k_ld = w->layer->latent ? w->layer->d_v : 0,
        .softcap = w->a->softcap,
        .q = t->q + (size_t)*r0 * w->q_head,
        .lo = t->lo + *r0,
        .hi = t->hi + *r0,
        .p = t->p,
        .out = part_rows(out, *r0, w->v_ld),
    };
    point_tiles(w, u, s, t->lo[*r0], t->hi[*r1 - 1], &job);
    w->run->cpu->k->attend_split(&job);
    return true;
}

static void merge(const attend *w, qn_attend_part to, qn_attend_part from, uint32_t r0, uint32_t r1)
{
    uint32_t v_ld = w->v_ld;
    qn_attend_part a = part_rows(to, r0, v_ld), b = part_rows(from, r0, v_ld);
    w->run->cpu->k->attend_merge(&a, &b, r1 - r0, v_ld);
}

static void clear(const attend *w, qn_attend_part p, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++) p.max[r] = -INFINITY, p.sum[r] = 0;
    memset(p.acc, 0, (size_t)n_rows * w->v_ld * sizeof(float));
}

/* Add the sinks, divide by the sum, and store the rows. A sink is the partial of a key with value
 * 0; `spare` is memory for it. */
static void finish(const attend *w, const unit *u, qn_attend_part total, qn_attend_part spare)
{
    uint32_t heads = w->group_heads, d_v = w->y_head, v_ld = w->v_ld;
    if (w->a->sinks.addr) {
        clear(w, spare, u->n_rows);
        for (uint32_t r = 0; r < u->n_rows; r++) {
            spare.max[r] = qn_cpu_row(w->a->sinks, 0)[u->kv_head * heads + (u->row0 + r) % heads];
            spare.sum[r] = 1;
        }
        merge(w, total, spare, 0, u->n_rows);
    }
    for (uint32_t r = 0; r < u->n_rows; r++) {
        uint32_t row = u->row0 + r, head = u->kv_head * heads + row % heads;
        float *y = qn_cpu_row(w->y, u->item->row0 + row / heads) + (size_t)head * d_v;
        const float *acc = total.acc + (size_t)r * v_ld;
        for (uint32_t d = 0; d < d_v; d++) y[d] = acc[d] / total.sum[r];
    }
}

/* ---- by unit ---- */

static void whole_unit(void *arg, uint32_t part, uint32_t thread)
{
    const attend *w = arg;
    unit u = find_unit(w, part);
    thread_area t = area_of(w, thread);
    gather_q(w, &u, t.q);
    clear(w, t.total, u.n_rows);
    uint32_t s0, s1, r0, r1;
    unit_splits(w, &u, &s0, &s1);
    for (uint32_t s = s0; s < s1; s++)
        if (split_partial(w, &u, s, &t, t.split, &r0, &r1)) merge(w, t.total, t.split, r0, r1);
    finish(w, &u, t.total, t.split);
}

/* ---- by split ---- */

/* Partial `slot` of a unit: slot 0 is the total of the rounds so far. */
static qn_attend_part partial_at(const attend *w, uint32_t i_unit, uint32_t slot)
{
    size_t at = ((size_t)i_unit * (w->n_splits + 1) + slot) * w->slot_floats;
    float *f = (float *)(void *)w->run->partials + at;
    return (qn_attend_part){f, f + w->tile_rows, f + 2 * w->tile_rows};
}

static void one_split(void *arg, uint32_t part, uint32_t thread)
{
    const attend *w = arg;
    uint32_t i = part / w->n_splits, s = part % w->n_splits, s0, s1, r0, r1;
    unit u = find_unit(w, i);
    unit_splits(w, &u, &s0, &s1);
    if (w->first_split + s < s0 || w->first_split + s >= s1) return;
    thread_area t = area_of(w, thread);
    gather_q(w, &u, t.q);
    split_partial(w, &u, w->first_split + s, &t, partial_at(w, i, 1 + s), &r0, &r1);
}

static void merge_unit(void *arg, uint32_t part, uint32_t thread)
{
    const attend *w = arg;
    unit u = find_unit(w, part);
    thread_area t = area_of(w, thread);
    qn_attend_part total = partial_at(w, part, 0);
    uint32_t s0, s1, r0, r1;
    unit_splits(w, &u, &s0, &s1);
    if (w->first_split == 0) clear(w, total, u.n_rows);
    for (uint32_t s = 0; s < w->n_splits; s++)
        if (split_rows(w, &u, w->first_split + s, &r0, &r1, t.lo, t.hi))
            merge(w, total, partial_at(w, part, 1 + s), r0, r1);
    if (w->first_split + w->n_splits >= s1 && w->first_split < s1) finish(w, &u, total, t.split);
}

/* ---- choosing ---- */

/* Largest number of splits of an item, and multiply-adds of a KV head's rows, roughly. */
static uint32_t most_splits(const attend *w, uint64_t *work)
{
    uint32_t most = 0;
    const qn_batch *b = w->run->base.batch;
    *work = 0;
    for (uint32_t i = 0; i < b->n_items; i++) {
        uint32_t end = b->items[i].n_past + b->items[i].n_new;
        uint32_t n = (end - 1) / QN_KV_SPLIT + 1 + (w->keep > 0);
        if (n > most) most = n;
        uint32_t window = w->group->window, seen = window && window < end ? window : end;
        *work += (uint64_t)b->items[i].n_new * seen * (w->q_head + w->y_head);
    }
    *work *= w->a->n_heads;
    return most;
}

static void set_tiles(attend *w, uint32_t threads)
{
    const qn_batch *b = w->run->base.batch;
    for (w->tile_rows = QN_ATTEND_ROWS;; w->tile_rows /= 2) {
        w->n_units = 0;
        for (uint32_t i = 0; i < b->n_items; i++)
            w->n_units += item_tiles(w, &b->items[i]) * w->layer->n_kv_heads;
        if (w->n_units >= PARTS_PER_THREAD * threads || w->tile_rows <= LEAST_TILE_ROWS) return;
    }
}

static void by_split(attend *w, uint32_t n_splits, uint32_t room)
{
    qn_pool *pool = w->run->cpu->pool;
    w->n_splits = n_splits < room ? n_splits : room;
    size_t bytes = w->n_units * (w->n_splits + 1) * w->slot_floats * sizeof(float);
    if (bytes > w->run->partials_peak) w->run->partials_peak = bytes;
    for (w->first_split = 0; w->first_split < n_splits; w->first_split += w->n_splits) {
        qn_pool_run(pool, one_split, w, w->n_units * w->n_splits);
        qn_pool_run(pool, merge_unit, w, w->n_units);
    }
}

/* What a thread's scratch and the partials must hold for this layer and the run's limits: by split
 * there are fewer than PARTS_PER_THREAD units a thread, of LEAST_TILE_ROWS rows. */
static void measure(const attend *w, uint32_t threads)
{
    qn_cpu_need *need = &w->run->need;
    const size_t area = area_bytes(w), n_splits = w->run->limits.max_positions / QN_KV_SPLIT + 1;
    if (area > need->thread) need->thread = area;
    if (threads == 1 || n_splits == 1) return;
    size_t bytes = (PARTS_PER_THREAD * threads - 1) * (n_splits + 1) * LEAST_TILE_ROWS *
                   (w->v_ld + 2) * sizeof(float);
    bytes = bytes < QN_CPU_PARTIAL_BYTES ? (bytes + 63) / 64 * 64 : QN_CPU_PARTIAL_BYTES;
    if (bytes > need->partials) need->partials = bytes;
}

qn_tensor qn_cpu_attend(qn_run *r, qn_tensor q, const qn_attend *a)
{
    qn_cpu_run *run = (qn_cpu_run *)r;
    const qn_kv *kv = r->kv;
    qn_check(a->layer < kv->spec.n_layers);
    const qn_kv_layer *l = &kv->spec.layers[a->layer];
    qn_check(l->n_kv_heads && a->n_heads && a->n_heads % l->n_kv_heads == 0);
    const uint32_t q_head = l->latent ? l->d_k + l->d_v : l->d_k, y_head = l->latent ? l->d_k : l->d_v;
    qn_check(q.rows == r->batch->n_tokens && q.cols == a->n_heads * q_head);
    qn_check(!a->sinks.addr || a->sinks.cols == a->n_heads);
    const qn_kv_group *g = &kv->spec.groups[l->group];
    attend w = {.run = run, .kv = kv, .layer = l, .place = &kv->place[a->layer], .a = a, .q = q,
                .y = qn_cpu_take(run, q.rows, a->n_heads * y_head),
                .q_head = q_head, .y_head = y_head, .v_ld = (y_head + 15) & ~15u,
                .group_heads = a->n_heads / l->n_kv_heads,
                .group = g, .keep = g->keep};
    uint32_t threads = qn_pool_threads(run->cpu->pool);
    if (run->measures) {
        measure(&w, threads);
        return w.y;
    }
    set_tiles(&w, threads);
    uint64_t work;
    uint32_t n_splits = most_splits(&w, &work);
    w.slot_floats = (size_t)w.tile_rows * (w.v_ld + 2);
    size_t room = run->need.partials / sizeof(float) / (w.slot_floats * w.n_units);
    if (threads == 1 || work < SMALL_WORK) {
        for (uint32_t i = 0; i < w.n_units; i++) whole_unit(&w, i, 0);
    } else if (w.n_units < PARTS_PER_THREAD * threads && n_splits > 1 && room >= 2) {
        by_split(&w, n_splits, (uint32_t)room - 1);
    } else {
        qn_pool_run(run->cpu->pool, whole_unit, &w, w.n_units);
    }
    return w.y;
}
