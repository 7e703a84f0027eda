/* engine_schedule_test.c - the engine under a fake model: every token is checked against the hash
 * of its history, so a wrong block, position, preemption or mix-up shows as a wrong token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "engine/internal.h"
#include "fake_model.h"

static uint32_t rng_state = 1;

static uint32_t rng(uint32_t n)
{
    rng_state = rng_state * 1664525u + 1013904223u;
    return (rng_state >> 8) % n;
}

enum { MAX_PROMPT = 4300 };

typedef struct request {
    uint32_t prompt[MAX_PROMPT], n_prompt, max_tokens;
    uint64_t space;
    uint32_t tokens[600], n_tokens;
    bool done;
    qn_finish finish;
    qn_gen_stats stats;
    double start_ms; /* when it first ran; 0: never */
    qn_gen *gen;
} request;

static void make(request *q, uint32_t n_prompt, uint32_t max_tokens)
{
    *q = (request){.n_prompt = n_prompt, .max_tokens = max_tokens};
    for (uint32_t i = 0; i < n_prompt; i++) q->prompt[i] = rng(QN_FAKE_VOCAB);
    /* Half of the prompts start like others, for the prefix cache. */
    uint32_t same = rng(2) ? rng(n_prompt + 1) : 0;
    for (uint32_t i = 0; i < same; i++) q->prompt[i] = i * 7 % QN_FAKE_VOCAB;
}

static void submit(qn_engine *e, request *q)
{
    qn_err err = {0};
    qn_request r = {.prompt = q->prompt,
                    .n_prompt = q->n_prompt,
                    .max_tokens = q->max_tokens,
                    .cache_space = q->space};
    assert_int_equal(qn_engine_submit(e, &r, &q->gen, &err), QN_OK);
}

static void take(request *q, const qn_event *ev)
{
    assert_false(q->done);
    if (ev->kind == QN_EV_TOKEN) {
        assert_int_equal(ev->index, q->n_tokens);
        q->tokens[q->n_tokens++] = ev->sample.token;
    } else if (ev->kind == QN_EV_DONE) {
        q->done = true;
        q->finish = ev->finish;
        q->stats = ev->stats;
    }
}

static void finish(request *q)
{
    qn_event ev;
    while (!q->done) {
        assert_true(qn_gen_wait(q->gen, &ev, 20000));
        take(q, &ev);
    }
    assert_false(qn_gen_next(q->gen, &ev));
    q->start_ms = q->gen->admit_ms;
    qn_gen_free(q->gen);
}

/* Every token so far is the model's answer to its history. */
static void verify(const qn_model *m, const request *q)
{
    uint32_t history[MAX_PROMPT + 600];
    memcpy(history, q->prompt, q->n_prompt * sizeof *history);
    for (uint32_t i = 0; i < q->n_tokens; i++) {
        assert_int_equal(q->tokens[i], qn_fake_next(m, history, q->n_prompt + i));
        history[q->n_prompt + i] = q->tokens[i];
    }
}

static qn_engine *start(qn_model *m, const qn_engine_opts *o)
{
    qn_engine *e;
    qn_err err = {0};
    if (qn_engine_new(&e, m, o, &err)) fail_msg("%s", err.text);
    e->audit = true; /* every step checks the invariants */
    return e;
}

static void stop(qn_engine *e, qn_model *m)
{
    qn_engine_free(e);
    qn_model_close(m);
}

static void wait_idle(qn_engine *e)
{
    qn_engine_stats s;
    for (int i = 0; i < 2000; i++) {
        qn_engine_stats_get(e, &s);
        if (s.active_rows == 0 && s.waiting_rows == 0 && s.finished == s.submitted &&
            s.kv_bytes_used == 0)
            break;
        usleep(1000);
    }
    assert_int_equal(s.active_rows, 0);
    assert_int_equal(s.waiting_rows, 0);
    assert_int_equal(s.finished, s.submitted);
    assert_int_equal(s.kv_bytes_used, 0);
    assert_true(qn_blocks_sound(e->blocks));
}

static void test_one(void **state)
{
    (void)state;
    const uint32_t lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 200, 513};
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16, .step_tokens = 64});
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        request q;
        make(&q, lengths[i], 40);
        submit(e, &q);
        finish(&q);
        assert_int_equal(q.finish, QN_FINISH_LENGTH);
        assert_int_equal(q.n_tokens, 40);
        assert_int_equal(q.stats.prompt_tokens, lengths[i]);
        assert_int_equal(q.stats.generated_tokens, 40);
        verify(m, &q);
    }
    wait_idle(e);
    stop(e, m);
}

static void test_eos(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, NULL);
    request q;
    make(&q, 5, 10);
    uint32_t eos = qn_fake_next(m, q.prompt, 5);
    qn_request r = {.prompt = q.prompt, .n_prompt = 5, .max_tokens = 10, .eos = &eos, .n_eos = 1};
    qn_err err = {0};
    assert_int_equal(qn_engine_submit(e, &r, &q.gen, &err), QN_OK);
    finish(&q);
    assert_int_equal(q.finish, QN_FINISH_STOP);
    assert_int_equal(q.n_tokens, 1);
    assert_int_equal(q.stats.generated_tokens, 1);

    make(&q, 5, 10);
    eos = qn_fake_next(m, q.prompt, 5);
    r = (qn_request){.prompt = q.prompt,
                     .n_prompt = 5,
                     .max_tokens = 10,
                     .eos = &eos,
                     .n_eos = 1,
                     .ignore_eos = true};
    assert_int_equal(qn_engine_submit(e, &r, &q.gen, &err), QN_OK);
    finish(&q);
    assert_int_equal(q.finish, QN_FINISH_LENGTH);
    assert_int_equal(q.n_tokens, 10);
    stop(e, m);
}

static void test_no_tokens_wanted(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, &(qn_engine_opts){.step_tokens = 16, .mixed_tokens = 16});
    request q;
    make(&q, 100, 0);
    submit(e, &q);
    finish(&q);
    assert_int_equal(q.finish, QN_FINISH_LENGTH);
    assert_int_equal(q.n_tokens, 0);
    wait_idle(e);
    stop(e, m);
}

static void test_refusals(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(&(qn_fake_opts){.max_positions = 128});
    qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16});
    uint32_t ids[200] = {0};
    qn_gen *g;
    qn_err err = {0};
    qn_request r = {.prompt = ids, .n_prompt = 0, .max_tokens = 1};
    assert_int_equal(qn_engine_submit(e, &r, &g, &err), QN_INVALID);
    assert_null(g);
    qn_err_clear(&err);
    r.n_prompt = 128;
    assert_int_equal(qn_engine_submit(e, &r, &g, &err), QN_LIMIT);
    assert_non_null(strstr(err.text, "context length of 128"));
    assert_false(qn_engine_memory_binds(e));
    qn_err_clear(&err);
    r.n_prompt = 1;
    ids[0] = QN_FAKE_VOCAB;
    assert_int_equal(qn_engine_submit(e, &r, &g, &err), QN_INVALID);
    qn_err_clear(&err);
    ids[0] = 0;
    r.sampling.temperature = -1;
    assert_int_equal(qn_engine_submit(e, &r, &g, &err), QN_INVALID);
    stop(e, m);
}

/* Pools too small for the model's context: the engine says what it takes, and takes it. */
static void test_small_pools(void **state)
{
    (void)state;
    for (uint32_t window = 0; window <= 20; window += 20) {
        qn_model *m = qn_fake_model(&(qn_fake_opts){.window = window});
        qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16,
                                                  .step_tokens = 32,
                                                  .max_rows = 1,
                                                  .mixed_tokens = 16,
                                                  .kv_bytes = 20 * 16 * 4});
        uint32_t most = qn_engine_max_positions(e);
        assert_true(most >= 100 && most < 4096);
        request q;
        make(&q, most - 40, 40);
        submit(e, &q);
        finish(&q);
        assert_int_equal(q.n_tokens, 40);
        verify(m, &q);
        /* What no pool of this size can hold is refused at once, and the memory named. */
        assert_true(qn_engine_memory_binds(e));
        qn_request r = {.prompt = q.prompt, .n_prompt = most - 40, .max_tokens = 41};
        qn_err err = {0};
        assert_int_equal(qn_engine_submit(e, &r, &q.gen, &err), QN_LIMIT);
        assert_int_equal(strncmp(err.text, "memory_admission: ", 18), 0);
        assert_non_null(strstr(err.text, "4096"));
        qn_engine_stats s;
        qn_engine_stats_get(e, &s);
        assert_true(s.kv_bytes_peak > s.kv_bytes_total / 2 && s.kv_bytes_peak <= s.kv_bytes_total);
        stop(e, m);
    }
}

static void test_queue_full(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(&(qn_fake_opts){.step_us = 1000});
    qn_engine *e = start(m, &(qn_engine_opts){.max_rows = 1, .max_queue = 2});
    request q[3];
    for (int i = 0; i < 3; i++) {
        make(&q[i], 4, 200);
        submit(e, &q[i]);
    }
    qn_err err = {0};
    qn_gen *g;
    qn_request r = {.prompt = q[0].prompt, .n_prompt = 4, .max_tokens = 1};
    int refused = 0;
    for (int i = 0; i < 3 && !refused; i++) {
        if (qn_engine_submit(e, &r, &g, &err) == QN_CANCELLED) refused = 1;
        else qn_gen_free(g);
    }
    assert_int_equal(refused, 1);
    for (int i = 0; i < 3; i++) {
        qn_gen_cancel(q[i].gen);
        finish(&q[i]);
        assert_int_equal(q[i].finish, QN_FINISH_CANCELLED);
    }
    wait_idle(e);
    stop(e, m);
}

/* Nobody reads: the row pauses, others go on, and reading resumes it. */
static void test_slow_reader(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, NULL);
    request slow, fast;
    make(&slow, 3, 590);
    make(&fast, 3, 500);
    submit(e, &slow);
    usleep(20000);
    submit(e, &fast);
    finish(&fast);
    verify(m, &fast);
    qn_engine_stats s;
    qn_engine_stats_get(e, &s);
    assert_int_equal(s.active_rows, 1);
    finish(&slow);
    assert_int_equal(slow.n_tokens, 590);
    verify(m, &slow);
    wait_idle(e);
    stop(e, m);
}

/* A shared prefix is computed once: the work is one prefix and the tails, to the token. */
static void test_shared_prefix(void **state)
{
    (void)state;
    enum { PREFIX = 403, N = 8 };
    for (uint32_t kind = 0; kind < 3; kind++) {
        qn_model *m = qn_fake_model(&(qn_fake_opts){.window = kind ? 40 : 0, .keep = kind == 2 ? 4 : 0,
                                                    .bounded = kind == 2});
        qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16, .step_tokens = 64});
        static request q[N];
        uint64_t want = 0;
        for (uint32_t k = 0; k < N; k++) {
            make(&q[k], PREFIX + 10 + k, 30);
            for (uint32_t i = 0; i < PREFIX; i++) q[k].prompt[i] = i * 13 % QN_FAKE_VOCAB;
            q[k].prompt[PREFIX] = 900 + k; /* differ right after the prefix */
            submit(e, &q[k]);
            finish(&q[k]);
            verify(m, &q[k]);
            assert_int_equal(q[k].stats.cached_tokens, k ? PREFIX : 0);
            want += q[k].n_prompt - q[k].stats.cached_tokens;
        }
        qn_engine_stats s;
        qn_engine_stats_get(e, &s);
        assert_int_equal(s.prompt_tokens, want);
        assert_int_equal(s.cached_tokens, (N - 1) * PREFIX);
        /* The next turn of a conversation starts from everything but the last token of the turn
         * before. */
        request *a = &q[0], b;
        make(&b, a->n_prompt + a->n_tokens + 5, 5);
        memcpy(b.prompt, a->prompt, a->n_prompt * sizeof *b.prompt);
        memcpy(b.prompt + a->n_prompt, a->tokens, a->n_tokens * sizeof *b.prompt);
        submit(e, &b);
        finish(&b);
        verify(m, &b);
        assert_int_equal(b.stats.cached_tokens, a->n_prompt + a->n_tokens - 1);
        /* The same prompt again: all but its last token, whose logits are needed. */
        make(&b, a->n_prompt, 5);
        memcpy(b.prompt, a->prompt, a->n_prompt * sizeof *b.prompt);
        submit(e, &b);
        finish(&b);
        assert_int_equal(b.stats.cached_tokens, a->n_prompt - 1);
        wait_idle(e);
        stop(e, m);
    }
}

/* Requests that come together compute what they share once: the later ones wait for the first. */
static void together(uint32_t prefix, uint32_t window, bool recurrent)
{
    enum { N = 8 };
    qn_model *m = qn_fake_model(
        &(qn_fake_opts){.window = window, .recurrent = recurrent, .max_positions = 8192});
    qn_engine *e = start(m, &(qn_engine_opts){.step_tokens = 128, .checkpoint_tokens = 1024});
    static request q[N];
    uint64_t want = prefix;
    for (uint32_t k = 0; k < N; k++) {
        make(&q[k], prefix + 10 + 7 * k, 30);
        for (uint32_t i = 0; i < prefix; i++) q[k].prompt[i] = i * 13 % QN_FAKE_VOCAB;
        q[k].prompt[prefix] = 900 + k;
        want += q[k].n_prompt - prefix;
    }
    for (uint32_t k = 0; k < N; k++) submit(e, &q[k]);
    uint64_t cached = 0;
    for (uint32_t k = 0; k < N; k++) {
        finish(&q[k]);
        verify(m, &q[k]);
        cached += q[k].stats.cached_tokens;
        assert_int_equal(q[k].stats.cached_tokens, k ? prefix : 0);
    }
    qn_engine_stats s;
    qn_engine_stats_get(e, &s);
    assert_int_equal(s.prompt_tokens, want);
    assert_int_equal(s.cached_tokens, cached);
    wait_idle(e);
    stop(e, m);
}

static void test_together(void **state)
{
    (void)state;
    together(4096, 0, false);
    together(4099, 0, false);
    together(1000, 40, false);
    together(4096, 0, true);
}

/* The row that the others wait for is given up: they go on without it. */
static void test_together_cancelled(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(&(qn_fake_opts){.step_us = 500, .max_positions = 8192});
    qn_engine *e = start(m, &(qn_engine_opts){.step_tokens = 64});
    static request q[4];
    for (uint32_t k = 0; k < 4; k++) {
        make(&q[k], 2000 + k, 5);
        for (uint32_t i = 0; i < q[k].n_prompt; i++) q[k].prompt[i] = i * 13 % QN_FAKE_VOCAB;
    }
    for (uint32_t k = 0; k < 4; k++) submit(e, &q[k]);
    qn_event ev;
    do assert_true(qn_gen_wait(q[0].gen, &ev, 20000));
    while (ev.done < 500);
    qn_gen_cancel(q[0].gen);
    for (uint32_t k = 0; k < 4; k++) {
        finish(&q[k]);
        verify(m, &q[k]);
        if (k) assert_int_equal(q[k].n_tokens, 5);
    }
    qn_engine_stats s;
    qn_engine_stats_get(e, &s);
    assert_true(s.prompt_tokens <= 2003 + 64); /* what the first had, the second took */
    wait_idle(e);
    stop(e, m);
}

/* Recurrent layers: what is known ends at a checkpoint. Checkpoints are at 100, 200, 300, 332 and,
 * of the whole sequence, 362. `same`: tokens that a second prompt shares; `known`: what it takes. */
static void checkpoint_case(uint32_t n_prompt, uint32_t same, uint32_t known)
{
    qn_model *m = qn_fake_model(&(qn_fake_opts){.recurrent = true});
    qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16,
                                              .step_tokens = 64,
                                              .max_checkpoints = 8,
                                              .checkpoint_tokens = 100,
                                              .checkpoint_min = 200});
    static request a, b;
    make(&a, 333, 30);
    submit(e, &a);
    finish(&a);
    verify(m, &a);
    assert_int_equal(a.stats.cached_tokens, 0);
    memcpy(a.prompt + 333, a.tokens, 30 * sizeof *a.prompt);
    make(&b, n_prompt, 7);
    memcpy(b.prompt, a.prompt, same * sizeof *b.prompt);
    if (same < n_prompt) b.prompt[same] = (a.prompt[same] + 1) % QN_FAKE_VOCAB;
    submit(e, &b);
    finish(&b);
    verify(m, &b);
    assert_int_equal(b.stats.cached_tokens, known);
    wait_idle(e);
    stop(e, m);
}

static void test_checkpoints(void **state)
{
    (void)state;
    checkpoint_case(333, 333, 332); /* the same again */
    checkpoint_case(340, 332, 332);
    checkpoint_case(340, 331, 300);
    checkpoint_case(340, 300, 300);
    checkpoint_case(340, 299, 200);
    checkpoint_case(340, 200, 200);
    checkpoint_case(150, 150, 100);
    checkpoint_case(340, 99, 0);
    checkpoint_case(340, 0, 0);
    checkpoint_case(370, 363, 362); /* the next turn of a conversation */
    checkpoint_case(370, 361, 332);
}

/* The oldest checkpoints make room, and none is left behind when their number is one. */
static void test_few_checkpoints(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(&(qn_fake_opts){.recurrent = true});
    qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16, .max_checkpoints = 1,
                                              .checkpoint_tokens = 50, .checkpoint_min = 1});
    request q;
    make(&q, 333, 0);
    for (int k = 0; k < 2; k++) {
        q.done = false;
        q.n_tokens = 0;
        submit(e, &q);
        finish(&q);
    }
    /* The one at 333 is that of the end, too long for the same prompt again. */
    assert_int_equal(q.stats.cached_tokens, 0);
    assert_int_equal(qn_prefix_checkpoints(e->prefix), 1);
    wait_idle(e);
    stop(e, m);
}

/* The same tokens in another namespace are other tokens. */
static void test_spaces(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16});
    const uint64_t spaces[] = {0, 7, UINT64_MAX, 7, 0};
    request q;
    make(&q, 100, 5);
    for (int k = 0; k < 5; k++) {
        q.done = false;
        q.n_tokens = 0;
        q.space = spaces[k];
        submit(e, &q);
        finish(&q);
        verify(m, &q);
        assert_int_equal(q.stats.cached_tokens, k < 3 ? 0 : 99);
    }
    stop(e, m);
}

/* What nobody uses stays within the limit in bytes. */
static void test_byte_cap(void **state)
{
    (void)state;
    for (uint32_t window = 0; window <= 40; window += 40) {
        qn_model *m = qn_fake_model(&(qn_fake_opts){.window = window, .recurrent = !window});
        uint64_t cap = 10 * 16 * 4;
        qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16, .prefix_bytes = cap});
        request q;
        for (int k = 0; k < 20; k++) {
            make(&q, 1 + rng(300), 5);
            submit(e, &q);
            finish(&q);
            verify(m, &q);
            wait_idle(e);
            qn_engine_stats s;
            qn_engine_stats_get(e, &s);
            assert_true(s.kv_bytes_cached <= cap);
        }
        stop(e, m);
    }
}

/* What the next requests find: the last sequences, as many as may stay, and the beginnings they share. */
static void test_entry_cap(void **state)
{
    (void)state;
    enum { N = 9, CAP = 4, COMMON = 40 };
    for (uint32_t window = 0; window <= 40; window += 40) {
        qn_model *m = qn_fake_model(&(qn_fake_opts){.window = window});
        qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16, .prefix_entries = CAP});
        static request q[N];
        qn_engine_stats s;
        for (uint32_t k = 0; k < N; k++) {
            make(&q[k], 100, 5);
            for (uint32_t i = 0; i < COMMON; i++) q[k].prompt[i] = i;
            q[k].prompt[COMMON] = 900 + k;
            submit(e, &q[k]);
            finish(&q[k]);
            verify(m, &q[k]);
            assert_int_equal(q[k].stats.cached_tokens, k ? COMMON : 0);
            wait_idle(e);
            qn_engine_stats_get(e, &s);
            assert_int_equal(s.cache_entries, k + 1 < CAP ? k + 1 : CAP);
        }
        for (uint32_t k = N; k-- > 0;) { /* the newest first, so that none of them is pushed out */
            request again = q[k];
            again.done = false;
            again.n_tokens = 0;
            submit(e, &again);
            finish(&again);
            assert_int_equal(again.stats.cached_tokens, k + CAP >= N ? 99 : COMMON);
        }
        stop(e, m);
    }
}

static void test_prefix_off(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, &(qn_engine_opts){.no_prefix_cache = true});
    request q;
    make(&q, 100, 5);
    for (int k = 0; k < 2; k++) {
        q.n_tokens = 0;
        q.done = false;
        submit(e, &q);
        finish(&q);
        assert_int_equal(q.stats.cached_tokens, 0);
    }
    stop(e, m);
}

/* Two rows fit as long as they are short: both are admitted, one gives its blocks back and is computed again;
 * or, strictly, the second one waits. */
static void preemption(bool strict)
{
    qn_model *m = qn_fake_model(&(qn_fake_opts){.step_us = 300, .max_positions = 256});
    qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16, .max_rows = 2, .strict_kv = strict,
                                              .kv_bytes = 22 * 16 * 4});
    static request q[4];
    for (uint32_t i = 0; i < 4; i++) {
        make(&q[i], 100, 110);
        q[i].prompt[0] = 500 + i;
        submit(e, &q[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        finish(&q[i]);
        assert_int_equal(q[i].n_tokens, 110);
        verify(m, &q[i]);
    }
    qn_engine_stats stats;
    qn_engine_stats_get(e, &stats);
    assert_int_equal(stats.preemptions > 0, !strict);
    wait_idle(e);
    stop(e, m);
}

static void test_preemption(void **state)
{
    (void)state;
    preemption(false);
    preemption(true);
}

/* Rows that start from the same blocks of a window leave them one after the other, and each takes its
 * own: strictly, all of those are kept free. */
static void test_strict_window(void **state)
{
    (void)state;
    enum { N = 6, PREFIX = 100, WINDOW = 60 };
    for (uint32_t kind = 0; kind < 4; kind++) {
        for (uint32_t blocks = 16; blocks < 40; blocks++) {
            qn_model *m = qn_fake_model(&(qn_fake_opts){.window = WINDOW, .bounded = kind == 1,
                                                        .recurrent = kind == 2, .chunked = kind == 3,
                                                        .max_positions = 256});
            qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16, .max_rows = N, .strict_kv = true,
                                                      .step_tokens = 16, .mixed_tokens = 16,
                                                      .checkpoint_tokens = 10, .checkpoint_min = 1,
                                                      .kv_bytes = (kind == 1 ? 1 : 2) * blocks * 64u});
            static request q[N];
            for (uint32_t i = 0; i < N; i++) {
                make(&q[i], PREFIX + 1, 100);
                for (uint32_t k = 0; k < PREFIX; k++) q[i].prompt[k] = k;
                submit(e, &q[i]);
            }
            for (uint32_t i = 0; i < N; i++) {
                finish(&q[i]);
                verify(m, &q[i]);
            }
            assert_int_equal(e->preemptions, 0);
            wait_idle(e);
            stop(e, m);
        }
    }
}

/* The reserve for replies: a second row of this size begins only when the pool has room for its prompt and
 * its reply, but for no more than 4096 tokens of that. `blocks` of 256 tokens; the first row has one or two
 * of them. Gives whether both run together. */
static bool starts_beside(uint32_t max_tokens, uint32_t blocks)
{
    qn_model *m = qn_fake_model(&(qn_fake_opts){.step_us = 2000, .max_positions = 16384});
    qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 256, .max_rows = 2,
                                              .kv_bytes = blocks * 256 * sizeof(uint32_t)});
    static request q[2];
    qn_event ev = {0};
    for (uint32_t i = 0; i < 2; i++) {
        make(&q[i], 100, max_tokens);
        q[i].prompt[0] = 500 + i;
        submit(e, &q[i]);
        while (i == 0 && ev.kind != QN_EV_TOKEN) assert_true(qn_gen_wait(q[0].gen, &ev, 20000));
    }
    bool together = qn_gen_wait(q[1].gen, &ev, 100);
    if (together) assert_int_equal(ev.kind, QN_EV_ADMITTED);
    for (uint32_t i = 0; i < 2; i++) {
        qn_gen_cancel(q[i].gen);
        qn_gen_free(q[i].gen);
    }
    wait_idle(e);
    stop(e, m);
    return together;
}

static void test_reserve(void **state)
{
    (void)state;
    assert_true(starts_beside(1000, 5 + 2));   /* 1100 tokens: 5 blocks */
    assert_false(starts_beside(1000, 5));
    assert_true(starts_beside(9000, 36 + 2));  /* 9100: 36 blocks */
    assert_true(starts_beside(9000, 36));      /* of which only 17 are kept free */
    assert_true(starts_beside(5000, 17 + 3));
    assert_true(starts_beside(4400, 18));      /* 4196: 17 blocks beside one */
    assert_false(starts_beside(4096, 17));
}

static void free_early(qn_engine *e, request *q)
{
    submit(e, q);
    if (rng(2)) usleep(rng(300));
    qn_gen_free(q->gen);
}

/* Random traffic through pools so small that rows are preempted all the time; every fourth engine
 * admits strictly. */
static void trace(uint32_t seed, qn_fake_opts f)
{
    enum { N = 24 };
    rng_state = seed;
    f.max_positions = 512;
    qn_model *m = qn_fake_model(&f);
    uint32_t block = 16u << rng(3), groups = f.window && !f.bounded ? 2 : 1;
    qn_engine_opts o = {.max_rows = 1 + rng(6), .block_tokens = block, .step_tokens = 16 + rng(200),
                        .mixed_tokens = 8 + rng(64), .max_positions = 512,
                        .kv_bytes = groups * 4u * (700 + rng(900)),
                        .prefix_bytes = rng(3) ? 0 : 1 + rng(4000),
                        .prefix_entries = seed % 5 ? 0 : 1 + seed % 7,
                        .max_checkpoints = 1 + rng(8),
                        .checkpoint_tokens = 1 + rng(100),
                        .checkpoint_min = 1 + rng(200),
                        .strict_kv = seed % 4 == 0};
    qn_engine *e = start(m, &o);
    static request q[N];
    for (int i = 0; i < N; i++) {
        make(&q[i], 1 + rng(250), rng(120));
        q[i].space = rng(4) ? 0 : rng(3);
        if (rng(6) == 0) {
            free_early(e, &q[i]);
            q[i].gen = NULL;
            continue;
        }
        submit(e, &q[i]);
        if (rng(4) == 0) usleep(rng(500));
        if (rng(8) == 0) qn_gen_cancel(q[i].gen);
    }
    for (int i = 0; i < N; i++) {
        if (!q[i].gen) continue;
        finish(&q[i]);
        if (q[i].finish == QN_FINISH_LENGTH) assert_int_equal(q[i].n_tokens, q[i].max_tokens);
        else assert_int_equal(q[i].finish, QN_FINISH_CANCELLED);
        verify(m, &q[i]);
    }
    wait_idle(e);
    double last_ms = 0;
    for (int i = 0; i < N; i++) { /* whoever came first began first */
        if (!q[i].gen || !q[i].start_ms) continue;
        assert_true(q[i].start_ms >= last_ms);
        last_ms = q[i].start_ms;
    }
    assert_true(qn_fake_largest(m) <= e->o.step_tokens);
    if (o.strict_kv) assert_int_equal(e->preemptions, 0);
    stop(e, m);
}

static uint32_t n_traces(void)
{
    return getenv("QUERN_TEST_LONG") ? 1000 : 50;
}

static void test_traces(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_traces(); i++) trace(1000 + i, (qn_fake_opts){0});
}

static void test_traces_window(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_traces(); i++) trace(5000 + i, (qn_fake_opts){.window = 1 + i % 70, .keep = i % 3 * 4});
}

static void test_traces_recurrent(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_traces(); i++)
        trace(9000 + i, (qn_fake_opts){.window = i % 3 ? 0 : 1 + i % 70, .keep = i % 2 * 4,
                                       .recurrent = true});
}

/* A cache of limited size: no group has everything. */
static void test_traces_bounded(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_traces(); i++)
        trace(13000 + i, (qn_fake_opts){.window = 1 + i % 70, .keep = 1 + i % 40, .bounded = true});
}

/* Chunks beside a group that has everything, or alone. */
static void test_traces_chunked(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_traces(); i++)
        trace(17000 + i, (qn_fake_opts){.window = 1 + i * 7 % 130, .chunked = true, .bounded = i % 3 == 0,
                                        .recurrent = i % 3 == 1});
}

/* Whatever the length, a row of a limited cache holds no more than its kept blocks, its window's and
 * the slack, and with chunks no slack; and what was let go is free for others. */
static void test_bounded_memory(void **state)
{
    (void)state;
    enum { BLOCK = 16, SIZE = 40, KEEP = 4, STEP = 32 };
    for (int chunked = 0; chunked < 2; chunked++) {
        const uint32_t keep = chunked ? 0 : KEEP;
        qn_model *m = qn_fake_model(&(qn_fake_opts){.window = SIZE - keep, .keep = keep, .bounded = true,
                                                    .chunked = chunked, .max_positions = 4096});
        qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = BLOCK, .step_tokens = STEP,
                                                  .mixed_tokens = STEP, .max_rows = 2, .no_prefix_cache = true});
        static request q[2];
        for (uint32_t i = 0; i < 2; i++) {
            make(&q[i], 2000, 500);
            submit(e, &q[i]);
        }
        for (uint32_t i = 0; i < 2; i++) {
            finish(&q[i]);
            assert_int_equal(q[i].n_tokens, 500);
            verify(m, &q[i]);
        }
        qn_engine_stats s;
        qn_engine_stats_get(e, &s);
        uint32_t most = (SIZE - keep + 2 * BLOCK + STEP + BLOCK) / BLOCK + 1;
        assert_true(s.kv_bytes_total <= 2 * (most + 2) * BLOCK * sizeof(uint32_t));
        if (chunked) most = (SIZE + STEP + BLOCK - 1) / BLOCK + 1;
        assert_true(s.kv_bytes_peak <= 2 * most * BLOCK * sizeof(uint32_t));
        assert_int_equal(s.preemptions, 0);
        wait_idle(e);
        stop(e, m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_eos),
        cmocka_unit_test(test_no_tokens_wanted),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_small_pools), cmocka_unit_test(test_queue_full),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_shared_prefix),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_together_cancelled),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_few_checkpoints),
        cmocka_unit_test(test_spaces),
        cmocka_unit_test(test_byte_cap),
        cmocka_unit_test(test_entry_cap),
        cmocka_unit_test(test_prefix_off),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_strict_window),
        cmocka_unit_test(test_traces),
        cmocka_unit_test(test_traces_window),
        cmocka_unit_test(test_traces_recurrent),
        cmocka_unit_test(test_traces_chunked),
        cmocka_unit_test(test_traces_bounded),
        cmocka_unit_test(test_bounded_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
