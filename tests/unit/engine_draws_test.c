/* engine_draws_test.c - how far mlx-lm's generator is advanced when a model has been built, for
 * every synthetic checkpoint (tests/golden/make_draws.py): seeded runs of `generate --l1` start
 * there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compute/device.h"
#include "core/file.h"
#include "model/model.h"
#include "synth.h"

static uint32_t draws_of(const char *label, const json_t *recipe)
{
    char dir[] = "/tmp/quern-draws-XXXXXX";
    qn_err err = {0};
    qn_folder *folder = NULL;
    qn_device *dev = NULL;
    qn_model *model = NULL;
    assert_non_null(mkdtemp(dir));
    if (qn_synth_write(recipe, dir, &err) || qn_folder_open(&folder, dir, false, &err) ||
        qn_device_open(&dev, &(qn_device_opts){.name = "ref", .n_threads = 1}, &err) ||
        qn_model_open(&model, folder, dev, &(qn_model_opts){0}, &err)) {
        fail_msg("%s: %s", label, err.text);
    }
    uint32_t n = model->info.n_init_draws;
    qn_model_close(model);
    dev->ops->close(dev);
    qn_folder_close(folder);
    assert_int_equal(qn_remove_tree(dir, &err), QN_OK);
    return n;
}

/* Number of cases checked. */
static uint32_t check_family(const char *family, const json_t *want)
{
    char path[256];
    json_error_t e;
    snprintf(path, sizeof path, "%s/golden/models/%s.json", QN_TEST_DIR, family);
    json_t *data = json_load_file(path, 0, &e), *c;
    assert_non_null(data);
    size_t i;
    json_array_foreach(json_object_get(data, "cases"), i, c) {
        char label[128];
        const char *name = json_string_value(json_object_get(c, "name"));
        snprintf(label, sizeof label, "%s %s", family, name);
        uint32_t got = draws_of(label, json_object_get(c, "recipe"));
        uint32_t right = (uint32_t)json_integer_value(json_object_get(want, name));
        if (got != right) fail_msg("%s: %u draws, must be %u", label, got, right);
    }
    json_decref(data);
    return (uint32_t)i;
}

static void test_draws(void **state)
{
    (void)state;
    json_error_t e;
    json_t *golden = json_load_file(QN_TEST_DIR "/golden/draws.json", 0, &e), *want;
    const char *family;
    uint32_t n = 0;
    assert_non_null(golden);
    json_object_foreach(golden, family, want) n += check_family(family, want);
    print_message("%u checkpoints\n", n);
    assert_true(n > 100);
    json_decref(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_draws)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
