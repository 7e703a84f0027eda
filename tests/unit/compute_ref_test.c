/* compute_ref_test.c - the reference device against mlx, bit for bit: tests/golden/ops.safetensors
 * holds what mlx computed (make_ops.py), for every instruction set and one and two threads; and the
 * vectors of the specification's functions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/ref/ref.h"
#include "format/shard.h"

enum { MAX_NUMBERS = 8, MAX_ROWS = 128, BLOCK_TOKENS = 16, N_BLOCKS = 16 };

typedef struct rig {
    qn_device *dev;
    const qn_ops *ops;
    qn_run *run;
    qn_shard *golden;
    const char *name; /* of the case under way */
    double n[MAX_NUMBERS];
} rig;

static const qn_stored *find(const rig *g, const char *key)
{
    char full[160];
    snprintf(full, sizeof full, "%s.%s", g->name, key);
    const qn_stored *t = qn_shard_find(g->golden, full);
    if (!t && qn_shard_meta(g->golden, full))
        t = qn_shard_find(g->golden, qn_shard_meta(g->golden, full));
    return t;
}

static const qn_stored *need(const rig *g, const char *key)
{
    const qn_stored *t = find(g, key);
    if (!t) fail_msg("%s: no tensor %s", g->name, key);
    return t;
}

static uint32_t dim(const qn_stored *t, int from_end)
{
    return (uint32_t)t->dims[t->rank - 1 - (uint32_t)from_end];
}

/* A golden tensor on the device; absent when the case has none. */
static qn_tensor tensor(const rig *g, const char *key)
{
    qn_err err = {0};
    qn_tensor y = {0};
    const qn_stored *t = find(g, key);
    if (!t) return y;
    uint32_t rows = t->rank > 1 ? dim(t, 1) : 1;
    assert_int_equal(g->ops->upload(g->dev, t->data, t->dtype, rows, dim(t, 0), &y, &err), QN_OK);
    return y;
}

static void check(const rig *g, qn_tensor y)
{
    const qn_stored *want = need(g, "y");
    size_t size = qn_dtype_size(want->dtype), cols = dim(want, 0);
    if (y.dtype != want->dtype)
        fail_msg("%s: %s, not %s", g->name, qn_dtype_name(y.dtype), qn_dtype_name(want->dtype));
    if (y.cols != cols || (size_t)y.rows * cols * size != want->bytes)
        fail_msg("%s: shape", g->name);
    for (uint32_t r = 0; r < y.rows; r++) {
        for (uint32_t c = 0; c < cols; c++) {
            const uint8_t *a = qn_ref_at(y, r, c),
                          *b = (const uint8_t *)want->data + (r * cols + c) * size;
            if (!memcmp(a, b, size)) continue;
            float fa, fb;
            qn_widen(&fa, a, y.dtype, 1);
            qn_widen(&fb, b, y.dtype, 1);
            fail_msg("%s: row %u, column %u: %.9g, not %.9g", g->name, r, c, (double)fa,
                     (double)fb);
        }
    }
}

/* ---- a step around one operation ---- */

typedef struct step {
    uint32_t pos[MAX_ROWS], rows[MAX_ROWS], blocks[N_BLOCKS];
    qn_item item;
    qn_batch batch;
} step;

static void start(const rig *g, step *s, uint32_t past, uint32_t n, qn_kv *kv, const uint32_t *ids)
{
    assert_true(n <= MAX_ROWS);
    *s = (step){.item = {.n_new = n, .n_past = past}};
    for (uint32_t i = 0; i < n; i++) {
        s->pos[i] = past + i;
        s->rows[i] = i;
    }
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        s->blocks[i] = N_BLOCKS - 1 - i; /* out of order on purpose */
    for (int i = 0; i < QN_MAX_KV_GROUPS; i++) s->item.blocks[i] = s->blocks;
    s->batch = (qn_batch){.n_tokens = n,
                          .n_items = 1,
                          .n_out = n,
                          .ids = ids,
                          .pos = s->pos,
                          .items = &s->item,
                          .out_rows = s->rows};
    g->ops->begin(g->run, &s->batch, kv);
}

static void finish(const rig *g)
{
    qn_err err = {0};
    assert_int_equal(g->ops->end(g->run, &err), QN_OK);
}

/* ---- products ---- */

static qn_weight *load(const rig *g)
{
    qn_err err = {0};
    const qn_stored *w = need(g, "w"), *scales = find(g, "scales"), *biases = find(g, "biases");
    qn_matrix_src src = {.path = g->name,
                         .m = {.n_experts = w->rank > 2 ? dim(w, 2) : 1,
                               .n_out = dim(w, 1),
                               .n_in = dim(w, 0),
                               .weight = w->data,
                               .dtype = w->dtype}};
    if (scales) {
        src.m.n_in = (uint32_t)g->n[2];
        src.m.spec = (qn_qspec){QN_Q_AFFINE, (uint32_t)g->n[0], (uint32_t)g->n[1]};
        const char *mode = strchr(g->name, '.') + 1; /* after the operation's name */
        for (int m = QN_Q_MXFP4; m <= QN_Q_NVFP4; m++) {
            const char *name = qn_qmode_name((qn_qmode)m);
            if (!strncmp(mode, name, strlen(name))) src.m.spec.mode = (qn_qmode)m;
        }
        src.m.dtype = biases ? scales->dtype : QN_BF16;
        src.m.scales = scales->data;
        src.m.biases = biases ? biases->data : NULL;
    }
    qn_load_opts opts = {.model_dtype = QN_F32};
    qn_weight *out;
    if (g->ops->load(g->dev, &src, 1, &opts, &out, &err)) fail_msg("%s", err.text);
    return out;
}

static void product_case(const rig *g)
{
    step s;
    qn_tensor x = tensor(g, "x"), y[2];
    qn_linear l = {.w = load(g), .bias = tensor(g, "b")};
    const qn_linear *both[2] = {&l, &l};
    start(g, &s, 0, x.rows, NULL, NULL);
    g->ops->linear(g->run, 2, y, x, both);
    check(g, y[0]);
    check(g, y[1]);
    finish(g);
}

static void embed_case(const rig *g)
{
    step s;
    const qn_stored *stored = need(g, "ids");
    uint32_t ids[MAX_ROWS]; /* the file's tensors lie at any address */
    assert_true(stored->bytes <= sizeof ids);
    memcpy(ids, stored->data, stored->bytes);
    start(g, &s, 0, dim(stored, 0), NULL, ids);
    check(g, g->ops->embed(g->run, load(g)));
    finish(g);
}

/* ---- norms, rotations, attention ---- */

static void norm_case(const rig *g)
{
    step s;
    qn_tensor x = tensor(g, "x");
    start(g, &s, 0, x.rows, NULL, NULL);
    float eps = (float)g->n[1];
    if (!strncmp(g->name, "rms", 3))
        check(g, g->ops->rms_norm(g->run, x, tensor(g, "w"), (uint32_t)g->n[0], eps));
    else check(g, g->ops->layer_norm(g->run, x, tensor(g, "w"), tensor(g, "b"), eps));
    finish(g);
}

static void rope_case(const rig *g)
{
    step s;
    qn_err err = {0};
    qn_rope *rope;
    qn_tensor x = tensor(g, "x");
    const qn_stored *freqs = find(g, "freqs");
    float table[64];
    if (freqs) memcpy(table, freqs->data, freqs->bytes);
    qn_rope_desc d = {.dims = (uint32_t)g->n[1],
                      .traditional = g->n[2] != 0,
                      .base = (float)g->n[3],
                      .pos_scale = (float)g->n[4],
                      .mscale = (float)g->n[6],
                      .freqs = freqs ? table : NULL};
    assert_int_equal(g->ops->rope_new(g->dev, &d, 1u << 20, &rope, &err), QN_OK);
    start(g, &s, (uint32_t)g->n[5], x.rows, NULL, NULL);
    g->ops->rope(g->run, x, (uint32_t)g->n[0], rope);
    check(g, x);
    finish(g);
}

static qn_tensor rows_of(qn_tensor x, uint32_t r0, uint32_t n)
{
    x.addr = (uintptr_t)qn_ref_at(x, r0, 0);
    x.rows = n;
    return x;
}

/* The stored keys and values are written in two chunks, then the queries come with the last rows.
 */
static void attend_case(const rig *g)
{
    step s;
    qn_err err = {0};
    qn_kv *kv;
    qn_tensor q = tensor(g, "q"), k = tensor(g, "k"), v = tensor(g, "v");
    uint32_t h = (uint32_t)g->n[0], hk = (uint32_t)g->n[1], d = (uint32_t)g->n[2],
             past = (uint32_t)g->n[3];
    uint32_t window = (uint32_t)g->n[4], n_blocks[QN_MAX_KV_GROUPS] = {N_BLOCKS};
    qn_kv_layer layers[2] = {{0}, {.n_kv_heads = hk, .d_k = d, .d_v = d}};
    qn_kv_spec spec = {
        .block_tokens = BLOCK_TOKENS, .n_groups = 1, .n_layers = 2, .layers = layers};
    spec.groups[0] = (qn_kv_group){window ? QN_KV_SLIDING : QN_KV_FULL, window, 0};
    assert_int_equal(g->ops->kv_new(g->dev, &spec, n_blocks, &kv, &err), QN_OK);
    for (uint32_t at = 0; at < past; at += 33) {
        uint32_t n = past - at < 33 ? past - at : 33;
        start(g, &s, at, n, kv, NULL);
        g->ops->kv_write(g->run, 1, rows_of(k, at, n), rows_of(v, at, n));
        finish(g);
    }
    start(g, &s, past, q.rows, kv, NULL);
    g->ops->kv_write(g->run, 1, rows_of(k, past, q.rows), rows_of(v, past, q.rows));
    qn_attend a = {.layer = 1,
                   .n_heads = h,
                   .softcap = (float)g->n[5],
                   .scale = (float)g->n[6],
                   .sinks = tensor(g, "sinks")};
    check(g, g->ops->attend(g->run, q, &a));
    finish(g);
    g->ops->kv_free(kv);
}

/* ---- elementwise ---- */

static void unary_case(const rig *g)
{
    step s;
    qn_tensor x = tensor(g, "x");
    start(g, &s, 0, x.rows, NULL, NULL);
    if (!strncmp(g->name, "act", 3)) check(g, g->ops->act(g->run, x, (qn_act)g->n[0]));
    else if (!strncmp(g->name, "scale", 5)) check(g, g->ops->scale(g->run, x, (float)g->n[0]));
    else check(g, g->ops->softcap(g->run, x, (float)g->n[0]));
    finish(g);
}

/* The same activations through the table of a 16-bit model. */
static void table_case(const rig *g)
{
    qn_err err = {0};
    qn_load_opts opts = {.model_dtype = need(g, "x")->dtype};
    assert_int_equal(g->ops->load(g->dev, NULL, 0, &opts, NULL, &err), QN_OK);
    unary_case(g);
}

static void binary_case(const rig *g)
{
    step s;
    qn_tensor a = tensor(g, "a"), b = tensor(g, "b");
    start(g, &s, 0, a.rows, NULL, NULL);
    switch (g->name[1]) {
    case 'd': check(g, g->ops->add(g->run, a, b)); break;
    case 'u': check(g, g->ops->mul(g->run, a, b)); break;
    default: check(g, g->ops->glu(g->run, a, b, (qn_act)g->n[0]));
    }
    finish(g);
}

/* Only a tensor in scratch has the room to widen. */
static void accumulate_case(const rig *g)
{
    step s;
    qn_tensor a = tensor(g, "a");
    start(g, &s, 0, a.rows, NULL, NULL);
    qn_tensor x = g->ops->out_rows(g->run, a), after = g->ops->out_rows(g->run, a);
    g->ops->accumulate(g->run, &x, tensor(g, "b"));
    check(g, x);
    assert_memory_equal(qn_ref_at(after, 0, 0), qn_ref_at(a, 0, 0),
                        a.cols * qn_dtype_size(a.dtype));
    finish(g);
}

static void rows_mul_case(const rig *g)
{
    step s;
    qn_tensor a = tensor(g, "a");
    start(g, &s, 0, a.rows, NULL, NULL);
    check(g, g->ops->mul_rows(g->run, a, tensor(g, "b")));
    finish(g);
}

static void head_part_case(const rig *g)
{
    step s;
    qn_tensor x = tensor(g, "x");
    start(g, &s, 0, x.rows, NULL, NULL);
    const uint32_t d = (uint32_t)g->n[0], part = (uint32_t)g->n[1], n_parts = (uint32_t)g->n[2];
    check(g, g->ops->head_part(g->run, x, d * n_parts, part * d, d, (qn_tensor){0}));
    finish(g);
}

static void pos_scale_case(const rig *g)
{
    step s;
    qn_tensor x = tensor(g, "x");
    const qn_pos_scale how = {(float)g->n[1], (float)g->n[2]};
    start(g, &s, (uint32_t)g->n[0], x.rows, NULL, NULL);
    check(g, g->ops->scale_by_pos(g->run, x, &how));
    finish(g);
}

/* ---- experts ---- */

static void route_case(const rig *g)
{
    step s;
    qn_tensor x = tensor(g, "x");
    qn_router how = {.kind = (qn_router_kind)g->n[0], .k = (uint32_t)g->n[1], .normalize = g->n[2] != 0};
    start(g, &s, 0, x.rows, NULL, NULL);
    qn_routing to = g->ops->route(g->run, x, &how);
    assert_memory_equal(qn_ref_at(to.ids, 0, 0), need(g, "ids")->data,
                        x.rows * how.k * sizeof(uint32_t));
    check(g, to.weights);
    finish(g);
}

static void combine_case(const rig *g)
{
    step s;
    qn_tensor h = tensor(g, "h"), w = tensor(g, "w");
    start(g, &s, 0, w.rows, NULL, NULL);
    check(g, g->ops->combine(g->run, h, w));
    finish(g);
}

static void expert_case(const rig *g)
{
    step s;
    const qn_stored *at = need(g, "ids");
    qn_tensor x = tensor(g, "x"),
              ids = {(uintptr_t)at->data, QN_U32, dim(at, 1), dim(at, 0), dim(at, 0)}, y[2];
    qn_linear l = {.w = load(g), .bias = tensor(g, "b")};
    const qn_linear *both[2] = {&l, &l};
    start(g, &s, 0, ids.rows, NULL, NULL);
    g->ops->expert_linear(g->run, 2, y, x, ids, both);
    check(g, y[0]);
    check(g, y[1]);
    finish(g);
}

/* ---- recurrent layers: two chunks, in the second of two slots ---- */

typedef qn_tensor (*chunk_fn)(const rig *g, uint32_t r0, uint32_t n);

static void recurrent_case(const rig *g, qn_state_layer state, uint32_t n_rows, uint32_t split,
                           chunk_fn fn)
{
    step s;
    qn_err err = {0};
    qn_kv *kv;
    uint32_t n_blocks[QN_MAX_KV_GROUPS] = {0};
    qn_kv_layer layers[2] = {{.state = {3, 2, 1, 2, 2}}, {.state = state}};
    qn_kv_spec spec = {
        .block_tokens = BLOCK_TOKENS, .n_layers = 2, .layers = layers, .n_states = 2};
    assert_int_equal(g->ops->kv_new(g->dev, &spec, n_blocks, &kv, &err), QN_OK);
    const qn_stored *want = need(g, "y");
    size_t row = dim(want, 0) * qn_dtype_size(want->dtype);
    for (uint32_t at = 0; at < n_rows; at += split) {
        start(g, &s, at, n_rows - at < split ? n_rows - at : split, kv, NULL);
        s.item.state = 1;
        qn_tensor y = fn(g, at, s.item.n_new);
        if (y.dtype != want->dtype ||
            memcmp(qn_ref_at(y, 0, 0), (const char *)want->data + at * row, s.item.n_new * row))
            fail_msg("%s: rows from %u", g->name, at);
        finish(g);
    }
    g->ops->kv_free(kv);
}

static qn_tensor conv_chunk(const rig *g, uint32_t r0, uint32_t n)
{
    return g->ops->conv(g->run, 1, rows_of(tensor(g, "x"), r0, n), tensor(g, "w"));
}

static void conv_case(const rig *g)
{
    const qn_stored *x = need(g, "x");
    for (uint32_t split = 1; split <= 7; split += 2)
        recurrent_case(g, (qn_state_layer){.conv_width = 3, .conv_channels = dim(x, 0)}, dim(x, 1),
                       split, conv_chunk);
}

static qn_tensor delta_chunk(const rig *g, uint32_t r0, uint32_t n)
{
    return g->ops->delta(g->run, 1, rows_of(tensor(g, "q"), r0, n), rows_of(tensor(g, "k"), r0, n),
                         rows_of(tensor(g, "v"), r0, n), rows_of(tensor(g, "g"), r0, n),
                         rows_of(tensor(g, "beta"), r0, n));
}

static void delta_case(const rig *g)
{
    qn_state_layer s = {
        .n_heads = (uint32_t)g->n[0], .d_v = (uint32_t)g->n[1], .d_k = (uint32_t)g->n[2]};
    recurrent_case(g, s, dim(need(g, "q"), 1), 4, delta_chunk);
}

static void decay_case(const rig *g)
{
    step s;
    qn_tensor a = tensor(g, "a");
    start(g, &s, 0, a.rows, NULL, NULL);
    check(g, g->ops->decay(g->run, a, tensor(g, "log"), tensor(g, "bias")));
    finish(g);
}

/* ---- all cases of the file ---- */

typedef struct kind {
    const char *op;
    void (*run)(const rig *g);
} kind;

static const kind kinds[] = {
    {"dense", product_case},     {"qmm", product_case},         {"embed", embed_case},
    {"rms_norm", norm_case},     {"layer_norm", norm_case},     {"rope", rope_case},
    {"attend", attend_case},     {"act", unary_case},           {"act", table_case},
    {"softcap", unary_case},     {"scale", unary_case},         {"add", binary_case},
    {"mul", binary_case},        {"glu", binary_case},          {"accumulate", accumulate_case},
    {"rows_mul", rows_mul_case}, {"head_part", head_part_case}, {"route", route_case},
    {"combine", combine_case},   {"expert", expert_case},       {"conv", conv_case},
    {"delta", delta_case},       {"decay", decay_case},         {"pos_scale", pos_scale_case},
};

static bool open_rig(rig *g, const char *isa, uint32_t threads)
{
    qn_err err = {0};
    qn_device_opts opts = {.name = "ref", .isa = isa, .n_threads = threads};
    if (qn_device_open(&g->dev, &opts, &err)) {
        assert_int_equal(err.code, QN_UNSUPPORTED);
        return false;
    }
    g->ops = g->dev->ops;
    qn_run_limits limits = {MAX_ROWS, 1, MAX_ROWS, N_BLOCKS * BLOCK_TOKENS, 1u << 20};
    assert_int_equal(g->ops->run_new(g->dev, &limits, &g->run, &err), QN_OK);
    return true;
}

/* Run the cases of one kind: each has a tensor named "op...y". Returns how many there were. */
static int run_kind(rig *g, const kind *k)
{
    int n = 0;
    for (size_t i = 0; i < qn_shard_count(g->golden); i++) {
        char name[160];
        snprintf(name, sizeof name, "%s", qn_shard_at(g->golden, i)->name);
        char *key = strrchr(name, '.');
        if (!key || strcmp(key, ".y") || strncmp(name, k->op, strlen(k->op)) ||
            name[strlen(k->op)] != '.')
            continue;
        *key = 0;
        g->name = name;
        memset(g->n, 0, sizeof g->n);
        const char *at = qn_shard_meta(g->golden, name);
        assert_non_null(at);
        for (int j = 0; *at && j < MAX_NUMBERS; j++) {
            char *end;
            g->n[j] = strtod(at, &end);
            at = end;
        }
        k->run(g);
        n++;
    }
    return n;
}

static void golden(const char *isa, uint32_t threads)
{
    qn_err err = {0};
    rig g = {0};
    if (!open_rig(&g, isa, threads)) {
        print_message("%s is not usable here\n", isa);
        return;
    }
    if (qn_shard_open(&g.golden, QN_TEST_DIR "/golden/ops.safetensors", &err))
        fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!run_kind(&g, &kinds[i])) fail_msg("no case of %s", kinds[i].op);
    qn_shard_close(g.golden);
    g.ops->run_free(g.run);
    g.ops->close(g.dev);
}

static void portable_equals_mlx(void **state)
{
    (void)state;
    golden("portable", 1);
}
static void avx2_equals_mlx(void **state)
{
    (void)state;
    golden("avx2", 1);
}
static void avx512_equals_mlx(void **state)
{
    (void)state;
    golden("avx512", 1);
}
static void two_threads_equal_mlx(void **state)
{
    (void)state;
    golden(NULL, 2);
}

/* ---- vectors of the specification ---- */

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static void functions_give_the_published_vectors(void **state)
{
    (void)state;
    const struct {
        float got;
        uint32_t want;
    } table[] = {
        {qn_ref_expf(1), 0x402df854},
        {qn_ref_expf(-0.5f), 0x3f1b4598},
        {qn_ref_expf(-10), 0x383e6bce},
        {qn_ref_expf(-87.6f), 0x00625abf},
        {qn_ref_expf(-88), 0},
        {qn_ref_sinf(1), 0x3f576aa4},
        {qn_ref_cosf(1), 0x3f0a5140},
        {qn_ref_sinf(1000.5f), 0x3f7eca46},
        {qn_ref_cosf(1000.5f), 0x3dc6dffc},
        {qn_ref_erf(0.5f, QN_F32), 0x3f053f7f},
        {qn_ref_erf(0, QN_F32), 0x80000000},
        {qn_ref_sigmoid(1, QN_F32), 0x3f3b26a8},
        {qn_ref_sigmoid(-1, QN_F32), 0x3e89b2b1},
        {qn_ref_logaddexp(1, 0, QN_F32), 0x3fa818f6},
        {qn_ref_sigmoid(1.5f, QN_BF16), 0x3f510000},
        {qn_ref_act_of(1.5f, QN_SILU, QN_BF16), 0x3f9d0000},
        {qn_ref_exp(1.5f, QN_BF16), 0x408f0000},
        {qn_ref_sinf(1e7f), 0x3ed7520a},
        {qn_ref_cosf(1e7f), 0xbf6842df},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (bits(table[i].got) != table[i].want)
            fail_msg("vector %zu: %08x, not %08x", i, bits(table[i].got), table[i].want);
}

/* The lanes' exp finds the whole part in float32, the scalar one in double, as MLX does. */
static void lanes_exp_equals_the_scalar_one(void **state)
{
    (void)state;
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    for (int v = 0; v < 3; v++) {
        const qn_ref_kernels *k = qn_ref_pick(isas[v]);
        if (!k) continue;
        for (uint32_t u = 0; u < 0xFFF00000u; u += 64 * 8191) {
            float x[64], y[64];
            for (uint32_t i = 0; i < 64; i++) {
                uint32_t w = u + i * 8191;
                memcpy(&x[i], &w, 4);
            }
            k->exp_shifted(y, x, 64, 0.0f);
            for (uint32_t i = 0; i < 64; i++) {
                float want = qn_ref_expf(x[i]);
                if (bits(y[i]) != bits(want) && !(isnan(y[i]) && isnan(want)))
                    fail_msg("%s: exp(%a) is %a, not %a", isas[v], (double)x[i], (double)y[i],
                             (double)want);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_give_the_published_vectors),
        cmocka_unit_test(lanes_exp_equals_the_scalar_one),
        cmocka_unit_test(portable_equals_mlx),
        cmocka_unit_test(avx2_equals_mlx),
        cmocka_unit_test(avx512_equals_mlx),
        cmocka_unit_test(two_threads_equal_mlx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
