/* text_tokcache_test.c - the mapped cache: the same tokenizer comes back, and a damaged file is
 * never used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/tok_impl.h"

static const uint64_t key[2] = {1, 2};

static qn_tokenizer *open_data(const char *name)
{
    char path[512];
    qn_err err = {0};
    qn_tokenizer *t;
    snprintf(path, sizeof path, QN_TEST_DIR "/unit/data/tok_%s.json", name);
    if (qn_tokenizer_open(&t, path, &err)) fail_msg("%s", err.text);
    return t;
}

static void round_trip(void **state)
{
    (void)state;
    static const char *const names[] = {"llama3", "gemma", "metaspace", "wordpiece"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_tokenizer *t = open_data(names[i]), back = {0};
        const tok_vocab *v = &t->model.vocab, *w = &back.model.vocab;
        qn_buf b = {0};
        tok_str rest;
        tok_cache_write(t, "{\"a\":1}", 7, key, &b);
        assert_false(b.failed);
        assert_true(tok_cache_read(&back, b.data, b.len, key, &rest));
        assert_int_equal(rest.n, 7);
        assert_memory_equal(rest.s, "{\"a\":1}", 7);
        assert_int_equal(w->n_ids, v->n_ids);
        assert_int_equal(w->n_entries, v->n_entries);
        assert_int_equal(back.model.max_token, t->model.max_token);
        assert_int_equal(back.model.merges != NULL, t->model.merges != NULL);
        for (uint32_t id = 0; id < v->n_ids; id++) {
            tok_str s = tok_vocab_token(v, id);
            assert_int_equal(tok_vocab_find(w, s.s, s.n), id);
            if (v->scores) assert_memory_equal(&v->scores[id], &w->scores[id], sizeof *v->scores);
        }
        uint64_t other[2] = {1, 3};
        assert_false(tok_cache_read(&back, b.data, b.len, other, &rest));
        qn_buf_release(&b);
        qn_tokenizer_close(t);
    }
}

static void damaged(void **state)
{
    (void)state;
    qn_tokenizer *t = open_data("wordpiece"), back = {0};
    qn_buf b = {0};
    tok_str rest;
    tok_cache_write(t, "{}", 2, key, &b);
    for (size_t n = 0; n < b.len; n += n < 200 ? 1 : 97) {
        assert_false(tok_cache_read(&back, b.data, n, key, &rest));
    }
    for (size_t i = 0; i < b.len; i += i < 200 ? 1 : 31) {
        b.data[i] ^= 0x10;
        assert_false(tok_cache_read(&back, b.data, b.len, key, &rest));
        b.data[i] ^= 0x10;
    }
    /* A body that is wrong but has the right hash must fail the structural checks. */
    uint32_t bad = 0xFFFFFFF0u;
    memcpy(b.data + 96 + 8, &bad, sizeof bad);
    uint64_t hash = tok_cache_hash(b.data, b.len);
    memcpy(b.data + 24, &hash, sizeof hash);
    assert_false(tok_cache_read(&back, b.data, b.len, key, &rest));
    qn_buf_release(&b);
    qn_tokenizer_close(t);
}

/* Pad a tokenizer over the size from which a cache is made; open it twice, with damage in between.
 */
static void through_files(void **state)
{
    (void)state;
    char home[] = "/tmp/quern_tokcache_XXXXXX", json_path[64], cache[160];
    assert_non_null(mkdtemp(home));
    setenv("QUERN_HOME", home, 1);
    char *text;
    size_t n;
    qn_err err = {0};
    assert_int_equal(
        qn_file_read(QN_TEST_DIR "/unit/data/tok_llama3.json", 1 << 20, &text, &n, &err), QN_OK);
    qn_buf big = {0};
    qn_buf_put(&big, text, n);
    while (big.len < TOK_CACHE_FROM) qn_buf_puts(&big, "                                \n");
    snprintf(json_path, sizeof json_path, "%s/tokenizer.json", home);
    assert_int_equal(qn_file_write(json_path, big.data, big.len, &err), QN_OK);
    uint64_t k[2];
    tok_cache_key(big.data, big.len, k);
    snprintf(cache, sizeof cache, "%s/tokenizers/%016llx%016llx.tok", home,
             (unsigned long long)k[0], (unsigned long long)k[1]);
    for (int round = 0; round < 4; round++) {
        qn_tokenizer *t;
        qn_ids ids = {0};
        if (qn_tokenizer_open(&t, home, &err)) fail_msg("%s", err.text);
        assert_int_equal(t->map.data != NULL,
                         round == 1 || round == 3); /* found after it was written */
        assert_true(qn_is_file(cache));
        assert_int_equal(qn_tokenizer_encode(t, "the quick fox", 13, 0, &ids, &err), QN_OK);
        qn_buf out = {0};
        assert_int_equal(qn_tokenizer_decode(t, ids.data, ids.len, false, &out, &err), QN_OK);
        assert_string_equal(out.data, "the quick fox");
        qn_buf_release(&out);
        qn_ids_release(&ids);
        qn_tokenizer_close(t);
        if (round == 1) assert_int_equal(qn_file_write(cache, "broken", 6, &err), QN_OK);
    }
    qn_buf_release(&big);
    free(text);
    assert_int_equal(qn_remove_tree(home, &err), QN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(damaged),
        cmocka_unit_test(through_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
