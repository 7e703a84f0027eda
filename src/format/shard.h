/* shard.h - safetensors: reading one mapped file, and the merged tensors of a model folder.
 *
 * Nothing is copied: tensor data points into the mapping, at any alignment, and stays valid until
 * the owner is closed. Every length and offset of the file is checked before use (spec numerics
 * 10).
 * Threads: open and close from one thread; lookups from any thread after that.
 */
#ifndef QN_FORMAT_SHARD_H
#define QN_FORMAT_SHARD_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "format/dtype.h"

enum { QN_MAX_RANK = 8 };

typedef struct qn_stored { /* one tensor in a file */
    const char *name;      /* NUL terminated, owned by the shard */
    qn_dtype dtype;
    uint32_t rank;
    uint64_t dims[QN_MAX_RANK]; /* outermost first */
    const void *data;           /* into the mapping; any alignment */
    uint64_t bytes;             /* product of dims times element size, checked */
} qn_stored;

typedef struct qn_shard qn_shard;

/* Map one safetensors file and index its tensors. On failure *out is NULL and nothing stays open.
 * Limits: header under 100,000,000 bytes, rank <= 8, no overlap, no gap check. Errors: QN_IO,
 * QN_NOT_FOUND, QN_FORMAT (names the tensor), QN_UNSUPPORTED (a dtype), QN_NOMEM. */
qn_code qn_shard_open(qn_shard **out, const char *path, qn_err *err);

/* The same over bytes in memory that the caller keeps until close; for tests and fuzzing. Errors: the same. */
qn_code qn_shard_parse(qn_shard **out, const void *bytes, size_t size, const char *label,
                       qn_err *err);

/* NULL is allowed (no failure). */
void qn_shard_close(qn_shard *s);

/* Number of tensors, the i-th one in name order, and lookup by name, NULL if absent (no
 * failure). */
size_t qn_shard_count(const qn_shard *s);
const qn_stored *qn_shard_at(const qn_shard *s, size_t i);
const qn_stored *qn_shard_find(const qn_shard *s, const char *name);

/* A string of the header's __metadata__, or NULL (no failure). */
const char *qn_shard_meta(const qn_shard *s, const char *key);

typedef struct qn_shards qn_shards;

/* Map every model*.safetensors of a folder, merged by name; the index file is not needed, but when
 * it is there its files must exist. A name in two files is an error. Errors: as above, and
 * QN_NOT_FOUND when the folder holds none. */
qn_code qn_shards_open(qn_shards **out, const char *dir, qn_err *err);
void qn_shards_close(qn_shards *s);
size_t qn_shards_count(const qn_shards *s);
const qn_stored *qn_shards_at(const qn_shards *s, size_t i);
const qn_stored *qn_shards_find(const qn_shards *s, const char *name);

/* Bytes of all tensors (no failure). */
uint64_t qn_shards_bytes(const qn_shards *s);

/* What was read of the files need not stay in this process's memory: it comes back when it is read
 * again, by other threads even now (no failure). */
void qn_shards_forget(const qn_shards *s);

/* A hash that changes when any file's name, size, modification time or header changes; the key of
 * derived caches (no failure). */
uint64_t qn_shards_fingerprint(const qn_shards *s);

/* ---- writing ---- */

typedef struct qn_shard_writer qn_shard_writer;

typedef struct qn_plan_tensor { /* what will be written; names are copied */
    const char *name;
    qn_dtype dtype;
    uint32_t rank;
    uint64_t dims[QN_MAX_RANK];
} qn_plan_tensor;

/* Plan and start writing tensors as model.safetensors or model-%05d-of-%05d.safetensors plus
 * model.safetensors.index.json in an existing folder. Tensors are written in name order; a shard is
 * closed when the next tensor would take it over shard_bytes (0: 5*2^30). total_parameters goes
 * into the index. Until close succeeds the files are called NAME.partial; a failed or unfinished
 * write leaves nothing. Errors: QN_IO, QN_NOMEM, QN_INVALID (a name twice). */
qn_code qn_shard_writer_new(qn_shard_writer **out, const char *dir, const qn_plan_tensor *plan,
                            size_t n, uint64_t shard_bytes, uint64_t total_parameters, qn_err *err);

/* How many tensors there are and the plan index of the i-th one to be written (no failure). */
size_t qn_shard_writer_order(const qn_shard_writer *w, size_t i);

/* Append bytes of the current tensor; tensors follow each other in order, and a tensor may come in
 * pieces. Errors: QN_IO, QN_INVALID (more bytes than planned). */
qn_code qn_shard_writer_put(qn_shard_writer *w, const void *data, size_t size, qn_err *err);

/* Finish: checks that everything was written, syncs, closes, writes the index. Frees the writer in
 * every case. Errors: QN_IO, QN_INVALID (bytes missing). */
qn_code qn_shard_writer_close(qn_shard_writer *w, qn_err *err);

#endif
