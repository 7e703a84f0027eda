/* unicode.c - lookups in the generated category table. */
#include "text/unicode.h"

#include <ctype.h>
#include <string.h>

#include "text/unicode_data.inc"
#include "text/unicode_scripts.inc"

enum { BLOCK_SHIFT = 7, BLOCK_MASK = 127 };

qn_ucat qn_ucat_of(unsigned cp)
{
    if (cp > 0x10FFFF) return QN_CN;
    return (qn_ucat)
        cat_blocks[((unsigned)cat_index[cp >> BLOCK_SHIFT] << BLOCK_SHIFT) + (cp & BLOCK_MASK)];
}

bool qn_ucat_in(unsigned cp, unsigned mask)
{
    return QN_UBIT(qn_ucat_of(cp)) & mask;
}

bool qn_uchar_is_space(unsigned cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || qn_ucat_in(cp, QN_U_SEPARATOR);
}

bool qn_uchar_is_word(unsigned cp)
{
    const unsigned mask =
        QN_U_LETTER | QN_U_MARK | QN_UBIT(QN_ND) | QN_UBIT(QN_NL) | QN_UBIT(QN_PC);
    if (qn_ucat_in(cp, mask)) return true;
    if (cp == 0x200C || cp == 0x200D) return true; /* joiners */
    /* Symbols that Unicode calls alphabetic: circled and squared letters. */
    return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
           (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

bool qn_uchar_is_numeric(unsigned cp)
{
    /* The last two ranges are digits of Unicode 17, which the oracle's Digits already knows. */
    return qn_ucat_in(cp, QN_U_NUMBER) || (cp >= 0x11DE0 && cp <= 0x11DE9) ||
           (cp >= 0x16FF4 && cp <= 0x16FF6);
}

static bool in_ranges(unsigned cp, const uint32_t *v, size_t n)
{
    size_t low = 0, high = n / 2; /* pairs (first, last), increasing */
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (cp > v[2 * mid + 1]) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return 2 * low < n && cp >= v[2 * low];
}

#define IN_RANGES(cp, table) in_ranges(cp, table, sizeof table / sizeof *table)

bool qn_uchar_is_punct(unsigned cp)
{
    if (cp < 0x80) return cp > ' ' && cp < 127 && !isalnum((int)cp);
    /* These two were punctuation then and are symbols now. */
    if (cp == 0x166D || cp == 0x111C9) return true;
    return qn_ucat_in(cp, QN_U_PUNCT) && !IN_RANGES(cp, late_punct);
}

unsigned qn_uchar_script(unsigned cp)
{
    size_t low = 0, high = sizeof script_runs / sizeof *script_runs; /* the last run from <= cp */
    while (high - low > 1) {
        size_t mid = (low + high) / 2;
        if (script_runs[mid].first <= cp) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return script_runs[low].script;
}

bool qn_uchar_is_late(unsigned cp)
{
    return cp >= 0x300 && IN_RANGES(cp, late_normal);
}

bool qn_uchar_is_accent(unsigned cp)
{
    if (cp == 0x1CF2 || cp == 0x1CF3) return true; /* marks then, letters now */
    return qn_ucat_in(cp, QN_U_MARK) && !IN_RANGES(cp, late_normal);
}

bool qn_uchar_is_bert_accent(unsigned cp)
{
    if (cp == 0x1734 || cp == 0x1171E) return true; /* non-spacing then */
    return qn_ucat_in(cp, QN_UBIT(QN_MN)) && !IN_RANGES(cp, late_bert_marks);
}

unsigned qn_ucat_parse(const char *name, size_t n)
{
    static const struct {
        const char *name;
        unsigned mask;
    } groups[] = {
        {"L", QN_U_LETTER}, {"M", QN_U_MARK},      {"N", QN_U_NUMBER}, {"P", QN_U_PUNCT},
        {"S", QN_U_SYMBOL}, {"Z", QN_U_SEPARATOR}, {"C", QN_U_OTHER},
    };
    static const char cats[] = "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCoCs";
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (n == 1 && groups[i].name[0] == name[0]) return groups[i].mask;
    }
    for (unsigned i = 0; n == 2 && i < QN_UCAT_COUNT; i++) {
        if (!memcmp(cats + 2 * i, name, 2)) return QN_UBIT(i);
    }
    return 0;
}

const uint32_t *qn_ucat_changed(size_t *n)
{
    *n = sizeof cat_since_14 / sizeof *cat_since_14 / 2;
    return cat_since_14;
}
