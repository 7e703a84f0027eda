/* panel_file.h - the panel cache: the panels of one model in a file that every process maps.
 *
 * The header is a pure function of what is loaded (fingerprint of the model's files, layout
 * version, and path, format and shape of every matrix), so checking a file means comparing its
 * first bytes with the header it should have, and its size. A file is written under a temporary
 * name with its space reserved, synced, then renamed: a file with the right name is complete. Two
 * processes that build the same file write two temporary files; the last rename wins and both keep
 * what they mapped. docs/formats.md, "panel16", has the byte table.
 * Threads: one thread; the memory of a new file may be written by many.
 */
#ifndef QN_COMPUTE_CPU_PANEL_FILE_H
#define QN_COMPUTE_CPU_PANEL_FILE_H

#include "compute/cpu/panel.h"
#include "compute/ops.h"
#include "core/buf.h"

enum { QN_PANEL_ALIGN = 4096 }; /* of the data of every matrix in the file */

/* Write the header for n matrices to `header`, padded to QN_PANEL_ALIGN, and to at[n] where the
 * data of each lies in the file; *file_bytes is the whole size. Errors: QN_NOMEM, QN_LIMIT. */
qn_code qn_panel_header(qn_buf *header, uint64_t *at, uint64_t *file_bytes, uint64_t fingerprint,
                        const qn_matrix_src *src, const qn_panels *w, size_t n, qn_err *err);

/* The cache file's path in a folder, in malloc memory that the caller frees. Errors: NULL only. */
char *qn_panel_path(const char *dir, uint64_t fingerprint);

/* Map the file read-only if it is the one the header describes, else NULL (no failure). */
void *qn_panel_file_open(const char *path, const qn_buf *header, uint64_t file_bytes);

/* A file being built. */
typedef struct qn_panel_new {
    int fd; /* of the temporary file, locked while it is being built */
    char *temporary, *path;
    void *data; /* mapped shared and writable; the header is in place */
    size_t size;
} qn_panel_new;

/* Reserve and map a temporary file beside `path`; folders are made, left-overs of processes that
 * died are removed. Errors: QN_IO, QN_NOMEM; nothing is left then. */
qn_code qn_panel_new_open(qn_panel_new *f, const char *path, const qn_buf *header,
                          uint64_t file_bytes, qn_err *err);

/* Sync the finished file and give it its name. In every case the mapping stays, read-only from now
 * on, and belongs to the caller; the rest of f is released. Errors: QN_IO (the file is removed
 * then). */
qn_code qn_panel_new_publish(qn_panel_new *f, qn_err *err);

#endif
