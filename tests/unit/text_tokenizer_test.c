/* text_tokenizer_test.c - ids and text against goldens of Hugging Face's `tokenizers`
 * (tests/golden/make_tokenizer.py), the streaming detokenizer, and what a broken file says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/utf8.h"
#include "text/detok.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

static qn_tokenizer *open_data(const char *name)
{
    char path[512];
    qn_err err = {0};
    qn_tokenizer *t;
    snprintf(path, sizeof path, QN_TEST_DIR "/unit/data/tok_%s.json", name);
    if (qn_tokenizer_open(&t, path, &err)) fail_msg("%s", err.text);
    return t;
}

static json_t *load_golden(const char *name)
{
    char path[512];
    json_error_t e;
    snprintf(path, sizeof path, QN_TEST_DIR "/unit/data/tok_%s_golden.json", name);
    json_t *g = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!g) fail_msg("%s: %s", path, e.text);
    return g;
}

static qn_ids encode(const qn_tokenizer *t, const char *s, size_t n, unsigned flags)
{
    qn_err err = {0};
    qn_ids ids = {0};
    if (qn_tokenizer_encode(t, s, n, flags, &ids, &err)) fail_msg("%s", err.text);
    return ids;
}

static void check_ids(const char *name, const json_t *row, const char *key, const qn_ids *got)
{
    const json_t *want = json_object_get(row, key);
    const char *text = json_string_value(json_object_get(row, "text"));
    if (json_array_size(want) != got->len) {
        fail_msg("%s: %s of \"%s\": %zu ids, not %zu", name, key, text, got->len,
                 json_array_size(want));
    }
    for (size_t i = 0; i < got->len; i++) {
        if (json_integer_value(json_array_get(want, i)) == got->data[i]) continue;
        fail_msg("%s: %s of \"%s\": id %zu is %u", name, key, text, i, got->data[i]);
    }
}

static void check_text(const char *name, const json_t *row, const char *key, const qn_buf *got)
{
    const json_t *want = json_object_get(row, key);
    size_t n = json_string_length(want);
    if (n == got->len && (!n || !memcmp(json_string_value(want), got->data, n))) return;
    fail_msg("%s: %s: \"%s\", not \"%s\"", name, key, got->data ? got->data : "",
             json_string_value(want));
}

/* Every piece whole characters; joined, the decoded text. */
static void check_stream(const qn_tokenizer *t, const char *name, const json_t *row,
                         const qn_ids *ids)
{
    qn_err err = {0};
    qn_detok *d;
    qn_buf all = {0};
    assert_int_equal(qn_detok_new(&d, t, 0, &err), QN_OK);
    for (size_t i = 0; i <= ids->len; i++) {
        size_t before = all.len;
        qn_code rc = i < ids->len ? qn_detok_push(d, ids->data[i], &all, &err)
                                  : qn_detok_finish(d, &all, &err);
        assert_int_equal(rc, QN_OK);
        if (all.len > before) assert_true(qn_utf8_valid(all.data + before, all.len - before));
    }
    check_text(name, row, "decoded", &all);
    qn_buf_release(&all);
    qn_detok_free(d);
}

static void check_row(const qn_tokenizer *t, const char *name, const json_t *row)
{
    const json_t *text = json_object_get(row, "text");
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    qn_ids ids = encode(t, s, n, 0), plain = encode(t, s, n, QN_ENCODE_PLAIN);
    qn_ids special = encode(t, s, n, QN_ENCODE_ADD_SPECIAL);
    check_ids(name, row, "ids", &ids);
    check_ids(name, row, "plain_ids", &plain);
    check_ids(name, row, "special_ids", &special);
    qn_buf all = {0}, skipped = {0};
    qn_err err = {0};
    assert_int_equal(qn_tokenizer_decode(t, special.data, special.len, false, &all, &err), QN_OK);
    assert_int_equal(qn_tokenizer_decode(t, special.data, special.len, true, &skipped, &err),
                     QN_OK);
    check_text(name, row, "decoded", &all);
    check_text(name, row, "skipped", &skipped);
    check_stream(t, name, row, &special);
    qn_buf_release(&all);
    qn_buf_release(&skipped);
    qn_ids_release(&ids);
    qn_ids_release(&plain);
    qn_ids_release(&special);
}

static void goldens(void **state)
{
    (void)state;
    static const char *const names[] = {"smollm", "llama3",   "qwen2",     "gpt2_prefix",
                                        "llama2", "gemma",    "metaspace", "wordpiece",
                                        "clip",   "charsmap", "scripts"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_tokenizer *t = open_data(names[i]);
        json_t *g = load_golden(names[i]);
        const json_t *rows = json_object_get(g, "rows");
        assert_true(json_array_size(rows) > 20);
        for (size_t j = 0; j < json_array_size(rows); j++) {
            check_row(t, names[i], json_array_get(rows, j));
        }
        json_decref(g);
        qn_tokenizer_close(t);
    }
}

static void vocabulary(void **state)
{
    (void)state;
    qn_tokenizer *t = open_data("smollm");
    uint32_t n = qn_tokenizer_n_vocab(t), end = qn_tokenizer_find(t, "<|im_end|>", 10);
    assert_int_equal(n, end + 4); /* the added tokens come last */
    assert_true(qn_tokenizer_is_special(t, end));
    assert_false(qn_tokenizer_is_special(t, end + 1));
    assert_false(qn_tokenizer_is_special(t, n));
    for (uint32_t id = 0; id < n; id++) {
        size_t len;
        const char *s = qn_tokenizer_token(t, id, &len);
        assert_non_null(s);
        assert_int_equal(qn_tokenizer_find(t, s, len), id);
    }
    assert_null(qn_tokenizer_token(t, n, NULL));
    assert_int_equal(qn_tokenizer_find(t, "no such token", 13), QN_NO_TOKEN);
    assert_null(qn_tokenizer_config(t));
    assert_int_equal(qn_tokenizer_bos(t), QN_NO_TOKEN);
    assert_null(qn_tokenizer_special(t, "bos_token"));
    qn_tokenizer_close(t);
}

static void token_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *file, *token, *bytes;
    } cases[] = {
        {"smollm", "\xC4\xA0the", " the"}, {"smollm", "<|im_end|>", "<|im_end|>"},
        {"llama2", "<0xE6>", "\xE6"},      {"llama2", "\xE2\x96\x81th", " th"},
        {"wordpiece", "##e", "##e"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_tokenizer *t = open_data(cases[i].file);
        qn_buf b = {0};
        uint32_t id = qn_tokenizer_find(t, cases[i].token, strlen(cases[i].token));
        assert_int_not_equal(id, QN_NO_TOKEN);
        qn_tokenizer_token_bytes(t, id, &b);
        assert_string_equal(b.data, cases[i].bytes);
        qn_buf_release(&b);
        qn_tokenizer_close(t);
    }
}

static const char tiny[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]},"
    "\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}]}";

static void config(void **state)
{
    (void)state;
    static const char cfg[] =
        "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"ab\"},\"unk_token\":null,"
        "\"model_max_length\":1000000000000000019884624838656}";
    qn_err err = {0};
    qn_tokenizer *t;
    assert_int_equal(qn_tokenizer_parse(&t, tiny, strlen(tiny), cfg, strlen(cfg), &err), QN_OK);
    assert_int_equal(qn_tokenizer_bos(t), 3);
    assert_int_equal(qn_tokenizer_eos(t), 2);
    assert_string_equal(qn_tokenizer_special(t, "eos_token"), "ab");
    assert_null(qn_tokenizer_special(t, "unk_token"));
    assert_non_null(json_object_get(qn_tokenizer_config(t), "model_max_length"));
    qn_tokenizer_close(t);
}

static void folder_without_tokenizer(void **state)
{
    (void)state;
    qn_err err = {0};
    qn_tokenizer *t;
    assert_int_equal(qn_tokenizer_open(&t, QN_TEST_DIR "/unit", &err), QN_NOT_FOUND);
    assert_null(t);
    assert_non_null(strstr(err.text, "tokenizer.json"));
}

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}"

/* Each broken file names what is wrong in one line. */
static void broken_files(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says;
        qn_code code;
    } cases[] = {
        {"", "not valid JSON", QN_FORMAT},
        {"{\"model\": {", "line 1", QN_FORMAT},
        {"[]", "not a JSON object", QN_FORMAT},
        {"{}", "model is missing", QN_FORMAT},
        {"{\"model\":{\"type\":\"Foo\"}}", "\"Foo\"", QN_UNSUPPORTED},
        {"{\"model\":{\"type\":\"BPE\"}}", "model.vocab", QN_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"}}}", "model.vocab", QN_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}}", "id -1", QN_LIMIT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999}}}", "99999999", QN_LIMIT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", "model.merges", QN_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}}",
         "model.merges[0]", QN_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"z\"]]}}", "\"z\"",
         QN_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\"]]}}", "\"aa\"",
         QN_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"fuse_unk\":3}}",
         "model.fuse_unk", QN_FORMAT},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", "model.vocab[0]", QN_FORMAT},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":7}}", "model.unk_id",
         QN_FORMAT},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Bar\"}}", "normalizer \"Bar\"", QN_UNSUPPORTED},
        {"{" MODEL ",\"normalizer\":{}}", "normalizer.type", QN_FORMAT},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Baz\"}}", "pre_tokenizer \"Baz\"",
         QN_UNSUPPORTED},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},"
                   "\"behavior\":\"Isolated\"}}",
         "does not compile", QN_FORMAT},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},"
                   "\"behavior\":\"Odd\"}}",
         "pre_tokenizer.behavior", QN_FORMAT},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":3}}",
         "pre_tokenizer.pretokenizers", QN_FORMAT},
        {"{" MODEL ",\"post_processor\":{\"type\":\"Qux\"}}", "post_processor \"Qux\"",
         QN_UNSUPPORTED},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
                   "\"SpecialToken\":{\"id\":\"x\"}}]}}",
         "\"x\"", QN_FORMAT},
        {"{" MODEL ",\"decoder\":{\"type\":\"Quux\"}}", "decoder \"Quux\"", QN_UNSUPPORTED},
        {"{" MODEL ",\"added_tokens\":{}}", "added_tokens", QN_FORMAT},
        {"{" MODEL ",\"added_tokens\":[{\"id\":1}]}", "added_tokens[0].content", QN_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err = {0};
        qn_tokenizer *t;
        qn_code rc = qn_tokenizer_parse(&t, cases[i].json, strlen(cases[i].json), NULL, 0, &err);
        if (rc != cases[i].code || !strstr(err.text, cases[i].says) || strchr(err.text, '\n')) {
            fail_msg("%s: code %d, \"%s\" lacks \"%s\"", cases[i].json, rc, err.text,
                     cases[i].says);
        }
        assert_null(t);
    }
}

/* Invalid UTF-8 counts as U+FFFD, one for each maximal part. */
static void invalid_input(void **state)
{
    (void)state;
    static const struct {
        const char *bad, *good;
    } cases[] = {
        {"a\xFF"
         "b",
         "a\xEF\xBF\xBD"
         "b"},
        {"\xE6\x97", "\xEF\xBF\xBD"},
        {"\xF0\x9F\x98z", "\xEF\xBF\xBDz"},
        {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
    };
    qn_tokenizer *t = open_data("qwen2");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_ids a = encode(t, cases[i].bad, strlen(cases[i].bad), 0);
        qn_ids b = encode(t, cases[i].good, strlen(cases[i].good), 0);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len * sizeof *a.data);
        qn_ids_release(&a);
        qn_ids_release(&b);
    }
    qn_tokenizer_close(t);
}

static void push_token(qn_detok *d, const qn_tokenizer *t, const char *token, qn_buf *out)
{
    qn_err err = {0};
    uint32_t id = qn_tokenizer_find(t, token, strlen(token));
    assert_int_not_equal(id, QN_NO_TOKEN);
    assert_int_equal(qn_detok_push(d, id, out, &err), QN_OK);
}

static void stream_holds_back(void **state)
{
    (void)state;
    qn_tokenizer *t = open_data("smollm");
    qn_err err = {0};
    qn_detok *d;
    qn_buf out = {0};
    assert_int_equal(qn_detok_new(&d, t, QN_DETOK_TRIM, &err), QN_OK);
    push_token(d, t, "\xC4\xA0the", &out); /* the first space is trimmed */
    assert_string_equal(out.data, "the");
    push_token(d, t, "\xC4\xA0", &out); /* a lone space waits */
    assert_string_equal(out.data, "the");
    push_token(d, t, "\xC3\xB0", &out); /* byte F0 waits, and the space with it no longer */
    assert_string_equal(out.data, "the ");
    push_token(d, t, "a", &out);
    assert_string_equal(out.data, "the \xEF\xBF\xBD" "a");
    push_token(d, t, "\xC3\xB0", &out);
    assert_int_equal(qn_detok_finish(d, &out, &err), QN_OK);
    assert_string_equal(out.data, "the \xEF\xBF\xBD" "a\xEF\xBF\xBD");
    qn_buf_clear(&out);
    push_token(d, t, "\xC3\xB0", &out);
    qn_detok_reset(d); /* forgets the open sequence */
    push_token(d, t, "a", &out);
    assert_string_equal(out.data, "a");
    qn_buf_release(&out);
    qn_detok_free(d);
    qn_tokenizer_close(t);
}

/* Random ids, every decoder: the stream joined equals decoding at once. */
static void stream_equals_batch(void **state)
{
    (void)state;
    static const char *const names[] = {"smollm",    "llama2",    "gemma",
                                        "metaspace", "wordpiece", "clip",
                                        "charsmap",  "scripts"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_tokenizer *t = open_data(names[i]);
        uint32_t n = qn_tokenizer_n_vocab(t), seed = 1;
        for (int round = 0; round < 300; round++) {
            qn_err err = {0};
            qn_detok *d;
            qn_buf a = {0}, b = {0};
            uint32_t ids[20];
            for (size_t j = 0; j < 20; j++) {
                seed = seed * 1664525u + 1013904223u;
                ids[j] = (seed >> 8) % (n + 2);
            }
            assert_int_equal(qn_tokenizer_decode(t, ids, 20, false, &a, &err), QN_OK);
            assert_int_equal(qn_detok_new(&d, t, 0, &err), QN_OK);
            for (size_t j = 0; j < 20; j++) {
                assert_int_equal(qn_detok_push(d, ids[j], &b, &err), QN_OK);
            }
            assert_int_equal(qn_detok_finish(d, &b, &err), QN_OK);
            assert_int_equal(a.len, b.len);
            assert_memory_equal(a.data, b.data, a.len);
            qn_detok_free(d);
            qn_buf_release(&a);
            qn_buf_release(&b);
        }
        qn_tokenizer_close(t);
    }
}

/* Long runs go through the heap; ids are those of the same text in the quadratic reading. */
static void long_runs(void **state)
{
    (void)state;
    static const char *const names[] = {"llama3", "gemma", "metaspace"};
    static const char units[] = "a1 \n=";
    enum { N = 200000 };
    char *s = malloc(N);
    assert_non_null(s);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_tokenizer *t = open_data(names[i]);
        for (size_t u = 0; u < sizeof units - 1; u++) {
            memset(s, units[u], N);
            qn_ids ids = encode(t, s, N, 0);
            qn_buf text = {0};
            qn_err err = {0};
            assert_int_equal(qn_tokenizer_decode(t, ids.data, ids.len, false, &text, &err), QN_OK);
            if (i < 2 && units[u] != ' ' && (i == 0 || units[u] == 'a')) {
                assert_int_equal(text.len, N);
            }
            qn_buf_release(&text);
            qn_ids_release(&ids);
        }
        qn_tokenizer_close(t);
    }
    free(s);
}

/* A megabyte of marks in the wrong order is sorted in linear time, and rightly. */
static void many_marks(void **state)
{
    (void)state;
    enum { PAIRS = 200000 };
    qn_tokenizer *t = open_data("qwen2");
    qn_buf text = {0}, out = {0};
    qn_err err = {0};
    qn_buf_putc(&text, 'x');
    for (int i = 0; i < PAIRS; i++) qn_buf_puts(&text, "\xCC\x81\xCC\xA3"); /* 230, 220 */
    qn_ids ids = encode(t, text.data, text.len, 0);
    assert_int_equal(qn_tokenizer_decode(t, ids.data, ids.len, false, &out, &err), QN_OK);
    assert_int_equal(out.len, text.len);
    for (size_t i = 0; i < PAIRS; i++) {
        assert_memory_equal(out.data + 1 + 2 * i, "\xCC\xA3", 2);
        assert_memory_equal(out.data + 1 + 2 * (PAIRS + i), "\xCC\x81", 2);
    }
    qn_ids_release(&ids);
    qn_buf_release(&text);
    qn_buf_release(&out);
    qn_tokenizer_close(t);
}

static void categories(void **state)
{
    (void)state;
    static const struct {
        unsigned cp;
        qn_ucat cat;
    } cases[] = {
        {'A', QN_LU},    {'a', QN_LL},    {0x1C5, QN_LT},   {0x2B0, QN_LM},   {0x4E00, QN_LO},
        {0x301, QN_MN},  {0x93F, QN_MC},  {'5', QN_ND},     {0x2167, QN_NL},  {0xBD, QN_NO},
        {'_', QN_PC},    {'+', QN_SM},    {0x1F600, QN_SO}, {' ', QN_ZS},     {'\n', QN_CC},
        {0x200D, QN_CF}, {0xE000, QN_CO}, {0xD800, QN_CS},  {0x31350, QN_LO}, {0x110000, QN_CN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(qn_ucat_of(cases[i].cp), cases[i].cat);
    }
    unsigned spaces = 0;
    for (unsigned c = 0; c < 0x110000; c++) spaces += qn_uchar_is_space(c);
    assert_int_equal(spaces, 25);
    assert_false(qn_uchar_is_space(0x180E));
    assert_int_equal(qn_ucat_parse("L", 1), QN_U_LETTER);
    assert_int_equal(qn_ucat_parse("Nd", 2), QN_UBIT(QN_ND));
    assert_int_equal(qn_ucat_parse("Han", 3), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens),
        cmocka_unit_test(vocabulary),
        cmocka_unit_test(token_bytes),
        cmocka_unit_test(config),
        cmocka_unit_test(folder_without_tokenizer),
        cmocka_unit_test(broken_files),
        cmocka_unit_test(invalid_input),
        cmocka_unit_test(stream_holds_back),
        cmocka_unit_test(stream_equals_batch),
        cmocka_unit_test(long_runs),
        cmocka_unit_test(many_marks),
        cmocka_unit_test(categories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
