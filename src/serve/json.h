/* json.h - request bodies: foreign bytes to a JSON tree, and small helpers over trees.
 *
 * The rules of the wire: UTF-8 only, nesting up to QN_JSON_DEPTH, the last of duplicate keys wins,
 * integers exact to 64 bits and larger ones as doubles, lone surrogate escapes become U+FFFD.
 * Threads: any; a tree belongs to one thread at a time.
 */
#ifndef QN_SERVE_JSON_H
#define QN_SERVE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

enum { QN_JSON_DEPTH = 512 };

/* Parse n bytes into *out, which must become an object; the caller gives it back with json_decref.
 * A "seed" between 2^63 and 2^64-1 is stored as its two's complement. On failure *out is NULL.
 * Errors: QN_FORMAT with a sentence that begins "invalid JSON body" or names the wrong type. */
qn_code qn_json_parse(json_t **out, const char *body, size_t n, qn_err *err);

/* Read text [n] as any JSON value by the same rules, with control characters allowed in strings, as
 * models write them. The caller owns the result. Errors: NULL (not JSON, too deep, without
 * memory). */
json_t *qn_json_value(const char *text, size_t n);

/* The member `key`, or NULL when it is absent or null: the two mean the same on every field (no
 * failure). Borrowed from the object. */
json_t *qn_json_get(const json_t *object, const char *key);

/* True if v is an integer or a double without fraction that fits 64 bits (no failure). */
bool qn_json_int(const json_t *v, json_int_t *out);

/* Append the tree on one line, without spaces. Errors: out->failed. */
void qn_json_write(qn_buf *out, const json_t *tree);

/* Set key to n bytes of valid UTF-8. Errors: the member stays absent without memory. */
void qn_json_put_text(json_t *object, const char *key, const char *text, size_t n);

/* A copy in which every string that begins with "data:" is cut to that, for logs. Errors: NULL
 * without memory. */
json_t *qn_json_without_data(const json_t *tree);

/* A float as the double with the same short decimal form, so that 0.7 is written as 0.7. Errors:
 * NULL without memory. */
json_t *qn_json_float(float v);

#endif
