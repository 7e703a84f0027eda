/* quern.c - the public C library over a loaded model and its engine. */
#include "quern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
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
                         .no_panel_cache = o->no_panel_cache != 0};
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
        .sampling = {.temperature = o->temperature,
                     .top_p = o->top_p,
                     .min_p = o->min_p,
                     .top_k = o->top_k,
                     .has_seed = o->has_seed != 0,
                     .seed = o->seed},
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
    if (!g->halted) qn_reply_finish(g->reply, &g->text);
    g->done = true;
    g->err = in->err;
    out->kind = QUERN_DONE;
    out->finish = g->halted ? QUERN_STOP : map[in->finish];
    out->prompt_tokens = in->stats.prompt_tokens;
    out->generated_tokens = in->stats.generated_tokens;
    out->prefill_ms = in->stats.prefill_ms;
    out->decode_ms = in->stats.decode_ms;
    out->error = out->finish == QUERN_ERROR ? g->err.text : NULL;
}

int quern_next(quern_gen *g, quern_event *ev, int timeout_ms)
{
    qn_event in;
    if (g->done || !qn_gen_wait(g->gen, &in, timeout_ms)) return 0;
    *ev = (quern_event){.kind = QUERN_TEXT};
    qn_buf_clear(&g->text);
    if (in.kind == QN_EV_PROGRESS) {
        ev->kind = QUERN_PROGRESS;
        ev->done = in.done;
        ev->total = in.total;
    } else if (in.kind == QN_EV_DONE) {
        fill_done(g, &in, ev);
    } else if (!in.is_eos && !g->halted && qn_reply_push(g->reply, in.sample.token, &g->text)) {
        g->halted = true;
        qn_gen_stop(g->gen);
    }
    ev->text = g->text.data ? g->text.data : "";
    ev->n_text = g->text.len;
    return 1;
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
