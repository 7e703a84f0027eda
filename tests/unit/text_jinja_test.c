/* The Jinja interpreter against tests/golden/jinja.json (made by jinja2, see make_jinja.py), and
 * what jinja2 has no counterpart for: limits, error texts, the clock, threads of one compiled
 * template. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template.h"

static qn_code render(const char *source, const json_t *vars, qn_buf *out, qn_err *err)
{
    qn_template *t;
    qn_code rc = qn_template_compile(&t, source, strlen(source), "template", err);
    if (!rc) {
        rc = qn_template_render(t, vars, out, err);
        qn_template_free(t);
    } else {
        assert_null(t);
    }
    return rc;
}

static bool check_case(const json_t *c, const json_t *vars)
{
    const char *source = json_string_value(json_object_get(c, "s"));
    const json_t *want = json_object_get(c, "o");
    qn_buf out = {0};
    qn_err err = {0};
    qn_code rc = render(source, vars, &out, &err);
    bool ok = want ? !rc && out.len == json_string_length(want) &&
                         memcmp(out.data ? out.data : "", json_string_value(want), out.len) == 0
                   : rc == QN_INVALID && err.text[0] && out.len == 0;
    if (!ok)
        print_error("%s\n  want: %s\n  got:  %s\n", source,
                    want ? json_string_value(want) : "an error",
                    rc         ? err.text
                    : out.data ? out.data
                               : "");
    qn_buf_release(&out);
    return ok;
}

static void golden(void **state)
{
    (void)state;
    json_error_t why;
    json_t *root = json_load_file(QN_TEST_DIR "/golden/jinja.json", JSON_ALLOW_NUL, &why);
    if (!root) fail_msg("jinja.json: line %d: %s", why.line, why.text);
    const json_t *cases = json_object_get(root, "cases");
    size_t n = json_array_size(cases), bad = 0;
    assert_true(n > 2000);
    for (size_t i = 0; i < n; i++)
        bad += !check_case(json_array_get(cases, i), json_object_get(root, "vars"));
    json_decref(root);
    assert_int_equal(bad, 0);
}

/* The error of a template with no variables must have all of these parts. */
static void expect_error(const char *source, qn_code code, const char *part1, const char *part2)
{
    qn_buf out = {0};
    qn_err err = {0};
    assert_int_equal(render(source, NULL, &out, &err), code);
    assert_int_equal(out.len, 0);
    if (!strstr(err.text, part1) || !strstr(err.text, part2)) fail_msg("%s: %s", source, err.text);
    qn_buf_release(&out);
}

static void error_texts(void **state)
{
    (void)state;
    expect_error("a\n{{ x.y }}\n", QN_INVALID, "line 2: 'x' is undefined", "{{ x.y }}");
    expect_error("a\n\n  {% if %}", QN_INVALID, "line 3", "{% if %}");
    expect_error("{{ 1 | nosuch }}", QN_INVALID, "no filter named 'nosuch'", "line 1");
    expect_error("{{ [].append(1) }}", QN_INVALID, "unsafe", "append");
    expect_error("{{ {}.a.b }}", QN_INVALID, "has no attribute 'a'", "line 1");
    expect_error("{% include 'x' %}", QN_INVALID, "include", "line 1");
    expect_error("{{ 9223372036854775807 + 1 }}", QN_INVALID, "64 bits", "");
    expect_error("{{ 92233720368547758070 }}", QN_INVALID, "64 bits", "");
    expect_error("\xFF", QN_INVALID, "UTF-8", "");
    qn_err err = {0};
    qn_buf out = {0};
    assert_int_equal(render("text {{ raise_exception('only this') }}", NULL, &out, &err),
                     QN_INVALID);
    assert_string_equal(err.text, "only this");
    qn_buf_release(&out);
}

static void limits(void **state)
{
    (void)state;
    expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", QN_INVALID, "levels deep", "");
    expect_error("{{ 'x' * 999999999 }}", QN_INVALID, "memory", "");
    expect_error("{{ 'x' * 9223372036854775807 }}", QN_INVALID, "memory", "");
    expect_error("{{ [1] * 99999999999 }}", QN_INVALID, "memory", "");
    expect_error("{% set ns = namespace(s='xxxxxxxxxx') %}{% for i in range(60) %}{% set ns.s = "
                 "ns.s + ns.s %}{% endfor %}",
                 QN_INVALID, "memory", "");
    expect_error("{% set ns = namespace(a=[1]) %}{% for i in range(99999) %}{% set ns.a = [ns.a] "
                 "%}{% endfor %}{{ ns.a }}",
                 QN_INVALID, "levels deep", "");
    expect_error(
        "{% set ns = namespace(a=1, b=1) %}{% for i in range(200) %}{% set ns.a = [ns.a, ns.a] %}"
        "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
        QN_INVALID, "steps", "");
    expect_error("{% set s = 'y' * 1000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}",
                 QN_INVALID, "output", "");
    char deep[4096];
    memset(deep, '(', sizeof deep - 1);
    memcpy(deep, "{{ ", 3);
    deep[sizeof deep - 1] = 0;
    expect_error(deep, QN_INVALID, "levels deep", "");
}

/* Long chains must not overflow the stack: they are refused or they work. */
static void chains(void **state)
{
    (void)state;
    static const char *const parts[] = {"+1", "|abs",    ".a", " and 1", "[0]", " if 1",
                                        "~1", " is odd", "()", " == 1",  "**1"};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        qn_buf b = {0}, out = {0};
        qn_err err = {0};
        qn_buf_puts(&b, "{{ 1");
        for (int i = 0; i < 50000; i++) qn_buf_puts(&b, parts[k]);
        qn_buf_puts(&b, " }}");
        render(b.data, NULL, &out, &err);
        qn_buf_release(&b);
        qn_buf_release(&out);
    }
    qn_buf b = {0}, out = {0};
    qn_err err = {0};
    qn_buf_puts(&b, "{% if 0 %}");
    for (int i = 0; i < 20000; i++) qn_buf_puts(&b, "{% elif 0 %}");
    qn_buf_puts(&b, "{% endif %}");
    render(b.data, NULL, &out, &err);
    qn_buf_release(&b);
    qn_buf_release(&out);
}

static int64_t clock_at(void *arg) { return *(const int64_t *)arg; }

static void injected_clock(void **state)
{
    (void)state;
    setenv("TZ", "UTC", 1);
    static const char source[] =
        "{{ strftime_now('%Y-%m-%d %H:%M') }}|{{ strftime_now('%d %b %Y') }}";
    int64_t at = 1785412800;
    qn_template *t;
    qn_err err = {0};
    qn_buf out = {0};
    assert_int_equal(qn_template_compile(&t, source, sizeof source - 1, "t", &err), QN_OK);
    qn_template_set_clock(t, clock_at, &at);
    assert_int_equal(qn_template_render(t, NULL, &out, &err), QN_OK);
    assert_string_equal(out.data, "2026-07-30 12:00|30 Jul 2026");
    qn_buf_release(&out);
    qn_template_free(t);
}

static void *render_often(void *arg)
{
    for (int i = 0; i < 200; i++) {
        qn_buf out = {0};
        qn_err err = {0};
        bool same = qn_template_render(arg, NULL, &out, &err) == QN_OK &&
                    strcmp(out.data, "AÄb2;[3, '\xC3\xA9']") == 0;
        qn_buf_release(&out);
        if (!same) return arg;
    }
    return NULL;
}

static void shared_by_threads(void **state)
{
    (void)state;
    static const char source[] = "{% macro m(a) %}{{ a[1]|upper ~ 'Äb' }}{% endmacro %}{{ m('xa') "
                                 "}}{% for i in range(3) if i > 1 %}"
                                 "{{ i }};{% endfor %}{{ [3, 'é'] }}";
    qn_template *t;
    qn_err err = {0};
    pthread_t thread[4];
    assert_int_equal(qn_template_compile(&t, source, sizeof source - 1, "t", &err), QN_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, render_often, t), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        assert_int_equal(pthread_join(thread[i], &bad), 0);
        assert_null(bad);
    }
    qn_template_free(t);
}

static void appends_only_on_success(void **state)
{
    (void)state;
    qn_buf out = {0};
    qn_err err = {0};
    qn_buf_puts(&out, "kept");
    assert_int_equal(render("lost {{ nosuch() }}", NULL, &out, &err), QN_INVALID);
    assert_string_equal(out.data, "kept");
    qn_err_clear(&err);
    assert_int_equal(render(" more", NULL, &out, &err), QN_OK);
    assert_string_equal(out.data, "kept more");
    qn_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),          cmocka_unit_test(error_texts),
        cmocka_unit_test(limits),          cmocka_unit_test(chains),
        cmocka_unit_test(injected_clock),  cmocka_unit_test(shared_by_threads),
        cmocka_unit_test(appends_only_on_success),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
