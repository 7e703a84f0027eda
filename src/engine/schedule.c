/* schedule.c - which rows run in the next step (spec engine 5.3).
 *
 * A row knows `len` tokens and has the KV of the first `computed`. Whatever lies between is work:
 * one token when it decodes, a chunk when it prefills (also after a preemption, when prompt and
 * generated tokens are computed again). The step whose chunk reaches `len` samples the next token.
 */
#include <assert.h>

#include "core/clock.h"
#include "core/log.h"
#include "engine/internal.h"

enum { GROWTH_RESERVE = 4096 }; /* tokens that admission keeps free for a row's reply */

/* Most blocks of group k that a row holds at once at full length. One may have to be copied, because the
 * prefix tree has it too. */
static uint64_t whole_need(const qn_engine *e, const qn_gen *g, uint32_t k)
{
    return 1u + qn_blocks_need(e->blocks, k, g->n_prompt + g->max_tokens, e->o.step_tokens);
}

/* As fits, with the whole length of every row, and no block counted as shared: rows that start from the
 * same blocks of a window leave them and take their own. Whatever no row holds can be evicted, so none
 * of them will ever be preempted. */
static bool fits_strictly(const qn_engine *e, const qn_gen *g)
{
    for (uint32_t k = 0; k < e->kv.n_groups; k++) {
        uint64_t need = whole_need(e, g, k);
        for (uint32_t i = 0; i < e->n_rows; i++) need += whole_need(e, e->rows[i], k);
        if (need > qn_blocks_total(e->blocks, k)) return false;
    }
    return true;
}

static bool fits(const qn_engine *e, const qn_gen *g)
{
    if (e->o.strict_kv) return fits_strictly(e, g);
    uint32_t reply = g->max_tokens - g->n_generated;
    if (reply > GROWTH_RESERVE) reply = GROWTH_RESERVE;
    uint32_t shared[QN_MAX_KV_GROUPS] = {0};
    if (e->prefix && !g->given && !g->start)
        qn_prefix_known(e->prefix, g->cache_space, g->tokens, g->len - 1, shared);
    for (uint32_t k = 0; k < e->kv.n_groups; k++) {
        uint32_t need = qn_blocks_need(e->blocks, k, g->len + reply, e->o.step_tokens);
        uint32_t most = qn_blocks_total(e->blocks, k);
        if (need > most) need = most; /* submit made sure that the row fits alone */
        if (!qn_blocks_slides(e->blocks, k)) need -= shared[k] < need ? shared[k] : need;
        if (need > qn_blocks_available(e->blocks, k) + qn_blocks_cached(e->blocks, k)) return false;
    }
    return true;
}

static void trace_admission(qn_gen *g, double ready_ms)
{
    const double start = g->admit_ms, now = qn_now_ms();
    const qn_span spans[] = {
        {"engine.admission_wait", g->submit_ms, start, NULL, -1, -1, -1, -1, false},
        {"prefill.batch_setup", start, now, NULL, -1, -1, -1, -1, false},
        {"prefill.kv_maintenance", start, ready_ms, "initial", -1, -1, -1, -1, false},
        {"cache.lookup_restore", ready_ms, now, NULL, -1, g->computed, -1, -1, false},
    };
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) qn_trace_add(g->trace, &spans[i]);
}

bool qn_gen_is_wide(const qn_gen *g)
{
    return (g->prompt_logprobs || g->hidden_kind == QN_HIDDEN_ALL) && g->computed < g->n_prompt;
}

static bool decodes(const qn_gen *g)
{
    return g->len - g->computed == 1 && g->computed > 0 && !qn_gen_is_wide(g);
}

bool qn_gen_can_run(qn_gen *g)
{
    uint32_t n = 2 + (qn_gen_is_wide(g) ? QN_WIDE_OUT : 0);
    bool room = qn_gen_room(g, n);
    if (!room) {
        atomic_store(&g->paused, true);
        /* The reader may have made room before it could see the flag: look again. */
        room = qn_gen_room(g, n) && atomic_exchange(&g->paused, false);
    }
    if (room) g->paused_ms = 0;
    else if (!g->paused_ms) g->paused_ms = qn_now_ms();
    return room;
}

/* The next row in line, behind `*prev` (NULL: at the head). One that gave its blocks back while its reader
 * slept is passed over for as long as that lasts. */
static qn_gen *next_in_line(qn_engine *e, qn_gen **prev)
{
    *prev = NULL;
    qn_gen *g = e->queue;
    while (g && g->was_parked && !qn_gen_can_run(g)) {
        *prev = g;
        g = g->next;
    }
    return g;
}

void qn_engine_admit(qn_engine *e)
{
    qn_gen *g, *prev;
    /* A row that starts from a file waits until nobody else holds blocks: its own must fit at once. */
    while (e->n_rows < e->o.max_rows && (g = next_in_line(e, &prev)) &&
           (e->n_rows == 0 || (!g->start && fits(e, g)))) {
        qn_engine_unqueue(e, prev, g);
        g->was_parked = false;
        g->state = QN_ROW_RUNNING;
        bool again = g->admit_ms != 0;
        if (!again) g->admit_ms = qn_now_ms();
        double ready_ms = g->trace ? qn_now_ms() : 0;
        qn_engine_start_row(e, g);
        if (g->trace && !again) trace_admission(g, ready_ms);
        if (!again) {
            qn_gen_emit(g, &(qn_event){.kind = QN_EV_ADMITTED, .done = g->computed,
                                       .total = g->n_prompt, .stats = g->stats});
        }
        e->rows[e->n_rows] = g;
        atomic_fetch_add(&e->n_rows, 1);
    }
}

/* A running row gives its blocks back and waits at the head of the queue; its tokens are computed again
 * later, to the same bits. */
static void preempt(qn_engine *e, uint32_t i)
{
    qn_gen *g = e->rows[i];
    qn_engine_stop_row(e, g, true); /* what nobody needs before it comes back is not computed twice */
    atomic_fetch_add(&e->preemptions, 1);
    g->computed = 0;
    g->n_planned = 0;
    g->state = QN_ROW_WAITING;
    g->next = e->queue;
    e->queue = g;
    if (!e->queue_tail) e->queue_tail = g;
    atomic_fetch_add(&e->n_queue, 1);
    qn_engine_remove_row(e, i);
}

/* The same for the most recently admitted row, unless that is `keep`. */
static bool preempt_after(qn_engine *e, const qn_gen *keep)
{
    uint32_t last = e->n_rows - 1;
    if (e->rows[last] == keep) return false;
    preempt(e, last);
    return true;
}

/* Evict cached blocks until n more tokens of row g fit. */
static void make_room(qn_engine *e, const qn_gen *g, uint32_t n)
{
    for (uint32_t k = 0; e->prefix && k < e->kv.n_groups; k++) {
        qn_prefix_make_room(e->prefix, k, qn_table_need(&g->table, e->blocks, k, g->computed, n));
    }
}

/* Reserve blocks for n tokens of row g, evicting cached ones and preempting younger rows if needed.
 */
static bool reserve(qn_engine *e, qn_gen *g, uint32_t n)
{
    make_room(e, g, n);
    while (!qn_table_extend(&g->table, e->blocks, g->computed, n)) {
        /* The last resort before a preemption: leaves that only make rows copy their own tail. */
        if (e->prefix && qn_prefix_flush(e->prefix)) continue;
        if (!preempt_after(e, g)) return false;
        make_room(e, g, n);
    }
    g->n_planned = n;
    return true;
}

/* Positions that a file brought in not quantized (qn_item). */
static uint32_t n_brought(const qn_gen *g)
{
    return g->start && !g->start->coded ? g->start->n_tokens : 0;
}

/* Where mlx-lm ends the forward pass that starts at g->computed, with a quantized cache: it prefills
 * in steps all but the last token of a prompt, which goes alone, as every token after it. There only
 * the side of quantized_start counts, so a preempted row may take them together. *whole: no cut
 * before that end. */
static uint32_t compat_end(const qn_engine *e, const qn_gen *g, bool *whole)
{
    uint32_t from = g->computed, last = g->n_prompt - 1, start = e->kv.quantized_start;
    if (start <= n_brought(g)) start = n_brought(g) + 1;
    *whole = from < last;
    if (qn_gen_is_wide(g)) return from + 1;
    if (from < last) return last - from > e->o.mlx_prefill ? from + e->o.mlx_prefill : last;
    return from < start && start < g->len ? start : g->len;
}

/* Tokens of row g's next chunk, at most `room`; *wide results per step are left for rows that want
 * one per position. */
static uint32_t chunk(const qn_engine *e, const qn_gen *g, uint32_t room, uint32_t *wide)
{
    bool whole = false;
    uint32_t from = g->computed, to = e->compat ? compat_end(e, g, &whole) : g->len,
             stop = qn_engine_stop_after(e, g, from);
    if (to > stop) to = stop;
    if (g->given && from < g->n_prompt && to > g->n_prompt) to = g->n_prompt;
    if (to - from > room) to = whole ? from : from + room;
    if (!qn_gen_is_wide(g)) return to - from;
    if (to - from > *wide) to = from + *wide;
    *wide -= to - from;
    return to - from;
}

/* Tokens of the step so far: reserving for one row may preempt another that had its share. */
static uint32_t planned(const qn_engine *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_rows; i++) n += e->rows[i]->n_planned;
    return n;
}

/* Reserve for decode rows first, then give what is left of the budget to prefill, oldest first.
 * Rows preempted on the way are the youngest, so e->n_rows may shrink while we walk. */
static uint32_t reserve_all(qn_engine *e)
{
    uint32_t n_prompts = 0, wide = QN_WIDE_OUT;
    if (e->prefix) qn_engine_adopt(e);
    for (uint32_t i = 0; i < e->n_rows; i++) e->rows[i]->n_planned = e->rows[i]->waits = 0;
    for (uint32_t i = 0; i < e->n_rows; i++) {
        qn_gen *g = e->rows[i];
        if (decodes(g) && qn_gen_can_run(g)) reserve(e, g, 1);
    }
    uint32_t n = planned(e), budget = n ? e->o.mixed_tokens : e->o.step_tokens;
    for (uint32_t i = 0; i < e->n_rows && n < budget && n_prompts < e->o.prefill_rows; i++) {
        qn_gen *g = e->rows[i];
        if (decodes(g) || !qn_gen_can_run(g)) continue;
        if ((g->waits = qn_engine_row_waits(e, i))) continue;
        uint32_t want = chunk(e, g, budget - n, &wide);
        if (!want) continue;
        n_prompts += reserve(e, g, want);
        n = planned(e);
    }
    return n;
}

/* No step could be planned. If a row can run, or one waits that could, others are in its way: the youngest
 * row whose reader sleeps gives its blocks and its place back. When there is none, submit let in what the
 * pools cannot hold: the oldest row ends, so that the others do not wait with it for ever. False: nobody
 * can run. */
static bool make_way(qn_engine *e)
{
    qn_gen *first = NULL, *prev;
    uint32_t sleeper = UINT32_MAX;
    for (uint32_t i = 0; i < e->n_rows; i++) {
        if (e->rows[i]->paused_ms) sleeper = i;
        else if (!first) first = e->rows[i];
    }
    if (sleeper != UINT32_MAX && (first || next_in_line(e, &prev))) {
        e->rows[sleeper]->was_parked = true;
        preempt(e, sleeper);
        return true;
    }
    if (!first) return false;
    qn_err why = {0};
    qn_err_set(&why, QN_LIMIT, "no step can be planned for a row that has computed %u of %u tokens: the KV "
               "cache has %u free blocks, this is a bug", first->computed, first->len,
               qn_blocks_available(e->blocks, 0));
    qn_log(QN_ERROR, "%s", why.text);
    qn_engine_end_row(e, first, QN_FINISH_ERROR, &why);
    return true;
}

static void add_out(qn_plan *p, qn_gen *g, uint32_t row, uint32_t pos)
{
    qn_batch *b = &p->batch;
    p->out_rows[b->n_out] = row;
    p->out_pos[b->n_out] = pos;
    p->out_gen[b->n_out++] = g;
}

/* Positions of the item whose logits are wanted: for a reported prompt, for the next token. */
static void add_logits(qn_plan *p, qn_gen *g, const qn_item *it)
{
    uint32_t from = it->n_past, end = from + it->n_new;
    if (from < g->n_scored) from = g->n_scored;
    for (uint32_t pos = from; g->prompt_logprobs && pos < end && pos + 1 < g->n_prompt; pos++)
        add_out(p, g, it->row0 + pos - it->n_past, pos);
    if (end == g->len && g->n_generated < g->max_tokens) add_out(p, g, it->row0 + it->n_new - 1, end - 1);
}

static void add_hidden(qn_plan *p, qn_gen *g, const qn_item *it)
{
    if (!g->hidden_kind) return;
    uint32_t end = it->n_past + it->n_new, n_before = p->batch.n_out;
    for (uint32_t pos = it->n_past; pos < end; pos++) {
        if (g->hidden_kind == QN_HIDDEN_ALL || pos + 1 == g->n_prompt)
            add_out(p, g, it->row0 + pos - it->n_past, pos);
    }
    p->batch.n_hidden += p->batch.n_out - n_before;
}

/* The first position that mlx-lm computes in a call of one token: the prompt's last, and the one
 * before where that alone is left of its prefill's calls. A row's own, so that its bits do
 * not depend on our steps. A file's tokens are none of its calls. 0: a row that generates
 * nothing, and leaves no file either, compares with a plain call of the model. */
static uint32_t decode_from(const qn_engine *e, const qn_gen *g)
{
    const uint32_t n = g->n_prompt - 1, n_stored = g->start ? g->start->n_tokens : 0;
    if (!g->max_tokens && !g->keep) return n ? 0 : 1;
    if (e->o.mlx_prefill == 1) return 1;
    const uint32_t from = (n - n_stored) % e->o.mlx_prefill == 1 ? n - 1 : n;
    return from ? from : 1;
}

static void add_item(qn_engine *e, qn_gen *g)
{
    qn_plan *p = &e->plan;
    qn_batch *b = &p->batch;
    qn_item *it = &p->items[b->n_items];
    *it = (qn_item){.row0 = b->n_tokens,
                    .n_new = g->n_planned,
                    .n_past = g->computed,
                    .state = g->state_slot,
                    .decode_from = decode_from(e, g),
                    .n_brought = n_brought(g)};
    if (g->given && g->computed < g->n_prompt)
        it->given = g->given + (size_t)g->computed * e->model->info.d_model;
    qn_table_view(&g->table, e->blocks, it);
    p->item_gen[b->n_items++] = g;
    for (uint32_t i = 0; i < g->n_planned; i++) {
        p->ids[b->n_tokens + i] = g->tokens[g->computed + i];
        p->pos[b->n_tokens + i] = g->computed + i;
    }
    b->n_tokens += g->n_planned;
    add_logits(p, g, it);
}

bool qn_engine_plan(qn_engine *e)
{
    qn_plan *p = &e->plan;
    p->batch = (qn_batch){.ids = p->ids, .pos = p->pos, .items = p->items, .out_rows = p->out_rows};
    uint32_t n;
    while (!(n = reserve_all(e)) && make_way(e)) qn_engine_admit(e);
    if (e->audit) qn_check(qn_engine_sound(e));
    if (n == 0) return false;
    for (uint32_t i = 0; i < e->n_rows; i++) {
        if (e->rows[i]->n_planned) add_item(e, e->rows[i]);
    }
    for (uint32_t i = 0; i < p->batch.n_items; i++) add_hidden(p, p->item_gen[i], &p->items[i]);
    assert(p->batch.n_out <= e->o.max_rows + QN_WIDE_OUT);
    assert(p->batch.n_tokens <= e->o.step_tokens);
    return p->batch.n_tokens > 0;
}
