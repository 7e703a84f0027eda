/* engine_trace_test.c - the line of QUERN_P2R_TRACE=1: one per request, spans in order and inside
 * the request, chunks that add up to the prompt, the outcome; nothing without the variable. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/rt.h"
#include "engine/engine.h"
#include "engine/internal.h"
#include "fake_model.h"

static uint32_t ids[4000];

/* Standard error into a file while it is open. */
static int saved = -1;
static FILE *captured;

static void capture(void)
{
    fflush(stderr);
    captured = tmpfile();
    assert_non_null(captured);
    saved = dup(STDERR_FILENO);
    dup2(fileno(captured), STDERR_FILENO);
}

/* The lines written meanwhile: n of them, parsed behind `prefix`; NULL where it is not JSON. */
static uint32_t lines(const char *prefix, json_t **out, uint32_t max)
{
    static char line[1 << 20];
    uint32_t n = 0;
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(captured);
    while (fgets(line, sizeof line, captured)) {
        if (strncmp(line, prefix, strlen(prefix))) continue;
        assert_true(n < max);
        json_error_t je;
        out[n++] = json_loads(line + strlen(prefix), 0, &je);
    }
    fclose(captured);
    return n;
}

static qn_engine *start(qn_model *m, uint32_t rows)
{
    qn_engine *e;
    qn_err err = {0};
    for (uint32_t i = 0; i < 4000; i++) ids[i] = i * 11 % QN_FAKE_VOCAB;
    const qn_engine_opts o = {
        .max_rows = rows, .step_tokens = 64, .mixed_tokens = 64, .block_tokens = 16};
    if (qn_engine_new(&e, m, &o, &err)) fail_msg("%s", err.text);
    return e;
}

static qn_gen *submit(qn_engine *e, const char *name, uint32_t n_prompt, uint32_t n)
{
    qn_gen *g;
    qn_err err = {0};
    qn_request req = {.prompt = ids, .n_prompt = n_prompt, .max_tokens = n, .request_id = name,
                      .route = "/test"};
    if (qn_engine_submit(e, &req, &g, &err)) fail_msg("%s", err.text);
    return g;
}

static void finish(qn_gen *g)
{
    qn_event ev = {0};
    while (ev.kind != QN_EV_DONE) assert_true(qn_gen_wait(g, &ev, 20000));
    qn_gen_free(g);
}

static const json_t *attribute(const json_t *event, const char *key)
{
    return json_object_get(json_object_get(event, "attributes"), key);
}

static const char *text(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* The record of request `id`: everything that holds for all of them. Gives the number of chunks. */
static uint32_t check(json_t *const *list, uint32_t n, const char *id, const char *outcome,
                      const char *mechanism, uint32_t n_prompt, bool complete)
{
    const json_t *r = NULL, *e;
    for (uint32_t i = 0; i < n; i++) {
        assert_non_null(list[i]);
        if (strcmp(text(list[i], "requestId"), id)) continue;
        assert_null(r);
        r = list[i];
    }
    assert_non_null(r);
    assert_int_equal(json_integer_value(json_object_get(r, "version")), 1);
    assert_int_equal(strlen(text(r, "traceId")), 16);
    assert_string_equal(text(r, "route"), "/test");
    assert_string_equal(text(r, "clock"), "monotonic-ms");
    assert_string_equal(text(r, "outcome"), outcome);
    double total = json_real_value(json_object_get(r, "totalMs")), last = 0;
    uint32_t n_chunks = 0, at = UINT32_MAX, n_totals = 0, n_zero = 0, n_setup = 0;
    size_t i;
    json_array_foreach(json_object_get(r, "events"), i, e) {
        double from = json_real_value(json_object_get(e, "startMs")),
               ms = json_real_value(json_object_get(e, "durationMs"));
        assert_true(from >= last && ms >= 0 && from + ms <= total + 0.001);
        last = from;
        const char *phase = text(e, "phase");
        assert_string_equal(json_string_value(attribute(e, "mechanism")), mechanism);
        n_zero += !strcmp(phase, "token_zero.total");
        n_setup += !strcmp(phase, "prefill.batch_setup");
        if (!strcmp(phase, "prefill.total")) {
            n_totals++;
            assert_int_equal(json_integer_value(attribute(e, "promptTokens")), n_prompt);
        }
        if (strcmp(phase, "prefill.chunk")) continue;
        uint32_t first = (uint32_t)json_integer_value(attribute(e, "startToken"));
        assert_true(n_chunks == 0 || first == at);
        at = first + (uint32_t)json_integer_value(attribute(e, "tokens"));
        assert_int_equal(json_is_true(attribute(e, "final")), at == n_prompt);
        n_chunks++;
    }
    assert_int_equal(n_totals, complete);
    assert_int_equal(n_zero, complete);
    assert_true(n_setup <= 1 && (!complete || (n_setup == 1 && at == n_prompt)));
    return n_chunks;
}

static void test_lines(void **state)
{
    (void)state;
    enum { MAX = 8 };
    json_t *list[MAX];
    const qn_rt *before = qn_rt_set("P2R_TRACE", "1");
    qn_model *m = qn_fake_model(&(qn_fake_opts){.step_us = 3000});
    qn_engine *e = start(m, 2);
    capture();
    finish(submit(e, "alone", 200, 5));
    qn_gen *a = submit(e, "beside", 300, 30), *b = submit(e, "cancelled", 3900, 3),
           *c = submit(e, "queued", 10, 3);
    qn_gen_cancel(c);
    qn_event ev = {0};
    while (ev.kind != QN_EV_PROGRESS) assert_true(qn_gen_wait(b, &ev, 20000));
    qn_gen_cancel(b);
    finish(b);
    finish(c);
    finish(a);
    qn_gen *d = submit(e, "stopped", 20, 300);
    for (ev.kind = QN_EV_DONE; ev.kind != QN_EV_TOKEN;) assert_true(qn_gen_wait(d, &ev, 20000));
    qn_gen_stop(d);
    while (ev.kind != QN_EV_DONE) assert_true(qn_gen_wait(d, &ev, 20000));
    assert_int_equal(ev.finish, QN_FINISH_STOP);
    qn_gen_free(d);
    qn_engine_free(e);
    uint32_t n = lines("[p2r] ", list, MAX);
    qn_model_close(m);
    qn_rt_restore(before);
    assert_int_equal(n, 5);
    assert_int_equal(check(list, n, "alone", "success", "serial", 200, true), 4);
    assert_true(check(list, n, "beside", "success", "continuous", 300, true) >= 2);
    uint32_t chunks = check(list, n, "cancelled", "abort", "continuous", 3900, false);
    assert_true(chunks >= 1 && chunks < 3900 / 64);
    assert_int_equal(check(list, n, "queued", "abort", "serial", 10, false), 0);
    check(list, n, "stopped", "success", "serial", 20, true);
    for (uint32_t i = 0; i < n; i++) json_decref(list[i]);
}

static void test_off(void **state)
{
    (void)state;
    json_t *list[4];
    qn_model *m = qn_fake_model(NULL);
    capture();
    qn_engine *e = start(m, 2);
    qn_gen *g = submit(e, "off", 100, 3);
    assert_null(g->trace);
    finish(g);
    qn_engine_free(e);
    qn_model_close(m);
    assert_int_equal(lines("", list, 4), 0);
}

static void test_memory_log(void **state)
{
    (void)state;
    json_t *list[8];
    const qn_rt *before = qn_rt_set("PREFILL_MEM_LOG", "1");
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, 2);
    capture();
    finish(submit(e, "log", 150, 10));
    qn_engine_free(e);
    qn_model_close(m);
    assert_int_equal(lines("[prefill-mem] position ", list, 8), 3);
    for (int i = 0; i < 3; i++) json_decref(list[i]);
    qn_rt_restore(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_memory_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
