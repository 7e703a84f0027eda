/* tok_alphabet.c - the byte-level alphabet: every byte as one printable character.
 *
 * Bytes 33-126, 161-172 and 174-255 stand for themselves; the other 68, in increasing order, are
 * U+0100 and up.
 */
#include "core/utf8.h"
#include "text/tok_impl.h"

static bool is_own_char(unsigned b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

uint16_t tok_byte_to_char(uint8_t b)
{
    if (is_own_char(b)) return b;
    if (b <= 32) return (uint16_t)(0x100 + b);
    if (b <= 160) return (uint16_t)(0x100 + 33 + (b - 127));
    return 0x143; /* 173 */
}

int tok_char_to_byte(unsigned cp)
{
    if (cp < 0x100) return is_own_char(cp) ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 127);
    return cp == 0x143 ? 173 : -1;
}

void tok_bytes_to_alphabet(const char *s, size_t n, qn_buf *out)
{
    for (size_t i = 0; i < n; i++) qn_buf_put_utf8(out, tok_byte_to_char((uint8_t)s[i]));
}

bool tok_alphabet_to_bytes(const char *s, size_t n, qn_buf *out)
{
    size_t before = out->len;
    for (size_t i = 0; i < n;) {
        unsigned cp;
        i += qn_utf8_decode(s + i, n - i, &cp);
        int b = tok_char_to_byte(cp);
        if (b < 0) {
            if (out->data) out->data[before] = '\0';
            out->len = before;
            return false;
        }
        qn_buf_putc(out, (char)b);
    }
    return true;
}
