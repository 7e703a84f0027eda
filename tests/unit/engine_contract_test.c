/* engine_contract_test.c - the generation contract under the fake model (spec engine 1, 5.3): where
 * prefill chunks end, what the counters say at every kind of end, what cancels a row, what runs
 * between steps, and how long a long prompt holds others up, counted in tokens per step.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/internal.h"
#include "fake_model.h"

enum { CHUNK = 64, MAX_PROMPT = 33000 };

static uint32_t ids[MAX_PROMPT];

typedef struct run {
    uint32_t ends[1024], n_ends; /* PROGRESS events */
    uint32_t tokens[600], n_tokens;
    qn_event done;
} run;

static qn_engine *start(qn_model *m, qn_engine_opts o)
{
    qn_engine *e;
    qn_err err = {0};
    for (uint32_t i = 0; i < MAX_PROMPT; i++) ids[i] = (i * 31 + i / 7) % QN_FAKE_VOCAB;
    if (qn_engine_new(&e, m, &o, &err)) fail_msg("%s", err.text);
    return e;
}

static qn_gen *submit(qn_engine *e, const qn_request *req)
{
    qn_gen *g;
    qn_err err = {0};
    if (qn_engine_submit(e, req, &g, &err)) fail_msg("%s", err.text);
    return g;
}

static bool take(qn_gen *g, run *r)
{
    qn_event ev;
    assert_true(qn_gen_wait(g, &ev, 20000));
    if (ev.kind == QN_EV_PROGRESS) r->ends[r->n_ends++] = ev.done;
    if (ev.kind == QN_EV_TOKEN) r->tokens[r->n_tokens++] = ev.sample.token;
    if (ev.kind == QN_EV_DONE) r->done = ev;
    return ev.kind != QN_EV_DONE;
}

static run finish(qn_gen *g)
{
    run r = {0};
    while (take(g, &r)) {}
    qn_event ev;
    assert_false(qn_gen_next(g, &ev));
    qn_gen_free(g);
    return r;
}

static void stop(qn_engine *e, qn_model *m)
{
    qn_engine_free(e);
    qn_model_close(m);
}

/* The fewest chunks that end at `cut` (if it lies inside) and at n. */
static void check_ends(const run *r, uint32_t cached, uint32_t cut, uint32_t n)
{
    uint32_t at = cached, i = 0;
    while (at < n) {
        uint32_t to = at + CHUNK < n ? at + CHUNK : n;
        if (at < cut && cut < to) to = cut;
        assert_true(i < r->n_ends);
        assert_int_equal(r->ends[i++], at = to);
    }
    assert_int_equal(i, r->n_ends);
}

static const qn_engine_opts small = {
    .block_tokens = 16, .step_tokens = CHUNK, .mixed_tokens = CHUNK, .max_rows = 4};

static void test_lengths(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 2, 2 * CHUNK + 1};
    qn_model *m = qn_fake_model(NULL);
    qn_engine_opts o = small;
    o.no_prefix_cache = true;
    qn_engine *e = start(m, o);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (uint32_t n = 0; n < 3; n++) {
            run r = finish(submit(
                e, &(qn_request){.prompt = ids, .n_prompt = lengths[i], .max_tokens = n}));
            check_ends(&r, 0, 0, lengths[i]);
            const qn_gen_stats *s = &r.done.stats;
            assert_int_equal(r.done.finish, QN_FINISH_LENGTH);
            assert_int_equal(r.n_tokens, n);
            assert_int_equal(s->prompt_tokens, lengths[i]);
            assert_int_equal(s->cached_tokens, 0);
            assert_int_equal(s->generated_tokens, n);
            /* The last token is never forwarded. */
            assert_int_equal(s->stored_tokens, lengths[i] + (n ? n - 1 : 0));
            assert_true(s->prefill_ms > 0 && s->prefill_tok_s > 0);
            assert_true(n < 2 ? s->decode_tok_s == 0 && s->decode_ms == 0 : s->decode_tok_s > 0);
            if (n) assert_int_equal(r.tokens[0], qn_fake_next(m, ids, lengths[i]));
        }
    }
    stop(e, m);
}

/* Only recurrent layers need a checkpoint, and so a chunk that ends there. */
static void snapshot_case(bool recurrent, uint32_t at)
{
    enum { CACHED = 48, L = 200 };
    qn_model *m = qn_fake_model(&(qn_fake_opts){.recurrent = recurrent});
    qn_engine_opts o = small;
    o.checkpoint_min = 1;
    qn_engine *e = start(m, o);
    finish(submit(e, &(qn_request){.prompt = ids, .n_prompt = CACHED}));
    run r = finish(submit(e, &(qn_request){.prompt = ids, .n_prompt = L, .snapshot_at = at,
                                           .max_tokens = 2}));
    assert_int_equal(r.done.stats.cached_tokens, CACHED);
    uint32_t cut = at && at < L - 1 ? at : L - 1;
    check_ends(&r, CACHED, recurrent ? cut : 0, L);
    assert_int_equal(r.tokens[0], qn_fake_next(m, ids, L));
    /* Another prompt that leaves this one at the snapshot point. */
    static uint32_t other[L];
    memcpy(other, ids, sizeof other);
    if (recurrent && cut > CACHED) {
        other[cut] = (other[cut] + 1) % QN_FAKE_VOCAB;
        r = finish(submit(e, &(qn_request){.prompt = other, .n_prompt = L, .max_tokens = 1}));
        assert_int_equal(r.done.stats.cached_tokens, cut);
        assert_int_equal(r.tokens[0], qn_fake_next(m, other, L));
    }
    stop(e, m);
}

static void test_snapshot(void **state)
{
    (void)state;
    static const uint32_t at[] = {0, 1, 48, 49, 100, 199, 200, 205, UINT32_MAX};
    for (size_t i = 0; i < 2 * (sizeof at / sizeof *at); i++) snapshot_case(i % 2, at[i / 2]);
}

static void test_first_token_ends(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, small);
    uint32_t eos = qn_fake_next(m, ids, 10);
    qn_request req = {.prompt = ids, .n_prompt = 10, .max_tokens = 5, .eos = &eos, .n_eos = 1};
    run r = finish(submit(e, &req));
    assert_int_equal(r.done.finish, QN_FINISH_STOP);
    assert_int_equal(r.done.stats.generated_tokens, 1);
    assert_int_equal(r.done.stats.stored_tokens, 10);
    assert_true(r.done.stats.decode_tok_s == 0);
    req.ignore_eos = true;
    r = finish(submit(e, &req));
    assert_int_equal(r.done.finish, QN_FINISH_LENGTH);
    assert_int_equal(r.tokens[0], eos);
    req.ignore_eos = false;
    req.min_tokens = 1; /* the end is not to be had before that */
    r = finish(submit(e, &req));
    assert_int_equal(r.done.finish, QN_FINISH_LENGTH);
    assert_int_not_equal(r.tokens[0], eos);
    stop(e, m);
}

/* The reader ends the row at token 0, at token 1, at the last one: the counters say what is stored.
 */
static void test_reader_stops(void **state)
{
    (void)state;
    enum { L = 20, N = 60 };
    static const uint32_t after[] = {1, 2, N};
    qn_model *m = qn_fake_model(&(qn_fake_opts){.step_us = 1000});
    qn_engine_opts o = small;
    o.no_prefix_cache = true;
    qn_engine *e = start(m, o);
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        qn_gen *g = submit(e, &(qn_request){.prompt = ids, .n_prompt = L, .max_tokens = N});
        run r = {0};
        while (take(g, &r)) {
            if (r.n_tokens == after[i]) qn_gen_cancel(g);
        }
        qn_gen_free(g);
        bool all = r.n_tokens == N;
        assert_int_equal(r.done.finish, all ? QN_FINISH_LENGTH : QN_FINISH_CANCELLED);
        assert_int_equal(r.done.err.code, QN_OK);
        assert_int_equal(r.done.stats.generated_tokens, r.n_tokens);
        assert_int_equal(r.done.stats.stored_tokens, L + r.n_tokens - 1);
        assert_true(all == (after[i] == N));
        /* Within one step of the call, and one that was under way. */
        assert_true(r.n_tokens <= after[i] + 3);
    }
    stop(e, m);
}

static void test_cancel_in_prefill(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(&(qn_fake_opts){.step_us = 5000});
    qn_engine *e = start(m, small);
    qn_gen *g = submit(e, &(qn_request){.prompt = ids, .n_prompt = 20 * CHUNK, .max_tokens = 1});
    run r = {0};
    while (take(g, &r)) {
        if (r.n_ends == 2) qn_gen_cancel(g);
    }
    qn_gen_free(g);
    assert_int_equal(r.done.finish, QN_FINISH_CANCELLED);
    assert_true(r.n_ends >= 2 && r.n_ends <= 5);
    assert_int_equal(r.done.stats.stored_tokens, r.ends[r.n_ends - 1]);
    assert_int_equal(r.done.stats.generated_tokens, 0);
    /* What was computed is known to the next request. */
    r = finish(submit(e, &(qn_request){.prompt = ids, .n_prompt = 20 * CHUNK, .max_tokens = 1}));
    assert_true(r.done.stats.cached_tokens >= 2 * CHUNK);
    assert_int_equal(r.tokens[0], qn_fake_next(m, ids, 20 * CHUNK));
    stop(e, m);
}

/* A row whose events nobody takes is cancelled in time; others never notice. */
static void test_stuck_reader(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(NULL);
    qn_engine_opts o = small;
    o.sink_timeout_ms = 100;
    qn_engine *e = start(m, o);
    qn_gen *stuck = submit(e, &(qn_request){.prompt = ids, .n_prompt = 5, .max_tokens = 1000});
    run r = finish(submit(e, &(qn_request){.prompt = ids, .n_prompt = 6, .max_tokens = 500}));
    assert_int_equal(r.done.finish, QN_FINISH_LENGTH);
    qn_engine_stats s = {0};
    for (int i = 0; i < 5000 && s.finished < 2; i++) {
        usleep(1000);
        qn_engine_stats_get(e, &s);
    }
    assert_int_equal(s.finished, 2);
    r = finish(stuck);
    assert_int_equal(r.done.finish, QN_FINISH_CANCELLED);
    assert_int_equal(r.done.err.code, QN_CANCELLED);
    assert_true(r.n_tokens > 200 && r.n_tokens < 300);
    stop(e, m);
}

/* A row whose events nobody takes has the blocks that another one needs: it gives them up, and goes on
 * from there, to the same tokens, once somebody reads. With a time limit it ends in the meantime. */
static void sleeper_case(uint32_t timeout_ms)
{
    enum { N = 400 };
    qn_model *m = qn_fake_model(NULL);
    qn_engine_opts o = small;
    o.max_positions = 5 + N;
    o.kv_bytes = ((5 + N) / 16 + 4) * 64u; /* for little more than one row */
    o.sink_timeout_ms = timeout_ms;
    qn_engine *e = start(m, o);
    e->audit = true;
    qn_gen *asleep = submit(e, &(qn_request){.prompt = ids, .n_prompt = 5, .max_tokens = N});
    qn_gen *awake = submit(e, &(qn_request){.prompt = ids + 100, .n_prompt = 5, .max_tokens = N});
    run r = finish(awake);
    assert_int_equal(r.done.finish, QN_FINISH_LENGTH);
    assert_int_equal(r.n_tokens, N);
    qn_engine_stats s = {0};
    for (int i = 0; timeout_ms && i < 5000 && s.finished < 2; i++) {
        usleep(1000);
        qn_engine_stats_get(e, &s);
    }
    r = finish(asleep);
    assert_int_equal(r.done.finish, timeout_ms ? QN_FINISH_CANCELLED : QN_FINISH_LENGTH);
    assert_true(timeout_ms ? r.n_tokens > 200 : r.n_tokens == N);
    for (uint32_t i = 0; i < r.n_tokens; i++) {
        uint32_t next = qn_fake_next(m, ids, 5 + i);
        assert_int_equal(r.tokens[i], next);
        ids[5 + i] = next;
    }
    stop(e, m);
}

static void test_sleeper(void **state)
{
    (void)state;
    sleeper_case(0);
    sleeper_case(300);
}

/* The device fails in a step: its rows end with that error and without a token of it, whether it was a
 * piece of a prompt, a token like others or the last one; others, and who comes later, go on. */
static void failure_case(uint32_t step)
{
    enum { N = 12, L = 100 };
    qn_model *m = qn_fake_model(&(qn_fake_opts){.fail_step = step, .recurrent = step % 2});
    qn_engine_opts o = small;
    o.max_rows = 1;
    qn_engine *e = start(m, o);
    e->audit = true;
    qn_request req = {.prompt = ids, .n_prompt = L, .max_tokens = N};
    qn_gen *g = submit(e, &req), *next = submit(e, &req);
    run r = finish(g), later = finish(next);
    assert_int_equal(r.done.finish, QN_FINISH_ERROR);
    assert_int_equal(r.done.err.code, QN_DEVICE);
    assert_int_equal(r.done.stats.generated_tokens, r.n_tokens);
    assert_int_equal(r.n_tokens, step < 3 ? 0 : step - 2); /* the prompt takes two steps */
    assert_int_equal(later.done.finish, QN_FINISH_LENGTH);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t want = qn_fake_next(m, ids, L + i);
        assert_int_equal(later.tokens[i], want);
        if (i < r.n_tokens) assert_int_equal(r.tokens[i], want);
        ids[L + i] = want;
    }
    stop(e, m);
}

static void test_failed_step(void **state)
{
    (void)state;
    for (uint32_t step = 1; step <= 13; step++) failure_case(step);
}

/* No token is possible: the row ends with an error that says so, and only that row. */
static void test_no_token(void **state)
{
    (void)state;
    static qn_logit_bias never[QN_FAKE_VOCAB];
    for (uint32_t i = 0; i < QN_FAKE_VOCAB; i++) never[i] = (qn_logit_bias){i, -INFINITY};
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, small);
    qn_request req = {.prompt = ids, .n_prompt = 30, .max_tokens = 50};
    qn_gen *good = submit(e, &req);
    req.sampling = (qn_sampling){.bias = never, .n_bias = QN_FAKE_VOCAB};
    run r = finish(submit(e, &req)), other = finish(good);
    assert_int_equal(r.done.finish, QN_FINISH_ERROR);
    assert_non_null(strstr(r.done.err.text, "no token that could follow position 29"));
    assert_int_equal(r.n_tokens, 0);
    assert_int_equal(other.done.finish, QN_FINISH_LENGTH);
    assert_int_equal(other.n_tokens, 50);
    stop(e, m);
}

/* ---- a state that must not be ---- */

static qn_table thief;

static qn_code steal(void *user, qn_err *err)
{
    qn_engine *e = user;
    qn_code rc = qn_table_init(&thief, e->blocks, e->o.max_positions, err);
    uint32_t n = qn_blocks_available(e->blocks, 0) * qn_blocks_tokens(e->blocks);
    if (!rc) qn_check(qn_table_extend(&thief, e->blocks, 0, n));
    return rc;
}

static qn_code give_up(void *user, qn_err *err)
{
    (void)err;
    qn_table_release(&thief, ((qn_engine *)user)->blocks);
    return QN_OK;
}

/* Blocks have gone astray, so that no step can be planned: the engine says so and ends rows, instead of
 * sleeping beside them for ever. */
static void test_no_step(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(NULL);
    qn_engine_opts o = small;
    o.kv_bytes = 40 * 64u;
    qn_engine *e = start(m, o);
    qn_err err = {0};
    assert_int_equal(qn_engine_exclusive(e, steal, e, &err), QN_OK);
    qn_gen *g[3];
    for (int i = 0; i < 3; i++)
        g[i] = submit(e, &(qn_request){.prompt = ids, .n_prompt = 20, .max_tokens = 3});
    for (int i = 0; i < 3; i++) {
        run r = finish(g[i]);
        assert_int_equal(r.done.finish, QN_FINISH_ERROR);
        assert_non_null(strstr(r.done.err.text, "no step can be planned"));
    }
    assert_int_equal(qn_engine_exclusive(e, give_up, e, &err), QN_OK);
    run r = finish(submit(e, &(qn_request){.prompt = ids, .n_prompt = 20, .max_tokens = 3}));
    assert_int_equal(r.done.finish, QN_FINISH_LENGTH);
    stop(e, m);
}

/* ---- exclusive jobs ---- */

typedef struct jobs {
    qn_model *model;
    qn_engine *engine;
    _Atomic uint32_t next; /* jobs run so far */
    _Atomic uint32_t wrong;
    uint32_t number;       /* of this caller */
} jobs;

static jobs shared;

static qn_code one_job(void *user, qn_err *err)
{
    uint64_t before = qn_fake_steps(shared.model);
    usleep(3000);
    if (qn_fake_steps(shared.model) != before) shared.wrong++;
    shared.next++;
    return *(uint32_t *)user % 2 ? qn_err_set(err, QN_LIMIT, "odd") : QN_OK;
}

static void *caller(void *arg)
{
    qn_err err = {0};
    uint32_t number = *(uint32_t *)arg;
    for (int i = 0; i < 5; i++) {
        err = (qn_err){0};
        if (qn_engine_exclusive(shared.engine, one_job, &number, &err) !=
            (number % 2 ? QN_LIMIT : QN_OK)) {
            shared.wrong++;
        }
    }
    return NULL;
}

static void test_exclusive(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(&(qn_fake_opts){.step_us = 500});
    qn_engine *e = start(m, small);
    shared = (jobs){.model = m, .engine = e};
    qn_gen *g = submit(e, &(qn_request){.prompt = ids, .n_prompt = 100, .max_tokens = 200});
    pthread_t threads[3];
    uint32_t numbers[3] = {0, 1, 2};
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, caller, &numbers[i]), 0);
    run r = finish(g);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    assert_int_equal(shared.next, 15);
    assert_int_equal(shared.wrong, 0);
    assert_int_equal(r.n_tokens, 200);
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t next = qn_fake_next(m, ids, 100 + i);
        assert_int_equal(r.tokens[i], next);
        ids[100 + i] = next;
    }
    stop(e, m);
}

/* Jobs run in the order of the calls: they are queued while a first one holds the thread. */
static uint32_t order[8], n_order;

static qn_code note(void *user, qn_err *err)
{
    (void)err;
    order[n_order++] = *(uint32_t *)user;
    if (n_order > 1) return QN_OK;
    for (int i = 0; i < 5000; i++) { /* until the others wait */
        pthread_mutex_lock(&shared.engine->lock);
        uint32_t n = 0;
        for (qn_job *j = shared.engine->jobs; j; j = j->next) n++;
        pthread_mutex_unlock(&shared.engine->lock);
        if (n == 4) return QN_OK;
        usleep(1000);
    }
    return QN_OK;
}

static void *note_caller(void *arg)
{
    qn_err err = {0};
    qn_engine_exclusive(shared.engine, note, arg, &err);
    return NULL;
}

static void test_exclusive_order(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, small);
    shared = (jobs){.model = m, .engine = e};
    pthread_t threads[5];
    uint32_t numbers[5] = {0, 1, 2, 3, 4};
    n_order = 0;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, note_caller, &numbers[i]), 0);
        usleep(20000);
    }
    for (int i = 0; i < 5; i++) pthread_join(threads[i], NULL);
    assert_int_equal(n_order, 5);
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(order[i], i);
    stop(e, m);
}

/* ---- a long prompt beside short ones ---- */

enum { ROWS = 8, REPLY = 250, LONG = 32768, MIXED = 256 };

static qn_engine *watched;
static struct { uint32_t n_mixed, fewest, largest; } seen;

/* After a step: if the long prompt was in it beside others, how many those were, and its tokens. */
static void watch(bool begins)
{
    const qn_batch *b = &watched->plan.batch;
    uint32_t n_others = 0;
    bool prompt = false;
    if (begins) return; /* the plan is the last step's, and its rows may be gone */
    for (uint32_t i = 0; i < b->n_items; i++) {
        prompt |= watched->plan.item_gen[i]->n_prompt == LONG;
        n_others += watched->plan.item_gen[i]->n_prompt != LONG;
    }
    if (!prompt || n_others == 0) return;
    if (seen.n_mixed++ == 0 || n_others < seen.fewest) seen.fewest = n_others;
    if (b->n_tokens > seen.largest) seen.largest = b->n_tokens;
}

/* 8 rows decode, a prompt of 32k tokens arrives: every step that it is part of carries all of them,
 * and none is larger than 1.5 times a mixed step. So no row waits longer than for one such step. */
static void test_long_prompt(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(&(qn_fake_opts){.max_positions = LONG + 16, .step_us = 1000});
    qn_engine *e = start(m, (qn_engine_opts){.max_rows = ROWS + 1, .step_tokens = MIXED * 4,
                                             .mixed_tokens = MIXED});
    qn_gen *rows[ROWS], *big;
    run r[ROWS] = {0}, last = {0};
    watched = e;
    e->on_step = watch;
    for (int i = 0; i < ROWS; i++) {
        qn_request req = {.prompt = ids + i, .n_prompt = 10, .max_tokens = REPLY};
        rows[i] = submit(e, &req);
    }
    for (int i = 0; i < ROWS; i++) {
        while (r[i].n_tokens == 0) take(rows[i], &r[i]);
    }
    big = submit(e, &(qn_request){.prompt = ids, .n_prompt = LONG, .max_tokens = 1});
    while (take(big, &last)) {}
    assert_int_equal(last.tokens[0], qn_fake_next(m, ids, LONG));
    for (int i = 0; i < ROWS; i++) {
        while (take(rows[i], &r[i])) {}
        assert_int_equal(r[i].n_tokens, REPLY);
        qn_gen_free(rows[i]);
    }
    qn_gen_free(big);
    stop(e, m);
    assert_true(seen.n_mixed >= LONG / MIXED / 2);
    assert_int_equal(seen.fewest, ROWS);
    assert_true(seen.largest <= (MIXED + ROWS) * 3 / 2);
}

/* ---- prompts of one step ---- */

static _Atomic uint32_t most_prompts;

static void count_prompts(bool begins)
{
    const qn_batch *b = &watched->plan.batch;
    uint32_t n = 0;
    for (uint32_t i = 0; !begins && i < b->n_items; i++) n += b->items[i].n_new > 1;
    if (n > most_prompts) most_prompts = n;
}

/* Many short prompts: no more than prefill_rows share a step, and without the option eight. */
static void test_prefill_rows(void **state)
{
    (void)state;
    enum { N = 12 };
    for (uint32_t most = 0; most < 4; most++) {
        qn_model *m = qn_fake_model(&(qn_fake_opts){.step_us = 500});
        qn_engine *e = start(m, (qn_engine_opts){.max_rows = N, .prefill_rows = most});
        qn_gen *g[N];
        watched = e;
        most_prompts = 0;
        e->on_step = count_prompts;
        for (uint32_t i = 0; i < N; i++)
            g[i] = submit(e, &(qn_request){.prompt = ids + i, .n_prompt = 20, .max_tokens = 3});
        for (uint32_t i = 0; i < N; i++) assert_int_equal(finish(g[i]).n_tokens, 3);
        stop(e, m);
        assert_true(most_prompts <= (most ? most : 8));
        assert_true(most_prompts >= (most ? most : 4));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),       cmocka_unit_test(test_snapshot),
        cmocka_unit_test(test_first_token_ends), cmocka_unit_test(test_reader_stops),
        cmocka_unit_test(test_cancel_in_prefill), cmocka_unit_test(test_stuck_reader),
        cmocka_unit_test(test_sleeper),       cmocka_unit_test(test_no_step),
        cmocka_unit_test(test_failed_step), cmocka_unit_test(test_no_token),
        cmocka_unit_test(test_exclusive),     cmocka_unit_test(test_exclusive_order),
        cmocka_unit_test(test_long_prompt),   cmocka_unit_test(test_prefill_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
