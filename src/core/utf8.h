/* utf8.h - decoding and checking UTF-8. Threads: any. */
#ifndef QN_CORE_UTF8_H
#define QN_CORE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Decode one code point from s[0..n), n >= 1. Returns the bytes consumed, 1 to 4; an invalid or cut
 * sequence gives *cp = 0xFFFD and consumes its maximal subpart (Unicode 3.9, the rule of Python's
 * "replace") (no failure). */
size_t qn_utf8_decode(const char *s, size_t n, unsigned *cp);

/* True if all n bytes are well-formed UTF-8 (no failure). */
bool qn_utf8_valid(const char *s, size_t n);

/* How many bytes at the end of s[0..n) are the start of a sequence that more bytes could complete:
 * 0 to 3 (no failure). */
size_t qn_utf8_tail(const char *s, size_t n);

#endif
