/* reply.h - a reply's text: tokens in, whole UTF-8 out, cut at stop strings.
 *
 * Text is held back while it is an incomplete character or could be the start of a stop string
 * (stops.h): matching is on the text, across token boundaries. As in mlx-lm, special tokens give no text and
 * one leading space of the whole reply is dropped.
 * Threads: one thread at a time.
 */
#ifndef QN_ENGINE_REPLY_H
#define QN_ENGINE_REPLY_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "engine/stops.h"
#include "text/detok.h"
#include "text/tokenizer.h"

typedef struct qn_reply qn_reply;

/* Start a reply. stops[n_stops] are copied; empty ones are ignored. `tok` is borrowed until
 * qn_reply_free. Errors: QN_LIMIT (too many, too long: names the limit), QN_NOMEM. */
qn_code qn_reply_new(qn_reply **out, const qn_tokenizer *tok, const char *const *stops,
                     size_t n_stops, qn_err *err);

/* NULL is allowed (no failure). */
void qn_reply_free(qn_reply *r);

/* Add a token and append the text that is now certain to `out`. Returns true once a stop string was
 * met; later calls append nothing. Errors: out->failed. */
bool qn_reply_push(qn_reply *r, uint32_t token, qn_buf *out);

/* The tokens are over: append what was held back, up to a stop string that the last held character
 * completes. Returns true if a stop string was met, now or before. Errors: out->failed. */
bool qn_reply_finish(qn_reply *r, qn_buf *out);

/* The stop string that was met, borrowed until qn_reply_free; NULL if none was (no failure). */
const char *qn_reply_stop(const qn_reply *r);

#endif
