/* jinja_text.h - Python's view of Unicode text: classes, case, printability.
 *
 * Threads: any. All strings are UTF-8; invalid bytes count as U+FFFD.
 */
#ifndef QN_TEXT_JINJA_TEXT_H
#define QN_TEXT_JINJA_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"

typedef enum qn_jcase { QN_J_UPPER, QN_J_LOWER, QN_J_TITLE, QN_J_FOLD } qn_jcase;

/* str.isspace, isprintable, isalpha, isdigit, isdecimal, isnumeric and the case classes of one code
 * point (no failure). */
bool qn_jcp_space(unsigned cp);
bool qn_jcp_printable(unsigned cp);
bool qn_jcp_alpha(unsigned cp);
bool qn_jcp_decimal(unsigned cp);
bool qn_jcp_digit(unsigned cp);
bool qn_jcp_numeric(unsigned cp);
bool qn_jcp_lower(unsigned cp);
bool qn_jcp_upper(unsigned cp);
bool qn_jcp_title(unsigned cp);
bool qn_jcp_name_start(unsigned cp);
bool qn_jcp_name(unsigned cp);

/* Append n bytes of text [n] in another case: upper, lower, title (a word starts after every
 * non-letter, as str.title) or folded. Errors: b->failed. */
void qn_jput_case(qn_buf *b, const char *p, size_t n, qn_jcase to);
/* Append one code point in another case, without context. Errors: b->failed. */
void qn_jput_cp_case(qn_buf *b, unsigned cp, qn_jcase to);

/* Bytes of leading / trailing text to strip: white space, or any code point of chars [m] if chars
 * is not NULL (no failure). */
size_t qn_jstrip_left(const char *p, size_t n, const char *chars, size_t m);
size_t qn_jstrip_right(const char *p, size_t n, const char *chars, size_t m);

#endif
