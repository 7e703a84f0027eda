/* responses_request.c - see responses_request.h. */
#include "serve/responses_request.h"

#include <stdio.h>
#include <string.h>

#include "serve/chat_form.h"
#include "serve/json.h"
#include "serve/request.h"

/* What is being built out of the items. */
typedef struct walk {
    qn_http_error *e;
    json_t *messages;
    bool keep_reasoning;
    size_t i_item;
    qn_buf system;      /* text of system and developer items */
    qn_buf reasoning;   /* waits for the next item of the assistant */
    json_t *open;       /* the assistant's message that following calls join; NULL: none */
} walk;

static const char *text_of(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

static bool fail_item(const walk *w, const char *field, const char *what)
{
    char path[64];
    snprintf(path, sizeof path, "input[%zu]%s%s", w->i_item, field[0] ? "." : "", field);
    return qn_fail_field(w->e, path, "%s %s", path, what);
}

/* ---- content ---- */

/* Append the texts of a string or of an array of parts. */
static void flatten(qn_buf *text, const char *gap, const json_t *v)
{
    size_t i;
    json_t *part;
    if (json_is_string(v)) qn_form_join(text, gap, v);
    json_array_foreach(v, i, part) {
        const json_t *t = json_object_get(part, "text");
        if (!json_is_string(t)) t = json_object_get(part, "refusal");
        if (json_is_string(t)) qn_form_join(text, i ? "" : gap, t);
    }
}

static bool has_images(const json_t *parts)
{
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part) {
        if (!strcmp(text_of(part, "type"), "input_image")) return true;
    }
    return false;
}

/* The value for a chat message: shared, except that images change their form. */
static json_t *chat_content(json_t *v)
{
    if (!has_images(v)) return json_incref(v);
    json_t *out = json_array(), *part;
    size_t i;
    json_array_foreach(v, i, part) {
        json_t *url = json_object_get(part, "image_url");
        bool is_image = !strcmp(text_of(part, "type"), "input_image") && json_is_string(url);
        json_array_append_new(out, is_image ? qn_form_image(json_incref(url)) : json_incref(part));
    }
    return out;
}

/* ---- items ---- */

/* The assistant's message that a call belongs to: the one that is open, or a new one. */
static json_t *assistant_message(walk *w, json_t *content)
{
    json_t *m = qn_form_add_message(w->messages, "assistant", content);
    if (w->keep_reasoning && w->reasoning.len) {
        json_object_set_new(m, "reasoning_content", qn_form_take_text(&w->reasoning));
    }
    qn_buf_clear(&w->reasoning);
    w->open = m;
    return m;
}

static bool add_message(json_t *item, walk *w)
{
    const char *role = text_of(item, "role");
    json_t *content = qn_json_get(item, "content");
    if (content && !json_is_string(content) && !json_is_array(content)) {
        return fail_item(w, "content", "must be of type string or array");
    }
    if (!strcmp(role, "system") || !strcmp(role, "developer")) {
        flatten(&w->system, "\n\n", content);
        return true;
    }
    json_t *v = content ? chat_content(content) : NULL;
    if (!strcmp(role, "assistant")) {
        assistant_message(w, v);
        return true;
    }
    bool is_tool = !strcmp(role, "tool");
    json_t *m = qn_form_add_message(w->messages, is_tool ? "tool" : "user", v);
    if (is_tool) qn_form_copy(m, "tool_call_id", item, "tool_call_id");
    else qn_buf_clear(&w->reasoning); /* of an answer that was cut: no later one's */
    w->open = NULL;
    return true;
}

/* function_call, custom_tool_call: calls of one turn are one message. */
static bool add_call(json_t *item, bool is_custom, walk *w)
{
    const json_t *name = json_object_get(item, "name");
    json_t *arguments = qn_json_get(item, is_custom ? "input" : "arguments");
    if (!json_is_string(name)) return fail_item(w, "name", "must be of type string");
    if (arguments && !json_is_string(arguments)) {
        return fail_item(w, is_custom ? "input" : "arguments", "must be of type string");
    }
    json_t *value = arguments ? json_incref(arguments) : json_string("");
    if (is_custom) value = json_pack("{s:o}", "input", value);
    json_t *id = qn_json_get(item, "call_id");
    if (!id) id = qn_json_get(item, "id");
    qn_form_add_call(w->open ? w->open : assistant_message(w, NULL), id, name, value);
    return true;
}

static bool add_output(json_t *item, walk *w)
{
    json_t *v = qn_json_get(item, "output");
    qn_buf text = {0};
    if (json_is_array(v) && has_images(v)) {
        v = chat_content(v);
    } else {
        if (json_is_string(v) || json_is_array(v)) flatten(&text, "", v);
        else if (v) qn_json_write(&text, v);
        v = qn_form_take_text(&text);
    }
    json_t *m = qn_form_add_message(w->messages, "tool", v);
    qn_form_copy(m, "tool_call_id", item, "call_id");
    w->open = NULL;
    return true;
}

static bool add_reasoning(json_t *item, walk *w)
{
    size_t before = w->reasoning.len;
    flatten(&w->reasoning, "\n", json_object_get(item, "content"));
    if (w->reasoning.len == before) {
        flatten(&w->reasoning, "\n", json_object_get(item, "summary"));
    }
    w->open = NULL;
    return true;
}

static bool add_item(json_t *item, walk *w)
{
    if (!json_is_object(item)) return fail_item(w, "", "must be of type object");
    const char *type = text_of(item, "type");
    if (!strcmp(type, "function_call")) return add_call(item, false, w);
    if (!strcmp(type, "custom_tool_call")) return add_call(item, true, w);
    if (!strcmp(type, "function_call_output") || !strcmp(type, "custom_tool_call_output")) {
        return add_output(item, w);
    }
    if (!strcmp(type, "reasoning")) return add_reasoning(item, w);
    if (!strcmp(type, "message") || json_is_string(json_object_get(item, "role"))) {
        return add_message(item, w);
    }
    char why[96];
    snprintf(why, sizeof why, "has the type \"%.32s\", which is not supported yet", type);
    return fail_item(w, "type", why);
}

static bool add_items(const json_t *items, walk *w)
{
    json_t *item;
    json_array_foreach(items, w->i_item, item) {
        if (!add_item(item, w)) return false;
    }
    return true;
}

json_t *qn_responses_input_items(const json_t *body)
{
    json_t *input = qn_json_get(body, "input");
    if (json_is_array(input)) return json_copy(input);
    if (!json_is_string(input)) return NULL;
    return json_pack("[{s:s, s:s, s:O}]", "type", "message", "role", "user", "content", input);
}

/* Instructions and the system items become the first message. */
static bool add_system(const json_t *body, const qn_responses_past *past, walk *w)
{
    const json_t *given = qn_json_get(body, "instructions");
    if (given && !json_is_string(given)) {
        return qn_fail_field(w->e, "instructions", "instructions must be of type string");
    }
    const json_t *instructions = given ? given : past->instructions;
    qn_buf text = {0};
    qn_form_join(&text, "", instructions);
    if (w->system.len) {
        if (text.len) qn_buf_puts(&text, "\n\n");
        qn_buf_put(&text, w->system.data, w->system.len);
    }
    if (text.len) {
        json_array_insert_new(w->messages, 0, json_pack("{s:s, s:o}", "role", "system", "content",
                                                        qn_form_take_text(&text)));
    }
    qn_buf_release(&text);
    return true;
}

static bool add_messages(const json_t *body, const qn_responses_past *past, json_t *chat,
                         qn_http_error *e)
{
    walk w = {.e = e, .messages = json_array(), .keep_reasoning = past->keep_reasoning};
    json_object_set_new(chat, "messages", w.messages);
    json_t *items = qn_responses_input_items(body);
    bool ok = items || qn_fail_field(e, "input", "input must be a string or an array of items");
    ok = ok && add_items(past->items, &w);
    w.open = NULL;
    ok = ok && add_items(items, &w) && add_system(body, past, &w);
    if (ok && !json_array_size(w.messages)) {
        ok = qn_fail_field(e, "input", "input must have at least one item");
    }
    json_decref(items);
    qn_buf_release(&w.system);
    qn_buf_release(&w.reasoning);
    return ok;
}

/* ---- tools ---- */

/* A custom tool takes free text: a function with one string argument. */
static void add_custom_tool(json_t *out, const json_t *tool)
{
    json_t *schema = json_pack("{s:s, s:{s:{s:s}}, s:[s]}", "type", "object", "properties", "input",
                               "type", "string", "required", "input");
    qn_form_add_tool(out, json_object_get(tool, "name"), qn_json_get(tool, "description"), schema,
                     NULL);
    json_decref(schema);
}

static bool add_tools(const json_t *body, json_t *chat, qn_http_error *e)
{
    const json_t *tools = qn_json_get(body, "tools");
    if (!tools) return true;
    if (!json_is_array(tools)) return qn_fail_field(e, "tools", "tools must be of type array");
    json_t *out = json_array(), *tool;
    json_object_set_new(chat, "tools", out);
    size_t i;
    json_array_foreach(tools, i, tool) {
        const char *type = text_of(tool, "type");
        bool is_custom = !strcmp(type, "custom");
        if (!is_custom && strcmp(type, "function")) continue; /* run by OpenAI's servers */
        if (!json_is_string(json_object_get(tool, "name"))) {
            return qn_fail_field(e, "tools", "tools[%zu].name must be of type string", i);
        }
        if (is_custom) {
            add_custom_tool(out, tool);
        } else {
            qn_form_add_tool(out, json_object_get(tool, "name"), qn_json_get(tool, "description"),
                             qn_json_get(tool, "parameters"), qn_json_get(tool, "strict"));
        }
    }
    return true;
}

bool qn_responses_is_custom_tool(const json_t *body, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach(json_object_get(body, "tools"), i, tool) {
        if (!strcmp(text_of(tool, "type"), "custom") && !strcmp(text_of(tool, "name"), name)) {
            return true;
        }
    }
    return false;
}

static bool add_tool_choice(const json_t *body, json_t *chat, qn_http_error *e)
{
    json_t *choice = qn_json_get(body, "tool_choice");
    const char *type = text_of(choice, "type");
    const json_t *name = json_object_get(choice, "name");
    bool named = !strcmp(type, "function") || !strcmp(type, "custom");
    if (!choice) return true;
    if (json_is_string(choice)) {
        json_object_set(chat, "tool_choice", choice);
    } else if (named && json_is_string(name)) {
        json_object_set_new(chat, "tool_choice", qn_form_named_tool(name));
    } else if (!strcmp(type, "allowed_tools")) {
        json_object_set_new(chat, "tool_choice", json_pack("{s:s, s:O}", "type", type, type, choice));
    } else if (!json_is_object(choice) || named) {
        return qn_fail_field(e, "tool_choice", "tool_choice must be auto, none, required, or "
                                               "{\"type\": \"function\", \"name\": NAME}");
    }
    return true;
}

/* ---- the other fields ---- */

static bool add_format(const json_t *body, json_t *chat, qn_http_error *e)
{
    json_t *text = NULL, *format = NULL;
    if (!qn_field_object(body, "text", &text, e)) return false;
    if (!text || !qn_field_object(text, "format", &format, e)) return !e->status;
    if (!format) return true;
    if (strcmp(text_of(format, "type"), "json_schema")) {
        json_object_set(chat, "response_format", format);
        return true;
    }
    json_t *schema = json_copy(format);
    json_object_del(schema, "type");
    json_object_set_new(chat, "response_format",
                        json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", schema));
    return true;
}

static bool add_logprobs(const json_t *body, json_t *chat, qn_http_error *e)
{
    const json_t *include = qn_json_get(body, "include");
    if (!include) return true;
    if (!json_is_array(include)) return qn_fail_field(e, "include", "include must be of type array");
    size_t i;
    json_t *v;
    json_array_foreach(include, i, v) {
        if (!json_is_string(v)) return qn_fail_field(e, "include", "include must hold strings");
        if (strcmp(json_string_value(v), "message.output_text.logprobs")) continue;
        json_object_set_new(chat, "logprobs", json_true());
        qn_form_copy(chat, "top_logprobs", body, "top_logprobs");
    }
    return true;
}

/* Fields that would change what the request means, and which nothing here can honour. */
static bool check_refused(const json_t *body, qn_http_error *e)
{
    bool background = false;
    const char *user = NULL;
    json_t *metadata = NULL;
    /* The last two change nothing, but they are shown in the reply. */
    if (!qn_field_bool(body, "background", &background, e) ||
        !qn_field_string(body, "user", &user, e) ||
        !qn_field_object(body, "metadata", &metadata, e)) {
        return false;
    }
    if (background) {
        return qn_fail_field(e, "background", "not supported yet: background responses");
    }
    static const char *const refused[] = {"conversation", "prompt"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (qn_json_get(body, refused[i])) {
            return qn_fail_field(e, refused[i], "not supported yet: %s", refused[i]);
        }
    }
    return true;
}

bool qn_responses_to_chat(const json_t *body, const qn_responses_past *past, json_t **out,
                          qn_http_error *e)
{
    static const char *const same[] = {"logit_bias", "stop", "parallel_tool_calls"};
    json_t *chat = json_object(), *reasoning = NULL;
    qn_form_copy_common(chat, body);
    qn_form_copy(chat, "max_completion_tokens", body, "max_output_tokens");
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        qn_form_copy(chat, same[i], body, same[i]);
    }
    bool ok = check_refused(body, e) && qn_field_object(body, "reasoning", &reasoning, e) &&
              add_messages(body, past, chat, e) && add_tools(body, chat, e) &&
              add_tool_choice(body, chat, e) && add_format(body, chat, e) &&
              add_logprobs(body, chat, e);
    if (ok) {
        qn_form_copy(chat, "reasoning_effort", reasoning, "effort");
    } else {
        json_decref(chat);
        chat = NULL;
    }
    *out = chat;
    return ok;
}
