/* jinja_text.c - Python's view of Unicode text; see jinja_text.h. Categories come from utf8proc. */
#include "text/jinja_text.h"

#include <string.h>
#include <utf8proc.h>

#include "core/utf8.h"

static utf8proc_category_t category(unsigned cp) { return utf8proc_category((utf8proc_int32_t)cp); }

bool qn_jcp_space(unsigned cp)
{
    if (cp < 0x80) return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool qn_jcp_printable(unsigned cp)
{
    if (cp < 0x7F) return cp >= 0x20;
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

bool qn_jcp_alpha(unsigned cp)
{
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return true;
    default: return false;
    }
}

bool qn_jcp_decimal(unsigned cp) { return category(cp) == UTF8PROC_CATEGORY_ND; }

bool qn_jcp_digit(unsigned cp)
{
    return qn_jcp_decimal(cp) || cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || cp == 0x2070 ||
           (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) ||
           (cp >= 0x2460 && cp <= 0x2468);
}

bool qn_jcp_numeric(unsigned cp)
{
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

/* Other_Lowercase and Other_Uppercase letters that Python's islower and isupper count. */
bool qn_jcp_lower(unsigned cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xAA || cp == 0xBA ||
           (cp >= 0x2B0 && cp <= 0x2B8) || (cp >= 0x2170 && cp <= 0x217F) ||
           (cp >= 0x24D0 && cp <= 0x24E9);
}

bool qn_jcp_upper(unsigned cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216F) ||
           (cp >= 0x24B6 && cp <= 0x24CF);
}

bool qn_jcp_title(unsigned cp) { return category(cp) == UTF8PROC_CATEGORY_LT; }

bool qn_jcp_name_start(unsigned cp)
{
    if (cp < 0x80) return cp == '_' || (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z');
    return qn_jcp_alpha(cp) || category(cp) == UTF8PROC_CATEGORY_NL;
}

bool qn_jcp_name(unsigned cp)
{
    if (cp < 0x80) return qn_jcp_name_start(cp) || (cp >= '0' && cp <= '9');
    utf8proc_category_t c = category(cp);
    return qn_jcp_name_start(cp) || c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC ||
           c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_PC;
}

/* Letters whose upper, title or folded form is more than one code point (Unicode SpecialCasing and
 * CaseFolding, full mappings). Zero ends a mapping; NULL text means "as the simple mapping". */
typedef struct special {
    unsigned cp;
    const char *upper, *title, *fold;
} special;

static const special specials[] = {
    {0xDF, "SS", "Ss", "ss"},
    {0x130, NULL, NULL, "i\u0307"},
    {0x149, "\u02BCN", "\u02BCN", "\u02BCn"},
    {0x1F0, "J\u030C", "J\u030C", "j\u030C"},
    {0x390, "\u0399\u0308\u0301", "\u0399\u0308\u0301", "\u03B9\u0308\u0301"},
    {0x3B0, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301", "\u03C5\u0308\u0301"},
    {0x587, "\u0535\u0552", "\u0535\u0582", "\u0565\u0582"},
    {0x1E96, "H\u0331", "H\u0331", "h\u0331"},
    {0x1E97, "T\u0308", "T\u0308", "t\u0308"},
    {0x1E98, "W\u030A", "W\u030A", "w\u030A"},
    {0x1E99, "Y\u030A", "Y\u030A", "y\u030A"},
    {0x1E9A, "A\u02BE", "A\u02BE", "a\u02BE"},
    {0x1E9E, NULL, NULL, "ss"},
    {0xFB00, "FF", "Ff", "ff"},
    {0xFB01, "FI", "Fi", "fi"},
    {0xFB02, "FL", "Fl", "fl"},
    {0xFB03, "FFI", "Ffi", "ffi"},
    {0xFB04, "FFL", "Ffl", "ffl"},
    {0xFB05, "ST", "St", "st"},
    {0xFB06, "ST", "St", "st"},
};

void qn_jput_cp_case(qn_buf *b, unsigned cp, qn_jcase to)
{
    if (cp < 0x80) {
        bool up = to == QN_J_UPPER || to == QN_J_TITLE;
        if (up && cp >= 'a' && cp <= 'z') cp -= 32;
        if (!up && cp >= 'A' && cp <= 'Z') cp += 32;
        qn_buf_putc(b, (char)cp);
        return;
    }
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
        if (specials[i].cp != cp) continue;
        const char *text = to == QN_J_UPPER   ? specials[i].upper
                           : to == QN_J_TITLE ? specials[i].title
                           : to == QN_J_FOLD  ? specials[i].fold
                                              : NULL;
        if (!text) break;
        qn_buf_puts(b, text);
        return;
    }
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    if (to == QN_J_LOWER && cp == 0x130) {
        qn_buf_puts(b, "i\u0307");
        return;
    }
    if (to == QN_J_FOLD && cp == 0xB5) c = 0x3BC;
    else if (to == QN_J_FOLD && cp == 0x3C2) c = 0x3C3;
    else if (to == QN_J_UPPER) c = utf8proc_toupper(c);
    else if (to == QN_J_TITLE) c = utf8proc_totitle(c);
    else c = utf8proc_tolower(c);
    qn_buf_put_utf8(b, (unsigned)c);
}

/* Python's "cased" and "case ignorable" classes, as far as the final sigma needs them. */
static bool cased(unsigned cp) { return qn_jcp_lower(cp) || qn_jcp_upper(cp) || qn_jcp_title(cp); }

static bool ignorable(unsigned cp)
{
    if (cp == '\'' || cp == '.' || cp == ':' || cp == '^' || cp == '`' || cp == 0xB7 ||
        cp == 0x2019)
        return true;
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK;
}

/* No cased letter follows, apart from what does not count. */
static bool word_ends(const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned cp;
        i += qn_utf8_decode(p + i, n - i, &cp);
        if (!ignorable(cp)) return !cased(cp);
    }
    return true;
}

void qn_jput_case(qn_buf *b, const char *p, size_t n, qn_jcase to)
{
    bool in_word = false, after_cased = false; /* after_cased: for the final sigma */
    for (size_t i = 0; i < n;) {
        unsigned cp;
        size_t k = qn_utf8_decode(p + i, n - i, &cp);
        qn_jcase how = to;
        if (to == QN_J_TITLE) how = in_word ? QN_J_LOWER : QN_J_TITLE;
        in_word = cased(cp);
        bool sigma = cp == 0x3A3 && how == QN_J_LOWER && after_cased;
        if (sigma && word_ends(p + i + k, n - i - k)) qn_buf_put_utf8(b, 0x3C2);
        else qn_jput_cp_case(b, cp, how);
        if (!ignorable(cp)) after_cased = in_word;
        i += k;
    }
}

static bool strips(unsigned cp, const char *chars, size_t m)
{
    if (!chars) return qn_jcp_space(cp);
    for (size_t i = 0; i < m;) {
        unsigned c;
        i += qn_utf8_decode(chars + i, m - i, &c);
        if (c == cp) return true;
    }
    return false;
}

size_t qn_jstrip_left(const char *p, size_t n, const char *chars, size_t m)
{
    size_t i = 0;
    while (i < n) {
        unsigned cp;
        size_t k = qn_utf8_decode(p + i, n - i, &cp);
        if (!strips(cp, chars, m)) break;
        i += k;
    }
    return i;
}

size_t qn_jstrip_right(const char *p, size_t n, const char *chars, size_t m)
{
    size_t end = n;
    while (end > 0) {
        size_t start = end - 1;
        while (start > 0 && ((unsigned char)p[start] & 0xC0) == 0x80 && end - start < 4) start--;
        unsigned cp;
        size_t k = qn_utf8_decode(p + start, end - start, &cp);
        if (k != end - start || !strips(cp, chars, m)) break;
        end = start;
    }
    return n - end;
}
