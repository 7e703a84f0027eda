/* engine_invariance_test.c - the second promise: a request's tokens and logprob bytes depend on the
 * model, its prompt, its options and its seed only. No tolerance.
 *
 * 16 requests (greedy and seeded, with filters and penalties) run one at a time on the plainest
 * engine, and then all at once under other caps, chunk sizes, block sizes, thread counts, arrival
 * orders, and with KV pools so small that rows are preempted. Some prompts begin alike, some are
 * longer than a split of attention and a block of any size. Models: synthetic llama, gemma3_text
 * (windows), qwen3_moe (experts), qwen3_5 (recurrent), deepseek_v3 (latents), llama4 (chunks), and some with KV in 8
 * and 4 bits.
 * QUERN_TEST_LONG=1 tries every combination, otherwise each setting once. Under the thread sanitizer,
 * which makes everything many times slower, two settings of fewer models show the races.
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

#include "cache/kv_scheme.h"
#include "compute/device.h"
#include "core/file.h"
#include "engine/engine.h"
#include "synth.h"

enum {
    N_REQUESTS = 16,
    MOST_PROMPT = 150,      /* of most requests */
    SHORT_FORM_PROMPT = 600, /* of the longest one: more than two splits of attention */
    MAX_PROMPT = 2300,      /* the same in the long form: more than a chunk of 2048 */
    MAX_REPLY = 40,
    N_VOCAB = 96,
    N_SHARED = 90           /* tokens with which the prompts of requests 8 to 11 begin alike */
};

typedef struct reply {
    uint32_t n;
    uint32_t token[MAX_REPLY];
    float logprob[MAX_REPLY];
    qn_top top[MAX_REPLY][2];
} reply;

typedef struct request {
    uint32_t prompt[MAX_PROMPT], n_prompt, max_tokens;
    qn_sampling sampling;
} request;

typedef struct setting {
    const char *name;
    uint32_t rows, step, block, threads;
    uint64_t kv_bytes; /* 0: plenty */
    uint32_t order;    /* requests are submitted in steps of this, modulo 16; odd */
    uint64_t cached;   /* most bytes of cached KV: 0: no limit */
} setting;

#ifdef __SANITIZE_THREAD__
static const bool only_races = true;
#else
static const bool only_races = false;
#endif

static const char *kv_scheme; /* of the models under test; NULL: their float type */
static uint32_t max_kv_size;  /* 0: everything is kept */
static const char *device;    /* NULL: the default */

static const setting plain = {"alone", 1, 512, 64, 2, 0, 1, 0};
static const setting settings[] = {
    {"one row, a cache that evicts", 1, 512, 64, 2, 0, 1, 100000},
    {"two rows, one chunk", 2, 2048, 64, 2, 0, 1, 0},
    {"three rows, small chunks", 3, 17, 64, 2, 0, 5, 0},
    {"eight rows, one thread", 8, 64, 64, 1, 0, 3, 0},
    {"sixteen rows, small blocks", 16, 512, 16, 2, 0, 7, 0},
    {"sixteen rows, large blocks, three threads", 16, 100, 256, 3, 0, 11, 0},
    {"two rows, evicting cache", 2, 64, 16, 2, 0, 3, 100000},
    {"preempted", 8, 64, 16, 2, 1, 9, 0},
};

/* Whether a setting has what the thread sanitizer may find: most threads, most rows, preemption. */
static bool shows_races(const setting *s)
{
    return s->threads > 2 || s->kv_bytes;
}

static uint32_t rng_state = 77;

static uint32_t rng(uint32_t n)
{
    rng_state = rng_state * 1664525u + 1013904223u;
    return (rng_state >> 8) % n;
}

static bool only_short; /* of what runs now there is no long form */

static bool is_long(void) { return !only_short && getenv("QUERN_TEST_LONG") != NULL; }

static uint32_t longest_prompt(void)
{
    return is_long() ? MAX_PROMPT : SHORT_FORM_PROMPT;
}

static uint32_t prompt_length(uint32_t i)
{
    switch (i) {
    case 0: return 1;
    case 5: return QN_KV_SPLIT; /* its reply begins a split and a block of 256 */
    case 6: return longest_prompt();
    case 7: return QN_KV_SPLIT + 40;
    case 12: return is_long() ? SHORT_FORM_PROMPT : 1 + rng(MOST_PROMPT); /* crowds small pools */
    case 8: case 9: case 10: case 11: return N_SHARED + rng(MOST_PROMPT - N_SHARED) + 1;
    default: return 1 + rng(MOST_PROMPT);
    }
}

static void make_requests(request *q)
{
    rng_state = 77;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        q[i] = (request){.n_prompt = prompt_length(i), .max_tokens = 1 + rng(MAX_REPLY)};
        for (uint32_t k = 0; k < q[i].n_prompt; k++) q[i].prompt[k] = rng(N_VOCAB);
        if (i > 8 && i < 12) memcpy(q[i].prompt, q[8].prompt, N_SHARED * sizeof *q[i].prompt);
        q[i].sampling = (qn_sampling){.logprobs = true, .n_top = 2, .has_seed = true, .seed = i};
        if (i % 4 == 1) q[i].sampling.temperature = 1;
        if (i % 4 == 2)
            q[i].sampling.temperature = 0.8f, q[i].sampling.top_p = 0.9f, q[i].sampling.top_k = 20;
        if (i % 4 == 3)
            q[i].sampling.temperature = 1.2f, q[i].sampling.min_p = 0.05f,
            q[i].sampling.repetition_penalty = 1.2f;
    }
}

static void collect(qn_gen *g, reply *r)
{
    qn_event ev;
    *r = (reply){0};
    do {
        assert_true(qn_gen_wait(g, &ev, 60000));
        if (ev.kind != QN_EV_TOKEN) continue;
        r->token[r->n] = ev.sample.token;
        r->logprob[r->n] = ev.sample.logprob;
        memcpy(r->top[r->n], ev.sample.top, sizeof r->top[0]);
        r->n++;
    } while (ev.kind != QN_EV_DONE);
    assert_int_equal(ev.finish, QN_FINISH_LENGTH);
    qn_gen_free(g);
}

static qn_gen *submit(qn_engine *e, const request *q)
{
    qn_err err = {0};
    qn_gen *g;
    qn_request r = {.prompt = q->prompt,
                    .n_prompt = q->n_prompt,
                    .max_tokens = q->max_tokens,
                    .ignore_eos = true,
                    .sampling = q->sampling};
    if (qn_engine_submit(e, &r, &g, &err)) fail_msg("%s", err.text);
    return g;
}

/* A pool with room for the long form's longest prompt would be ample for all others, so that one
 * stays away from small pools. */
static bool takes_part(const setting *s, const request *q)
{
    return !s->kv_bytes || q->n_prompt <= SHORT_FORM_PROMPT;
}

/* Tokens of the longest request that takes part, its reply included. */
static uint32_t longest(const setting *s, const request *q)
{
    uint32_t n = 0;
    for (int i = 0; i < N_REQUESTS; i++)
        if (takes_part(s, &q[i]) && q[i].n_prompt > n) n = q[i].n_prompt;
    return n + MAX_REPLY;
}

/* The smallest pool that takes that one alone; 0 where pools are not small. Beside groups that keep
 * everything the engine gives windows what all rows need, or if that is the larger part of the memory,
 * scales all groups alike. */
static uint64_t tight_bytes(const qn_model *m, const setting *s, const request *q)
{
    qn_kv_spec kv = m->kv;
    kv.block_tokens = s->block;
    double windows = 0, limited = 0, one = 0, all = 0;
    for (uint32_t g = 0; s->kv_bytes && g < kv.n_groups; g++) {
        const double block = (double)m->dev->ops->kv_block_bytes(m->dev, &kv, g);
        const uint32_t n = longest(s, q), most = kv.groups[g].window + kv.groups[g].keep + s->step;
        const uint32_t seen = kv.groups[g].window && most + s->block < n ? most : n;
        if (kv.groups[g].window) {
            windows += block * (((seen < n ? seen + s->block : n) / s->block + 3) * s->rows);
            limited += block * (seen / s->block + 8);
        } else {
            one += block * (n / s->block + 8);
            all += block * ((n / s->block + 3) * s->rows);
        }
    }
    if (all <= 0) return (uint64_t)limited; /* rows compete for the windows */
    return (uint64_t)ceil(windows <= one ? windows + one : one * (windows + all) / all);
}

static void open_model(qn_synth_model *l, const json_t *recipe, uint32_t threads)
{
    qn_err err = {0};
    qn_device_opts o = {.name = device, .n_threads = threads};
    if (qn_synth_open(l, recipe, &o, &err)) fail_msg("%s", err.text);
    qn_kv_scheme s = {.group = 32};
    s.max_size = max_kv_size;
    if (kv_scheme && (qn_kv_scheme_parse(&s, kv_scheme, &err) ||
                      qn_kv_scheme_apply(&s, l->dir, &l->model->kv, &err)))
        fail_msg("%s", err.text);
}

/* Fill `out` with the replies of all that take part; gives the number of preemptions. */
static uint64_t run(const json_t *recipe, const setting *s, const request *q, reply *out)
{
    qn_synth_model l;
    open_model(&l, recipe, s->threads);
    qn_engine_opts o = {.max_rows = s->rows,
                        .step_tokens = s->step,
                        .mixed_tokens = s->step < 32 ? s->step : 32,
                        .block_tokens = s->block,
                        .max_positions = longest(s, q),
                        .no_prefix_cache = s == &plain,
                        .prefix_bytes = s->cached,
                        .checkpoint_tokens = 32,
                        .checkpoint_min = 1,
                        .kv_bytes = tight_bytes(l.model, s, q)};
    qn_err err = {0};
    qn_engine *e;
    if (qn_engine_new(&e, l.model, &o, &err)) fail_msg("%s", err.text);
    qn_gen *gen[N_REQUESTS];
    static reply got;
    for (int pass = 0; pass < (s == &plain ? 1 : 2);
         pass++) { /* the second time from a warm prefix cache */
        for (uint32_t k = 0; k < N_REQUESTS; k++) {
            uint32_t i = k * s->order % N_REQUESTS;
            if (!takes_part(s, &q[i])) continue;
            gen[i] = submit(e, &q[i]);
            if (s == &plain) collect(gen[i], &out[i]);
            else if (k % 5 == 4) usleep(2000);
        }
        for (uint32_t i = 0; s != &plain && i < N_REQUESTS; i++) {
            if (!takes_part(s, &q[i])) continue;
            collect(gen[i], &got);
            if (pass && memcmp(&got, &out[i], sizeof got))
                fail_msg("%s: request %u differs from a warm cache", s->name, i);
            out[i] = got;
        }
    }
    qn_engine_stats stats;
    qn_engine_stats_get(e, &stats);
    const bool shares = !(l.dev->exact && l.model->kv.layers[0].latent);
    if (s->rows == N_REQUESTS && !s->kv_bytes && !s->cached)
        assert_int_equal(stats.cached_tokens > 0, shares);
    for (int i = 0; s->cached && stats.kv_bytes_cached > s->cached && i < 1000; i++) {
        usleep(1000); /* the last row gives its blocks back behind its last event */
        qn_engine_stats_get(e, &stats);
    }
    if (s->cached) assert_true(stats.kv_bytes_cached <= s->cached);
    qn_engine_free(e);
    assert_int_equal(qn_synth_close(&l, &err), QN_OK);
    return stats.preemptions;
}

static void compare(const char *model, const setting *s, const request *q, const reply *a,
                    const reply *b)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        if (takes_part(s, &q[i]) && memcmp(&a[i], &b[i], sizeof a[i]))
            fail_msg("%s, %s: request %u differs from its run alone", model, s->name, i);
    }
}

static void all_combinations(const char *model, const json_t *recipe, const request *q,
                             const reply *want)
{
    static const uint32_t rows[] = {1, 2, 3, 8, 16}, steps[] = {64, 512, 2048},
                          blocks[] = {16, 64, 256}, threads[] = {1, 2, 3};
    static reply got[N_REQUESTS];
    enum { N = 5 * 3 * 3 * 3 * 2 };
    uint64_t preemptions = 0;
    for (int i = 0; i < N; i++) {
        char name[128];
        setting s = {name, rows[i % 5], steps[i / 5 % 3], blocks[i / 15 % 3], threads[i / 45 % 3],
                     (uint64_t)(i / 135), 2u * (uint32_t)(i % 8) + 1, i % 7 ? 0 : 100000};
        snprintf(name, sizeof name, "rows %u step %u block %u threads %u tight %d", s.rows, s.step,
                 s.block, s.threads, (int)s.kv_bytes);
        preemptions += run(recipe, &s, q, got);
        compare(model, &s, q, want, got);
    }
    assert_true(preemptions > 0);
    print_message("%s, KV %s, %s: %d combinations\n", model, kv_scheme ? kv_scheme : "off",
                  device ? device : "the default device", N);
}

static void check_model(const char *family, const char *name)
{
    char path[512];
    json_error_t je;
    snprintf(path, sizeof path, QN_TEST_DIR "/golden/models/%s.json", family);
    json_t *data = json_load_file(path, 0, &je), *c;
    assert_non_null(data);
    size_t i;
    static request q[N_REQUESTS];
    static reply want[N_REQUESTS], got[N_REQUESTS];
    bool found = false;
    make_requests(q);
    json_array_foreach(json_object_get(data, "cases"), i, c) {
        if (strcmp(json_string_value(json_object_get(c, "name")), name)) continue;
        const json_t *recipe = json_object_get(c, "recipe");
        found = true;
        run(recipe, &plain, q, want);
        for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
            if (only_races && !shows_races(&settings[k])) continue;
            uint64_t preemptions = run(recipe, &settings[k], q, got);
            if (settings[k].kv_bytes) assert_true(preemptions > 0);
            compare(family, &settings[k], q, want, got);
        }
        if (is_long()) all_combinations(family, recipe, q, want);
    }
    assert_true(found);
    json_decref(data);
}

static void test_llama(void **state)
{
    (void)state;
    check_model("llama", "base-bf16-q4");
}

static void test_windows(void **state)
{
    (void)state;
    if (!only_races) check_model("gemma3_text", "base-bf16-q8");
}

static void test_experts(void **state)
{
    (void)state;
    check_model("qwen3_moe", "base-bf16-q4");
}

static void test_recurrent(void **state)
{
    (void)state;
    check_model("qwen3_5", "base-bf16-q4");
    if (only_races) return;
    device = "ref"; /* mlx-lm's bits do not depend on checkpoints either */
    check_model("qwen3_5", "base-bf16-q4");
    device = NULL;
}

/* On `ref` calls of one token have a form of their own, which must follow a row's own calls. It makes
 * all keys again in every step: small chunks of long prompts would take minutes. */
static void test_latent(void **state)
{
    (void)state;
    check_model("deepseek_v3", "experts-bf16-q4");
    if (only_races) return;
    device = "ref", only_short = true;
    check_model("deepseek_v3", "no-q-lora-bf16-q4");
    device = NULL, only_short = false;
}

/* Chunks end within prompts, replies and blocks. On `ref` too, where cached prefixes are shared. */
static void test_chunks(void **state)
{
    (void)state;
    if (only_races) return;
    check_model("llama4", "experts-bf16-q4");
    device = "ref", only_short = true;
    check_model("llama4", "all-experts-bf16-q4");
    device = NULL, only_short = false;
}

/* The same with quantized KV caches, keys and values alike and apart, and with a most KV size. */
static void test_codecs(void **state)
{
    (void)state;
    static const struct { const char *scheme, *family, *name; uint32_t max_kv_size; } rows[] = {
        {"8", "qwen3", "base-bf16-q4", 50},      {"4", "qwen3", "base-bf16-q4", 0},
        {"k8v4", "qwen3_5", "base-bf16-q4", 0},  {"8", "gemma3_text", "base-bf16-q8", 0},
        {"4", "gemma3_text", "base-bf16-q8", 0}, {"off", "llama", "base-bf16-q4", 120},
        {"4", "llama", "untied-bias-bf16-q4", 0}, {"8", "qwen3_moe", "base-bf16-q4", 0},
        /* the long form: */
        {"8", "llama", "untied-bias-bf16-q4", 0}, {"4", "qwen3_moe", "base-bf16-q4", 0},
        {"off", "deepseek_v3", "experts-bf16-q4", 120},
    };
    enum { N_ROWS = sizeof rows / sizeof *rows, N_SHORT = N_ROWS - 3 };
    size_t n = only_races ? 1 : is_long() ? N_ROWS : N_SHORT;
    for (size_t i = 0; i < n; i++) {
        kv_scheme = rows[i].scheme, max_kv_size = rows[i].max_kv_size;
        check_model(rows[i].family, rows[i].name);
    }
    kv_scheme = NULL, max_kv_size = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_recurrent),
        cmocka_unit_test(test_latent),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_codecs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
