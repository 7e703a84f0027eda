/* engine_golden_test.c - every model family against mlx-lm's logits on synthetic checkpoints
 * (tests/golden/make.py), on the cpu device.
 *
 * float32 cases: every logit within 1e-4 of the largest one, the greedy tokens equal (but for ties
 * within the gate). 16-bit cases: mean KL divergence from mlx-lm's logits with the same weights and
 * float32 activations, at most MAX_KL_16BIT; ours differ by the rounding of keys and values to 16
 * bits (measured: at most 8e-4). With experts a near tie of the router may fall the other way:
 * MAX_KL_EXPERTS (measured: 3.1e-3, qwen3_moe). Chunked and token-by-token runs must give the bits
 * of the whole one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base64.h"
#include "compute/device.h"
#include "core/file.h"
#include "engine/score.h"
#include "synth.h"

enum { MAX_POS = 64, MAX_VOCAB = 256 };
static const double MAX_F32 = 1e-4, MAX_KL_16BIT = 1e-3,
                    MAX_KL_EXPERTS = 5e-3;

typedef struct logits {
    uint32_t n_vocab;
    float v[MAX_POS * MAX_VOCAB];
} logits;

static qn_code keep(void *user, uint32_t first, uint32_t n, const float *rows, qn_err *err)
{
    (void)err;
    logits *l = user;
    memcpy(l->v + (size_t)first * l->n_vocab, rows, (size_t)n * l->n_vocab * sizeof *rows);
    return QN_OK;
}

static uint32_t read_ids(const json_t *list, uint32_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    return best;
}

static double kl(const float *p, const float *q, uint32_t n)
{
    double zp = 0, zq = 0, mp = p[argmax(p, n)], mq = q[argmax(q, n)], sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        zp += exp(p[i] - mp);
        zq += exp(q[i] - mq);
    }
    for (uint32_t i = 0; i < n; i++) {
        double lp = p[i] - mp - log(zp), lq = q[i] - mq - log(zq);
        sum += exp(lp) * (lp - lq);
    }
    return sum;
}

typedef struct loaded {
    char dir[64];
    qn_folder *folder;
    qn_device *dev;
    qn_model *model;
} loaded;

static void open_case(loaded *l, const char *label, const char *device, const json_t *recipe)
{
    qn_err err = {0};
    strcpy(l->dir, "/tmp/quern-golden-XXXXXX");
    assert_non_null(mkdtemp(l->dir));
    if (qn_synth_write(recipe, l->dir, &err)) fail_msg("%s: %s", label, err.text);
    if (qn_folder_open(&l->folder, l->dir, false, &err)) fail_msg("%s: %s", label, err.text);
    if (qn_device_open(&l->dev, &(qn_device_opts){.name = device, .n_threads = 2}, &err))
        fail_msg("%s: %s", label, err.text);
    if (qn_model_open(&l->model, l->folder, l->dev, &(qn_model_opts){0}, &err))
        fail_msg("%s: %s", label, err.text);
}

static void close_case(loaded *l)
{
    qn_err err = {0};
    qn_model_close(l->model);
    l->dev->ops->close(l->dev);
    qn_folder_close(l->folder);
    assert_int_equal(qn_remove_tree(l->dir, &err), QN_OK);
}

static void score(const loaded *l, const uint32_t *ids, uint32_t n, const qn_score_opts *o,
                  logits *out)
{
    qn_err err = {0};
    out->n_vocab = l->model->info.n_vocab;
    assert_true(n <= MAX_POS && out->n_vocab <= MAX_VOCAB);
    if (qn_score(l->model, ids, n, o, keep, out, &err)) fail_msg("%s", err.text);
}

/* max_f32: gate of a float32 case; 0: a 16-bit case. */
static void check_against(const char *label, const logits *got, const float *want,
                          uint32_t n_prompt, double max_f32)
{
    uint32_t v = got->n_vocab;
    double worst = 0, largest = 0, sum_kl = 0;
    for (uint32_t i = 0; i < n_prompt * v; i++) {
        worst = fmax(worst, fabs((double)got->v[i] - want[i]));
        largest = fmax(largest, fabs(want[i]));
    }
    for (uint32_t i = 0; i < n_prompt; i++)
        sum_kl += kl(want + (size_t)i * v, got->v + (size_t)i * v, v);
    if (max_f32 > 0 && !(worst <= max_f32 * largest))
        fail_msg("%s: off by %g of %g", label, worst, largest);
    double max_kl = strstr(label, "moe") ? MAX_KL_EXPERTS : MAX_KL_16BIT;
    if (max_f32 == 0 && !(sum_kl / n_prompt <= max_kl))
        fail_msg("%s: KL %g", label, sum_kl / n_prompt);
}

static void check_case(const char *family, const json_t *c)
{
    char label[128];
    snprintf(label, sizeof label, "%s %s", family, json_string_value(json_object_get(c, "name")));
    bool f32 = !strcmp(json_string_value(json_object_get(c, "dtype")), "float32");
    static float want[MAX_POS * MAX_VOCAB];
    static logits whole, cut;
    uint32_t ids[MAX_POS], n_prompt = read_ids(json_object_get(c, "ids"), ids);
    uint32_t greedy[MAX_POS], n_greedy = read_ids(json_object_get(c, "greedy"), greedy);
    qn_test_base64(json_string_value(json_object_get(c, f32 ? "logits" : "logits_f32")), (uint8_t *)want);
    memcpy(ids + n_prompt, greedy, (n_greedy - 1) * sizeof *ids);
    uint32_t n = n_prompt + n_greedy - 1;
    loaded l;
    open_case(&l, label, "cpu", json_object_get(c, "recipe"));
    score(&l, ids, n, NULL, &whole);
    double gate = f32 ? MAX_F32 : 0;
    check_against(label, &whole, want, n_prompt, gate);
    for (uint32_t i = 0; f32 && i < n_greedy; i++) {
        const float *row = whole.v + (size_t)(n_prompt - 1 + i) * whole.n_vocab;
        uint32_t got = argmax(row, whole.n_vocab);
        /* Two logits closer than what the gate allows to both may change places. */
        if (row[got] - row[greedy[i]] > 2 * gate * fabs(row[got]))
            fail_msg("%s: greedy token %u is %u, mlx-lm has %u", label, i, got, greedy[i]);
    }
    const uint32_t chunks[] = {7, 10};
    score(&l, ids, n, &(qn_score_opts){.chunks = chunks, .n_chunks = 2, .block_tokens = 16}, &cut);
    assert_memory_equal(cut.v, whole.v, (size_t)n * whole.n_vocab * sizeof(float));
    score(&l, ids, n, &(qn_score_opts){.max_chunk = 1, .block_tokens = 256}, &cut);
    assert_memory_equal(cut.v, whole.v, (size_t)n * whole.n_vocab * sizeof(float));
    close_case(&l);
}

/* The reference device: mlx-lm's bits, whole, chunked and token by token, and its tokens. */
static void check_exact(const char *family, const json_t *c)
{
    char label[128];
    snprintf(label, sizeof label, "%s %s on ref", family,
             json_string_value(json_object_get(c, "name")));
    static float want[MAX_POS * MAX_VOCAB];
    static logits got;
    uint32_t ids[MAX_POS], n_prompt = read_ids(json_object_get(c, "ids"), ids);
    uint32_t greedy[MAX_POS], n_greedy = read_ids(json_object_get(c, "greedy"), greedy);
    qn_test_base64(json_string_value(json_object_get(c, "logits")), (uint8_t *)want);
    memcpy(ids + n_prompt, greedy, (n_greedy - 1) * sizeof *ids);
    loaded l;
    open_case(&l, label, "ref", json_object_get(c, "recipe"));
    const uint32_t chunks[] = {7, 10};
    const qn_score_opts how[] = {
        {0}, {.chunks = chunks, .n_chunks = 2, .block_tokens = 16}, {.max_chunk = 1}};
    for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
        score(&l, ids, n_prompt + n_greedy - 1, &how[k], &got);
        uint32_t v = got.n_vocab, off = 0;
        for (uint32_t i = 0; i < n_prompt * v; i++) off += got.v[i] != want[i];
        if (off) fail_msg("%s: %u of %u logits differ (run %zu)", label, off, n_prompt * v, k);
        for (uint32_t i = 0; i < n_greedy; i++) {
            uint32_t id = argmax(got.v + (size_t)(n_prompt - 1 + i) * v, v);
            if (id != greedy[i])
                fail_msg("%s: greedy token %u is %u, mlx-lm has %u", label, i, id, greedy[i]);
        }
    }
    close_case(&l);
}

static void check_file(const char *path)
{
    json_error_t e;
    json_t *data = json_load_file(path, 0, &e), *c;
    if (!data) fail_msg("%s: %s", path, e.text);
    size_t i;
    assert_true(json_array_size(json_object_get(data, "cases")) > 0);
    json_array_foreach(json_object_get(data, "cases"), i, c) {
        check_case(json_string_value(json_object_get(data, "family")), c);
        check_exact(json_string_value(json_object_get(data, "family")), c);
    }
    json_decref(data);
}

/* Every supported model_type that is not an alias has a file; every file is checked. */
static void test_families(void **state)
{
    (void)state;
    DIR *d = opendir(QN_TEST_DIR "/golden/models");
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        const char *only = getenv("QUERN_TEST_FAMILY");
        if (!strstr(e->d_name, ".json") || (only && strncmp(e->d_name, only, strlen(only))))
            continue;
        char path[1024];
        snprintf(path, sizeof path, QN_TEST_DIR "/golden/models/%s", e->d_name);
        check_file(path);
        n++;
    }
    closedir(d);
    assert_true(n > 0);
}

static void test_every_type_has_goldens(void **state)
{
    (void)state;
    for (const char *const *t = qn_model_types(); *t; t++) {
        if (!strcmp(*t, "mistral") || !strcmp(*t, "iquestcoder") || !strcmp(*t, "qwen3_5_text")) {
            continue; /* aliases */
        }
        char path[1024];
        snprintf(path, sizeof path, QN_TEST_DIR "/golden/models/%s.json", *t);
        if (!qn_is_file(path)) fail_msg("no golden data for %s", *t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families), cmocka_unit_test(test_every_type_has_goldens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
