/* messages.c - see messages.h. */
#include "serve/messages.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "serve/ids.h"
#include "serve/json.h"

/* Where in the request we are, for error messages. */
typedef struct place {
    const char *model_id;
    size_t i_message;
    qn_http_error *e;
} place;

static bool fail_at(const place *at, const char *field, const char *what)
{
    char param[64];
    snprintf(param, sizeof param, "messages[%zu]%s%s", at->i_message, field[0] ? "." : "", field);
    return qn_fail_field(at->e, param, "%s %s", param, what);
}

/* ---- content ---- */

static bool is_media(const char *type)
{
    static const char *const kinds[] = {"image", "image_url", "input_image", "audio", "input_audio",
                                        "audio_url", "video",     "video_url",   "file",  "input_file"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!strcmp(type, kinds[i])) return true;
    }
    return false;
}

/* Append the text of one content part. */
static bool add_part(qn_buf *text, const json_t *part, const place *at)
{
    if (json_is_string(part)) {
        qn_buf_put(text, json_string_value(part), json_string_length(part));
        return true;
    }
    const char *type = json_string_value(json_object_get(part, "type"));
    if (type && is_media(type)) {
        char param[64];
        snprintf(param, sizeof param, "messages[%zu].content", at->i_message);
        return qn_fail_field(at->e, param, "the model %.128s takes text only, not %.32s",
                             at->model_id, type);
    }
    const char *key = type && !strcmp(type, "refusal") ? "refusal" : "text";
    const json_t *v = json_object_get(part, key);
    if (!json_is_string(v)) return fail_at(at, "content", "has a part without text");
    qn_buf_put(text, json_string_value(v), json_string_length(v));
    return true;
}

static bool flatten_content(json_t *message, const place *at)
{
    json_t *content = qn_json_get(message, "content");
    if (json_is_string(content)) return true;
    if (content && !json_is_array(content)) {
        return fail_at(at, "content", "must be of type string or array");
    }
    qn_buf text = {0};
    size_t i;
    json_t *part;
    bool ok = true;
    json_array_foreach(content, i, part) {
        ok = ok && add_part(&text, part, at);
    }
    if (ok) qn_json_put_text(message, "content", text.data, text.len);
    qn_buf_release(&text);
    return ok;
}

/* ---- tool calls ---- */

/* Arguments come as JSON text; templates want the object. What does not parse (a call cut in an
 * earlier turn) stays text. */
static void open_arguments(json_t *function)
{
    const json_t *v = json_object_get(function, "arguments");
    if (!json_is_string(v)) return;
    json_t *tree = json_string_length(v)
                       ? qn_json_value(json_string_value(v), json_string_length(v))
                       : json_object();
    if (json_is_object(tree)) json_object_set(function, "arguments", tree);
    json_decref(tree);
}

static bool open_tool_calls(json_t *message, const place *at)
{
    json_t *calls = qn_json_get(message, "tool_calls");
    if (!calls) return true;
    if (!json_is_array(calls)) return fail_at(at, "tool_calls", "must be of type array");
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call) {
        if (!json_is_object(call)) return fail_at(at, "tool_calls", "must hold objects");
        json_t *function = json_object_get(call, "function");
        if (json_is_object(function)) open_arguments(function);
    }
    return true;
}

/* Give every call an id and every tool result the id it answers, pairwise in order of
 * appearance. */
static void pair_tool_ids(json_t *messages)
{
    json_t *open = json_array(); /* ids of calls without a result yet */
    unsigned n_made = 0;
    size_t i, k;
    json_t *message, *call;
    json_array_foreach(messages, i, message) {
        json_array_foreach(json_object_get(message, "tool_calls"), k, call) {
            if (!json_is_string(json_object_get(call, "id"))) {
                json_object_set_new(call, "id", json_sprintf("call_%024x", ++n_made));
            }
            json_array_append(open, json_object_get(call, "id"));
        }
        const char *role = json_string_value(json_object_get(message, "role"));
        if (!role || strcmp(role, "tool")) continue;
        json_t *id = json_object_get(message, "tool_call_id");
        if (!json_is_string(id)) {
            if (!json_array_size(open)) continue;
            json_object_set(message, "tool_call_id", json_array_get(open, 0));
            json_array_remove(open, 0);
            continue;
        }
        for (k = 0; k < json_array_size(open); k++) {
            if (!json_equal(json_array_get(open, k), id)) continue;
            json_array_remove(open, k);
            break;
        }
    }
    json_decref(open);
}

/* ---- reasoning ---- */

/* Templates differ in the name they read: whichever is filled becomes visible under all three. */
static void spread_reasoning(json_t *message)
{
    static const char *const names[] = {"reasoning", "reasoning_content", "thinking"};
    json_t *filled = NULL;
    for (size_t i = 0; i < 3 && !filled; i++) {
        json_t *v = json_object_get(message, names[i]);
        if (json_is_string(v) && json_string_length(v)) filled = v;
    }
    if (!filled) return;
    json_incref(filled);
    for (size_t i = 0; i < 3; i++) json_object_set(message, names[i], filled);
    json_decref(filled);
}

/* ---- the whole ---- */

static bool normalize_one(json_t *message, const place *at)
{
    if (!json_is_object(message)) return fail_at(at, "", "must be of type object");
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role) return fail_at(at, "role", "must be of type string");
    bool is_assistant = !strcmp(role, "assistant");
    if (!strcmp(role, "developer")) json_object_set_new(message, "role", json_string("system"));
    if (!flatten_content(message, at) || !open_tool_calls(message, at)) return false;
    if (is_assistant) spread_reasoning(message);
    return true;
}

bool qn_messages_normalize(json_t *messages, const char *model_id, qn_http_error *e)
{
    if (!json_is_array(messages) || !json_array_size(messages)) {
        return qn_fail_field(e, "messages", "messages required: a non-empty array");
    }
    size_t i;
    json_t *message;
    json_array_foreach(messages, i, message) {
        place at = {.model_id = model_id, .i_message = i, .e = e};
        if (!normalize_one(message, &at)) return false;
    }
    pair_tool_ids(messages);
    return true;
}

static bool is_system(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && !strcmp(role, "system");
}

bool qn_messages_join_system(json_t *messages)
{
    size_t n = 0;
    while (is_system(json_array_get(messages, n))) n++;
    if (n < 2) return false;
    qn_buf text = {0};
    for (size_t i = 0; i < n; i++) {
        const json_t *content = json_object_get(json_array_get(messages, i), "content");
        if (i) qn_buf_puts(&text, "\n\n");
        qn_buf_put(&text, json_string_value(content), json_string_length(content));
    }
    qn_json_put_text(json_array_get(messages, 0), "content", text.data, text.len);
    qn_buf_release(&text);
    for (size_t i = 1; i < n; i++) json_array_remove(messages, 1);
    return true;
}

bool qn_messages_drop_call_content(json_t *messages)
{
    size_t i;
    json_t *message;
    bool dropped = false;
    json_array_foreach(messages, i, message) {
        bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
        if (!calls || !json_object_get(message, "thinking")) continue;
        if (!json_string_length(json_object_get(message, "content"))) continue;
        json_object_set_new(message, "content", json_string(""));
        dropped = true;
    }
    return dropped;
}

/* Replace object[key] if it is a long id: by nine digits of a hash of it. */
static bool shorten_id(json_t *object, const char *key)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    const json_t *id = json_object_get(object, key);
    if (!json_is_string(id)) return false;
    const char *s = json_string_value(id);
    bool is_short = strlen(s) == QN_SHORT_ID;
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */
    for (; *s; s++) {
        is_short = is_short && isalnum((unsigned char)*s);
        hash = (hash ^ (unsigned char)*s) * 0x100000001B3u;
    }
    if (is_short) return false;
    char text[QN_SHORT_ID + 1] = {0};
    for (int i = 0; i < QN_SHORT_ID; i++, hash /= 36) text[i] = digits[hash % 36];
    json_object_set_new(object, key, json_string(text));
    return true;
}

bool qn_messages_shorten_ids(json_t *messages)
{
    size_t i, k;
    json_t *message, *call;
    bool changed = false;
    json_array_foreach(messages, i, message) {
        changed |= shorten_id(message, "tool_call_id");
        json_array_foreach(json_object_get(message, "tool_calls"), k, call) {
            changed |= shorten_id(call, "id");
        }
    }
    return changed;
}
