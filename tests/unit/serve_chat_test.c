/* The fields of a chat request that are neither messages nor sampling: tools, their choice, types of
 * schemas, structured output. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/chat_tools.h"
#include "serve/structured.h"

static json_t *parse(const char *text)
{
    json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!j) fail_msg("test data: %s", text);
    return j;
}

#define F(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"

#define ALLOWED(mode, tools) \
    "{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"" mode "\",\"tools\":[" tools "]}}"

static void test_tools(void **state)
{
    (void)state;
    static const struct { const char *body; size_t n; bool is_forced, one_call; } good[] = {
        {"{}", 0, false, false},
        {"{\"tools\":null,\"tool_choice\":null,\"parallel_tool_calls\":null}", 0, false, false},
        {"{\"tools\":[]}", 0, false, false},
        {"{\"tools\":[" F("f") "," F("a.b-c_9") "]}", 2, false, false},
        {"{\"tools\":[" F("f") ",{\"type\":\"web_search\"}]}", 1, false, false},
        {"{\"tools\":[" F("f") "],\"tool_choice\":\"auto\"}", 1, false, false},
        {"{\"tools\":[" F("f") "],\"tool_choice\":\"none\"}", 0, false, false},
        {"{\"tools\":[" F("f") "],\"tool_choice\":\"required\"}", 1, true, false},
        {"{\"tool_choice\":\"required\"}", 0, false, false},
        {"{\"tools\":[" F("f") "],\"tool_choice\":" F("f") "}", 1, true, false},
        {"{\"tools\":[" F("f") "," F("g") "," F("h") "],\"tool_choice\":" ALLOWED("auto", F("h") "," F("f")) "}",
         2, false, false},
        {"{\"tools\":[" F("f") "," F("g") "],\"tool_choice\":" ALLOWED("required", "{\"type\":\"function\",\"name\":"
         "\"g\"},{\"type\":\"web_search\"}") "}", 1, true, false},
        {"{\"tools\":[" F("f") "],\"tool_choice\":" ALLOWED("required", "") "}", 0, false, false},
        {"{\"tools\":[" F("f") "],\"parallel_tool_calls\":false}", 1, false, true},
        {"{\"functions\":[{\"name\":\"f\"}],\"function_call\":\"auto\"}", 1, false, false},
        {"{\"functions\":[{\"name\":\"f\"}],\"function_call\":{\"name\":\"f\"}}", 1, true, false},
        {"{\"functions\":[{\"name\":\"f\"}],\"function_call\":\"none\"}", 0, false, false},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        qn_chat_tools t;
        qn_http_error e = {0};
        json_t *body = parse(good[i].body);
        if (!qn_chat_tools_read(&t, body, &e)) fail_msg("%s: %s", good[i].body, e.message);
        assert_int_equal(json_array_size(t.given), good[i].n);
        assert_int_equal(json_array_size(t.shown), good[i].n);
        assert_int_equal(t.given != NULL, good[i].n > 0);
        assert_int_equal(t.is_forced, good[i].is_forced);
        assert_int_equal(t.one_call, good[i].one_call);
        qn_chat_tools_release(&t);
        json_decref(body);
    }
}

static void test_tools_refused(void **state)
{
    (void)state;
    static const struct { const char *body, *param, *words; } bad[] = {
        {"{\"tools\":{}}", "tools", "must be of type array"},
        {"{\"tools\":[7]}", "tools", "must hold objects"},
        {"{\"tools\":[{\"type\":\"function\"}]}", "tools", "tools[0].function must be of type object"},
        {"{\"tools\":[{\"type\":\"function\",\"function\":{}}]}", "tools", "needs a name"},
        {"{\"tools\":[" F("") "]}", "tools", "1 to 64"},
        {"{\"tools\":[" F("a/b") "]}", "tools", "a/b"},
        {"{\"tools\":[" F("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa") "]}",
         "tools", "1 to 64"},
        {"{\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":[]}}]}", "tools", "must be of type object"},
        {"{\"tools\":[" F("f") "],\"tool_choice\":\"some\"}", "tool_choice", "must be none, auto, required"},
        {"{\"tools\":[" F("f") "],\"tool_choice\":7}", "tool_choice", "string or object"},
        {"{\"tools\":[" F("f") "],\"tool_choice\":" F("g") "}", "tool_choice", "the tool g, which is not"},
        {"{\"tools\":[" F("f") "],\"tool_choice\":{}}", "tool_choice", "(none)"},
        {"{\"tools\":[" F("f") "],\"tool_choice\":" ALLOWED("auto", F("g")) "}", "tool_choice", "the tool g, which"},
        {"{\"tools\":[" F("f") "],\"tool_choice\":" ALLOWED("none", F("f")) "}", "tool_choice", "auto or required"},
        {"{\"parallel_tool_calls\":\"no\"}", "parallel_tool_calls", "must be of type bool"},
        {"{\"functions\":{}}", "functions", "must be of type array"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_chat_tools t;
        qn_http_error e = {0};
        json_t *body = parse(bad[i].body);
        if (qn_chat_tools_read(&t, body, &e)) fail_msg("accepted: %s", bad[i].body);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, bad[i].param);
        if (!strstr(e.message, bad[i].words)) fail_msg("%s: %s", bad[i].body, e.message);
        qn_chat_tools_release(&t);
        json_decref(body);
    }
}

static void test_schema_types(void **state)
{
    (void)state;
    static const struct { const char *schema, *filled; } cases[] = {
        {"{}", "{\"type\":\"string\"}"},
        {"{\"type\":[\"integer\",\"null\"]}", "{\"type\":[\"integer\",\"null\"]}"},
        {"{\"enum\":[1,\"a\"]}", "{\"enum\":[1,\"a\"],\"type\":\"integer\"}"},
        {"{\"enum\":[]}", "{\"enum\":[],\"type\":\"string\"}"},
        {"{\"const\":true}", "{\"const\":true,\"type\":\"boolean\"}"},
        {"{\"const\":null}", "{\"const\":null,\"type\":\"null\"}"},
        {"{\"additionalProperties\":false}", "{\"additionalProperties\":false,\"type\":\"object\"}"},
        {"{\"prefixItems\":[{\"const\":1.5}]}",
         "{\"prefixItems\":[{\"const\":1.5,\"type\":\"number\"}],\"type\":\"array\"}"},
        {"{\"anyOf\":[{\"description\":\"x\"},{\"type\":\"integer\"}]}",
         "{\"anyOf\":[{\"description\":\"x\",\"type\":\"string\"},{\"type\":\"integer\"}],\"type\":\"string\"}"},
        {"{\"properties\":{\"a\":{\"items\":{}},\"b\":{\"oneOf\":[{\"type\":\"number\"}]}}}",
         "{\"properties\":{\"a\":{\"items\":{\"type\":\"string\"},\"type\":\"array\"},"
         "\"b\":{\"oneOf\":[{\"type\":\"number\"}],\"type\":\"number\"}},\"type\":\"object\"}"},
        {"{\"type\":\"object\",\"$defs\":{\"d\":{}},\"additionalProperties\":{\"allOf\":[]}}",
         "{\"type\":\"object\",\"$defs\":{\"d\":{\"type\":\"string\"}},"
         "\"additionalProperties\":{\"allOf\":[],\"type\":\"string\"}}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *schema = parse(cases[i].schema), *want = parse(cases[i].filled);
        qn_schema_fill_types(schema);
        if (!json_equal(schema, want)) fail_msg("%s: %s", cases[i].schema, json_dumps(schema, 0));
        json_decref(schema);
        json_decref(want);
    }
}

static void test_structured(void **state)
{
    (void)state;
    static const struct { const char *body, *words; } good[] = {
        {"{}", NULL},
        {"{\"response_format\":{\"type\":\"text\"},\"guided_json\":null}", NULL},
        {"{\"response_format\":{\"type\":\"json_object\"}}", "one JSON object"},
        {"{\"response_format\":{\"type\":\"json_object\",\"schema\":{\"a\":1}}}",
         "schema, and with nothing else.\n{\"a\":1}"},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"b\":0.1}}}}",
         "{\"b\":0.1}"},
        {"{\"response_format\":{\"type\":\"json_schema\",\"schema\":{\"c\":1}}}", "{\"c\":1}"},
        {"{\"guided_json\":\"{\\\"d\\\":1}\"}", "{\"d\":1}"},
        {"{\"guided_regex\":\"a+\"}", "expression, and with nothing else.\na+"},
        {"{\"guided_choice\":[\"x\",\"y\"]}", "[\"x\",\"y\"]"},
        {"{\"guided_grammar\":\"root ::= x\",\"guided_regex\":\"a+\"}", "root ::= x"},
        {"{\"structured_outputs\":{\"type\":\"object\"}}", "{\"type\":\"object\"}"},
        {"{\"structured_outputs\":{\"regex\":\"b+\"}}", "b+"},
        {"{\"structured_outputs\":{\"choice\":[\"z\"]}}", "[\"z\"]"},
        {"{\"structured_outputs\":{\"json_object\":true}}", "one JSON object"},
        {"{\"json_schema\":{\"e\":1}}", "{\"e\":1}"},
        {"{\"grammar\":\"g\"}", "grammar, and with nothing else.\ng"},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        bool asked;
        qn_buf words = {0};
        qn_http_error e = {0};
        json_t *body = parse(good[i].body);
        if (!qn_structured_read(body, &asked, &words, &e)) fail_msg("%s: %s", good[i].body, e.message);
        assert_int_equal(asked, good[i].words != NULL);
        if (asked && !strstr(words.data, good[i].words)) fail_msg("%s: %s", good[i].body, words.data);
        qn_buf_release(&words);
        json_decref(body);
    }
}

static void test_structured_refused(void **state)
{
    (void)state;
    static const struct { const char *body, *param, *code; } bad[] = {
        {"{\"response_format\":\"text\"}", "response_format", NULL},
        {"{\"response_format\":{\"type\":5}}", "response_format.type", NULL},
        {"{\"response_format\":{\"type\":\"xml\"}}", "response_format", NULL},
        {"{\"response_format\":{\"type\":\"json_schema\"}}", "response_format", NULL},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":7}}}", "response_format",
         "unsupported_schema"},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":[],\"strict\":true}}}",
         "response_format", "unsupported_schema"},
        {"{\"guided_json\":\"{\"}", "guided_json", "unsupported_schema"},
        {"{\"guided_regex\":7}", "guided_regex", NULL},
        {"{\"guided_choice\":[]}", "guided_choice", NULL},
        {"{\"guided_choice\":[1]}", "guided_choice", NULL},
        {"{\"structured_outputs\":[]}", "structured_outputs", NULL},
        {"{\"structured_outputs\":{\"structural_tag\":{}}}", "structured_outputs", NULL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bool asked;
        qn_buf words = {0};
        qn_http_error e = {0};
        json_t *body = parse(bad[i].body);
        if (qn_structured_read(body, &asked, &words, &e)) fail_msg("accepted: %s", bad[i].body);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, bad[i].param);
        if (bad[i].code) assert_string_equal(e.code, bad[i].code);
        else assert_null(e.code);
        qn_buf_release(&words);
        json_decref(body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tools),           cmocka_unit_test(test_tools_refused),
        cmocka_unit_test(test_schema_types),    cmocka_unit_test(test_structured),
        cmocka_unit_test(test_structured_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
