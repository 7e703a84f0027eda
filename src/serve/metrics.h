/* metrics.h - counters and histograms of requests, and their Prometheus text.
 *
 * Names follow vLLM's, so that its dashboards work. What the engine counts itself is not kept twice:
 * the caller hands it over when the text is made.
 * Threads: any; the lock is held for a few additions.
 */
#ifndef QN_SERVE_METRICS_H
#define QN_SERVE_METRICS_H

#include <pthread.h>
#include <stdint.h>

#include "core/buf.h"
#include "engine/engine.h"

enum {
    QN_MAX_BUCKETS = 24,
    QN_N_FINISH = 4,      /* kinds of finish_reason that are told apart */
    QN_N_STATUS = 24      /* HTTP statuses of failures that are told apart */
};

typedef struct qn_histogram {
    uint64_t counts[QN_MAX_BUCKETS + 1]; /* by bucket; the last one has no upper bound */
    uint64_t n;
    double sum;
} qn_histogram;

typedef struct qn_metrics {
    pthread_mutex_t lock;
    uint64_t prompt_tokens, cached_tokens; /* of finished requests */
    uint64_t hits, misses;                 /* finished requests with and without cached tokens */
    uint64_t finished[QN_N_FINISH];
    struct { int status; uint64_t n; } failed[QN_N_STATUS];
    qn_histogram ttft, token_gap, e2e, queue, prefill, decode; /* seconds */
    qn_histogram prompt_size, reply_size;                      /* tokens */
} qn_metrics;

/* Zeroed memory becomes a set of counters (no failure). */
void qn_metrics_init(qn_metrics *m);
void qn_metrics_release(qn_metrics *m);

/* A generation came to its end with this finish_reason (no failure). */
void qn_metrics_finished(qn_metrics *m, const char *finish, const qn_gen_stats *stats,
                         double ttft_ms, double e2e_ms);

/* A token came gap_ms after the one before (no failure). */
void qn_metrics_token(qn_metrics *m, double gap_ms);

/* A request was refused or failed with this HTTP status (no failure). */
void qn_metrics_failed(qn_metrics *m, int status);

/* How many finished requests found something in the prefix cache, and how many did not (no
 * failure). */
void qn_metrics_cache(qn_metrics *m, uint64_t *hits, uint64_t *misses);

/* Append the text, format 0.0.4: every name begins with `prefix`, every sample has the label
 * model_name. `started` is in seconds since 1970. Errors: out->failed. */
void qn_metrics_write(qn_metrics *m, const qn_engine_stats *now, const char *prefix,
                      const char *model, int64_t started, qn_buf *out);

#endif
