/* text_prompt_test.c - a growing prompt has the ids of a full encode, whatever changed before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/prompt.h"

static const char *const names[] = {"smollm",    "llama3",   "qwen2",  "gpt2_prefix",
                                    "llama2",    "gemma",    "clip",   "metaspace",
                                    "wordpiece", "charsmap", "scripts"};
enum { N_NAMES = sizeof names / sizeof *names };

static qn_tokenizer *open_data(const char *name)
{
    char path[512];
    qn_err err = {0};
    qn_tokenizer *t;
    snprintf(path, sizeof path, QN_TEST_DIR "/unit/data/tok_%s.json", name);
    if (qn_tokenizer_open(&t, path, &err)) fail_msg("%s", err.text);
    return t;
}

static uint32_t next(uint32_t *seed, uint32_t n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

static void put_words(qn_buf *b, uint32_t *seed, uint32_t n)
{
    static const char *const words[] = {
        "the",
        " quick",
        " brown fox",
        " ",
        "\n",
        "  ",
        "'s",
        "\xE6\xBC\xA2\xE5\xAD\x97",
        "123",
        "<|im_",
        "<|im_start|>",
        "<|im_end|>",
        "<sp>",
        "<word>",
        "<norm>",
        "<NORM>",
        "\xCC\x81",
        "e",
        "\xF0\x9F\x91\xA9\xE2\x80\x8D",
        "\xFF",
        "\xE6",
        "\xE2\x96\x81",
        "}",
        "; ",
        "A b C d",
        "\t",
        "I'LL",
    };
    for (uint32_t i = 0; i < n; i++)
        qn_buf_puts(b, words[next(seed, sizeof words / sizeof *words)]);
}

/* The next turn: cut a random piece off the end, sometimes far, and go on. */
static void change(qn_buf *b, uint32_t *seed)
{
    uint32_t most = next(seed, 4) ? 20 : 3000;
    size_t cut = next(seed, most);
    b->len -= cut < b->len ? cut : b->len;
    put_words(b, seed, next(seed, 5) ? next(seed, 30) : next(seed, 1500));
}

static size_t check(const qn_tokenizer *t, qn_prompt *p, unsigned flags, const qn_buf *text,
                    const char *name)
{
    qn_err err = {0};
    qn_ids full = {0};
    const qn_ids *ids;
    const char *s = text->data ? text->data : "";
    qn_code want = qn_tokenizer_encode(t, s, text->len, flags, &full, &err);
    assert_int_equal(qn_prompt_encode(p, s, text->len, &ids, &(qn_err){0}), want);
    if (!want &&
        (ids->len != full.len || (full.len && memcmp(ids->data, full.data, full.len * 4)))) {
        fail_msg("%s, flags %u: %zu ids, not %zu, or different ones, for a text of %zu bytes", name,
                 flags, ids->len, full.len, text->len);
    }
    qn_ids_release(&full);
    return qn_prompt_kept(p);
}

static void grows_as_a_full_encode(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 4 * N_NAMES; seed++) {
        const char *name = names[seed % N_NAMES];
        qn_tokenizer *t = open_data(name);
        unsigned flags = seed / N_NAMES & 3;
        qn_err err = {0};
        qn_prompt *p;
        qn_buf text = {0};
        uint32_t random = seed;
        assert_int_equal(qn_prompt_new(&p, t, flags, &err), QN_OK);
        for (int turn = 0; turn < 25; turn++) {
            change(&text, &random);
            check(t, p, flags, &text, name);
        }
        qn_buf_release(&text);
        qn_prompt_free(p);
        qn_tokenizer_close(t);
    }
}

/* Only the end of a long text is encoded again: behind an added token, or before a word. */
static void keeps_the_front(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *turn;
        size_t most; /* bytes encoded again */
    } cases[] = {
        {"qwen2", "<|im_start|>user says hi<|im_end|>\n", 100},
        {"scripts", "<|im_start|>user says hi<|im_end|>\n", 100},
        {"qwen2", "words and words, ", 9000},
        {"smollm", "words and words, ", 9000},
        {"wordpiece", "words and words, ", 9000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_tokenizer *t = open_data(cases[i].name);
        qn_err err = {0};
        qn_prompt *p;
        qn_buf text = {0};
        assert_int_equal(qn_prompt_new(&p, t, QN_ENCODE_ADD_SPECIAL, &err), QN_OK);
        for (int turn = 0; turn < 2000; turn++) qn_buf_puts(&text, cases[i].turn);
        assert_int_equal(check(t, p, QN_ENCODE_ADD_SPECIAL, &text, cases[i].name), 0);
        size_t before = text.len;
        qn_buf_puts(&text, cases[i].turn);
        size_t kept = check(t, p, QN_ENCODE_ADD_SPECIAL, &text, cases[i].name);
        if (kept + cases[i].most < before) {
            fail_msg("%s: only %zu of %zu bytes were kept", cases[i].name, kept, before);
        }
        qn_buf_release(&text);
        qn_prompt_free(p);
        qn_tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_as_a_full_encode),
        cmocka_unit_test(keeps_the_front),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
