/* chat.c - see chat.h. */
#include "text/chat.h"

#include <string.h>

#include "text/tokenizer.h"

/* Put behind the last message's content before rendering: where it comes out, the text is cut. Its
 * space at the end tells whether the template trims contents. */
static const char mark[] = "QN-CONTINUES-HERE ";
enum { MARK_LEN = sizeof mark - 1 };

/* The messages with the mark behind the last one's content; NULL if that has no text. */
static json_t *marked(const json_t *messages)
{
    json_t *copy = json_deep_copy(messages);
    json_t *last = json_array_get(copy, json_array_size(copy) - 1);
    const char *text = json_string_value(json_object_get(last, "content"));
    json_t *longer = text ? json_sprintf("%s%s", text, mark) : NULL;
    if (longer && !json_object_set_new(last, "content", longer)) return copy;
    json_decref(copy);
    return NULL;
}

/* Offset of the last mark (without its space) in out[from..), or out->len. */
static size_t find_last_mark(const qn_buf *out, size_t from)
{
    for (size_t at = out->len; at-- > from;) {
        if (out->len - at >= MARK_LEN - 1 && !memcmp(out->data + at, mark, MARK_LEN - 1)) return at;
    }
    return out->len;
}

static qn_code cut_at_mark(qn_buf *out, size_t from, qn_err *err)
{
    size_t at = find_last_mark(out, from);
    if (at == out->len) {
        out->len = from;
        return qn_err_set(err, QN_INVALID, "the chat template does not show the last message, so the reply cannot go "
                          "on with it");
    }
    bool trims = out->len - at < MARK_LEN || out->data[at + MARK_LEN - 1] != ' ';
    while (trims && at > from && strchr(" \t\r\n\f\v", out->data[at - 1])) at--;
    out->len = at;
    out->data[at] = '\0';
    return QN_OK;
}

/* Step 3 of the data path. */
qn_code qn_chat_render(const qn_chat_template *ct, const json_t *messages, const json_t *tools, const json_t *args,
                       bool add_generation_prompt, bool continue_final, qn_buf *out, qn_err *err)
{
    if (add_generation_prompt && continue_final) {
        return qn_err_set(err, QN_INVALID, "add_generation_prompt and continue_final_message exclude each other");
    }
    json_t *list = continue_final ? marked(messages) : json_incref((json_t *)(uintptr_t)messages);
    if (!list) return qn_err_set(err, QN_INVALID, "the last message has no text that a reply could go on with");
    json_t *vars = args ? json_copy((json_t *)(uintptr_t)args) : json_object();
    size_t from = out->len;
    qn_code rc = QN_OK;
    json_object_set_new(vars, "add_generation_prompt", json_boolean(add_generation_prompt));
    if (tools) json_object_set(vars, "tools", (json_t *)(uintptr_t)tools);
    if (json_object_set_new(vars, "messages", list)) rc = qn_err_set(err, QN_NOMEM, "chat: out of memory");
    if (!rc) rc = qn_chat_template_render(ct, vars, out, err);
    if (!rc && continue_final) rc = cut_at_mark(out, from, err);
    json_decref(vars);
    return rc;
}

qn_code qn_chat_render_marked(const qn_sanitizer *san, const qn_chat_template *ct,
                              const json_t *messages, const json_t *tools, const json_t *args,
                              bool add_generation_prompt, bool continue_final, qn_buf *out,
                              qn_err *err)
{
    if (!san) {
        return qn_chat_render(ct, messages, tools, args, add_generation_prompt, continue_final, out,
                              err);
    }
    const json_t *in[3] = {messages, tools, args};
    json_t *marked[3] = {0};
    qn_code rc = QN_OK;
    for (size_t i = 0; i < 3 && !rc; i++) {
        if (in[i]) marked[i] = qn_sanitizer_mark(san, in[i]);
        if (in[i] && !marked[i]) rc = qn_err_set(err, QN_NOMEM, "chat: out of memory");
    }
    if (!rc) {
        rc = qn_chat_render(ct, marked[0], marked[1], marked[2], add_generation_prompt,
                            continue_final, out, err);
    }
    for (size_t i = 0; i < 3; i++) json_decref(marked[i]);
    return rc;
}

unsigned qn_chat_encode_flags(const qn_chat_template *ct)
{
    return qn_chat_template_kind(ct) == QN_CHAT_FALLBACK ? QN_ENCODE_ADD_SPECIAL : 0;
}

/* Step 4 of the data path. */
qn_code qn_chat_encode(qn_encoder *e, const qn_chat_template *ct, const qn_sanitizer *san,
                       const qn_buf *text, qn_ids *out, qn_err *err)
{
    const char *s = text->data ? text->data : "";
    if (san && qn_sanitizer_is_marked(s, text->len)) {
        return qn_sanitizer_encode(san, s, text->len, out, err);
    }
    return qn_encoder_encode(e, s, text->len, qn_chat_encode_flags(ct), out, err);
}
