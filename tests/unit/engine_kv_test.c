/* engine_kv_test.c - KV caches that are quantized (golden/make_kv.py) or of limited size
 * (golden/make_maxkv.py): mlx-lm's bits on the reference device, the positions that its queries attend
 * to (chunks: golden/make_chunked.py), and schemes and kv_config.json as they reach a model's layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base64.h"
#include "cache/blocks.h"
#include "cache/kv_scheme.h"
#include "cache/mlx_cache.h"
#include "compute/device.h"
#include "core/file.h"
#include "engine/engine.h"
#include "engine/score.h"
#include "synth.h"

enum { MAX_POS = 64, MAX_VOCAB = 128, MAX_CHUNKS = 64, MAX_REPLY = 16 };

/* ---- models ---- */

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[256];
    qn_err err = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(qn_file_write(path, text, strlen(text), &err), QN_OK);
}

/* The case's recipe on a device, its KV quantized as the case says. */
static void open_case(qn_synth_model *l, const json_t *c, const char *device)
{
    qn_err err = {0};
    const char *label = json_string_value(json_object_get(c, "name"));
    const json_t *how = json_object_get(c, "how"), *map = json_object_get(how, "map");
    qn_device_opts o = {.name = device, .n_threads = 2};
    if (qn_synth_open(l, json_object_get(c, "recipe"), &o, &err)) fail_msg("%s: %s", label, err.text);
    qn_kv_scheme s = {.config = map != NULL, .config_required = true};
    if (map) {
        char *text = json_dumps(map, 0);
        write_text(l->dir, "kv_config.json", text);
        free(text);
    } else {
        s.k_bits = s.v_bits = (uint32_t)json_integer_value(json_object_get(how, "kv_bits"));
        s.group = (uint32_t)json_integer_value(json_object_get(how, "kv_group_size"));
        s.start = (uint32_t)json_integer_value(json_object_get(how, "quantized_kv_start"));
        s.max_size = (uint32_t)json_integer_value(json_object_get(how, "max_kv_size"));
    }
    if (qn_kv_scheme_apply(&s, l->dir, &l->model->kv, &err)) fail_msg("%s: %s", label, err.text);
}

static void close_case(qn_synth_model *l)
{
    qn_err err = {0};
    assert_int_equal(qn_synth_close(l, &err), QN_OK);
}

static json_t *golden(const char *name)
{
    json_error_t je;
    char path[256];
    snprintf(path, sizeof path, QN_TEST_DIR "/golden/%s", name);
    json_t *data = json_load_file(path, 0, &je);
    if (!data) fail_msg("%s: %s", name, je.text);
    return data;
}

/* The cases of both files. */
static json_t *all_cases(void)
{
    json_t *a = golden("kv.json"), *b = golden("maxkv.json");
    json_t *all = json_array();
    json_array_extend(all, json_object_get(a, "cases"));
    json_array_extend(all, json_object_get(b, "cases"));
    json_decref(a);
    json_decref(b);
    return all;
}

static uint32_t read_u32(const json_t *list, uint32_t *out, uint32_t cap)
{
    size_t n = json_array_size(list);
    assert_true(n <= cap);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)n;
}

/* ---- logits ---- */

typedef struct rows {
    uint32_t n_vocab;
    float v[MAX_POS * MAX_VOCAB];
} rows;

static qn_code keep(void *user, uint32_t first, uint32_t n, const float *logits, qn_err *err)
{
    (void)err;
    rows *r = user;
    memcpy(r->v + (size_t)first * r->n_vocab, logits, (size_t)n * r->n_vocab * sizeof *logits);
    return QN_OK;
}

static void mlx_logits_at_its_chunks(void **state)
{
    (void)state;
    json_t *cases = all_cases(), *c;
    size_t i;
    json_array_foreach(cases, i, c) {
        static float want[MAX_POS * MAX_VOCAB];
        static rows got;
        uint32_t ids[MAX_POS], n = read_u32(json_object_get(c, "ids"), ids, MAX_POS);
        uint32_t chunks[MAX_CHUNKS];
        uint32_t n_chunks = read_u32(json_object_get(c, "chunks"), chunks, MAX_CHUNKS);
        qn_test_base64(json_string_value(json_object_get(c, "logits")), (uint8_t *)want);
        qn_synth_model l;
        qn_err err = {0};
        open_case(&l, c, "ref");
        got.n_vocab = l.model->info.n_vocab;
        assert_true(got.n_vocab <= MAX_VOCAB);
        for (uint32_t block = 16; block <= 64; block += 48) {
            qn_score_opts o = {.chunks = chunks, .n_chunks = n_chunks, .block_tokens = block};
            if (qn_score(l.model, ids, n, &o, keep, &got, &err)) fail_msg("%s", err.text);
            for (uint32_t at = 0; at < n; at++)
                if (memcmp(got.v + at * got.n_vocab, want + at * got.n_vocab,
                           got.n_vocab * sizeof *want))
                    fail_msg("%s: the logits of position %u differ",
                             json_string_value(json_object_get(c, "name")), at);
        }
        close_case(&l);
    }
    json_decref(cases);
}

/* The default device on checkpoints in float32: mlx-lm's logits within the gate of engine_golden_test,
 * whatever the chunks. */
static void logits_of_limited_caches(void **state)
{
    (void)state;
    static const double most = 1e-4;
    json_t *data = golden("maxkv.json"), *c;
    size_t i;
    int n_checked = 0;
    json_array_foreach(json_object_get(data, "cases"), i, c) {
        if (strcmp(json_string_value(json_object_get(c, "dtype")), "float32")) continue;
        static float want[MAX_POS * MAX_VOCAB];
        static rows got[2];
        uint32_t ids[MAX_POS], n = read_u32(json_object_get(c, "ids"), ids, MAX_POS);
        qn_test_base64(json_string_value(json_object_get(c, "logits")), (uint8_t *)want);
        qn_synth_model l;
        qn_err err = {0};
        open_case(&l, c, NULL);
        for (uint32_t k = 0; k < 2; k++) {
            qn_score_opts o = {.max_chunk = k ? 1 : 25, .block_tokens = 16};
            got[k].n_vocab = l.model->info.n_vocab;
            if (qn_score(l.model, ids, n, &o, keep, &got[k], &err)) fail_msg("%s", err.text);
        }
        size_t n_values = (size_t)n * got[0].n_vocab;
        assert_memory_equal(got[0].v, got[1].v, n_values * sizeof *want);
        double worst = 0, largest = 0;
        for (size_t v = 0; v < n_values; v++) {
            worst = fmax(worst, fabs((double)got[0].v[v] - want[v]));
            largest = fmax(largest, fabs(want[v]));
        }
        if (!(worst <= most * largest))
            fail_msg("%s: off by %g of %g", json_string_value(json_object_get(c, "name")), worst,
                     largest);
        close_case(&l);
        n_checked++;
    }
    assert_int_equal(n_checked, 3);
    json_decref(data);
}

/* ---- attended positions ---- */

enum { D = 64 };

/* Which positions each query of a device attends to: with all keys alike, and the value of position
 * p 1 at p and else 0. */
typedef struct probe {
    qn_device *dev;
    qn_blocks *blocks;
    qn_table table;
    qn_run *run;
    float zeros[MAX_POS * D], values[MAX_POS * D];
} probe;

/* A cache of limited size, or with `chunk` one of chunks. */
static void open_probe(probe *p, const char *device, uint32_t size, uint32_t chunk)
{
    qn_err err = {0};
    static qn_kv_layer layer = {.n_kv_heads = 1, .d_k = 16, .d_v = D};
    qn_kv_spec kv = {.n_groups = 1, .n_layers = 1, .layers = &layer};
    if (chunk) kv.groups[0] = (qn_kv_group){QN_KV_CHUNKED, chunk, 0};
    qn_kv_scheme s = {.max_size = size};
    uint32_t n_blocks[QN_MAX_KV_GROUPS] = {2 * MAX_POS / 16};
    *p = (probe){0};
    for (uint32_t i = 0; i < MAX_POS; i++) p->values[i * D + i] = 1;
    assert_int_equal(qn_kv_scheme_apply(&s, "/nowhere", &kv, &err), QN_OK);
    kv.block_tokens = 16;
    qn_device_opts o = {.name = device, .n_threads = 2};
    assert_int_equal(qn_device_open(&p->dev, &o, &err), QN_OK);
    assert_int_equal(qn_blocks_new(&p->blocks, p->dev, &kv, n_blocks, &err), QN_OK);
    assert_int_equal(qn_table_init(&p->table, p->blocks, MAX_POS, &err), QN_OK);
    qn_run_limits limits = {MAX_POS, 1, MAX_POS, MAX_POS, 1 << 20};
    assert_int_equal(p->dev->ops->run_new(p->dev, &limits, &p->run, &err), QN_OK);
}

static void close_probe(probe *p)
{
    p->dev->ops->run_free(p->run);
    qn_table_release(&p->table, p->blocks);
    qn_blocks_free(p->blocks);
    p->dev->ops->close(p->dev);
}

static qn_tensor rows_of(const float *x, uint32_t n, uint32_t cols)
{
    return (qn_tensor){(uintptr_t)x, QN_F32, n, cols, cols};
}

/* One pass over n tokens; seen [n]: bit p of a query's word, position p. */
static void pass(probe *p, uint32_t at, uint32_t n, uint32_t decode_from, uint64_t *seen)
{
    const qn_ops *ops = p->dev->ops;
    uint32_t pos[MAX_POS];
    for (uint32_t i = 0; i < n; i++) pos[i] = at + i;
    assert_true(qn_table_extend(&p->table, p->blocks, at, n));
    qn_item item = {.n_new = n, .n_past = at, .decode_from = decode_from};
    qn_table_view(&p->table, p->blocks, &item);
    qn_batch b = {.n_tokens = n, .n_items = 1, .pos = pos, .items = &item};
    ops->begin(p->run, &b, qn_blocks_kv(p->blocks));
    ops->kv_write(p->run, 0, rows_of(p->zeros, n, 16), rows_of(p->values + at * D, n, D));
    qn_attend a = {.n_heads = 1, .scale = 1};
    const float *y = ops->fetch(p->run, ops->attend(p->run, rows_of(p->zeros, n, 16), &a));
    for (uint32_t i = 0; i < n; i++) {
        seen[i] = 0;
        for (uint32_t k = 0; k < D; k++) seen[i] |= (uint64_t)(y[i * D + k] > 0) << k;
    }
    assert_int_equal(ops->end(p->run, NULL), QN_OK);
    qn_table_slide(&p->table, p->blocks, at + n);
}

/* What mlx-lm's query attends to. In a pass of several tokens it may lack some of the first ones, and
 * has as many older ones instead, just before its window: those are exchanged back. */
static uint64_t by_position(const json_t *set, uint32_t n_pass)
{
    uint64_t seen = 0;
    for (size_t i = 0; i < json_array_size(set); i++)
        seen |= UINT64_C(1) << json_integer_value(json_array_get(set, i));
    const uint64_t first = (1u << QN_KV_KEEP) - 1;
    if (n_pass == 1 || json_array_size(set) <= QN_KV_KEEP) return seen;
    for (uint64_t lacks = first & ~seen; lacks; lacks &= lacks - 1) {
        uint64_t others = seen & ~first;
        seen &= ~(others & -others);
    }
    return seen | first;
}

static void mlx_queries_see_the_same(void **state)
{
    (void)state;
    json_t *data = golden("maxkv.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(data, "sets"), i, c) {
        const uint32_t size = (uint32_t)json_integer_value(json_object_get(c, "size"));
        uint32_t chunks[MAX_CHUNKS], n = read_u32(json_object_get(c, "chunks"), chunks, MAX_CHUNKS);
        for (int device = 0; device < 2; device++) {
            static probe p;
            open_probe(&p, device ? "ref" : "cpu", size, 0);
            for (uint32_t k = 0, at = 0, singles = 0; k < n; at += chunks[k], k++) {
                uint64_t seen[MAX_POS];
                if (chunks[k] > 1) singles = 0;
                else if (!singles) singles = at ? at : 1;
                pass(&p, at, chunks[k], singles, seen);
                for (uint32_t q = 0; q < chunks[k]; q++) {
                    const json_t *set = json_array_get(json_object_get(c, "sets"), at + q);
                    if (seen[q] != by_position(set, chunks[k]))
                        fail_msg("%s, size %u: position %u sees %llx", p.dev->name, size, at + q,
                                 (unsigned long long)seen[q]);
                    assert_true(at + q < size || json_array_size(set) == size);
                }
            }
            close_probe(&p);
        }
    }
    json_decref(data);
}

/* Chunks are a matter of positions alone, so mlx-lm's sets are the rule as they are. Of a chunk that is
 * over no block is held. */
static void mlx_queries_see_their_chunk(void **state)
{
    (void)state;
    json_t *data = golden("chunked.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(data, "sets"), i, c) {
        const uint32_t chunk = (uint32_t)json_integer_value(json_object_get(c, "chunk"));
        uint32_t calls[MAX_CHUNKS], n = read_u32(json_object_get(c, "calls"), calls, MAX_CHUNKS);
        for (int device = 0; device < 2; device++) {
            static probe p;
            open_probe(&p, device ? "ref" : "cpu", 0, chunk);
            for (uint32_t k = 0, at = 0; k < n; at += calls[k], k++) {
                uint64_t seen[MAX_POS];
                pass(&p, at, calls[k], 0, seen);
                for (uint32_t q = 0; q < calls[k]; q++) {
                    const json_t *set = json_array_get(json_object_get(c, "sets"), at + q);
                    uint64_t want = 0;
                    for (size_t s = 0; s < json_array_size(set); s++)
                        want |= UINT64_C(1) << json_integer_value(json_array_get(set, s));
                    if (seen[q] != want)
                        fail_msg("%s, chunks of %u: position %u sees %llx, mlx-lm's %llx", p.dev->name,
                                 chunk, at + q, (unsigned long long)seen[q], (unsigned long long)want);
                }
                const uint32_t end = at + calls[k], start = end / chunk * chunk;
                assert_int_equal(p.table.n[0], (end + 15) / 16 - start / 16);
            }
            close_probe(&p);
        }
    }
    json_decref(data);
}

/* ---- generation ---- */

static qn_gen *submit_after(qn_engine *e, const qn_image *start, const uint32_t *ids,
                            uint32_t n_prompt, uint32_t n_reply)
{
    qn_err err = {0};
    qn_gen *g;
    qn_request q = {.prompt = ids, .n_prompt = n_prompt, .max_tokens = n_reply, .ignore_eos = true,
                    .start = start, .sampling = {.logprobs = true}};
    if (qn_engine_submit(e, &q, &g, &err)) fail_msg("%s", err.text);
    return g;
}

static qn_gen *submit(qn_engine *e, const uint32_t *ids, uint32_t n_prompt, uint32_t n_reply)
{
    return submit_after(e, NULL, ids, n_prompt, n_reply);
}

static void check_reply(const char *name, qn_gen *g, const json_t *c)
{
    qn_event ev;
    const json_t *tokens = json_object_get(c, "tokens"), *logprobs = json_object_get(c, "logprobs");
    size_t n = 0;
    do {
        assert_true(qn_gen_wait(g, &ev, 60000));
        if (ev.kind != QN_EV_TOKEN) continue;
        json_int_t want = json_integer_value(json_array_get(tokens, n));
        double lp = json_number_value(json_array_get(logprobs, n));
        if (ev.sample.token != want || ev.sample.logprob != (float)lp)
            fail_msg("%s: token %zu is %u with %.9g, mlx-lm has %lld with %.9g", name, n,
                     ev.sample.token, (double)ev.sample.logprob, (long long)want, lp);
        n++;
    } while (ev.kind != QN_EV_DONE);
    assert_int_equal(n, json_array_size(tokens));
    qn_gen_free(g);
}

/* Alone, and five at once in pools so small that rows are preempted. */
static void mlx_replies_through_the_engine(void **state)
{
    (void)state;
    enum { N = 5 };
    json_t *cases = all_cases(), *c;
    size_t i;
    uint64_t preemptions = 0;
    json_array_foreach(cases, i, c) {
        const char *name = json_string_value(json_object_get(c, "name"));
        uint32_t ids[MAX_POS], n = (uint32_t)json_integer_value(json_object_get(c, "n_prompt"));
        uint32_t n_reply = (uint32_t)json_array_size(json_object_get(c, "tokens"));
        read_u32(json_object_get(c, "ids"), ids, MAX_POS);
        qn_synth_model l;
        open_case(&l, c, "ref");
        qn_kv_spec kv = l.model->kv;
        kv.block_tokens = 16;
        uint64_t tight = 0;
        for (uint32_t g = 0; g < kv.n_groups; g++)
            tight += 8 * l.dev->ops->kv_block_bytes(l.dev, &kv, g);
        for (int busy = 0; busy < 2; busy++) {
            qn_err err = {0};
            qn_engine *e;
            qn_engine_opts o = {.max_rows = busy ? N : 1, .block_tokens = 16, .step_tokens = 7,
                                .mixed_tokens = 7, .max_positions = MAX_POS,
                                .kv_bytes = busy ? tight : 0};
            if (qn_engine_new(&e, l.model, &o, &err)) fail_msg("%s: %s", name, err.text);
            qn_gen *g[N];
            for (int k = 0; k < (busy ? N : 1); k++) g[k] = submit(e, ids, n, n_reply);
            for (int k = 0; k < (busy ? N : 1); k++) check_reply(name, g[k], c);
            qn_engine_stats stats;
            qn_engine_stats_get(e, &stats);
            preemptions += stats.preemptions;
            qn_engine_free(e);
        }
        close_case(&l);
    }
    assert_true(preemptions > 0);
    json_decref(cases);
}

/* ---- saved caches ---- */

/* What a prompt leaves: codes or floats, by the model's scheme and `coded`. */
static qn_image *image_of(qn_model *m, const uint32_t *ids, uint32_t n, bool coded)
{
    qn_err err = {0};
    qn_engine *e;
    qn_engine_opts o = {.max_rows = 1, .block_tokens = 16, .max_positions = MAX_POS};
    qn_image *img;
    qn_gen *g;
    qn_event ev;
    if (qn_engine_new(&e, m, &o, &err)) fail_msg("%s", err.text);
    assert_int_equal(qn_image_new(&img, &m->kv, n, coded, &err), QN_OK);
    qn_request q = {.prompt = ids, .n_prompt = n, .keep = img};
    if (qn_engine_submit(e, &q, &g, &err)) fail_msg("%s", err.text);
    do {
        assert_true(qn_gen_wait(g, &ev, 60000));
    } while (ev.kind != QN_EV_DONE);
    assert_int_equal(ev.finish, QN_FINISH_LENGTH);
    qn_gen_free(g);
    qn_engine_free(e);
    return img;
}

/* A model without quantization, whose caches hold floats. */
static qn_image *plain_image(const json_t *c, const uint32_t *ids, uint32_t n)
{
    qn_synth_model l;
    qn_err err = {0};
    qn_device_opts o = {.name = "ref", .n_threads = 2};
    if (qn_synth_open(&l, json_object_get(c, "recipe"), &o, &err)) fail_msg("%s", err.text);
    qn_image *img = image_of(l.model, ids, n, false);
    close_case(&l);
    return img;
}

/* Through a file, whose codecs must be those of the model's layers. */
static qn_image *through_file(qn_image *img, const qn_synth_model *l)
{
    char path[256];
    qn_err err = {0};
    qn_kv_codec codecs[MAX_CHUNKS];
    bool coded;
    const qn_kv_spec *kv = &l->model->kv;
    snprintf(path, sizeof path, "%s/cache.safetensors", l->dir);
    if (qn_mlx_cache_write(path, img, kv, "m", "{}", &err)) fail_msg("%s", err.text);
    assert_true(kv->n_layers <= MAX_CHUNKS);
    if (qn_mlx_cache_codecs(path, kv, codecs, &coded, &err)) fail_msg("%s", err.text);
    assert_int_equal(coded, img->coded);
    for (uint32_t i = 0; coded && i < kv->n_layers; i++) {
        if (!kv->layers[i].n_kv_heads) continue;
        assert_int_equal(codecs[i].form, kv->layers[i].k_codec.form);
        assert_int_equal(codecs[i].group, kv->layers[i].v_codec.group);
    }
    qn_image_free(img);
    if (qn_mlx_cache_read(path, kv, &img, &err)) fail_msg("%s", err.text);
    return img;
}

static void check_after(const char *name, qn_model *m, const qn_image *start, const uint32_t *ids,
                        uint32_t n, const json_t *want)
{
    qn_err err = {0};
    qn_engine *e;
    qn_engine_opts o = {.max_rows = 1, .block_tokens = 32, .step_tokens = 7, .mixed_tokens = 7,
                        .max_positions = MAX_POS};
    if (qn_engine_new(&e, m, &o, &err)) fail_msg("%s: %s", name, err.text);
    uint32_t n_reply = (uint32_t)json_array_size(json_object_get(want, "tokens"));
    check_reply(name, submit_after(e, start, ids, n, n_reply), want);
    qn_engine_free(e);
}

static void mlx_replies_after_saved_caches(void **state)
{
    (void)state;
    json_t *data = golden("kv.json"), *c;
    size_t i;
    uint32_t n_coded = 0;
    json_array_foreach(json_object_get(data, "cases"), i, c) {
        const char *name = json_string_value(json_object_get(c, "name"));
        uint32_t ids[MAX_POS], n = (uint32_t)json_integer_value(json_object_get(c, "n_prompt"));
        uint32_t n_cached = (uint32_t)json_integer_value(json_object_get(c, "n_cached"));
        read_u32(json_object_get(c, "ids"), ids, MAX_POS);
        qn_synth_model l;
        open_case(&l, c, "ref");
        bool coded = qn_image_is_coded(&l.model->kv, n_cached);
        n_coded += coded;
        qn_image *img = through_file(image_of(l.model, ids, n_cached, coded), &l);
        check_after(name, l.model, img, ids + n_cached, n - n_cached,
                    json_object_get(c, "after_cache"));
        qn_image_free(img);
        img = plain_image(c, ids, n_cached);
        check_after(name, l.model, img, ids + n_cached, n - n_cached,
                    json_object_get(c, "after_plain"));
        qn_image_free(img);
        close_case(&l);
    }
    assert_true(n_coded > 5 && n_coded < i);
    json_decref(data);
}

/* A quantized KV cache leaves codes, and takes codes only if it is quantized at their length. */
static void forms_of_saved_caches_are_checked(void **state)
{
    (void)state;
    static const uint32_t ids[] = {1, 2, 3, 4};
    json_t *data = golden("kv.json"), *c = json_array_get(json_object_get(data, "cases"), 0);
    qn_synth_model l;
    qn_engine *e;
    open_case(&l, c, "ref");
    qn_image *codes = image_of(l.model, ids, 4, true);
    for (int later = 0; later < 2; later++) {
        qn_err err = {0};
        qn_gen *g;
        qn_image *img;
        l.model->kv.quantized_start = later ? 5 : 0;
        qn_engine_opts o = {.max_rows = 1, .max_positions = MAX_POS};
        assert_int_equal(qn_engine_new(&e, l.model, &o, &err), QN_OK);
        assert_int_equal(qn_image_new(&img, &l.model->kv, 4, later, &err), QN_OK);
        qn_request keep = {.prompt = ids, .n_prompt = 4, .keep = img};
        assert_int_equal(qn_engine_submit(e, &keep, &g, &err), QN_INVALID);
        assert_non_null(strstr(err.text, later ? "codes" : "floats"));
        qn_err_clear(&err);
        qn_request start = {.prompt = ids, .n_prompt = 4, .max_tokens = 1, .start = codes};
        assert_int_equal(qn_engine_submit(e, &start, &g, &err), later ? QN_INVALID : QN_OK);
        if (!later) qn_gen_free(g);
        qn_image_free(img);
        qn_engine_free(e);
    }
    qn_image_free(codes);
    close_case(&l);
    json_decref(data);
}

/* ---- schemes ---- */

static void words_become_schemes(void **state)
{
    (void)state;
    static const struct { const char *text; bool config; uint32_t k, v; } good[] = {
        {"off", false, 0, 0},  {"config", true, 0, 0}, {"8", false, 8, 8},    {"4", false, 4, 4},
        {"k8v4", false, 8, 4}, {"k4v16", false, 4, 0}, {"k16v8", false, 0, 8}};
    qn_err err = {0};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        qn_kv_scheme s = {.config = true, .k_bits = 4, .v_bits = 4};
        assert_int_equal(qn_kv_scheme_parse(&s, good[i].text, &err), QN_OK);
        assert_int_equal(s.config, good[i].config);
        assert_int_equal(s.k_bits, good[i].k);
        assert_int_equal(s.v_bits, good[i].v);
    }
    static const char *const bad[] = {"", "2", "k8", "v4", "k8v", "kv8", "k8v4x", "k8v40", "on"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_kv_scheme s = {0};
        qn_err_clear(&err);
        assert_int_equal(qn_kv_scheme_parse(&s, bad[i], &err), QN_INVALID);
        assert_non_null(strstr(err.text, "k8v4"));
    }
    qn_kv_scheme s = {0};
    qn_err_clear(&err);
    assert_int_equal(qn_kv_scheme_parse(&s, "turbo:k8v3", &err), QN_UNSUPPORTED);
    assert_non_null(strstr(err.text, "turbo:k8v3"));
}

enum { N_LAYERS = 4 };

/* Layer 2 is recurrent; layer 3 has heads of 96. */
static qn_kv_spec spec_of(qn_kv_layer *layers)
{
    qn_kv_spec kv = {.n_groups = 1, .n_layers = N_LAYERS, .layers = layers};
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        qn_kv_codec c = {QN_KV_BF16, 0, QN_BF16};
        layers[i] = (qn_kv_layer){.n_kv_heads = 2, .d_k = i == 3 ? 96 : 128, .d_v = i == 3 ? 96 : 128,
                                  .k_codec = c, .v_codec = c};
    }
    layers[2] = (qn_kv_layer){.state = {.n_heads = 1, .d_v = 16, .d_k = 16}};
    return kv;
}

static void schemes_reach_the_layers(void **state)
{
    (void)state;
    qn_err err = {0};
    qn_kv_layer l[N_LAYERS];
    qn_kv_spec kv = spec_of(l);
    qn_kv_scheme s = {.k_bits = 8, .group = 32, .start = 7};
    assert_int_equal(qn_kv_scheme_apply(&s, "/nowhere", &kv, &err), QN_OK);
    assert_int_equal(l[0].k_codec.form, QN_KV_Q8);
    assert_int_equal(l[0].k_codec.group, 32);
    assert_int_equal(l[0].k_codec.scales, QN_BF16);
    assert_int_equal(l[0].v_codec.form, QN_KV_BF16);
    assert_int_equal(kv.quantized_start, 7);

    kv = spec_of(l);
    s = (qn_kv_scheme){.k_bits = 4, .v_bits = 4};
    assert_int_equal(qn_kv_scheme_apply(&s, "/nowhere", &kv, &err), QN_UNSUPPORTED);
    assert_non_null(strstr(err.text, "layer 3"));
    assert_non_null(strstr(err.text, "96"));

    kv = spec_of(l);
    qn_err_clear(&err);
    s = (qn_kv_scheme){.config = true};
    assert_int_equal(qn_kv_scheme_apply(&s, "/nowhere", &kv, &err), QN_OK);
    assert_int_equal(l[0].k_codec.form, QN_KV_BF16);
    s.config_required = true;
    assert_int_equal(qn_kv_scheme_apply(&s, "/nowhere", &kv, &err), QN_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nowhere/kv_config.json"));
}

/* Layers with a window keep theirs; there must be room for more than the first positions. */
static void sizes_reach_the_groups(void **state)
{
    (void)state;
    qn_err err = {0};
    qn_kv_layer l[N_LAYERS];
    qn_kv_spec kv = spec_of(l);
    kv.n_groups = 2;
    kv.groups[1] = (qn_kv_group){QN_KV_SLIDING, 512, 0};
    qn_kv_scheme s = {.k_bits = 8, .group = 32, .max_size = 100};
    assert_int_equal(qn_kv_scheme_apply(&s, "/nowhere", &kv, &err), QN_OK);
    assert_int_equal(kv.groups[0].rule, QN_KV_SLIDING);
    assert_int_equal(kv.groups[0].window, 96);
    assert_int_equal(kv.groups[0].keep, 4);
    assert_int_equal(kv.groups[1].window, 512);
    assert_int_equal(kv.groups[1].keep, 0);
    assert_int_equal(l[0].k_codec.form, QN_KV_Q8);
    kv = spec_of(l);
    s = (qn_kv_scheme){.max_size = 4};
    assert_int_equal(qn_kv_scheme_apply(&s, "/nowhere", &kv, &err), QN_INVALID);
    assert_non_null(strstr(err.text, "5 or more"));
    assert_int_equal(kv.groups[0].rule, QN_KV_FULL);
}

static void kv_configs_are_read(void **state)
{
    (void)state;
    qn_err err = {0};
    qn_kv_layer l[N_LAYERS];
    qn_kv_spec kv = spec_of(l);
    const char *good = "[{\"layer_idx\": 3, \"bits\": 8, \"group_size\": 32, \"note\": 1},"
                       " {\"layer_idx\": 0, \"bits\": 4}, {\"layer_idx\": 2, \"bits\": 4}]";
    assert_int_equal(qn_kv_config_apply(good, strlen(good), &kv, &err), QN_OK);
    assert_int_equal(l[3].k_codec.form, QN_KV_Q8);
    assert_int_equal(l[3].v_codec.group, 32);
    assert_int_equal(l[0].v_codec.form, QN_KV_Q4);
    assert_int_equal(l[0].k_codec.group, 64);
    assert_int_equal(l[1].k_codec.form, QN_KV_BF16);

    static const struct { const char *text, *names; qn_code code; } bad[] = {
        {"", "line 1", QN_FORMAT},
        {"{}", "array", QN_FORMAT},
        {"[3]", "layer_idx", QN_FORMAT},
        {"[{\"bits\": 4}]", "layer_idx", QN_FORMAT},
        {"[{\"layer_idx\": 0}]", "bits", QN_FORMAT},
        {"[{\"layer_idx\": \"0\", \"bits\": 4}]", "layer_idx", QN_FORMAT},
        {"[{\"layer_idx\": -1, \"bits\": 4}]", "layer_idx", QN_FORMAT},
        {"[{\"layer_idx\": 4, \"bits\": 4}]", "4 layers", QN_FORMAT},
        {"[{\"layer_idx\": 0, \"bits\": 3}]", "3 bits", QN_UNSUPPORTED},
        {"[{\"layer_idx\": 0, \"bits\": 4, \"group_size\": 48}]", "48", QN_FORMAT},
        {"[{\"layer_idx\": 3, \"bits\": 4, \"group_size\": 64}]", "96", QN_UNSUPPORTED},
        {"[{\"layer_idx\": 1, \"bits\": 4}, {\"layer_idx\": 1, \"bits\": 8}]", "twice", QN_FORMAT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kv = spec_of(l);
        qn_err_clear(&err);
        assert_int_equal(qn_kv_config_apply(bad[i].text, strlen(bad[i].text), &kv, &err),
                         bad[i].code);
        if (!strstr(err.text, bad[i].names)) fail_msg("\"%s\" lacks %s", err.text, bad[i].names);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlx_logits_at_its_chunks),
        cmocka_unit_test(logits_of_limited_caches),
        cmocka_unit_test(mlx_queries_see_the_same),
        cmocka_unit_test(mlx_queries_see_their_chunk),
        cmocka_unit_test(mlx_replies_through_the_engine),
        cmocka_unit_test(mlx_replies_after_saved_caches),
        cmocka_unit_test(forms_of_saved_caches_are_checked),
        cmocka_unit_test(sizes_reach_the_groups),
        cmocka_unit_test(words_become_schemes),
        cmocka_unit_test(schemes_reach_the_layers),
        cmocka_unit_test(kv_configs_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
