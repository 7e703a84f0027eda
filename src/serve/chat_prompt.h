/* chat_prompt.h - from the body of a chat request to prompt ids and the form of the reply.
 *
 * Every chat surface (chat completions, Anthropic messages, Responses) brings its request into the
 * chat form, that of OpenAI's chat completions, and calls qn_chat_prepare. The form's fields: messages,
 * tools, tool_choice, parallel_tool_calls, functions, function_call, chat_template_kwargs,
 * reasoning_effort, thinking_budget, continue_final_message, response_format and its kin (structured.h), and the
 * fields of request.h.
 * Threads: the preparing thread; all but qn_chat_prepare any thread, on a body of its own.
 */
#ifndef QN_SERVE_CHAT_PROMPT_H
#define QN_SERVE_CHAT_PROMPT_H

#include "serve/exchange.h"

/* Append the prompt's text for the chat form `body`, which is normalised in place (spec server 5).
 * Returns false with *e filled. Errors: 400 with param, "prompt build failed: ..." for a template
 * that refuses. */
bool qn_chat_prompt_text(const qn_server *s, json_t *body, qn_buf *text, qn_http_error *e);

/* The same to ids: as many as the prompt_tokens of a real request. Errors: as above. */
bool qn_chat_prompt_ids(const qn_server *s, json_t *body, qn_ids *ids, qn_http_error *e);

/* The same as the reply of a token count: {"object", "input_tokens"}, the first where `object` is not
 * NULL. Takes `body`. Errors: NULL with *e filled, as above; 500 without memory. */
json_t *qn_chat_count(const qn_server *s, json_t *body, const char *object, qn_http_error *e);

/* Fill x->gen: fields, prompt, output, tools, warnings. A reference to `body`, which is normalised
 * in place, is kept as x->gen.chat. Returns false with *e filled. Errors: as above, and those of
 * qn_fields_read. */
bool qn_chat_prepare(qn_exchange *x, json_t *body, qn_http_error *e);

#endif
