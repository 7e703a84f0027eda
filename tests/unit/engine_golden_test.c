/* engine_golden_test.c - every model family against mlx-lm on synthetic checkpoints
 * (tests/golden/make.py).
 *
 * On ref: mlx-lm's bits, for the prompt in one call, in two and token by token, for every decode
 * step, and its tokens; and through the engine what mlx_lm.generate gives.
 *
 * On cpu, float32 cases: every logit within 1e-4 of the largest one, the greedy tokens equal (but
 * for ties within the gate). 16-bit cases: mean KL divergence from mlx-lm's logits with the same
 * weights and float32 activations, within the gates that bench/results/kl.json states; ours differ
 * by the rounding of keys and values to 16 bits, and with experts a near tie of the router may fall
 * the other way.
 *
 * On both, runs beside another sequence, and on cpu runs in chunks and token by token, have the bits
 * of the whole one; and the largest step takes the memory that was planned for it.
 *
 * QUERN_TEST_FAMILY=NAME checks the files whose names begin so; QUERN_TEST_ISA picks the cpu's
 * instruction set; QUERN_TEST_MEASURE=FILE appends what cpu is off by, for bench/kl.py, instead of
 * holding it against the gates.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base64.h"
#include "cache/blocks.h"
#include "compute/device.h"
#include "core/file.h"
#include "core/hash.h"
#include "engine/engine.h"
#include "engine/score.h"
#include "synth.h"

enum { MAX_POS = 64, MAX_VOCAB = 256, HASH_DIGITS = 16 };
static const double MAX_F32 = 1e-4;

typedef struct logits {
    uint32_t n_vocab;
    float v[MAX_POS * MAX_VOCAB];
} logits;

static qn_code keep(void *user, uint32_t first, uint32_t n, const float *rows, qn_err *err)
{
    (void)err;
    logits *l = user;
    memcpy(l->v + (size_t)first * l->n_vocab, rows, (size_t)n * l->n_vocab * sizeof *rows);
    return QN_OK;
}

static uint32_t read_ids(const json_t *list, uint32_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    return best;
}

static double kl(const float *p, const float *q, uint32_t n)
{
    double zp = 0, zq = 0, mp = p[argmax(p, n)], mq = q[argmax(q, n)], sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        zp += exp(p[i] - mp);
        zq += exp(q[i] - mq);
    }
    for (uint32_t i = 0; i < n; i++) {
        double lp = p[i] - mp - log(zp), lq = q[i] - mq - log(zq);
        sum += exp(lp) * (lp - lq);
    }
    return sum;
}

static void open_case(qn_synth_model *l, const char *label, const char *device, const json_t *recipe)
{
    qn_err err = {0};
    qn_device_opts o = {.name = device, .n_threads = 2};
    if (!strcmp(device, "cpu")) o.isa = getenv("QUERN_TEST_ISA");
    if (qn_synth_open(l, recipe, &o, &err)) fail_msg("%s: %s", label, err.text);
}

static void close_case(qn_synth_model *l)
{
    qn_err err = {0};
    assert_int_equal(qn_synth_close(l, &err), QN_OK);
}

static void score(const qn_synth_model *l, const uint32_t *ids, uint32_t n, const qn_score_opts *o,
                  logits *out)
{
    qn_err err = {0};
    out->n_vocab = l->model->info.n_vocab;
    assert_true(n <= MAX_POS && out->n_vocab <= MAX_VOCAB);
    if (qn_score(l->model, ids, n, o, keep, out, &err)) fail_msg("%s", err.text);
}

/* ---- a case ---- */

typedef struct golden {
    const char *family, *name;
    char label[128];
    bool is_f32;
    const json_t *recipe, *hashes, *generated;
    const char *logits;                   /* of the prompt, base64; cpu compares with logits_f32 */
    const char *logits_f32;
    uint32_t ids[MAX_POS], n_prompt, n;   /* prompt, then all greedy tokens but the last */
    uint32_t greedy[MAX_POS], n_greedy;
} golden;

static void read_case(golden *g, const char *family, const json_t *c)
{
    *g = (golden){.family = family, .name = json_string_value(json_object_get(c, "name"))};
    snprintf(g->label, sizeof g->label, "%s %s", family, g->name);
    g->is_f32 = !strcmp(json_string_value(json_object_get(c, "dtype")), "float32");
    g->recipe = json_object_get(c, "recipe");
    g->hashes = json_object_get(c, "hashes");
    g->generated = json_object_get(c, "generated");
    g->logits = json_string_value(json_object_get(c, "logits"));
    g->logits_f32 =
        g->is_f32 ? g->logits : json_string_value(json_object_get(c, "logits_f32"));
    g->n_prompt = read_ids(json_object_get(c, "ids"), g->ids);
    g->n_greedy = read_ids(json_object_get(c, "greedy"), g->greedy);
    g->n = g->n_prompt + g->n_greedy - 1;
    memcpy(g->ids + g->n_prompt, g->greedy, (g->n_greedy - 1) * sizeof *g->ids);
    assert_int_equal(json_array_size(json_object_get(g->hashes, "decode")), g->n_greedy - 1);
}

/* ---- two sequences side by side ---- */

typedef struct sequence {
    const uint32_t *ids;
    uint32_t n, chunks[2]; /* sizes of its first two passes; the rest one token at a time */
    logits *out;
    uint32_t done, pass;
    qn_table table;
} sequence;

static uint32_t next_chunk(const sequence *s)
{
    if (s->done == s->n) return 0;
    return s->pass < 2 ? s->chunks[s->pass] : 1;
}

/* One pass over the next chunks of both. */
static void pair_step(const qn_synth_model *l, qn_run *run, qn_blocks *blocks, sequence *s)
{
    qn_err err = {0};
    const qn_ops *ops = l->dev->ops;
    uint32_t ids[MAX_POS], pos[MAX_POS], out_rows[MAX_POS];
    qn_item items[2];
    qn_batch b = {.ids = ids, .pos = pos, .items = items, .out_rows = out_rows};
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t n = next_chunk(&s[k]);
        if (!n) continue;
        assert_true(qn_table_extend(&s[k].table, blocks, s[k].done, n));
        qn_item *item = &items[b.n_items++];
        *item = (qn_item){.row0 = b.n_tokens, .n_new = n, .n_past = s[k].done, .state = k,
                          .decode_from = s[k].chunks[0] + s[k].chunks[1]};
        qn_table_view(&s[k].table, blocks, item);
        for (uint32_t i = 0; i < n; i++, b.n_tokens++) {
            ids[b.n_tokens] = s[k].ids[s[k].done + i];
            pos[b.n_tokens] = s[k].done + i;
            out_rows[b.n_tokens] = b.n_tokens;
        }
    }
    b.n_out = b.n_tokens;
    ops->begin(run, &b, qn_blocks_kv(blocks));
    qn_tensor hidden, logits_at = l->model->ops->forward(l->model, run, &hidden);
    const float *rows = ops->fetch(run, logits_at);
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t n = next_chunk(&s[k]), v = s[k].out->n_vocab;
        if (!n) continue;
        memcpy(s[k].out->v + (size_t)s[k].done * v, rows, (size_t)n * v * sizeof *rows);
        rows += (size_t)n * v;
        s[k].done += n;
        s[k].pass++;
    }
    assert_int_equal(ops->end(run, &err), QN_OK);
}

static void run_pair(const qn_synth_model *l, sequence *s)
{
    qn_err err = {0};
    qn_kv_spec kv = l->model->kv;
    kv.block_tokens = 16;
    if (kv.n_states) kv.n_states = 2;
    uint32_t n_blocks[QN_MAX_KV_GROUPS];
    for (uint32_t g = 0; g < kv.n_groups; g++) n_blocks[g] = 2 * (MAX_POS / 16 + 1);
    qn_blocks *blocks;
    qn_run *run;
    if (qn_blocks_new(&blocks, l->dev, &kv, n_blocks, &err)) fail_msg("%s", err.text);
    const qn_run_limits limits = {.max_tokens = MAX_POS, .max_items = 2, .max_out = MAX_POS,
                                  .max_positions = MAX_POS};
    if (qn_model_run_new(&run, l->model, &kv, &limits, &err)) fail_msg("%s", err.text);
    if (l->dev->ops->run_open(run, &err)) fail_msg("%s", err.text);
    for (uint32_t k = 0; k < 2; k++) {
        s[k].out->n_vocab = l->model->info.n_vocab;
        if (kv.n_states) l->dev->ops->state_clear(qn_blocks_kv(blocks), k);
        assert_int_equal(qn_table_init(&s[k].table, blocks, MAX_POS, &err), QN_OK);
    }
    while (next_chunk(&s[0]) || next_chunk(&s[1])) pair_step(l, run, blocks, s);
    for (uint32_t k = 0; k < 2; k++) qn_table_release(&s[k].table, blocks);
    l->dev->ops->run_free(run);
    qn_blocks_free(blocks);
}

static void same_bits(const golden *g, const char *what, const logits *got, const logits *want,
                      uint32_t n)
{
    if (memcmp(got->v, want->v, (size_t)n * want->n_vocab * sizeof *want->v))
        fail_msg("%s: other bits %s", g->label, what);
}

/* The case beside a shorter sequence, whose decode steps meet the case's prompt: both have the bits
 * that they have alone. `want`: the case in chunks of 7 and 10, then token by token. */
static void check_pair(const qn_synth_model *l, const golden *g, const logits *want)
{
    static logits out[2], alone;
    uint32_t other[MAX_POS], n_other = g->n - 9;
    for (uint32_t i = 0; i < n_other; i++) other[i] = g->ids[g->n - 1 - i];
    sequence s[2] = {{.ids = g->ids, .n = g->n, .chunks = {7, 10}, .out = &out[0]},
                     {.ids = other, .n = n_other, .chunks = {4, 2}, .out = &out[1]}};
    run_pair(l, s);
    same_bits(g, "beside another sequence", &out[0], want, g->n);
    score(l, other, n_other, &(qn_score_opts){.chunks = s[1].chunks, .n_chunks = 2, .max_chunk = 1},
          &alone);
    same_bits(g, "of the sequence beside it", &out[1], &alone, n_other);
}

/* ---- memory ---- */

/* One pass over the most tokens, with the most results, of which the last n_hidden are states. */
static void largest_pass(const qn_synth_model *l, qn_run *run, qn_blocks *blocks, uint32_t n_hidden)
{
    static const uint32_t ids[MAX_POS];
    uint32_t rows[MAX_POS];
    qn_err err = {0};
    qn_table table;
    assert_int_equal(qn_table_init(&table, blocks, MAX_POS, &err), QN_OK);
    assert_true(qn_table_extend(&table, blocks, 0, MAX_POS));
    qn_item item = {.n_new = MAX_POS};
    qn_table_view(&table, blocks, &item);
    for (uint32_t i = 0; i < MAX_POS; i++) rows[i] = i;
    const qn_batch b = {MAX_POS, 1, MAX_POS, n_hidden, ids, rows, &item, rows};
    if (l->model->kv.n_states) l->dev->ops->state_clear(qn_blocks_kv(blocks), 0);
    l->dev->ops->begin(run, &b, qn_blocks_kv(blocks));
    qn_tensor hidden, y = l->model->ops->forward(l->model, run, &hidden);
    if (hidden.addr) l->dev->ops->fetch(run, hidden);
    if (y.addr) l->dev->ops->fetch(run, y);
    assert_int_equal(l->dev->ops->end(run, &err), QN_OK);
    qn_table_release(&table, blocks);
}

/* What was planned is what the largest step takes. */
static void check_memory(const qn_synth_model *l, const golden *g)
{
    enum { MIXED_PADS = 512 }; /* ref keeps so much for batches of logits and states */
    qn_err err = {0};
    qn_blocks *blocks;
    qn_run *run;
    size_t all, used;
    qn_kv_spec kv = l->model->kv;
    kv.block_tokens = 16;
    uint32_t n_blocks[QN_MAX_KV_GROUPS];
    for (uint32_t k = 0; k < kv.n_groups; k++) n_blocks[k] = MAX_POS / 16 + 2;
    const qn_run_limits limits = {.max_tokens = MAX_POS, .max_items = 1, .max_out = MAX_POS,
                                  .max_positions = MAX_POS};
    if (qn_blocks_new(&blocks, l->dev, &kv, n_blocks, &err)) fail_msg("%s", err.text);
    if (qn_model_run_new(&run, l->model, &kv, &limits, &err)) fail_msg("%s", err.text);
    if (l->dev->ops->run_open(run, &err)) fail_msg("%s", err.text);
    largest_pass(l, run, blocks, 0);
    largest_pass(l, run, blocks, MAX_POS);
    largest_pass(l, run, blocks, 1);
    l->dev->ops->run_bytes(run, &all, &used);
    if (used > all || all - used > MIXED_PADS)
        fail_msg("%s on %s: %zu bytes planned, %zu used", g->label, l->dev->name, all, used);
    l->dev->ops->run_free(run);
    qn_blocks_free(blocks);
}

/* ---- cpu ---- */

typedef struct gates {
    double kl, kl_experts; /* mean KL divergence of 16-bit cases */
} gates;

static gates read_gates(void)
{
    json_error_t e;
    json_t *data = json_load_file(QN_SOURCE_DIR "/bench/results/kl.json", 0, &e);
    if (!data) fail_msg("bench/results/kl.json: %s", e.text);
    const json_t *list = json_object_get(data, "gates");
    gates g = {json_real_value(json_object_get(list, "dense")),
               json_real_value(json_object_get(list, "experts"))};
    json_decref(data);
    assert_true(g.kl > 0 && g.kl_experts > 0);
    return g;
}

static void check_gate(const golden *g, const char *what, double value, double gate)
{
    const char *path = getenv("QUERN_TEST_MEASURE");
    if (path) {
        FILE *f = fopen(path, "a");
        assert_non_null(f);
        fprintf(f, "%s\t%s\t%s\t%.9g\n", g->family, g->name, what, value);
        assert_int_equal(fclose(f), 0);
    } else if (!(value <= gate)) {
        fail_msg("%s: %s %g is over the gate %g", g->label, what, value, gate);
    }
}

static void check_f32(const golden *g, const logits *got, const float *want)
{
    const uint32_t v = got->n_vocab;
    double worst = 0, largest = 0;
    for (uint32_t i = 0; i < g->n_prompt * v; i++) {
        worst = fmax(worst, fabs((double)got->v[i] - want[i]));
        largest = fmax(largest, fabs(want[i]));
    }
    check_gate(g, "relative", worst / largest, MAX_F32);
    for (uint32_t i = 0; i < g->n_greedy; i++) {
        const float *row = got->v + (size_t)(g->n_prompt - 1 + i) * v;
        uint32_t id = argmax(row, v);
        /* Two logits closer than what the gate allows to both may change places. */
        if (row[id] - row[g->greedy[i]] > 2 * MAX_F32 * fabs(row[id]))
            fail_msg("%s: greedy token %u is %u, mlx-lm has %u", g->label, i, id, g->greedy[i]);
    }
}

static void check_16bit(const golden *g, const logits *got, const float *want)
{
    const uint32_t v = got->n_vocab;
    const gates limits = read_gates();
    double sum = 0;
    for (uint32_t i = 0; i < g->n_prompt; i++)
        sum += kl(want + (size_t)i * v, got->v + (size_t)i * v, v);
    check_gate(g, "kl", sum / g->n_prompt,
               strstr(g->family, "moe") ? limits.kl_experts : limits.kl);
}

static void check_cpu(const golden *g)
{
    static float want[MAX_POS * MAX_VOCAB];
    static logits whole, cut;
    qn_synth_model l;
    qn_test_base64(g->logits_f32, (uint8_t *)want);
    open_case(&l, g->label, "cpu", g->recipe);
    score(&l, g->ids, g->n, NULL, &whole);
    if (g->is_f32) check_f32(g, &whole, want);
    else check_16bit(g, &whole, want);
    const uint32_t chunks[] = {7, 10};
    score(&l, g->ids, g->n, &(qn_score_opts){.chunks = chunks, .n_chunks = 2, .block_tokens = 16},
          &cut);
    same_bits(g, "in chunks", &cut, &whole, g->n);
    score(&l, g->ids, g->n, &(qn_score_opts){.max_chunk = 1, .block_tokens = 256}, &cut);
    same_bits(g, "token by token", &cut, &whole, g->n);
    check_pair(&l, g, &whole);
    check_memory(&l, g);
    close_case(&l);
}

/* ---- ref ---- */

static void check_hash(const golden *g, const char *what, const json_t *want, const float *got,
                       size_t n)
{
    char hex[65];
    qn_sha256_hex(got, n * sizeof *got, hex);
    if (strncmp(hex, json_string_value(want), HASH_DIGITS))
        fail_msg("%s on ref: other bits %s", g->label, what);
}

/* Every decode step's logits, and the greedy tokens. */
static void check_decode(const golden *g, const logits *got)
{
    const json_t *want = json_object_get(g->hashes, "decode");
    const uint32_t v = got->n_vocab;
    for (uint32_t i = 0; i < g->n_greedy; i++) {
        const float *row = got->v + (size_t)(g->n_prompt - 1 + i) * v;
        char what[32];
        snprintf(what, sizeof what, "at decode step %u", i);
        if (i) check_hash(g, what, json_array_get(want, i - 1), row, v);
        if (argmax(row, v) != g->greedy[i])
            fail_msg("%s on ref: greedy token %u is %u, mlx-lm has %u", g->label, i,
                     argmax(row, v), g->greedy[i]);
    }
}

static void check_prompt(const golden *g, const char *what, const logits *got)
{
    static float want[MAX_POS * MAX_VOCAB];
    uint32_t n = g->n_prompt * got->n_vocab, off = 0;
    qn_test_base64(g->logits, (uint8_t *)want);
    for (uint32_t i = 0; i < n; i++) off += got->v[i] != want[i];
    if (off) fail_msg("%s on ref: %u of %u logits differ %s", g->label, off, n, what);
}

static qn_gen *submit(qn_engine *e, const uint32_t *prompt, uint32_t n, uint32_t max_tokens)
{
    qn_err err = {0};
    qn_gen *gen;
    const qn_request r = {.prompt = prompt, .n_prompt = n, .max_tokens = max_tokens,
                          .ignore_eos = true, .sampling.logprobs = true};
    if (qn_engine_submit(e, &r, &gen, &err)) fail_msg("%s", err.text);
    return gen;
}

/* mlx_lm.generate's tokens and their log-probabilities, from steps of other sizes than its calls
 * have, beside another request. */
static void check_generated(const qn_synth_model *l, const golden *g)
{
    qn_err err = {0};
    qn_engine *e;
    const qn_engine_opts o = {.max_rows = 2, .step_tokens = 6, .mixed_tokens = 4,
                              .block_tokens = 16, .max_positions = MAX_POS};
    if (qn_engine_new(&e, l->model, &o, &err)) fail_msg("%s", err.text);
    qn_gen *other = submit(e, g->ids + 3, 9, 20);
    qn_gen *gen = submit(e, g->ids, g->n_prompt, g->n_greedy);
    const json_t *tokens = json_object_get(g->generated, "tokens");
    float logprobs[MAX_POS];
    uint32_t n = 0;
    for (qn_event ev = {0}; ev.kind != QN_EV_DONE;) {
        assert_true(qn_gen_wait(gen, &ev, 60000));
        if (ev.kind != QN_EV_TOKEN) continue;
        if (ev.sample.token != (uint32_t)json_integer_value(json_array_get(tokens, n)))
            fail_msg("%s on ref: generated token %u is %u", g->label, n, ev.sample.token);
        logprobs[n++] = ev.sample.logprob;
    }
    assert_int_equal(n, json_array_size(tokens));
    check_hash(g, "of generated log-probabilities", json_object_get(g->generated, "logprobs"),
               logprobs, n);
    qn_gen_free(gen);
    qn_gen_free(other);
    qn_engine_free(e);
}

static void check_ref(const golden *g)
{
    static logits got;
    const uint32_t whole[] = {g->n_prompt}, chunks[] = {7, 10};
    qn_synth_model l;
    open_case(&l, g->label, "ref", g->recipe);
    const size_t n_prompt = (size_t)g->n_prompt * l.model->info.n_vocab;
    score(&l, g->ids, g->n, NULL, &got); /* what follows the prompt in the same pass is not seen */
    check_prompt(g, "in one pass", &got);
    score(&l, g->ids, g->n, &(qn_score_opts){.chunks = whole, .n_chunks = 1, .max_chunk = 1}, &got);
    check_prompt(g, "alone", &got);
    check_decode(g, &got);
    score(&l, g->ids, g->n, &(qn_score_opts){.max_chunk = 1, .block_tokens = 256}, &got);
    check_hash(g, "token by token", json_object_get(g->hashes, "single"), got.v, n_prompt);
    score(&l, g->ids, g->n,
          &(qn_score_opts){.chunks = chunks, .n_chunks = 2, .max_chunk = 1, .block_tokens = 16},
          &got);
    check_hash(g, "in chunks", json_object_get(g->hashes, "chunked"), got.v, n_prompt);
    check_decode(g, &got);
    check_pair(&l, g, &got);
    check_memory(&l, g);
    check_generated(&l, g);
    close_case(&l);
}

/* ---- all of them ---- */

static void check_file(const char *path)
{
    json_error_t e;
    json_t *data = json_load_file(path, 0, &e), *c;
    if (!data) fail_msg("%s: %s", path, e.text);
    size_t i;
    assert_true(json_array_size(json_object_get(data, "cases")) > 0);
    json_array_foreach(json_object_get(data, "cases"), i, c) {
        static golden g;
        read_case(&g, json_string_value(json_object_get(data, "family")), c);
        check_cpu(&g);
        check_ref(&g);
    }
    json_decref(data);
}

/* Every supported model_type that is not an alias has a file; every file is checked. */
static void test_families(void **state)
{
    (void)state;
    DIR *d = opendir(QN_TEST_DIR "/golden/models");
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        const char *only = getenv("QUERN_TEST_FAMILY");
        if (!strstr(e->d_name, ".json") || (only && strncmp(e->d_name, only, strlen(only))))
            continue;
        char path[1024];
        snprintf(path, sizeof path, QN_TEST_DIR "/golden/models/%s", e->d_name);
        check_file(path);
        n++;
    }
    closedir(d);
    assert_true(n > 0);
}

static void test_every_type_has_goldens(void **state)
{
    (void)state;
    for (const char *const *t = qn_model_types(); *t; t++) {
        if (!strcmp(*t, "mistral") || !strcmp(*t, "iquestcoder") || !strcmp(*t, "qwen3_5_text") ||
            !strcmp(*t, "joyai_llm_flash") || !strcmp(*t, "kimi_k2")) {
            continue; /* aliases */
        }
        char path[1024];
        snprintf(path, sizeof path, QN_TEST_DIR "/golden/models/%s.json", *t);
        if (!qn_is_file(path)) fail_msg("no golden data for %s", *t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families), cmocka_unit_test(test_every_type_has_goldens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
