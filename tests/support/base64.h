/* base64.h - numbers in golden files. */
#ifndef QN_TESTS_BASE64_H
#define QN_TESTS_BASE64_H

#include <stddef.h>
#include <stdint.h>

/* Decode text into out, which is large enough; gives the number of bytes (no failure). */
size_t qn_test_base64(const char *text, uint8_t *out);

#endif
