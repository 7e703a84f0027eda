/* compute_latent_test.c - latent attention (MLA) of the CPU device against double precision, its
 * independence of chunks, threads and instruction sets, and what a token of it takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compute/device.h"

enum { POOL_BLOCKS = 64, BLOCK = 32, MOST = 700, N_ISAS = 3 };

static const char *const isas[N_ISAS] = {"portable", "avx2", "avx512"};

/* A function of stream, position and element: -1 .. 1. */
static float value_at(uint32_t stream, uint32_t pos, uint32_t i)
{
    uint64_t x = (uint64_t)stream << 56 ^ (uint64_t)pos << 24 ^ i;
    x = (x + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    return (float)(int32_t)(x >> 32) * 0x1p-31f;
}

enum { QUERY = 1, LATENT, ROTATED, EMBED, UNEMBED };

typedef struct setup {
    const char *isa;
    uint32_t threads, n_heads, n, dk, dv, m, window, keep;
    bool chunked; /* the window is a chunk */
    qn_kv_form form;
} setup;

typedef struct rig {
    setup s;
    qn_device *dev;
    qn_kv *kv;
    qn_run *run;
    qn_weight *w[2];
    float *matrix[2];
    uint32_t blocks[POOL_BLOCKS];
} rig;

static qn_kv_spec spec_of(const setup *s, qn_kv_layer layers[2])
{
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    qn_kv_codec c = {s->form, 0, types[s->form]};
    layers[0] = (qn_kv_layer){.n_kv_heads = 1, .d_k = 16, .d_v = 16, .k_codec = {.form = QN_KV_F16}};
    layers[1] = (qn_kv_layer){.n_kv_heads = 1, .d_k = s->dk, .d_v = s->dv, .latent = true,
                              .k_codec = c, .v_codec = c};
    qn_kv_spec spec = {.block_tokens = BLOCK, .n_groups = 1, .n_layers = 2, .layers = layers};
    qn_kv_rule rule = s->chunked ? QN_KV_CHUNKED : QN_KV_SLIDING;
    if (s->window) spec.groups[0] = (qn_kv_group){rule, s->window, s->keep};
    return spec;
}

static void load(rig *g, int i, uint32_t stream, uint32_t n_out, uint32_t n_in)
{
    qn_err err = {0};
    size_t n = (size_t)g->s.n_heads * n_out * n_in;
    g->matrix[i] = malloc(n * sizeof(float));
    for (size_t k = 0; k < n; k++) g->matrix[i][k] = value_at(stream, 0, (uint32_t)k);
    qn_matrix_src src = {"m", {.n_experts = g->s.n_heads, .n_out = n_out, .n_in = n_in,
                               .weight = g->matrix[i], .dtype = QN_F32}};
    qn_load_opts opts = {.model_dtype = QN_F32};
    assert_int_equal(g->dev->ops->load(g->dev, &src, 1, &opts, &g->w[i], &err), QN_OK);
}

static bool open_rig(rig *g, const setup *s)
{
    qn_err err = {0};
    qn_kv_layer layers[2];
    qn_kv_spec spec = spec_of(s, layers);
    *g = (rig){.s = *s};
    qn_device_opts opts = {.isa = s->isa, .n_threads = s->threads};
    if (qn_device_open(&g->dev, &opts, &err)) {
        assert_int_equal(err.code, QN_UNSUPPORTED);
        return false;
    }
    uint32_t n_blocks = POOL_BLOCKS;
    assert_int_equal(g->dev->ops->kv_new(g->dev, &spec, &n_blocks, &g->kv, &err), QN_OK);
    size_t bytes = g->dev->ops->kv_block_bytes(g->dev, &spec, 0);
    uint8_t *poison = malloc(bytes); /* NaNs */
    memset(poison, 0xFF, bytes);
    for (uint32_t b = 0; b < POOL_BLOCKS; b++) {
        g->blocks[b] = b * 5 % POOL_BLOCKS;
        g->dev->ops->kv_store(g->kv, 0, b, poison);
    }
    free(poison);
    qn_run_limits limits = {MOST, 1, MOST, POOL_BLOCKS * BLOCK, 64u << 20};
    assert_int_equal(g->dev->ops->run_new(g->dev, &limits, &g->run, &err), QN_OK);
    load(g, 0, EMBED, s->dk, s->n);
    load(g, 1, UNEMBED, s->m, s->dk);
    return true;
}

static void close_rig(rig *g)
{
    g->dev->ops->run_free(g->run);
    g->dev->ops->kv_free(g->kv);
    g->dev->ops->close(g->dev);
    free(g->matrix[0]);
    free(g->matrix[1]);
}

static float scale_of(const setup *s) { return 2.0f / sqrtf((float)(s->n * s->dk)); }

static qn_tensor rows_of(float *x, uint32_t stream, uint32_t pos, uint32_t rows, uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < cols; i++) x[(size_t)r * cols + i] = value_at(stream, pos + r, i);
    return (qn_tensor){(uintptr_t)x, QN_F32, rows, cols, cols};
}

/* Write and attend at positions [at, at+n) in one call; out [n, H*M]. */
static void step(rig *g, uint32_t at, uint32_t n, float *out)
{
    const setup *s = &g->s;
    static float q[MOST * 4 * 96], k[MOST * 64], v[MOST * 32];
    static uint32_t pos[MOST];
    qn_item item = {.n_new = n, .n_past = at, .blocks = {g->blocks}};
    qn_batch b = {.n_tokens = n, .n_items = 1, .pos = pos, .items = &item};
    for (uint32_t i = 0; i < n; i++) pos[i] = at + i;
    const qn_ops *ops = g->dev->ops;
    ops->begin(g->run, &b, g->kv);
    ops->kv_write(g->run, 1, rows_of(k, LATENT, at, n, s->dk), rows_of(v, ROTATED, at, n, s->dv));
    qn_latent a = {1, s->n_heads, scale_of(s), g->w[0], g->w[1]};
    qn_tensor y = ops->attend_latent(g->run, rows_of(q, QUERY, at, n, s->n_heads * (s->n + s->dv)), &a);
    assert_int_equal(y.rows, n);
    assert_int_equal(y.cols, s->n_heads * s->m);
    memcpy(out, ops->fetch(g->run, y), (size_t)n * y.cols * sizeof *out);
    assert_int_equal(ops->end(g->run, NULL), QN_OK);
}

/* A stored element. */
static double stored(const setup *s, uint32_t stream, uint32_t pos, uint32_t i)
{
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    float x = value_at(stream, pos, i);
    uint8_t bytes[4];
    qn_narrow(bytes, types[s->form], &x, 1);
    qn_widen(&x, bytes, types[s->form], 1);
    return (double)x;
}

/* A head's result at one position in the un-absorbed form, in double precision: y [M]. */
static void reference(const setup *s, uint32_t pos, uint32_t h, double *y)
{
    static double p[MOST], sum_of[64];
    double sum = 0;
    memset(sum_of, 0, sizeof sum_of);
    for (uint32_t j = 0; j <= pos; j++) {
        p[j] = 0;
        if (s->chunked ? j / s->window != pos / s->window
                       : s->window && j + s->window <= pos && j >= s->keep)
            continue;
        double dot = 0;
        for (uint32_t i = 0; i < s->n; i++) {
            double key = 0;
            for (uint32_t d = 0; d < s->dk; d++)
                key += (double)value_at(EMBED, 0, (h * s->dk + d) * s->n + i) * stored(s, LATENT, j, d);
            dot += key * (double)value_at(QUERY, pos, h * (s->n + s->dv) + i);
        }
        for (uint32_t i = 0; i < s->dv; i++)
            dot += stored(s, ROTATED, j, i) * (double)value_at(QUERY, pos, h * (s->n + s->dv) + s->n + i);
        sum += p[j] = exp(dot * (double)scale_of(s)); /* scores are small: no need to shift them */
    }
    for (uint32_t j = 0; j <= pos; j++)
        for (uint32_t d = 0; p[j] > 0 && d < s->dk; d++) sum_of[d] += p[j] / sum * stored(s, LATENT, j, d);
    for (uint32_t i = 0; i < s->m; i++) {
        y[i] = 0;
        for (uint32_t d = 0; d < s->dk; d++)
            y[i] += (double)value_at(UNEMBED, 0, (h * s->m + i) * s->dk + d) * sum_of[d];
    }
}

static setup setup_of(uint32_t i)
{
    static const uint32_t windows[] = {0, 40, 0, 300}, keeps[] = {0, 4, 0, 20};
    setup s = {.threads = 1 + i % 3, .n_heads = 1 + i % 4, .n = 16 + i % 3 * 11, .dk = 32 + i % 3 * 16,
               .dv = i % 2 ? 32 : 16, .m = 24 + i % 2, .window = windows[i % 4], .keep = keeps[i % 4],
               .form = (qn_kv_form)(i % 3), .isa = isas[i % N_ISAS]};
    s.chunked = s.window && i % 8 > 3;
    if (s.chunked) s.keep = 0;
    return s;
}

/* 32-bit sums of at most 700 terms of size 1 differ from 64-bit ones by far less than 1e-5. */
static void agrees_with_double_precision(void **state)
{
    (void)state;
    static float out[MOST * 4 * 32];
    for (uint32_t i = 0; i < 12; i++) {
        setup s = setup_of(i);
        rig g;
        if (!open_rig(&g, &s)) continue;
        const uint32_t n = i % 2 ? 300 : 90;
        step(&g, 0, n, out);
        for (uint32_t pos = 0; pos < n; pos += pos < 3 ? 1 : 83) {
            for (uint32_t h = 0; h < s.n_heads; h++) {
                double y[32], most = 1;
                reference(&s, pos, h, y);
                for (uint32_t d = 0; d < s.m; d++) {
                    double got = (double)out[((size_t)pos * s.n_heads + h) * s.m + d];
                    if (!(fabs(got - y[d]) <= 1e-5 * most))
                        fail_msg("case %u, position %u, head %u: %.9g, not %.9g", i, pos, h, got, y[d]);
                }
            }
        }
        close_rig(&g);
    }
}

/* In one call, token by token, in odd pieces: the same bits on every instruction set. */
static void calls_do_not_matter(void **state)
{
    (void)state;
    static const uint32_t whole[] = {600}, ones[] = {1}, mixed[] = {17, 1, 230, 3, 5, 1, 64};
    static const struct { const uint32_t *sizes; uint32_t n; } ways[] = {{whole, 1}, {ones, 1}, {mixed, 7}};
    static float first[600 * 4 * 32], out[600 * 4 * 32];
    for (uint32_t i = 0; i < 6; i++) {
        setup s = setup_of(i);
        bool any = false;
        for (uint32_t way = 0; way < 3 * N_ISAS; way++) {
            s.isa = isas[way % N_ISAS];
            s.threads = 1 + way % 2;
            rig g;
            if (!open_rig(&g, &s)) continue;
            float *to = any ? out : first;
            const uint32_t total = 400, width = s.n_heads * s.m;
            for (uint32_t at = 0, k = 0, n; at < total; at += n, k++) {
                n = ways[way / N_ISAS].sizes[k % ways[way / N_ISAS].n];
                if (n > total - at) n = total - at;
                step(&g, at, n, to + (size_t)at * width);
            }
            if (any) assert_memory_equal(first, out, (size_t)total * width * sizeof *out);
            any = true;
            close_rig(&g);
        }
    }
}

/* A row is stored once: latent and rotated part, nothing per head. */
static void a_token_is_stored_once(void **state)
{
    (void)state;
    setup s = {.n_heads = 4, .dk = 512, .dv = 64, .form = QN_KV_BF16, .threads = 1};
    qn_kv_layer layers[2];
    qn_kv_spec spec = spec_of(&s, layers);
    qn_err err = {0};
    layers[0].n_kv_heads = 0;
    assert_int_equal(qn_kv_layer_bytes(&layers[1]), (512 + 64) * 2);
    qn_device_opts opts = {.n_threads = 1};
    qn_device *dev;
    assert_int_equal(qn_device_open(&dev, &opts, &err), QN_OK);
    assert_int_equal(dev->ops->kv_block_bytes(dev, &spec, 0), BLOCK * (512 + 64) * 2);
    dev->ops->close(dev);
}

/* What is put into a block comes back, together and apart. */
static void rows_come_back(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        setup s = setup_of(i);
        s.isa = NULL;
        rig g;
        assert_true(open_rig(&g, &s));
        float k[BLOCK * 64], v[BLOCK * 32], k2[BLOCK * 64], v2[BLOCK * 32];
        for (uint32_t p = 0; p < BLOCK; p++) {
            for (uint32_t d = 0; d < s.dk; d++) k[p * s.dk + d] = (float)stored(&s, LATENT, p, d);
            for (uint32_t d = 0; d < s.dv; d++) v[p * s.dv + d] = (float)stored(&s, ROTATED, p, d);
        }
        const qn_ops *ops = g.dev->ops;
        ops->kv_put(g.kv, 1, 3, 0, 7, k, v);
        ops->kv_put(g.kv, 1, 3, 7, BLOCK - 7, k + 7 * s.dk, NULL);
        ops->kv_put(g.kv, 1, 3, 7, BLOCK - 7, NULL, v + 7 * s.dv);
        ops->kv_copy(g.kv, 0, 5, 3);
        ops->kv_get(g.kv, 1, 5, 0, BLOCK, k2, NULL);
        ops->kv_get(g.kv, 1, 5, 0, BLOCK, NULL, v2);
        assert_memory_equal(k, k2, (size_t)BLOCK * s.dk * sizeof *k);
        assert_memory_equal(v, v2, (size_t)BLOCK * s.dv * sizeof *v);
        close_rig(&g);
    }
}

static void other_forms_are_refused(void **state)
{
    (void)state;
    setup s = setup_of(0);
    for (uint32_t i = 0; i < 4; i++) {
        qn_kv_layer layers[2];
        qn_kv_spec spec = spec_of(&s, layers);
        qn_err err = {0};
        if (i == 0) layers[1].k_codec = layers[1].v_codec = (qn_kv_codec){QN_KV_Q8, 32, QN_BF16};
        if (i == 1) layers[1].d_k = 40;
        if (i == 2) layers[1].n_kv_heads = 2;
        if (i == 3) layers[1].d_k = 1024;
        assert_int_equal(qn_kv_spec_check(&spec, 1024, &err), QN_UNSUPPORTED);
        assert_non_null(strstr(err.text, i ? "latent row" : "cannot be quantized"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_double_precision), cmocka_unit_test(calls_do_not_matter),
        cmocka_unit_test(a_token_is_stored_once),       cmocka_unit_test(rows_come_back),
        cmocka_unit_test(other_forms_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
