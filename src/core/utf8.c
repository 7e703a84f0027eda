/* utf8.c - decoding and checking UTF-8. */
#include "core/utf8.h"

/* Length by first byte and the allowed range of the second byte; 0 for a byte that starts nothing. */
static size_t lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0x80) return 1;
    if (c < 0xC2) return 0;
    if (c < 0xE0) return 2;
    if (c < 0xF0) {
        if (c == 0xE0) *lo = 0xA0;
        if (c == 0xED) *hi = 0x9F;
        return 3;
    }
    if (c < 0xF5) {
        if (c == 0xF0) *lo = 0x90;
        if (c == 0xF4) *hi = 0x8F;
        return 4;
    }
    return 0;
}

size_t qn_utf8_decode(const char *s, size_t n, unsigned *cp)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned char lo, hi;
    size_t len = lead(u[0], &lo, &hi);
    if (len == 1) {
        *cp = u[0];
        return 1;
    }
    *cp = 0xFFFD;
    if (len == 0) return 1;
    unsigned v = u[0] & (0x7Fu >> len);
    for (size_t i = 1; i < len; i++) {
        if (i >= n || u[i] < lo || u[i] > hi) return i;
        v = v << 6 | (u[i] & 63u);
        lo = 0x80;
        hi = 0xBF;
    }
    *cp = v;
    return len;
}

bool qn_utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        unsigned cp;
        size_t k = qn_utf8_decode(s + i, n - i, &cp);
        /* A real U+FFFD takes three bytes; a replaced one never decodes to its own encoding. */
        if (cp == 0xFFFD && !(k == 3 && (unsigned char)s[i] == 0xEF && (unsigned char)s[i + 1] == 0xBF &&
                              (unsigned char)s[i + 2] == 0xBD)) {
            return false;
        }
        i += k;
    }
    return true;
}

size_t qn_utf8_tail(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)s[n - back];
        if (c < 0x80) return 0;
        if (c < 0xC0) continue;
        unsigned char lo, hi;
        size_t len = lead(c, &lo, &hi);
        if (len <= back) return 0;
        if (back >= 2 && ((unsigned char)s[n - back + 1] < lo || (unsigned char)s[n - back + 1] > hi)) return 0;
        return back;
    }
    return 0;
}
