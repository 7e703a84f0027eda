/* The worker pool: every part runs once, results are visible to the caller, no wake-up is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "compute/cpu/pool.h"
#include "core/rt.h"

enum { MAX_PARTS = 300 };

typedef struct counts {
    uint32_t round, n_threads;
    uint32_t ran[MAX_PARTS]; /* written by the thread that holds the part: no atomics needed */
    _Atomic uint32_t bad_thread;
} counts;

static void count_part(void *arg, uint32_t part, uint32_t thread)
{
    counts *c = arg;
    c->ran[part] += c->round;
    if (thread >= c->n_threads) atomic_fetch_add(&c->bad_thread, 1);
}

static void check_round(qn_pool *p, counts *c, uint32_t n_parts)
{
    memset(c->ran, 0, sizeof c->ran);
    c->round++;
    qn_pool_run(p, count_part, c, n_parts);
    for (uint32_t i = 0; i < MAX_PARTS; i++)
        assert_int_equal(c->ran[i], i < n_parts ? c->round : 0);
    assert_int_equal(c->bad_thread, 0);
}

static void nap(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void test_every_part_once(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 5; threads++) {
        qn_pool *p;
        qn_err err = {0};
        assert_int_equal(qn_pool_new(&p, threads, &err), QN_OK);
        assert_int_equal(qn_pool_threads(p), threads);
        counts c = {.n_threads = threads};
        for (uint32_t i = 0; i < 400; i++) check_round(p, &c, i % MAX_PARTS);
        qn_pool_free(p);
    }
}

/* Rests around the time after which workers go to sleep, where a wake-up could be lost. */
static void test_sleep_and_wake(void **state)
{
    (void)state;
    qn_pool *p;
    qn_err err = {0};
    assert_int_equal(qn_pool_new(&p, 3, &err), QN_OK);
    counts c = {.n_threads = 3};
    for (uint32_t i = 0; i < 300; i++) {
        check_round(p, &c, 7);
        nap(i % 3 ? 60000 + (long)i * 400 : 2000000);
    }
    qn_pool_free(p);
}

/* A part that needs another thread to run a part at the same time: fails if a worker never wakes.
 */
static void meet_part(void *arg, uint32_t part, uint32_t thread)
{
    _Atomic uint32_t *arrived = arg;
    (void)part, (void)thread;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < 2) nap(1000);
}

static void test_workers_do_wake(void **state)
{
    (void)state;
    qn_pool *p;
    qn_err err = {0};
    assert_int_equal(qn_pool_new(&p, 2, &err), QN_OK);
    for (uint32_t i = 0; i < 100; i++) {
        _Atomic uint32_t arrived = 0;
        nap(i % 2 ? 1000000 : 100000 + (long)i * 500);
        qn_pool_run(p, meet_part, &arrived, 2);
        assert_int_equal(arrived, 2);
    }
    qn_pool_free(p);
}

static void test_open_and_close(void **state)
{
    (void)state;
    qn_err err = {0};
    qn_pool *p;
    for (uint32_t i = 0; i < 50; i++) {
        assert_int_equal(qn_pool_new(&p, 4, &err), QN_OK);
        if (i % 2) nap(300000);
        qn_pool_free(p);
    }
    qn_pool_free(NULL);
    assert_int_equal(qn_pool_new(&p, QN_MAX_THREADS + 1, &err), QN_INVALID);
    assert_null(p);
}

static void test_default_threads(void **state)
{
    (void)state;
    uint32_t n = qn_pool_default_threads();
    assert_in_range(n, 1, QN_MAX_THREADS);
    const qn_rt *old = qn_rt_set("THREADS", "7");
    assert_int_equal(qn_pool_default_threads(), 7);
    qn_rt_set("THREADS", "100000");
    assert_int_equal(qn_pool_default_threads(), QN_MAX_THREADS);
    qn_rt_set("THREADS", "-3");
    assert_in_range(qn_pool_default_threads(), 1, QN_MAX_THREADS);
    qn_rt_restore(old);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_part_once), cmocka_unit_test(test_sleep_and_wake),
        cmocka_unit_test(test_workers_do_wake), cmocka_unit_test(test_open_and_close),
        cmocka_unit_test(test_default_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
