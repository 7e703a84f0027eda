/* bandwidth.c - see bandwidth.h. */
#include "cli/bandwidth.h"

#include <string.h>
#include <sys/mman.h>

#include "compute/cpu/pool.h"
#include "core/clock.h"

enum { PASSES = 7, PARTS_PER_THREAD = 16 };

#define BUFFER_BYTES ((size_t)1 << 30)

typedef uint64_t lane __attribute__((vector_size(32)));

typedef struct sweep {
    const uint8_t *data;
    size_t part_bytes;        /* a multiple of 256 */
    void (*read)(const uint8_t *p, size_t n);
} sweep;

/* Read n bytes, a multiple of 256, with eight loads in flight; the result is of no use, but the
 * compiler has to make it. */
static inline __attribute__((always_inline)) void read_lanes(const uint8_t *p, size_t n)
{
    const lane *v = (const lane *)(const void *)p;
    lane sum[8] = {0};
    for (size_t i = 0; i < n / sizeof *v; i += 8) {
        for (size_t j = 0; j < 8; j++) sum[j] ^= v[i + j];
    }
    for (size_t j = 0; j < 8; j++) __asm__ volatile("" : : "m"(sum[j]));
}

static void read_portable(const uint8_t *p, size_t n) { read_lanes(p, n); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void read_avx2(const uint8_t *p, size_t n) { read_lanes(p, n); }

static void (*best_reader(void))(const uint8_t *p, size_t n)
{
    return __builtin_cpu_supports("avx2") ? read_avx2 : read_portable;
}
#else
static void (*best_reader(void))(const uint8_t *p, size_t n) { return read_portable; }
#endif

static void read_part(void *arg, uint32_t part, uint32_t thread)
{
    const sweep *s = arg;
    (void)thread;
    s->read(s->data + part * s->part_bytes, s->part_bytes);
}

static void fill_part(void *arg, uint32_t part, uint32_t thread)
{
    const sweep *s = arg;
    (void)thread;
    memset((uint8_t *)(uintptr_t)s->data + part * s->part_bytes, (int)part + 1, s->part_bytes);
}

qn_code qn_read_bandwidth(uint32_t n_threads, double *bytes_per_s, qn_err *err)
{
    qn_pool *pool;
    qn_code rc = qn_pool_new(&pool, n_threads, err);
    if (rc) return rc;
    void *data = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        qn_pool_free(pool);
        return qn_err_set(err, QN_NOMEM, "bandwidth: no memory for a buffer of 1 GiB");
    }
    madvise(data, BUFFER_BYTES, MADV_HUGEPAGE);
    uint32_t n_parts = qn_pool_threads(pool) * PARTS_PER_THREAD;
    sweep s = {.data = data, .part_bytes = BUFFER_BYTES / n_parts / 256 * 256, .read = best_reader()};
    qn_pool_run(pool, fill_part, &s, n_parts);
    *bytes_per_s = 0;
    for (int i = 0; i < PASSES; i++) {
        uint64_t start = qn_now_ns();
        qn_pool_run(pool, read_part, &s, n_parts);
        double rate = (double)s.part_bytes * n_parts * 1e9 / (double)(qn_now_ns() - start);
        if (rate > *bytes_per_s) *bytes_per_s = rate;
    }
    munmap(data, BUFFER_BYTES);
    qn_pool_free(pool);
    return QN_OK;
}
