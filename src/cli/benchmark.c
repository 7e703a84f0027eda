/* benchmark.c - "quern benchmark": tokens per second of prefill and decode, beside the machine's read
 * bandwidth measured in the same run with the same threads.
 *
 * ppN computes a prompt of N random tokens up to its first reply token; tgN decodes N tokens after
 * a prompt of one token, tgNxB does so for B sequences at once. End tokens do not end a run. Prompts
 * never repeat, so that no cache helps.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/bandwidth.h"
#include "cli/git_id.h"
#include "cli/pick.h"
#include "cli/session.h"
#include "cli/stop.h"
#include "cli/synthetic.h"
#include "cli/verbs.h"
#include "core/clock.h"
#include "core/file.h"

enum { PATH_CAP = 4096, MAX_TESTS = 64, MAX_REPEATS = 1000, MAX_BATCH = 256 };

/* One row of the result. */
typedef struct test {
    char name[32];            /* "pp512", "tg128", "tg128x8" */
    uint32_t n_prompt, n_gen; /* tokens that count: one of them is 0 */
    uint32_t n_seqs;          /* sequences at once */
    double rates[MAX_REPEATS]; /* tokens per second of all sequences together, in order */
    size_t n_rates;
    double bytes_per_token;   /* read per decoded token, weights and KV; 0 where not known */
} test;

typedef struct bench {
    char dir[PATH_CAP];
    const char *id;
    qn_store *store;
    qn_folder *folder;
    qn_device *dev;
    qn_model *model;
    qn_engine *engine;
    double load_ms;
    uint64_t random;
    test *tests; /* [n_tests] */
    size_t n_tests;
    double read_bytes_s;
    uint64_t peak_bytes;
    uint32_t n_threads;
    char isa[16];
} bench;

/* ---- opening ---- */

static bool on_synthetic(void *ctx, uint64_t done, uint64_t total)
{
    qn_progress_update(ctx, total ? (double)done / (double)total : -1, NULL);
    return !qn_stop_asked();
}

static void on_load(void *ctx, uint64_t done, uint64_t total)
{
    qn_progress_update(ctx, total ? (double)done / (double)total : -1, NULL);
}

/* Decide which folder: a synthetic checkpoint, or a model on this machine. */
static qn_code find_folder(bench *b, const qn_args *args, qn_err *err)
{
    const char *name = qn_arg_str(args, "synthetic");
    if (!name) {
        const qn_model_entry *e;
        qn_code rc = qn_pick_model(&b->store, args, qn_arg_pos(args, 0), &e, err);
        if (rc) return rc;
        b->id = e->id;
        snprintf(b->dir, sizeof b->dir, "%s", e->path);
        return QN_OK;
    }
    qn_progress p = {0};
    qn_progress_start(&p, "making the synthetic model");
    b->id = name;
    qn_code rc = qn_synthetic_make(name, (uint32_t)qn_arg_int(args, "q-bits"),
                                   (uint32_t)qn_arg_int(args, "q-group-size"), on_synthetic, &p, b->dir, sizeof b->dir,
                                   err);
    qn_progress_end(&p, !rc, NULL);
    return rc;
}

static uint32_t longest(const bench *b)
{
    uint32_t n = 64;
    for (size_t i = 0; i < b->n_tests; i++) {
        uint32_t need = b->tests[i].n_prompt + b->tests[i].n_gen + 2;
        if (need > n) n = need;
    }
    return n;
}

static uint32_t most_sequences(const bench *b)
{
    uint32_t n = 1;
    for (size_t i = 0; i < b->n_tests; i++)
        if (b->tests[i].n_seqs > n) n = b->tests[i].n_seqs;
    return n;
}

static qn_code open_model(bench *b, const qn_args *args, qn_progress *p, qn_err *err)
{
    char cache[PATH_CAP];
    qn_code rc;
    qn_kv_scheme kv = qn_kv_scheme_read(args);
    kv.config_required = true;
    qn_device_opts device = qn_device_opts_read(args);
    bool cached = !qn_arg_bool(args, "no-panel-cache") && !qn_state_path(cache, sizeof cache, "panels", NULL);
    qn_model_opts mo = {.cache_dir = cached ? cache : NULL, .progress = on_load, .user = p,
                        .max_positions = longest(b)};
    if ((rc = qn_folder_open(&b->folder, b->dir, false, err))) return rc;
    if ((rc = qn_device_open(&b->dev, &device, err))) return rc;
    b->n_threads = b->dev->ops->n_threads(b->dev);
    snprintf(b->isa, sizeof b->isa, "%s", qn_device_isa(b->dev));
    if ((rc = qn_model_open(&b->model, b->folder, b->dev, &mo, err))) return rc;
    if ((rc = qn_kv_scheme_apply(&kv, b->dir, &b->model->kv, err))) return rc;
    qn_engine_opts eo = {.max_rows = most_sequences(b), .max_positions = longest(b),
                         .block_tokens = qn_block_tokens_read(args)};
    eo.step_tokens = eo.mlx_prefill = (uint32_t)qn_arg_int(args, "prefill-step-size");
    return qn_engine_new(&b->engine, b->model, &eo, err);
}

static void close_bench(bench *b)
{
    if (b->engine) qn_engine_free(b->engine);
    if (b->model) qn_model_close(b->model);
    if (b->dev) b->dev->ops->close(b->dev);
    if (b->folder) qn_folder_close(b->folder);
    qn_store_close(b->store);
    free(b->tests);
}

/* ---- running ---- */

static uint32_t random_id(bench *b)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((b->random >> 33) % b->model->info.n_vocab);
}

/* Submit one request of n_prompt random tokens that makes n_reply. */
static qn_code submit(bench *b, uint32_t n_prompt, uint32_t n_reply, qn_gen **out, qn_err *err)
{
    uint32_t *ids = malloc(n_prompt * sizeof *ids);
    if (!ids) return qn_err_set(err, QN_NOMEM, "benchmark: out of memory");
    for (uint32_t i = 0; i < n_prompt; i++) ids[i] = random_id(b);
    qn_request req = {.prompt = ids, .n_prompt = n_prompt, .max_tokens = n_reply, .ignore_eos = true};
    qn_code rc = qn_engine_submit(b->engine, &req, out, err);
    free(ids);
    return rc;
}

/* Take what row g has; true once it is done, with its end in *done. Rows are drained in turn, so that
 * none waits for room in its ring. */
static bool drain(qn_gen *g, int wait_ms, qn_event *done)
{
    qn_event ev;
    for (bool any = qn_gen_wait(g, &ev, wait_ms); any; any = qn_gen_next(g, &ev)) {
        if (ev.kind != QN_EV_DONE) continue;
        *done = ev;
        return true;
    }
    return false;
}

/* Run n_seqs requests at once; fills stats[n_seqs]. */
static qn_code run_once(bench *b, uint32_t n_seqs, uint32_t n_prompt, uint32_t n_reply, qn_gen_stats *stats,
                        qn_err *err)
{
    qn_gen *gens[MAX_BATCH];
    uint32_t n = 0, n_done = 0;
    qn_code rc = QN_OK;
    while (n < n_seqs && !rc) {
        rc = submit(b, n_prompt, n_reply, &gens[n], err);
        if (!rc) n++;
    }
    bool ended[MAX_BATCH] = {0};
    while (n_done < n) {
        for (uint32_t i = 0; i < n; i++) {
            qn_event ev;
            if (ended[i]) continue;
            if (rc || qn_stop_asked()) qn_gen_cancel(gens[i]);
            if (!drain(gens[i], 20, &ev)) continue;
            ended[i] = true;
            n_done++;
            stats[i] = ev.stats;
            if (rc) continue;
            if (ev.finish == QN_FINISH_ERROR) *err = ev.err, rc = ev.err.code;
            if (ev.finish == QN_FINISH_CANCELLED) rc = qn_err_set(err, QN_CANCELLED, "benchmark: stopped");
        }
    }
    for (uint32_t i = 0; i < n; i++) qn_gen_free(gens[i]);
    return rc;
}

static qn_code run_test(bench *b, test *t, size_t repeats, qn_err *err)
{
    for (size_t i = 0; i < repeats; i++) {
        qn_gen_stats st[MAX_BATCH] = {0};
        qn_code rc = t->n_gen ? run_once(b, t->n_seqs, 1, t->n_gen + 1, st, err)
                              : run_once(b, 1, t->n_prompt, 1, st, err);
        if (rc) return rc;
        double rate = 0;
        for (uint32_t r = 0; r < t->n_seqs; r++) {
            double ms = t->n_gen ? st[r].decode_ms : st[r].prefill_ms;
            if (ms > 0) rate += (t->n_gen + t->n_prompt) * 1000.0 / ms;
        }
        t->rates[t->n_rates++] = rate;
    }
    return QN_OK;
}

static double kv_bytes_per_position(const qn_model *m)
{
    double sum = 0;
    for (uint32_t i = 0; i < m->kv.n_layers; i++)
        sum += (double)qn_kv_layer_bytes(&m->kv.layers[i]);
    return sum;
}

/* Weights are read once for a token, and the KV of every position before it: half the run on average.
 * Sequences at once share the weights, and arithmetic bounds them: no figure then. */
static double bytes_per_token(const qn_model *m, const test *t)
{
    if (!t->n_gen || t->n_seqs > 1) return 0;
    return (double)m->info.step_bytes + kv_bytes_per_position(m) * (t->n_gen + 2) / 2;
}

static qn_code run_all(bench *b, const qn_args *args, qn_err *err)
{
    qn_gen_stats warm_up;
    qn_code rc = run_once(b, 1, 8, 2, &warm_up, err);
    for (size_t i = 0; i < b->n_tests && !rc; i++) {
        qn_progress p = {0};
        qn_progress_start(&p, b->tests[i].name);
        rc = run_test(b, &b->tests[i], (size_t)qn_arg_int(args, "repeats"), err);
        b->tests[i].bytes_per_token = bytes_per_token(b->model, &b->tests[i]);
        qn_progress_end(&p, !rc, NULL);
    }
    if (rc) return rc;
    b->peak_bytes = qn_peak_bytes(); /* before the buffer of the next step */
    return qn_read_bandwidth(b->n_threads, &b->read_bytes_s, err);
}

/* ---- showing ---- */

typedef struct summary {
    double median, mean, sd, min, max;
} summary;

static int by_value(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;
    return (a > b) - (a < b);
}

static summary summarize(const test *t)
{
    double v[MAX_REPEATS], sum = 0, squares = 0;
    size_t n = t->n_rates;
    if (!n) return (summary){0};
    memcpy(v, t->rates, n * sizeof *v);
    qsort(v, n, sizeof *v, by_value);
    for (size_t i = 0; i < n; i++) sum += v[i];
    double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) squares += (v[i] - mean) * (v[i] - mean);
    return (summary){.median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, .mean = mean,
                     .sd = n > 1 ? sqrt(squares / (double)(n - 1)) : 0, .min = v[0], .max = v[n - 1]};
}

/* Share of the read bandwidth that a decode test reached; 0 for prefill. */
static double share(const bench *b, const test *t, double rate)
{
    return b->read_bytes_s > 0 ? rate * t->bytes_per_token / b->read_bytes_s : 0;
}

static void cpu_name(char *out, size_t cap)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, cap, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(out, cap, "%s", colon + 2);
        break;
    }
    if (f) fclose(f);
}

static json_t *test_json(const bench *b, const test *t)
{
    summary s = summarize(t);
    json_t *runs = json_array();
    for (size_t i = 0; i < t->n_rates; i++) json_array_append_new(runs, json_real(t->rates[i]));
    json_t *j = json_pack("{s:s, s:i, s:i, s:i, s:{s:f, s:f, s:f, s:f, s:f}, s:o}", "test", t->name, "n_prompt",
                          (int)t->n_prompt, "n_gen", (int)t->n_gen, "n_seqs", (int)t->n_seqs,
                          "tok_s", "median", s.median, "mean", s.mean, "sd",
                          s.sd, "min", s.min, "max", s.max, "runs", runs);
    json_object_set_new(j, "bytes_per_token",
                        t->bytes_per_token > 0 ? json_integer((json_int_t)t->bytes_per_token) : json_null());
    json_object_set_new(j, "bandwidth_share",
                        t->bytes_per_token > 0 ? json_real(share(b, t, s.median)) : json_null());
    return j;
}

static void print_json(const bench *b)
{
    char cpu[200], date[40];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    cpu_name(cpu, sizeof cpu);
    json_t *tests = json_array();
    for (size_t i = 0; i < b->n_tests; i++) json_array_append_new(tests, test_json(b, &b->tests[i]));
    const qn_model_info *info = &b->model->info;
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:f, s:I, s:f, s:o}", "engine",
                          "quern", "version", QN_VERSION, "git", QN_GIT, "date", date, "model", b->id, "cpu", cpu,
                          "isa", b->isa, "threads", (int)b->n_threads, "n_params", (json_int_t)info->n_params,
                          "step_bytes", (json_int_t)info->step_bytes, "load_ms", b->load_ms, "peak_bytes",
                          (json_int_t)b->peak_bytes, "read_bytes_s", b->read_bytes_s, "tests", tests);
    json_dumpf(j, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(8));
    putchar('\n');
    json_decref(j);
}

static void print_markdown(const bench *b)
{
    char peak[32];
    printf("| model | threads | isa | test | tok/s | +- | GB/token | GB/s | share of read bandwidth |\n"
           "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    for (size_t i = 0; i < b->n_tests; i++) {
        const test *t = &b->tests[i];
        summary s = summarize(t);
        printf("| %s | %u | %s | %s | %.2f | %.2f | ", b->id, b->n_threads, b->isa, t->name, s.median, s.sd);
        if (t->bytes_per_token <= 0) printf("| | |\n");
        else printf("%.3f | %.1f | %.2f |\n", t->bytes_per_token / 1e9, s.median * t->bytes_per_token / 1e9,
                    share(b, t, s.median));
    }
    printf("\nread bandwidth %.1f GB/s with %u threads; opened in %.2f s; peak memory %s\n", b->read_bytes_s / 1e9,
           b->n_threads, b->load_ms / 1000, qn_bytes_text(peak, b->peak_bytes));
}

/* ---- the verb ---- */

static void add_test(bench *b, uint32_t n_prompt, uint32_t n_gen, uint32_t n_seqs)
{
    if (b->n_tests == MAX_TESTS) return;
    test *t = &b->tests[b->n_tests++];
    *t = (test){.n_prompt = n_prompt, .n_gen = n_gen, .n_seqs = n_seqs};
    if (n_seqs > 1) snprintf(t->name, sizeof t->name, "tg%ux%u", n_gen, n_seqs);
    else snprintf(t->name, sizeof t->name, "%s%u", n_gen ? "tg" : "pp", n_gen + n_prompt);
}

static void add_tests(bench *b, const qn_args *args)
{
    size_t n_pp, n_tg, n_batch;
    const int64_t *pp = qn_arg_ints(args, "pp", &n_pp), *tg = qn_arg_ints(args, "tg", &n_tg);
    const int64_t *batch = qn_arg_ints(args, "batch-size", &n_batch);
    for (size_t i = 0; i < n_pp; i++)
        if (pp[i]) add_test(b, (uint32_t)pp[i], 0, 1);
    for (size_t i = 0; i < n_tg; i++)
        for (size_t k = 0; k < n_batch && tg[i]; k++) add_test(b, 0, (uint32_t)tg[i], (uint32_t)batch[k]);
}

static qn_code measure(bench *b, const qn_args *args, qn_err *err)
{
    b->tests = calloc(MAX_TESTS, sizeof *b->tests);
    if (!b->tests) return qn_err_set(err, QN_NOMEM, "benchmark: out of memory");
    add_tests(b, args);
    if (!b->n_tests) return qn_err_set(err, QN_INVALID, "nothing to measure: --pp and --tg are both 0");
    qn_code rc = find_folder(b, args, err);
    if (rc) return rc;
    qn_progress p = {0};
    qn_progress_start(&p, "opening the model");
    double start = qn_now_ms();
    rc = open_model(b, args, &p, err);
    b->load_ms = qn_now_ms() - start;
    qn_progress_end(&p, !rc, NULL);
    return rc ? rc : run_all(b, args, err);
}

static int run_benchmark(const qn_args *args)
{
    qn_err err = {0};
    bench b = {0};
    qn_stop_catch();
    qn_code rc = measure(&b, args, &err);
    int status = QN_EXIT_OK;
    if (rc) status = rc == QN_INVALID ? qn_fail_usage(&err) : qn_fail(&err);
    else if (!strcmp(qn_arg_str(args, "output"), "json")) print_json(&b);
    else print_markdown(&b);
    if (qn_stop_asked()) status = qn_stop_status();
    close_bench(&b);
    return status;
}

static const qn_opt opts[] = {
    {.name = "pp", .kind = QN_OPT_INTS, .min = 0, .max = 1e6, .dflt = "512",
     .help = "prompt lengths to measure prefill at; 0: none"},
    {.name = "prompt-tokens", .brief = "p", .kind = QN_OPT_INTS, .min = 0, .max = 1e6, .same_as = "pp"},
    {.name = "tg", .kind = QN_OPT_INTS, .min = 0, .max = 1e6, .dflt = "128",
     .help = "reply lengths to measure decode at; 0: none"},
    {.name = "generation-tokens", .brief = "g", .kind = QN_OPT_INTS, .min = 0, .max = 1e6, .same_as = "tg"},
    {.name = "repeats", .brief = "r", .kind = QN_OPT_INT, .min = 1, .max = MAX_REPEATS, .dflt = "5",
     .help = "runs of each test"},
    {.name = "num-trials", .brief = "n", .kind = QN_OPT_INT, .min = 1, .max = MAX_REPEATS, .same_as = "repeats"},
    {.name = "output", .brief = "o", .kind = QN_OPT_ENUM, .choices = "md|json", .dflt = "md",
     .help = "a Markdown table, or JSON with every run"},
    {.name = "batch-size", .brief = "b", .kind = QN_OPT_INTS, .arg = "N,N", .min = 1, .max = MAX_BATCH, .dflt = "1",
     .help = "numbers of sequences that decode at once; their rates are added up"},
    {.name = "delay", .kind = QN_OPT_INT, .refused = "pauses between runs", .hidden = true},
    {.name = "pg", .kind = QN_OPT_LIST, .refused = "tests of prompt and reply together", .hidden = true},
    {.name = "depth", .kind = QN_OPT_INTS, .refused = "tests behind a filled context", .hidden = true},
    {.name = "method", .kind = QN_OPT_ENUM, .choices = "random|essay", .refused = "prompts other than random tokens",
     .hidden = true},
    {0},
};
static const qn_opt synthetic_opts[] = {
    {.name = "synthetic", .kind = QN_OPT_STR, .arg = "NAME",
     .help = "measure a model of this shape with random weights: smollm2-135m, smollm2-1.7b, llama-3.2-1b, "
             "llama-3.2-3b, llama-3.1-8b; it is made once and kept under synthetic/ in Quern's state folder"},
    {.name = "q-bits", .kind = QN_OPT_INT, .min = 2, .max = 8, .dflt = "4", .help = "its bits per weight"},
    {.name = "q-group-size", .kind = QN_OPT_INT, .min = 32, .max = 128, .dflt = "64", .help = "its weights per scale"},
    {0},
};
static const qn_opt_group groups[] = {
    {"Tests", opts}, {"Synthetic models", synthetic_opts}, {"Model", qn_opts_model}, {"Device", qn_opts_device},
    {"Steps", qn_opts_step},
    {"KV cache", qn_opts_kv}, {"Known from mlx_lm", qn_opts_refused}, {0}};
static const qn_pos pos[] = {{"MODEL", "a folder, or a part of the name of a model on this machine", false}, {0}};
const qn_verb qn_verb_benchmark = {
    .name = "benchmark", .alias = "bench", .summary = "measure prefill and decode speed", .pos = pos, .groups = groups,
    .about = "Per test: the median of the runs and their standard deviation in tokens per second; for\n"
             "decode also the bytes read for a token (weights, and the KV cache on average) and the share\n"
             "of the machine's read bandwidth, which is measured in the same run with the same threads.\n",
    .examples = "  quern benchmark smollm2 --pp 128,512 --tg 128 -r 5\n"
                "  quern benchmark --synthetic llama-3.2-1b -o json\n"
                "  quern benchmark --synthetic llama-3.2-1b --pp 0 --tg 64 -b 1,8\n",
    .run = run_benchmark,
};
