/* engine_outputs_test.c - what an engine gives beside tokens: log-probabilities of prompts, hidden
 * states, and prompts that come as embeddings. Under the fake model each value is checked against
 * its history; under synthetic checkpoints against mlx-lm (tests/golden/make_hidden.py).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base64.h"
#include "compute/device.h"
#include "core/file.h"
#include "engine/embed.h"
#include "fake_model.h"
#include "synth.h"

enum { MAX_PROMPT = 300 };

static uint32_t ids[MAX_PROMPT];

static qn_engine *start(qn_model *m, const qn_engine_opts *o)
{
    qn_engine *e;
    qn_err err = {0};
    for (uint32_t i = 0; i < MAX_PROMPT; i++) ids[i] = (i * i * 7 + i) % 90;
    if (qn_engine_new(&e, m, o, &err)) fail_msg("%s", err.text);
    return e;
}

static qn_gen *submit(qn_engine *e, const qn_request *req)
{
    qn_gen *g;
    qn_err err = {0};
    if (qn_engine_submit(e, req, &g, &err)) fail_msg("%s", err.text);
    return g;
}

/* ---- the fake model ---- */

/* The fake model's logits: 4 for the token that follows, -4 - ((v * K + next) % 97) / 97 else. */
static double fake_logprob(const qn_model *m, const uint32_t *history, uint32_t n, uint32_t token)
{
    uint32_t next = qn_fake_next(m, history, n);
    double sum = exp(4), own = 4;
    for (uint32_t v = 0; v < QN_FAKE_VOCAB; v++) {
        double x = -4.0 - (double)((v * 2654435761u + next) % 97) / 97;
        if (v != next) sum += exp(x);
        if (v == token && v != next) own = x;
    }
    return own - log(sum);
}

/* Take every event of a row with prompt log-probabilities: all positions once, in order, before the
 * reply. Gives the number of reply tokens. */
static uint32_t check_scores(const qn_model *m, qn_gen *g, uint32_t n_prompt)
{
    uint32_t next = 1, n_tokens = 0;
    qn_event ev = {0};
    while (ev.kind != QN_EV_DONE) {
        assert_true(qn_gen_wait(g, &ev, 20000));
        if (ev.kind == QN_EV_TOKEN) {
            assert_int_equal(next, n_prompt);
            n_tokens++;
        }
        if (ev.kind != QN_EV_PROMPT) continue;
        assert_int_equal(ev.index, next++);
        assert_int_equal(ev.sample.token, ids[ev.index]);
        assert_int_equal(ev.sample.n_top, 2);
        assert_int_equal(ev.sample.top[0].id, qn_fake_next(m, ids, ev.index));
        double want = fake_logprob(m, ids, ev.index, ids[ev.index]);
        assert_true(fabs(ev.sample.logprob - want) < 1e-4);
    }
    assert_int_equal(ev.finish, QN_FINISH_LENGTH);
    assert_int_equal(next, n_prompt);
    qn_gen_free(g);
    return n_tokens;
}

static void test_prompt_logprobs(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, 31, 32, 33, 34, 64, 65, 300};
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16, .step_tokens = 100});
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (uint32_t reply = 0; reply < 4; reply += 3) {
            qn_request req = {.prompt = ids,
                              .n_prompt = lengths[i],
                              .max_tokens = reply,
                              .prompt_logprobs = true,
                              .sampling = {.n_top = 2}};
            assert_int_equal(check_scores(m, submit(e, &req), lengths[i]), reply);
        }
    }
    qn_engine_free(e);
    qn_model_close(m);
}

/* Six rows of every kind at once over pools that hold two of them. */
static void test_under_preemption(void **state)
{
    (void)state;
    enum { N = 120, ROWS = 6, REPLY = 100 }; /* all events of a row fit into its ring */
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16,
                                              .step_tokens = 64,
                                              .kv_bytes = 24u * 16 * sizeof(uint32_t),
                                              .max_positions = 300});
    qn_gen *scored[ROWS], *states[ROWS], *replies[ROWS];
    for (int i = 0; i < ROWS; i++) {
        scored[i] = submit(e, &(qn_request){.prompt = ids, .n_prompt = N, .max_tokens = REPLY,
                                            .prompt_logprobs = true, .sampling = {.n_top = 2}});
        states[i] = submit(e, &(qn_request){.prompt = ids, .n_prompt = N, .hidden = QN_HIDDEN_ALL});
        replies[i] = submit(e, &(qn_request){.prompt = ids + 1, .n_prompt = 90, .max_tokens = REPLY});
    }
    for (int i = 0; i < ROWS; i++) {
        qn_event ev = {0};
        while (ev.kind != QN_EV_DONE) assert_true(qn_gen_wait(replies[i], &ev, 20000));
        qn_gen_free(replies[i]);
        check_scores(m, scored[i], N);
        ev.kind = QN_EV_PROGRESS;
        while (ev.kind != QN_EV_DONE) assert_true(qn_gen_wait(states[i], &ev, 20000));
        for (uint32_t p = 0; p < N; p++)
            assert_true(qn_gen_hidden(states[i])[p] == qn_fake_hidden(ids, p + 1));
        qn_gen_free(states[i]);
    }
    qn_engine_stats s;
    qn_engine_stats_get(e, &s);
    assert_true(s.preemptions > 0);
    qn_engine_free(e);
    qn_model_close(m);
}

static bool at_once(void *user)
{
    (void)user;
    return true;
}

static void test_embed(void **state)
{
    (void)state;
    qn_model *m = qn_fake_model(NULL);
    qn_engine *e = start(m, &(qn_engine_opts){.block_tokens = 16, .step_tokens = 64});
    float v;
    qn_err err = {0};
    assert_int_equal(qn_engine_embed_width(e), 1);
    for (uint32_t n = 1; n <= MAX_PROMPT; n += 13) {
        assert_int_equal(qn_engine_embed(e, ids, n, NULL, NULL, &v, &err), QN_OK);
        assert_true(v == 1); /* one number, of length 1 */
        qn_gen *g =
            submit(e, &(qn_request){.prompt = ids, .n_prompt = n, .hidden = QN_HIDDEN_LAST});
        qn_event ev = {0};
        while (ev.kind != QN_EV_DONE) assert_true(qn_gen_wait(g, &ev, 20000));
        assert_true(qn_gen_hidden(g)[0] == qn_fake_hidden(ids, n));
        assert_true(n < 30 || ev.stats.cached_tokens > 0);
        qn_gen_free(g);
    }
    assert_int_equal(qn_engine_embed(e, ids, 0, NULL, NULL, &v, &err), QN_INVALID);
    err = (qn_err){0};
    assert_int_equal(qn_engine_embed(e, ids, 3, at_once, NULL, &v, &err), QN_CANCELLED);
    qn_gen *g;
    err = (qn_err){0};
    qn_request both = {.prompt = ids, .n_prompt = 3, .max_tokens = 1, .hidden = QN_HIDDEN_LAST};
    assert_int_equal(qn_engine_submit(e, &both, &g, &err), QN_INVALID);
    qn_engine_free(e);
    qn_model_close(m);
}

/* ---- mlx-lm ---- */

typedef struct opened {
    char dir[64];
    qn_folder *folder;
    qn_device *dev;
    qn_model *model;
    qn_engine *engine;
    uint32_t prompt[64], n;
} opened;

static json_t *case_of(const char *family, const char *name)
{
    char path[256];
    json_error_t je;
    snprintf(path, sizeof path, "%s/golden/models/%s.json", QN_TEST_DIR, family);
    json_t *data = json_load_file(path, 0, &je), *c, *found = NULL;
    assert_non_null(data);
    size_t i;
    json_array_foreach(json_object_get(data, "cases"), i, c) {
        if (!strcmp(json_string_value(json_object_get(c, "name")), name)) found = json_incref(c);
    }
    json_decref(data);
    assert_non_null(found);
    return found;
}

static void open_case(opened *o, const json_t *c, const char *device, uint32_t step)
{
    qn_err err = {0};
    *o = (opened){.dir = "/tmp/quern-outputs-XXXXXX"};
    assert_non_null(mkdtemp(o->dir));
    if (qn_synth_write(json_object_get(c, "recipe"), o->dir, &err) ||
        qn_folder_open(&o->folder, o->dir, false, &err) ||
        qn_device_open(&o->dev, &(qn_device_opts){.name = device, .n_threads = 2}, &err) ||
        qn_model_open(&o->model, o->folder, o->dev, &(qn_model_opts){0}, &err)) {
        fail_msg("%s", err.text);
    }
    o->engine = start(o->model, &(qn_engine_opts){.step_tokens = step, .mixed_tokens = step,
                                                  .max_rows = 2, .max_positions = 256});
    const json_t *list = json_object_get(c, "ids");
    o->n = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < o->n; i++)
        o->prompt[i] = (uint32_t)json_integer_value(json_array_get(list, i));
}

static void close_case(opened *o)
{
    qn_err err = {0};
    qn_engine_free(o->engine);
    qn_model_close(o->model);
    o->dev->ops->close(o->dev);
    qn_folder_close(o->folder);
    assert_int_equal(qn_remove_tree(o->dir, &err), QN_OK);
}

static float *floats(const json_t *c, const char *key, size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    const char *text = json_string_value(json_object_get(c, key));
    assert_int_equal(qn_test_base64(text, (uint8_t *)x), n * sizeof *x);
    return x;
}

static void check_states(const char *label, const float *got, const float *want, size_t n,
                         double gate)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++) {
        double off = fabs((double)got[i] - want[i]);
        if (!(off <= gate * largest)) {
            fail_msg("%s: element %zu is %.9g, mlx-lm has %.9g", label, i, (double)got[i],
                     (double)want[i]);
        }
    }
}

/* The states of the prompt, of every position, from ids or from given embeddings. */
static void check_hidden(const char *label, opened *o, const json_t *c, bool given, double gate)
{
    size_t width = (size_t)json_integer_value(json_object_get(c, "d_model")), n = o->n * width;
    assert_int_equal(width, qn_engine_embed_width(o->engine));
    float *want = floats(c, given ? "hidden_given" : "hidden", n), *in = floats(c, "given", n);
    for (int all = 0; all < 2; all++) {
        qn_gen *g = submit(o->engine, &(qn_request){.prompt = o->prompt,
                                                    .n_prompt = o->n,
                                                    .embeddings = given ? in : NULL,
                                                    .hidden = all ? QN_HIDDEN_ALL
                                                                  : QN_HIDDEN_LAST});
        qn_event ev = {0};
        while (ev.kind != QN_EV_DONE) assert_true(qn_gen_wait(g, &ev, 20000));
        assert_int_equal(ev.finish, QN_FINISH_LENGTH);
        size_t from = all ? 0 : n - width;
        check_states(label, qn_gen_hidden(g), want + from, n - from, gate);
        qn_gen_free(g);
    }
    free(want);
    free(in);
}

/* Float32 cases within 1e-4 on the fast device, in one chunk and in several; every case to the bit
 * on the reference. */
static void test_hidden_golden(void **state)
{
    (void)state;
    json_error_t je;
    json_t *golden = json_load_file(QN_TEST_DIR "/golden/hidden.json", 0, &je), *c;
    assert_non_null(golden);
    size_t i;
    json_array_foreach(json_object_get(golden, "cases"), i, c) {
        const char *family = json_string_value(json_object_get(c, "family")),
                   *name = json_string_value(json_object_get(c, "case"));
        json_t *model = case_of(family, name);
        opened o;
        for (uint32_t step = 5; strstr(name, "f32") && step < 20; step += 12) {
            open_case(&o, model, "cpu", step);
            check_hidden(family, &o, c, false, 1e-4);
            check_hidden(family, &o, c, true, 1e-4);
            close_case(&o);
        }
        open_case(&o, model, "ref", 64);
        check_hidden(name, &o, c, false, 0);
        check_hidden(name, &o, c, true, 0);
        close_case(&o);
        json_decref(model);
    }
    assert_int_equal(i, 6);
    json_decref(golden);
}

/* Given embeddings neither read nor feed the prefix cache, and a reply follows them. */
static void test_given_and_cache(void **state)
{
    (void)state;
    json_t *c = case_of("llama", "base-f32");
    opened o;
    open_case(&o, c, "cpu", 64);
    size_t n = (size_t)o.n * o.model->info.d_model;
    float *zeros = calloc(n, sizeof *zeros);
    assert_non_null(zeros);
    for (int i = 0; i < 4; i++) {
        qn_gen *g = submit(o.engine, &(qn_request){.prompt = o.prompt,
                                                   .n_prompt = o.n,
                                                   .embeddings = i < 2 ? zeros : NULL,
                                                   .max_tokens = 3});
        qn_event ev = {0};
        while (ev.kind != QN_EV_DONE) {
            assert_true(qn_gen_wait(g, &ev, 20000));
            const json_t *greedy = json_object_get(c, "greedy");
            if (i < 2 || ev.kind != QN_EV_TOKEN) continue;
            assert_int_equal(ev.sample.token,
                             json_integer_value(json_array_get(greedy, ev.index)));
        }
        assert_int_equal(ev.stats.generated_tokens, 3);
        assert_int_equal(ev.stats.cached_tokens > 0, i == 3);
        qn_gen_free(g);
    }
    free(zeros);
    close_case(&o);
    json_decref(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_under_preemption),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_hidden_golden),
        cmocka_unit_test(test_given_and_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
