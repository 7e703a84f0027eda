/* structured.h - the fields that ask for structured output (spec server 10).
 *
 * There is no grammar engine: the reply is asked for in words, and a Warning header says so. That
 * goes for strict: true as well, which the official SDKs' parse() always sends.
 * Threads: one thread at a time.
 */
#ifndef QN_SERVE_STRUCTURED_H
#define QN_SERVE_STRUCTURED_H

#include <jansson.h>
#include <stdbool.h>

#include "core/buf.h"
#include "serve/error.h"

/* Read response_format, guided_*, structured_outputs, grammar and json_schema. Where they ask for
 * anything but text, *asked is true and `words` gets the sentence that asks the model for it.
 * Returns false with *e filled. Errors: 400 with param; code unsupported_schema where a schema is none. */
bool qn_structured_read(const json_t *body, bool *asked, qn_buf *words, qn_http_error *e);

/* The Warning header for it (no failure). */
extern const char qn_structured_warning[];

#endif
