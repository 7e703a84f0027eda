/* format_quant_test.c - packing, quantizing and dequantizing against vectors of the specification
 * and against mlx (tests/golden/quant.safetensors). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/quantize.c"
#include "format/shard.h"

static const uint32_t widths[] = {2, 3, 4, 5, 6, 8};
enum { N_WIDTHS = 6, GOLDEN_ROWS = 8, GOLDEN_IN = 128 };

/* ---- vectors of the specification ---- */

typedef struct vector {
    const char *name;
    float (*weight)(int i);
    uint32_t bits;
    float scale, bias;
    const char *bytes; /* hex of the first packed bytes */
} vector;

static float quarter(int i)
{
    return (float)(i - 11) / 4.0f;
}
static float ramp(int i)
{
    return (float)(i - 16) / 32.0f;
}
static float zero(int i)
{
    return (float)i * 0.0f;
}
static float one(int i)
{
    return zero(i) + 1.0f;
}
static float plus(int i)
{
    return zero(i) + 0.7f;
}
static float minus(int i)
{
    return zero(i) - 0.7f;
}
static float slope(int i)
{
    return 0.25f + (float)i / 64.0f;
}

static const vector vectors[] = {
    {"quarter 4", quarter, 4, -0.5f, 5.0f, "ffeedeccbcaa9a887866564434221200"},
    {"quarter 3", quarter, 3, -1.0f, 5.0f, "ff7fdb765b92e43649521200"},
    {"quarter 5", quarter, 5, -0.25f, 5.0f, "df77be75c6d7563a6584cf35b65442c714324400"},
    {"quarter 6", quarter, 6, -0.121951222f, 5.0f,
     "bfbfe7773dc76fbba66739865fb7651725410ea320062100"},
    {"zeros", zero, 4, -1e-7f, 0.0f, "00000000000000000000000000000000"},
    {"ones", one, 4, -1e-7f, 1.0f, "00000000000000000000000000000000"},
    {"0.7", plus, 4, -1e-7f, 0.7f, "00000000000000000000000000000000"},
    {"-0.7", minus, 4, -1e-7f, -0.7f, "00000000000000000000000000000000"},
    {"ramp 2", ramp, 2, 0.25f, -0.5f, "005455aaaafeffff"},
    {"ramp 3", ramp, 3, 0.125f, -0.5f, "00924892b69124dbdab6ffff"},
    {"ramp 4", ramp, 4, 0.0625f, -0.5f, "002122434465668788a9aacb"},
    {"ramp 5", ramp, 5, 0.03125f, -0.5f, "2088418a3928a9c59a7b30ca"},
    {"ramp 6", ramp, 6, 0.0151515156f, -0.5f, "80401888c238d0545dd9d67d"},
    {"ramp 8", ramp, 8, 0.0037878789f, -0.5f, "000810192129323a424a525b"},
    {"slope 4", slope, 4, -0.0319293478f, 0.734375f, "ff"},
};

static void check_hex(const char *name, const uint8_t *p, const char *hex)
{
    for (; *hex; hex += 2, p++) {
        unsigned want = 0;
        assert_int_equal(sscanf(hex, "%2x", &want), 1);
        if (*p != want) fail_msg("%s: byte %02x, should be %02x at \"%s\"", name, *p, want, hex);
    }
}

static void test_vectors(void **state)
{
    (void)state;
    for (size_t v = 0; v < sizeof vectors / sizeof *vectors; v++) {
        qn_qspec spec = {QN_Q_AFFINE, vectors[v].bits, 32};
        float x[32], scale, bias;
        uint8_t words[32];
        for (int i = 0; i < 32; i++) x[i] = vectors[v].weight(i);
        qn_quantize_row(&spec, QN_F32, x, 32, words, &scale, &bias);
        if (scale != vectors[v].scale || bias != vectors[v].bias) {
            fail_msg("%s: scale %.9g bias %.9g", vectors[v].name, (double)scale, (double)bias);
        }
        check_hex(vectors[v].name, words, vectors[v].bytes);
    }
}

static void test_vector_bf16(void **state)
{
    (void)state;
    static const uint32_t want[8] = {0xf82b4d6f, 0x5e81a3c6, 0xb4e7092c, 0x1a4d6f82,
                                     0x70a3c5e8, 0xd6f92b4e, 0x3c6f81a4, 0x92c5e70a};
    qn_qspec spec = {QN_Q_AFFINE, 4, 64};
    float x[64];
    uint32_t words[8];
    uint16_t scale, bias;
    for (int i = 0; i < 64; i++) x[i] = (float)(37 * i % 64 - 31) / 32.0f;
    qn_quantize_row(&spec, QN_BF16, x, 64, words, &scale, &bias);
    assert_int_equal(scale, 0xBE00);
    assert_int_equal(bias, 0x3F80);
    assert_memory_equal(words, want, sizeof want);
}

/* The smallest affine scale is a subnormal in float16 and must survive. */
static void test_tiny_scale_f16(void **state)
{
    (void)state;
    qn_qspec spec = {QN_Q_AFFINE, 4, 32};
    float x[32] = {0};
    uint8_t words[16];
    uint16_t scale, bias;
    qn_quantize_row(&spec, QN_F16, x, 32, words, &scale, &bias);
    assert_int_equal(scale, 0x8002); /* -2^-23 = -1.19e-7 */
    assert_int_equal(bias, 0);
}

/* ---- mlx ---- */

static qn_shard *open_golden(void)
{
    qn_err err = {0};
    qn_shard *s = NULL;
    qn_code rc = qn_shard_open(&s, QN_TEST_DIR "/golden/quant.safetensors", &err);
    if (rc) fail_msg("%s", err.text);
    return s;
}

static const qn_stored *golden_part(const qn_shard *golden, const char *key, const char *part)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", key, part);
    return qn_shard_find(golden, name);
}

static void golden_quantize(const qn_shard *golden, const char *key, const qn_qspec *spec,
                            qn_dtype t)
{
    char in[16];
    snprintf(in, sizeof in, "in.%s", qn_dtype_name(t));
    const uint8_t *rows = qn_shard_find(golden, in)->data;
    const uint8_t *words = golden_part(golden, key, "words")->data;
    const uint8_t *scales = golden_part(golden, key, "scales")->data;
    const qn_stored *biases = golden_part(golden, key, "biases");
    size_t row_bytes = GOLDEN_IN * qn_dtype_size(t), words_bytes = qn_qrow_bytes(spec, GOLDEN_IN);
    size_t scale_bytes = GOLDEN_IN / spec->group_size * (biases ? qn_dtype_size(t) : 1);
    assert_true((spec->mode == QN_Q_AFFINE) == (biases != NULL));
    for (size_t r = 0; r < GOLDEN_ROWS; r++) {
        float x[GOLDEN_IN];
        uint8_t w[GOLDEN_IN], s[32], b[32];
        qn_widen(x, rows + r * row_bytes, t, GOLDEN_IN);
        qn_quantize_row(spec, t, x, GOLDEN_IN, w, s, biases ? b : NULL);
        if (memcmp(s, scales + r * scale_bytes, scale_bytes)) {
            fail_msg("%s row %zu: scales", key, r);
        }
        if (memcmp(w, words + r * words_bytes, words_bytes)) fail_msg("%s row %zu: words", key, r);
        if (biases && memcmp(b, (const uint8_t *)biases->data + r * scale_bytes, scale_bytes)) {
            fail_msg("%s row %zu: biases", key, r);
        }
    }
}

static void golden_dequantize(const qn_shard *golden, const char *key, const qn_qspec *spec,
                              qn_dtype t)
{
    const qn_stored *out = golden_part(golden, key, "out"),
                    *biases = golden_part(golden, key, "biases");
    if (!out) {
        assert_true(t == QN_F32 && spec->group_size != 64); /* left out of the file on purpose */
        return;
    }
    qn_matrix m = {.spec = *spec,
                   .n_experts = 1,
                   .n_out = GOLDEN_ROWS,
                   .n_in = GOLDEN_IN,
                   .weight = golden_part(golden, key, "words")->data,
                   .scales = golden_part(golden, key, "scales")->data,
                   .biases = biases ? biases->data : NULL,
                   .dtype = out->dtype};
    assert_int_equal(out->dtype, biases ? t : QN_BF16);
    for (size_t r = 0; r < GOLDEN_ROWS; r++) {
        float y[GOLDEN_IN], want[GOLDEN_IN];
        qn_matrix_row(&m, r, true, y);
        qn_widen(want, (const uint8_t *)out->data + r * GOLDEN_IN * qn_dtype_size(out->dtype),
                 out->dtype, GOLDEN_IN);
        if (memcmp(y, want, sizeof y)) fail_msg("%s row %zu: dequantized values", key, r);
    }
}

typedef void golden_check(const qn_shard *golden, const char *key, const qn_qspec *spec,
                          qn_dtype t);

static void for_each_case(golden_check *check)
{
    static const uint32_t groups[] = {32, 64, 128};
    qn_shard *golden = open_golden();
    qn_qspec specs[3 * N_WIDTHS + 3];
    size_t n = 0;
    for (size_t w = 0; w < N_WIDTHS; w++) {
        for (size_t g = 0; g < 3; g++) specs[n++] = (qn_qspec){QN_Q_AFFINE, widths[w], groups[g]};
    }
    for (int m = QN_Q_MXFP4; m <= QN_Q_NVFP4; m++) specs[n++] = qn_qspec_default((qn_qmode)m);
    for (size_t i = 0; i < n; i++) {
        for (int t = QN_F32; t <= QN_BF16; t++) {
            char key[48];
            snprintf(key, sizeof key, "%s.b%u.g%u.%s", qn_qmode_name(specs[i].mode), specs[i].bits,
                     specs[i].group_size, qn_dtype_name((qn_dtype)t));
            if (!golden_part(golden, key, "words")) fail_msg("golden case %s is missing", key);
            check(golden, key, &specs[i], (qn_dtype)t);
        }
    }
    qn_shard_close(golden);
}

static void test_golden_quantize(void **state)
{
    (void)state;
    for_each_case(golden_quantize);
}

static void test_golden_dequantize(void **state)
{
    (void)state;
    for_each_case(golden_dequantize);
}

/* ---- properties ---- */

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Codes come back from a buffer of exactly the row's size, at an odd address. */
static void test_codes(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (size_t w = 0; w < N_WIDTHS; w++) {
        uint32_t bits = widths[w], n = 160, codes[160];
        size_t bytes = n * bits / 8;
        uint8_t *block = calloc(1, bytes + 1);
        for (uint32_t k = 0; k < n; k++) {
            codes[k] = next_random(&seed) & ((1u << bits) - 1u);
            qn_qcode_put(block + 1, bits, k, codes[k]);
        }
        for (uint32_t k = 0; k < n; k++) assert_int_equal(qn_qcode(block + 1, bits, k), codes[k]);
        assert_int_equal(block[0], 0);
        free(block);
    }
}

/* qn_matrix_row agrees with the definition by code, scale and bias, for a stack of experts. */
static void test_matrix_row(void **state)
{
    (void)state;
    enum { EXPERTS = 2, OUT = 3, IN = 256, ROWS = EXPERTS * OUT };
    static const qn_qspec specs[] = {
        {QN_Q_AFFINE, 2, 32}, {QN_Q_AFFINE, 3, 64}, {QN_Q_AFFINE, 4, 128},
        {QN_Q_AFFINE, 5, 32}, {QN_Q_AFFINE, 6, 64}, {QN_Q_AFFINE, 8, 64},
        {QN_Q_MXFP4, 4, 32},  {QN_Q_MXFP8, 8, 32},  {QN_Q_NVFP4, 4, 16}};
    uint32_t seed = 3;
    for (size_t c = 0; c < sizeof specs / sizeof *specs; c++) {
        const qn_qspec *s = &specs[c];
        size_t words = qn_qrow_bytes(s, IN),
               scales = IN / s->group_size * (s->mode == QN_Q_AFFINE ? 2u : 1u);
        uint8_t *w = malloc(ROWS * words), *sc = malloc(ROWS * scales), *b = malloc(ROWS * scales);
        for (size_t r = 0; r < ROWS; r++) {
            float x[IN];
            for (int i = 0; i < IN; i++) {
                x[i] = qn_bf16_f32(qn_f32_bf16((float)next_random(&seed) / 8388608.0f - 1.0f));
            }
            qn_quantize_row(s, QN_BF16, x, IN, w + r * words, sc + r * scales, b + r * scales);
        }
        qn_matrix m = {*s, EXPERTS, OUT, IN, w, sc, s->mode == QN_Q_AFFINE ? b : NULL, QN_BF16};
        for (size_t r = 0; r < ROWS; r++) {
            float y[IN];
            qn_matrix_row(&m, r, false, y);
            for (size_t i = 0; i < IN; i++) {
                uint32_t code = qn_qcode(w + r * words, s->bits, i);
                size_t g = i / s->group_size;
                float value = s->mode == QN_Q_AFFINE ? (float)code : qn_qvalue(s->mode, code);
                assert_true(y[i] == qn_qscale(&m, r, g) * value + qn_qbias(&m, r, g));
            }
        }
        free(w);
        free(sc);
        free(b);
    }
}

static void test_dense_row(void **state)
{
    (void)state;
    uint16_t h[2][4] = {{0x3F80, 0x4000, 0x4040, 0x4080}, {0xBF80, 0, 0x7F80, 0x0001}};
    qn_matrix m = {.n_experts = 1, .n_out = 2, .n_in = 4, .weight = h, .dtype = QN_BF16};
    float y[4];
    qn_matrix_row(&m, 1, true, y);
    for (int i = 0; i < 4; i++) assert_true(y[i] == qn_bf16_f32(h[1][i]));
}

/* Weights that are not numbers must not leave the code range or break anything. */
static void test_not_finite(void **state)
{
    (void)state;
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    for (int m = QN_Q_AFFINE; m <= QN_Q_NVFP4; m++) {
        for (size_t k = 0; k < 3; k++) {
            qn_qspec s = qn_qspec_default((qn_qmode)m);
            float x[64], scales[4], biases[4];
            uint8_t words[64];
            for (int i = 0; i < 64; i++) x[i] = i % 7 == 3 ? odd[k] : (float)i;
            qn_quantize_row(&s, QN_F32, x, 64, words, scales, m == QN_Q_AFFINE ? biases : NULL);
            if (m == QN_Q_AFFINE && k == 2) assert_int_equal(qn_qcode(words, 4, 3), 0);
        }
    }
}

/* The thresholds of e2m1_code against its definition, for every 16-bit value in its own type. */
static void test_e2m1_thresholds(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = qn_f16_f32((uint16_t)h), b = qn_bf16_f32((uint16_t)h);
        assert_int_equal(e2m1_code(f, QN_F16), e2m1_code_searched(f, QN_F16));
        assert_int_equal(e2m1_code(f, QN_F32), e2m1_code_searched(f, QN_F32));
        assert_int_equal(e2m1_code(b, QN_BF16), e2m1_code_searched(b, QN_BF16));
        assert_int_equal(e2m1_code(b, QN_F32), e2m1_code_searched(b, QN_F32));
    }
}

static void test_spec_check(void **state)
{
    (void)state;
    static const struct {
        qn_qspec s;
        uint32_t n_in;
        qn_code rc;
        const char *text;
    } rows[] = {
        {{QN_Q_NONE, 0, 0}, 7, QN_OK, NULL},
        {{QN_Q_AFFINE, 4, 64}, 0, QN_OK, NULL},
        {{QN_Q_AFFINE, 4, 64}, 128, QN_OK, NULL},
        {{QN_Q_AFFINE, 4, 64}, 96, QN_INVALID, "96"},
        {{QN_Q_AFFINE, 7, 64}, 0, QN_INVALID, "7"},
        {{QN_Q_AFFINE, 1, 64}, 0, QN_INVALID, "1"},
        {{QN_Q_AFFINE, 9, 64}, 0, QN_INVALID, "9"},
        {{QN_Q_AFFINE, 4, 16}, 0, QN_INVALID, "16"},
        {{QN_Q_AFFINE, 4, 0}, 0, QN_INVALID, "32, 64 or 128"},
        {{QN_Q_MXFP4, 4, 32}, 64, QN_OK, NULL},
        {{QN_Q_MXFP4, 8, 32}, 64, QN_INVALID, "mxfp4"},
        {{QN_Q_NVFP4, 4, 32}, 64, QN_INVALID, "nvfp4"},
        {{QN_Q_MXFP8, 8, 32}, 48, QN_INVALID, "48"},
        {{(qn_qmode)9, 8, 32}, 64, QN_INVALID, "9"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_err err = {0};
        assert_int_equal(qn_qspec_check(&rows[i].s, rows[i].n_in, &err), rows[i].rc);
        if (rows[i].text && !strstr(err.text, rows[i].text)) fail_msg("row %zu: %s", i, err.text);
    }
    for (int m = QN_Q_AFFINE; m <= QN_Q_NVFP4; m++) {
        qn_qmode back;
        qn_qspec s = qn_qspec_default((qn_qmode)m);
        assert_int_equal(qn_qspec_check(&s, 0, NULL), QN_OK);
        assert_int_equal(qn_qmode_parse(qn_qmode_name((qn_qmode)m), &back), 0);
        assert_int_equal(back, m);
    }
    qn_qmode mode;
    assert_int_equal(qn_qmode_parse("none", &mode), -1);
    assert_int_equal(qn_qmode_parse("gguf", &mode), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),           cmocka_unit_test(test_vector_bf16),
        cmocka_unit_test(test_tiny_scale_f16),    cmocka_unit_test(test_golden_quantize),
        cmocka_unit_test(test_golden_dequantize), cmocka_unit_test(test_codes),
        cmocka_unit_test(test_matrix_row),        cmocka_unit_test(test_dense_row),
        cmocka_unit_test(test_not_finite),        cmocka_unit_test(test_spec_check),
        cmocka_unit_test(test_e2m1_thresholds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
