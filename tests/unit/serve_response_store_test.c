/* The store of responses: finding, age, bytes, two servers on one file, files that are not one. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/file.h"
#include "serve/response_store.h"

enum { TTL = 1000 };

static qn_response_store *open_store(const char *path, uint64_t max_bytes)
{
    const qn_response_store_opts o = {.path = path, .max_bytes = max_bytes, .ttl_ms = TTL};
    qn_response_store *s;
    qn_err err = {0};
    if (qn_response_store_open(&s, &o, &err)) fail_msg("%s", err.text);
    return s;
}

/* Store {"v": "xx..."} of n bytes in all, with an empty input. */
static qn_code put(qn_response_store *s, const char *id, size_t n, int64_t now)
{
    qn_buf response = {0}, input = {0};
    qn_err err = {0};
    assert_true(n >= 12);
    qn_buf_puts(&response, "{\"v\":\"");
    while (response.len < n - 4) qn_buf_putc(&response, 'x');
    qn_buf_puts(&response, "\"}");
    qn_buf_puts(&input, "[]");
    qn_code rc = qn_response_store_put(s, id, &response, &input, now, &err);
    qn_buf_release(&response);
    qn_buf_release(&input);
    return rc;
}

static bool has(qn_response_store *s, const char *id, int64_t now)
{
    return qn_response_store_get(s, id, now, NULL, NULL);
}

static void test_get_and_delete(void **state)
{
    (void)state;
    qn_response_store *s = open_store(NULL, 1000);
    qn_buf response = {0}, input = {0};
    qn_err err = {0};
    qn_buf_puts(&response, "{\"a\":\"\xc3\xa9\\u0000\"}");
    qn_buf_puts(&input, "[1,2]");
    assert_int_equal(qn_response_store_put(s, "resp_1", &response, &input, 5, &err), QN_OK);
    json_t *r, *i;
    assert_true(qn_response_store_get(s, "resp_1", 6, &r, &i));
    assert_int_equal(json_string_length(json_object_get(r, "a")), 3);
    assert_int_equal(json_array_size(i), 2);
    json_decref(r);
    json_decref(i);
    assert_false(has(s, "resp_2", 6));
    assert_false(has(s, "' OR 1 --", 6));
    qn_response_store_stats stats;
    qn_response_store_stats_get(s, 6, &stats);
    assert_int_equal(stats.entries, 1);
    assert_int_equal(stats.bytes, 16 + 5);
    assert_int_equal(response.len + input.len, 0); /* taken */
    assert_true(qn_response_store_delete(s, "resp_1", 6));
    assert_false(qn_response_store_delete(s, "resp_1", 6));
    assert_false(has(s, "resp_1", 6));
    qn_buf_release(&response);
    qn_buf_release(&input);
    qn_response_store_close(s);
    qn_response_store_close(NULL);
}

static void test_age(void **state)
{
    (void)state;
    qn_response_store *s = open_store(NULL, 1000);
    put(s, "old", 20, 100);
    put(s, "new", 20, 600);
    assert_true(has(s, "old", 100 + TTL - 1));
    assert_false(has(s, "old", 100 + TTL)); /* use does not make it younger */
    assert_false(qn_response_store_delete(s, "old", 100 + TTL));
    assert_true(has(s, "new", 100 + TTL));
    qn_response_store_stats stats;
    qn_response_store_stats_get(s, 100 + TTL, &stats);
    assert_int_equal(stats.entries, 1);
    /* the room of an expired one is free for the next */
    put(s, "big", 970, 100 + TTL);
    assert_true(has(s, "new", 100 + TTL));
    assert_true(has(s, "big", 100 + TTL));
    qn_response_store_close(s);
}

static void test_bytes(void **state)
{
    (void)state;
    qn_response_store *s = open_store(NULL, 100);
    put(s, "a", 30, 1);
    put(s, "b", 30, 1);
    put(s, "c", 30, 1);
    assert_true(has(s, "a", 1)); /* now b is the one not used for longest */
    put(s, "d", 30, 1);
    assert_true(has(s, "a", 1));
    assert_false(has(s, "b", 1));
    assert_true(has(s, "c", 1));
    assert_true(has(s, "d", 1));
    put(s, "e", 100, 1);
    assert_false(has(s, "a", 1) || has(s, "c", 1) || has(s, "d", 1));
    assert_true(has(s, "e", 1));
    assert_int_equal(put(s, "f", 101, 1), QN_LIMIT);
    assert_true(has(s, "e", 1)); /* what cannot be kept drives nothing out */
    qn_response_store_close(s);

    s = open_store(NULL, 0);
    assert_int_equal(put(s, "a", 12, 1), QN_LIMIT);
    qn_response_store_close(s);
}

/* Many writers and readers at once; nobody who asks behind a put misses it. */
static void *put_and_get(void *user)
{
    qn_response_store *s = user;
    char id[40];
    for (int i = 0; i < 200; i++) {
        snprintf(id, sizeof id, "%p_%d", (void *)&id, i);
        if (put(s, id, 40, 1) || !has(s, id, 1)) return user;
        if (i % 3 == 0 && !qn_response_store_delete(s, id, 1)) return user;
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    qn_response_store *s = open_store(NULL, 1 << 20);
    for (size_t i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, put_and_get, s), 0);
    for (size_t i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    qn_response_store_stats stats;
    qn_response_store_stats_get(s, 1, &stats);
    assert_int_equal(stats.entries, 4 * (200 - 67));
    assert_int_equal(stats.bytes, stats.entries * 40);
    put(s, "last", 40, 1); /* closing writes it, and frees it */
    qn_response_store_close(s);
}

static void test_file(void **state)
{
    (void)state;
    char dir[] = "/tmp/qn_store_XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/quern.sqlite", dir);
    qn_response_store *a = open_store(path, 1000), *b = open_store(path, 1000);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    put(a, "one", 20, 1);
    assert_true(has(a, "one", 1) && has(b, "one", 1));
    put(b, "two", 20, 1);
    assert_true(has(b, "two", 1));
    assert_true(has(a, "two", 1));
    qn_response_store_close(a);
    qn_response_store_close(b);
    a = open_store(path, 1000);
    assert_true(has(a, "one", 1) && has(a, "two", 1));
    qn_response_store_close(a);

    /* a file that is something else is left alone */
    qn_err err = {0};
    static const char text[] = "this is no database, and long enough to have a header of its own: more than 100 bytes "
                               "of plain text follow here, and then it ends.";
    assert_int_equal(qn_file_write(path, text, sizeof text, &err), QN_OK);
    const qn_response_store_opts o = {.path = path, .max_bytes = 10, .ttl_ms = TTL};
    assert_int_equal(qn_response_store_open(&a, &o, &err), QN_IO);
    assert_null(a);
    assert_non_null(strstr(err.text, "quern.sqlite"));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, sizeof text);
    assert_int_equal(qn_remove_tree(dir, &err), QN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_and_delete),
        cmocka_unit_test(test_age),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
