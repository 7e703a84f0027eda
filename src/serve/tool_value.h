/* tool_value.h - values inside tool calls: JSON as models write it, Python literals, and what the
 * tools' schemas say about types. For the parsers of tool_*.c.
 *
 * Threads: any; a tree belongs to one thread at a time.
 */
#ifndef QN_SERVE_TOOL_VALUE_H
#define QN_SERVE_TOOL_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"

enum { QN_VALUE_DEPTH = 64 }; /* nesting of lists and dicts */

/* Read text [n] as JSON: any value, control characters in strings allowed, integers beyond 64 bits
 * as doubles. The caller owns the result. Errors: NULL (not JSON, deeper than QN_JSON_DEPTH,
 * without memory). */
json_t *qn_value_json(const char *text, size_t n);

/* Append a tree on one line without spaces, doubles in the shortest form that reads back the
 * same. Errors: out->failed. */
void qn_tool_write_args(qn_buf *out, const json_t *tree);

#endif
