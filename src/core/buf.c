/* buf.c - the growable byte string. */
#include "core/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool grow(qn_buf *b, size_t n)
{
    if (b->failed) return false;
    if (n < b->cap - b->len) return true; /* one byte stays for the NUL */
    if (n > SIZE_MAX / 4 - b->len) {
        b->failed = true;
        return false;
    }
    size_t cap = b->cap ? b->cap * 2 : 256;
    while (cap - b->len <= n) cap *= 2;
    char *p = realloc(b->data, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

void qn_buf_put(qn_buf *b, const void *p, size_t n)
{
    if (!grow(b, n)) return;
    if (n) memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void qn_buf_puts(qn_buf *b, const char *s)
{
    qn_buf_put(b, s, strlen(s));
}

void qn_buf_putc(qn_buf *b, char c)
{
    qn_buf_put(b, &c, 1);
}

void qn_buf_printf(qn_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !grow(b, (size_t)n)) {
        b->failed = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

void qn_buf_put_utf8(qn_buf *b, unsigned cp)
{
    unsigned char s[4];
    size_t n;
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) cp = 0xFFFD;
    if (cp < 0x80) {
        s[0] = (unsigned char)cp;
        n = 1;
    } else if (cp < 0x800) {
        s[0] = (unsigned char)(0xC0 | cp >> 6);
        s[1] = (unsigned char)(0x80 | (cp & 63));
        n = 2;
    } else if (cp < 0x10000) {
        s[0] = (unsigned char)(0xE0 | cp >> 12);
        s[1] = (unsigned char)(0x80 | (cp >> 6 & 63));
        s[2] = (unsigned char)(0x80 | (cp & 63));
        n = 3;
    } else {
        s[0] = (unsigned char)(0xF0 | cp >> 18);
        s[1] = (unsigned char)(0x80 | (cp >> 12 & 63));
        s[2] = (unsigned char)(0x80 | (cp >> 6 & 63));
        s[3] = (unsigned char)(0x80 | (cp & 63));
        n = 4;
    }
    qn_buf_put(b, s, n);
}

void qn_buf_clear(qn_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data) b->data[0] = '\0';
}

void qn_buf_drop(qn_buf *b, size_t n)
{
    if (!n) return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = '\0';
}

char *qn_buf_take(qn_buf *b)
{
    if (!b->data && !b->failed) qn_buf_put(b, "", 0);
    char *p = b->failed ? NULL : b->data;
    if (b->failed) free(b->data);
    *b = (qn_buf){0};
    return p;
}

void qn_buf_release(qn_buf *b)
{
    free(b->data);
    *b = (qn_buf){0};
}
