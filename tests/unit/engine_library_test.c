/* engine_library_test.c - include/quern.h over a synthetic llama whose tokens are bytes: every call,
 * errors as sentences, callbacks and polling alike, and the programs of docs/examples, which the
 * build links with the shared library.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "byte_tokenizer.h"
#include "core/file.h"
#include "quern.h"
#include "synth.h"

enum { VOCAB = QN_BYTE_TOKENS + 2 };

static char dir[] = "/tmp/quern-library-XXXXXX";
static quern_model *model;
static char err[512];

/* The golden llama with a vocabulary of bytes and two special tokens, the second of which ends. */
static int open_model(void **state)
{
    (void)state;
    json_error_t je;
    qn_err e = {0};
    char path[256];
    json_t *data = json_load_file(QN_TEST_DIR "/golden/models/llama.json", 0, &je), *t;
    json_t *recipe =
        json_object_get(json_array_get(json_object_get(data, "cases"), 0), "recipe");
    json_t *config = json_object_get(recipe, "config");
    json_object_set_new(config, "vocab_size", json_integer(VOCAB));
    json_object_set_new(config, "eos_token_id", json_integer(VOCAB - 1));
    size_t i;
    json_array_foreach(json_object_get(recipe, "tensors"), i, t) {
        if (!strstr(json_string_value(json_object_get(t, "name")), "embed_tokens")) continue;
        json_array_set_new(json_object_get(t, "shape"), 0, json_integer(VOCAB));
    }
    if (!mkdtemp(dir) || qn_synth_write(recipe, dir, &e)) fail_msg("%s", e.text);
    json_decref(data);
    const qn_byte_token added[2] = {{"<s>", true}, {"</s>", true}};
    char *text = qn_byte_tokenizer_file(added, 2);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) return -1;
    free(text);
    const quern_open_options o = {.n_threads = 2, .max_positions = 512, .no_panel_cache = 1};
    model = quern_open(dir, &o, err, sizeof err);
    if (!model) fail_msg("%s", err);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    qn_err e = {0};
    quern_close(model);
    return qn_remove_tree(dir, &e);
}

/* ---- texts ---- */

static void test_texts(void **state)
{
    (void)state;
    size_t n;
    uint32_t *ids = quern_tokenize(model, "ab<s>", 5, 0, &n, err, sizeof err);
    assert_non_null(ids);
    assert_int_equal(n, 3);
    assert_int_equal(ids[0], 'a');
    assert_int_equal(ids[2], QN_BYTE_TOKENS);
    char *text = quern_detokenize(model, ids, 2, err, sizeof err);
    assert_string_equal(text, "ab");
    quern_free(text);
    quern_free(ids);
    text = quern_render(model, "[{\"role\":\"user\",\"content\":\"hello\"}]", NULL, err, sizeof err);
    assert_non_null(text);
    assert_non_null(strstr(text, "hello"));
    quern_free(text);
    assert_null(quern_render(model, "{}", NULL, err, sizeof err));
    assert_non_null(strstr(err, "array"));
    assert_null(quern_open("/no/such/folder", NULL, err, sizeof err));
    assert_non_null(strstr(err, "/no/such/folder"));
    assert_int_equal(quern_context_length(model), 512);
}

/* ---- generations ---- */

typedef struct reply {
    char text[4096];
    size_t n_text;
    uint32_t n_tokens, n_prompt, n_progress, last_done, halt_after;
    double logprob; /* of all tokens */
    quern_event done;
    char error[256];
} reply;

static int take(void *user, const quern_event *ev)
{
    reply *r = user;
    assert_true(r->done.kind == 0 && r->n_text + ev->n_text < sizeof r->text);
    memcpy(r->text + r->n_text, ev->text, ev->n_text);
    r->n_text += ev->n_text;
    if (ev->kind == QUERN_TEXT) assert_int_equal(ev->index, r->n_tokens++);
    if (ev->kind == QUERN_PROMPT) assert_int_equal(ev->index, ++r->n_prompt);
    if (ev->kind == QUERN_PROGRESS) r->last_done = ev->done;
    if (ev->kind == QUERN_TEXT || ev->kind == QUERN_PROMPT) {
        r->logprob += ev->logprob;
        for (uint32_t i = 1; i < ev->n_top; i++)
            assert_true(ev->top[i].logprob <= ev->top[i - 1].logprob);
        if (ev->n_top && ev->kind == QUERN_TEXT) assert_int_equal(ev->top[0].id, ev->token);
    }
    if (ev->kind == QUERN_DONE) r->done = *ev;
    return r->halt_after && r->n_tokens >= r->halt_after;
}

static void poll_all(quern_gen *g, reply *r)
{
    quern_event ev;
    while (quern_next(g, &ev, 20000)) take(r, &ev);
    assert_int_equal(r->done.kind, QUERN_DONE);
    assert_int_equal(quern_next(g, &ev, 0), 0);
    quern_gen_free(g);
}

static void test_poll_and_callback(void **state)
{
    (void)state;
    const quern_options o = {.max_tokens = 30, .ignore_eos = 1};
    reply a = {0}, b = {0}, c = {0};
    quern_gen *g = quern_start(model, "The sea", &o, err, sizeof err);
    assert_non_null(g);
    poll_all(g, &a);
    assert_int_equal(quern_generate(model, "The sea", &o, take, &b, err, sizeof err), 0);
    assert_int_equal(a.n_tokens, 30);
    assert_int_equal(a.last_done, 7);
    assert_int_equal(a.done.finish, QUERN_LENGTH);
    assert_int_equal(a.done.prompt_tokens, 7);
    assert_true(a.done.prefill_tok_s > 0 && a.done.decode_tok_s > 0);
    assert_true(b.done.cached_tokens > 0);
    assert_int_equal(a.n_text, b.n_text);
    assert_memory_equal(a.text, b.text, a.n_text);
    c.halt_after = 5;
    assert_int_equal(quern_generate(model, "The sea", &o, take, &c, err, sizeof err), 0);
    assert_int_equal(c.done.finish, QUERN_STOP);
    assert_int_equal(c.n_tokens, 5);
    assert_memory_equal(a.text, c.text, c.n_text);
}

/* A stop text ends the reply before itself, wherever it lies. */
static void test_stop_text(void **state)
{
    (void)state;
    quern_options o = {.max_tokens = 60, .ignore_eos = 1, .temperature = 1, .has_seed = 1};
    reply whole = {0}, cut = {0};
    assert_int_equal(quern_generate(model, "abc", &o, take, &whole, err, sizeof err), 0);
    size_t at = 0;
    for (size_t i = 5; i < whole.n_text && !at; i++) {
        if (whole.text[i] > ' ' && whole.text[i] < 127) at = i;
    }
    assert_true(at > 0);
    char stop[2] = {whole.text[at], 0};
    const char *stops[] = {stop};
    o.stops = stops;
    o.n_stops = 1;
    assert_int_equal(quern_generate(model, "abc", &o, take, &cut, err, sizeof err), 0);
    assert_int_equal(cut.done.finish, QUERN_STOP);
    size_t first = (size_t)((char *)memchr(whole.text, stop[0], whole.n_text) - whole.text);
    assert_int_equal(cut.n_text, first);
    assert_memory_equal(cut.text, whole.text, first);
}

/* A cache of limited size: the same reply while it holds everything, another one afterwards. */
static void test_limited_cache(void **state)
{
    (void)state;
    enum { SIZE = 12, FITS = SIZE - 3 };
    quern_open_options o = {.n_threads = 1, .no_panel_cache = 1, .max_kv_size = 4};
    assert_null(quern_open(dir, &o, err, sizeof err));
    assert_non_null(strstr(err, "5 or more"));
    o.max_kv_size = SIZE;
    quern_model *limited = quern_open(dir, &o, err, sizeof err);
    assert_non_null(limited);
    quern_options q = {.max_tokens = FITS, .ignore_eos = 1, .temperature = 1, .has_seed = 1};
    for (int turn = 0; turn < 2; turn++) {
        reply all = {0}, some = {0};
        assert_int_equal(quern_generate(model, "abc", &q, take, &all, err, sizeof err), 0);
        assert_int_equal(quern_generate(limited, "abc", &q, take, &some, err, sizeof err), 0);
        assert_int_equal(some.n_tokens, q.max_tokens);
        if (turn) assert_string_not_equal(all.text, some.text);
        else assert_string_equal(all.text, some.text);
        q.max_tokens = 60;
    }
    quern_close(limited);
}

static void test_logprobs(void **state)
{
    (void)state;
    quern_options o = {.max_tokens = 4, .logprobs = 1, .n_top = 3, .prompt_logprobs = 1,
                       .ignore_eos = 1};
    reply r = {0};
    assert_int_equal(quern_generate(model, "The sea", &o, take, &r, err, sizeof err), 0);
    assert_int_equal(r.n_prompt, 6);
    assert_int_equal(r.n_tokens, 4);
    assert_true(r.logprob < 0 && r.logprob > -200);
    o.n_top = 21;
    assert_int_equal(quern_generate(model, "The sea", &o, take, &r, err, sizeof err), -1);
    assert_non_null(strstr(err, "21"));
    uint32_t none = 0, wrong = VOCAB;
    assert_null(quern_start_ids(model, &none, 0, NULL, err, sizeof err));
    assert_null(quern_start_ids(model, &wrong, 1, NULL, err, sizeof err));
    assert_non_null(strstr(err, "258"));
}

static void ring(void *user)
{
    __atomic_fetch_add((int *)user, 1, __ATOMIC_RELAXED);
}

static void test_cancel(void **state)
{
    (void)state;
    int rung = 0;
    const quern_options o = {.max_tokens = 400, .ignore_eos = 1, .notify = ring, .user = &rung};
    quern_gen *g = quern_start(model, "x", &o, err, sizeof err);
    assert_non_null(g);
    reply r = {0};
    quern_event ev;
    while (quern_next(g, &ev, 20000)) {
        take(&r, &ev);
        if (r.n_tokens == 3) quern_cancel(g);
    }
    assert_int_equal(r.done.finish, QUERN_CANCELLED);
    assert_true(r.n_tokens >= 3 && r.n_tokens < 400);
    assert_null(r.done.error);
    quern_gen_free(g);
    assert_true(__atomic_load_n(&rung, __ATOMIC_RELAXED) >= 4);
}

/* Many threads at once: each gets what it would get alone. */
static reply alone;

static void *one_thread(void *arg)
{
    char text[256];
    const quern_options o = {.max_tokens = 25, .temperature = 1, .has_seed = 1, .seed = 7,
                             .ignore_eos = 1};
    reply r = {0};
    for (int i = 0; i < 3; i++) {
        r = (reply){0};
        if (quern_generate(model, "together", &o, take, &r, text, sizeof text)) return arg;
        if (r.n_text != alone.n_text || memcmp(r.text, alone.text, r.n_text)) return arg;
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    enum { N = 4 };
    pthread_t t[N];
    const quern_options o = {.max_tokens = 25, .temperature = 1, .has_seed = 1, .seed = 7,
                             .ignore_eos = 1};
    assert_int_equal(quern_generate(model, "together", &o, take, &alone, err, sizeof err), 0);
    for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&t[i], NULL, one_thread, t), 0);
    for (int i = 0; i < N; i++) {
        void *failed;
        pthread_join(t[i], &failed);
        assert_null(failed);
    }
}

/* ---- states ---- */

static void test_states(void **state)
{
    (void)state;
    const uint32_t ids[5] = {'s', 't', 'a', 't', 'e'};
    size_t width = quern_state_width(model);
    assert_int_equal(width, 64);
    float v[64];
    assert_int_equal(quern_embed(model, ids, 5, v, err, sizeof err), 0);
    float *all = quern_hidden_states(model, ids, 5, err, sizeof err);
    assert_non_null(all);
    double length = 0;
    for (size_t k = 0; k < width; k++) length += (double)all[4 * width + k] * all[4 * width + k];
    for (size_t k = 0; k < width; k++)
        assert_true(fabs(v[k] * sqrt(length) - all[4 * width + k]) < 1e-5);
    quern_free(all);
    assert_null(quern_hidden_states(model, ids, 0, err, sizeof err));
    assert_int_equal(quern_embed(model, ids, 0, v, err, sizeof err), -1);
    quern_stats s;
    quern_get_stats(model, &s);
    assert_true(s.finished > 5 && s.weights_bytes > 0 && s.kv_bytes > 0 && s.cached_tokens > 0);
    assert_true(s.started >= s.finished && s.active <= 8);
}

/* ---- docs/examples ---- */

static uint32_t lines_of(const char *command, int want)
{
    uint32_t n = 0;
    FILE *f = popen(command, "r");
    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF;) n += c == '\n';
    int status = pclose(f);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), want);
    return n;
}

static void test_examples(void **state)
{
    (void)state;
    char command[512];
    snprintf(command, sizeof command, "%s/example_chat %s 'What is \"this\"?' 2>/dev/null",
             QN_EXAMPLES, dir);
    assert_true(lines_of(command, 0) >= 1);
    snprintf(command, sizeof command, "%s/example_embed %s cat dog bird 2>/dev/null", QN_EXAMPLES,
             dir);
    assert_int_equal(lines_of(command, 0), 3);
    snprintf(command, sizeof command, "%s/example_embed /no/such/folder cat 2>/dev/null",
             QN_EXAMPLES);
    assert_int_equal(lines_of(command, 1), 0);
    snprintf(command, sizeof command, "%s/example_chat 2>/dev/null", QN_EXAMPLES);
    assert_int_equal(lines_of(command, 2), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),     cmocka_unit_test(test_poll_and_callback),
        cmocka_unit_test(test_stop_text), cmocka_unit_test(test_limited_cache),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_cancel),    cmocka_unit_test(test_threads),
        cmocka_unit_test(test_states),    cmocka_unit_test(test_examples),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
