/* sse.c - see sse.h. */
#include "serve/sse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "serve/json.h"

void qn_sse_data(qn_buf *out, json_t *tree)
{
    qn_buf_puts(out, "data: ");
    if (tree) qn_json_write(out, tree);
    else out->failed = true;
    qn_buf_puts(out, "\n\n");
    json_decref(tree);
}

void qn_sse_fill(qn_buf *out, const qn_buf *frame, const char *text, size_t n)
{
    static const char hole[] = "\"\\u0000\"";
    out->failed |= frame->failed;
    if (frame->failed) return;
    const char *from = frame->data, *end = from + frame->len, *at;
    json_t *value = json_stringn(text, n);
    while ((at = memmem(from, (size_t)(end - from), hole, sizeof hole - 1))) {
        qn_buf_put(out, from, (size_t)(at - from));
        if (value) qn_json_write(out, value);
        from = at + sizeof hole - 1;
    }
    qn_buf_put(out, from, (size_t)(end - from));
    out->failed |= !value;
    json_decref(value);
}

void qn_sse_event(qn_buf *out, json_t *tree)
{
    const char *type = json_string_value(json_object_get(tree, "type"));
    qn_buf_printf(out, "event: %s\n", type ? type : "error");
    qn_sse_data(out, tree);
}

void qn_sse_done(qn_buf *out)
{
    qn_buf_puts(out, "data: [DONE]\n\n");
}

void qn_sse_comment(qn_buf *out, const char *fmt, ...)
{
    char text[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    qn_buf_printf(out, ": %s\n\n", text);
}

size_t qn_sse_frame_bytes(const char *data, size_t n)
{
    const char *end = n ? memmem(data, n, "\n\n", 2) : NULL;
    return end ? (size_t)(end - data) + 2 : n;
}
