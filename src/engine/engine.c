/* engine.c - the engine thread, its inbox, and one step after another. */
#include "engine/engine.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/rt.h"
#include "engine/internal.h"

enum {
    DEFAULT_ROWS = 8,
    DEFAULT_QUEUE = 256,
    DEFAULT_STEP = 512,
    DEFAULT_MIXED = 256,
    DEFAULT_BLOCK = 64,
    DEFAULT_POSITIONS = 32768,
    DEFAULT_PREFILL_ROWS = 8,
    MAX_ROWS = 1024
};

/* ---- sizes ---- */

static uint32_t or_default(uint32_t v, uint32_t dflt)
{
    return v ? v : dflt;
}

static qn_code fill_opts(qn_engine *e, const qn_engine_opts *opts, qn_err *err)
{
    qn_engine_opts *o = &e->o;
    if (opts) *o = *opts;
    o->max_rows = or_default(o->max_rows, DEFAULT_ROWS);
    o->max_queue = or_default(o->max_queue, DEFAULT_QUEUE);
    o->step_tokens = or_default(o->step_tokens, DEFAULT_STEP);
    o->mixed_tokens =
        or_default(o->mixed_tokens, o->step_tokens < DEFAULT_MIXED ? o->step_tokens : DEFAULT_MIXED);
    o->block_tokens = or_default(o->block_tokens, DEFAULT_BLOCK);
    o->prefill_rows = or_default(o->prefill_rows, DEFAULT_PREFILL_ROWS);
    o->mlx_prefill = or_default(o->mlx_prefill, QN_MLX_PREFILL);
    uint32_t own = or_default(e->model->info.max_positions, DEFAULT_POSITIONS);
    o->max_positions = or_default(o->max_positions, own);
    if (o->max_rows > MAX_ROWS)
        return qn_err_set(err, QN_INVALID, "%u rows at once, must be at most %d", o->max_rows,
                          MAX_ROWS);
    if (o->block_tokens < 16 || o->block_tokens > 256 ||
        (o->block_tokens & (o->block_tokens - 1))) {
        return qn_err_set(err, QN_INVALID, "KV block size %u, must be 16, 32, 64, 128 or 256",
                          o->block_tokens);
    }
    if (e->compat) {
        uint32_t piece = o->max_positions < o->mlx_prefill ? o->max_positions : o->mlx_prefill;
        o->mixed_tokens = o->step_tokens = piece + o->max_rows;
    }
    if (o->mixed_tokens < o->max_rows) o->mixed_tokens = o->max_rows;
    if (o->step_tokens < o->mixed_tokens) o->step_tokens = o->mixed_tokens;
    return QN_OK;
}

/* Blocks of a group for max_rows rows at full length, and their bytes. */
static uint64_t full_need(const qn_engine *e, uint32_t g, uint32_t *n_blocks)
{
    uint64_t n = e->o.max_positions, window = e->kv.groups[g].window;
    if (window) window += e->kv.groups[g].keep + e->o.block_tokens;
    if (window && n > window + e->o.step_tokens) n = window + e->o.step_tokens;
    *n_blocks = (uint32_t)((n / e->o.block_tokens + 3) * e->o.max_rows);
    return *n_blocks * (uint64_t)e->model->dev->ops->kv_block_bytes(e->model->dev, &e->kv, g);
}

/* Blocks per group: enough for every row at full length, else what the memory holds. Windows are
 * small and get all they need, if that leaves at least half for the groups that grow with the
 * context. */
static qn_code plan_pools(qn_engine *e, uint64_t budget, uint32_t *n_blocks, qn_err *err)
{
    uint64_t windows = 0, full = 0;
    for (uint32_t g = 0; g < e->kv.n_groups; g++) {
        uint64_t bytes = full_need(e, g, &n_blocks[g]);
        if (e->kv.groups[g].window) windows += bytes;
        else full += bytes;
    }
    if (windows + full <= budget) return QN_OK;
    bool keep_windows = windows <= budget / 2;
    double share = keep_windows ? (double)(budget - windows) / (double)full
                                : (double)budget / (double)(windows + full);
    for (uint32_t g = 0; g < e->kv.n_groups; g++) {
        if (e->kv.groups[g].window && keep_windows) continue;
        n_blocks[g] = (uint32_t)(n_blocks[g] * share);
        if (n_blocks[g] < 4) {
            return qn_err_set(
                err, QN_LIMIT,
                "%llu bytes for the KV cache hold fewer than 4 blocks; give it more or lower "
                "the context length",
                (unsigned long long)budget);
        }
    }
    return QN_OK;
}

/* The longest sequence that the pools can hold: never promise more than that. */
static void cap_positions(qn_engine *e)
{
    e->asked_positions = e->o.max_positions;
    for (uint32_t g = 0; g < e->kv.n_groups; g++) {
        uint32_t total = qn_blocks_total(e->blocks, g);
        if (qn_blocks_need(e->blocks, g, e->o.max_positions, e->o.step_tokens) <= total) continue;
        e->o.max_positions = total * e->o.block_tokens;
    }
}

static qn_code allocate(qn_engine *e, qn_err *err)
{
    uint32_t n_blocks[QN_MAX_KV_GROUPS] = {0};
    e->kv = e->model->kv;
    e->kv.block_tokens = e->o.block_tokens;
    const qn_run_limits limits = {
        .max_tokens = e->o.step_tokens, .max_items = e->o.max_rows,
        .max_out = e->o.max_rows + QN_WIDE_OUT, .max_positions = e->o.max_positions,
    };
    qn_engine_note_base(e);
    qn_code rc = qn_model_run_new(&e->run, e->model, &e->kv, &limits, err);
    if (!rc) rc = qn_desk_new(&e->desk, e->model->info.n_vocab, err);
    if (rc) return rc;
    size_t arena, used;
    e->model->dev->ops->run_bytes(e->run, &arena, &used);
    e->arena_bytes = arena;
    e->page_bytes = e->model->dev->ops->page_bytes(e->model->dev);
    uint64_t budget;
    if ((rc = qn_engine_kv_budget(e, &budget, err))) return rc;
    qn_engine_plan_states(e, budget);
    if (e->kv.n_states && (!e->o.kv_bytes || e->o.memory_bytes)) { /* they come out of it */
        uint64_t states = e->kv.n_states *
                          (uint64_t)e->model->dev->ops->state_bytes(e->model->dev, &e->kv);
        budget -= states < budget ? states : budget;
    }
    if ((rc = plan_pools(e, budget, n_blocks, err))) return rc;
    if ((rc = qn_blocks_new(&e->blocks, e->model->dev, &e->kv, n_blocks, err))) return rc;
    cap_positions(e);
    if ((rc = qn_engine_open_stored(e, err))) return rc;
    size_t tokens = e->o.step_tokens, rows = e->o.max_rows, outs = rows + QN_WIDE_OUT;
    if ((rc = e->model->dev->ops->run_open(e->run, err))) return rc;
    qn_plan *p = &e->plan;
    p->ids = calloc(tokens, sizeof *p->ids);
    p->pos = calloc(tokens, sizeof *p->pos);
    p->items = calloc(rows, sizeof *p->items);
    p->out_rows = calloc(outs, sizeof *p->out_rows);
    p->out_pos = calloc(outs, sizeof *p->out_pos);
    p->item_gen = calloc(rows, sizeof(qn_gen *));
    p->out_gen = calloc(outs, sizeof(qn_gen *));
    e->rows = calloc(rows, sizeof(qn_gen *));
    if (p->ids && p->pos && p->items && p->out_rows && p->out_pos && p->item_gen && p->out_gen &&
        e->rows)
        return QN_OK;
    return qn_err_set(err, QN_NOMEM, "engine: out of memory");
}

/* ---- rows ---- */

static double per_second(double n, double ms)
{
    return ms > 0 ? n * 1000 / ms : 0;
}

/* Token 0 ends the prompt's time and is free on the decode clock (spec engine 1.2). */
static void count_time(qn_gen *g)
{
    qn_gen_stats *s = &g->stats;
    double now = qn_now_ms(), admit = g->admit_ms ? g->admit_ms : now,
           first = g->first_ms ? g->first_ms : now;
    s->queue_ms = admit - g->submit_ms;
    s->prefill_ms = first - admit;
    s->decode_ms = g->last_ms > first ? g->last_ms - first : 0;
    s->generated_tokens = g->n_generated;
    s->stored_tokens = g->computed;
    s->prefill_tok_s = per_second(s->prompt_tokens - s->cached_tokens, s->prefill_ms);
    s->decode_tok_s = per_second(s->generated_tokens, s->decode_ms);
}

void qn_engine_retire(qn_engine *e, qn_gen *g, qn_finish finish, const qn_err *why)
{
    g->state = QN_ROW_DONE;
    qn_engine_stop_row(e, g, finish != QN_FINISH_ERROR);
    count_time(g);
    g->finish = finish;
    qn_event ev = {.kind = QN_EV_DONE, .finish = finish, .stats = g->stats};
    if (why) ev.err = *why;
    atomic_fetch_add(&e->finished, 1);
    qn_gen_emit(g, &ev);
    g->next = e->ended;
    e->ended = g;
}

/* Give back the memory of rows that have ended, after the step: freeing may take a lock. */
static void reap(qn_engine *e)
{
    while (e->ended) {
        qn_gen *g = e->ended;
        e->ended = g->next;
        qn_table_release(&g->table, e->blocks);
        if (g->trace) {
            qn_trace_print(g->trace, g->finish == QN_FINISH_ERROR       ? "error"
                                     : g->finish == QN_FINISH_CANCELLED ? "abort"
                                                                        : "success", qn_now_ms());
        }
        qn_gen_leave(g);
    }
}

void qn_engine_remove_row(qn_engine *e, uint32_t i)
{
    memmove(&e->rows[i], &e->rows[i + 1], (e->n_rows - i - 1) * sizeof(qn_gen *));
    atomic_fetch_sub(&e->n_rows, 1);
}

void qn_engine_unqueue(qn_engine *e, qn_gen *prev, qn_gen *g)
{
    if (prev) prev->next = g->next;
    else e->queue = g->next;
    if (e->queue_tail == g) e->queue_tail = prev;
    g->next = NULL;
    atomic_fetch_sub(&e->n_queue, 1);
}

void qn_engine_end_row(qn_engine *e, qn_gen *g, qn_finish finish, const qn_err *why)
{
    for (uint32_t i = 0; i < e->n_rows; i++) {
        if (e->rows[i] != g) continue;
        qn_engine_remove_row(e, i);
        qn_engine_retire(e, g, finish, why);
        return;
    }
}

/* The chunk that was just computed, and the whole prompt with the last one. */
static void trace_chunk(const qn_engine *e, qn_gen *g)
{
    const uint32_t from = g->computed, to = from + g->n_planned;
    const bool final = to >= g->n_prompt;
    const double now = qn_now_ms();
    qn_trace_add(g->trace, &(qn_span){"prefill.chunk", e->step_ms, now, NULL, -1, -1, from,
                                      g->n_planned, final});
    if (!final) return;
    g->prompt_ms = now;
    qn_trace_add(g->trace, &(qn_span){"prefill.total", g->admit_ms, now, NULL, g->n_prompt,
                                      g->stats.cached_tokens, -1, -1, false});
}

/* The planned tokens are stored now: advance, report progress of prompts, release old windows. */
static void advance(qn_engine *e)
{
    const qn_plan *p = &e->plan;
    for (uint32_t i = 0; i < p->batch.n_items; i++) {
        qn_gen *g = p->item_gen[i];
        bool prompt = g->computed < g->n_prompt && g->n_generated == 0;
        if (prompt && g->trace) trace_chunk(e, g);
        uint32_t before = g->computed;
        g->computed += g->n_planned;
        qn_engine_keep(e, g, before);
        qn_table_slide(&g->table, e->blocks, g->computed);
        if (!prompt) continue;
        uint32_t done = g->computed < g->n_prompt ? g->computed : g->n_prompt;
        atomic_fetch_add(&e->prompt_tokens, g->n_planned);
        qn_gen_emit(g, &(qn_event){.kind = QN_EV_PROGRESS, .done = done, .total = g->n_prompt,
                                   .stats = g->stats});
    }
}

/* Rows that asked for no tokens end when their prompt is stored. */
static void finish_prefill_only(qn_engine *e)
{
    for (uint32_t i = e->n_rows; i-- > 0;) {
        qn_gen *g = e->rows[i];
        if (g->max_tokens == 0 && g->computed == g->len) qn_engine_end_row(e, g, QN_FINISH_LENGTH, NULL);
    }
}

/* Nothing of a failed step is kept: what its rows stored before is in the tree, or goes with them. */
static void fail_batch(qn_engine *e, const qn_err *why)
{
    qn_log(QN_ERROR, "step failed: %s", why->text);
    for (uint32_t i = 0; i < e->plan.batch.n_items; i++)
        qn_engine_end_row(e, e->plan.item_gen[i], QN_FINISH_ERROR, why);
}

static void begin_traces(qn_engine *e)
{
    e->step_ms = qn_now_ms();
    for (uint32_t i = 0; i < e->n_rows && e->n_rows > 1; i++) qn_trace_shared(e->rows[i]->trace);
}

/* After a step that computed prompts: how far they are, and what memory that takes. */
static void log_memory(const qn_engine *e)
{
    const double gib = 1u << 30;
    qn_memory m;
    qn_engine_memory(e, &m);
    for (uint32_t i = 0; i < e->plan.batch.n_items; i++) {
        const qn_item *it = &e->plan.items[i];
        if (it->n_past >= e->plan.item_gen[i]->n_prompt) continue;
        fprintf(stderr,
                "[prefill-mem] position %u active %.3f GiB peak %.3f GiB terms %.3f GiB planned "
                "%.3f GiB\n",
                it->n_past + it->n_new, (double)m.resident / gib, (double)m.resident_peak / gib,
                (double)m.used_sum / gib, (double)m.planned_sum / gib);
    }
}

/* One step: forward, sample, commit. */
static void step(qn_engine *e)
{
    qn_err err = {0};
    const qn_ops *ops = e->model->dev->ops;
    if (e->traces) begin_traces(e);
    ops->begin(e->run, &e->plan.batch, qn_blocks_kv(e->blocks));
    qn_tensor hidden, logits = e->model->ops->forward(e->model, e->run, &hidden);
    const float *states = e->plan.batch.n_hidden ? ops->fetch(e->run, hidden) : NULL;
    float *rows = e->plan.batch.n_out > e->plan.batch.n_hidden ? ops->fetch(e->run, logits) : NULL;
    if (ops->end(e->run, &err)) {
        fail_batch(e, &err);
    } else {
        advance(e);
        qn_engine_outputs(e, rows, logits.dtype, states);
        finish_prefill_only(e);
    }
    atomic_fetch_add(&e->steps, 1);
    qn_engine_count_stored(e);
}

/* ---- the thread ---- */

/* The time when a row whose reader sleeps is given up, if that is before `until`; 0: never. */
static double earlier(const qn_engine *e, const qn_gen *g, double until)
{
    if (!e->o.sink_timeout_ms || !g->paused_ms) return until;
    double t = g->paused_ms + e->o.sink_timeout_ms;
    return until && until < t ? until : t;
}

/* Sleep until there is something to look at, or a paused row's time is over. Under the lock. */
static void sleep_idle(qn_engine *e)
{
    double until = 0;
    for (uint32_t i = 0; i < e->n_rows; i++) until = earlier(e, e->rows[i], until);
    for (const qn_gen *g = e->queue; g; g = g->next) until = earlier(e, g, until);
    struct timespec at = {.tv_sec = (time_t)(until / 1000)};
    at.tv_nsec = (long)((until - (double)at.tv_sec * 1000) * 1e6);
    int rc = 0;
    while (!rc && !e->woken && !e->stopping && !e->inbox && !e->jobs) {
        rc = until ? pthread_cond_timedwait(&e->wake, &e->lock, &at)
                   : pthread_cond_wait(&e->wake, &e->lock);
    }
}

/* Move submissions to the queue. With wait, sleep until there is something to look at. Returns
 * false when the engine is to stop. */
static bool collect(qn_engine *e, bool wait)
{
    pthread_mutex_lock(&e->lock);
    if (wait) sleep_idle(e);
    e->woken = false;
    qn_gen *first = e->inbox, *last = e->inbox_tail;
    uint32_t n = e->n_inbox;
    e->inbox = e->inbox_tail = NULL;
    e->n_inbox = 0;
    bool go_on = !e->stopping;
    atomic_fetch_add(&e->n_queue, n);
    pthread_mutex_unlock(&e->lock);
    if (first) {
        if (e->queue_tail) e->queue_tail->next = first;
        else e->queue = first;
        e->queue_tail = last;
    }
    return go_on;
}

static void drop_if_stuck(qn_engine *e, qn_gen *g, qn_gen *prev, double now)
{
    if (!g->paused_ms || qn_gen_can_run(g) || now - g->paused_ms < e->o.sink_timeout_ms) return;
    qn_err why = {0};
    qn_err_set(&why, QN_CANCELLED, "nobody took this generation's events for %u ms",
               e->o.sink_timeout_ms);
    if (g->state == QN_ROW_RUNNING) {
        qn_engine_end_row(e, g, QN_FINISH_CANCELLED, &why);
    } else {
        qn_engine_unqueue(e, prev, g);
        qn_engine_retire(e, g, QN_FINISH_CANCELLED, &why);
    }
}

/* Cancel rows whose reader has taken nothing for too long: they hold blocks that others need. */
static void drop_stuck(qn_engine *e)
{
    if (!e->o.sink_timeout_ms) return;
    double now = qn_now_ms();
    for (uint32_t i = e->n_rows; i-- > 0;) drop_if_stuck(e, e->rows[i], NULL, now);
    qn_gen *prev = NULL;
    for (qn_gen *g = e->queue, *next; g; g = next) {
        next = g->next;
        drop_if_stuck(e, g, prev, now);
        if (g->state == QN_ROW_WAITING) prev = g;
    }
}

static void drop_cancelled(qn_engine *e, bool all)
{
    for (uint32_t i = e->n_rows; i-- > 0;) {
        qn_gen *g = e->rows[i];
        qn_finish wish = (qn_finish)atomic_load(&g->cancel);
        if (!all && !wish) continue;
        qn_engine_remove_row(e, i);
        qn_engine_retire(e, g, wish ? wish : QN_FINISH_CANCELLED, NULL);
    }
    qn_gen *prev = NULL;
    for (qn_gen *g = e->queue, *next; g; g = next) {
        next = g->next;
        qn_finish wish = (qn_finish)atomic_load(&g->cancel);
        if (!all && !wish) {
            prev = g;
            continue;
        }
        qn_engine_unqueue(e, prev, g);
        qn_engine_retire(e, g, wish ? wish : QN_FINISH_CANCELLED, NULL);
    }
}

static void *engine_main(void *arg)
{
    qn_engine *e = arg;
    bool idle = true;
    while (collect(e, idle)) {
        drop_cancelled(e, false);
        drop_stuck(e);
        qn_engine_run_jobs(e, false);
        if (e->on_step) e->on_step(true);
        qn_engine_admit(e);
        idle = !qn_engine_plan(e);
        if (!idle) step(e);
        else qn_engine_count_stored(e);
        if (e->on_step) e->on_step(false);
        if (!idle && e->logs_memory) log_memory(e);
        reap(e);
    }
    drop_cancelled(e, true);
    qn_engine_run_jobs(e, true);
    reap(e);
    return NULL;
}

void qn_engine_wake(qn_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->woken = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

/* ---- the public calls ---- */

qn_code qn_engine_new(qn_engine **out, qn_model *model, const qn_engine_opts *opts, qn_err *err)
{
    *out = NULL;
    qn_engine *e = calloc(1, sizeof *e);
    if (!e) return qn_err_set(err, QN_NOMEM, "engine: out of memory");
    e->model = model;
    e->exact = model->dev->exact;
    e->traces = qn_rt_flag("P2R_TRACE", false);
    e->logs_memory = qn_rt_flag("PREFILL_MEM_LOG", false);
    for (uint32_t i = 0; e->exact && i < model->kv.n_layers; i++)
        e->compat |= qn_kv_quantized(model->kv.layers[i].k_codec) ||
                     qn_kv_quantized(model->kv.layers[i].v_codec);
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC); /* as qn_now_ms */
    pthread_cond_init(&e->wake, &clock);
    pthread_condattr_destroy(&clock);
    qn_code rc = fill_opts(e, opts, err);
    if (!rc) rc = allocate(e, err);
    if (!rc && pthread_create(&e->thread, NULL, engine_main, e)) {
        rc = qn_err_set(err, QN_IO, "engine: the system refused a thread");
    } else if (!rc) {
        e->has_thread = true;
    }
    if (rc) {
        qn_engine_free(e);
        return rc;
    }
    *out = e;
    return QN_OK;
}

void qn_engine_free(qn_engine *e)
{
    if (!e) return;
    if (e->has_thread) {
        pthread_mutex_lock(&e->lock);
        e->stopping = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    if (e->run) e->model->dev->ops->run_free(e->run);
    qn_prefix_free(e->prefix);
    qn_states_free(e->states);
    qn_blocks_free(e->blocks);
    qn_desk_free(e->desk);
    free(e->plan.ids);
    free(e->plan.pos);
    free(e->plan.items);
    free(e->plan.out_rows);
    free(e->plan.out_pos);
    free(e->plan.item_gen);
    free(e->plan.out_gen);
    free(e->rows);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
    free(e);
}

uint32_t qn_engine_max_positions(const qn_engine *e)
{
    return e->o.max_positions;
}

bool qn_engine_memory_binds(const qn_engine *e)
{
    return e->o.max_positions < e->asked_positions;
}

/* What is brought in from a file and what is to be left for one. */
static qn_code check_images(const qn_engine *e, const qn_request *req, uint32_t n_start,
                            qn_err *err)
{
    if (req->start && (req->embeddings || req->hidden || req->prompt_logprobs))
        return qn_err_set(err, QN_UNSUPPORTED,
                          "not supported yet: embeddings, hidden states or prompt logprobs after a "
                          "saved cache");
    if (req->keep && (req->max_tokens || req->keep->n_tokens != n_start + req->n_prompt))
        return qn_err_set(err, QN_INVALID,
                          "what is stored is kept of a prompt of %zu tokens without a reply: there "
                          "is room for %u, and max_tokens is %u",
                          req->n_prompt, req->keep->n_tokens, req->max_tokens);
    if ((req->start && req->start->coded && !qn_image_is_coded(&e->kv, n_start)) ||
        (req->keep && req->keep->coded != qn_image_is_coded(&e->kv, req->keep->n_tokens)))
        return qn_err_set(err, QN_INVALID,
                          "a saved cache holds %s where the KV cache, which is quantized from %u "
                          "tokens on, holds the other form",
                          req->keep && !req->keep->coded ? "floats" : "codes",
                          e->kv.quantized_start);
    return QN_OK;
}

static qn_code check_request(const qn_engine *e, const qn_request *req, qn_err *err)
{
    uint32_t n_start = req->start ? req->start->n_tokens : 0;
    if (req->n_prompt == 0)
        return qn_err_set(err, QN_INVALID, "the prompt is empty; it must have at least one token");
    if (req->hidden && req->max_tokens)
        return qn_err_set(err, QN_INVALID,
                          "hidden states are given without a reply only: max_tokens is %u, must be "
                          "0", req->max_tokens);
    qn_code rc = check_images(e, req, n_start, err);
    if (rc) return rc;
    uint64_t total = (uint64_t)n_start + req->n_prompt + req->max_tokens;
    if (total > e->o.max_positions && qn_engine_memory_binds(e)) {
        return qn_err_set(err, QN_LIMIT,
                          "memory_admission: %zu prompt tokens and %u to generate are more than the "
                          "%u tokens that the memory for the KV cache holds (the context length is "
                          "%u)",
                          req->n_prompt, req->max_tokens, e->o.max_positions, e->asked_positions);
    }
    if (total > e->o.max_positions) {
        return qn_err_set(err, QN_LIMIT,
                          "prompt too long: %zu prompt tokens and %u to generate are more than the "
                          "context length of %u",
                          req->n_prompt, req->max_tokens, e->o.max_positions);
    }
    for (size_t i = 0; i < req->n_prompt; i++) {
        if (req->prompt[i] >= e->model->info.n_vocab) {
            return qn_err_set(err, QN_INVALID,
                              "token id %u at position %zu of the prompt; ids must be below %u",
                              req->prompt[i], i, e->model->info.n_vocab);
        }
    }
    for (uint32_t g = 0; g < e->kv.n_groups; g++) {
        uint32_t need = qn_blocks_need(e->blocks, g, (uint32_t)total, e->o.step_tokens);
        if (need > qn_blocks_total(e->blocks, g)) {
            return qn_err_set(err, QN_LIMIT,
                              "memory_admission: %llu tokens need %u KV blocks, there are %u",
                              (unsigned long long)total, need, qn_blocks_total(e->blocks, g));
        }
    }
    return QN_OK;
}

/* Step 5 of the data path. */
qn_code qn_engine_submit(qn_engine *e, const qn_request *req, qn_gen **out, qn_err *err)
{
    *out = NULL;
    qn_code rc = check_request(e, req, err);
    if (rc) return rc;
    qn_gen *g;
    if ((rc = qn_gen_new(&g, e, req, e->model->info.n_vocab, err))) return rc;
    if ((rc = qn_table_init(&g->table, e->blocks, e->o.max_positions, err))) {
        qn_gen_leave(g);
        qn_gen_leave(g);
        return rc;
    }
    pthread_mutex_lock(&e->lock);
    uint32_t waiting = e->n_inbox + atomic_load(&e->n_queue);
    if (waiting + atomic_load(&e->n_rows) >= e->o.max_queue + e->o.max_rows) {
        pthread_mutex_unlock(&e->lock);
        qn_table_release(&g->table, e->blocks);
        qn_gen_leave(g);
        qn_gen_leave(g);
        return qn_err_set(err, QN_CANCELLED, "the queue is full: %u requests are waiting", waiting);
    }
    if (e->inbox_tail) e->inbox_tail->next = g;
    else e->inbox = g;
    e->inbox_tail = g;
    e->n_inbox++;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    atomic_fetch_add(&e->submitted, 1);
    *out = g;
    return QN_OK;
}

void qn_engine_stats_get(const qn_engine *e, qn_engine_stats *out)
{
    *out = (qn_engine_stats){
        .active_rows = e->n_rows,
        .waiting_rows = e->n_queue,
        .max_rows = e->o.max_rows,
        .submitted = e->submitted,
        .finished = e->finished,
        .prompt_tokens = e->prompt_tokens,
        .generated_tokens = e->generated_tokens,
        .steps = e->steps,
        .preemptions = e->preemptions,
        .cached_tokens = e->cached_tokens,
        .cache_entries = e->cache_entries,
        .kv_bytes_cached = e->kv_cached,
        .kv_bytes_used = e->kv_used,
        .kv_bytes_peak = e->kv_peak,
        .weights_bytes = e->model->dev->ops->weights_bytes(e->model->dev, NULL),
    };
    for (uint32_t g = 0; g < e->kv.n_groups; g++) {
        out->kv_bytes_total +=
            (uint64_t)qn_blocks_total(e->blocks, g) * qn_blocks_bytes(e->blocks, g);
    }
    if (e->states)
        out->kv_bytes_total += (uint64_t)qn_states_total(e->states) * qn_states_bytes(e->states);
    const uint64_t most = e->o.prefix_bytes;
    if (e->prefix) out->cache_bytes_max = most && most < out->kv_bytes_total ? most : out->kv_bytes_total;
}
