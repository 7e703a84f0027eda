/* json.c - see json.h. The work is jansson's; a pass over the bytes before it applies the rules
 * that jansson has differently (depth, lone surrogates, integers above 2^63). */
#include "serve/json.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/utf8.h"

/* The four hex digits of a \u escape at s, or -1. */
static int hex4(const char *s, const char *end)
{
    if (end - s < 4) return -1;
    int v = 0;
    for (int i = 0; i < 4; i++) {
        if (!isxdigit((unsigned char)s[i])) return -1;
        v = v * 16 + (isdigit((unsigned char)s[i]) ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    return v;
}

/* Copy the escape at s (on its backslash); a lone surrogate becomes U+FFFD. Returns what
 * follows. */
static const char *copy_escape(qn_buf *out, const char *s, const char *end)
{
    int cp = end - s >= 2 && s[1] == 'u' ? hex4(s + 2, end) : -1;
    if (cp < 0xD800 || cp > 0xDFFF) {
        size_t n = end - s >= 2 ? 2 : 1;
        qn_buf_put(out, s, n);
        return s + n;
    }
    bool low_follows = end - s >= 12 && s[6] == '\\' && s[7] == 'u' &&
                       (hex4(s + 8, end) & 0xFC00) == 0xDC00 &&
                       hex4(s + 8, end) >= 0;
    if (cp < 0xDC00 && low_follows) {
        qn_buf_put(out, s, 12);
        return s + 12;
    }
    qn_buf_puts(out, "\\uFFFD");
    return s + 6;
}

/* Copy the string whose opening quote is at s; is_lax writes control characters as escapes. Returns
 * what follows its closing quote. */
static const char *copy_string(qn_buf *out, const char *s, const char *end, bool is_lax)
{
    qn_buf_putc(out, *s++);
    while (s < end && *s != '"') {
        if (*s == '\\') {
            s = copy_escape(out, s, end);
            continue;
        }
        if (is_lax && (unsigned char)*s < 0x20) {
            qn_buf_printf(out, "\\u%04x", (unsigned char)*s++);
            continue;
        }
        const char *plain = s;
        while (s < end && *s != '"' && *s != '\\' && (unsigned char)*s >= 0x20) s++;
        if (s == plain) s++; /* a control character: the parser refuses it */
        qn_buf_put(out, plain, (size_t)(s - plain));
    }
    if (s < end) qn_buf_putc(out, *s++);
    return s;
}

/* Copy the number at s; one that does not fit a signed 64-bit integer becomes a double, except a
 * seed, whose 64 bits are all wanted. Returns what follows. */
static const char *copy_number(qn_buf *out, const char *s, const char *end, bool is_seed)
{
    const char *p = s + (*s == '-');
    while (p < end && isdigit((unsigned char)*p)) p++;
    size_t n = (size_t)(p - s);
    qn_buf_put(out, s, n);
    bool whole = p == end || !strchr(".eE", *p);
    if (!whole || n < 19 || s[0] == '0' || (s[0] == '-' && s[1] == '0')) return p;
    char digits[24];
    errno = 0;
    if (n < sizeof digits) {
        memcpy(digits, s, n);
        digits[n] = '\0';
        strtoll(digits, NULL, 10);
        if (!errno) return p;
        errno = 0;
        uint64_t v = strtoull(digits, NULL, 10);
        if (!errno && is_seed && s[0] != '-') {
            out->len -= n;
            qn_buf_printf(out, "%" PRId64, (int64_t)v);
            return p;
        }
    }
    qn_buf_puts(out, ".0");
    return p;
}

/* Copy the body with the rules applied. */
static qn_code sanitize(qn_buf *out, const char *s, const char *end, bool is_lax, qn_err *err)
{
    unsigned depth = 0;
    bool is_seed = false;
    while (s < end) {
        if (*s == '"') {
            size_t start = out->len;
            s = copy_string(out, s, end, is_lax);
            is_seed = !out->failed && out->len - start == 6 &&
                      !memcmp(out->data + start, "\"seed\"", 6);
        } else if (*s == '-' || isdigit((unsigned char)*s)) {
            const char *after = copy_number(out, s, end, is_seed);
            if (after == s + (*s == '-')) {
                s = after;
                continue; /* a lone minus: copied, refused by the parser */
            }
            s = after;
            while (s < end && strchr("0123456789.eE+-", *s) && *s) qn_buf_putc(out, *s++);
        } else {
            if (*s == '[' || *s == '{') depth++;
            if ((*s == ']' || *s == '}') && depth) depth--;
            if (depth > QN_JSON_DEPTH) {
                return qn_err_set(err, QN_FORMAT, "invalid JSON body: nested deeper than %d levels",
                                  QN_JSON_DEPTH);
            }
            qn_buf_putc(out, *s++);
        }
    }
    return out->failed ? qn_err_set(err, QN_NOMEM, "out of memory reading the body") : QN_OK;
}

qn_code qn_json_parse(json_t **out, const char *body, size_t n, qn_err *err)
{
    *out = NULL;
    if (!n) return qn_err_set(err, QN_FORMAT, "invalid JSON body: it is empty");
    if (!qn_utf8_valid(body, n)) {
        return qn_err_set(err, QN_FORMAT, "invalid JSON body: it is not UTF-8");
    }
    qn_buf clean = {0};
    qn_code rc = sanitize(&clean, body, body + n, false, err);
    if (!rc) {
        json_error_t why;
        json_t *tree = json_loadb(clean.data, clean.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
        if (!tree) {
            rc = qn_err_set(err, QN_FORMAT, "invalid JSON body: %s (line %d, column %d)", why.text,
                            why.line, why.column);
        } else if (!json_is_object(tree)) {
            json_decref(tree);
            rc = qn_err_set(err, QN_FORMAT, "the request body must be a JSON object");
        } else {
            *out = tree;
        }
    }
    qn_buf_release(&clean);
    return rc;
}

json_t *qn_json_value(const char *text, size_t n)
{
    qn_buf clean = {0};
    qn_err err = {0};
    json_error_t why;
    json_t *v = NULL;
    bool ok = qn_utf8_valid(text, n) && !sanitize(&clean, text, text + n, true, &err);
    if (ok && clean.len) {
        v = json_loadb(clean.data, clean.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    }
    qn_buf_release(&clean);
    return v;
}

json_t *qn_json_get(const json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

bool qn_json_int(const json_t *v, json_int_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v)) return false;
    double d = json_real_value(v);
    if (d != floor(d) || d < -9223372036854775808.0 || d >= 9223372036854775808.0) return false;
    *out = (json_int_t)d;
    return true;
}

static int append_json(const char *data, size_t n, void *user)
{
    qn_buf *out = user;
    qn_buf_put(out, data, n);
    return out->failed ? -1 : 0;
}

void qn_json_write(qn_buf *out, const json_t *tree)
{
    /* 15 digits: 0.7 stays 0.7, and every float keeps its value. */
    size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15);
    if (json_dump_callback(tree, append_json, out, flags)) {
        out->failed = true;
    }
}

void qn_json_put_text(json_t *object, const char *key, const char *text, size_t n)
{
    json_object_set_new(object, key, json_stringn(text ? text : "", n));
}

json_t *qn_json_float(float v)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)v);
    return json_real(strtod(text, NULL));
}

static void cut_data(json_t *tree)
{
    const char *key;
    json_t *v;
    size_t i;
    if (json_is_string(tree) && !strncasecmp(json_string_value(tree), "data:", 5)) {
        json_string_set(tree, "data:...");
    }
    json_object_foreach(tree, key, v) cut_data(v);
    json_array_foreach(tree, i, v) cut_data(v);
}

json_t *qn_json_without_data(const json_t *tree)
{
    json_t *copy = json_deep_copy(tree);
    if (copy) cut_data(copy);
    return copy;
}
