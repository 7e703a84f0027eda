/* anthropic_request.h - the body of POST /v1/messages as that of a chat completion.
 *
 * Threads: any; a tree belongs to one thread at a time.
 */
#ifndef QN_SERVE_ANTHROPIC_REQUEST_H
#define QN_SERVE_ANTHROPIC_REQUEST_H

#include <jansson.h>
#include <stdbool.h>

#include "serve/error.h"

/* Make the chat form of a messages request (spec server 13). keep_thinking: thinking blocks of
 * earlier turns become the reasoning of their messages instead of being dropped. *out is the
 * caller's; on failure it is NULL and the result false with *e filled. Errors: 400 with a path like
 * "messages.0.content.1" as the parameter; 500 without memory. */
bool qn_anthropic_to_chat(const json_t *body, bool keep_thinking, json_t **out, qn_http_error *e);

#endif
