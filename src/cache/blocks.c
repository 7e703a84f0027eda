/* blocks.c - free lists, reference counts and block tables. */
#include "cache/blocks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct pool {
    uint32_t total, n_free;
    uint32_t least_free; /* that ever was */
    uint32_t *stack; /* [total] free block numbers, the next one last */
    uint32_t *ref;   /* [total] owners of each block */
    uint32_t *seen;  /* [total] owners that an audit has met */
    bool *cached;    /* [total] the prefix tree is one of them */
    uint32_t n_cached; /* blocks whose only owner it is */
    size_t bytes;    /* of one block */
} pool;

struct qn_blocks {
    qn_device *dev;
    qn_kv *kv;
    uint32_t n_groups, block_tokens;
    qn_kv_group groups[QN_MAX_KV_GROUPS];
    pool pools[QN_MAX_KV_GROUPS];
};

static bool pool_init(pool *p, uint32_t total)
{
    p->total = p->n_free = p->least_free = total;
    p->stack = malloc((total ? total : 1) * sizeof *p->stack);
    p->ref = calloc(total ? total : 1, sizeof *p->ref);
    p->seen = calloc(total ? total : 1, sizeof *p->seen);
    p->cached = calloc(total ? total : 1, sizeof *p->cached);
    if (!p->stack || !p->ref || !p->seen || !p->cached) return false;
    for (uint32_t i = 0; i < total; i++) p->stack[i] = total - 1 - i;
    return true;
}

qn_code qn_blocks_new(qn_blocks **out, qn_device *dev, const qn_kv_spec *spec,
                      const uint32_t *n_blocks, qn_err *err)
{
    *out = NULL;
    qn_blocks *b = calloc(1, sizeof *b);
    if (!b) return qn_err_set(err, QN_NOMEM, "KV blocks: out of memory");
    b->dev = dev;
    b->n_groups = spec->n_groups;
    b->block_tokens = spec->block_tokens;
    memcpy(b->groups, spec->groups, sizeof b->groups);
    qn_code rc = dev->ops->kv_new(dev, spec, n_blocks, &b->kv, err);
    for (uint32_t g = 0; !rc && g < b->n_groups; g++) {
        b->pools[g].bytes = dev->ops->kv_block_bytes(dev, spec, g);
        if (!pool_init(&b->pools[g], n_blocks[g]))
            rc = qn_err_set(err, QN_NOMEM, "KV blocks: out of memory");
    }
    if (rc) {
        qn_blocks_free(b);
        return rc;
    }
    *out = b;
    return QN_OK;
}

void qn_blocks_free(qn_blocks *b)
{
    if (!b) return;
    for (uint32_t g = 0; g < b->n_groups; g++) {
        free(b->pools[g].stack);
        free(b->pools[g].ref);
        free(b->pools[g].seen);
        free(b->pools[g].cached);
    }
    if (b->kv) b->dev->ops->kv_free(b->kv);
    free(b);
}

qn_kv *qn_blocks_kv(const qn_blocks *b)
{
    return b->kv;
}

uint32_t qn_blocks_available(const qn_blocks *b, uint32_t group)
{
    return b->pools[group].n_free;
}

uint32_t qn_blocks_total(const qn_blocks *b, uint32_t group)
{
    return b->pools[group].total;
}

uint32_t qn_blocks_touched(const qn_blocks *b, uint32_t group)
{
    return b->pools[group].total - b->pools[group].least_free;
}

size_t qn_blocks_bytes(const qn_blocks *b, uint32_t group)
{
    return b->pools[group].bytes;
}

bool qn_blocks_sound(const qn_blocks *b)
{
    for (uint32_t g = 0; g < b->n_groups; g++) {
        const pool *p = &b->pools[g];
        uint32_t held = 0, cached = 0;
        for (uint32_t i = 0; i < p->total; i++) {
            held += p->ref[i] > 0;
            cached += p->cached[i] && p->ref[i] == 1;
        }
        if (held + p->n_free != p->total || cached != p->n_cached) return false;
        for (uint32_t i = 0; i < p->n_free; i++) {
            if (p->ref[p->stack[i]]) return false;
        }
    }
    return true;
}

void qn_blocks_audit_begin(qn_blocks *b)
{
    for (uint32_t g = 0; g < b->n_groups; g++)
        memset(b->pools[g].seen, 0, b->pools[g].total * sizeof *b->pools[g].seen);
}

void qn_blocks_audit_see(qn_blocks *b, uint32_t group, uint32_t id)
{
    qn_check(group < b->n_groups && id < b->pools[group].total);
    b->pools[group].seen[id]++;
}

bool qn_blocks_audit_end(const qn_blocks *b)
{
    for (uint32_t g = 0; g < b->n_groups; g++) {
        const pool *p = &b->pools[g];
        if (memcmp(p->seen, p->ref, p->total * sizeof *p->ref)) return false;
    }
    return qn_blocks_sound(b);
}

static uint32_t take(pool *p)
{
    assert(p->n_free > 0);
    uint32_t id = p->stack[--p->n_free];
    if (p->n_free < p->least_free) p->least_free = p->n_free;
    assert(p->ref[id] == 0);
    p->ref[id] = 1;
    return id;
}

static void add_owner(pool *p, uint32_t id, bool cached)
{
    qn_check(p->ref[id] > 0 && !(cached && p->cached[id]));
    if (p->cached[id] && p->ref[id] == 1) p->n_cached--;
    p->ref[id]++;
    if (cached) p->cached[id] = true;
}

static void drop_owner(pool *p, uint32_t id, bool cached)
{
    qn_check(p->ref[id] > 0 && !(cached && !p->cached[id]));
    if (cached) {
        if (p->ref[id] == 1) p->n_cached--;
        p->cached[id] = false;
    }
    if (--p->ref[id] == 0) p->stack[p->n_free++] = id;
    else if (p->cached[id] && p->ref[id] == 1) p->n_cached++;
}

static void drop(pool *p, uint32_t id)
{
    drop_owner(p, id, false);
}

void qn_blocks_ref(qn_blocks *b, uint32_t group, uint32_t id, bool cached)
{
    add_owner(&b->pools[group], id, cached);
}

void qn_blocks_unref(qn_blocks *b, uint32_t group, uint32_t id, bool cached)
{
    drop_owner(&b->pools[group], id, cached);
}

uint32_t qn_blocks_cached(const qn_blocks *b, uint32_t group)
{
    return b->pools[group].n_cached;
}

bool qn_blocks_is_cached(const qn_blocks *b, uint32_t group, uint32_t id)
{
    return b->pools[group].cached[id] && b->pools[group].ref[id] == 1;
}

bool qn_blocks_slides(const qn_blocks *b, uint32_t group)
{
    return b->groups[group].rule != QN_KV_FULL;
}

uint32_t qn_blocks_tokens(const qn_blocks *b)
{
    return b->block_tokens;
}

uint32_t qn_blocks_groups(const qn_blocks *b)
{
    return b->n_groups;
}

/* ---- tables ---- */

qn_code qn_table_init(qn_table *t, const qn_blocks *b, uint32_t max_positions, qn_err *err)
{
    *t = (qn_table){.cap = max_positions / b->block_tokens + 2};
    for (uint32_t g = 0; g < b->n_groups; g++) {
        t->ids[g] = malloc(t->cap * sizeof *t->ids[g]);
        if (t->ids[g]) continue;
        while (g-- > 0) free(t->ids[g]);
        *t = (qn_table){0};
        return qn_err_set(err, QN_NOMEM, "block table: out of memory");
    }
    return QN_OK;
}

void qn_table_clear(qn_table *t, qn_blocks *b)
{
    for (uint32_t g = 0; g < b->n_groups; g++) {
        for (uint32_t i = 0; i < t->n[g]; i++) drop(&b->pools[g], t->ids[g][i]);
        t->n[g] = t->dropped[g] = 0;
    }
}

void qn_table_release(qn_table *t, qn_blocks *b)
{
    qn_table_clear(t, b);
    for (uint32_t g = 0; g < b->n_groups; g++) free(t->ids[g]);
    *t = (qn_table){0};
}

/* Blocks to add so that the table reaches position `end` (exclusive). */
static uint32_t missing(const qn_table *t, const qn_blocks *b, uint32_t g, uint32_t end)
{
    uint32_t want = (end + b->block_tokens - 1) / b->block_tokens, have = t->dropped[g] + t->n[g];
    return want > have ? want - have : 0;
}

/* The entry that position n_past falls into, if it is there and shared: it must be copied. */
static bool shared_tail(const qn_table *t, const qn_blocks *b, uint32_t g, uint32_t n_past,
                        uint32_t *entry)
{
    uint32_t block = n_past / b->block_tokens, head = qn_blocks_head(b, g);
    if (!qn_kv_entry_held(block, head, t->dropped[g])) return false;
    *entry = qn_kv_entry(block, head, t->dropped[g]);
    if (*entry >= t->n[g]) return false;
    return b->pools[g].ref[t->ids[g][*entry]] > 1;
}

uint32_t qn_table_need(const qn_table *t, const qn_blocks *b, uint32_t group, uint32_t n_past,
                       uint32_t n_new)
{
    uint32_t entry;
    return missing(t, b, group, n_past + n_new) + shared_tail(t, b, group, n_past, &entry);
}

bool qn_table_extend(qn_table *t, qn_blocks *b, uint32_t n_past, uint32_t n_new)
{
    uint32_t entry;
    for (uint32_t g = 0; g < b->n_groups; g++) {
        if (qn_table_need(t, b, g, n_past, n_new) > b->pools[g].n_free) return false;
    }
    for (uint32_t g = 0; g < b->n_groups; g++) {
        pool *p = &b->pools[g];
        if (shared_tail(t, b, g, n_past, &entry)) {
            uint32_t copy = take(p);
            b->dev->ops->kv_copy(b->kv, g, copy, t->ids[g][entry]);
            drop(p, t->ids[g][entry]);
            t->ids[g][entry] = copy;
        }
        for (uint32_t k = missing(t, b, g, n_past + n_new); k > 0; k--) {
            qn_check(t->n[g] < t->cap);
            t->ids[g][t->n[g]++] = take(p);
        }
    }
    return true;
}

uint32_t qn_blocks_head(const qn_blocks *b, uint32_t group)
{
    return qn_kv_head_blocks(&b->groups[group], b->block_tokens);
}

uint32_t qn_blocks_dropped(const qn_blocks *b, uint32_t group, uint32_t next_pos)
{
    const qn_kv_group *g = &b->groups[group];
    uint32_t lowest = qn_kv_first_seen(g, next_pos) / b->block_tokens, head = qn_blocks_head(b, group);
    if (g->rule == QN_KV_SLIDING && lowest) lowest--;
    return lowest > head ? lowest - head : 0;
}

void qn_table_slide(qn_table *t, qn_blocks *b, uint32_t next_pos)
{
    for (uint32_t g = 0; g < b->n_groups; g++) {
        uint32_t want = qn_blocks_dropped(b, g, next_pos), head = qn_blocks_head(b, g);
        uint32_t n = want > t->dropped[g] ? want - t->dropped[g] : 0;
        if (!n || t->n[g] <= head) continue;
        if (n > t->n[g] - head) n = t->n[g] - head;
        uint32_t *ids = t->ids[g] + head;
        for (uint32_t i = 0; i < n; i++) drop(&b->pools[g], ids[i]);
        t->n[g] -= n;
        t->dropped[g] += n;
        memmove(ids, ids + n, (t->n[g] - head) * sizeof *ids);
    }
}

uint32_t qn_blocks_need(const qn_blocks *b, uint32_t group, uint32_t n_positions, uint32_t chunk)
{
    uint64_t n = n_positions;
    if (b->groups[group].rule != QN_KV_FULL) {
        uint64_t most = (uint64_t)b->groups[group].window +
                        (qn_blocks_head(b, group) + 2u) * b->block_tokens + chunk;
        if (n > most) n = most;
    }
    return (uint32_t)((n + b->block_tokens - 1) / b->block_tokens);
}

void qn_table_audit(const qn_table *t, qn_blocks *b)
{
    for (uint32_t g = 0; g < b->n_groups; g++) {
        for (uint32_t i = 0; i < t->n[g]; i++) qn_blocks_audit_see(b, g, t->ids[g][i]);
    }
}

void qn_table_view(const qn_table *t, const qn_blocks *b, qn_item *item)
{
    for (uint32_t g = 0; g < b->n_groups; g++) {
        item->blocks[g] = t->ids[g];
        item->dropped[g] = t->dropped[g];
    }
}
