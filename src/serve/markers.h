/* markers.h - the marker machine: a reply's text in, ordered parts out (spec server 6).
 *
 *     normal             --think start-->  reasoning
 *     reasoning          --think end---->  normal
 *     normal, reasoning  --tool start--->  tool
 *     tool               --tool end----->  normal
 *     normal             --silent mark-->  normal
 *
 * Text is given out as soon as it cannot be part of a marker or a stop string. The parts do not
 * depend on how the text was cut into pieces. Stop strings count in text and reasoning, never in
 * tool markup. A block that does not parse comes out as text.
 * Threads: one thread at a time.
 */
#ifndef QN_SERVE_MARKERS_H
#define QN_SERVE_MARKERS_H

#include "engine/stops.h"
#include "serve/parts.h"
#include "serve/tool_format.h"

/* What a reply may hold besides text; zero: nothing. Pointers are borrowed. */
typedef struct qn_output {
    const char *think_start, *think_end; /* NULL: the model does not mark its reasoning */
    bool starts_in_reasoning;            /* the prompt opened the block */
    const qn_tool_format *format;        /* of tool calls; NULL: they are not looked for */
    const char *const *silent;           /* marks in the text that give none, up to NULL; or NULL */
    const json_t *tools;                 /* the request's tools, or NULL */
    bool one_call;                       /* the reply ends behind its first call */
    bool keeps_space;                    /* the reply's first space is part of it: echo */
} qn_output;

typedef struct qn_markers qn_markers;

/* A machine that fills `parts`, which it borrows, as it borrows what `o` points to. The stop
 * strings [n_stops] are copied. Errors: those of qn_stops_new. */
qn_code qn_markers_new(qn_markers **out, const qn_output *o, const char *const *stops,
                       size_t n_stops, qn_parts *parts, qn_err *err);

/* NULL is allowed (no failure). */
void qn_markers_free(qn_markers *m);

/* Take text [n]. Returns true once the reply is over (a stop string, or its one call); later calls
 * do nothing. Errors: parts->failed. */
bool qn_markers_push(qn_markers *m, const char *text, size_t n);

/* No more text comes: give out what was held back. An open block of calls is parsed, or dropped if
 * the reply was cut by its length. Errors: parts->failed. */
void qn_markers_finish(qn_markers *m, bool was_cut);

/* True while the text is reasoning (no failure). */
bool qn_markers_in_reasoning(const qn_markers *m);

/* The stop string that ended the reply, or NULL (no failure). */
const char *qn_markers_stop(const qn_markers *m);

/* Collect the ids of the special tokens that the machine must see, for qn_detok_show; at most `cap`
 * (no failure). Returns how many. */
size_t qn_output_tokens(const qn_output *o, const qn_tokenizer *tok, uint32_t *ids, size_t cap);

#endif
