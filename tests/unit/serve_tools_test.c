/* The parsers of tool calls against mlx-lm's (tests/golden/make_tools.py), and which family a template
 * belongs to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "byte_tokenizer.h"
#include "serve/tool_format.h"
#include "serve/tool_value.h"

static json_t *load(const char *name)
{
    char path[512];
    json_error_t why;
    snprintf(path, sizeof path, "%s/golden/%s", QN_TEST_DIR, name);
    json_t *j = json_load_file(path, 0, &why);
    if (!j) fail_msg("%s: %s", path, why.text);
    return j;
}

static const char *text_of(const json_t *j, const char *key)
{
    return json_string_value(json_object_get(j, key));
}

/* The parser's answer: the calls, or null. */
static json_t *ask(const json_t *c, const json_t *tools)
{
    const qn_tool_format *f = qn_tool_format_named(text_of(c, "parser"));
    assert_non_null(f);
    const json_t *text = json_object_get(c, "text");
    size_t n = json_string_length(text);
    char *body = malloc(n + 1); /* of its own, so that reading too far is seen */
    memcpy(body, json_string_value(text), n);
    body[n] = '\0';
    json_t *calls = json_array();
    qn_err err = {0};
    qn_code rc = qn_tool_format_parse(f, body, n, 0, tools, calls, &err);
    free(body);
    if (!rc) return calls;
    assert_true(rc == QN_FORMAT && err.text[0]);
    assert_int_equal(json_array_size(calls), 0);
    json_decref(calls);
    return json_null();
}

static void test_parsers(void **state)
{
    (void)state;
    json_t *golden = load("tools.json"), *tools = json_object_get(golden, "tools"), *c;
    size_t i, n_failed = 0;
    json_array_foreach(json_object_get(golden, "cases"), i, c) {
        json_t *got = ask(c, tools);
        if (!json_equal(got, json_object_get(c, "calls"))) {
            char *a = json_dumps(got, JSON_ENCODE_ANY), *b = json_dumps(c, 0);
            print_error("%s\n    of %s\n", a, b);
            free(a);
            free(b);
            n_failed++;
        }
        json_decref(got);
    }
    assert_true(i > 400);
    assert_int_equal(n_failed, 0);
    json_decref(golden);
}

/* A parser must end on every beginning of a text, and on one with any byte changed. */
static void test_cut_and_broken(void **state)
{
    (void)state;
    static const char bytes[] = "<>{}[]()\"':,=\\/|0aN \n";
    json_t *golden = load("tools.json"), *tools = json_object_get(golden, "tools"), *c;
    size_t i;
    json_array_foreach(json_object_get(golden, "cases"), i, c) {
        char *text = strdup(text_of(c, "text"));
        size_t n = strlen(text);
        for (size_t at = 0; at < n; at++) {
            char old = text[at];
            text[at] = bytes[(at + i) % (sizeof bytes - 1)];
            json_t *changed = json_pack("{s:s, s:s%}", "parser", text_of(c, "parser"), "text", text, n);
            if (changed) json_decref(ask(changed, tools));
            json_decref(changed);
            json_t *cut = json_pack("{s:s, s:s%}", "parser", text_of(c, "parser"), "text", text, at);
            if (cut) json_decref(ask(cut, NULL));
            json_decref(cut);
            text[at] = old;
        }
        free(text);
    }
    json_decref(golden);
}

static const char *family_of(const char *source, const char *config, const qn_byte_token *added, size_t n)
{
    qn_chat_template *t;
    qn_err err = {0};
    /* As a comment: only what it mentions counts. */
    qn_buf text = {0};
    qn_buf_printf(&text, "{# %s #}", source);
    if (qn_chat_template_from_source(&t, text.data, text.len, NULL, &err)) fail_msg("%s", err.text);
    qn_tokenizer *tok = qn_byte_tokenizer(added, n, config);
    const qn_tool_format *f = qn_tool_format_of(t, tok);
    qn_tokenizer_close(tok);
    qn_chat_template_free(t);
    qn_buf_release(&text);
    return f ? f->name : NULL;
}

static void test_families(void **state)
{
    (void)state;
    json_t *golden = load("tool_families.json"), *name;
    const char *source;
    size_t n = 0;
    json_object_foreach(json_object_get(golden, "families"), source, name) {
        const char *want = json_string_value(name), *got = family_of(source, NULL, NULL, 0);
        n++;
        /* Ours: MiniCPM5 is known without its second mark. */
        if (!want && strstr(source, "<function name=")) want = "minicpm5";
        if (!want != !got || (want && strcmp(want, got))) {
            fail_msg("%s: %s, not %s", source, got ? got : "none", want ? want : "none");
        }
    }
    assert_true(n > 200);
    json_decref(golden);
    static const qn_byte_token lfm[] = {{"<|tool_call_start|>", true}, {"<|tool_call_end|>", true}};
    assert_string_equal(family_of("<|channel|> <|call|>", NULL, NULL, 0), "harmony");
    static const qn_byte_token k3[] = {
        {"<|open|>", true}, {"<|close|>", true}, {"<|sep|>", true}, {"<|end_of_msg|>", true}};
    assert_string_equal(family_of("", NULL, lfm, 2), "pythonic");
    assert_string_equal(family_of("", NULL, k3, 4), "kimi_k3");
    assert_string_equal(family_of("<arg_key>", NULL, k3, 4), "glm47");
    assert_null(family_of("", NULL, k3, 3));
    assert_null(family_of("", NULL, lfm, 1));
    assert_string_equal(family_of("<arg_key>", "{\"tool_parser_type\": \"mistral\"}", NULL, 0), "mistral");
    assert_null(family_of("<arg_key>", "{\"tool_parser_type\": \"other\"}", NULL, 0));
}

static void test_depth(void **state)
{
    (void)state;
    static const struct { const char *parser, *before, *open; } cases[] = {
        {"json_tools", "{\"name\": \"f\", \"arguments\": ", "{\"a\":"}, {"gemma4", "call:f{a:", "["},
        {"gemma4", "call:f{a:", "{b:"},           {"pythonic", "[f(a=", "["},
        {"pythonic", "[f(a=", "{'a':("},
        {"glm47", "f<arg_key>a</arg_key><arg_value>", "["},
        {"function_gemma", "call:f{a:", "{b:"},   {"mistral", "f[ARGS]", "{\"a\":["},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_buf text = {0};
        qn_buf_puts(&text, cases[i].before);
        for (int k = 0; k < 100000; k++) qn_buf_puts(&text, cases[i].open);
        json_t *c = json_pack("{s:s, s:s}", "parser", cases[i].parser, "text", text.data);
        json_t *calls = ask(c, NULL);
        json_decref(calls);
        json_decref(c);
        qn_buf_release(&text);
    }
}

static void test_written_numbers(void **state)
{
    (void)state;
    static const struct { double v; const char *text; } cases[] = {
        {0.1, "0.1"}, {1, "1.0"}, {-2.5, "-2.5"}, {1e300, "1e+300"}, {1.0 / 3, "0.3333333333333333"},
        {5e-324, "5e-324"},
        {123456789.0, "123456789.0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = json_real(cases[i].v);
        qn_buf out = {0};
        qn_tool_write_args(&out, v);
        assert_string_equal(out.data, cases[i].text);
        qn_buf_release(&out);
        json_decref(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parsers),  cmocka_unit_test(test_cut_and_broken), cmocka_unit_test(test_families),
        cmocka_unit_test(test_depth),    cmocka_unit_test(test_written_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
