/* chat_form.c - see chat_form.h. */
#include "serve/chat_form.h"

#include <stdio.h>
#include <string.h>

#include "serve/json.h"

void qn_form_copy(json_t *chat, const char *to, const json_t *body, const char *from)
{
    json_t *v = qn_json_get(body, from);
    if (v) json_object_set(chat, to, v);
}

void qn_form_copy_common(json_t *chat, const json_t *body)
{
    static const char *const names[] = {
        "model", "stream", "max_tokens", "temperature", "top_p", "top_k", "min_p",
        "xtc_probability", "xtc_threshold", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "repetition_context_size", "presence_context_size",
        "frequency_context_size", "seed", "adapter", "adapters", "chat_template_kwargs",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_form_copy(chat, names[i], body, names[i]);
    }
}

bool qn_form_keeps_reasoning(const qn_chat_template *chat)
{
    static const char *const names[] = {"reasoning_content", ".reasoning", "['reasoning']",
                                        ".thinking", "['thinking']", "preserve_thinking"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (qn_chat_template_mentions(chat, names[i])) return true;
    }
    return false;
}

void qn_form_rename_error(qn_http_error *e, const qn_form_name *names)
{
    char message[sizeof e->message];
    for (; names->chat; names++) {
        size_t n = strlen(names->chat), n_param = strlen(e->param);
        bool is_it = !strncmp(e->param, names->chat, n) && (!e->param[n] || e->param[n] == '[');
        if (!is_it) continue;
        snprintf(message, sizeof message, "%s", e->message);
        /* The index counts messages of the chat form, which the client has not seen. */
        if (!strncmp(message, e->param, n_param)) {
            snprintf(e->message, sizeof e->message, "%s%s", names->own, message + n_param);
        }
        snprintf(e->param, sizeof e->param, "%s", names->own);
        return;
    }
}

json_t *qn_form_add_message(json_t *messages, const char *role, json_t *content)
{
    json_t *m = json_pack("{s:s, s:o}", "role", role, "content",
                          content ? content : json_string(""));
    return json_array_append_new(messages, m) ? NULL : m;
}

void qn_form_add_call(json_t *message, const json_t *id, const json_t *name, json_t *arguments)
{
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(message, "tool_calls", calls);
    }
    json_t *call = json_pack("{s:s, s:{s:O, s:o}}", "type", "function", "function", "name", name,
                             "arguments", arguments);
    if (id) json_object_set_new(call, "id", json_deep_copy(id));
    json_array_append_new(calls, call);
}

void qn_form_add_tool(json_t *tools, const json_t *name, const json_t *description,
                      const json_t *parameters, const json_t *strict)
{
    json_t *f = json_object();
    if (name) json_object_set_new(f, "name", json_deep_copy(name));
    if (description) json_object_set_new(f, "description", json_deep_copy(description));
    if (parameters) json_object_set_new(f, "parameters", json_deep_copy(parameters));
    if (strict) json_object_set_new(f, "strict", json_deep_copy(strict));
    json_array_append_new(tools, json_pack("{s:s, s:o}", "type", "function", "function", f));
}

json_t *qn_form_named_tool(const json_t *name)
{
    return json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name);
}

json_t *qn_form_image(json_t *url)
{
    return json_pack("{s:s, s:{s:o}}", "type", "image_url", "image_url", "url", url);
}

void qn_form_join(qn_buf *text, const char *gap, const json_t *string)
{
    if (!json_string_length(string)) return;
    if (text->len) qn_buf_puts(text, gap);
    qn_buf_put(text, json_string_value(string), json_string_length(string));
}

json_t *qn_form_take_text(qn_buf *text)
{
    json_t *s = text->failed ? NULL : json_stringn(text->data ? text->data : "", text->len);
    qn_buf_release(text);
    return s;
}
