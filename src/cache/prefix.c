/* prefix.c - the tree of cached blocks and the checkpoints in it. */
#include "cache/prefix.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"

/* Node 0 is the root and holds no block. Nodes are numbered; 0 in a link means none. */
typedef struct node {
    uint64_t space; /* the namespace; only children of the root may differ in it */
    uint64_t used;  /* clock of the last use; never above the parent's */
    uint32_t older, newer;                    /* all nodes by their last use, in a ring with the root */
    uint32_t parent, n_children;
    uint32_t chain;                           /* next node of the same hash bucket, or free node */
    uint32_t n_tokens;                        /* a full block, or fewer in a leaf; 0: free */
    uint32_t n_locks;                         /* rows that stand here */
    uint32_t depth;                           /* blocks from the root to here, this one included */
    uint32_t first_checkpoint;
    uint32_t ids[QN_MAX_KV_GROUPS];           /* NO_BLOCK: evicted, sliding groups only */
} node;

/* The state of the recurrent layers after the first n_tokens of a node. Numbered from 1. */
typedef struct checkpoint {
    uint64_t used;
    uint32_t node, n_tokens, slot;
    uint32_t next; /* of the same node, or of the free list */
} checkpoint;

static const uint32_t NO_BLOCK = UINT32_MAX;

struct qn_prefix {
    qn_blocks *blocks;
    qn_states *states; /* NULL: every position can be continued from */
    uint32_t block_tokens, n_groups, n_nodes, n_buckets, max_checkpoints;
    uint64_t max_bytes, clock;
    node *nodes;       /* [n_nodes + 1] */
    uint32_t *tokens;  /* [n_nodes + 1, block_tokens] */
    uint32_t *buckets; /* [n_buckets] full nodes by (namespace, parent, tokens) */
    uint32_t *sorted;  /* [n_nodes] those in use, by parent, namespace and tokens: n_sorted */
    uint32_t n_sorted;
    checkpoint *checkpoints; /* [max_checkpoints + 1] */
    uint32_t free_node, free_checkpoint, n_checkpoints;
    uint32_t n_leaves, max_entries;
};

/* A place where a row can start: after the first n_tokens of a node, total of them from the root.
 * Node 0: from nothing. */
typedef struct point {
    uint32_t node, n_tokens, checkpoint, total;
} point;

static uint32_t *tokens_of(const qn_prefix *p, uint32_t n)
{
    return p->tokens + (size_t)n * p->block_tokens;
}

static qn_code allocate(qn_prefix *p, qn_err *err)
{
    p->n_buckets = 16;
    while (p->n_buckets < 2 * p->n_nodes) p->n_buckets *= 2;
    p->nodes = calloc((size_t)p->n_nodes + 1, sizeof *p->nodes);
    p->tokens = malloc(((size_t)p->n_nodes + 1) * p->block_tokens * sizeof *p->tokens);
    p->buckets = calloc(p->n_buckets, sizeof *p->buckets);
    p->sorted = malloc(((size_t)p->n_nodes + 1) * sizeof *p->sorted);
    p->checkpoints = calloc((size_t)p->max_checkpoints + 1, sizeof *p->checkpoints);
    if (!p->nodes || !p->tokens || !p->buckets || !p->sorted || !p->checkpoints)
        return qn_err_set(err, QN_NOMEM, "prefix cache: out of memory");
    for (uint32_t i = p->n_nodes; i > 0; i--) {
        p->nodes[i].chain = p->free_node;
        p->free_node = i;
    }
    for (uint32_t i = p->max_checkpoints; i > 0; i--) {
        p->checkpoints[i].next = p->free_checkpoint;
        p->free_checkpoint = i;
    }
    return QN_OK;
}

qn_code qn_prefix_new(qn_prefix **out, qn_blocks *b, const qn_prefix_opts *o, qn_err *err)
{
    *out = NULL;
    qn_prefix *p = calloc(1, sizeof *p);
    if (!p) return qn_err_set(err, QN_NOMEM, "prefix cache: out of memory");
    *p = (qn_prefix){.blocks = b,
                     .states = o->states,
                     .block_tokens = qn_blocks_tokens(b),
                     .n_groups = qn_blocks_groups(b),
                     .max_checkpoints = o->states ? o->max_checkpoints : 0,
                     .max_bytes = o->max_bytes,
                     .max_entries = o->max_entries};
    for (uint32_t g = 0; g < p->n_groups; g++) {
        uint32_t n = qn_blocks_total(b, g);
        if (n > p->n_nodes) p->n_nodes = n;
    }
    qn_code rc = allocate(p, err);
    if (rc) {
        qn_prefix_free(p);
        return rc;
    }
    *out = p;
    return QN_OK;
}

void qn_prefix_free(qn_prefix *p)
{
    if (!p) return;
    if (p->nodes && p->buckets && p->sorted && p->checkpoints) qn_prefix_flush(p);
    free(p->nodes);
    free(p->tokens);
    free(p->buckets);
    free(p->sorted);
    free(p->checkpoints);
    free(p);
}

/* ---- finding ---- */

static uint32_t *bucket_of(const qn_prefix *p, uint64_t space, uint32_t parent,
                           const uint32_t *tokens)
{
    return &p->buckets[qn_hash64(tokens, p->block_tokens * sizeof *tokens, space + parent) &
                       (p->n_buckets - 1)];
}

/* The full child of `parent` with these tokens, or 0. */
static uint32_t find_full(const qn_prefix *p, uint64_t space, uint32_t parent,
                          const uint32_t *tokens)
{
    for (uint32_t n = *bucket_of(p, space, parent, tokens); n; n = p->nodes[n].chain) {
        if (p->nodes[n].parent != parent || p->nodes[n].space != space) continue;
        if (!memcmp(tokens_of(p, n), tokens, p->block_tokens * sizeof *tokens)) return n;
    }
    return 0;
}

/* How many of the first `limit` tokens a node begins with. */
static uint32_t common(const qn_prefix *p, uint32_t n, const uint32_t *tokens, uint32_t limit)
{
    const uint32_t *have = tokens_of(p, n);
    uint32_t same = 0, most = p->nodes[n].n_tokens < limit ? p->nodes[n].n_tokens : limit;
    while (same < most && have[same] == tokens[same]) same++;
    return same;
}

/* Does node n stand before the place of a child of `parent` with these tokens? */
static bool is_before(const qn_prefix *p, uint32_t n, uint64_t space, uint32_t parent,
                      const uint32_t *tokens, uint32_t n_tokens)
{
    const node *x = &p->nodes[n];
    if (x->parent != parent) return x->parent < parent;
    if (x->space != space) return x->space < space;
    uint32_t same = common(p, n, tokens, n_tokens);
    if (same == x->n_tokens || same == n_tokens) return x->n_tokens < n_tokens;
    return tokens_of(p, n)[same] < tokens[same];
}

/* The index in `sorted` where a child of `parent` with these tokens is, or belongs. Children that
 * begin with these tokens follow; of the others, the one that shares the most is next to it. */
static uint32_t place_of(const qn_prefix *p, uint64_t space, uint32_t parent,
                         const uint32_t *tokens, uint32_t n_tokens)
{
    uint32_t low = 0, high = p->n_sorted;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (is_before(p, p->sorted[mid], space, parent, tokens, n_tokens)) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* The child of `parent` at an index of `sorted`, or 0. */
static uint32_t child_at(const qn_prefix *p, uint64_t space, uint32_t parent, uint32_t i)
{
    if (i >= p->n_sorted) return 0;
    const node *x = &p->nodes[p->sorted[i]];
    return x->parent == parent && x->space == space ? p->sorted[i] : 0;
}

/* The last checkpoint of a node within its first n tokens, or 0. */
static uint32_t last_checkpoint(const qn_prefix *p, uint32_t n_node, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t c = p->nodes[n_node].first_checkpoint; c; c = p->checkpoints[c].next) {
        if (p->checkpoints[c].n_tokens <= n &&
            (!best || p->checkpoints[c].n_tokens > p->checkpoints[best].n_tokens))
            best = c;
    }
    return best;
}

/* Take the point of node n, which shares `same` tokens, if it is further than `best`: where the
 * tokens part, or the last checkpoint before. Returns false if no node that shares fewer tokens can
 * be better. */
static bool improve(const qn_prefix *p, uint32_t n, uint32_t same, point *best)
{
    if (!n || same <= best->n_tokens) return false;
    uint32_t k = p->states ? last_checkpoint(p, n, same) : 0;
    uint32_t at = k ? p->checkpoints[k].n_tokens : p->states ? 0 : same;
    if (at > best->n_tokens) *best = (point){.node = n, .n_tokens = at, .checkpoint = k};
    return true;
}

/* The point furthest into one of the children of `parent`. */
static point find_point(const qn_prefix *p, uint64_t space, uint32_t parent, const uint32_t *tokens,
                        uint32_t limit)
{
    point best = {0};
    uint32_t middle = place_of(p, space, parent, tokens, limit), n;
    for (uint32_t i = middle;; i++) {
        n = child_at(p, space, parent, i);
        if (!improve(p, n, n ? common(p, n, tokens, limit) : 0, &best)) break;
    }
    for (uint32_t i = middle; i > 0; i--) {
        n = child_at(p, space, parent, i - 1);
        if (!improve(p, n, n ? common(p, n, tokens, limit) : 0, &best)) break;
    }
    best.total = best.node ? p->nodes[parent].depth * p->block_tokens + best.n_tokens : 0;
    return best;
}

/* The blocks of a group that a row needs to continue after `total` tokens: node n's, or that of the
 * nearest node above it; 0: no more. */
static uint32_t needed(const qn_prefix *p, uint32_t g, uint32_t total, uint32_t n)
{
    uint32_t head = qn_blocks_head(p->blocks, g), dropped = qn_blocks_dropped(p->blocks, g, total);
    while (n && !qn_kv_entry_held(p->nodes[n].depth - 1, head, dropped))
        n = head ? p->nodes[n].parent : 0;
    return n;
}

/* True if every group has the blocks that a row needs to continue from this point. */
static bool serves(const qn_prefix *p, const point *at)
{
    for (uint32_t g = 0; g < p->n_groups; g++) {
        for (uint32_t x = at->node; (x = needed(p, g, at->total, x)); x = p->nodes[x].parent) {
            if (p->nodes[x].ids[g] == NO_BLOCK) return false;
        }
    }
    return true;
}

/* The furthest point that a row with these tokens can start from. */
static point find(const qn_prefix *p, uint64_t space, const uint32_t *tokens, uint32_t limit)
{
    uint32_t n = 0, next;
    while ((p->nodes[n].depth + 1) * p->block_tokens <= limit &&
           (next = find_full(p, space, n, tokens + p->nodes[n].depth * p->block_tokens))) {
        n = next;
    }
    for (;; n = p->nodes[n].parent) {
        uint32_t start = p->nodes[n].depth * p->block_tokens;
        point at = find_point(p, space, n, tokens + start, limit - start);
        if (at.node && serves(p, &at)) return at;
        if (!n) return (point){0};
    }
}

uint32_t qn_prefix_known(const qn_prefix *p, uint64_t space, const uint32_t *tokens, uint32_t limit,
                         uint32_t shared[QN_MAX_KV_GROUPS])
{
    point at = find(p, space, tokens, limit);
    for (uint32_t g = 0; shared && g < p->n_groups; g++) {
        shared[g] = 0;
        /* A block that is taken in part will be copied: it costs room. */
        uint32_t x = at.n_tokens == p->block_tokens ? at.node : p->nodes[at.node].parent;
        for (; (x = needed(p, g, at.total, x)); x = p->nodes[x].parent)
            shared[g] += !qn_blocks_is_cached(p->blocks, g, p->nodes[x].ids[g]);
    }
    return at.total;
}

static void leave_ring(qn_prefix *p, uint32_t n)
{
    p->nodes[p->nodes[n].older].newer = p->nodes[n].newer;
    p->nodes[p->nodes[n].newer].older = p->nodes[n].older;
}

/* n becomes the newest. */
static void join_ring(qn_prefix *p, uint32_t n)
{
    uint32_t last = p->nodes[0].older;
    p->nodes[n].older = last;
    p->nodes[n].newer = 0;
    p->nodes[last].newer = p->nodes[0].older = n;
    p->nodes[n].used = p->clock;
}

static void touch(qn_prefix *p, uint32_t n)
{
    p->clock++;
    for (; n; n = p->nodes[n].parent) {
        leave_ring(p, n);
        join_ring(p, n);
    }
}

/* ---- checkpoints ---- */

static void drop_checkpoint(qn_prefix *p, uint32_t c)
{
    checkpoint *x = &p->checkpoints[c];
    uint32_t *at = &p->nodes[x->node].first_checkpoint;
    while (*at != c) at = &p->checkpoints[*at].next;
    *at = x->next;
    qn_states_unref(p->states, x->slot);
    *x = (checkpoint){.next = p->free_checkpoint};
    p->free_checkpoint = c;
    p->n_checkpoints--;
}

/* A free entry, the least recently used checkpoint's if need be; 0 if the tree may hold none. */
static uint32_t new_checkpoint(qn_prefix *p)
{
    uint32_t oldest = 0;
    for (uint32_t i = 1; !p->free_checkpoint && i <= p->max_checkpoints; i++) {
        if (!oldest || p->checkpoints[i].used < p->checkpoints[oldest].used) oldest = i;
    }
    if (oldest) drop_checkpoint(p, oldest);
    uint32_t c = p->free_checkpoint;
    if (c) {
        p->free_checkpoint = p->checkpoints[c].next;
        p->n_checkpoints++;
    }
    return c;
}

/* Keep the state in `slot`, or a copy of it, as the one after the first n tokens of a node. */
static void add_checkpoint(qn_prefix *p, uint32_t n_node, uint32_t n, uint32_t slot, bool final)
{
    uint32_t c = last_checkpoint(p, n_node, n);
    if (c && p->checkpoints[c].n_tokens == n) { /* the same tokens, so the same state */
        p->checkpoints[c].used = p->clock;
        return;
    }
    if (!(c = new_checkpoint(p))) return;
    checkpoint *x = &p->checkpoints[c];
    *x = (checkpoint){.used = p->clock, .node = n_node, .n_tokens = n, .slot = slot,
                      .next = p->nodes[n_node].first_checkpoint};
    p->nodes[n_node].first_checkpoint = c;
    if (final) {
        qn_states_ref(p->states, slot);
        return;
    }
    x->slot = qn_states_take(p->states);
    qn_check(x->slot != QN_NO_STATE); /* there are max_checkpoints beside those of the rows */
    qn_states_copy(p->states, x->slot, slot);
}

/* ---- nodes ---- */

static void unlink_hash(qn_prefix *p, uint32_t n)
{
    uint32_t *at = bucket_of(p, p->nodes[n].space, p->nodes[n].parent, tokens_of(p, n));
    while (*at != n) at = &p->nodes[*at].chain;
    *at = p->nodes[n].chain;
}

static void remove_node(qn_prefix *p, uint32_t n)
{
    node *x = &p->nodes[n];
    assert(n && !x->n_children && !x->n_locks);
    while (x->first_checkpoint) drop_checkpoint(p, x->first_checkpoint);
    if (x->n_tokens == p->block_tokens) unlink_hash(p, n);
    uint32_t i = place_of(p, x->space, x->parent, tokens_of(p, n), x->n_tokens);
    memmove(&p->sorted[i], &p->sorted[i + 1], (--p->n_sorted - i) * sizeof *p->sorted);
    if (--p->nodes[x->parent].n_children || !x->parent) p->n_leaves--; /* else its parent is one now */
    leave_ring(p, n);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        if (x->ids[g] != NO_BLOCK) qn_blocks_unref(p->blocks, g, x->ids[g], true);
    }
    *x = (node){.chain = p->free_node};
    p->free_node = n;
}

/* What removing a leaf must give back to count: anything at all; a block of this group; bytes. */
enum { ANY_LEAF = -1, LEAF_WITH_BYTES = -2 };

static bool gives(const qn_prefix *p, const node *x, int what)
{
    if (what == ANY_LEAF) return true;
    if (what >= 0) return qn_blocks_is_cached(p->blocks, (uint32_t)what, x->ids[what]);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        if (x->ids[g] != NO_BLOCK && qn_blocks_is_cached(p->blocks, g, x->ids[g])) return true;
    }
    return x->first_checkpoint != 0;
}

/* The least recently used leaf that no row stands on, or 0; only one whose removal gives back
 * `what`. */
static uint32_t oldest_leaf(const qn_prefix *p, int what)
{
    uint32_t n = p->nodes[0].newer;
    for (; n; n = p->nodes[n].newer) {
        const node *x = &p->nodes[n];
        if (!x->n_children && !x->n_locks && gives(p, x, what)) break;
    }
    return n;
}

static uint32_t new_node(qn_prefix *p)
{
    if (!p->free_node) {
        uint32_t old = oldest_leaf(p, ANY_LEAF);
        if (!old) return 0;
        remove_node(p, old);
    }
    uint32_t n = p->free_node;
    p->free_node = p->nodes[n].chain;
    return n;
}

/* Where a row's table has block number `block`; NULL: the window has moved on. */
static uint32_t *entry_of(const qn_prefix *p, const qn_table *t, uint32_t g, uint32_t block)
{
    uint32_t head = qn_blocks_head(p->blocks, g);
    if (!qn_kv_entry_held(block, head, t->dropped[g])) return NULL;
    return &t->ids[g][qn_kv_entry(block, head, t->dropped[g])];
}

/* A node at the row's place for its next block, which holds these n tokens. Returns 0 when the tree
 * is full. */
static uint32_t add_node(qn_prefix *p, const qn_prefix_place *place, const uint32_t *tokens,
                         uint32_t n, const qn_table *t)
{
    uint32_t parent = place->node, at = new_node(p); /* the row's lock keeps the parent */
    if (!at) return 0;
    node *x = &p->nodes[at];
    uint32_t i = place_of(p, place->space, parent, tokens, n);
    memmove(&p->sorted[i + 1], &p->sorted[i], (p->n_sorted++ - i) * sizeof *p->sorted);
    p->sorted[i] = at;
    *x = (node){.space = place->space, .parent = parent, .n_tokens = n,
                .depth = p->nodes[parent].depth + 1};
    memcpy(tokens_of(p, at), tokens, n * sizeof *tokens);
    if (p->nodes[parent].n_children++ || !parent) p->n_leaves++;
    join_ring(p, at);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const uint32_t *entry = entry_of(p, t, g, place->n_blocks);
        x->ids[g] = entry ? *entry : NO_BLOCK;
        if (entry) qn_blocks_ref(p->blocks, g, x->ids[g], true);
    }
    if (n == p->block_tokens) {
        uint32_t *bucket = bucket_of(p, x->space, parent, tokens);
        x->chain = *bucket;
        *bucket = at;
    }
    return at;
}

/* A sibling that says no more than the beginning of the new node n has had its day; its checkpoints
 * are as good in n. There is one at most, just before n: no sibling begins with all of another. */
static void absorb_shorter(qn_prefix *p, uint32_t n)
{
    node *x = &p->nodes[n];
    uint32_t i = place_of(p, x->space, x->parent, tokens_of(p, n), x->n_tokens);
    uint32_t c = i ? child_at(p, x->space, x->parent, i - 1) : 0;
    if (!c || common(p, c, tokens_of(p, n), x->n_tokens) < p->nodes[c].n_tokens) return;
    for (uint32_t k; (k = p->nodes[c].first_checkpoint);) {
        p->nodes[c].first_checkpoint = p->checkpoints[k].next;
        p->checkpoints[k].node = n;
        p->checkpoints[k].next = x->first_checkpoint;
        x->first_checkpoint = k;
    }
    remove_node(p, c); /* partial, so it has no children and nobody stands on it */
}

/* ---- rows ---- */

static void move_to(qn_prefix *p, qn_prefix_place *at, uint32_t n)
{
    p->nodes[n].n_locks++;
    p->nodes[at->node].n_locks--;
    at->node = n;
}

/* Give the table a reference to every block from the root to a point. */
static void share_path(qn_prefix *p, const point *at, qn_table *t)
{
    uint32_t n_blocks = p->nodes[at->node].depth;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        uint32_t head = qn_blocks_head(p->blocks, g);
        t->dropped[g] = qn_blocks_dropped(p->blocks, g, at->total);
        t->n[g] = n_blocks - t->dropped[g];
        qn_check(t->n[g] <= t->cap);
        for (uint32_t x = at->node; (x = needed(p, g, at->total, x)); x = p->nodes[x].parent) {
            t->ids[g][qn_kv_entry(p->nodes[x].depth - 1, head, t->dropped[g])] = p->nodes[x].ids[g];
            qn_blocks_ref(p->blocks, g, p->nodes[x].ids[g], false);
        }
    }
}

uint32_t qn_prefix_take(qn_prefix *p, uint64_t space, const uint32_t *tokens, uint32_t limit,
                        qn_table *t, uint32_t slot, qn_prefix_place *place)
{
    point at = find(p, space, tokens, limit);
    uint32_t whole = at.n_tokens == p->block_tokens ? at.node : p->nodes[at.node].parent;
    *place = (qn_prefix_place){.space = space, .n_blocks = p->nodes[whole].depth, .active = true};
    p->nodes[0].n_locks++;
    move_to(p, place, whole);
    if (at.node) share_path(p, &at, t);
    touch(p, at.node);
    if (at.checkpoint) {
        p->checkpoints[at.checkpoint].used = p->clock;
        qn_states_copy(p->states, slot, p->checkpoints[at.checkpoint].slot);
    } else if (p->states) {
        qn_states_clear(p->states, slot);
    }
    return at.total;
}

/* The row has computed what node n holds already: it goes on with the tree's blocks, which have the
 * same content, and gives its own back. Else both would be in memory as long as the row stands below
 * the node, and a row that the pool has just enough room for would never end. What the node has lost
 * since, as a block of a window, it gets back. */
static void take_blocks(qn_prefix *p, uint32_t n, qn_table *t, const qn_prefix_place *at)
{
    for (uint32_t g = 0; g < p->n_groups; g++) {
        uint32_t id = p->nodes[n].ids[g];
        uint32_t *own = entry_of(p, t, g, at->n_blocks);
        if (!own || *own == id) continue;
        if (id == NO_BLOCK) {
            p->nodes[n].ids[g] = *own;
            qn_blocks_ref(p->blocks, g, *own, true);
            continue;
        }
        qn_blocks_ref(p->blocks, g, id, false);
        qn_blocks_unref(p->blocks, g, *own, false);
        *own = id;
    }
}

static bool publish_full(qn_prefix *p, const uint32_t *tokens, qn_table *t, qn_prefix_place *at)
{
    const uint32_t *span = tokens + (size_t)at->n_blocks * p->block_tokens;
    uint32_t n = find_full(p, at->space, at->node, span);
    if (n) {
        take_blocks(p, n, t, at);
    } else {
        n = add_node(p, at, span, p->block_tokens, t);
        if (n) absorb_shorter(p, n);
    }
    if (!n) return false;
    move_to(p, at, n);
    at->n_blocks++;
    return true;
}

/* The leaf with the n tokens after the row's place, which a longer block may hold as well; 0: the
 * tree is full. */
static uint32_t publish_tail(qn_prefix *p, const uint32_t *tokens, uint32_t n, const qn_table *t,
                             const qn_prefix_place *at)
{
    uint32_t leaf = child_at(p, at->space, at->node, place_of(p, at->space, at->node, tokens, n));
    if (!leaf || common(p, leaf, tokens, n) < n) { /* else another block says it all */
        leaf = add_node(p, at, tokens, n, t);
        if (leaf) absorb_shorter(p, leaf);
    }
    touch(p, leaf);
    return leaf;
}

/* Publish, and return the node that holds the last of the computed tokens: 0 if the tree is full.
 */
static uint32_t publish(qn_prefix *p, const uint32_t *tokens, uint32_t computed, bool tail,
                        qn_table *t, qn_prefix_place *at)
{
    uint32_t before = at->n_blocks;
    while ((at->n_blocks + 1) * p->block_tokens <= computed && publish_full(p, tokens, t, at)) {}
    if (at->n_blocks > before || tail) touch(p, at->node);
    uint32_t start = at->n_blocks * p->block_tokens;
    if (computed == start) return at->node;
    if (computed >= start + p->block_tokens || !tail) return 0;
    return publish_tail(p, tokens + start, computed - start, t, at);
}

void qn_prefix_publish(qn_prefix *p, const uint32_t *tokens, uint32_t computed, bool tail,
                       qn_table *t, qn_prefix_place *at)
{
    if (at->active) publish(p, tokens, computed, tail, t, at);
}

void qn_prefix_checkpoint(qn_prefix *p, const uint32_t *tokens, uint32_t computed, uint32_t slot,
                          bool final, qn_table *t, qn_prefix_place *at)
{
    if (!at->active) return;
    uint32_t n = publish(p, tokens, computed, true, t, at);
    if (!n || !p->states) return;
    uint32_t start = (p->nodes[n].depth - 1) * p->block_tokens;
    add_checkpoint(p, n, computed - start, slot, final);
}

void qn_prefix_leave(qn_prefix *p, qn_prefix_place *at)
{
    if (at->active) p->nodes[at->node].n_locks--;
    *at = (qn_prefix_place){0};
}

/* ---- room ---- */

/* Remove a node of which nothing is left, and those above it. */
static void remove_hollow(qn_prefix *p, uint32_t n)
{
    for (uint32_t up; n && !p->nodes[n].n_children && !p->nodes[n].n_locks; n = up) {
        up = p->nodes[n].parent;
        for (uint32_t g = 0; g < p->n_groups; g++)
            if (p->nodes[n].ids[g] != NO_BLOCK) return;
        remove_node(p, n);
    }
}

/* Free the block of a sliding group that is least likely to be needed: of the least recently used
 * path, the oldest position, the head that is always needed last. Returns false if there is none. */
static bool drop_window_block(qn_prefix *p, uint32_t group)
{
    uint32_t best = 0, head = qn_blocks_head(p->blocks, group);
    for (uint32_t n = p->nodes[0].newer; n; n = p->nodes[n].newer) {
        const node *x = &p->nodes[n], *b = &p->nodes[best];
        if (best && x->used > b->used) break;
        if (x->ids[group] == NO_BLOCK || !qn_blocks_is_cached(p->blocks, group, x->ids[group]))
            continue;
        bool in_head = x->depth <= head, best_in_head = b->depth <= head;
        bool earlier = in_head == best_in_head ? x->depth < b->depth : best_in_head;
        if (!best || earlier) best = n;
    }
    if (!best) return false;
    qn_blocks_unref(p->blocks, group, p->nodes[best].ids[group], true);
    p->nodes[best].ids[group] = NO_BLOCK;
    remove_hollow(p, best);
    return true;
}

bool qn_prefix_make_room(qn_prefix *p, uint32_t group, uint32_t n)
{
    while (qn_blocks_available(p->blocks, group) < n) {
        if (qn_blocks_slides(p->blocks, group)) {
            if (!drop_window_block(p, group)) return false;
            continue;
        }
        uint32_t old = oldest_leaf(p, (int)group);
        if (!old) return false;
        remove_node(p, old);
    }
    return true;
}

uint32_t qn_prefix_checkpoints(const qn_prefix *p)
{
    return p->n_checkpoints;
}

uint64_t qn_prefix_bytes(const qn_prefix *p)
{
    uint64_t bytes = p->states ? (uint64_t)p->n_checkpoints * qn_states_bytes(p->states) : 0;
    for (uint32_t g = 0; g < p->n_groups; g++)
        bytes += (uint64_t)qn_blocks_cached(p->blocks, g) * qn_blocks_bytes(p->blocks, g);
    return bytes;
}

uint32_t qn_prefix_entries(const qn_prefix *p)
{
    return p->n_leaves;
}

/* Remove a leaf and those above it that nothing else needs: a sequence as far as it is its own. */
static void remove_branch(qn_prefix *p, uint32_t n)
{
    for (uint32_t up; n && !p->nodes[n].n_children && !p->nodes[n].n_locks; n = up) {
        up = p->nodes[n].parent;
        remove_node(p, n);
    }
}

static void trim_entries(qn_prefix *p)
{
    uint32_t n_unused = 0;
    for (uint32_t n = p->nodes[0].newer; n; n = p->nodes[n].newer)
        n_unused += !p->nodes[n].n_children && !p->nodes[n].n_locks;
    for (; n_unused > p->max_entries; n_unused--) remove_branch(p, oldest_leaf(p, ANY_LEAF));
}

void qn_prefix_trim(qn_prefix *p)
{
    if (p->max_entries) trim_entries(p);
    while (p->max_bytes && qn_prefix_bytes(p) > p->max_bytes) {
        uint32_t old = oldest_leaf(p, LEAF_WITH_BYTES), g = 0;
        if (old) {
            remove_node(p, old);
            continue;
        }
        while (g < p->n_groups && !(qn_blocks_slides(p->blocks, g) && drop_window_block(p, g))) g++;
        if (g == p->n_groups) break; /* what is left lies under rows */
    }
}

bool qn_prefix_flush(qn_prefix *p)
{
    bool any = false;
    for (uint32_t i = 1; i <= p->n_nodes; i++) {
        for (uint32_t n = i, up; n; n = up) {
            const node *x = &p->nodes[n];
            if (!x->n_tokens || x->n_children || x->n_locks) break;
            up = x->parent;
            remove_node(p, n);
            any = true;
        }
    }
    return any;
}

/* ---- checks ---- */

/* The links, tokens and checkpoints of one node in use. */
static bool node_sound(const qn_prefix *p, uint32_t n)
{
    const node *x = &p->nodes[n], *up = &p->nodes[x->parent];
    uint32_t i = place_of(p, x->space, x->parent, tokens_of(p, n), x->n_tokens);
    uint32_t n_children = 0, k = x->first_checkpoint;
    if (child_at(p, x->space, x->parent, i) != n || x->n_tokens > p->block_tokens) return false;
    uint32_t after = child_at(p, x->space, x->parent, i + 1);
    if (after && common(p, after, tokens_of(p, n), x->n_tokens) == x->n_tokens) return false;
    if (x->newer && p->nodes[x->newer].used < x->used) return false;
    i = place_of(p, x->space, n, NULL, 0);
    while (child_at(p, x->space, n, i + n_children)) n_children++;
    if (n_children != x->n_children) return false;
    if (x->depth != up->depth + 1 || (x->parent && (x->space != up->space || x->used > up->used ||
                                                    up->n_tokens != p->block_tokens)))
        return false;
    bool full = x->n_tokens == p->block_tokens;
    if (full && find_full(p, x->space, x->parent, tokens_of(p, n)) != n) return false;
    if (!full && (x->n_children || x->n_locks)) return false;
    for (; k; k = p->checkpoints[k].next) {
        const checkpoint *y = &p->checkpoints[k];
        if (y->node != n || !y->n_tokens || y->n_tokens > x->n_tokens ||
            !qn_states_holders(p->states, y->slot))
            return false;
    }
    return true;
}

bool qn_prefix_audit(const qn_prefix *p)
{
    uint32_t n_free = 0, n_used = 0, n_checkpoints = 0, n_ring = 0, n_leaves = 0;
    for (uint32_t n = p->free_node; n; n = p->nodes[n].chain) n_free++;
    for (uint32_t n = p->nodes[0].newer; n; n = p->nodes[n].newer) n_ring++;
    for (uint32_t n = 1; n <= p->n_nodes; n++) {
        const node *x = &p->nodes[n];
        if (!x->n_tokens) continue;
        n_used++;
        n_leaves += !x->n_children;
        if (!node_sound(p, n)) return false;
        for (uint32_t k = x->first_checkpoint; k; k = p->checkpoints[k].next) n_checkpoints++;
        for (uint32_t g = 0; g < p->n_groups; g++) {
            if (x->ids[g] != NO_BLOCK) qn_blocks_audit_see(p->blocks, g, x->ids[g]);
        }
    }
    return n_free + n_used == p->n_nodes && n_ring == n_used && p->n_sorted == n_used && n_leaves == p->n_leaves &&
           n_checkpoints == p->n_checkpoints && n_checkpoints <= p->max_checkpoints;
}
