/* attend.c - speed of attention on the CPU device: decode as a share of the machine's read
 * bandwidth, prefill as multiply-adds per second.
 *
 * usage: attend_bench [ISA [THREADS]]
 * Decode: one row, 8192 keys in the cache, H 32, Hk 8, D 128, four layers in turn so that the cache
 * is larger than the processor's. The read bandwidth is measured in the same run with the same
 * threads, summing memory of the same size. Figures are medians of 9.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/cpu/cpu.h"
#include "core/clock.h"

enum { H = 32, HK = 8, D = 128, CONTEXT = 8192, LAYERS = 4, CHUNK = 128, REPEATS = 9 };

typedef struct reader {
    const uint64_t *p;
    size_t words, parts;
    uint64_t sum[QN_MAX_THREADS * 8];
} reader;

static void read_part(void *arg, uint32_t part, uint32_t thread)
{
    (void)thread;
    reader *r = arg;
    size_t n = r->words / r->parts;
    const uint64_t *p = r->p + part * n;
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) s[j] += p[i + j];
    r->sum[part] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *t)
{
    qsort(t, REPEATS, sizeof *t, by_value);
    return t[REPEATS / 2];
}

/* Bytes per nanosecond of reading `bytes` with the device's threads. */
static double read_bandwidth(qn_cpu *c, size_t bytes)
{
    static reader r;
    void *p = qn_cpu_map(bytes);
    if (!p) return 0;
    memset(p, 1, bytes);
    r.p = p, r.words = bytes / 8, r.parts = 4 * qn_pool_threads(c->pool);
    double t[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        uint64_t start = qn_now_ns();
        qn_pool_run(c->pool, read_part, &r, (uint32_t)r.parts);
        t[i] = (double)(qn_now_ns() - start);
    }
    qn_cpu_unmap(p, bytes);
    return (double)bytes / median(t);
}

static float *noise(size_t n)
{
    float *x = malloc(n * sizeof *x);
    uint32_t s = 1;
    for (size_t i = 0; x && i < n; i++) {
        s = s * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)s * 0x1p-31f;
    }
    return x;
}

static qn_tensor host(float *x, uint32_t rows, uint32_t cols)
{
    return (qn_tensor){(uintptr_t)x, QN_F32, rows, cols, cols};
}

typedef struct bench {
    qn_device *dev;
    const qn_ops *ops;
    qn_kv *kv;
    qn_run *run;
    uint32_t blocks[CONTEXT / 64 + CHUNK / 64], pos[CHUNK];
    float *q, *k, *v;
} bench;

/* One step over all layers: n_new rows after n_past tokens. Returns nanoseconds. */
static double step(bench *b, uint32_t n_past, uint32_t n_new, bool attend)
{
    for (uint32_t i = 0; i < n_new; i++) b->pos[i] = n_past + i;
    qn_item item = {.n_new = n_new, .n_past = n_past, .blocks = {b->blocks}};
    qn_batch batch = {.n_tokens = n_new, .n_items = 1, .pos = b->pos, .items = &item};
    uint64_t start = qn_now_ns();
    b->ops->begin(b->run, &batch, b->kv);
    for (uint32_t l = 0; l < LAYERS; l++) {
        size_t mark = b->ops->mark(b->run);
        qn_attend a = {l, H, 0.088f, 0, {0}};
        b->ops->kv_write(b->run, l, host(b->k, n_new, HK * D), host(b->v, n_new, HK * D));
        if (attend) b->ops->attend(b->run, host(b->q, n_new, H * D), &a);
        b->ops->reset(b->run, mark);
    }
    b->ops->end(b->run, NULL);
    return (double)(qn_now_ns() - start);
}

static double timed(bench *b, uint32_t n_past, uint32_t n_new, bool attend)
{
    double t[REPEATS];
    step(b, n_past, n_new, attend);
    for (int i = 0; i < REPEATS; i++) t[i] = step(b, n_past, n_new, attend);
    return median(t);
}

static const struct { const char *name; qn_kv_codec codec; } codecs[] = {
    {"f32", {QN_KV_F32, 0, QN_F32}},      {"f16", {QN_KV_F16, 0, QN_F16}},
    {"bf16", {QN_KV_BF16, 0, QN_BF16}},   {"q8 g64", {QN_KV_Q8, 64, QN_BF16}},
    {"q8 g32", {QN_KV_Q8, 32, QN_BF16}},  {"q4 g64", {QN_KV_Q4, 64, QN_BF16}},
    {"q4 g32", {QN_KV_Q4, 32, QN_BF16}},
};

static qn_code run_codec(bench *b, const char *name, qn_kv_codec codec, qn_err *err)
{
    qn_kv_layer layers[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        layers[l] = (qn_kv_layer){.n_kv_heads = HK, .d_k = D, .d_v = D, .k_codec = codec,
                                  .v_codec = codec};
    qn_kv_spec spec = {.block_tokens = 64, .n_groups = 1, .n_layers = LAYERS, .layers = layers};
    uint32_t n_blocks = sizeof b->blocks / sizeof *b->blocks;
    for (uint32_t i = 0; i < n_blocks; i++) b->blocks[i] = i;
    qn_code rc = b->ops->kv_new(b->dev, &spec, &n_blocks, &b->kv, err);
    if (rc) return rc;
    for (uint32_t at = 0; at < CONTEXT; at += CHUNK) step(b, at, CHUNK, false);
    size_t bytes = LAYERS * CONTEXT * qn_kv_layer_bytes(layers);
    double ns = timed(b, CONTEXT - 1, 1, true), decode = (double)bytes / ns;
    double ceiling = read_bandwidth((qn_cpu *)(void *)b->dev, bytes);
    double macs = (double)LAYERS * H * 2 * D * CHUNK;
    double late = timed(b, CONTEXT - CHUNK, CHUNK, true), early = timed(b, 0, CHUNK, true);
    double write = timed(b, 0, CHUNK, false);
    printf("%-6s decode at 8k %6.2f ms, %6.1f GB/s of %6.1f read (%.2f)   prefill of 128: at 0 %6.1f "
           "GFLOP/s, at 8k %6.1f   kv_write %.2f ns per element\n", name, ns / 1e6, decode, ceiling,
           decode / ceiling, 2 * macs * (CHUNK + 1) / 2 / early,
           2 * macs * (CONTEXT - CHUNK / 2.0) / late, write / (LAYERS * CHUNK * HK * 2.0 * D));
    b->ops->kv_free(b->kv);
    return QN_OK;
}

int main(int argc, char **argv)
{
    static bench b;
    qn_err err = {0};
    qn_device_opts opts = {.isa = argc > 1 ? argv[1] : NULL,
                           .n_threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 0};
    qn_run_limits limits = {CHUNK, 1, 1, CONTEXT + CHUNK, 64u << 20};
    b.q = noise((size_t)CHUNK * H * D), b.k = noise((size_t)CHUNK * HK * D);
    b.v = noise((size_t)CHUNK * HK * D);
    if (!b.q || !b.k || !b.v) return 1;
    if (qn_device_open(&b.dev, &opts, &err)) {
        fprintf(stderr, "attend_bench: %s\n", err.text);
        return 1;
    }
    b.ops = b.dev->ops;
    qn_code rc = b.ops->run_new(b.dev, &limits, &b.run, &err);
    if (!rc) printf("%s, %u threads\n", qn_device_isa(b.dev), b.ops->n_threads(b.dev));
    for (size_t i = 0; !rc && i < sizeof codecs / sizeof *codecs; i++)
        rc = run_codec(&b, codecs[i].name, codecs[i].codec, &err);
    if (rc) fprintf(stderr, "attend_bench: %s\n", err.text);
    b.ops->run_free(b.run);
    b.ops->close(b.dev);
    free(b.q), free(b.k), free(b.v);
    return rc ? 1 : 0;
}
