/* The shared request fields: defaults, types, ranges, messages (spec server 4). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/json.h"
#include "serve/request.h"

enum { N_VOCAB = 1000 };

static const qn_request_defaults dflt = {
    .sampling = {.temperature = 0.7f, .top_p = 0.9f, .top_k = 20, .xtc_threshold = 0.1f, .repetition_context = 20,
                 .presence_context = 20, .frequency_context = 20},
    .max_tokens = -1,
};

static json_t *body;
static qn_arena arena;

static bool read_body(const char *text, bool is_completion, qn_fields *f, qn_http_error *e)
{
    qn_err err = {0};
    json_decref(body);
    qn_arena_release(&arena);
    memset(e, 0, sizeof *e);
    if (qn_json_parse(&body, text, strlen(text), &err)) fail_msg("%s: %s", text, err.text);
    return qn_fields_check_supported(body, e) && qn_fields_read(f, body, &dflt, N_VOCAB, is_completion, &arena, e);
}

static qn_fields accept(const char *text, bool is_completion)
{
    qn_fields f;
    qn_http_error e;
    if (!read_body(text, is_completion, &f, &e)) fail_msg("%s: %s", text, e.message);
    return f;
}

static void test_defaults(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{}",
        "{\"unknown\":{\"deep\":[1]},\"user\":\"me\",\"metadata\":{},\"store\":true,\"draft_model\":\"x\"}",
        "{\"model\":null,\"stream\":null,\"stream_options\":null,\"max_tokens\":null,\"max_completion_tokens\":null,"
        "\"temperature\":null,\"top_p\":null,\"top_k\":null,\"min_p\":null,\"xtc_probability\":null,"
        "\"xtc_threshold\":null,\"repetition_penalty\":null,\"presence_penalty\":null,\"frequency_penalty\":null,"
        "\"repetition_context_size\":null,\"presence_context_size\":null,\"frequency_context_size\":null,"
        "\"logit_bias\":null,\"logprobs\":null,\"top_logprobs\":null,\"seed\":null,\"stop\":null,\"n\":null,"
        "\"adapter\":null,\"tools\":null,\"tool_choice\":null,\"response_format\":null,\"guided_json\":null}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        qn_fields f = accept(bodies[i], false);
        assert_memory_equal(&f.sampling, &dflt.sampling, sizeof f.sampling);
        assert_false(f.stream || f.logprobs);
        assert_int_equal(f.usage, QN_USAGE_ON_FINISH);
        assert_int_equal(f.max_tokens, -1);
        assert_int_equal(f.n_stops, 0);
    }
}

static void test_values(void **state)
{
    (void)state;
    qn_fields f = accept("{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_tokens\":5,"
                         "\"max_completion_tokens\":100.0,\"temperature\":0,\"top_p\":1,\"top_k\":7,\"min_p\":0.25,"
                         "\"xtc_probability\":1,\"xtc_threshold\":0.5,\"repetition_penalty\":1.5,"
                         "\"presence_penalty\":-2,\"frequency_penalty\":2,\"repetition_context_size\":0,"
                         "\"seed\":-1,\"logit_bias\":{\"5\":-100,\"999\":0.5},\"top_logprobs\":3,"
                         "\"stop\":[\"a\",\"\",7,\"b\"]}", false);
    assert_true(f.stream && f.usage == QN_USAGE_CHUNK && f.max_tokens == 100);
    assert_true(f.sampling.temperature == 0 && f.sampling.top_p == 1 && f.sampling.top_k == 7);
    assert_true(f.sampling.min_p == 0.25f && f.sampling.xtc_probability == 1 && f.sampling.xtc_threshold == 0.5f);
    assert_true(f.sampling.repetition_penalty == 1.5f && f.sampling.presence_penalty == -2);
    assert_true(f.sampling.frequency_penalty == 2 && f.sampling.repetition_context == 0);
    assert_true(f.sampling.has_seed && f.sampling.seed == UINT64_MAX);
    assert_int_equal(f.sampling.n_bias, 2);
    assert_true(f.sampling.bias[0].id == 5 && f.sampling.bias[0].bias == -100);
    assert_true(f.sampling.bias[1].id == 999 && f.sampling.bias[1].bias == 0.5f);
    assert_true(f.logprobs && f.sampling.logprobs && f.sampling.n_top == 3 && !f.legacy_logprobs);
    assert_int_equal(f.n_stops, 2);
    assert_string_equal(f.stops[0], "a");
    assert_string_equal(f.stops[1], "b");
}

static void test_usage_modes(void **state)
{
    (void)state;
    assert_int_equal(accept("{\"stream_options\":{}}", false).usage, QN_USAGE_ON_FINISH);
    assert_int_equal(accept("{\"stream_options\":{\"include_usage\":null}}", false).usage, QN_USAGE_ON_FINISH);
    assert_int_equal(accept("{\"stream_options\":{\"include_usage\":true}}", false).usage, QN_USAGE_CHUNK);
    assert_int_equal(accept("{\"stream_options\":{\"include_usage\":false}}", false).usage, QN_USAGE_NONE);
}

static void test_logprobs_forms(void **state)
{
    (void)state;
    qn_fields f = accept("{\"logprobs\":4}", true);
    assert_true(f.logprobs && f.legacy_logprobs && f.sampling.n_top == 4);
    f = accept("{\"logprobs\":0}", true);
    assert_true(f.logprobs && f.legacy_logprobs && f.sampling.n_top == 0);
    f = accept("{\"logprobs\":true}", true);
    assert_true(f.logprobs && !f.legacy_logprobs);
    f = accept("{\"top_logprobs\":-1}", false);
    assert_false(f.logprobs);
    f = accept("{\"top_logprobs\":0}", false);
    assert_false(f.logprobs);
    f = accept("{\"logprobs\":true,\"top_logprobs\":11}", false);
    assert_true(f.sampling.n_top == 11);
}

static void test_seed_is_two_s_complement(void **state)
{
    (void)state;
    assert_true(accept("{\"seed\":18446744073709551615}", false).sampling.seed == UINT64_MAX);
    assert_true(accept("{\"seed\":9223372036854775808}", false).sampling.seed == (uint64_t)1 << 63);
    assert_true(accept("{\"seed\":-9223372036854775808}", false).sampling.seed == (uint64_t)1 << 63);
    assert_true(accept("{\"seed\":0}", false).sampling.has_seed);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct { const char *body, *param, *message; bool is_completion; } cases[] = {
        {"{\"stream\":1}", "stream", "stream must be of type bool", false},
        {"{\"stream_options\":true}", "stream_options", "stream_options must be of type object", false},
        {"{\"stream_options\":{\"include_usage\":1}}", "stream_options.include_usage", "must be of type bool", false},
        {"{\"model\":1}", "model", "model must be of type string", false},
        {"{\"max_tokens\":-1}", "max_tokens", "max_tokens must be at least 0", false},
        {"{\"max_tokens\":1.5}", "max_tokens", "max_tokens must be of type int", false},
        {"{\"max_tokens\":\"5\"}", "max_tokens", "max_tokens must be of type int", false},
        {"{\"max_completion_tokens\":true}", "max_completion_tokens", "must be of type int", false},
        {"{\"temperature\":\"0\"}", "temperature", "temperature must be of type number", false},
        {"{\"temperature\":-0.1}", "temperature", "temperature must be at least 0", false},
        {"{\"top_p\":1.1}", "top_p", "top_p must be at most 1", false},
        {"{\"top_p\":-1}", "top_p", "top_p must be at least 0", false},
        {"{\"min_p\":2}", "min_p", "min_p must be at most 1", false},
        {"{\"top_k\":-1}", "top_k", "top_k must be at least 0", false},
        {"{\"top_k\":2.5}", "top_k", "top_k must be of type int", false},
        {"{\"xtc_threshold\":0.6}", "xtc_threshold", "xtc_threshold must be at most 0.5", false},
        {"{\"xtc_probability\":1.01}", "xtc_probability", "at most 1", false},
        {"{\"repetition_penalty\":-1}", "repetition_penalty", "at least 0", false},
        {"{\"presence_penalty\":[]}", "presence_penalty", "must be of type number", false},
        {"{\"frequency_context_size\":-5}", "frequency_context_size", "at least 0", false},
        {"{\"seed\":1.5}", "seed", "seed must be of type int", false},
        {"{\"seed\":18446744073709551616}", "seed", "seed must be of type int", false},
        {"{\"logit_bias\":[1]}", "logit_bias", "logit_bias must be a dict of int to float", false},
        {"{\"logit_bias\":{\"1.5\":1}}", "logit_bias", "logit_bias must be a dict of int to float", false},
        {"{\"logit_bias\":{\"abc\":1}}", "logit_bias", "logit_bias must be a dict of int to float", false},
        {"{\"logit_bias\":{\" 1\":1}}", "logit_bias", "logit_bias must be a dict of int to float", false},
        {"{\"logit_bias\":{\"1\":\"2\"}}", "logit_bias", "logit_bias must be a dict of int to float", false},
        {"{\"logit_bias\":{\"1000\":1}}", "logit_bias", "outside the vocabulary of 1000", false},
        {"{\"logit_bias\":{\"-1\":1}}", "logit_bias", "outside the vocabulary", false},
        {"{\"logprobs\":1}", "logprobs", "logprobs must be of type bool", false},
        {"{\"logprobs\":6}", "logprobs", "logprobs must be at most 5", true},
        {"{\"logprobs\":-1}", "logprobs", "logprobs must be at least 0", true},
        {"{\"logprobs\":\"x\"}", "logprobs", "logprobs must be of type bool", true},
        {"{\"top_logprobs\":-2}", "top_logprobs", "top_logprobs must be at least 0", false},
        {"{\"top_logprobs\":12}", "top_logprobs", "top_logprobs must be at most 11", false},
        {"{\"top_logprobs\":2.5}", "top_logprobs", "top_logprobs must be of type int", false},
        {"{\"n\":2}", "n", "n must be 1", false},
        {"{\"n\":0}", "n", "n must be at least 1", false},
        {"{\"stop\":7}", "stop", "stop must be of type string", false},
        {"{\"stop\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
         "\"a\"]}", "stop", "at most 16", false},
        {"{\"stop\":\"a\\u0000b\"}", "stop", "NUL", false},
        {"{\"adapter\":\"mine\"}", "adapter", "unknown adapter: mine", false},
        {"{\"adapter\":7}", "adapter", "must be of type string", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_fields f;
        qn_http_error e;
        if (read_body(cases[i].body, cases[i].is_completion, &f, &e)) fail_msg("accepted: %s", cases[i].body);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, cases[i].param);
        if (!strstr(e.message, cases[i].message)) fail_msg("%s: %s", cases[i].body, e.message);
    }
}

static void test_accepted_without_effect(void **state)
{
    (void)state;
    accept("{\"response_format\":{\"type\":\"text\"},\"tools\":[],\"adapter\":\"none\",\"n\":1}", false);
    accept("{\"logit_bias\":{}}", false);
    accept("{\"top_k\":4294967295}", false);
}

static int release(void **state)
{
    (void)state;
    json_decref(body);
    qn_arena_release(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_usage_modes),
        cmocka_unit_test(test_logprobs_forms),
        cmocka_unit_test(test_seed_is_two_s_complement),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_accepted_without_effect),
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
