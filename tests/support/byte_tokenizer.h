/* byte_tokenizer.h - a tokenizer with one token per byte, and added tokens of the test's choice.
 */
#ifndef QN_TESTS_BYTE_TOKENIZER_H
#define QN_TESTS_BYTE_TOKENIZER_H

#include <stddef.h>

#include "text/tokenizer.h"

enum { QN_BYTE_TOKENS = 256 };

typedef struct qn_byte_token {
    const char *text;
    bool is_special;
} qn_byte_token;

/* The text of its tokenizer.json, freed with free (no failure; aborts on one). */
char *qn_byte_tokenizer_file(const qn_byte_token *added, size_t n);

/* The tokenizer: ids 0 to 255 are the bytes, QN_BYTE_TOKENS + i is added[i]. `config` is the text of
 * a tokenizer_config.json, or NULL (no failure; aborts on one). */
qn_tokenizer *qn_byte_tokenizer(const qn_byte_token *added, size_t n, const char *config);

#endif
