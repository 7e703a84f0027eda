/* format_folder_test.c - model folders: config fields, the rules of quantization per module,
 * matrices with shape checks, and the account of bound tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "format/folder.h"

static const char *new_dir(void)
{
    static char dir[64];
    snprintf(dir, sizeof dir, "/tmp/qn_folder_test.XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void put_text(const char *dir, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(qn_file_write(path, text, strlen(text), NULL), QN_OK);
}

/* Writes the planned tensors, filled with zeros. */
static void put_tensors(const char *dir, const qn_plan_tensor *plan, size_t n)
{
    static const uint8_t zeros[4096];
    qn_err err = {0};
    qn_shard_writer *w;
    if (qn_shard_writer_new(&w, dir, plan, n, 0, 0, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < n; i++) {
        const qn_plan_tensor *t = &plan[qn_shard_writer_order(w, i)];
        size_t bytes = qn_dtype_size(t->dtype);
        for (uint32_t d = 0; d < t->rank; d++) bytes *= (size_t)t->dims[d];
        assert_true(bytes <= sizeof zeros);
        if (qn_shard_writer_put(w, zeros, bytes, &err)) fail_msg("%s", err.text);
    }
    if (qn_shard_writer_close(w, &err)) fail_msg("%s", err.text);
}

static qn_folder *open_ok(const char *dir, bool config_only)
{
    qn_err err = {0};
    qn_folder *f;
    if (qn_folder_open(&f, dir, config_only, &err)) fail_msg("%s", err.text);
    return f;
}

static void expect(qn_code rc, const qn_err *err, qn_code code, const char *text)
{
    if (rc != code || !strstr(err->text, text)) {
        fail_msg("code %d, \"%s\"; should be %d with \"%s\"", rc, err->text, code, text);
    }
}

/* ---- opening ---- */

static void test_not_a_folder(void **state)
{
    (void)state;
    const char *dir = new_dir();
    char want[128];
    qn_err err = {0};
    qn_folder *f;
    snprintf(want, sizeof want, "not a model folder: %s (no config.json)", dir);
    assert_int_equal(qn_folder_open(&f, dir, true, &err), QN_NOT_FOUND);
    assert_string_equal(err.text, want);
    assert_null(f);
    qn_err_clear(&err);
    assert_int_equal(qn_folder_open(&f, "/tmp/qn_no_such_folder", true, &err), QN_NOT_FOUND);
    assert_string_equal(err.text, "not a model folder: /tmp/qn_no_such_folder (no config.json)");
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

static void test_bad_config(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        qn_code code;
        const char *text;
    } rows[] = {
        {"{", QN_FORMAT, "config.json: not valid JSON: line 1"},
        {"[1]", QN_FORMAT, "must be a JSON object"},
        {"{\"model_file\":\"m.py\"}", QN_UNSUPPORTED, "model_file"},
        {"{\"quantization\":4}", QN_FORMAT, "\"quantization\" must be an object"},
        {"{\"quantization\":{\"bits\":\"4\"}}", QN_FORMAT, "\"bits\" is \"4\""},
        {"{\"quantization\":{\"bits\":7,\"group_size\":64}}", QN_INVALID, "7 bits"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":48}}", QN_INVALID, "48"},
        {"{\"quantization\":{\"mode\":\"nf4\"}}", QN_UNSUPPORTED, "nf4"},
        {"{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}", QN_UNSUPPORTED,
         "not supported yet"},
        {"{\"quantization_config\":{\"quant_method\":\"gptq\"}}", QN_UNSUPPORTED, "gptq"},
        {"{\"text_config\":{\"quantization_config\":{\"quant_method\":\"bitnet\"}}}",
         QN_UNSUPPORTED, "bitnet"},
        {"{}", QN_NOT_FOUND, "no model*.safetensors"},
    };
    const char *dir = new_dir();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_text(dir, "config.json", rows[i].config);
        qn_err err = {0};
        qn_folder *f;
        expect(qn_folder_open(&f, dir, false, &err), &err, rows[i].code, rows[i].text);
        if (!strstr(err.text, dir)) fail_msg("no folder in \"%s\"", err.text);
        assert_null(f);
    }
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

static void test_eos(void **state)
{
    (void)state;
    static const struct {
        const char *config, *generation;
        size_t n;
        uint32_t ids[3];
    } rows[] = {
        {"{}", NULL, 0, {0}},
        {"{\"eos_token_id\":2}", NULL, 1, {2}},
        {"{\"eos_token_id\":[2,7]}", NULL, 2, {2, 7}},
        {"{\"eos_token_id\":null}", NULL, 0, {0}},
        {"{\"eos_token_id\":2}", "{\"eos_token_id\":5}", 1, {5}},
        {"{\"eos_token_id\":2}", "{\"eos_token_id\":[5,6,8]}", 3, {5, 6, 8}},
        {"{\"eos_token_id\":2}", "{\"eos_token_id\":0}", 1, {2}},
        {"{\"eos_token_id\":2}", "{\"eos_token_id\":[]}", 1, {2}},
        {"{\"eos_token_id\":2}", "{\"eos_token_id\":null}", 1, {2}},
        {"{\"eos_token_id\":2}", "{broken", 1, {2}},
        {"{\"eos_token_id\":0}", "{}", 1, {0}},
        {"{\"eos_token_id\":[-1,4294967296,\"x\",9]}", NULL, 1, {9}},
        {"{\"text_config\":{\"eos_token_id\":3}}", NULL, 0, {0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *dir = new_dir();
        put_text(dir, "config.json", rows[i].config);
        if (rows[i].generation) put_text(dir, "generation_config.json", rows[i].generation);
        qn_folder *f = open_ok(dir, true);
        uint32_t ids[3] = {0};
        assert_int_equal(qn_folder_eos(f, ids, 3), rows[i].n);
        assert_memory_equal(ids, rows[i].ids, sizeof ids);
        assert_int_equal(qn_folder_eos(f, NULL, 0), rows[i].n);
        assert_string_equal(qn_folder_dir(f), dir);
        assert_null(qn_folder_shards(f));
        assert_true((qn_folder_generation(f) != NULL) ==
                    (rows[i].generation && rows[i].generation[1] != 'b'));
        qn_folder_close(f);
        assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
    }
}

/* Python's Infinity is read as a number that is infinite in float32; in strings it stays. */
static void test_infinity(void **state)
{
    (void)state;
    const char *dir = new_dir();
    put_text(dir, "config.json", "{\"limit\":[0.0,Infinity,-Infinity],\"s\":\"a\\\"Infinity\"}");
    qn_folder *f = open_ok(dir, true);
    const json_t *limit = json_object_get(qn_folder_config(f), "limit");
    assert_true(isinf((float)json_number_value(json_array_get(limit, 1))));
    assert_true((float)json_number_value(json_array_get(limit, 2)) < 0);
    assert_string_equal(json_string_value(json_object_get(qn_folder_config(f), "s")),
                        "a\"Infinity");
    qn_folder_close(f);
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

/* ---- quantization per module ---- */

static const qn_plan_tensor parts[] = {
    {"dense.weight", QN_BF16, 2, {2, 64}}, {"q.weight", QN_U32, 2, {2, 8}},
    {"q.scales", QN_BF16, 2, {2, 1}},      {"q.biases", QN_BF16, 2, {2, 1}},
    {"nobias.weight", QN_U32, 2, {2, 8}},  {"nobias.scales", QN_U8, 2, {2, 2}},
};

typedef struct qrule {
    const char *config, *path;
    qn_code code;
    qn_qspec want;
    const char *text;
} qrule;

#define MLX "\"group_size\":64,\"bits\":4"
static const qrule qrules[] = {
    {"{}", "dense", QN_OK, {0}, ""},
    {"{}", "q", QN_FORMAT, {0}, "no quantization block"},
    {"{\"quantization\":{" MLX "}}", "q", QN_OK, {QN_Q_AFFINE, 4, 64}, ""},
    {"{\"quantization\":{" MLX "}}", "dense", QN_OK, {0}, ""},
    {"{\"quantization\":{" MLX "}}", "absent", QN_OK, {0}, ""},
    {"{\"quantization\":{" MLX ",\"q\":{\"bits\":8}}}", "q", QN_OK, {QN_Q_AFFINE, 8, 64}, ""},
    {"{\"quantization\":{" MLX ",\"q\":{\"bits\":8,\"group_size\":32}}}",
     "q",
     QN_OK,
     {QN_Q_AFFINE, 8, 32},
     ""},
    {"{\"quantization\":{" MLX ",\"q\":true}}", "q", QN_OK, {QN_Q_AFFINE, 4, 64}, ""},
    {"{\"quantization\":{" MLX ",\"dense\":true}}", "dense", QN_OK, {QN_Q_AFFINE, 4, 64}, ""},
    {"{\"quantization\":{" MLX ",\"q\":false}}", "q", QN_OK, {0}, ""},
    {"{\"quantization\":{" MLX ",\"q\":3}}", "q", QN_FORMAT, {0}, "object, true or false"},
    {"{\"quantization\":{" MLX ",\"q\":{\"bits\":7}}}",
     "q",
     QN_INVALID,
     {0},
     "quantization of \"q\""},
    {"{\"quantization\":{" MLX ",\"q\":{\"mode\":\"nvfp4\"}}}",
     "q",
     QN_OK,
     {QN_Q_NVFP4, 4, 16},
     ""},
    /* an entry without mode in an mxfp4 folder: biases decide */
    {"{\"quantization\":{\"mode\":\"mxfp4\",\"q\":{\"group_size\":64,\"bits\":8}}}",
     "q",
     QN_OK,
     {QN_Q_AFFINE, 8, 64},
     ""},
    {"{\"quantization\":{\"mode\":\"mxfp4\",\"nobias\":{}}}",
     "nobias",
     QN_OK,
     {QN_Q_MXFP4, 4, 32},
     ""},
    {"{\"quantization\":{\"mode\":\"mxfp4\"}}", "nobias", QN_OK, {QN_Q_MXFP4, 4, 32}, ""},
    {"{\"quantization\":{\"mode\":\"mxfp8\",\"bits\":8,\"group_size\":32}}",
     "nobias",
     QN_OK,
     {QN_Q_MXFP8, 8, 32},
     ""},
    /* quantization wins over quantization_config; the latter alone is read by method */
    {"{\"quantization\":{" MLX "},\"quantization_config\":{\"quant_method\":\"awq\"}}",
     "q",
     QN_OK,
     {QN_Q_AFFINE, 4, 64},
     ""},
    {"{\"quantization_config\":{" MLX "}}", "q", QN_OK, {QN_Q_AFFINE, 4, 64}, ""},
    {"{\"quantization\":null,\"quantization_config\":{\"quant_method\":\"mxfp4\"}}",
     "nobias",
     QN_OK,
     {QN_Q_MXFP4, 4, 32},
     ""},
    {"{\"text_config\":{\"quantization_config\":{\"quant_method\":\"mxfp4\"}}}",
     "nobias",
     QN_OK,
     {QN_Q_MXFP4, 4, 32},
     ""},
    {"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-"
     "quantized\"}}",
     "nobias",
     QN_OK,
     {QN_Q_NVFP4, 4, 16},
     ""},
    {"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-"
     "quantized\"}}",
     "q",
     QN_OK,
     {QN_Q_AFFINE, 4, 32},
     ""},
};

static void test_quantization_rules(void **state)
{
    (void)state;
    const char *dir = new_dir();
    put_tensors(dir, parts, sizeof parts / sizeof *parts);
    for (size_t i = 0; i < sizeof qrules / sizeof *qrules; i++) {
        const qrule *r = &qrules[i];
        put_text(dir, "config.json", r->config);
        qn_folder *f = open_ok(dir, false);
        qn_err err = {0};
        qn_qspec s;
        qn_code rc = qn_folder_qspec(f, r->path, &s, &err);
        expect(rc, &err, r->code, r->text);
        bool same =
            s.mode == r->want.mode && s.bits == r->want.bits && s.group_size == r->want.group_size;
        if (!rc && !same) {
            fail_msg("%s, %s: %s %u %u", r->config, r->path, qn_qmode_name(s.mode), s.bits,
                     s.group_size);
        }
        qn_folder_close(f);
    }
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

/* Without tensors the config's word for the folder holds, except where an entry says otherwise. */
static void test_config_only_rules(void **state)
{
    (void)state;
    const char *dir = new_dir();
    put_text(dir, "config.json",
             "{\"quantization\":{" MLX ",\"gate\":{\"bits\":8},\"embed\":false}}");
    qn_folder *f = open_ok(dir, true);
    qn_qspec s;
    assert_int_equal(qn_folder_qspec(f, "any", &s, NULL), QN_OK);
    assert_int_equal(s.bits, 4);
    assert_int_equal(qn_folder_qspec(f, "gate", &s, NULL), QN_OK);
    assert_int_equal(s.bits, 8);
    assert_int_equal(qn_folder_qspec(f, "embed", &s, NULL), QN_OK);
    assert_int_equal(s.mode, QN_Q_NONE);
    qn_err err = {0};
    qn_matrix m;
    expect(qn_folder_matrix(f, "any", 0, 0, 0, &m, &err), &err, QN_NOT_FOUND,
           "\"any.weight\" is missing");
    assert_int_equal(qn_folder_check_all_used(f, NULL), QN_OK);
    qn_folder_close(f);
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

/* ---- matrices ---- */

static const qn_plan_tensor matrices[] = {
    {"dense.weight", QN_F16, 2, {3, 10}}, {"stack.weight", QN_F32, 3, {2, 3, 10}},
    {"ints.weight", QN_I32, 2, {3, 10}},  {"cube4.weight", QN_F32, 4, {1, 2, 3, 4}},
    {"hollow.weight", QN_F32, 2, {0, 4}}, {"q4.weight", QN_U32, 2, {3, 16}},
    {"q4.scales", QN_F16, 2, {3, 2}},     {"q4.biases", QN_F16, 2, {3, 2}},
    {"q3.weight", QN_U32, 3, {2, 3, 6}},  {"q3.scales", QN_BF16, 3, {2, 3, 2}},
    {"q3.biases", QN_BF16, 3, {2, 3, 2}}, {"nv.weight", QN_U32, 2, {3, 8}},
    {"nv.scales", QN_U8, 2, {3, 4}},      {"mixed.weight", QN_U32, 2, {3, 8}},
    {"mixed.scales", QN_F16, 2, {3, 1}},  {"mixed.biases", QN_F32, 2, {3, 1}},
    {"lost.weight", QN_U32, 2, {3, 8}},   {"lost.scales", QN_F16, 2, {3, 1}},
    {"wide.weight", QN_U32, 2, {3, 9}},   {"wide.scales", QN_F16, 2, {3, 1}},
    {"wide.biases", QN_F16, 2, {3, 1}},   {"tall.weight", QN_U32, 2, {3, 8}},
    {"tall.scales", QN_F16, 2, {4, 1}},   {"tall.biases", QN_F16, 2, {3, 1}},
    {"float.weight", QN_F16, 2, {3, 8}},  {"float.scales", QN_F16, 2, {3, 1}},
    {"u8.weight", QN_U32, 2, {3, 8}},     {"u8.scales", QN_U8, 2, {3, 1}},
    {"u8.biases", QN_U8, 2, {3, 1}},
};
static const char matrix_config[] =
    "{\"quantization\":{\"group_size\":64,\"bits\":4,\"q3\":{\"group_size\":32,\"bits\":3},"
    "\"nv\":{\"mode\":\"nvfp4\"},\"dense\":false}}";

typedef struct bind_case {
    const char *path;
    uint32_t n_experts, n_out, n_in; /* asked for */
    qn_code code;
    const char *text; /* of the error */
    uint32_t got_experts, got_out, got_in;
} bind_case;

static const bind_case binds[] = {
    {"dense", 1, 3, 10, QN_OK, "", 1, 3, 10},
    {"dense", 0, 0, 0, QN_OK, "", 1, 3, 10},
    {"dense", 1, 3, 12, QN_FORMAT, "\"dense.weight\" has shape [3, 10]; it must be [3, 12]", 0, 0,
     0},
    {"dense", 1, 4, 10, QN_FORMAT, "it must be [4, 10]", 0, 0, 0},
    {"dense", 2, 3, 10, QN_FORMAT, "stack", 0, 0, 0},
    {"stack", 2, 3, 10, QN_OK, "", 2, 3, 10},
    {"stack", 0, 0, 0, QN_OK, "", 2, 3, 10},
    {"stack", 1, 3, 10, QN_FORMAT, "it must be [1, 3, 10]", 0, 0, 0},
    {"ints", 0, 0, 0, QN_FORMAT, "dtype I32", 0, 0, 0},
    {"cube4", 0, 0, 0, QN_FORMAT, "[1, 2, 3, 4]", 0, 0, 0},
    {"hollow", 0, 0, 0, QN_FORMAT, "[0, 4]", 0, 0, 0},
    {"q4", 1, 3, 128, QN_OK, "", 1, 3, 128},
    {"q4", 0, 0, 0, QN_OK, "", 1, 3, 128},
    {"q4", 1, 3, 64, QN_FORMAT, "it must be [3, 8] with 4 bits and group size 64", 0, 0, 0},
    {"q4", 1, 3, 100, QN_INVALID, "100", 0, 0, 0},
    {"q3", 0, 0, 0, QN_OK, "", 2, 3, 64},
    {"q3", 2, 3, 64, QN_OK, "", 2, 3, 64},
    {"q3", 3, 3, 64, QN_FORMAT, "it must be [3, 3, 6]", 0, 0, 0},
    {"nv", 1, 3, 64, QN_OK, "", 1, 3, 64},
    {"mixed", 0, 0, 0, QN_FORMAT, "\"mixed.biases\" has dtype F32", 0, 0, 0},
    {"lost", 0, 0, 0, QN_NOT_FOUND, "\"lost.biases\" is missing", 0, 0, 0},
    {"wide", 0, 0, 0, QN_FORMAT, "\"wide.weight\" has shape [3, 9]; it must be [3, 8]", 0, 0, 0},
    {"tall", 0, 0, 0, QN_FORMAT, "\"tall.scales\" has shape [4, 1]; it must be [3, 1]", 0, 0, 0},
    {"float", 0, 0, 0, QN_FORMAT, "\"float.weight\" has dtype F16; it must be U32", 0, 0, 0},
    {"u8", 0, 0, 0, QN_FORMAT, "\"u8.scales\" has dtype U8", 0, 0, 0},
    {"absent", 0, 0, 0, QN_NOT_FOUND, "\"absent.weight\" is missing", 0, 0, 0},
};

static void test_matrices(void **state)
{
    (void)state;
    const char *dir = new_dir();
    put_text(dir, "config.json", matrix_config);
    put_tensors(dir, matrices, sizeof matrices / sizeof *matrices);
    qn_folder *f = open_ok(dir, false);
    for (size_t i = 0; i < sizeof binds / sizeof *binds; i++) {
        const bind_case *b = &binds[i];
        qn_err err = {0};
        qn_matrix m;
        qn_code rc = qn_folder_matrix(f, b->path, b->n_experts, b->n_out, b->n_in, &m, &err);
        expect(rc, &err, b->code, b->text);
        if (m.n_experts != b->got_experts || m.n_out != b->got_out || m.n_in != b->got_in) {
            fail_msg("%s: [%u, %u, %u]", b->path, m.n_experts, m.n_out, m.n_in);
        }
    }
    qn_matrix m;
    assert_int_equal(qn_folder_matrix(f, "q4", 0, 0, 0, &m, NULL), QN_OK);
    assert_int_equal(m.dtype, QN_F16);
    assert_ptr_equal(m.weight, qn_shards_find(qn_folder_shards(f), "q4.weight")->data);
    assert_ptr_equal(m.scales, qn_shards_find(qn_folder_shards(f), "q4.scales")->data);
    assert_ptr_equal(m.biases, qn_shards_find(qn_folder_shards(f), "q4.biases")->data);
    assert_int_equal(qn_folder_matrix(f, "nv", 0, 0, 0, &m, NULL), QN_OK);
    assert_int_equal(m.dtype, QN_BF16);
    assert_null(m.biases);
    qn_folder_close(f);
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

static void test_vectors_and_account(void **state)
{
    (void)state;
    const char *dir = new_dir();
    put_text(dir, "config.json", "{\"quantization\":{\"group_size\":64,\"bits\":4}}");
    put_tensors(dir, parts, sizeof parts / sizeof *parts);
    qn_folder *f = open_ok(dir, false);
    qn_err err = {0};
    const qn_stored *t;
    qn_matrix m;
    expect(qn_folder_check_all_used(f, &err), &err, QN_FORMAT,
           "6 tensors are not part of this architecture");
    assert_true(qn_folder_has(f, "q.scales") && !qn_folder_has(f, "q"));

    assert_int_equal(qn_folder_vector(f, "dense.weight", 128, false, &t, NULL), QN_OK);
    assert_int_equal(t->dtype, QN_BF16);
    assert_int_equal(qn_folder_vector(f, "dense.weight", 0, false, &t, NULL), QN_OK);
    qn_err_clear(&err);
    expect(qn_folder_vector(f, "dense.weight", 64, true, &t, &err), &err, QN_FORMAT,
           "it must have 64 elements");
    assert_null(t);
    qn_err_clear(&err);
    expect(qn_folder_vector(f, "absent", 1, false, &t, &err), &err, QN_NOT_FOUND,
           "\"absent\" is missing");
    assert_int_equal(qn_folder_vector(f, "absent", 1, true, &t, NULL), QN_OK);
    assert_null(t);

    assert_int_equal(qn_folder_matrix(f, "q", 1, 2, 64, &m, NULL), QN_OK);
    qn_folder_drop(f, "nobias.weight");
    qn_folder_drop(f, "unknown");
    qn_err_clear(&err);
    expect(qn_folder_check_all_used(f, &err), &err, QN_FORMAT,
           "1 tensor is not part of this architecture: \"nobias.scales\"");
    qn_folder_drop(f, "nobias.scales");
    assert_int_equal(qn_folder_check_all_used(f, NULL), QN_OK);
    qn_folder_close(f);
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

/* ---- config fields ---- */

static void test_fields(void **state)
{
    (void)state;
    json_t *cfg =
        json_loads("{\"n\":32,\"big\":4294967295,\"over\":4294967296,\"neg\":-1,\"whole\":8.0,"
                   "\"half\":0.5,\"none\":null,\"s\":\"llama\",\"t\":true,\"list\":[1],\"o\":{}}",
                   0, NULL);
    uint32_t u = 0;
    double d = 0;
    bool b = false;
    const char *s = NULL;
    assert_non_null(cfg);
    assert_int_equal(qn_cfg_u32(cfg, "n", 1, 64, &u, NULL), QN_OK);
    assert_int_equal(u, 32);
    assert_int_equal(qn_cfg_u32(cfg, "big", 0, UINT32_MAX, &u, NULL), QN_OK);
    assert_int_equal(u, UINT32_MAX);
    assert_int_equal(qn_cfg_u32(cfg, "whole", 0, 8, &u, NULL), QN_OK);
    assert_int_equal(u, 8);
    assert_int_equal(qn_cfg_f64(cfg, "n", &d, NULL), QN_OK);
    assert_true(d == 32.0);
    assert_true(qn_cfg_is_null(cfg, "none") && !qn_cfg_is_null(cfg, "absent") &&
                !qn_cfg_is_null(cfg, "n"));

    static const struct {
        const char *key, *text;
    } rows[] = {
        {"over", "\"over\" is 4294967296; it must be a whole number from 2 to 9"},
        {"neg", "-1"},
        {"half", "0.5"},
        {"none", "is null"},
        {"absent", "is missing"},
        {"s", "\"llama\""},
        {"t", "is true"},
        {"list", "a list"},
        {"o", "an object"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_err err = {0};
        expect(qn_cfg_u32(cfg, rows[i].key, 2, 9, &u, &err), &err, QN_FORMAT, rows[i].text);
    }
    static const char *const unset[] = {"none", "absent"};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(qn_cfg_u32_or(cfg, unset[i], 7, 9, &u, NULL), QN_OK);
        assert_int_equal(qn_cfg_f64_or(cfg, unset[i], 1.5, &d, NULL), QN_OK);
        assert_int_equal(qn_cfg_bool_or(cfg, unset[i], true, &b, NULL), QN_OK);
        assert_int_equal(qn_cfg_str_or(cfg, unset[i], "x", &s, NULL), QN_OK);
        assert_true(u == 7 && d == 1.5 && b && !strcmp(s, "x"));
    }
    assert_int_equal(qn_cfg_u32_or(cfg, "n", 7, 31, &u, NULL), QN_FORMAT);
    assert_int_equal(qn_cfg_f64_or(cfg, "s", 1.5, &d, NULL), QN_FORMAT);
    assert_int_equal(qn_cfg_bool_or(cfg, "n", true, &b, NULL), QN_FORMAT);
    assert_int_equal(qn_cfg_str_or(cfg, "n", NULL, &s, NULL), QN_FORMAT);
    assert_int_equal(qn_cfg_bool_or(cfg, "t", false, &b, NULL), QN_OK);
    assert_int_equal(qn_cfg_str_or(cfg, "s", NULL, &s, NULL), QN_OK);
    assert_true(b && !strcmp(s, "llama"));
    json_decref(cfg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_a_folder),
        cmocka_unit_test(test_bad_config),
        cmocka_unit_test(test_eos),
        cmocka_unit_test(test_infinity),
        cmocka_unit_test(test_quantization_rules),
        cmocka_unit_test(test_config_only_rules),
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_vectors_and_account),
        cmocka_unit_test(test_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
