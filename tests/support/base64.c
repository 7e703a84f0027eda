/* base64.c - decoding. */
#include "base64.h"

#include <string.h>

size_t qn_test_base64(const char *s, uint8_t *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    uint32_t acc = 0;
    int bits = 0;
    for (; *s && *s != '='; s++) {
        acc = acc << 6 | (uint32_t)(strchr(digits, *s) - digits);
        bits += 6;
        if (bits < 8) continue;
        bits -= 8;
        out[n++] = (uint8_t)(acc >> bits);
    }
    return n;
}
