/* panel_file.c - the panel cache file (panel_file.h). */
#include "compute/cpu/panel_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/hash.h"

/* ---- the header ---- */

typedef struct file_head { /* little endian; all of the file's first 64 bytes */
    char magic[8];
    uint32_t version, n_matrices;
    uint64_t fingerprint;
    uint64_t header_bytes; /* this struct and the entries, without the padding */
    uint64_t file_bytes;
    uint64_t hash; /* qn_hash64 of header_bytes with this field 0 */
    uint64_t reserved[2];
} file_head;
_Static_assert(sizeof(file_head) == 64, "on-disk size");

typedef struct file_entry { /* then the path, padded with zeros to a multiple of 8 */
    uint32_t path_bytes, mode, bits, group_size, dtype, n_experts, n_out, n_in;
    uint64_t offset, bytes;
} file_entry;
_Static_assert(sizeof(file_entry) == 48, "on-disk size");

static uint64_t align_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) / to * to;
}

static uint64_t padded_path(const qn_matrix_src *src)
{
    return align_up(strlen(src->path), 8);
}

static void put_zeros(qn_buf *b, uint64_t n)
{
    static const char zeros[64];
    for (; n; n -= n < sizeof zeros ? n : sizeof zeros)
        qn_buf_put(b, zeros, n < sizeof zeros ? n : sizeof zeros);
}

static void put_entry(qn_buf *b, const qn_matrix_src *src, const qn_panels *w, uint64_t offset)
{
    file_entry e = {.path_bytes = (uint32_t)strlen(src->path),
                    .mode = w->spec.mode,
                    .bits = w->spec.bits,
                    .group_size = w->spec.group_size,
                    .dtype = src->m.dtype,
                    .n_experts = w->n_experts,
                    .n_out = w->n_out,
                    .n_in = w->n_in,
                    .offset = offset,
                    .bytes = qn_panels_bytes(w)};
    qn_buf_put(b, &e, sizeof e);
    qn_buf_put(b, src->path, e.path_bytes);
    put_zeros(b, padded_path(src) - e.path_bytes);
}

/* Place the matrices one after the other; returns the file's size, 0 if it does not fit. */
static uint64_t place(uint64_t *at, uint64_t header_bytes, const qn_panels *w, size_t n)
{
    uint64_t end = align_up(header_bytes, QN_PANEL_ALIGN);
    for (size_t i = 0; i < n; i++) {
        at[i] = end;
        if (qn_panels_bytes(&w[i]) > INT64_MAX / 2 - end) return 0;
        end = align_up(end + qn_panels_bytes(&w[i]), QN_PANEL_ALIGN);
    }
    return end;
}

qn_code qn_panel_header(qn_buf *header, uint64_t *at, uint64_t *file_bytes, uint64_t fingerprint,
                        const qn_matrix_src *src, const qn_panels *w, size_t n, qn_err *err)
{
    file_head head = {.magic = "QNPANELS",
                      .version = QN_PANEL_VERSION,
                      .n_matrices = (uint32_t)n,
                      .fingerprint = fingerprint,
                      .header_bytes = sizeof head};
    for (size_t i = 0; i < n; i++) head.header_bytes += sizeof(file_entry) + padded_path(&src[i]);
    *file_bytes = head.file_bytes = place(at, head.header_bytes, w, n);
    if (!head.file_bytes || n > UINT32_MAX)
        return qn_err_set(err, QN_LIMIT, "the panels of %zu matrices do not fit into a file", n);
    qn_buf_clear(header);
    qn_buf_put(header, &head, sizeof head);
    for (size_t i = 0; i < n; i++) put_entry(header, &src[i], &w[i], at[i]);
    if (header->failed)
        return qn_err_set(err, QN_NOMEM, "panel cache: out of memory for the header");
    head.hash = qn_hash64(header->data, header->len, 0);
    memcpy(header->data, &head, sizeof head);
    put_zeros(header, align_up(header->len, QN_PANEL_ALIGN) - header->len);
    if (header->failed)
        return qn_err_set(err, QN_NOMEM, "panel cache: out of memory for the header");
    return QN_OK;
}

/* ---- opening ---- */

char *qn_panel_path(const char *dir, uint64_t fingerprint)
{
    char *path;
    int n = asprintf(&path, "%s/%016llx-panel16-v%d.bin", dir, (unsigned long long)fingerprint,
                     QN_PANEL_VERSION);
    return n < 0 ? NULL : path;
}

void *qn_panel_file_open(const char *path, const qn_buf *header, uint64_t file_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0) return NULL;
    void *data = MAP_FAILED;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_size == file_bytes)
        data = mmap(NULL, file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (data == MAP_FAILED) return NULL;
    if (memcmp(data, header->data, header->len)) {
        munmap(data, file_bytes);
        return NULL;
    }
    return data;
}

/* ---- building ---- */

static qn_code fail(const qn_panel_new *f, const char *what, int error, qn_err *err)
{
    return qn_err_set(err, QN_IO, "panel cache: cannot %s %s: %s", what, f->temporary,
                      strerror(error));
}

/* Remove temporary files of this path that nobody holds a lock on: their builders died. */
static void remove_leftovers(const char *dir, const char *name)
{
    DIR *d = opendir(dir);
    const size_t len = strlen(name);
    for (struct dirent *e; d && (e = readdir(d));) {
        const size_t have = strlen(e->d_name);
        if (strncmp(e->d_name, name, len) || have < len + 5 || strcmp(e->d_name + have - 4, ".tmp"))
            continue;
        int fd = openat(dirfd(d), e->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0) continue;
        if (!flock(fd, LOCK_EX | LOCK_NB)) unlinkat(dirfd(d), e->d_name, 0);
        close(fd);
    }
    if (d) closedir(d);
}

static void release(qn_panel_new *f)
{
    if (f->fd >= 0) close(f->fd);
    free(f->temporary);
    free(f->path);
    f->fd = -1;
    f->temporary = f->path = NULL;
}

/* The folder of f->path, and the name in it. */
static char *split_path(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash + 1;
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

static qn_code prepare_folder(const char *path, qn_err *err)
{
    const char *name;
    char *dir = split_path(path, &name);
    if (!dir) return qn_err_set(err, QN_NOMEM, "panel cache: out of memory");
    qn_code rc = qn_mkdirs(dir, err);
    if (!rc) remove_leftovers(dir, name);
    free(dir);
    return rc;
}

/* Space is reserved first: writing a mapping on a full disk would raise SIGBUS. */
static qn_code map_temporary(qn_panel_new *f, qn_err *err)
{
    f->fd = open(f->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (f->fd < 0) return fail(f, "create", errno, err);
    if (flock(f->fd, LOCK_EX | LOCK_NB)) return fail(f, "lock", errno, err);
    int rc;
    do rc = posix_fallocate(f->fd, 0, (off_t)f->size);
    while (rc == EINTR);
    if (rc) return fail(f, "reserve space for", rc, err);
    f->data = mmap(NULL, f->size, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0);
    if (f->data == MAP_FAILED) return fail(f, "map", errno, err);
    return QN_OK;
}

qn_code qn_panel_new_open(qn_panel_new *f, const char *path, const qn_buf *header,
                          uint64_t file_bytes, qn_err *err)
{
    *f = (qn_panel_new){.fd = -1, .size = file_bytes, .path = strdup(path)};
    qn_code rc = prepare_folder(path, err);
    if (!rc && (!f->path || asprintf(&f->temporary, "%s.%ld.%llx.tmp", path, (long)getpid(),
                                     (unsigned long long)qn_now_ns()) < 0)) {
        f->temporary = NULL;
        rc = qn_err_set(err, QN_NOMEM, "panel cache: out of memory");
    }
    if (!rc) rc = map_temporary(f, err);
    if (!rc) {
        memcpy(f->data, header->data, header->len);
        return QN_OK;
    }
    if (f->fd >= 0) unlink(f->temporary);
    release(f);
    f->data = NULL;
    return rc;
}

static void sync_folder(const char *path)
{
    const char *name;
    char *dir = split_path(path, &name);
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(dir);
}

qn_code qn_panel_new_publish(qn_panel_new *f, qn_err *err)
{
    qn_code rc = QN_OK;
    if (msync(f->data, f->size, MS_SYNC) || fsync(f->fd)) rc = fail(f, "sync", errno, err);
    else if (rename(f->temporary, f->path)) rc = fail(f, "rename", errno, err);
    if (rc) unlink(f->temporary);
    else sync_folder(f->path);
    mprotect(f->data, f->size, PROT_READ);
    release(f);
    return rc;
}
