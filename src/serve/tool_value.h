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
#include "core/err.h"
#include "serve/json.h"

enum { QN_VALUE_DEPTH = 64 }; /* nesting of lists, dicts and brackets */

/* ---- text ---- */

/* A run of foreign text, not NUL terminated. */
typedef struct qn_span {
    const char *s;
    size_t n;
} qn_span;

/* A span of a NUL terminated text (no failure). */
qn_span qn_span_of(const char *s);

/* Without white space at both ends (no failure). */
qn_span qn_span_trim(qn_span v);

/* True if the text begins with, or is, `what`; _ci ignores case (no failure). */
bool qn_span_begins(qn_span v, const char *what);
bool qn_span_is_ci(qn_span v, const char *what);

/* The text from byte n on (no failure). */
qn_span qn_span_from(qn_span v, size_t n);

/* Offset of the first `what`, or v.n (no failure). */
size_t qn_span_find(qn_span v, const char *what);

/* Cut *v behind the first `end`: *out is what came before it, *v what follows. Returns false and
 * changes nothing if there is none (no failure). */
bool qn_span_cut(qn_span *v, const char *end, qn_span *out);

/* ---- values ---- */

/* The text as a JSON string. Errors: NULL (not UTF-8, without memory). */
json_t *qn_value_text(qn_span v);

/* The whole text as a Python literal, as ast.literal_eval takes it: None True False, numbers,
 * strings with escapes, tuples, lists, sets (as arrays), dicts. Errors: NULL (not a literal, not
 * possible in JSON, deeper than QN_VALUE_DEPTH). */
json_t *qn_value_python(qn_span v);

/* Read one Python literal at the start of *v, in which true, false and null count too, and move *v
 * behind it. Errors: NULL. */
json_t *qn_value_python_one(qn_span *v);

/* JSON, else a Python literal, else NULL (no failure). */
json_t *qn_value_any(qn_span v);

/* The same, else the text itself. Errors: NULL (not UTF-8, without memory). */
json_t *qn_value_guess(qn_span v);

/* Bytes of the JSON value that the text begins with: to the end of its brackets or string; v.n if it
 * does not end (no failure). */
size_t qn_value_json_bytes(qn_span v);

/* Numbers as Python's int() and float() read them, with white space around; false if the text is
 * none, or not finite (no failure). */
bool qn_value_int(qn_span v, json_int_t *out);
bool qn_value_float(qn_span v, double *out);

/* A number: an integer where it has no fraction (no failure). */
json_t *qn_value_number(double v);

/* Append a tree on one line without spaces, doubles in the shortest form that reads back the
 * same. Errors: out->failed. */
void qn_tool_write_args(qn_buf *out, const json_t *tree);

/* ---- calls ---- */

/* Append {"name", "arguments"} to calls. Takes `args`. Errors: QN_FORMAT (an empty name, or one with
 * white space), QN_NOMEM. */
qn_code qn_tool_add_call(json_t *calls, qn_span name, json_t *args, qn_err *err);

/* Set args[key] to `value`, which is taken. Errors: QN_FORMAT (the key is not UTF-8, no value). */
qn_code qn_tool_set_arg(json_t *args, qn_span key, json_t *value, qn_err *err);

/* The schema of a parameter of the tool with this name; NULL if the request has none (no failure). */
const json_t *qn_tool_schema(const json_t *tools, qn_span name, qn_span param);

/* What a schema allows, as a set. */
enum {
    QN_TYPE_STRING = 1,
    QN_TYPE_INTEGER = 2,
    QN_TYPE_NUMBER = 4,
    QN_TYPE_BOOL = 8,
    QN_TYPE_OBJECT = 16,
    QN_TYPE_ARRAY = 32,
    QN_TYPE_NULL = 64
};

/* The types of a schema: its `type` (a name or a list), those of its branches (anyOf, oneOf,
 * allOf), and with_enum those of its enum values; 0 if it says nothing (no failure). */
unsigned qn_tool_types(const json_t *schema, bool with_enum);

/* The value that a text stands for among several types: the most special one that it fits, text
 * last; JSON, else text where none fits. null only where null is allowed or text is not.
 * Errors: NULL (not UTF-8, without memory). */
json_t *qn_value_typed(qn_span v, unsigned types);

#endif
