/* tool_glm.c - calls as a name and pairs of keys and values: GLM 4.5 to 5, Laguna, LongCat. */
#include <string.h>

#include "serve/tool_formats.h"
#include "serve/tool_value.h"

/* How a family spells its tags. */
typedef struct pair_style {
    const char *key, *key_end, *value, *value_end;
} pair_style;

static const pair_style glm = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
static const pair_style longcat = {"<longcat_arg_key>", "</longcat_arg_key>",
                                   "<longcat_arg_value>", "</longcat_arg_value>"};

static bool is_text_type(const json_t *tools, qn_span name, qn_span key)
{
    const json_t *type = json_object_get(qn_tool_schema(tools, name, key), "type");
    return json_is_string(type) && !strcmp(json_string_value(type), "string");
}

static json_t *value_of(const json_t *tools, qn_span name, qn_span key, qn_span v)
{
    return is_text_type(tools, name, key) ? qn_value_text(v) : qn_value_guess(v);
}

/* ---- pairs ---- */

/* Between a key and its value: white space, or a newline spelled as two characters. */
static qn_span skip_gap(qn_span v)
{
    for (;;) {
        qn_span next = qn_span_trim(v);
        next = (qn_span){next.s, (size_t)(v.s + v.n - next.s)};
        if (!qn_span_begins(next, "\\n")) return next;
        v = qn_span_from(next, 2);
    }
}

static qn_code parse_pairs(const pair_style *t, qn_span v, const json_t *tools, json_t *calls,
                           qn_err *err)
{
    qn_span name = {v.s, qn_span_find(v, t->key)}, before, key, text;
    name = qn_span_trim(name);
    json_t *args = json_object();
    qn_code rc = QN_OK;
    while (!rc && qn_span_cut(&v, t->key, &before) && qn_span_cut(&v, t->key_end, &key)) {
        v = skip_gap(v);
        if (!qn_span_begins(v, t->value)) continue;
        v = qn_span_from(v, strlen(t->value));
        if (!qn_span_cut(&v, t->value_end, &text)) break;
        key = qn_span_trim(key);
        rc = qn_tool_set_arg(args, key, value_of(tools, name, key, qn_span_trim(text)), err);
    }
    if (!rc) return qn_tool_add_call(calls, name, args, err);
    json_decref(args);
    return rc;
}

/* ---- without keys: the other forms that these models write ---- */

/* Bring the arguments of a JSON call to the types of the schema. Takes `args`, an object. */
static json_t *settle_args(const json_t *tools, qn_span name, json_t *args)
{
    json_t *out = json_object(), *v;
    const char *key;
    json_object_foreach(args, key, v) {
        bool is_text = is_text_type(tools, name, qn_span_of(key));
        qn_buf text = {0};
        if (is_text && !json_is_string(v)) {
            qn_tool_write_args(&text, v);
            json_object_set_new(out, key, qn_value_text((qn_span){text.data, text.len}));
        } else if (!is_text && json_is_string(v)) {
            qn_span s = {json_string_value(v), json_string_length(v)};
            json_object_set_new(out, key, qn_value_guess(s));
        } else {
            json_object_set(out, key, v);
        }
        qn_buf_release(&text);
    }
    json_decref(args);
    return out;
}

/* {name, arguments}, {function, arguments}, {tool: {name, arguments}}, or a list that begins so.
 * Returns false if it is none of these. */
static bool parse_object(qn_span body, const json_t *tools, json_t *calls, qn_err *err)
{
    json_t *tree = qn_json_value(body.s, body.n), *v = tree;
    if (json_is_array(v)) v = json_array_get(v, 0);
    if (json_is_object(json_object_get(v, "tool"))) v = json_object_get(v, "tool");
    const json_t *name = json_object_get(v, "name");
    json_t *args = qn_json_get(v, "arguments");
    if (!name) name = json_object_get(v, "function");
    if (json_is_object(name)) {
        if (!args) args = qn_json_get(name, "arguments");
        name = json_object_get(name, "name");
    }
    qn_span s = {json_string_value(name), json_string_length(name)};
    json_t *object = json_is_string(args) ? qn_value_any((qn_span){json_string_value(args),
                                                                   json_string_length(args)})
                                          : args ? json_incref(args) : NULL;
    if (!args) object = json_object();
    bool ok = s.n && json_is_object(object) &&
              !qn_tool_add_call(calls, s, settle_args(tools, s, json_incref(object)), err);
    json_decref(object);
    json_decref(tree);
    return ok;
}

/* Take one word of key=value text, with a shell's quotes, into out. Returns false at an open quote. */
static bool cut_word(qn_span *v, qn_buf *out)
{
    char quote = '\0';
    *v = qn_span_trim(*v);
    qn_buf_puts(out, "");
    while (v->n && (quote || !strchr(" \t\r\n", v->s[0]))) {
        char c = v->s[0];
        if (quote ? c == quote : c == '"' || c == '\'') {
            quote = quote ? '\0' : c;
        } else if (c == '\\' && quote != '\'') {
            if (v->n < 2) return false;
            bool keeps = quote == '"' && v->s[1] != '"' && v->s[1] != '\\';
            if (keeps) qn_buf_putc(out, c);
            qn_buf_putc(out, v->s[1]);
            *v = qn_span_from(*v, 1);
        } else {
            qn_buf_putc(out, c);
        }
        *v = qn_span_from(*v, 1);
    }
    return !quote && !out->failed;
}

/* a=1 b="x y". NULL if any word is something else. */
static json_t *parse_words(qn_span v, const json_t *tools, qn_span name)
{
    json_t *args = json_object();
    qn_err err = {0};
    bool ok = true;
    for (v = qn_span_trim(v); ok && v.n; v = qn_span_trim(v)) {
        qn_buf word = {0};
        ok = cut_word(&v, &word);
        qn_span value = {word.data, word.len}, key;
        ok = ok && qn_span_cut(&value, "=", &key);
        key = ok ? qn_span_trim(key) : (qn_span){0};
        ok = ok && key.n && !qn_tool_set_arg(args, key, value_of(tools, name, key, value), &err);
        qn_buf_release(&word);
    }
    if (ok) return args;
    json_decref(args);
    return NULL;
}

static json_t *parse_dict(qn_span v, const json_t *tools, qn_span name)
{
    json_t *args = qn_value_any(v);
    if (json_is_object(args)) return settle_args(tools, name, args);
    json_decref(args);
    return NULL;
}

/* NAME, newline, {...}; NAME {...}; NAME a=1 b=2; NAME alone. */
static qn_code parse_plain(qn_span v, const json_t *tools, json_t *calls, qn_err *err)
{
    v = qn_span_trim(v);
    qn_span rest = v, line, name = v;
    if (qn_span_cut(&rest, "\n", &line)) {
        line = qn_span_trim(line);
        json_t *args = parse_dict(qn_span_trim(rest), tools, line);
        if (args) return qn_tool_add_call(calls, line, args, err);
    }
    rest = v;
    if (!qn_span_cut(&rest, " ", &name)) {
        name = v;
        rest.n = 0;
    }
    rest = qn_span_trim(rest);
    json_t *args = rest.n ? parse_dict(rest, tools, name) : json_object();
    if (!args) args = parse_words(rest, tools, name);
    return qn_tool_add_call(calls, name, args, err);
}

static qn_code parse_with(const pair_style *t, qn_span v, const json_t *tools, json_t *calls,
                          qn_err *err)
{
    qn_err none = {0};
    if (qn_span_find(v, t->key) < v.n) return parse_pairs(t, v, tools, calls, err);
    if (parse_object(v, tools, calls, &none)) return QN_OK;
    return parse_plain(v, tools, calls, err);
}

static qn_code parse_glm(const char *body, size_t n, unsigned mark, const json_t *tools,
                         json_t *calls, qn_err *err)
{
    (void)mark;
    return parse_with(&glm, (qn_span){body, n}, tools, calls, err);
}

static qn_code parse_longcat(const char *body, size_t n, unsigned mark, const json_t *tools,
                             json_t *calls, qn_err *err)
{
    (void)mark;
    return parse_with(&longcat, (qn_span){body, n}, tools, calls, err);
}

static const char *const glm_tokens[] = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
                                         NULL};
static const char *const longcat_tokens[] = {"<longcat_arg_key>", "</longcat_arg_key>",
                                             "<longcat_arg_value>", "</longcat_arg_value>", NULL};

const qn_tool_format qn_tool_glm = {
    .name = "glm47",
    .marks = {{"<tool_call>", "</tool_call>"}},
    .quote_open = "<arg_value>",
    .quote_close = "</arg_value>",
    .tokens = glm_tokens,
    .parse = parse_glm,
};

/* The same text; checkpoints of this family name it by another word. */
const qn_tool_format qn_tool_laguna = {
    .name = "laguna",
    .marks = {{"<tool_call>", "</tool_call>"}},
    .quote_open = "<arg_value>",
    .quote_close = "</arg_value>",
    .tokens = glm_tokens,
    .parse = parse_glm,
};

const qn_tool_format qn_tool_longcat = {
    .name = "longcat",
    .marks = {{"<longcat_tool_call>", "</longcat_tool_call>"}},
    .quote_open = "<longcat_arg_value>",
    .quote_close = "</longcat_arg_value>",
    .tokens = longcat_tokens,
    .parse = parse_longcat,
};
