/* cpu.c - the fast CPU device: opening it, the memory of a run, and the table of operations. */
#include "compute/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "compute/cpu/kernels.h"
#include "compute/cpu/kv_layout.h"
#include "core/memory.h"

enum {
    HUGE_PAGE = 2 << 20,
    PARALLEL_ELEMENTS = 32 << 10, /* smaller tensors stay on the calling thread */
    PART_ELEMENTS = 8 << 10       /* least elements of a part */
};

static size_t page_up(size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

void *qn_cpu_map(size_t bytes)
{
    const size_t want = page_up(bytes), spare = HUGE_PAGE;
    if (want < bytes || want > SIZE_MAX - spare) return NULL;
    uint8_t *p = mmap(NULL, want + spare, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    const size_t before = -(uintptr_t)p % HUGE_PAGE;
    if (before) munmap(p, before);
    p += before;
    if (spare > before) munmap(p + want, spare - before);
    (void)madvise(p, want, MADV_HUGEPAGE); /* a kernel without huge pages works as well */
    return p;
}

static size_t page_bytes(const qn_device *d)
{
    (void)d;
    return qn_memory_huge_pages() ? HUGE_PAGE : page_up(1);
}

void qn_cpu_unmap(void *p, size_t bytes)
{
    if (p) munmap(p, bytes);
}

/* ---- rows over the pool ---- */

typedef struct rows_job {
    qn_cpu_rows_fn fn;
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

void qn_cpu_parts(qn_cpu_run *r, qn_pool_fn fn, void *arg, uint32_t n_parts)
{
    if (!r->measures) qn_pool_run(r->cpu->pool, fn, arg, n_parts);
}

void qn_cpu_rows(qn_cpu_run *r, qn_cpu_rows_fn fn, const void *arg, uint32_t rows, uint32_t cols)
{
    if (r->measures) return;
    uint32_t threads = qn_pool_threads(r->cpu->pool);
    if (rows < 2 || threads < 2 || (size_t)rows * cols < PARALLEL_ELEMENTS) {
        if (rows) fn(arg, 0, rows);
        return;
    }
    rows_job j = {fn, arg, rows, rows / (4 * threads)};
    uint32_t least = PART_ELEMENTS / (cols ? cols : 1) + 1;
    if (j.per_part < least) j.per_part = least;
    qn_pool_run(r->cpu->pool, rows_part, &j, (rows + j.per_part - 1) / j.per_part);
}

/* ---- device ---- */

static uint32_t n_threads(const qn_device *d) { return qn_pool_threads(((const qn_cpu *)d)->pool); }

static void cpu_close(qn_device *d)
{
    if (!d) return;
    qn_cpu *c = (qn_cpu *)d;
    if (c->pool) qn_pool_free(c->pool);
    if (c->store) qn_cpu_store_free(c->store);
    qn_arena_release(&c->arena);
    free(c);
}

static qn_code upload(qn_device *d, const void *data, qn_dtype t, uint32_t rows, uint32_t cols,
                      qn_tensor *out, qn_err *err)
{
    size_t n, bytes;
    *out = (qn_tensor){0};
    uint8_t *p = NULL;
    if (!qn_mul_size(rows, cols, &n) && !qn_mul_size(n, sizeof(float), &bytes) &&
        !qn_add_size(bytes, 64, &bytes))
        p = qn_arena_take(&((qn_cpu *)d)->arena, bytes, 1);
    if (!p)
        return qn_err_set(err, QN_NOMEM, "out of memory for a tensor of %u x %u elements", rows,
                          cols);
    p += -(uintptr_t)p & 63;
    qn_widen((float *)(void *)p, data, t, n);
    *out = (qn_tensor){(uintptr_t)p, QN_F32, rows, cols, cols};
    return QN_OK;
}

/* ---- a run and its scratch ---- */

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

static void run_free(qn_run *r)
{
    if (!r) return;
    qn_cpu_run *c = (qn_cpu_run *)r;
    qn_cpu_unmap(c->memory, c->memory_bytes);
    free(c);
}

/* Bytes beside the scratch of tensors. */
static size_t beside(const qn_cpu_run *r)
{
    size_t n = n_threads(r->base.dev) * r->need.thread + r->need.partials;
    for (uint32_t i = 0; i < QN_CPU_ROPE_SLOTS; i++) n += r->need.ropes[i];
    return n;
}

static qn_code run_open(qn_run *base, qn_err *err)
{
    qn_cpu_run *r = (qn_cpu_run *)base;
    const size_t before = beside(r);
    if (qn_add_size(r->need.scratch, before, &r->memory_bytes) ||
        !(r->memory = qn_cpu_map(r->memory_bytes)))
        return qn_err_set(err, QN_NOMEM, "out of memory: scratch of %zu bytes", r->need.scratch);
    r->thread_scratch = r->memory;
    uint8_t *at = r->partials = r->memory + n_threads(base->dev) * r->need.thread;
    at += r->need.partials;
    for (uint32_t i = 0; i < QN_CPU_ROPE_SLOTS; i++, at += r->need.ropes[i - 1])
        r->ropes[i].table = (float *)(void *)at;
    r->scratch = r->memory + before;
    r->measures = false;
    r->used = r->peak = r->pinned = 0;
    return QN_OK;
}

/* What operations may need when nothing was measured. */
static qn_cpu_need most_needed(const qn_run_limits *l)
{
    qn_cpu_need n = {.scratch = align64(l->scratch_bytes), .thread = QN_CPU_THREAD_BYTES,
                     .partials = QN_CPU_PARTIAL_BYTES};
    for (uint32_t i = 0; i < QN_CPU_ROPE_SLOTS; i++)
        n.ropes[i] = align64((size_t)l->max_tokens * QN_CPU_MAX_HEAD * sizeof(float));
    return n;
}

static qn_code run_new(qn_device *d, const qn_run_limits *limits, qn_run **out, qn_err *err)
{
    *out = NULL;
    if (limits->scratch_bytes > SIZE_MAX / 2)
        return qn_err_set(err, QN_NOMEM, "out of memory: scratch of %zu bytes",
                          limits->scratch_bytes);
    qn_cpu_run *r = calloc(1, sizeof *r);
    if (!r) return qn_err_set(err, QN_NOMEM, "out of memory for a run");
    r->base.ops = d->ops;
    r->base.dev = d;
    r->cpu = (qn_cpu *)d;
    r->limits = *limits;
    r->measures = !limits->scratch_bytes;
    r->need = r->measures ? (qn_cpu_need){.thread = QN_MM_SCRATCH} : most_needed(limits);
    qn_code rc = r->measures ? QN_OK : run_open(&r->base, err);
    if (rc) run_free(&r->base);
    else *out = &r->base;
    return rc;
}

static void run_bytes(const qn_run *base, size_t *all, size_t *used)
{
    const qn_cpu_run *r = (const qn_cpu_run *)base;
    *all = beside(r) + r->need.scratch;
    *used = beside(r) - r->need.partials + r->partials_peak + r->peak;
}

void *qn_cpu_bytes(qn_cpu_run *r, size_t bytes)
{
    if (r->measures) {
        qn_check(bytes <= SIZE_MAX / 2 - r->used);
        r->used = align64(r->used + bytes);
        if (r->used > r->need.scratch) r->need.scratch = r->used;
        return (void *)(uintptr_t)QN_MEASURED;
    }
    qn_check(bytes <= r->need.scratch - r->used);
    void *p = r->scratch + r->used;
    r->used = align64(r->used + bytes);
    if (r->used > r->peak) r->peak = r->used;
    return p;
}

qn_tensor qn_cpu_take(qn_cpu_run *r, uint32_t rows, uint32_t cols)
{
    size_t n, bytes;
    qn_check(!qn_mul_size(rows, cols, &n) && !qn_mul_size(n, sizeof(float), &bytes));
    return (qn_tensor){(uintptr_t)qn_cpu_bytes(r, bytes), QN_F32, rows, cols, cols};
}

static void begin(qn_run *r, const qn_batch *b, qn_kv *kv)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    qn_check(b->n_tokens <= c->limits.max_tokens && b->n_items <= c->limits.max_items);
    qn_check(!c->measures || !b->n_items);
    r->batch = b;
    r->kv = kv;
    c->used = c->pinned = 0;
    c->next_rope = 0;
    for (uint32_t i = 0; i < QN_CPU_ROPE_SLOTS; i++) c->ropes[i].rope = NULL;
}

static qn_code end(qn_run *r, qn_err *err)
{
    (void)err; /* every operation is done when it returns */
    r->batch = NULL;
    r->kv = NULL;
    return QN_OK;
}

static size_t mark(qn_run *r) { return ((qn_cpu_run *)r)->used; }

static void reset(qn_run *r, size_t to)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    qn_check(to <= c->used);
    c->used = to > c->pinned ? to : c->pinned;
}

static qn_tensor out_rows(qn_run *r, qn_tensor x)
{
    const qn_batch *b = r->batch;
    qn_cpu_run *c = (qn_cpu_run *)r;
    qn_tensor y = qn_cpu_take(c, b->n_out, x.cols);
    for (uint32_t i = 0; i < b->n_out && !c->measures; i++) {
        qn_check(b->out_rows[i] < x.rows);
        memcpy(qn_cpu_row(y, i), qn_cpu_row(x, b->out_rows[i]), x.cols * sizeof(float));
    }
    return y;
}

static float *fetch(qn_run *r, qn_tensor x)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    if (x.ld != x.cols) {
        qn_tensor y = qn_cpu_take(c, x.rows, x.cols);
        for (uint32_t i = 0; i < x.rows && !c->measures; i++)
            memcpy(qn_cpu_row(y, i), qn_cpu_row(x, i), x.cols * sizeof(float));
        x = y;
    }
    c->pinned = c->used;
    return qn_cpu_row(x, 0);
}

static const qn_ops cpu_ops = {
    .load = qn_cpu_load,
    .upload = upload,
    .rope_new = qn_cpu_rope_new,
    .kv_block_bytes = qn_cpu_kv_block_bytes,
    .kv_new = qn_cpu_kv_new,
    .kv_free = qn_cpu_kv_free,
    .kv_copy = qn_cpu_kv_copy,
    .kv_read = qn_cpu_kv_read,
    .kv_store = qn_cpu_kv_store,
    .run_new = run_new,
    .run_open = run_open,
    .run_free = run_free,
    .run_bytes = run_bytes,
    .close = cpu_close,
    .n_threads = n_threads,
    .page_bytes = page_bytes,
    .weights_bytes = qn_cpu_weights_bytes,
    .weights_pin = qn_cpu_weights_pin,
    .begin = begin,
    .end = end,
    .mark = mark,
    .reset = reset,
    .embed = qn_cpu_embed,
    .out_rows = out_rows,
    .linear = qn_cpu_linear,
    .rms_norm = qn_cpu_rms_norm,
    .layer_norm = qn_cpu_layer_norm,
    .rope = qn_cpu_rope,
    .kv_write = qn_cpu_kv_write,
    .attend = qn_cpu_attend,
    .attend_latent = qn_cpu_attend_latent,
    .act = qn_cpu_act,
    .glu = qn_cpu_glu,
    .add = qn_cpu_add,
    .mul = qn_cpu_mul,
    .scale = qn_cpu_scale,
    .softcap = qn_cpu_softcap,
    .mul_rows = qn_cpu_mul_rows,
    .scale_by_pos = qn_cpu_scale_by_pos,
    .widen = qn_cpu_widen,
    .cast_like = qn_cpu_cast_like,
    .head_part = qn_cpu_head_part,
    .route = qn_cpu_route,
    .expert_linear = qn_cpu_expert_linear,
    .combine = qn_cpu_combine,
    .state_clear = qn_cpu_state_clear,
    .state_copy = qn_cpu_state_copy,
    .state_get = qn_cpu_state_get,
    .state_put = qn_cpu_state_put,
    .kv_get = qn_cpu_kv_get,
    .kv_put = qn_cpu_kv_put,
    .kv_get_codes = qn_cpu_kv_get_codes,
    .kv_put_codes = qn_cpu_kv_put_codes,
    .state_bytes = qn_cpu_state_bytes,
    .conv = qn_cpu_conv,
    .decay = qn_cpu_decay,
    .delta = qn_cpu_delta,
    .accumulate = qn_cpu_accumulate,
    .fetch = fetch,
};

qn_code qn_cpu_open(qn_device **out, const qn_device_opts *opts, qn_err *err)
{
    *out = NULL;
    const qn_cpu_kernels *k = qn_cpu_pick(opts->isa);
    if (!k)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "instruction set \"%s\" is unknown or not usable on this machine: choose "
                          "avx512, avx2 or portable", opts->isa ? opts->isa : "");
    qn_cpu *c = calloc(1, sizeof *c);
    if (!c) return qn_err_set(err, QN_NOMEM, "out of memory for the CPU device");
    c->base.ops = &cpu_ops;
    c->base.name = "cpu";
    c->k = k;
    c->act = opts->act == QN_ACT_DEFAULT ? QN_ACT_INT16 : opts->act;
    qn_code rc = qn_pool_new(&c->pool, opts->n_threads, err);
    if (rc) {
        cpu_close(&c->base);
        return rc;
    }
    *out = &c->base;
    return QN_OK;
}
