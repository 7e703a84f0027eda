/* chat_prompt.c - see chat_prompt.h. */
#include "serve/chat_prompt.h"

#include <string.h>

#include "serve/chat_tools.h"
#include "serve/json.h"
#include "serve/messages.h"
#include "serve/structured.h"
#include "text/chat.h"

/* What is known of a request once its prompt's text exists. */
typedef struct form {
    const qn_server *server;
    const qn_sanitizer *sanitizer; /* NULL: control tokens in messages are control tokens */
    json_t *body, *messages; /* borrowed */
    json_t *vars;            /* of the template */
    qn_chat_tools tools;
    const qn_tool_format *format;
    bool continues;          /* the reply goes on with the last message */
    bool is_structured;
    qn_buf text;
} form;

static const qn_chat_template *template_of(const form *f)
{
    return f->server->opts.loaded->chat;
}

static bool mentions(const form *f, const char *text)
{
    return qn_chat_template_mentions(template_of(f), text);
}

/* ---- variables ---- */

/* The word for an effort that the template knows, or NULL. */
static const char *effort_for(const form *f, size_t level)
{
    /* none, minimal, low, medium, high, xhigh, max */
    static const char *const three[] = {NULL, "low", "low", "medium", "high", "high", "high"};
    static const char *const wide[] = {NULL, "low", "low", "medium", "xhigh", "xhigh", "xhigh"};
    if (!mentions(f, "reasoning_effort")) return NULL;
    return mentions(f, "xhigh") ? wide[level] : three[level];
}

/* Add reasoning_effort's part of the template variables. */
static bool apply_effort(form *f, qn_http_error *e)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh",
                                          "max"};
    const char *effort = NULL;
    if (!qn_field_string(f->body, "reasoning_effort", &effort, e)) return false;
    if (!effort) return true;
    size_t i = 0, n = sizeof efforts / sizeof *efforts;
    while (i < n && strcmp(effort, efforts[i])) i++;
    if (i == n) {
        return qn_fail_field(e, "reasoning_effort",
                             "reasoning_effort must be one of none, minimal, low, medium, high, "
                             "xhigh, max");
    }
    const char *word = effort_for(f, i);
    json_object_set_new(f->vars, "enable_thinking", json_boolean(i > 0));
    if (word) json_object_set_new(f->vars, "reasoning_effort", json_string(word));
    return true;
}

/* Some templates call the switch otherwise, and one family does not think unless asked to. */
static void settle_thinking(form *f)
{
    json_t *on = json_object_get(f->vars, "enable_thinking");
    if (!on && f->format == qn_tool_format_named("minicpm5")) {
        json_object_set_new(f->vars, "enable_thinking", json_false());
    }
    if (on && !json_object_get(f->vars, "thinking") && !mentions(f, "enable_thinking")) {
        json_object_set(f->vars, "thinking", on);
    }
}

/* role_mapping: the prefixes of turns for a model without a chat template, as mlx_lm.server has it. */
static bool read_roles(form *f, qn_http_error *e)
{
    static const char name[] = "role_mapping";
    json_t *roles = NULL, *v;
    const char *key;
    if (!qn_field_object(f->body, name, &roles, e)) return false;
    json_object_foreach(roles, key, v) {
        if (!json_is_string(v)) return qn_fail_field(e, name, "%s must hold strings", name);
    }
    bool is_used = roles && qn_chat_template_kind(template_of(f)) == QN_CHAT_FALLBACK;
    if (is_used) json_object_set(f->vars, name, roles);
    return true;
}

/* The template's variables: the operator's, then reasoning_effort, then chat_template_kwargs. */
static bool collect_vars(form *f, qn_http_error *e)
{
    json_t *given = NULL;
    const json_t *own = f->server->opts.template_args;
    f->vars = json_object();
    if (own) json_object_update(f->vars, (json_t *)(uintptr_t)own);
    if (!apply_effort(f, e)) return false;
    if (!qn_field_object(f->body, "chat_template_kwargs", &given, e)) return false;
    if (given) json_object_update(f->vars, given);
    if (!read_roles(f, e)) return false;
    settle_thinking(f);
    return true;
}

/* ---- messages ---- */

/* Ask for structured output in the first system message. */
static bool put_words_first(json_t *messages, const qn_buf *words, qn_http_error *e)
{
    json_t *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    const char *said = json_string_value(json_object_get(first, "content"));
    qn_buf text = {0};
    bool is_system = role && !strcmp(role, "system");
    qn_buf_put(&text, words->data, words->len);
    if (is_system) qn_buf_printf(&text, "\n\n%s", said ? said : "");
    else json_array_insert_new(messages, 0, json_pack("{s:s}", "role", "system"));
    qn_json_put_text(json_array_get(messages, 0), "content", text.data, text.len);
    bool ok = !text.failed;
    qn_buf_release(&text);
    return ok || qn_fail_with(e, 500, "server_error", NULL, NULL, "out of memory");
}

static bool read_messages(form *f, qn_http_error *e)
{
    qn_buf words = {0};
    f->messages = qn_json_get(f->body, "messages");
    bool ok = qn_messages_normalize(f->messages, f->server->opts.loaded->id, e) &&
              qn_structured_read(f->body, &f->is_structured, &words, e) &&
              (!f->is_structured || put_words_first(f->messages, &words, e));
    qn_buf_release(&words);
    return ok;
}

/* ---- text ---- */

static qn_code render_once(form *f, qn_err *err)
{
    return qn_chat_render_marked(f->sanitizer, template_of(f), f->messages, f->tools.shown, f->vars,
                                 !f->continues, f->continues, &f->text, err);
}

static bool join_system(form *f)
{
    return qn_messages_join_system(f->messages);
}

static bool drop_content(form *f)
{
    return qn_messages_drop_call_content(f->messages);
}

static bool shorten_ids(form *f)
{
    return qn_messages_shorten_ids(f->messages);
}

static bool describe_tools(form *f)
{
    return qn_chat_tools_describe(&f->tools);
}

/* Render. Where a template refuses, take away what some templates do not take, one thing after the
 * other: several system messages, content beside thinking and calls, long ids, tools without a
 * description. */
static bool render(form *f, qn_http_error *e)
{
    static bool (*const repairs[])(form *) = {join_system, drop_content, shorten_ids,
                                              describe_tools};
    qn_err err = {0};
    if (!render_once(f, &err)) return true;
    for (size_t i = 0; i < sizeof repairs / sizeof *repairs; i++) {
        qn_err again = {0};
        if (repairs[i](f) && !render_once(f, &again)) return true;
    }
    if (err.code == QN_NOMEM) return qn_fail_err(e, &err, NULL);
    return qn_fail_field(e, "messages", "prompt build failed: %s", err.text);
}

static bool build(form *f, const qn_server *s, json_t *body, qn_http_error *e)
{
    f->server = s;
    f->body = body;
    f->format = qn_tool_format_of(s->opts.loaded->chat, s->opts.loaded->tok);
    return qn_field_bool(body, "continue_final_message", &f->continues, e) &&
           qn_chat_tools_read(&f->tools, body, e) && read_messages(f, e) && collect_vars(f, e) &&
           render(f, e);
}

static void release(form *f)
{
    json_decref(f->vars);
    qn_chat_tools_release(&f->tools);
    qn_buf_release(&f->text);
}

static bool encode(const form *f, qn_ids *ids, qn_http_error *e)
{
    const qn_loaded *loaded = f->server->opts.loaded;
    qn_err err = {0};
    if (!qn_chat_encode(loaded->encoder, loaded->chat, f->sanitizer, &f->text, ids, &err)) {
        return true;
    }
    return qn_fail_err(e, &err, "messages");
}

/* Models without recurrent layers can leave a known prompt anywhere. */
static uint32_t snapshot_at(const form *f, qn_boundary *b, const qn_ids *ids)
{
    const qn_loaded *l = f->server->opts.loaded;
    if (f->continues || !l->model->kv.n_states) return 0;
    return qn_boundary_find(b, &(qn_chat_turn){.encoder = l->encoder, .chat = l->chat,
                                               .sanitizer = f->sanitizer, .messages = f->messages,
                                               .tools = f->tools.shown, .vars = f->vars,
                                               .text = &f->text, .ids = ids});
}

bool qn_chat_prompt_text(const qn_server *s, json_t *body, qn_buf *text, qn_http_error *e)
{
    form f = {0};
    bool ok = build(&f, s, body, e);
    if (ok) qn_buf_put(text, f.text.data, f.text.len);
    release(&f);
    return ok;
}

bool qn_chat_prompt_ids(const qn_server *s, json_t *body, qn_ids *ids, qn_http_error *e)
{
    form f = {.sanitizer = s->opts.sanitizer};
    bool ok = build(&f, s, body, e) && encode(&f, ids, e);
    release(&f);
    return ok;
}

json_t *qn_chat_count(const qn_server *s, json_t *body, const char *object, qn_http_error *e)
{
    json_t *j = NULL;
    qn_ids ids = {0};
    if (qn_chat_prompt_ids(s, body, &ids, e)) {
        j = json_pack("{s:I}", "input_tokens", (json_int_t)ids.len);
        if (object) json_object_set_new(j, "object", json_string(object));
        if (!j) qn_fail_with(e, 500, "server_error", NULL, NULL, "out of memory");
    }
    qn_ids_release(&ids);
    json_decref(body);
    return j;
}

/* ---- the reply's form ---- */

static uint32_t token_id(const form *f, const char *text)
{
    return qn_tokenizer_find(f->server->opts.loaded->tok, text, strlen(text));
}

/* The first pair of think markers whose tokens the vocabulary has. Returns false if it has none. */
static bool find_think_marks(const form *f, qn_output *o, qn_think_limit *limit)
{
    static const struct {
        const char *start, *end, *start_token, *end_token;
        bool is_shared; /* the tokens begin and end other things too: thinking cannot be counted */
    } pairs[] = {
        {"<think>", "</think>", "<think>", "</think>", false},
        {"<longcat_think>", "</longcat_think>", "<longcat_think>", "</longcat_think>", false},
        {"<|think:start|>", "<|think:end|>", "<|think:start|>", "<|think:end|>", false},
        {"<|channel>thought", "<channel|>", "<|channel>", "<channel|>", false},
        {"<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>", "<|close|>", true},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        limit->start = token_id(f, pairs[i].start_token);
        limit->end = token_id(f, pairs[i].end_token);
        if (limit->start == QN_NO_TOKEN || limit->end == QN_NO_TOKEN) continue;
        o->think_start = pairs[i].start;
        o->think_end = pairs[i].end;
        if (pairs[i].is_shared) limit->n_tokens = 0;
        return true;
    }
    return false;
}

static const char *last_in(const qn_buf *text, const char *what)
{
    const char *found = NULL, *end = text->data + text->len;
    size_t n = strlen(what);
    for (const char *s = text->data; s && (s = memmem(s, (size_t)(end - s), what, n)); s++) found = s;
    return found;
}

/* True if the prompt ends inside a think block. Behind its start there is only space, unless the
 * prompt goes on with a reply: a start that a user wrote opens nothing. */
static bool ends_in_reasoning(const form *f, const qn_output *o)
{
    if (!o->think_start) return false;
    const char *start = last_in(&f->text, o->think_start), *end = last_in(&f->text, o->think_end);
    if (!start || (end && end > start)) return false;
    const char *behind = start + strlen(o->think_start);
    return f->continues || behind[strspn(behind, " \t\r\n")] == '\0';
}

static void warn(qn_generation *g, const char *text)
{
    if (g->n_warnings < QN_MAX_WARNINGS) g->warnings[g->n_warnings++] = text;
}

/* Without thinking, a model's own temperature is often too high: keep to 0.7 unless somebody
 * chose. */
static void cool_down(qn_exchange *x, const form *f)
{
    static const float cool = 0.7f;
    bool chosen = x->server->opts.defaults.sampling_explicit || qn_json_get(f->body, "temperature");
    float *t = &x->gen.fields.sampling.temperature;
    if (!chosen && *t > cool && json_is_false(json_object_get(f->vars, "enable_thinking"))) {
        *t = cool;
    }
}

static void settle(qn_exchange *x, const form *f)
{
    qn_generation *g = &x->gen;
    qn_output *o = &g->output;
    if (!find_think_marks(f, o, &g->think)) g->think.n_tokens = 0;
    o->starts_in_reasoning = g->think.is_open = ends_in_reasoning(f, o);
    g->tools = f->tools.given ? json_incref(f->tools.given) : NULL;
    if (f->tools.given || (f->format && f->format->is_harmony)) o->format = f->format;
    o->silent = f->format ? f->format->silent : NULL;
    o->tools = g->tools;
    o->one_call = f->tools.one_call;
    if (f->tools.is_forced) {
        warn(g, "tool_choice not enforced: no grammar engine - treated as auto");
    }
    if (f->is_structured) warn(g, qn_structured_warning);
    cool_down(x, f);
}

static bool read_budget(qn_think_limit *limit, const json_t *body, qn_http_error *e)
{
    int64_t n = 0;
    if (!qn_field_int(body, "thinking_budget", 1, UINT32_MAX, &n, e)) return false;
    limit->n_tokens = (uint32_t)n;
    return true;
}

/* Steps 3 and 4 of the data path begin here for a chat request. */
bool qn_chat_prepare(qn_exchange *x, json_t *body, qn_http_error *e)
{
    qn_generation *g = &x->gen;
    const qn_server *s = x->server;
    form f = {.sanitizer = s->opts.sanitizer};
    g->chat = json_incref(body);
    bool ok = qn_fields_check_supported(body, e) &&
              qn_fields_read(&g->fields, body, &s->opts.defaults,
                             s->opts.loaded->model->info.n_vocab, false, &g->arena, e) &&
              read_budget(&g->think, body, e) &&
              build(&f, s, body, e) && encode(&f, &g->prompt, e);
    if (ok) {
        g->snapshot_at = snapshot_at(&f, &x->server->boundary, &g->prompt);
        settle(x, &f);
    }
    release(&f);
    return ok;
}
