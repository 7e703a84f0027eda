/* gguf.h - reading GGUF files: typed keys and the tensor table.
 *
 * Versions 2 and 3, little-endian. Nothing is copied but names: strings, arrays and tensor data
 * point into the mapping, at any alignment, and stay valid until qn_gguf_close. A split file
 * (split.count > 1) is opened by the path of any of its parts; keys come from the first part,
 * tensors from all of them. Every count, length and offset is checked against the limits below and
 * the file's size. What the blocks of a tensor mean is in gguf_blocks.h.
 *
 *   file    "GGUF", u32 version, u64 n_tensors, u64 n_keys, keys, tensor table, padding, data
 *   key     string name, u32 type, value          string: u64 length, bytes
 *   tensor  string name, u32 rank, u64 dims[rank] innermost first, u32 type, u64 offset in data
 *   data    starts at the next multiple of general.alignment (default 32)
 *
 * Threads: open and close from one thread; reads from any thread after that.
 */
#ifndef QN_FORMAT_GGUF_H
#define QN_FORMAT_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

enum {
    QN_GGUF_MAX_KEYS = 1 << 16,
    QN_GGUF_MAX_TENSORS = 1 << 20,
    QN_GGUF_MAX_NAME = 1 << 12,   /* bytes of a key's or tensor's name */
    QN_GGUF_MAX_STRING = 1 << 28, /* bytes of a string value */
    QN_GGUF_MAX_ARRAY = 1 << 28,  /* elements of an array */
    QN_GGUF_MAX_RANK = 4,
    QN_GGUF_MAX_PARTS = 4096
};

typedef enum qn_gguf_kind { /* value types, the file's numbers */
    QN_GGUF_U8 = 0, QN_GGUF_I8, QN_GGUF_U16, QN_GGUF_I16, QN_GGUF_U32, QN_GGUF_I32, QN_GGUF_F32,
    QN_GGUF_BOOL, QN_GGUF_STRING, QN_GGUF_ARRAY, QN_GGUF_U64, QN_GGUF_I64, QN_GGUF_F64,
    QN_GGUF_N_KINDS
} qn_gguf_kind;

typedef struct qn_gguf_str { /* text in the mapping, not NUL terminated */
    const char *p;
    size_t n; /* bytes */
} qn_gguf_str;

typedef struct qn_gguf_array {
    qn_gguf_kind kind;  /* of the elements */
    size_t n;           /* elements */
    const uint8_t *raw; /* the elements as stored */
} qn_gguf_array;

typedef struct qn_gguf_tensor {
    const char *name;                /* NUL terminated, owned by the file */
    uint32_t type;                   /* the file's number, see gguf_blocks.h */
    uint32_t rank;                   /* 1 to 4 */
    uint64_t dims[QN_GGUF_MAX_RANK]; /* outermost first */
    uint64_t n_elements;             /* product of dims, checked */
    uint64_t bytes;                  /* bytes of the data; 0 for a type that is not known */
    const uint8_t *data;             /* in the mapping; NULL for a type that is not known */
} qn_gguf_tensor;

typedef struct qn_gguf qn_gguf;

/* Map a file (and the other parts of a split one) and index it. On failure *out is NULL and nothing
 * stays open. Errors: QN_IO, QN_NOT_FOUND (names the missing part), QN_FORMAT (names the key or
 * tensor), QN_UNSUPPORTED (version, byte order), QN_LIMIT, QN_NOMEM. */
qn_code qn_gguf_open(qn_gguf **out, const char *path, qn_err *err);

/* The same over one part in memory that the caller keeps until close; for tests and fuzzing.
 * Errors: as above, and QN_UNSUPPORTED for a split file. */
qn_code qn_gguf_parse(qn_gguf **out, const void *bytes, size_t size, const char *label,
                      qn_err *err);

/* NULL is allowed (no failure). */
void qn_gguf_close(qn_gguf *g);

/* Number of tensors, the i-th in name order, and lookup (NULL if absent) (no failure). */
size_t qn_gguf_count(const qn_gguf *g);
const qn_gguf_tensor *qn_gguf_at(const qn_gguf *g, size_t i);
const qn_gguf_tensor *qn_gguf_find(const qn_gguf *g, const char *name);

/* True if the key exists (no failure). */
bool qn_gguf_has(const qn_gguf *g, const char *key);

/* Required values. Any integer type serves for u64 (negative ones are refused), any number for f64.
 * Errors: QN_NOT_FOUND, QN_FORMAT (another type), both naming the key. */
qn_code qn_gguf_u64(const qn_gguf *g, const char *key, uint64_t *out, qn_err *err);
qn_code qn_gguf_f64(const qn_gguf *g, const char *key, double *out, qn_err *err);
qn_code qn_gguf_text(const qn_gguf *g, const char *key, qn_gguf_str *out, qn_err *err);
qn_code qn_gguf_list(const qn_gguf *g, const char *key, qn_gguf_array *out, qn_err *err);

/* Optional values with a default. Errors: QN_FORMAT (another type). */
qn_code qn_gguf_u64_or(const qn_gguf *g, const char *key, uint64_t dflt, uint64_t *out,
                       qn_err *err);
qn_code qn_gguf_f64_or(const qn_gguf *g, const char *key, double dflt, double *out, qn_err *err);
qn_code qn_gguf_bool_or(const qn_gguf *g, const char *key, bool dflt, bool *out, qn_err *err);

/* Element i < n of an array of numbers or bools; 0 for an array of strings (no failure). */
double qn_gguf_number(const qn_gguf_array *a, size_t i);

/* Write the n elements of an array of strings to out [n]. Errors: QN_FORMAT if it holds another
 * kind. */
qn_code qn_gguf_strings(const qn_gguf_array *a, const char *key, qn_gguf_str *out, qn_err *err);

#endif
