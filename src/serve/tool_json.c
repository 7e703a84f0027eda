/* tool_json.c - calls whose body is JSON: Qwen and Hermes, Kimi K2, Mistral. */
#include <ctype.h>
#include <string.h>

#include "serve/tool_formats.h"
#include "serve/tool_value.h"

static qn_code not_json(qn_err *err)
{
    return qn_err_set(err, QN_FORMAT, "the body is not the JSON of a call");
}

/* Append a call with the id that the model gave it; id.n 0: none. Takes args. */
static qn_code add_call_with_id(json_t *calls, qn_span name, json_t *args, qn_span id, qn_err *err)
{
    qn_code rc = qn_tool_add_call(calls, name, args, err);
    if (rc || !id.n) return rc;
    json_t *call = json_array_get(calls, json_array_size(calls) - 1);
    json_object_set_new(call, "id", qn_value_text(id));
    return QN_OK;
}

/* ---- json_tools ---- */

/* One {"name", "arguments" or "parameters"}, perhaps inside {"function": ...}. */
static qn_code add_json_call(const json_t *v, json_t *calls, qn_err *err)
{
    json_t *id = json_object_get(v, "id");
    if (json_is_object(json_object_get(v, "function"))) v = json_object_get(v, "function");
    json_t *name = json_object_get(v, "name"), *args = json_object_get(v, "arguments");
    if (!json_is_string(name)) return not_json(err);
    if (!args) args = json_object_get(v, "parameters");
    json_t *call = json_object();
    json_object_set(call, "name", name);
    if (args) json_object_set(call, "arguments", args);
    if (json_is_string(id)) json_object_set(call, "id", id);
    if (!json_array_append_new(calls, call)) return QN_OK;
    return qn_err_set(err, QN_NOMEM, "out of memory for a call");
}

/* One call, or a list of them. */
static qn_code add_json_calls(qn_span body, json_t *calls, qn_err *err)
{
    json_t *v = qn_json_value(body.s, body.n), *one;
    size_t i;
    qn_code rc = v ? QN_OK : not_json(err);
    if (json_is_array(v)) {
        json_array_foreach(v, i, one) {
            if (!rc) rc = add_json_call(one, calls, err);
        }
    } else if (!rc) {
        rc = add_json_call(v, calls, err);
    }
    json_decref(v);
    return rc;
}

/* Some models that know this form write Qwen3-Coder's between the same markers. */
static qn_code parse_json(const char *body, size_t n, unsigned mark, const json_t *tools,
                          json_t *calls, qn_err *err)
{
    qn_span v = qn_span_trim((qn_span){body, n});
    if (qn_span_begins(v, "<function=")) {
        return qn_tool_qwen.parse(body, n, mark, tools, calls, err);
    }
    return add_json_calls(v, calls, err);
}

const qn_tool_format qn_tool_json = {
    .name = "json_tools", .marks = {{"<tool_call>", "</tool_call>"}}, .parse = parse_json};

/* ---- kimi_k2 ---- */

#define KIMI_BEGIN "<|tool_call_begin|>"
#define KIMI_ARGS "<|tool_call_argument_begin|>"
#define KIMI_END "<|tool_call_end|>"

/* "functions.NAME:INDEX" to the name; false without an index. */
static bool kimi_name(qn_span *name)
{
    static const char prefix[] = "functions.";
    size_t n = name->n;
    while (n && isdigit((unsigned char)name->s[n - 1])) n--;
    bool numbered = n && n < name->n && name->s[n - 1] == ':';
    if (numbered) name->n = n - 1;
    if (qn_span_begins(*name, prefix)) *name = qn_span_from(*name, sizeof prefix - 1);
    return numbered;
}

static qn_code kimi_call(qn_span v, json_t *calls, qn_err *err)
{
    qn_span id;
    if (!qn_span_cut(&v, KIMI_ARGS, &id)) {
        return qn_err_set(err, QN_FORMAT, "a call has no " KIMI_ARGS);
    }
    id = qn_span_trim(id);
    qn_span name = id;
    bool numbered = kimi_name(&name);
    json_t *args = qn_json_value(v.s, v.n);
    if (!args) return not_json(err);
    return add_call_with_id(calls, name, args, numbered ? id : (qn_span){0}, err);
}

static qn_code parse_kimi(const char *body, size_t n, unsigned mark, const json_t *tools,
                          json_t *calls, qn_err *err)
{
    (void)mark, (void)tools;
    qn_span rest = {body, n}, before, one;
    qn_code rc = QN_OK;
    if (qn_span_find(rest, KIMI_BEGIN) == rest.n) return kimi_call(rest, calls, err);
    while (!rc && qn_span_cut(&rest, KIMI_BEGIN, &before)) {
        if (!qn_span_cut(&rest, KIMI_END, &one)) { /* the last one's end may be missing */
            one = rest;
            rest.n = 0;
        }
        rc = kimi_call(one, calls, err);
    }
    return rc;
}

static const char *const kimi_tokens[] = {KIMI_BEGIN, KIMI_ARGS, KIMI_END, NULL};

const qn_tool_format qn_tool_kimi = {
    .name = "kimi_k2",
    .marks = {{"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"}},
    .tokens = kimi_tokens,
    .parse = parse_kimi,
};

/* ---- mistral ---- */

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '-';
}

/* Take the letters of a name. */
static qn_span cut_name(qn_span *v)
{
    size_t n = 0;
    *v = qn_span_trim(*v);
    while (n < v->n && is_name_char(v->s[n])) n++;
    qn_span name = {v->s, n};
    *v = qn_span_trim(qn_span_from(*v, n));
    return name;
}

/* NAME[CALL_ID]ID[ARGS]{...}: the id may be missing. Moves *v behind the call. */
static qn_code mistral_call(qn_span *v, json_t *calls, qn_err *err)
{
    static const char id_mark[] = "[CALL_ID]", args_mark[] = "[ARGS]";
    qn_span name = cut_name(v), id = {0};
    if (qn_span_begins(*v, id_mark)) {
        *v = qn_span_from(*v, sizeof id_mark - 1);
        id = cut_name(v);
    }
    if (!qn_span_begins(*v, args_mark)) {
        return qn_err_set(err, QN_FORMAT, "a call has no [ARGS]");
    }
    *v = qn_span_trim(qn_span_from(*v, sizeof args_mark - 1));
    size_t n = qn_value_json_bytes(*v);
    json_t *args = qn_json_value(v->s, n);
    if (!args) return not_json(err);
    *v = qn_span_trim(qn_span_from(*v, n));
    return add_call_with_id(calls, name, args, id, err);
}

/* The block goes on to the end of the reply: calls, each perhaps behind a marker of its own, or the
 * older list. */
static qn_code parse_mistral(const char *body, size_t n, unsigned mark, const json_t *tools,
                             json_t *calls, qn_err *err)
{
    (void)mark, (void)tools;
    static const char start[] = "[TOOL_CALLS]";
    qn_span v = qn_span_trim((qn_span){body, n});
    qn_code rc = QN_OK;
    while (!rc && v.n) {
        if (qn_span_begins(v, start)) {
            v = qn_span_trim(qn_span_from(v, sizeof start - 1));
        } else if (v.s[0] == '[' || v.s[0] == '{') {
            size_t n_list = qn_value_json_bytes(v);
            rc = add_json_calls((qn_span){v.s, n_list}, calls, err);
            v = qn_span_trim(qn_span_from(v, n_list));
        } else {
            rc = mistral_call(&v, calls, err);
        }
    }
    return rc;
}

static const char *const mistral_tokens[] = {"[ARGS]", "[CALL_ID]", NULL};

const qn_tool_format qn_tool_mistral = {.name = "mistral",
                                        .marks = {{"[TOOL_CALLS]", ""}},
                                        .tokens = mistral_tokens,
                                        .short_ids = true,
                                        .parse = parse_mistral};
