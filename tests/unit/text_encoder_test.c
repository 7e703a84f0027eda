/* text_encoder_test.c - prompts that come back longer are encoded from where they changed; the ids
 * are always those of a full encode. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "core/buf.h"
#include "text/encoder.h"

enum { TALKS = 6, TURNS = 60 };

static qn_tokenizer *open_data(const char *name)
{
    char path[512];
    qn_err err = {0};
    qn_tokenizer *t;
    snprintf(path, sizeof path, QN_TEST_DIR "/unit/data/tok_%s.json", name);
    if (qn_tokenizer_open(&t, path, &err)) fail_msg("%s", err.text);
    return t;
}

static qn_encoder *new_encoder(const qn_tokenizer *t, size_t prompts, size_t bytes)
{
    qn_err err = {0};
    qn_encoder *e;
    if (qn_encoder_new(&e, t, prompts, bytes, &err)) fail_msg("%s", err.text);
    return e;
}

static uint32_t next(uint32_t *seed, uint32_t n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

static void put_turn(qn_buf *b, uint32_t *seed, uint32_t most)
{
    static const char *const words[] = {"the", " quick", " brown fox", "\n", "  ", "'s", "123", "\xFF",
                                        "\xE6\xBC\xA2", "<|im_end|>", "<sp>", "\xCC\x81", "A b C d"};
    qn_buf_puts(b, "<|im_start|>user\n");
    for (uint32_t n = next(seed, most); n; n--) {
        qn_buf_puts(b, words[next(seed, sizeof words / sizeof *words)]);
    }
    qn_buf_puts(b, "<|im_end|>\n");
}

/* Returns false when the encoder's ids are not those of a full encode; for threads too. */
static bool same_as_full(qn_encoder *e, const qn_tokenizer *t, const qn_buf *text, unsigned flags)
{
    qn_err err = {0};
    qn_ids full = {0}, ids = {0};
    uint32_t before = 77;
    qn_ids_put(&ids, &before, 1); /* ids are appended */
    bool same = !qn_tokenizer_encode(t, text->data, text->len, flags, &full, &err) &&
                !qn_encoder_encode(e, text->data, text->len, flags, &ids, &err) &&
                ids.data[0] == before && ids.len == full.len + 1 &&
                !memcmp(ids.data + 1, full.data, full.len * sizeof *full.data);
    qn_ids_release(&full);
    qn_ids_release(&ids);
    return same;
}

/* Several conversations at once, some of which start over. */
static bool talk(qn_encoder *e, const qn_tokenizer *t, uint32_t seed)
{
    qn_buf texts[TALKS] = {0};
    bool good = true;
    for (int turn = 0; turn < TURNS && good; turn++) {
        qn_buf *text = &texts[next(&seed, TALKS)];
        if (!next(&seed, 12)) text->len = next(&seed, (uint32_t)text->len + 1);
        put_turn(text, &seed, next(&seed, 3) ? 100 : 1500);
        good = same_as_full(e, t, text, next(&seed, 5) ? 0 : QN_ENCODE_ADD_SPECIAL);
    }
    for (size_t i = 0; i < TALKS; i++) qn_buf_release(&texts[i]);
    return good;
}

static void equals_a_full_encode(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2", "llama2", "gemma", "wordpiece", "charsmap"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_tokenizer *t = open_data(names[i]);
        for (uint32_t seed = 1; seed <= 3; seed++) {
            qn_encoder *e = new_encoder(t, seed == 1 ? 2 : 0, seed == 2 ? 60000 : 0);
            if (!talk(e, t, seed)) fail_msg("%s, seed %u: other ids", names[i], seed);
            qn_encoder_stats s = qn_encoder_get_stats(e);
            assert_int_equal(s.texts, TURNS);
            assert_true(s.encoded_bytes < s.bytes);
            assert_true(s.n_kept <= (seed == 1 ? 2 : QN_ENCODER_PROMPTS));
            if (seed == 2) assert_true(s.kept_bytes <= 60000);
            qn_encoder_free(e);
        }
        qn_tokenizer_close(t);
    }
}

/* The second turn of a conversation costs its own bytes, while others go on in between. */
static void second_turn_encodes_the_tail(void **state)
{
    (void)state;
    qn_tokenizer *t = open_data("qwen2");
    qn_encoder *e = new_encoder(t, 0, 0);
    qn_buf one = {0}, other = {0};
    uint32_t seed = 5;
    qn_buf_puts(&other, "Another one. ");
    while (one.len < 100000) put_turn(&one, &seed, 300);
    while (other.len < 50000) put_turn(&other, &seed, 300);
    assert_true(same_as_full(e, t, &one, 0));
    assert_true(same_as_full(e, t, &other, 0));
    qn_encoder_stats before = qn_encoder_get_stats(e);
    assert_int_equal(before.encoded_bytes, before.bytes);
    size_t old = one.len;
    put_turn(&one, &seed, 50);
    assert_true(same_as_full(e, t, &one, 0));
    qn_encoder_stats after = qn_encoder_get_stats(e);
    uint64_t encoded = after.encoded_bytes - before.encoded_bytes;
    assert_true(after.bytes - before.bytes >= one.len);
    if (encoded > one.len - old + 100) fail_msg("%lu bytes were encoded again", (unsigned long)encoded);
    assert_int_equal(after.n_kept, 2); /* the longer one took the place of the shorter */
    qn_buf_release(&one);
    qn_buf_release(&other);
    qn_encoder_free(e);
    qn_tokenizer_close(t);
}

/* A text that is too long for the bound is encoded, not kept; a short one is not worth it. */
static void keeps_within_bounds(void **state)
{
    (void)state;
    qn_tokenizer *t = open_data("qwen2");
    qn_encoder *e = new_encoder(t, 0, 20000);
    qn_buf text = {0};
    uint32_t seed = 9;
    qn_buf_puts(&text, "short");
    assert_true(same_as_full(e, t, &text, 0));
    assert_int_equal(qn_encoder_get_stats(e).n_kept, 0);
    while (text.len < 50000) put_turn(&text, &seed, 300);
    assert_true(same_as_full(e, t, &text, 0));
    assert_int_equal(qn_encoder_get_stats(e).n_kept, 0);
    assert_int_equal(qn_encoder_get_stats(e).kept_bytes, 0);
    qn_err err = {0};
    qn_encoder *none;
    assert_int_equal(qn_encoder_new(&none, t, QN_ENCODER_PROMPTS + 1, 0, &err), QN_INVALID);
    assert_null(none);
    qn_buf_release(&text);
    qn_encoder_free(e);
    qn_tokenizer_close(t);
}

typedef struct speaker {
    qn_encoder *e;
    const qn_tokenizer *t;
    uint32_t seed;
    bool good;
} speaker;

static void *speak(void *arg)
{
    speaker *s = arg;
    s->good = talk(s->e, s->t, s->seed);
    return NULL;
}

static void many_threads(void **state)
{
    (void)state;
    enum { N = 4 };
    qn_tokenizer *t = open_data("qwen2");
    qn_encoder *e = new_encoder(t, 3, 0);
    pthread_t threads[N];
    speaker speakers[N];
    for (uint32_t i = 0; i < N; i++) {
        speakers[i] = (speaker){.e = e, .t = t, .seed = 1 + i / 2}; /* two say the same */
        assert_int_equal(pthread_create(&threads[i], NULL, speak, &speakers[i]), 0);
    }
    for (uint32_t i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_true(speakers[i].good);
    }
    qn_encoder_free(e);
    qn_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_a_full_encode), cmocka_unit_test(second_turn_encodes_the_tail),
        cmocka_unit_test(keeps_within_bounds), cmocka_unit_test(many_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
