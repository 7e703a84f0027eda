/* ref.c - the reference device: opening it, the memory of a run, and the table of operations. */
#include "compute/ref/ref.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    PARALLEL_ELEMENTS = 16 << 10, /* smaller tensors stay on the calling thread */
    PART_ELEMENTS = 4 << 10,      /* least elements of a part */
    MIXED_PADS = 8 * 64           /* what a batch of logits and hidden states may lose to alignment,
                                     against as many results of one kind */
};

/* ---- rows over the pool ---- */

typedef struct rows_job {
    qn_ref_rows_fn fn;
    const void *arg;
    uint32_t rows, per_part;
} rows_job;

static void rows_part(void *arg, uint32_t part, uint32_t thread)
{
    (void)thread;
    const rows_job *j = arg;
    uint32_t r0 = part * j->per_part, left = j->rows - r0;
    j->fn(j->arg, r0, r0 + (left < j->per_part ? left : j->per_part));
}

void qn_ref_parts(qn_ref_run *r, qn_pool_fn fn, void *arg, uint32_t n_parts)
{
    if (!r->measures) qn_pool_run(r->ref->pool, fn, arg, n_parts);
}

void qn_ref_rows(qn_ref_run *r, qn_ref_rows_fn fn, const void *arg, uint32_t rows, uint32_t cols)
{
    if (r->measures) return;
    uint32_t threads = qn_pool_threads(r->ref->pool);
    if (rows < 2 || threads < 2 || (size_t)rows * cols < PARALLEL_ELEMENTS) {
        if (rows) fn(arg, 0, rows);
        return;
    }
    rows_job j = {fn, arg, rows, rows / (4 * threads)};
    uint32_t least = PART_ELEMENTS / (cols ? cols : 1) + 1;
    if (j.per_part < least) j.per_part = least;
    qn_pool_run(r->ref->pool, rows_part, &j, (rows + j.per_part - 1) / j.per_part);
}

/* ---- device ---- */

static uint32_t n_threads(const qn_device *d)
{
    return qn_pool_threads(((const qn_ref *)(const void *)d)->pool);
}

static size_t page_bytes(const qn_device *d)
{
    (void)d;
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void ref_close(qn_device *d)
{
    if (!d) return;
    qn_ref *ref = (qn_ref *)(void *)d;
    if (ref->pool) qn_pool_free(ref->pool);
    qn_arena_release(&ref->arena);
    free(ref);
}

/* ---- a run and its scratch ---- */

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

static void run_free(qn_run *r)
{
    if (!r) return;
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    if (c->memory) munmap(c->memory, c->memory_bytes);
    free(c);
}

/* Bytes beside the scratch of tensors. */
static size_t beside(const qn_ref_run *r)
{
    size_t n = n_threads(r->base.dev) * r->thread_bytes;
    for (uint32_t i = 0; i < QN_REF_ROPE_SLOTS; i++) n += r->rope_bytes[i];
    return n;
}

static qn_code run_open(qn_run *base, qn_err *err)
{
    qn_ref_run *r = (qn_ref_run *)(void *)base;
    const size_t before = beside(r);
    if (qn_add_size(r->scratch_bytes, before, &r->memory_bytes))
        return qn_err_set(err, QN_NOMEM, "scratch of %zu bytes is too large", r->scratch_bytes);
    void *p = mmap(NULL, r->memory_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return qn_err_set(err, QN_NOMEM, "out of memory: scratch of %zu bytes", r->memory_bytes);
    r->memory = r->thread_scratch = p;
    uint8_t *at = r->memory + n_threads(base->dev) * r->thread_bytes;
    for (uint32_t i = 0; i < QN_REF_ROPE_SLOTS; at += r->rope_bytes[i++])
        r->ropes[i].table = (float *)(void *)at;
    r->scratch = r->memory + before;
    r->measures = false;
    r->used = r->peak = r->pinned = 0;
    return QN_OK;
}

static qn_code run_new(qn_device *d, const qn_run_limits *limits, qn_run **out, qn_err *err)
{
    *out = NULL;
    if (limits->scratch_bytes > SIZE_MAX / 2)
        return qn_err_set(err, QN_NOMEM, "scratch of %zu bytes is too large",
                          limits->scratch_bytes);
    qn_ref_run *r = calloc(1, sizeof *r);
    if (!r) return qn_err_set(err, QN_NOMEM, "out of memory for a run");
    r->base.ops = d->ops;
    r->base.dev = d;
    r->ref = (qn_ref *)(void *)d;
    r->limits = *limits;
    r->measures = !limits->scratch_bytes;
    size_t scores = align64(((size_t)limits->max_positions + QN_REF_KEY_TILE) * sizeof(float));
    r->thread_bytes = QN_REF_MM_SCRATCH + 4 * align64(QN_REF_MAX_HEAD * sizeof(float)) + scores;
    r->scratch_bytes = align64(limits->scratch_bytes);
    for (uint32_t i = 0; i < QN_REF_ROPE_SLOTS && !r->measures; i++)
        r->rope_bytes[i] = align64((size_t)limits->max_tokens * QN_REF_MAX_HEAD * sizeof(float));
    qn_code rc = r->measures ? QN_OK : run_open(&r->base, err);
    if (rc) run_free(&r->base);
    else *out = &r->base;
    return rc;
}

static void run_bytes(const qn_run *base, size_t *all, size_t *used)
{
    const qn_ref_run *r = (const qn_ref_run *)(const void *)base;
    *all = beside(r) + r->scratch_bytes;
    *used = beside(r) + r->peak;
}

void *qn_ref_bytes(qn_ref_run *r, size_t bytes)
{
    if (r->measures) {
        qn_check(bytes <= SIZE_MAX / 2 - r->used);
        r->used = align64(r->used + bytes);
        if (r->used + MIXED_PADS > r->scratch_bytes) r->scratch_bytes = r->used + MIXED_PADS;
        return (void *)(uintptr_t)QN_MEASURED;
    }
    qn_check(bytes <= r->scratch_bytes - r->used);
    void *p = r->scratch + r->used;
    r->used = align64(r->used + bytes);
    if (r->used > r->peak) r->peak = r->used;
    return p;
}

qn_tensor qn_ref_take(qn_ref_run *r, uint32_t rows, uint32_t cols, qn_dtype t)
{
    size_t n, bytes;
    qn_check(!qn_mul_size(rows, cols, &n) && !qn_mul_size(n, sizeof(float), &bytes));
    return (qn_tensor){(uintptr_t)qn_ref_bytes(r, bytes), t, rows, cols, cols};
}

const float *qn_ref_vector(qn_ref_run *r, qn_tensor t, uint32_t cols)
{
    if (!t.addr) return NULL;
    qn_check(t.rows == 1 && t.cols == cols);
    if (t.dtype == QN_F32) return (const float *)(void *)qn_ref_at(t, 0, 0);
    float *v = qn_ref_bytes(r, cols * sizeof *v);
    if (!r->measures) r->ref->k->widen(v, qn_ref_at(t, 0, 0), t.dtype, cols);
    return v;
}

static void begin(qn_run *r, const qn_batch *b, qn_kv *kv)
{
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    qn_check(b->n_tokens <= c->limits.max_tokens && b->n_items <= c->limits.max_items);
    qn_check(!c->measures || !b->n_items);
    r->batch = b;
    r->kv = kv;
    c->used = c->pinned = 0;
    c->next_rope = 0;
    for (uint32_t i = 0; i < QN_REF_ROPE_SLOTS; i++) c->ropes[i].rope = NULL;
}

static qn_code end(qn_run *r, qn_err *err)
{
    (void)err; /* every operation is done when it returns */
    r->batch = NULL;
    r->kv = NULL;
    return QN_OK;
}

static size_t mark(qn_run *r) { return ((qn_ref_run *)(void *)r)->used; }

static void reset(qn_run *r, size_t to)
{
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    qn_check(to <= c->used);
    c->used = to > c->pinned ? to : c->pinned;
}

static qn_tensor out_rows(qn_run *r, qn_tensor x)
{
    const qn_batch *b = r->batch;
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    qn_tensor y = qn_ref_take(c, b->n_out, x.cols, x.dtype);
    for (uint32_t i = 0; i < b->n_out && !c->measures; i++) {
        qn_check(b->out_rows[i] < x.rows);
        memcpy(qn_ref_at(y, i, 0), qn_ref_at(x, b->out_rows[i], 0),
               x.cols * qn_dtype_size(x.dtype));
    }
    return y;
}

static float *fetch(qn_run *r, qn_tensor x)
{
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    if (x.dtype != QN_F32 || x.ld != x.cols) {
        qn_tensor y = qn_ref_take(c, x.rows, x.cols, QN_F32);
        for (uint32_t i = 0; i < x.rows && !c->measures; i++)
            c->ref->k->widen((float *)(void *)qn_ref_at(y, i, 0), qn_ref_at(x, i, 0), x.dtype,
                             x.cols);
        x = y;
    }
    c->pinned = c->used;
    return (float *)(void *)qn_ref_at(x, 0, 0);
}

static const qn_ops ref_ops = {
    .load = qn_ref_load,
    .upload = qn_ref_upload,
    .rope_new = qn_ref_rope_new,
    .kv_block_bytes = qn_ref_kv_block_bytes,
    .kv_new = qn_ref_kv_new,
    .kv_free = qn_ref_kv_free,
    .kv_copy = qn_ref_kv_copy,
    .kv_read = qn_ref_kv_read,
    .kv_store = qn_ref_kv_store,
    .run_new = run_new,
    .run_open = run_open,
    .run_free = run_free,
    .run_bytes = run_bytes,
    .close = ref_close,
    .n_threads = n_threads,
    .page_bytes = page_bytes,
    .weights_bytes = qn_ref_weights_bytes,
    .weights_pin = qn_ref_weights_pin,
    .begin = begin,
    .end = end,
    .mark = mark,
    .reset = reset,
    .embed = qn_ref_embed,
    .out_rows = out_rows,
    .linear = qn_ref_linear,
    .rms_norm = qn_ref_rms_norm,
    .layer_norm = qn_ref_layer_norm,
    .rope = qn_ref_rope,
    .kv_write = qn_ref_kv_write,
    .attend = qn_ref_attend,
    .attend_latent = qn_ref_attend_latent,
    .act = qn_ref_act,
    .glu = qn_ref_glu,
    .add = qn_ref_add,
    .mul = qn_ref_mul,
    .scale = qn_ref_scale,
    .softcap = qn_ref_softcap,
    .mul_rows = qn_ref_mul_rows,
    .scale_by_pos = qn_ref_scale_by_pos,
    .widen = qn_ref_widen,
    .cast_like = qn_ref_cast_like,
    .head_part = qn_ref_head_part,
    .route = qn_ref_route,
    .expert_linear = qn_ref_expert_linear,
    .combine = qn_ref_combine,
    .state_clear = qn_ref_state_clear,
    .state_copy = qn_ref_state_copy,
    .state_get = qn_ref_state_get,
    .state_put = qn_ref_state_put,
    .kv_get = qn_ref_kv_get,
    .kv_put = qn_ref_kv_put,
    .kv_get_codes = qn_ref_kv_get_codes,
    .kv_put_codes = qn_ref_kv_put_codes,
    .state_bytes = qn_ref_state_bytes,
    .conv = qn_ref_conv,
    .decay = qn_ref_decay,
    .delta = qn_ref_delta,
    .accumulate = qn_ref_accumulate,
    .fetch = fetch,
};

const char *qn_ref_isa(const qn_device *d) { return ((const qn_ref *)(const void *)d)->k->name; }

qn_code qn_ref_open(qn_device **out, const qn_device_opts *opts, qn_err *err)
{
    *out = NULL;
    const qn_ref_kernels *k = qn_ref_pick(opts->isa);
    if (!k)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "instruction set \"%s\" is unknown or not usable on this machine: choose "
                          "avx512, avx2 or portable",
                          opts->isa ? opts->isa : "");
    qn_ref *ref = calloc(1, sizeof *ref);
    if (!ref) return qn_err_set(err, QN_NOMEM, "out of memory for the reference device");
    ref->base.ops = &ref_ops;
    ref->base.name = "ref";
    ref->base.exact = true;
    ref->k = k;
    ref->table_type = QN_F32;
    qn_code rc = qn_pool_new(&ref->pool, opts->n_threads, err);
    if (rc) {
        ref_close(&ref->base);
        return rc;
    }
    *out = &ref->base;
    return QN_OK;
}
