/* pool.h - the worker threads of the CPU device.
 *
 * One caller (the engine thread) hands out a task of `n` parts; workers and the caller take parts
 * from an atomic counter until none is left; qn_pool_run returns when all are done. Workers spin for
 * tens of microseconds after a task, then sleep on a futex. Which thread computes which part never
 * changes a result.
 * Threads: qn_pool_run from one thread at a time.
 */
#ifndef QN_COMPUTE_CPU_POOL_H
#define QN_COMPUTE_CPU_POOL_H

#include <stdint.h>

#include "core/err.h"

enum { QN_MAX_THREADS = 256 };

typedef struct qn_pool qn_pool;

/* Start n_threads-1 workers (the caller is thread 0); n_threads from 1 to QN_MAX_THREADS, 0 means
 * qn_pool_default_threads. Errors: QN_INVALID, QN_NOMEM, QN_IO. */
qn_code qn_pool_new(qn_pool **out, uint32_t n_threads, qn_err *err);
void qn_pool_free(qn_pool *p);
uint32_t qn_pool_threads(const qn_pool *p);

/* Run fn(arg, part, thread) for every part in [0, n_parts); thread < n_threads names the executing
 * thread, for per-thread scratch. n_parts 1 runs on the caller without waking anybody (no failure). */
typedef void (*qn_pool_fn)(void *arg, uint32_t part, uint32_t thread);
void qn_pool_run(qn_pool *p, qn_pool_fn fn, void *arg, uint32_t n_parts);

/* Threads that make sense here: QUERN_THREADS, else the physical cores that the affinity mask and the
 * control group's quota leave; from 1 to QN_MAX_THREADS (no failure). */
uint32_t qn_pool_default_threads(void);

#endif
