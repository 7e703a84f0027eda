/* jinja_loop.h - the `loop` object of a running for statement. Threads: its render's. */
#ifndef QN_TEXT_JINJA_LOOP_H
#define QN_TEXT_JINJA_LOOP_H

#include "text/jinja_run.h"

struct qn_jloop {
    qn_jval iterable;
    qn_jiter it;
    int64_t index0;   /* -1 before the first item */
    int64_t length;   /* -1: not counted yet */
    qn_jval current, before;
    qn_jval after;    /* an item that was looked ahead */
    bool has_after, at_end;
    qn_jval changed;  /* last arguments of loop.changed, QN_J_MISSING before */
    int64_t depth0;
    const qn_jnode *node; /* recursive loops: what to run again, and where */
    qn_jframe *frame;
};

/* Start over `items`. Errors: not iterable: recorded, false. */
bool qn_jloop_start(qn_jrun *run, qn_jloop *l, qn_jval items);
/* The next item. Errors: those of generators; false at the end. */
bool qn_jloop_next(qn_jrun *run, qn_jloop *l, qn_jval *out);

#endif
