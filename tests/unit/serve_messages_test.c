/* Chat messages brought into one form (spec server 5). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/buf.h"
#include "serve/json.h"
#include "serve/messages.h"

static json_t *load(const char *text)
{
    json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(j);
    return j;
}

/* The normal form of `in` is `out`, both as JSON text with ' for ". */
static void test_normal_forms(void **state)
{
    (void)state;
    static const struct { const char *in, *out; } cases[] = {
        {"[{'role':'user','content':'hi'}]", "[{'role':'user','content':'hi'}]"},
        {"[{'role':'developer','content':'x'}]", "[{'role':'system','content':'x'}]"},
        {"[{'role':'user','content':null}]", "[{'role':'user','content':''}]"},
        {"[{'role':'user'}]", "[{'role':'user','content':''}]"},
        {"[{'role':'user','content':[]}]", "[{'role':'user','content':''}]"},
        {"[{'role':'user','content':[{'type':'text','text':'a'},{'type':'input_text','text':'b'},"
         "{'type':'output_text','text':'c'},{'text':'d'},'e',{'type':'refusal','refusal':'f'}]}]",
         "[{'role':'user','content':'abcdef'}]"},
        /* arguments become objects; an empty text is {}; what does not parse stays */
        {"[{'role':'assistant','content':null,'tool_calls':[{'id':'1','function':{'name':'f','arguments':"
         "'{\\\"a\\\":1}'}},{'id':'2','function':{'name':'g','arguments':''}},{'id':'3','function':{'name':'h',"
         "'arguments':'{\\\"a'}},{'id':'4','function':{'name':'i','arguments':'7'}}]}]",
         "[{'role':'assistant','content':'','tool_calls':[{'id':'1','function':{'name':'f','arguments':"
         "{'a':1}}},{'id':'2','function':{'name':'g','arguments':{}}},{'id':'3','function':{'name':'h',"
         "'arguments':'{\\\"a'}},{'id':'4','function':{'name':'i','arguments':'7'}}]}]"},
        /* missing ids are made and answered in order; given ids are respected */
        {"[{'role':'assistant','content':'','tool_calls':[{'id':null,'function':{}},{'id':'k','function':{}},"
         "{'function':{}}]},{'role':'tool','tool_call_id':'k','content':'1'},{'role':'tool','content':'2'},"
         "{'role':'tool','tool_call_id':null,'content':'3'},{'role':'tool','content':'4'}]",
         "[{'role':'assistant','content':'','tool_calls':[{'id':'call_000000000000000000000001','function':{}},"
         "{'id':'k','function':{}},{'function':{},'id':'call_000000000000000000000002'}]},"
         "{'role':'tool','tool_call_id':'k','content':'1'},"
         "{'role':'tool','content':'2','tool_call_id':'call_000000000000000000000001'},"
         "{'role':'tool','tool_call_id':'call_000000000000000000000002','content':'3'},"
         "{'role':'tool','content':'4'}]"},
        /* one name of the reasoning fills all three, for assistants only */
        {"[{'role':'assistant','content':'a','reasoning_content':'r'}]",
         "[{'role':'assistant','content':'a','reasoning_content':'r','reasoning':'r','thinking':'r'}]"},
        {"[{'role':'assistant','content':'a','reasoning':'','thinking':'t'}]",
         "[{'role':'assistant','content':'a','reasoning':'t','thinking':'t','reasoning_content':'t'}]"},
        {"[{'role':'user','content':'a','reasoning':'r'}]", "[{'role':'user','content':'a','reasoning':'r'}]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char in[2048], out[2048];
        size_t k;
        for (k = 0; cases[i].in[k]; k++) in[k] = cases[i].in[k] == '\'' ? '"' : cases[i].in[k];
        in[k] = '\0';
        for (k = 0; cases[i].out[k]; k++) out[k] = cases[i].out[k] == '\'' ? '"' : cases[i].out[k];
        out[k] = '\0';
        json_t *messages = load(in), *want = load(out);
        qn_http_error e = {0};
        if (!qn_messages_normalize(messages, "m", &e)) fail_msg("%s: %s", in, e.message);
        if (!json_equal(messages, want)) {
            qn_buf got = {0};
            qn_json_write(&got, messages);
            fail_msg("%s\n gave %s", in, got.data);
        }
        json_decref(messages);
        json_decref(want);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct { const char *in, *param, *words; } cases[] = {
        {"[]", "messages", "messages required"},
        {"{}", "messages", "messages required"},
        {"7", "messages", "messages required"},
        {"[7]", "messages[0]", "must be of type object"},
        {"[{\"content\":\"x\"}]", "messages[0].role", "must be of type string"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":1}]", "messages[1].role", "must be of type string"},
        {"[{\"role\":\"user\",\"content\":7}]", "messages[0].content", "must be of type string or array"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content", "part without text"},
        {"[{\"role\":\"user\",\"content\":[7]}]", "messages[0].content", "part without text"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:\"}}]}]",
         "messages[0].content", "the model smol takes text only, not image_url"},
        {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[0].tool_calls", "must be of type array"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[1]}]", "messages[0].tool_calls", "must hold objects"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *messages = load(cases[i].in);
        qn_http_error e = {0};
        assert_false(qn_messages_normalize(messages, "smol", &e));
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, cases[i].param);
        if (!strstr(e.message, cases[i].words)) fail_msg("%s: %s", cases[i].in, e.message);
        json_decref(messages);
    }
    qn_http_error e = {0};
    assert_false(qn_messages_normalize(NULL, "smol", &e));
}

static void test_join_system(void **state)
{
    (void)state;
    json_t *messages = load("[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"},"
                            "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"system\",\"content\":\"d\"}]");
    assert_true(qn_messages_join_system(messages));
    assert_int_equal(json_array_size(messages), 3);
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 0), "content")), "a\n\nb");
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 1), "content")), "c");
    assert_false(qn_messages_join_system(messages));
    json_decref(messages);
}

static void test_shorten_ids(void **state)
{
    (void)state;
    json_t *messages = load("[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"call_1\"},{\"id\":\"abcDEF123\"}]},"
                            "{\"role\":\"tool\",\"tool_call_id\":\"call_1\"},{\"role\":\"tool\",\"tool_call_id\":"
                            "\"abcDEF123\"},{\"role\":\"user\",\"content\":\"x\"}]");
    assert_true(qn_messages_shorten_ids(messages));
    const json_t *calls = json_object_get(json_array_get(messages, 0), "tool_calls");
    const char *made = json_string_value(json_object_get(json_array_get(calls, 0), "id"));
    assert_int_equal(strspn(made, "0123456789abcdefghijklmnopqrstuvwxyz"), 9);
    assert_int_equal(strlen(made), 9);
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 1), "tool_call_id")), made);
    assert_string_equal(json_string_value(json_object_get(json_array_get(calls, 1), "id")), "abcDEF123");
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 2), "tool_call_id")), "abcDEF123");
    assert_false(qn_messages_shorten_ids(messages));
    json_decref(messages);
}

static void test_drop_call_content(void **state)
{
    (void)state;
    json_t *messages = load("[{\"role\":\"assistant\",\"content\":\"a\",\"thinking\":\"t\"},"
                            "{\"role\":\"assistant\",\"content\":\"b\",\"thinking\":\"t\",\"tool_calls\":[{}]}]");
    assert_true(qn_messages_drop_call_content(messages));
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 0), "content")), "a");
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 1), "content")), "");
    assert_false(qn_messages_drop_call_content(messages));
    json_decref(messages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normal_forms),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_join_system),
        cmocka_unit_test(test_shorten_ids),
        cmocka_unit_test(test_drop_call_content),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
