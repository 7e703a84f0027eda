/* responses_request.h - the body of POST /v1/responses as that of a chat completion.
 *
 * Threads: any; a tree belongs to one thread at a time.
 */
#ifndef QN_SERVE_RESPONSES_REQUEST_H
#define QN_SERVE_RESPONSES_REQUEST_H

#include <jansson.h>
#include <stdbool.h>

#include "serve/error.h"

/* What goes before a request's own input. */
typedef struct qn_responses_past {
    const json_t *items;        /* array of items of earlier turns; NULL: none */
    const json_t *instructions; /* for a request without its own; NULL: none */
    bool keep_reasoning;        /* reasoning items become the reasoning of the next message */
} qn_responses_past;

/* Make the chat form of a Responses request (spec server 14). *out is the caller's; on failure it is
 * NULL and the result false with *e filled. Errors: 400 with the field as the parameter, 500
 * without memory. */
bool qn_responses_to_chat(const json_t *body, const qn_responses_past *past, json_t **out,
                          qn_http_error *e);

/* The input as a list of items: a string becomes a user message. A new array that shares the items;
 * NULL if the body has no usable input. Errors: NULL only. */
json_t *qn_responses_input_items(const json_t *body);

/* True if the request declares a custom tool of this name (no failure). */
bool qn_responses_is_custom_tool(const json_t *body, const char *name);

#endif
