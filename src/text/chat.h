/* chat.h - from a list of messages to the prompt's text, as the command line and the server ask for it.
 *
 * Threads: any, at once.
 */
#ifndef QN_TEXT_CHAT_H
#define QN_TEXT_CHAT_H

#include <jansson.h>

#include "text/encoder.h"
#include "text/sanitize.h"
#include "text/template.h"

/* Render `messages` (array) with `tools` (array or NULL) and the members of `args` (object or NULL)
 * as further variables, appending to out. add_generation_prompt asks for the start of an assistant
 * turn. continue_final: the text ends with the last message's content instead, so that the model goes on
 * with it (as transformers' continue_final_message). Both at once are refused.
 * Errors: those of qn_chat_template_render; QN_INVALID when the last message has no text to go on
 * with, or the template does not show it. */
qn_code qn_chat_render(const qn_chat_template *ct, const json_t *messages, const json_t *tools, const json_t *args,
                       bool add_generation_prompt, bool continue_final, qn_buf *out, qn_err *err);

/* The flags that qn_tokenizer_encode needs for the rendered text: a template writes its special tokens
 * itself, the fallback does not (no failure). */
unsigned qn_chat_encode_flags(const qn_chat_template *ct);

/* The same with every control token in messages, tools and args marked as text (text/sanitize.h); san
 * NULL: as qn_chat_render. Errors: those of qn_chat_render; QN_NOMEM. */
qn_code qn_chat_render_marked(const qn_sanitizer *san, const qn_chat_template *ct,
                              const json_t *messages, const json_t *tools, const json_t *args,
                              bool add_generation_prompt, bool continue_final, qn_buf *out,
                              qn_err *err);

/* Append the ids of a rendered prompt. san: what it was rendered with by
 * qn_chat_render_marked, else NULL. Errors: those of qn_encoder_encode and qn_sanitizer_encode. */
qn_code qn_chat_encode(qn_encoder *e, const qn_chat_template *ct, const qn_sanitizer *san,
                       const qn_buf *text, qn_ids *out, qn_err *err);

#endif
