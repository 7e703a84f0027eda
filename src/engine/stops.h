/* stops.h - stop strings: text in, the text that is not part of a stop string out.
 *
 * Text that could be the start of a stop string is held back; a stop string is never partly shown.
 * The result does not depend on how the text was cut into pieces: the stop string that is complete
 * first wins, the longest among those that end at the same byte.
 * Threads: one thread at a time.
 */
#ifndef QN_ENGINE_STOPS_H
#define QN_ENGINE_STOPS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

enum { QN_MAX_STOPS = 16, QN_MAX_STOP_BYTES = 256 };

typedef struct qn_stops qn_stops;

/* Copy texts[n]; empty ones are ignored. Errors: QN_LIMIT (too many, too long: names the limit),
 * QN_NOMEM. */
qn_code qn_stops_new(qn_stops **out, const char *const *texts, size_t n, qn_err *err);

/* NULL is allowed (no failure). */
void qn_stops_free(qn_stops *s);

/* Add text [n] and append what is now certain to `out`. Returns true once a stop string was met;
 * later calls append nothing. Errors: out->failed. */
bool qn_stops_push(qn_stops *s, const char *text, size_t n, qn_buf *out);

/* The text ends, or something that is no text follows: append what was held back. Returns true if a
 * stop string was met before. Errors: out->failed. */
bool qn_stops_flush(qn_stops *s, qn_buf *out);

/* The stop string that was met, borrowed until qn_stops_free; NULL if none was (no failure). */
const char *qn_stops_met(const qn_stops *s);

#endif
