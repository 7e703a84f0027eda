/* tool_value.c - see tool_value.h. */
#include "serve/tool_value.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- text ---- */

qn_span qn_span_of(const char *s)
{
    return (qn_span){s, strlen(s)};
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

qn_span qn_span_trim(qn_span v)
{
    while (v.n && is_space(v.s[0])) v = qn_span_from(v, 1);
    while (v.n && is_space(v.s[v.n - 1])) v.n--;
    return v;
}

bool qn_span_begins(qn_span v, const char *what)
{
    size_t n = strlen(what);
    return v.n >= n && !memcmp(v.s, what, n);
}

bool qn_span_is_ci(qn_span v, const char *what)
{
    return v.n == strlen(what) && !strncasecmp(v.s, what, v.n);
}

qn_span qn_span_from(qn_span v, size_t n)
{
    return (qn_span){v.s + n, v.n - n};
}

size_t qn_span_find(qn_span v, const char *what)
{
    const char *at = v.n ? memmem(v.s, v.n, what, strlen(what)) : NULL;
    return at ? (size_t)(at - v.s) : v.n;
}

bool qn_span_cut(qn_span *v, const char *end, qn_span *out)
{
    size_t n = qn_span_find(*v, end);
    if (n == v->n) return false;
    *out = (qn_span){v->s, n};
    *v = qn_span_from(*v, n + strlen(end));
    return true;
}

/* ---- values ---- */

json_t *qn_value_text(qn_span v)
{
    return json_stringn(v.n ? v.s : "", v.n);
}

json_t *qn_value_any(qn_span v)
{
    json_t *j = qn_json_value(v.s, v.n);
    return j ? j : qn_value_python(v);
}

json_t *qn_value_guess(qn_span v)
{
    json_t *j = qn_value_any(v);
    return j ? j : qn_value_text(v);
}

size_t qn_value_json_bytes(qn_span v)
{
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < v.n; i++) {
        char c = v.s[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && depth) {
            depth--;
        }
        bool closes = c == '}' || c == ']' || c == '"';
        if (!in_string && !depth && closes && i < v.n) return i + 1;
    }
    return v.n;
}

/* Copy digits and signs without Python's underscores between digits; false if too long or misplaced. */
static bool copy_number(qn_span v, char *out, size_t cap)
{
    size_t n = 0;
    v = qn_span_trim(v);
    for (size_t i = 0; i < v.n; i++) {
        bool inner = i && i + 1 < v.n && isdigit((unsigned char)v.s[i - 1]) &&
                     isdigit((unsigned char)v.s[i + 1]);
        if (v.s[i] == '_' && inner) continue;
        if (!isdigit((unsigned char)v.s[i]) && !strchr("+-.eE", v.s[i])) return false;
        if (!v.s[i] || n + 1 >= cap) return false;
        out[n++] = v.s[i];
    }
    out[n] = '\0';
    return n > 0;
}

bool qn_value_int(qn_span v, json_int_t *out)
{
    char text[64], *end;
    if (!copy_number(v, text, sizeof text)) return false;
    errno = 0;
    long long i = strtoll(text, &end, 10);
    if (*end || errno) return false;
    *out = i;
    return true;
}

bool qn_value_float(qn_span v, double *out)
{
    char text[512], *end;
    if (!copy_number(v, text, sizeof text)) return false;
    double d = strtod(text, &end);
    if (*end || !isfinite(d)) return false;
    *out = d;
    return true;
}

json_t *qn_value_number(double v)
{
    bool whole = v == floor(v) && fabs(v) < 9.2e18;
    return whole ? json_integer((json_int_t)v) : json_real(v);
}

/* ---- writing ---- */

static void write_real(qn_buf *out, double v)
{
    char text[32];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    qn_buf_puts(out, text);
    if (!strpbrk(text, ".e")) qn_buf_puts(out, ".0");
}

static void write_key(qn_buf *out, const char *key)
{
    json_t *name = json_string(key);
    qn_json_write(out, name);
    qn_buf_putc(out, ':');
    json_decref(name);
}

void qn_tool_write_args(qn_buf *out, const json_t *tree)
{
    size_t i = 0;
    const char *key;
    json_t *v;
    if (json_is_real(tree)) {
        write_real(out, json_real_value(tree));
    } else if (json_is_array(tree)) {
        qn_buf_putc(out, '[');
        json_array_foreach(tree, i, v) {
            if (i) qn_buf_putc(out, ',');
            qn_tool_write_args(out, v);
        }
        qn_buf_putc(out, ']');
    } else if (json_is_object(tree)) {
        qn_buf_putc(out, '{');
        json_object_foreach((json_t *)(uintptr_t)tree, key, v) {
            if (i++) qn_buf_putc(out, ',');
            write_key(out, key);
            qn_tool_write_args(out, v);
        }
        qn_buf_putc(out, '}');
    } else {
        qn_json_write(out, tree);
    }
}

/* ---- calls ---- */

qn_code qn_tool_add_call(json_t *calls, qn_span name, json_t *args, qn_err *err)
{
    bool good = name.n > 0;
    for (size_t i = 0; i < name.n; i++) good = good && !is_space(name.s[i]);
    json_t *text = good ? qn_value_text(name) : NULL;
    if (!text || !args) {
        json_decref(text);
        json_decref(args);
        return qn_err_set(err, QN_FORMAT, "%.*s is not the name of a function",
                          (int)(name.n < 60 ? name.n : 60), name.n ? name.s : "");
    }
    json_t *call = json_object();
    json_object_set_new(call, "name", text);
    json_object_set_new(call, "arguments", args);
    if (!json_array_append_new(calls, call)) return QN_OK;
    return qn_err_set(err, QN_NOMEM, "out of memory for a call");
}

qn_code qn_tool_set_arg(json_t *args, qn_span key, json_t *value, qn_err *err)
{
    char *name = strndup(key.n ? key.s : "", key.n);
    bool ok = name && value && strlen(name) == key.n && !json_object_set(args, name, value);
    free(name);
    json_decref(value);
    return ok ? QN_OK : qn_err_set(err, QN_FORMAT, "an argument is not text");
}

const json_t *qn_tool_schema(const json_t *tools, qn_span name, qn_span param)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        const json_t *own = json_object_get(function, "name");
        if (json_string_length(own) != name.n ||
            memcmp(json_string_value(own), name.s, name.n)) {
            continue;
        }
        const json_t *all = json_object_get(json_object_get(function, "parameters"), "properties");
        char *key = strndup(param.n ? param.s : "", param.n);
        const json_t *schema = key ? json_object_get(all, key) : NULL;
        free(key);
        return schema;
    }
    return NULL;
}

static unsigned type_named(const char *name)
{
    static const struct { const char *name; unsigned type; } names[] = {
        {"string", QN_TYPE_STRING}, {"str", QN_TYPE_STRING},     {"text", QN_TYPE_STRING},
        {"integer", QN_TYPE_INTEGER}, {"int", QN_TYPE_INTEGER},  {"number", QN_TYPE_NUMBER},
        {"float", QN_TYPE_NUMBER},  {"boolean", QN_TYPE_BOOL},   {"bool", QN_TYPE_BOOL},
        {"object", QN_TYPE_OBJECT}, {"array", QN_TYPE_ARRAY},    {"null", QN_TYPE_NULL},
    };
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
        if (!strcasecmp(names[i].name, name)) return names[i].type;
    }
    return 0;
}

static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return QN_TYPE_OBJECT;
    case JSON_ARRAY: return QN_TYPE_ARRAY;
    case JSON_STRING: return QN_TYPE_STRING;
    case JSON_INTEGER: return QN_TYPE_INTEGER;
    case JSON_REAL: return QN_TYPE_NUMBER;
    case JSON_NULL: return QN_TYPE_NULL;
    default: return QN_TYPE_BOOL;
    }
}

unsigned qn_tool_types(const json_t *schema, bool with_enum)
{
    static const char *const branches[] = {"anyOf", "oneOf", "allOf"};
    const json_t *type = json_object_get(schema, "type");
    size_t i;
    json_t *v;
    unsigned types = type_named(json_string_value(type));
    json_array_foreach(type, i, v) types |= type_named(json_string_value(v));
    if (with_enum) {
        json_array_foreach(json_object_get(schema, "enum"), i, v) types |= type_of_value(v);
    }
    for (size_t k = 0; k < sizeof branches / sizeof *branches; k++) {
        json_array_foreach(json_object_get(schema, branches[k]), i, v) {
            unsigned inner = json_is_object(v) ? qn_tool_types(v, with_enum) : 0;
            types |= inner ? inner : with_enum ? (unsigned)QN_TYPE_STRING : 0;
        }
    }
    return types;
}

static bool is_one_of(qn_span v, const char *const *words)
{
    for (; *words; words++) {
        if (qn_span_is_ci(v, *words)) return true;
    }
    return false;
}

json_t *qn_value_typed(qn_span v, unsigned types)
{
    static const char *const nulls[] = {"null", "none", "nil", NULL};
    static const char *const yes[] = {"true", "1", "yes", "on", NULL};
    static const char *const no[] = {"false", "0", "no", "off", NULL};
    json_int_t i;
    double d;
    if (types & QN_TYPE_NULL && is_one_of(v, nulls)) return json_null();
    if (!(types & QN_TYPE_STRING) && qn_span_is_ci(v, "null")) return json_null();
    if (types & QN_TYPE_INTEGER && qn_value_int(v, &i)) return json_integer(i);
    if (types & QN_TYPE_NUMBER && qn_value_float(v, &d)) return qn_value_number(d);
    if (types & QN_TYPE_BOOL && is_one_of(qn_span_trim(v), yes)) return json_true();
    if (types & QN_TYPE_BOOL && is_one_of(qn_span_trim(v), no)) return json_false();
    if (types & (QN_TYPE_OBJECT | QN_TYPE_ARRAY)) {
        json_t *tree = qn_value_any(v);
        if (tree) return tree;
    }
    if (types & QN_TYPE_STRING) return qn_value_text(v);
    json_t *tree = qn_json_value(v.s, v.n);
    return tree ? tree : qn_value_text(v);
}
