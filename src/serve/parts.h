/* parts.h - a reply as an ordered list of parts: text, reasoning, tool calls.
 *
 * The list only grows at its end: neighbours of one kind are one part, and a call stays the last
 * part until it is closed. What a stream sends is a cursor over it (pieces.h).
 * Ownership: the list owns everything in it.
 * Threads: one thread at a time.
 */
#ifndef QN_SERVE_PARTS_H
#define QN_SERVE_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "serve/ids.h"

typedef enum qn_part_kind { QN_PART_TEXT = 0, QN_PART_REASONING, QN_PART_CALL } qn_part_kind;

typedef struct qn_part {
    qn_part_kind kind;
    qn_buf text;         /* whole UTF-8; of a call: its arguments, the text of a JSON object */
    uint32_t call_index; /* of a call: 0, 1, ... in the reply */
    char *call_id;       /* of a call */
    char *call_name;     /* of a call */
    bool is_closed;      /* of a call: nothing more comes */
} qn_part;

typedef struct qn_parts {
    qn_part *list; /* [n] */
    size_t n, cap;
    uint32_t n_calls;
    bool failed;   /* out of memory */
} qn_parts;

/* Free the list and re-initialise (no failure). */
void qn_parts_release(qn_parts *p);

/* Append text or reasoning [n]; none for n = 0. Errors: p->failed. */
void qn_parts_text(qn_parts *p, qn_part_kind kind, const char *text, size_t n);

/* Begin a call. id NULL: one is made, in the short form if is_short. Errors: p->failed. */
void qn_parts_open_call(qn_parts *p, const char *name, const char *id, bool is_short);

/* Append to the arguments of the open call; close it. Errors: p->failed. */
void qn_parts_call_args(qn_parts *p, const char *text, size_t n);
void qn_parts_close_call(qn_parts *p);

/* Append to `out` the text of all parts of a kind. Errors: out->failed. */
void qn_parts_join(const qn_parts *p, qn_part_kind kind, qn_buf *out);

#endif
