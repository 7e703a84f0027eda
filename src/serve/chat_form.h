/* chat_form.h - building the body of a chat completion out of another protocol's request.
 *
 * Every surface that is not the chat surface turns its body into this one form, so that fields,
 * messages, tools and templates are read in one place.
 * Ownership: a form is a new tree; parts of the request that need no change are shared with it.
 * Threads: one thread at a time per tree.
 */
#ifndef QN_SERVE_CHAT_FORM_H
#define QN_SERVE_CHAT_FORM_H

#include <jansson.h>

#include "core/buf.h"
#include "serve/error.h"
#include "text/template.h"

/* How a surface spells a member of the chat form. */
typedef struct qn_form_name {
    const char *chat, *own;
} qn_form_name;

/* Share the members of `body` that every surface spells alike (model, stream, the sampling fields,
 * seed, adapter, chat_template_kwargs) with `chat` (no failure). */
void qn_form_copy_common(json_t *chat, const json_t *body);

/* True if the template looks at the reasoning of earlier turns, and so decides itself which of it
 * the model sees (no failure). */
bool qn_form_keeps_reasoning(const qn_chat_template *chat);

/* Share one member under another name; absent or null: nothing happens (no failure). */
void qn_form_copy(json_t *chat, const char *to, const json_t *body, const char *from);

/* Let an error name the member that the client sent: the first of `names` (ended by a NULL) whose
 * chat name is e->param, up to an index in brackets, is put into param and the start of the message
 * (no failure). */
void qn_form_rename_error(qn_http_error *e, const qn_form_name *names);

/* Append {"role", "content"} to messages and return it, borrowed. Takes `content`; NULL is written
 * as "" (no failure: without memory the message is missing and NULL is returned). */
json_t *qn_form_add_message(json_t *messages, const char *role, json_t *content);

/* Append a call to the assistant message: {"id", "type", "function": {"name", "arguments"}}. Takes
 * `arguments`; borrows the others, `id` may be NULL (no failure). */
void qn_form_add_call(json_t *message, const json_t *id, const json_t *name, json_t *arguments);

/* Append {"type": "function", "function": {"name", "description", "parameters", "strict"}} to
 * tools, with copies, since schemas are completed in place later. NULL parts are left out (no
 * failure). */
void qn_form_add_tool(json_t *tools, const json_t *name, const json_t *description,
                      const json_t *parameters, const json_t *strict);

/* {"type": "function", "function": {"name"}}, which the caller owns. Errors: NULL without memory. */
json_t *qn_form_named_tool(const json_t *name);

/* {"type": "image_url", "image_url": {"url"}}, which the caller owns. Takes `url`. Errors: NULL
 * without memory. */
json_t *qn_form_image(json_t *url);

/* Append a string value and, before it, `gap` unless the text is empty. An empty value or another
 * type appends nothing. Errors: text->failed. */
void qn_form_join(qn_buf *text, const char *gap, const json_t *string);

/* The text as a JSON string, and free the text; the caller owns it. Errors: NULL without memory or
 * when the text failed. */
json_t *qn_form_take_text(qn_buf *text);

#endif
