/* chat_tools.h - the tools of a chat request: which the model is shown, and which it may call.
 *
 * Ownership: qn_chat_tools holds references; release it.
 * Threads: one thread at a time.
 */
#ifndef QN_SERVE_CHAT_TOOLS_H
#define QN_SERVE_CHAT_TOOLS_H

#include <jansson.h>
#include <stdbool.h>

#include "serve/error.h"

typedef struct qn_chat_tools {
    json_t *given;     /* [{type: "function", function: ...}] as the request has them; NULL: none */
    json_t *shown;     /* the same for the template: every node of a schema has a type; NULL: none */
    bool is_forced;    /* tool_choice wants a call, or one tool's */
    bool one_call;     /* parallel_tool_calls is false */
} qn_chat_tools;

/* Read tools, tool_choice, parallel_tool_calls and the older functions, function_call. With
 * tool_choice "none" there are no tools. Returns false with *e filled. Errors: 400 with param. */
bool qn_chat_tools_read(qn_chat_tools *t, const json_t *body, qn_http_error *e);

/* Give every shown function without a description an empty one, for templates that need it. Returns
 * false if there was none (no failure). */
bool qn_chat_tools_describe(qn_chat_tools *t);

/* Drop the references (no failure). */
void qn_chat_tools_release(qn_chat_tools *t);

/* Give every node of a JSON schema a "type", because templates write it in capitals: from enum,
 * const, what it describes, its first branch with a type, else "string" (no failure). */
void qn_schema_fill_types(json_t *schema);

#endif
