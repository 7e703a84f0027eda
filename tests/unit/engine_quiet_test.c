/* engine_quiet_test.c - the rule of the quiet loop (spec style 3.4): from planning to the last event
 * of a step nothing takes memory or gives it back, blocks on a lock, touches a file or logs.
 *
 * The linker puts the functions below in front of the system's (tests/CMakeLists.txt). While the
 * engine's hook says that a step runs, a call from any thread but the test's own is counted and the
 * first one is named; the test's thread plays the caller, who may do all that.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "compute/device.h"
#include "core/file.h"
#include "engine/engine.h"
#include "engine/internal.h"
#include "fake_model.h"
#include "synth.h"

static _Atomic bool armed;
static _Atomic uint32_t n_loud, n_steps;
static const char *_Atomic loudest;
static _Thread_local bool exempt;

static void loud(const char *what)
{
    if (!atomic_load(&armed) || exempt) return;
    if (atomic_fetch_add(&n_loud, 1) == 0) atomic_store(&loudest, what);
}

#define QN_WRAP(ret, name, params, args)                                                           \
    ret __real_##name params;                                                                      \
    ret __wrap_##name params;                                                                      \
    ret __wrap_##name params                                                                       \
    {                                                                                              \
        loud(#name);                                                                               \
        return __real_##name args;                                                                 \
    }

QN_WRAP(void *, malloc, (size_t n), (n))
QN_WRAP(void *, calloc, (size_t n, size_t size), (n, size))
QN_WRAP(void *, realloc, (void *p, size_t n), (p, n))
QN_WRAP(void *, aligned_alloc, (size_t align, size_t n), (align, n))
QN_WRAP(int, posix_memalign, (void **p, size_t align, size_t n), (p, align, n))
QN_WRAP(void, free, (void *p), (p))
QN_WRAP(void *, mmap, (void *p, size_t n, int prot, int flags, int fd, off_t at),
        (p, n, prot, flags, fd, at))
QN_WRAP(int, munmap, (void *p, size_t n), (p, n))
QN_WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode))
QN_WRAP(ssize_t, read, (int fd, void *p, size_t n), (fd, p, n))
QN_WRAP(ssize_t, write, (int fd, const void *p, size_t n), (fd, p, n))
QN_WRAP(size_t, fwrite, (const void *p, size_t size, size_t n, FILE *f), (p, size, n, f))
QN_WRAP(int, vfprintf, (FILE *f, const char *fmt, va_list ap), (f, fmt, ap))
QN_WRAP(int, pthread_mutex_lock, (pthread_mutex_t *m), (m))
QN_WRAP(int, pthread_rwlock_wrlock, (pthread_rwlock_t *m), (m))
QN_WRAP(int, sem_wait, (sem_t *s), (s))

static void hook(bool begins)
{
    atomic_store(&armed, begins);
    if (begins) atomic_fetch_add(&n_steps, 1);
}

static void notified(void *user)
{
    atomic_fetch_add((_Atomic uint32_t *)user, 1);
}

static qn_engine *start(qn_model *m, const qn_engine_opts *o)
{
    qn_engine *e;
    qn_err err = {0};
    if (qn_engine_new(&e, m, o, &err)) fail_msg("%s", err.text);
    e->on_step = hook;
    n_loud = n_steps = 0;
    loudest = NULL;
    return e;
}

/* Requests of every kind at once: greedy, all filters with penalties and log-probabilities, a tone curve,
 * reported prompts, hidden states, shared prefixes, one cancelled and one whose handle is given back
 * early. */
static void drive(qn_engine *e, uint32_t n_vocab)
{
    enum { ROWS = 8, PROMPT = 60, REPLY = 40 };
    const qn_logit_bias bias = {3, 1};
    const qn_sampling kinds[] = {
        {0},
        {.temperature = 0.8f, .has_seed = true},
        {.temperature = 0.9f, .top_p = 0.9f, .min_p = 0.01f, .min_tokens_to_keep = 2, .top_k = 40,
         .xtc_probability = 0.5f, .xtc_threshold = 0.1f, .repetition_penalty = 1.2f,
         .presence_penalty = 0.1f, .frequency_penalty = 0.1f, .bias = &bias, .n_bias = 1,
         .logprobs = true, .n_top = 5, .has_seed = true},
        {.logprobs = true, .n_top = 3},
    };
    uint32_t prompt[PROMPT];
    _Atomic uint32_t told = 0;
    qn_gen *rows[ROWS];
    qn_err err = {0};
    for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = i * 5 % n_vocab;
    for (uint32_t i = 0; i < ROWS; i++) {
        prompt[40] = i % 4;
        qn_request req = {.prompt = prompt, .n_prompt = PROMPT, .max_tokens = REPLY,
                          .sampling = kinds[i % 4], .notify = notified, .user = &told};
        req.prompt_logprobs = i == 3;
        if (i == 1 && !e->exact) req.sampling.tone = qn_tone_default(QN_TONE_CURVE);
        req.sampling.tone.pivot = QN_PIVOT_MEDIAN;
        if (i == 4) req.hidden = QN_HIDDEN_ALL;
        if (i == 4) req.max_tokens = 0;
        if (qn_engine_submit(e, &req, &rows[i], &err)) fail_msg("%s", err.text);
    }
    qn_gen_cancel(rows[5]);
    qn_gen_free(rows[6]);
    for (uint32_t i = 0; i < ROWS; i++) {
        if (i == 6) continue;
        qn_event ev = {0};
        while (ev.kind != QN_EV_DONE) assert_true(qn_gen_wait(rows[i], &ev, 20000));
        qn_gen_free(rows[i]);
    }
    assert_true(told > 0);
}

static void check_quiet(const char *what)
{
    if (n_loud) fail_msg("%s: %u calls inside steps, first %s", what, n_loud, loudest);
    assert_true(n_steps > 40);
}

/* The guard itself sees what it is there for. */
static void *be_loud(void *arg)
{
    void *volatile p = malloc(16);
    free(p);
    return arg;
}

static void test_guard(void **state)
{
    (void)state;
    pthread_t t;
    n_loud = 0;
    atomic_store(&armed, true);
    assert_int_equal(pthread_create(&t, NULL, be_loud, NULL), 0);
    pthread_join(t, NULL);
    atomic_store(&armed, false);
    assert_int_equal(n_loud, 2);
    assert_string_equal(loudest, "malloc");
}

static void test_fake(void **state)
{
    (void)state;
    for (int tight = 0; tight < 2; tight++) {
        qn_model *m = qn_fake_model(&(qn_fake_opts){.window = 32});
        qn_engine_opts o = {.block_tokens = 16, .step_tokens = 64, .max_positions = 128};
        if (tight) o.kv_bytes = 28u * 16 * sizeof(uint32_t);
        qn_engine *e = start(m, &o);
        drive(e, QN_FAKE_VOCAB);
        drive(e, QN_FAKE_VOCAB); /* over a full prefix cache */
        qn_engine_stats s;
        qn_engine_stats_get(e, &s);
        assert_true(s.cached_tokens > 0 && (!tight || s.preemptions > 0));
        check_quiet(tight ? "fake model, preempted" : "fake model");
        qn_engine_free(e);
        qn_model_close(m);
    }
}

static void check_real(const char *family, const char *device)
{
    char path[256];
    json_error_t je;
    qn_err err = {0};
    qn_synth_model l;
    snprintf(path, sizeof path, "%s/golden/models/%s.json", QN_TEST_DIR, family);
    json_t *data = json_load_file(path, 0, &je);
    assert_non_null(data);
    const json_t *c = json_array_get(json_object_get(data, "cases"), 0);
    qn_device_opts o = {.name = device, .n_threads = 2};
    if (qn_synth_open(&l, json_object_get(c, "recipe"), &o, &err)) fail_msg("%s", err.text);
    qn_engine *e = start(l.model, &(qn_engine_opts){.max_positions = 128, .step_tokens = 64});
    drive(e, l.model->info.n_vocab);
    drive(e, l.model->info.n_vocab);
    snprintf(path, sizeof path, "%s on %s", family, device);
    check_quiet(path);
    qn_engine_free(e);
    json_decref(data);
    assert_int_equal(qn_synth_close(&l, &err), QN_OK);
}

static void test_real(void **state)
{
    (void)state;
    static const char *const families[] = {"llama", "gemma3_text", "qwen3_moe", "qwen3_5"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        check_real(families[i], "cpu");
        check_real(families[i], "ref");
    }
}

int main(void)
{
    exempt = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_fake),
        cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
