/* detok.h - streaming detokenizer: token ids in, text out, as they come.
 *
 * Output is byte exact: every piece is whole UTF-8 characters, and the pieces joined are what
 * qn_tokenizer_decode gives for all ids at once (minus one leading space with `trim`). Bytes that
 * cannot become a character come out as U+FFFD. One object serves one sequence; it borrows its
 * tokenizer, which must outlive it.
 * Threads: one thread at a time per object.
 */
#ifndef QN_TEXT_DETOK_H
#define QN_TEXT_DETOK_H

#include "text/tokenizer.h"

typedef struct qn_detok qn_detok;

enum {
    QN_DETOK_SKIP_SPECIAL = 1, /* special tokens give no text */
    QN_DETOK_TRIM = 2          /* drop one leading space of the whole text, as mlx-lm does */
};

enum { QN_DETOK_MAX_SHOWN = 32 };

/* Make a detokenizer. The caller frees it. Errors: QN_NOMEM. */
qn_code qn_detok_new(qn_detok **out, const qn_tokenizer *t, unsigned flags, qn_err *err);

/* Let these special tokens give their text in spite of QN_DETOK_SKIP_SPECIAL: the marks of tool
 * calls and thinking. ids [n] are copied; more than QN_DETOK_MAX_SHOWN are ignored (no failure). */
void qn_detok_show(qn_detok *d, const uint32_t *ids, size_t n);

/* Free; NULL is allowed (no failure). */
void qn_detok_free(qn_detok *d);

/* Forget everything, for the next sequence (no failure). */
void qn_detok_reset(qn_detok *d);

/* Take one id and append the text that is now certain to out; often nothing, never part of a
 * character. A token that is a single space is held until the next one. Ids without a token give no
 * text. Errors: QN_NOMEM. */
qn_code qn_detok_push(qn_detok *d, uint32_t id, qn_buf *out, qn_err *err);

/* End of the sequence: append everything still held; a cut character becomes U+FFFD. The object
 * then starts anew. Errors: QN_NOMEM. */
qn_code qn_detok_finish(qn_detok *d, qn_buf *out, qn_err *err);

#endif
