/* Bodies of /v1/messages as bodies of a chat completion (spec server 13). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/anthropic_request.h"

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
static void expect(const char *body, bool keep_thinking, const char *want)
{
    json_t *in = load(body), *before = json_deep_copy(in), *out, *right = load(want);
    qn_http_error e = {0};
    if (!qn_anthropic_to_chat(in, keep_thinking, &out, &e)) fail_msg("%s: %s", body, e.message);
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

/* `messages` map to `want`, thinking dropped. */
static void expect_messages(const char *messages, const char *want)
{
    char body[2048], right[2048];
    snprintf(body, sizeof body, "{'messages':%s}", messages);
    snprintf(right, sizeof right, "{'messages':%s}", want);
    expect(body, false, right);
}

/* Members beside a fixed message map to `want`. */
static void expect_fields(const char *fields, const char *want)
{
    char body[2048], right[2048];
    snprintf(body, sizeof body, "{%s,'messages':[{'role':'user','content':'x'}]}", fields);
    snprintf(right, sizeof right, "{%s%s'messages':[{'role':'user','content':'x'}]}", want, *want ? "," : "");
    expect(body, false, right);
}

static void test_messages(void **state)
{
    (void)state;
    static const struct { const char *in, *out; } cases[] = {
        {"[{'role':'user','content':'hi'}]", "[{'role':'user','content':'hi'}]"},
        {"[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':''},{'type':'text',"
         "'text':'b'}]}]",
         "[{'role':'user','content':'a\\nb'}]"},
        {"[{'role':'user','content':[]}]", "[{'role':'user','content':''}]"},
        {"[{'role':'system','content':[{'type':'text','text':'s'}]},{'role':'user','content':'u'}]",
         "[{'role':'system','content':'s'},{'role':'user','content':'u'}]"},
        /* documents that are text, and blocks unknown to us that have text */
        {"[{'role':'user','content':[{'type':'document','source':{'type':'text','media_type':'text/plain','data':'d'}},"
         "{'type':'new_thing','text':'n'}]}]",
         "[{'role':'user','content':'d\\nn'}]"},
        /* media: parts in order, text around them joined */
        {"[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'},{'type':'image','source':"
         "{'type':'base64','media_type':'image/png','data':'QUJD'}},{'type':'text','text':'c'},{'type':'image',"
         "'source':"
         "{'type':'url','url':'http://h/i'}}]}]",
         "[{'role':'user','content':[{'type':'text','text':'a\\nb'},{'type':'image_url','image_url':{'url':"
         "'data:image/png;base64,QUJD'}},{'type':'text','text':'c'},{'type':'image_url','image_url':{'url':"
         "'http://h/i'}}]}]"},
        /* a call, its input as an object; thinking is dropped */
        {"[{'role':'assistant','content':[{'type':'thinking','thinking':'t','signature':'s'},"
         "{'type':'redacted_thinking',"
         "'data':'z'},{'type':'text','text':'Let me see.'},{'type':'tool_use','id':'toolu_1','name':'f',"
         "'input':{'a':1}},"
         "{'type':'tool_use','id':'toolu_2','name':'g','input':{}}]}]",
         "[{'role':'assistant','content':'Let me see.','tool_calls':[{'id':'toolu_1','type':'function','function':"
         "{'name':'f','arguments':{'a':1}}},{'id':'toolu_2','type':'function','function':{'name':'g',"
         "'arguments':{}}}]}]"},
        /* results come before the rest of their turn, in order */
        {"[{'role':'user','content':[{'type':'text','text':'and now?'},{'type':'tool_result','tool_use_id':'toolu_1',"
         "'content':'4'},{'type':'tool_result','tool_use_id':'toolu_2','content':[{'type':'text','text':'a'},"
         "{'type':'text','text':'b'}]}]}]",
         "[{'role':'tool','tool_call_id':'toolu_1','content':'4'},{'role':'tool','tool_call_id':'toolu_2',"
         "'content':'a\\nb'},{'role':'user','content':'and now?'}]"},
        /* a turn of results only has no empty user message behind it */
        {"[{'role':'user','content':[{'type':'tool_result','tool_use_id':'t'}]}]",
         "[{'role':'tool','tool_call_id':'t','content':''}]"},
        {"[{'role':'user','content':[{'type':'tool_result','tool_use_id':'t','content':'no such file',"
         "'is_error':true},{'type':'tool_result','tool_use_id':'u','is_error':true,'content':[{'type':'text',"
         "'text':'a'},"
         "{'type':'text','text':'b'}]}]}]",
         "[{'role':'tool','tool_call_id':'t','content':'Error: no such file'},{'role':'tool','tool_call_id':'u',"
         "'content':'Error: a\\nb'}]"},
        {"[{'role':'user','content':[{'type':'tool_result','tool_use_id':'t','content':[{'type':'text','text':'see'},"
         "{'type':'image','source':{'type':'url','url':'u'}}]}]}]",
         "[{'role':'tool','tool_call_id':'t','content':[{'type':'text','text':'see'},{'type':'image_url','image_url':"
         "{'url':'u'}}]}]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_messages(cases[i].in, cases[i].out);
}

static void test_thinking_is_kept_on_request(void **state)
{
    (void)state;
    const char *body = "{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':[{'type':'thinking',"
                       "'thinking':'t','signature':''},{'type':'text','text':'a'},{'type':'thinking','thinking':'u',"
                       "'signature':''}]}]}";
    expect(body, true, "{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a',"
                       "'reasoning_content':'t\\nu'}]}");
    expect(body, false, "{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a'}]}");
}

static void test_system(void **state)
{
    (void)state;
    static const struct { const char *in, *out; } cases[] = {
        {"'be brief'", "be brief"},
        {"[{'type':'text','text':'a'},{'type':'text','text':'b','cache_control':{'type':'ephemeral'}}]", "a\\nb"},
        /* the line whose value changes with each request is not part of the prompt */
        {"[{'type':'text','text':'x-anthropic-billing-header: cc_version=2; cch=1a2b3;'},{'type':'text','text':'a'}]",
         "a"},
        {"'x-anthropic-billing-header: cch=9;\\nbe brief\\nx-anthropic-billing-header: stays'",
         "be brief\\nx-anthropic-billing-header: stays"},
        {"'x-anthropic-billing-header: cch=9;'", ""},
        {"''", ""},
        {"null", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[512], want[512], message[256] = "";
        snprintf(body, sizeof body, "{'system':%s,'messages':[{'role':'user','content':'x'}]}", cases[i].in);
        if (*cases[i].out) {
            snprintf(message, sizeof message, "{'role':'system','content':'%s'},", cases[i].out);
        }
        snprintf(want, sizeof want, "{'messages':[%s{'role':'user','content':'x'}]}", message);
        expect(body, false, want);
    }
}

static void test_fields(void **state)
{
    (void)state;
    static const struct { const char *in, *out; } cases[] = {
        {"'model':'m','max_tokens':7,'temperature':0.5,'top_p':0.9,'top_k':3,'stream':true",
         "'model':'m','max_tokens':7,'temperature':0.5,'top_p':0.9,'top_k':3,'stream':true"},
        {"'min_p':0.1,'xtc_probability':0.2,'xtc_threshold':0.3,'repetition_penalty':1.1,'presence_penalty':0.4,"
         "'frequency_penalty':0.6,'repetition_context_size':5,'presence_context_size':6,'frequency_context_size':7",
         "'min_p':0.1,'xtc_probability':0.2,'xtc_threshold':0.3,'repetition_penalty':1.1,'presence_penalty':0.4,"
         "'frequency_penalty':0.6,'repetition_context_size':5,'presence_context_size':6,'frequency_context_size':7"},
        {"'logit_bias':{'1':2},'metadata':{'user_id':'u'},'service_tier':'auto','max_tokens':null", ""},
        {"'stop_sequences':['a','b']", "'stop':['a','b']"},
        /* tools; those that Anthropic's servers run are dropped */
        {"'tools':[{'name':'f','description':'d','input_schema':{'type':'object'},'cache_control':{}},{'type':'custom',"
         "'name':'g','input_schema':{}},{'type':'web_search_20250305','name':'web_search'}]",
         "'tools':[{'type':'function','function':{'name':'f','description':'d','parameters':{'type':'object'}}},"
         "{'type':'function','function':{'name':'g','parameters':{}}}]"},
        {"'tool_choice':{'type':'auto'}", "'tool_choice':'auto'"},
        {"'tool_choice':{'type':'none'}", "'tool_choice':'none'"},
        {"'tool_choice':{'type':'any'}", "'tool_choice':'required'"},
        {"'tool_choice':{'type':'tool','name':'f','disable_parallel_tool_use':true}",
         "'tool_choice':{'type':'function','function':{'name':'f'}},'parallel_tool_calls':false"},
        {"'tool_choice':{'type':'auto','disable_parallel_tool_use':false}", "'tool_choice':'auto'"},
        {"'thinking':{'type':'enabled','budget_tokens':1024}",
         "'chat_template_kwargs':{'enable_thinking':true},'thinking_budget':1024"},
        {"'thinking':{'type':'disabled'}", "'chat_template_kwargs':{'enable_thinking':false}"},
        {"'thinking':{'type':'adaptive'}", ""},
        /* what was said in the template's own words wins */
        {"'thinking':{'type':'disabled'},'chat_template_kwargs':{'enable_thinking':true,'k':1}",
         "'chat_template_kwargs':{'enable_thinking':true,'k':1}"},
        {"'output_config':{'effort':'low'}", "'reasoning_effort':'low'"},
        {"'output_config':{'format':{'type':'json_schema','schema':{'type':'object'}}}",
         "'response_format':{'type':'json_schema','json_schema':{'name':'output','schema':{'type':'object'}}}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_fields(cases[i].in, cases[i].out);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct { const char *body, *param, *phrase; } cases[] = {
        {"{}", "messages", "messages: at least one message is required"},
        {"{'messages':[]}", "messages", "messages: at least one message is required"},
        {"{'messages':null}", "messages", "messages: at least one message is required"},
        {"{'messages':'x'}", "messages", "array"},
        {"{'messages':[7]}", "messages.0.role", "role"},
        {"{'messages':[{'role':'tool','content':'x'}]}", "messages.0.role", "\"user\" or \"assistant\""},
        {"{'messages':[{'role':'user'}]}", "messages.0.content", "string or array"},
        {"{'messages':[{'role':'user','content':[{'type':'audio','data':'x'}]}]}", "messages.0.content.0",
         "/v1/chat/completions"},
        {"{'messages':[{'role':'user','content':'a'},{'role':'user','content':[{'type':'text','text':'x'},"
         "{'type':'document','source':{'type':'base64','media_type':'application/pdf','data':'x'}}]}]}",
         "messages.1.content.1", "document"},
        {"{'messages':[{'role':'user','content':[{'type':'image','source':{'type':'file','file_id':'f'}}]}]}",
         "messages.0.content.0", "base64"},
        {"{'messages':[{'role':'assistant','content':[{'type':'server_tool_use','id':'x'}]}]}", "messages.0.content.0",
         "server_tool_use"},
        {"{'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'x'}]}]}", "messages.0.content.0",
         "name"},
        {"{'messages':[{'role':'assistant','content':[{'type':'tool_use','name':'f','input':'x'}]}]}",
         "messages.0.content.0", "input"},
        {"{'messages':[{'role':'user','content':[{'type':'tool_result','content':'x'}]}]}", "messages.0.content.0",
         "tool_use_id"},
        {"{'messages':[{'role':'user','content':[{'type':'tool_result','tool_use_id':'t','content':7}]}]}",
         "messages.0.content.0", "string or array"},
        {"{'system':7,'messages':[{'role':'user','content':'x'}]}", "system", "string or array"},
        {"{'system':[7],'messages':[{'role':'user','content':'x'}]}", "system", "system.0"},
        {"{'tools':{},'messages':[{'role':'user','content':'x'}]}", "tools", "array"},
        {"{'tools':[{'name':'f'}],'messages':[{'role':'user','content':'x'}]}", "tools", "tools.0"},
        {"{'tool_choice':{'type':'tool'},'messages':[{'role':'user','content':'x'}]}", "tool_choice", "name"},
        {"{'tool_choice':'auto','messages':[{'role':'user','content':'x'}]}", "tool_choice", "type"},
        {"{'thinking':{'type':'on'},'messages':[{'role':'user','content':'x'}]}", "thinking", "adaptive"},
        {"{'thinking':{'type':'enabled','budget_tokens':0},'messages':[{'role':'user','content':'x'}]}",
         "thinking.budget_tokens", "at least 1"},
        {"{'stop_sequences':'x','messages':[{'role':'user','content':'x'}]}", "stop_sequences", "array"},
        {"{'stop_sequences':[1],'messages':[{'role':'user','content':'x'}]}", "stop_sequences", "strings"},
        {"{'output_config':{'format':{'type':'json'}},'messages':[{'role':'user','content':'x'}]}",
         "output_config.format", "json_schema"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *in = load(cases[i].body), *out = in;
        qn_http_error e = {0};
        if (qn_anthropic_to_chat(in, false, &out, &e)) fail_msg("taken: %s", cases[i].body);
        assert_null(out);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.type, "invalid_request_error");
        if (strcmp(e.param, cases[i].param)) fail_msg("%s: param %s", cases[i].body, e.param);
        if (!strstr(e.message, cases[i].phrase)) fail_msg("%s: %s", cases[i].body, e.message);
        json_decref(in);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_thinking_is_kept_on_request),
        cmocka_unit_test(test_system),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
