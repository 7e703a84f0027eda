/* compute_attend_test.c - attention of the CPU device against a double precision reference, and its
 * independence of chunks, blocks, threads, neighbours and instruction sets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/device.h"

static const char *const isas[] = {"portable", "avx2", "avx512"};

enum { N_ISAS = 3, MAX_ITEMS = 4, POOL_BLOCKS = 4096 };

/* ---- numbers: a function of stream, sequence, position and element, for any chunk ---- */

static float value_at(uint32_t stream, uint32_t seq, uint32_t pos, uint32_t i)
{
    uint64_t x = (uint64_t)stream << 56 ^ (uint64_t)seq << 48 ^ (uint64_t)pos << 20 ^ i;
    x = (x + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    return (float)(int32_t)(x >> 32) * 0x1p-30f; /* -2 .. 2 */
}

/* ---- codecs ---- */

enum { N_CODECS = 9 };

static const qn_kv_codec codecs[N_CODECS] = {
    {QN_KV_F32, 0, QN_F32},   {QN_KV_F16, 0, QN_F16},   {QN_KV_BF16, 0, QN_BF16},
    {QN_KV_Q8, 64, QN_BF16},  {QN_KV_Q8, 32, QN_F16},   {QN_KV_Q4, 64, QN_BF16},
    {QN_KV_Q4, 32, QN_BF16},  {QN_KV_Q4, 32, QN_F32},   {QN_KV_Q8, 128, QN_F32},
};

static float through(float x, qn_dtype t)
{
    uint8_t bytes[4];
    qn_narrow(bytes, t, &x, 1);
    qn_widen(&x, bytes, t, 1);
    return x;
}

/* n values as a codec gives them back. */
static void decode(float *x, uint32_t n, qn_kv_codec c)
{
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    if (!qn_kv_quantized(c)) {
        for (uint32_t i = 0; i < n; i++) x[i] = through(x[i], types[c.form]);
        return;
    }
    qn_qspec q = {QN_Q_AFFINE, qn_kv_form_bits(c.form), c.group};
    uint32_t words[1024];
    float scales[1024], biases[1024];
    assert_true(n <= 1024 && n % c.group == 0);
    qn_quantize_row(&q, QN_F32, x, n, words, scales, biases);
    for (uint32_t i = 0; i < n; i++)
        x[i] = fmaf(through(scales[i / c.group], c.scales),
                    (float)qn_qcode(words, q.bits, i), through(biases[i / c.group], c.scales));
}

/* The codec, or another one of the same width where heads of d are not whole groups. */
static qn_kv_codec codec_for(uint32_t i, uint32_t d)
{
    qn_kv_codec c = codecs[i % N_CODECS];
    return c.group && d % c.group ? codecs[i % 3] : c;
}

/* ---- one device with one KV layer (between two others, so that offsets matter) ---- */

typedef struct setup {
    const char *isa;
    uint32_t threads, block_tokens;
    uint32_t n_heads, n_kv_heads, d_k, d_v, window, keep;
    bool chunked; /* the window is a chunk */
    qn_kv_codec k_codec, v_codec;
    bool decoded; /* store in float32 what the codecs give back */
    float softcap;
    bool sinks;
} setup;

typedef struct rig {
    setup s;
    qn_device *dev;
    qn_kv *kv;
    qn_run *run;
    qn_tensor sinks;
    uint32_t *blocks[MAX_ITEMS]; /* table of each sequence */
    size_t block_bytes;
} rig;

static bool open_rig(rig *g, const setup *s)
{
    qn_err err = {0};
    *g = (rig){.s = *s};
    qn_device_opts opts = {.isa = s->isa, .n_threads = s->threads};
    if (qn_device_open(&g->dev, &opts, &err)) {
        assert_int_equal(err.code, QN_UNSUPPORTED);
        return false;
    }
    qn_kv_layer layers[3] = {{.n_kv_heads = 1, .d_k = 16, .d_v = 16, .k_codec = {.form = QN_KV_F16}},
                             {.n_kv_heads = s->n_kv_heads, .d_k = s->d_k, .d_v = s->d_v,
                              .k_codec = s->k_codec, .v_codec = s->v_codec},
                             {.n_kv_heads = 2, .d_k = 32, .d_v = 16, .k_codec = codecs[6]}};
    if (s->decoded) layers[1].k_codec = layers[1].v_codec = codecs[0];
    qn_kv_spec spec = {.block_tokens = s->block_tokens, .n_groups = 1, .n_layers = 3,
                       .layers = layers};
    qn_kv_rule rule = s->chunked ? QN_KV_CHUNKED : s->window ? QN_KV_SLIDING : QN_KV_FULL;
    spec.groups[0] = (qn_kv_group){rule, s->window, s->keep};
    uint32_t n_blocks = POOL_BLOCKS * 16 / s->block_tokens;
    assert_int_equal(g->dev->ops->kv_new(g->dev, &spec, &n_blocks, &g->kv, &err), QN_OK);
    /* Every sequence owns blocks in a scrambled order; all memory starts as NaN. */
    size_t bytes = g->dev->ops->kv_block_bytes(g->dev, &spec, 0);
    g->block_bytes = bytes;
    uint8_t *poison = malloc(bytes);
    memset(poison, 0xFF, bytes);
    uint32_t each = n_blocks / MAX_ITEMS, used = 2048 / s->block_tokens;
    for (uint32_t i = 0; i < MAX_ITEMS; i++) {
        g->blocks[i] = malloc(each * sizeof **g->blocks);
        for (uint32_t b = 0; b < each; b++) {
            g->blocks[i][b] = (b * 5 % each) * MAX_ITEMS + i;
            if (b < used) g->dev->ops->kv_store(g->kv, 0, g->blocks[i][b], poison);
        }
    }
    free(poison);
    qn_run_limits limits = {2048, MAX_ITEMS, 2048, 1u << 16, 64u << 20};
    assert_int_equal(g->dev->ops->run_new(g->dev, &limits, &g->run, &err), QN_OK);
    if (s->sinks) {
        float z[64];
        for (uint32_t h = 0; h < s->n_heads; h++) z[h] = value_at(9, 0, 0, h);
        qn_code rc = g->dev->ops->upload(g->dev, z, QN_F32, 1, s->n_heads, &g->sinks, &err);
        assert_int_equal(rc, QN_OK);
    }
    return true;
}

static void close_rig(rig *g)
{
    if (!g->dev) return;
    const qn_ops *ops = g->dev->ops;
    ops->run_free(g->run);
    ops->kv_free(g->kv);
    ops->close(g->dev);
    for (uint32_t i = 0; i < MAX_ITEMS; i++) free(g->blocks[i]);
}

typedef struct chunk { uint32_t seq, n_past, n_new; } chunk;

static float *random_rows(uint32_t stream, const chunk *c, uint32_t n, uint32_t rows, uint32_t cols)
{
    float *x = malloc((size_t)rows * cols * sizeof *x), *p = x;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < c[i].n_new; t++)
            for (uint32_t d = 0; d < cols; d++)
                *p++ = value_at(stream, c[i].seq, c[i].n_past + t, d);
    return x;
}

static qn_tensor host(const float *x, uint32_t rows, uint32_t cols)
{
    return (qn_tensor){(uintptr_t)x, QN_F32, rows, cols, cols};
}

static float scale_of(const setup *s) { return 1.5f / sqrtf((float)s->d_k); }

/* The first key of the window of a query. */
static uint32_t window_start(const setup *s, uint32_t pos)
{
    if (s->chunked) return pos / s->window * s->window;
    return s->window && pos >= s->window ? pos - s->window + 1 : 0;
}

/* Write the chunks and, when `out` is given, attend: out [rows, H*d_v], the caller frees it. A
 * windowed sequence hands in only the blocks of its head and from its first retained one on. */
static uint32_t step(rig *g, const chunk *c, uint32_t n, float **out)
{
    const setup *s = &g->s;
    const qn_ops *ops = g->dev->ops;
    qn_item items[MAX_ITEMS] = {0};
    static uint32_t tables[MAX_ITEMS][POOL_BLOCKS];
    uint32_t rows = 0, head = (s->keep + s->block_tokens - 1) / s->block_tokens;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t first = window_start(s, c[i].n_past) / s->block_tokens;
        uint32_t each = POOL_BLOCKS * 16 / s->block_tokens / MAX_ITEMS;
        uint32_t dropped = first > head ? first - head : 0;
        memcpy(tables[i], g->blocks[c[i].seq], head * sizeof **tables);
        memcpy(tables[i] + head, g->blocks[c[i].seq] + head + dropped,
               (each - head - dropped) * sizeof **tables);
        items[i] = (qn_item){.row0 = rows, .n_new = c[i].n_new, .n_past = c[i].n_past};
        items[i].blocks[0] = tables[i];
        items[i].dropped[0] = dropped;
        rows += c[i].n_new;
    }
    uint32_t *pos = calloc(rows, sizeof *pos);
    for (uint32_t i = 0, r = 0; i < n; i++)
        for (uint32_t t = 0; t < c[i].n_new; t++) pos[r++] = c[i].n_past + t;
    qn_batch b = {.n_tokens = rows, .n_items = n, .pos = pos, .items = items};
    uint32_t qc = s->n_heads * s->d_k, kc = s->n_kv_heads * s->d_k, vc = s->n_kv_heads * s->d_v;
    float *q = random_rows(1, c, n, rows, qc), *k = random_rows(2, c, n, rows, kc);
    float *v = random_rows(3, c, n, rows, vc);
    for (uint32_t i = 0; s->decoded && i < rows * s->n_kv_heads; i++) {
        decode(k + (size_t)i * s->d_k, s->d_k, s->k_codec);
        decode(v + (size_t)i * s->d_v, s->d_v, s->v_codec);
    }
    ops->begin(g->run, &b, g->kv);
    ops->kv_write(g->run, 1, host(k, rows, kc), host(v, rows, vc));
    if (out) {
        qn_attend a = {1, s->n_heads, scale_of(s), s->softcap, g->sinks};
        qn_tensor y = ops->attend(g->run, host(q, rows, qc), &a);
        size_t bytes = (size_t)rows * y.cols * sizeof(float);
        assert_int_equal(y.rows, rows);
        assert_int_equal(y.cols, s->n_heads * s->d_v);
        *out = malloc(bytes);
        memcpy(*out, ops->fetch(g->run, y), bytes);
    }
    assert_int_equal(ops->end(g->run, NULL), QN_OK);
    free(q), free(k), free(v), free(pos);
    return rows;
}

/* Fill positions [0, n) of a sequence. */
static void fill(rig *g, uint32_t seq, uint32_t n)
{
    for (uint32_t at = 0; at < n; at += 1024) {
        chunk c = {seq, at, n - at < 1024 ? n - at : 1024};
        step(g, &c, 1, NULL);
    }
}

/* ---- the reference ---- */

/* What KV head kh stores of stream 2 (keys) or 3 (values) for n positions: [n, d]. */
static float *stored(uint32_t stream, uint32_t seq, uint32_t kh, uint32_t n, uint32_t d,
                     qn_kv_codec c)
{
    float *x = malloc((size_t)n * d * sizeof *x);
    for (uint32_t j = 0; j < n; j++) {
        for (uint32_t i = 0; i < d; i++) x[j * d + i] = value_at(stream, seq, j, kh * d + i);
        decode(x + (size_t)j * d, d, c);
    }
    return x;
}

/* Output of one head at one position in double precision, and a bound of our error per element:
 * with u = 2^-24, a score is off by ds <= (d_k + 6) u sum|q k| scale (plus rounding of the
 * softcap), which moves a probability by a factor within 1 +- 2 ds; exp, the sums over n keys and
 * the merges of the splits add (n + 64) u. The sum over keys of p |v| turns that into an absolute
 * bound. */
static void reference(const setup *s, uint32_t seq, uint32_t pos, uint32_t h, double *y,
                      double *bound)
{
    uint32_t n = pos + 1, j0 = window_start(s, pos), n_seen = 0;
    uint32_t kh = h / (s->n_heads / s->n_kv_heads);
    float *k = stored(2, seq, kh, n, s->d_k, s->k_codec);
    float *values = stored(3, seq, kh, n, s->d_v, s->v_codec);
    double *p = malloc(n * sizeof *p), max = s->sinks ? value_at(9, 0, 0, h) : -INFINITY, ds = 0;
    for (uint32_t j = 0; j < n; j++) {
        if (j < j0 && j >= s->keep) continue;
        n_seen++;
        double dot = 0, mass = 0;
        for (uint32_t d = 0; d < s->d_k; d++) {
            double t = (double)value_at(1, seq, pos, h * s->d_k + d) * k[j * s->d_k + d];
            dot += t, mass += fabs(t);
        }
        p[j] = dot * scale_of(s);
        if (s->softcap > 0) p[j] = tanh(p[j] / s->softcap) * s->softcap;
        double e = (s->d_k + 6) * 0x1p-24 * mass * scale_of(s) + 6 * 0x1p-24 * s->softcap;
        if (e > ds) ds = e;
        if (p[j] > max) max = p[j];
    }
    double sum = s->sinks ? exp(value_at(9, 0, 0, h) - max) : 0;
    for (uint32_t j = 0; j < n; j++) sum += p[j] = j < j0 && j >= s->keep ? 0 : exp(p[j] - max);
    for (uint32_t d = 0; d < s->d_v; d++) {
        double out = 0, mass = 0;
        for (uint32_t j = 0; j < n; j++) {
            double v = values[j * s->d_v + d];
            out += p[j] / sum * v, mass += p[j] / sum * fabs(v);
        }
        y[d] = out;
        bound[d] = (2 * ds + (n_seen + 64) * 0x1p-24) * mass * 2;
    }
    free(p), free(k), free(values);
}

static double worst; /* largest error / bound, for the printed summary */

static void check_row(const setup *s, const float *out, uint32_t seq, uint32_t pos)
{
    double y[1024], bound[1024];
    for (uint32_t h = 0; h < s->n_heads; h++) {
        reference(s, seq, pos, h, y, bound);
        for (uint32_t d = 0; d < s->d_v; d++) {
            double e = fabs(out[h * s->d_v + d] - y[d]);
            if (e / bound[d] > worst) worst = e / bound[d];
            if (!(e <= bound[d])) {
                fail_msg("%s d %u/%u H %u/%u codecs %d %d window %u keep %u chunked %d pos %u head %u: %.9g, not %.9g",
                         s->isa, s->d_k, s->d_v, s->n_heads, s->n_kv_heads, (int)s->k_codec.form,
                         (int)s->v_codec.form, s->window, s->keep, s->chunked, pos, h,
                         (double)out[h * s->d_v + d], y[d]);
            }
        }
    }
}

/* ---- tests ---- */

static const uint32_t lengths[] = {1, 15, 16, 17, 255, 256, 257, 600};

static setup random_setup(uint32_t i)
{
    static const uint32_t heads[][2] = {{1, 1}, {4, 2}, {3, 1}, {8, 2}, {8, 1}, {9, 3}, {2, 2}};
    static const uint32_t dims[10][2] = {{16, 16}, {64, 64}, {80, 80}, {96, 96}, {128, 128},
                                       {256, 256}, {48, 32}, {32, 64}, {1, 1}, {20, 24}};
    static const uint32_t windows[] = {0, 0, 1, 16, 100, 256, 300}, keeps[] = {4, 0, 1, 40, 20};
    setup s = {.threads = 1 + i % 3, .block_tokens = 16u << i % 5, .window = windows[i * 5 % 7],
               .softcap = i % 4 == 3 ? 5.0f : 0, .sinks = i % 5 == 2};
    s.n_heads = heads[i % 7][0], s.n_kv_heads = heads[i % 7][1];
    s.d_k = dims[i * 3 % 10][0], s.d_v = dims[i * 3 % 10][1];
    s.chunked = s.window && i % 3 == 1;
    if (s.window && !s.chunked) s.keep = keeps[i % 5];
    s.k_codec = codec_for(i * 2 + i / 9, s.d_k);
    s.v_codec = i % 3 ? codec_for(i * 2 + i / 9, s.d_v) : codec_for(i, s.d_v);
    return s;
}

/* Several sequences in one batch: one new token, a few, a chunk; all variants against the reference
 * and against each other, bit for bit. */
static void agrees_with_reference(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 63; i++) {
        chunk c[3] = {{0, lengths[i % 8] - 1, 1},
                      {1, lengths[(i + 3) % 8] - 1, 1 + i % 5},
                      {2, lengths[i * 3 % 8] / 2, 1 + i % 37}};
        float *first = NULL;
        for (uint32_t v = 0; v < N_ISAS; v++) {
            setup s = random_setup(i);
            s.isa = isas[v];
            rig g;
            if (!open_rig(&g, &s)) continue;
            for (uint32_t j = 0; j < 3; j++) fill(&g, c[j].seq, c[j].n_past);
            float *out;
            uint32_t rows = step(&g, c, 3, &out), width = s.n_heads * s.d_v;
            if (!first) {
                first = out;
                check_row(&s, out, 0, c[0].n_past);
                check_row(&s, out + width, 1, c[1].n_past);
                check_row(&s, out + (size_t)width * (rows - 1), 2, c[2].n_past + c[2].n_new - 1);
                check_row(&s, out + (size_t)width * (1 + c[1].n_new), 2, c[2].n_past);
            } else {
                assert_memory_equal(first, out, (size_t)rows * width * sizeof *out);
                free(out);
            }
            close_rig(&g);
        }
        free(first);
    }
    print_message("largest error: %.3f of the bound\n", worst);
}

/* The outputs of `total` positions of sequence 0, made in chunks of the given sizes (the last one
 * repeats), with other sequences beside them when `company`. */
static float *in_chunks(const setup *s, uint32_t total, const uint32_t *sizes, uint32_t n_sizes,
                        bool company)
{
    rig g;
    if (!open_rig(&g, s)) return NULL;
    uint32_t width = s->n_heads * s->d_v;
    float *all = malloc((size_t)total * width * sizeof *all);
    if (company) fill(&g, 1, 30), fill(&g, 2, 260);
    for (uint32_t at = 0, i = 0; at < total; i++) {
        uint32_t n = sizes[i < n_sizes ? i : n_sizes - 1];
        if (n > total - at) n = total - at;
        chunk c[3] = {{1, 30 + i, 1}, {0, at, n}, {2, 260, 3}};
        float *out;
        step(&g, company ? c : c + 1, company ? 3 : 1, &out);
        memcpy(all + (size_t)at * width, out + (company ? width : 0),
               (size_t)n * width * sizeof *all);
        free(out);
        at += n;
    }
    close_rig(&g);
    return all;
}

/* Over codes, the result is that of float32 over what the codes stand for, bit for bit. */
static void codes_mean_their_values(void **state)
{
    (void)state;
    static const uint32_t singles[] = {1, 1, 1, 200, 7, 1, 64};
    for (uint32_t i = 0; i < 2 * N_CODECS; i++) {
        setup s = {.threads = 2, .block_tokens = 32, .n_heads = i % 2 ? 4 : 3,
                   .n_kv_heads = i % 2 ? 1 : 3, .d_k = 128, .d_v = 64, .window = i % 4 ? 0 : 70, .keep = i % 8 ? 0 : 4,
                   .chunked = i % 8 == 4,
                   .isa = isas[i % 3]};
        s.k_codec = codec_for(i, s.d_k), s.v_codec = codec_for(i + i / N_CODECS, s.d_v);
        float *a = in_chunks(&s, 300, singles, 7, true);
        s.decoded = true;
        float *b = in_chunks(&s, 300, singles, 7, true);
        if (a) assert_memory_equal(a, b, 300u * s.n_heads * s.d_v * sizeof *a);
        free(a), free(b);
    }
}

static void chunks_do_not_matter(void **state)
{
    (void)state;
    static const uint32_t once[] = {1024}, singles[] = {1}, mixed[] = {17, 1, 2, 230, 3, 5, 1, 64};
    for (uint32_t i = 0; i < N_CODECS; i++) {
        setup s = {.threads = 2, .block_tokens = 32, .n_heads = i % 2 ? 3 : 4,
                   .n_kv_heads = i % 2 ? 3 : 2, .d_k = 48, .d_v = 80,
                   .window = i % 2 ? 0 : 70, .keep = i % 4 ? 0 : 4, .chunked = i % 4 == 2, .sinks = i == 4,
                   .isa = isas[i % 3]};
        if (i > 2) s.d_k = 64, s.d_v = 32;
        s.k_codec = codec_for(i, s.d_k), s.v_codec = codec_for(i, s.d_v);
        float *a = in_chunks(&s, 300, once, 1, false), *b = in_chunks(&s, 300, singles, 1, false);
        float *c = in_chunks(&s, 300, mixed, 8, true);
        size_t bytes = 300u * s.n_heads * s.d_v * sizeof *a;
        if (a) {
            assert_memory_equal(a, b, bytes);
            assert_memory_equal(a, c, bytes);
        }
        free(a), free(b), free(c);
    }
}

/* One long decode, one chunk: block sizes, then thread numbers (which choose the way through). */
static void blocks_and_threads_do_not_matter(void **state)
{
    (void)state;
    float *first = NULL;
    for (uint32_t i = 0; i < 15; i++) {
        setup s = {.threads = 1 + i / 5, .block_tokens = 16u << i % 5, .n_heads = 6,
                   .n_kv_heads = 2,
                   .d_k = 64, .d_v = 64, .k_codec = codecs[3], .v_codec = codecs[6]};
        rig g;
        assert_true(open_rig(&g, &s));
        chunk c[2] = {{0, 4500, 1}, {3, 700, 5}};
        fill(&g, 0, 4500), fill(&g, 3, 700);
        float *out;
        uint32_t rows = step(&g, c, 2, &out);
        if (!first) first = out;
        else {
            assert_memory_equal(first, out, (size_t)rows * 6 * 64 * sizeof *out);
            free(out);
        }
        close_rig(&g);
    }
    free(first);
}

/* So many wide partials that they are merged in several rounds. */
static void rounds_do_not_matter(void **state)
{
    (void)state;
    float *first = NULL;
    for (uint32_t threads = 1; threads <= 3; threads += 2) {
        setup s = {.threads = threads, .block_tokens = 256, .n_heads = 64, .n_kv_heads = 1,
                   .d_k = 16,
                   .d_v = 1024, .k_codec = codecs[1], .v_codec = codecs[6], .sinks = true};
        rig g;
        assert_true(open_rig(&g, &s));
        chunk c = {0, 16383, 1};
        fill(&g, 0, 16383);
        float *out;
        step(&g, &c, 1, &out);
        if (!first) first = out;
        else {
            assert_memory_equal(first, out, 64u * 1024 * sizeof *out);
            free(out);
        }
        close_rig(&g);
    }
    free(first);
}

/* A key that dwarfs the others, in the first, a middle or the last split. */
static void a_dominant_key_wins(void **state)
{
    (void)state;
    setup s = {.threads = 1, .block_tokens = 64, .n_heads = 1, .n_kv_heads = 1, .d_k = 16,
               .d_v = 16};
    uint32_t at[] = {0, 300, 599};
    for (uint32_t i = 0; i < 3; i++) {
        rig g;
        assert_true(open_rig(&g, &s));
        fill(&g, 0, 600);
        float q[16], k[16], v[16];
        for (int d = 0; d < 16; d++) q[d] = k[d] = 1e3f, v[d] = (float)d;
        uint32_t pos = at[i];
        qn_item item = {.n_new = 1, .n_past = pos, .blocks = {g.blocks[0]}};
        qn_batch b = {.n_tokens = 1, .n_items = 1, .pos = &pos, .items = &item};
        g.dev->ops->begin(g.run, &b, g.kv);
        g.dev->ops->kv_write(g.run, 1, host(k, 1, 16), host(v, 1, 16));
        item.n_past = pos = 599;
        qn_attend a = {1, 1, 1.0f, 0, {0}};
        qn_tensor y = g.dev->ops->attend(g.run, host(q, 1, 16), &a);
        assert_memory_equal(g.dev->ops->fetch(g.run, y), v, sizeof v);
        g.dev->ops->end(g.run, NULL);
        close_rig(&g);
    }
}

/* Blocks travel as bytes: copy on write, and to host memory and back. */
static void blocks_can_be_moved(void **state)
{
    (void)state;
    setup s = {.threads = 1, .block_tokens = 16, .n_heads = 2, .n_kv_heads = 1, .d_k = 20,
               .d_v = 32, .k_codec = codecs[1], .v_codec = codecs[6]};
    rig g;
    assert_true(open_rig(&g, &s));
    fill(&g, 0, 39);
    chunk c = {0, 39, 1};
    float *before, *after;
    step(&g, &c, 1, &before);
    void *host_block = malloc(g.block_bytes);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t to = g.blocks[1][i];
        if (i == 1) {
            g.dev->ops->kv_read(g.kv, 0, g.blocks[0][i], host_block);
            g.dev->ops->kv_store(g.kv, 0, to, host_block);
        } else {
            g.dev->ops->kv_copy(g.kv, 0, to, g.blocks[0][i]);
        }
        g.blocks[0][i] = to;
    }
    free(host_block);
    step(&g, &c, 1, &after);
    assert_memory_equal(before, after, 2 * 32 * sizeof *before);
    free(before), free(after);
    close_rig(&g);
}

/* A block takes exactly what its codecs say (spec engine 3.12): d*(bits/8 + 4/group) bytes a head
 * with 16-bit scales. */
static void blocks_have_the_size_of_their_codecs(void **state)
{
    (void)state;
    qn_err err = {0};
    qn_device *dev;
    assert_int_equal(qn_device_open(&dev, &(qn_device_opts){.n_threads = 1}, &err), QN_OK);
    static const struct { qn_kv_codec codec; size_t bytes; } want[] = {
        {{QN_KV_F32, 0, QN_F32}, 4096},     {{QN_KV_BF16, 0, QN_BF16}, 2048},
        {{QN_KV_Q8, 64, QN_BF16}, 1088},    {{QN_KV_Q8, 32, QN_BF16}, 1152},
        {{QN_KV_Q4, 64, QN_F16}, 576},      {{QN_KV_Q4, 32, QN_BF16}, 640},
        {{QN_KV_Q4, 128, QN_BF16}, 544}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        qn_kv_layer l = {.n_kv_heads = 4, .d_k = 128, .d_v = 128, .k_codec = want[i].codec,
                         .v_codec = want[i].codec};
        qn_kv_spec spec = {.block_tokens = 64, .n_groups = 1, .n_layers = 1, .layers = &l};
        assert_int_equal(dev->ops->kv_block_bytes(dev, &spec, 0), 64 * want[i].bytes);
        assert_int_equal(qn_kv_layer_bytes(&l), want[i].bytes);
    }
    dev->ops->close(dev);
}

static void bad_specs_are_refused(void **state)
{
    (void)state;
    qn_err err = {0};
    qn_device *dev;
    assert_int_equal(qn_device_open(&dev, &(qn_device_opts){.n_threads = 1}, &err), QN_OK);
    static const struct { uint32_t block, group, d_k, d_v; int form; uint32_t q_group; } bad[] = {
        {8, 0, 64, 64, QN_KV_F16, 0},  {48, 0, 64, 64, QN_KV_F16, 0},
        {512, 0, 64, 64, QN_KV_F16, 0}, {64, 1, 64, 64, QN_KV_F16, 0},
        {64, 0, 0, 64, QN_KV_F16, 0},  {64, 0, 64, 1025, QN_KV_F16, 0},
        {64, 0, 64, 64, 5, 0},         {64, 0, 64, 64, QN_KV_Q8, 16},
        {64, 0, 64, 80, QN_KV_Q8, 32}, {64, 0, 96, 64, QN_KV_Q4, 64}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_kv_layer l = {.group = bad[i].group, .n_kv_heads = 2, .d_k = bad[i].d_k,
                         .d_v = bad[i].d_v};
        l.k_codec = (qn_kv_codec){(qn_kv_form)bad[i].form, bad[i].q_group, QN_BF16};
        l.v_codec = l.k_codec;
        qn_kv_spec spec = {.block_tokens = bad[i].block, .n_groups = 1, .n_layers = 1,
                           .layers = &l};
        qn_kv *kv;
        uint32_t n = 4;
        qn_err_clear(&err);
        assert_int_equal(dev->ops->kv_new(dev, &spec, &n, &kv, &err), QN_UNSUPPORTED);
        assert_null(kv);
        assert_true(strlen(err.text) > 10);
    }
    dev->ops->close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_reference),
        cmocka_unit_test(codes_mean_their_values),
        cmocka_unit_test(chunks_do_not_matter),
        cmocka_unit_test(blocks_and_threads_do_not_matter),
        cmocka_unit_test(rounds_do_not_matter),
        cmocka_unit_test(a_dominant_key_wins),
        cmocka_unit_test(blocks_can_be_moved),
        cmocka_unit_test(blocks_have_the_size_of_their_codecs),
        cmocka_unit_test(bad_specs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
