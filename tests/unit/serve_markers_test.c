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
        assert_true(part->is_closed && !strncmp(part->call_id, "call_", 5) && strlen(part->call_id) == 29);
        qn_buf_printf(out, "C%u(%s:%s)", part->call_index, part->call_name, text);
    }
    assert_false(p->failed);
}

/* Run a case with its text cut at the ends of `cuts` [n_cuts]. */
static void run_case(const marker_case *c, const size_t *cuts, size_t n_cuts)
{
    size_t n_stops = 0, n = strlen(c->text), at = 0;
    while (n_stops < 3 && c->stops[n_stops]) n_stops++;
    qn_output o = {.starts_in_reasoning = c->in_reasoning, .one_call = c->one_call};
    if (!c->no_think) o.think_start = "<think>", o.think_end = "</think>";
    if (!c->no_tools) o.format = qn_tool_format_named("json_tools");
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_random_cuts),
        cmocka_unit_test(test_cut_call),
    };
    qn_log_set_level(QN_CRITICAL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
