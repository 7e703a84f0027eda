/* openai_chat.c - POST /v1/chat/completions. */
#include <string.h>

#include "serve/json.h"
#include "serve/messages.h"
#include "serve/openai.h"
#include "text/chat.h"

static const char whole_name[] = "chat.completion", chunk_name[] = "chat.completion.chunk";

/* ---- request ---- */

/* The word for an effort that the template knows, or NULL. */
static const char *effort_for(const qn_chat_template *chat, size_t level)
{
    /* none, minimal, low, medium, high, xhigh, max */
    static const char *const three[] = {NULL, "low", "low", "medium", "high", "high", "high"};
    static const char *const wide[] = {NULL, "low", "low", "medium", "xhigh", "xhigh", "xhigh"};
    if (!qn_chat_template_mentions(chat, "reasoning_effort")) return NULL;
    return qn_chat_template_mentions(chat, "xhigh") ? wide[level] : three[level];
}

/* Add reasoning_effort's part of the template variables. */
static bool apply_effort(qn_exchange *x, json_t *vars, qn_http_error *e)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh",
                                          "max"};
    const char *effort = NULL;
    if (!qn_field_string(x->gen.body, "reasoning_effort", &effort, e)) return false;
    if (!effort) return true;
    size_t i = 0, n = sizeof efforts / sizeof *efforts;
    while (i < n && strcmp(effort, efforts[i])) i++;
    if (i == n) {
        return qn_fail_field(e, "reasoning_effort",
                             "reasoning_effort must be one of none, minimal, low, medium, high, "
                             "xhigh, max");
    }
    const char *word = effort_for(x->server->opts.loaded->chat, i);
    json_object_set_new(vars, "enable_thinking", json_boolean(i > 0));
    if (word) json_object_set_new(vars, "reasoning_effort", json_string(word));
    return true;
}

/* Without thinking, a model's own temperature is often too high: keep to 0.7 unless somebody
 * chose. */
static void cool_down(qn_exchange *x, const json_t *vars)
{
    static const float cool = 0.7f;
    bool chosen = x->server->opts.defaults.sampling_explicit ||
                  qn_json_get(x->gen.body, "temperature");
    float *t = &x->gen.fields.sampling.temperature;
    if (!chosen && *t > cool && json_is_false(json_object_get(vars, "enable_thinking"))) *t = cool;
}

/* The template's variables: the operator's, then reasoning_effort, then chat_template_kwargs, then
 * the messages. */
static bool collect_vars(qn_exchange *x, json_t *vars, json_t *messages, bool continues,
                         qn_http_error *e)
{
    json_t *given = NULL;
    const json_t *own = x->server->opts.template_args;
    json_object_set_new(vars, "add_generation_prompt", json_boolean(!continues));
    if (own) json_object_update(vars, (json_t *)(uintptr_t)own);
    if (!apply_effort(x, vars, e)) return false;
    if (!qn_field_object(x->gen.body, "chat_template_kwargs", &given, e)) return false;
    if (given) json_object_update(vars, given);
    json_object_set(vars, "messages", messages);
    cool_down(x, vars);
    return true;
}

/* Cut the prompt behind the text of its last message, so that the reply goes on with it. */
static bool cut_behind_last(const json_t *messages, qn_buf *text, qn_http_error *e)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *content = json_string_value(json_object_get(last, "content"));
    size_t n = strlen(content);
    while (n && strchr(" \n\t\r", content[n - 1])) n--; /* templates trim */
    char *at = NULL;
    const char *end = text->data + text->len;
    for (char *s = text->data; n && (s = memmem(s, (size_t)(end - s), content, n)); s++) at = s;
    if (!at) {
        return qn_fail_field(e, "continue_final_message",
                             "continue_final_message: the template does not show the text of the "
                             "last message");
    }
    text->len = (size_t)(at - text->data) + n;
    text->data[text->len] = '\0';
    return true;
}

static bool render(qn_exchange *x, json_t *messages, qn_buf *text, qn_http_error *e)
{
    const qn_chat_template *chat = x->server->opts.loaded->chat;
    bool continues = false;
    if (!qn_field_bool(x->gen.body, "continue_final_message", &continues, e)) return false;
    json_t *vars = json_object();
    qn_err err = {0}, again = {0};
    bool ok = collect_vars(x, vars, messages, continues, e);
    if (ok && qn_chat_template_render(chat, vars, text, &err)) {
        /* Some templates take one system message only. */
        ok = qn_messages_join_system(messages) &&
             !qn_chat_template_render(chat, vars, text, &again);
        if (!ok && err.code == QN_NOMEM) qn_fail_err(e, &err, NULL);
        else if (!ok) qn_fail_field(e, "messages", "prompt build failed: %s", err.text);
    }
    json_decref(vars);
    return ok && (!continues || cut_behind_last(messages, text, e));
}

bool qn_openai_chat_text(qn_exchange *x, qn_buf *text, qn_http_error *e)
{
    json_t *messages = qn_json_get(x->gen.body, "messages");
    return qn_messages_normalize(messages, x->server->opts.loaded->id, e) &&
           render(x, messages, text, e);
}

static bool take_messages(qn_exchange *x, qn_http_error *e)
{
    const qn_loaded *loaded = x->server->opts.loaded;
    qn_buf text = {0};
    qn_err err = {0};
    bool ok = qn_openai_chat_text(x, &text, e);
    if (ok && qn_tokenizer_encode(loaded->tok, text.data ? text.data : "", text.len,
                                  qn_chat_encode_flags(loaded->chat), &x->gen.prompt, &err)) {
        ok = qn_fail_err(e, &err, "messages");
    }
    qn_buf_release(&text);
    return ok;
}

static bool prepare(qn_exchange *x, qn_http_error *e)
{
    qn_generation *g = &x->gen;
    qn_openai_set_id(x, "chatcmpl-");
    return qn_fields_check_supported(g->body, e) &&
           qn_fields_read(&g->fields, g->body, &x->server->opts.defaults,
                          x->server->opts.loaded->model->info.n_vocab, false, &g->arena, e) &&
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
    .prompt_param = "messages", .prepare = prepare, .begin = begin, .piece = piece, .end = end,
    .reply = reply, .stream_error = qn_openai_stream_error,
};
