/* fake_model.c - the fake device and model. */
#include "fake_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

enum { GROUPS = 2 };

typedef struct fake_state {
    uint64_t hash; /* of the tokens so far */
    uint32_t n;    /* how many they are */
} fake_state;

struct qn_kv {
    qn_kv_spec spec;
    uint32_t n_blocks[GROUPS];
    fake_state *states;    /* [n_states] */
    uint32_t *ids[GROUPS]; /* [n_blocks * block_tokens] token id + 1; 0: never written */
};

typedef struct fake_run {
    qn_run base;
    float *logits; /* [max_out, n_vocab] */
    float *hidden; /* [max_out] */
} fake_run;

struct qn_fake {
    qn_model base;
    qn_device dev;
    qn_fake_opts o;
    _Atomic uint64_t steps;
    _Atomic uint32_t largest;
};

static qn_fake *fake_of(const qn_device *d)
{
    return (qn_fake *)(void *)((char *)(uintptr_t)d - offsetof(qn_fake, dev));
}

static size_t fake_block_bytes(const qn_device *d, const qn_kv_spec *spec, uint32_t group)
{
    (void)d;
    (void)group;
    return spec->block_tokens * sizeof(uint32_t);
}

static qn_code fake_kv_new(qn_device *d, const qn_kv_spec *spec, const uint32_t *n_blocks,
                           qn_kv **out, qn_err *err)
{
    (void)d;
    (void)err;
    qn_kv *kv = calloc(1, sizeof *kv);
    qn_check(kv && spec->n_groups <= GROUPS);
    kv->spec = *spec;
    for (uint32_t g = 0; g < kv->spec.n_groups; g++) {
        kv->n_blocks[g] = n_blocks[g];
        kv->ids[g] = calloc((size_t)n_blocks[g] * kv->spec.block_tokens, sizeof(uint32_t));
        qn_check(kv->ids[g]);
    }
    kv->states = calloc(kv->spec.n_states + 1u, sizeof *kv->states);
    qn_check(kv->states);
    for (uint32_t i = 0; i < kv->spec.n_states; i++) kv->states[i].n = UINT32_MAX; /* not cleared yet */
    *out = kv;
    return QN_OK;
}

static void fake_kv_free(qn_kv *kv)
{
    free(kv->states);
    for (uint32_t g = 0; g < kv->spec.n_groups; g++) free(kv->ids[g]);
    free(kv);
}

static void fake_kv_copy(qn_kv *kv, uint32_t group, uint32_t dst, uint32_t src)
{
    uint32_t *p = kv->ids[group], n = kv->spec.block_tokens;
    memcpy(p + (size_t)dst * n, p + (size_t)src * n, n * sizeof *p);
}

static void fake_state_clear(qn_kv *kv, uint32_t slot)
{
    qn_check(slot < kv->spec.n_states);
    kv->states[slot] = (fake_state){.hash = 1};
}

static void fake_state_copy(qn_kv *kv, uint32_t dst, uint32_t src)
{
    qn_check(dst < kv->spec.n_states && src < kv->spec.n_states);
    kv->states[dst] = kv->states[src];
}

static size_t fake_state_bytes(const qn_device *d, const qn_kv_spec *spec)
{
    (void)d;
    return spec->n_states ? sizeof(fake_state) : 0;
}

static qn_code fake_run_new(qn_device *d, const qn_run_limits *limits, qn_run **out, qn_err *err)
{
    (void)err;
    fake_run *r = calloc(1, sizeof *r);
    qn_check(r);
    r->base = (qn_run){.ops = d->ops, .dev = d};
    r->logits = calloc((size_t)limits->max_out * fake_of(d)->o.n_vocab, sizeof *r->logits);
    r->hidden = calloc(limits->max_out, sizeof *r->hidden);
    qn_check(r->logits && r->hidden);
    *out = &r->base;
    return QN_OK;
}

static qn_code fake_run_open(qn_run *r, qn_err *err)
{
    (void)r;
    (void)err;
    return QN_OK;
}

static void fake_run_bytes(const qn_run *r, size_t *all, size_t *used)
{
    (void)r;
    *all = *used = 0;
}

static void fake_run_free(qn_run *r)
{
    free(((fake_run *)r)->logits);
    free(((fake_run *)r)->hidden);
    free(r);
}

static void fake_begin(qn_run *r, const qn_batch *b, qn_kv *kv)
{
    r->batch = b;
    r->kv = kv;
}

static qn_code fake_end(qn_run *r, qn_err *err)
{
    const qn_fake *f = fake_of(r->dev);
    r->batch = NULL;
    if (!f->o.fail_step || f->steps != f->o.fail_step) return QN_OK;
    return qn_err_set(err, QN_DEVICE, "the fake device failed in step %u", f->o.fail_step);
}

static float *fake_fetch(qn_run *r, qn_tensor x)
{
    (void)r;
    return (float *)(uintptr_t)x.addr;
}

static uint64_t zero_bytes(const qn_device *d, uint64_t *resident)
{
    (void)d;
    if (resident) *resident = 0;
    return 0;
}

static size_t one_byte(const qn_device *d)
{
    (void)d;
    return 1;
}

static const qn_ops fake_ops = {
    .kv_block_bytes = fake_block_bytes,
    .kv_new = fake_kv_new,
    .kv_free = fake_kv_free,
    .kv_copy = fake_kv_copy,
    .state_clear = fake_state_clear,
    .state_copy = fake_state_copy,
    .state_bytes = fake_state_bytes,
    .run_new = fake_run_new,
    .run_open = fake_run_open,
    .run_free = fake_run_free,
    .run_bytes = fake_run_bytes,
    .begin = fake_begin,
    .end = fake_end,
    .fetch = fake_fetch,
    .weights_bytes = zero_bytes,
    .page_bytes = one_byte,
};

/* ---- the model ---- */

static uint32_t *cell(const qn_kv *kv, const qn_item *it, uint32_t g, uint32_t p)
{
    uint32_t i = p / kv->spec.block_tokens;
    uint32_t head = qn_kv_head_blocks(&kv->spec.groups[g], kv->spec.block_tokens);
    qn_check(qn_kv_entry_held(i, head, it->dropped[g]));
    uint32_t block = it->blocks[g][qn_kv_entry(i, head, it->dropped[g])];
    qn_check(block < kv->n_blocks[g]);
    return &kv->ids[g][(size_t)block * kv->spec.block_tokens + p % kv->spec.block_tokens];
}

static uint64_t mix(uint64_t h, uint32_t id)
{
    h = (h ^ id) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint32_t next_of(const qn_fake *f, uint64_t h, uint32_t n)
{
    if (!f->o.script) return (uint32_t)(h % f->o.n_vocab);
    uint32_t i = n - f->o.script_prompt;
    return f->o.script[i < f->o.n_script ? i : f->o.n_script - 1];
}

/* Does the window's group let position `last` see p? */
static bool in_window(const qn_fake *f, uint32_t p, uint32_t last)
{
    if (f->o.chunked) return p / f->o.window == last / f->o.window;
    return f->o.window && (p + f->o.window > last || p < f->o.keep);
}

static bool seen(const qn_fake *f, uint32_t p, uint32_t last)
{
    return !f->o.bounded || in_window(f, p, last);
}

uint32_t qn_fake_next(const qn_model *m, const uint32_t *history, uint32_t n)
{
    const qn_fake *f = (const qn_fake *)m;
    uint64_t h = 1;
    for (uint32_t i = 0; i < n; i++)
        if (seen(f, i, n - 1)) h = mix(h, history[i]);
    return next_of(f, h, n);
}

/* Hash of what position `last` sees in the first group; the window's group must agree where it
 * reaches. */
static uint64_t read_back(const qn_fake *f, const qn_kv *kv, const qn_item *it, uint32_t last)
{
    uint64_t h = 1;
    for (uint32_t p = 0; p <= last; p++) {
        if (!seen(f, p, last)) continue;
        uint32_t id = *cell(kv, it, 0, p);
        qn_check(id > 0);
        h = mix(h, id - 1);
        if (in_window(f, p, last)) qn_check(*cell(kv, it, kv->spec.n_groups - 1, p) == id);
    }
    return h;
}

/* What the caller's function says of positions 0..last. */
static uint32_t ask(const qn_fake *f, const qn_kv *kv, const qn_item *it, uint32_t last)
{
    uint32_t *history = malloc((last + 1) * sizeof *history);
    qn_check(history);
    for (uint32_t p = 0; p <= last; p++) history[p] = *cell(kv, it, 0, p) - 1;
    uint32_t next = f->o.next(f->o.user, history, last + 1);
    free(history);
    qn_check(next < f->o.n_vocab);
    return next;
}

/* Logits that peak at the token after position `last` of the item; at a given one so high that no
 * temperature gives another. */
static void fake_logits(const qn_fake *f, const qn_run *r, const qn_item *it, uint32_t last,
                        float *row)
{
    uint32_t next = f->o.next ? ask(f, r->kv, it, last)
                              : next_of(f, read_back(f, r->kv, it, last), last + 1);
    for (uint32_t v = 0; v < f->o.n_vocab; v++)
        row[v] = -4.0f - (float)((v * 2654435761u + next) % 97) / 97;
    row[next] = f->o.next ? 1000 : 4;
}

/* The tokens of an item pass through its state, which must be the one of their predecessors. */
static void step_state(const qn_fake *f, qn_kv *kv, const qn_batch *b, const qn_item *it)
{
    if (!f->o.recurrent) return;
    qn_check(it->state < kv->spec.n_states);
    fake_state *s = &kv->states[it->state];
    qn_check(s->n == it->n_past);
    for (uint32_t t = 0; t < it->n_new; t++) s->hash = mix(s->hash, b->ids[it->row0 + t]);
    s->n += it->n_new;
    qn_check(s->hash == read_back(f, kv, it, it->n_past + it->n_new - 1));
}

static qn_tensor fake_forward(qn_model *m, qn_run *r, qn_tensor *hidden)
{
    qn_fake *f = (qn_fake *)m;
    const qn_batch *b = r->batch;
    float *logits = ((fake_run *)r)->logits, *states = ((fake_run *)r)->hidden;
    uint32_t n_logits = b->n_out - b->n_hidden;
    *hidden = (qn_tensor){0};
    if (!b->n_items) return (qn_tensor){0}; /* the run measures */
    double end_ms = qn_now_ms() + f->o.step_us / 1000.0;
    f->steps++;
    if (b->n_tokens > f->largest) f->largest = b->n_tokens;
    for (uint32_t i = 0; i < b->n_items; i++) {
        const qn_item *it = &b->items[i];
        for (uint32_t t = 0; t < it->n_new; t++) {
            qn_check(b->pos[it->row0 + t] == it->n_past + t);
            for (uint32_t g = 0; g < r->kv->spec.n_groups; g++)
                *cell(r->kv, it, g, it->n_past + t) = b->ids[it->row0 + t] + 1;
        }
        step_state(f, r->kv, b, it);
        for (uint32_t out = 0; out < b->n_out; out++) {
            uint32_t t = b->out_rows[out] - it->row0;
            if (b->out_rows[out] < it->row0 || t >= it->n_new) continue;
            if (out < n_logits)
                fake_logits(f, r, it, it->n_past + t, logits + (size_t)out * f->o.n_vocab);
            else states[out - n_logits] = (float)(read_back(f, r->kv, it, it->n_past + t) % 65521);
        }
    }
    double rest_ms = end_ms - qn_now_ms(); /* what it takes itself is part of the step */
    if (f->o.step_us && rest_ms > 0) usleep((useconds_t)(rest_ms * 1000));
    *hidden = (qn_tensor){
        .addr = (uint64_t)(uintptr_t)states, .rows = b->n_hidden, .cols = 1, .ld = 1};
    return (qn_tensor){.addr = (uint64_t)(uintptr_t)logits,
                       .rows = n_logits,
                       .cols = f->o.n_vocab,
                       .ld = f->o.n_vocab};
}

static void fake_close(qn_model *m)
{
    free(m->kv.layers);
    free(m);
}

static const qn_model_ops fake_model_ops = {fake_forward, fake_close};

qn_model *qn_fake_model(const qn_fake_opts *o)
{
    qn_fake *f = calloc(1, sizeof *f);
    qn_check(f);
    if (o) f->o = *o;
    if (!f->o.n_vocab) f->o.n_vocab = QN_FAKE_VOCAB;
    f->dev = (qn_device){.ops = &fake_ops, .name = "fake"};
    f->base = (qn_model){.ops = &fake_model_ops, .dev = &f->dev};
    f->base.info = (qn_model_info){.model_type = "fake",
                                   .n_vocab = f->o.n_vocab,
                                   .n_layers = 1,
                                   .d_model = 1,
                                   .max_positions = f->o.max_positions ? f->o.max_positions : 4096};
    f->base.kv.n_groups = f->o.window && !f->o.bounded ? 2 : 1;
    f->base.kv.n_states = f->o.recurrent;
    if (f->o.window)
        f->base.kv.groups[!f->o.bounded] = (qn_kv_group){f->o.chunked ? QN_KV_CHUNKED : QN_KV_SLIDING,
                                                         f->o.window, f->o.keep};
    f->base.kv.n_layers = 1;
    f->base.kv.layers = calloc(1, sizeof(qn_kv_layer));
    qn_check(f->base.kv.layers);
    f->base.kv.layers[0] = (qn_kv_layer){.n_kv_heads = 1, .d_k = 1, .d_v = 1};
    return &f->base;
}

float qn_fake_hidden(const uint32_t *history, uint32_t n)
{
    uint64_t h = 1;
    for (uint32_t i = 0; i < n; i++) h = mix(h, history[i]);
    return (float)(h % 65521);
}

uint64_t qn_fake_steps(const qn_model *m)
{
    return ((const qn_fake *)m)->steps;
}

uint32_t qn_fake_largest(const qn_model *m)
{
    return ((const qn_fake *)m)->largest;
}
