/* anthropic_request.c - see anthropic_request.h. */
#include "serve/anthropic_request.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "serve/chat_form.h"
#include "serve/json.h"
#include "serve/request.h"

/* Where in the request we are, and what is being built. */
typedef struct walk {
    qn_http_error *e;
    json_t *messages;   /* of the chat form */
    bool keep_thinking;
    size_t i_message, i_block;
} walk;

/* The text and media of one turn, in order: text blocks are joined with newlines; an array of parts
 * is made only once there is media. */
typedef struct content {
    qn_buf text;        /* since the last medium */
    json_t *parts;      /* NULL: text only */
} content;

__attribute__((format(printf, 2, 3)))
static bool fail_block(const walk *w, const char *fmt, ...)
{
    char path[64], why[192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    snprintf(path, sizeof path, "messages.%zu.content.%zu", w->i_message, w->i_block);
    return qn_fail_field(w->e, path, "%s: %s", path, why);
}

static const char *type_of(const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    return type ? type : "";
}

/* ---- content ---- */

static void close_text(content *c)
{
    if (!c->text.len) return;
    json_t *text = qn_form_take_text(&c->text);
    json_array_append_new(c->parts, json_pack("{s:s, s:o}", "type", "text", "text", text));
}

static void add_medium(content *c, json_t *part)
{
    if (!c->parts) c->parts = json_array();
    close_text(c);
    json_array_append_new(c->parts, part);
}

/* The content as the value of a message; empties it. */
static json_t *take_content(content *c)
{
    if (!c->parts) return qn_form_take_text(&c->text);
    close_text(c);
    json_t *parts = c->parts;
    c->parts = NULL;
    return parts;
}

static void release_content(content *c)
{
    qn_buf_release(&c->text);
    json_decref(c->parts);
}

static bool add_image(content *c, const json_t *block, const walk *w)
{
    const json_t *source = json_object_get(block, "source");
    if (!strcmp(type_of(source), "url") && json_is_string(json_object_get(source, "url"))) {
        add_medium(c, qn_form_image(json_incref(json_object_get(source, "url"))));
        return true;
    }
    const char *kind = json_string_value(json_object_get(source, "media_type"));
    const char *data = json_string_value(json_object_get(source, "data"));
    if (strcmp(type_of(source), "base64") || !kind || !data) {
        return fail_block(w, "an image needs a source of type base64 (media_type, data) or url");
    }
    qn_buf url = {0};
    qn_buf_puts(&url, "data:");
    qn_buf_puts(&url, kind);
    qn_buf_puts(&url, ";base64,");
    qn_buf_puts(&url, data);
    add_medium(c, qn_form_image(qn_form_take_text(&url)));
    return true;
}

static bool add_document(content *c, const json_t *block, const walk *w)
{
    const json_t *source = json_object_get(block, "source");
    const json_t *data = json_object_get(source, "data");
    if (strcmp(type_of(source), "text") || !json_is_string(data)) {
        return fail_block(w, "not supported yet: a document whose source is not of type text");
    }
    qn_form_join(&c->text, "\n", data);
    return true;
}

/* A block that stands for text or media, as it may appear in any turn and in tool results. */
static bool add_block(content *c, const json_t *block, const walk *w)
{
    const char *type = type_of(block);
    const json_t *text = json_object_get(block, "text");
    if (!strcmp(type, "image")) return add_image(c, block, w);
    if (!strcmp(type, "document")) return add_document(c, block, w);
    if (!strcmp(type, "audio") || !strcmp(type, "input_audio")) {
        return fail_block(w, "audio is taken by /v1/chat/completions only");
    }
    if (!json_is_string(text)) {
        return fail_block(w, "not supported yet: a block of type \"%.32s\" without text", type);
    }
    qn_form_join(&c->text, "\n", text);
    return true;
}

/* ---- turns ---- */

static bool add_tool_result(const json_t *block, walk *w)
{
    json_t *id = json_object_get(block, "tool_use_id"), *in;
    if (!json_is_string(id)) return fail_block(w, "tool_use_id must be of type string");
    in = qn_json_get(block, "content");
    if (in && !json_is_string(in) && !json_is_array(in)) {
        return fail_block(w, "content must be of type string or array");
    }
    content c = {0};
    bool ok = true;
    if (json_is_true(json_object_get(block, "is_error"))) qn_buf_puts(&c.text, "Error: ");
    if (json_is_string(in)) qn_form_join(&c.text, "", in);
    size_t i, n_prefix = c.text.len;
    json_t *part;
    json_array_foreach(in, i, part) {
        /* The prefix and the first text are one line. */
        if (i == 0 && n_prefix && json_is_string(json_object_get(part, "text"))) {
            qn_form_join(&c.text, "", json_object_get(part, "text"));
        } else {
            ok = ok && add_block(&c, part, w);
        }
    }
    if (ok) {
        json_t *m = qn_form_add_message(w->messages, "tool", take_content(&c));
        json_object_set(m, "tool_call_id", id);
    }
    release_content(&c);
    return ok;
}

/* Tool results come before the rest of their turn. */
static bool add_user_turn(const json_t *blocks, const char *role, walk *w)
{
    content c = {0};
    bool ok = true, has_rest = !json_array_size(blocks);
    json_t *block;
    json_array_foreach(blocks, w->i_block, block) {
        if (!ok) break;
        if (!strcmp(type_of(block), "tool_result")) {
            ok = add_tool_result(block, w);
        } else {
            has_rest = true;
            ok = add_block(&c, block, w);
        }
    }
    if (ok && has_rest) qn_form_add_message(w->messages, role, take_content(&c));
    release_content(&c);
    return ok;
}

static bool add_tool_use(json_t *message, const json_t *block, const walk *w)
{
    const json_t *name = json_object_get(block, "name"), *input = qn_json_get(block, "input");
    if (!json_is_string(name)) return fail_block(w, "name must be of type string");
    if (input && !json_is_object(input)) return fail_block(w, "input must be of type object");
    qn_form_add_call(message, json_object_get(block, "id"), name,
                     input ? json_deep_copy(input) : json_object());
    return true;
}

static bool add_assistant_turn(const json_t *blocks, walk *w)
{
    content c = {0};
    qn_buf thinking = {0};
    json_t *block, *m = json_pack("{s:s}", "role", "assistant");
    bool ok = true;
    json_array_foreach(blocks, w->i_block, block) {
        if (!ok) break;
        const char *type = type_of(block);
        const json_t *text = json_object_get(block, "thinking");
        if (!strcmp(type, "tool_use")) ok = add_tool_use(m, block, w);
        else if (!strcmp(type, "thinking")) qn_form_join(&thinking, "\n", text);
        else if (strcmp(type, "redacted_thinking")) ok = add_block(&c, block, w);
    }
    if (ok) {
        json_object_set_new(m, "content", take_content(&c));
        if (w->keep_thinking && thinking.len) {
            json_object_set_new(m, "reasoning_content", qn_form_take_text(&thinking));
        }
        json_array_append(w->messages, m);
    }
    json_decref(m);
    qn_buf_release(&thinking);
    release_content(&c);
    return ok;
}

static bool add_turn(json_t *turn, walk *w)
{
    char path[48];
    const char *role = json_string_value(json_object_get(turn, "role"));
    json_t *in = json_object_get(turn, "content");
    bool is_assistant = role && !strcmp(role, "assistant");
    if (!role || (!is_assistant && strcmp(role, "user") && strcmp(role, "system"))) {
        snprintf(path, sizeof path, "messages.%zu.role", w->i_message);
        return qn_fail_field(w->e, path, "%s: must be \"user\" or \"assistant\"", path);
    }
    if (json_is_string(in)) {
        qn_form_add_message(w->messages, role, json_incref(in));
        return true;
    }
    if (!json_is_array(in)) {
        snprintf(path, sizeof path, "messages.%zu.content", w->i_message);
        return qn_fail_field(w->e, path, "%s: must be of type string or array", path);
    }
    return is_assistant ? add_assistant_turn(in, w) : add_user_turn(in, role, w);
}

/* ---- system ---- */

/* Clients put a line there whose value changes with every request, which would defeat the reuse of
 * the prefix behind it. */
static void drop_billing_line(qn_buf *text)
{
    static const char start[] = "x-anthropic-billing-header:";
    if (text->len < sizeof start - 1 || memcmp(text->data, start, sizeof start - 1)) return;
    const char *end = memchr(text->data, '\n', text->len);
    qn_buf_drop(text, end ? (size_t)(end - text->data) + 1 : text->len);
}

static bool add_system(const json_t *body, walk *w)
{
    const json_t *system = qn_json_get(body, "system");
    if (!system) return true;
    if (!json_is_string(system) && !json_is_array(system)) {
        return qn_fail_field(w->e, "system", "system: must be of type string or array");
    }
    qn_buf text = {0};
    size_t i;
    json_t *block;
    if (json_is_string(system)) qn_form_join(&text, "", system);
    json_array_foreach(system, i, block) {
        const json_t *t = json_object_get(block, "text");
        if (!json_is_string(t)) {
            qn_buf_release(&text);
            return qn_fail_field(w->e, "system", "system.%zu: must be a text block", i);
        }
        qn_form_join(&text, "\n", t);
    }
    drop_billing_line(&text);
    if (text.len) qn_form_add_message(w->messages, "system", qn_form_take_text(&text));
    qn_buf_release(&text);
    return true;
}

static bool add_messages(const json_t *body, json_t *chat, bool keep_thinking, qn_http_error *e)
{
    const json_t *turns = qn_json_get(body, "messages");
    walk w = {.e = e, .messages = json_array(), .keep_thinking = keep_thinking};
    json_object_set_new(chat, "messages", w.messages);
    if (turns && !json_is_array(turns)) {
        return qn_fail_field(e, "messages", "messages: must be of type array");
    }
    if (!json_array_size(turns)) {
        return qn_fail_field(e, "messages", "messages: at least one message is required");
    }
    if (!add_system(body, &w)) return false;
    json_t *turn;
    json_array_foreach(turns, w.i_message, turn) {
        if (!add_turn(turn, &w)) return false;
    }
    return true;
}

/* ---- tools ---- */

static bool add_tools(const json_t *body, json_t *chat, qn_http_error *e)
{
    const json_t *tools = qn_json_get(body, "tools");
    if (!tools) return true;
    if (!json_is_array(tools)) return qn_fail_field(e, "tools", "tools: must be of type array");
    json_t *out = json_array(), *tool;
    json_object_set_new(chat, "tools", out);
    size_t i;
    json_array_foreach(tools, i, tool) {
        const json_t *schema = qn_json_get(tool, "input_schema");
        const json_t *name = json_object_get(tool, "name");
        /* A type without a schema is a tool that Anthropic's servers run. */
        if (!schema && *type_of(tool)) continue;
        if (!json_is_object(schema) || !json_is_string(name)) {
            return qn_fail_field(e, "tools", "tools.%zu: name (string) and input_schema (object) "
                                             "are required", i);
        }
        qn_form_add_tool(out, name, qn_json_get(tool, "description"), schema,
                         qn_json_get(tool, "strict"));
    }
    return true;
}

static bool add_tool_choice(const json_t *body, json_t *chat, qn_http_error *e)
{
    const json_t *choice = qn_json_get(body, "tool_choice");
    if (!choice) return true;
    const char *type = type_of(choice);
    const json_t *name = json_object_get(choice, "name");
    json_t *out = NULL;
    if (!strcmp(type, "auto") || !strcmp(type, "none")) out = json_string(type);
    else if (!strcmp(type, "any")) out = json_string("required");
    else if (!strcmp(type, "tool") && json_is_string(name)) out = qn_form_named_tool(name);
    if (!out) {
        return qn_fail_field(e, "tool_choice", "tool_choice: type must be auto, any, none, or tool "
                                               "with a name");
    }
    json_object_set_new(chat, "tool_choice", out);
    if (json_is_true(json_object_get(choice, "disable_parallel_tool_use"))) {
        json_object_set_new(chat, "parallel_tool_calls", json_false());
    }
    return true;
}

/* ---- thinking, effort, format, stops ---- */

static bool add_thinking(const json_t *body, json_t *chat, qn_http_error *e)
{
    json_t *thinking = NULL, *given = NULL;
    int64_t budget = -1;
    if (!qn_field_object(body, "thinking", &thinking, e)) return false;
    if (!thinking) return true;
    const char *type = type_of(thinking);
    bool on = !strcmp(type, "enabled"), off = !strcmp(type, "disabled");
    if (!on && !off && strcmp(type, "adaptive")) {
        return qn_fail_field(e, "thinking", "thinking.type: must be enabled, disabled or adaptive");
    }
    if (!qn_field_int(thinking, "budget_tokens", 1, UINT32_MAX, &budget, e)) {
        static const qn_form_name names[] = {{"budget_tokens", "thinking.budget_tokens"}, {NULL, NULL}};
        qn_form_rename_error(e, names);
        return false;
    }
    if (on && budget > 0) json_object_set_new(chat, "thinking_budget", json_integer(budget));
    if (!on && !off) return true;
    if (!qn_field_object(body, "chat_template_kwargs", &given, e)) return false;
    json_t *args = json_pack("{s:b}", "enable_thinking", on);
    if (given) json_object_update(args, given);
    json_object_set_new(chat, "chat_template_kwargs", args);
    return true;
}

static bool add_output_config(const json_t *body, json_t *chat, qn_http_error *e)
{
    json_t *config = NULL, *format = NULL;
    if (!qn_field_object(body, "output_config", &config, e)) return false;
    if (!config) return true;
    qn_form_copy(chat, "reasoning_effort", config, "effort");
    if (!qn_field_object(config, "format", &format, e)) return false;
    if (!format) return true;
    const json_t *schema = json_object_get(format, "schema");
    if (strcmp(type_of(format), "json_schema") || !json_is_object(schema)) {
        return qn_fail_field(e, "output_config.format", "output_config.format: must be of type "
                                                        "json_schema with a schema");
    }
    json_object_set_new(chat, "response_format",
                        json_pack("{s:s, s:{s:s, s:o}}", "type", "json_schema", "json_schema",
                                  "name", "output", "schema", json_deep_copy(schema)));
    return true;
}

static bool add_stops(const json_t *body, json_t *chat, qn_http_error *e)
{
    json_t *stops = qn_json_get(body, "stop_sequences"), *s;
    size_t i;
    if (!stops) return true;
    bool ok = json_is_array(stops);
    json_array_foreach(stops, i, s) {
        ok = ok && json_is_string(s);
    }
    if (!ok) {
        return qn_fail_field(e, "stop_sequences", "stop_sequences: must be an array of strings");
    }
    json_object_set(chat, "stop", stops);
    return true;
}

bool qn_anthropic_to_chat(const json_t *body, bool keep_thinking, json_t **out, qn_http_error *e)
{
    json_t *chat = json_object();
    qn_form_copy_common(chat, body);
    bool ok = add_messages(body, chat, keep_thinking, e) && add_tools(body, chat, e) &&
              add_tool_choice(body, chat, e) && add_thinking(body, chat, e) &&
              add_output_config(body, chat, e) && add_stops(body, chat, e);
    if (!ok) {
        json_decref(chat);
        chat = NULL;
    }
    *out = chat;
    return ok;
}
