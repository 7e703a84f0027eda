/* boundary.h - how much of a chat prompt the next turn's prompt will begin with.
 *
 * A prompt ends in a generation primer ("<|im_start|>assistant\n<think>\n"), and the next turn shows the
 * reply in another form: without the reasoning, or with an empty one. What both begin with can be
 * reused, the rest (the tail) cannot. It is found by rendering what may come next; since the tail's
 * length depends on little more than the template and its variables, it is remembered.
 * Ownership: a qn_boundary is plain memory, zeroed at first; one for each template and tokenizer.
 * Threads: one thread at a time.
 */
#ifndef QN_TEXT_BOUNDARY_H
#define QN_TEXT_BOUNDARY_H

#include "text/chat.h"

enum {
    QN_TAIL_MAX = 64,   /* tokens; behind a longer one nothing is worth a stop */
    QN_TAILS_KNOWN = 32 /* remembered, the oldest is replaced */
};

typedef struct qn_boundary {
    struct {
        uint64_t key;
        uint8_t tail;      /* tokens, or QN_TAIL_MAX + 1: no boundary */
    } known[QN_TAILS_KNOWN];
    uint32_t n, next;
    uint64_t n_probed;     /* prompts for which something had to be rendered */
} qn_boundary;

/* A rendered prompt and what it was rendered from, all borrowed: as for qn_chat_render_marked, with
 * add_generation_prompt. */
typedef struct qn_chat_turn {
    qn_encoder *encoder;
    const qn_chat_template *chat;
    const qn_sanitizer *sanitizer; /* or NULL */
    const json_t *messages, *tools, *vars; /* the last two may be NULL */
    const qn_buf *text;
    const qn_ids *ids;
} qn_chat_turn;

/* The number of tokens that this prompt and the next turn's have in common; 0: not known (no
 * failure: a template that refuses what may come next gives 0). */
uint32_t qn_boundary_find(qn_boundary *b, const qn_chat_turn *t);

#endif
