/* pool.c - the worker threads (pool.h).
 *
 * One atomic word holds the number of parts and the next free part. Taking a part is a
 * compare-and-swap on it, and only the holder of a part reads the task; a task cannot be replaced
 * while one of its parts is held, because qn_pool_run waits for all of them. So a worker that was
 * suspended in the middle of taking a part can neither run a stale task nor lose a part.
 *
 * Sleeping: a worker announces itself in `sleepers`, looks at the word once more, then waits on
 * `wake`. qn_pool_run stores the word, then looks at `sleepers`. With sequential consistency one of
 * the two sees the other.
 */
#include "compute/cpu/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"

enum {
    SPIN_NS = 100 * 1000, /* a worker without a task spins this long, then sleeps */
    SPIN_LOOKS = 64,      /* looks at the word between two readings of the clock */
    WAIT_LOOKS = 20000    /* looks at `done` before the caller offers its core to others */
};

typedef struct worker {
    struct qn_pool *pool;
    pthread_t thread;
    uint32_t index;
} worker;

struct qn_pool {
    _Alignas(64) _Atomic uint64_t parts; /* number of parts << 32 | next free part */
    _Alignas(64) _Atomic uint32_t done;  /* finished parts of the task */
    _Alignas(64) _Atomic uint32_t sleepers;
    _Atomic uint32_t wake; /* futex word; changes with every wake-up */
    atomic_bool stop;
    qn_pool_fn fn; /* the task; read by holders of a part only */
    void *arg;
    uint32_t n_threads, n_started;
    worker *workers; /* [n_threads - 1] */
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static long futex(_Atomic uint32_t *word, int op, uint32_t value)
{
    return syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static bool has_part(uint64_t parts)
{
    return (uint32_t)parts < (uint32_t)(parts >> 32);
}

/* Take and run parts until none is left. */
static void drain(qn_pool *p, uint32_t thread)
{
    uint64_t parts = atomic_load_explicit(&p->parts, memory_order_acquire);
    while (has_part(parts)) {
        if (!atomic_compare_exchange_weak_explicit(&p->parts, &parts, parts + 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        p->fn(p->arg, (uint32_t)parts, thread);
        atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
        parts = atomic_load_explicit(&p->parts, memory_order_acquire);
    }
}

/* Wait until there may be a part or the pool stops: spin, then sleep. */
static void await_task(qn_pool *p)
{
    uint64_t start = qn_now_ns();
    do {
        for (int i = 0; i < SPIN_LOOKS; i++) {
            if (has_part(atomic_load_explicit(&p->parts, memory_order_relaxed))) return;
            if (atomic_load_explicit(&p->stop, memory_order_relaxed)) return;
            relax();
        }
    } while (qn_now_ns() - start < SPIN_NS);
    uint32_t seen = atomic_load(&p->wake);
    atomic_fetch_add(&p->sleepers, 1);
    if (!has_part(atomic_load(&p->parts)) && !atomic_load(&p->stop))
        futex(&p->wake, FUTEX_WAIT, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *worker_main(void *arg)
{
    const worker *w = arg;
    while (!atomic_load_explicit(&w->pool->stop, memory_order_acquire)) {
        await_task(w->pool);
        drain(w->pool, w->index);
    }
    return NULL;
}

static void wake_all(qn_pool *p)
{
    if (!atomic_load(&p->sleepers)) return;
    atomic_fetch_add(&p->wake, 1);
    futex(&p->wake, FUTEX_WAKE, INT32_MAX);
}

void qn_pool_run(qn_pool *p, qn_pool_fn fn, void *arg, uint32_t n_parts)
{
    if (n_parts <= 1 || p->n_threads == 1) {
        for (uint32_t i = 0; i < n_parts; i++) fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store(&p->parts, (uint64_t)n_parts << 32);
    wake_all(p);
    drain(p, 0);
    for (uint32_t looks = 0; atomic_load_explicit(&p->done, memory_order_acquire) != n_parts;
         looks++) {
        if (looks < WAIT_LOOKS) relax();
        else sched_yield();
    }
}

uint32_t qn_pool_threads(const qn_pool *p)
{
    return p->n_threads;
}

/* ---- life cycle ---- */

/* Workers take no signals: those belong to the program's own threads. */
static int start_worker(worker *w)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static qn_code start_workers(qn_pool *p, qn_err *err)
{
    p->workers = calloc(p->n_threads, sizeof *p->workers);
    if (!p->workers) return qn_err_set(err, QN_NOMEM, "thread pool: out of memory");
    for (uint32_t i = 0; i + 1 < p->n_threads; i++) {
        p->workers[i] = (worker){.pool = p, .index = i + 1};
        int rc = start_worker(&p->workers[i]);
        if (rc) {
            return qn_err_set(err, QN_IO, "cannot start worker thread %u of %u: %s", i + 1,
                              p->n_threads - 1, strerror(rc));
        }
        p->n_started++;
    }
    return QN_OK;
}

qn_code qn_pool_new(qn_pool **out, uint32_t n_threads, qn_err *err)
{
    *out = NULL;
    if (!n_threads) n_threads = qn_pool_default_threads();
    if (n_threads > QN_MAX_THREADS) {
        return qn_err_set(err, QN_INVALID, "%u threads are too many; choose 1 to %d", n_threads,
                          QN_MAX_THREADS);
    }
    qn_pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (!p) return qn_err_set(err, QN_NOMEM, "thread pool: out of memory");
    memset((void *)p, 0, sizeof *p);
    p->n_threads = n_threads;
    qn_code rc = start_workers(p, err);
    if (rc) qn_pool_free(p);
    else *out = p;
    return rc;
}

void qn_pool_free(qn_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->wake, 1);
    futex(&p->wake, FUTEX_WAKE, INT32_MAX);
    for (uint32_t i = 0; i < p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    free(p->workers);
    free(p);
}
