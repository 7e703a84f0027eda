/* generation.c - from a read request to the last byte of its reply.
 *
 * The preparing thread parses, renders and tokenises, so that a long prompt stalls no stream, and
 * submits to the engine. The pump (pump.c) takes the engine's events from there on and lets the
 * protocol turn them into bytes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "serve/exchange.h"
#include "serve/json.h"
#include "serve/sse.h"

enum { PREPARE_QUEUE = 64 }; /* requests waiting for the preparing thread */

/* ---- preparing ---- */

static void notify(void *user)
{
    qn_exchange_poke(user);
}

/* Clamp max_tokens to the context; refuse a prompt that leaves no room. */
static bool fit_context(qn_exchange *x, qn_http_error *e)
{
    qn_generation *g = &x->gen;
    uint32_t n_ctx = qn_engine_max_positions(x->server->opts.engine);
    if (g->prompt.len >= n_ctx) {
        return qn_fail_context(e, (uint32_t)g->prompt.len, n_ctx, x->server->opts.budget_binds,
                               x->route->protocol->prompt_param);
    }
    uint32_t room = n_ctx - (uint32_t)g->prompt.len;
    bool fits = g->fields.max_tokens >= 0 && g->fields.max_tokens < room;
    g->max_tokens = fits ? (uint32_t)g->fields.max_tokens : room;
    return true;
}

static bool submit(qn_exchange *x, qn_http_error *e)
{
    qn_generation *g = &x->gen;
    const qn_loaded *loaded = x->server->opts.loaded;
    qn_request req = {
        .prompt = g->prompt.data, .n_prompt = g->prompt.len, .max_tokens = g->max_tokens,
        .eos = loaded->eos, .n_eos = loaded->n_eos, .sampling = g->fields.sampling,
        .think = g->think, .snapshot_at = g->snapshot_at,
        .ignore_eos = g->fields.ignore_eos, .min_tokens = g->fields.min_tokens,
        .prompt_logprobs = g->fields.echo && g->fields.logprobs,
        .notify = notify, .user = x, .request_id = x->request_id,
        .route = x->path,
    };
    req.sampling.special = x->server->special;
    req.sampling.n_special = x->server->n_special;
    qn_err err = {0};
    if (qn_pieces_init(&g->pieces, loaded->tok, &g->output, g->fields.stops, g->fields.n_stops,
                       g->fields.logprobs, &err)) {
        return qn_fail_err(e, &err, "stop");
    }
    if (req.prompt_logprobs) {
        g->prompt_samples = qn_arena_take(&g->arena, g->prompt.len, sizeof *g->prompt_samples);
        if (!g->prompt_samples) {
            return qn_fail_with(e, 500, "server_error", NULL, NULL, "out of memory");
        }
    }
    if (!qn_engine_submit(x->server->opts.engine, &req, &g->handle, &err)) return true;
    return qn_fail_err(e, &err, x->route->protocol->prompt_param);
}

/* The body for --log-level debug, media cut out. */
static void log_body(const qn_exchange *x)
{
    json_t *shown = qn_json_without_data(x->gen.body);
    qn_buf text = {0};
    qn_json_write(&text, shown);
    if (!text.failed) qn_log(QN_DEBUG_LINE, "%s body: %s", x->request_id, text.data);
    qn_buf_release(&text);
    json_decref(shown);
}

/* *answer: the reply of a route that generates nothing, else NULL. */
static bool prepare(qn_exchange *x, json_t **answer, qn_http_error *e)
{
    qn_err err = {0};
    if (!strcmp(x->route->method, "POST")) {
        if (qn_json_parse(&x->gen.body, x->body.data, x->body.len, &err)) {
            return qn_fail_err(e, &err, NULL);
        }
        if (qn_log_enabled(QN_DEBUG_LINE)) log_body(x);
    }
    qn_buf_release(&x->body);
    if (x->route->answer) {
        *answer = x->route->answer(x, e);
        return *answer != NULL;
    }
    if (!x->route->protocol->prepare(x, e) || !fit_context(x, e)) return false;
    if (atomic_load(&x->server->draining)) return qn_fail_draining(e);
    return submit(x, e);
}

/* Run one preparation and hand the exchange to the pump. */
static void prepare_one(qn_exchange *x)
{
    qn_http_error e = {0};
    pthread_mutex_lock(&x->lock);
    bool skip = x->gone;
    pthread_mutex_unlock(&x->lock);
    json_t *answer = NULL;
    bool ok = !skip && prepare(x, &answer, &e);

    pthread_mutex_lock(&x->lock);
    if (answer) {
        qn_exchange_reply(x, 200, answer);
    } else if (ok) {
        x->phase = QN_PHASE_RUN;
        x->stream = x->gen.fields.stream;
        if (x->stream && x->route->protocol->begin) x->route->protocol->begin(x);
        x->last_out_ms = qn_now_ms();
        if (x->gone) qn_gen_cancel(x->gen.handle);
    } else {
        x->error = e;
        if (skip) qn_fail_with(&x->error, 499, NULL, NULL, NULL, "the client left");
        qn_exchange_reply_error(x);
    }
    pthread_mutex_unlock(&x->lock);
    qn_exchange_poke(x);
    qn_exchange_unref(x);
}

static void *preparer_main(void *user)
{
    qn_server *s = user;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->prepare_head && !atomic_load(&s->stop)) {
            pthread_cond_wait(&s->prepare_some, &s->lock);
        }
        qn_exchange *x = s->prepare_head;
        if (!x) break;
        s->prepare_head = x->next_prepare;
        s->n_prepare--;
        pthread_mutex_unlock(&s->lock);
        prepare_one(x);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

bool qn_generation_start(qn_exchange *x)
{
    qn_server *s = x->server;
    if (atomic_load(&s->draining)) return qn_fail_draining(&x->error);
    x->gen.created = (int64_t)time(NULL);
    pthread_mutex_lock(&s->lock);
    bool ok = s->n_prepare < PREPARE_QUEUE;
    if (ok) {
        atomic_fetch_add(&x->n_refs, 1);
        if (s->prepare_head) s->prepare_tail->next_prepare = x;
        else s->prepare_head = x;
        s->prepare_tail = x;
        s->n_prepare++;
        pthread_cond_signal(&s->prepare_some);
    }
    pthread_mutex_unlock(&s->lock);
    if (!ok) return qn_fail_queue(&x->error);
    atomic_fetch_add(&s->n_generations, 1);
    x->counted = true;
    x->phase = QN_PHASE_PREPARE;
    return true;
}

void qn_generation_release(qn_generation *g)
{
    qn_gen_free(g->handle);
    qn_pieces_release(&g->pieces);
    qn_ids_release(&g->prompt);
    qn_arena_release(&g->arena);
    for (int i = 0; i < 2; i++) qn_buf_release(&g->frames[i]);
    json_decref(g->tools);
    json_decref(g->own);
    json_decref(g->chat);
    json_decref(g->body);
    memset(g, 0, sizeof *g);
}

/* ---- the engine's events ---- */

/* End with x->error: a plain error reply as long as no header went out. */
static void fail_run(qn_exchange *x)
{
    if (x->stream && x->responded) {
        x->route->protocol->stream_error(x);
        x->gen.finish = "error";
        x->phase = QN_PHASE_REPLY;
    } else {
        x->stream = false;
        qn_exchange_reply_error(x);
    }
}

static void give_pieces(qn_exchange *x)
{
    qn_piece p;
    bool sorts = x->route->protocol->sorts_logprobs && x->gen.fields.logprobs;
    while ((x->stream || sorts) && qn_pieces_next(&x->gen.pieces, &p)) x->route->protocol->piece(x, &p);
}

static void finish_run(qn_exchange *x, const qn_event *ev)
{
    qn_generation *g = &x->gen;
    g->stats = ev->stats;
    if (ev->finish == QN_FINISH_ERROR) {
        qn_fail_err(&x->error, &ev->err, NULL);
        fail_run(x);
        return;
    }
    if (ev->finish == QN_FINISH_CANCELLED && !g->pieces.stopped) {
        if (atomic_load(&x->server->draining)) qn_fail_draining(&x->error);
        else qn_fail_with(&x->error, 500, "server_error", NULL, NULL,
                          "the generation was cancelled");
        fail_run(x);
        return;
    }
    qn_pieces_finish(&g->pieces, ev->finish == QN_FINISH_LENGTH);
    if (ev->finish == QN_FINISH_LENGTH && !g->pieces.stopped) g->finish = "length";
    else g->finish = g->pieces.parts.n_calls ? "tool_calls" : "stop";
    qn_metrics_finished(&x->server->metrics, g->finish, &g->stats, g->ttft_ms,
                        qn_now_ms() - x->start_ms);
    give_pieces(x);
    if (!x->stream) {
        x->route->protocol->reply(x);
        return;
    }
    qn_piece p;
    qn_pieces_rest(&g->pieces, &p);
    x->route->protocol->end(x, &p);
    x->phase = QN_PHASE_REPLY;
}

static void take_token(qn_exchange *x, const qn_event *ev)
{
    qn_generation *g = &x->gen;
    double now_ms = qn_now_ms();
    if (!g->ttft_ms) g->ttft_ms = now_ms - x->start_ms;
    else qn_metrics_token(&x->server->metrics, now_ms - g->last_token_ms);
    g->last_token_ms = now_ms;
    if (g->pieces.stopped) return;
    qn_pieces_token(&g->pieces, ev);
    if (g->pieces.stopped) qn_gen_stop(g->handle);
    give_pieces(x);
}

static void show_progress(qn_exchange *x, const qn_event *ev)
{
    const qn_protocol *p = x->route->protocol;
    if (x->gen.fields.return_progress && p->progress) p->progress(x, ev);
    else qn_sse_comment(&x->out, "keepalive %u/%u", ev->done, ev->total);
}

static void take_admission(qn_exchange *x, const qn_event *ev)
{
    const qn_protocol *p = x->route->protocol;
    x->gen.stats = ev->stats;
    if (x->stream && p->admitted) p->admitted(x);
    else if (x->stream) show_progress(x, ev);
}

void qn_generation_take(qn_exchange *x)
{
    qn_event ev;
    size_t before = x->out.len;
    while (x->phase == QN_PHASE_RUN && qn_gen_next(x->gen.handle, &ev)) {
        switch (ev.kind) {
        case QN_EV_ADMITTED: take_admission(x, &ev); break;
        case QN_EV_PROGRESS:
            if (x->stream) show_progress(x, &ev);
            break;
        case QN_EV_TOKEN: take_token(x, &ev); break;
        case QN_EV_DONE: finish_run(x, &ev); break;
        case QN_EV_PROMPT: x->gen.prompt_samples[ev.index] = ev.sample; break;
        }
    }
    if (x->out.len != before) x->last_out_ms = qn_now_ms();
    if (x->phase != QN_PHASE_RUN || !(x->out.failed || x->gen.pieces.failed)) return;
    qn_log(QN_ERROR, "%s: out of memory for the reply", x->request_id);
    x->gone = true;
}

/* ---- start and stop ---- */

qn_code qn_generations_start(qn_server *s, qn_err *err)
{
    s->preparer_runs = !pthread_create(&s->preparer, NULL, preparer_main, s);
    return s->preparer_runs ? QN_OK : qn_err_set(err, QN_NOMEM, "server: no thread for requests");
}

void qn_generations_stop(qn_server *s)
{
    atomic_store(&s->stop, true);
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->prepare_some);
    pthread_mutex_unlock(&s->lock);
    if (s->preparer_runs) pthread_join(s->preparer, NULL);
    s->preparer_runs = false;
}
