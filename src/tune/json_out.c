/* json_out.c - JSON text for people: 2 spaces, short arrays on one line, shortest doubles.
 *
 * jansson writes doubles with a fixed number of digits, which turns 1e-05 into
 * 1.0000000000000001e-05; that is the only reason for a writer of our own.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "tune/job.h"

enum { SHORT_ARRAY = 8 };

static void put_string(qn_buf *b, const char *s, size_t n)
{
    qn_buf_putc(b, '"');
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        qn_buf_put(b, s + from, i - from);
        from = i + 1;
        if (c == '"' || c == '\\') qn_buf_printf(b, "\\%c", c);
        else if (c == '\n') qn_buf_puts(b, "\\n");
        else if (c == '\r') qn_buf_puts(b, "\\r");
        else if (c == '\t') qn_buf_puts(b, "\\t");
        else qn_buf_printf(b, "\\u%04x", c);
    }
    qn_buf_put(b, s + from, n - from);
    qn_buf_putc(b, '"');
}

static void put_real(qn_buf *b, double v)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    qn_buf_puts(b, text);
    if (!strpbrk(text, ".en")) qn_buf_puts(b, ".0");
}

static void put_value(qn_buf *b, const json_t *v, int depth);

static void new_line(qn_buf *b, int depth) { qn_buf_printf(b, "\n%*s", 2 * depth, ""); }

static bool is_short(const json_t *a)
{
    size_t n = json_array_size(a);
    for (size_t i = 0; i < n && i < SHORT_ARRAY; i++) {
        const json_t *v = json_array_get(a, i);
        if (json_is_object(v) || json_is_array(v)) return false;
    }
    return n <= SHORT_ARRAY;
}

static void put_array(qn_buf *b, const json_t *a, int depth)
{
    bool one_line = is_short(a);
    qn_buf_putc(b, '[');
    for (size_t i = 0; i < json_array_size(a); i++) {
        if (i) qn_buf_puts(b, one_line ? ", " : ",");
        if (!one_line) new_line(b, depth + 1);
        put_value(b, json_array_get(a, i), depth + 1);
    }
    if (!one_line) new_line(b, depth);
    qn_buf_putc(b, ']');
}

static void put_object(qn_buf *b, const json_t *o, int depth)
{
    const char *key;
    json_t *v;
    bool first = true;
    qn_buf_putc(b, '{');
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        if (!first) qn_buf_putc(b, ',');
        first = false;
        new_line(b, depth + 1);
        put_string(b, key, strlen(key));
        qn_buf_puts(b, ": ");
        put_value(b, v, depth + 1);
    }
    if (!first) new_line(b, depth);
    qn_buf_putc(b, '}');
}

static void put_value(qn_buf *b, const json_t *v, int depth)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: put_object(b, v, depth); break;
    case JSON_ARRAY: put_array(b, v, depth); break;
    case JSON_STRING: put_string(b, json_string_value(v), json_string_length(v)); break;
    case JSON_INTEGER: qn_buf_printf(b, "%" JSON_INTEGER_FORMAT, json_integer_value(v)); break;
    case JSON_REAL: put_real(b, json_real_value(v)); break;
    case JSON_TRUE: qn_buf_puts(b, "true"); break;
    case JSON_FALSE: qn_buf_puts(b, "false"); break;
    case JSON_NULL: qn_buf_puts(b, "null"); break;
    }
}

void qn_json_put(qn_buf *b, const json_t *v) { put_value(b, v, 0); }

qn_code qn_json_file(const json_t *v, const char *dir, const char *name, qn_err *err)
{
    qn_buf text = {0}, path = {0};
    qn_buf_printf(&path, "%s/%s", dir, name);
    qn_json_put(&text, v);
    qn_buf_putc(&text, '\n');
    qn_code rc = QN_OK;
    if (text.failed || path.failed) rc = qn_err_set(err, QN_NOMEM, "%s: out of memory", name);
    else rc = qn_file_write(path.data, text.data, text.len, err);
    qn_buf_release(&text);
    qn_buf_release(&path);
    return rc;
}
