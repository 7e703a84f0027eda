/* Bodies of /v1/responses as bodies of a chat completion (spec server 14). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/responses_request.h"

/* JSON with ' for " . */
static json_t *load(const char *text)
{
    char *copy = strdup(text);
    for (char *s = copy; *s; s++) {
        if (*s == '\'') *s = '"';
    }
    json_error_t why;
    json_t *j = json_loads(copy, JSON_DECODE_ANY, &why);
    if (!j) fail_msg("%s: %s", why.text, copy);
    free(copy);
    return j;
}

/* The chat form of `body` is `want`; the body itself is left as it was. */
static void expect(const char *body, const qn_responses_past *past, const char *want)
{
    json_t *in = load(body), *before = json_deep_copy(in), *out, *right = load(want);
    qn_http_error e = {0};
    if (!qn_responses_to_chat(in, past, &out, &e)) fail_msg("%s: %s", body, e.message);
    if (!json_equal(out, right)) {
        char *text = json_dumps(out, JSON_COMPACT);
        fail_msg("%s\n gave %s\n not  %s", body, text, want);
    }
    assert_true(json_equal(in, before));
    json_decref(out);
    json_decref(in);
    json_decref(before);
    json_decref(right);
}

static void expect_input(const char *input, bool keep_reasoning, const char *messages)
{
    char body[2048], want[2048];
    const qn_responses_past past = {.keep_reasoning = keep_reasoning};
    snprintf(body, sizeof body, "{'input':%s}", input);
    snprintf(want, sizeof want, "{'messages':%s}", messages);
    expect(body, &past, want);
}

static void test_items(void **state)
{
    (void)state;
    static const struct { const char *in, *out; } cases[] = {
        {"'hi'", "[{'role':'user','content':'hi'}]"},
        {"[{'role':'user','content':'a'},{'type':'message','role':'assistant','content':'b'},{'role':'tool',"
         "'tool_call_id':'c','content':'d'},{'role':'critic','content':'e'},{'type':'message','content':'f'}]",
         "[{'role':'user','content':'a'},{'role':'assistant','content':'b'},{'role':'tool','tool_call_id':'c',"
         "'content':'d'},{'role':'user','content':'e'},{'role':'user','content':'f'}]"},
        {"[{'role':'user','content':[{'type':'input_text','text':'a'},{'type':'input_image','detail':'auto',"
         "'image_url':'http://h/i'}]}]",
         "[{'role':'user','content':[{'type':'input_text','text':'a'},{'type':'image_url','image_url':{'url':"
         "'http://h/i'}}]}]"},
        /* system and developer text, wherever it stands, comes first */
        {"[{'role':'user','content':'a'},{'role':'developer','content':'b'},{'role':'system','content':[{'type':"
         "'input_text','text':'c'},{'type':'input_text','text':'d'}]}]",
         "[{'role':'system','content':'b\\n\\ncd'},{'role':'user','content':'a'}]"},
        /* the calls of a turn join its message; results answer them */
        {"[{'role':'user','content':'q'},{'role':'assistant','content':'look'},{'type':'function_call','id':'fc_1',"
         "'call_id':'c1','name':'f','arguments':'{}'},{'type':'function_call','call_id':'c2','name':'g',"
         "'arguments':''},"
         "{'type':'function_call_output','call_id':'c1','output':'1'},{'type':'function_call_output','call_id':'c2',"
         "'output':[{'type':'input_text','text':'x'},{'type':'input_text','text':'y'}]},{'type':'function_call',"
         "'call_id':'c3','name':'f','arguments':'{}'},{'type':'function_call_output','call_id':'c3','output':{'n':3}}]",
         "[{'role':'user','content':'q'},{'role':'assistant','content':'look','tool_calls':[{'id':'c1',"
         "'type':'function',"
         "'function':{'name':'f','arguments':'{}'}},{'id':'c2','type':'function','function':{'name':'g','arguments':"
         "''}}]},{'role':'tool','tool_call_id':'c1','content':'1'},{'role':'tool','tool_call_id':'c2','content':'xy'},"
         "{'role':'assistant','content':'','tool_calls':[{'id':'c3','type':'function','function':{'name':'f',"
         "'arguments':'{}'}}]},{'role':'tool','tool_call_id':'c3','content':'{\\\"n\\\":3}'}]"},
        {"[{'type':'custom_tool_call','call_id':'c','name':'patch','input':'*** Begin'},{'type':"
         "'custom_tool_call_output','call_id':'c','output':'ok'}]",
         "[{'role':'assistant','content':'','tool_calls':[{'id':'c','type':'function','function':{'name':'patch',"
         "'arguments':{'input':'*** Begin'}}}]},{'role':'tool','tool_call_id':'c','content':'ok'}]"},
        /* a new message of the user or the assistant closes a turn */
        {"[{'type':'function_call','call_id':'c','name':'f','arguments':'{}'},{'role':'user','content':'u'},"
         "{'type':'function_call','call_id':'d','name':'f','arguments':'{}'}]",
         "[{'role':'assistant','content':'','tool_calls':[{'id':'c','type':'function','function':{'name':'f',"
         "'arguments':'{}'}}]},{'role':'user','content':'u'},{'role':'assistant','content':'','tool_calls':[{'id':'d',"
         "'type':'function','function':{'name':'f','arguments':'{}'}}]}]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_input(cases[i].in, false, cases[i].out);
}

static void test_reasoning(void **state)
{
    (void)state;
    const char *input = "[{'type':'reasoning','id':'rs_1','summary':[{'type':'summary_text','text':'hm'}]},"
                        "{'type':'function_call','call_id':'c','name':'f','arguments':'{}'},{'type':'reasoning',"
                        "'summary':[],'content':[{'type':'reasoning_text','text':'so'}]},{'role':'assistant','content':"
                        "'a'},{'role':'assistant','content':'b'}]";
    expect_input(input, false,
                 "[{'role':'assistant','content':'','tool_calls':[{'id':'c','type':'function','function':{'name':'f',"
                 "'arguments':'{}'}}]},{'role':'assistant','content':'a'},{'role':'assistant','content':'b'}]");
    expect_input(input, true,
                 "[{'role':'assistant','content':'','reasoning_content':'hm','tool_calls':[{'id':'c','type':'function',"
                 "'function':{'name':'f','arguments':'{}'}}]},{'role':'assistant','content':'a','reasoning_content':"
                 "'so'},{'role':'assistant','content':'b'}]");
    /* The answer was cut before its text: the next one has other reasons. */
    expect_input("[{'role':'user','content':'a'},{'type':'reasoning','summary':[{'type':'summary_text','text':'hm'}]},"
                 "{'role':'user','content':'b'},{'role':'assistant','content':'c'}]",
                 true,
                 "[{'role':'user','content':'a'},{'role':'user','content':'b'},{'role':'assistant','content':'c'}]");
}

static void test_past(void **state)
{
    (void)state;
    json_t *items = load("[{'role':'user','content':'a'},{'type':'message','role':'assistant','content':[{'type':"
                         "'output_text','text':'b'}]}]");
    json_t *instructions = load("'old'");
    qn_responses_past past = {.items = items, .instructions = instructions};
    expect("{'input':'c'}", &past,
           "{'messages':[{'role':'system','content':'old'},{'role':'user','content':'a'},{'role':'assistant','content':"
           "[{'type':'output_text','text':'b'}]},{'role':'user','content':'c'}]}");
    expect("{'input':'c','instructions':'new'}", &past,
           "{'messages':[{'role':'system','content':'new'},{'role':'user','content':'a'},{'role':'assistant','content':"
           "[{'type':'output_text','text':'b'}]},{'role':'user','content':'c'}]}");
    /* an answer only, to a call of the past */
    json_t *call = load("[{'role':'user','content':'a'},{'type':'function_call','call_id':'c','name':'f','arguments':"
                        "'{}'}]");
    past = (qn_responses_past){.items = call};
    expect("{'input':[{'type':'function_call_output','call_id':'c','output':'7'}]}", &past,
           "{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':'','tool_calls':[{'id':'c','type':"
           "'function','function':{'name':'f','arguments':'{}'}}]},{'role':'tool','tool_call_id':'c','content':'7'}]}");
    json_decref(items);
    json_decref(instructions);
    json_decref(call);
}

static void test_fields(void **state)
{
    (void)state;
    static const struct { const char *in, *out; } cases[] = {
        {"'max_output_tokens':5,'temperature':0.5,'top_p':0.9,'stream':true,'user':'u','metadata':{'a':'b'},"
         "'store':false,'truncation':'auto'",
         "'max_completion_tokens':5,'temperature':0.5,'top_p':0.9,'stream':true"},
        {"'max_tokens':5,'logit_bias':{'1':2},'stop':'x','seed':3,'parallel_tool_calls':false,'min_p':0.1",
         "'max_tokens':5,'logit_bias':{'1':2},'stop':'x','seed':3,'parallel_tool_calls':false,'min_p':0.1"},
        {"'reasoning':{'effort':'high','summary':'auto'}", "'reasoning_effort':'high'"},
        {"'reasoning':{'summary':'auto'}", ""},
        {"'text':{'verbosity':'low'}", ""},
        {"'text':{'format':{'type':'text'}}", "'response_format':{'type':'text'}"},
        {"'text':{'format':{'type':'json_object'}}", "'response_format':{'type':'json_object'}"},
        {"'text':{'format':{'type':'json_schema','name':'n','schema':{'type':'object'},'strict':true}}",
         "'response_format':{'type':'json_schema','json_schema':{'name':'n','schema':{'type':'object'},"
         "'strict':true}}"},
        {"'tools':[{'type':'function','name':'f','description':'d','parameters':{'type':'object'},'strict':false},"
         "{'type':'web_search'},{'type':'custom','name':'c','description':'e','format':{'type':'text'}}]",
         "'tools':[{'type':'function','function':{'name':'f','description':'d','parameters':{'type':'object'},'strict':"
         "false}},{'type':'function','function':{'name':'c','description':'e','parameters':{'type':'object',"
         "'properties':{'input':{'type':'string'}},'required':['input']}}}]"},
        {"'tool_choice':'required'", "'tool_choice':'required'"},
        {"'tool_choice':{'type':'function','name':'f'}", "'tool_choice':{'type':'function','function':{'name':'f'}}"},
        {"'tool_choice':{'type':'custom','name':'c'}", "'tool_choice':{'type':'function','function':{'name':'c'}}"},
        {"'tool_choice':{'type':'allowed_tools','mode':'auto','tools':[]}",
         "'tool_choice':{'type':'allowed_tools','allowed_tools':{'type':'allowed_tools','mode':'auto','tools':[]}}"},
        {"'tool_choice':{'type':'web_search'}", ""},
        {"'top_logprobs':3", ""},
        {"'top_logprobs':3,'include':['message.output_text.logprobs']", "'logprobs':true,'top_logprobs':3"},
        {"'include':['reasoning.encrypted_content']", ""},
        {"'background':false,'conversation':null,'prompt':null", ""},
    };
    static const qn_responses_past none = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[1024], want[1024];
        snprintf(body, sizeof body, "{'input':'x',%s}", cases[i].in);
        snprintf(want, sizeof want, "{%s%s'messages':[{'role':'user','content':'x'}]}", cases[i].out,
                 *cases[i].out ? "," : "");
        expect(body, &none, want);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct { const char *body, *param, *phrase; } cases[] = {
        {"{}", "input", "a string or an array"},
        {"{'input':7}", "input", "a string or an array"},
        {"{'input':[]}", "input", "at least one"},
        {"{'input':['x']}", "input[0]", "object"},
        {"{'input':[{'role':'user','content':7}]}", "input[0].content", "string or array"},
        {"{'input':[{'role':'user','content':'x'},{'type':'item_reference','id':'i'}]}", "input[1].type",
         "item_reference"},
        {"{'input':[{'type':'function_call','arguments':'{}'}]}", "input[0].name", "string"},
        {"{'input':[{'type':'function_call','name':'f','arguments':{}}]}", "input[0].arguments", "string"},
        {"{'input':'x','instructions':7}", "instructions", "string"},
        {"{'input':'x','background':true}", "background", "not supported yet"},
        {"{'input':'x','conversation':'c'}", "conversation", "not supported yet"},
        {"{'input':'x','user':5}", "user", "must be of type string"},
        {"{'input':'x','metadata':5}", "metadata", "must be of type object"},
        {"{'input':'x','prompt':{'id':'p'}}", "prompt", "not supported yet"},
        {"{'input':'x','tools':{}}", "tools", "array"},
        {"{'input':'x','tools':[{'type':'function'}]}", "tools", "tools[0].name"},
        {"{'input':'x','tool_choice':7}", "tool_choice", "auto"},
        {"{'input':'x','tool_choice':{'type':'function'}}", "tool_choice", "NAME"},
        {"{'input':'x','text':'json'}", "text", "object"},
        {"{'input':'x','text':{'format':'json'}}", "format", "object"},
        {"{'input':'x','include':'y'}", "include", "array"},
        {"{'input':'x','reasoning':'high'}", "reasoning", "object"},
    };
    static const qn_responses_past none = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *in = load(cases[i].body), *out = in;
        qn_http_error e = {0};
        if (qn_responses_to_chat(in, &none, &out, &e)) fail_msg("taken: %s", cases[i].body);
        assert_null(out);
        assert_int_equal(e.status, 400);
        if (strcmp(e.param, cases[i].param)) fail_msg("%s: param %s", cases[i].body, e.param);
        if (!strstr(e.message, cases[i].phrase)) fail_msg("%s: %s", cases[i].body, e.message);
        json_decref(in);
    }
}

static void test_custom_tools(void **state)
{
    (void)state;
    json_t *body = load("{'tools':[{'type':'function','name':'f'},{'type':'custom','name':'c'}]}");
    assert_true(qn_responses_is_custom_tool(body, "c"));
    assert_false(qn_responses_is_custom_tool(body, "f"));
    assert_false(qn_responses_is_custom_tool(body, "x"));
    json_decref(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_items),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_past),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_custom_tools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
