/* Stop strings and held-back text: the cut must not depend on how the text came in tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/reply.c"

/* A detokenizer whose token i is pieces[i], or a single byte for ids from 256 on. As the real one,
 * it gives whole characters only. */
static const char *const *pieces;
struct qn_detok {
    qn_buf tail;
};

qn_code qn_detok_new(qn_detok **out, const qn_tokenizer *t, unsigned flags, qn_err *err)
{
    (void)t, (void)err;
    assert_int_equal(flags, QN_DETOK_SKIP_SPECIAL | QN_DETOK_TRIM);
    *out = calloc(1, sizeof **out);
    return QN_OK;
}

void qn_detok_free(qn_detok *d)
{
    if (d) qn_buf_release(&d->tail);
    free(d);
}

qn_code qn_detok_push(qn_detok *d, uint32_t id, qn_buf *out, qn_err *err)
{
    (void)err;
    if (id < 256) qn_buf_puts(&d->tail, pieces[id]);
    else qn_buf_putc(&d->tail, (char)(id - 256));
    size_t n = d->tail.len;
    while (n && ((unsigned char)d->tail.data[n - 1] & 0xC0) == 0x80) n--;
    bool cut = n && (unsigned char)d->tail.data[n - 1] >= 0xC0 &&
               d->tail.len - n + 1 < ((unsigned char)d->tail.data[n - 1] >= 0xE0 ? 3u : 2u);
    n = cut ? n - 1 : d->tail.len;
    qn_buf_put(out, d->tail.data, n);
    qn_buf_drop(&d->tail, n);
    return QN_OK;
}

qn_code qn_detok_finish(qn_detok *d, qn_buf *out, qn_err *err)
{
    (void)err;
    if (d->tail.len) qn_buf_puts(out, "\xEF\xBF\xBD");
    qn_buf_clear(&d->tail);
    return QN_OK;
}

typedef struct stop_case {
    const char *text;
    const char *stops[4];
    const char *shown;
    const char *met; /* NULL: none */
} stop_case;

static const stop_case cases[] = {
    {"hello world", {0}, "hello world", NULL},
    {"hello world", {"o w"}, "hell", "o w"},
    {"a\n\nUser: b", {"\n\nUser"}, "a", "\n\nUser"},
    {"a\n\nUse", {"\n\nUser"}, "a\n\nUse", NULL},
    {"a\n\nUxUser", {"\n\nUser"}, "a\n\nUxUser", NULL},
    {"xxabcd", {"ab", "abc"}, "xx", "ab"},
    {"xxabcd", {"bc", "abc"}, "xx", "abc"},  /* both end at c: the longest wins */
    {"xabcd", {"bcd", "c"}, "xab", "c"},     /* c is complete first */
    {"aaab", {"aab"}, "a", "aab"},
    {"ababac", {"abac"}, "ab", "abac"},
    {"caf\xC3\xA9 noir", {"\xC3\xA9 n"}, "caf", "\xC3\xA9 n"},
    {"\xE2\x82\xAC\xE2\x82\xAC!", {"\xE2\x82\xAC!"}, "\xE2\x82\xAC", "\xE2\x82\xAC!"},
    {"stop", {"stop"}, "", "stop"},
    {"abc", {"", "c"}, "ab", "c"},
};

/* Run a case with the text cut before byte `cut1` and `cut2`. */
static void run_cut(const stop_case *c, size_t cut1, size_t cut2)
{
    char parts[3][64] = {{0}};
    size_t n = strlen(c->text);
    memcpy(parts[0], c->text, cut1);
    memcpy(parts[1], c->text + cut1, cut2 - cut1);
    memcpy(parts[2], c->text + cut2, n - cut2);
    const char *const list[] = {parts[0], parts[1], parts[2]};
    pieces = list;
    size_t n_stops = 0;
    while (n_stops < 4 && c->stops[n_stops]) n_stops++;
    qn_reply *r;
    qn_err err = {0};
    assert_int_equal(qn_reply_new(&r, NULL, c->stops, n_stops, &err), QN_OK);
    qn_buf out = {0};
    for (uint32_t i = 0; i < 3; i++) {
        qn_reply_push(r, i, &out);
        /* Nothing shown may be taken back later. */
        assert_true(out.len <= strlen(c->shown));
    }
    bool met = qn_reply_finish(r, &out);
    assert_string_equal(out.data ? out.data : "", c->shown);
    assert_int_equal(met, c->met != NULL);
    if (c->met) assert_string_equal(qn_reply_stop(r), c->met);
    else assert_null(qn_reply_stop(r));
    qn_buf_release(&out);
    qn_reply_free(r);
}

static void test_every_split(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].text);
        for (size_t a = 0; a <= n; a++) {
            for (size_t b = a; b <= n; b++) run_cut(&cases[i], a, b);
        }
    }
}

static void test_byte_by_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const stop_case *c = &cases[i];
        size_t n_stops = 0;
        while (n_stops < 4 && c->stops[n_stops]) n_stops++;
        qn_reply *r;
        qn_buf out = {0};
        assert_int_equal(qn_reply_new(&r, NULL, c->stops, n_stops, NULL), QN_OK);
        for (const char *p = c->text; *p; p++) qn_reply_push(r, 256u + (unsigned char)*p, &out);
        qn_reply_finish(r, &out);
        assert_string_equal(out.data ? out.data : "", c->shown);
        qn_buf_release(&out);
        qn_reply_free(r);
    }
}

static void test_cut_character_is_replaced(void **state)
{
    (void)state;
    qn_reply *r;
    qn_buf out = {0};
    assert_int_equal(qn_reply_new(&r, NULL, NULL, 0, NULL), QN_OK);
    qn_reply_push(r, 256 + 'a', &out);
    qn_reply_push(r, 256 + 0xE2, &out);
    assert_string_equal(out.data, "a");
    assert_false(qn_reply_finish(r, &out));
    assert_string_equal(out.data, "a\xEF\xBF\xBD");
    qn_buf_release(&out);
    qn_reply_free(r);
}

static void test_limits(void **state)
{
    (void)state;
    char text[QN_MAX_STOP_BYTES + 2];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    const char *many[QN_MAX_STOPS + 1];
    for (size_t i = 0; i <= QN_MAX_STOPS; i++) many[i] = "a";
    const char *one = text;
    qn_reply *r;
    qn_err err = {0};
    assert_int_equal(qn_reply_new(&r, NULL, &one, 1, &err), QN_LIMIT);
    assert_null(r);
    assert_non_null(strstr(err.text, "256"));
    qn_err_clear(&err);
    assert_int_equal(qn_reply_new(&r, NULL, many, QN_MAX_STOPS + 1, &err), QN_LIMIT);
    one = text + 1;
    assert_int_equal(qn_reply_new(&r, NULL, &one, 1, NULL), QN_OK);
    qn_reply_free(r);
    assert_int_equal(qn_reply_new(&r, NULL, many, QN_MAX_STOPS, NULL), QN_OK);
    qn_reply_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_byte_by_byte),
        cmocka_unit_test(test_cut_character_is_replaced),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
