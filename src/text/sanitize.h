/* sanitize.h - text that people wrote never becomes a control token.
 *
 * A chat template writes its control tokens (<|im_start|>, ...) as text, so a message that spells one
 * would become it. A sanitizer puts private marks around every control token in what goes into the
 * template (qn_sanitizer_mark); behind the template, marked tokens are encoded as plain text
 * (qn_sanitizer_encode). The same as transformers' apply_chat_template with
 * sanitize_control_tokens=True, which decides what a control token is: an added token that is
 * special, or that the template itself writes and that is not white space only.
 * The marks are U+F0000 and U+F0001; those that a text has itself are dropped.
 * Ownership: a sanitizer borrows its tokenizer, which must outlive it. Threads: any, at once.
 */
#ifndef QN_TEXT_SANITIZE_H
#define QN_TEXT_SANITIZE_H

#include <jansson.h>

#include "text/template.h"
#include "text/tokenizer.h"

typedef struct qn_sanitizer qn_sanitizer;

/* Make a sanitizer for a model's tokenizer and template; the caller frees it.
 * Errors: QN_UNSUPPORTED (no chat template: then no control token is written by one), QN_NOMEM. */
qn_code qn_sanitizer_new(qn_sanitizer **out, const qn_tokenizer *t, const qn_chat_template *ct,
                         qn_err *err);

/* Free; NULL is allowed (no failure). */
void qn_sanitizer_free(qn_sanitizer *s);

/* A copy of the value with every control token in its strings marked; names of members stay as they
 * are. A new reference. Errors: NULL without memory. */
json_t *qn_sanitizer_mark(const qn_sanitizer *s, const json_t *value);

/* True if a rendered text [n bytes] has marks (no failure). */
bool qn_sanitizer_is_marked(const char *text, size_t n);

/* Append the ids of a rendered text [n bytes], without the post-processor. A mark that the template
 * separated from its token is dropped, but nothing on both sides of it joins.
 * Errors: QN_INVALID (the tokenizer makes a marked control token of plain text too), those of
 * qn_tokenizer_encode. */
qn_code qn_sanitizer_encode(const qn_sanitizer *s, const char *text, size_t n, qn_ids *out,
                            qn_err *err);

#endif
