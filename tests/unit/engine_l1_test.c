/* engine_l1_test.c - the real model on the reference device against mlx_lm.generate
 * (tests/golden/make_l1_real.py): at every step of 20 greedy and 5 seeded runs the same logits, bit
 * for bit, and the same token; then the same runs through the engine, many at once.
 *
 * Needs SmolLM2 in bfloat16 (`quern convert MODEL --dtype bfloat16`) in QUERN_MODEL_BF16; without
 * it the tests are skipped and say so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "engine/engine.h"
#include "engine/loaded.h"
#include "engine/score.h"

enum { MAX_IDS = 256, N_GREEDY = 20, N_SEEDED = 5, N_TOKENS = 64, HASH_DIGITS = 16 };

typedef struct fixture {
    json_t *golden;
    qn_loaded *model;
    qn_ids special; /* what xtc keeps: end of text, newline */
} fixture;

/* One run of the golden file. */
typedef struct golden_run {
    char label[96];
    uint32_t ids[MAX_IDS]; /* prompt, then reply */
    uint32_t n_prompt, n_reply;
    bool is_greedy;        /* 64 tokens, past any end of text */
    const json_t *hashes;  /* [n_reply] of the logits that gave each token */
    qn_sampling sampling;
} golden_run;

static int open_fixture(void **state)
{
    static fixture f;
    const char *dir = getenv("QUERN_MODEL_BF16");
    if (!dir) return 0;
    qn_err err = {0};
    json_error_t je;
    f.golden = json_load_file(QN_TEST_DIR "/golden/l1_real.json", 0, &je);
    qn_loaded_opts o = {.device.name = "ref"};
    if (!f.golden || qn_loaded_open(&f.model, dir, NULL, &o, &err)) {
        print_error("%s\n", f.golden ? err.text : je.text);
        return -1;
    }
    qn_ids_put(&f.special, f.model->eos, f.model->n_eos);
    if (qn_tokenizer_encode(f.model->tok, "\n", 1, QN_ENCODE_ADD_SPECIAL, &f.special, &err))
        return -1;
    *state = &f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    if (!f) return 0;
    qn_ids_release(&f->special);
    qn_loaded_close(f->model);
    json_decref(f->golden);
    return 0;
}

static fixture *need_model(void **state)
{
    if (*state) return *state;
    print_message("SKIPPED: QUERN_MODEL_BF16 does not name SmolLM2 converted to bfloat16\n");
    skip();
    return NULL;
}

/* ---- the golden file ---- */

static void read_ids(golden_run *r, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        assert_true(r->n_prompt + r->n_reply < MAX_IDS);
        r->ids[r->n_prompt + r->n_reply++] = (uint32_t)json_integer_value(json_array_get(list, i));
    }
}

/* The value of a flag in a command line of mlx_lm.generate, or `absent`. */
static double flag(const char *flags, const char *name, double absent)
{
    char word[64];
    snprintf(word, sizeof word, "--%s ", name);
    const char *at = strstr(flags, word);
    return at ? strtod(at + strlen(word), NULL) : absent;
}

static qn_sampling sampling_of(const fixture *f, const char *flags)
{
    return (qn_sampling){
        .temperature = (float)flag(flags, "temp", 0),
        .top_p = (float)flag(flags, "top-p", 0),
        .min_p = (float)flag(flags, "min-p", 0),
        .top_k = (uint32_t)flag(flags, "top-k", 0),
        .min_tokens_to_keep = (uint32_t)flag(flags, "min-tokens-to-keep", 1),
        .xtc_probability = (float)flag(flags, "xtc-probability", 0),
        .xtc_threshold = (float)flag(flags, "xtc-threshold", 0.1),
        .has_seed = true,
        .seed = (uint64_t)flag(flags, "seed", 0),
        .special = f->special.data,
        .n_special = f->special.len,
        .exact = true,
        .exact_splits = f->model->model->info.n_init_draws,
    };
}

static void read_run(const fixture *f, size_t i, golden_run *r)
{
    bool is_greedy = i < N_GREEDY;
    const json_t *list = json_object_get(f->golden, is_greedy ? "greedy" : "seeded");
    const json_t *c = json_array_get(list, is_greedy ? i : i - N_GREEDY);
    const char *flags = is_greedy ? "" : json_string_value(json_object_get(c, "flags"));
    *r = (golden_run){.sampling = sampling_of(f, flags), .is_greedy = is_greedy,
                      .hashes = json_object_get(c, "logits")};
    snprintf(r->label, sizeof r->label, "run %zu %s", i, flags);
    read_ids(r, json_object_get(c, "prompt"));
    r->n_prompt = r->n_reply;
    r->n_reply = 0;
    read_ids(r, json_object_get(c, "tokens"));
    assert_true(r->n_prompt > 0 && r->n_reply > 0 && json_array_size(r->hashes) == r->n_reply);
    if (is_greedy) assert_int_equal(r->n_reply, N_TOKENS);
}

/* ---- logits and tokens of every step ---- */

typedef struct follower {
    const golden_run *run;
    qn_sampler *sampler;
    uint32_t n_vocab, n_checked;
    qn_dtype type;
    float *row;
} follower;

static void check_step(follower *f, uint32_t k, const float *logits)
{
    const golden_run *r = f->run;
    char got[65];
    qn_sample s;
    qn_sha256_hex(logits, f->n_vocab * sizeof *logits, got);
    const char *want = json_string_value(json_array_get(r->hashes, k));
    if (strncmp(got, want, HASH_DIGITS)) fail_msg("%s: other logits at step %u", r->label, k);
    memcpy(f->row, logits, f->n_vocab * sizeof *logits);
    qn_sampler_draw(f->sampler, f->row, f->type, r->ids, r->n_prompt + k, k, &s);
    if (s.token != r->ids[r->n_prompt + k]) {
        fail_msg("%s: token %u at step %u, must be %u", r->label, s.token, k,
                 r->ids[r->n_prompt + k]);
    }
    f->n_checked++;
}

static qn_code follow(void *user, uint32_t first, uint32_t n, const float *rows, qn_err *err)
{
    (void)err;
    follower *f = user;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = first + i + 1; /* of the token that this row gives */
        if (pos >= f->run->n_prompt)
            check_step(f, pos - f->run->n_prompt, rows + (size_t)i * f->n_vocab);
    }
    return QN_OK;
}

static void test_steps(void **state)
{
    fixture *f = need_model(state);
    qn_model *m = f->model->model;
    static golden_run r;
    uint32_t n_checked = 0;
    assert_int_equal(json_array_size(json_object_get(f->golden, "greedy")), N_GREEDY);
    assert_int_equal(json_array_size(json_object_get(f->golden, "seeded")), N_SEEDED);
    assert_int_equal(m->info.dtype, QN_BF16);
    for (size_t i = 0; i < N_GREEDY + N_SEEDED; i++) {
        qn_err err = {0};
        follower w = {.run = &r, .n_vocab = m->info.n_vocab, .type = m->info.dtype};
        read_run(f, i, &r);
        w.row = malloc(w.n_vocab * sizeof *w.row);
        assert_non_null(w.row);
        if (qn_sampler_new(&w.sampler, &r.sampling, w.n_vocab, &err)) fail_msg("%s", err.text);
        /* The last token of the reply is not an input. */
        if (qn_score(m, r.ids, r.n_prompt + r.n_reply - 1, NULL, follow, &w, &err))
            fail_msg("%s", err.text);
        assert_int_equal(w.n_checked, r.n_reply);
        n_checked += w.n_checked;
        qn_sampler_free(w.sampler);
        free(w.row);
    }
    print_message("%u steps with mlx-lm's logits and tokens\n", n_checked);
}

/* ---- through the engine ---- */

static qn_gen *submit(const fixture *f, qn_engine *e, const golden_run *r)
{
    qn_err err = {0};
    qn_gen *g;
    qn_request req = {.prompt = r->ids,
                      .n_prompt = r->n_prompt,
                      .max_tokens = N_TOKENS,
                      .eos = f->model->eos,
                      .n_eos = f->model->n_eos,
                      .ignore_eos = r->is_greedy,
                      .sampling = r->sampling};
    if (qn_engine_submit(e, &req, &g, &err)) fail_msg("%s", err.text);
    return g;
}

static void compare_reply(const golden_run *r, qn_gen *g)
{
    qn_event ev;
    uint32_t n = 0;
    while (qn_gen_wait(g, &ev, -1) && ev.kind != QN_EV_DONE) {
        if (ev.kind != QN_EV_TOKEN) continue;
        if (n >= r->n_reply || ev.sample.token != r->ids[r->n_prompt + n]) {
            fail_msg("%s: token %u at step %u", r->label, ev.sample.token, n);
        }
        n++;
    }
    if (ev.finish == QN_FINISH_ERROR) fail_msg("%s: %s", r->label, ev.err.text);
    assert_int_equal(n, r->n_reply);
}

static void test_engine(void **state)
{
    fixture *f = need_model(state);
    enum { N = N_GREEDY + N_SEEDED };
    static golden_run runs[N];
    qn_gen *gens[N];
    qn_engine *e;
    qn_err err = {0};
    const qn_engine_opts o = {.max_rows = 6, .max_positions = 512};
    if (qn_engine_new(&e, f->model->model, &o, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < N; i++) {
        read_run(f, i, &runs[i]);
        gens[i] = submit(f, e, &runs[i]);
    }
    for (size_t i = 0; i < N; i++) {
        compare_reply(&runs[i], gens[i]);
        qn_gen_free(gens[i]);
    }
    qn_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_engine)};
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
