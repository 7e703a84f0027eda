/* pieces.h - from engine tokens to the pieces of a reply, for a protocol.
 *
 * Tokens become text (text/detok.h), the marker machine (markers.h) makes parts of it (parts.h),
 * and a piece is what came to the parts since the last piece. A reply that is not streamed is built
 * from the parts at its end; both ways give the same.
 *
 * The order of pieces: TEXT and REASONING as they come; a call is CALL, then ARGS (any number), then
 * CALL_END, with nothing of another part in between.
 *
 * A piece carries the samples of all tokens since the last piece, so that held-back tokens go with
 * the text that they produced.
 * Threads: one thread at a time.
 */
#ifndef QN_SERVE_PIECES_H
#define QN_SERVE_PIECES_H

#include "engine/engine.h"
#include "serve/markers.h"
#include "text/detok.h"

typedef enum qn_piece_kind {
    QN_PIECE_TEXT = 0,
    QN_PIECE_REASONING,
    QN_PIECE_CALL,    /* a tool call begins */
    QN_PIECE_ARGS,    /* more of the text of its arguments, a JSON object */
    QN_PIECE_CALL_END /* the call is complete */
} qn_piece_kind;

/* The kind of part that a piece belongs to (no failure). */
static inline qn_part_kind qn_piece_part(qn_piece_kind kind)
{
    if (kind == QN_PIECE_TEXT) return QN_PART_TEXT;
    return kind == QN_PIECE_REASONING ? QN_PART_REASONING : QN_PART_CALL;
}

typedef struct qn_piece {
    qn_piece_kind kind;
    const char *text;          /* TEXT, REASONING, ARGS: whole UTF-8, else "" */
    size_t n;                  /* bytes */
    uint32_t call_index;       /* CALL, ARGS, CALL_END: 0, 1, ... in the reply */
    const char *call_id;       /* the same three */
    const char *call_name;     /* the same three */
    const qn_sample *samples;  /* [n_samples], NULL without logprobs */
    size_t n_samples;
} qn_piece;

typedef struct qn_pieces {
    qn_detok *detok;
    qn_markers *markers;
    qn_parts parts;         /* the reply so far */
    qn_buf fresh;           /* text on its way from detok to markers */
    bool keep_samples;
    bool stopped;           /* a stop string or the one call: no token counts any more */
    bool failed;            /* out of memory */
    uint32_t n_tokens;      /* of the reply, with the end token and the one that completed a stop */
    uint32_t n_reasoning;   /* of these, how many came while the text was reasoning */
    qn_sample *samples;     /* [n_samples], all of them */
    size_t n_samples, cap_samples;
    size_t n_samples_given;
    size_t at_part, at_byte; /* the next piece begins here */
    bool at_args;            /* the CALL piece of this part was given */
} qn_pieces;

/* Zeroed memory becomes a collector of replies of the kind `o`. Errors: those of qn_markers_new,
 * qn_detok_new. */
qn_code qn_pieces_init(qn_pieces *p, const qn_tokenizer *tok, const qn_output *o,
                       const char *const *stops, size_t n_stops, bool keep_samples, qn_err *err);
void qn_pieces_release(qn_pieces *p);

/* Take one token event. Errors: p->failed. */
void qn_pieces_token(qn_pieces *p, const qn_event *ev);

/* The reply is over, cut by its length or by itself: release what was held back. Errors:
 * p->failed. */
void qn_pieces_finish(qn_pieces *p, bool was_cut);

/* Take the next piece; false if there is none. The pointers stay valid until the next token (no
 * failure). */
bool qn_pieces_next(qn_pieces *p, qn_piece *out);

/* Take the samples that no piece carried: cut behind a stop string, or the end token. text is "" (no
 * failure). */
void qn_pieces_rest(qn_pieces *p, qn_piece *out);

/* The stop string that ended the reply, or NULL (no failure). */
const char *qn_pieces_stop(const qn_pieces *p);

#endif
