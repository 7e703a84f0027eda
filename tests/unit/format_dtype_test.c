/* format_dtype_test.c - number conversions: whole ranges against digests made by mlx
 * (tests/golden/quant.safetensors), and the edges by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "format/dtype.h"
#include "format/shard.h"

enum { N_CODES = 65536, N_FLOATS = 1 << 20 };

static qn_shard *open_golden(void)
{
    qn_err err = {0};
    qn_shard *s = NULL;
    qn_code rc = qn_shard_open(&s, QN_TEST_DIR "/golden/quant.safetensors", &err);
    if (rc) fail_msg("%s", err.text);
    return s;
}

static void check_digest(const char *key, const void *p, size_t n)
{
    qn_shard *golden = open_golden();
    char hex[65];
    qn_sha256_hex(p, n, hex);
    const char *want = qn_shard_meta(golden, key);
    assert_non_null(want);
    if (strcmp(hex, want)) fail_msg("%s: digest %s, mlx has %s", key, hex, want);
    qn_shard_close(golden);
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void widen_all_codes(qn_dtype t, const char *key)
{
    uint16_t *codes = malloc(N_CODES * sizeof *codes);
    float *wide = malloc(N_CODES * sizeof *wide);
    for (size_t i = 0; i < N_CODES; i++) codes[i] = (uint16_t)i;
    qn_widen(wide, codes, t, N_CODES);
    check_digest(key, wide, N_CODES * sizeof *wide);
    for (size_t i = 0; i < N_CODES; i++) {
        float one = t == QN_F16 ? qn_f16_f32(codes[i]) : qn_bf16_f32(codes[i]);
        assert_int_equal(bits_of(one), bits_of(wide[i]));
    }
    free(codes);
    free(wide);
}

static void test_widen(void **state)
{
    (void)state;
    widen_all_codes(QN_F16, "f16_to_f32");
    widen_all_codes(QN_BF16, "bf16_to_f32");
}

static void test_round_trip(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_CODES; i++) {
        uint16_t h = (uint16_t)i;
        if (!isnan(qn_f16_f32(h))) assert_int_equal(qn_f32_f16(qn_f16_f32(h)), h);
        else assert_int_equal(qn_f32_f16(qn_f16_f32(h)), (h & 0x8000) | 0x7D00);
        if (!isnan(qn_bf16_f32(h))) assert_int_equal(qn_f32_bf16(qn_bf16_f32(h)), h);
        else assert_int_equal(qn_f32_bf16(qn_bf16_f32(h)), 0x7FC0);
    }
}

static void test_narrow(void **state)
{
    (void)state;
    float *x = malloc(N_FLOATS * sizeof *x);
    uint16_t *h = malloc(N_FLOATS * sizeof *h);
    uint8_t *e = malloc(N_FLOATS);
    for (uint32_t i = 0; i < N_FLOATS; i++) x[i] = float_of(i * 4099u);
    qn_narrow(h, QN_F16, x, N_FLOATS);
    check_digest("f32_to_f16", h, N_FLOATS * sizeof *h);
    qn_narrow(h, QN_BF16, x, N_FLOATS);
    check_digest("f32_to_bf16", h, N_FLOATS * sizeof *h);
    for (uint32_t i = 0; i < N_FLOATS; i++) e[i] = qn_f32_e4m3(x[i]);
    check_digest("f32_to_e4m3", e, N_FLOATS);
    free(x);
    free(h);
    free(e);
}

/* Halfway cases, the ends of the range and subnormals, worked out by hand from IEEE 754. */
static void test_edges(void **state)
{
    (void)state;
    static const struct {
        uint32_t f;
        uint16_t f16, bf16;
    } rows[] = {
        {0x00000000, 0x0000, 0x0000}, {0x80000000, 0x8000, 0x8000},
        {0x3F800000, 0x3C00, 0x3F80}, {0x3F801000, 0x3C00, 0x3F80}, /* f16 tie to even, down */
        {0x3F803000, 0x3C02, 0x3F80},                               /* f16 tie to even, up */
        {0x3F808000, 0x3C04, 0x3F80}, {0x3F818000, 0x3C0C, 0x3F82}, /* bf16 ties */
        {0x477FEFFF, 0x7BFF, 0x4780}, {0x477FF000, 0x7C00, 0x4780}, /* 65520 becomes infinite */
        {0x33000000, 0x0000, 0x3300}, {0x33000001, 0x0001, 0x3300}, /* 2^-25 and just above */
        {0x387FC000, 0x03FF, 0x3880}, {0x387FF000, 0x0400, 0x3880},
        {0x7F7FFFFF, 0x7C00, 0x7F80}, {0xFF800000, 0xFC00, 0xFF80},
        {0x7FC00001, 0x7D00, 0x7FC0}, {0xFF800001, 0xFD00, 0x7FC0}, /* NaN */
        {0x00008000, 0x0000, 0x0000}, {0x00008001, 0x0000, 0x0001}, /* bf16 subnormals */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(qn_f32_f16(float_of(rows[i].f)), rows[i].f16);
        assert_int_equal(qn_f32_bf16(float_of(rows[i].f)), rows[i].bf16);
    }
}

static void test_small_floats(void **state)
{
    (void)state;
    float wide[256];
    for (int c = 0; c < 256; c++) wide[c] = qn_e4m3_f32((uint8_t)c);
    check_digest("e4m3_to_f32", wide, sizeof wide);
    assert_true(isnan(wide[0x7F]) && wide[0x7E] == 448.0f && wide[1] == 0x1p-9f);
    for (int c = 0; c < 256; c++) {
        if ((c & 0x7F) != 0x7F) assert_int_equal(qn_f32_e4m3(wide[c]), c);
    }
    assert_int_equal(qn_f32_e4m3(INFINITY), 0x7E);
    assert_int_equal(qn_f32_e4m3(-1e30f), 0xFE);
    assert_int_equal(qn_f32_e4m3(0x1p-10f), 0); /* half of the smallest: to even */
    assert_int_equal(qn_f32_e4m3(0x1.8p-9f), 2);

    assert_true(qn_e8m0_f32(127) == 1.0f && qn_e8m0_f32(0) == 0x1p-127f &&
                qn_e8m0_f32(254) == 0x1p127f);
    assert_true(isinf(qn_e8m0_f32(255)));

    static const float e2m1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (uint8_t c = 0; c < 8; c++) {
        assert_int_equal(bits_of(qn_e2m1_f32(c)), bits_of(e2m1[c]));
        assert_int_equal(bits_of(qn_e2m1_f32(c | 8)), bits_of(-e2m1[c]));
    }
}

/* Integer types, from an odd address. */
static void test_integers(void **state)
{
    (void)state;
    uint8_t bytes[1 + 3 * 8];
    static const struct {
        qn_dtype t;
        size_t size;
        int64_t v[3];
        float want[3];
    } rows[] = {
        {QN_I8, 1, {-128, 0, 127}, {-128, 0, 127}},
        {QN_U8, 1, {255, 0, 1}, {255, 0, 1}},
        {QN_I16, 2, {-32768, 5, 32767}, {-32768, 5, 32767}},
        {QN_U16, 2, {65535, 1, 2}, {65535, 1, 2}},
        {QN_I32, 4, {-16777217, 16777219, 7}, {-16777216, 16777220, 7}}, /* ties to even */
        {QN_U32, 4, {0xFFFFFFFFll, 0, 3}, {4294967296.0f, 0, 3}},
        {QN_I64, 8, {-1, 1ll << 40, 9}, {-1, 1099511627776.0f, 9}},
        {QN_U64, 8, {-1, 1, 0}, {18446744073709551616.0f, 1, 0}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        float got[3];
        for (size_t i = 0; i < 3; i++) {
            memcpy(bytes + 1 + i * rows[r].size, &rows[r].v[i], rows[r].size);
        }
        assert_int_equal(qn_dtype_size(rows[r].t), rows[r].size);
        qn_widen(got, bytes + 1, rows[r].t, 3);
        for (size_t i = 0; i < 3; i++) assert_true(got[i] == rows[r].want[i]);
    }
}

static void test_unaligned(void **state)
{
    (void)state;
    float x[19], back[19];
    uint8_t bytes[1 + sizeof x];
    for (int i = 0; i < 19; i++) x[i] = (float)(i - 9) * 0.25f;
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    for (size_t t = 0; t < 3; t++) {
        for (size_t n = 0; n <= 19; n++) {
            memset(bytes, 0xAA, sizeof bytes);
            qn_narrow(bytes + 1, types[t], x, n);
            assert_int_equal(bytes[0], 0xAA);
            assert_int_equal(n < 19 ? bytes[1 + n * qn_dtype_size(types[t])] : 0xAA, 0xAA);
            qn_widen(back, bytes + 1, types[t], n);
            assert_memory_equal(back, x, n * sizeof *x);
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    for (int t = 0; t < QN_N_DTYPES; t++) {
        qn_dtype back = QN_C64;
        assert_int_equal(qn_dtype_parse(qn_dtype_name((qn_dtype)t), &back), 0);
        assert_int_equal(back, t);
        const char *config = qn_dtype_config_name((qn_dtype)t);
        assert_true((config != NULL) == (t <= QN_BF16));
        if (config) assert_int_equal(qn_dtype_parse(config, &back), 0);
        if (config) assert_int_equal(back, t);
    }
    qn_dtype t;
    assert_int_equal(qn_dtype_parse("F64", &t), -1);
    assert_int_equal(qn_dtype_parse("", &t), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widen),        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_narrow),       cmocka_unit_test(test_edges),
        cmocka_unit_test(test_small_floats), cmocka_unit_test(test_integers),
        cmocka_unit_test(test_unaligned),    cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
