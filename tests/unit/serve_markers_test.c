/* The marker machine: the parts must not depend on how the text was cut, whatever the markers and
 * stop strings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "serve/markers.h"

typedef struct marker_case {
    const char *text;
    const char *stops[3];
    const char *parts;  /* as describe() writes them */
    bool in_reasoning, one_call, was_cut, no_think, no_tools;
    const char *format; /* NULL: json_tools */
} marker_case;

#define CALL(name, args) "<tool_call>{\"name\": \"" name "\", \"arguments\": " args "}</tool_call>"

static const marker_case cases[] = {
    {.text = "plain", .parts = "T(plain)"},
    {.text = "", .parts = ""},
    {.text = "a<think>b</think>c" CALL("f", "{}") "d", .parts = "T(a)R(b)T(c)C0(f:{})T(d)"},
    {.text = "a<think>b</think>c" CALL("f", "{\"x\": [1, 2.5]}") "d", .parts = "T(a)R(b)T(c)C0(f:{\"x\":[1,2.5]})T(d)"},
    {.text = "b</think>c", .parts = "R(b)T(c)", .in_reasoning = true},
    {.text = "b</think>c", .parts = "T(b</think>c)"},                       /* a lone end is text */
    {.text = "<think>a<think>b</think>c<think>d</think>", .parts = "R(a<think>b)T(c)R(d)"},
    {.text = "<think></think>x", .parts = "T(x)"},
    {.text = "<think>a" CALL("f", "{}") "b</think>", .parts = "R(a)C0(f:{})T(b</think>)"},
    {.text = "x<", .parts = "T(x<)"},
    {.text = "x</t", .parts = "T(x</t)"},
    {.text = "<thin", .parts = "T(<thin)"},
    {.text = "<think>y</thin", .parts = "R(y</thin)"},
    {.text = "<<think>y", .parts = "T(<)R(y)"},
    {.text = "<tool_<tool_call>", .parts = "T(<tool_<tool_call>)"},         /* an empty block does not parse */
    {.text = CALL("f", "{}") CALL("g", "{\"s\": \"<think>\"}"), .parts = "C0(f:{})C1(g:{\"s\":\"<think>\"})"},
    {.text = CALL("f", "{}") "\n" CALL("g", "{}"), .parts = "C0(f:{})T(\n)C1(g:{})"},
    {.text = CALL("f", "{}") " and " CALL("g", "{}"), .parts = "C0(f:{})", .one_call = true},
    {.text = "a<tool_call>oops</tool_call>b", .parts = "T(a<tool_call>oops</tool_call>b)"},
    {.text = "a<tool_call>{\"name\": \"f\"}", .parts = "T(a)C0(f:{})"},     /* the end came without its marker */
    {.text = "a<tool_call>{\"name\": \"f\"}", .parts = "T(a)", .was_cut = true},
    {.text = CALL("f", "{}") "<tool_call>{\"name\": \"g\"", .parts = "C0(f:{})", .was_cut = true},
    {.text = CALL("f", "{}") "<tool_call>{\"name\": \"g\"", .parts = "C0(f:{})T(<tool_call>{\"name\": \"g\")"},
    /* stop strings */
    {.text = "one\n\nUser: x", .stops = {"\n\nUser"}, .parts = "T(one)"},
    {.text = "one\n\nUse", .stops = {"\n\nUser"}, .parts = "T(one\n\nUse)"},
    {.text = "a\xF0\x9F\x98\x80" "b stop", .stops = {"\x80" "b"}, .parts = "T(a\xF0\x9F\x98)"},
    {.text = "<think>ab STOP c</think>d", .stops = {"STOP"}, .parts = "R(ab )"},
    {.text = CALL("STOP", "{}") "d STOP e", .stops = {"STOP"}, .parts = "C0(STOP:{})T(d )"},
    {.text = "a</think>b", .stops = {"ab", "a</"}, .parts = "R(a)T(b)", .in_reasoning = true}, /* markers part stops */
    {.text = "x<think>y", .stops = {"<think>"}, .parts = "T(x)R(y)"}, /* a marker comes first */
    {.text = "x<think>y", .stops = {"<think>"}, .parts = "T(x)", .no_think = true},
    {.text = "aab", .stops = {"a", "aa"}, .parts = "", .no_tools = true},
    {.text = "xy<tool", .stops = {"<to", "y<"}, .parts = "T(x)"},
    {.text = CALL("f", "{}") "x", .parts = "T(" CALL("f", "{}") "x)", .no_tools = true},
    /* Qwen3-Coder: with and without the outer marker, and markers inside a value */
    {.text = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>x",
     .parts = "C0(f:{\"a\":\"1\"})T(x)", .format = "qwen3_coder"},
    {.text = "so <function=f>\n<parameter=a>\n1\n</parameter>\n</function> x",
     .parts = "T(so )C0(f:{\"a\":\"1\"})T( x)", .format = "qwen3_coder"},
    {.text = "<tool_call><function=f><parameter=a></function></tool_call></parameter></function></tool_call>",
     .parts = "C0(f:{\"a\":\"</function></tool_call>\"})", .format = "qwen3_coder"},
    {.text = "<tool_call><function=f><parameter=a>1</parameter></tool_call>",
     .parts = "T(<tool_call><function=f><parameter=a>1</parameter></tool_call>)", .format = "qwen3_coder"},
    /* Gemma 4: thinking in a channel, an end marker inside a string */
    {.text = "<|tool_call>call:f{s:<|\"|>a<tool_call|>b<|\"|>}<tool_call|>x",
     .parts = "C0(f:{\"s\":\"a<tool_call|>b\"})T(x)", .format = "gemma4"},
    {.text = "<|tool_call>call:f{}call:g{a:1}<tool_call|>", .parts = "C0(f:{})C1(g:{\"a\":1})", .format = "gemma4"},
    {.text = "<|tool_call>call:f{}call:g{a:1}<tool_call|>", .parts = "C0(f:{})", .format = "gemma4", .one_call = true},
    /* Mistral: to the end of the reply */
    {.text = "hi[TOOL_CALLS]f[ARGS]{\"a\":1}[TOOL_CALLS]g[ARGS]{}", .parts = "T(hi)c0(f:{\"a\":1})c1(g:{})",
     .format = "mistral"},
    {.text = "hi[TOOL_CALLS]f[ARGS]{\"a\":", .parts = "T(hi[TOOL_CALLS]f[ARGS]{\"a\":)", .format = "mistral"},
    {.text = "hi[TOOL_CALLS]f[ARGS]{}", .parts = "T(hi)", .format = "mistral", .was_cut = true},
    {.text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{\"a\":1}"
             "<|tool_call_end|><|tool_calls_section_end|>x",
     .parts = "k0(f:{\"a\":1})T(x)", .format = "kimi_k2"},
    {.text = "<function name=\"f\"><param name=\"p\"><![CDATA[</function>]]></param></function>x",
     .parts = "C0(f:{\"p\":\"</function>\"})T(x)", .format = "minicpm5"},
    {.text = "<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>x", .parts = "C0(f:{\"a\":1})C1(g:{})T(x)",
     .format = "pythonic"},
    /* gpt-oss */
    {.text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>hi<|return|>",
     .parts = "R(hm)T(hi)", .format = "harmony"},
    {.text = "<|channel|>analysis<|message|>hm", .parts = "R(hm)", .format = "harmony"},
    {.text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f "
             "<|constrain|>json<|message|>{\"a\": 1}<|call|>",
     .parts = "R(hm)C0(f:{\"a\": 1})", .format = "harmony"},
    {.text = " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
     .parts = "C0(f:{})", .format = "harmony"},
    {.text = "<|channel|>commentary to=functions.f<|constrain|>json<|message|><|call|>", .parts = "C0(f:{})",
     .format = "harmony"},
    {.text = "<|channel|>analysis to=browser.search<|message|>{\"q\": \"x\"}<|call|>",
     .parts = "C0(browser.search:{\"q\": \"x\"})", .format = "harmony"},
    {.text = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary"
             "<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>ok",
     .parts = "T(I look.)C0(f:{})T(ok)", .format = "harmony"},
    {.text = "<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant<|channel|>final"
             "<|message|>no",
     .parts = "C0(f:{})", .format = "harmony", .one_call = true},
    {.text = "<|channel|>commentary to=functions.f<|message|>{}<|call|>", .parts = "T({})", .format = "harmony",
     .no_tools = true},
    {.text = "<|message|>no channel<|end|>", .parts = "T(no channel)", .format = "harmony"},
    {.text = "just text", .parts = "T(just text)", .format = "harmony"},
    {.text = "<", .parts = "T(<)", .format = "harmony"},
    {.text = "<b>bold</b>", .parts = "T(<b>bold</b>)", .format = "harmony"},
    {.text = "<|channel|>final<|message|>a<|end|>b<|start|>oops\nc", .parts = "T(aboops\nc)", .format = "harmony"},
    {.text = "<|channel|>final<|message|>a STOP b<|end|>", .stops = {"STOP"}, .parts = "T(a )", .format = "harmony"},
    {.text = "<|channel|>commentary to=functions.f<|message|>{\"a\": \"STOP\"}<|call|>", .stops = {"STOP"},
     .parts = "C0(f:{\"a\": \"STOP\"})", .format = "harmony"},
    {.text = "<|channel|>final<|message|>x<|en", .parts = "T(x<|en)", .format = "harmony"},
};

static void describe(const qn_parts *p, qn_buf *out)
{
    for (size_t i = 0; i < p->n; i++) {
        const qn_part *part = &p->list[i];
        const char *text = part->text.data ? part->text.data : "";
        if (part->kind != QN_PART_CALL) {
            qn_buf_printf(out, "%c(%s)", part->kind == QN_PART_TEXT ? 'T' : 'R', text);
            continue;
        }
        /* C: an id of ours, c: a short one, k: Kimi's own */
        size_t n = strlen(part->call_id);
        char kind = n == 29 && !strncmp(part->call_id, "call_", 5) ? 'C' : n == 9 ? 'c' : '?';
        if (!strcmp(part->call_id, "functions.f:3")) kind = 'k';
        assert_true(part->is_closed);
        qn_buf_printf(out, "%c%u(%s:%s)", kind, part->call_index, part->call_name, text);
    }
    assert_false(p->failed);
}

static json_t *tools;

/* Run a case with its text cut at the ends of `cuts` [n_cuts]. */
static void run_case(const marker_case *c, const size_t *cuts, size_t n_cuts)
{
    size_t n_stops = 0, n = strlen(c->text), at = 0;
    while (n_stops < 3 && c->stops[n_stops]) n_stops++;
    qn_output o = {.starts_in_reasoning = c->in_reasoning, .one_call = c->one_call};
    if (!c->no_think) o.think_start = "<think>", o.think_end = "</think>";
    if (!c->no_tools || c->format) o.format = qn_tool_format_named(c->format ? c->format : "json_tools");
    if (!c->no_tools) o.tools = tools;
    qn_parts parts = {0};
    qn_markers *m;
    qn_err err = {0};
    assert_int_equal(qn_markers_new(&m, &o, c->stops, n_stops, &parts, &err), QN_OK);
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t end = i < n_cuts ? cuts[i] : n;
        /* From memory of its own, so that reading too far is seen. */
        char *chunk = malloc(end - at + 1);
        memcpy(chunk, c->text + at, end - at);
        qn_markers_push(m, chunk, end - at);
        free(chunk);
        at = end;
    }
    qn_markers_finish(m, c->was_cut);
    qn_buf got = {0};
    qn_buf_puts(&got, "");
    describe(&parts, &got);
    if (strcmp(got.data, c->parts)) fail_msg("%s, %zu cuts: %s, not %s", c->text, n_cuts, got.data, c->parts);
    qn_buf_release(&got);
    qn_markers_free(m);
    qn_parts_release(&parts);
}

static void test_every_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const marker_case *c = &cases[i];
        size_t n = strlen(c->text), cuts[512];
        run_case(c, NULL, 0);
        for (size_t at = 0; at <= n; at++) run_case(c, &at, 1);
        for (size_t k = 0; k < n; k++) cuts[k] = k;
        run_case(c, cuts, n);
    }
}

static void test_random_cuts(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            size_t cuts[512], n_cuts = 0, n = strlen(cases[i].text);
            for (size_t at = 0; at < n; at++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                if (seed >> 61 == 0) cuts[n_cuts++] = at;
            }
            run_case(&cases[i], cuts, n_cuts);
        }
    }
}

/* mlx-lm's machine, fed one character at a time (tests/golden/make_tools.py). */
static void test_golden(void **state)
{
    (void)state;
    json_t *golden = json_load_file(QN_TEST_DIR "/golden/markers.json", 0, NULL), *c;
    size_t i;
    json_array_foreach(json_object_get(golden, "cases"), i, c) {
        const json_t *think = json_object_get(c, "think"), *text = json_object_get(c, "text");
        const qn_output o = {
            .think_start = json_string_value(json_array_get(think, 0)),
            .think_end = json_string_value(json_array_get(think, 1)),
            .starts_in_reasoning = !strcmp(json_string_value(json_object_get(c, "start")), "reasoning"),
            .format = qn_tool_format_named("json_tools"),
        };
        qn_parts parts = {0};
        qn_markers *m;
        qn_err err = {0};
        assert_int_equal(qn_markers_new(&m, &o, NULL, 0, &parts, &err), QN_OK);
        qn_markers_push(m, json_string_value(text), json_string_length(text));
        qn_markers_finish(m, false);
        for (int k = 0; k < 2; k++) {
            qn_buf said = {0};
            qn_buf_puts(&said, "");
            qn_parts_join(&parts, k ? QN_PART_REASONING : QN_PART_TEXT, &said);
            const char *want = json_string_value(json_object_get(c, k ? "reasoning" : "normal"));
            if (strcmp(said.data, want)) fail_msg("%s: %s, not %s", json_string_value(text), said.data, want);
            qn_buf_release(&said);
        }
        qn_markers_free(m);
        qn_parts_release(&parts);
    }
    assert_int_equal(i, 300);
    json_decref(golden);
}

/* A call that is cut by the length anywhere: no call, no crash, and what came before stays. */
static void test_cut_call(void **state)
{
    (void)state;
    static const char whole[] = "hi" CALL("f", "{\"a\": 1}");
    char text[sizeof whole];
    for (size_t n = 2 + strlen("<tool_call>"); n + 1 < sizeof whole; n++) {
        snprintf(text, sizeof text, "%.*s", (int)n, whole);
        const marker_case c = {.text = text, .parts = "T(hi)", .was_cut = true};
        run_case(&c, NULL, 0);
    }
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_random_cuts),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_cut_call),
    };
    qn_log_set_level(QN_CRITICAL);
    tools = json_pack("[{s:{s:s}}]", "function", "name", "f");
    int failed = cmocka_run_group_tests(all, NULL, NULL);
    json_decref(tools);
    return failed;
}
