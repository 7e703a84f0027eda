/* qmm.c - how close the matrix products of the CPU device come to the machine's ceilings.
 *
 * Decode (one row of activations): bytes of panels per second, beside the read bandwidth that the
 * same threads reach on the same memory. Prefill (many rows): multiply-adds per second, beside the
 * rate at which the same threads issue the multiply instruction of that product. The ceiling and
 * the kernel are measured in turn, and medians are reported, because a machine is rarely idle; with
 * one thread, times are processor time, which leaves out what other programs take. Prints JSON.
 *
 * usage: qmm_bench [THREADS [ISA [ROUNDS]]]
 */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "compute/cpu/cpu.h"
#include "compute/cpu/kernels.h"
#include "compute/cpu/weights.h"
#include "core/clock.h"

enum {
    N = 4096,           /* rows and columns of every matrix */
    DECODE_MB = 384,    /* memory that a decode round streams through; far larger than a cache */
    PREFILL_ROWS = 240, /* activations of a prefill round */
    MAX_ROUNDS = 101
};

typedef struct bench_case {
    const char *name;
    qn_qspec spec;
    qn_dtype dtype;
    qn_act_mode act;
} bench_case;

static const bench_case cases[] = {
    {"4 bit g64 int16", {QN_Q_AFFINE, 4, 64}, QN_BF16, QN_ACT_INT16},
    {"4 bit g64 int8", {QN_Q_AFFINE, 4, 64}, QN_BF16, QN_ACT_INT8},
    {"8 bit g64 int16", {QN_Q_AFFINE, 8, 64}, QN_BF16, QN_ACT_INT16},
    {"4 bit g32 int16", {QN_Q_AFFINE, 4, 32}, QN_BF16, QN_ACT_INT16},
    {"mxfp4 int16", {QN_Q_MXFP4, 4, 32}, QN_BF16, QN_ACT_INT16},
    {"bfloat16", {QN_Q_NONE, 0, 0}, QN_BF16, QN_ACT_INT16},
};

static void die(const char *what)
{
    fprintf(stderr, "qmm_bench: %s\n", what);
    exit(1);
}

/* Nanoseconds of the clock that suits the number of threads. */
static uint64_t time_ns(uint32_t n_threads)
{
    struct timespec t;
    if (n_threads > 1) return qn_now_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

/* ---- ceilings ---- */

typedef struct range {
    const uint8_t *data;
    size_t bytes;
    uint32_t n_parts;
} range;

__attribute__((target("avx2"))) static void read_part(void *arg, uint32_t part, uint32_t thread)
{
    const range *r = arg;
    const size_t step = r->bytes / r->n_parts / 256 * 256;
    const __m256i *p = (const __m256i *)(const void *)(r->data + part * step);
    __m256i sum[8] = {{0}};
    (void)thread;
    for (size_t i = 0; i < step / 32; i += 8)
        for (size_t j = 0; j < 8; j++)
            sum[j] = _mm256_xor_si256(sum[j], _mm256_load_si256(p + i + j));
    for (size_t j = 0; j < 8; j++) __asm__ volatile("" : : "x"(sum[j]));
}

enum { PEAK_LOOPS = 200000, PEAK_CHAINS = 12 };

/* Twelve independent chains of one instruction; nothing else to do. */
#define PEAK(name, instruction)                                                                    \
    __attribute__((target("avx512f"))) static void name(void *arg, uint32_t part, uint32_t thread) \
    {                                                                                              \
        (void)arg, (void)part, (void)thread;                                                       \
        for (int i = 0; i < PEAK_LOOPS; i++)                                                       \
            __asm__ volatile(".irp r, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n" instruction         \
                             " %%zmm12, %%zmm13, %%zmm\\r\n.endr\n"                               \
                             :                                                                     \
                             :                                                                     \
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",     \
                               "xmm8", "xmm9", "xmm10", "xmm11");                                  \
    }
PEAK(peak_dot, "vpdpbusd")
PEAK(peak_fma, "vfmadd231ps")

/* Multiply-adds per second of the instruction that a case uses; 0 when the machine has none. */
static double peak_rate(qn_cpu *cpu, const bench_case *c)
{
    if (strcmp(cpu->k->name, "avx512")) return 0;
    const bool dense = c->spec.mode == QN_Q_NONE;
    const uint32_t parts = qn_pool_threads(cpu->pool);
    const uint64_t start = time_ns(parts);
    qn_pool_run(cpu->pool, dense ? peak_fma : peak_dot, NULL, parts);
    const double seconds = (double)(time_ns(parts) - start) * 1e-9;
    const double per_instruction = dense ? 16 : c->act == QN_ACT_INT8 ? 64 : 32;
    return per_instruction * PEAK_LOOPS * PEAK_CHAINS * parts / seconds;
}

/* ---- the products ---- */

typedef struct setup {
    qn_cpu *cpu;
    qn_run *run;
    qn_weight *w[1024];
    size_t n, bytes;
    qn_batch batch;
    float *x;
} setup;

static void run_all(setup *s, uint32_t rows, size_t n)
{
    const qn_ops *ops = s->cpu->base.ops;
    s->batch = (qn_batch){.n_tokens = rows, .n_items = 1};
    ops->begin(s->run, &s->batch, NULL);
    qn_tensor x = qn_cpu_take((qn_cpu_run *)s->run, rows, N), y;
    memcpy(qn_cpu_row(x, 0), s->x, (size_t)rows * N * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        size_t mark = ops->mark(s->run);
        qn_linear l = {.w = s->w[i]};
        const qn_linear *lp = &l;
        ops->linear(s->run, 1, &y, x, &lp);
        ops->reset(s->run, mark);
    }
    qn_err err = {0};
    ops->end(s->run, &err);
}

static void *random_bytes(size_t n)
{
    uint64_t *p = malloc(n), s = 88172645463325252u;
    if (!p) die("out of memory");
    for (size_t i = 0; i < n / 8; i++) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        p[i] = s & 0x3fff3fff3fff3fffu; /* small as 16-bit floats */
    }
    return p;
}

static void load(setup *s, const bench_case *c)
{
    qn_matrix m = {.spec = c->spec, .n_experts = 1, .n_out = N, .n_in = N, .dtype = c->dtype};
    m.weight = random_bytes((size_t)N * N * (c->spec.bits ? c->spec.bits : 16) / 8);
    m.scales = m.biases = random_bytes((size_t)N * N / 16 * 4);
    qn_panels w;
    qn_err err = {0};
    if (qn_panels_init(&w, &m, &err)) die(err.text);
    s->n = ((size_t)DECODE_MB << 20) / qn_panels_bytes(&w);
    s->bytes = s->n * qn_panels_bytes(&w);
    qn_matrix_src *src = calloc(s->n, sizeof *src);
    for (size_t i = 0; i < s->n; i++) src[i] = (qn_matrix_src){"bench", m};
    const qn_ops *ops = s->cpu->base.ops;
    if (ops->load(&s->cpu->base, src, s->n, &(qn_load_opts){0}, s->w, &err)) die(err.text);
    const qn_run_limits limits = {.max_tokens = PREFILL_ROWS,
                                  .max_items = 1,
                                  .max_out = 1,
                                  .scratch_bytes = (size_t)PREFILL_ROWS * N * 4 * 2 + 4096};
    if (ops->run_new(&s->cpu->base, &limits, &s->run, &err)) die(err.text);
    s->x = malloc((size_t)PREFILL_ROWS * N * sizeof *s->x);
    for (size_t i = 0; i < (size_t)PREFILL_ROWS * N; i++)
        s->x[i] = (float)((int)(i * 2654435761u % 2001) - 1000) / 700;
    free((void *)m.weight);
    free((void *)m.scales);
    free(src);
}

static double read_rate(setup *s)
{
    const uint32_t threads = qn_pool_threads(s->cpu->pool);
    range r = {s->cpu->store->segments->data, s->bytes, threads * 8};
    uint64_t start = time_ns(threads);
    qn_pool_run(s->cpu->pool, read_part, &r, r.n_parts);
    return (double)s->bytes / (double)(time_ns(threads) - start);
}

static void measure(const bench_case *c, const qn_device_opts *opts, int rounds, const char *comma)
{
    setup s = {0};
    qn_device *d;
    qn_err err = {0};
    qn_device_opts o = *opts;
    o.act = c->act;
    if (qn_device_open(&d, &o, &err)) die(err.text);
    s.cpu = (qn_cpu *)(void *)d;
    load(&s, c);
    double read[MAX_ROUNDS], decode[MAX_ROUNDS], share[MAX_ROUNDS], rate[MAX_ROUNDS],
        peak[MAX_ROUNDS], of_peak[MAX_ROUNDS];
    const uint32_t threads = qn_pool_threads(s.cpu->pool);
    run_all(&s, 1, s.n);
    for (int i = 0; i < rounds; i++) {
        read[i] = read_rate(&s);
        uint64_t start = time_ns(threads);
        run_all(&s, 1, s.n);
        decode[i] = (double)s.bytes / (double)(time_ns(threads) - start);
        share[i] = decode[i] / read[i];
        peak[i] = peak_rate(s.cpu, c) * 1e-9;
        start = time_ns(threads);
        run_all(&s, PREFILL_ROWS, 4);
        rate[i] = 4.0 * PREFILL_ROWS * N * N / (double)(time_ns(threads) - start);
        of_peak[i] = peak[i] > 0 ? rate[i] / peak[i] : 0;
    }
    printf("  {\"matrix\": \"%s\", \"read_gb_s\": %.1f, \"decode_gb_s\": %.1f, \"decode_share\": "
           "%.3f, "
           "\"peak_gmac_s\": %.0f, \"prefill_gmac_s\": %.0f, \"prefill_share\": %.3f}%s\n",
           c->name, median(read, rounds), median(decode, rounds), median(share, rounds),
           median(peak, rounds), median(rate, rounds), median(of_peak, rounds), comma);
    fflush(stdout);
    d->ops->run_free(s.run);
    d->ops->close(d);
    free(s.x);
}

int main(int argc, char **argv)
{
    qn_device_opts opts = {.n_threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 0,
                           .isa = argc > 2 && strcmp(argv[2], "best") ? argv[2] : NULL};
    int rounds = argc > 3 ? atoi(argv[3]) : 9;
    qn_device *d;
    qn_err err = {0};
    if (rounds < 1 || rounds > MAX_ROUNDS) die("ROUNDS goes from 1 to 101");
    if (qn_device_open(&d, &opts, &err)) die(err.text);
    printf("{\"isa\": \"%s\", \"threads\": %u, \"shape\": [%d, %d], \"prefill_rows\": %d, "
           "\"rounds\": %d, \"results\": [\n",
           qn_device_isa(d), d->ops->n_threads(d), N, N, PREFILL_ROWS, rounds);
    d->ops->close(d);
    const size_t n = sizeof cases / sizeof *cases;
    for (size_t i = 0; i < n; i++) measure(&cases[i], &opts, rounds, i + 1 < n ? "," : "");
    printf("]}\n");
    return 0;
}
