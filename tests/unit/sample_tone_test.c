/* sample_tone_test.c - tone and point curves against numpy's float64 formulas
 * (tests/golden/make_tone.py): within 3e-6 of the value's size, float32's rounding through a
 * logarithm; and what a draw makes of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sample/sampler.h"

enum { MAX_N = 400 };

static float number(const json_t *v)
{
    return json_is_null(v) ? -INFINITY : json_is_string(v) ? INFINITY : (float)json_number_value(v);
}

static void set(qn_tone *t, float *temperature, const char *key, const json_t *v)
{
    const struct { const char *name; float *to; } fields[] = {
        {"temperature", temperature}, {"pivot_offset", &t->pivot_offset}, {"width", &t->width},
        {"shoulder", &t->shoulder}, {"toe", &t->toe}, {"gain", &t->gain},
        {"luminance", &t->luminance}, {"brightness", &t->brightness}, {"window", &t->window},
        {"power", &t->power}, {"ref_gap", &t->ref_gap}, {"scale", &t->scale},
    };
    if (!strcmp(key, "pivot")) {
        t->pivot = !strcmp(json_string_value(v), "median") ? QN_PIVOT_MEDIAN : QN_PIVOT_ENTROPY;
        return;
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strcmp(fields[i].name, key)) continue;
        *fields[i].to = number(v);
        return;
    }
    fail_msg("no field for %s", key);
}

static qn_tone_kind kind_of(const char *name)
{
    static const char *const names[] = {"", "hlg", "oetf", "eotf", "pipeline", "shaper"};
    for (int i = 1; i < 6; i++) {
        if (!strcmp(names[i], name)) return (qn_tone_kind)i;
    }
    fail_msg("no kind for %s", name);
    return QN_TONE_OFF;
}

static void apply(const json_t *c, float *out, const float *x, uint32_t n, float max, float lse)
{
    qn_err err = {0};
    const json_t *points = json_object_get(c, "points");
    if (points) {
        qn_curve_point p[8];
        qn_curve curve;
        for (size_t i = 0; i < json_array_size(points); i++) {
            const json_t *xy = json_array_get(points, i);
            p[i] = (qn_curve_point){number(json_array_get(xy, 0)), number(json_array_get(xy, 1))};
        }
        assert_int_equal(qn_curve_make(&curve, p, json_array_size(points), &err), QN_OK);
        qn_curve_apply(&curve, out, x, n, lse);
        return;
    }
    float order[MAX_N], temperature = 1;
    qn_tone t = qn_tone_default(kind_of(json_string_value(json_object_get(c, "kind"))));
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(c, "options"), key, v) set(&t, &temperature, key, v);
    if (qn_tone_check(&t, &err)) fail_msg("%s", err.text);
    qn_tone_apply(&t, temperature, out, x, n, max, lse, order);
}

static void test_golden(void **state)
{
    (void)state;
    json_error_t je;
    json_t *golden = json_load_file(QN_TEST_DIR "/golden/tone.json", 0, &je), *row, *c;
    assert_non_null(golden);
    size_t r, i, n_cases = 0;
    json_array_foreach(json_object_get(golden, "rows"), r, row) {
        const json_t *lp = json_object_get(row, "lp");
        float x[MAX_N], out[MAX_N], max = -INFINITY;
        uint32_t n = (uint32_t)json_array_size(lp);
        /* As logits: anything may be added to all of them. */
        const float lse = 3.25f;
        for (uint32_t k = 0; k < n; k++) {
            x[k] = number(json_array_get(lp, k)) + lse;
            if (x[k] > max) max = x[k];
        }
        json_array_foreach(json_object_get(row, "cases"), i, c) {
            apply(c, out, x, n, max, lse);
            for (uint32_t k = 0; k < n; k++) {
                float want = number(json_array_get(json_object_get(c, "out"), k));
                if (isinf(want) ? out[k] == want : fabsf(out[k] - want) <= 3e-6f * (3 + fabsf(want)))
                    continue;
                fail_msg("row %zu case %zu (%s): %g at %u becomes %.8g, must be %.8g", r, i,
                         json_string_value(json_object_get(c, "kind")), (double)x[k], k,
                         (double)out[k], (double)want);
            }
            n_cases++;
        }
    }
    assert_int_equal(n_cases, 4 * 19);
    json_decref(golden);
}

/* The values that the specification prints. */
static void test_printed_values(void **state)
{
    (void)state;
    const float lp[6] = {0, -1, -3, -6, -12, -20},
                want[6] = {8.031229f, 6.989392f, 4.285714f, 0, -8.180132f, -14.121394f};
    float out[6];
    qn_tone t = qn_tone_default(QN_TONE_CURVE);
    qn_tone_apply(&t, 0.7f, out, lp, 6, 0, 0, NULL);
    for (int i = 0; i < 6; i++) assert_true(fabsf(out[i] - want[i]) < 2e-6f);
    t = qn_tone_default(QN_TONE_SHAPER);
    qn_tone_apply(&t, 1, out, lp, 6, 0, 0, NULL);
    assert_true(fabsf(out[0] - 47.6555f) < 1e-4f);
}

static void fill(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] = (float)((i * 37) % 101) * 0.05f;
}

static uint32_t token_of(const qn_sampling *o, uint32_t n, uint64_t k, qn_sample *s)
{
    static float x[MAX_N];
    qn_sampler *sampler;
    qn_err err = {0};
    fill(x, n);
    if (qn_sampler_new(&sampler, o, n, &err)) fail_msg("%s", err.text);
    qn_sampler_draw(sampler, x, QN_F32, NULL, 0, k, s);
    qn_sampler_free(sampler);
    return s->token;
}

/* A linear tone curve is a temperature, a straight point curve is temperature 1: the same tokens
 * from the same seeds. What is reported are the log-probabilities before the curve. */
static void test_draws(void **state)
{
    (void)state;
    qn_sample a, b;
    const qn_curve_point straight[2] = {{0.5f, 0.5f}, {100, 100}};
    qn_sampling plain = {.temperature = 0.6f, .has_seed = true, .seed = 4, .n_top = 3}, bent = plain;
    bent.tone = qn_tone_default(QN_TONE_CURVE);
    bent.tone.width = INFINITY;
    bent.top_k = 1; /* and filters are ignored */
    qn_sampling one = plain, points = plain;
    one.temperature = 1;
    points.temperature = 0; /* always stochastic */
    points.curve = straight;
    points.n_curve = 2;
    uint32_t differ = 0;
    for (uint64_t k = 0; k < 300; k++) {
        assert_int_equal(token_of(&plain, 200, k, &a), token_of(&bent, 200, k, &b));
        assert_memory_equal(a.top, b.top, sizeof a.top);
        assert_true(a.logprob == b.logprob);
        assert_int_equal(token_of(&one, 200, k, &a), token_of(&points, 200, k, &b));
        differ += a.token != token_of(&plain, 200, k, &b);
    }
    assert_true(differ > 30);
    bent.temperature = 0; /* greedy: the curve is ignored */
    token_of(&bent, 200, 0, &a);
    assert_true(a.logprob == a.top[0].logprob);
}

/* A tone curve makes likely tokens more alike and unlikely ones rarer, as its values say. */
static void test_frequencies(void **state)
{
    (void)state;
    enum { N = 12, DRAWS = 40000 };
    float x[N], out[N], max = 0;
    double lse = 0, total = 0, p[N], chi = 0;
    int count[N] = {0};
    qn_sampling o = {.temperature = 0.9f, .has_seed = true, .seed = 11};
    o.tone = qn_tone_default(QN_TONE_CURVE);
    o.tone.width = 0.5f;
    o.tone.pivot_offset = 1.5f;
    for (int i = 0; i < N; i++) {
        x[i] = (float)i * -0.4f;
        lse += exp(x[i]);
    }
    qn_tone_apply(&o.tone, o.temperature, out, x, N, max, (float)log(lse), NULL);
    for (int i = 0; i < N; i++) total += p[i] = exp(out[i]);
    qn_sampler *s;
    qn_err err = {0};
    assert_int_equal(qn_sampler_new(&s, &o, N, &err), QN_OK);
    for (uint64_t k = 0; k < DRAWS; k++) {
        float copy[N];
        qn_sample drawn;
        memcpy(copy, x, sizeof x);
        qn_sampler_draw(s, copy, QN_F32, NULL, 0, k, &drawn);
        count[drawn.token]++;
    }
    qn_sampler_free(s);
    for (int i = 0; i < N; i++) {
        double want = DRAWS * p[i] / total;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    assert_true(chi < 48); /* 11 degrees of freedom, 1e-6 */
}

static void test_refusals(void **state)
{
    (void)state;
    const qn_curve_point falls[3] = {{1, 5}, {10, 4}, {100, 100}}, twice[2] = {{5, 1}, {5, 2}},
                         far[2] = {{0, 0}, {101, 100}};
    const qn_curve_point *const bad[] = {falls, twice, far, falls};
    const size_t n[] = {3, 2, 2, 1};
    for (int i = 0; i < 4; i++) {
        qn_err err = {0};
        qn_curve c;
        assert_int_equal(qn_curve_make(&c, bad[i], n[i], &err), QN_INVALID);
        assert_int_equal(c.n, 0);
    }
    qn_tone tones[5];
    for (int i = 0; i < 5; i++) tones[i] = qn_tone_default((qn_tone_kind)(i + 1));
    tones[0].width = 101;
    tones[1] = tones[0];
    tones[1].width = NAN;
    tones[2].luminance = 0;
    tones[3].brightness = -1;
    tones[4].x_floor = 0.55f;
    for (int i = 0; i < 5; i++) {
        qn_err err = {0};
        qn_sampler *s;
        qn_sampling o = {.temperature = 1, .tone = tones[i]};
        assert_int_equal(qn_sampler_new(&s, &o, 10, &err), QN_INVALID);
        assert_null(s);
    }
    qn_err err = {0};
    qn_sampler *s;
    qn_sampling o = {.temperature = 1, .exact = true, .tone = qn_tone_default(QN_TONE_CURVE)};
    assert_int_equal(qn_sampler_new(&s, &o, 10, &err), QN_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),      cmocka_unit_test(test_printed_values),
        cmocka_unit_test(test_draws),       cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
