/* store_models_test.c - scanning and finding, on trees of folders built by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "store/models.h"

typedef struct tree {
    char root[64], own[96], hub[96];
} tree;

static void put(const tree *t, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", t->root, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    assert_int_equal(qn_mkdirs(path, NULL), QN_OK);
    *slash = '/';
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A safetensors file with one quantized module [4, 64] at 4 bits, group 32, and a norm [64]. */
static void put_weights(const tree *t, const char *name)
{
    static const char header[] =
        "{\"m.weight\":{\"dtype\":\"U32\",\"shape\":[4,8],\"data_offsets\":[0,128]},"
        "\"m.scales\":{\"dtype\":\"F16\",\"shape\":[4,2],\"data_offsets\":[128,144]},"
        "\"m.biases\":{\"dtype\":\"F16\",\"shape\":[4,2],\"data_offsets\":[144,160]},"
        "\"norm.weight\":{\"dtype\":\"F16\",\"shape\":[64],\"data_offsets\":[160,288]}}";
    put(t, name, "");
    char path[512];
    snprintf(path, sizeof path, "%s/%s", t->root, name);
    FILE *f = fopen(path, "wb");
    uint64_t n = sizeof header - 1;
    static const char zeros[288];
    fwrite(&n, 1, 8, f);
    fwrite(header, 1, n, f);
    fwrite(zeros, 1, sizeof zeros, f);
    fclose(f);
}

static const char config_llama[] = "{\"model_type\":\"llama\",\"quantization\":{\"group_size\":32,\"bits\":4}}";
static const char config_plain[] = "{\"model_type\":\"qwen3\",\"num_experts\":8}";

static void put_model(const tree *t, const char *dir, const char *config)
{
    char name[512];
    snprintf(name, sizeof name, "%s/config.json", dir);
    put(t, name, config);
    snprintf(name, sizeof name, "%s/model.safetensors", dir);
    put_weights(t, name);
}

static int make_tree(void **state)
{
    tree *t = calloc(1, sizeof *t);
    snprintf(t->root, sizeof t->root, "/tmp/quern-store-XXXXXX");
    assert_non_null(mkdtemp(t->root));
    snprintf(t->own, sizeof t->own, "%s/own", t->root);
    snprintf(t->hub, sizeof t->hub, "%s/hub", t->root);
    *state = t;
    return 0;
}

static int drop_tree(void **state)
{
    tree *t = *state;
    qn_remove_tree(t->root, NULL);
    free(t);
    return 0;
}

static bool only_llama(const char *type) { return !strcmp(type, "llama"); }

static qn_store *open_store(const tree *t, bool details)
{
    qn_store *s;
    qn_err err = {0};
    qn_store_opts opts = {.own_dir = t->own, .hub_dir = t->hub, .supports = only_llama, .details = details};
    assert_int_equal(qn_store_open(&s, &opts, &err), QN_OK);
    return s;
}

static qn_store *scanned(const tree *t, bool details)
{
    qn_store *s = open_store(t, details);
    qn_err err = {0};
    assert_int_equal(qn_store_scan(s, &err), QN_OK);
    return s;
}

static void finds(const tree *t, const char *query, const char *id)
{
    qn_store *s = open_store(t, false);
    qn_err err = {0};
    const qn_model_entry *e;
    if (qn_store_find(s, query, &e, &err)) fail_msg("\"%s\": %s", query, err.text);
    assert_string_equal(e->id, id);
    qn_store_close(s);
}

static void refuses(const tree *t, const char *query, qn_code code, const char *text)
{
    qn_store *s = open_store(t, false);
    qn_err err = {0};
    const qn_model_entry *e;
    assert_int_equal(qn_store_find(s, query, &e, &err), code);
    if (!strstr(err.text, text)) fail_msg("\"%s\" lacks \"%s\"", err.text, text);
    qn_store_close(s);
}

static void empty_places(void **state)
{
    const tree *t = *state;
    qn_store *s = scanned(t, true);
    assert_int_equal(qn_store_count(s), 0);
    qn_store_close(s);
    refuses(t, NULL, QN_NOT_FOUND, "quern convert");
    refuses(t, "x", QN_NOT_FOUND, "no model matches \"x\"");
    refuses(t, "", QN_INVALID, "empty");
}

static void own_folder(void **state)
{
    const tree *t = *state;
    put_model(t, "own/Smol-4bit", config_llama);
    put_model(t, "own/org/Other", config_plain);
    put_model(t, "own/New.partial-12", config_plain);
    put(t, "own/broken/config.json", "{");
    put(t, "own/bare/config.json", config_plain);
    put(t, "own/Smol-4bit/README.md", "---\nlicense: other\nlicense_name: \"mine\"\n---\n# x\n");
    put(t, "own/Smol-4bit/chat_template.jinja", "{% if tool_calls %}");
    qn_store *s = scanned(t, true);
    assert_int_equal(qn_store_count(s), 2);
    const qn_model_entry *e = qn_store_at(s, 0);
    assert_string_equal(e->id, "Smol-4bit");
    assert_true(e->own && e->canonical && e->supported && e->has_tools && !e->is_moe);
    assert_int_equal(e->quant_bits, 4);
    assert_int_equal(e->quant_group, 32);
    assert_string_equal(e->quant_mode, "affine");
    assert_string_equal(e->license, "mine");
    assert_int_equal(e->n_params, 4 * 64 + 64);
    e = qn_store_at(s, 1);
    assert_string_equal(e->id, "org/Other");
    assert_true(!e->supported && e->is_moe && !e->quant_mode && !e->license);
    qn_store_close(s);
    finds(t, NULL, "Smol-4bit"); /* the only supported one */
}

static void hub_snapshots(void **state)
{
    const tree *t = *state;
    put_model(t, "hub/models--org--A/snapshots/aaa", config_llama);
    put_model(t, "hub/models--org--A/snapshots/bbb", config_llama);
    put(t, "hub/models--org--A/refs/main", "bbb\n");
    put_model(t, "hub/models--org--B--C/snapshots/ccc", config_llama);
    put_model(t, "hub/datasets--org--D/snapshots/ddd", config_llama);
    put(t, "hub/models--org--E/refs/main", "eee");
    qn_store *s = scanned(t, false);
    assert_int_equal(qn_store_count(s), 3);
    for (size_t i = 0; i < 3; i++) {
        const qn_model_entry *e = qn_store_at(s, i);
        assert_int_equal(e->canonical, strcmp(e->revision, "aaa") != 0);
    }
    const qn_model_entry *e;
    assert_int_equal(qn_store_find(s, "a", &e, NULL), QN_OK);
    assert_string_equal(e->revision, "bbb");
    qn_store_close(s);
    finds(t, "org/B/C", "org/B/C");
    refuses(t, "org", QN_INVALID, "\"org\" is ambiguous: org/A, org/B/C");
}

static void index_names_the_files(void **state)
{
    const tree *t = *state;
    put_model(t, "own/M", config_llama);
    put_weights(t, "own/M/consolidated.safetensors");
    put_weights(t, "own/M/optiq_vision.safetensors");
    qn_store *s = scanned(t, false);
    const qn_model_entry *e = qn_store_at(s, 0);
    uint64_t two_files = e->size_bytes;
    assert_true(e->has_vision);
    qn_store_close(s);
    put(t, "own/M/model.safetensors.index.json",
        "{\"metadata\":{\"total_parameters\":77},\"weight_map\":{\"m.weight\":\"model.safetensors\"}}");
    s = scanned(t, true);
    e = qn_store_at(s, 0);
    assert_int_equal(e->size_bytes * 2, two_files);
    assert_int_equal(e->n_params, 77);
    qn_store_close(s);
}

static void order_of_rules(void **state)
{
    const tree *t = *state;
    put_model(t, "own/org/X", config_llama);
    put_model(t, "own/org/X-4bit", config_llama);
    put_model(t, "own/other/Big-X-4bit", config_llama);
    put_model(t, "own/other/d_assistant", "{\"model_type\":\"q_assistant\"}");
    finds(t, "org/X", "org/X");
    finds(t, "ORG/x", "org/X");
    finds(t, "x", "org/X");
    finds(t, "g-x-4bit", "other/Big-X-4bit");
    finds(t, "big", "other/Big-X-4bit");
    refuses(t, "4bit", QN_INVALID, "\"4bit\" is ambiguous: org/X-4bit, other/Big-X-4bit");
    refuses(t, "%", QN_NOT_FOUND, "no model matches");
    refuses(t, "d_assistant", QN_NOT_FOUND, "no model matches");
    refuses(t, "org/X-8bit", QN_NOT_FOUND, "near it: org/X-4bit");
    refuses(t, NULL, QN_INVALID, "several models are here");
}

static void same_id_in_both_places(void **state)
{
    const tree *t = *state;
    put_model(t, "own/org/A", config_llama);
    put_model(t, "hub/models--org--A/snapshots/aaa", config_llama);
    qn_store *s = open_store(t, false);
    const qn_model_entry *e;
    assert_int_equal(qn_store_find(s, "org/A", &e, NULL), QN_OK);
    assert_true(e->own);
    assert_int_equal(qn_store_find(s, NULL, &e, NULL), QN_OK);
    assert_true(e->own);
    qn_store_close(s);
}

static void folders_and_files(void **state)
{
    const tree *t = *state;
    char path[512];
    put_model(t, "elsewhere/Here", config_llama);
    put_model(t, "own/org/A", config_llama);
    put_model(t, "hub/models--org--Z/snapshots/zzz", config_llama);
    put(t, "empty/x.gguf", "GGUF");
    put(t, "bare/config.json", config_llama);
    static const struct { const char *path, *id; } good[] = {
        {"elsewhere/Here", "Here"}, {"elsewhere/Here/", "Here"}, {"own/org/A", "org/A"},
        {"hub/models--org--Z/snapshots/zzz", "org/Z"},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(path, sizeof path, "%s/%s", t->root, good[i].path);
        finds(t, path, good[i].id);
    }
    static const struct { const char *path; qn_code code; const char *text; } bad[] = {
        {"empty/x.gguf", QN_INVALID, "is a file"}, {"empty", QN_NOT_FOUND, "not a model folder"},
        {"bare", QN_FORMAT, "no .safetensors"}, {"missing", QN_NOT_FOUND, "no such folder"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(path, sizeof path, "%s/%s", t->root, bad[i].path);
        refuses(t, path, bad[i].code, bad[i].text);
    }
}

static void hub_place_from_environment(void **state)
{
    (void)state;
    static const char *const keys[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"};
    for (size_t i = 0; i < 4; i++) unsetenv(keys[i]);
    setenv("HOME", "/h", 1);
    char dir[256], small[8];
    static const struct { const char *key, *value, *want; } steps[] = {
        {"HOME", "/h", "/h/.cache/huggingface/hub"}, {"XDG_CACHE_HOME", "/x", "/x/huggingface/hub"},
        {"HF_HOME", "~/f", "/h/f/hub"}, {"HUGGINGFACE_HUB_CACHE", "$XDG_CACHE_HOME/l", "/x/l"},
        {"HF_HUB_CACHE", "/c/${HF_HOME}$", "/c/~/f$"},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        setenv(steps[i].key, steps[i].value, 1);
        assert_int_equal(qn_store_hub_dir(dir, sizeof dir, NULL), QN_OK);
        assert_string_equal(dir, steps[i].want);
    }
    assert_int_equal(qn_store_hub_dir(small, sizeof small, NULL), QN_OK);
    setenv("HF_HUB_CACHE", "/a/very/long/path", 1);
    assert_int_equal(qn_store_hub_dir(small, sizeof small, NULL), QN_LIMIT);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, make_tree, drop_tree)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(empty_places), CASE(own_folder), CASE(hub_snapshots), CASE(index_names_the_files),
        CASE(order_of_rules), CASE(same_id_in_both_places), CASE(folders_and_files),
        cmocka_unit_test(hub_place_from_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
