/* gguf.c - the GGUF container; see gguf.h for the layout. */
#include "format/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/file.h"
#include "format/gguf_blocks.h"

typedef struct gguf_key {
    const char *name; /* in the arena, NUL terminated */
    qn_gguf_kind kind;
    const uint8_t *value; /* first byte behind the type; arrays: the first element */
    size_t n;             /* bytes of a string, elements of an array */
    qn_gguf_kind item;    /* kind of an array's elements */
} gguf_key;

struct qn_gguf {
    qn_arena arena;
    char *label;
    qn_map *maps; /* of the parts that this object opened itself */
    size_t n_maps;
    gguf_key *keys; /* sorted by name */
    size_t n_keys;
    qn_gguf_tensor *tensors; /* sorted by name */
    size_t n_tensors;
};

typedef struct cursor { /* a bounds-checked reader over one part */
    const uint8_t *data;
    size_t size, at;
    const char *label;
    qn_err *err;
} cursor;

static const uint8_t kind_bytes[QN_GGUF_N_KINDS] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static uint32_t load32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t load64(const uint8_t *p) { return load32(p) | (uint64_t)load32(p + 4) << 32; }

static qn_code cut_short(cursor *c, const char *what)
{
    return qn_err_set(c->err, QN_FORMAT, "%s: the file ends inside %s, at byte %zu of %zu",
                      c->label, what, c->at, c->size);
}

static qn_code take(cursor *c, size_t n, const char *what, const uint8_t **out)
{
    if (n > c->size - c->at) return cut_short(c, what);
    *out = c->data + c->at;
    c->at += n;
    return QN_OK;
}

static qn_code take_u32(cursor *c, const char *what, uint32_t *out)
{
    const uint8_t *p = NULL;
    qn_code rc = take(c, 4, what, &p);
    if (!rc) *out = load32(p);
    return rc;
}

static qn_code take_u64(cursor *c, const char *what, uint64_t *out)
{
    const uint8_t *p = NULL;
    qn_code rc = take(c, 8, what, &p);
    if (!rc) *out = load64(p);
    return rc;
}

static qn_code take_str(cursor *c, size_t max, const char *what, qn_gguf_str *out)
{
    uint64_t n = 0;
    qn_code rc = take_u64(c, what, &n);
    if (rc) return rc;
    if (n > max)
        return qn_err_set(c->err, QN_LIMIT, "%s: the length of %s is %llu bytes, the limit is %zu",
                          c->label, what, (unsigned long long)n, max);
    const uint8_t *p = NULL;
    if ((rc = take(c, (size_t)n, what, &p))) return rc;
    *out = (qn_gguf_str){(const char *)p, (size_t)n};
    return QN_OK;
}

/* A name becomes a C string, so it may not hold a NUL. */
static qn_code take_name(qn_gguf *g, cursor *c, const char *what, const char **out)
{
    qn_gguf_str s = {0};
    qn_code rc = take_str(c, QN_GGUF_MAX_NAME, what, &s);
    if (rc) return rc;
    if (s.n == 0 || memchr(s.p, 0, s.n))
        return qn_err_set(c->err, QN_FORMAT, "%s: %s is empty or holds a NUL byte", c->label, what);
    *out = qn_arena_dup(&g->arena, s.p, s.n);
    return *out ? QN_OK : qn_err_set(c->err, QN_NOMEM, "%s: out of memory for names", c->label);
}

static qn_code take_kind(cursor *c, const char *key, qn_gguf_kind *out)
{
    uint32_t kind = 0;
    qn_code rc = take_u32(c, "a value's type", &kind);
    if (rc) return rc;
    if (kind >= QN_GGUF_N_KINDS)
        return qn_err_set(c->err, QN_FORMAT, "%s: key %s has value type %u, types are 0 to %d",
                          c->label, key, kind, QN_GGUF_N_KINDS - 1);
    *out = (qn_gguf_kind)kind;
    return QN_OK;
}

static qn_code take_array(cursor *c, gguf_key *k)
{
    qn_code rc = take_kind(c, k->name, &k->item);
    if (rc) return rc;
    if (k->item == QN_GGUF_ARRAY)
        return qn_err_set(c->err, QN_FORMAT, "%s: key %s is an array of arrays, which GGUF readers "
                          "do not take", c->label, k->name);
    uint64_t n = 0;
    if ((rc = take_u64(c, "an array's length", &n))) return rc;
    if (n > QN_GGUF_MAX_ARRAY)
        return qn_err_set(c->err, QN_LIMIT, "%s: key %s has %llu elements, the limit is %d",
                          c->label, k->name, (unsigned long long)n, QN_GGUF_MAX_ARRAY);
    k->n = (size_t)n;
    k->value = c->data + c->at;
    if (k->item != QN_GGUF_STRING) return take(c, k->n * kind_bytes[k->item], k->name, &k->value);
    for (size_t i = 0; i < k->n; i++) {
        qn_gguf_str s = {0};
        if ((rc = take_str(c, QN_GGUF_MAX_STRING, k->name, &s))) return rc;
    }
    return QN_OK;
}

static qn_code take_key(qn_gguf *g, cursor *c, gguf_key *k)
{
    qn_code rc = take_name(g, c, "a key's name", &k->name);
    if (rc || (rc = take_kind(c, k->name, &k->kind))) return rc;
    if (k->kind == QN_GGUF_ARRAY) return take_array(c, k);
    if (k->kind != QN_GGUF_STRING) return take(c, kind_bytes[k->kind], k->name, &k->value);
    qn_gguf_str s = {0};
    if ((rc = take_str(c, QN_GGUF_MAX_STRING, k->name, &s))) return rc;
    k->value = (const uint8_t *)s.p;
    k->n = s.n;
    return QN_OK;
}

static qn_code take_dims(cursor *c, qn_gguf_tensor *t)
{
    qn_code rc = take_u32(c, t->name, &t->rank);
    if (rc) return rc;
    if (t->rank < 1 || t->rank > QN_GGUF_MAX_RANK)
        return qn_err_set(c->err, QN_FORMAT, "%s: tensor %s has rank %u, ranks are 1 to %d",
                          c->label, t->name, t->rank, QN_GGUF_MAX_RANK);
    t->n_elements = 1;
    for (uint32_t i = t->rank; i-- > 0;) {
        if ((rc = take_u64(c, t->name, &t->dims[i]))) return rc;
        if (t->dims[i] == 0 || __builtin_mul_overflow(t->n_elements, t->dims[i], &t->n_elements) ||
            t->n_elements > INT64_MAX)
            return qn_err_set(c->err, QN_FORMAT, "%s: tensor %s has a dimension of %llu, the shape "
                              "is empty or too large", c->label, t->name,
                              (unsigned long long)t->dims[i]);
    }
    return QN_OK;
}

/* Bytes of the tensor from its layout; types that we cannot size keep bytes 0 and are refused by
 * name when somebody wants them. */
static qn_code size_tensor(cursor *c, qn_gguf_tensor *t)
{
    const qn_gguf_layout *l = qn_gguf_layout_of(t->type);
    if (!l || !l->block_bytes) return QN_OK;
    uint64_t n_in = t->dims[t->rank - 1];
    if (n_in % l->block_items)
        return qn_err_set(c->err, QN_FORMAT, "%s: tensor %s has rows of %llu items, %s needs a "
                          "multiple of %u", c->label, t->name, (unsigned long long)n_in, l->name,
                          l->block_items);
    if (__builtin_mul_overflow(t->n_elements / l->block_items, (uint64_t)l->block_bytes, &t->bytes))
        return qn_err_set(c->err, QN_FORMAT, "%s: tensor %s is too large", c->label, t->name);
    return QN_OK;
}

static qn_code take_tensor(qn_gguf *g, cursor *c, qn_gguf_tensor *t, uint64_t *offset)
{
    qn_code rc = take_name(g, c, "a tensor's name", &t->name);
    if (rc || (rc = take_dims(c, t)) || (rc = take_u32(c, t->name, &t->type))) return rc;
    if ((rc = take_u64(c, t->name, offset))) return rc;
    return size_tensor(c, t);
}

static int key_order(const void *a, const void *b)
{
    return strcmp(((const gguf_key *)a)->name, ((const gguf_key *)b)->name);
}

static int tensor_order(const void *a, const void *b)
{
    return strcmp(((const qn_gguf_tensor *)a)->name, ((const qn_gguf_tensor *)b)->name);
}

static const gguf_key *find_key(const qn_gguf *g, const char *name)
{
    gguf_key want = {.name = name};
    return g->n_keys ? bsearch(&want, g->keys, g->n_keys, sizeof want, key_order) : NULL;
}

/* The keys of the first part are kept; those of the others only say how the file was split. */
static qn_code read_keys(qn_gguf *g, cursor *c, uint64_t n)
{
    if (n > QN_GGUF_MAX_KEYS)
        return qn_err_set(c->err, QN_LIMIT, "%s: %llu keys, the limit is %d", c->label,
                          (unsigned long long)n, QN_GGUF_MAX_KEYS);
    gguf_key *keys = qn_arena_take(&g->arena, (size_t)n + 1, sizeof *keys);
    if (!keys) return qn_err_set(c->err, QN_NOMEM, "%s: out of memory for keys", c->label);
    for (size_t i = 0; i < n; i++) {
        qn_code rc = take_key(g, c, &keys[i]);
        if (rc) return rc;
    }
    qsort(keys, (size_t)n, sizeof *keys, key_order);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(keys[i - 1].name, keys[i].name))
            return qn_err_set(c->err, QN_FORMAT, "%s: key %s appears twice", c->label,
                              keys[i].name);
    g->keys = keys;
    g->n_keys = (size_t)n;
    return QN_OK;
}

static qn_code place_tensor(cursor *c, qn_gguf_tensor *t, uint64_t offset, size_t data_at,
                            uint64_t align)
{
    if (!t->bytes) return QN_OK;
    size_t room = c->size - data_at;
    if (offset % align)
        return qn_err_set(c->err, QN_FORMAT, "%s: tensor %s starts at %llu, not a multiple of the "
                          "alignment %llu", c->label, t->name, (unsigned long long)offset,
                          (unsigned long long)align);
    if (offset > room || t->bytes > room - offset)
        return qn_err_set(c->err, QN_FORMAT, "%s: tensor %s takes bytes %llu to %llu of a data "
                          "section of %zu", c->label, t->name, (unsigned long long)offset,
                          (unsigned long long)(offset + t->bytes), room);
    t->data = c->data + data_at + offset;
    return QN_OK;
}

static qn_code read_table(qn_gguf *g, cursor *c, uint64_t n, uint64_t align)
{
    /* A record takes at least 33 bytes, so a lying count fails before memory is taken for it. */
    if (n > QN_GGUF_MAX_TENSORS || n > (c->size - c->at) / 33 || g->n_tensors > QN_GGUF_MAX_TENSORS)
        return qn_err_set(c->err, QN_LIMIT, "%s: %llu tensors, more than the file has room for or "
                          "over the limit of %d", c->label, (unsigned long long)n,
                          QN_GGUF_MAX_TENSORS);
    qn_gguf_tensor *all = realloc(g->tensors, (g->n_tensors + (size_t)n + 1) * sizeof *all);
    uint64_t *offsets = calloc((size_t)n + 1, sizeof *offsets);
    if (all) g->tensors = all;
    qn_code rc = QN_OK;
    if (!all || !offsets) rc = qn_err_set(c->err, QN_NOMEM, "%s: out of memory", c->label);
    qn_gguf_tensor *mine = all ? all + g->n_tensors : NULL;
    for (size_t i = 0; !rc && i < n; i++) {
        mine[i] = (qn_gguf_tensor){0};
        rc = take_tensor(g, c, &mine[i], &offsets[i]);
    }
    size_t pad = (size_t)((align - c->at % align) % align);
    size_t data_at = pad > c->size - c->at ? c->size : c->at + pad;
    for (size_t i = 0; !rc && i < n; i++)
        rc = place_tensor(c, &mine[i], offsets[i], data_at, align);
    if (!rc) g->n_tensors += (size_t)n;
    free(offsets);
    return rc;
}

static qn_code read_header(cursor *c, uint64_t *n_tensors, uint64_t *n_keys)
{
    const uint8_t *magic = NULL;
    if (c->size < 4 || memcmp(c->data, "GGUF", 4))
        return qn_err_set(c->err, QN_FORMAT, "%s: not a GGUF file, it does not start with \"GGUF\"",
                          c->label);
    uint32_t version = 0;
    qn_code rc = take(c, 4, "the magic", &magic);
    if (rc || (rc = take_u32(c, "the version", &version))) return rc;
    if (version == 0x02000000 || version == 0x03000000)
        return qn_err_set(c->err, QN_UNSUPPORTED, "%s: a big-endian GGUF file; convert it to "
                          "little-endian first", c->label);
    if (version != 2 && version != 3)
        return qn_err_set(c->err, QN_UNSUPPORTED, "%s: GGUF version %u, versions 2 and 3 are read",
                          c->label, version);
    if ((rc = take_u64(c, "the tensor count", n_tensors))) return rc;
    return take_u64(c, "the key count", n_keys);
}

/* Read one part: `is_first` keeps its keys in g. */
static qn_code read_part(qn_gguf *g, cursor *c, bool is_first)
{
    uint64_t n_tensors = 0, n_keys = 0, align = 32;
    qn_code rc = read_header(c, &n_tensors, &n_keys);
    if (rc) return rc;
    gguf_key *keys = g->keys;
    size_t kept = g->n_keys;
    if ((rc = read_keys(g, c, n_keys))) return rc;
    if ((rc = qn_gguf_u64_or(g, "general.alignment", 32, &align, c->err))) return rc;
    if (!is_first) {
        g->keys = keys;
        g->n_keys = kept;
    }
    if (align == 0 || align > 1 << 20 || (align & (align - 1)))
        return qn_err_set(c->err, QN_FORMAT, "%s: key general.alignment is %llu, it must be a "
                          "power of two up to 1048576", c->label, (unsigned long long)align);
    return read_table(g, c, n_tensors, align);
}

static qn_code finish(qn_gguf *g, qn_err *err)
{
    if (g->n_tensors) qsort(g->tensors, g->n_tensors, sizeof *g->tensors, tensor_order);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (!strcmp(g->tensors[i - 1].name, g->tensors[i].name))
            return qn_err_set(err, QN_FORMAT, "%s: tensor %s appears twice", g->label,
                              g->tensors[i].name);
    return QN_OK;
}

static qn_gguf *new_file(const char *label, size_t n_maps)
{
    qn_gguf *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->label = strdup(label);
    g->maps = calloc(n_maps + 1, sizeof *g->maps);
    if (g->label && g->maps) return g;
    qn_gguf_close(g);
    return NULL;
}

qn_code qn_gguf_parse(qn_gguf **out, const void *bytes, size_t size, const char *label,
                      qn_err *err)
{
    *out = NULL;
    qn_gguf *g = new_file(label, 0);
    if (!g) return qn_err_set(err, QN_NOMEM, "%s: out of memory", label);
    cursor c = {.data = bytes, .size = size, .label = label, .err = err};
    uint64_t n_parts = 1;
    qn_code rc = read_part(g, &c, true);
    if (!rc) rc = qn_gguf_u64_or(g, "split.count", 1, &n_parts, err);
    if (!rc && n_parts > 1)
        rc = qn_err_set(err, QN_UNSUPPORTED, "%s: one of %llu parts, which must be opened by path",
                        label, (unsigned long long)n_parts);
    if (!rc) rc = finish(g, err);
    if (rc) qn_gguf_close(g);
    else *out = g;
    return rc;
}

static qn_code open_part(qn_gguf *g, const char *path, bool is_first, qn_err *err)
{
    qn_map *m = &g->maps[g->n_maps];
    qn_code rc = qn_map_open(m, path, err);
    if (rc) return rc;
    g->n_maps++;
    cursor c = {.data = m->data, .size = m->size, .label = path, .err = err};
    return read_part(g, &c, is_first);
}

/* "BASE-00002-of-00005.gguf": true when `path` ends like part `of` files do, with the length of
 * BASE. */
static bool split_base(const char *path, uint64_t n_parts, size_t *base)
{
    size_t n = strlen(path), tail = strlen("-00001-of-00001.gguf");
    char want[32];
    snprintf(want, sizeof want, "-of-%05llu.gguf", (unsigned long long)n_parts);
    if (n <= tail || strcmp(path + n - strlen(want), want)) return false;
    *base = n - tail;
    return path[*base] == '-';
}

/* How many parts the file has, from whichever part the caller named. */
static qn_code count_parts(const char *path, uint64_t *n_parts, qn_err *err)
{
    qn_gguf *g = new_file(path, 1);
    if (!g) return qn_err_set(err, QN_NOMEM, "%s: out of memory", path);
    qn_code rc = open_part(g, path, true, err);
    if (!rc) rc = qn_gguf_u64_or(g, "split.count", 1, n_parts, err);
    if (!rc && *n_parts > QN_GGUF_MAX_PARTS)
        rc = qn_err_set(err, QN_LIMIT, "%s: split.count is %llu, the limit is %d", path,
                        (unsigned long long)*n_parts, QN_GGUF_MAX_PARTS);
    qn_gguf_close(g);
    return rc;
}

static qn_code open_split(qn_gguf *g, const char *path, uint64_t n_parts, qn_err *err)
{
    size_t base;
    if (!split_base(path, n_parts, &base))
        return qn_err_set(err, QN_FORMAT, "%s: one of %llu parts, but its name does not end in "
                          "-NNNNN-of-%05llu.gguf, so the others cannot be found", path,
                          (unsigned long long)n_parts, (unsigned long long)n_parts);
    for (uint64_t i = 1; i <= n_parts; i++) {
        char *part = qn_arena_printf(&g->arena, "%.*s-%05llu-of-%05llu.gguf", (int)base, path,
                                     (unsigned long long)i, (unsigned long long)n_parts);
        if (!part) return qn_err_set(err, QN_NOMEM, "%s: out of memory", path);
        qn_code rc = open_part(g, part, i == 1, err);
        if (rc) return qn_err_prefix(err, "part %llu of %llu", (unsigned long long)i,
                                     (unsigned long long)n_parts);
    }
    return QN_OK;
}

qn_code qn_gguf_open(qn_gguf **out, const char *path, qn_err *err)
{
    *out = NULL;
    uint64_t n_parts = 1;
    qn_code rc = count_parts(path, &n_parts, err);
    if (rc) return rc;
    qn_gguf *g = new_file(path, (size_t)n_parts + 1);
    if (!g) return qn_err_set(err, QN_NOMEM, "%s: out of memory", path);
    rc = n_parts > 1 ? open_split(g, path, n_parts, err) : open_part(g, path, true, err);
    if (!rc) rc = finish(g, err);
    if (rc) qn_gguf_close(g);
    else *out = g;
    return rc;
}

void qn_gguf_close(qn_gguf *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n_maps; i++) qn_map_close(&g->maps[i]);
    free(g->maps);
    free(g->tensors);
    free(g->label);
    qn_arena_release(&g->arena);
    free(g);
}

size_t qn_gguf_count(const qn_gguf *g) { return g->n_tensors; }

const qn_gguf_tensor *qn_gguf_at(const qn_gguf *g, size_t i) { return &g->tensors[i]; }

const qn_gguf_tensor *qn_gguf_find(const qn_gguf *g, const char *name)
{
    qn_gguf_tensor want = {.name = name};
    if (!g->n_tensors) return NULL;
    return bsearch(&want, g->tensors, g->n_tensors, sizeof want, tensor_order);
}

bool qn_gguf_has(const qn_gguf *g, const char *key) { return find_key(g, key) != NULL; }

static bool is_integer(qn_gguf_kind k)
{
    return k <= QN_GGUF_I32 || k == QN_GGUF_U64 || k == QN_GGUF_I64;
}

static int64_t load_integer(qn_gguf_kind kind, const uint8_t *p)
{
    switch (kind) {
    case QN_GGUF_U8: case QN_GGUF_BOOL: return p[0];
    case QN_GGUF_I8: return (int8_t)p[0];
    case QN_GGUF_U16: return (uint16_t)(p[0] | p[1] << 8);
    case QN_GGUF_I16: return (int16_t)(p[0] | p[1] << 8);
    case QN_GGUF_U32: return load32(p);
    case QN_GGUF_I32: return (int32_t)load32(p);
    case QN_GGUF_U64: case QN_GGUF_I64: return (int64_t)load64(p);
    default: return 0;
    }
}

static double load_number(qn_gguf_kind kind, const uint8_t *p)
{
    union { uint32_t u; float f; } v32;
    union { uint64_t u; double f; } v64;
    switch (kind) {
    case QN_GGUF_F32: v32.u = load32(p); return (double)v32.f;
    case QN_GGUF_F64: v64.u = load64(p); return v64.f;
    case QN_GGUF_U64: return (double)load64(p);
    default: return (double)load_integer(kind, p);
    }
}

static qn_code missing(const qn_gguf *g, const char *key, qn_err *err)
{
    return qn_err_set(err, QN_NOT_FOUND, "%s: key %s is missing", g->label, key);
}

static qn_code wrong_kind(const qn_gguf *g, const char *key, const char *right, qn_err *err)
{
    return qn_err_set(err, QN_FORMAT, "%s: key %s is not %s", g->label, key, right);
}

qn_code qn_gguf_u64(const qn_gguf *g, const char *key, uint64_t *out, qn_err *err)
{
    const gguf_key *k = find_key(g, key);
    if (!k) return missing(g, key, err);
    if (!is_integer(k->kind)) return wrong_kind(g, key, "an integer", err);
    int64_t v = load_integer(k->kind, k->value);
    if (v < 0 && k->kind != QN_GGUF_U64) return wrong_kind(g, key, "zero or positive", err);
    *out = (uint64_t)v;
    return QN_OK;
}

qn_code qn_gguf_f64(const qn_gguf *g, const char *key, double *out, qn_err *err)
{
    const gguf_key *k = find_key(g, key);
    if (!k) return missing(g, key, err);
    if (!is_integer(k->kind) && k->kind != QN_GGUF_F32 && k->kind != QN_GGUF_F64)
        return wrong_kind(g, key, "a number", err);
    *out = load_number(k->kind, k->value);
    return QN_OK;
}

qn_code qn_gguf_text(const qn_gguf *g, const char *key, qn_gguf_str *out, qn_err *err)
{
    const gguf_key *k = find_key(g, key);
    if (!k) return missing(g, key, err);
    if (k->kind != QN_GGUF_STRING) return wrong_kind(g, key, "a string", err);
    *out = (qn_gguf_str){(const char *)k->value, k->n};
    return QN_OK;
}

qn_code qn_gguf_list(const qn_gguf *g, const char *key, qn_gguf_array *out, qn_err *err)
{
    const gguf_key *k = find_key(g, key);
    if (!k) return missing(g, key, err);
    if (k->kind != QN_GGUF_ARRAY) return wrong_kind(g, key, "an array", err);
    *out = (qn_gguf_array){k->item, k->n, k->value};
    return QN_OK;
}

qn_code qn_gguf_u64_or(const qn_gguf *g, const char *key, uint64_t dflt, uint64_t *out,
                       qn_err *err)
{
    *out = dflt;
    return qn_gguf_has(g, key) ? qn_gguf_u64(g, key, out, err) : QN_OK;
}

qn_code qn_gguf_f64_or(const qn_gguf *g, const char *key, double dflt, double *out, qn_err *err)
{
    *out = dflt;
    return qn_gguf_has(g, key) ? qn_gguf_f64(g, key, out, err) : QN_OK;
}

qn_code qn_gguf_bool_or(const qn_gguf *g, const char *key, bool dflt, bool *out, qn_err *err)
{
    *out = dflt;
    const gguf_key *k = find_key(g, key);
    if (!k) return QN_OK;
    if (k->kind != QN_GGUF_BOOL) return wrong_kind(g, key, "a bool", err);
    *out = k->value[0] != 0;
    return QN_OK;
}

double qn_gguf_number(const qn_gguf_array *a, size_t i)
{
    return load_number(a->kind, a->raw + i * kind_bytes[a->kind]);
}

qn_code qn_gguf_strings(const qn_gguf_array *a, const char *key, qn_gguf_str *out, qn_err *err)
{
    if (a->kind != QN_GGUF_STRING)
        return qn_err_set(err, QN_FORMAT, "key %s is not an array of strings", key);
    const uint8_t *p = a->raw;
    for (size_t i = 0; i < a->n; i++) {
        size_t n = (size_t)load64(p);
        out[i] = (qn_gguf_str){(const char *)p + 8, n};
        p += 8 + n;
    }
    return QN_OK;
}
