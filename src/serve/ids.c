/* ids.c - see ids.h. */
#include "serve/ids.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "core/err.h"

void qn_uuid4(char out[37])
{
    uint8_t b[16];
    qn_check(getrandom(b, sizeof b, 0) == (ssize_t)sizeof b);
    b[6] = (uint8_t)((b[6] & 0x0F) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3F) | 0x80);
    char *p = out;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *p++ = '-';
        p += snprintf(p, 3, "%02x", b[i]);
    }
}

void qn_hex_id(char *out, size_t cap, const char *prefix)
{
    uint8_t b[12];
    size_t n = strlen(prefix);
    qn_check(n + 2 * sizeof b < cap);
    qn_check(getrandom(b, sizeof b, 0) == (ssize_t)sizeof b);
    memcpy(out, prefix, n);
    for (size_t i = 0; i < sizeof b; i++) snprintf(out + n + 2 * i, 3, "%02x", b[i]);
}

void qn_call_id(char out[QN_CALL_ID], bool is_short)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    uint8_t b[9];
    if (!is_short) {
        qn_hex_id(out, QN_CALL_ID, "call_");
        return;
    }
    qn_check(getrandom(b, sizeof b, 0) == (ssize_t)sizeof b);
    for (int i = 0; i < 9; i++) out[i] = letters[b[i] % (sizeof letters - 1)];
    out[9] = '\0';
}
