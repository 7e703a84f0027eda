/* Matrix products of the CPU device: the portable body against exact arithmetic, every variant
 * against the portable body bit for bit, and the independence of rows and threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#include "compute/cpu/cpu.h"
#include "compute/cpu/kernels.h"
#include "matrices.h"

static const uint32_t row_counts[] = {1, 2, 3, 5, 6, 7, 12, 13, 48, 130};
enum { N_COUNTS = sizeof row_counts / sizeof *row_counts, MAX_ROWS = 130 };

typedef struct shape {
    uint32_t n_in, n_out;
} shape;

/* ---- running kernels ---- */

/* A matrix in panels, with the memory it owns. */
static qn_panels panels_new(const qn_matrix *m)
{
    qn_panels w;
    qn_err err = {0};
    assert_int_equal(qn_panels_init(&w, m, &err), QN_OK);
    uint8_t *data = aligned_alloc(64, (qn_panels_bytes(&w) + 63) / 64 * 64);
    assert_non_null(data);
    for (uint32_t e = 0; e < w.n_experts; e++)
        for (uint32_t p = 0; p < w.n_panels; p++)
            qn_panels_pack(&w, data + e * w.expert_bytes + p * w.panel_bytes, m, e, p);
    w.data = data;
    return w;
}

/* y [rows, n_out] by one variant; panels in two calls, as two threads would do it. */
static void multiply(const qn_cpu_kernels *k, float *y, const qn_panels *w, const float *x,
                     uint32_t rows, qn_act_mode act)
{
    void *scratch = aligned_alloc(64, QN_MM_SCRATCH);
    const uint32_t middle = w->n_panels / 2;
    memset(y, 0xff, (size_t)rows * w->n_out * sizeof *y);
    if (w->kind == QN_PANEL_CODES) {
        qn_qacts q;
        size_t bytes = qn_qacts_init(&q, act, rows, w->n_in, w->spec.group_size);
        void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
        qn_qacts_place(&q, memory);
        k->qacts(&q, x, w->n_in, rows / 2, rows);
        k->qacts(&q, x, w->n_in, 0, rows / 2);
        k->qmm(y, w->n_out, w, &q, middle, w->n_panels, scratch);
        k->qmm(y, w->n_out, w, &q, 0, middle, scratch);
        free(memory);
    } else {
        k->dmm(y, w->n_out, w, x, w->n_in, rows, middle, w->n_panels, scratch);
        k->dmm(y, w->n_out, w, x, w->n_in, rows, 0, middle, scratch);
    }
    free(scratch);
}

/* ---- the portable body against exact arithmetic ---- */

/* Sum of |s*code| + |b| style magnitudes of weight k of a row: what the parts of s*q + b add up to.
 */
static double part_size(const qn_matrix *m, size_t row, uint32_t k)
{
    const uint32_t g = k / m->spec.group_size;
    const uint8_t *words = (const uint8_t *)m->weight + row * qn_qrow_bytes(&m->spec, m->n_in);
    const double s = fabs((double)qn_qscale(m, row, g));
    if (m->spec.mode != QN_Q_AFFINE) return 18.0 * s; /* q/2 <= 12 and the bias 6 */
    return s * qn_qcode(words, m->spec.bits, k) + fabs((double)qn_qbias(m, row, g));
}

/* Largest |x| of a group. */
static double group_max(const float *x, uint32_t n)
{
    double max = 0;
    for (uint32_t k = 0; k < n; k++) max = fmax(max, fabs((double)x[k]));
    return max;
}

/* The bound on |y - exact|. u = 2^-24.
 * CODES: quantizing x moves it by at most a/2 + 4u|x| (all of x in a group below 2^-96); each of
 * the n_groups + 10 roundings of the sum moves it by at most u times the sum of its parts; the
 * reference's own weights carry two roundings, covered by the 10. Products below the normal range
 * lose at most 2^-150 * 2^30 per group. Others, affine with float32 scales among them: one chain of
 * n_in/2 fused steps, one sum, one rounding of a weight. */
static double error_bound(const qn_matrix *m, size_t row, const float *x, const float *w,
                          qn_act_mode act)
{
    const double u = 0x1p-24, range = act == QN_ACT_INT8 ? 127.0 : 32512.0;
    double bound = 0;
    const bool wide = m->spec.mode == QN_Q_AFFINE && m->dtype == QN_F32;
    if (m->spec.mode == QN_Q_NONE || m->spec.mode == QN_Q_MXFP8 || wide) {
        for (uint32_t k = 0; k < m->n_in; k++) bound += fabs((double)w[k] * (double)x[k]);
        return bound * u * (m->n_in / 2 + 3) + m->n_in * 0x1p-149;
    }
    const uint32_t n = m->spec.group_size, n_groups = m->n_in / n;
    for (uint32_t g = 0; g < n_groups; g++) {
        const double max = group_max(x + g * n, n), a = max / range;
        for (uint32_t k = g * n; k < (g + 1) * n; k++) {
            const double xk = fabs((double)x[k]), moved = max < 0x1p-96 ? xk : a / 2 + 4 * u * xk;
            bound += fabs((double)w[k]) * moved +
                     (n_groups + 10) * u * part_size(m, row, k) * (xk + a);
        }
    }
    return bound + n_groups * 0x1p-119;
}

static void check_exact(const form *f, const qn_matrix *m, const float *x, const float *y,
                        uint32_t rows, qn_act_mode act)
{
    float *w = malloc(m->n_in * sizeof *w);
    for (uint32_t i = 0; i < m->n_out; i++) {
        qn_matrix_row(m, i, false, w);
        for (uint32_t t = 0; t < rows; t++) {
            const float *xt = x + (size_t)t * m->n_in;
            double exact = 0;
            for (uint32_t k = 0; k < m->n_in; k++) exact += (double)w[k] * (double)xt[k];
            const double error = fabs((double)y[(size_t)t * m->n_out + i] - exact);
            const double bound = error_bound(m, i, xt, w, act);
            if (error <= bound) continue;
            fail_msg("%s, %u x %u, row %u of x, output %u: error %g is over the bound %g", f->name,
                     m->n_out, m->n_in, t, i, error, bound);
        }
    }
    free(w);
}

/* ---- one matrix, every row count, every variant ---- */

static const char *const variants[] = {"portable", "avx2", "avx512"};

static void check_variant(const char *isa, const form *f, const qn_panels *w, const float *x,
                          const float *want, qn_act_mode act)
{
    const qn_cpu_kernels *k = qn_cpu_pick(isa);
    if (!k) return;
    float *y = malloc((size_t)MAX_ROWS * w->n_out * sizeof *y);
    for (uint32_t c = 0; c < N_COUNTS; c++) {
        const uint32_t rows = row_counts[c];
        if (rows == MAX_ROWS && !strcmp(isa, "portable")) continue; /* that is `want` */
        multiply(k, y, w, x, rows, act);
        if (!memcmp(y, want, (size_t)rows * w->n_out * sizeof *y)) continue;
        for (size_t i = 0; i < (size_t)rows * w->n_out; i++) {
            if (!memcmp(y + i, want + i, sizeof *y)) continue;
            fail_msg("%s: %s, %u x %u, %u rows: y[%zu][%zu] is %a, not %a", isa, f->name, w->n_out,
                     w->n_in, rows, i / w->n_out, i % w->n_out, (double)y[i], (double)want[i]);
        }
    }
    free(y);
}

static void check_shape(const form *f, shape s, qn_act_mode act)
{
    qn_matrix m = matrix_new(f, 1, s.n_out, s.n_in);
    qn_panels w = panels_new(&m);
    float *x = acts_new(MAX_ROWS, s.n_in), *y = malloc((size_t)MAX_ROWS * s.n_out * sizeof *y);
    multiply(qn_cpu_pick("portable"), y, &w, x, MAX_ROWS, act);
    check_exact(f, &m, x, y, 12, act);
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        check_variant(variants[v], f, &w, x, y, act);
    free(x);
    free(y);
    free((void *)w.data);
    matrix_free(&m);
}

static void check_form(const form *f, qn_act_mode act)
{
    const uint32_t g = f->spec.group_size ? f->spec.group_size : 32;
    const uint32_t odd = f->spec.mode == QN_Q_NONE; /* dense rows may have any length */
    const shape shapes[] = {
        {g, 17}, {2 * g, 1}, {2 * g + odd, 16}, {5 * g, 15}, {5 * g + odd, 100}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(f, shapes[i], act);
}

static void test_int16(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_FORMS; i++) check_form(&forms[i], QN_ACT_INT16);
}

static void test_int8(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_FORMS; i++) check_form(&forms[i], QN_ACT_INT8);
}

/* Wider than the blocks that the variants cut a row into. */
static void test_wide(void **state)
{
    /* 4 bit g64, 8 bit g64, nvfp4, bfloat16; with float32 scales: 5 bit g128, 8 bit g32 */
    static const uint32_t picked[] = {7, 16, 20, 23, 11, 15};
    (void)state;
    for (size_t i = 0; i < sizeof picked / sizeof *picked; i++)
        check_shape(&forms[picked[i]], (shape){4096 + 1024 + 128, 17}, QN_ACT_INT16);
}

/* The largest integers the arithmetic allows: 255 * 32512 * 128 in one group. */
static void test_largest_dot(void **state)
{
    (void)state;
    enum { N_IN = 256, N_OUT = 16 };
    const form f = {"8 bit g128", {QN_Q_AFFINE, 8, 128}, QN_BF16};
    qn_matrix m = matrix_new(&f, 1, N_OUT, N_IN);
    memset((void *)m.weight, 0xff, N_OUT * N_IN);
    qn_panels w = panels_new(&m);
    float x[5 * N_IN], y[5 * N_OUT], want[5 * N_OUT];
    for (uint32_t i = 0; i < 5 * N_IN; i++) x[i] = i / N_IN % 2 ? -3.0f : 3.0f;
    multiply(qn_cpu_pick("portable"), want, &w, x, 5, QN_ACT_INT16);
    check_exact(&f, &m, x, want, 5, QN_ACT_INT16);
    for (size_t v = 1; v < sizeof variants / sizeof *variants; v++) {
        const qn_cpu_kernels *k = qn_cpu_pick(variants[v]);
        if (!k) continue;
        multiply(k, y, &w, x, 5, QN_ACT_INT16);
        assert_memory_equal(y, want, sizeof y);
    }
    free((void *)w.data);
    matrix_free(&m);
}

/* NaN and infinity spoil their own row and no other. */
static void test_not_finite(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    (void)state;
    enum { ROWS = 6 };
    for (uint32_t i = 0; i < N_FORMS; i++) {
        qn_matrix m = matrix_new(&forms[i], 1, 17, 256);
        qn_panels w = panels_new(&m);
        float *x = acts_new(ROWS, 256), y[ROWS * 17], clean[ROWS * 17];
        for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
            const qn_cpu_kernels *k = qn_cpu_pick(variants[v]);
            if (!k) continue;
            float *spot = x + 3 * 256 + 77, old = *spot;
            multiply(k, clean, &w, x, ROWS, QN_ACT_INT16);
            for (size_t b = 0; b < 3; b++) {
                *spot = bad[b];
                multiply(k, y, &w, x, ROWS, QN_ACT_INT16);
                for (uint32_t c = 0; c < 17 && w.kind == QN_PANEL_CODES; c++)
                    assert_true(isnan(y[3 * 17 + c]));
                assert_memory_equal(y, clean, 3 * 17 * sizeof *y);
                assert_memory_equal(y + 4 * 17, clean + 4 * 17, 2 * 17 * sizeof *y);
            }
            *spot = old;
        }
        free(x);
        free((void *)w.data);
        matrix_free(&m);
    }
}

/* A NaN among E4M3 codes (mxfp8) or scales (nvfp4) spoils its own output and no other. */
static void test_nan_code(void **state)
{
    (void)state;
    enum { ROWS = 6, N_OUT = 17, BAD = 5 };
    for (uint32_t i = 0; i < N_FORMS; i++) {
        const qn_qmode mode = forms[i].spec.mode;
        if (mode != QN_Q_MXFP8 && mode != QN_Q_NVFP4) continue;
        qn_matrix m = matrix_new(&forms[i], 1, N_OUT, 64);
        uint8_t *byte = mode == QN_Q_MXFP8 ? (uint8_t *)m.weight + BAD * 64 + 40
                                           : (uint8_t *)m.scales + BAD * 4 + 1;
        *byte = 0xff;
        qn_panels w = panels_new(&m);
        float *x = acts_new(ROWS, 64), y[ROWS * N_OUT];
        for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
            const qn_cpu_kernels *k = qn_cpu_pick(variants[v]);
            for (uint32_t rows = 1; k && rows <= ROWS; rows += ROWS - 1) {
                multiply(k, y, &w, x, rows, QN_ACT_INT16);
                for (uint32_t c = 0; c < rows * N_OUT; c++)
                    assert_int_equal(isnan(y[c]), c % N_OUT == BAD);
            }
        }
        free(x);
        free((void *)w.data);
        matrix_free(&m);
    }
}

/* ---- the device: threads, shared activations, bias ---- */

enum { N_MATRICES = 4, LINEAR_IN = 256 };
static const uint32_t linear_out[N_MATRICES] = {100, 17, 64, 33};

typedef struct setup {
    qn_matrix_src src[N_MATRICES];
    float *x, bias[100];
} setup;

/* The four matrices times rows of x on a device of n threads; y[i] [rows, linear_out[i]]. */
static void run_linear(setup *s, uint32_t n_threads, uint32_t rows, float *y[N_MATRICES])
{
    qn_device *d;
    qn_err err = {0};
    qn_weight *w[N_MATRICES];
    qn_run *r;
    qn_tensor bias, x, out[N_MATRICES];
    assert_int_equal(qn_device_open(&d, &(qn_device_opts){.n_threads = n_threads}, &err), QN_OK);
    assert_int_equal(d->ops->n_threads(d), n_threads);
    assert_int_equal(d->ops->load(d, s->src, N_MATRICES, &(qn_load_opts){0}, w, &err), QN_OK);
    assert_int_equal(d->ops->upload(d, s->bias, QN_F32, 1, 100, &bias, &err), QN_OK);
    const qn_run_limits limits = {.max_tokens = rows,
                                  .max_items = 1,
                                  .max_out = 1,
                                  .scratch_bytes = (3 * LINEAR_IN + 256) * rows * 4 + 4096};
    assert_int_equal(d->ops->run_new(d, &limits, &r, &err), QN_OK);
    d->ops->begin(r, &(qn_batch){.n_tokens = rows, .n_items = 1}, NULL);
    x = qn_cpu_take((qn_cpu_run *)r, rows, LINEAR_IN);
    memcpy(qn_cpu_row(x, 0), s->x, (size_t)rows * LINEAR_IN * sizeof(float));
    qn_linear l[N_MATRICES];
    const qn_linear *lp[N_MATRICES];
    for (uint32_t i = 0; i < N_MATRICES; i++) {
        l[i] = (qn_linear){.w = w[i], .bias = i == 0 ? bias : (qn_tensor){0}};
        lp[i] = &l[i];
    }
    size_t before = d->ops->mark(r);
    d->ops->linear(r, N_MATRICES, out, x, lp);
    for (uint32_t i = 0; i < N_MATRICES; i++) {
        assert_int_equal(out[i].cols, linear_out[i]);
        memcpy(y[i], d->ops->fetch(r, out[i]), (size_t)rows * linear_out[i] * sizeof(float));
    }
    assert_true(d->ops->mark(r) > before);
    assert_int_equal(d->ops->end(r, &err), QN_OK);
    d->ops->run_free(r);
    d->ops->close(d);
}

static void setup_init(setup *s)
{
    static const uint32_t form_of[N_MATRICES] = {7, 18, 6,
                                                 23}; /* 4 bit g64, mxfp4, 4 bit g32, bfloat16 */
    for (uint32_t i = 0; i < N_MATRICES; i++)
        s->src[i] =
            (qn_matrix_src){"m", matrix_new(&forms[form_of[i]], 1, linear_out[i], LINEAR_IN)};
    s->x = acts_new(MAX_ROWS, LINEAR_IN);
    for (uint32_t i = 0; i < 100; i++) s->bias[i] = rng_bell();
}

static void test_linear(void **state)
{
    static const uint32_t rows_of[] = {1, 3, 9, MAX_ROWS};
    (void)state;
    setup s;
    setup_init(&s);
    float *y[N_MATRICES], *want[N_MATRICES];
    for (uint32_t i = 0; i < N_MATRICES; i++) {
        y[i] = malloc((size_t)MAX_ROWS * linear_out[i] * sizeof(float));
        want[i] = malloc((size_t)MAX_ROWS * linear_out[i] * sizeof(float));
        qn_panels w = panels_new(&s.src[i].m);
        multiply(qn_cpu_pick("portable"), want[i], &w, s.x, MAX_ROWS, QN_ACT_INT16);
        for (uint32_t j = 0; i == 0 && j < MAX_ROWS * linear_out[0]; j++)
            want[0][j] += s.bias[j % linear_out[0]];
        free((void *)w.data);
    }
    for (uint32_t threads = 1; threads <= 3; threads++) {
        for (size_t c = 0; c < sizeof rows_of / sizeof *rows_of; c++) {
            run_linear(&s, threads, rows_of[c], y);
            for (uint32_t i = 0; i < N_MATRICES; i++)
                assert_memory_equal(y[i], want[i],
                                    (size_t)rows_of[c] * linear_out[i] * sizeof(float));
        }
    }
    for (uint32_t i = 0; i < N_MATRICES; i++) {
        free(y[i]);
        free(want[i]);
        matrix_free(&s.src[i].m);
    }
    free(s.x);
}

static void test_open(void **state)
{
    (void)state;
    qn_device *d;
    qn_err err = {0};
    assert_int_equal(qn_device_open(&d, &(qn_device_opts){.name = "tpu"}, &err), QN_UNSUPPORTED);
    assert_non_null(strstr(err.text, "\"cpu\""));
    qn_err_clear(&err);
    assert_int_equal(qn_device_open(&d, &(qn_device_opts){.isa = "mmx"}, &err), QN_UNSUPPORTED);
    assert_int_equal(qn_device_open(&d, &(qn_device_opts){.isa = "portable", .n_threads = 1}, &err),
                     QN_OK);
    assert_string_equal(qn_device_isa(d), "portable");
    d->ops->close(d);
    assert_null(qn_cpu_pick("mmx"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int16),      cmocka_unit_test(test_int8),
        cmocka_unit_test(test_wide),       cmocka_unit_test(test_largest_dot),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_nan_code),
        cmocka_unit_test(test_linear),     cmocka_unit_test(test_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
