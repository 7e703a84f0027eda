/* text_scan_test.c - the hand-written splitters cut every text where PCRE2 cuts it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/tok_impl.h"
#include "text/unicode.h"

static uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* Characters that the patterns tell apart, and what stands at their borders. */
static const char *const parts[] = {
    "a",
    "b",
    "Z",
    "Q",
    "the",
    "The",
    "THE",
    "'",
    "'s",
    "'S",
    "'t",
    "'re",
    "'RE",
    "'rE",
    "'ve",
    "'m",
    "'ll",
    "'Ll",
    "'d",
    "'x",
    "\xC5\xBF",
    "'\xC5\xBF",
    " ",
    "  ",
    "\n",
    "\r",
    "\r\n",
    "\t",
    "\x0B",
    "\xC2\xA0",
    "\xE3\x80\x80",
    "\xE2\x80\xA8",
    "\xC2\x85",
    "\xE1\xA0\x8E",
    "1",
    "22",
    "4444",
    "\xC2\xBD",
    "\xE2\x85\xA7",
    "\xD9\xA3",
    ".",
    "!",
    "/",
    "//",
    "_",
    "-",
    "$",
    "\xE2\x82\xAC",
    "\xCC\x81",
    "\xE0\xA4\xBF",
    "\xE2\x83\x9D",
    "\xC7\x85",
    "\xCA\xB0",
    "\xE6\xBC\xA2",
    "\xE3\x81\x82",
    "\xC3\xA9",
    "\xC3\x89",
    "\xD0\x96",
    "\xD0\xB6",
    "\xF0\x9F\x98\x80",
    "\xE2\x80\x8D",
    "\xEF\xB8\x8F",
    "\xF0\x9D\x92\xB3",
    "\xEE\x80\x80",
    "\xF0\xB1\x8D\x90",
    "\xE2\x93\x90",
    "\x01",
    "#",
    "\\",
    "~",
    "\xE3\x81\x80",
    "\xE3\x80\xBF",
    "\xE9\xBE\xA5",
    "\xE9\xBE\xA6",
    "\xE3\x83\xBF",
    "\xCD\xB8",
};

static void random_text(uint64_t *seed, qn_buf *b)
{
    size_t n = 1 + next_random(seed) % 12;
    qn_buf_clear(b);
    for (size_t i = 0; i < n; i++) {
        if (next_random(seed) % 8) {
            qn_buf_puts(b, parts[next_random(seed) % (sizeof parts / sizeof *parts)]);
        } else {
            unsigned cp = next_random(seed) % (next_random(seed) % 2 ? 0x3000 : 0x33000);
            qn_buf_put_utf8(b, cp);
        }
    }
}

static void compare(const tok_known_pattern *p, const tok_regex *re, tok_scratch *sc,
                    const qn_buf *b)
{
    for (size_t at = 0; at < b->len;) {
        size_t start, end, got = p->scan(b->data + at, b->len - at);
        qn_err err = {0};
        int found = tok_regex_next(re, sc, b->data + at, b->len - at, 0, &start, &end, &err);
        if (p->gaps && (!found || start)) { /* the scanner's piece is the text before the match */
            end = found ? start : b->len - at;
            start = 0;
            found = 1;
        }
        assert_int_equal(found, 1);
        if (start == 0 && end == got) {
            at += end;
            continue;
        }
        fprintf(stderr, "pattern %s\nbytes:", p->pattern);
        for (size_t i = at; i < b->len; i++) fprintf(stderr, " %02X", (unsigned char)b->data[i]);
        fail_msg("the scanner says %zu, PCRE2 %zu..%zu", got, start, end);
    }
}

static void scanners_equal_pcre2(void **state)
{
    (void)state;
    const char *rounds = getenv("QUERN_TEST_ROUNDS");
    long n = rounds ? atol(rounds) : 60000;
    tok_scratch *sc = calloc(1, sizeof *sc);
    assert_non_null(sc);
    sc->match = pcre2_match_data_create(1, NULL);
    qn_buf b = {0};
    for (const tok_known_pattern *p = tok_known_patterns; p->pattern; p++) {
        qn_err err = {0};
        tok_regex re = {0};
        uint64_t seed = 1;
        if (tok_regex_compile(&re, (tok_str){p->pattern, strlen(p->pattern)}, &err)) {
            fail_msg("%s", err.text);
        }
        for (long i = 0; i < n; i++) {
            random_text(&seed, &b);
            compare(p, &re, sc, &b);
        }
        tok_regex_release(&re);
    }
    qn_buf_release(&b);
    tok_scratch_free(sc);
}

/* Every character alone, before and after a letter. */
static void every_character(void **state)
{
    (void)state;
    tok_scratch *sc = calloc(1, sizeof *sc);
    assert_non_null(sc);
    sc->match = pcre2_match_data_create(1, NULL);
    qn_buf b = {0};
    for (const tok_known_pattern *p = tok_known_patterns; p->pattern; p++) {
        qn_err err = {0};
        tok_regex re = {0};
        assert_int_equal(tok_regex_compile(&re, (tok_str){p->pattern, strlen(p->pattern)}, &err),
                         QN_OK);
        for (unsigned cp = 1; cp < 0x110000; cp += cp < 0x33000 ? 1 : 997) {
            qn_buf_clear(&b);
            qn_buf_puts(&b, "A");
            qn_buf_put_utf8(&b, cp);
            qn_buf_puts(&b, "a ");
            qn_buf_put_utf8(&b, cp);
            compare(p, &re, sc, &b);
        }
        tok_regex_release(&re);
    }
    qn_buf_release(&b);
    tok_scratch_free(sc);
}

/* Patterns where Oniguruma and PCRE2 differ, and what the oracle matches at the front of a text. */
static void translation(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text;
        size_t end;
    } cases[] = {
        {"\\h+", "12aFg", 4},
        {"\\H", "g", 1},
        {"\\s+", "\xE2\x80\xA8 x", 4},
        {"\\S", "\xE1\xA0\x8E", 3},
        {"\\d{1,3}+", "12345678", 8},
        {"[a-z&&[^b]]+", "aacb", 3},
        {"[a-z&&[^b]&&[^c]]+", "aacb", 2},
        {"[a[bc]]+", "abcd", 3},
        {"\\w+", "a\xC2\xB2_b-", 5},
        {"\\p{Han}+", "\xE6\xBC\xA2\xF0\xB1\x8D\x90z", 7},
        {"\\p{^L}+", "12a", 2},
        {"\\P{L}+", "12a", 2},
        {"(?m:a.b)", "a\nb", 3},
        {"\\u0041", "A", 1},
        {"[\\x{41}-\\x{43}]+", "ABCD", 3},
        {"[^\\r\\n]+", "ab\n", 2},
        {"[]a]+", "]a]b", 3},
        {"(?:ab){2}+", "ababababa", 8},
        {"x++y", "xxy", 3},
    };
    tok_scratch *sc = calloc(1, sizeof *sc);
    assert_non_null(sc);
    sc->match = pcre2_match_data_create(1, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err = {0};
        tok_regex re = {0};
        size_t start = 9, end = 0;
        if (tok_regex_compile(&re, (tok_str){cases[i].pattern, strlen(cases[i].pattern)}, &err)) {
            fail_msg("%s", err.text);
        }
        int found =
            tok_regex_next(&re, sc, cases[i].text, strlen(cases[i].text), 0, &start, &end, &err);
        if (found != 1 || start || end != cases[i].end) {
            fail_msg("%s: found %d, %zu..%zu", cases[i].pattern, found, start, end);
        }
        tok_regex_release(&re);
    }
    tok_scratch_free(sc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scanners_equal_pcre2),
        cmocka_unit_test(every_character),
        cmocka_unit_test(translation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
