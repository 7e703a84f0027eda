/* messages.h - chat messages as clients send them, brought into the one form that templates read
 * (spec server 5).
 *
 * Threads: one thread at a time.
 */
#ifndef QN_SERVE_MESSAGES_H
#define QN_SERVE_MESSAGES_H

#include <jansson.h>
#include <stdbool.h>

#include "serve/error.h"

/* Normalise `messages` in place: roles, content to text, tool calls to objects, tool ids, reasoning
 * names. Returns false with *e filled: not an array, empty, a message without a role, media content
 * (the error names `model_id`). Errors: 400 with param "messages...". */
bool qn_messages_normalize(json_t *messages, const char *model_id, qn_http_error *e);

/* Join the system messages at the start into one, with a blank line between them, for templates
 * that take only one. Returns false if there were fewer than two (no failure). */
bool qn_messages_join_system(json_t *messages);

/* Empty the content of assistant messages that have thinking and tool calls, for templates that do
 * not take both. Returns false if there was none (no failure). */
bool qn_messages_drop_call_content(json_t *messages);

/* Replace ids of tool calls and of their results that are not nine letters and digits by such, the
 * same id by the same one, for templates that want them. Returns false if there was none (no
 * failure). */
bool qn_messages_shorten_ids(json_t *messages);

#endif
