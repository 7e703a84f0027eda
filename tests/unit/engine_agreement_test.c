/* engine_agreement_test.c - the real model against mlx-lm in float32
 * (tests/golden/make_agreement.py).
 *
 * Teacher-forced along mlx-lm's greedy replies, 20 prompts of 64 tokens: at least 99.5 % of the
 * most likely tokens are the same, and where one is not, mlx-lm's own two best logits are closer
 * than 0.05. Needs the converted model in QUERN_MODEL; without it the test is skipped and says so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "compute/device.h"
#include "engine/score.h"

enum { MAX_IDS = 512 };

typedef struct best {
    uint32_t n_vocab, id[MAX_IDS];
} best;

static qn_code keep_best(void *user, uint32_t first, uint32_t n, const float *rows, qn_err *err)
{
    (void)err;
    best *b = user;
    for (uint32_t i = 0; i < n; i++) {
        const float *row = rows + (size_t)i * b->n_vocab;
        uint32_t a = 0;
        for (uint32_t v = 1; v < b->n_vocab; v++) a = row[v] > row[a] ? v : a;
        b->id[first + i] = a;
    }
    return QN_OK;
}

typedef struct tally {
    uint32_t same, total;
    double largest_gap;
} tally;

static void count_case(qn_model *m, const json_t *c, tally *t)
{
    static best b;
    uint32_t ids[MAX_IDS], n = 0;
    const json_t *prompt = json_object_get(c, "prompt"), *steps = json_object_get(c, "steps");
    size_t n_steps = json_array_size(steps), n_prompt = json_array_size(prompt);
    assert_true(n_prompt + n_steps <= MAX_IDS);
    for (size_t i = 0; i < n_prompt; i++)
        ids[n++] = (uint32_t)json_integer_value(json_array_get(prompt, i));
    for (size_t i = 0; i + 1 < n_steps; i++) {
        ids[n++] = (uint32_t)json_integer_value(json_array_get(json_array_get(steps, i), 0));
    }
    qn_err err = {0};
    b.n_vocab = m->info.n_vocab;
    if (qn_score(m, ids, n, NULL, keep_best, &b, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < n_steps; i++) {
        const json_t *s = json_array_get(steps, i);
        double gap = json_number_value(json_array_get(s, 2));
        t->total++;
        if (b.id[n_prompt - 1 + i] == (uint32_t)json_integer_value(json_array_get(s, 0))) t->same++;
        else if (gap > t->largest_gap) t->largest_gap = gap;
    }
}

static void test_agreement(void **state)
{
    (void)state;
    const char *dir = getenv("QUERN_MODEL");
    if (!dir) {
        print_message("SKIPPED: QUERN_MODEL does not name the converted SmolLM2 folder\n");
        skip();
    }
    qn_err err = {0};
    json_error_t je;
    qn_folder *f;
    qn_device *dev;
    qn_model *m;
    json_t *golden = json_load_file(QN_TEST_DIR "/golden/agreement.json", 0, &je), *c;
    assert_non_null(golden);
    if (qn_folder_open(&f, dir, false, &err) || qn_device_open(&dev, &(qn_device_opts){0}, &err) ||
        qn_model_open(&m, f, dev, &(qn_model_opts){0}, &err)) {
        fail_msg("%s", err.text);
    }
    tally t = {0};
    size_t i;
    json_array_foreach(json_object_get(golden, "cases"), i, c) count_case(m, c, &t);
    print_message("agreement %u of %u (%.2f %%), largest gap of a disagreement %.4f\n", t.same,
                  t.total, 100.0 * t.same / t.total, t.largest_gap);
    assert_int_equal(t.total, 20 * 64);
    assert_true(t.same >= 0.995 * t.total);
    assert_true(t.largest_gap < 0.05);
    qn_model_close(m);
    dev->ops->close(dev);
    qn_folder_close(f);
    json_decref(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_agreement)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
