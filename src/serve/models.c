/* models.c - what the server says about itself: models, health, index. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/exchange.h"
#include "serve/json.h"
#include "serve/openapi.h"

static const char owner[] = "quern";

static bool mentions(const qn_server *s, const char *word)
{
    return qn_chat_template_mentions(s->opts.loaded->chat, word);
}

/* Does the template show tools to the model? */
static bool shows_tools(const qn_server *s)
{
    return mentions(s, "tools");
}

/* Can thinking be asked for? */
static bool can_reason(const qn_server *s)
{
    return mentions(s, "<think>") || mentions(s, "<|channel") || mentions(s, "reasoning_effort");
}

static json_t *capabilities(const qn_server *s)
{
    const struct { const char *name; bool has; } list[] = {
        {"chat_completions", true}, {"text_completions", true}, {"anthropic_messages", true},
        {"responses", true},        {"streaming", true},        {"tools", shows_tools(s)},
        {"structured_output", false}, {"logprobs", true},       {"embeddings", qn_embeds(s)},
        {"vision", false},          {"audio", false},           {"adapters", false},
        {"training", false},
    };
    json_t *j = json_object();
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        json_object_set_new(j, list[i].name, json_boolean(list[i].has));
    }
    return j;
}

static json_t *gen_defaults(const qn_server *s)
{
    const qn_sampling *d = &s->opts.defaults.sampling;
    json_t *j = json_object();
    json_object_set_new(j, "temperature", qn_json_float(d->temperature));
    json_object_set_new(j, "top_p", qn_json_float(d->top_p));
    json_object_set_new(j, "top_k", json_integer(d->top_k));
    return j;
}

static json_t *meta(const qn_server *s)
{
    const qn_model_info *info = &s->opts.loaded->model->info;
    qn_engine_stats stats;
    qn_engine_stats_get(s->opts.engine, &stats);
    json_t *j = json_object();
    json_object_set_new(j, "n_ctx", json_integer(qn_engine_max_positions(s->opts.engine)));
    json_object_set_new(j, "n_ctx_train", json_integer(info->max_positions));
    json_object_set_new(j, "n_vocab", json_integer(info->n_vocab));
    json_object_set_new(j, "n_params", json_integer((json_int_t)info->n_params));
    json_object_set_new(j, "size", json_integer((json_int_t)stats.weights_bytes));
    return j;
}

static json_t *model_row(const qn_server *s)
{
    json_int_t n_ctx = qn_engine_max_positions(s->opts.engine);
    json_t *j = json_object();
    json_object_set_new(j, "id", json_string(s->opts.loaded->id));
    json_object_set_new(j, "object", json_string("model"));
    json_object_set_new(j, "created", json_integer(s->started));
    json_object_set_new(j, "owned_by", json_string(owner));
    json_object_set_new(j, "context_window", json_integer(n_ctx));
    json_object_set_new(j, "max_model_len", json_integer(n_ctx));
    json_object_set_new(j, "reasoning", json_boolean(can_reason(s)));
    json_object_set_new(j, "tools", json_boolean(shows_tools(s)));
    static const char *const absent[] = {"vision", "audio",    "structured_output",
                                         "adapters", "training", "dsa", "mtp"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        json_object_set_new(j, absent[i], json_false());
    }
    qn_engine_stats stats;
    qn_engine_stats_get(s->opts.engine, &stats);
    json_object_set_new(j, "batch_mode", json_string(stats.max_rows > 1 ? "batch" : "serial"));
    json_object_set_new(j, "embeddings", json_boolean(qn_embeds(s)));
    json_object_set_new(j, "capabilities", capabilities(s));
    json_object_set_new(j, "gen_defaults", gen_defaults(s));
    json_object_set_new(j, "meta", meta(s));
    return j;
}

static json_t *list_of(json_t *row)
{
    json_t *j = json_object(), *data = json_array();
    if (row) json_array_append_new(data, row);
    json_object_set_new(j, "object", json_string("list"));
    json_object_set_new(j, "data", data);
    return j;
}

void qn_models_list(qn_exchange *x)
{
    qn_exchange_reply(x, 200, list_of(model_row(x->server)));
}

/* The list filtered to one id. The id's fields stand at the top as well, for clients that expect
 * the single object. */
void qn_models_one(qn_exchange *x)
{
    bool known = !strcmp(x->tail, x->server->opts.loaded->id);
    json_t *j = list_of(known ? model_row(x->server) : NULL);
    if (known) {
        json_object_set_new(j, "id", json_string(x->tail));
        json_object_set_new(j, "created", json_integer(x->server->started));
        json_object_set_new(j, "owned_by", json_string(owner));
    }
    qn_exchange_reply(x, 200, j);
}

void qn_health(qn_exchange *x)
{
    /* These exact bytes: clients compare them. */
    bool draining = atomic_load(&x->server->draining);
    qn_buf_puts(&x->out, draining ? "{\"status\": \"draining\"}" : "{\"status\": \"ok\"}");
    x->status = draining ? 503 : 200;
    x->phase = QN_PHASE_REPLY;
}

/* Every route as "METHOD PATH", arguments as {id}. */
static json_t *route_list(void)
{
    json_t *list = json_array();
    const qn_route *r;
    for (size_t i = 0; (r = qn_route_at(i)) != NULL; i++) {
        size_t n = strlen(r->path);
        bool takes_tail = n > 1 && r->path[n - 1] == '/';
        json_array_append_new(
            list, json_sprintf("%s %s%s%s", r->method, r->path, takes_tail ? "{id}" : "",
                               r->suffix ? r->suffix : ""));
    }
    return list;
}

void qn_openapi(qn_exchange *x)
{
    qn_buf_put(&x->out, qn_openapi_json, qn_openapi_json_size);
    x->status = x->out.failed ? 500 : 200;
    x->phase = QN_PHASE_REPLY;
}

void qn_index(qn_exchange *x)
{
    json_t *j = json_pack("{s:s, s:s, s:s, s:o}", "name", "quern", "version", QN_VERSION, "model",
                          x->server->opts.loaded->id, "endpoints", route_list());
    qn_exchange_reply(x, 200, j);
}
