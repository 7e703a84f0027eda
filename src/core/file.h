/* file.h - files: mapping, whole reads, durable writes, folders.
 *
 * Every path is UTF-8 bytes as the system takes them. Errors name the path and the system's reason.
 * Threads: all functions may be called from any thread.
 */
#ifndef QN_CORE_FILE_H
#define QN_CORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

typedef struct qn_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;         /* bytes */
} qn_map;

/* Map a regular file read-only and shared. The mapping stays valid until qn_map_close; a file that
 * somebody truncates meanwhile raises SIGBUS on access, as every mapping does.
 * Errors: QN_IO, QN_NOT_FOUND. */
qn_code qn_map_open(qn_map *m, const char *path, qn_err *err);

/* Unmap; a zeroed map is allowed (no failure). */
void qn_map_close(qn_map *m);

/* Take the file's pages out of this process's memory; a read brings them back. Other threads may read
 * meanwhile (no failure). */
void qn_map_forget(const qn_map *m);

/* Read a whole file of at most max_bytes into malloc memory with a NUL behind it; the caller frees
 * *out. Errors: QN_IO, QN_NOT_FOUND, QN_LIMIT, QN_NOMEM. */
qn_code qn_file_read(const char *path, size_t max_bytes, char **out, size_t *size, qn_err *err);

/* Write a whole file durably: temporary file beside it, fsync, rename, fsync of the folder. On
 * failure the old file is untouched and no temporary file stays. Errors: QN_IO. */
qn_code qn_file_write(const char *path, const void *data, size_t size, qn_err *err);

/* Create a folder and its parents; an existing one is fine. Errors: QN_IO. */
qn_code qn_mkdirs(const char *path, qn_err *err);

/* True if the path is a folder / a regular file (links followed) (no failure). */
bool qn_is_dir(const char *path);
bool qn_is_file(const char *path);

/* Remove a folder with everything in it; links are removed, not followed. A missing folder is
 * fine. Errors: QN_IO. */
qn_code qn_remove_tree(const char *path, qn_err *err);

/* The folder for Quern's own files: $QUERN_HOME, else ${XDG_CACHE_HOME:-~/.cache}/quern. Writes
 * "DIR/sub" ("DIR" if sub is NULL) into out. Errors: QN_LIMIT if it does not fit, QN_NOT_FOUND if
 * there is no home. */
qn_code qn_state_path(char *out, size_t cap, const char *sub, qn_err *err);

#endif
