/* tool_xtml.c - calls of Kimi K3: tags made of special tokens, with typed arguments.
 *
 *     <|open|>call tool="f" index="1"<|sep|>
 *       <|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>
 *     <|close|>call<|sep|>
 *
 * or, instead of the arguments, <|open|>json type="object"<|sep|>{"a": 1}<|close|>json<|sep|>.
 */
#include <ctype.h>
#include <string.h>

#include "serve/tool_formats.h"
#include "serve/tool_value.h"

#define OPEN "<|open|>"
#define CLOSE "<|close|>"
#define SEP "<|sep|>"

/* Cut *v behind the next element `name`: what its tag says, and what stands in it. */
static bool cut_element(qn_span *v, const char *open, const char *close, qn_span *attrs, qn_span *in)
{
    qn_span rest = *v, before;
    if (!qn_span_cut(&rest, open, &before) || !qn_span_cut(&rest, SEP, attrs) ||
        !qn_span_cut(&rest, close, in)) {
        return false;
    }
    *v = rest;
    return true;
}

/* The value of the attribute `name` in the tag, its two entities decoded, in out. False without one. */
static bool read_attr(qn_span attrs, const char *name, qn_buf *out)
{
    size_t n = strlen(name);
    qn_buf_clear(out);
    for (size_t at; (at = qn_span_find(attrs, name)) < attrs.n;) {
        bool is_word = at && (isalnum((unsigned char)attrs.s[at - 1]) || attrs.s[at - 1] == '_');
        attrs = qn_span_from(attrs, at + n);
        qn_span value;
        if (is_word || !qn_span_begins(attrs, "=\"")) continue;
        attrs = qn_span_from(attrs, 2);
        if (!qn_span_cut(&attrs, "\"", &value)) return false;
        while (value.n) {
            const char *entity = qn_span_begins(value, "&quot;") ? "&quot;"
                                 : qn_span_begins(value, "&amp;") ? "&amp;" : NULL;
            char c = !entity ? value.s[0] : entity[1] == 'q' ? '"' : '&';
            qn_buf_putc(out, c);
            value = qn_span_from(value, entity ? strlen(entity) : 1);
        }
        return true;
    }
    return false;
}

static json_t *typed_value(qn_span text, const qn_buf *type, bool has_type)
{
    bool is_text = !has_type || (type->len == 6 && !memcmp(type->data, "string", 6));
    json_t *v = is_text ? NULL : qn_json_value(text.s, text.n);
    return v ? v : qn_value_text(text);
}

static qn_code read_arguments(qn_span in, json_t *args, qn_err *err)
{
    qn_span attrs, text;
    qn_buf key = {0}, type = {0};
    qn_code rc = QN_OK;
    while (!rc && cut_element(&in, OPEN "argument", CLOSE "argument" SEP, &attrs, &text)) {
        if (!read_attr(attrs, "key", &key)) {
            rc = qn_err_set(err, QN_FORMAT, "an argument has no key");
            break;
        }
        bool has_type = read_attr(attrs, "type", &type);
        rc = qn_tool_set_arg(args, (qn_span){key.data, key.len}, typed_value(text, &type, has_type), err);
    }
    qn_buf_release(&key);
    qn_buf_release(&type);
    return rc;
}

static qn_code read_call(qn_span attrs, qn_span in, json_t *calls, qn_err *err)
{
    qn_span json_attrs, json, rest = in;
    json_t *args;
    qn_buf name = {0};
    qn_code rc = QN_OK;
    if (cut_element(&rest, OPEN "json", CLOSE "json" SEP, &json_attrs, &json)) {
        args = qn_json_value(json.s, json.n);
        if (!json_is_object(args)) rc = qn_err_set(err, QN_FORMAT, "a call's json is not an object");
    } else {
        args = json_object();
        rc = read_arguments(in, args, err);
    }
    if (!rc && !read_attr(attrs, "tool", &name)) rc = qn_err_set(err, QN_FORMAT, "a call has no tool");
    if (!rc) rc = qn_tool_add_call(calls, (qn_span){name.data, name.len}, args, err);
    else json_decref(args);
    qn_buf_release(&name);
    return rc;
}

static qn_code parse_xtml(const char *body, size_t n, unsigned mark, const json_t *tools,
                          json_t *calls, qn_err *err)
{
    (void)mark, (void)tools; /* the call itself says the types */
    qn_span v = {body, n}, attrs, in;
    qn_code rc = QN_OK;
    while (!rc && cut_element(&v, OPEN "call", CLOSE "call" SEP, &attrs, &in)) {
        rc = read_call(attrs, in, calls, err);
    }
    return rc;
}

static const char *const xtml_tokens[] = {OPEN, CLOSE, SEP, NULL};
static const char *const xtml_silent[] = {OPEN "response" SEP, CLOSE "response" SEP,
                                          CLOSE "message" SEP, NULL};

const qn_tool_format qn_tool_kimi_k3 = {
    .name = "kimi_k3",
    .marks = {{OPEN "tools" SEP, CLOSE "tools" SEP}},
    .tokens = xtml_tokens,
    .silent = xtml_silent,
    .parse = parse_xtml,
};
