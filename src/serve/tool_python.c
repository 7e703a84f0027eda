/* tool_python.c - Python literals, as models write them in tool calls (tool_value.h). */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "serve/tool_value.h"

typedef struct reader {
    const char *s, *end;
    unsigned depth;
    bool json_names; /* true, false and null count too */
} reader;

static json_t *read_value(reader *r);

static void skip_space(reader *r)
{
    while (r->s < r->end && strchr(" \t\r\n\f", *r->s) && *r->s) r->s++;
}

static bool take_char(reader *r, char c)
{
    skip_space(r);
    if (r->s == r->end || *r->s != c) return false;
    r->s++;
    return true;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

/* ---- strings ---- */

/* Up to `max` digits of a base at r->s; -1 without any (or, for exact, with fewer). */
static long escape_digits(reader *r, int max, int base, bool exact)
{
    long v = 0;
    int n = 0;
    for (; n < max && r->s < r->end; n++, r->s++) {
        unsigned char c = (unsigned char)*r->s;
        int digit = isdigit(c) ? c - '0' : isxdigit(c) ? (c | 32) - 'a' + 10 : 99;
        if (digit >= base) break;
        v = v * base + digit;
    }
    return !n || (exact && n < max) ? -1 : v;
}

/* An escape behind its backslash. Returns false if Python refuses it. */
static bool read_escape(reader *r, qn_buf *out)
{
    static const char letters[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
    if (r->s == r->end) return false;
    char c = *r->s++;
    const char *at = c ? strchr(letters, c) : NULL;
    long cp = 0;
    if (at) {
        qn_buf_putc(out, values[at - letters]);
    } else if (c == '\n') {
        return true;
    } else if (c == 'x' || c == 'u' || c == 'U') {
        cp = escape_digits(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, true);
        if (cp < 0 || cp > 0x10FFFF) return false;
        qn_buf_put_utf8(out, (unsigned)cp);
    } else if (c >= '0' && c <= '7') {
        r->s--;
        cp = escape_digits(r, 3, 8, false);
        qn_buf_put_utf8(out, (unsigned)cp);
    } else if (c == 'N') {
        return false;
    } else {
        qn_buf_putc(out, '\\');
        qn_buf_putc(out, c);
    }
    return true;
}

/* One string literal at its prefix or quote, appended to out. */
static bool read_string_part(reader *r, qn_buf *out)
{
    bool raw = false;
    while (r->s < r->end && *r->s != '"' && *r->s != '\'') raw |= (*r->s++ | 32) == 'r';
    char quote = *r->s;
    bool triple = r->end - r->s >= 3 && r->s[1] == quote && r->s[2] == quote;
    r->s += triple ? 3 : 1;
    while (r->s < r->end) {
        bool ends = triple ? r->end - r->s >= 3 && r->s[0] == quote && r->s[1] == quote &&
                                 r->s[2] == quote
                           : *r->s == quote;
        if (ends) {
            r->s += triple ? 3 : 1;
            return true;
        }
        if (*r->s == '\n' && !triple) return false;
        if (*r->s != '\\') {
            qn_buf_putc(out, *r->s++);
        } else if (raw) {
            qn_buf_putc(out, *r->s++);
            if (r->s < r->end) qn_buf_putc(out, *r->s++);
        } else {
            r->s++;
            if (!read_escape(r, out)) return false;
        }
    }
    return false;
}

/* True at a quote, or at the prefix r, u or both cases of them before one. */
static bool at_string(const reader *r)
{
    if (r->s == r->end) return false;
    if (*r->s == '"' || *r->s == '\'') return true;
    return r->end - r->s >= 2 && *r->s && strchr("rRuU", *r->s) && (r->s[1] == '"' || r->s[1] == '\'');
}

static json_t *read_string(reader *r)
{
    qn_buf text = {0};
    bool ok = true;
    do {
        ok = read_string_part(r, &text);
        if (ok && r->depth) skip_space(r); /* neighbours are joined */
        while (ok && !r->depth && r->s < r->end && (*r->s == ' ' || *r->s == '\t')) r->s++;
    } while (ok && at_string(r));
    json_t *v = ok && !text.failed ? json_stringn(text.data ? text.data : "", text.len) : NULL;
    qn_buf_release(&text);
    return v;
}

/* ---- numbers and names ---- */

/* A number without its sign. */
static json_t *read_number(reader *r)
{
    char text[512];
    size_t n = 0;
    const char *start = r->s;
    bool hex = r->end - r->s > 1 && *r->s == '0' && r->s[1] && strchr("xXoObB", r->s[1]);
    for (; r->s < r->end && n + 1 < sizeof text; r->s++) {
        char c = *r->s;
        bool sign = (c == '+' || c == '-') && n && !hex && (r->s[-1] == 'e' || r->s[-1] == 'E');
        if (!isalnum((unsigned char)c) && c != '.' && c != '_' && !sign) break;
        if (c == '_' && (r->s == start || r->s[-1] == '_')) return NULL;
        if (c != '_') text[n++] = c;
    }
    text[n] = '\0';
    if (!n || r->s[-1] == '_' || (r->s < r->end && is_word(*r->s))) return NULL;
    char *end;
    errno = 0;
    if (hex) {
        int base = (text[1] | 32) == 'x' ? 16 : (text[1] | 32) == 'o' ? 8 : 2;
        long long v = strtoll(text + 2, &end, base);
        return *end || errno || !text[2] ? NULL : json_integer(v);
    }
    if (!strpbrk(text, ".eE")) {
        if (text[0] == '0' && strspn(text, "0") != n) return NULL; /* Python refuses 01 */
        long long v = strtoll(text, &end, 10);
        if (*end) return NULL;
        if (!errno) return json_integer(v);
    }
    if (strspn(text, "0123456789.eE+-") != n) return NULL;
    double d = strtod(text, &end);
    return *end || d - d != 0 ? NULL : json_real(d);
}

static json_t *read_signed(reader *r)
{
    bool minus = *r->s++ == '-';
    while (r->s < r->end && (*r->s == ' ' || *r->s == '\t')) r->s++;
    if (r->s == r->end || !(isdigit((unsigned char)*r->s) || *r->s == '.')) return NULL;
    json_t *v = read_number(r);
    if (!minus) return v;
    if (json_is_integer(v)) json_integer_set(v, -json_integer_value(v));
    if (json_is_real(v)) json_real_set(v, -json_real_value(v));
    return v;
}

static json_t *read_name(reader *r)
{
    const char *start = r->s;
    while (r->s < r->end && is_word(*r->s)) r->s++;
    qn_span name = {start, (size_t)(r->s - start)};
    static const struct { const char *name; char what; bool json; } names[] = {
        {"None", 'n', false}, {"True", 't', false}, {"False", 'f', false},
        {"null", 'n', true},  {"true", 't', true},  {"false", 'f', true},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].json && !r->json_names) continue;
        if (name.n != strlen(names[i].name) || !qn_span_begins(name, names[i].name)) continue;
        return names[i].what == 'n' ? json_null() : json_boolean(names[i].what == 't');
    }
    return NULL;
}

/* ---- collections ---- */

/* A dict's key as JSON has it. */
static bool set_member(json_t *dict, const json_t *key, json_t *value)
{
    qn_buf text = {0};
    if (json_is_string(key)) qn_buf_put(&text, json_string_value(key), json_string_length(key));
    else if (json_is_integer(key) || json_is_boolean(key) || json_is_null(key)) {
        qn_json_write(&text, key);
    }
    bool ok = text.data && !text.failed && strlen(text.data) == text.len &&
              !json_object_set(dict, text.data, value);
    qn_buf_release(&text);
    return ok;
}

/* Behind "{": a dict, or a set. */
static json_t *read_braces(reader *r)
{
    json_t *dict = json_object(), *set = json_array();
    bool ok = true, is_set = false, first = true;
    while (ok && !take_char(r, '}')) {
        if (!first && !take_char(r, ',')) ok = false;
        if (ok && !first && take_char(r, '}')) break;
        json_t *key = ok ? read_value(r) : NULL;
        ok = key != NULL;
        if (ok && first) is_set = !(skip_space(r), r->s < r->end && *r->s == ':');
        if (ok && is_set) {
            ok = !json_array_append(set, key);
        } else if (ok) {
            json_t *value = take_char(r, ':') ? read_value(r) : NULL;
            ok = value && set_member(dict, key, value);
            json_decref(value);
        }
        json_decref(key);
        first = false;
    }
    json_decref(is_set ? dict : set);
    json_t *v = is_set ? set : dict;
    if (ok) return v;
    json_decref(v);
    return NULL;
}

/* Behind "[" or "(", up to its closing bracket: the members. */
static json_t *read_members(reader *r, char close)
{
    json_t *list = json_array();
    bool ok = true, had_comma = false;
    while (ok && !take_char(r, close)) {
        if (json_array_size(list) && !had_comma) ok = false;
        json_t *v = ok ? read_value(r) : NULL;
        ok = v && !json_array_append_new(list, v);
        had_comma = ok && take_char(r, ',');
    }
    if (!ok) {
        json_decref(list);
        return NULL;
    }
    if (close == ')' && json_array_size(list) == 1 && !had_comma) { /* brackets around a value */
        json_t *v = json_incref(json_array_get(list, 0));
        json_decref(list);
        return v;
    }
    return list;
}

static json_t *read_collection(reader *r)
{
    char open = *r->s++;
    if (r->depth == QN_VALUE_DEPTH) return NULL;
    r->depth++;
    json_t *v = open == '{' ? read_braces(r) : read_members(r, open == '[' ? ']' : ')');
    r->depth--;
    return v;
}

static json_t *read_value(reader *r)
{
    skip_space(r);
    if (r->s == r->end) return NULL;
    char c = *r->s;
    if (at_string(r)) return read_string(r);
    if (c == '{' || c == '[' || c == '(') return read_collection(r);
    if (c == '+' || c == '-') return read_signed(r);
    if (isdigit((unsigned char)c) || c == '.') return read_number(r);
    return read_name(r);
}

/* ---- the whole ---- */

/* Behind the first value of a text: a comma makes it a tuple. */
static json_t *read_bare_tuple(reader *r, json_t *first)
{
    json_t *list = json_array();
    json_array_append_new(list, first);
    while (take_char(r, ',')) {
        skip_space(r);
        if (r->s == r->end) return list;
        json_t *v = read_value(r);
        if (!v || json_array_append_new(list, v)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

json_t *qn_value_python(qn_span v)
{
    v = qn_span_trim(v);
    reader r = {.s = v.s, .end = v.s + v.n};
    if (!v.n || !qn_utf8_valid(v.s, v.n)) return NULL;
    json_t *j = read_value(&r);
    skip_space(&r);
    if (j && r.s < r.end && *r.s == ',') j = read_bare_tuple(&r, j);
    skip_space(&r);
    if (r.s == r.end) return j;
    json_decref(j);
    return NULL;
}

json_t *qn_value_python_one(qn_span *v)
{
    reader r = {.s = v->s, .end = v->s + v->n, .json_names = true};
    json_t *j = v->n ? read_value(&r) : NULL;
    if (j) *v = qn_span_from(*v, (size_t)(r.s - v->s));
    return j;
}
