/* blocks.h - who owns which KV block: free lists, reference counts, block tables of sequences.
 *
 * A pool (one per KV group) hands out block numbers; the bytes behind them are the device's. A
 * block may be shared by several owners; it may be written only while it has exactly one. A table
 * maps the positions of one sequence to blocks of every group; it changes at its tail and, for
 * windows, sliding or chunks, drops blocks at its front, or behind the head that the group keeps. Invariant:
 * free + referenced = total, per pool.
 * Threads: the engine thread.
 */
#ifndef QN_CACHE_BLOCKS_H
#define QN_CACHE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/kv.h"
#include "compute/ops.h"
#include "core/err.h"

typedef struct qn_blocks qn_blocks;

/* Blocks of n_blocks[g] per group of `spec` on `dev`, with the device's memory behind them.
 * Errors: QN_NOMEM and the device's. */
qn_code qn_blocks_new(qn_blocks **out, qn_device *dev, const qn_kv_spec *spec,
                      const uint32_t *n_blocks, qn_err *err);
void qn_blocks_free(qn_blocks *b);

/* The device's pools, for qn_ops.begin (no failure). */
qn_kv *qn_blocks_kv(const qn_blocks *b);

/* Free and total blocks of a group, and bytes of one (no failure). */
uint32_t qn_blocks_available(const qn_blocks *b, uint32_t group);
uint32_t qn_blocks_total(const qn_blocks *b, uint32_t group);

/* Blocks that were ever taken: free ones are taken again before untouched ones, so this is the most
 * that were in use at a time (no failure). */
uint32_t qn_blocks_touched(const qn_blocks *b, uint32_t group);
size_t qn_blocks_bytes(const qn_blocks *b, uint32_t group);

/* One more owner of a block; `cached` marks the prefix tree's reference. Dropping the last one
 * frees the block (no failure). */
void qn_blocks_ref(qn_blocks *b, uint32_t group, uint32_t id, bool cached);
void qn_blocks_unref(qn_blocks *b, uint32_t group, uint32_t id, bool cached);

/* Blocks that only the prefix tree holds: they can be had by evicting (no failure). */
uint32_t qn_blocks_cached(const qn_blocks *b, uint32_t group);

/* True if only the prefix tree holds this block (no failure). */
bool qn_blocks_is_cached(const qn_blocks *b, uint32_t group, uint32_t id);

/* True if rows let old blocks of this group go: windows, sliding or chunks (no failure). */
bool qn_blocks_slides(const qn_blocks *b, uint32_t group);

/* Tokens of a block, and the groups (no failure). */
uint32_t qn_blocks_tokens(const qn_blocks *b);
uint32_t qn_blocks_groups(const qn_blocks *b);

/* Blocks at the start that a group always keeps, and how many behind them a row at position next_pos
 * has let go of: see qn_table_slide (no failure). */
uint32_t qn_blocks_head(const qn_blocks *b, uint32_t group);
uint32_t qn_blocks_dropped(const qn_blocks *b, uint32_t group, uint32_t next_pos);

/* Check the invariant; for tests and debug builds (no failure; returns false when broken). */
bool qn_blocks_sound(const qn_blocks *b);

/* A stricter check: begin, report every reference that an owner holds, and end, which returns
 * whether they are all the references there are (no failure). */
void qn_blocks_audit_begin(qn_blocks *b);
void qn_blocks_audit_see(qn_blocks *b, uint32_t group, uint32_t id);
bool qn_blocks_audit_end(const qn_blocks *b);

typedef struct qn_table {
    uint32_t *ids[QN_MAX_KV_GROUPS];    /* [cap] block numbers, in the order of qn_kv_entry */
    uint32_t n[QN_MAX_KV_GROUPS];       /* entries in use */
    uint32_t dropped[QN_MAX_KV_GROUPS]; /* blocks behind the head that are gone */
    uint32_t cap;                       /* entries allocated per group */
} qn_table;

/* Memory for tables of up to max_positions. Errors: QN_NOMEM. */
qn_code qn_table_init(qn_table *t, const qn_blocks *b, uint32_t max_positions, qn_err *err);

/* Drop every reference and free the memory (no failure). */
void qn_table_release(qn_table *t, qn_blocks *b);

/* Drop every reference; the table is empty afterwards (no failure). */
void qn_table_clear(qn_table *t, qn_blocks *b);

/* Make positions [n_past, n_past+n_new) writable: allocate missing blocks at the tail, and copy the
 * tail block first if it is shared. All or nothing over groups. Returns false when a pool is
 * exhausted; nothing has changed then (no failure otherwise). */
bool qn_table_extend(qn_table *t, qn_blocks *b, uint32_t n_past, uint32_t n_new);

/* Free blocks of a group that qn_table_extend would take (no failure). */
uint32_t qn_table_need(const qn_table *t, const qn_blocks *b, uint32_t group, uint32_t n_past,
                       uint32_t n_new);

/* Let go of blocks that no future query can see: for sliding groups, those wholly below
 * next_pos - (window-1) - block_tokens (one block of slack for rollback); for chunks, those wholly below
 * the chunk of next_pos, which at its start are all (no failure). */
void qn_table_slide(qn_table *t, qn_blocks *b, uint32_t next_pos);

/* Most blocks of group g that a sequence holds at once when it grows to n positions with up to
 * chunk tokens per step (no failure). */
uint32_t qn_blocks_need(const qn_blocks *b, uint32_t group, uint32_t n_positions, uint32_t chunk);

/* Report the table's references to an audit (no failure). */
void qn_table_audit(const qn_table *t, qn_blocks *b);

/* Fill an item's block pointers from a table, which must not change until the step ends (no
 * failure). */
void qn_table_view(const qn_table *t, const qn_blocks *b, qn_item *item);

#endif
