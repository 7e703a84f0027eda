/* prompt.h - a prompt that grows: encoding a text anew from where it differs from the one before.
 *
 * A conversation sends its whole history each time. A qn_prompt keeps the last text and its ids;
 * the next text keeps the ids up to the last place that is safe (behind an added token, or inside a
 * long text before a word) and encodes the rest. The result is always that of qn_tokenizer_encode.
 * Ownership: a prompt borrows its tokenizer, which must outlive it, and owns its ids.
 * Threads: one thread at a time per object.
 */
#ifndef QN_TEXT_PROMPT_H
#define QN_TEXT_PROMPT_H

#include "text/tokenizer.h"

typedef struct qn_prompt qn_prompt;

/* Make an empty prompt; `flags` are QN_ENCODE_*. The caller frees it. Errors: QN_NOMEM. */
qn_code qn_prompt_new(qn_prompt **out, const qn_tokenizer *t, unsigned flags, qn_err *err);

/* Free; NULL is allowed (no failure). */
void qn_prompt_free(qn_prompt *p);

/* Encode text [n bytes]. *ids has the ids of the whole text and stays valid until the next call. On
 * failure the prompt is empty. Errors: those of qn_tokenizer_encode. */
qn_code qn_prompt_encode(qn_prompt *p, const char *text, size_t n, const qn_ids **ids, qn_err *err);

/* How many bytes of the last text were not encoded again (no failure). */
size_t qn_prompt_kept(const qn_prompt *p);

/* Bytes of the last text, of its common start with `text` [n bytes], and of all memory (no
 * failure). */
size_t qn_prompt_length(const qn_prompt *p);
size_t qn_prompt_common(const qn_prompt *p, const char *text, size_t n);
size_t qn_prompt_bytes(const qn_prompt *p);

#endif
