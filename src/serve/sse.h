/* sse.h - server-sent events as bytes: one-line JSON behind "data: ", LF only, a blank line behind
 * every frame.
 *
 * Threads: one thread at a time per buffer.
 */
#ifndef QN_SERVE_SSE_H
#define QN_SERVE_SSE_H

#include <jansson.h>

#include "core/buf.h"

/* A text [1] to be replaced by qn_sse_fill: no other text becomes the same JSON. */
#define QN_SSE_HOLE "\0"

/* Append "data: JSON". Takes the tree. Errors: out->failed. */
void qn_sse_data(qn_buf *out, json_t *tree);

/* Append a frame that was made once by qn_sse_data, with `text` [n] as the value of every string
 * that is a NUL in it (QN_SSE_HOLE): frames that differ in one text are made many times faster so.
 * Errors: out->failed. */
void qn_sse_fill(qn_buf *out, const qn_buf *frame, const char *text, size_t n);

/* Append "event: TYPE" and "data: JSON"; the type is the tree's member "type". Takes the tree.
 * Errors: out->failed. */
void qn_sse_event(qn_buf *out, json_t *tree);

/* Append "data: [DONE]", the end of an OpenAI stream. Errors: out->failed. */
void qn_sse_done(qn_buf *out);

/* Append a comment, ": TEXT", which clients skip; `fmt` gives one line. Errors: out->failed. */
__attribute__((format(printf, 2, 3)))
void qn_sse_comment(qn_buf *out, const char *fmt, ...);

/* Bytes of the first frame in data [n], its blank line included; n if no frame is complete (no
 * failure). */
size_t qn_sse_frame_bytes(const char *data, size_t n);

#endif
