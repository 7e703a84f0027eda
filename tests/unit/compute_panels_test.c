/* Panels: packing is lossless, embedding rows come back as stored, and the cache file is built,
 * mapped again, and rebuilt when anything about it is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compute/cpu/cpu.h"
#include "compute/cpu/weights.h"
#include "core/file.h"
#include "core/log.h"
#include "matrices.h"

/* ---- packing ---- */

static void check_rows(const form *f, const qn_matrix *m, const qn_panels *w)
{
    float *want = malloc(m->n_in * sizeof *want), *have = malloc(m->n_in * sizeof *have);
    for (uint32_t r = 0; r < m->n_experts * m->n_out; r++) {
        qn_matrix_row(m, r, false, want);
        qn_panels_row(w, r / m->n_out, r % m->n_out, have);
        for (uint32_t k = 0; k < m->n_in; k++) { /* not memcmp: 4-bit -0 reads as +0 */
            if (have[k] != want[k])
                fail_msg("%s: row %u, input %u is %a, not %a", f->name, r, k, (double)have[k],
                         (double)want[k]);
        }
    }
    free(want);
    free(have);
}

static void test_rows(void **state)
{
    (void)state;
    static const uint32_t outs[] = {1, 15, 16, 17, 40};
    for (uint32_t i = 0; i < N_FORMS * 5; i++) {
        const form *f = &forms[i / 5];
        const uint32_t g = f->spec.group_size ? f->spec.group_size : 33;
        qn_matrix m = matrix_new(f, i % 3 + 1, outs[i % 5], g * (i % 4 + 1));
        qn_panels w;
        qn_err err = {0};
        assert_int_equal(qn_panels_init(&w, &m, &err), QN_OK);
        uint8_t *data = malloc(qn_panels_bytes(&w));
        for (uint32_t p = 0; p < w.n_panels * w.n_experts; p++)
            qn_panels_pack(&w, data + p * w.panel_bytes, &m, p / w.n_panels, p % w.n_panels);
        w.data = data;
        check_rows(f, &m, &w);
        free(data);
        matrix_free(&m);
    }
}

/* Panels are as large as the original, apart from the padding to 16 rows. */
static void test_sizes(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_FORMS; i++) {
        qn_matrix m = {.spec = forms[i].spec,
                       .n_experts = 3,
                       .n_out = 64,
                       .n_in = 256,
                       .dtype = forms[i].dtype};
        qn_panels w;
        qn_err err = {0};
        assert_int_equal(qn_panels_init(&w, &m, &err), QN_OK);
        size_t scale = forms[i].spec.mode == QN_Q_AFFINE ? 2 * qn_dtype_size(m.dtype) : 1;
        size_t row = m.spec.bits ? qn_qrow_bytes(&m.spec, 256) + 256 / m.spec.group_size * scale
                                 : 256 * qn_dtype_size(m.dtype);
        assert_int_equal(qn_panels_bytes(&w), 3 * 64 * row);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        qn_matrix m;
        qn_code code;
    } bad[] = {
        {{.n_experts = 1, .n_out = 4, .n_in = 8, .dtype = QN_I8}, QN_UNSUPPORTED},
        {{.n_experts = 1, .n_out = 0, .n_in = 8, .dtype = QN_F32}, QN_INVALID},
        {{.n_experts = 0, .n_out = 4, .n_in = 8, .dtype = QN_F32}, QN_INVALID},
        {{.spec = {QN_Q_AFFINE, 7, 64}, .n_experts = 1, .n_out = 4, .n_in = 64, .dtype = QN_F16},
         QN_INVALID},
        {{.spec = {QN_Q_AFFINE, 4, 64}, .n_experts = 1, .n_out = 4, .n_in = 96, .dtype = QN_F16},
         QN_INVALID},
        {{.spec = {QN_Q_AFFINE, 4, 64}, .n_experts = 1, .n_out = 4, .n_in = 64, .dtype = QN_U8},
         QN_UNSUPPORTED},
        {{.n_experts = UINT32_MAX, .n_out = UINT32_MAX, .n_in = UINT32_MAX, .dtype = QN_F32},
         QN_LIMIT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_panels w;
        qn_err err = {0};
        assert_int_equal(qn_panels_init(&w, &bad[i].m, &err), bad[i].code);
        assert_true(err.text[0] != 0);
    }
}

/* ---- the cache file ---- */

enum { N_MATRICES = 3 };

typedef struct fixture {
    char dir[64], file[128];
    qn_matrix_src src[N_MATRICES];
    uint64_t fingerprint;
    uint32_t n_progress;
    uint64_t done, total;
} fixture;

static void on_progress(void *user, uint64_t done, uint64_t total)
{
    fixture *f = user;
    f->n_progress++;
    f->done = done;
    f->total = total;
}

static int setup(void **state)
{
    static const uint32_t picked[N_MATRICES] = {7, 23, 18}; /* 4 bit g64, bfloat16, mxfp4 */
    static const char *const paths[N_MATRICES] = {"model.embed_tokens", "lm_head",
                                                  "model.layers.0.up"};
    fixture *f = calloc(1, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "panels-test-XXXXXX");
    if (!f || !mkdtemp(f->dir)) return -1;
    f->fingerprint = 0x1234abcd;
    snprintf(f->file, sizeof f->file, "%s/cache/000000001234abcd-panel16-v1.bin", f->dir);
    for (uint32_t i = 0; i < N_MATRICES; i++)
        f->src[i] =
            (qn_matrix_src){paths[i], matrix_new(&forms[picked[i]], i + 1, 100 * (i + 1), 128)};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    qn_err err = {0};
    for (uint32_t i = 0; i < N_MATRICES; i++) matrix_free(&f->src[i].m);
    int rc = qn_remove_tree(f->dir, &err);
    free(f);
    return rc;
}

/* Load with a cache folder (relative to the fixture's, NULL: none) and check every row. */
static void load_checked(fixture *f, const char *cache)
{
    char dir[128];
    qn_device *d;
    qn_err err = {0};
    qn_weight *w[N_MATRICES];
    snprintf(dir, sizeof dir, "%s/%s", f->dir, cache ? cache : "");
    const qn_load_opts opts = {.fingerprint = f->fingerprint,
                               .cache_dir = cache ? dir : NULL,
                               .progress = on_progress,
                               .user = f};
    f->n_progress = 0;
    f->done = f->total = 0;
    assert_int_equal(qn_device_open(&d, &(qn_device_opts){.n_threads = 2}, &err), QN_OK);
    assert_int_equal(d->ops->load(d, f->src, N_MATRICES, &opts, w, &err), QN_OK);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < N_MATRICES; i++) {
        bytes += qn_panels_bytes(&w[i]->panels);
        assert_int_equal((uintptr_t)w[i]->panels.data % 64, 0);
        check_rows(&(form){.name = f->src[i].path}, &f->src[i].m, &w[i]->panels);
    }
    uint64_t resident;
    assert_int_equal(d->ops->weights_bytes(d, &resident), bytes);
    assert_true(resident > 0);
    if (f->n_progress) {
        assert_int_equal(f->done, bytes);
        assert_int_equal(f->total, bytes);
    }
    d->ops->close(d);
}

static int files_in(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void check_built(fixture *f)
{
    char dir[128];
    snprintf(dir, sizeof dir, "%s/cache", f->dir);
    load_checked(f, "cache");
    assert_true(f->n_progress > 0);
    assert_true(qn_is_file(f->file));
    assert_int_equal(files_in(dir), 1);
}

static void check_reused(fixture *f)
{
    struct stat before, after;
    assert_int_equal(stat(f->file, &before), 0);
    load_checked(f, "cache");
    assert_int_equal(f->n_progress, 0);
    assert_int_equal(stat(f->file, &after), 0);
    assert_true(before.st_ino == after.st_ino);
}

static void test_memory(void **state)
{
    load_checked(*state, NULL);
    assert_true(((fixture *)*state)->n_progress > 0);
}

static void test_reopened(void **state)
{
    check_built(*state);
    check_reused(*state);
}

static void overwrite(const char *path, off_t at, const void *p, size_t n)
{
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, p, n, at), n);
    close(fd);
}

/* Every header byte that means something: a change is noticed and the file rebuilt. */
static void test_corrupt_header(void **state)
{
    fixture *f = *state;
    static const off_t spots[] = {0, 8, 12, 16, 24, 32, 40, 48, 64, 70, 112, 4095};
    check_built(f);
    for (size_t i = 0; i < sizeof spots / sizeof *spots; i++) {
        overwrite(f->file, spots[i], "\xa5", 1);
        check_built(f);
        check_reused(f);
    }
}

static void test_wrong_size(void **state)
{
    fixture *f = *state;
    struct stat st;
    check_built(f);
    assert_int_equal(stat(f->file, &st), 0);
    const off_t sizes[] = {0, 1, 63, 4096, st.st_size - 1, st.st_size + 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(truncate(f->file, sizes[i]), 0);
        check_built(f);
        check_reused(f);
    }
}

/* Another shape, path or format under the same fingerprint is another file. */
static void test_stale(void **state)
{
    fixture *f = *state;
    check_built(f);
    f->src[1].path = "model.lm_head";
    check_built(f);
    f->src[1].m.n_out--;
    check_built(f);
    check_reused(f);
}

/* A folder that cannot be made: the matrices stay in memory. */
static void test_no_folder(void **state)
{
    fixture *f = *state;
    char path[128];
    qn_err err = {0};
    snprintf(path, sizeof path, "%s/file", f->dir);
    assert_int_equal(qn_file_write(path, "x", 1, &err), QN_OK);
    load_checked(f, "file/cache");
    assert_true(f->n_progress > 0);
    load_checked(f, "file");
}

/* No space: a limit on the size of files makes reserving it fail. The child's memory is fine. */
static void test_no_space(void **state)
{
    fixture *f = *state;
    char dir[128];
    int status;
    snprintf(dir, sizeof dir, "%s/cache", f->dir);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){8192, 8192});
        load_checked(f, "cache");
        _exit(f->n_progress > 0 ? 77 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 77);
    assert_int_equal(files_in(dir), 0);
}

/* Temporary files of builders that died are removed, those of living ones are not. */
static void test_leftovers(void **state)
{
    fixture *f = *state;
    char dead[160], alive[160], other[160];
    qn_err err = {0};
    check_built(f);
    snprintf(dead, sizeof dead, "%s.1.a.tmp", f->file);
    snprintf(alive, sizeof alive, "%s.1.b.tmp", f->file);
    snprintf(other, sizeof other, "%s/cache/other.bin.1.a.tmp", f->dir);
    assert_int_equal(qn_file_write(dead, "x", 1, &err), QN_OK);
    assert_int_equal(qn_file_write(alive, "x", 1, &err), QN_OK);
    assert_int_equal(qn_file_write(other, "x", 1, &err), QN_OK);
    int fd = open(alive, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(unlink(f->file), 0);
    load_checked(f, "cache");
    assert_true(qn_is_file(f->file));
    assert_false(qn_is_file(dead));
    assert_true(qn_is_file(alive));
    assert_true(qn_is_file(other));
    close(fd);
}

/* Processes that build the same file at the same time. */
static void test_concurrent(void **state)
{
    fixture *f = *state;
    enum { N = 4 };
    pid_t children[N];
    for (int i = 0; i < N; i++) {
        children[i] = fork();
        if (children[i]) continue;
        load_checked(f, "cache"); /* a failed assertion ends the child with another status */
        _exit(77);
    }
    for (int i = 0; i < N; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 77);
    }
    check_reused(f);
}

int main(void)
{
    qn_log_set_level(QN_CRITICAL); /* falling back to memory is logged, on purpose here */
#define CACHE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows), cmocka_unit_test(test_sizes), cmocka_unit_test(test_refused),
        CACHE_TEST(test_memory),     CACHE_TEST(test_reopened),    CACHE_TEST(test_corrupt_header),
        CACHE_TEST(test_wrong_size), CACHE_TEST(test_stale),       CACHE_TEST(test_no_folder),
        CACHE_TEST(test_no_space),   CACHE_TEST(test_leftovers),   CACHE_TEST(test_concurrent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
