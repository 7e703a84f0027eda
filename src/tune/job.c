/* job.c - writing the tensors of a job; see job.h. */
#include "tune/job.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 16 << 20,       /* dense tensors are made and written in pieces of this size */
    MAX_THREADS = 64,
    MIN_PIECE_ELEMENTS = 1 << 16, /* below this a thread costs more than it saves */
    MAX_JOB_ITEMS = 1 << 20
};

void qn_job_release(qn_job *job)
{
    free(job->items);
    qn_gguf_close(job->gguf);
    qn_folder_close(job->folder);
    json_decref(job->config);
    qn_arena_release(&job->arena);
    *job = (qn_job){0};
}

void qn_job_note(const qn_job *job, const char *fmt, ...)
{
    if (!job->opts->note) return;
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    job->opts->note(job->opts->ctx, line);
}

qn_item *qn_job_add(qn_job *job, const char *name)
{
    if (job->n_items == job->cap_items) {
        size_t cap = job->cap_items ? 2 * job->cap_items : 256;
        qn_item *items = cap > MAX_JOB_ITEMS ? NULL : realloc(job->items, cap * sizeof *items);
        if (!items) return NULL;
        job->items = items;
        job->cap_items = cap;
    }
    qn_item *it = &job->items[job->n_items];
    *it = (qn_item){0};
    it->name = qn_arena_dup(&job->arena, name, strlen(name));
    if (!it->name) return NULL;
    job->n_items++;
    return it;
}

size_t qn_item_rows(const qn_item *it)
{
    size_t n = 1;
    for (uint32_t i = 0; i + 1 < it->rank; i++) n *= it->dims[i];
    return n;
}

/* ---- the tensors of an item ---- */

typedef enum part_kind { PART_WEIGHT, PART_SCALES, PART_BIASES } part_kind;

typedef struct part { /* parallel to the writer's plan */
    size_t i_item;
    part_kind kind;
    uint64_t bytes;
} part;

typedef struct work { /* the state of one writing */
    qn_job *job;
    qn_plan_tensor *plan;
    part *parts;
    size_t n_parts;
    qn_shard_writer *writer;
    uint64_t done_bytes, total_bytes;
    size_t i_packed; /* item whose packed form is in `packed`; SIZE_MAX: none */
    qn_packed packed;
} work;

static qn_dtype scales_dtype(const qn_item *it)
{
    return it->spec.mode == QN_Q_AFFINE ? it->dtype : QN_U8;
}

static qn_dtype dense_dtype(const qn_item *it)
{
    return qn_rows_is_float(&it->rows) ? it->dtype : it->rows.dtype;
}

static qn_code add_part(work *w, size_t i_item, part_kind kind, const char *suffix, qn_err *err)
{
    const qn_item *it = &w->job->items[i_item];
    qn_plan_tensor *t = &w->plan[w->n_parts];
    t->name = qn_arena_printf(&w->job->arena, "%s%s", it->name, suffix);
    if (!t->name) return qn_err_set(err, QN_NOMEM, "convert: out of memory for names");
    t->rank = it->rank;
    memcpy(t->dims, it->dims, sizeof t->dims);
    uint64_t *last = it->rank ? &t->dims[it->rank - 1] : NULL;
    if (it->spec.mode == QN_Q_NONE) {
        t->dtype = dense_dtype(it);
    } else if (kind == PART_WEIGHT) {
        t->dtype = QN_U32;
        *last = *last * it->spec.bits / 32;
    } else {
        t->dtype = scales_dtype(it);
        *last /= it->spec.group_size;
    }
    uint64_t bytes = qn_dtype_size(t->dtype);
    for (uint32_t i = 0; i < t->rank; i++) bytes *= t->dims[i];
    w->parts[w->n_parts++] = (part){i_item, kind, bytes};
    w->total_bytes += bytes;
    return QN_OK;
}

static qn_code add_parts(work *w, size_t i_item, qn_err *err)
{
    const qn_item *it = &w->job->items[i_item];
    if (it->spec.mode == QN_Q_NONE)
        return add_part(w, i_item, PART_WEIGHT, it->is_module ? ".weight" : "", err);
    qn_code rc = add_part(w, i_item, PART_WEIGHT, ".weight", err);
    if (!rc) rc = add_part(w, i_item, PART_SCALES, ".scales", err);
    if (!rc && it->spec.mode == QN_Q_AFFINE) rc = add_part(w, i_item, PART_BIASES, ".biases", err);
    return rc;
}

/* ---- making rows on several threads ---- */

typedef struct slice { /* rows [r0, r1) for one thread */
    const qn_item *it;
    size_t r0, r1;
    uint8_t *dense;           /* dense items: room for these rows */
    const qn_packed *packed;  /* quantized items: the whole matrix */
    int failed;
} slice;

static void *run_slice(void *arg)
{
    slice *s = arg;
    const qn_item *it = s->it;
    if (it->spec.mode == QN_Q_NONE)
        s->failed = qn_rows_dense(&it->rows, s->r0, s->r1, it->dtype, s->dense);
    else
        s->failed = qn_rows_pack(&it->rows, s->r0, s->r1, &it->spec, it->dtype, it->keep,
                                 s->packed);
    return NULL;
}

static size_t thread_count(const qn_job *job, size_t n_rows, size_t n_in)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    size_t n = job->opts->n_threads ? job->opts->n_threads : (size_t)(online > 0 ? online : 1);
    if (n > MAX_THREADS) n = MAX_THREADS;
    size_t useful = n_rows * n_in / MIN_PIECE_ELEMENTS;
    if (n > useful) n = useful;
    if (n > n_rows) n = n_rows;
    return n ? n : 1;
}

/* Make rows [r0, r1) into `dense` or `packed`. Rows do not depend on each other, so the result does
 * not depend on how they are shared out. */
static qn_code make_rows(const qn_job *job, const qn_item *it, size_t r0, size_t r1, uint8_t *dense,
                         const qn_packed *packed, qn_err *err)
{
    size_t n = thread_count(job, r1 - r0, it->rows.n_in);
    size_t row_bytes = it->rows.n_in * qn_dtype_size(dense_dtype(it));
    slice slices[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    bool started[MAX_THREADS] = {false};
    int failed = 0;
    for (size_t i = 0; i < n; i++) {
        size_t a = r0 + (r1 - r0) * i / n, b = r0 + (r1 - r0) * (i + 1) / n;
        slices[i] = (slice){it, a, b, dense ? dense + (a - r0) * row_bytes : NULL, packed, 0};
        started[i] = i + 1 < n && !pthread_create(&threads[i], NULL, run_slice, &slices[i]);
        if (!started[i]) run_slice(&slices[i]);
    }
    for (size_t i = 0; i < n; i++) {
        if (started[i]) pthread_join(threads[i], NULL);
        failed |= slices[i].failed;
    }
    if (!failed) return QN_OK;
    return qn_err_set(err, QN_LIMIT, "tensor %s: a value does not fit into %s, or memory ran out; "
                      "--dtype float32 holds every value", it->name,
                      qn_dtype_config_name(it->dtype));
}

/* ---- writing ---- */

static qn_code put(work *w, const char *name, const void *data, size_t size, qn_err *err)
{
    const qn_convert_opts *o = w->job->opts;
    qn_code rc = qn_shard_writer_put(w->writer, data, size, err);
    if (rc) return rc;
    w->done_bytes += size;
    if (o->progress && !o->progress(o->ctx, w->done_bytes, w->total_bytes, name))
        return qn_err_set(err, QN_CANCELLED, "cancelled; nothing was written to %s", o->out_dir);
    return QN_OK;
}

static qn_code write_dense(work *w, const qn_item *it, qn_err *err)
{
    size_t row_bytes = it->rows.n_in * qn_dtype_size(dense_dtype(it)), n_rows = it->rows.n_rows;
    size_t step = row_bytes && row_bytes < PIECE_BYTES ? PIECE_BYTES / row_bytes : 1;
    if (step > n_rows) step = n_rows;
    uint8_t *buf = malloc(step * row_bytes + 1);
    if (!buf) return qn_err_set(err, QN_NOMEM, "tensor %s: out of memory", it->name);
    qn_code rc = QN_OK;
    for (size_t r = 0; !rc && r < n_rows; r += step) {
        size_t end = r + step < n_rows ? r + step : n_rows;
        rc = make_rows(w->job, it, r, end, buf, NULL, err);
        if (!rc) rc = put(w, it->name, buf, (end - r) * row_bytes, err);
    }
    free(buf);
    return rc;
}

static void drop_packed(work *w)
{
    free(w->packed.words);
    free(w->packed.scales);
    free(w->packed.biases);
    w->packed = (qn_packed){0};
    w->i_packed = SIZE_MAX;
}

/* The parts of a module follow each other in name order, so its packed form is made once. */
static qn_code pack_item(work *w, size_t i_item, qn_err *err)
{
    if (w->i_packed == i_item) return QN_OK;
    drop_packed(w);
    const qn_item *it = &w->job->items[i_item];
    size_t n = it->rows.n_rows, n_groups = it->rows.n_in / it->spec.group_size;
    size_t scale_bytes = n * n_groups * qn_dtype_size(scales_dtype(it));
    w->packed.words = malloc(n * qn_qrow_bytes(&it->spec, (uint32_t)it->rows.n_in));
    w->packed.scales = malloc(scale_bytes);
    bool has_biases = it->spec.mode == QN_Q_AFFINE;
    if (has_biases) w->packed.biases = malloc(scale_bytes);
    if (!w->packed.words || !w->packed.scales || (has_biases && !w->packed.biases))
        return qn_err_set(err, QN_NOMEM, "tensor %s: out of memory for %zu rows", it->name, n);
    w->i_packed = i_item;
    return make_rows(w->job, it, 0, n, NULL, &w->packed, err);
}

static qn_code write_part(work *w, const part *p, qn_err *err)
{
    const qn_item *it = &w->job->items[p->i_item];
    if (it->spec.mode == QN_Q_NONE) return write_dense(w, it, err);
    qn_code rc = pack_item(w, p->i_item, err);
    if (rc) return rc;
    const uint8_t *data = p->kind == PART_WEIGHT ? w->packed.words :
                          p->kind == PART_SCALES ? w->packed.scales : w->packed.biases;
    return put(w, it->name, data, p->bytes, err);
}

static void sum_up(const work *w, qn_convert_result *r)
{
    double quantized = 0, bits = 0;
    r->bytes = w->total_bytes;
    r->n_tensors = w->n_parts;
    for (size_t i = 0; i < w->job->n_items; i++) {
        const qn_item *it = &w->job->items[i];
        uint64_t n = it->rows.n_rows * it->rows.n_in;
        r->n_parameters += n;
        if (it->spec.mode == QN_Q_NONE) continue;
        r->n_quantized++;
        quantized += (double)n;
        bits += (double)n * it->spec.bits + (double)n / it->spec.group_size * 32;
    }
    if (r->n_parameters) r->bpw_total = 8.0 * (double)r->bytes / (double)r->n_parameters;
    if (quantized > 0) r->bpw_quantized = bits / quantized;
}

static qn_code write_all(work *w, const char *dir, qn_convert_result *r, qn_err *err)
{
    qn_job *job = w->job;
    qn_code rc = QN_OK;
    for (size_t i = 0; !rc && i < job->n_items; i++) rc = add_parts(w, i, err);
    if (rc) return rc;
    sum_up(w, r);
    rc = qn_shard_writer_new(&w->writer, dir, w->plan, w->n_parts, job->opts->shard_bytes,
                             r->n_parameters, err);
    if (rc) return rc;
    for (size_t i = 0; !rc && i < w->n_parts; i++)
        rc = write_part(w, &w->parts[qn_shard_writer_order(w->writer, i)], err);
    qn_code end = qn_shard_writer_close(w->writer, err);
    return rc ? rc : end;
}

qn_code qn_job_write_tensors(qn_job *job, const char *dir, qn_convert_result *result, qn_err *err)
{
    work w = {.job = job, .i_packed = SIZE_MAX};
    w.plan = calloc(3 * job->n_items + 1, sizeof *w.plan);
    w.parts = calloc(3 * job->n_items + 1, sizeof *w.parts);
    qn_code rc = w.plan && w.parts ? write_all(&w, dir, result, err)
                                   : qn_err_set(err, QN_NOMEM, "convert: out of memory");
    drop_packed(&w);
    free(w.plan);
    free(w.parts);
    return rc;
}
