/* openai_chat.c - POST /v1/chat/completions. */
#include <string.h>

#include "serve/json.h"
#include "serve/messages.h"
#include "serve/openai.h"
#include "text/chat.h"

static const char whole_name[] = "chat.completion", chunk_name[] = "chat.completion.chunk";

/* ---- request ---- */

/* Add reasoning_effort's part of the template variables. */
static bool apply_effort(json_t *args, const json_t *body, qn_http_error *e)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    const char *effort = NULL;
    if (!qn_field_string(body, "reasoning_effort", &effort, e)) return false;
    if (!effort) return true;
    size_t i = 0, n = sizeof efforts / sizeof *efforts;
    while (i < n && strcmp(effort, efforts[i])) i++;
    if (i == n) {
        return qn_fail_field(e, "reasoning_effort",
                             "reasoning_effort must be one of none, minimal, low, medium, high, xhigh, max");
    }
    json_object_set_new(args, "enable_thinking", json_boolean(i > 0));
    json_object_set_new(args, "reasoning_effort", json_string(effort));
    return true;
}

/* The template's variables: the operator's, then reasoning_effort, then chat_template_kwargs. The
 * caller gives *out back. */
static bool template_args(qn_exchange *x, json_t **out, qn_http_error *e)
{
    json_t *given = NULL;
    const json_t *own = x->server->opts.template_args;
    *out = own ? json_copy((json_t *)(uintptr_t)own) : json_object();
    if (!qn_field_object(x->gen.body, "chat_template_kwargs", &given, e)) return false;
    if (!apply_effort(*out, x->gen.body, e)) return false;
    if (given) json_object_update(*out, given);
    return true;
}

static bool render(qn_exchange *x, json_t *messages, const json_t *args, qn_buf *text, qn_http_error *e)
{
    const qn_loaded *loaded = x->server->opts.loaded;
    bool continues = false;
    if (!qn_field_bool(x->gen.body, "continue_final_message", &continues, e)) return false;
    qn_err err = {0};
    if (!qn_chat_render(loaded->chat, messages, NULL, args, !continues, continues, text, &err)) return true;
    /* Some templates take one system message only. */
    if (qn_messages_join_system(messages)) {
        qn_err again = {0};
        qn_buf_clear(text);
        if (!qn_chat_render(loaded->chat, messages, NULL, args, !continues, continues, text, &again)) return true;
    }
    if (err.code == QN_NOMEM) return qn_fail_err(e, &err, NULL);
    return qn_fail_field(e, "messages", "prompt build failed: %s", err.text);
}

static bool take_messages(qn_exchange *x, qn_http_error *e)
{
    const qn_loaded *loaded = x->server->opts.loaded;
    json_t *messages = qn_json_get(x->gen.body, "messages"), *args = NULL;
    qn_buf text = {0};
    qn_err err = {0};
    bool ok = qn_messages_normalize(messages, loaded->id, e) && template_args(x, &args, e) &&
              render(x, messages, args, &text, e);
    if (ok && qn_tokenizer_encode(loaded->tok, text.data ? text.data : "", text.len, 0, &x->gen.prompt, &err)) {
        ok = qn_fail_err(e, &err, "messages");
    }
    json_decref(args);
    qn_buf_release(&text);
    return ok;
}

static bool prepare(qn_exchange *x, qn_http_error *e)
{
    qn_generation *g = &x->gen;
    qn_openai_set_id(x, "chatcmpl-");
    return qn_fields_check_supported(g->body, e) &&
           qn_fields_read(&g->fields, g->body, &x->server->opts.defaults, x->server->opts.loaded->model->info.n_vocab,
                          false, &g->arena, e) &&
           take_messages(x, e);
}

/* ---- reply ---- */

static json_t *logprobs_of(qn_exchange *x, const qn_piece *p)
{
    return qn_openai_logprobs(x->server->opts.loaded->tok, p->samples, p->n_samples);
}

/* A choice of a chunk. Takes the delta. */
static json_t *chunk_choice(qn_exchange *x, json_t *delta, const qn_piece *p, const char *finish)
{
    json_t *j = json_object();
    json_object_set_new(j, "index", json_integer(0));
    json_object_set_new(j, "delta", delta);
    json_object_set_new(j, "logprobs", p ? logprobs_of(x, p) : json_null());
    json_object_set_new(j, "finish_reason", finish ? json_string(finish) : json_null());
    return j;
}

static void begin(qn_exchange *x)
{
    json_t *delta = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    qn_openai_chunk(x, chunk_name, chunk_choice(x, delta, NULL, NULL));
}

static void piece(qn_exchange *x, const qn_piece *p)
{
    json_t *delta = json_object();
    qn_json_put_text(delta, "content", p->text, p->n);
    qn_openai_chunk(x, chunk_name, chunk_choice(x, delta, p, NULL));
}

static void end(qn_exchange *x, const qn_piece *rest)
{
    qn_openai_end(x, chunk_name, chunk_choice(x, json_object(), rest, x->gen.finish));
}

static void reply(qn_exchange *x)
{
    const qn_pieces *all = &x->gen.pieces;
    qn_piece p = {.samples = all->samples, .n_samples = all->n_samples};
    json_t *message = json_pack("{s:s}", "role", "assistant");
    qn_json_put_text(message, "content", all->text.data, all->text.len);
    json_t *choice = json_object(), *choices = json_array(), *j = qn_openai_head(x, whole_name);
    json_object_set_new(choice, "index", json_integer(0));
    json_object_set_new(choice, "message", message);
    json_object_set_new(choice, "logprobs", logprobs_of(x, &p));
    json_object_set_new(choice, "finish_reason", json_string(x->gen.finish));
    json_array_append_new(choices, choice);
    json_object_set_new(j, "choices", choices);
    json_object_set_new(j, "usage", qn_openai_usage(x));
    qn_exchange_reply(x, 200, j);
}

const qn_protocol qn_openai_chat = {
    .prompt_param = "messages", .prepare = prepare, .begin = begin, .piece = piece, .end = end, .reply = reply,
    .stream_error = qn_openai_stream_error,
};
