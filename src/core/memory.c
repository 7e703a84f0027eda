/* memory.c - reading the kernel's figures. */
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* The first number of a one-line file; false when there is none ("max"). */
static bool read_number(const char *path, uint64_t *out)
{
    FILE *f = fopen(path, "r");
    bool found = f && fscanf(f, "%" SCNu64, out) == 1;
    if (f) fclose(f);
    return found;
}

/* The number behind `key` at the start of a line; false when the file or the line is not there. */
static bool read_line(const char *path, const char *key, uint64_t *out)
{
    FILE *f = fopen(path, "r");
    char line[256];
    size_t n = strlen(key);
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        found = !strncmp(line, key, n) && sscanf(line + n, "%" SCNu64, out) == 1;
    }
    if (f) fclose(f);
    return found;
}

uint64_t qn_memory_available(void)
{
    uint64_t kib, bytes = 1u << 30, most, used, file = 0;
    if (read_line("/proc/meminfo", "MemAvailable:", &kib)) bytes = kib * 1024;
    if (!read_number("/sys/fs/cgroup/memory.max", &most) || !read_number("/sys/fs/cgroup/memory.current", &used)) {
        return bytes;
    }
    read_line("/sys/fs/cgroup/memory.stat", "file ", &file); /* cached files count as used, and can be dropped */
    if (file < used) used -= file;
    uint64_t left = most > used ? most - used : 0;
    return left < bytes ? left : bytes;
}

bool qn_memory_huge_pages(void)
{
    uint64_t bytes;
    char line[64] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    return line[0] && !strstr(line, "[never]") &&
           read_number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", &bytes) && bytes == 2 << 20;
}

/* One word for each page, bit 63: it is there. The rest of the word is not for us. */
uint64_t qn_memory_resident(const void *p, uint64_t n)
{
    enum { WORDS = 4096 };
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t at = (uintptr_t)p / page, end = ((uintptr_t)p + n + page - 1) / page, found = 0;
    int fd = n ? open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return n;
    uint64_t words[WORDS];
    while (at < end) {
        const size_t want = end - at < WORDS ? (size_t)(end - at) : WORDS;
        ssize_t got = pread(fd, words, want * sizeof *words, (off_t)(at * sizeof *words));
        if (got <= 0 || (size_t)got % sizeof *words) break;
        for (size_t i = 0; i < (size_t)got / sizeof *words; i++) found += words[i] >> 63;
        at += (size_t)got / sizeof *words;
    }
    close(fd);
    return at < end ? n : found * page;
}

qn_code qn_memory_pin(const void *p, uint64_t n, uint64_t all, qn_err *err)
{
    struct rlimit most = {0};
    if (!n || !mlock(p, n)) return QN_OK;
    const char *why = strerror(errno);
    getrlimit(RLIMIT_MEMLOCK, &most);
    return qn_err_set(err, QN_LIMIT,
                      "cannot keep %.3f GB in memory: %s; the limit for it (ulimit -l) is %.3f GB",
                      (double)all / 1e9, why, (double)most.rlim_cur / 1e9);
}

void qn_memory_used(uint64_t *now, uint64_t *peak)
{
    if (!read_line("/proc/self/status", "VmRSS:", now)) *now = 0;
    if (!read_line("/proc/self/status", "VmHWM:", peak)) *peak = 0;
    *now *= 1024;
    *peak *= 1024;
}
