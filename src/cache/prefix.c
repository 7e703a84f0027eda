/* prefix.c - the tree of cached blocks. */
#include "cache/prefix.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"

/* Node 0 is the root and holds no block. Nodes are numbered; 0 in a link means none. */
typedef struct node {
    uint32_t parent, first_child, next,
        prev; /* next and prev: siblings, or `next` of the free list */
    uint32_t chain;                           /* next node of the same hash bucket */
    uint32_t n_tokens;                        /* a full block, or fewer in a leaf */
    uint32_t n_locks;                         /* rows that stand here */
    uint32_t depth;                           /* blocks from the root to here, this one included */
    uint64_t used;                            /* clock of the last use */
    uint32_t ids[QN_MAX_KV_GROUPS];           /* NO_BLOCK: evicted, sliding groups only */
} node;

static const uint32_t NO_BLOCK = UINT32_MAX;

struct qn_prefix {
    qn_blocks *blocks;
    uint32_t block_tokens, n_groups, n_nodes, n_buckets;
    node *nodes;       /* [n_nodes + 1] */
    uint32_t *tokens;  /* [n_nodes + 1, block_tokens] */
    uint32_t *buckets; /* [n_buckets] full nodes by (parent, tokens) */
    uint32_t free_node;
    uint64_t clock;
};

static uint32_t *tokens_of(const qn_prefix *p, uint32_t n)
{
    return p->tokens + (size_t)n * p->block_tokens;
}

qn_code qn_prefix_new(qn_prefix **out, qn_blocks *b, uint32_t max_blocks, qn_err *err)
{
    *out = NULL;
    qn_prefix *p = calloc(1, sizeof *p);
    if (!p) return qn_err_set(err, QN_NOMEM, "prefix cache: out of memory");
    p->blocks = b;
    p->block_tokens = qn_blocks_tokens(b);
    p->n_groups = qn_blocks_groups(b);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        uint32_t n = qn_blocks_total(b, g);
        if (n > p->n_nodes) p->n_nodes = n;
    }
    if (max_blocks && p->n_nodes > max_blocks) p->n_nodes = max_blocks;
    p->n_buckets = 16;
    while (p->n_buckets < 2 * p->n_nodes) p->n_buckets *= 2;
    p->nodes = calloc((size_t)p->n_nodes + 1, sizeof *p->nodes);
    p->tokens = malloc(((size_t)p->n_nodes + 1) * p->block_tokens * sizeof *p->tokens);
    p->buckets = calloc(p->n_buckets, sizeof *p->buckets);
    if (!p->nodes || !p->tokens || !p->buckets) {
        qn_prefix_free(p);
        return qn_err_set(err, QN_NOMEM, "prefix cache: out of memory");
    }
    for (uint32_t i = p->n_nodes; i > 0; i--) {
        p->nodes[i].next = p->free_node;
        p->free_node = i;
    }
    *out = p;
    return QN_OK;
}

void qn_prefix_free(qn_prefix *p)
{
    if (!p) return;
    if (p->nodes && p->buckets) qn_prefix_flush(p);
    free(p->nodes);
    free(p->tokens);
    free(p->buckets);
    free(p);
}

/* ---- finding ---- */

static uint32_t *bucket_of(const qn_prefix *p, uint32_t parent, const uint32_t *tokens)
{
    return &p->buckets[qn_hash64(tokens, p->block_tokens * sizeof *tokens, parent) &
                       (p->n_buckets - 1)];
}

/* The full child of `parent` with these tokens, or 0. */
static uint32_t find_full(const qn_prefix *p, uint32_t parent, const uint32_t *tokens)
{
    for (uint32_t n = *bucket_of(p, parent, tokens); n; n = p->nodes[n].chain) {
        if (p->nodes[n].parent != parent) continue;
        if (!memcmp(tokens_of(p, n), tokens, p->block_tokens * sizeof *tokens)) return n;
    }
    return 0;
}

/* The child that shares the most tokens, *n of them; 0 if none shares any. */
static uint32_t find_partial(const qn_prefix *p, uint32_t parent, const uint32_t *tokens,
                             uint32_t limit, uint32_t *n)
{
    uint32_t best = 0;
    *n = 0;
    for (uint32_t c = p->nodes[parent].first_child; c; c = p->nodes[c].next) {
        const uint32_t *have = tokens_of(p, c);
        uint32_t same = 0, most = p->nodes[c].n_tokens < limit ? p->nodes[c].n_tokens : limit;
        while (same < most && have[same] == tokens[same]) same++;
        if (same > *n) {
            *n = same;
            best = c;
        }
    }
    return best;
}

static void touch(qn_prefix *p, uint32_t n)
{
    p->clock++;
    for (; n; n = p->nodes[n].parent) p->nodes[n].used = p->clock;
}

/* ---- nodes ---- */

static void unlink_hash(qn_prefix *p, uint32_t n)
{
    uint32_t *at = bucket_of(p, p->nodes[n].parent, tokens_of(p, n));
    while (*at != n) at = &p->nodes[*at].chain;
    *at = p->nodes[n].chain;
}

static void remove_node(qn_prefix *p, uint32_t n)
{
    node *x = &p->nodes[n];
    assert(n && !x->first_child && !x->n_locks);
    if (x->n_tokens == p->block_tokens) unlink_hash(p, n);
    if (x->prev) p->nodes[x->prev].next = x->next;
    else p->nodes[x->parent].first_child = x->next;
    if (x->next) p->nodes[x->next].prev = x->prev;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        if (x->ids[g] != NO_BLOCK) qn_blocks_unref(p->blocks, g, x->ids[g], true);
    }
    *x = (node){.next = p->free_node};
    p->free_node = n;
}

/* The least recently used leaf that no row stands on, or 0; with group >= 0 only one whose block of
 * that group nobody else holds, so that removing it makes room. */
static uint32_t oldest_leaf(const qn_prefix *p, int group)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i <= p->n_nodes; i++) {
        const node *x = &p->nodes[i];
        if (!x->n_tokens || x->first_child || x->n_locks) continue;
        if (group >= 0 && !qn_blocks_is_cached(p->blocks, (uint32_t)group, x->ids[group])) continue;
        if (!best || x->used < p->nodes[best].used) best = i;
    }
    return best;
}

static uint32_t new_node(qn_prefix *p)
{
    if (!p->free_node) {
        uint32_t old = oldest_leaf(p, -1);
        if (!old) return 0;
        remove_node(p, old);
    }
    uint32_t n = p->free_node;
    p->free_node = p->nodes[n].next;
    return n;
}

/* A node under `parent` for the row's block number i with its first n tokens. Returns 0 when the
 * tree is full. */
static uint32_t add_node(qn_prefix *p, uint32_t parent, const uint32_t *tokens, uint32_t n,
                         const qn_table *t, uint32_t i)
{
    p->nodes[parent].n_locks++; /* making room must not take the parent */
    uint32_t at = new_node(p);
    p->nodes[parent].n_locks--;
    if (!at) return 0;
    node *x = &p->nodes[at];
    *x = (node){.parent = parent, .next = p->nodes[parent].first_child, .n_tokens = n,
                .depth = p->nodes[parent].depth + 1};
    memcpy(tokens_of(p, at), tokens, n * sizeof *tokens);
    if (x->next) p->nodes[x->next].prev = at;
    p->nodes[parent].first_child = at;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        x->ids[g] = t->ids[g][i - t->first[g]];
        qn_blocks_ref(p->blocks, g, x->ids[g], true);
    }
    if (n == p->block_tokens) {
        uint32_t *bucket = bucket_of(p, parent, tokens);
        x->chain = *bucket;
        *bucket = at;
    }
    return at;
}

/* ---- rows ---- */

/* True if every group has the blocks that a row needs to continue at position n_tokens on the path
 * that ends in node n. */
static bool serves(const qn_prefix *p, uint32_t n, uint32_t n_tokens)
{
    for (uint32_t g = 0; g < p->n_groups; g++) {
        uint32_t lowest = qn_blocks_lowest(p->blocks, g, n_tokens);
        for (uint32_t x = n; x && p->nodes[x].depth > lowest; x = p->nodes[x].parent) {
            if (p->nodes[x].ids[g] == NO_BLOCK) return false;
        }
    }
    return true;
}

static void move_to(qn_prefix *p, qn_prefix_place *at, uint32_t n)
{
    p->nodes[n].n_locks++;
    p->nodes[at->node].n_locks--;
    at->node = n;
}

/* Give the table a reference to every block of the path that ends in node n, n_blocks long. */
static void share_path(qn_prefix *p, uint32_t n, uint32_t n_blocks, uint32_t n_tokens, qn_table *t)
{
    for (uint32_t g = 0; g < p->n_groups; g++) {
        t->first[g] = qn_blocks_lowest(p->blocks, g, n_tokens);
        t->n[g] = n_blocks - t->first[g];
        qn_check(t->n[g] <= t->cap);
        uint32_t x = n;
        for (uint32_t i = n_blocks; i > t->first[g]; i--, x = p->nodes[x].parent) {
            t->ids[g][i - 1 - t->first[g]] = p->nodes[x].ids[g];
            qn_blocks_ref(p->blocks, g, p->nodes[x].ids[g], false);
        }
    }
}

uint32_t qn_prefix_take(qn_prefix *p, const uint32_t *tokens, uint32_t limit, qn_table *t,
                        qn_prefix_place *at)
{
    uint32_t n = 0, next, part = 0;
    while ((p->nodes[n].depth + 1) * p->block_tokens <= limit &&
           (next = find_full(p, n, tokens + p->nodes[n].depth * p->block_tokens))) {
        n = next;
    }
    uint32_t taken = p->nodes[n].depth * p->block_tokens;
    uint32_t leaf = taken < limit ? find_partial(p, n, tokens + taken, limit - taken, &part) : 0;
    if (leaf && !serves(p, leaf, taken + part)) leaf = part = 0;
    while (!leaf && n && !serves(p, n, p->nodes[n].depth * p->block_tokens)) n = p->nodes[n].parent;
    uint32_t depth = p->nodes[n].depth;
    *at = (qn_prefix_place){.n_blocks = depth, .active = true};
    p->nodes[0].n_locks++;
    move_to(p, at, n);
    taken = depth * p->block_tokens + part;
    if (taken) share_path(p, leaf ? leaf : n, leaf ? depth + 1 : depth, taken, t);
    touch(p, leaf ? leaf : n);
    return taken;
}

/* A leaf under `parent` that says no more than the first n tokens, and that nobody stands on, has
 * had its day. */
static void drop_shorter(qn_prefix *p, uint32_t parent, const uint32_t *tokens, uint32_t n)
{
    for (uint32_t c = p->nodes[parent].first_child, next; c; c = next) {
        const node *x = &p->nodes[c];
        next = x->next;
        if (x->n_tokens >= n || x->first_child || x->n_locks) continue;
        if (!memcmp(tokens_of(p, c), tokens, x->n_tokens * sizeof *tokens)) remove_node(p, c);
    }
}

static bool publish_full(qn_prefix *p, const uint32_t *tokens, const qn_table *t,
                         qn_prefix_place *at)
{
    const uint32_t *span = tokens + (size_t)at->n_blocks * p->block_tokens;
    uint32_t n = find_full(p, at->node, span);
    if (!n) {
        drop_shorter(p, at->node, span, p->block_tokens);
        n = add_node(p, at->node, span, p->block_tokens, t, at->n_blocks);
    }
    if (!n) return false;
    move_to(p, at, n);
    at->n_blocks++;
    return true;
}

static void publish_tail(qn_prefix *p, const uint32_t *tokens, uint32_t n, const qn_table *t,
                         qn_prefix_place *at)
{
    uint32_t same;
    find_partial(p, at->node, tokens, n, &same);
    if (same == n) return; /* another block says it all */
    drop_shorter(p, at->node, tokens, n);
    uint32_t leaf = add_node(p, at->node, tokens, n, t, at->n_blocks);
    if (leaf) touch(p, leaf);
}

void qn_prefix_publish(qn_prefix *p, const uint32_t *tokens, uint32_t computed, bool tail,
                       const qn_table *t, qn_prefix_place *at)
{
    if (!at->active) return;
    uint32_t before = at->n_blocks;
    while ((at->n_blocks + 1) * p->block_tokens <= computed && publish_full(p, tokens, t, at)) {}
    if (at->n_blocks > before || tail) touch(p, at->node);
    if ((at->n_blocks + 1) * p->block_tokens <= computed) return; /* the tree is full */
    uint32_t start = at->n_blocks * p->block_tokens;
    if (tail && computed > start) publish_tail(p, tokens + start, computed - start, t, at);
}

void qn_prefix_leave(qn_prefix *p, qn_prefix_place *at)
{
    if (at->active) p->nodes[at->node].n_locks--;
    *at = (qn_prefix_place){0};
}

/* ---- room ---- */

/* Free the block of a sliding group that is least likely to be needed: of the least recently used
 * path, the oldest position. Returns false if there is none. */
static bool drop_window_block(qn_prefix *p, uint32_t group)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i <= p->n_nodes; i++) {
        const node *x = &p->nodes[i], *b = &p->nodes[best];
        if (!x->n_tokens || x->ids[group] == NO_BLOCK ||
            !qn_blocks_is_cached(p->blocks, group, x->ids[group]))
            continue;
        if (!best || x->used < b->used || (x->used == b->used && x->depth < b->depth)) best = i;
    }
    if (!best) return false;
    qn_blocks_unref(p->blocks, group, p->nodes[best].ids[group], true);
    p->nodes[best].ids[group] = NO_BLOCK;
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

void qn_prefix_flush(qn_prefix *p)
{
    for (uint32_t n; (n = oldest_leaf(p, -1));) remove_node(p, n);
}
