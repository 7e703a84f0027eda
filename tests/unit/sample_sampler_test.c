/* sample_sampler_test.c - random numbers against the published table, processors and filters
 * against mlx-lm (tests/golden/make_sample.py), and the draw against its distribution. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "sample/sampler.c"

static const json_t *golden;

static int load_golden(void **state)
{
    (void)state;
    json_error_t e;
    golden = json_load_file(QN_TEST_DIR "/golden/sample.json", 0, &e);
    return golden ? 0 : -1;
}

static int drop_golden(void **state)
{
    (void)state;
    json_decref((json_t *)(uintptr_t)golden);
    return 0;
}

static float from_bits(const json_t *v)
{
    union { uint32_t u; float f; } x = {.u = (uint32_t)json_integer_value(v)};
    return x.f;
}

static void read_floats(const json_t *list, float *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) out[i] = from_bits(json_array_get(list, i));
}

static double num(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static qn_sampler *make(const qn_sampling *o, uint32_t n)
{
    qn_sampler *s;
    qn_err err = {0};
    if (qn_sampler_new(&s, o, n, &err)) fail_msg("%s", err.text);
    return s;
}

/* Words of the spec's table (engine 2.5) and the published Threefry answers (numerics 14). */
static void test_random(void **state)
{
    (void)state;
    static const struct { uint64_t seed, k; uint32_t w0, w1, split[4]; float u;
    } rows[] = {
        {0,
         0,
         0x9e3779b9,
         0x7f4a7c15,
         {0x40ccc11c, 0xfc8bd232, 0xaf61edf1, 0xa0b32a3a},
         0.07593324f},
        {42,
         0,
         0x9e3779b9,
         0x7f4a7c3f,
         {0xc15c784c, 0x72db6c09, 0x1573db90, 0x121b3a09},
         0.13344391f},
        {42,
         1,
         0x3c6ef372,
         0xfe94f800,
         {0x1dc22639, 0x6e7c7c12, 0xd403e025, 0x230ea4ec},
         0.61539197f},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_key k = qn_step_key(rows[i].seed, rows[i].k), two[2];
        assert_int_equal(k.w[0], rows[i].w0);
        assert_int_equal(k.w[1], rows[i].w1);
        qn_key_split(k, two);
        assert_int_equal(two[0].w[0], rows[i].split[0]);
        assert_int_equal(two[0].w[1], rows[i].split[1]);
        assert_int_equal(two[1].w[0], rows[i].split[2]);
        assert_int_equal(two[1].w[1], rows[i].split[3]);
        assert_true(fabsf(qn_uniform(k) - rows[i].u) < 1e-7f);
    }
    uint32_t w[2];
    qn_threefry((qn_key){{0, 0}}, 0, 0, w);
    assert_int_equal(w[0], 0x6b200159);
    assert_int_equal(w[1], 0x99ba4efe);
    qn_threefry((qn_key){{~0u, ~0u}}, ~0u, ~0u, w);
    assert_int_equal(w[0], 0x1cb996fc);
    assert_int_equal(w[1], 0xbb002be7);
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = ((const qn_top *)a)->id, y = ((const qn_top *)b)->id;
    return x < y ? -1 : x > y;
}

static void check_filter(const json_t *c, const float *x, uint32_t n)
{
    qn_sampling o = {.temperature = 1,
                     .top_p = (float)num(c, "top_p"),
                     .min_p = (float)num(c, "min_p"),
                     .min_tokens_to_keep = (uint32_t)num(c, "keep"),
                     .top_k = (uint32_t)num(c, "top_k"),
                     .has_seed = true};
    qn_sampler *s = make(&o, n);
    const json_t *want = json_object_get(c, "kept");
    float max = x[argmax(x, n)];
    weights(s->w, x, n, max, 1);
    float lse = logf(sum_all(s, s->w)) + max;
    size_t got = s->cand ? filter(s, x, max, lse, (qn_key){{0, 0}}) : 0;
    assert_non_null(s->cand);
    qsort(s->cand, got, sizeof *s->cand, by_id);
    assert_int_equal(got, json_array_size(want));
    for (size_t i = 0; i < got; i++)
        assert_int_equal(s->cand[i].id, json_integer_value(json_array_get(want, i)));
    qn_sampler_free(s);
}

static void test_filters(void **state)
{
    (void)state;
    static float x[4096];
    uint32_t n = 0;
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(golden, "filters"), i, c) {
        const json_t *l = json_object_get(c, "logits");
        if (json_is_array(l)) {
            n = (uint32_t)json_array_size(l);
            read_floats(l, x);
        }
        check_filter(c, x, n);
    }
}

static bool kept_by(const bool *in, const float *x, uint32_t n, uint32_t i, size_t most)
{
    size_t before = 0;
    for (uint32_t j = 0; j < n; j++)
        before += in[j] && (x[j] > x[i] || (x[j] == x[i] && j < i));
    return in[i] && before < most;
}

/* The filters as the specification words them, by counting ranks: top-p, min-p, xtc, top-k. */
static void filter_plainly(const qn_sampling *o, const float *x, uint32_t n, bool *in)
{
    bool next[600];
    double total = 0, max = -INFINITY, left = 0, limit = INFINITY;
    for (uint32_t i = 0; i < n; i++) max = fmax(max, x[i]);
    for (uint32_t i = 0; i < n; i++) total += exp(x[i] - max);
    for (uint32_t i = 0; i < n; i++) {
        double before = 0;
        for (uint32_t j = 0; j < n; j++)
            before += x[j] > x[i] || (x[j] == x[i] && j < i) ? exp(x[j] - max) / total : 0;
        in[i] = !has_top_p(o) || before < o->top_p;
    }
    size_t keep = o->min_tokens_to_keep > 1 ? o->min_tokens_to_keep : 1;
    for (uint32_t i = 0; i < n; i++)
        next[i] = in[i] && (o->min_p <= 0 || x[i] >= max + log(o->min_p) || kept_by(in, x, n, i, keep));
    for (uint32_t i = 0; i < n; i++) left += next[i] ? exp(x[i] - max) : 0;
    for (uint32_t i = 0; i < n; i++) {
        double p = exp(x[i] - max) / left;
        if (next[i] && p > o->xtc_threshold && p < limit) limit = p;
    }
    bool use_xtc = o->xtc_probability > 0;
    for (uint32_t i = 0; i < n; i++)
        in[i] = next[i] && !(use_xtc && exp(x[i] - max) / left > limit * (1 + 1e-6));
    memcpy(next, in, n * sizeof *in);
    size_t top_k = o->top_k && o->top_k < n ? o->top_k : n;
    for (uint32_t i = 0; i < n; i++) in[i] = kept_by(next, x, n, i, top_k);
}

/* Random rows with ties and impossible tokens, random options. */
static void test_filters_plainly(void **state)
{
    (void)state;
    uint32_t seed = 9;
    for (int round = 0; round < 400; round++) {
        float x[600], max = -INFINITY;
        bool want[600], got[600] = {0};
        uint32_t r[8], n = 0;
        for (int i = 0; i < 8; i++) r[i] = (seed = seed * 1664525u + 1013904223u) >> 8;
        n = 2 + r[0] % 598;
        for (uint32_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            /* Steps of 1/4 in every second row: many values are equal. */
            float v = (float)(seed >> 8) / (1 << 24) * (float)(1 + r[1] % 40);
            x[i] = seed % 50 == 0 ? -INFINITY : round % 2 ? floorf(v * 4) / 4 : v;
            if (i == n / 2) x[i] = 1;
            if (x[i] > max) max = x[i];
        }
        qn_sampling o = {.temperature = 1, .has_seed = true};
        if (r[2] % 2) o.top_p = (float)(1 + r[2] % 999) / 1000;
        if (r[3] % 2) o.min_p = (float)(1 + r[3] % 99) / 100;
        if (r[4] % 2) o.min_tokens_to_keep = r[4] % 9;
        if (r[5] % 2) o.top_k = 1 + r[5] % n;
        if (r[6] % 3 == 0) o.xtc_probability = 1;
        o.xtc_threshold = (float)(r[7] % 50) / 100 + 0.003f;
        if (o.xtc_threshold > 0.5f) o.xtc_threshold = 0.5f;
        qn_sampler *s = make(&o, n);
        if (s->cand) {
            filter_plainly(&o, x, n, want);
            weights(s->w, x, n, max, 1);
            size_t kept = filter(s, x, max, logf(sum_all(s, s->w)) + max, (qn_key){{0, 0}});
            for (size_t i = 0; i < kept; i++) {
                assert_false(got[s->cand[i].id]);
                got[s->cand[i].id] = true;
            }
            for (uint32_t i = 0; i < n; i++) {
                if (want[i] != got[i] && x[i] > -INFINITY)
                    fail_msg("round %d: id %u of %u kept %d, must be %d", round, i, n, got[i], want[i]);
            }
        }
        qn_sampler_free(s);
    }
}

static void test_processors(void **state)
{
    (void)state;
    const json_t *p = json_object_get(golden, "processors");
    uint32_t history[100];
    size_t i, n_history = json_array_size(json_object_get(p, "history"));
    for (i = 0; i < n_history; i++) {
        history[i] = (uint32_t)json_integer_value(json_array_get(json_object_get(p, "history"), i));
    }
    json_t *c;
    json_array_foreach(json_object_get(p, "cases"), i, c) {
        const json_t *o = json_object_get(c, "options"), *b = json_object_get(o, "logit_bias");
        qn_logit_bias bias[8];
        qn_sampling so = {.repetition_penalty = (float)num(o, "repetition_penalty"),
                          .presence_penalty = (float)num(o, "presence_penalty"),
                          .frequency_penalty = (float)num(o, "frequency_penalty"),
                          .repetition_context = (uint32_t)num(o, "repetition_context_size"),
                          .presence_context = (uint32_t)num(o, "presence_context_size"),
                          .frequency_context = (uint32_t)num(o, "frequency_context_size"),
                          .bias = bias,
                          .n_bias = json_array_size(b)};
        for (size_t k = 0; k < so.n_bias; k++) {
            const json_t *pair = json_array_get(b, k);
            bias[k] = (qn_logit_bias){(uint32_t)json_integer_value(json_array_get(pair, 0)),
                                      (float)json_number_value(json_array_get(pair, 1))};
        }
        float x[40], want[40];
        read_floats(json_object_get(p, "logits"), x);
        read_floats(json_object_get(c, "out"), want);
        qn_sampler *s = make(&so, 40);
        process(s, x, history, n_history);
        /* Ours subtracts count*p once, mlx p count times: a few roundings apart. */
        for (int k = 0; k < 40; k++)
            assert_true(fabsf(x[k] - want[k]) <= 1e-6f * (1 + fabsf(want[k])));
        for (int k = 0; k < 40; k++) assert_true(!s->counts || s->counts[k] == 0);
        qn_sampler_free(s);
    }
}

/* Pearson's statistic of many draws against softmax(x / T); 20 degrees of freedom, limit at 1e-6.
 */
static void test_distribution(void **state)
{
    (void)state;
    enum { V = 21, DRAWS = 40000 };
    float x[V], copy[V];
    double p[V], total = 0, chi = 0;
    int seen[V] = {0};
    for (int i = 0; i < V; i++) x[i] = (float)(i % 7) * 0.4f;
    for (int i = 0; i < V; i++) total += p[i] = exp(x[i] / 0.8);
    qn_sampler *s = make(&(qn_sampling){.temperature = 0.8f, .has_seed = true, .seed = 5}, V);
    for (int k = 0; k < DRAWS; k++) {
        qn_sample out;
        memcpy(copy, x, sizeof x);
        qn_sampler_draw(s, copy, QN_F32, NULL, 0, (uint64_t)k, &out);
        seen[out.token]++;
    }
    for (int i = 0; i < V; i++) {
        double want = DRAWS * p[i] / total;
        chi += (seen[i] - want) * (seen[i] - want) / want;
    }
    assert_true(chi < 65);
    qn_sampler_free(s);
}

static void test_draw_depends_on_seed_and_step_only(void **state)
{
    (void)state;
    enum { V = 3000 };
    float x[V];
    qn_sample a, b;
    for (int i = 0; i < V; i++) x[i] = (float)((i * 37) % 101) * 0.01f;
    qn_sampling o = {.temperature = 1, .has_seed = true, .seed = 99, .top_p = 0.9f};
    qn_sampler *s = make(&o, V), *t = make(&o, V);
    for (uint64_t k = 0; k < 50; k++) qn_sampler_draw(s, x, QN_F32, NULL, 0, k, &a);
    qn_sampler_draw(t, x, QN_F32, NULL, 0, 49, &b);
    assert_int_equal(a.token, b.token);
    qn_sampler_free(s);
    qn_sampler_free(t);
}

static void test_edges(void **state)
{
    (void)state;
    float ties[5] = {1, 3, 3, 2, 3}, dead[3] = {-INFINITY, -INFINITY, -INFINITY},
          one[4] = {-INFINITY, -INFINITY, 0, -INFINITY};
    qn_sample out;
    qn_sampler *s = make(&(qn_sampling){.n_top = 3}, 5);
    qn_sampler_draw(s, ties, QN_F32, NULL, 0, 0, &out);
    assert_int_equal(out.token, 1);
    assert_int_equal(out.n_top, 3);
    assert_int_equal(out.top[0].id, 1);
    assert_int_equal(out.top[1].id, 2);
    assert_int_equal(out.top[2].id, 4);
    double z = 3 * exp(0) + exp(-2) + exp(-1);
    assert_true(fabs(out.logprob - -log(z)) < 1e-6);
    qn_sampler_free(s);
    s = make(&(qn_sampling){.temperature = 1, .has_seed = true}, 3);
    assert_false(qn_sampler_draw(s, dead, QN_F32, NULL, 0, 0, &out));
    for (int i = 0; i < 3; i++) dead[i] = NAN;
    assert_false(qn_sampler_draw(s, dead, QN_F32, NULL, 0, 0, &out));
    qn_sampler_free(s);
    bool drawn[5] = {0};
    for (uint64_t seed = 0; seed < 200; seed++) { /* w = 1 where the logit is +inf */
        float huge[5] = {9, INFINITY, 3, INFINITY, -INFINITY};
        s = make(&(qn_sampling){.temperature = seed % 4 ? 1.0f : 0, .top_k = seed % 3 ? 0 : 2,
                                .has_seed = true, .seed = seed}, 5);
        assert_true(qn_sampler_draw(s, huge, QN_F32, NULL, 0, 0, &out));
        assert_true(seed % 4 ? out.token == 1 || out.token == 3 : out.token == 1);
        drawn[out.token] = true;
        qn_sampler_free(s);
    }
    assert_true(drawn[1] && drawn[3]);
    for (uint64_t seed = 0; seed < 200; seed++) {
        s = make(&(qn_sampling){.temperature = 1, .has_seed = true, .seed = seed}, 4);
        qn_sampler_draw(s, one, QN_F32, NULL, 0, 0, &out);
        assert_int_equal(out.token, 2);
        qn_sampler_free(s);
    }
}

static void test_xtc(void **state)
{
    (void)state;
    float x[4], p[4] = {0.4f, 0.3f, 0.2f, 0.1f};
    qn_sample out;
    uint32_t special = 0;
    qn_sampling o = {
        .temperature = 1, .xtc_probability = 1, .xtc_threshold = 0.15f, .has_seed = true};
    for (uint64_t seed = 0; seed < 300; seed++) {
        for (int i = 0; i < 4; i++) x[i] = logf(p[i]);
        o.seed = seed;
        qn_sampler *s = make(&o, 4);
        qn_sampler_draw(s, x, QN_F32, NULL, 0, 0, &out);
        assert_true(out.token >=
                    2); /* 0.2 is the least likely above the threshold: 0.4 and 0.3 go */
        qn_sampler_free(s);
    }
    o.special = &special;
    o.n_special = 1;
    bool saw_special = false;
    for (uint64_t seed = 0; seed < 300; seed++) {
        o.seed = seed;
        qn_sampler *s = make(&o, 4);
        qn_sampler_draw(s, x, QN_F32, NULL, 0, 0, &out);
        assert_int_not_equal(out.token, 1);
        saw_special |= out.token == 0;
        qn_sampler_free(s);
    }
    assert_true(saw_special);
}

static void test_refusals(void **state)
{
    (void)state;
    const qn_logit_bias far = {10, 1};
    const qn_sampling bad[] = {
        {.temperature = -1},        {.temperature = NAN},    {.top_p = 1.5f},
        {.min_p = -0.1f},           {.xtc_threshold = 0.6f}, {.xtc_probability = 2},
        {.repetition_penalty = -1}, {.n_top = 21},           {.bias = &far, .n_bias = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_sampler *s;
        qn_err err = {0};
        assert_int_equal(qn_sampler_new(&s, &bad[i], 10, &err), QN_INVALID);
        assert_null(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_filters_plainly),
        cmocka_unit_test(test_processors),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_draw_depends_on_seed_and_step_only),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_xtc),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, load_golden, drop_golden);
}
