/* shards.c - the tensors of a model folder: all of its model*.safetensors files as one table. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/arena.h"
#include "core/file.h"
#include "core/hash.h"
#include "format/shard_private.h"

enum {
    MAX_FILES = 10000,
    MAX_INDEX_BYTES = 100000000,
};

struct qn_shards {
    qn_arena arena;     /* file names and tables */
    const char **files; /* names in the folder, sorted */
    qn_shard **shards;  /* one per file */
    size_t n_files, n_open;
    const qn_stored **tensors; /* sorted by name */
    size_t n_tensors;
    uint64_t bytes, fingerprint;
};

static qn_code join(char out[PATH_MAX], const char *dir, const char *file, qn_err *err)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", dir, file);
    if (n < 0 || n >= PATH_MAX) return qn_err_set(err, QN_LIMIT, "path too long: %s/%s", dir, file);
    return QN_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp((*(const qn_stored *const *)a)->name, (*(const qn_stored *const *)b)->name);
}

/* Appends a copy of `name` to s->files, which doubles; the arena keeps the old tables. */
static qn_code add_file(qn_shards *s, const char *dir, const char *name, size_t *cap, qn_err *err)
{
    if (s->n_files == MAX_FILES) {
        return qn_err_set(err, QN_LIMIT, "%s has more than %d model*.safetensors files", dir,
                          MAX_FILES);
    }
    if (s->n_files == *cap) {
        size_t grown = *cap ? 2 * *cap : 16;
        const char **table = qn_arena_take(&s->arena, grown, sizeof *table);
        if (!table) return qn_err_set(err, QN_NOMEM, "%s: out of memory", dir);
        if (s->n_files) memcpy(table, s->files, s->n_files * sizeof *table);
        s->files = table;
        *cap = grown;
    }
    const char *copy = qn_arena_dup(&s->arena, name, strlen(name));
    if (!copy) return qn_err_set(err, QN_NOMEM, "%s: out of memory", dir);
    s->files[s->n_files++] = copy;
    return QN_OK;
}

static qn_code list_files(qn_shards *s, const char *dir, qn_err *err)
{
    DIR *d = opendir(dir);
    if (!d) {
        return qn_err_set(err, errno == ENOENT ? QN_NOT_FOUND : QN_IO, "cannot open folder %s: %s",
                          dir, strerror(errno));
    }
    qn_code rc = QN_OK;
    size_t cap = 0;
    struct dirent *e;
    while (!rc && (e = readdir(d))) {
        if (!fnmatch("model*.safetensors", e->d_name, 0)) {
            rc = add_file(s, dir, e->d_name, &cap, err);
        }
    }
    closedir(d);
    if (rc) return rc;
    if (!s->n_files) {
        return qn_err_set(err, QN_NOT_FOUND,
                          "%s holds no model*.safetensors file; a model folder has at least one",
                          dir);
    }
    qsort(s->files, s->n_files, sizeof *s->files, by_text);
    return QN_OK;
}

/* An index that names a file that is not there means an incomplete download; it is said here,
 * because later the tensors would be missing one by one. */
static qn_code check_index_files(const char *dir, const json_t *index, qn_err *err)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(json_object_get(index, "weight_map"), tensor, value) {
        const char *file = json_string_value(value);
        if (!file || !*file || strchr(file, '/')) {
            return qn_err_set(
                err, QN_FORMAT,
                "%s/model.safetensors.index.json: weight_map entry \"%.120s\" is not the "
                "name of a file in this folder",
                dir, tensor);
        }
        char path[PATH_MAX];
        qn_code rc = join(path, dir, file, err);
        if (rc) return rc;
        if (!qn_is_file(path)) {
            return qn_err_set(
                err, QN_NOT_FOUND,
                "%s is named by model.safetensors.index.json but missing; the download "
                "is not complete",
                path);
        }
    }
    return QN_OK;
}

static qn_code check_index(const char *dir, qn_err *err)
{
    char path[PATH_MAX];
    qn_code rc = join(path, dir, "model.safetensors.index.json", err);
    if (rc || !qn_is_file(path)) return rc;
    char *text;
    size_t size;
    if ((rc = qn_file_read(path, MAX_INDEX_BYTES, &text, &size, err))) return rc;
    json_error_t why;
    json_t *index = json_loadb(text, size, 0, &why);
    free(text);
    if (!index) {
        return qn_err_set(err, QN_FORMAT, "%s: not valid JSON: line %d: %s", path, why.line,
                          why.text);
    }
    rc = check_index_files(dir, index, err);
    json_decref(index);
    return rc;
}

static uint64_t hash_file(const char *name, const char *path, const qn_shard *shard, uint64_t seed)
{
    struct stat st = {0};
    (void)stat(path, &st); /* it was just mapped; a race gives zeros, which no cache key equals */
    int64_t facts[3] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
    uint64_t header = qn_shard_header_hash(shard);
    seed = qn_hash64(name, strlen(name) + 1, seed);
    seed = qn_hash64(facts, sizeof facts, seed);
    return qn_hash64(&header, sizeof header, seed);
}

static qn_code open_files(qn_shards *s, const char *dir, qn_err *err)
{
    s->shards = qn_arena_take(&s->arena, s->n_files, sizeof *s->shards);
    if (!s->shards) return qn_err_set(err, QN_NOMEM, "%s: out of memory", dir);
    for (size_t i = 0; i < s->n_files; i++) {
        char path[PATH_MAX];
        qn_code rc = join(path, dir, s->files[i], err);
        if (!rc) rc = qn_shard_open(&s->shards[i], path, err);
        if (rc) return rc;
        s->n_open++;
        s->n_tensors += qn_shard_count(s->shards[i]);
        s->fingerprint = hash_file(s->files[i], path, s->shards[i], s->fingerprint);
    }
    return QN_OK;
}

static qn_code merge(qn_shards *s, const char *dir, qn_err *err)
{
    s->tensors = qn_arena_take(&s->arena, s->n_tensors + 1, sizeof *s->tensors);
    if (!s->tensors) return qn_err_set(err, QN_NOMEM, "%s: out of memory", dir);
    size_t n = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        for (size_t j = 0; j < qn_shard_count(s->shards[i]); j++) {
            s->tensors[n++] = qn_shard_at(s->shards[i], j);
        }
    }
    qsort(s->tensors, n, sizeof *s->tensors, by_tensor_name);
    for (size_t i = 0; i < n; i++) {
        s->bytes += s->tensors[i]->bytes;
        if (i && !strcmp(s->tensors[i - 1]->name, s->tensors[i]->name)) {
            return qn_err_set(err, QN_FORMAT,
                              "%s: tensor \"%.120s\" is in more than one model*.safetensors file",
                              dir, s->tensors[i]->name);
        }
    }
    return QN_OK;
}

qn_code qn_shards_open(qn_shards **out, const char *dir, qn_err *err)
{
    *out = NULL;
    qn_shards *s = calloc(1, sizeof *s);
    if (!s) return qn_err_set(err, QN_NOMEM, "%s: out of memory", dir);
    qn_code rc;
    if ((rc = list_files(s, dir, err))) goto fail;
    if ((rc = check_index(dir, err))) goto fail;
    if ((rc = open_files(s, dir, err))) goto fail;
    if ((rc = merge(s, dir, err))) goto fail;
    *out = s;
    return QN_OK;
fail:
    qn_shards_close(s);
    return rc;
}

void qn_shards_close(qn_shards *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_open; i++) qn_shard_close(s->shards[i]);
    qn_arena_release(&s->arena);
    free(s);
}

void qn_shards_forget(const qn_shards *s)
{
    for (size_t i = 0; i < s->n_open; i++) qn_shard_forget(s->shards[i]);
}

size_t qn_shards_count(const qn_shards *s)
{
    return s->n_tensors;
}

const qn_stored *qn_shards_at(const qn_shards *s, size_t i)
{
    qn_check(i < s->n_tensors);
    return s->tensors[i];
}

size_t qn_shards_index(const qn_shards *s, const char *name)
{
    qn_stored key = {.name = name};
    const qn_stored *want = &key;
    const qn_stored **hit =
        bsearch(&want, s->tensors, s->n_tensors, sizeof *s->tensors, by_tensor_name);
    return hit ? (size_t)(hit - s->tensors) : SIZE_MAX;
}

const qn_stored *qn_shards_find(const qn_shards *s, const char *name)
{
    size_t i = qn_shards_index(s, name);
    return i == SIZE_MAX ? NULL : s->tensors[i];
}

uint64_t qn_shards_bytes(const qn_shards *s)
{
    return s->bytes;
}

uint64_t qn_shards_fingerprint(const qn_shards *s)
{
    return s->fingerprint;
}
