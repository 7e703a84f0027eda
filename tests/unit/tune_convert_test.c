/* tune_convert_test.c - conversions end to end on small synthetic GGUF files: names, the
 * un-permuted rows, the quantization block, refusals, cancellation; and the recipes' choice of layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "format/folder.h"
#include "format/gguf.h"
#include "gguf_make.h"
#include "tune/convert.h"
#include "tune/plan.c" /* reaches the recipe's arithmetic */

enum { D = 64, FF = 96, HEADS = 2, KV = 1, VOCAB = 40, LAYERS = 2 };

static char base[64]; /* a fresh folder per test */

static int setup(void **state)
{
    (void)state;
    snprintf(base, sizeof base, "/tmp/qn_convert_XXXXXX");
    return mkdtemp(base) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return qn_remove_tree(base, NULL);
}

static const char *in_base(const char *name)
{
    static char paths[4][160];
    static int at;
    char *p = paths[at++ % 4];
    snprintf(p, sizeof paths[0], "%s/%s", base, name);
    return p;
}

/* Row r of a Q4_1 matrix has scale 1, bias r in every block and codes k % 16, so that a dequantized
 * value tells its row. */
static void put_q4_1(gguf_make *m, const char *name, uint64_t rows, uint64_t cols)
{
    qn_buf b = {0};
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t g = 0; g < cols / 32; g++) {
            uint16_t half[2] = {qn_f32_f16(1.0f), qn_f32_f16((float)r)};
            qn_buf_put(&b, half, 4);
            for (int j = 0; j < 16; j++) qn_buf_putc(&b, (char)(j | j << 4));
        }
    }
    make_tensor(m, name, QN_GGUF_T_Q4_1, (uint64_t[]){rows, cols}, 2, b.data, b.len);
    qn_buf_release(&b);
}

static void put_q8_0(gguf_make *m, const char *name, uint64_t rows, uint64_t cols)
{
    qn_buf b = {0};
    for (uint64_t i = 0; i < rows * cols / 32; i++) {
        uint16_t half = qn_f32_f16(0.25f);
        qn_buf_put(&b, &half, 2);
        for (int j = 0; j < 32; j++) qn_buf_putc(&b, (char)(j - 16));
    }
    make_tensor(m, name, QN_GGUF_T_Q8_0, (uint64_t[]){rows, cols}, 2, b.data, b.len);
    qn_buf_release(&b);
}

static void put_norm(gguf_make *m, const char *name)
{
    float v[D];
    for (int i = 0; i < D; i++) v[i] = 1.0f + (float)i / 64;
    make_tensor(m, name, QN_GGUF_T_F32, (uint64_t[]){D}, 1, v, sizeof v);
}

static void put_tokenizer(gguf_make *m)
{
    static const char *const merges[] = {"a b"};
    const char *tokens[VOCAB];
    char text[VOCAB][8];
    for (int i = 0; i < VOCAB; i++) {
        snprintf(text[i], sizeof text[i], i < 26 ? "%c" : "%c%d", 'a' + i % 26, i);
        tokens[i] = text[i];
    }
    tokens[26] = "ab";
    tokens[27] = "<end>";
    make_str(m, "tokenizer.ggml.model", "gpt2");
    make_str(m, "tokenizer.ggml.pre", "smollm");
    make_strings(m, "tokenizer.ggml.tokens", tokens, VOCAB);
    make_strings(m, "tokenizer.ggml.merges", merges, 1);
    make_key(m, "tokenizer.ggml.token_type", QN_GGUF_ARRAY);
    put_u32(&m->keys, QN_GGUF_I32);
    put_u64(&m->keys, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++) put_u32(&m->keys, i == 27 ? 3 : 1);
    make_u32(m, "tokenizer.ggml.eos_token_id", 27);
}

static void put_head(gguf_make *m, const char *arch)
{
    char key[64];
    static const struct { const char *name; uint32_t v; } dims[] = {
        {"block_count", LAYERS}, {"embedding_length", D}, {"feed_forward_length", FF},
        {"context_length", 128}, {"attention.head_count", HEADS},
        {"attention.head_count_kv", KV}};
    make_str(m, "general.architecture", arch);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, dims[i].name);
        make_u32(m, key, dims[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    make_f32(m, key, 1e-5f);
}

/* skip: a tensor to leave out, or NULL. */
static void put_layers(gguf_make *m, const char *skip)
{
    static const struct { const char *name; uint64_t rows, cols; } mats[] = {
        {"attn_q", D, D}, {"attn_k", D / HEADS * KV, D}, {"attn_v", D / HEADS * KV, D},
        {"attn_output", D, D}, {"ffn_gate", FF, D}, {"ffn_up", FF, D}, {"ffn_down", D, FF}};
    char name[64];
    for (int layer = 0; layer < LAYERS; layer++) {
        for (size_t i = 0; i < sizeof mats / sizeof *mats; i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", layer, mats[i].name);
            if (!skip || strcmp(skip, name)) put_q4_1(m, name, mats[i].rows, mats[i].cols);
        }
        snprintf(name, sizeof name, "blk.%d.attn_norm.weight", layer);
        put_norm(m, name);
        snprintf(name, sizeof name, "blk.%d.ffn_norm.weight", layer);
        put_norm(m, name);
    }
}

static void write_model(const char *path, const char *arch, const char *skip, uint32_t odd_type)
{
    gguf_make m = {0};
    qn_err err = {0};
    put_head(&m, arch);
    put_tokenizer(&m);
    put_layers(&m, skip);
    put_q8_0(&m, "token_embd.weight", VOCAB, D);
    put_norm(&m, "output_norm.weight");
    if (odd_type) make_tensor(&m, "output.weight", odd_type, (uint64_t[]){VOCAB, D}, 2, "", 0);
    qn_buf file = make_done(&m);
    assert_int_equal(qn_file_write(path, file.data, file.len, &err), QN_OK);
    qn_buf_release(&file);
}

static size_t entries_in_base(void)
{
    size_t n = 0;
    DIR *d = opendir(base);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void check_row(qn_folder *f, const char *path, uint32_t n_out, uint32_t row, float first)
{
    qn_err err = {0};
    qn_matrix m;
    float y[FF];
    assert_int_equal(qn_folder_matrix(f, path, 0, n_out, 0, &m, &err), QN_OK);
    qn_matrix_row(&m, row, false, y);
    for (int k = 0; k < 32; k++) assert_true(y[k] == first + (float)(k % 16));
}

static void test_import(void **state)
{
    (void)state;
    write_model(in_base("m.gguf"), "llama", NULL, 0);
    qn_convert_opts o = {.source = in_base("m.gguf"), .out_dir = in_base("out")};
    qn_convert_result r;
    qn_err err = {0};
    if (qn_convert(&o, &r, &err)) fail_msg("%s", err.text);
    assert_int_equal(r.n_quantized, 7 * LAYERS + 1);
    assert_string_equal(r.model_type, "llama");
    assert_int_equal(entries_in_base(), 2);
    qn_folder *f;
    assert_int_equal(qn_folder_open(&f, in_base("out"), false, &err), QN_OK);
    const json_t *q = json_object_get(qn_folder_config(f), "quantization");
    assert_int_equal(json_integer_value(json_object_get(q, "bits")), 4);
    const json_t *e = json_object_get(q, "model.embed_tokens");
    assert_int_equal(json_integer_value(json_object_get(e, "bits")), 8);
    assert_true(json_is_true(json_object_get(qn_folder_config(f), "tie_word_embeddings")));
    /* Heads of 32 rows: HF row a*16 + b of a head is GGUF row 2b + a. */
    check_row(f, "model.layers.0.self_attn.q_proj", D, 0, 0);
    check_row(f, "model.layers.0.self_attn.q_proj", D, 1, 2);
    check_row(f, "model.layers.0.self_attn.q_proj", D, 16, 1);
    check_row(f, "model.layers.1.self_attn.q_proj", D, 32 + 31, 32 + 31);
    check_row(f, "model.layers.1.self_attn.q_proj", D, 32 + 17, 32 + 3);
    check_row(f, "model.layers.1.self_attn.k_proj", D / 2, 15, 30);
    check_row(f, "model.layers.1.self_attn.v_proj", D / 2, 15, 15);
    check_row(f, "model.layers.1.mlp.down_proj", D, 40, 40);
    const qn_stored *norm;
    assert_int_equal(qn_folder_vector(f, "model.norm.weight", D, false, &norm, &err), QN_OK);
    assert_int_equal(norm->dtype, QN_F16);
    uint32_t eos;
    assert_int_equal(qn_folder_eos(f, &eos, 1), 1);
    assert_int_equal(eos, 27);
    qn_folder_close(f);
}

static void test_qwen2_is_not_permuted(void **state)
{
    (void)state;
    write_model(in_base("m.gguf"), "qwen2", NULL, 0);
    qn_convert_opts o = {.source = in_base("m.gguf"), .out_dir = in_base("out/"), .n_threads = 3};
    qn_convert_result r;
    qn_err err = {0};
    if (qn_convert(&o, &r, &err)) fail_msg("%s", err.text);
    qn_folder *f;
    assert_int_equal(qn_folder_open(&f, in_base("out"), false, &err), QN_OK);
    for (uint32_t row = 0; row < D; row++)
        check_row(f, "model.layers.0.self_attn.q_proj", D, row, (float)row);
    qn_folder_close(f);
}

/* Converting the imported folder again, to a dense one and by copy, gives the same values. */
static void test_folder_source(void **state)
{
    (void)state;
    write_model(in_base("m.gguf"), "llama", NULL, 0);
    qn_convert_opts o = {.source = in_base("m.gguf"), .out_dir = in_base("q")};
    qn_convert_result r;
    qn_err err = {0};
    if (qn_convert(&o, &r, &err)) fail_msg("%s", err.text);
    qn_convert_opts d = {.source = in_base("q"), .out_dir = in_base("d"), .dequantize = true,
                         .dtype = "float32"};
    if (qn_convert(&d, &r, &err)) fail_msg("%s", err.text);
    assert_int_equal(r.n_quantized, 0);
    assert_string_equal(r.quantization, "none");
    qn_folder *f;
    assert_int_equal(qn_folder_open(&f, in_base("d"), false, &err), QN_OK);
    check_row(f, "model.layers.0.self_attn.q_proj", D, 16, 1);
    assert_null(json_object_get(qn_folder_config(f), "quantization"));
    qn_folder_close(f);
    assert_true(qn_is_file(in_base("d/tokenizer.json")));
}

static bool stop_at_once(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    (void)what;
    *(int *)ctx += 1;
    return done >= total;
}

/* Every refusal leaves the folder with the source alone. */
static void refused(const qn_convert_opts *o, qn_code code, const char *word)
{
    qn_convert_result r;
    qn_err err = {0};
    size_t before = entries_in_base();
    assert_int_equal(qn_convert(o, &r, &err), code);
    if (!strstr(err.text, word)) fail_msg("\"%s\" lacks \"%s\"", err.text, word);
    assert_int_equal(entries_in_base(), before);
}

static void test_refusals(void **state)
{
    (void)state;
    int n_calls = 0;
    qn_convert_opts o = {.source = in_base("m.gguf"), .out_dir = in_base("out")};
    refused(&o, QN_NOT_FOUND, "m.gguf");
    write_model(o.source, "llama", NULL, 0);
    qn_convert_opts c = o;
    c.progress = stop_at_once;
    c.ctx = &n_calls;
    refused(&c, QN_CANCELLED, "cancelled");
    assert_int_equal(n_calls, 1);
    write_model(o.source, "llama", "blk.1.ffn_up.weight", 0);
    refused(&o, QN_FORMAT, "blk.1.ffn_up.weight");
    write_model(o.source, "falcon", NULL, 0);
    refused(&o, QN_UNSUPPORTED, "falcon");
    write_model(o.source, "llama", NULL, 23);
    refused(&o, QN_UNSUPPORTED, "IQ4_XS");
    write_model(o.source, "llama", NULL, 0);
    c = o;
    c.out_dir = base;
    refused(&c, QN_INVALID, "exists");
    c = o;
    c.quantize = c.dequantize = true;
    refused(&c, QN_INVALID, "dequantize");
    c = o;
    c.quantize = true;
    c.bits = 7;
    refused(&c, QN_INVALID, "7");
    c = o;
    c.tokenizer_dir = base;
    refused(&c, QN_NOT_FOUND, "tokenizer");
}

/* The contract's list for 30 layers: 0-2, 5, 8, 11, 14, 17, 20, 23, 26-29. */
static void test_recipe_layers(void **state)
{
    (void)state;
    static const char wide[] = "111001001001001001001001001111";
    recipe r = *find_recipe("mixed_2_6");
    r.n_layers = 30;
    r.layer_at = 2;
    for (int i = 0; i < 30; i++) {
        char path[64];
        uint32_t want = wide[i] == '1' ? 6 : 2;
        snprintf(path, sizeof path, "model.layers.%d.mlp.down_proj", i);
        assert_int_equal(recipe_bits(&r, path), want);
        snprintf(path, sizeof path, "model.layers.%d.self_attn.v_proj", i);
        assert_int_equal(recipe_bits(&r, path), want);
        snprintf(path, sizeof path, "model.layers.%d.mlp.up_proj", i);
        assert_int_equal(recipe_bits(&r, path), 2);
    }
    assert_int_equal(recipe_bits(&r, "lm_head"), 6);
    assert_int_equal(recipe_bits(&r, "model.embed_tokens"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_import, setup, teardown),
        cmocka_unit_test_setup_teardown(test_qwen2_is_not_permuted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_source, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test(test_recipe_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
