/* metrics.c - see metrics.h. */
#include "serve/metrics.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Upper bounds, those of vLLM; each list ends with 0. */
static const double seconds_first[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                       0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                       20,    40,    80,   160,  640,  2560, 0};
static const double seconds_gap[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
                                     0.2,   0.3,    0.4,   0.5,  0.75,  1,    2.5,   5,   7.5,
                                     10,    20,     40,    80,   0};
static const double seconds_whole[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
                                       30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680, 0};
static const double tokens[] = {1,    2,    5,     10,    20,    50,     100,    200,    500, 1000,
                                2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 0};

static const char *const finishes[QN_N_FINISH] = {"stop", "length", "tool_calls", "other"};

void qn_metrics_init(qn_metrics *m)
{
    pthread_mutex_init(&m->lock, NULL);
}

void qn_metrics_release(qn_metrics *m)
{
    pthread_mutex_destroy(&m->lock);
}

/* ---- counting ---- */

static void observe(qn_histogram *h, const double *bounds, double v)
{
    size_t i = 0;
    while (bounds[i] > 0 && v > bounds[i]) i++;
    h->counts[i]++;
    h->n++;
    h->sum += v;
}

void qn_metrics_finished(qn_metrics *m, const char *finish, const qn_gen_stats *stats,
                         double ttft_ms, double e2e_ms)
{
    size_t kind = 0;
    while (kind + 1 < QN_N_FINISH && strcmp(finishes[kind], finish)) kind++;
    pthread_mutex_lock(&m->lock);
    m->finished[kind]++;
    m->prompt_tokens += stats->prompt_tokens;
    m->cached_tokens += stats->cached_tokens;
    if (stats->cached_tokens) m->hits++;
    else m->misses++;
    if (stats->generated_tokens) observe(&m->ttft, seconds_first, ttft_ms / 1000);
    observe(&m->e2e, seconds_whole, e2e_ms / 1000);
    observe(&m->queue, seconds_whole, stats->queue_ms / 1000);
    observe(&m->prefill, seconds_whole, stats->prefill_ms / 1000);
    observe(&m->decode, seconds_whole, stats->decode_ms / 1000);
    observe(&m->prompt_size, tokens, stats->prompt_tokens);
    observe(&m->reply_size, tokens, stats->generated_tokens);
    pthread_mutex_unlock(&m->lock);
}

void qn_metrics_token(qn_metrics *m, double gap_ms)
{
    pthread_mutex_lock(&m->lock);
    observe(&m->token_gap, seconds_gap, gap_ms / 1000);
    pthread_mutex_unlock(&m->lock);
}

void qn_metrics_failed(qn_metrics *m, int status)
{
    pthread_mutex_lock(&m->lock);
    size_t i = 0;
    while (i + 1 < QN_N_STATUS && m->failed[i].n && m->failed[i].status != status) i++;
    m->failed[i].status = status;
    m->failed[i].n++;
    pthread_mutex_unlock(&m->lock);
}

void qn_metrics_cache(qn_metrics *m, uint64_t *hits, uint64_t *misses)
{
    pthread_mutex_lock(&m->lock);
    *hits = m->hits;
    *misses = m->misses;
    pthread_mutex_unlock(&m->lock);
}

/* ---- the text ---- */

typedef struct writer {
    qn_buf *out;
    const char *prefix;
    char label[640]; /* model_name="..." */
} writer;

/* Label values escape the backslash, the quote and the line feed. */
static void set_label(writer *w, const char *model)
{
    size_t n = (size_t)snprintf(w->label, sizeof w->label, "model_name=\"");
    for (const char *s = model; *s && n + 4 < sizeof w->label; s++) {
        if (*s == '\n' || *s == '"' || *s == '\\') w->label[n++] = '\\';
        w->label[n++] = *s == '\n' ? 'n' : *s;
    }
    w->label[n++] = '"';
    w->label[n] = '\0';
}

static void head(const writer *w, const char *name, const char *type, const char *help)
{
    qn_buf_printf(w->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", w->prefix, name, help, w->prefix,
                  name, type);
}

static void gauge(const writer *w, const char *name, const char *help, double v)
{
    head(w, name, "gauge", help);
    qn_buf_printf(w->out, "%s%s{%s} %.17g\n", w->prefix, name, w->label, v);
}

static void counter(const writer *w, const char *name, const char *help, uint64_t v)
{
    head(w, name, "counter", help);
    qn_buf_printf(w->out, "%s%s{%s} %" PRIu64 "\n", w->prefix, name, w->label, v);
}

static void histogram(const writer *w, const char *name, const char *help, const qn_histogram *h,
                      const double *bounds)
{
    head(w, name, "histogram", help);
    uint64_t sum = 0;
    for (size_t i = 0; bounds[i] > 0; i++) {
        sum += h->counts[i];
        qn_buf_printf(w->out, "%s%s_bucket{%s,le=\"%.15g\"} %" PRIu64 "\n", w->prefix, name,
                      w->label, bounds[i], sum);
    }
    qn_buf_printf(w->out, "%s%s_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n", w->prefix, name, w->label,
                  h->n);
    qn_buf_printf(w->out, "%s%s_sum{%s} %.17g\n%s%s_count{%s} %" PRIu64 "\n", w->prefix, name,
                  w->label, h->sum, w->prefix, name, w->label, h->n);
}

static void outcomes(const writer *w, const qn_metrics *m)
{
    head(w, "request_success_total", "counter", "Generations that came to their end.");
    for (size_t i = 0; i < QN_N_FINISH; i++) {
        qn_buf_printf(w->out, "%srequest_success_total{%s,finished_reason=\"%s\"} %" PRIu64 "\n",
                      w->prefix, w->label, finishes[i], m->finished[i]);
    }
    head(w, "request_failure_total", "counter",
         "Requests refused, failed (by HTTP status) or left by their client (499).");
    for (size_t i = 0; i < QN_N_STATUS && m->failed[i].n; i++) {
        qn_buf_printf(w->out, "%srequest_failure_total{%s,code=\"%d\"} %" PRIu64 "\n", w->prefix,
                      w->label, m->failed[i].status, m->failed[i].n);
    }
}

static void histograms(const writer *w, const qn_metrics *m)
{
    histogram(w, "time_to_first_token_seconds", "From the request to its first token.", &m->ttft,
              seconds_first);
    histogram(w, "inter_token_latency_seconds", "Between two tokens of a reply.", &m->token_gap,
              seconds_gap);
    histogram(w, "e2e_request_latency_seconds", "From the request to the end of its reply.",
              &m->e2e, seconds_whole);
    histogram(w, "request_queue_time_seconds", "Waiting for a place in the batch.", &m->queue,
              seconds_whole);
    histogram(w, "request_prefill_time_seconds", "Computing the prompt.", &m->prefill,
              seconds_whole);
    histogram(w, "request_decode_time_seconds", "From the first token to the last.", &m->decode,
              seconds_whole);
    histogram(w, "request_prompt_tokens", "Tokens of prompts.", &m->prompt_size, tokens);
    histogram(w, "request_generation_tokens", "Tokens of replies.", &m->reply_size, tokens);
}

/* ---- the process ---- */

static uint64_t resident_bytes(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%llu %llu", &size, &resident) != 2) resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static unsigned open_files(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d) return 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n - 1; /* the directory itself */
}

/* These names have no prefix of ours: every Prometheus client library writes them so. */
static void process(const writer *w, int64_t started)
{
    const writer plain = {.out = w->out, .prefix = "process_"};
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    double cpu = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                 (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
    head(&plain, "cpu_seconds_total", "counter", "CPU time of the process.");
    qn_buf_printf(w->out, "process_cpu_seconds_total %.6f\n", cpu);
    head(&plain, "resident_memory_bytes", "gauge", "Memory of the process.");
    qn_buf_printf(w->out, "process_resident_memory_bytes %" PRIu64 "\n", resident_bytes());
    head(&plain, "open_fds", "gauge", "Open file descriptors.");
    qn_buf_printf(w->out, "process_open_fds %u\n", open_files());
    head(&plain, "start_time_seconds", "gauge", "When the server started, since 1970.");
    qn_buf_printf(w->out, "process_start_time_seconds %" PRId64 "\n", started);
}

void qn_metrics_write(qn_metrics *m, const qn_engine_stats *now, const char *prefix,
                      const char *model, int64_t started, qn_buf *out)
{
    writer w = {.out = out, .prefix = prefix};
    set_label(&w, model);
    double total = (double)now->kv_bytes_total;
    gauge(&w, "num_requests_running", "Rows of the batch.", now->active_rows);
    gauge(&w, "num_requests_waiting", "Requests that wait for a row.", now->waiting_rows);
    gauge(&w, "kv_cache_usage_perc", "Share of the KV memory that running rows use, 0 to 1.",
          total > 0 ? (double)now->kv_bytes_used / total : 0);
    pthread_mutex_lock(&m->lock);
    counter(&w, "prompt_tokens_total", "Prompt tokens of finished requests, cached ones too.",
            m->prompt_tokens);
    counter(&w, "generation_tokens_total", "Generated tokens.", now->generated_tokens);
    counter(&w, "prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
            m->prompt_tokens);
    counter(&w, "prefix_cache_hits_total", "Prompt tokens found there.", m->cached_tokens);
    outcomes(&w, m);
    histograms(&w, m);
    pthread_mutex_unlock(&m->lock);
    process(&w, started);
}
