/* tool_format.c - see tool_format.h. */
#include "serve/tool_format.h"

#include <string.h>

#include "serve/tool_formats.h"
#include "serve/tool_value.h"

/* ---- which format ---- */

static const qn_tool_format *const formats[] = {&qn_tool_json};

const qn_tool_format *qn_tool_format_named(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (!strcmp(formats[i]->name, name)) return formats[i];
    }
    return NULL;
}

const qn_tool_format *qn_tool_format_of(const qn_chat_template *chat, const qn_tokenizer *tok)
{
    const char *named =
        json_string_value(json_object_get(qn_tokenizer_config(tok), "tool_parser_type"));
    if (named) return qn_tool_format_named(named);
    if (qn_chat_template_mentions(chat, "<tool_call>") &&
        qn_chat_template_mentions(chat, "tool_call.name")) {
        return &qn_tool_json;
    }
    return NULL;
}

/* ---- parsing ---- */

/* Arguments become an object: text that reads as one is one, none are an empty one. */
static qn_code complete_call(json_t *call, qn_err *err)
{
    const char *name = json_string_value(json_object_get(call, "name"));
    if (!name || !*name) return qn_err_set(err, QN_FORMAT, "a call has no name");
    json_t *args = json_object_get(call, "arguments");
    if (!args || json_is_null(args)) {
        json_object_set_new(call, "arguments", json_object());
        return QN_OK;
    }
    if (json_is_object(args)) return QN_OK;
    json_t *inner = json_is_string(args)
                        ? qn_value_json(json_string_value(args), json_string_length(args))
                        : NULL;
    if (json_is_object(inner)) {
        json_object_set_new(call, "arguments", inner);
        return QN_OK;
    }
    json_decref(inner);
    return qn_err_set(err, QN_FORMAT, "the arguments of %.64s are not an object", name);
}

qn_code qn_tool_format_parse(const qn_tool_format *f, const char *body, size_t n, unsigned mark,
                             const json_t *tools, json_t *calls, qn_err *err)
{
    size_t i;
    json_t *call;
    qn_code rc = f->parse(body, n, mark, tools, calls, err);
    if (!rc && !json_array_size(calls)) rc = qn_err_set(err, QN_FORMAT, "no call in the block");
    json_array_foreach(calls, i, call) {
        if (!rc) rc = complete_call(call, err);
    }
    if (rc) json_array_clear(calls);
    return rc;
}
