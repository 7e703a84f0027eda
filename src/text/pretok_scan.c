/* pretok_scan.c - hand-written splitters for the patterns that most models use.
 *
 * Each scanner returns the end of the first match of its pattern, or of the text before it where a
 * pattern does not match at every position. The alternatives are tried in the pattern's order, and
 * where a greedy part would backtrack, the place it would come back to is computed. Equality with
 * PCRE2 is tested by tests/unit/text_scan_test.c. Input is well-formed UTF-8.
 */
#include <string.h>

#include "core/utf8.h"
#include "text/tok_impl.h"
#include "text/unicode.h"

const char tok_pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* What the patterns ask about a character, as bits. */
enum {
    IS_UPPER = 1,    /* Lu, Lt */
    IS_LOWER = 2,    /* Ll */
    IS_CASELESS = 4, /* Lm, Lo */
    IS_MARK = 8,
    IS_NUMBER = 16,
    IS_SPACE = 32,   /* white space, \r and \n included */
    IS_NEWLINE = 64, /* \r, \n */
    IS_OTHER = 128,  /* none of these */
    IS_LETTER = IS_UPPER | IS_LOWER | IS_CASELESS
};

static const uint8_t ascii_class[128] = {
    ['\t'] = IS_SPACE,
    ['\n'] = IS_SPACE | IS_NEWLINE,
    [11] = IS_SPACE,
    [12] = IS_SPACE,
    ['\r'] = IS_SPACE | IS_NEWLINE,
    [' '] = IS_SPACE,
    ['0'] = IS_NUMBER,
    ['1'] = IS_NUMBER,
    ['2'] = IS_NUMBER,
    ['3'] = IS_NUMBER,
    ['4'] = IS_NUMBER,
    ['5'] = IS_NUMBER,
    ['6'] = IS_NUMBER,
    ['7'] = IS_NUMBER,
    ['8'] = IS_NUMBER,
    ['9'] = IS_NUMBER,
    ['A'] = IS_UPPER,
    ['B'] = IS_UPPER,
    ['C'] = IS_UPPER,
    ['D'] = IS_UPPER,
    ['E'] = IS_UPPER,
    ['F'] = IS_UPPER,
    ['G'] = IS_UPPER,
    ['H'] = IS_UPPER,
    ['I'] = IS_UPPER,
    ['J'] = IS_UPPER,
    ['K'] = IS_UPPER,
    ['L'] = IS_UPPER,
    ['M'] = IS_UPPER,
    ['N'] = IS_UPPER,
    ['O'] = IS_UPPER,
    ['P'] = IS_UPPER,
    ['Q'] = IS_UPPER,
    ['R'] = IS_UPPER,
    ['S'] = IS_UPPER,
    ['T'] = IS_UPPER,
    ['U'] = IS_UPPER,
    ['V'] = IS_UPPER,
    ['W'] = IS_UPPER,
    ['X'] = IS_UPPER,
    ['Y'] = IS_UPPER,
    ['Z'] = IS_UPPER,
    ['a'] = IS_LOWER,
    ['b'] = IS_LOWER,
    ['c'] = IS_LOWER,
    ['d'] = IS_LOWER,
    ['e'] = IS_LOWER,
    ['f'] = IS_LOWER,
    ['g'] = IS_LOWER,
    ['h'] = IS_LOWER,
    ['i'] = IS_LOWER,
    ['j'] = IS_LOWER,
    ['k'] = IS_LOWER,
    ['l'] = IS_LOWER,
    ['m'] = IS_LOWER,
    ['n'] = IS_LOWER,
    ['o'] = IS_LOWER,
    ['p'] = IS_LOWER,
    ['q'] = IS_LOWER,
    ['r'] = IS_LOWER,
    ['s'] = IS_LOWER,
    ['t'] = IS_LOWER,
    ['u'] = IS_LOWER,
    ['v'] = IS_LOWER,
    ['w'] = IS_LOWER,
    ['x'] = IS_LOWER,
    ['y'] = IS_LOWER,
    ['z'] = IS_LOWER,
};

static unsigned class_of(unsigned cp)
{
    unsigned bit = QN_UBIT(qn_ucat_of(cp));
    if (bit & (QN_UBIT(QN_LU) | QN_UBIT(QN_LT))) return IS_UPPER;
    if (bit & QN_UBIT(QN_LL)) return IS_LOWER;
    if (bit & QN_U_LETTER) return IS_CASELESS;
    if (bit & QN_U_MARK) return IS_MARK;
    if (bit & QN_U_NUMBER) return IS_NUMBER;
    return qn_uchar_is_space(cp) ? IS_SPACE : IS_OTHER;
}

/* The class of the character at s[0..n), n > 0, and its length. */
static inline unsigned look(const char *s, size_t n, size_t *len)
{
    const uint8_t *u = (const uint8_t *)s;
    *len = 1;
    if (u[0] < 0x80) {
        unsigned c = ascii_class[u[0]];
        return c ? c : IS_OTHER;
    }
    if (u[0] < 0xE0 && n >= 2) {
        *len = 2;
        return class_of((u[0] & 31u) << 6 | (u[1] & 63u));
    }
    if (u[0] < 0xF0 && n >= 3) {
        *len = 3;
        return class_of((u[0] & 15u) << 12 | (u[1] & 63u) << 6 | (u[2] & 63u));
    }
    if (n < 4) return IS_OTHER;
    *len = 4;
    return class_of((u[0] & 7u) << 18 | (u[1] & 63u) << 12 | (u[2] & 63u) << 6 | (u[3] & 63u));
}

/* The end of the run of characters in `mask` that starts at `i`. */
static inline size_t run(const char *s, size_t n, size_t i, unsigned mask)
{
    size_t k;
    while (i < n && look(s + i, n - i, &k) & mask) i += k;
    return i;
}

/* 's 't 're 've 'm 'll 'd at s[i..n): its length, or 0. Any case also takes U+017F for s. */
static size_t contraction(const char *s, size_t n, size_t i, bool any_case)
{
    if (i + 1 >= n || s[i] != '\'') return 0;
    unsigned char lower = any_case ? 0x20 : 0;
    unsigned char a = (unsigned char)s[i + 1] | lower,
                  b = i + 2 < n ? (unsigned char)s[i + 2] | lower : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return any_case && i + 2 < n && !memcmp(s + i + 1, "\xC5\xBF", 2) ? 3 : 0;
}

/* \s+(?!\S)|\s+ and, with `newlines`, \s*[\r\n]+ before it: white space starts at 0. */
static size_t spaces(const char *s, size_t n, bool newlines)
{
    size_t i = 0, last = 0, after_newline = 0, k;
    while (i < n) {
        unsigned c = look(s + i, n - i, &k);
        if (!(c & IS_SPACE)) break;
        last = i;
        i += k;
        if (c & IS_NEWLINE) after_newline = i;
    }
    if (newlines && after_newline) return after_newline;
    return i < n && last ? last
                         : i; /* the last one goes to what follows, unless it is the only one */
}

static size_t numbers(const char *s, size_t n, int most)
{
    size_t i = 0, k;
    while (most-- && i < n && look(s + i, n - i, &k) & IS_NUMBER) i += k;
    return i;
}

/* " ?[symbols]+" and then a run of the bytes in `tail`; 0 if there is none. */
static size_t symbols(const char *s, size_t n, unsigned mask, const char *tail)
{
    size_t start = s[0] == ' ', i = run(s, n, start, mask);
    if (i == start) return 0;
    while (i < n && s[i] && strchr(tail, s[i])) i++;
    return i;
}

static size_t scan_gpt2(const char *s, size_t n)
{
    size_t k = contraction(s, n, 0, false);
    if (k) return k;
    size_t start = s[0] == ' ' && n > 1;
    unsigned c = look(s + start, n - start, &k);
    if (c & IS_SPACE) return spaces(s, n, false);
    unsigned mask = c & IS_LETTER ? IS_LETTER : c & IS_NUMBER ? IS_NUMBER : IS_OTHER | IS_MARK;
    return run(s, n, start + k, mask);
}

/* The cl100k family: `word` is the letter run's class, `digits` the longest number. */
static inline size_t scan_cl100k(const char *s, size_t n, unsigned word, int digits)
{
    size_t k, k2, end = contraction(s, n, 0, true);
    if (end) return end;
    unsigned c = look(s, n, &k);
    if (c & word) return run(s, n, k, word);
    if (!(c & (IS_NUMBER | IS_NEWLINE)) && k < n && look(s + k, n - k, &k2) & word) {
        return run(s, n, k + k2, word);
    }
    if (c & IS_NUMBER) return numbers(s, n, digits);
    end = symbols(s, n, (IS_OTHER | IS_MARK) & ~word, "\r\n");
    return end ? end : spaces(s, n, true);
}

static size_t scan_llama3(const char *s, size_t n)
{
    return scan_cl100k(s, n, IS_LETTER, 3);
}

static size_t scan_qwen2(const char *s, size_t n)
{
    return scan_cl100k(s, n, IS_LETTER, 1);
}

static size_t scan_qwen35(const char *s, size_t n)
{
    return scan_cl100k(s, n, IS_LETTER | IS_MARK, 1);
}

enum {
    CAPS = IS_UPPER | IS_CASELESS | IS_MARK, /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    SMALL = IS_LOWER | IS_CASELESS | IS_MARK /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
};

/* CAPS*SMALL+ from i: its end, or i if it does not match. The greedy CAPS* gives back characters
 * until one of them is SMALL as well. */
static size_t small_word(const char *s, size_t n, size_t i)
{
    size_t at = i, both_end = i, k;
    while (at < n) {
        unsigned c = look(s + at, n - at, &k);
        if (!(c & CAPS)) break;
        at += k;
        if (c & SMALL) both_end = at;
    }
    size_t end = run(s, n, at, SMALL);
    return end > at ? end : both_end;
}

/* CAPS+SMALL* from i, or i. */
static size_t caps_word(const char *s, size_t n, size_t i)
{
    size_t at = run(s, n, i, CAPS);
    return at > i ? run(s, n, at, SMALL) : i;
}

/* The o200k family: words by case, with an optional contraction behind them. */
static inline size_t scan_o200k_with(const char *s, size_t n, bool contractions, int digits)
{
    size_t k, end = 0;
    unsigned c = look(s, n, &k);
    /* The optional character in front is taken first and given back second. */
    bool lead = !(c & (IS_LETTER | IS_NUMBER | IS_NEWLINE));
    if (lead && (end = small_word(s, n, k)) == k) end = 0;
    if (!end) end = small_word(s, n, 0);
    if (!end && lead && (end = caps_word(s, n, k)) == k) end = 0;
    if (!end) end = caps_word(s, n, 0);
    if (end) return contractions ? end + contraction(s, n, end, true) : end;
    if (c & IS_NUMBER) return numbers(s, n, digits);
    end = symbols(s, n, IS_OTHER | IS_MARK, "\r\n/");
    return end ? end : spaces(s, n, true);
}

static size_t scan_o200k(const char *s, size_t n)
{
    return scan_o200k_with(s, n, true, 3);
}

static size_t scan_tekken(const char *s, size_t n)
{
    return scan_o200k_with(s, n, false, 1);
}

/* ---- DeepSeek V3: three patterns, each for the pieces of the one before; what a pattern does not
 * match is a piece as well ---- */

/* \p{N}{1,3} */
static size_t scan_digits3(const char *s, size_t n)
{
    size_t end = numbers(s, n, 3);
    return end ? end : run(s, n, 0, 255u & ~(unsigned)IS_NUMBER);
}

static bool is_cjk(const char *s, size_t n, size_t *k)
{
    unsigned cp = 0;
    if ((uint8_t)s[0] < 0x80) {
        *k = 1;
        return false;
    }
    *k = qn_utf8_decode(s, n, &cp);
    return (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF);
}

/* A run of ideographs and kana, or of anything else. */
static size_t scan_cjk(const char *s, size_t n)
{
    size_t k, i;
    bool first = is_cjk(s, n, &k);
    for (i = k; i < n && is_cjk(s + i, n - i, &k) == first; i += k) continue;
    return i;
}

static bool is_ascii_letter(char c)
{
    return (unsigned char)((c | 32) - 'a') < 26;
}

/* \p{P} or \p{S} */
static bool is_symbol(const char *s, size_t n, unsigned class, size_t *k)
{
    unsigned cp;
    if (class != IS_OTHER) return false;
    if ((uint8_t)s[0] < 0x80) {
        *k = 1;
        return s[0] > ' ' && s[0] < 127;
    }
    *k = qn_utf8_decode(s, n, &cp);
    return qn_ucat_in(cp, QN_U_PUNCT | QN_U_SYMBOL);
}

static size_t deepseek_symbols(const char *s, size_t n)
{
    size_t start = s[0] == ' ', i = start, k;
    while (i < n && is_symbol(s + i, n - i, look(s + i, n - i, &k), &k)) i += k;
    if (i == start) return 0;
    while (i < n && (s[i] == '\r' || s[i] == '\n')) i++;
    return i;
}

/* The end of a match at 0, or 0. */
static size_t match_deepseek(const char *s, size_t n)
{
    enum { WORD = IS_LETTER | IS_MARK };
    size_t k, k2;
    unsigned c = look(s, n, &k);
    bool symbol = is_symbol(s, n, c, &k);
    if (symbol && k == 1 && n > 1 && is_ascii_letter(s[1])) {
        for (k = 2; k < n && is_ascii_letter(s[k]); k++) continue;
        return k;
    }
    if (c & WORD) return run(s, n, k, WORD);
    if (!symbol && !(c & IS_NEWLINE) && k < n && look(s + k, n - k, &k2) & WORD) {
        return run(s, n, k + k2, WORD);
    }
    size_t end = deepseek_symbols(s, n);
    if (end) return end;
    return c & IS_SPACE ? spaces(s, n, true) : 0;
}

static size_t scan_deepseek(const char *s, size_t n)
{
    size_t i = match_deepseek(s, n), k;
    if (i) return i;
    do {
        look(s + i, n - i, &k);
        i += k;
    } while (i < n && !match_deepseek(s + i, n - i));
    return i;
}

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CAPS_CLASS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL_CLASS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"

const tok_known_pattern tok_known_patterns[] = {
    {tok_pattern_gpt2, scan_gpt2, false, true},
    {CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES,
     scan_llama3, false, true},
    {CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES,
     scan_qwen2, false, true},
    {CONTRACTIONS "|" LEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES,
     scan_qwen35, false, true},
    {LEAD CAPS_CLASS "*" SMALL_CLASS "+" CONTRACTIONS "?|" LEAD CAPS_CLASS "+" SMALL_CLASS
                     "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
     scan_o200k, false, true},
    {LEAD CAPS_CLASS "*" SMALL_CLASS "+|" LEAD CAPS_CLASS "+" SMALL_CLASS
                     "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
     scan_tekken, false, true},
    {"\\p{N}{1,3}", scan_digits3, true, false},
    {"[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
     scan_cjk, true, false},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     scan_deepseek, true, true},
    {NULL, NULL, false, false},
};

const tok_known_pattern *tok_scan_for(tok_str pattern)
{
    for (const tok_known_pattern *p = tok_known_patterns; p->pattern; p++) {
        if (strlen(p->pattern) == pattern.n && !memcmp(p->pattern, pattern.s, pattern.n)) {
            return p;
        }
    }
    return NULL;
}
