/* format_gguf_test.c - the GGUF container: typed keys, tables that lie, every truncation; and the
 * block layouts against the vectors and formulas of the contract. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/dtype.h"
#include "format/gguf.h"
#include "format/gguf_blocks.h"
#include "gguf_make.h"

static const uint64_t row32[] = {32};

/* ---- the container ---- */

static qn_buf small_file(uint32_t version, uint32_t align)
{
    static const char *const words[] = {"one", "", "three"};
    gguf_make m = {.version = version, .align = align};
    float x[32];
    for (int i = 0; i < 32; i++) x[i] = (float)i;
    if (align) make_u32(&m, "general.alignment", align);
    make_str(&m, "general.architecture", "llama");
    make_u32(&m, "a.count", 7);
    make_f32(&m, "a.real", 1.5f);
    make_strings(&m, "a.words", words, 3);
    make_key(&m, "a.flag", QN_GGUF_BOOL);
    qn_buf_putc(&m.keys, 1);
    make_key(&m, "a.negative", QN_GGUF_I8);
    qn_buf_putc(&m.keys, -3);
    make_key(&m, "a.numbers", QN_GGUF_ARRAY);
    put_u32(&m.keys, QN_GGUF_I16);
    put_u64(&m.keys, 2);
    qn_buf_put(&m.keys, "\x05\x00\xFF\xFF", 4);
    make_tensor(&m, "t.b", QN_GGUF_T_F32, row32, 1, x, sizeof x);
    make_tensor(&m, "t.a", QN_GGUF_T_F16, (uint64_t[]){2, 3}, 2, x, 12);
    return make_done(&m);
}

static void check_keys(const qn_gguf *g)
{
    uint64_t u;
    double d;
    bool flag;
    qn_gguf_str s, words[3];
    qn_gguf_array a;
    qn_err err = {0};
    assert_int_equal(qn_gguf_u64(g, "a.count", &u, &err), QN_OK);
    assert_int_equal(u, 7);
    assert_int_equal(qn_gguf_f64(g, "a.real", &d, &err), QN_OK);
    assert_true(d == 1.5);
    assert_int_equal(qn_gguf_bool_or(g, "a.flag", false, &flag, &err), QN_OK);
    assert_true(flag);
    assert_int_equal(qn_gguf_text(g, "general.architecture", &s, &err), QN_OK);
    assert_true(s.n == 5 && !memcmp(s.p, "llama", 5));
    assert_int_equal(qn_gguf_list(g, "a.words", &a, &err), QN_OK);
    assert_int_equal(a.n, 3);
    assert_int_equal(qn_gguf_strings(&a, "a.words", words, &err), QN_OK);
    assert_true(words[0].n == 3 && words[1].n == 0 && !memcmp(words[2].p, "three", 5));
    assert_int_equal(qn_gguf_list(g, "a.numbers", &a, &err), QN_OK);
    assert_true(qn_gguf_number(&a, 0) == 5.0 && qn_gguf_number(&a, 1) == -1.0);
    assert_int_equal(qn_gguf_u64_or(g, "none", 9, &u, &err), QN_OK);
    assert_int_equal(u, 9);
    assert_int_equal(qn_gguf_u64(g, "none", &u, &err), QN_NOT_FOUND);
    qn_err_clear(&err);
    assert_int_equal(qn_gguf_u64(g, "a.negative", &u, &err), QN_FORMAT);
    assert_non_null(strstr(err.text, "a.negative"));
    qn_err_clear(&err);
    assert_int_equal(qn_gguf_u64(g, "a.real", &u, &err), QN_FORMAT);
}

static void test_reads(void **state)
{
    (void)state;
    static const uint32_t variants[][2] = {{3, 0}, {2, 0}, {3, 64}, {3, 8}};
    for (size_t i = 0; i < 4; i++) {
        qn_buf b = small_file(variants[i][0], variants[i][1]);
        qn_gguf *g;
        qn_err err = {0};
        assert_int_equal(qn_gguf_parse(&g, b.data, b.len, "f", &err), QN_OK);
        check_keys(g);
        assert_int_equal(qn_gguf_count(g), 2);
        const qn_gguf_tensor *t = qn_gguf_find(g, "t.a");
        assert_ptr_equal(t, qn_gguf_at(g, 0));
        assert_true(t->rank == 2 && t->dims[0] == 2 && t->dims[1] == 3 && t->bytes == 12);
        t = qn_gguf_find(g, "t.b");
        float last;
        memcpy(&last, t->data + 31 * 4, 4);
        assert_true(last == 31.0f);
        qn_gguf_close(g);
        qn_buf_release(&b);
    }
}

static void test_every_truncation(void **state)
{
    (void)state;
    qn_buf b = small_file(3, 0);
    for (size_t n = 0; n < b.len; n++) {
        char *exact = malloc(n ? n : 1); /* so that the sanitizer sees one byte too many */
        memcpy(exact, b.data, n);
        qn_gguf *g;
        qn_err err = {0};
        qn_code rc = qn_gguf_parse(&g, exact, n, "f", &err);
        if (!rc) qn_gguf_close(g);
        else assert_non_null(strstr(err.text, "f"));
        assert_int_equal(rc, err.code);
        /* Only padding behind the last tensor may be missing; here there is none. */
        assert_int_not_equal(rc, QN_OK);
        free(exact);
    }
    qn_buf_release(&b);
}

/* A file that `spoil` made wrong must be refused with `word` in the message. */
static void refused(qn_buf b, const char *word)
{
    qn_gguf *g;
    qn_err err = {0};
    assert_int_not_equal(qn_gguf_parse(&g, b.data, b.len, "f", &err), QN_OK);
    assert_null(g);
    if (!strstr(err.text, word)) fail_msg("\"%s\" lacks \"%s\"", err.text, word);
    qn_buf_release(&b);
}

static qn_buf one_tensor(uint32_t type, const uint64_t *dims, uint32_t rank, size_t bytes)
{
    static const uint8_t zeros[256];
    gguf_make m = {0};
    make_tensor(&m, "t", type, dims, rank, zeros, bytes);
    return make_done(&m);
}

static void test_lies(void **state)
{
    (void)state;
    gguf_make m = {0};
    qn_buf b = small_file(4, 0);
    refused(b, "version 4");
    b = small_file(3, 0);
    b.data[0] = 'X';
    refused(b, "GGUF");
    refused(small_file(0x03000000, 0), "big-endian");
    refused(small_file(3, 48), "general.alignment");
    b = small_file(3, 0);
    memset(b.data + 8, 0xFF, 8);
    refused(b, "tensors");
    b = small_file(3, 0);
    memset(b.data + 16, 0xFF, 8);
    refused(b, "keys");
    refused(one_tensor(QN_GGUF_T_F32, (uint64_t[]){65}, 1, 256), "tensor t takes");
    refused(one_tensor(QN_GGUF_T_F32, (uint64_t[]){0}, 1, 256), "tensor t");
    refused(one_tensor(QN_GGUF_T_F32, (uint64_t[]){1ull << 40, 1ull << 40}, 2, 256), "tensor t");
    refused(one_tensor(QN_GGUF_T_Q4_0, (uint64_t[]){33}, 1, 256), "multiple of 32");
    make_key(&m, "bad", 13);
    refused(make_done(&m), "bad");
    m = (gguf_make){0};
    make_key(&m, "nested", QN_GGUF_ARRAY);
    put_u32(&m.keys, QN_GGUF_ARRAY);
    put_u64(&m.keys, 1);
    refused(make_done(&m), "nested");
    m = (gguf_make){0};
    make_u32(&m, "twice", 1);
    make_u32(&m, "twice", 2);
    refused(make_done(&m), "twice");
    m = (gguf_make){0};
    make_u32(&m, "split.count", 3);
    refused(make_done(&m), "3 parts");
    m = (gguf_make){0};
    make_tensor(&m, "t", QN_GGUF_T_F32, row32, 1, "", 0);
    make_tensor(&m, "t", QN_GGUF_T_F32, row32, 1, (uint8_t[256]){0}, 256);
    refused(make_done(&m), "tensor t appears twice");
}

/* ---- blocks ---- */

/* The check vector of the contract: byte j = j | (15-j) << 4. */
static void put_check_nibbles(uint8_t *q)
{
    for (int j = 0; j < 16; j++) q[j] = (uint8_t)(j | (15 - j) << 4);
}

static void put_half(uint8_t *p, float v)
{
    uint16_t h = qn_f32_f16(v);
    memcpy(p, &h, 2);
}

static void check_words(const uint8_t *words, const uint32_t *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t w;
        memcpy(&w, words + 4 * i, 4);
        assert_int_equal(w, want[i]);
    }
}

static void test_check_vector(void **state)
{
    (void)state;
    static const uint32_t want[] = {0x76543210, 0xfedcba98, 0x89abcdef, 0x01234567};
    uint8_t q4_1[20], q4_0[18], mxfp4[17], words[16], byte;
    float scale, bias;
    put_half(q4_1, 0.5f);
    put_half(q4_1 + 2, -1.0f);
    put_check_nibbles(q4_1 + 4);
    qn_gguf_row_pack(qn_gguf_layout_of(QN_GGUF_T_Q4_1), q4_1, 32, words, &scale, &bias, NULL);
    check_words(words, want, 4);
    assert_true(scale == 0.5f && bias == -1.0f);
    put_half(q4_0, 0.5f);
    put_check_nibbles(q4_0 + 2);
    qn_gguf_row_pack(qn_gguf_layout_of(QN_GGUF_T_Q4_0), q4_0, 32, words, &scale, &bias, NULL);
    check_words(words, want, 4);
    assert_true(scale == 0.5f && bias == -4.0f);
    mxfp4[0] = 125;
    put_check_nibbles(mxfp4 + 1);
    qn_gguf_row_pack(qn_gguf_layout_of(QN_GGUF_T_MXFP4), mxfp4, 32, words, NULL, NULL, &byte);
    check_words(words, want, 4);
    assert_int_equal(byte, 125);
}

/* Sizes of all block types as the contract's table has them. */
static void test_sizes(void **state)
{
    (void)state;
    static const uint32_t want[][3] = {
        {0, 1, 4}, {1, 1, 2}, {30, 1, 2}, {2, 32, 18}, {3, 32, 20}, {6, 32, 22}, {7, 32, 24},
        {8, 32, 34}, {10, 256, 84}, {11, 256, 110}, {12, 256, 144}, {13, 256, 176}, {14, 256, 210},
        {20, 32, 18}, {39, 32, 17}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const qn_gguf_layout *l = qn_gguf_layout_of(want[i][0]);
        assert_non_null(l);
        assert_int_equal(l->block_items, want[i][1]);
        assert_int_equal(l->block_bytes, want[i][2]);
        assert_true(l->readable);
    }
    assert_false(qn_gguf_layout_of(9)->readable);
    assert_string_equal(qn_gguf_layout_of(23)->name, "IQ4_XS");
    assert_null(qn_gguf_layout_of(1000));
}

/* Random blocks with finite scales: what the packed form means equals the values. The scales are
 * small whole halves, so that every product and sum is exact. */
static void test_pack_means_values(void **state)
{
    (void)state;
    static const struct { uint32_t type; int halves[2]; } kinds[] = {
        {QN_GGUF_T_Q4_0, {0, -1}}, {QN_GGUF_T_Q4_1, {0, 2}}, {QN_GGUF_T_Q5_0, {0, -1}},
        {QN_GGUF_T_Q5_1, {0, 2}}, {QN_GGUF_T_Q8_0, {0, -1}}, {QN_GGUF_T_Q4_K, {0, 2}},
        {QN_GGUF_T_Q5_K, {0, 2}}};
    enum { N = 512 };
    uint32_t seed = 1;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const qn_gguf_layout *l = qn_gguf_layout_of(kinds[k].type);
        uint8_t row[N * 2], words[N];
        float scales[N / 32], biases[N / 32], y[N];
        for (size_t i = 0; i < sizeof row; i++) {
            seed = seed * 1664525 + 1013904223;
            row[i] = (uint8_t)(seed >> 24);
        }
        for (size_t b = 0; b < N / l->block_items; b++)
            for (int h = 0; h < 2; h++)
                if (kinds[k].halves[h] >= 0)
                    put_half(row + b * l->block_bytes + kinds[k].halves[h],
                             0.25f * (float)(b % 5 + 1));
        qn_gguf_row_values(l, row, N, y);
        qn_gguf_row_pack(l, row, N, words, scales, biases, NULL);
        for (size_t i = 0; i < N; i++) {
            float v = scales[i / 32] * (float)qn_qcode(words, l->spec.bits, i) + biases[i / 32];
            if (v != y[i]) fail_msg("%s item %zu: %g, not %g", l->name, i, (double)v, (double)y[i]);
        }
    }
}

/* Single items of the types that have no packed form, worked out by hand from the layouts. */
static void test_k_values(void **state)
{
    (void)state;
    float y[256];
    uint8_t q6[210] = {0};
    put_half(q6 + 208, 0.5f);
    q6[192 + 5] = (uint8_t)-3; /* items 80..95: half 0, quarter 2, high nibbles of ql[l] */
    q6[16] = 0xA0;             /* item 80 is l = 16 of quarter 2 */
    q6[128 + 16] = 1 << 4;     /* its bits 4 and 5 */
    qn_gguf_row_values(qn_gguf_layout_of(QN_GGUF_T_Q6_K), q6, 256, y);
    assert_true(y[80] == 0.5f * -3.0f * (float)((10 | 1 << 4) - 32));
    assert_true(y[0] == 0.0f);

    uint8_t q3[110] = {0};
    put_half(q3 + 108, 2.0f);
    q3[96 + 1] = 0x70;      /* scale 9 has low bits 7 */
    q3[96 + 8 + 1] = 2 << 4; /* and high bits 2: 7 + 32 - 32 */
    q3[32 + 32 + 16] = 3;   /* item 144 = half 1, quarter 0, l 16 */
    q3[16] = 1 << 4;        /* its high bit: nothing is subtracted */
    qn_gguf_row_values(qn_gguf_layout_of(QN_GGUF_T_Q3_K), q3, 256, y);
    assert_true(y[144] == 2.0f * 7.0f * 3.0f);
    assert_true(y[145] == 2.0f * 7.0f * -4.0f);

    uint8_t q2[84] = {0};
    put_half(q2 + 80, 0.5f);
    put_half(q2 + 82, 0.25f);
    q2[7] = 0x3A;           /* items 112..127: scale 10, min 3 */
    q2[16 + 16] = 2 << 6;   /* item 112 = quarter 3, l 16 */
    qn_gguf_row_values(qn_gguf_layout_of(QN_GGUF_T_Q2_K), q2, 256, y);
    assert_true(y[112] == 0.5f * 10 * 2 - 0.25f * 3);
    assert_true(y[113] == -0.25f * 3);

    uint8_t iq4[18] = {0};
    put_half(iq4, 0.5f);
    iq4[2] = 0xF7;
    qn_gguf_row_values(qn_gguf_layout_of(QN_GGUF_T_IQ4_NL), iq4, 32, y);
    assert_true(y[0] == -5.0f && y[16] == 56.5f && y[1] == -63.5f);

    uint8_t mx[17] = {128, 0x72};
    qn_gguf_row_values(qn_gguf_layout_of(QN_GGUF_T_MXFP4), mx, 32, y);
    assert_true(y[0] == 2.0f && y[16] == 12.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_check_vector),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_pack_means_values),
        cmocka_unit_test(test_k_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
