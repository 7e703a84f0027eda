/* serve.c - "quern serve": one model behind HTTP. */
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/pick.h"
#include "cli/session.h"
#include "cli/stop.h"
#include "cli/verbs.h"
#include "core/file.h"
#include "core/log.h"
#include "core/rt.h"
#include "serve/server.h"

#define STRICT "strict" /* --kv-budget */

enum { KEY_FILE_MAX = 1 << 16, MAX_KEYS = 64, DEFAULT_SHUTDOWN_MS = 120000, MAX_WAITING = 64 };

/* What the server takes once it runs, without requests: threads and pages of its libraries, those of the
 * store of responses. Measured; tests/api/test_memory.py says when they are off. */
enum { SERVER_BYTES = 600 << 10, STORE_BYTES = 1300 << 10 };

typedef struct keys {
    char *file;                      /* text of --api-key-file, cut into lines */
    const char *list[MAX_KEYS + 1];  /* NULL terminated */
    size_t n;
} keys;

static qn_code read_keys(keys *k, const qn_args *args, qn_err *err)
{
    size_t n, size;
    const char *const *given = qn_arg_words(args, "api-key", &n);
    if (n > MAX_KEYS) return qn_err_set(err, QN_LIMIT, "--api-key: more than %d keys", MAX_KEYS);
    for (size_t i = 0; i < n; i++) k->list[k->n++] = given[i];
    const char *path = qn_arg_str(args, "api-key-file");
    if (!path) return QN_OK;
    qn_code rc = qn_file_read(path, KEY_FILE_MAX, &k->file, &size, err);
    if (rc) return rc;
    char *rest = NULL;
    for (char *line = strtok_r(k->file, "\r\n", &rest); line;
         line = strtok_r(NULL, "\r\n", &rest)) {
        if (k->n == MAX_KEYS)
            return qn_err_set(err, QN_LIMIT, "%s: more than %d keys", path, MAX_KEYS);
        k->list[k->n++] = line;
    }
    if (!k->n)
        return qn_err_set(err, QN_INVALID, "%s holds no key; right would be one key a line", path);
    return QN_OK;
}

static void announce(const qn_server *server, const qn_session *s)
{
    if (!qn_is_terminal(stdout)) {
        printf("listening on %s model=%s\n", qn_server_url(server), s->loaded->id);
        fflush(stdout);
        return;
    }
    char lines[4][512];
    snprintf(lines[0], sizeof lines[0], "serving %s", s->loaded->id);
    snprintf(lines[1], sizeof lines[1], "API     %s/v1", qn_server_url(server));
    snprintf(lines[2], sizeof lines[2], "ready   in %.2f s", s->load_ms / 1000);
    snprintf(lines[3], sizeof lines[3], "Ctrl-C  ends it after the running requests");
    const char *const shown[] = {lines[0], lines[1], lines[2], lines[3]};
    qn_box(stderr, shown, 4);
}

/* What requests get that say nothing: the command line, else the model's own, else the built-ins.
 */
static qn_request_defaults read_defaults(const qn_args *args, const qn_session *s)
{
    qn_request_defaults d = {
        .sampling = qn_sampling_read(args, s->loaded->folder),
        .sampling_explicit = qn_arg_given(args, "temperature"),
        .max_tokens = qn_arg_given(args, "max-tokens") ? qn_arg_int(args, "max-tokens") : -1};
    const json_t *own = json_object_get(qn_folder_generation(s->loaded->folder), "temperature");
    if (!d.sampling_explicit && !json_is_number(own)) d.sampling.temperature = 0.7f;
    return d;
}

static qn_code read_template_args(const qn_args *args, json_t **out, qn_err *err)
{
    const char *text = qn_arg_str(args, "chat-template-args");
    *out = text ? json_loads(text, 0, NULL) : json_object();
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return qn_err_set(err, QN_INVALID, "--chat-template-args expects a JSON object, not %.60s",
                          text);
    }
    if (qn_arg_given(args, "thinking")) {
        json_object_set_new(*out, "enable_thinking", json_boolean(qn_arg_bool(args, "thinking")));
    }
    return QN_OK;
}

/* The options that need no model. */
static qn_server_opts read_server_opts(const qn_args *args, const keys *k,
                                       const json_t *template_args)
{
    size_t n_origins;
    const char *reasoning = qn_arg_str(args, "reasoning-field");
    return (qn_server_opts){
        .host = qn_arg_str(args, "host"),
        .port = (uint16_t)qn_arg_int(args, "port"),
        .unix_path = qn_arg_str(args, "unix"),
        .api_keys = k->list,
        .allowed_origins = qn_arg_words(args, "allowed-origins", &n_origins),
        .template_args = template_args,
        .reasoning_field = !strcmp(reasoning, "both")        ? QN_REASONING_BOTH
                           : !strcmp(reasoning, "reasoning") ? QN_REASONING_PLAIN
                                                             : QN_REASONING_CONTENT,
        .body_limit_bytes = qn_arg_bytes(args, "body-limit"),
        .memory_budget_bytes = qn_arg_bytes(args, "memory-budget"),
        .metrics_prefix = qn_arg_str(args, "metrics-prefix"),
        .ping_ms = (uint32_t)(qn_arg_float(args, "sse-ping-interval") * 1000),
        .store_bytes = qn_arg_bytes(args, "response-store"),
        .store_ttl_ms = (uint32_t)(qn_arg_float(args, "response-ttl") * 1000),
        .no_store = qn_arg_bytes(args, "response-store") == 0,
    };
}

static uint32_t shutdown_ms(void)
{
    double ms = qn_rt_number("SHUTDOWN_TIMEOUT_MS", DEFAULT_SHUTDOWN_MS);
    return ms > 0 && ms < 4e9 ? (uint32_t)ceil(ms) : DEFAULT_SHUTDOWN_MS;
}

static int run_server(const qn_session *s, const qn_server_opts *so)
{
    qn_err err = {0};
    qn_server *server;
    if (qn_server_start(&server, so, &err)) return qn_fail(&err);
    announce(server, s);
    qn_stop_wait();
    fputs("stopping; running requests may finish\n", stderr);
    unsigned ended = qn_server_stop(server, shutdown_ms());
    if (ended) fprintf(stderr, "%u requests were ended before they were done\n", ended);
    return QN_EXIT_OK;
}

static int serve(const qn_args *args, const qn_session *s, qn_server_opts so)
{
    qn_err err = {0};
    qn_sanitizer *sanitizer = NULL;
    so.engine = s->engine;
    so.loaded = s->loaded;
    so.budget_binds = qn_engine_memory_binds(s->engine);
    so.defaults = read_defaults(args, s);
    if (qn_arg_bool(args, "sanitize-control-tokens") &&
        qn_sanitizer_new(&sanitizer, s->loaded->tok, s->loaded->chat, &err)) {
        return qn_fail(&err);
    }
    so.sanitizer = sanitizer;
    int status = run_server(s, &so);
    qn_sanitizer_free(sanitizer);
    return status;
}

/* --chat-template instead of the model's own. */
static qn_code replace_template(const qn_args *args, qn_loaded *loaded, qn_err *err)
{
    const char *source = qn_arg_str(args, "chat-template");
    qn_chat_template *given;
    if (!source || !*source) return QN_OK;
    qn_code rc = qn_chat_template_from_source(&given, source, strlen(source),
                                              qn_tokenizer_config(loaded->tok), err);
    if (rc) return rc;
    qn_chat_template_free(loaded->chat);
    loaded->chat = given;
    return QN_OK;
}

/* The file of stored responses; false without a folder for it, which a server can do without. */
static bool find_store(char *path, size_t cap)
{
    return !qn_state_path(path, cap, NULL, NULL) && !qn_mkdirs(path, NULL) &&
           !qn_state_path(path, cap, "quern.sqlite", NULL);
}

/* Best effort: a server that may not keep its weights in memory is slow at worst. */
static void pin_weights(const qn_session *s)
{
    qn_err err = {0};
    const qn_device *dev = s->loaded->model->dev;
    if (dev->ops->weights_pin(dev, &err)) fprintf(stderr, "quern: warning: --force-wire: %s\n", err.text);
}

static int open_and_serve(const qn_args *args, const keys *k, const json_t *template_args)
{
    qn_err err = {0};
    qn_session s;
    qn_server_opts so = read_server_opts(args, k, template_args);
    char store[PATH_MAX];
    if (find_store(store, sizeof store)) so.store_path = store;
    /* A port in use is known before a model is loaded. */
    if (qn_server_check_address(&so, &err)) return qn_fail(&err);
    qn_engine_opts limits = {.max_rows = (uint32_t)qn_arg_int(args, "batch"),
                             .max_queue = MAX_WAITING,
                             .beside_bytes = SERVER_BYTES + (so.store_path && !so.no_store ? STORE_BYTES : 0),
                             .strict_kv = !strcmp(qn_arg_str(args, "kv-budget"), STRICT),
                             .memory_bytes = qn_arg_bytes(args, "memory-budget"),
                             .sink_timeout_ms = 60000,
                             .prefix_bytes = qn_arg_bytes(args, "prompt-cache"),
                             .prefix_entries = (uint32_t)qn_arg_int(args, "prompt-cache-size"),
                             .prefill_rows = (uint32_t)qn_arg_int(args, "prompt-concurrency")};
    limits.no_prefix_cache = limits.prefix_bytes == 0;
    if (!limits.strict_kv)
        qn_size_parse(qn_arg_str(args, "kv-budget"), QN_SIZE_GB, &limits.kv_bytes);
    so.kv_budget_bytes = limits.kv_bytes;
    if (qn_session_open(&s, args, qn_arg_pos(args, 0), NULL, &limits, &err)) {
        int status = qn_fail(&err);
        return qn_stop_asked() ? QN_EXIT_OK : status;
    }
    if (qn_arg_bool(args, "force-wire")) pin_weights(&s);
    if (qn_arg_str(args, "alias")) {
        char *name = strdup(qn_arg_str(args, "alias"));
        if (name) {
            free(s.loaded->id);
            s.loaded->id = name;
        }
    }
    int status = replace_template(args, s.loaded, &err) ? qn_fail(&err) : serve(args, &s, so);
    qn_session_close(&s);
    return status;
}

static int run_serve(const qn_args *args)
{
    qn_err err = {0};
    keys k = {0};
    json_t *template_args = NULL;
    qn_level level = QN_INFO;
    qn_level_parse(qn_arg_str(args, "log-level"), &level);
    qn_log_set_level(level);
    int status;
    if (read_keys(&k, args, &err) || read_template_args(args, &template_args, &err)) {
        status = qn_fail_usage(&err);
    } else {
        qn_stop_catch();
        status = open_and_serve(args, &k, template_args);
    }
    json_decref(template_args);
    free(k.file);
    return status;
}

/* GB, or the word for admission by full length. */
static qn_code check_kv_budget(const char *text, qn_err *err)
{
    uint64_t bytes;
    if (!strcmp(text, STRICT) || qn_size_parse(text, QN_SIZE_GB, &bytes)) return QN_OK;
    return qn_err_set(err, QN_INVALID, "--kv-budget: bad size: %s (right would be 1.5GB, or %s)", text, STRICT);
}

static const qn_opt http_opts[] = {
    {.name = "host",
     .kind = QN_OPT_STR,
     .arg = "ADDRESS",
     .dflt = "127.0.0.1",
     .help = "address to listen on"},
    {.name = "port",
     .kind = QN_OPT_INT,
     .min = 0,
     .max = 65535,
     .dflt = "8080",
     .help = "port; 0 takes a free one"},
    {.name = "unix",
     .kind = QN_OPT_STR,
     .arg = "PATH",
     .help = "listen on a socket in the file system instead"},
    {.name = "api-key",
     .kind = QN_OPT_LIST,
     .adds = true,
     .env = "API_KEY",
     .arg = "KEY",
     .help = "clients must show one of these keys; may be repeated"},
    {.name = "api-key-file",
     .kind = QN_OPT_STR,
     .arg = "FILE",
     .help = "the same from a file, one key a line"},
    {.name = "allowed-origins", .kind = QN_OPT_LIST, .dflt = "*", .help = "web pages that may ask"},
    {.name = "body-limit",
     .kind = QN_OPT_SIZE,
     .size_rule = QN_SIZE_BYTES,
     .min = 1024,
     .max = 4e9,
     .dflt = "134217728",
     .help = "largest request body"},
    {.name = "response-store",
     .kind = QN_OPT_SIZE,
     .size_rule = QN_SIZE_GIB,
     .min = 0,
     .max = 1e15,
     .dflt = "32MiB",
     .arg = "GIB",
     .help = "room for the stored responses of /v1/responses, in Quern's folder; 0: store none"},
    {.name = "response-ttl",
     .kind = QN_OPT_FLOAT,
     .min = 0.001,
     .max = 2592000,
     .dflt = "3600",
     .arg = "SECONDS",
     .help = "how long a response stays stored"},
    {.name = "sse-ping-interval",
     .kind = QN_OPT_FLOAT,
     .min = 0.1,
     .max = 3600,
     .dflt = "15",
     .arg = "SECONDS",
     .help = "silence after which a stream gets a comment"},
    {.name = "metrics-prefix",
     .kind = QN_OPT_STR,
     .dflt = "quern:",
     .arg = "TEXT",
     .help = "what the names in /metrics begin with"},
    {.name = "alias", .kind = QN_OPT_STR, .arg = "NAME", .help = "the model's name for clients"},
    {.name = "served-model-name", .kind = QN_OPT_STR, .same_as = "alias", .hidden = true},
    {.name = "log-level",
     .kind = QN_OPT_ENUM,
     .dflt = "INFO",
     .choices = "DEBUG|INFO|WARNING|ERROR|CRITICAL|debug|info|warning|error|critical",
     .arg = "LEVEL",
     .help = "DEBUG, INFO, WARNING, ERROR or CRITICAL"},
    {0},
};
static const qn_opt request_opts[] = {
    {.name = "batch",
     .kind = QN_OPT_INT,
     .min = 1,
     .max = 256,
     .dflt = "8",
     .help = "requests that run at once; further ones wait"},
    {.name = "decode-concurrency",
     .kind = QN_OPT_INT,
     .min = 1,
     .max = 256,
     .same_as = "batch",
     .hidden = true},
    {.name = "max-num-seqs",
     .kind = QN_OPT_INT,
     .min = 1,
     .max = 256,
     .same_as = "batch",
     .hidden = true},
    {.name = "max-tokens",
     .kind = QN_OPT_INT,
     .min = 1,
     .max = 1e7,
     .help = "longest reply where a request does not say; without it: the context for chat, 512 "
             "for completions"},
    {.name = "chat-template-args",
     .kind = QN_OPT_STR,
     .arg = "JSON",
     .help = "variables for the chat template"},
    {.name = "sanitize-control-tokens",
     .kind = QN_OPT_BOOL,
     .help = "control tokens that the messages, tools or template variables of a request spell stay "
             "text"},
    {.name = "thinking",
     .kind = QN_OPT_SWITCH,
     .help = "ask the chat template for thinking, or for none; without it: the template's own way"},
    {.name = "reasoning-field",
     .kind = QN_OPT_ENUM,
     .dflt = "both",
     .choices = "both|reasoning|reasoning_content",
     .arg = "NAME",
     .help = "the reasoning's name in chat replies: reasoning, reasoning_content or both"},
    {.name = "prompt-cache",
     .kind = QN_OPT_SIZE,
     .size_rule = QN_SIZE_GIB,
     .min = 0,
     .max = 1e15,
     .dflt = "8",
     .arg = "GIB",
     .help = "memory for the KV of earlier prompts and replies, which later ones reuse; 0: off"},
    {.name = "prompt-cache-bytes",
     .kind = QN_OPT_SIZE,
     .size_rule = QN_SIZE_BYTES,
     .min = 0,
     .max = 1e15,
     .same_as = "prompt-cache",
     .hidden = true},
    {.name = "prompt-cache-size",
     .kind = QN_OPT_INT,
     .min = 0,
     .max = 1e9,
     .dflt = "0",
     .arg = "ENTRIES",
     .help = "most prompts and replies in the prompt cache; 0: as many as its bytes hold"},
    {.name = "chat-template",
     .kind = QN_OPT_STR,
     .arg = "TEXT",
     .help = "the source of a chat template, instead of the model's own"},
    {.name = "prompt-concurrency",
     .kind = QN_OPT_INT,
     .min = 1,
     .max = 256,
     .dflt = "8",
     .help = "prompts that share a step at most"},
    {.name = "memory-budget",
     .kind = QN_OPT_SIZE,
     .size_rule = QN_SIZE_GB,
     .min = 0,
     .max = 1e15,
     .dflt = "0",
     .arg = "GB",
     .help = "memory for the whole process: weights, KV cache, a step's work, requests, the program. "
             "0: half of what is free for the KV cache"},
    {.name = "force-wire",
     .kind = QN_OPT_BOOL,
     .env = "FORCE_WIRE",
     .help = "keep the weights in memory, whatever else wants room; goes on without if the system does not "
             "let it (ulimit -l)"},
    {.name = "kv-budget",
     .kind = QN_OPT_STR,
     .check = check_kv_budget,
     .dflt = "0",
     .arg = "GB",
     .help = "memory for the KV cache of running requests; more requests wait. 0: no own limit; "
             "strict: none, and a request waits until it fits at its full length"},
    {0},
};

/* Accepted because they say what is so anyway, and refused because their work is still to come. */
#define IGNORED(flag, of_kind, why) {.name = flag, .kind = of_kind, .ignored = why, .hidden = true}
#define REFUSED(flag, of_kind, why) {.name = flag, .kind = of_kind, .refused = why, .hidden = true}
static const char disk_tier[] = "the disk tier of the prompt cache",
                  one_step[] = "every step is planned the same way",
                  speculation[] = "speculation";
static const qn_opt other_opts[] = {
    IGNORED("no-open", QN_OPT_BOOL, "a browser is never opened"),
    IGNORED("compiled-decode", QN_OPT_SWITCH, one_step),
    IGNORED("compiled-activations", QN_OPT_SWITCH, one_step),
    IGNORED("fused-sdpa", QN_OPT_SWITCH, "attention is always fused"),
    REFUSED("open", QN_OPT_BOOL, "opening a browser"),
    REFUSED("isolate", QN_OPT_BOOL, "an engine in a process of its own"),
    REFUSED("model-pool", QN_OPT_INT, "several models"),
    REFUSED("ssd-cache", QN_OPT_STR, disk_tier),
    REFUSED("ssd-cache-max", QN_OPT_STR, disk_tier),
    REFUSED("ssd-demote-idle", QN_OPT_STR, disk_tier),
    REFUSED("ssd-cache-verify", QN_OPT_BOOL, disk_tier),
    REFUSED("generation-checkpoint", QN_OPT_INT, disk_tier),
    REFUSED("allow-private-media", QN_OPT_BOOL, "images and audio"),
    REFUSED("ngram-max", QN_OPT_INT, speculation),
    REFUSED("ngram-min", QN_OPT_INT, speculation),
    REFUSED("mtp", QN_OPT_SWITCH, speculation),
    REFUSED("expert-offload", QN_OPT_BOOL, "experts on disk"),
    REFUSED("l3", QN_OPT_BOOL, "a third tier; --l1 is exact, the default is fast"),
    REFUSED("auto-download", QN_OPT_BOOL, "downloading"),
    REFUSED("download", QN_OPT_BOOL, "downloading"),
    {0},
};
#undef IGNORED
#undef REFUSED
static const qn_opt_group groups[] = {
    {"HTTP", http_opts}, {"Requests", request_opts}, {"Model", qn_opts_model},
    {"Sampling where a request does not say", qn_opts_sampling}, {"Device", qn_opts_device},
    {"Steps", qn_opts_step},
    {"KV cache", qn_opts_kv}, {"Known from mlx_lm", qn_opts_refused},
    {"Known from mlx-bun", other_opts}, {0}};
static const qn_pos pos[] = {
    {"MODEL", "a folder, or a part of the name of a model on this machine", false}, {0}};
const qn_verb qn_verb_serve = {
    .name = "serve",
    .summary = "answer the OpenAI protocol over HTTP",
    .pos = pos,
    .groups = groups,
    .about = "Off a terminal one line on stdout says when requests are taken:\n"
             "listening on http://HOST:PORT model=NAME. SIGINT and SIGTERM let running requests "
             "finish; a\n"
             "second signal ends at once. Temperature, top-p and top-k come from the model's\n"
             "generation_config.json unless they are given; without both the temperature is 0.7.\n",
    .examples = "  quern serve smollm2\n  quern serve ./my-model --host 0.0.0.0 --port 8000 "
                "--api-key secret\n",
    .run = run_serve,
};
