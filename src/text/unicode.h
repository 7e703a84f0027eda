/* unicode.h - character properties as the tokenizers' regular expressions see them.
 *
 * General categories come from a generated table (unicode_data.inc) at the Unicode version of the
 * engine that the oracle uses, so that ids do not depend on the version of a system library.
 * Normal forms are utf8proc's work and not found here.
 * Threads: any.
 */
#ifndef QN_TEXT_UNICODE_H
#define QN_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* General categories, in the order of the generated table. */
typedef enum qn_ucat {
    QN_CN,
    QN_LU,
    QN_LL,
    QN_LT,
    QN_LM,
    QN_LO,
    QN_MN,
    QN_MC,
    QN_ME,
    QN_ND,
    QN_NL,
    QN_NO,
    QN_PC,
    QN_PD,
    QN_PS,
    QN_PE,
    QN_PI,
    QN_PF,
    QN_PO,
    QN_SM,
    QN_SC,
    QN_SK,
    QN_SO,
    QN_ZS,
    QN_ZL,
    QN_ZP,
    QN_CC,
    QN_CF,
    QN_CO,
    QN_CS,
    QN_UCAT_COUNT
} qn_ucat;

/* Sets of categories as bit masks. */
#define QN_UBIT(cat) (1u << (cat))
#define QN_U_LETTER \
    (QN_UBIT(QN_LU) | QN_UBIT(QN_LL) | QN_UBIT(QN_LT) | QN_UBIT(QN_LM) | QN_UBIT(QN_LO))
#define QN_U_MARK (QN_UBIT(QN_MN) | QN_UBIT(QN_MC) | QN_UBIT(QN_ME))
#define QN_U_NUMBER (QN_UBIT(QN_ND) | QN_UBIT(QN_NL) | QN_UBIT(QN_NO))
#define QN_U_PUNCT \
    (QN_UBIT(QN_PC) | QN_UBIT(QN_PD) | QN_UBIT(QN_PS) | QN_UBIT(QN_PE) | QN_UBIT(QN_PI) | \
     QN_UBIT(QN_PF) | QN_UBIT(QN_PO))
#define QN_U_SYMBOL (QN_UBIT(QN_SM) | QN_UBIT(QN_SC) | QN_UBIT(QN_SK) | QN_UBIT(QN_SO))
#define QN_U_SEPARATOR (QN_UBIT(QN_ZS) | QN_UBIT(QN_ZL) | QN_UBIT(QN_ZP))
#define QN_U_OTHER \
    (QN_UBIT(QN_CN) | QN_UBIT(QN_CC) | QN_UBIT(QN_CF) | QN_UBIT(QN_CO) | QN_UBIT(QN_CS))

/* The general category of a code point; values over 0x10FFFF are QN_CN (no failure). */
qn_ucat qn_ucat_of(unsigned cp);

/* True if the code point's category is in the mask (no failure). */
bool qn_ucat_in(unsigned cp, unsigned mask);

/* Unicode White_Space: what \s means in tokenizer patterns (no failure). */
bool qn_uchar_is_space(unsigned cp);

/* A word character of the single_word flag and the Whitespace splitter: alphabetic, mark, decimal
 * digit, connector or joiner (no failure). */
bool qn_uchar_is_word(unsigned cp);

/* Numeric for the Digits splitter: categories Nd, Nl, No (no failure). */
bool qn_uchar_is_numeric(unsigned cp);

/* Punctuation for the Punctuation and Bert splitters: ASCII punctuation and the P categories as of
 * Unicode 8, which is what the oracle's crate knows (no failure). */
bool qn_uchar_is_punct(unsigned cp);

enum { QN_SCRIPT_ANY = 255 };

/* The script of a code point as the UnicodeScripts splitter sees it, as a number that only tells
 * scripts apart: Hiragana, Katakana and Han are one, a space is QN_SCRIPT_ANY (no failure). */
unsigned qn_uchar_script(unsigned cp);

/* True for characters that came after the Unicode version of the oracle's normal forms, which leave
 * them alone (no failure). */
bool qn_uchar_is_late(unsigned cp);

/* What the StripAccents and the Bert normalizer remove: marks as their Unicode versions know them
 * (no failure). */
bool qn_uchar_is_accent(unsigned cp);
bool qn_uchar_is_bert_accent(unsigned cp);

/* Parse a property name of a pattern ("L", "Lu", "Nd", ...; case matters) into a category mask.
 * Returns 0 for a name that is not a general category (no failure otherwise). */
unsigned qn_ucat_parse(const char *name, size_t n);

/* The runs of code points whose category changed after Unicode 14: pairs (first, last). *n is the
 * number of pairs. The table lives as long as the program (no failure). */
const uint32_t *qn_ucat_changed(size_t *n);

#endif
