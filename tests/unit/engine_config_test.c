/* engine_config_test.c - checkpoints whose config or tensors do not fit: each is an error that names the trouble, and
 * none reaches a kernel. A sound recipe of the goldens is changed in one place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/device.h"
#include "core/file.h"
#include "core/memory.h"
#include "model/model.h"
#include "synth.h"

typedef struct row {
    const char *family;
    const char *path;  /* into the recipe, "config.text_config.key" */
    const char *value; /* JSON; NULL: remove */
    const char *says;  /* part of the error; NULL: must open */
} row;

static const row rows[] = {
    {"llama", "config.hidden_size", "64", NULL},
    {"llama", "config.num_key_value_heads", "3", "multiple"},
    {"llama", "config.num_key_value_heads", "0", "num_key_value_heads"},
    {"llama", "config.hidden_size", NULL, "hidden_size"},
    {"llama", "config.hidden_size", "\"big\"", "hidden_size"},
    {"llama", "config.hidden_size", "128", "it must be"},
    {"llama", "config.head_dim", "15", "15"},
    {"llama", "config.num_hidden_layers", "3", "model.layers.2"},
    {"llama", "config.num_hidden_layers", "1", "model.layers.1"},
    {"llama", "config.vocab_size", "97", "model.embed_tokens"},
    {"llama", "config.rope_theta", "-1", "rope_theta"},
    {"llama", "config.rope_scaling", "{\"type\":\"spiral\"}", "spiral"},
    {"llama", "config.rope_scaling", "{\"type\":\"linear\",\"factor\":0}", "factor"},
    {"llama", "config.layer_types", "[\"full_attention\"]", "layer_types"},
    {"llama", "config.model_type", "\"nosuch\"", "supported: "},
    {"llama", "config.tie_word_embeddings", "false", "lm_head"},
    {"phi", "config.partial_rotary_factor", "1.5", "partial_rotary_factor"},
    {"qwen3_5", "config.text_config.rope_parameters.partial_rotary_factor", "2.0", "partial_rotary_factor"},
    {"qwen3_5", "config.text_config.rope_parameters.partial_rotary_factor", "-0.5", "partial_rotary_factor"},
    {"qwen3_5", "config.text_config.linear_num_value_heads", "3", "linear_num_value_heads"},
    {"qwen3_moe", "config.num_experts_per_tok", "9", "num_experts_per_tok"},
    {"deepseek_v2", "config.rope_scaling", NULL, "rope_scaling"},
    {"deepseek_v3", "config.kv_lora_rank", "48", "kv_a_proj_with_mqa"},
    {"deepseek_v3", "config.qk_rope_head_dim", "0", "qk_rope_head_dim"},
    {"deepseek_v3", "config.num_hidden_layers", "1", NULL}, /* later layers are dropped */
    {"deepseek_v3", "config.rope_scaling.factor", NULL, "factor"},
    {"kimi_k25", "config.text_config", NULL, "text_config"},
    {"glm4_moe_lite", "config.n_group", "4", "n_group"},
    {"glm4_moe_lite", "config.topk_group", "2", NULL}, /* with one group it says nothing */
    {"glm4_moe_lite", "config.topk_method", "\"greedy\"", "noaux_tc"},
    {"glm4_moe_lite", "config.scoring_func", "\"softmax\"", "sigmoid"},
    {"glm4_moe_lite", "config.num_experts_per_tok", "9", "num_experts_per_tok"},
    {"llama4", "config.text_config", NULL, "text_config"},
    {"llama4", "config.text_config.num_experts_per_tok", "2", "num_experts_per_tok"},
    {"llama4", "config.text_config.attention_chunk_size", "0", "attention_chunk_size"},
    {"llama4", "config.text_config.floor_scale", "0", "floor_scale"},
    {"llama4", "config.text_config.interleave_moe_layer_step", "5", "feed_forward.router"},
    {"gemma3", "config.text_config", NULL, "text_config"},
    {"gemma3_text", "config.sliding_window_pattern", "0", "sliding_window_pattern"},
};

static void change(json_t *recipe, const char *path, const char *value)
{
    char copy[128], *key = copy, *dot;
    snprintf(copy, sizeof copy, "%s", path);
    for (; (dot = strchr(key, '.')); key = dot + 1) {
        *dot = '\0';
        recipe = json_object_get(recipe, key);
        assert_non_null(recipe);
    }
    if (value) json_object_set_new(recipe, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else json_object_del(recipe, key);
}

static qn_code try_open(const json_t *recipe, qn_err *err)
{
    char dir[] = "/tmp/quern-config-XXXXXX";
    qn_folder *folder = NULL;
    qn_device *dev = NULL;
    qn_model *model = NULL;
    qn_err cleanup = {0};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(qn_synth_write(recipe, dir, &cleanup), QN_OK);
    assert_int_equal(qn_device_open(&dev, &(qn_device_opts){.n_threads = 1}, &cleanup), QN_OK);
    qn_code rc = qn_folder_open(&folder, dir, false, err);
    if (!rc) rc = qn_model_open(&model, folder, dev, &(qn_model_opts){0}, err);
    qn_model_close(model);
    dev->ops->close(dev);
    qn_folder_close(folder);
    assert_int_equal(qn_remove_tree(dir, &cleanup), QN_OK);
    return rc;
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        char path[512];
        snprintf(path, sizeof path, QN_TEST_DIR "/golden/models/%s.json", r->family);
        json_t *data = json_load_file(path, 0, NULL);
        json_t *first = json_array_get(json_object_get(data, "cases"), 0);
        json_t *recipe = json_deep_copy(json_object_get(first, "recipe"));
        assert_non_null(recipe);
        change(recipe, r->path, r->value);
        qn_err err = {0};
        qn_code rc = try_open(recipe, &err);
        if (!r->says && rc) fail_msg("row %zu: %s", i, err.text);
        if (r->says && !rc) fail_msg("row %zu: %s = %s opened", i, r->path, r->value ? r->value : "nothing");
        if (r->says && !strstr(err.text, r->says)) fail_msg("row %zu: \"%s\" lacks \"%s\"", i, err.text, r->says);
        json_decref(recipe);
        json_decref(data);
    }
}

/* Forms of a release that are not read are named, before any tensor is missed. */
static void test_foreign_forms(void **state)
{
    (void)state;
    json_t *data = json_load_file(QN_TEST_DIR "/golden/models/deepseek_v3.json", 0, NULL);
    json_t *recipe = json_object_get(json_array_get(json_object_get(data, "cases"), 0), "recipe");
    json_t *tensors = json_object_get(recipe, "tensors");
    json_t *extra = json_deep_copy(json_array_get(tensors, 0));
    json_object_set_new(extra, "name", json_string("model.layers.0.self_attn.o_proj.weight_scale_inv"));
    json_array_append_new(tensors, extra);
    qn_err err = {0};
    assert_int_equal(try_open(recipe, &err), QN_UNSUPPORTED);
    assert_non_null(strstr(err.text, "fp8"));
    json_decref(data);
}

/* The figure that sizes the KV pools: between nothing and more than any machine has. */
static void test_memory(void **state)
{
    (void)state;
    uint64_t n = qn_memory_available();
    assert_true(n > (16u << 20) && n < (1ull << 50));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_foreign_forms),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
