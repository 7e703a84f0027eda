/* format_shard_test.c - safetensors: valid oddities, a table of broken headers, every truncation,
 * merged folders, and the writer read back. */
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

#include "core/buf.h"
#include "core/file.h"
#include "format/shard.h"

/* A file: the length of `json`, it, and n_data bytes that count upwards. */
static qn_buf make_file(const char *json, size_t n_data)
{
    qn_buf b = {0};
    uint64_t n = strlen(json);
    for (int i = 0; i < 8; i++) qn_buf_putc(&b, (char)(n >> (8 * i)));
    qn_buf_puts(&b, json);
    for (size_t i = 0; i < n_data; i++) qn_buf_putc(&b, (char)i);
    return b;
}

static qn_code parse(qn_shard **out, const char *json, size_t n_data, qn_buf *file, qn_err *err)
{
    *file = make_file(json, n_data);
    return qn_shard_parse(out, file->data, file->len, "f", err);
}

/* ---- reading ---- */

/* An odd header length, an empty tensor, a scalar, padding, metadata, escapes, one-byte types. */
static void test_oddities(void **state)
{
    (void)state;
    static const char json[] =
        "{\"__metadata__\":{\"format\":\"mlx\",\"n\":3},\n"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[1,5]},"
        "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[3,3]},"
        "\"a\\u00e9\":{\"dtype\":\"F8_E8M0\",\"shape\":[],\"data_offsets\":[0,1]},"
        "\"e\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1,1,1,1,1,1,2],\"data_offsets\":[9,11]}}  ";
    qn_err err = {0};
    qn_shard *s;
    qn_buf file;
    if (parse(&s, json, 11, &file, &err)) fail_msg("%s", err.text);
    assert_int_equal(qn_shard_count(s), 4);
    assert_string_equal(qn_shard_at(s, 0)->name, "a\xc3\xa9");
    assert_string_equal(qn_shard_at(s, 3)->name, "empty");
    const qn_stored *b = qn_shard_find(s, "b");
    assert_non_null(b);
    assert_int_equal(b->dtype, QN_BF16);
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->dims[0], 2);
    assert_int_equal(b->bytes, 4);
    assert_int_equal(((const uint8_t *)b->data)[0], 1);
    assert_int_equal(qn_shard_find(s, "a\xc3\xa9")->rank, 0);
    assert_int_equal(qn_shard_find(s, "a\xc3\xa9")->bytes, 1);
    assert_int_equal(qn_shard_find(s, "e")->rank, 8);
    assert_int_equal(qn_shard_find(s, "empty")->bytes, 0);
    assert_null(qn_shard_find(s, "c"));
    assert_string_equal(qn_shard_meta(s, "format"), "mlx");
    assert_null(qn_shard_meta(s, "n"));
    assert_null(qn_shard_meta(s, "other"));
    qn_shard_close(s);
    qn_buf_release(&file);
}

static void test_no_tensors(void **state)
{
    (void)state;
    qn_shard *s;
    qn_buf file;
    assert_int_equal(parse(&s, "{\"__metadata__\":null}", 0, &file, NULL), QN_OK);
    assert_int_equal(qn_shard_count(s), 0);
    assert_null(qn_shard_find(s, "x"));
    assert_null(qn_shard_meta(s, "format"));
    qn_shard_close(s);
    qn_buf_release(&file);
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

typedef struct broken {
    const char *json;
    size_t n_data;
    qn_code code;
    const char *text; /* part of the message */
} broken;

static const broken broken_headers[] = {
    {"", 0, QN_FORMAT, "header of 0 bytes"},
    {"x", 0, QN_FORMAT, "not valid JSON"},
    {"[]", 0, QN_FORMAT, "not a JSON object"},
    {"{} {}", 0, QN_FORMAT, "not valid JSON"},
    {"{\"\\u0000\":1}", 0, QN_FORMAT, "not valid JSON"},
    {"{\"a\":[[[[[[[[1]]]]]]]]}", 0, QN_FORMAT, "nested"},
    {"{\"__metadata__\":3}", 0, QN_FORMAT, "__metadata__"},
    {"{\"t\":7}", 4, QN_FORMAT, "\"t\" is not described"},
    {"{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, QN_FORMAT, "\"t\" has no dtype"},
    {"{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, QN_FORMAT, "\"t\" has no shape"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, QN_FORMAT, "\"t\" has no valid data_offsets"},
    {T("3", "[1]", "[0,4]"), 4, QN_FORMAT, "\"t\" has no dtype"},
    {T("\"F64\"", "[1]", "[0,8]"), 8, QN_UNSUPPORTED, "\"t\" has dtype F64"},
    {T("\"float32\"", "[1]", "[0,4]"), 4, QN_UNSUPPORTED, "float32"},
    {T("\"F32\"", "4", "[0,4]"), 4, QN_FORMAT, "no shape"},
    {T("\"F32\"", "[-1]", "[0,4]"), 4, QN_FORMAT, "whole number"},
    {T("\"F32\"", "[1.0]", "[0,4]"), 4, QN_FORMAT, "whole number"},
    {T("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, QN_FORMAT, "more than 8 dimensions"},
    {T("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 4, QN_FORMAT, "64 bits"},
    {T("\"U8\"", "[9223372036854775807,2,2]", "[0,4]"), 4, QN_FORMAT, "64 bits"},
    {T("\"F32\"", "[99999999999999999999]", "[0,4]"), 4, QN_FORMAT, "not valid JSON"},
    {T("\"F32\"", "[1]", "[0]"), 4, QN_FORMAT, "data_offsets"},
    {T("\"F32\"", "[1]", "[0,4,8]"), 4, QN_FORMAT, "data_offsets"},
    {T("\"F32\"", "[1]", "[4,0]"), 4, QN_FORMAT, "data_offsets"},
    {T("\"F32\"", "[1]", "[-4,0]"), 4, QN_FORMAT, "data_offsets"},
    {T("\"F32\"", "[1]", "[\"0\",\"4\"]"), 4, QN_FORMAT, "data_offsets"},
    {T("\"F32\"", "[2]", "[0,8]"), 7, QN_FORMAT, "truncated"},
    {T("\"F32\"", "[2]", "[0,4]"), 8, QN_FORMAT,
     "has 4 bytes of data, but its shape and dtype need 8"},
    {T("\"F32\"", "[1]", "[9223372036854775803,9223372036854775807]"), 4, QN_FORMAT, "truncated"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
     2, QN_FORMAT, "duplicate"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
     "\"u\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
     4, QN_FORMAT, "\"t\" and \"u\" overlap"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"u\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
     4, QN_FORMAT, "overlap"},
};

static void test_broken(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof broken_headers / sizeof *broken_headers; i++) {
        const broken *b = &broken_headers[i];
        qn_err err = {0};
        qn_shard *s = (qn_shard *)state;
        qn_buf file;
        qn_code rc = parse(&s, b->json, b->n_data, &file, &err);
        if (rc != b->code || err.code != rc || s) {
            fail_msg("%s: code %d: %s", b->json, rc, err.text);
        }
        if (!strstr(err.text, b->text)) fail_msg("%s: \"%s\"", b->json, err.text);
        if (strncmp(err.text, "f: ", 3)) fail_msg("%s: no file in \"%s\"", b->json, err.text);
        qn_buf_release(&file);
    }
}

/* The announced length alone: too long for the format, and longer than the file. */
static void test_header_length(void **state)
{
    (void)state;
    static const struct {
        uint8_t bytes[8];
        const char *text;
    } rows[] = {
        {{0x00, 0xE1, 0xF5, 0x05}, "header of 100000000 bytes"},
        {{0xFF, 0xE0, 0xF5, 0x05}, "truncated"},
        {{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, "18446744073709551615"},
        {{1}, "truncated"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_err err = {0};
        qn_shard *s;
        assert_int_equal(qn_shard_parse(&s, rows[i].bytes, 8, "f", &err), QN_FORMAT);
        if (!strstr(err.text, rows[i].text)) fail_msg("row %zu: %s", i, err.text);
    }
}

/* No prefix of a file opens; each is parsed from a block of exactly its size, so that the sanitizer
 * sees a read past the end. */
static void test_truncations(void **state)
{
    (void)state;
    qn_buf file = make_file("{\"a\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]},"
                            "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[6,8]}}",
                            8);
    for (size_t n = 0; n <= file.len; n++) {
        uint8_t *copy = malloc(n ? n : 1);
        memcpy(copy, file.data, n);
        qn_err err = {0};
        qn_shard *s;
        qn_code rc = qn_shard_parse(&s, copy, n, "f", &err);
        assert_int_equal(rc, n == file.len ? QN_OK : QN_FORMAT);
        qn_shard_close(s);
        free(copy);
    }
    qn_buf_release(&file);
}

/* ---- folders ---- */

static char *new_dir(void)
{
    static char dir[64];
    snprintf(dir, sizeof dir, "/tmp/qn_shard_test.XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void put_file(const char *dir, const char *name, const qn_buf *b)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(qn_file_write(path, b->data, b->len, NULL), QN_OK);
}

static void put_shard(const char *dir, const char *name, const char *json, size_t n_data)
{
    qn_buf b = make_file(json, n_data);
    put_file(dir, name, &b);
    qn_buf_release(&b);
}

static void put_text(const char *dir, const char *name, const char *text)
{
    qn_buf b = {0};
    qn_buf_puts(&b, text);
    put_file(dir, name, &b);
    qn_buf_release(&b);
}

#define ONE(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}"

static void expect_folder_error(const char *dir, qn_code code, const char *text)
{
    qn_err err = {0};
    qn_shards *s;
    qn_code rc = qn_shards_open(&s, dir, &err);
    if (rc != code || s || !strstr(err.text, text)) {
        fail_msg("code %d: \"%s\", should have \"%s\"", rc, err.text, text);
    }
}

static int open_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static void test_folder(void **state)
{
    (void)state;
    const char *dir = new_dir();
    int before = open_descriptors();
    expect_folder_error("/tmp/qn_no_such_folder", QN_NOT_FOUND, "qn_no_such_folder");
    put_text(dir, "notes.safetensors", "not a model file");
    expect_folder_error(dir, QN_NOT_FOUND, "no model*.safetensors");
    put_shard(dir, "model-00001-of-00002.safetensors", ONE("b"), 2);
    put_shard(dir, "model-00002-of-00002.safetensors", ONE("a"), 2);
    qn_shards *s;
    assert_int_equal(qn_shards_open(&s, dir, NULL), QN_OK);
    assert_int_equal(qn_shards_count(s), 2);
    assert_string_equal(qn_shards_at(s, 0)->name, "a");
    assert_non_null(qn_shards_find(s, "b"));
    assert_null(qn_shards_find(s, "c"));
    assert_int_equal(qn_shards_bytes(s), 4);
    qn_shards_close(s);

    put_text(dir, "model.safetensors.index.json",
             "{\"weight_map\":{\"c\":\"model-00003-of-00003.safetensors\"}}");
    expect_folder_error(dir, QN_NOT_FOUND, "model-00003-of-00003.safetensors");
    put_text(dir, "model.safetensors.index.json", "{\"weight_map\":{\"c\":\"../x\"}}");
    expect_folder_error(dir, QN_FORMAT, "\"c\"");
    put_text(dir, "model.safetensors.index.json", "{");
    expect_folder_error(dir, QN_FORMAT, "not valid JSON");
    put_text(dir, "model.safetensors.index.json",
             "{\"weight_map\":{\"b\":\"model-00001-of-00002.safetensors\"}}");
    put_shard(dir, "model-00002-of-00002.safetensors", ONE("b"), 2);
    expect_folder_error(dir, QN_FORMAT, "\"b\" is in more than one");
    put_shard(dir, "model-00002-of-00002.safetensors", ONE("a"), 1);
    expect_folder_error(dir, QN_FORMAT, "model-00002-of-00002.safetensors: tensor \"a\"");
    assert_int_equal(open_descriptors(), before);
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

static uint64_t fingerprint(const char *dir)
{
    qn_shards *s;
    assert_int_equal(qn_shards_open(&s, dir, NULL), QN_OK);
    uint64_t f = qn_shards_fingerprint(s);
    qn_shards_close(s);
    return f;
}

static void test_fingerprint(void **state)
{
    (void)state;
    const char *dir = new_dir();
    char from[128], to[128];
    put_shard(dir, "model.safetensors", ONE("a"), 2);
    uint64_t first = fingerprint(dir);
    assert_true(fingerprint(dir) == first);
    put_shard(dir, "model.safetensors", ONE("b"), 2);
    uint64_t second = fingerprint(dir);
    assert_true(second != first);
    snprintf(from, sizeof from, "%s/model.safetensors", dir);
    snprintf(to, sizeof to, "%s/model-1.safetensors", dir);
    assert_int_equal(rename(from, to), 0);
    assert_true(fingerprint(dir) != second);
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

/* ---- writing ---- */

static const qn_plan_tensor plan[] = {
    {"m.weight", QN_U32, 2, {3, 5}}, {"a.bias", QN_BF16, 1, {7}}, {"e", QN_F32, 2, {0, 3}},
    {"z.huge", QN_U8, 1, {100}},     {"scalar", QN_F16, 0, {0}},  {"b \"\\u00e9", QN_I64, 1, {2}},
};
enum { N_PLAN = sizeof plan / sizeof *plan };

static size_t plan_bytes(const qn_plan_tensor *t)
{
    size_t n = qn_dtype_size(t->dtype);
    for (uint32_t i = 0; i < t->rank; i++) n *= (size_t)t->dims[i];
    return n;
}

/* Writes the plan in pieces of 3 bytes; byte k of tensor i is 31*i + k. */
static void write_plan(const char *dir, uint64_t shard_bytes)
{
    qn_err err = {0};
    qn_shard_writer *w;
    if (qn_shard_writer_new(&w, dir, plan, N_PLAN, shard_bytes, 1234, &err)) {
        fail_msg("%s", err.text);
    }
    for (size_t i = 0; i < N_PLAN; i++) {
        size_t which = qn_shard_writer_order(w, i), n = plan_bytes(&plan[which]);
        for (size_t k = 0; k < n; k += 3) {
            uint8_t piece[3] = {(uint8_t)(31 * which + k), (uint8_t)(31 * which + k + 1),
                                (uint8_t)(31 * which + k + 2)};
            if (qn_shard_writer_put(w, piece, n - k < 3 ? n - k : 3, &err)) {
                fail_msg("%s", err.text);
            }
        }
    }
    if (qn_shard_writer_close(w, &err)) fail_msg("%s", err.text);
}

static void check_written(const char *dir)
{
    qn_err err = {0};
    qn_shards *s;
    if (qn_shards_open(&s, dir, &err)) fail_msg("%s", err.text);
    assert_int_equal(qn_shards_count(s), N_PLAN);
    for (size_t i = 0; i < N_PLAN; i++) {
        const qn_stored *t = qn_shards_find(s, plan[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, plan[i].dtype);
        assert_int_equal(t->rank, plan[i].rank);
        assert_memory_equal(t->dims, plan[i].dims, t->rank * sizeof *t->dims);
        for (size_t k = 0; k < t->bytes; k++) {
            assert_int_equal(((const uint8_t *)t->data)[k], (uint8_t)(31 * i + k));
        }
    }
    qn_shards_close(s);
}

static size_t count_files(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The header is padded to 8 and carries the metadata. */
static void check_header(const char *dir, const char *name)
{
    char path[256], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    qn_shard *s;
    assert_int_equal(qn_shard_open(&s, path, NULL), QN_OK);
    assert_string_equal(qn_shard_meta(s, "format"), "mlx");
    assert_true(qn_shard_count(s) > 0);
    qn_shard_close(s);
    assert_int_equal(qn_file_read(path, 1 << 20, &text, &size, NULL), QN_OK);
    assert_int_equal((uint8_t)text[0] % 8, 0);
    free(text);
}

static void test_writer_one_file(void **state)
{
    (void)state;
    const char *dir = new_dir();
    write_plan(dir, 0);
    check_written(dir);
    check_header(dir, "model.safetensors");
    assert_int_equal(count_files(dir), 2); /* and the index */
    char path[128], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    assert_int_equal(qn_file_read(path, 1 << 20, &text, &size, NULL), QN_OK);
    assert_non_null(strstr(text, "\"total_size\": 192"));
    assert_non_null(strstr(text, "\"total_parameters\": 1234"));
    assert_non_null(strstr(text, "\"a.bias\": \"model.safetensors\""));
    assert_true(strstr(text, "\"a.bias\"") < strstr(text, "\"z.huge\""));
    free(text);
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

/* Sizes in name order: a.bias 14, b 16, e 0, m.weight 60, scalar 2, z.huge 100. A limit of 40 gives
 * {a.bias b e} {m.weight} {scalar} {z.huge}; no shard is empty. */
static void test_writer_shards(void **state)
{
    (void)state;
    const char *dir = new_dir();
    write_plan(dir, 40);
    check_written(dir);
    assert_int_equal(count_files(dir), 5);
    for (int i = 1; i <= 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-00004.safetensors", i);
        check_header(dir, name);
    }
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
    for (uint64_t limit = 1; limit < 200; limit += 13) {
        dir = new_dir();
        write_plan(dir, limit);
        check_written(dir);
        assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
    }
}

static void test_writer_empty(void **state)
{
    (void)state;
    const char *dir = new_dir();
    qn_shard_writer *w;
    qn_shards *s;
    assert_int_equal(qn_shard_writer_new(&w, dir, NULL, 0, 0, 0, NULL), QN_OK);
    assert_int_equal(qn_shard_writer_close(w, NULL), QN_OK);
    assert_int_equal(qn_shards_open(&s, dir, NULL), QN_OK);
    assert_int_equal(qn_shards_count(s), 0);
    qn_shards_close(s);
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

static void test_writer_errors(void **state)
{
    (void)state;
    const char *dir = new_dir();
    static const qn_plan_tensor twice[] = {{"a", QN_U8, 1, {1}}, {"a", QN_U8, 1, {1}}};
    static const qn_plan_tensor huge = {"a", QN_F32, 2, {1ull << 40, 1ull << 40}};
    static const qn_plan_tensor reserved = {"__metadata__", QN_F32, 1, {1}},
                                one = {"a", QN_U8, 1, {2}};
    static const qn_plan_tensor not_utf8 = {"\xff", QN_F32, 1, {1}};
    qn_shard_writer *w;
    qn_err err = {0};
    assert_int_equal(qn_shard_writer_new(&w, dir, twice, 2, 0, 0, &err), QN_INVALID);
    assert_non_null(strstr(err.text, "\"a\" is planned twice"));
    assert_int_equal(qn_shard_writer_new(&w, dir, &huge, 1, 0, 0, NULL), QN_INVALID);
    assert_int_equal(qn_shard_writer_new(&w, dir, &reserved, 1, 0, 0, NULL), QN_INVALID);
    assert_int_equal(qn_shard_writer_new(&w, dir, &not_utf8, 1, 0, 0, NULL), QN_INVALID);
    assert_int_equal(qn_shard_writer_new(&w, "/tmp/qn_no_such_folder", &one, 1, 0, 0, NULL), QN_IO);

    qn_err_clear(&err);
    assert_int_equal(qn_shard_writer_new(&w, dir, &one, 1, 0, 0, NULL), QN_OK);
    assert_int_equal(qn_shard_writer_put(w, "abc", 3, &err), QN_INVALID);
    assert_non_null(strstr(err.text, "\"a\""));
    assert_int_equal(qn_shard_writer_put(w, "a", 1, NULL), QN_OK);
    qn_err_clear(&err);
    assert_int_equal(qn_shard_writer_close(w, &err), QN_INVALID);
    assert_non_null(strstr(err.text, "1 of its 2 bytes"));

    assert_int_equal(qn_shard_writer_new(&w, dir, &one, 1, 0, 0, NULL), QN_OK);
    assert_int_equal(qn_shard_writer_put(w, "ab", 2, NULL), QN_OK);
    assert_int_equal(qn_shard_writer_put(w, "c", 1, NULL), QN_INVALID);
    assert_int_equal(count_files(dir), 1); /* only the partial file so far */
    assert_int_equal(qn_shard_writer_close(w, NULL), QN_OK);
    assert_int_equal(count_files(dir), 2);
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

/* An unfinished write leaves nothing behind. */
static void test_writer_abandoned(void **state)
{
    (void)state;
    const char *dir = new_dir();
    qn_shard_writer *w;
    assert_int_equal(qn_shard_writer_new(&w, dir, plan, N_PLAN, 20, 0, NULL), QN_OK);
    uint8_t bytes[30] = {0};
    assert_int_equal(qn_shard_writer_put(w, bytes, 14, NULL), QN_OK);
    assert_int_equal(qn_shard_writer_put(w, bytes, 16, NULL), QN_OK);
    assert_int_equal(qn_shard_writer_close(w, NULL), QN_INVALID);
    assert_int_equal(count_files(dir), 0);
    assert_int_equal(qn_remove_tree(dir, NULL), QN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oddities),      cmocka_unit_test(test_no_tensors),
        cmocka_unit_test(test_broken),        cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_truncations),   cmocka_unit_test(test_folder),
        cmocka_unit_test(test_fingerprint),   cmocka_unit_test(test_writer_one_file),
        cmocka_unit_test(test_writer_shards), cmocka_unit_test(test_writer_empty),
        cmocka_unit_test(test_writer_errors), cmocka_unit_test(test_writer_abandoned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
