/* template_builders.h - prompts that are built without a Jinja template. Threads: any. */
#ifndef QN_TEXT_TEMPLATE_BUILDERS_H
#define QN_TEXT_TEMPLATE_BUILDERS_H

#include <jansson.h>

#include "core/buf.h"
#include "core/err.h"

/* mlx-lm's form for models without a template: role prefix, content, line end; then the assistant's
 * prefix. vars has "messages". Appends to out; nothing on failure. Errors: QN_INVALID, QN_NOMEM. */
qn_code qn_build_fallback(const json_t *vars, qn_buf *out, qn_err *err);

/* DeepSeek-V3.2's form. vars: messages, tools, add_generation_prompt, continue_final_message,
 * enable_thinking (or thinking_mode "chat"/"thinking"). Appends to out; nothing on failure.
 * Errors: QN_INVALID (a message that the form has no place for), QN_NOMEM. */
qn_code qn_build_deepseek_v32(const json_t *vars, qn_buf *out, qn_err *err);

#endif
