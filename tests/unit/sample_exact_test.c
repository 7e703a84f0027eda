/* sample_exact_test.c - exact sampling against mlx-lm, bit for bit and token for token
 * (tests/golden/make_exact_sample.py): log-probabilities, every processor and filter alone, and
 * whole chains with seeds, on bfloat16, float16 and float32 rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "sample/exact.c"

enum { MAX_ROW = 2048, MAX_LIST = 64 };

/* One row of the golden file. */
typedef struct row {
    char label[64];
    uint32_t n, n_prompt;
    qn_dtype type;
    float logits[MAX_ROW], logprobs[MAX_ROW];
    uint32_t prompt[MAX_LIST];
} row;

static json_t *golden;
static qn_desk *desk; /* of MAX_ROW tokens: the rows take turns */

static int load_golden(void **state)
{
    (void)state;
    json_error_t e;
    golden = json_load_file(QN_TEST_DIR "/golden/exact_sample.json", 0, &e);
    return golden && !qn_desk_new(&desk, MAX_ROW, NULL) ? 0 : -1;
}

static int drop_golden(void **state)
{
    (void)state;
    json_decref(golden);
    qn_desk_free(desk);
    return 0;
}

/* ---- reading ---- */

static size_t base64(const json_t *text, void *out, size_t max)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t *to = out;
    size_t n = 0;
    uint32_t acc = 0;
    int bits = 0;
    for (const char *s = json_string_value(text); *s && *s != '='; s++) {
        acc = acc << 6 | (uint32_t)(strchr(digits, *s) - digits);
        bits += 6;
        if (bits < 8) continue;
        bits -= 8;
        assert_true(n < max);
        to[n++] = (uint8_t)(acc >> bits);
    }
    return n;
}

static uint32_t read_ids(const json_t *list, uint32_t *out)
{
    assert_true(json_array_size(list) <= MAX_LIST);
    for (size_t i = 0; i < json_array_size(list); i++) {
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    }
    return (uint32_t)json_array_size(list);
}

static void read_row(row *r, const json_t *c)
{
    const char *type = json_string_value(json_object_get(c, "type"));
    snprintf(r->label, sizeof r->label, "%s %s", type,
             json_string_value(json_object_get(c, "name")));
    assert_int_equal(qn_dtype_parse(type, &r->type), 0);
    r->n = (uint32_t)json_integer_value(json_object_get(c, "n"));
    assert_int_equal(base64(json_object_get(c, "logits"), r->logits, sizeof r->logits), r->n * 4);
    assert_int_equal(base64(json_object_get(c, "logprobs"), r->logprobs, sizeof r->logprobs),
                     r->n * 4);
    r->n_prompt = read_ids(json_object_get(c, "prompt"), r->prompt);
}

static float num(const json_t *o, const char *key, double absent)
{
    const json_t *v = json_object_get(o, key);
    return (float)(v ? json_number_value(v) : absent);
}

static uint32_t whole(const json_t *o, const char *key, int absent)
{
    const json_t *v = json_object_get(o, key);
    return (uint32_t)(v ? json_integer_value(v) : absent);
}

/* The options of a case, with mlx-lm's defaults; lists go to the caller's memory [MAX_LIST]. */
static qn_sampling read_options(const json_t *o, qn_logit_bias *bias, uint32_t *special)
{
    const json_t *pairs = json_object_get(o, "logit_bias"), *p;
    size_t i;
    json_array_foreach(pairs, i, p) {
        bias[i] = (qn_logit_bias){(uint32_t)json_integer_value(json_array_get(p, 0)),
                                  (float)json_number_value(json_array_get(p, 1))};
    }
    return (qn_sampling){
        .temperature = num(o, "temp", 0),
        .top_p = num(o, "top_p", 0),
        .min_p = num(o, "min_p", 0),
        .min_tokens_to_keep = whole(o, "min_tokens_to_keep", 1),
        .top_k = whole(o, "top_k", 0),
        .xtc_probability = num(o, "xtc_probability", 0),
        .xtc_threshold = num(o, "xtc_threshold", 0.1),
        .repetition_penalty = num(o, "repetition_penalty", 0),
        .presence_penalty = num(o, "presence_penalty", 0),
        .frequency_penalty = num(o, "frequency_penalty", 0),
        .repetition_context = whole(o, "repetition_context_size", 20),
        .presence_context = whole(o, "presence_context_size", 20),
        .frequency_context = whole(o, "frequency_context_size", 20),
        .bias = bias,
        .n_bias = json_array_size(pairs),
        .special = special,
        .n_special = read_ids(json_object_get(o, "special"), special),
        .has_seed = true,
        .exact = true,
    };
}

/* ---- the steps alone ---- */

static void check_bits(const row *r, const char *what, size_t i, const float *got,
                       const float *want)
{
    for (uint32_t k = 0; k < r->n; k++) {
        if (!memcmp(&got[k], &want[k], sizeof *got)) continue;
        fail_msg("%s: %s %zu: id %u is %a, must be %a", r->label, what, i, k, (double)got[k],
                 (double)want[k]);
    }
}

static qn_exact *make(const qn_sampling *o, uint64_t seed, uint32_t n)
{
    qn_exact *s;
    qn_err err = {0};
    qn_sampling with_desk = *o;
    with_desk.desk = desk;
    if (qn_exact_new(&s, &with_desk, seed, n, &err)) fail_msg("%s", err.text);
    return s;
}

static void check_filter(const row *r, size_t i, const json_t *f)
{
    static float x[MAX_ROW];
    uint8_t kept[MAX_ROW / 8 + 1];
    qn_logit_bias bias[MAX_LIST];
    uint32_t special[MAX_LIST];
    qn_sampling o = read_options(json_object_get(f, "o"), bias, special);
    o.temperature = 1;
    qn_exact *s = make(&o, 9, r->n);
    memcpy(x, r->logprobs, r->n * sizeof *x);
    filter(s, x, r->type);
    base64(json_object_get(f, "kept"), kept, sizeof kept);
    for (uint32_t k = 0; k < r->n; k++) {
        bool want = kept[k / 8] >> k % 8 & 1, got = x[k] > -INFINITY;
        if (got != want)
            fail_msg("%s: filter %zu: id %u is %s", r->label, i, k, got ? "kept" : "dropped");
        if (got) assert_memory_equal(&x[k], &r->logprobs[k], sizeof *x);
    }
    qn_exact_free(s);
}

static void check_processor(const row *r, size_t i, const json_t *p)
{
    static float x[MAX_ROW], want[MAX_ROW];
    qn_logit_bias bias[MAX_LIST];
    uint32_t special[MAX_LIST];
    qn_sampling o = read_options(json_object_get(p, "o"), bias, special);
    qn_exact *s = make(&o, 0, r->n);
    memcpy(x, r->logits, r->n * sizeof *x);
    process(s, x, r->type, r->prompt, r->n_prompt);
    base64(json_object_get(p, "out"), want, sizeof want);
    check_bits(r, "processor", i, x, want);
    qn_exact_free(s);
}

static void test_steps(void **state)
{
    (void)state;
    static row r;
    static float x[MAX_ROW];
    size_t i, k;
    json_t *c, *step;
    json_array_foreach(json_object_get(golden, "cases"), i, c) {
        read_row(&r, c);
        memcpy(x, r.logits, r.n * sizeof *x);
        normalize(x, r.n, r.type);
        check_bits(&r, "logprobs", 0, x, r.logprobs);
        json_array_foreach(json_object_get(c, "filters"), k, step) check_filter(&r, k, step);
        json_array_foreach(json_object_get(c, "processors"), k, step) check_processor(&r, k, step);
    }
}

/* ---- whole chains ---- */

static void check_chain(const row *r, size_t i, const json_t *chain, uint32_t *n_draws)
{
    static float x[MAX_ROW];
    qn_logit_bias bias[MAX_LIST];
    uint32_t special[MAX_LIST], want[MAX_LIST], history[2 * MAX_LIST], n = r->n_prompt;
    qn_sampling o = read_options(json_object_get(chain, "o"), bias, special);
    uint32_t n_want = read_ids(json_object_get(chain, "tokens"), want);
    o.seed = (uint64_t)json_integer_value(json_object_get(chain, "seed"));
    o.exact_splits = whole(chain, "splits", 0);
    qn_sampler *s;
    qn_err err = {0};
    if (qn_sampler_new(&s, &o, r->n, &err)) fail_msg("%s", err.text);
    memcpy(history, r->prompt, n * sizeof *history);
    for (uint32_t k = 0; k < n_want; k++) {
        qn_sample out;
        memcpy(x, r->logits, r->n * sizeof *x);
        qn_sampler_draw(s, x, r->type, history, n, k, &out);
        if (out.token != want[k]) {
            fail_msg("%s: chain %zu, draw %u: %u, must be %u", r->label, i, k, out.token, want[k]);
        }
        history[n++] = out.token;
        ++*n_draws;
    }
    qn_sampler_free(s);
}

static void test_chains(void **state)
{
    (void)state;
    static row r;
    uint32_t n_draws = 0;
    size_t i, k;
    json_t *c, *chain;
    json_array_foreach(json_object_get(golden, "cases"), i, c) {
        read_row(&r, c);
        json_array_foreach(json_object_get(c, "chains"), k, chain)
            check_chain(&r, k, chain, &n_draws);
    }
    print_message("%u draws\n", n_draws);
    assert_int_equal(n_draws, 3 * 4 * 15 * 3 * 12);
}

/* Draw k is the same whether or not the draws before it were made; logprobs come before the
 * filters. */
static void test_any_order(void **state)
{
    (void)state;
    static row r;
    static float x[MAX_ROW];
    read_row(&r, json_array_get(json_object_get(golden, "cases"), 1));
    qn_sampling o = {.temperature = 1,
                     .xtc_probability = 0.5f,
                     .xtc_threshold = 0.02f,
                     .top_k = 40,
                     .seed = 3,
                     .logprobs = true,
                     .n_top = 3};
    qn_exact *s = make(&o, o.seed, r.n);
    qn_sample out[6], again;
    for (uint32_t k = 0; k < 6; k++) {
        memcpy(x, r.logits, r.n * sizeof *x);
        qn_exact_draw(s, x, r.type, NULL, 0, k, &out[k]);
        assert_true(out[k].logprob == r.logprobs[out[k].token]);
        assert_true(out[k].top[0].logprob == r.logprobs[argmax(r.logprobs, r.n)]);
        assert_true(out[k].top[1].logprob >= out[k].top[2].logprob);
    }
    for (uint32_t k = 6; k-- > 0;) {
        memcpy(x, r.logits, r.n * sizeof *x);
        qn_exact_draw(s, x, r.type, NULL, 0, k, &again);
        assert_int_equal(again.token, out[k].token);
    }
    qn_exact_free(s);
}

static void test_written(void **state)
{
    (void)state;
    assert_true(as_written(0.8f) == 0.8 && as_written(0.05f) == 0.05 && as_written(1.0f) == 1);
    assert_true(as_written(0.123456f) == 0.123456 && as_written(1e-9f) == 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_written),
    };
    return cmocka_run_group_tests(tests, load_golden, drop_golden);
}
