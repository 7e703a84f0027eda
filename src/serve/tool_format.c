/* tool_format.c - see tool_format.h. */
#include "serve/tool_format.h"

#include <string.h>

#include "serve/tool_formats.h"
#include "serve/tool_value.h"

/* ---- which format ---- */

static const qn_tool_format *const formats[] = {
    &qn_tool_minimax, &qn_tool_gemma,  &qn_tool_function_gemma, &qn_tool_longcat, &qn_tool_glm,
    &qn_tool_laguna,  &qn_tool_qwen,   &qn_tool_pythonic,       &qn_tool_kimi,    &qn_tool_minicpm,
    &qn_tool_mistral, &qn_tool_muse,   &qn_tool_json,           &qn_tool_harmony,
    &qn_tool_kimi_k3,
};

/* What a template says, in the order in which it is asked: the first line whose texts are all there
 * wins. The order is mlx-lm's; the last two are ours. */
static const struct rule {
    const char *texts[2]; /* the second may be NULL */
    const qn_tool_format *format;
} rules[] = {
    {{"<minimax:tool_call>", NULL}, &qn_tool_minimax},
    {{"<|tool_call>", "<tool_call|>"}, &qn_tool_gemma},
    {{"<start_function_call>", NULL}, &qn_tool_function_gemma},
    {{"<longcat_tool_call>", NULL}, &qn_tool_longcat},
    {{"<arg_key>", NULL}, &qn_tool_glm},
    {{"<|tool_list_start|>", NULL}, &qn_tool_pythonic},
    {{"<|tool_call_start|>", NULL}, &qn_tool_pythonic},
    {{"<tool_call>\\n<function=", NULL}, &qn_tool_qwen}, /* a backslash and an n */
    {{"<tool_call>\n<function=", NULL}, &qn_tool_qwen},
    {{"<|tool_calls_section_begin|>", NULL}, &qn_tool_kimi},
    {{"<function name=\"", "<param name=\""}, &qn_tool_minicpm},
    {{"[TOOL_CALLS]", NULL}, &qn_tool_mistral},
    {{"<atem:function_calls>", NULL}, &qn_tool_muse},
    {{"<tool_call>", "tool_call.name"}, &qn_tool_json},
    {{"<|channel|>", "<|call|>"}, &qn_tool_harmony},
    {{"<function name=", NULL}, &qn_tool_minicpm},
};

const qn_tool_format *qn_tool_format_named(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (!strcmp(formats[i]->name, name)) return formats[i];
    }
    return NULL;
}

static bool has_token(const qn_tokenizer *tok, const char *text)
{
    return qn_tokenizer_find(tok, text, strlen(text)) != QN_NO_TOKEN;
}

const qn_tool_format *qn_tool_format_of(const qn_chat_template *chat, const qn_tokenizer *tok)
{
    const char *named =
        json_string_value(json_object_get(qn_tokenizer_config(tok), "tool_parser_type"));
    if (named) return qn_tool_format_named(named);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct rule *r = &rules[i];
        if (!qn_chat_template_mentions(chat, r->texts[0])) continue;
        if (!r->texts[1] || qn_chat_template_mentions(chat, r->texts[1])) return r->format;
    }
    if (has_token(tok, "<|open|>") && has_token(tok, "<|close|>") && has_token(tok, "<|sep|>") &&
        has_token(tok, "<|end_of_msg|>")) {
        return &qn_tool_kimi_k3;
    }
    bool is_lfm = has_token(tok, "<|tool_call_start|>") && has_token(tok, "<|tool_call_end|>");
    return is_lfm ? &qn_tool_pythonic : NULL;
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
                        ? qn_json_value(json_string_value(args), json_string_length(args))
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
