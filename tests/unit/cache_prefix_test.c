/* cache_prefix_test.c - the prefix tree against a naive model, over a fake pool.
 *
 * The fake device stores in each position a hash of the namespace and of all tokens up to there,
 * and in each state slot the same of the whole sequence: a block or a checkpoint that is found for
 * the wrong tokens shows. The model is a list of everything that was ever published. With room for
 * all of it the tree must know exactly what the list knows; with little room never more. Every
 * reference is audited after every operation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/prefix.h"

enum { BLOCK = 16, MAX_LEN = 200, ROWS = 4, MAX_RECORDS = 4000, WINDOW = 40, NO_GROUP = 9 };

static uint32_t rng_state = 1;

static uint32_t rng(uint32_t n)
{
    rng_state = rng_state * 1664525u + 1013904223u;
    return (rng_state >> 8) % n;
}

/* ---- a device that keeps hashes ---- */

struct qn_kv {
    uint32_t n_groups, n_states;
    uint64_t *cells[QN_MAX_KV_GROUPS], *states;
};

static size_t block_bytes(const qn_device *d, const qn_kv_spec *spec, uint32_t group)
{
    (void)d;
    (void)group;
    return spec->block_tokens * sizeof(uint64_t);
}

static qn_code kv_new(qn_device *d, const qn_kv_spec *spec, const uint32_t *n_blocks, qn_kv **out,
                      qn_err *err)
{
    (void)d;
    (void)err;
    qn_kv *kv = calloc(1, sizeof *kv);
    assert_non_null(kv);
    kv->n_groups = spec->n_groups;
    kv->states = calloc(spec->n_states + 1, sizeof *kv->states);
    for (uint32_t g = 0; g < spec->n_groups; g++)
        kv->cells[g] = calloc(n_blocks[g] * BLOCK, sizeof *kv->cells[g]);
    *out = kv;
    return QN_OK;
}

static void kv_free(qn_kv *kv)
{
    for (uint32_t g = 0; g < kv->n_groups; g++) free(kv->cells[g]);
    free(kv->states);
    free(kv);
}

static void kv_copy(qn_kv *kv, uint32_t group, uint32_t dst, uint32_t src)
{
    memcpy(kv->cells[group] + dst * BLOCK, kv->cells[group] + src * BLOCK, BLOCK * sizeof(uint64_t));
}

static void state_clear(qn_kv *kv, uint32_t slot)
{
    kv->states[slot] = 0;
}

static void state_copy(qn_kv *kv, uint32_t dst, uint32_t src)
{
    kv->states[dst] = kv->states[src];
}

static const qn_ops ops = {.kv_block_bytes = block_bytes, .kv_new = kv_new, .kv_free = kv_free,
                           .kv_copy = kv_copy, .state_clear = state_clear, .state_copy = state_copy};

/* What is stored for position n - 1; 0 for n = 0. */
static uint64_t history(uint64_t space, const uint32_t *tokens, uint32_t n)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ (space * 31 + tokens[i] + 1)) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}

/* ---- a world: pools, the tree, rows, and the list of what was published ---- */

typedef struct row {
    bool live;
    uint64_t space;
    uint32_t tokens[MAX_LEN], len, computed, slot;
    qn_table table;
    qn_prefix_place place;
} row;

typedef struct record {
    uint64_t space;
    uint32_t tokens[MAX_LEN], n;
} record;

typedef struct world {
    qn_device dev;
    qn_blocks *blocks;
    qn_states *states;
    qn_prefix *prefix;
    uint32_t n_groups, n_records;
    uint32_t windowed;  /* the group with a window, NO_GROUP: none */
    qn_kv_group group;  /* what it is */
    uint64_t max_bytes;
    row rows[ROWS];
    record records[MAX_RECORDS]; /* starts: any prefix of them, or with states only the whole */
} world;

static void record_start(world *w, const row *r, uint32_t n)
{
    assert_true(w->n_records < MAX_RECORDS);
    record *x = &w->records[w->n_records++];
    x->space = r->space;
    x->n = n;
    memcpy(x->tokens, r->tokens, n * sizeof *x->tokens);
}

/* What the list knows of a row's first `limit` tokens. */
static uint32_t listed(const world *w, const row *r, uint32_t limit)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < w->n_records; i++) {
        const record *x = &w->records[i];
        if (x->space != r->space) continue;
        uint32_t same = 0, most = x->n < limit ? x->n : limit;
        while (same < most && x->tokens[same] == r->tokens[same]) same++;
        if (w->states && same < x->n) continue;
        if (same > best) best = same;
    }
    return best;
}

/* With a group besides, or alone, if that has a window. */
static void open_world(world *w, uint32_t n_blocks, qn_kv_group group, bool alone,
                       uint32_t checkpoints, uint64_t max_bytes)
{
    qn_err err = {0};
    memset(w, 0, sizeof *w);
    w->dev = (qn_device){.ops = &ops, .name = "hashes"};
    w->n_groups = group.window && !alone ? 2 : 1;
    w->windowed = group.window ? w->n_groups - 1 : NO_GROUP;
    w->max_bytes = max_bytes;
    qn_kv_spec spec = {.block_tokens = BLOCK, .n_groups = w->n_groups};
    w->group = group;
    if (group.window) spec.groups[w->windowed] = group;
    spec.n_states = checkpoints ? checkpoints + ROWS : 0;
    uint32_t n[QN_MAX_KV_GROUPS] = {n_blocks, n_blocks};
    assert_int_equal(qn_blocks_new(&w->blocks, &w->dev, &spec, n, &err), QN_OK);
    if (checkpoints)
        assert_int_equal(qn_states_new(&w->states, &w->dev, qn_blocks_kv(w->blocks), spec.n_states,
                                       100, &err),
                         QN_OK);
    qn_prefix_opts o = {
        .states = w->states, .max_checkpoints = checkpoints, .max_bytes = max_bytes};
    assert_int_equal(qn_prefix_new(&w->prefix, w->blocks, &o, &err), QN_OK);
}

static void audit(world *w)
{
    uint32_t n_live = 0;
    qn_blocks_audit_begin(w->blocks);
    for (uint32_t i = 0; i < ROWS; i++) {
        if (!w->rows[i].live) continue;
        n_live++;
        qn_table_audit(&w->rows[i].table, w->blocks);
    }
    assert_true(qn_prefix_audit(w->prefix));
    assert_true(qn_blocks_audit_end(w->blocks));
    if (w->states)
        assert_int_equal(qn_states_available(w->states) + n_live + qn_prefix_checkpoints(w->prefix),
                         qn_states_total(w->states));
}

static uint32_t block_at(const world *w, const row *r, uint32_t g, uint32_t p)
{
    uint32_t head = qn_blocks_head(w->blocks, g);
    assert_true(qn_kv_entry_held(p / BLOCK, head, r->table.dropped[g]));
    return r->table.ids[g][qn_kv_entry(p / BLOCK, head, r->table.dropped[g])];
}

/* The first position that a row still looks at, but for those that are kept. */
static uint32_t first_needed(const qn_kv_group *g, uint32_t computed)
{
    if (g->rule == QN_KV_CHUNKED) return computed / g->window * g->window;
    return computed >= g->window ? computed - (g->window - 1) : 0;
}

/* Every position that the row may look at holds what belongs there; of a chunk no block before its
 * first one is held. */
static void check_row(const world *w, const row *r)
{
    const qn_kv *kv = qn_blocks_kv(w->blocks);
    for (uint32_t g = 0; g < w->n_groups; g++) {
        uint32_t from = g == w->windowed ? first_needed(&w->group, r->computed) : 0;
        for (uint32_t p = 0; p < r->computed; p++) {
            if (p < from && p >= w->group.keep) continue;
            uint32_t id = block_at(w, r, g, p);
            assert_true(kv->cells[g][id * BLOCK + p % BLOCK] == history(r->space, r->tokens, p + 1));
        }
    }
    if (w->group.rule == QN_KV_CHUNKED)
        assert_int_equal(r->table.dropped[w->windowed], first_needed(&w->group, r->computed) / BLOCK);
    if (w->states)
        assert_true(kv->states[r->slot] == history(r->space, r->tokens, r->computed));
}

/* ---- operations ---- */

/* A row whose tokens begin like something that was published, more often than not. */
static void start(world *w, row *r, bool exact)
{
    qn_err err = {0};
    *r = (row){.live = true, .space = rng(3), .len = 1 + rng(MAX_LEN - 1)};
    for (uint32_t i = 0; i < MAX_LEN; i++) r->tokens[i] = rng(2);
    if (w->n_records && rng(4)) {
        const record *x = &w->records[rng(w->n_records)];
        memcpy(r->tokens, x->tokens, rng(x->n + 1) * sizeof *r->tokens);
        if (rng(4)) r->space = x->space;
    }
    assert_int_equal(qn_table_init(&r->table, w->blocks, MAX_LEN, &err), QN_OK);
    if (w->states) r->slot = qn_states_take(w->states);
    uint32_t limit = r->len - 1, want = listed(w, r, limit), shared[QN_MAX_KV_GROUPS];
    uint32_t known = qn_prefix_known(w->prefix, r->space, r->tokens, limit, shared);
    r->computed = qn_prefix_take(w->prefix, r->space, r->tokens, limit, &r->table, r->slot,
                                 &r->place);
    assert_int_equal(r->computed, known);
    assert_true(shared[0] * BLOCK <= known);
    if (exact) assert_int_equal(known, want);
    else assert_true(known <= want);
    check_row(w, r);
}

static void publish(world *w, row *r, bool tail, bool final)
{
    if (tail && w->states) {
        qn_prefix_checkpoint(w->prefix, r->tokens, r->computed, r->slot, final, &r->table,
                             &r->place);
    } else {
        qn_prefix_publish(w->prefix, r->tokens, r->computed, tail, &r->table, &r->place);
    }
    uint32_t n = tail ? r->computed : r->computed / BLOCK * BLOCK;
    if (n && (tail || !w->states)) record_start(w, r, n);
}

static void advance(world *w, row *r)
{
    uint32_t n = 1 + rng(40);
    if (n > r->len - r->computed) n = r->len - r->computed;
    for (uint32_t g = 0; g < w->n_groups; g++)
        qn_prefix_make_room(w->prefix, g, qn_table_need(&r->table, w->blocks, g, r->computed, n));
    if (!n || !qn_table_extend(&r->table, w->blocks, r->computed, n)) return;
    qn_kv *kv = qn_blocks_kv(w->blocks);
    for (uint32_t p = r->computed; p < r->computed + n; p++) {
        for (uint32_t g = 0; g < w->n_groups; g++) {
            uint32_t id = block_at(w, r, g, p);
            kv->cells[g][id * BLOCK + p % BLOCK] = history(r->space, r->tokens, p + 1);
        }
    }
    r->computed += n;
    if (w->states) kv->states[r->slot] = history(r->space, r->tokens, r->computed);
    publish(w, r, rng(6) == 0, false);
    qn_table_slide(&r->table, w->blocks, r->computed);
    check_row(w, r);
}

static void end(world *w, row *r, bool keep)
{
    if (keep && r->computed) publish(w, r, true, true);
    qn_prefix_leave(w->prefix, &r->place);
    qn_table_release(&r->table, w->blocks);
    if (w->states) qn_states_unref(w->states, r->slot);
    r->live = false;
    qn_prefix_trim(w->prefix);
}

static void run(uint32_t seed, uint32_t n_blocks, qn_kv_rule rule, uint32_t checkpoints,
                uint64_t max_bytes, bool exact)
{
    static world w;
    rng_state = seed;
    /* No kept block, one, two; chunks of whole blocks, of parts, of less than one; now and then the group
     * is the only one. */
    static const uint32_t chunks[] = {3 * BLOCK, 21, BLOCK, 7};
    const qn_kv_group groups[] = {{0},
                                  {QN_KV_SLIDING, WINDOW, seed % 3 * 9},
                                  {QN_KV_CHUNKED, chunks[seed / 2 % 4], 0}};
    open_world(&w, n_blocks, groups[rule], seed % 4 == 3, checkpoints, max_bytes);
    for (int i = 0; i < 400; i++) {
        row *r = &w.rows[rng(ROWS)];
        uint32_t what = rng(10);
        if (!r->live) start(&w, r, exact);
        else if (what < 7) advance(&w, r);
        else end(&w, r, what < 9);
        if (!exact && rng(100) == 0) qn_prefix_flush(w.prefix);
        audit(&w);
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        if (w.rows[i].live) end(&w, &w.rows[i], true);
    }
    audit(&w);
    if (max_bytes) assert_true(qn_prefix_bytes(w.prefix) <= max_bytes);
    qn_prefix_flush(w.prefix);
    assert_int_equal(qn_prefix_bytes(w.prefix), 0);
    for (uint32_t g = 0; g < w.n_groups; g++)
        assert_int_equal(qn_blocks_available(w.blocks, g), n_blocks);
    qn_prefix_free(w.prefix);
    qn_states_free(w.states);
    qn_blocks_free(w.blocks);
}

static void test_exact(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        for (int rule = QN_KV_FULL; rule <= QN_KV_CHUNKED; rule++) {
            uint32_t seed = 100 + 100 * (uint32_t)rule + i;
            run(seed, 6000, (qn_kv_rule)rule, 0, 0, true);
            run(300 + seed, 6000, (qn_kv_rule)rule, 1000, 0, true);
        }
    }
}

static void test_little_room(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t n_blocks = 14 + rng(40);
        uint64_t bytes = i % 3 ? 0 : 1 + (uint64_t)i * 100;
        for (int rule = QN_KV_FULL; rule <= QN_KV_CHUNKED; rule++) {
            uint32_t seed = 1000 + 1000 * (uint32_t)rule + i;
            run(seed, n_blocks, (qn_kv_rule)rule, 0, bytes, false);
            run(3000 + seed, n_blocks, (qn_kv_rule)rule, 1 + i % 9, bytes, false);
        }
    }
}

/* A row that computes what the tree knows, in a pool with little more room than for itself. */
static void test_computed_again(void **state)
{
    (void)state;
    enum { N_BLOCKS = 12 };
    static world w;
    for (int i = 0; i < 4; i++) {
        qn_err err = {0};
        uint32_t checkpoints = i / 2 * 4;
        rng_state = 7 + (uint32_t)i;
        open_world(&w, N_BLOCKS, (qn_kv_group){i % 2 ? QN_KV_SLIDING : QN_KV_FULL, i % 2 ? WINDOW : 0, 0},
                   false, checkpoints, 0);
        row *a = &w.rows[0], *b = &w.rows[1];
        start(&w, a, false);
        for (a->len = 11 * BLOCK; a->computed < a->len;) advance(&w, a);
        end(&w, a, true);
        *b = *a;
        b->live = true;
        b->computed = 0;
        assert_int_equal(qn_table_init(&b->table, w.blocks, MAX_LEN, &err), QN_OK);
        if (checkpoints) b->slot = qn_states_take(w.states);
        assert_int_equal(qn_prefix_take(w.prefix, b->space, b->tokens, 0, &b->table, b->slot, &b->place), 0);
        for (uint32_t before = 0; b->computed < b->len; before = b->computed) {
            advance(&w, b);
            audit(&w);
            assert_true(b->computed > before);
        }
        end(&w, b, true);
        qn_prefix_free(w.prefix);
        qn_states_free(w.states);
        qn_blocks_free(w.blocks);
    }
}

static uint32_t known_zeros(const world *w, uint32_t n)
{
    static const uint32_t zeros[MAX_LEN];
    return qn_prefix_known(w->prefix, 0, zeros, n, NULL);
}

static void compute_zeros(world *w, uint32_t n)
{
    qn_err err = {0};
    row *r = &w->rows[0];
    *r = (row){.live = true, .len = n};
    assert_int_equal(qn_table_init(&r->table, w->blocks, MAX_LEN, &err), QN_OK);
    r->computed = qn_prefix_take(w->prefix, 0, r->tokens, n - 1, &r->table, 0, &r->place);
    while (r->computed < n) advance(w, r);
    end(w, r, true);
    audit(w);
}

/* Of a path the kept block is the last to go, and what was evicted is known again once a row has
 * computed it again. */
static void test_evicted_windows(void **state)
{
    (void)state;
    enum { N_BLOCKS = 16, LEN = 8 * BLOCK };
    static world w;
    for (uint32_t keep = 0; keep <= 9; keep += 9) {
        open_world(&w, N_BLOCKS, (qn_kv_group){QN_KV_SLIDING, WINDOW, keep}, true, 0, 0);
        for (int turn = 0; turn < 2; turn++) {
            assert_int_equal(known_zeros(&w, LEN), 0);
            compute_zeros(&w, LEN);
            assert_int_equal(known_zeros(&w, LEN), LEN);
            assert_true(qn_prefix_make_room(w.prefix, 0, N_BLOCKS - 1));
            assert_int_equal(known_zeros(&w, BLOCK), keep ? BLOCK : 0);
            assert_true(qn_prefix_make_room(w.prefix, 0, N_BLOCKS));
        }
        qn_prefix_free(w.prefix);
        qn_blocks_free(w.blocks);
    }
}

/* At the start of a chunk a row needs no block of the one before: all can be evicted, and the prefix is
 * known still, but not one token before it. Later the chunk's own blocks are needed. */
static void test_a_chunk_is_over(void **state)
{
    (void)state;
    enum { N_BLOCKS = 16, CHUNK = 3 * BLOCK, LEN = 2 * CHUNK + 1 };
    static world w;
    open_world(&w, N_BLOCKS, (qn_kv_group){QN_KV_CHUNKED, CHUNK, 0}, false, 0, 0);
    compute_zeros(&w, LEN);
    assert_int_equal(known_zeros(&w, LEN), LEN);
    for (uint32_t n = 0; n < LEN / BLOCK; n++) { /* oldest first */
        assert_true(qn_prefix_make_room(w.prefix, 1, qn_blocks_available(w.blocks, 1) + 1));
        const uint32_t gone = (n + 1) * BLOCK;
        for (uint32_t len = 1; len <= LEN; len++) {
            uint32_t start = len / CHUNK * CHUNK;
            assert_int_equal(known_zeros(&w, len), start < gone ? start : len);
        }
    }
    qn_prefix_free(w.prefix);
    qn_blocks_free(w.blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_little_room),
        cmocka_unit_test(test_evicted_windows),
        cmocka_unit_test(test_computed_again),
        cmocka_unit_test(test_a_chunk_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
