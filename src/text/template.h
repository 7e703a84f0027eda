/* template.h - chat templates: from messages to the prompt's text.
 *
 * A qn_template is one compiled Jinja template; a qn_chat_template is what a model folder has: its
 * named templates, a built-in builder, or nothing (then a plain fallback is used).
 * Owns: templates own their source and tree until freed. A render owns nothing afterwards.
 * Threads: opening and freeing from one thread; rendering from any number of threads at once.
 *
 * The language is jinja2 3.1.6 as transformers sets it up (immutable sandbox, trim_blocks,
 * lstrip_blocks, loop controls, generation blocks). Integers have 64 bits: a larger one is an
 * error.
 */
#ifndef QN_TEXT_TEMPLATE_H
#define QN_TEXT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

typedef struct qn_template qn_template;
typedef struct qn_chat_template qn_chat_template;

/* Compile `size` bytes of source [size]. `name` is used in messages (borrowed for the call). On
 * failure *out is NULL.
 * Errors: QN_INVALID (syntax, with line and source line), QN_LIMIT (longer than 2 MiB), QN_NOMEM.
 */
qn_code qn_template_compile(qn_template **out, const char *source, size_t size, const char *name,
                            qn_err *err);

/* Render with the members of the JSON object `vars` as variables (messages, tools,
 * add_generation_prompt, bos_token, ...; NULL: none), appending to `out`. On failure nothing is
 * appended. Strings in vars are UTF-8.
 * Errors: QN_INVALID (the template raised an error: raise_exception's message alone, else the cause
 * with line and source line; also the limits on depth, steps, output and memory), QN_NOMEM. */
qn_code qn_template_render(const qn_template *t, const json_t *vars, qn_buf *out, qn_err *err);

/* Limit the work of a render: evaluated nodes and walked items, bytes of values; 0 keeps the
 * default (50 million, 256 MiB). Call it before the template is shared between threads (no
 * failure). */
void qn_template_set_limits(qn_template *t, int64_t steps, size_t memory_bytes);

/* Replace the clock of strftime_now for this template: seconds since 1970; NULL: the system's. Call
 * it before the template is shared between threads (no failure). */
void qn_template_set_clock(qn_template *t, int64_t (*clock)(void *arg), void *arg);

/* True if one of the template's own texts or string constants contains s [n bytes] (no failure). */
bool qn_template_writes(const qn_template *t, const char *s, size_t n);

/* Free; NULL is allowed (no failure). */
void qn_template_free(qn_template *t);

/* Find the chat template of a model folder, as transformers and mlx-lm do:
 *   chat_template.jinja and additional_chat_templates/NAME.jinja, else
 *   "chat_template" of tokenizer_config (a string, or a list of {name, template}), else that of
 *   chat_template.json;
 *   "chat_template_type" of tokenizer_config chooses a built-in builder instead (deepseek_v32).
 * tokenizer_config is the parsed tokenizer_config.json, NULL if there is none (borrowed for the
 * call). A folder without any template opens as the fallback (see qn_chat_template_kind).
 * A template that does not compile is no error here but at its first render, so that a model with a
 * broken one still opens. On failure *out is NULL.
 * Errors: QN_FORMAT (a file is not what it should be), QN_IO, QN_LIMIT, QN_UNSUPPORTED (an unknown
 * chat_template_type), QN_NOMEM. */
qn_code qn_chat_template_open(qn_chat_template **out, const char *model_dir,
                              const json_t *tokenizer_config, qn_err *err);

/* The same from a given source instead of the folder's, for --chat-template: it must
 * compile. Errors: QN_INVALID (syntax), QN_LIMIT, QN_NOMEM. */
qn_code qn_chat_template_from_source(qn_chat_template **out, const char *source, size_t size,
                                     const json_t *tokenizer_config, qn_err *err);

/* Render the prompt. vars: an object with at least "messages"; "tools" (null or absent: none)
 * chooses a template named tool_use; "add_generation_prompt" and every other member are passed on.
 * Special tokens of tokenizer_config (bos_token, eos_token, pad_token, unk_token, ...) are added
 * unless vars has them; "tools" and "documents" are null unless given; members of a message that
 * are null are left out, as transformers does. On failure nothing is appended.
 * Errors: those of qn_template_render; QN_INVALID if messages is missing. */
qn_code qn_chat_template_render(const qn_chat_template *ct, const json_t *vars, qn_buf *out,
                                qn_err *err);

typedef enum qn_chat_kind {
    QN_CHAT_JINJA,    /* the model's own template */
    QN_CHAT_DEEPSEEK, /* built-in deepseek_v32 */
    QN_CHAT_FALLBACK  /* no template: role prefixes as mlx-lm; encode with special tokens */
} qn_chat_kind;

/* What was found (no failure). */
qn_chat_kind qn_chat_template_kind(const qn_chat_template *ct);

/* True if the source of any of the templates contains the text: which variables and markers a
 * template knows is decided by looking for their names (no failure). */
bool qn_chat_template_mentions(const qn_chat_template *ct, const char *text);

/* The same, but only the texts and string constants of the templates that compile count, not names
 * or comments (no failure). */
bool qn_chat_template_writes(const qn_chat_template *ct, const char *s, size_t n);

/* The source of the template used with or without tools, for hashing; NULL if there is no source
 * (no failure). Kept until the template is freed. */
const char *qn_chat_template_source(const qn_chat_template *ct, bool tools);

/* Replace the clock for strftime_now, as qn_template_set_clock (no failure). */
void qn_chat_template_set_clock(qn_chat_template *ct, int64_t (*clock)(void *arg), void *arg);

/* Free; NULL is allowed (no failure). */
void qn_chat_template_free(qn_chat_template *ct);

#endif
