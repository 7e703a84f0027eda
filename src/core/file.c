/* file.c - files: mapping, whole reads, durable writes, folders. */
#include "core/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/rt.h"

static qn_code io_error(qn_err *err, const char *what, const char *path)
{
    int e = errno;
    return qn_err_set(err, e == ENOENT ? QN_NOT_FOUND : QN_IO, "cannot %s %s: %s", what, path, strerror(e));
}

static qn_code open_regular(const char *path, int *fd, struct stat *st, qn_err *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return io_error(err, "open", path);
    if (fstat(*fd, st)) {
        qn_code rc = io_error(err, "stat", path);
        close(*fd);
        return rc;
    }
    if (!S_ISREG(st->st_mode)) {
        close(*fd);
        return qn_err_set(err, QN_IO, "cannot read %s: it is not a regular file", path);
    }
    return QN_OK;
}

qn_code qn_map_open(qn_map *m, const char *path, qn_err *err)
{
    *m = (qn_map){0};
    int fd;
    struct stat st;
    qn_code rc = open_regular(path, &fd, &st, err);
    if (rc) return rc;
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            rc = io_error(err, "map", path);
            close(fd);
            return rc;
        }
        m->data = p;
        m->size = (size_t)st.st_size;
    }
    close(fd);
    return QN_OK;
}

void qn_map_forget(const qn_map *m)
{
    if (m->data) (void)madvise((void *)(uintptr_t)m->data, m->size, MADV_DONTNEED);
}

void qn_map_close(qn_map *m)
{
    if (m->data) munmap((void *)(uintptr_t)m->data, m->size);
    *m = (qn_map){0};
}

qn_code qn_file_read(const char *path, size_t max_bytes, char **out, size_t *size, qn_err *err)
{
    *out = NULL;
    *size = 0;
    int fd;
    struct stat st;
    qn_code rc = open_regular(path, &fd, &st, err);
    if (rc) return rc;
    if ((uint64_t)st.st_size > max_bytes) {
        close(fd);
        return qn_err_set(err, QN_LIMIT, "%s has %lld bytes, more than the limit of %zu", path,
                          (long long)st.st_size, max_bytes);
    }
    size_t want = (size_t)st.st_size, got = 0;
    char *p = malloc(want + 1);
    if (!p) {
        close(fd);
        return qn_err_set(err, QN_NOMEM, "%s: out of memory for %zu bytes", path, want);
    }
    while (got < want) {
        ssize_t n = read(fd, p + got, want - got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            rc = io_error(err, "read", path);
            free(p);
            close(fd);
            return rc;
        }
        if (n == 0) break;
        got += (size_t)n;
    }
    close(fd);
    p[got] = '\0';
    *out = p;
    *size = got;
    return QN_OK;
}

static qn_code sync_parent(const char *path, qn_err *err)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (n >= sizeof dir) return qn_err_set(err, QN_LIMIT, "path too long: %s", path);
    memcpy(dir, path, n);
    dir[n] = '\0';
    const char *name = slash ? (n ? dir : "/") : ".";
    int fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return io_error(err, "open", name);
    int bad = fsync(fd) && errno != EINVAL;
    close(fd);
    return bad ? io_error(err, "sync", name) : QN_OK;
}

static qn_code write_all(int fd, const void *data, size_t size, const char *path, qn_err *err)
{
    const char *p = data;
    while (size) {
        ssize_t n = write(fd, p, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_error(err, "write", path);
        p += n;
        size -= (size_t)n;
    }
    if (fsync(fd)) return io_error(err, "sync", path);
    return QN_OK;
}

qn_code qn_file_write(const char *path, const void *data, size_t size, qn_err *err)
{
    char tmp[PATH_MAX];
    int n = snprintf(tmp, sizeof tmp, "%s.XXXXXX.tmp", path);
    if (n < 0 || (size_t)n >= sizeof tmp) return qn_err_set(err, QN_LIMIT, "path too long: %s", path);
    int fd = mkostemps(tmp, 4, O_CLOEXEC);
    if (fd < 0) return io_error(err, "create", tmp);
    (void)fchmod(fd, 0644);
    qn_code rc = write_all(fd, data, size, tmp, err);
    if (close(fd) && !rc) rc = io_error(err, "close", tmp);
    if (!rc && rename(tmp, path)) rc = io_error(err, "rename to", path);
    if (rc) {
        unlink(tmp);
        return rc;
    }
    return sync_parent(path, err);
}

qn_code qn_mkdirs(const char *path, qn_err *err)
{
    char buf[PATH_MAX];
    size_t n = strlen(path);
    if (n >= sizeof buf) return qn_err_set(err, QN_LIMIT, "path too long: %s", path);
    memcpy(buf, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (buf[i] != '/' && buf[i] != '\0') continue;
        char c = buf[i];
        buf[i] = '\0';
        if (mkdir(buf, 0755) && errno != EEXIST) return io_error(err, "create", buf);
        buf[i] = c;
    }
    if (!qn_is_dir(path)) return qn_err_set(err, QN_IO, "cannot create %s: it exists and is not a folder", path);
    return QN_OK;
}

bool qn_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool qn_is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static qn_code remove_entry(const char *path, const char *name, qn_err *err)
{
    char full[PATH_MAX];
    int n = snprintf(full, sizeof full, "%s/%s", path, name);
    if (n < 0 || (size_t)n >= sizeof full) return qn_err_set(err, QN_LIMIT, "path too long: %s/%s", path, name);
    struct stat st;
    if (lstat(full, &st)) return io_error(err, "stat", full);
    if (S_ISDIR(st.st_mode)) return qn_remove_tree(full, err);
    return unlink(full) ? io_error(err, "remove", full) : QN_OK;
}

qn_code qn_remove_tree(const char *path, qn_err *err)
{
    DIR *d = opendir(path);
    if (!d) return errno == ENOENT ? QN_OK : io_error(err, "open", path);
    qn_code rc = QN_OK;
    struct dirent *e;
    while (!rc && (e = readdir(d))) {
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) rc = remove_entry(path, e->d_name, err);
    }
    closedir(d);
    if (!rc && rmdir(path)) rc = io_error(err, "remove", path);
    return rc;
}

qn_code qn_state_path(char *out, size_t cap, const char *sub, qn_err *err)
{
    const char *home = qn_rt_value("HOME");
    const char *xdg = getenv("XDG_CACHE_HOME"), *user = getenv("HOME");
    int n;
    if (home) {
        n = snprintf(out, cap, "%s%s%s", home, sub ? "/" : "", sub ? sub : "");
    } else if (xdg && *xdg) {
        n = snprintf(out, cap, "%s/quern%s%s", xdg, sub ? "/" : "", sub ? sub : "");
    } else if (user && *user) {
        n = snprintf(out, cap, "%s/.cache/quern%s%s", user, sub ? "/" : "", sub ? sub : "");
    } else {
        return qn_err_set(err, QN_NOT_FOUND, "no home folder: set QUERN_HOME to a folder for Quern's files");
    }
    if (n < 0 || (size_t)n >= cap) return qn_err_set(err, QN_LIMIT, "the path of Quern's folder is too long");
    return QN_OK;
}
