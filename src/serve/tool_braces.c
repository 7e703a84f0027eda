/* tool_braces.c - calls with literals in braces and brackets: Gemma 4, FunctionGemma, LFM2. */
#include <ctype.h>
#include <string.h>

#include "serve/tool_formats.h"
#include "serve/tool_value.h"

/* ---- Gemma: call:NAME{key:value,...} ---- */

typedef struct scan {
    qn_span v;
    const char *quote; /* around strings */
    unsigned depth;
} scan;

static json_t *scan_value(scan *s);

static bool is_key_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

static void skip_space(scan *s)
{
    while (s->v.n && isspace((unsigned char)s->v.s[0])) s->v = qn_span_from(s->v, 1);
}

static bool take(scan *s, const char *what)
{
    skip_space(s);
    if (!qn_span_begins(s->v, what)) return false;
    s->v = qn_span_from(s->v, strlen(what));
    return true;
}

static qn_span cut_key(scan *s)
{
    size_t n = 0;
    skip_space(s);
    while (n < s->v.n && is_key_char(s->v.s[n])) n++;
    qn_span key = {s->v.s, n};
    s->v = qn_span_from(s->v, n);
    return key;
}

/* Behind "{" or "[": the members. NULL if they do not end. */
static json_t *scan_members(scan *s, bool is_object)
{
    const char *close = is_object ? "}" : "]";
    json_t *out = is_object ? json_object() : json_array();
    bool ok = true, first = true;
    qn_err err = {0};
    while (ok && !take(s, close)) {
        qn_span key = {0};
        if (!first && !take(s, ",")) ok = false;
        if (ok && !first && take(s, close)) break;
        if (ok && is_object) {
            bool quoted = take(s, s->quote);
            key = cut_key(s);
            ok = key.n && (!quoted || take(s, s->quote)) && take(s, ":");
        }
        json_t *v = ok ? scan_value(s) : NULL;
        if (!v) ok = false;
        else if (is_object) ok = !qn_tool_set_arg(out, key, v, &err);
        else ok = !json_array_append_new(out, v);
        first = false;
    }
    if (ok) return out;
    json_decref(out);
    return NULL;
}

/* A JSON scalar or a bare word, up to a comma or a closing bracket. */
static json_t *scan_bare(scan *s)
{
    size_t n = 0;
    while (n < s->v.n && !strchr(",}]", s->v.s[n])) n++;
    qn_span text = qn_span_trim((qn_span){s->v.s, n});
    s->v = qn_span_from(s->v, n);
    if (!text.n) return NULL;
    json_t *v = qn_json_value(text.s, text.n);
    return v ? v : qn_value_text(text);
}

static json_t *scan_value(scan *s)
{
    qn_span text;
    json_t *v;
    skip_space(s);
    if (take(s, s->quote)) return qn_span_cut(&s->v, s->quote, &text) ? qn_value_text(text) : NULL;
    if (!s->v.n) return NULL;
    if (s->v.s[0] == '"') {
        size_t n = qn_value_json_bytes(s->v);
        v = qn_json_value(s->v.s, n);
        if (v) s->v = qn_span_from(s->v, n);
        return v ? v : scan_bare(s);
    }
    bool is_object = s->v.s[0] == '{';
    if (!is_object && s->v.s[0] != '[') return scan_bare(s);
    if (s->depth == QN_VALUE_DEPTH) return NULL;
    s->depth++;
    s->v = qn_span_from(s->v, 1);
    v = scan_members(s, is_object);
    s->depth--;
    return v;
}

static qn_code scan_calls(qn_span v, const char *quote, json_t *calls, qn_err *err)
{
    scan s = {.v = v, .quote = quote};
    qn_span before;
    qn_code rc = QN_OK;
    while (!rc && qn_span_cut(&s.v, "call:", &before)) {
        qn_span name = cut_key(&s);
        json_t *args = take(&s, "{") ? scan_members(&s, true) : NULL;
        if (!args) return qn_err_set(err, QN_FORMAT, "the arguments of a call do not end");
        rc = qn_tool_add_call(calls, name, args, err);
    }
    return rc;
}

static qn_code parse_gemma(const char *body, size_t n, unsigned mark, const json_t *tools,
                           json_t *calls, qn_err *err)
{
    (void)mark, (void)tools;
    return scan_calls((qn_span){body, n}, "<|\"|>", calls, err);
}

static qn_code parse_function_gemma(const char *body, size_t n, unsigned mark, const json_t *tools,
                                    json_t *calls, qn_err *err)
{
    (void)mark, (void)tools;
    return scan_calls((qn_span){body, n}, "<escape>", calls, err);
}

static const char *const gemma_tokens[] = {"<|\"|>", NULL};
static const char *const function_gemma_tokens[] = {"<escape>", NULL};

const qn_tool_format qn_tool_gemma = {
    .name = "gemma4",
    .marks = {{"<|tool_call>", "<tool_call|>"}},
    .quote_open = "<|\"|>",
    .quote_close = "<|\"|>",
    .tokens = gemma_tokens,
    .parse = parse_gemma,
};

const qn_tool_format qn_tool_function_gemma = {
    .name = "function_gemma",
    .marks = {{"<start_function_call>", "<end_function_call>"}},
    .quote_open = "<escape>",
    .quote_close = "<escape>",
    .tokens = function_gemma_tokens,
    .parse = parse_function_gemma,
};

/* ---- LFM2: [name(key=value, ...), ...] ---- */

/* A literal, or a bare word up to a comma or the closing bracket. */
static json_t *python_arg(scan *s)
{
    qn_span before = s->v;
    json_t *v = qn_value_python_one(&s->v);
    skip_space(s);
    if (v && s->v.n && (s->v.s[0] == ',' || s->v.s[0] == ')')) return v;
    json_decref(v);
    s->v = before;
    size_t n = 0;
    while (n < s->v.n && !strchr(",()[]{}'\"=\n", s->v.s[n])) n++;
    qn_span word = qn_span_trim((qn_span){s->v.s, n});
    s->v = qn_span_from(s->v, n);
    return word.n ? qn_value_text(word) : NULL;
}

/* Behind "(": the arguments. */
static json_t *python_args(scan *s)
{
    json_t *args = json_object();
    bool ok = true, first = true;
    qn_err err = {0};
    while (ok && !take(s, ")")) {
        if (!first && !take(s, ",")) ok = false;
        if (ok && !first && take(s, ")")) break;
        qn_span key = ok ? cut_key(s) : (qn_span){0};
        ok = ok && key.n && take(s, "=") && !qn_tool_set_arg(args, key, python_arg(s), &err);
        first = false;
    }
    if (ok) return args;
    json_decref(args);
    return NULL;
}

static qn_code parse_pythonic(const char *body, size_t n, unsigned mark, const json_t *tools,
                              json_t *calls, qn_err *err)
{
    (void)mark, (void)tools;
    scan s = {.v = {body, n}, .quote = ""};
    size_t to_list = qn_span_find(s.v, "[");
    bool is_list = to_list < qn_span_find(s.v, "(");
    if (is_list) s.v = qn_span_from(s.v, to_list + 1);
    qn_code rc = QN_OK;
    do {
        qn_span name = cut_key(&s);
        json_t *args = take(&s, "(") ? python_args(&s) : NULL;
        if (!args) return qn_err_set(err, QN_FORMAT, "a call has no arguments in brackets");
        rc = qn_tool_add_call(calls, name, args, err);
    } while (!rc && take(&s, ","));
    if (rc) return rc;
    skip_space(&s);
    bool ends = is_list ? take(&s, "]") : s.v.n == 0;
    return ends ? QN_OK : qn_err_set(err, QN_FORMAT, "the list of calls does not end");
}

const qn_tool_format qn_tool_pythonic = {.name = "pythonic",
                                         .marks = {{"<|tool_call_start|>", "<|tool_call_end|>"}},
                                         .parse = parse_pythonic};
