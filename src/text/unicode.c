/* unicode.c - lookups in the generated category table. */
#include "text/unicode.h"

#include <ctype.h>
#include <string.h>

#include "text/unicode_data.inc"

enum { BLOCK_SHIFT = 7, BLOCK_MASK = 127 };

qn_ucat qn_ucat_of(unsigned cp)
{
    if (cp > 0x10FFFF) return QN_CN;
    return (qn_ucat)cat_blocks[((unsigned)cat_index[cp >> BLOCK_SHIFT] << BLOCK_SHIFT) + (cp & BLOCK_MASK)];
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
    const unsigned mask = QN_U_LETTER | QN_U_MARK | QN_UBIT(QN_ND) | QN_UBIT(QN_NL) | QN_UBIT(QN_PC);
    if (qn_ucat_in(cp, mask)) return true;
    if (cp == 0x200C || cp == 0x200D) return true; /* joiners */
    /* Symbols that Unicode calls alphabetic: circled and squared letters. */
    return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
           (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

bool qn_uchar_is_numeric(unsigned cp)
{
    /* The last two ranges are digits of Unicode 17, which the oracle's Digits already knows. */
    return qn_ucat_in(cp, QN_U_NUMBER) || (cp >= 0x11DE0 && cp <= 0x11DE9) || (cp >= 0x16FF4 && cp <= 0x16FF6);
}

bool qn_uchar_is_punct(unsigned cp)
{
    /* Punctuation that came after Unicode 8. */
    static const uint32_t later[][2] = {
        {0x61D, 0x61D}, {0x9FD, 0x9FD}, {0xA76, 0xA76}, {0xC77, 0xC77}, {0xC84, 0xC84},
        {0x1B4E, 0x1B4F}, {0x1B7D, 0x1B7F}, {0x2E43, 0x2E4F}, {0x2E52, 0x2E5D},
        {0x10D6E, 0x10D6E}, {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89},
        {0x113D4, 0x113D5}, {0x113D7, 0x113D8}, {0x1144B, 0x1144F}, {0x1145A, 0x1145B},
        {0x1145D, 0x1145D}, {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1183B, 0x1183B},
        {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46}, {0x11A9A, 0x11A9C},
        {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11BE1, 0x11BE1}, {0x11C41, 0x11C45},
        {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F}, {0x11FFF, 0x11FFF},
        {0x12FF1, 0x12FF2}, {0x16D6D, 0x16D6F}, {0x16E97, 0x16E9A}, {0x16FE2, 0x16FE2},
        {0x1E5FF, 0x1E5FF}, {0x1E95E, 0x1E95F},
    };
    if (cp < 0x80) return cp > ' ' && cp < 127 && !isalnum((int)cp);
    /* These two were punctuation then and are symbols now. */
    if (cp == 0x166D || cp == 0x111C9) return true;
    if (!qn_ucat_in(cp, QN_U_PUNCT)) return false;
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        if (cp >= later[i][0] && cp <= later[i][1]) return false;
    }
    return true;
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
