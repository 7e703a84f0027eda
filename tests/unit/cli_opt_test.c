/* cli_opt_test.c - the option parser: every rule of the grammar, as a table of command lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "cli/opt.c"

static qn_code check_scheme(const char *text, qn_err *err)
{
    if (!strcmp(text, "good")) return QN_OK;
    return qn_err_set(err, QN_INVALID, "unknown scheme %s", text);
}

static const qn_opt all_opts[] = {
    {.name = "open", .kind = QN_OPT_BOOL, .help = "a boolean"},
    {.name = "mtp", .kind = QN_OPT_SWITCH, .dflt = "on"},
    {.name = "prompt", .brief = "p", .kind = QN_OPT_STR},
    {.name = "max-tokens", .brief = "m", .kind = QN_OPT_INT, .min = 1, .max = 1e7, .dflt = "256"},
    {.name = "seed", .kind = QN_OPT_INT},
    {.name = "temperature", .kind = QN_OPT_FLOAT, .min = 0, .max = 5, .dflt = "0", .env = "TEST_TEMP"},
    {.name = "temp", .kind = QN_OPT_FLOAT, .min = 0, .max = 5, .same_as = "temperature"},
    {.name = "budget", .kind = QN_OPT_SIZE, .size_rule = QN_SIZE_GB},
    {.name = "mode", .kind = QN_OPT_ENUM, .choices = "affine|mxfp4", .dflt = "affine"},
    {.name = "bits", .kind = QN_OPT_LIST},
    {.name = "key", .kind = QN_OPT_LIST, .adds = true, .env = "TEST_KEY"},
    {.name = "pp", .kind = QN_OPT_INTS, .min = 1, .max = 100000, .dflt = "512"},
    {.name = "stop", .kind = QN_OPT_WORDS},
    {.name = "scheme", .kind = QN_OPT_STR, .check = check_scheme},
    {.name = "scheme-bits", .kind = QN_OPT_INT, .not_with = "scheme", .dflt = "3"},
    {.name = "quantize-activations", .brief = "qa", .kind = QN_OPT_BOOL, .ignored = "tested elsewhere"},
    {.name = "pipeline", .kind = QN_OPT_BOOL, .refused = "one host only"},
    {0},
};
static const qn_opt_group groups[] = {{"Options", all_opts}, {0}};
static const qn_pos positionals[] = {{"MODEL", "m", false}, {"PROMPT", "p", false}, {0}};
static const qn_verb verb = {.name = "try", .summary = "s", .pos = positionals, .groups = groups};

/* Parse the NULL terminated tokens. */
static qn_code parse(qn_args **a, qn_err *err, const char *const *words)
{
    int n = 0;
    while (words[n]) n++;
    memset(err, 0, sizeof *err);
    return qn_args_parse(a, &verb, n, (char **)(uintptr_t)words, err);
}

#define PARSE(a, ...) \
    do { \
        qn_err err_; \
        assert_int_equal(parse(&(a), &err_, (const char *const[]){__VA_ARGS__, NULL}), QN_OK); \
    } while (0)

static void expect_error(const char *const *words, qn_code code, const char *text)
{
    qn_args *a;
    qn_err err;
    assert_int_equal(parse(&a, &err, words), code);
    assert_null(a);
    if (!strstr(err.text, text)) fail_msg("\"%s\" lacks \"%s\"", err.text, text);
}

#define FAILS(code, text, ...) expect_error((const char *const[]){__VA_ARGS__, NULL}, code, text)

static void boolean_never_eats_a_token(void **state)
{
    (void)state;
    qn_args *a;
    PARSE(a, "--open", "12B");
    assert_true(qn_arg_bool(a, "open"));
    assert_string_equal(qn_arg_pos(a, 0), "12B");
    qn_args_free(a);
    PARSE(a, "--open=OFF", "--mtp", "False");
    assert_false(qn_arg_bool(a, "open"));
    assert_true(qn_arg_given(a, "open"));
    assert_false(qn_arg_bool(a, "mtp"));
    qn_args_free(a);
    FAILS(QN_INVALID, "--open expects on or off, not \"maybe\"", "--open=maybe");
    FAILS(QN_INVALID, "--mtp expects a value", "--mtp");
}

static void values_and_last_wins(void **state)
{
    (void)state;
    qn_args *a;
    PARSE(a, "--max-tokens", "5", "--max-tokens=7", "--prompt=a=b", "M");
    assert_int_equal(qn_arg_int(a, "max-tokens"), 7);
    assert_string_equal(qn_arg_str(a, "prompt"), "a=b");
    assert_string_equal(qn_arg_str(a, "mode"), "affine");
    assert_false(qn_arg_given(a, "mode"));
    qn_args_free(a);
    PARSE(a, "-m", "9", "-p=x");
    assert_int_equal(qn_arg_int(a, "max-tokens"), 9);
    assert_string_equal(qn_arg_str(a, "prompt"), "x");
    qn_args_free(a);
    PARSE(a, "-m12", "--prompt", "");
    assert_int_equal(qn_arg_int(a, "max-tokens"), 12);
    assert_string_equal(qn_arg_str(a, "prompt"), "");
    qn_args_free(a);
}

static void checked_values(void **state)
{
    (void)state;
    qn_args *a;
    PARSE(a, "--scheme", "good");
    assert_string_equal(qn_arg_str(a, "scheme"), "good");
    qn_args_free(a);
    FAILS(QN_INVALID, "unknown scheme bad", "--scheme", "bad");
    FAILS(QN_INVALID, "--scheme and --scheme-bits exclude each other", "--scheme-bits", "1", "--scheme", "good");
    PARSE(a, "--scheme-bits", "1");
    assert_null(qn_arg_str(a, "scheme"));
    qn_args_free(a);
}

static void dash_led_values(void **state)
{
    (void)state;
    qn_args *a;
    PARSE(a, "--seed=-1", "--prompt", "-");
    assert_int_equal(qn_arg_int(a, "seed"), -1);
    assert_string_equal(qn_arg_str(a, "prompt"), "-");
    qn_args_free(a);
    PARSE(a, "--seed", "-1", "-.5", "-1e3");
    assert_int_equal(qn_arg_int(a, "seed"), -1);
    assert_string_equal(qn_arg_pos(a, 0), "-.5");
    assert_string_equal(qn_arg_pos(a, 1), "-1e3");
    qn_args_free(a);
    FAILS(QN_INVALID, "--prompt expects a value", "--prompt", "--open");
    FAILS(QN_INVALID, "--prompt expects a value", "--prompt", "-x");
    FAILS(QN_INVALID, "--prompt expects a value", "--prompt");
    FAILS(QN_INVALID, "--prompt expects a value", "--prompt", "--");
    PARSE(a, "--prompt=--open");
    assert_string_equal(qn_arg_str(a, "prompt"), "--open");
    qn_args_free(a);
}

static void double_dash_ends_options(void **state)
{
    (void)state;
    qn_args *a;
    PARSE(a, "--", "--open", "-h");
    assert_false(qn_args_wants_help(a));
    assert_false(qn_arg_bool(a, "open"));
    assert_string_equal(qn_arg_pos(a, 0), "--open");
    assert_string_equal(qn_arg_pos(a, 1), "-h");
    qn_args_free(a);
    FAILS(QN_INVALID, "unexpected argument \"c\"", "a", "b", "c");
}

static void unknown_flags(void **state)
{
    (void)state;
    FAILS(QN_INVALID, "unknown flag --temprature; did you mean --temperature?", "--temprature", "1");
    FAILS(QN_INVALID, "unknown flag --max-token; did you mean --max-tokens?", "--max-token=3");
    FAILS(QN_INVALID, "unknown flag --frobnicate; \"quern help try\"", "--frobnicate");
    FAILS(QN_INVALID, "unknown flag -z", "-z");
    FAILS(QN_UNSUPPORTED, "not supported yet: --pipeline: one host only", "--pipeline");
}

static void ranges_and_kinds(void **state)
{
    (void)state;
    FAILS(QN_INVALID, "--max-tokens: 0 is outside of 1 to 10000000", "-m", "0");
    FAILS(QN_INVALID, "--max-tokens expects a whole number, not \"5x\"", "-m", "5x");
    FAILS(QN_INVALID, "--max-tokens expects a whole number", "-m", "99999999999999999999");
    FAILS(QN_INVALID, "--temperature expects a number, not \"nan\"", "--temperature", "nan");
    FAILS(QN_INVALID, "--temp: 6 is outside of 0 to 5", "--temp", "6");
    FAILS(QN_INVALID, "--mode: \"aff\" is not one of affine|mxfp4", "--mode", "aff");
    FAILS(QN_INVALID, "--pp: 0 is outside", "--pp", "1,0");
    FAILS(QN_INVALID, "--budget: bad size: x", "--budget", "x");
    qn_args *a;
    PARSE(a, "--temperature", "0x1p-1");
    assert_true(qn_arg_float(a, "temperature") == 0.5);
    qn_args_free(a);
}

static void own_name_beats_other_spelling(void **state)
{
    (void)state;
    qn_args *a;
    PARSE(a, "--temperature", "1", "--temp", "2");
    assert_true(qn_arg_float(a, "temperature") == 1);
    qn_args_free(a);
    PARSE(a, "--temp", "2");
    assert_true(qn_arg_float(a, "temperature") == 2);
    qn_args_free(a);
}

static void environment_is_between_flag_and_default(void **state)
{
    (void)state;
    qn_args *a;
    const qn_rt *before = qn_rt_set("TEST_TEMP", "3");
    PARSE(a, "M");
    assert_true(qn_arg_float(a, "temperature") == 3);
    assert_true(qn_arg_given(a, "temperature"));
    qn_args_free(a);
    PARSE(a, "--temp", "2");
    assert_true(qn_arg_float(a, "temperature") == 2);
    qn_args_free(a);
    qn_rt_set("TEST_TEMP", "hot");
    FAILS(QN_INVALID, "QUERN_TEST_TEMP expects a number, not \"hot\"", "M");
    qn_rt_restore(before);
}

static void lists(void **state)
{
    (void)state;
    qn_args *a;
    size_t n;
    PARSE(a, "--bits", "4,,8,", "--pp", "1,2,3", "--stop", "x", "-1", "y", "--open");
    const char *const *bits = qn_arg_words(a, "bits", &n);
    assert_int_equal(n, 2);
    assert_string_equal(bits[1], "8");
    const int64_t *pp = qn_arg_ints(a, "pp", &n);
    assert_int_equal(n, 3);
    assert_int_equal(pp[2], 3);
    const char *const *stop = qn_arg_words(a, "stop", &n);
    assert_int_equal(n, 3);
    assert_string_equal(stop[1], "-1");
    assert_null(stop[3]);
    assert_true(qn_arg_bool(a, "open"));
    qn_args_free(a);
    PARSE(a, "M");
    assert_int_equal(qn_arg_ints(a, "pp", &n)[0], 512);
    assert_int_equal(n, 1);
    qn_args_free(a);
    FAILS(QN_INVALID, "--stop expects a value", "--stop", "--open");
    PARSE(a, "--bits", "4", "--bits", "8", "--key", "a", "--key", "b,c");
    assert_string_equal(qn_arg_words(a, "bits", &n)[0], "8");
    assert_int_equal(n, 1);
    const char *const *keys = qn_arg_words(a, "key", &n);
    assert_int_equal(n, 3);
    assert_string_equal(keys[0], "a");
    assert_string_equal(keys[2], "c");
    assert_null(keys[3]);
    qn_args_free(a);
    FAILS(QN_INVALID, "--key expects a value, not \"\"", "--key", "");
    FAILS(QN_INVALID, "--key expects a value, not \",\"", "--key", "a", "--key", ",");
}

static void help_wins(void **state)
{
    (void)state;
    qn_args *a;
    PARSE(a, "--nonsense", "--prompt", "-h");
    assert_true(qn_args_wants_help(a));
    qn_args_free(a);
}

static void sizes(void **state)
{
    (void)state;
    static const struct { const char *text; qn_size_rule rule; bool ok; uint64_t bytes; } cases[] = {
        {"10", QN_SIZE_BYTES, true, 10}, {"1.5GB", QN_SIZE_BYTES, true, 1500000000},
        {"2 G", QN_SIZE_BYTES, true, 2000000000}, {"3m", QN_SIZE_BYTES, true, 3000000},
        {"3MiB", QN_SIZE_BYTES, false, 0}, {"x", QN_SIZE_BYTES, false, 0}, {"", QN_SIZE_BYTES, false, 0},
        {"1.5", QN_SIZE_GB, true, 1500000000}, {"1GiB", QN_SIZE_GB, true, 1u << 30},
        {"2", QN_SIZE_GIB, true, 2ull << 30}, {"1GB", QN_SIZE_GIB, true, 1000000000},
        {"1GB", QN_SIZE_LS, true, 1u << 30}, {"0.5 g", QN_SIZE_LS, true, 1u << 29},
        {"5MB", QN_SIZE_LS, true, 5u << 20}, {"5TB", QN_SIZE_LS, false, 0}, {"-1", QN_SIZE_GB, false, 0},
        {"1.2.3", QN_SIZE_GB, false, 0}, {"99999999999999999", QN_SIZE_GB, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes = 0;
        bool ok = qn_size_parse(cases[i].text, cases[i].rule, &bytes);
        if (ok != cases[i].ok || bytes != cases[i].bytes) fail_msg("case %zu: %s", i, cases[i].text);
    }
}

static void required_positional(void **state)
{
    (void)state;
    static const qn_pos need[] = {{"SHELL", "", true}, {0}};
    const qn_verb v = {.name = "completion", .pos = need};
    qn_args *a;
    qn_err err = {0};
    assert_int_equal(qn_args_parse(&a, &v, 0, NULL, &err), QN_INVALID);
    assert_non_null(strstr(err.text, "SHELL is missing"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boolean_never_eats_a_token),
        cmocka_unit_test(values_and_last_wins),
        cmocka_unit_test(checked_values),
        cmocka_unit_test(dash_led_values),
        cmocka_unit_test(double_dash_ends_options),
        cmocka_unit_test(unknown_flags),
        cmocka_unit_test(ranges_and_kinds),
        cmocka_unit_test(own_name_beats_other_spelling),
        cmocka_unit_test(environment_is_between_flag_and_default),
        cmocka_unit_test(lists),
        cmocka_unit_test(help_wins),
        cmocka_unit_test(sizes),
        cmocka_unit_test(required_positional),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
