/* prefix.h - the prefix cache: KV blocks of earlier sequences, found again by their tokens.
 *
 * A tree whose nodes are blocks: a path from the root spells a token sequence, each node one block
 * of it (a leaf may hold the beginning of one). Nodes own a reference to their block in every KV
 * group; live rows share the same blocks. A row that starts with known tokens takes the blocks
 * along the path, and of the block where it leaves the path as many tokens as agree (that block is
 * copied before the row writes into it). Rows publish blocks as they become full, and their last,
 * partial block when they end. Blocks that nobody else uses are evicted when room is needed, least
 * recently used leaves first. Of a sliding group any block may go, oldest positions first, since
 * only those inside the window are needed to continue; a prefix counts as known only if every group
 * can serve it.
 *
 * Continuing from a taken prefix gives the bits of a fresh prefill, because the KV of a position
 * depends on the tokens up to it only. Threads: the engine thread. All memory is taken at the
 * start.
 */
#ifndef QN_CACHE_PREFIX_H
#define QN_CACHE_PREFIX_H

#include "cache/blocks.h"

typedef struct qn_prefix qn_prefix;

/* Where a row stands in the tree. Zeroed: not yet anywhere. */
typedef struct qn_prefix_place {
    uint32_t node;     /* the node of the row's last published block, locked; 0: the root */
    uint32_t n_blocks; /* blocks of the row that are published */
    bool active;       /* set by qn_prefix_take */
} qn_prefix_place;

/* A tree over the pools, holding at most max_blocks blocks per group (0: as many as there are).
 * Errors: QN_NOMEM. */
qn_code qn_prefix_new(qn_prefix **out, qn_blocks *b, uint32_t max_blocks, qn_err *err);
void qn_prefix_free(qn_prefix *p);

/* Fill the empty table with the longest known prefix of tokens, at most `limit` of them, and set
 * the row's place. Returns how many tokens were taken (no failure). */
uint32_t qn_prefix_take(qn_prefix *p, const uint32_t *tokens, uint32_t limit, qn_table *t,
                        qn_prefix_place *at);

/* The row has stored the first `computed` of its tokens: publish its blocks that are full now, and
 * with `tail` the partial one as well (no failure; without room in the tree nothing is published).
 */
void qn_prefix_publish(qn_prefix *p, const uint32_t *tokens, uint32_t computed, bool tail,
                       const qn_table *t, qn_prefix_place *at);

/* The row leaves the tree: its place is unlocked and zeroed (no failure). */
void qn_prefix_leave(qn_prefix *p, qn_prefix_place *at);

/* Evict until `group` has n free blocks. Returns false if it cannot (no failure otherwise). */
bool qn_prefix_make_room(qn_prefix *p, uint32_t group, uint32_t n);

/* Evict everything that no row uses (no failure). */
void qn_prefix_flush(qn_prefix *p);

#endif
