/* pieces.h - from engine tokens to pieces of text for a protocol.
 *
 * Collects the whole text, the token count, and, when asked for, the samples for logprobs: a piece
 * carries the samples of all tokens since the last piece, so that held-back tokens go with the text
 * that they produced.
 * Threads: one thread at a time.
 */
#ifndef QN_SERVE_PIECES_H
#define QN_SERVE_PIECES_H

#include "engine/engine.h"
#include "engine/reply.h"

typedef struct qn_piece {
    const char *text;          /* whole UTF-8; may be empty in the last piece */
    size_t n;                  /* bytes */
    const qn_sample *samples;  /* [n_samples], NULL without logprobs */
    size_t n_samples;
} qn_piece;

typedef struct qn_pieces {
    qn_reply *reply;
    bool keep_samples;
    bool stopped;         /* a stop string was met: no token counts any more */
    bool failed;          /* out of memory */
    uint32_t n_tokens;    /* of the reply, with the end token and the one that completed a stop */
    qn_buf text;          /* everything so far */
    size_t n_given;       /* bytes of `text` already in pieces */
    qn_sample *samples;   /* [n_samples], all of them */
    size_t n_samples, cap_samples;
    size_t n_samples_given;
} qn_pieces;

/* Zeroed memory becomes a collector. Errors: those of qn_reply_new. */
qn_code qn_pieces_init(qn_pieces *p, const qn_tokenizer *tok, const char *const *stops,
                       size_t n_stops, bool keep_samples, qn_err *err);
void qn_pieces_release(qn_pieces *p);

/* Take one token event. Errors: p->failed. */
void qn_pieces_token(qn_pieces *p, const qn_event *ev);

/* The reply is over: release what was held back. Errors: p->failed. */
void qn_pieces_finish(qn_pieces *p);

/* Take the text that has come since the last piece; false if there is none. The pointers stay valid
 * until the next token (no failure). */
bool qn_pieces_next(qn_pieces *p, qn_piece *out);

/* Take the samples that no text carried: cut behind a stop string, or the end token. text is "" (no
 * failure). */
void qn_pieces_rest(qn_pieces *p, qn_piece *out);

#endif
