/* markers_impl.h - the inside of the marker machine, shared by markers.c and harmony.c only.
 *
 * Threads: one thread at a time.
 */
#ifndef QN_SERVE_MARKERS_IMPL_H
#define QN_SERVE_MARKERS_IMPL_H

#include "core/finder.h"
#include "serve/markers.h"

typedef enum marker_state {
    IN_TEXT = 0,
    IN_REASONING,
    IN_BLOCK,  /* of tool calls */
    IN_HEADER, /* harmony: before a message */
    IN_CALL    /* harmony: the arguments of a call */
} marker_state;

struct qn_markers {
    qn_output o;
    qn_parts *parts;
    qn_stops *stops;
    qn_finder finder;  /* looks for the markers of the present state */
    marker_state now;
    qn_buf block;      /* an open block with its start marker, or a header */
    unsigned i_tool;   /* of a block: which of the format's marks */
    bool in_quote;     /* of a block: inside the format's quotes */
    bool is_first;     /* harmony: the first header, which the prompt began */
    bool over;         /* nothing counts any more */
    qn_buf sure;       /* text behind the stop strings */
};

/* Give out text or reasoning of the present state, through the stop strings (no failure). */
void qn_markers_give(qn_markers *m, const char *text, size_t n);

/* The state's text ends here: no stop string goes on behind it (no failure). */
void qn_markers_break(qn_markers *m);

/* Log a call to a tool that the request does not have (no failure). */
void qn_markers_check_name(const qn_markers *m, const char *name);

/* ---- harmony.c ---- */

/* Begin in the header that the prompt began (no failure). */
void qn_harmony_begin(qn_markers *m);

/* Take one run of text and the needle behind it (no failure). */
void qn_harmony_take(qn_markers *m, const qn_found *found);

/* The reply ends (no failure). */
void qn_harmony_finish(qn_markers *m);

#endif
