/* finder.h - looking for several strings in text that comes in pieces.
 *
 * Text is handed on as soon as it cannot be part of one of the strings ("needles"). The result does
 * not depend on how the text was cut: the needle that is complete first wins, the longest among
 * those that end at the same byte.
 * Ownership: needles are borrowed until others are set. Zero-initialise to start; release.
 * Threads: one thread at a time.
 */
#ifndef QN_CORE_FINDER_H
#define QN_CORE_FINDER_H

#include "core/buf.h"

enum { QN_MAX_NEEDLES = 16, QN_NO_NEEDLE = -1 };

typedef struct qn_finder {
    const char *needles[QN_MAX_NEEDLES]; /* [n_needles], none empty */
    size_t sizes[QN_MAX_NEEDLES];        /* their bytes */
    size_t n_needles;
    qn_buf held;                         /* text not handed on yet, behind `n_used` bytes that were */
    size_t n_used, n_checked;            /* no needle ends in the first n_checked bytes behind them */
} qn_finder;

typedef struct qn_found {
    const char *text; /* [n] plain text, valid until the next call on the finder */
    size_t n;
    int needle;       /* what follows it: an index, or QN_NO_NEEDLE */
} qn_found;

/* Free and re-initialise (no failure). */
void qn_finder_release(qn_finder *f);

/* Look for these needles [n] from here on; empty ones and those beyond QN_MAX_NEEDLES are ignored,
 * but keep their index (no failure). */
void qn_finder_set(qn_finder *f, const char *const *needles, size_t n);

/* Add text [n]. Errors: f->held.failed. */
void qn_finder_push(qn_finder *f, const char *text, size_t n);

/* Take the next run of plain text with the needle behind it. Returns false if nothing is certain (no
 * failure). */
bool qn_finder_next(qn_finder *f, qn_found *out);

/* Take what is held, as plain text (no failure). */
void qn_finder_rest(qn_finder *f, qn_found *out);

#endif
