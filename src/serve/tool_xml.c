/* tool_xml.c - calls with a tag for each argument: Qwen3-Coder, MiniMax, MiniCPM5, Muse Spark. */
#include <string.h>

#include "serve/tool_formats.h"
#include "serve/tool_value.h"

/* ---- Qwen3-Coder ---- */

static bool starts_ci(const char *name, const char *prefix)
{
    return !strncasecmp(name, prefix, strlen(prefix));
}

/* A text for one named type, by the names that the model's own parser knows. */
static json_t *qwen_single(qn_span v, const char *type)
{
    static const char *const plain[] = {"string", "str", "text", "varchar", "char", "enum"};
    static const char *const counts[] = {"int", "uint", "long", "short", "unsigned"};
    double d;
    json_int_t i;
    bool is_count = false;
    for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) {
        if (!strcasecmp(type, plain[k])) return qn_value_text(v);
    }
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) is_count |= starts_ci(type, counts[k]);
    if (is_count) {
        if (qn_value_int(v, &i)) return json_integer(i);
        json_t *number = qn_value_float(v, &d) ? qn_value_number(d) : NULL;
        if (json_is_integer(number)) return number;
        json_decref(number);
        return qn_value_text(v);
    }
    if (starts_ci(type, "num") || starts_ci(type, "float")) {
        if (qn_value_int(v, &i)) return json_integer(i);
        return qn_value_float(v, &d) ? qn_value_number(d) : qn_value_text(v);
    }
    if (!strcasecmp(type, "boolean") || !strcasecmp(type, "bool") || !strcasecmp(type, "binary")) {
        return json_boolean(qn_span_is_ci(v, "true"));
    }
    bool is_tree = !strcasecmp(type, "object") || !strcasecmp(type, "array") ||
                   !strcasecmp(type, "arr") || starts_ci(type, "dict") || starts_ci(type, "list");
    json_t *tree = is_tree ? qn_value_any(v) : qn_value_python(v);
    return tree ? tree : qn_value_text(v);
}

/* Several types: the ones that are no text first. */
static json_t *qwen_several(qn_span v, unsigned types)
{
    if (types & QN_TYPE_BOOL) {
        if (qn_span_is_ci(v, "true")) return json_true();
        if (qn_span_is_ci(v, "false")) return json_false();
    }
    json_int_t i;
    double d;
    if (types & QN_TYPE_INTEGER && qn_value_int(v, &i)) return json_integer(i);
    if (types & QN_TYPE_NUMBER && qn_value_float(v, &d)) return qn_value_number(d);
    if (types & (QN_TYPE_OBJECT | QN_TYPE_ARRAY)) {
        json_t *tree = qn_value_any(v);
        if (json_is_object(tree) || json_is_array(tree)) return tree;
        json_decref(tree);
    }
    return qn_value_text(v);
}

static json_t *qwen_value(qn_span v, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    unsigned types = qn_tool_types(schema, false);
    if (qn_span_is_ci(v, "null") && types != QN_TYPE_STRING) return json_null();
    bool has_branches = json_object_get(schema, "anyOf") || json_object_get(schema, "oneOf");
    if (json_is_string(type) && !has_branches) return qwen_single(v, json_string_value(type));
    if (types) return qwen_several(v, types);
    json_t *tree = schema ? qn_json_value(v.s, v.n) : NULL;
    if (json_is_object(tree) || json_is_array(tree)) return tree;
    json_decref(tree);
    return qn_value_text(v);
}

/* A name behind "=", up to white space or a bracket; the closing bracket may be missing. */
static qn_span qwen_name(qn_span *v)
{
    size_t n = 0;
    while (v->n && strchr(" \t\r\n", v->s[0]) && v->s[0]) *v = qn_span_from(*v, 1);
    while (n < v->n && !strchr(" \t\r\n<>", v->s[n])) n++;
    qn_span name = {v->s, n};
    *v = qn_span_from(*v, n);
    if (qn_span_begins(*v, ">")) *v = qn_span_from(*v, 1);
    return name;
}

static qn_span strip_newlines(qn_span v)
{
    if (v.n && v.s[0] == '\n') v = qn_span_from(v, 1);
    if (v.n && v.s[v.n - 1] == '\n') v.n--;
    return v;
}

static qn_code no_end(qn_err *err)
{
    return qn_err_set(err, QN_FORMAT, "a call has no end");
}

/* Behind "<function=": one function, up to its closing tag; may_end_open: or to the end. */
static qn_code qwen_function(qn_span *v, bool may_end_open, const json_t *tools, json_t *calls,
                             qn_err *err)
{
    static const char end[] = "</function>", param_start[] = "<parameter=";
    static const char param_end[] = "</parameter>";
    qn_span name = qwen_name(v), text;
    json_t *args = json_object();
    qn_code rc = QN_OK;
    for (;;) {
        size_t to_end = qn_span_find(*v, end), to_param = qn_span_find(*v, param_start);
        if (to_param >= to_end) {
            if (to_end == v->n && !may_end_open) rc = no_end(err);
            *v = qn_span_from(*v, to_end == v->n ? v->n : to_end + sizeof end - 1);
            break;
        }
        *v = qn_span_from(*v, to_param + sizeof param_start - 1);
        qn_span key = qwen_name(v);
        /* Without its end, a value goes on to the function's. */
        if (!qn_span_cut(v, param_end, &text)) {
            text = (qn_span){v->s, qn_span_find(*v, end)};
            *v = qn_span_from(*v, text.n);
        }
        json_t *value = qwen_value(strip_newlines(text), qn_tool_schema(tools, name, key));
        if (!rc) rc = qn_tool_set_arg(args, key, value, err);
        else json_decref(value);
    }
    if (!rc) return qn_tool_add_call(calls, name, args, err);
    json_decref(args);
    return rc;
}

/* mark 1: the block began with "<function=", without the outer marker. */
static qn_code parse_qwen(const char *body, size_t n, unsigned mark, const json_t *tools,
                          json_t *calls, qn_err *err)
{
    qn_span v = {body, n}, before;
    if (mark == 1) return qwen_function(&v, true, tools, calls, err);
    if (qn_span_begins(qn_span_trim(v), "{")) {
        return qn_tool_json.parse(body, n, mark, tools, calls, err);
    }
    qn_code rc = QN_OK;
    while (!rc && qn_span_cut(&v, "<function=", &before)) {
        rc = qwen_function(&v, false, tools, calls, err);
    }
    return rc;
}

const qn_tool_format qn_tool_qwen = {
    .name = "qwen3_coder",
    .marks = {{"<tool_call>", "</tool_call>"}, {"<function=", "</function>"}},
    .quote_open = "<parameter=",
    .quote_close = "</parameter>",
    .parse = parse_qwen,
};

/* ---- tags with a name attribute ---- */

/* How a family spells its tags. */
typedef struct tag_style {
    const char *call, *call_end;   /* <invoke name= , </invoke> */
    const char *param, *param_end; /* <parameter name= , </parameter> */
    json_t *(*value)(qn_span v, const json_t *schema);
} tag_style;

static qn_span unquote(qn_span v)
{
    v = qn_span_trim(v);
    bool quoted = v.n >= 2 && (v.s[0] == '"' || v.s[0] == '\'') && v.s[v.n - 1] == v.s[0];
    return quoted ? (qn_span){v.s + 1, v.n - 2} : v;
}

/* The end of a value at v: CDATA hides closing tags. */
static size_t value_bytes(qn_span v, const char *end)
{
    static const char open[] = "<![CDATA[", close[] = "]]>";
    size_t at = 0;
    for (;;) {
        qn_span rest = qn_span_from(v, at);
        size_t to_end = qn_span_find(rest, end), to_open = qn_span_find(rest, open);
        if (to_end <= to_open) return at + to_end;
        rest = qn_span_from(rest, to_open);
        size_t n = qn_span_find(rest, close);
        if (n == rest.n) return at + to_end; /* never closed: it hides nothing */
        at += to_open + n;
    }
}

/* Behind the start of a call: its name, its arguments, to its end; may_end_open: or the text's. */
static qn_code tag_call(const tag_style *t, qn_span *v, bool may_end_open, const json_t *tools,
                        json_t *calls, qn_err *err)
{
    qn_span name, key;
    if (!qn_span_cut(v, ">", &name)) return qn_err_set(err, QN_FORMAT, "a call has no name");
    name = unquote(name);
    json_t *args = json_object();
    qn_code rc = QN_OK;
    while (!rc) {
        size_t to_end = qn_span_find(*v, t->call_end), to_param = qn_span_find(*v, t->param);
        if (to_param >= to_end) {
            if (to_end == v->n && !may_end_open) rc = no_end(err);
            *v = qn_span_from(*v, to_end == v->n ? v->n : to_end + strlen(t->call_end));
            break;
        }
        *v = qn_span_from(*v, to_param + strlen(t->param));
        if (!qn_span_cut(v, ">", &key)) {
            rc = qn_err_set(err, QN_FORMAT, "an argument has no name");
            break;
        }
        key = unquote(key);
        size_t n = value_bytes(*v, t->param_end);
        if (n == v->n) { /* without its end, a value goes on to the call's */
            n = qn_span_find(*v, t->call_end);
        }
        json_t *value = t->value((qn_span){v->s, n}, qn_tool_schema(tools, name, key));
        rc = qn_tool_set_arg(args, key, value, err);
        *v = qn_span_from(*v, n);
    }
    if (!rc) return qn_tool_add_call(calls, name, args, err);
    json_decref(args);
    return rc;
}

static qn_code tag_calls(const tag_style *t, qn_span v, const json_t *tools, json_t *calls,
                         qn_err *err)
{
    qn_span before;
    qn_code rc = QN_OK;
    while (!rc && qn_span_cut(&v, t->call, &before)) {
        rc = tag_call(t, &v, false, tools, calls, err);
    }
    return rc;
}

/* ---- MiniMax ---- */

static json_t *minimax_value(qn_span v, const json_t *schema)
{
    unsigned types = qn_tool_types(schema, true);
    return qn_value_typed(qn_span_trim(v), types ? types : (unsigned)QN_TYPE_STRING);
}

static qn_code parse_minimax(const char *body, size_t n, unsigned mark, const json_t *tools,
                             json_t *calls, qn_err *err)
{
    (void)mark;
    static const tag_style style = {"<invoke name=", "</invoke>", "<parameter name=",
                                    "</parameter>", minimax_value};
    return tag_calls(&style, (qn_span){body, n}, tools, calls, err);
}

const qn_tool_format qn_tool_minimax = {
    .name = "minimax_m2",
    .marks = {{"<minimax:tool_call>", "</minimax:tool_call>"}},
    .quote_open = "<parameter name=",
    .quote_close = "</parameter>",
    .parse = parse_minimax,
};

/* ---- MiniCPM5 ---- */

/* Decode the five entities, each once. */
static void decode_entities(qn_span v, qn_buf *out)
{
    static const struct { const char *name; char c; } entities[] = {
        {"&quot;", '"'}, {"&apos;", '\''}, {"&lt;", '<'}, {"&gt;", '>'}, {"&amp;", '&'}};
    while (v.n) {
        size_t i = 0, n = sizeof entities / sizeof *entities;
        while (i < n && !qn_span_begins(v, entities[i].name)) i++;
        qn_buf_putc(out, i < n ? entities[i].c : v.s[0]);
        v = qn_span_from(v, i < n ? strlen(entities[i].name) : 1);
    }
}

static json_t *minicpm_value(qn_span v, const json_t *schema)
{
    static const char open[] = "<![CDATA[", close[] = "]]>";
    qn_span text = qn_span_trim(v);
    unsigned types = qn_tool_types(schema, true);
    qn_buf plain = {0};
    bool is_cdata = qn_span_begins(text, open) && text.n >= sizeof open + sizeof close - 2 &&
                    !memcmp(text.s + text.n - 3, close, 3);
    if (is_cdata) {
        text = (qn_span){text.s + sizeof open - 1, text.n - (sizeof open + sizeof close - 2)};
    } else {
        decode_entities(text, &plain);
        text = (qn_span){plain.data, plain.len};
    }
    json_t *value = qn_value_typed(text, types ? types : (unsigned)QN_TYPE_STRING);
    qn_buf_release(&plain);
    return value;
}

static qn_code parse_minicpm(const char *body, size_t n, unsigned mark, const json_t *tools,
                             json_t *calls, qn_err *err)
{
    (void)mark;
    static const tag_style style = {"<function name=", "</function>", "<param name=", "</param>",
                                    minicpm_value};
    qn_span v = {body, n};
    return tag_call(&style, &v, true, tools, calls, err);
}

const qn_tool_format qn_tool_minicpm = {.name = "minicpm5",
                                        .marks = {{"<function name=", "</function>"}},
                                        .quote_open = "<![CDATA[",
                                        .quote_close = "]]>",
                                        .parse = parse_minicpm};

/* ---- Muse Spark ---- */

static json_t *muse_value(qn_span v, const json_t *schema)
{
    (void)schema;
    json_t *j = qn_json_value(v.s, v.n);
    return j ? j : qn_value_text(qn_span_trim(v));
}

static qn_code parse_muse(const char *body, size_t n, unsigned mark, const json_t *tools,
                          json_t *calls, qn_err *err)
{
    (void)mark;
    static const tag_style style = {"<atem:invoke name=", "</atem:invoke>",
                                    "<atem:parameter name=", "</atem:parameter>", muse_value};
    return tag_calls(&style, (qn_span){body, n}, tools, calls, err);
}

const qn_tool_format qn_tool_muse = {
    .name = "muse_spark",
    .marks = {{"<atem:function_calls>", "</atem:function_calls>"}},
    .quote_open = "<atem:parameter name=",
    .quote_close = "</atem:parameter>",
    .parse = parse_muse,
};
