/* compute_devices_test.c - every operation of every device against the reference device in float32,
 * over random shapes and the edges. A slot of qn_ops that no case calls fails. */
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
#include "matrices.h"

enum {
    MAX_T = 24,
    MAX_COLS = 700,
    ROUNDS = 12,
    BLOCK_TOKENS = 16,
    N_BLOCKS = 24,
    TABLE = 8,
    ITEMS = 2,
    N_SLOTS = sizeof(qn_ops) / sizeof(void (*)(void))
};

static bool called[N_SLOTS];

/* Call a slot of a device and note that it has a case. */
#define CALL(s, slot, ...) \
    (called[offsetof(qn_ops, slot) / sizeof(void (*)(void))] = true, (s)->ops->slot(__VA_ARGS__))

typedef struct side { /* one device */
    qn_device *dev;
    const qn_ops *ops;
    qn_run *run;
} side;

static qn_err err;

/* ---- random inputs, the same for both sides ---- */

typedef struct inputs {
    uint32_t t, cols; /* rows and columns of the case's tensors */
    uint32_t n_past[ITEMS], n_new[ITEMS];
    float a[MAX_T * MAX_COLS], b[MAX_T * MAX_COLS], c[MAX_T * MAX_COLS], v[4 * MAX_COLS];
    uint32_t ids[MAX_T], pos[MAX_T], rows[MAX_T], blocks[ITEMS][TABLE];
    qn_item items[ITEMS];
    qn_batch batch;
} inputs;

static uint32_t below(uint32_t n) { return (uint32_t)(rng_next() >> 33) % n; }

static void fill(float *x, size_t n, float size)
{
    for (size_t i = 0; i < n; i++) x[i] = below(24) ? rng_bell() * size : 0.0f;
}

/* `round` 0 and 1 are the edges: one row, then the most of everything. */
static void draw(inputs *in, int round, uint32_t cols)
{
    *in = (inputs){.cols = cols};
    uint32_t at = 0;
    for (uint32_t i = 0; i < ITEMS; i++) {
        in->n_new[i] = round == 0 ? i == 0 : round == 1 ? MAX_T / ITEMS : 1 + below(MAX_T / ITEMS);
        in->n_past[i] = round == 0 ? 0 : round == 1 ? 100 : below(100);
        if (!in->n_new[i]) continue;
        in->items[in->batch.n_items] = (qn_item){
            .row0 = at, .n_new = in->n_new[i], .n_past = in->n_past[i], .state = 1 + i};
        for (int g = 0; g < QN_MAX_KV_GROUPS; g++)
            in->items[in->batch.n_items].blocks[g] = in->blocks[i];
        in->batch.n_items++;
        for (uint32_t j = 0; j < in->n_new[i]; j++, at++) in->pos[at] = in->n_past[i] + j;
        for (uint32_t j = 0; j < TABLE; j++) in->blocks[i][j] = (j * ITEMS + i) % N_BLOCKS;
    }
    in->t = at;
    for (uint32_t i = 0; i < at; i++) {
        in->ids[i] = below(40);
        if (i % 2 == 0 || i + 1 == at) in->rows[in->batch.n_out++] = i;
    }
    in->batch.n_tokens = at;
    in->batch.ids = in->ids;
    in->batch.pos = in->pos;
    in->batch.items = in->items;
    in->batch.out_rows = in->rows;
    fill(in->a, sizeof in->a / sizeof *in->a, 1.5f);
    fill(in->b, sizeof in->b / sizeof *in->b, 1.5f);
    fill(in->c, sizeof in->c / sizeof *in->c, 1.5f);
    fill(in->v, sizeof in->v / sizeof *in->v, 1.0f);
}

static qn_tensor up(const side *s, const float *data, uint32_t rows, uint32_t cols)
{
    qn_tensor y;
    assert_int_equal(CALL(s, upload, s->dev, data, QN_F32, rows, cols, &y, &err), QN_OK);
    return y;
}

/* The result as float32, copied after what went before in `out`; gives the elements. */
static size_t take(const side *s, qn_tensor y, float *out)
{
    const float *v = CALL(s, fetch, s->run, y);
    memcpy(out, v, (size_t)y.rows * y.cols * sizeof *v);
    return (size_t)y.rows * y.cols;
}

static void finish(const side *s) { assert_int_equal(CALL(s, end, s->run, &err), QN_OK); }

/* ---- cases: each computes its result on one side and gives the number of floats ---- */

static size_t elementwise(const side *s, const inputs *in, int round, float *out)
{
    size_t n = 0;
    uint32_t t = in->t, cols = in->cols;
    CALL(s, begin, s->run, &in->batch, NULL);
    qn_tensor a = up(s, in->a, t, cols), b = up(s, in->b, t, cols), v = up(s, in->v, 1, cols);
    size_t mark = CALL(s, mark, s->run);
    CALL(s, add, s->run, a, b);
    CALL(s, reset, s->run, mark);
    assert_int_equal(CALL(s, mark, s->run), mark);
    n += take(s, CALL(s, act, s->run, a, (qn_act)(round % 5)), out + n);
    n += take(s, CALL(s, glu, s->run, a, b, (qn_act)(round % 5)), out + n);
    n += take(s, CALL(s, add, s->run, a, round % 2 ? v : b), out + n);
    n += take(s, CALL(s, mul, s->run, a, round % 2 ? v : b), out + n);
    n += take(s, CALL(s, scale, s->run, a, 0.37f), out + n);
    n += take(s, CALL(s, softcap, s->run, a, 1.25f), out + n);
    n += take(s, CALL(s, mul_rows, s->run, a, up(s, in->b, t, 1)), out + n);
    const qn_pos_scale by_pos = {(float)(1 + round % 7), 0.3f};
    n += take(s, CALL(s, scale_by_pos, s->run, a, &by_pos), out + n);
    n += take(s, CALL(s, out_rows, s->run, a), out + n);
    qn_tensor x = CALL(s, scale, s->run, a, 1.0f);
    CALL(s, accumulate, s->run, &x, b);
    n += take(s, x, out + n);
    n += take(s, CALL(s, widen, s->run, a), out + n);
    n += take(s, CALL(s, cast_like, s->run, a, b), out + n);
    qn_tensor tail = cols % 8 ? (qn_tensor){0} : qn_cols(a, 1, 3);
    if (cols % 4 == 0) n += take(s, CALL(s, head_part, s->run, a, cols / 2, 1, cols / 4, tail), out + n);
    finish(s);
    return n;
}

static size_t norms(const side *s, const inputs *in, int round, float *out)
{
    size_t n = 0;
    uint32_t cols = in->cols, width = cols % 5 ? cols : cols / 5;
    CALL(s, begin, s->run, &in->batch, NULL);
    qn_tensor a = up(s, in->a, in->t, cols), w = up(s, in->v, 1, cols), none = {0};
    qn_tensor head = up(s, in->v + 7, 1, width), bias = up(s, in->v + MAX_COLS, 1, cols);
    n += take(s, CALL(s, rms_norm, s->run, a, round % 3 ? head : none, width, 1e-5f), out + n);
    n += take(s,
              CALL(s, layer_norm, s->run, a, round % 3 ? w : none, round % 2 ? bias : none, 1e-5f),
              out + n);
    finish(s);
    return n;
}

static size_t rotation(const side *s, const inputs *in, int round, float *out)
{
    static const float freqs[] = {1.0f, 7.5f, 100.0f, INFINITY};
    qn_rope *rope;
    uint32_t d = 2 * (1 + in->cols % 33), heads = 1 + in->cols % 5;
    if (d < 8) d = 8;
    qn_rope_desc desc = {.dims = round % 4 == 3 ? 8 : d - d % 4 / 2 * 2,
                         .traditional = round % 2,
                         .base = 1e4f,
                         .pos_scale = round % 3 ? 1.0f : 0.25f,
                         .mscale = round % 5 ? 1.0f : 1.2f,
                         .freqs = round % 4 == 3 ? freqs : NULL};
    assert_int_equal(CALL(s, rope_new, s->dev, &desc, 4096, &rope, &err), QN_OK);
    CALL(s, begin, s->run, &in->batch, NULL);
    qn_tensor x = CALL(s, scale, s->run, up(s, in->a, in->t, heads * d), 1.0f);
    CALL(s, rope, s->run, x, d, rope);
    size_t n = take(s, x, out);
    finish(s);
    return n;
}

static qn_weight *load(const side *s, const qn_matrix *m)
{
    qn_matrix_src src = {.path = "test", .m = *m};
    qn_load_opts opts = {.model_dtype = QN_F32};
    qn_weight *w;
    if (CALL(s, load, s->dev, &src, 1, &opts, &w, &err)) fail_msg("%s", err.text);
    assert_true(CALL(s, weights_bytes, s->dev, NULL) > 0);
    qn_err limited = {0}; /* the system may allow little */
    qn_code rc = CALL(s, weights_pin, s->dev, &limited);
    assert_true(rc == QN_OK || (rc == QN_LIMIT && strstr(limited.text, "ulimit -l")));
    return w;
}

/* Scratch is sized for what was loaded, so that runs are made after loading. */
static void renew_run(side *s)
{
    qn_run_limits limits = {MAX_T, ITEMS, MAX_T, 256, 16u << 20};
    if (s->run) CALL(s, run_free, s->run);
    assert_int_equal(CALL(s, run_new, s->dev, &limits, &s->run, &err), QN_OK);
}

static const qn_matrix *the_matrix; /* of the round under way; both sides read it */

static size_t products(const side *s, const inputs *in, int round, float *out)
{
    size_t n = 0;
    side *own = (side *)(uintptr_t)s;
    qn_weight *w = load(s, the_matrix);
    renew_run(own);
    CALL(s, begin, s->run, &in->batch, NULL);
    qn_linear plain = {.w = w}, biased = {.w = w, .bias = up(s, in->v, 1, the_matrix->n_out)};
    const qn_linear *both[2] = {&plain, &biased};
    qn_tensor y[2];
    CALL(s, linear, s->run, 1 + (size_t)(round % 2), y, up(s, in->a, in->t, the_matrix->n_in),
         both);
    for (int i = 0; i <= round % 2; i++) n += take(s, y[i], out + n);
    /* The reference rounds affine rows to the type of their scales, as MLX does. */
    if (the_matrix->spec.mode != QN_Q_AFFINE || the_matrix->dtype == QN_F32)
        n += take(s, CALL(s, embed, s->run, w), out + n);
    finish(s);
    return n;
}

static size_t expert_products(const side *s, const inputs *in, int round, float *out)
{
    size_t n = 0;
    side *own = (side *)(uintptr_t)s;
    qn_weight *w = load(s, the_matrix);
    uint32_t k = 1 + (uint32_t)round % 3, n_pairs = in->t * k, e = the_matrix->n_experts;
    renew_run(own);
    CALL(s, begin, s->run, &in->batch, NULL);
    uint32_t ids[MAX_T * 3];
    for (uint32_t i = 0; i < n_pairs; i++) ids[i] = in->ids[i % in->t] * (1 + i) % e;
    qn_tensor x = up(s, in->a, round % 2 ? in->t : n_pairs, the_matrix->n_in), y;
    qn_tensor which = {(uintptr_t)ids, QN_U32, in->t, k, k};
    qn_linear l = {.w = w, .bias = up(s, in->b, e, the_matrix->n_out)};
    if (round % 4 == 0) l.bias = (qn_tensor){0};
    const qn_linear *one = &l;
    CALL(s, expert_linear, s->run, 1, &y, x, which, &one);
    n += take(s, y, out + n);
    n += take(s, CALL(s, combine, s->run, y, up(s, in->c, in->t, k)), out + n);
    finish(s);
    return n;
}

/* The order of the chosen experts is the device's own: weights by expert are compared. */
static size_t routing(const side *s, const inputs *in, int round, float *out)
{
    uint32_t e = 2 + in->cols % 60, k;
    const qn_router_kind kind = (qn_router_kind)(round % 5);
    const bool groups = kind == QN_ROUTE_SIGMOID || kind == QN_ROUTE_SOFTMAX_GROUPS;
    if (groups) e = e / 3 * 3 + 3;
    k = kind == QN_ROUTE_SIGMOID_INPUT ? 1 : 1 + (uint32_t)round % (e < 8 ? e : 8);
    qn_router how = {.kind = kind, .k = k, .normalize = round % 3 == 0,
                     .n_groups = 1, .scale = 1.5f};
    float bias[64];
    for (uint32_t i = 0; i < e; i++) bias[i] = (float)((i * 7 + 3) % e) * 0.03f + 0.01f;
    if (groups && e / 3 * 2 >= k && e >= 6) how.n_groups = 3, how.n_kept = 1 + (e / 3 < k);
    how.bias = up(s, bias, 1, e);
    CALL(s, begin, s->run, &in->batch, NULL);
    float logits[MAX_T * 64];
    for (uint32_t i = 0; i < in->t * e; i++)
        logits[i] = in->a[i] * 3 + (float)(i % e) * 1e-3f; /* no ties */
    qn_routing to = CALL(s, route, s->run, up(s, logits, in->t, e), &how);
    float *w = CALL(s, fetch, s->run, to.weights);
    memset(out, 0, (size_t)in->t * e * sizeof *out);
    for (uint32_t t = 0; t < in->t; t++)
        for (uint32_t j = 0; j < k; j++) {
            uint32_t id = ((const uint32_t *)(uintptr_t)to.ids.addr)[t * to.ids.ld + j];
            assert_true(id < e && out[t * e + id] == 0.0f);
            out[t * e + id] = w[t * k + j];
        }
    finish(s);
    return (size_t)in->t * e;
}

/* From the last block but one to the last, a few positions at a time, keys and values together or
 * apart. */
static void move_positions(const side *s, qn_kv *kv)
{
    float k[BLOCK_TOKENS * 256], v[BLOCK_TOKENS * 256];
    for (uint32_t at = 0, n; at < BLOCK_TOKENS; at += n) {
        n = at % 3 + 1 < BLOCK_TOKENS - at ? at % 3 + 1 : BLOCK_TOKENS - at;
        if (at % 2) CALL(s, kv_get, kv, 1, N_BLOCKS - 2, at, n, k, v);
        else CALL(s, kv_get, kv, 1, N_BLOCKS - 2, at, n, k, NULL);
        if (at % 2 == 0) CALL(s, kv_get, kv, 1, N_BLOCKS - 2, at, n, NULL, v);
        if (at % 4) CALL(s, kv_put, kv, 1, N_BLOCKS - 1, at, n, k, v);
        else CALL(s, kv_put, kv, 1, N_BLOCKS - 1, at, n, NULL, v);
        if (at % 4 == 0) CALL(s, kv_put, kv, 1, N_BLOCKS - 1, at, n, k, NULL);
    }
}

/* Fill the past of both items, then attend; in between, blocks are copied, read and stored. */

static size_t attention(const side *s, const inputs *in, int round, float *out)
{
    size_t n = 0;
    uint32_t hk = 1 + in->cols % 3, h = hk * (1 + in->cols % 2), d = 3 + in->cols % 40,
             dv = round % 3 ? d : d + 5;
    uint32_t n_blocks[QN_MAX_KV_GROUPS] = {N_BLOCKS};
    qn_kv *kv;
    qn_kv_layer layers[2] = {{.n_kv_heads = 1, .d_k = 4, .d_v = 4},
                             {.n_kv_heads = hk, .d_k = d, .d_v = dv}};
    qn_kv_spec spec = {
        .block_tokens = BLOCK_TOKENS, .n_groups = 1, .n_layers = 2, .layers = layers};
    spec.groups[0] = round % 2 ? (qn_kv_group){QN_KV_SLIDING, 20, round % 4} : (qn_kv_group){0};
    assert_int_equal(CALL(s, kv_new, s->dev, &spec, n_blocks, &kv, &err), QN_OK);
    for (uint32_t i = 0; i < ITEMS; i++) {
        for (uint32_t at = 0; at < in->n_past[i]; at += MAX_T) {
            uint32_t m = in->n_past[i] - at < MAX_T ? in->n_past[i] - at : MAX_T;
            qn_item item = {.n_new = m, .n_past = at, .blocks = {in->blocks[i]}};
            qn_batch b = {
                .n_tokens = m, .n_items = 1, .items = &item, .ids = in->ids, .pos = in->pos};
            CALL(s, begin, s->run, &b, kv);
            CALL(s, kv_write, s->run, 1, up(s, in->b + at, m, hk * d),
                 up(s, in->c + at, m, hk * dv));
            finish(s);
        }
    }
    inputs moved = *in; /* the first block of item 0 moves to a spare block and on to another one */
    for (uint32_t i = 0; i < in->batch.n_items; i++)
        moved.items[i].blocks[0] = moved.blocks[in->items[i].state - 1];
    moved.batch.items = moved.items;
    void *host = malloc(CALL(s, kv_block_bytes, s->dev, &spec, 0));
    CALL(s, kv_copy, kv, 0, N_BLOCKS - 1, moved.blocks[0][0]);
    CALL(s, kv_read, kv, 0, N_BLOCKS - 1, host);
    CALL(s, kv_store, kv, 0, N_BLOCKS - 2, host);
    memset(host, 0, CALL(s, kv_block_bytes, s->dev, &spec, 0));
    CALL(s, kv_store, kv, 0, N_BLOCKS - 1, host);
    free(host);
    move_positions(s, kv);
    moved.blocks[0][0] = N_BLOCKS - 1;
    CALL(s, begin, s->run, &moved.batch, kv);
    CALL(s, kv_write, s->run, 1, up(s, in->b, in->t, hk * d), up(s, in->c, in->t, hk * dv));
    qn_attend a = {
        .layer = 1, .n_heads = h, .scale = 0.3f, .softcap = round % 4 == 1 ? 3.0f : 0.0f};
    if (round % 3 == 2) a.sinks = up(s, in->v, 1, h);
    n += take(s, CALL(s, attend, s->run, up(s, in->a, in->t, h * d), &a), out + n);
    finish(s);
    CALL(s, kv_free, kv);
    return n;
}

enum { CODED_HEADS = 2, MOST_CODED = 128 }; /* KV heads, and elements of one */

/* Room for the codes of a block. */
typedef struct coded {
    uint32_t words[BLOCK_TOKENS * CODED_HEADS * MOST_CODED / 4];
    float scales[BLOCK_TOKENS * CODED_HEADS * 4], biases[BLOCK_TOKENS * CODED_HEADS * 4];
} coded;

static qn_kv_codec codec_of(int round, int kind, qn_dtype scales)
{
    static const uint32_t groups[] = {32, 64, 128};
    static const qn_kv_form kinds[] = {QN_KV_F32, QN_KV_Q8, QN_KV_Q4};
    return (qn_kv_codec){kinds[kind], kind ? groups[(round / 2 + kind) % 3] : 0, scales};
}

static qn_kv_spec coded_spec(int round, qn_dtype scales, qn_kv_layer *layers)
{
    const uint32_t d = MOST_CODED; /* whole groups of every size */
    *layers = (qn_kv_layer){.n_kv_heads = CODED_HEADS, .d_k = d, .d_v = d,
                            .k_codec = codec_of(round, round % 3, scales),
                            .v_codec = codec_of(round, round % 2 + 1, scales)};
    return (qn_kv_spec){.block_tokens = BLOCK_TOKENS, .n_groups = 1, .n_layers = 1, .layers = layers};
}

/* Write the inputs a and b as keys and values of block 0. */
static void fill_block(const side *s, qn_kv *kv, const inputs *in, uint32_t cols)
{
    enum { N = BLOCK_TOKENS };
    static const uint32_t block = 0;
    uint32_t pos[N];
    for (uint32_t i = 0; i < N; i++) pos[i] = i;
    qn_item item = {.n_new = N, .blocks = {&block}};
    qn_batch b = {.n_tokens = N, .n_items = 1, .items = &item, .ids = in->ids, .pos = pos};
    CALL(s, begin, s->run, &b, kv);
    CALL(s, kv_write, s->run, 0, up(s, in->a, N, cols), up(s, in->b, N, cols));
    finish(s);
}

/* The codes of a block as floats: bytes, then scales and biases. */
static size_t take_codes(const coded *x, qn_kv_codec c, uint32_t d, float *out)
{
    size_t rows = BLOCK_TOKENS * CODED_HEADS, n = 4 * rows * qn_kv_code_words(c, d);
    for (size_t i = 0; i < n; i++) out[i] = ((const uint8_t *)x->words)[i];
    qn_widen(out + n, x->scales, c.scales, rows * (d / c.group));
    n += rows * (d / c.group);
    qn_widen(out + n, x->biases, c.scales, rows * (d / c.group));
    return n + rows * (d / c.group);
}

/* What MLX's quantization makes of the head at x is what was read. */
static void check_codes(const coded *got, qn_kv_codec c, const float *x, uint32_t d, size_t row)
{
    coded want = {0};
    qn_qspec spec = {QN_Q_AFFINE, qn_kv_form_bits(c.form), c.group};
    qn_quantize_row(&spec, c.scales, x, d, want.words, want.scales, want.biases);
    qn_kv_codes all = {(uint32_t *)(uintptr_t)got->words, (void *)(uintptr_t)got->scales,
                       (void *)(uintptr_t)got->biases};
    qn_kv_codes at = qn_kv_codes_at(&all, c, d, row);
    assert_memory_equal(at.words, want.words, 4 * qn_kv_code_words(c, d));
    assert_memory_equal(at.scales, want.scales, qn_kv_scale_bytes(c, d));
    assert_memory_equal(at.biases, want.biases, qn_kv_scale_bytes(c, d));
}

/* Codes of a block, in two pieces, from one block to another and out again: the same bits
 * everywhere. */
static size_t codes(const side *s, const inputs *in, int round, float *out)
{
    static coded k, v, moved_k, moved_v;
    qn_kv_layer l;
    qn_kv_spec spec = coded_spec(round, (qn_dtype)(round / 3 % 3), &l);
    uint32_t n_blocks[QN_MAX_KV_GROUPS] = {4}, cols = CODED_HEADS * l.d_k, cut = 1 + (uint32_t)round;
    qn_kv *kv;
    assert_int_equal(CALL(s, kv_new, s->dev, &spec, n_blocks, &kv, &err), QN_OK);
    fill_block(s, kv, in, cols);
    qn_kv_codes to_k = {k.words, k.scales, k.biases}, to_v = {v.words, v.scales, v.biases}, none = {0};
    bool k_coded = qn_kv_quantized(l.k_codec);
    for (uint32_t at = 0, n = cut; at < BLOCK_TOKENS; at += n, n = BLOCK_TOKENS - cut) {
        qn_kv_codes vs = qn_kv_codes_at(&to_v, l.v_codec, l.d_v, at * CODED_HEADS), ks = none;
        if (k_coded) ks = qn_kv_codes_at(&to_k, l.k_codec, l.d_k, at * CODED_HEADS);
        CALL(s, kv_get_codes, kv, 0, 0, at, n, &ks, &vs);
        if (k_coded) CALL(s, kv_put_codes, kv, 0, 3, at, n, &ks, &none);
        CALL(s, kv_put_codes, kv, 0, 3, at, n, &none, &vs);
    }
    qn_kv_codes again_k = {moved_k.words, moved_k.scales, moved_k.biases},
                again_v = {moved_v.words, moved_v.scales, moved_v.biases};
    CALL(s, kv_get_codes, kv, 0, 3, 0, BLOCK_TOKENS, k_coded ? &again_k : &none, &again_v);
    size_t n = take_codes(&v, l.v_codec, l.d_v, out);
    assert_int_equal(take_codes(&moved_v, l.v_codec, l.d_v, out + n), n);
    assert_memory_equal(out, out + n, n * sizeof *out);
    if (k_coded) {
        size_t m = take_codes(&k, l.k_codec, l.d_k, out + n);
        take_codes(&moved_k, l.k_codec, l.d_k, out + n + m);
        assert_memory_equal(out + n, out + n + m, m * sizeof *out);
        n += m;
    }
    for (uint32_t i = 0; i < BLOCK_TOKENS * CODED_HEADS; i++) {
        if (k_coded) check_codes(&k, l.k_codec, in->a + (size_t)i * l.d_k, l.d_k, i);
        check_codes(&v, l.v_codec, in->b + (size_t)i * l.d_v, l.d_v, i);
    }
    CALL(s, kv_free, kv);
    return n;
}

/* Attention to a block that came as codes, or as floats which are encoded when they are put. */
static size_t coded_attention(const side *s, const inputs *in, int round, float *out)
{
    static coded k, v;
    static float fk[BLOCK_TOKENS * CODED_HEADS * MOST_CODED], fv[BLOCK_TOKENS * CODED_HEADS * MOST_CODED];
    static const uint32_t blocks[] = {3, 1};
    qn_kv_layer l;
    qn_kv_spec spec = coded_spec(round, QN_F32, &l);
    uint32_t n_blocks[QN_MAX_KV_GROUPS] = {4}, cols = CODED_HEADS * l.d_k, pos = BLOCK_TOKENS;
    qn_kv *kv;
    assert_int_equal(CALL(s, kv_new, s->dev, &spec, n_blocks, &kv, &err), QN_OK);
    fill_block(s, kv, in, cols);
    bool k_coded = qn_kv_quantized(l.k_codec);
    qn_kv_codes ks = {k_coded ? k.words : NULL, k.scales, k.biases}, vs = {v.words, v.scales, v.biases};
    CALL(s, kv_get_codes, kv, 0, 0, 0, BLOCK_TOKENS, &ks, &vs);
    for (size_t i = 0; i < (size_t)BLOCK_TOKENS * cols; i++) fk[i] = in->a[i], fv[i] = in->b[i];
    if (round % 4 > 1) {
        CALL(s, kv_put, kv, 0, 3, 0, BLOCK_TOKENS, fk, fv);
    } else {
        CALL(s, kv_put_codes, kv, 0, 3, 0, BLOCK_TOKENS, &ks, &vs);
        if (!k_coded) CALL(s, kv_put, kv, 0, 3, 0, BLOCK_TOKENS, fk, NULL);
    }
    qn_item item = {.n_new = 1, .n_past = pos, .blocks = {blocks}};
    qn_batch b = {.n_tokens = 1, .n_items = 1, .items = &item, .ids = in->ids, .pos = &pos};
    CALL(s, begin, s->run, &b, kv);
    CALL(s, kv_write, s->run, 0, up(s, in->c, 1, cols), up(s, in->c + cols, 1, cols));
    qn_attend a = {.n_heads = 2 * CODED_HEADS, .scale = 0.1f};
    size_t n = take(s, CALL(s, attend, s->run, up(s, in->v, 1, 2 * cols), &a), out);
    finish(s);
    CALL(s, kv_free, kv);
    return n;
}

enum { LATENT_HEADS = 3, LATENT = 48, ROTATED = 16, LATENT_OUT = 20 };

/* the_matrix is `embed`. Float32 rows, so that both devices store the same; the scale is small, because
 * a score's error becomes a probability's factor. Some items are cut between the reference's forms. */
static size_t latent_attention(const side *s, const inputs *in, int round, float *out)
{
    static float values[LATENT_HEADS * LATENT_OUT * LATENT];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) values[i] = sinf((float)i);
    qn_matrix m = {.n_experts = LATENT_HEADS, .n_out = LATENT_OUT, .n_in = LATENT, .weight = values,
                   .dtype = QN_F32};
    uint32_t n_blocks[QN_MAX_KV_GROUPS] = {N_BLOCKS};
    qn_kv *kv;
    qn_kv_layer layers[2] = {{.n_kv_heads = 1, .d_k = 4, .d_v = 4},
                             {.n_kv_heads = 1, .d_k = LATENT, .d_v = ROTATED, .latent = true}};
    qn_kv_spec spec = {.block_tokens = BLOCK_TOKENS, .n_groups = 1, .n_layers = 2, .layers = layers};
    spec.groups[0] = round % 2 ? (qn_kv_group){QN_KV_SLIDING, 20, round % 4} : (qn_kv_group){0};
    const qn_latent a = {1, LATENT_HEADS, 0.01f, load(s, the_matrix), load(s, &m)};
    renew_run((side *)(uintptr_t)s);
    assert_int_equal(CALL(s, kv_new, s->dev, &spec, n_blocks, &kv, &err), QN_OK);
    for (uint32_t i = 0; i < ITEMS; i++) {
        for (uint32_t at = 0; at < in->n_past[i]; at += MAX_T) {
            uint32_t t = in->n_past[i] - at < MAX_T ? in->n_past[i] - at : MAX_T;
            qn_item item = {.n_new = t, .n_past = at, .blocks = {in->blocks[i]}};
            qn_batch b = {.n_tokens = t, .n_items = 1, .items = &item, .ids = in->ids, .pos = in->pos};
            CALL(s, begin, s->run, &b, kv);
            CALL(s, kv_write, s->run, 1, up(s, in->b + at, t, LATENT), up(s, in->c + at, t, ROTATED));
            finish(s);
        }
    }
    inputs cut = *in;
    for (uint32_t i = 0; i < cut.batch.n_items; i++)
        cut.items[i].decode_from = round % 3 ? cut.items[i].n_past + 1 + (uint32_t)round % 4 : 0;
    cut.batch.items = cut.items;
    CALL(s, begin, s->run, &cut.batch, kv);
    CALL(s, kv_write, s->run, 1, up(s, in->b, in->t, LATENT), up(s, in->c, in->t, ROTATED));
    qn_tensor q = up(s, in->a, in->t, LATENT_HEADS * (the_matrix->n_in + ROTATED));
    size_t n = take(s, CALL(s, attend_latent, s->run, q, &a), out);
    finish(s);
    CALL(s, kv_free, kv);
    return n;
}

static size_t recurrence(const side *s, const inputs *in, int round, float *out)
{
    size_t n = 0;
    uint32_t hk = 1 + in->cols % 2, hv = hk * (1 + in->cols % 3), dk = 2 + in->cols % 17,
             dv = 3 + in->cols % 9;
    uint32_t channels = 1 + in->cols % 50, taps = 2 + (uint32_t)round % 4,
             n_blocks[QN_MAX_KV_GROUPS] = {0};
    qn_kv *kv;
    qn_kv_layer layers[2] = {{.state = {1, 2, 1, 2, 2}},
                             {.state = {taps - 1, channels, hv, dv, dk}}};
    qn_kv_spec spec = {
        .block_tokens = BLOCK_TOKENS, .n_layers = 2, .layers = layers, .n_states = ITEMS + 2};
    assert_int_equal(CALL(s, kv_new, s->dev, &spec, n_blocks, &kv, &err), QN_OK);
    assert_true(CALL(s, state_bytes, s->dev, &spec) >=
                (hv * dv * dk + (taps - 1) * channels) * sizeof(float));
    for (int pass = 0; pass < 3;
         pass++) { /* a second pass continues; the third starts from a copy */
        if (pass == 2) CALL(s, state_copy, kv, 1, 2);
        float kept[256], state[2048];
        if (pass == 2) CALL(s, state_get, kv, 1, 2, kept, state);
        if (pass == 2) CALL(s, state_clear, kv, 2);
        if (pass == 2 && round % 2) CALL(s, state_put, kv, 1, 2, kept, state);
        CALL(s, begin, s->run, &in->batch, kv);
        n += take(s,
                  CALL(s, conv, s->run, 1, up(s, in->a + pass, in->t, channels),
                       up(s, in->v, channels, taps)),
                  out + n);
        qn_tensor g = CALL(s, decay, s->run, up(s, in->b + pass, in->t, hv), up(s, in->v, 1, hv),
                           up(s, in->v + 9, 1, hv));
        n += take(s, g, out + n);
        qn_tensor q = CALL(s, scale, s->run, up(s, in->a, in->t, hk * dk), 0.2f);
        qn_tensor k = CALL(s, scale, s->run, up(s, in->b, in->t, hk * dk), 0.2f);
        qn_tensor beta = CALL(s, act, s->run, up(s, in->a, in->t, hv), QN_SIGMOID);
        n += take(s, CALL(s, delta, s->run, 1, q, k, up(s, in->c + pass, in->t, hv * dv), g, beta),
                  out + n);
        finish(s);
    }
    CALL(s, kv_free, kv);
    return n;
}

/* ---- comparing ---- */

typedef struct test_case {
    const char *name;
    size_t (*run)(const side *s, const inputs *in, int round, float *out);
    double tolerance; /* of the largest magnitude of the result */
} test_case;

/* Products: activations of 16 bits lose 2^-16 of a group's largest; the rest is float32 rounding.
 */
static const test_case cases[] = {
    {"elementwise", elementwise, 2e-6}, {"norms", norms, 2e-6},
    {"rotation", rotation, 4e-6},       {"attention", attention, 4e-6},
    {"routing", routing, 2e-6},         {"recurrence", recurrence, 1e-5},
    {"products", products, 6e-5},       {"experts", expert_products, 6e-5},
    {"codes", codes, 0},                {"coded attention", coded_attention, 4e-6},
    {"latent attention", latent_attention, 6e-5},
};

enum { MAX_OUT = 12 * MAX_T * MAX_COLS };

static void compare(const test_case *c, const char *label, int round, const float *a,
                    const float *b, size_t n)
{
    double largest = 1e-30, worst = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(a[i]) || isnan(b[i]))
            fail_msg("%s, %s, round %d: NaN at %zu", c->name, label, round, i);
        largest = fmax(largest, fabs((double)b[i]));
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    }
    if (worst > c->tolerance * largest)
        fail_msg("%s, %s, round %d: off by %g of %g", c->name, label, round, worst, largest);
}

static void open_side(side *s, const char *name, const char *isa)
{
    qn_device_opts opts = {.name = name, .isa = isa, .n_threads = 2};
    *s = (side){0};
    err = (qn_err){0};
    if (qn_device_open(&s->dev, &opts, &err)) return;
    s->ops = s->dev->ops;
    assert_int_equal(CALL(s, n_threads, s->dev), 2);
    assert_int_equal(CALL(s, page_bytes, s->dev) % 4096, 0);
    renew_run(s);
}

static void close_side(side *s)
{
    CALL(s, run_free, s->run);
    CALL(s, close, s->dev);
}

static void run_case(const test_case *c, side *s, side *ref, const char *label)
{
    static float mine[MAX_OUT], theirs[MAX_OUT];
    static inputs in;
    static const uint32_t widths[] = {1, 16, 15, 17, 64, 255, 256, 257, 320};
    for (int round = 0; round < ROUNDS; round++) {
        draw(&in, round, round < 9 ? widths[round] : 1 + below(340));
        qn_matrix m = {0};
        bool latent = c->run == latent_attention;
        bool matrix = latent || c->run == products || c->run == expert_products;
        if (matrix) {
            const form *f = &forms[below(N_FORMS)];
            uint32_t group = f->spec.group_size ? f->spec.group_size : 1;
            m = latent ? matrix_new(f, LATENT_HEADS, LATENT, group * (1 + below(128 / group)))
                       : matrix_new(f, c->run == products ? 1 : 5, 40 + below(60),
                                    group * (1 + below(200 / group + 1)));
            the_matrix = &m;
        }
        size_t n = c->run(s, &in, round, mine);
        assert_true(n > 0 && n <= MAX_OUT);
        assert_int_equal(c->run(ref, &in, round, theirs), n);
        compare(c, label, round, mine, theirs, n);
        if (!matrix) continue;
        close_side(s); /* devices keep pointers into the matrix until they are closed */
        close_side(ref);
        matrix_free(&m);
        open_side(s, "cpu", label);
        open_side(ref, "ref", NULL);
    }
}

static void agrees_with_ref(const char *isa)
{
    side cpu, ref;
    open_side(&cpu, "cpu", isa);
    if (!cpu.dev) {
        assert_int_equal(err.code, QN_UNSUPPORTED);
        print_message("%s is not usable here\n", isa);
        return;
    }
    open_side(&ref, "ref", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case(&cases[i], &cpu, &ref, isa);
    close_side(&cpu);
    close_side(&ref);
}

static void portable_agrees_with_ref(void **state)
{
    (void)state;
    agrees_with_ref("portable");
}
static void avx2_agrees_with_ref(void **state)
{
    (void)state;
    agrees_with_ref("avx2");
}
static void avx512_agrees_with_ref(void **state)
{
    (void)state;
    agrees_with_ref("avx512");
}

/* The same operations take the same memory whether they measure or compute. */
static void measure_and_compute(const char *device)
{
    static float host[MAX_T * MAX_COLS];
    side s;
    open_side(&s, device, NULL);
    CALL(&s, run_free, s.run);
    const qn_run_limits limits = {MAX_T, ITEMS, MAX_T, 256, 0};
    assert_int_equal(CALL(&s, run_new, s.dev, &limits, &s.run, &err), QN_OK);
    size_t all = 0, used[2];
    for (int round = 0; round < 2; round++) {
        qn_batch b = {.n_tokens = MAX_T};
        qn_tensor x = {.addr = round ? (uintptr_t)host : QN_MEASURED, .dtype = QN_F32,
                       .rows = MAX_T, .cols = MAX_COLS, .ld = MAX_COLS};
        if (round) assert_int_equal(CALL(&s, run_open, s.run, &err), QN_OK);
        CALL(&s, begin, s.run, &b, NULL);
        qn_tensor y = CALL(&s, mul, s.run, CALL(&s, act, s.run, x, QN_SILU), x);
        y = CALL(&s, head_part, s.run, CALL(&s, scale, s.run, y, 2), 28, 7, 7, (qn_tensor){0});
        CALL(&s, accumulate, s.run, &y, y);
        float *values = CALL(&s, fetch, s.run, qn_cols(y, 3, 100));
        assert_int_equal((uintptr_t)values == QN_MEASURED, !round);
        assert_int_equal(CALL(&s, end, s.run, &err), QN_OK);
        CALL(&s, run_bytes, s.run, &all, &used[round]);
    }
    assert_true(used[1] > 3 * sizeof host && all >= used[1] && all - used[1] <= 512);
    close_side(&s);
}

static void a_run_measures(void **state)
{
    (void)state;
    measure_and_compute("cpu");
    measure_and_compute("ref");
}

static void every_slot_has_a_case(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SLOTS; i++)
        if (!called[i]) fail_msg("slot %zu of qn_ops has no case", i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(portable_agrees_with_ref),
        cmocka_unit_test(avx2_agrees_with_ref),
        cmocka_unit_test(avx512_agrees_with_ref),
        cmocka_unit_test(a_run_measures),
        cmocka_unit_test(every_slot_has_a_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
