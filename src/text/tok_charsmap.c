/* tok_charsmap.c - the character map of SentencePiece: strings to their normalised form.
 *
 * The map is a double-array trie over UTF-8 bytes whose values are offsets of NUL-terminated
 * replacements. On disk:
 *
 *   offset  size     meaning
 *   0       4        bytes of the trie, little endian, a multiple of 4
 *   4       that     units of the trie, 32 bits little endian each
 *   then    rest     replacements, each with a NUL
 *
 * A unit: bits 0-7 the byte that leads to it, bit 8 a string ends at its child, bit 9 the offset
 * counts in 256s, bits 10-30 the offset to its children; bit 31 marks a value.
 */
#include <string.h>
#include <utf8proc.h>

#include "core/utf8.h"
#include "text/tok_impl.h"

/* ---- reading ---- */

static uint32_t read_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

qn_code tok_charsmap_read(qn_tokenizer *t, const void *data, size_t n, tok_charsmap *map,
                          qn_err *err)
{
    const uint8_t *p = data;
    size_t bytes = n >= 4 ? read_u32(p) : 0;
    if (!bytes || bytes % 4 || bytes > n - 4) {
        return qn_err_set(err, QN_FORMAT,
                          "tokenizer: a character map of %zu bytes says that its trie has %zu", n,
                          bytes);
    }
    size_t n_units = bytes / 4, n_out = n - 4 - bytes;
    uint32_t *trie = qn_arena_take(&t->arena, n_units, sizeof *trie);
    char *out = qn_arena_dup(&t->arena, (const char *)p + 4 + bytes, n_out);
    if (!trie || !out) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
    if (!qn_utf8_valid(out, n_out)) {
        return qn_err_set(err, QN_FORMAT,
                          "tokenizer: the replacements of the character map are not UTF-8");
    }
    for (size_t i = 0; i < n_units; i++) trie[i] = read_u32(p + 4 + 4 * i);
    *map = (tok_charsmap){trie, n_units, out, n_out};
    return QN_OK;
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool tok_base64(const char *s, size_t n, qn_buf *out)
{
    if (n % 4) return false;
    while (n && s[n - 1] == '=' && n % 4 != 2) n--;
    uint32_t bits = 0;
    int n_bits = 0;
    for (size_t i = 0; i < n; i++) {
        int d = base64_digit(s[i]);
        if (d < 0) return false;
        bits = bits << 6 | (uint32_t)d;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        qn_buf_putc(out, (char)(bits >> n_bits & 255));
    }
    return !(bits & ((1u << n_bits) - 1));
}

qn_code tok_charsmap_parse(qn_tokenizer *t, const json_t *o, tok_charsmap *map, qn_err *err)
{
    const json_t *v = json_object_get(o, "precompiled_charsmap");
    qn_buf blob = {0};
    qn_code rc;
    if (!json_is_string(v) || !tok_base64(json_string_value(v), json_string_length(v), &blob)) {
        rc = qn_err_set(err, QN_FORMAT,
                        "tokenizer.json: normalizer.precompiled_charsmap is not base64 text");
    } else if (blob.failed) {
        rc = qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory");
    } else {
        rc = tok_charsmap_read(t, blob.data, blob.len, map, err);
    }
    qn_buf_release(&blob);
    return rc;
}

/* ---- looking up ---- */

static size_t child_offset(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* What a prefix of s[0..n) becomes: of the shortest one in the map, or the longest. Returns its
 * length, 0 if there is none. */
static size_t find_prefix(const tok_charsmap *m, const char *s, size_t n, bool longest,
                          tok_str *out)
{
    size_t found = 0, at = child_offset(m->trie[0]);
    for (size_t i = 0; i < n && s[i]; i++) {
        at ^= (uint8_t)s[i];
        if (at >= m->n_units) break;
        uint32_t unit = m->trie[at];
        if ((unit & (1u << 31 | 255)) != (uint8_t)s[i]) break;
        at ^= child_offset(unit);
        if (at >= m->n_units) break;
        if (!(unit & 1u << 8)) continue;
        size_t value = m->trie[at] & ((1u << 31) - 1);
        if (value > m->n_out || (value < m->n_out && (m->out[value] & 0xC0) == 0x80)) continue;
        *out = (tok_str){m->out + value, strlen(m->out + value)};
        found = i + 1;
        if (!longest) break;
    }
    return found;
}

size_t tok_charsmap_longest(const tok_charsmap *m, const char *s, size_t n, tok_str *out)
{
    return find_prefix(m, s, n, true, out);
}

/* Characters of Unicode 16 and 17 that extend a cluster, which the library may not know yet. */
static bool extends(unsigned cp)
{
    static const uint32_t late[][2] = {
        {0x897, 0x897},     {0x1ACF, 0x1ADD},   {0x1AE0, 0x1AEB},   {0x10D69, 0x10D6D},
        {0x10EFA, 0x10EFC}, {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5},
        {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2}, {0x113E1, 0x113E2},
        {0x11B60, 0x11B67}, {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F}, {0x1E5EE, 0x1E5EF},
        {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5},
    };
    for (size_t i = 0; i < sizeof late / sizeof *late && cp >= late[i][0]; i++) {
        if (cp <= late[i][1]) return true;
    }
    return false;
}

/* The end of the grapheme cluster at s[from]. */
static size_t cluster_end(tok_str s, size_t from)
{
    unsigned before, cp;
    utf8proc_int32_t state = 0;
    size_t i = from + qn_utf8_decode(s.s + from, s.n - from, &before);
    while (i < s.n) {
        size_t k = qn_utf8_decode(s.s + i, s.n - i, &cp);
        bool ends = utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)cp,
                                                     &state);
        if (ends && (before < ' ' || !extends(cp))) break;
        before = cp;
        i += k;
    }
    return i;
}

/* As the oracle: a cluster of up to five bytes that starts with a known string becomes that
 * string's replacement, whatever follows in the cluster; else each character is looked up alone. */
void tok_charsmap_run(const tok_charsmap *m, tok_str in, qn_buf *out)
{
    enum { SHORT = 5 };
    for (size_t i = 0; i < in.n;) {
        size_t end = cluster_end(in, i);
        tok_str to;
        if (end - i <= SHORT && find_prefix(m, in.s + i, end - i, false, &to)) {
            qn_buf_put(out, to.s, to.n);
            i = end;
        }
        while (i < end) {
            unsigned cp;
            size_t k = qn_utf8_decode(in.s + i, end - i, &cp);
            if (!find_prefix(m, in.s + i, k, false, &to)) to = (tok_str){in.s + i, k};
            qn_buf_put(out, to.s, to.n);
            i += k;
        }
    }
}
