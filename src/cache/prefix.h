/* prefix.h - the prefix cache: what earlier sequences stored, found again by their tokens.
 *
 * A tree whose nodes are blocks: a path from the root spells a token sequence, each node one block
 * of it (a leaf may hold the beginning of one). Sequences of different namespaces (adapters, media)
 * share nothing but the root. Nodes own a reference to their block in every KV group; live rows
 * share the same blocks. A row that starts with known tokens takes the blocks along the path, and
 * of the block where it leaves the path as many tokens as agree (that block is copied before the
 * row writes into it). Rows publish blocks as they become full, and their last, partial block when
 * they end.
 *
 * Recurrent layers keep one state, not one per position, so with them a prefix is known only up to
 * a checkpoint: a copy of the state at one position, kept by the node of that position. Their
 * number is limited; the least recently used one makes room.
 *
 * Blocks that nobody else uses are evicted when room is needed or when they pass the limit in
 * bytes, least recently used leaves first, so the end of a conversation goes before its beginning.
 * Of a sliding group any block may go, oldest positions first, since only those inside the window
 * are needed to continue; a prefix counts as known only if every group can serve it.
 *
 * Continuing from a taken prefix gives the bits of a fresh prefill, because what is stored for a
 * position depends on the tokens up to it only. Threads: the engine thread. All memory is taken at
 * the start.
 */
#ifndef QN_CACHE_PREFIX_H
#define QN_CACHE_PREFIX_H

#include "cache/blocks.h"
#include "cache/states.h"

typedef struct qn_prefix qn_prefix;

/* Where a row stands in the tree. Zeroed: not yet anywhere. */
typedef struct qn_prefix_place {
    uint64_t space;    /* the row's namespace */
    uint32_t node;     /* the node of the row's last published block, locked; 0: the root */
    uint32_t n_blocks; /* blocks of the row that are published */
    bool active;       /* set by qn_prefix_take */
} qn_prefix_place;

typedef struct qn_prefix_opts {
    qn_states *states;        /* NULL: the model has no recurrent layers */
    uint32_t max_checkpoints; /* states that the tree holds at most, with `states` */
    uint64_t max_bytes;       /* of what only the tree holds; 0: whatever rows leave */
    uint32_t max_entries;     /* ends of sequences that no row stands on; 0: as many as there is room for */
} qn_prefix_opts;

/* A tree over the pools. Errors: QN_NOMEM. */
qn_code qn_prefix_new(qn_prefix **out, qn_blocks *b, const qn_prefix_opts *o, qn_err *err);
void qn_prefix_free(qn_prefix *p);

/* How many of the first `limit` tokens a row could take now. With `shared` also, per group, how
 * many of the blocks it would take are held by running rows, so that taking them costs no room
 * (no failure). */
uint32_t qn_prefix_known(const qn_prefix *p, uint64_t space, const uint32_t *tokens, uint32_t limit,
                         uint32_t shared[QN_MAX_KV_GROUPS]);

/* Fill the empty table with the longest known prefix of tokens, at most `limit` of them, set the
 * row's place, and with recurrent layers its state in `slot`. Returns how many tokens were taken
 * (no failure). */
uint32_t qn_prefix_take(qn_prefix *p, uint64_t space, const uint32_t *tokens, uint32_t limit,
                        qn_table *t, uint32_t slot, qn_prefix_place *at);

/* The row has stored the first `computed` of its tokens: publish its blocks that are full now, and
 * with `tail` the partial one as well. Full blocks that the tree has already take the place of the
 * row's own in its table (no failure; without room in the tree nothing is published). */
void qn_prefix_publish(qn_prefix *p, const uint32_t *tokens, uint32_t computed, bool tail,
                       qn_table *t, qn_prefix_place *at);

/* Publish with the tail, and keep the state in `slot`, which is the one after `computed` tokens: a
 * copy of it, or with `final` the slot itself, which the row must not write to any more (no
 * failure; without room nothing is kept). */
void qn_prefix_checkpoint(qn_prefix *p, const uint32_t *tokens, uint32_t computed, uint32_t slot,
                          bool final, qn_table *t, qn_prefix_place *at);

/* The row leaves the tree: its place is unlocked and zeroed (no failure). */
void qn_prefix_leave(qn_prefix *p, qn_prefix_place *at);

/* Evict until `group` has n free blocks. Returns false if it cannot (no failure otherwise). */
bool qn_prefix_make_room(qn_prefix *p, uint32_t group, uint32_t n);

/* Evict until what only the tree holds is within max_bytes and max_entries; to be called when rows have given
 * blocks back (no failure). */
void qn_prefix_trim(qn_prefix *p);

/* Evict everything that no row stands on. Returns whether there was anything (no failure). */
bool qn_prefix_flush(qn_prefix *p);

/* Ends of sequences, those of running rows included (no failure). */
uint32_t qn_prefix_entries(const qn_prefix *p);

/* Checkpoints held, and bytes of what only the tree holds, checkpoints included (no failure). */
uint32_t qn_prefix_checkpoints(const qn_prefix *p);
uint64_t qn_prefix_bytes(const qn_prefix *p);

/* Check the tree's own invariants and report its blocks to qn_blocks_audit_see; for tests and debug
 * builds (no failure; returns false when broken). */
bool qn_prefix_audit(const qn_prefix *p);

#endif
