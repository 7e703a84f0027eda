/* shard_writer.c - writing safetensors files whose contents are known by shape before they exist.
 *
 * Files are written under NAME.partial and renamed at the end, so that a crash leaves nothing that
 * looks like a model.
 */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/buf.h"
#include "core/file.h"
#include "format/shard.h"

static const uint64_t default_shard_bytes = 5ull << 30;
enum { WRITE_BUFFER_BYTES = 1 << 20 };

typedef struct planned {
    qn_plan_tensor tensor;
    uint64_t bytes;
    size_t i_plan; /* place in the caller's plan */
    size_t i_shard;
} planned;

struct qn_shard_writer {
    qn_arena arena;
    const char *dir;
    planned *tensors; /* in name order */
    size_t n_tensors, n_shards, n_created;
    uint64_t total_parameters;
    FILE *file; /* the open shard or NULL */
    char *file_buffer;
    size_t i_tensor;  /* the tensor that is being written */
    uint64_t written; /* bytes of it */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const planned *)a)->tensor.name, ((const planned *)b)->tensor.name);
}

static qn_code io_error(const char *what, const char *path, qn_err *err)
{
    return qn_err_set(err, QN_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

/* ---- the plan ---- */

static qn_code plan_tensor(qn_shard_writer *w, planned *p, const qn_plan_tensor *t, qn_err *err)
{
    if (t->rank > QN_MAX_RANK || !strcmp(t->name, "__metadata__")) {
        return qn_err_set(err, QN_INVALID, "tensor \"%.120s\" cannot be written: %s", t->name,
                          t->rank > QN_MAX_RANK ? "more than 8 dimensions"
                                                : "the name is reserved");
    }
    p->tensor = *t;
    p->tensor.name = qn_arena_dup(&w->arena, t->name, strlen(t->name));
    if (!p->tensor.name) return qn_err_set(err, QN_NOMEM, "%s: out of memory for the plan", w->dir);
    size_t bytes = qn_dtype_size(t->dtype);
    for (uint32_t i = 0; i < t->rank; i++) {
        if (qn_mul_size(bytes, t->dims[i], &bytes) || bytes > INT64_MAX) {
            return qn_err_set(err, QN_INVALID, "tensor \"%.120s\" is too large to be written",
                              t->name);
        }
    }
    p->bytes = bytes;
    return QN_OK;
}

/* Greedy: a tensor opens a new shard if it would take the current one over the limit; one that is
 * larger than the limit gets its own. */
static void assign_shards(qn_shard_writer *w, uint64_t limit)
{
    uint64_t used = 0;
    w->n_shards = 1;
    for (size_t i = 0; i < w->n_tensors; i++) {
        planned *p = &w->tensors[i];
        if (used && (p->bytes > limit || used > limit - p->bytes)) {
            w->n_shards++;
            used = 0;
        }
        p->i_shard = w->n_shards - 1;
        used += p->bytes;
    }
}

static qn_code make_plan(qn_shard_writer *w, const qn_plan_tensor *plan, size_t n, qn_err *err)
{
    w->tensors = qn_arena_take(&w->arena, n + 1, sizeof *w->tensors);
    if (!w->tensors) return qn_err_set(err, QN_NOMEM, "%s: out of memory for the plan", w->dir);
    for (size_t i = 0; i < n; i++) {
        qn_code rc = plan_tensor(w, &w->tensors[i], &plan[i], err);
        if (rc) return rc;
        w->tensors[i].i_plan = i;
    }
    w->n_tensors = n;
    qsort(w->tensors, n, sizeof *w->tensors, by_name);
    for (size_t i = 1; i < n; i++) {
        if (!by_name(&w->tensors[i - 1], &w->tensors[i])) {
            return qn_err_set(err, QN_INVALID, "tensor \"%.120s\" is planned twice",
                              w->tensors[i].tensor.name);
        }
    }
    return QN_OK;
}

/* ---- names and headers ---- */

static const char *shard_name(const qn_shard_writer *w, size_t i_shard, char out[64])
{
    if (w->n_shards == 1) return "model.safetensors";
    snprintf(out, 64, "model-%05zu-of-%05zu.safetensors", i_shard + 1, w->n_shards);
    return out;
}

static qn_code shard_path(const qn_shard_writer *w, size_t i_shard, const char *suffix,
                          char out[PATH_MAX], qn_err *err)
{
    char name[64];
    int n = snprintf(out, PATH_MAX, "%s/%s%s", w->dir, shard_name(w, i_shard, name), suffix);
    if (n < 0 || n >= PATH_MAX) return qn_err_set(err, QN_LIMIT, "path too long: %s", w->dir);
    return QN_OK;
}

static json_t *header_entry(const planned *p, uint64_t begin)
{
    json_t *shape = json_array();
    int bad = !shape;
    for (uint32_t i = 0; i < p->tensor.rank; i++) {
        bad |= json_array_append_new(shape, json_integer((json_int_t)p->tensor.dims[i]));
    }
    json_t *entry =
        json_pack("{s:s, s:o, s:[I, I]}", "dtype", qn_dtype_name(p->tensor.dtype), "shape", shape,
                  "data_offsets", (json_int_t)begin, (json_int_t)(begin + p->bytes));
    if (!bad) return entry;
    json_decref(entry);
    return NULL;
}

/* The JSON of a shard, padded with spaces to a multiple of 8; NULL without memory. */
static char *header_text(const qn_shard_writer *w, size_t first, size_t *size)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "mlx");
    int bad = !header;
    uint64_t at = 0;
    for (size_t i = first; i < w->n_tensors && w->tensors[i].i_shard == w->tensors[first].i_shard;
         i++) {
        bad |= json_object_set_new(header, w->tensors[i].tensor.name,
                                   header_entry(&w->tensors[i], at));
        at += w->tensors[i].bytes;
    }
    char *json = bad ? NULL : json_dumps(header, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(header);
    if (!json) return NULL;
    qn_buf text = {0};
    qn_buf_puts(&text, json);
    free(json);
    while (text.len % 8 && !text.failed) qn_buf_putc(&text, ' ');
    *size = text.len;
    return qn_buf_take(&text);
}

/* ---- files ---- */

/* Opens the shard that tensor `first` begins and writes its header. */
static qn_code open_shard(qn_shard_writer *w, size_t first, qn_err *err)
{
    size_t i_shard = w->n_tensors ? w->tensors[first].i_shard : 0, size;
    char path[PATH_MAX];
    qn_code rc = shard_path(w, i_shard, ".partial", path, err);
    if (rc) return rc;
    w->file = fopen(path, "wbe");
    if (!w->file) return io_error("create", path, err);
    w->n_created = i_shard + 1;
    setvbuf(w->file, w->file_buffer, _IOFBF, WRITE_BUFFER_BYTES);
    char *text = header_text(w, first, &size);
    if (!text) {
        return qn_err_set(err, QN_INVALID,
                          "%s: the header cannot be made: a name is not UTF-8 or memory is out",
                          path);
    }
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)size >> (8 * i));
    int bad = fwrite(length, 1, 8, w->file) != 8 || fwrite(text, 1, size, w->file) != size;
    free(text);
    return bad ? io_error("write", path, err) : QN_OK;
}

static qn_code close_shard(qn_shard_writer *w, qn_err *err)
{
    int bad = fflush(w->file) || fsync(fileno(w->file));
    int e = errno;
    if (fclose(w->file) && !bad) {
        bad = 1;
        e = errno;
    }
    w->file = NULL;
    if (!bad) return QN_OK;
    return qn_err_set(err, QN_IO, "cannot finish shard %zu of %zu in %s: %s", w->n_created,
                      w->n_shards, w->dir, strerror(e));
}

/* Moves over finished (and empty) tensors; closes and opens shards on the way. */
static qn_code advance(qn_shard_writer *w, qn_err *err)
{
    while (w->i_tensor < w->n_tensors && w->written == w->tensors[w->i_tensor].bytes) {
        size_t before = w->tensors[w->i_tensor++].i_shard;
        w->written = 0;
        if (w->i_tensor == w->n_tensors || w->tensors[w->i_tensor].i_shard == before) continue;
        qn_code rc = close_shard(w, err);
        if (!rc) rc = open_shard(w, w->i_tensor, err);
        if (rc) return rc;
    }
    return QN_OK;
}

static void free_writer(qn_shard_writer *w)
{
    if (w->file) fclose(w->file);
    for (size_t i = 0; i < w->n_created; i++) {
        char path[PATH_MAX];
        if (!shard_path(w, i, ".partial", path, NULL)) {
            unlink(path); /* renamed ones are gone already */
        }
    }
    free(w->file_buffer);
    qn_arena_release(&w->arena);
    free(w);
}

qn_code qn_shard_writer_new(qn_shard_writer **out, const char *dir, const qn_plan_tensor *plan,
                            size_t n, uint64_t shard_bytes, uint64_t total_parameters, qn_err *err)
{
    *out = NULL;
    qn_shard_writer *w = calloc(1, sizeof *w);
    if (!w) return qn_err_set(err, QN_NOMEM, "%s: out of memory", dir);
    qn_code rc = QN_OK;
    w->total_parameters = total_parameters;
    w->file_buffer = malloc(WRITE_BUFFER_BYTES);
    w->dir = qn_arena_dup(&w->arena, dir, strlen(dir));
    if (!w->file_buffer || !w->dir) rc = qn_err_set(err, QN_NOMEM, "%s: out of memory", dir);
    if (!rc) rc = make_plan(w, plan, n, err);
    if (rc) goto fail;
    assign_shards(w, shard_bytes ? shard_bytes : default_shard_bytes);
    if ((rc = open_shard(w, 0, err))) goto fail;
    if ((rc = advance(w, err))) goto fail;
    *out = w;
    return QN_OK;
fail:
    free_writer(w);
    return rc;
}

size_t qn_shard_writer_order(const qn_shard_writer *w, size_t i)
{
    qn_check(i < w->n_tensors);
    return w->tensors[i].i_plan;
}

qn_code qn_shard_writer_put(qn_shard_writer *w, const void *data, size_t size, qn_err *err)
{
    if (!size) return QN_OK;
    if (w->i_tensor == w->n_tensors) {
        return qn_err_set(err, QN_INVALID, "%s: %zu bytes more than all planned tensors have",
                          w->dir, size);
    }
    if (!w->file) return qn_err_set(err, QN_IO, "%s: a shard could not be opened", w->dir);
    const planned *p = &w->tensors[w->i_tensor];
    if (size > p->bytes - w->written) {
        return qn_err_set(
            err, QN_INVALID,
            "tensor \"%.120s\" was planned with %llu bytes; %llu are written and %zu more "
            "came",
            p->tensor.name, (unsigned long long)p->bytes, (unsigned long long)w->written, size);
    }
    if (fwrite(data, 1, size, w->file) != size) return io_error("write a shard in", w->dir, err);
    w->written += size;
    return advance(w, err);
}

/* ---- the end ---- */

static json_t *index_json(const qn_shard_writer *w)
{
    json_t *map = json_object();
    int bad = !map;
    uint64_t total = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        const planned *p = &w->tensors[i];
        char name[64];
        bad |=
            json_object_set_new(map, p->tensor.name, json_string(shard_name(w, p->i_shard, name)));
        total += p->bytes;
    }
    json_t *index =
        json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_size", (json_int_t)total,
                  "total_parameters", (json_int_t)w->total_parameters, "weight_map", map);
    if (!bad) return index;
    json_decref(index);
    return NULL;
}

static qn_code write_index(const qn_shard_writer *w, qn_err *err)
{
    json_t *index = index_json(w);
    char *text = index ? json_dumps(index, JSON_INDENT(4)) : NULL;
    json_decref(index);
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/model.safetensors.index.json", w->dir);
    qn_code rc = QN_OK;
    if (!text) rc = qn_err_set(err, QN_NOMEM, "%s: out of memory for the index", w->dir);
    else if (n < 0 || n >= PATH_MAX) rc = qn_err_set(err, QN_LIMIT, "path too long: %s", w->dir);
    else
        rc = qn_file_write(path, text, strlen(text),
                           err); /* also syncs the folder, and so the renames */
    free(text);
    return rc;
}

static qn_code publish(qn_shard_writer *w, qn_err *err)
{
    for (size_t i = 0; i < w->n_shards; i++) {
        char from[PATH_MAX], to[PATH_MAX];
        qn_code rc = shard_path(w, i, ".partial", from, err);
        if (!rc) rc = shard_path(w, i, "", to, err);
        if (rc) return rc;
        if (rename(from, to)) return io_error("rename to", to, err);
    }
    return write_index(w, err);
}

qn_code qn_shard_writer_close(qn_shard_writer *w, qn_err *err)
{
    if (!w) return QN_OK;
    qn_code rc = QN_OK;
    if (w->i_tensor < w->n_tensors) {
        const planned *p = &w->tensors[w->i_tensor];
        rc = qn_err_set(err, QN_INVALID, "tensor \"%.120s\" has only %llu of its %llu bytes",
                        p->tensor.name, (unsigned long long)w->written,
                        (unsigned long long)p->bytes);
    }
    if (!rc) {
        rc = w->file ? close_shard(w, err)
                     : qn_err_set(err, QN_IO, "%s: a shard could not be opened", w->dir);
    }
    if (!rc) rc = publish(w, err);
    free_writer(w);
    return rc;
}
