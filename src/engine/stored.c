/* stored.c - what rows keep in the KV pools and state slots: where a row starts, what it leaves for
 * others, and how rows that run together share work (spec engine 4.2).
 *
 * With recurrent layers a row can be continued from checkpoints only. They are taken where a chunk
 * ends at a stop: every checkpoint_tokens positions of a prompt, at the request's snapshot point or
 * before the prompt's last token, and where a row ends or is preempted. Where chunks end never
 * changes a row's tokens, so stops are free to follow what is likely to be asked for again.
 */
#include <assert.h>

#include "engine/internal.h"

enum {
    DEFAULT_CHECKPOINT_TOKENS = 2048,
    DEFAULT_CHECKPOINT_MIN = 256,
    MIN_CHECKPOINTS = 4,
    MAX_CHECKPOINTS = 64,
    CHECKPOINTS_OF_A_ROW = 16 /* a long prompt must not push out everybody else's */
};

/* ---- sizes ---- */

/* May rows share what others computed? Not, on `ref`, the keys behind a wrapped window, which depend
 * on where the other row's prompt ended (qn_item), nor latents, whose bits do so too, nor what was
 * computed beside a quantized cache, which depends on where it was cut. */
static bool can_share(const qn_engine *e)
{
    if (e->compat) return false;
    for (uint32_t g = 0; e->exact && g < e->kv.n_groups; g++) {
        if (e->kv.groups[g].rule == QN_KV_SLIDING) return false;
    }
    for (uint32_t i = 0; e->exact && i < e->kv.n_layers; i++) {
        if (e->kv.layers[i].latent) return false;
    }
    return !e->o.no_prefix_cache;
}

void qn_engine_plan_states(qn_engine *e, uint64_t kv_bytes)
{
    qn_engine_opts *o = &e->o;
    if (!o->checkpoint_tokens) o->checkpoint_tokens = DEFAULT_CHECKPOINT_TOKENS;
    if (!o->checkpoint_min) o->checkpoint_min = DEFAULT_CHECKPOINT_MIN;
    if (!e->kv.n_states) return;
    size_t bytes = e->model->dev->ops->state_bytes(e->model->dev, &e->kv);
    uint64_t n = bytes ? kv_bytes / 4 / bytes : 0;
    if (n < MIN_CHECKPOINTS) n = MIN_CHECKPOINTS;
    if (n > MAX_CHECKPOINTS) n = MAX_CHECKPOINTS;
    if (!o->max_checkpoints) o->max_checkpoints = (uint32_t)n;
    if (!can_share(e)) o->max_checkpoints = 0;
    e->kv.n_states = o->max_rows + o->max_checkpoints;
}

qn_code qn_engine_open_stored(qn_engine *e, qn_err *err)
{
    qn_device *dev = e->model->dev;
    qn_code rc = QN_OK;
    if (e->kv.n_states)
        rc = qn_states_new(&e->states, dev, qn_blocks_kv(e->blocks), e->kv.n_states,
                           dev->ops->state_bytes(dev, &e->kv), err);
    if (rc || !can_share(e)) return rc;
    qn_prefix_opts po = {.states = e->states,
                         .max_checkpoints = e->o.max_checkpoints,
                         .max_bytes = e->o.prefix_bytes,
                         .max_entries = e->o.prefix_entries};
    return qn_prefix_new(&e->prefix, e->blocks, &po, err);
}

/* ---- stops ---- */

/* Distance of the regular stops of a row. Doubling keeps those of different rows aligned. */
static uint32_t stop_distance(const qn_engine *e, const qn_gen *g)
{
    uint32_t n = e->o.checkpoint_tokens;
    while (g->n_prompt / n >= CHECKPOINTS_OF_A_ROW) n *= 2;
    return n;
}

/* The position at which the next turn of a conversation will most likely leave this prompt, and
 * beyond which the same prompt cannot be continued; 0: too little to be worth a step. */
static uint32_t snapshot_point(const qn_engine *e, const qn_gen *g)
{
    if (g->n_prompt - g->stats.cached_tokens < e->o.checkpoint_min) return 0;
    uint32_t last = g->n_prompt - 1;
    return g->snapshot_at && g->snapshot_at < last ? g->snapshot_at : last;
}

uint32_t qn_engine_stop_after(const qn_engine *e, const qn_gen *g, uint32_t pos)
{
    if (!e->prefix || !e->states || pos >= g->n_prompt) return UINT32_MAX;
    uint32_t step = stop_distance(e, g), regular = (pos / step + 1) * step,
             snapshot = snapshot_point(e, g);
    return snapshot > pos && snapshot < regular ? snapshot : regular;
}

/* ---- a row starts, goes on, and ends ---- */

/* A row has taken n tokens of its prompt; those of a row that was preempted were counted before. */
static void count_cached(qn_engine *e, qn_gen *g, uint32_t n)
{
    if (g->came_back) return;
    g->stats.cached_tokens += n;
    atomic_fetch_add(&e->cached_tokens, n);
}

/* Bring in what a file holds; there is room, since the row is alone and submit checked its size. */
static void load_start(qn_engine *e, qn_gen *g)
{
    uint32_t n = g->start->n_tokens;
    for (uint32_t k = 0; k < e->kv.n_groups; k++) {
        g->table.dropped[k] = qn_blocks_dropped(e->blocks, k, n);
        if (e->prefix)
            qn_prefix_make_room(e->prefix, k, qn_table_need(&g->table, e->blocks, k, 0, n));
    }
    qn_check(qn_table_extend(&g->table, e->blocks, 0, n));
    qn_image_load(g->start, e->model->dev, &e->kv, e->blocks, &g->table, g->state_slot);
    g->computed = n;
}

void qn_engine_start_row(qn_engine *e, qn_gen *g)
{
    g->computed = 0;
    if (e->states) {
        g->state_slot = qn_states_take(e->states);
        qn_check(g->state_slot != QN_NO_STATE); /* there is one for every row */
    }
    /* Given embeddings and files: the ids do not tell what is stored. */
    if (!e->prefix || g->given || g->start) {
        if (e->states) qn_states_clear(e->states, g->state_slot);
        if (g->start) load_start(e, g);
        return;
    }
    /* Whoever wants a result at every position must compute every position; the last one is always
     * computed, since its logits are needed. */
    uint32_t limit = qn_gen_is_wide(g) ? 0 : g->len - 1;
    g->computed = qn_prefix_take(e->prefix, g->cache_space, g->tokens, limit, &g->table,
                                 g->state_slot, &g->place);
    g->came_back = g->was_admitted;
    g->was_admitted = true;
    count_cached(e, g, g->computed);
}

void qn_engine_keep(qn_engine *e, qn_gen *g, uint32_t before)
{
    if (!e->prefix) return;
    if (g->computed == qn_engine_stop_after(e, g, before)) {
        qn_prefix_checkpoint(e->prefix, g->tokens, g->computed, g->state_slot, false, &g->table,
                             &g->place);
    } else {
        qn_prefix_publish(e->prefix, g->tokens, g->computed, false, &g->table, &g->place);
    }
}

void qn_engine_stop_row(qn_engine *e, qn_gen *g, bool keep)
{
    if (g->keep && keep && g->computed == g->keep->n_tokens)
        qn_image_save(g->keep, e->model->dev, &e->kv, e->blocks, &g->table, g->state_slot);
    if (e->prefix) {
        if (keep && g->computed)
            qn_prefix_checkpoint(e->prefix, g->tokens, g->computed, g->state_slot, true, &g->table,
                                 &g->place);
        qn_prefix_leave(e->prefix, &g->place);
    }
    qn_table_clear(&g->table, e->blocks);
    if (e->states && g->state_slot != QN_NO_STATE) qn_states_unref(e->states, g->state_slot);
    g->state_slot = QN_NO_STATE;
    if (e->prefix) qn_prefix_trim(e->prefix);
}

/* ---- rows that run together ---- */

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static bool can_take(const qn_engine *e, const qn_gen *g)
{
    return e->prefix && !g->given && !g->start && !qn_gen_is_wide(g);
}

/* Of the first n tokens of row r, as many as another row could start from once r has them. */
static uint32_t usable(const qn_engine *e, const qn_gen *r, uint32_t n)
{
    if (!e->states) return n;
    uint32_t step = stop_distance(e, r), regular = n / step * step, snapshot = snapshot_point(e, r);
    return snapshot <= n && snapshot > regular ? snapshot : regular;
}

/* What older rows have for a row. */
typedef struct offer {
    uint32_t ready; /* tokens that the row `from` has stored */
    uint32_t later; /* as many or more, when a row that prefills has reached them */
    qn_gen *from;
} offer;

static offer find_offer(const qn_engine *e, uint32_t i)
{
    const qn_gen *g = e->rows[i];
    offer o = {0};
    for (uint32_t k = 0; k < i; k++) {
        qn_gen *r = e->rows[k];
        if (r->given || r->start || r->cache_space != g->cache_space) continue;
        uint32_t same = 0, most = min_u32(r->len, g->len - 1);
        /* Most rows differ here: too early to be of use (pays), or behind what all share. */
        uint32_t have = o.ready > g->computed ? o.ready : g->computed;
        if (have < e->o.block_tokens) have = e->o.block_tokens - 1;
        if (have >= most || r->tokens[have] != g->tokens[have]) continue;
        while (same < most && r->tokens[same] == g->tokens[same]) same++;
        uint32_t later = usable(e, r, same), ready = usable(e, r, min_u32(same, r->computed));
        bool prefills = r->len - r->computed > 1 && (r->n_planned || r->waits);
        if (!prefills) later = ready;
        if (later > o.later) o.later = later;
        if (ready <= o.ready) continue;
        o.ready = ready;
        o.from = r;
    }
    return o;
}

/* Is it worth a copy, and a wait, to start from n shared tokens? Not for a few that every prompt
 * begins with. */
static bool pays(const qn_engine *e, const qn_gen *g, uint32_t n)
{
    return n > g->computed && n >= e->o.block_tokens;
}

bool qn_engine_row_waits(qn_engine *e, uint32_t i)
{
    if (!can_take(e, e->rows[i]) || !pays(e, e->rows[i], e->rows[i]->len - 1)) return false;
    offer o = find_offer(e, i);
    return o.later > o.ready && pays(e, e->rows[i], o.later);
}

static void adopt(qn_engine *e, qn_gen *g, qn_gen *from)
{
    if (from && !e->states) /* its last tokens may lie in a block that is not full yet */
        qn_prefix_publish(e->prefix, from->tokens, from->computed, true, &from->table, &from->place);
    uint32_t limit = g->len - 1, before = g->computed;
    uint32_t known = qn_prefix_known(e->prefix, g->cache_space, g->tokens, limit, NULL);
    if (!pays(e, g, known)) return;
    qn_prefix_leave(e->prefix, &g->place);
    qn_table_clear(&g->table, e->blocks);
    g->computed = qn_prefix_take(e->prefix, g->cache_space, g->tokens, limit, &g->table,
                                 g->state_slot, &g->place);
    count_cached(e, g, g->computed - before);
}

void qn_engine_adopt(qn_engine *e)
{
    for (uint32_t i = 0; i < e->n_rows; i++) {
        qn_gen *g = e->rows[i];
        if (!can_take(e, g) || !pays(e, g, g->len - 1)) continue;
        offer o = find_offer(e, i);
        /* The row that this one stood behind may have ended: it left what it had to the tree. */
        if (o.later == o.ready && (!g->n_planned || pays(e, g, o.ready))) adopt(e, g, o.from);
    }
}

/* ---- counting ---- */

/* What the first n of `all` objects take in the device's pages. */
static uint64_t in_pages(const qn_engine *e, uint64_t n, uint64_t all, uint64_t bytes)
{
    const uint64_t up = (n * bytes + e->page_bytes - 1) / e->page_bytes * e->page_bytes;
    return up < all * bytes ? up : all * bytes;
}

void qn_engine_count_stored(qn_engine *e)
{
    uint64_t used = 0, cached = 0, touched = 0;
    size_t arena, arena_used;
    for (uint32_t g = 0; g < e->kv.n_groups; g++) {
        uint64_t n_cached = qn_blocks_cached(e->blocks, g);
        uint64_t n = qn_blocks_total(e->blocks, g) - qn_blocks_available(e->blocks, g) - n_cached;
        used += n * qn_blocks_bytes(e->blocks, g);
        cached += n_cached * qn_blocks_bytes(e->blocks, g);
        touched += in_pages(e, qn_blocks_touched(e->blocks, g), qn_blocks_total(e->blocks, g),
                            qn_blocks_bytes(e->blocks, g));
    }
    if (e->states) {
        uint64_t n_cached = e->prefix ? qn_prefix_checkpoints(e->prefix) : 0;
        uint64_t n = qn_states_total(e->states) - qn_states_available(e->states) - n_cached;
        used += n * qn_states_bytes(e->states);
        cached += n_cached * qn_states_bytes(e->states);
        atomic_store(&e->states_touched,
                     in_pages(e, qn_states_touched(e->states), qn_states_total(e->states),
                              qn_states_bytes(e->states)));
    }
    e->model->dev->ops->run_bytes(e->run, &arena, &arena_used);
    atomic_store(&e->arena_used, in_pages(e, arena_used, arena, 1));
    atomic_store(&e->kv_touched, touched);
    atomic_store(&e->kv_used, used);
    if (used + cached > e->kv_peak) atomic_store(&e->kv_peak, used + cached);
    atomic_store(&e->kv_cached, cached);
    if (e->prefix) atomic_store(&e->cache_entries, qn_prefix_entries(e->prefix));
}

/* What a planned row writes to must be its own. */
static bool row_sound(const qn_engine *e, const qn_gen *g)
{
    if (g->state != QN_ROW_RUNNING || g->computed > g->len) return false;
    if (g->n_planned > g->len - g->computed) return false;
    if (e->states && qn_states_holders(e->states, g->state_slot) != 1) return false;
    for (uint32_t k = 0; g->n_planned && k < e->kv.n_groups; k++) {
        if (qn_table_need(&g->table, e->blocks, k, g->computed, g->n_planned)) return false;
    }
    return true;
}

bool qn_engine_sound(qn_engine *e)
{
    uint32_t n_planned = 0;
    qn_blocks_audit_begin(e->blocks);
    for (uint32_t i = 0; i < e->n_rows; i++) {
        qn_table_audit(&e->rows[i]->table, e->blocks);
        if (!row_sound(e, e->rows[i])) return false;
        for (uint32_t k = 0; k < i; k++) {
            if (e->rows[k] == e->rows[i]) return false;
        }
        n_planned += e->rows[i]->n_planned;
    }
    if (n_planned > e->o.step_tokens || (e->prefix && !qn_prefix_audit(e->prefix))) return false;
    uint32_t held = e->n_rows + (e->prefix ? qn_prefix_checkpoints(e->prefix) : 0);
    if (e->states && qn_states_available(e->states) + held != qn_states_total(e->states))
        return false;
    return qn_blocks_audit_end(e->blocks);
}
