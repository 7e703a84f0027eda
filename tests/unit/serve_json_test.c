/* Request bodies as foreign bytes: what is accepted, what is refused, and with which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/error.h"
#include "serve/json.h"
#include "serve/sse.h"

static json_t *parse(const char *text)
{
    json_t *j;
    qn_err err = {0};
    qn_code rc = qn_json_parse(&j, text, strlen(text), &err);
    if (rc) fail_msg("%s: %s", text, err.text);
    return j;
}

static void refuse(const char *text, size_t n, const char *words)
{
    json_t *j;
    qn_err err = {0};
    assert_int_not_equal(qn_json_parse(&j, text, n, &err), QN_OK);
    assert_null(j);
    if (!strstr(err.text, words)) fail_msg("%s: \"%s\" lacks \"%s\"", text, err.text, words);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct { const char *text, *words; } cases[] = {
        {"", "invalid JSON body: it is empty"},
        {"[]", "must be a JSON object"},
        {"\"x\"", "must be a JSON object"},
        {"{", "invalid JSON body"},
        {"{\"a\":1,}", "invalid JSON body"},
        {"{\"a\":-}", "invalid JSON body"},
        {"{\"a\":01}", "invalid JSON body"},
        {"{\"a\":1.}", "invalid JSON body"},
        {"{\"a\":\"x}", "invalid JSON body"},
        {"{\"a\":\"\\", "invalid JSON body"},
        {"{\"a\":\"\\ud8", "invalid JSON body"},
        {"{\"a\":\"\\ud8zz\"}", "invalid JSON body"},
        {"{\"a\":1} x", "invalid JSON body"},
        {"{\"a\":1e999}", "invalid JSON body"},
        {"{\"a\":\"\xC3\x28\"}", "not UTF-8"},
        {"{\"a\":\"\xED\xA0\x80\"}", "not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refuse(cases[i].text, strlen(cases[i].text), cases[i].words);
    }
    refuse("{\"a\":1}\0", 8, "invalid JSON body");
}

/* {"a":[[...]]} with `depth` levels in all. */
static char *nested(size_t depth, size_t *n)
{
    qn_buf b = {0};
    qn_buf_puts(&b, "{\"a\":");
    for (size_t i = 1; i < depth; i++) qn_buf_putc(&b, '[');
    for (size_t i = 1; i < depth; i++) qn_buf_putc(&b, ']');
    qn_buf_putc(&b, '}');
    *n = b.len;
    return qn_buf_take(&b);
}

static void test_depth(void **state)
{
    (void)state;
    size_t n;
    char *text = nested(QN_JSON_DEPTH, &n);
    json_decref(parse(text));
    free(text);
    text = nested(QN_JSON_DEPTH + 1, &n);
    refuse(text, n, "deeper than 512");
    free(text);
    json_decref(parse("{\"a\":\"[[[[\\\"[[\"}"));
}

static void test_strings(void **state)
{
    (void)state;
    static const struct { const char *json, *bytes; size_t n; } cases[] = {
        {"{\"a\":\"\\ud83d\\ude00\"}", "\xF0\x9F\x98\x80", 4},
        {"{\"a\":\"\\ud83d\"}", "\xEF\xBF\xBD", 3},
        {"{\"a\":\"\\ud83dx\"}", "\xEF\xBF\xBDx", 4},
        {"{\"a\":\"\\ude00\"}", "\xEF\xBF\xBD", 3},
        {"{\"a\":\"\\ud83d\\ud83d\\ude00\"}", "\xEF\xBF\xBD\xF0\x9F\x98\x80", 7},
        {"{\"a\":\"\\ud83d\\u0041\"}", "\xEF\xBF\xBD" "A", 4},
        {"{\"a\":\"\\\\ud83d\"}", "\\ud83d", 6},
        {"{\"a\":\"x\\u0000y\"}", "x\0y", 3},
        {"{\"a\":\"\\\"\\n\"}", "\"\n", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *j = parse(cases[i].json);
        const json_t *v = json_object_get(j, "a");
        assert_int_equal(json_string_length(v), cases[i].n);
        assert_memory_equal(json_string_value(v), cases[i].bytes, cases[i].n);
        json_decref(j);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    json_t *j = parse("{\"a\":9223372036854775807,\"b\":-9223372036854775808,\"c\":9223372036854775808,"
                      "\"seed\":18446744073709551615,\"d\":100.0,\"e\":1e3,\"f\":1.5,\"g\":-0,\"a2\":1,\"a2\":2,"
                      "\"h\":123456789012345678901234567890}");
    json_int_t v;
    assert_true(qn_json_int(json_object_get(j, "a"), &v) && v == INT64_MAX);
    assert_true(qn_json_int(json_object_get(j, "b"), &v) && v == INT64_MIN);
    assert_false(qn_json_int(json_object_get(j, "c"), &v));
    assert_true(json_is_real(json_object_get(j, "c")));
    assert_true(json_is_real(json_object_get(j, "h")));
    assert_true(qn_json_int(json_object_get(j, "seed"), &v) && v == -1);
    assert_true(qn_json_int(json_object_get(j, "d"), &v) && v == 100);
    assert_true(qn_json_int(json_object_get(j, "e"), &v) && v == 1000);
    assert_false(qn_json_int(json_object_get(j, "f"), &v));
    assert_true(qn_json_int(json_object_get(j, "g"), &v) && v == 0);
    assert_true(qn_json_int(json_object_get(j, "a2"), &v) && v == 2); /* the last duplicate */
    json_decref(j);
}

static void test_get_takes_null_for_absent(void **state)
{
    (void)state;
    json_t *j = parse("{\"a\":null,\"b\":0}");
    assert_null(qn_json_get(j, "a"));
    assert_null(qn_json_get(j, "c"));
    assert_non_null(qn_json_get(j, "b"));
    json_decref(j);
}

static void test_sse_framing(void **state)
{
    (void)state;
    qn_buf out = {0};
    qn_sse_comment(&out, "keepalive %d/%d", 3, 4);
    qn_sse_data(&out, json_pack("{s:s}", "a", "x\n\ny\r"));
    qn_sse_done(&out);
    assert_string_equal(out.data, ": keepalive 3/4\n\ndata: {\"a\":\"x\\n\\ny\\r\"}\n\ndata: [DONE]\n\n");
    assert_int_equal(qn_sse_frame_bytes(out.data, out.len), 17);
    assert_int_equal(qn_sse_frame_bytes(out.data + 17, out.len - 17), strlen("data: {\"a\":\"x\\n\\ny\\r\"}\n\n"));
    assert_int_equal(qn_sse_frame_bytes("data: x", 7), 7);
    assert_int_equal(qn_sse_frame_bytes(NULL, 0), 0);
    qn_buf_release(&out);
}

/* A filled frame has the bytes of one that is made whole. */
static void test_sse_fill(void **state)
{
    (void)state;
    static const struct { const char *text; size_t n; } cases[] = {
        {"x", 1}, {"", 0}, {"\0", 1}, {"\"\\/\b\f\n\r\t\x01\x1f\x7f", 11}, {"\\u0000", 6}, {"a\0b", 3},
        {"\xC3\xBC\xE2\x80\xA8\xF0\x9F\x98\x80", 9}, {"\"\\u0000\"", 8}};
    static const char model[] = "\"\\u0000\" \\u0000"; /* what a hole looks like, in other places */
    static const char format[] = "{s:s, s:[{s:s%, s:s%, s:n}]}";
    qn_buf frame = {0};
    qn_sse_data(&frame, json_pack(format, "model", model, "c", "one", QN_SSE_HOLE, (size_t)1, "two", QN_SSE_HOLE,
                                  (size_t)1, "z"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_buf want = {0}, got = {0};
        qn_sse_data(&want, json_pack(format, "model", model, "c", "one", cases[i].text, cases[i].n, "two",
                                     cases[i].text, cases[i].n, "z"));
        qn_sse_fill(&got, &frame, cases[i].text, cases[i].n);
        assert_false(got.failed || want.failed);
        assert_string_equal(got.data, want.data);
        qn_buf_release(&want);
        qn_buf_release(&got);
    }
    qn_buf_release(&frame);
}

static void test_errors(void **state)
{
    (void)state;
    qn_http_error e = {0};
    assert_false(qn_fail_field(&e, "top_k", "top_k must be of type %s", "int"));
    assert_false(qn_fail_field(&e, "other", "a second cause"));
    json_t *j = qn_error_openai(&e);
    qn_buf out = {0};
    qn_json_write(&out, j);
    assert_string_equal(out.data, "{\"error\":{\"message\":\"top_k must be of type int\","
                                  "\"type\":\"invalid_request_error\",\"param\":\"top_k\",\"code\":null}}");
    json_decref(j);
    qn_buf_clear(&out);

    qn_http_error c = {0};
    qn_fail_context(&c, 5000, 4096, false, "messages");
    assert_int_equal(c.status, 400);
    assert_non_null(strstr(c.message, "maximum context length"));
    assert_non_null(strstr(c.message, "exceeds the available context size"));
    assert_non_null(strstr(c.message, "5000"));
    assert_non_null(strstr(c.message, "4096"));
    j = qn_error_openai(&c);
    qn_json_write(&out, j);
    assert_non_null(strstr(out.data, "\"code\":\"context_length_exceeded\",\"n_prompt_tokens\":5000,\"n_ctx\":4096"));
    json_decref(j);
    qn_buf_release(&out);
}

static void test_internal_errors_become_statuses(void **state)
{
    (void)state;
    static const struct { qn_code code; int status; } cases[] = {
        {QN_INVALID, 400}, {QN_FORMAT, 400}, {QN_LIMIT, 400}, {QN_UNSUPPORTED, 400},
        {QN_CANCELLED, 429}, {QN_NOMEM, 500}, {QN_DEVICE, 500}, {QN_IO, 500},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err = {.code = cases[i].code, .text = "why"};
        qn_http_error e = {0};
        assert_false(qn_fail_err(&e, &err, "p"));
        assert_int_equal(e.status, cases[i].status);
    }
}

static void test_long_messages_stay_utf8(void **state)
{
    (void)state;
    char text[1024] = {0};
    for (size_t i = 0; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xE2\x82\xAC", 3);
    for (size_t shift = 0; shift < 3; shift++) {
        qn_http_error e = {0};
        qn_fail_field(&e, text + 3 * shift, "%.*s%s", (int)shift, "xx", text);
        json_t *j = qn_error_openai(&e);
        qn_buf out = {0};
        qn_json_write(&out, j);
        assert_false(out.failed); /* jansson refuses invalid UTF-8 */
        assert_true(json_is_string(json_object_get(json_object_get(j, "error"), "message")));
        json_decref(j);
        qn_buf_release(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_get_takes_null_for_absent),
        cmocka_unit_test(test_sse_framing), cmocka_unit_test(test_sse_fill),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_internal_errors_become_statuses),
        cmocka_unit_test(test_long_messages_stay_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
