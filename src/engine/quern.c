/* quern.c - the public C library over a loaded model and its engine. */
#include "quern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/embed.h"
#include "engine/loaded.h"
#include "engine/reply.h"

enum { DEFAULT_MAX_TOKENS = 256 };

struct quern_model {
    qn_loaded *loaded;
    qn_engine *engine;
};

struct quern_gen {
    qn_gen *gen;
    qn_reply *reply;
    qn_buf text;   /* of the last event */
    qn_err err;    /* of the last event */
    quern_top top[QN_MAX_TOP_LOGPROBS]; /* of the last event */
    bool halted;   /* a stop string was met: the rest is not shown */
    bool done;
};

const char *quern_version(void)
{
    return QN_VERSION;
}

void quern_free(void *p)
{
    free(p);
}

static void tell(char *err, size_t bytes, const qn_err *e)
{
    if (err && bytes) snprintf(err, bytes, "%s", e->text);
}

quern_model *quern_open(const char *folder, const quern_open_options *o, char *err,
                        size_t err_bytes)
{
    static const quern_open_options none;
    if (!o) o = &none;
    qn_err e = {0};
    quern_model *m = calloc(1, sizeof *m);
    qn_loaded_opts lo = {.device = {.name = o->l1 ? "ref" : o->device,
                                        .n_threads = o->n_threads},
                         .no_panel_cache = o->no_panel_cache != 0,
                         .kv = {.max_size = o->max_kv_size}};
    qn_engine_opts eo = {.max_rows = o->max_rows, .max_positions = o->max_positions};
    if (!m) qn_err_set(&e, QN_NOMEM, "out of memory");
    if (m && !qn_loaded_open(&m->loaded, folder, NULL, &lo, &e))
        qn_engine_new(&m->engine, m->loaded->model, &eo, &e);
    if (!e.code) return m;
    tell(err, err_bytes, &e);
    quern_close(m);
    return NULL;
}

void quern_close(quern_model *m)
{
    if (!m) return;
    qn_engine_free(m->engine);
    qn_loaded_close(m->loaded);
    free(m);
}

static json_t *template_vars(const char *messages, const char *variables, qn_err *e)
{
    json_error_t je;
    json_t *list = json_loads(messages, 0, &je), *vars = NULL;
    if (!json_is_array(list)) {
        qn_err_set(e, QN_INVALID, "messages must be a JSON array of objects");
    } else if (variables && !json_is_object(vars = json_loads(variables, 0, &je))) {
        qn_err_set(e, QN_INVALID, "variables must be a JSON object");
    } else if (!vars && !(vars = json_object())) {
        qn_err_set(e, QN_NOMEM, "out of memory");
    }
    if (e->code) {
        json_decref(list);
        json_decref(vars);
        return NULL;
    }
    if (!json_object_get(vars, "add_generation_prompt"))
        json_object_set_new(vars, "add_generation_prompt", json_true());
    json_object_set_new(vars, "messages", list);
    return vars;
}

char *quern_render(quern_model *m, const char *messages, const char *variables, char *err,
                   size_t err_bytes)
{
    qn_err e = {0};
    qn_buf out = {0};
    json_t *vars = template_vars(messages, variables, &e);
    if (vars) qn_chat_template_render(m->loaded->chat, vars, &out, &e);
    json_decref(vars);
    if (e.code) {
        tell(err, err_bytes, &e);
        qn_buf_release(&out);
        return NULL;
    }
    return qn_buf_take(&out);
}

uint32_t *quern_tokenize(quern_model *m, const char *text, size_t n_text, int add_special,
                         size_t *n, char *err, size_t err_bytes)
{
    qn_err e = {0};
    qn_ids ids = {0};
    *n = 0;
    if (qn_tokenizer_encode(m->loaded->tok, text, n_text, add_special ? QN_ENCODE_ADD_SPECIAL : 0,
                            &ids, &e)) {
        tell(err, err_bytes, &e);
        qn_ids_release(&ids);
        return NULL;
    }
    *n = ids.len;
    return ids.data ? ids.data : calloc(1, sizeof *ids.data);
}

char *quern_detokenize(quern_model *m, const uint32_t *ids, size_t n, char *err, size_t err_bytes)
{
    qn_err e = {0};
    qn_buf out = {0};
    if (qn_tokenizer_decode(m->loaded->tok, ids, n, false, &out, &e)) {
        tell(err, err_bytes, &e);
        qn_buf_release(&out);
        return NULL;
    }
    return qn_buf_take(&out);
}

static qn_sampling sampling_of(const quern_options *o)
{
    enum { PENALTY_CONTEXT = 20 };
    return (qn_sampling){
        .temperature = o->temperature,
        .top_p = o->top_p,
        .min_p = o->min_p,
        .top_k = o->top_k,
        .repetition_penalty = o->repetition_penalty,
        .presence_penalty = o->presence_penalty,
        .frequency_penalty = o->frequency_penalty,
        .repetition_context = PENALTY_CONTEXT,
        .presence_context = PENALTY_CONTEXT,
        .frequency_context = PENALTY_CONTEXT,
        .tone = qn_tone_default(o->hlg ? QN_TONE_CURVE : QN_TONE_OFF),
        .has_seed = o->has_seed != 0,
        .seed = o->seed,
        .logprobs = o->logprobs != 0,
        .n_top = o->n_top,
    };
}

static qn_code start(quern_gen *g, quern_model *m, const uint32_t *ids, size_t n,
                     const quern_options *o, qn_err *e)
{
    qn_code rc = qn_reply_new(&g->reply, m->loaded->tok, o->stops, o->n_stops, e);
    if (rc) return rc;
    qn_request req = {
        .prompt = ids,
        .n_prompt = n,
        .max_tokens = o->max_tokens ? o->max_tokens : DEFAULT_MAX_TOKENS,
        .eos = m->loaded->eos,
        .n_eos = m->loaded->n_eos,
        .ignore_eos = o->ignore_eos != 0,
        .min_tokens = o->min_tokens,
        .prompt_logprobs = o->prompt_logprobs != 0,
        .sampling = sampling_of(o),
        .notify = o->notify,
        .user = o->user,
    };
    return qn_engine_submit(m->engine, &req, &g->gen, e);
}

quern_gen *quern_start_ids(quern_model *m, const uint32_t *ids, size_t n, const quern_options *o,
                           char *err, size_t err_bytes)
{
    static const quern_options none;
    qn_err e = {0};
    quern_gen *g = calloc(1, sizeof *g);
    if (!g) qn_err_set(&e, QN_NOMEM, "out of memory");
    if (g && !start(g, m, ids, n, o ? o : &none, &e)) return g;
    tell(err, err_bytes, &e);
    quern_gen_free(g);
    return NULL;
}

quern_gen *quern_start(quern_model *m, const char *prompt, const quern_options *o, char *err,
                       size_t err_bytes)
{
    size_t n;
    uint32_t *ids =
        quern_tokenize(m, prompt, strlen(prompt), o && o->add_special, &n, err, err_bytes);
    if (!ids) return NULL;
    quern_gen *g = quern_start_ids(m, ids, n, o, err, err_bytes);
    free(ids);
    return g;
}

static void fill_done(quern_gen *g, const qn_event *in, quern_event *out)
{
    static const quern_finish map[] = {QUERN_RUNNING, QUERN_STOP, QUERN_LENGTH, QUERN_CANCELLED,
                                       QUERN_ERROR};
    if (!g->halted) g->halted = qn_reply_finish(g->reply, &g->text);
    g->done = true;
    g->err = in->err;
    out->kind = QUERN_DONE;
    out->finish = g->halted && in->finish != QN_FINISH_ERROR ? QUERN_STOP : map[in->finish];
    out->prompt_tokens = in->stats.prompt_tokens;
    out->cached_tokens = in->stats.cached_tokens;
    out->generated_tokens = in->stats.generated_tokens;
    out->prefill_tok_s = in->stats.prefill_tok_s;
    out->decode_tok_s = in->stats.decode_tok_s;
    out->prefill_ms = in->stats.prefill_ms;
    out->decode_ms = in->stats.decode_ms;
    out->error = out->finish == QUERN_ERROR ? g->err.text : NULL;
}

/* The token of an event and what was asked to be known about it. */
static void fill_token(quern_gen *g, const qn_event *in, quern_event *out)
{
    const qn_sample *s = &in->sample;
    out->token = s->token;
    out->index = in->index;
    out->logprob = s->logprob;
    out->n_top = s->n_top;
    for (uint32_t i = 0; i < s->n_top; i++) g->top[i] = (quern_top){s->top[i].id, s->top[i].logprob};
    out->top = g->top;
}

static void take_token(quern_gen *g, const qn_event *in, quern_event *out)
{
    fill_token(g, in, out);
    if (in->is_eos || g->halted || !qn_reply_push(g->reply, in->sample.token, &g->text)) return;
    g->halted = true;
    qn_gen_stop(g->gen);
}

int quern_next(quern_gen *g, quern_event *ev, int timeout_ms)
{
    qn_event in;
    do { /* how far the engine ran on behind the reply's end is nobody's business */
        if (g->done || !qn_gen_wait(g->gen, &in, timeout_ms)) return 0;
    } while (g->halted && in.kind != QN_EV_DONE);
    *ev = (quern_event){.kind = QUERN_TEXT};
    qn_buf_clear(&g->text);
    switch (in.kind) {
    case QN_EV_ADMITTED:
    case QN_EV_PROGRESS:
        ev->kind = QUERN_PROGRESS;
        ev->done = in.done;
        ev->total = in.total;
        break;
    case QN_EV_TOKEN: take_token(g, &in, ev); break;
    case QN_EV_DONE: fill_done(g, &in, ev); break;
    case QN_EV_PROMPT:
        ev->kind = QUERN_PROMPT;
        fill_token(g, &in, ev);
        break;
    }
    ev->text = g->text.data ? g->text.data : "";
    ev->n_text = g->text.len;
    return 1;
}

int quern_generate(quern_model *m, const char *prompt, const quern_options *o, quern_event_fn fn,
                   void *user, char *err, size_t err_bytes)
{
    quern_gen *g = quern_start(m, prompt, o, err, err_bytes);
    if (!g) return -1;
    quern_event ev = {0};
    while (quern_next(g, &ev, -1)) {
        if (!fn(user, &ev) || g->halted) continue;
        g->halted = true;
        qn_gen_stop(g->gen);
    }
    if (ev.finish == QUERN_ERROR) tell(err, err_bytes, &g->err);
    quern_gen_free(g);
    return ev.finish == QUERN_ERROR ? -1 : 0;
}

void quern_cancel(quern_gen *g)
{
    qn_gen_cancel(g->gen);
}

void quern_gen_free(quern_gen *g)
{
    if (!g) return;
    qn_gen_free(g->gen);
    qn_reply_free(g->reply);
    qn_buf_release(&g->text);
    free(g);
}

/* ---- hidden states ---- */

size_t quern_state_width(const quern_model *m)
{
    return qn_engine_embed_width(m->engine);
}

int quern_embed(quern_model *m, const uint32_t *ids, size_t n, float *out, char *err,
                size_t err_bytes)
{
    qn_err e = {0};
    if (!qn_engine_embed(m->engine, ids, n, NULL, NULL, out, &e)) return 0;
    tell(err, err_bytes, &e);
    return -1;
}

float *quern_hidden_states(quern_model *m, const uint32_t *ids, size_t n, char *err,
                           size_t err_bytes)
{
    qn_err e = {0};
    qn_gen *g = NULL;
    float *out = NULL;
    qn_event ev = {0};
    const qn_request req = {.prompt = ids, .n_prompt = n, .hidden = QN_HIDDEN_ALL};
    if (!qn_engine_submit(m->engine, &req, &g, &e)) {
        while (ev.kind != QN_EV_DONE) qn_gen_wait(g, &ev, -1);
        size_t bytes = n * quern_state_width(m) * sizeof *out; /* submit made sure that it fits */
        if (ev.finish == QN_FINISH_ERROR) e = ev.err;
        else if (!(out = malloc(bytes))) qn_err_set(&e, QN_NOMEM, "out of memory");
        else memcpy(out, qn_gen_hidden(g), bytes);
    }
    qn_gen_free(g);
    if (!out) tell(err, err_bytes, &e);
    return out;
}

/* ---- figures ---- */

uint32_t quern_context_length(const quern_model *m)
{
    return qn_engine_max_positions(m->engine);
}

void quern_get_stats(const quern_model *m, quern_stats *out)
{
    qn_engine_stats s;
    qn_engine_stats_get(m->engine, &s);
    *out = (quern_stats){
        .active = s.active_rows,
        .waiting = s.waiting_rows,
        .started = s.submitted,
        .finished = s.finished,
        .prompt_tokens = s.prompt_tokens,
        .cached_tokens = s.cached_tokens,
        .generated_tokens = s.generated_tokens,
        .weights_bytes = s.weights_bytes,
        .kv_bytes = s.kv_bytes_total,
        .kv_bytes_used = s.kv_bytes_used,
        .kv_bytes_cached = s.kv_bytes_cached,
    };
}
