/* compute_elementwise_test.c - norms, activations, rotations, scratch and the table of operations
 * of the CPU device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compute/device.h"

static const char *const isas[] = {"portable", "avx2", "avx512"};

enum { N_ISAS = 3 };

static uint64_t seed = 1;

/* Uniform in (-1, 1). */
static float uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(seed >> 32) * 0x1p-31f;
}

typedef struct rig {
    qn_device *dev;
    const qn_ops *ops;
    qn_run *run;
} rig;

static bool open_rig(rig *g, const char *isa, uint32_t threads)
{
    qn_err err = {0};
    qn_device_opts opts = {.isa = isa, .n_threads = threads};
    if (qn_device_open(&g->dev, &opts, &err)) {
        assert_int_equal(err.code, QN_UNSUPPORTED);
        return false;
    }
    g->ops = g->dev->ops;
    qn_run_limits limits = {1024, 8, 1024, 1u << 17, 32u << 20};
    assert_int_equal(g->ops->run_new(g->dev, &limits, &g->run, &err), QN_OK);
    return true;
}

static void close_rig(rig *g)
{
    g->ops->run_free(g->run);
    g->ops->close(g->dev);
}

static qn_tensor host(float *x, uint32_t rows, uint32_t cols)
{
    return (qn_tensor){(uintptr_t)x, QN_F32, rows, cols, cols};
}

static const float *data(qn_tensor x) { return (const float *)(uintptr_t)x.addr; }

/* Error of y in units of the last place of the float nearest to `want`. */
static double ulps(float y, double want)
{
    float f = fabsf((float)want);
    double ulp = f < 0x1p-126f ? 0x1p-149 : (double)nextafterf(f, INFINITY) - f;
    return fabs(y - want) / ulp;
}

/* ---- the table ---- */

static void every_slot_is_filled(void **state)
{
    (void)state;
    rig g;
    assert_true(open_rig(&g, NULL, 1));
    typedef void (*slot)(void);
    slot slots[sizeof(qn_ops) / sizeof(slot)];
    _Static_assert(sizeof slots == sizeof(qn_ops), "qn_ops holds functions only");
    memcpy(slots, g.ops, sizeof slots);
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        if (!slots[i]) fail_msg("slot %zu of qn_ops is empty", i);
    close_rig(&g);
}

/* ---- functions of one number ---- */

static double exact(qn_act kind, double x)
{
    switch (kind) {
    case QN_SILU: return x / (1 + exp(-x));
    case QN_GELU: return x / 2 * erfc(-x / sqrt(2));
    case QN_GELU_TANH: {
        double u = sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
        return x / (1 + exp(-2 * u));
    }
    case QN_RELU2: return x > 0 ? x * x : 0;
    case QN_SIGMOID: return 1 / (1 + exp(-x));
    }
    return NAN;
}

/* Over the whole range of exp: a sigmoid below zero is the exponential but for two roundings. With a
 * cap of 1 softcap is tanh. */
static void exp_and_tanh_are_accurate(void **state)
{
    (void)state;
    enum { N = 1750000 };
    float *x = malloc(N * sizeof *x);
    rig g;
    assert_true(open_rig(&g, NULL, 1));
    double worst_exp = 0, worst_tanh = 0;
    for (int i = 0; i < N; i++) x[i] = (float)(i - 870000) * 1e-4f + 3e-6f;
    const float *y = data(g.ops->act(g.run, host(x, 1, N), QN_SIGMOID));
    for (int i = 0; i < N; i++) worst_exp = fmax(worst_exp, ulps(y[i], 1 / (1 + exp(-(double)x[i]))));
    for (int i = 0; i < N; i++) x[i] *= 0.125f;
    y = data(g.ops->softcap(g.run, host(x, 1, N), 1));
    for (int i = 0; i < N; i++) worst_tanh = fmax(worst_tanh, ulps(y[i], tanh(x[i])));
    print_message("sigmoid %.2f ulp, tanh %.2f ulp\n", worst_exp, worst_tanh);
    assert_true(worst_exp <= 3 && worst_tanh <= 3);
    free(x);
    float special[6] = {0, -0.0f, -1e30f, INFINITY, -INFINITY, NAN};
    y = data(g.ops->softcap(g.run, host(special, 1, 6), 1));
    assert_true(y[0] == 0 && y[1] == 0 && y[2] == -1 && y[3] == 1 && y[4] == -1 && isnan(y[5]));
    y = data(g.ops->act(g.run, host(special, 1, 6), QN_SIGMOID));
    assert_true(y[0] == 0.5f && y[1] == 0.5f && y[3] == 1 && isnan(y[5]));
    assert_true(y[2] >= 0 && y[2] < 1e-38f && y[4] >= 0 && y[4] < 1e-38f);
    close_rig(&g);
}

/* Bound of the relative error in units of 2^-24: `fixed` for the roundings after the exponential
 * (which itself is within 2), and `grow` times the exponent for the roundings of the exponent: none
 * in x, one in x^2/2 (GELU), three products and two constants in the cubic (its tanh form). */
static double bound_of(qn_act kind, double x)
{
    switch (kind) {
    case QN_SILU: return 6;
    case QN_GELU: return 14 + x * x / 2;
    case QN_GELU_TANH: return 6 + 5 * 1.596 * fabs(x + 0.044715 * x * x * x);
    case QN_RELU2: return 1;
    case QN_SIGMOID: return 6;
    }
    return 0;
}

static void activations_are_accurate(void **state)
{
    (void)state;
    enum { N = 60000 };
    float *x = malloc(N * sizeof *x), *up = malloc(N * sizeof *up);
    for (int i = 0; i < N; i++) x[i] = (float)(i - N / 3) * 2e-4f, up[i] = uniform();
    rig g;
    assert_true(open_rig(&g, "portable", 1));
    for (qn_act kind = QN_SILU; kind <= QN_SIGMOID; kind++) {
        size_t mark = g.ops->mark(g.run);
        const float *y = data(g.ops->act(g.run, host(x, 1, N), kind));
        const float *z = data(g.ops->glu(g.run, host(x, 1, N), host(up, 1, N), kind));
        double worst = 0;
        for (int i = 0; i < N; i++) {
            double want = exact(kind, x[i]), e = fabs(y[i] - want);
            if (e > 0) worst = fmax(worst, e / (0x1p-24 * fabs(want)) / bound_of(kind, x[i]));
            assert_true(z[i] == y[i] * up[i]);
        }
        print_message("activation %d: %.2f of the bound\n", (int)kind, worst);
        assert_true(worst <= 1);
        g.ops->reset(g.run, mark);
    }
    float far[4] = {-90, -1e4f, 90, 1e4f};
    for (qn_act kind = QN_SILU; kind <= QN_SIGMOID; kind++) {
        const float *y = data(g.ops->act(g.run, host(far, 1, 4), kind));
        for (int i = 0; i < 4; i++) {
            double want = exact(kind, far[i]);
            assert_true(isnan(want) || fabs(y[i] - want) <= 1e-30 + 1e-6 * fabs(want));
        }
    }
    free(x), free(up);
    close_rig(&g);
}

/* ---- norms ---- */

/* Bound: the sum of n squares is off by at most (n/64 + 8) u of itself, a quarter of that remains
 * after the root of a mean (half, and the sum is exact to first order), the products add 4 u. */
static void rms_norm_is_accurate(void **state)
{
    (void)state;
    static const uint32_t widths[] = {1, 3, 15, 16, 17, 64, 65, 80, 128, 576, 4096, 5000};
    rig g;
    assert_true(open_rig(&g, NULL, 1));
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        uint32_t n = widths[i];
        float *x = malloc(3 * n * sizeof *x), *w = malloc(n * sizeof *w);
        for (uint32_t j = 0; j < 3 * n; j++) x[j] = uniform() * 10;
        for (uint32_t j = 0; j < n; j++) w[j] = uniform();
        size_t mark = g.ops->mark(g.run);
        qn_tensor y = g.ops->rms_norm(g.run, host(x, 1, 3 * n), host(w, 1, n), n, 1e-5f);
        qn_tensor bare = g.ops->rms_norm(g.run, host(x, 1, 3 * n), (qn_tensor){0}, n, 1e-5f);
        for (uint32_t h = 0; h < 3; h++) {
            double sum = 0;
            for (uint32_t j = 0; j < n; j++) sum += (double)x[h * n + j] * x[h * n + j];
            double s = 1 / sqrt(sum / n + (double)1e-5f), u = (n / 128 + 8) * 0x1p-24;
            for (uint32_t j = 0; j < n; j++) {
                double want = x[h * n + j] * s;
                assert_true(fabs(data(bare)[h * n + j] - want) <= u * fabs(want));
                assert_true(fabs(data(y)[h * n + j] - want * w[j]) <= u * fabs(want * w[j]));
            }
        }
        g.ops->reset(g.run, mark);
        free(x), free(w);
    }
    close_rig(&g);
}

static void layer_norm_is_accurate(void **state)
{
    (void)state;
    static const uint32_t widths[] = {1, 15, 17, 64, 100, 1280};
    rig g;
    assert_true(open_rig(&g, NULL, 1));
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        uint32_t n = widths[i];
        float x[1280], w[1280], b[1280];
        for (uint32_t j = 0; j < n; j++) x[j] = uniform() + 2, w[j] = uniform(), b[j] = uniform();
        qn_tensor y = g.ops->layer_norm(g.run, host(x, 1, n), host(w, 1, n), host(b, 1, n), 1e-5f);
        qn_tensor none = {0};
        qn_tensor bare = g.ops->layer_norm(g.run, host(x, 1, n), none, none, 1e-5f);
        double mean = 0, var = 0;
        for (uint32_t j = 0; j < n; j++) mean += (double)x[j] / n;
        for (uint32_t j = 0; j < n; j++) var += (x[j] - mean) * (x[j] - mean) / n;
        double s = 1 / sqrt(var + (double)1e-5f);
        /* The mean is off by up to (n/64 + 8) u times 3; that is divided by the deviation. */
        double u = (n / 64 + 8) * 0x1p-24;
        for (uint32_t j = 0; j < n; j++) {
            double want = (x[j] - mean) * s, e = u * (fabs(want) + 3 * s);
            assert_true(fabs(data(bare)[j] - want) <= e);
            assert_true(fabs(data(y)[j] - (want * w[j] + b[j])) <= e + u);
        }
    }
    close_rig(&g);
}

static void norms_survive_edges(void **state)
{
    (void)state;
    rig g;
    assert_true(open_rig(&g, NULL, 1));
    float zero[100] = {0}, huge[100], same[100];
    for (int i = 0; i < 100; i++) huge[i] = i % 2 ? 1e18f : -1e18f, same[i] = 3;
    const float *y = data(g.ops->rms_norm(g.run, host(zero, 1, 100), (qn_tensor){0}, 100, 1e-6f));
    for (int i = 0; i < 100; i++) assert_true(y[i] == 0);
    y = data(g.ops->rms_norm(g.run, host(huge, 1, 100), (qn_tensor){0}, 100, 1e-6f));
    for (int i = 0; i < 100; i++) assert_true(fabs(y[i] - (i % 2 ? 1.0 : -1.0)) < 1e-6);
    y = data(g.ops->layer_norm(g.run, host(same, 1, 100), (qn_tensor){0}, (qn_tensor){0}, 1e-5f));
    for (int i = 0; i < 100; i++) assert_true(fabs(y[i]) < 1e-3);
    huge[7] = NAN;
    y = data(g.ops->rms_norm(g.run, host(huge, 1, 100), (qn_tensor){0}, 50, 1e-6f));
    assert_true(isnan(y[0]) && isnan(y[49]) && !isnan(y[50]));
    close_rig(&g);
}

/* ---- all variants, any number of rows, any number of threads: the same bits ---- */

static qn_tensor apply(rig *g, int op, qn_tensor x, qn_tensor z, qn_tensor w)
{
    switch (op) {
    case 0: return g->ops->rms_norm(g->run, x, w, x.cols, 1e-5f);
    case 1: return g->ops->layer_norm(g->run, x, w, w, 1e-5f);
    case 2: return g->ops->softcap(g->run, x, 3.5f);
    case 3: return g->ops->add(g->run, x, z);
    case 4: return g->ops->mul(g->run, x, w);
    case 5: return g->ops->scale(g->run, x, 0.3f);
    case 6: case 7: case 8: case 9: case 10: return g->ops->act(g->run, x, (qn_act)(op - 6));
    default: return g->ops->glu(g->run, x, z, (qn_act)(op - 11));
    }
}

static void variants_rows_and_threads_agree(void **state)
{
    (void)state;
    enum { OPS = 16, ROWS = 33, MOST = 2081 };
    static const uint32_t cols[] = {1, 5, 16, 31, 64, 100, MOST};
    float *x = malloc(ROWS * MOST * sizeof *x), *z = malloc(ROWS * MOST * sizeof *z), w[MOST];
    for (uint32_t i = 0; i < ROWS * MOST; i++) x[i] = uniform() * 12, z[i] = uniform() * 3;
    for (uint32_t i = 0; i < MOST; i++) w[i] = uniform();
    float *first = malloc(ROWS * MOST * sizeof *first);
    for (size_t c = 0; c < sizeof cols / sizeof *cols; c++)
        for (int op = 0; op < OPS; op++)
            for (uint32_t v = 0; v < N_ISAS; v++) {
                uint32_t n = cols[c];
                rig g;
                if (!open_rig(&g, isas[v], 1 + v)) continue;
                qn_tensor y = apply(&g, op, host(x, ROWS, n), host(z, ROWS, n), host(w, 1, n));
                if (v == 0) memcpy(first, data(y), ROWS * n * sizeof *first);
                assert_memory_equal(first, data(y), ROWS * n * sizeof *first);
                for (uint32_t r = 0; r < ROWS; r += 8) {
                    y = apply(&g, op, host(x + r * n, 1, n), host(z + r * n, 1, n), host(w, 1, n));
                    assert_memory_equal(first + r * n, data(y), n * sizeof *first);
                }
                close_rig(&g);
            }
    free(x), free(z), free(first);
}

static void plain_operations_are_exact(void **state)
{
    (void)state;
    rig g;
    assert_true(open_rig(&g, NULL, 2));
    float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {10, 20, 30, 40, 50, 60}, row[3] = {7, 8, 9};
    const float *y = data(g.ops->add(g.run, host(a, 2, 3), host(b, 2, 3)));
    for (int i = 0; i < 6; i++) assert_true(y[i] == a[i] + b[i]);
    y = data(g.ops->add(g.run, host(a, 2, 3), host(row, 1, 3)));
    for (int i = 0; i < 6; i++) assert_true(y[i] == a[i] + row[i % 3]);
    y = data(g.ops->mul(g.run, host(a, 2, 3), host(row, 1, 3)));
    for (int i = 0; i < 6; i++) assert_true(y[i] == a[i] * row[i % 3]);
    y = data(g.ops->scale(g.run, host(a, 2, 3), 0.5f));
    for (int i = 0; i < 6; i++) assert_true(y[i] == a[i] * 0.5f);
    qn_tensor x = host(a, 2, 3);
    g.ops->accumulate(g.run, &x, host(b, 2, 3));
    for (int i = 0; i < 6; i++) assert_true(a[i] == (float)(11 * (i + 1)));
    /* Views: the middle column of both. */
    y = data(g.ops->mul(g.run, qn_cols(host(a, 2, 3), 1, 1), qn_cols(host(b, 2, 3), 1, 1)));
    assert_true(y[0] == a[1] * b[1] && y[1] == a[4] * b[4]);
    close_rig(&g);
}

/* ---- rotary embedding ---- */

static float bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* spec numerics 14: base 1e4, 128 dims. */
static void frequencies_are_those_of_mlx(void **state)
{
    (void)state;
    qn_rope_desc d = {.dims = 128, .base = 1e4f, .pos_scale = 1, .mscale = 1};
    float inv[64];
    qn_rope_inv(&d, inv);
    assert_true(inv[0] == 1);
    assert_true(inv[1] == bits(0x3f5dafd7) && inv[2] == bits(0x3f3ff911));
    assert_true(inv[31] == bits(0x3c3d330f) && inv[63] == bits(0x38f22cdd));
    float freqs[64];
    for (int k = 0; k < 64; k++) freqs[k] = k == 5 ? INFINITY : (float)(k + 1);
    d.freqs = freqs;
    qn_rope_inv(&d, inv);
    for (int k = 0; k < 64; k++) assert_true(inv[k] == (k == 5 ? 0.0f : 1.0f / (float)(k + 1)));
}

static qn_tensor rotated(rig *g, const qn_rope_desc *d, const uint32_t *pos, uint32_t n, float *x,
                         uint32_t cols, uint32_t d_head)
{
    qn_rope *rope;
    assert_int_equal(g->ops->rope_new(g->dev, d, 1u << 17, &rope, NULL), QN_OK);
    qn_item item = {.n_new = n};
    qn_batch b = {.n_tokens = n, .n_items = 1, .pos = pos, .items = &item};
    g->ops->begin(g->run, &b, NULL);
    qn_tensor t = host(x, n, cols);
    g->ops->rope(g->run, t, d_head, rope);
    assert_int_equal(g->ops->end(g->run, NULL), QN_OK);
    return t;
}

/* cos and sin of position 5 against the spec's vectors, which come from MLX's own sine: within 1
 * ulp. */
static void rotation_matches_the_vectors(void **state)
{
    (void)state;
    static const struct { uint32_t k, c, s; } want[] = {
        {0, 0x3e913c2b, 0xbf757c10}, {1, 0xbebf21a3, 0xbf6d7e5b}, {31, 0x3f7f92ca, 0x3d6c5e31}};
    rig g;
    assert_true(open_rig(&g, NULL, 1));
    float x[128] = {0};
    uint32_t pos = 5;
    for (int k = 0; k < 64; k++) x[k] = 1; /* (1, 0) turns into (cos, sin) */
    qn_rope_desc d = {.dims = 128, .base = 1e4f, .pos_scale = 1, .mscale = 1};
    rotated(&g, &d, &pos, 1, x, 128, 128);
    for (int i = 0; i < 3; i++) {
        assert_true(ulps(x[want[i].k], bits(want[i].c)) <= 1);
        assert_true(ulps(x[want[i].k + 64], bits(want[i].s)) <= 1);
    }
    close_rig(&g);
}

/* Every parameter against a double reference whose angle is the float32 product that MLX takes. */
static void rotation_follows_its_parameters(void **state)
{
    (void)state;
    enum { D = 40, HEADS = 3, ROWS = 50 };
    float freqs[16];
    for (int k = 0; k < 16; k++) freqs[k] = k == 3 ? INFINITY : 1 + (float)k;
    for (int i = 0; i < 8; i++) {
        qn_rope_desc d = {.dims = 32, .traditional = i & 1, .base = 5e5f,
                          .pos_scale = i & 2 ? 0.25f : 1, .mscale = i & 4 ? 1.25f : 1,
                          .freqs = i & 2 ? freqs : NULL};
        float inv[16], x[ROWS * HEADS * D], old[ROWS * HEADS * D];
        uint32_t pos[ROWS];
        qn_rope_inv(&d, inv);
        for (int r = 0; r < ROWS; r++) pos[r] = (uint32_t)(r * r * 37);
        for (int j = 0; j < ROWS * HEADS * D; j++) x[j] = old[j] = uniform();
        rig g;
        assert_true(open_rig(&g, NULL, 2));
        rotated(&g, &d, pos, ROWS, x, HEADS * D, D);
        for (int r = 0; r < ROWS; r++)
            for (int h = 0; h < HEADS; h++) {
                const float *y = x + (r * HEADS + h) * D, *o = old + (r * HEADS + h) * D;
                for (int k = 0; k < 16; k++) {
                    int a = d.traditional ? 2 * k : k, b = d.traditional ? 2 * k + 1 : k + 16;
                    float theta = (float)pos[r] * d.pos_scale * inv[k];
                    double c = cos(theta), s = sin(theta), p = o[a] * d.mscale, q = o[b] * d.mscale;
                    assert_true(fabs(y[a] - (p * c - q * s)) <= 4 * 0x1p-24 * (fabs(p) + fabs(q)));
                    assert_true(fabs(y[b] - (p * s + q * c)) <= 4 * 0x1p-24 * (fabs(p) + fabs(q)));
                }
                assert_memory_equal(y + 32, o + 32, 8 * sizeof *y);
            }
        close_rig(&g);
    }
}

/* Many tables in one step, and rows alone or together: the same bits. */
static void rotation_depends_on_the_position_only(void **state)
{
    (void)state;
    enum { ROWS = 600, TABLES = 6 };
    rig g;
    assert_true(open_rig(&g, NULL, 2));
    qn_rope *ropes[TABLES];
    for (int i = 0; i < TABLES; i++) {
        qn_rope_desc d = {.dims = 64, .base = 1e4f * (float)(i + 1), .pos_scale = 1, .mscale = 1};
        assert_int_equal(g.ops->rope_new(g.dev, &d, 1u << 17, &ropes[i], NULL), QN_OK);
    }
    float *x = malloc(TABLES * ROWS * 64 * sizeof *x), *y = malloc(TABLES * ROWS * 64 * sizeof *y);
    uint32_t pos[ROWS];
    for (int j = 0; j < TABLES * ROWS * 64; j++) x[j] = y[j] = uniform();
    for (uint32_t r = 0; r < ROWS; r++) pos[r] = 70000 + r;
    qn_item item = {.n_new = ROWS};
    qn_batch b = {.n_tokens = ROWS, .n_items = 1, .pos = pos, .items = &item};
    g.ops->begin(g.run, &b, NULL);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < TABLES; i++)
            g.ops->rope(g.run, host(x + i * ROWS * 64, ROWS, 64), 64, ropes[i]);
    g.ops->end(g.run, NULL);
    for (uint32_t r = 0; r < ROWS; r += 59) {
        b = (qn_batch){.n_tokens = 1, .n_items = 1, .pos = pos + r, .items = &item};
        g.ops->begin(g.run, &b, NULL);
        for (int pass = 0; pass < 2; pass++)
            for (int i = 0; i < TABLES; i++)
                g.ops->rope(g.run, host(y + (i * ROWS + r) * 64, 1, 64), 64, ropes[i]);
        g.ops->end(g.run, NULL);
        for (int i = 0; i < TABLES; i++)
            assert_memory_equal(x + (i * ROWS + r) * 64, y + (i * ROWS + r) * 64, 64 * sizeof *x);
    }
    free(x), free(y);
    close_rig(&g);
}

static void bad_tables_are_refused(void **state)
{
    (void)state;
    rig g;
    assert_true(open_rig(&g, NULL, 1));
    static const qn_rope_desc bad[] = {{.dims = 7, .base = 1e4f}, {.dims = 0, .base = 1e4f},
                                       {.dims = 64, .base = 0}, {.dims = 64, .base = -1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_err err = {0};
        qn_rope *rope;
        assert_int_equal(g.ops->rope_new(g.dev, &bad[i], 100, &rope, &err), QN_INVALID);
        assert_true(strlen(err.text) > 10);
    }
    close_rig(&g);
}

/* ---- scratch ---- */

static void scratch_is_a_stack(void **state)
{
    (void)state;
    rig g;
    assert_true(open_rig(&g, NULL, 1));
    float x[64];
    uint32_t pos[2] = {0, 1}, out[1] = {1};
    for (int i = 0; i < 64; i++) x[i] = (float)i;
    qn_item item = {.n_new = 2};
    qn_batch b = {2, 1, 1, 0, pos, pos, &item, out};
    g.ops->begin(g.run, &b, NULL);
    qn_tensor a = g.ops->scale(g.run, host(x, 2, 32), 1);
    assert_int_equal(a.addr % 64, 0);
    size_t mark = g.ops->mark(g.run);
    qn_tensor c = g.ops->scale(g.run, a, 2);
    g.ops->reset(g.run, mark);
    qn_tensor d = g.ops->scale(g.run, a, 3);
    assert_true(c.addr == d.addr);
    qn_tensor last = g.ops->out_rows(g.run, d);
    assert_int_equal(last.rows, 1);
    const float *f = g.ops->fetch(g.run, last);
    for (int i = 0; i < 32; i++) assert_true(f[i] == 3.0f * (float)(32 + i));
    const float *view = g.ops->fetch(g.run, qn_cols(a, 3, 2));
    assert_true(view[0] == 3 && view[1] == 4 && view[2] == 35 && view[3] == 36);
    g.ops->reset(g.run, mark);
    (void)g.ops->scale(g.run, a, 5); /* what was fetched stays until the end */
    for (int i = 0; i < 32; i++) assert_true(f[i] == 3.0f * (float)(32 + i));
    assert_int_equal(g.ops->end(g.run, NULL), QN_OK);
    close_rig(&g);
}

static void uploads_are_widened(void **state)
{
    (void)state;
    rig g;
    assert_true(open_rig(&g, NULL, 3));
    assert_int_equal(g.ops->n_threads(g.dev), 3);
    static const uint16_t half[3] = {0x3C00, 0xC000, 0x3555};
    qn_tensor t;
    assert_int_equal(g.ops->upload(g.dev, half, QN_F16, 1, 3, &t, NULL), QN_OK);
    assert_true(t.dtype == QN_F32 && t.cols == 3 && t.addr % 64 == 0);
    assert_true(data(t)[0] == 1 && data(t)[1] == -2 && data(t)[2] == 0x1.554p-2f);
    qn_err err = {0};
    qn_code rc = g.ops->upload(g.dev, half, QN_F16, UINT32_MAX, UINT32_MAX, &t, &err);
    assert_int_equal(rc, QN_NOMEM);
    close_rig(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_slot_is_filled),
        cmocka_unit_test(exp_and_tanh_are_accurate),
        cmocka_unit_test(activations_are_accurate),
        cmocka_unit_test(rms_norm_is_accurate),
        cmocka_unit_test(layer_norm_is_accurate),
        cmocka_unit_test(norms_survive_edges),
        cmocka_unit_test(variants_rows_and_threads_agree),
        cmocka_unit_test(plain_operations_are_exact),
        cmocka_unit_test(frequencies_are_those_of_mlx),
        cmocka_unit_test(rotation_matches_the_vectors),
        cmocka_unit_test(rotation_follows_its_parameters),
        cmocka_unit_test(rotation_depends_on_the_position_only),
        cmocka_unit_test(bad_tables_are_refused),
        cmocka_unit_test(scratch_is_a_stack),
        cmocka_unit_test(uploads_are_widened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
