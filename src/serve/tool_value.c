/* tool_value.c - see tool_value.h. */
#include "serve/tool_value.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/json.h"

/* ---- JSON ---- */

/* Copy JSON with the control characters inside strings written as escapes. */
static void escape_controls(qn_buf *out, const char *s, size_t n)
{
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"') in_string = !in_string;
        if (in_string && c < 0x20) qn_buf_printf(out, "\\u%04x", c);
        else qn_buf_putc(out, (char)c);
        if (in_string && c == '\\' && i + 1 < n && (unsigned char)s[i + 1] >= 0x20) {
            qn_buf_putc(out, s[++i]);
        }
    }
}

json_t *qn_value_json(const char *text, size_t n)
{
    enum { FLAGS = JSON_DECODE_ANY | JSON_ALLOW_NUL };
    qn_buf clean = {0};
    json_error_t why;
    escape_controls(&clean, text, n);
    json_t *v = NULL;
    if (!clean.failed && clean.len) {
        v = json_loadb(clean.data, clean.len, FLAGS, &why);
        if (!v && json_error_code(&why) == json_error_numeric_overflow) {
            v = json_loadb(clean.data, clean.len, FLAGS | JSON_DECODE_INT_AS_REAL, &why);
        }
    }
    qn_buf_release(&clean);
    return v;
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
    if (!strpbrk(text, ".eE")) qn_buf_puts(out, ".0");
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
            json_t *name = json_string(key);
            if (i++) qn_buf_putc(out, ',');
            qn_json_write(out, name);
            json_decref(name);
            qn_buf_putc(out, ':');
            qn_tool_write_args(out, v);
        }
        qn_buf_putc(out, '}');
    } else {
        qn_json_write(out, tree);
    }
}
