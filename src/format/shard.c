/* shard.c - one safetensors file: the header is parsed once into a table sorted by name.
 *
 * offset  size  meaning
 *      0     8  N, length of the header, little-endian
 *      8     N  JSON: {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, ..}
 *  8 + N        data; offsets count from here
 */
#include "format/shard.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/file.h"
#include "core/hash.h"
#include "format/shard_private.h"

enum {
    MAX_HEADER_BYTES = 100000000, /* the format's own limit, exclusive */
    MAX_HEADER_DEPTH = 8,         /* a valid header has 3 levels */
    MAX_NAME_SHOWN = 120,         /* bytes of a foreign name in an error */
};

struct qn_shard {
    qn_map map;          /* zeroed when the caller keeps the bytes */
    qn_arena arena;      /* label, names, table */
    const char *label;   /* the file's path, for errors */
    const uint8_t *data; /* behind the header */
    uint64_t data_bytes;
    qn_stored *tensors; /* sorted by name */
    size_t n_tensors;
    json_t *meta; /* __metadata__ or NULL */
    uint64_t header_hash;
};

static qn_code bad_tensor(const qn_shard *s, const char *name, const char *what, qn_err *err)
{
    return qn_err_set(err, QN_FORMAT, "%s: tensor \"%.*s\" %s", s->label, MAX_NAME_SHOWN, name,
                      what);
}

/* jansson's own limit is deep enough to eat a small thread's stack. */
static bool depth_is_fine(const char *p, size_t n)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (p[i] == '\\') i++;
            else if (p[i] == '"') in_string = false;
            continue;
        }
        if (p[i] == '"') in_string = true;
        else if (p[i] == '{' || p[i] == '[') depth++;
        else if (p[i] == '}' || p[i] == ']') depth--;
        if (depth > MAX_HEADER_DEPTH) return false;
    }
    return true;
}

static int read_u64(const json_t *v, uint64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0) return -1;
    *out = (uint64_t)json_integer_value(v);
    return 0;
}

static qn_code parse_dtype(const qn_shard *s, const json_t *entry, qn_stored *t, qn_err *err)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype) {
        return bad_tensor(s, t->name, "has no dtype; it must be a string like \"BF16\"", err);
    }
    if (!qn_dtype_parse(dtype, &t->dtype) && !strcmp(dtype, qn_dtype_name(t->dtype))) return QN_OK;
    return qn_err_set(err, QN_UNSUPPORTED,
                      "%s: tensor \"%.*s\" has dtype %.20s, which cannot be read; F32, F16, "
                      "BF16, integer types, BOOL, C64, F8_E4M3 and F8_E8M0 can",
                      s->label, MAX_NAME_SHOWN, t->name, dtype);
}

/* Fills rank, dims and bytes. */
static qn_code parse_shape(const qn_shard *s, const json_t *entry, qn_stored *t, qn_err *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) {
        return bad_tensor(s, t->name, "has no shape; it must be a list of sizes", err);
    }
    size_t rank = json_array_size(shape);
    if (rank > QN_MAX_RANK) return bad_tensor(s, t->name, "has more than 8 dimensions", err);
    t->rank = (uint32_t)rank;
    size_t bytes = qn_dtype_size(t->dtype);
    for (size_t i = 0; i < rank; i++) {
        if (read_u64(json_array_get(shape, i), &t->dims[i])) {
            return bad_tensor(s, t->name,
                              "has a size in its shape that is not a whole number from 0", err);
        }
        if (qn_mul_size(bytes, t->dims[i], &bytes)) {
            return bad_tensor(s, t->name, "has a shape whose size in bytes does not fit 64 bits",
                              err);
        }
    }
    t->bytes = bytes;
    return QN_OK;
}

static qn_code parse_offsets(const qn_shard *s, const json_t *entry, qn_stored *t, qn_err *err)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin, end;
    if (json_array_size(offsets) != 2 || read_u64(json_array_get(offsets, 0), &begin) ||
        read_u64(json_array_get(offsets, 1), &end) || begin > end) {
        return bad_tensor(s, t->name,
                          "has no valid data_offsets; they must be [begin, end] with begin <= end",
                          err);
    }
    if (end > s->data_bytes) {
        return qn_err_set(
            err, QN_FORMAT,
            "%s: tensor \"%.*s\" ends at byte %llu of the data, but the file has only "
            "%llu; the file is truncated, fetch it again",
            s->label, MAX_NAME_SHOWN, t->name, (unsigned long long)end,
            (unsigned long long)s->data_bytes);
    }
    if (end - begin != t->bytes) {
        return qn_err_set(
            err, QN_FORMAT,
            "%s: tensor \"%.*s\" has %llu bytes of data, but its shape and dtype need "
            "%llu",
            s->label, MAX_NAME_SHOWN, t->name, (unsigned long long)(end - begin),
            (unsigned long long)t->bytes);
    }
    t->data = s->data + begin;
    return QN_OK;
}

static qn_code parse_tensor(qn_shard *s, const char *name, const json_t *entry, qn_err *err)
{
    qn_stored *t = &s->tensors[s->n_tensors];
    t->name = qn_arena_dup(&s->arena, name, strlen(name));
    if (!t->name) return qn_err_set(err, QN_NOMEM, "%s: out of memory for the header", s->label);
    if (!json_is_object(entry)) {
        return bad_tensor(s, name, "is not described by a JSON object", err);
    }
    qn_code rc;
    if ((rc = parse_dtype(s, entry, t, err))) return rc;
    if ((rc = parse_shape(s, entry, t, err))) return rc;
    if ((rc = parse_offsets(s, entry, t, err))) return rc;
    s->n_tensors++;
    return QN_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const qn_stored *)a)->name, ((const qn_stored *)b)->name);
}

static int by_address(const void *a, const void *b)
{
    const qn_stored *x = *(const qn_stored *const *)a, *y = *(const qn_stored *const *)b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    return (p > q) - (p < q);
}

/* Two tensors that share bytes are a lie of the header. Empty tensors share nothing. */
static qn_code check_overlap(const qn_shard *s, qn_err *err)
{
    const qn_stored **order = malloc((s->n_tensors + 1) * sizeof *order);
    if (!order) return qn_err_set(err, QN_NOMEM, "%s: out of memory for the header", s->label);
    size_t n = 0;
    for (size_t i = 0; i < s->n_tensors; i++) {
        if (s->tensors[i].bytes) order[n++] = &s->tensors[i];
    }
    qsort(order, n, sizeof *order, by_address);
    qn_code rc = QN_OK;
    for (size_t i = 1; i < n && !rc; i++) {
        if ((const uint8_t *)order[i - 1]->data + order[i - 1]->bytes <=
            (const uint8_t *)order[i]->data) {
            continue;
        }
        rc = qn_err_set(err, QN_FORMAT, "%s: tensors \"%.*s\" and \"%.*s\" overlap in the file",
                        s->label, MAX_NAME_SHOWN, order[i - 1]->name, MAX_NAME_SHOWN,
                        order[i]->name);
    }
    free(order);
    return rc;
}

static qn_code build_table(qn_shard *s, json_t *header, qn_err *err)
{
    s->tensors = qn_arena_take(&s->arena, json_object_size(header) + 1, sizeof *s->tensors);
    if (!s->tensors) return qn_err_set(err, QN_NOMEM, "%s: out of memory for the header", s->label);
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry) {
        if (!strcmp(name, "__metadata__")) {
            if (json_is_object(entry)) s->meta = json_incref(entry);
            else if (!json_is_null(entry)) {
                return bad_tensor(s, name, "is not an object of strings", err);
            }
            continue;
        }
        qn_code rc = parse_tensor(s, name, entry, err);
        if (rc) return rc;
    }
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    return check_overlap(s, err);
}

/* Checks the lengths and splits bytes into header and data. */
static qn_code split_file(qn_shard *s, const uint8_t *bytes, size_t size, size_t *header_bytes,
                          qn_err *err)
{
    if (size < 8) {
        return qn_err_set(err, QN_FORMAT,
                          "%s: not a safetensors file: it has %zu bytes, the header's length alone "
                          "takes 8",
                          s->label, size);
    }
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | bytes[i];
    if (n == 0 || n >= MAX_HEADER_BYTES) {
        return qn_err_set(
            err, QN_FORMAT,
            "%s: not a safetensors file: it announces a header of %llu bytes, which must "
            "be from 1 to %d",
            s->label, (unsigned long long)n, MAX_HEADER_BYTES - 1);
    }
    if (n > size - 8) {
        return qn_err_set(
            err, QN_FORMAT,
            "%s: the header has %llu bytes, but only %zu follow; the file is truncated, "
            "fetch it again",
            s->label, (unsigned long long)n, size - 8);
    }
    *header_bytes = (size_t)n;
    s->data = bytes + 8 + n;
    s->data_bytes = size - 8 - n;
    return QN_OK;
}

static qn_code parse_bytes(qn_shard *s, const uint8_t *bytes, size_t size, qn_err *err)
{
    size_t n = 0;
    qn_code rc = split_file(s, bytes, size, &n, err);
    if (rc) return rc;
    const char *text = (const char *)bytes + 8;
    s->header_hash = qn_hash64(text, n, 0);
    if (!depth_is_fine(text, n)) {
        return qn_err_set(err, QN_FORMAT, "%s: the header is nested more than %d levels deep",
                          s->label, MAX_HEADER_DEPTH);
    }
    json_error_t why;
    json_t *header = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!header) {
        return qn_err_set(err, QN_FORMAT, "%s: the header is not valid JSON: %s", s->label,
                          why.text);
    }
    if (json_is_object(header)) rc = build_table(s, header, err);
    else rc = qn_err_set(err, QN_FORMAT, "%s: the header is not a JSON object", s->label);
    json_decref(header);
    return rc;
}

static qn_code new_shard(qn_shard **out, const char *label, qn_err *err)
{
    *out = NULL;
    qn_shard *s = calloc(1, sizeof *s);
    if (s) s->label = qn_arena_dup(&s->arena, label, strlen(label));
    if (!s || !s->label) {
        free(s);
        return qn_err_set(err, QN_NOMEM, "%s: out of memory", label);
    }
    *out = s;
    return QN_OK;
}

qn_code qn_shard_open(qn_shard **out, const char *path, qn_err *err)
{
    qn_code rc = new_shard(out, path, err);
    if (rc) return rc;
    qn_shard *s = *out;
    if ((rc = qn_map_open(&s->map, path, err))) goto fail;
    if ((rc = parse_bytes(s, s->map.data, s->map.size, err))) goto fail;
    return QN_OK;
fail:
    qn_shard_close(s);
    *out = NULL;
    return rc;
}

qn_code qn_shard_parse(qn_shard **out, const void *bytes, size_t size, const char *label,
                       qn_err *err)
{
    qn_code rc = new_shard(out, label, err);
    if (rc) return rc;
    if ((rc = parse_bytes(*out, bytes, size, err))) {
        qn_shard_close(*out);
        *out = NULL;
    }
    return rc;
}

void qn_shard_forget(const qn_shard *s)
{
    qn_map_forget(&s->map);
}

void qn_shard_close(qn_shard *s)
{
    if (!s) return;
    json_decref(s->meta);
    qn_arena_release(&s->arena);
    qn_map_close(&s->map);
    free(s);
}

size_t qn_shard_count(const qn_shard *s)
{
    return s->n_tensors;
}

const qn_stored *qn_shard_at(const qn_shard *s, size_t i)
{
    qn_check(i < s->n_tensors);
    return &s->tensors[i];
}

const qn_stored *qn_shard_find(const qn_shard *s, const char *name)
{
    qn_stored key = {.name = name};
    return bsearch(&key, s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
}

const char *qn_shard_meta(const qn_shard *s, const char *key)
{
    return json_string_value(json_object_get(s->meta, key));
}

uint64_t qn_shard_header_hash(const qn_shard *s)
{
    return s->header_hash;
}
