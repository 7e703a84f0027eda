/* generate.c - "quern generate": one prompt in, text out. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache/mlx_cache.h"
#include "cli/session.h"
#include "cli/pick.h"
#include "cli/stop.h"
#include "cli/verbs.h"
#include "text/chat.h"

enum { PROMPT_MAX = 256 << 20 };

/* ---- the prompt ---- */

static qn_code read_stdin(qn_buf *out, qn_err *err)
{
    char chunk[1 << 16];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) && out->len < PROMPT_MAX) qn_buf_put(out, chunk, n);
    if (out->failed) return qn_err_set(err, QN_NOMEM, "prompt: out of memory");
    if (out->len >= PROMPT_MAX) return qn_err_set(err, QN_LIMIT, "prompt: more than %d bytes", PROMPT_MAX);
    if (ferror(stdin)) return qn_err_set(err, QN_IO, "prompt: standard input cannot be read");
    return QN_OK;
}

/* The prompt: --prompt, else the second argument (the first one if --model names the model), else
 * standard input if it is not a terminal. *model gets the argument that names the model. */
static qn_code read_prompt(const qn_args *args, const char **model, qn_buf *out, qn_err *err)
{
    const char *text = qn_arg_str(args, "prompt");
    *model = qn_arg_pos(args, 0);
    if (!text && qn_arg_pos(args, 1)) text = qn_arg_pos(args, 1);
    else if (!text && qn_arg_given(args, "model")) text = *model, *model = NULL;
    if (text && strcmp(text, "-")) {
        qn_buf_puts(out, text);
        return out->failed ? qn_err_set(err, QN_NOMEM, "prompt: out of memory") : QN_OK;
    }
    if (text || !isatty(STDIN_FILENO)) {
        qn_code rc = read_stdin(out, err);
        if (rc || out->len) return rc;
    }
    return qn_err_set(err, QN_INVALID, "no prompt; right would be: quern generate MODEL \"your question\"");
}

static json_t *message(const char *role, const char *text, size_t n)
{
    return json_pack("{s:s, s:s%}", "role", role, "content", text, n);
}

/* The messages of the conversation, with the start of the reply if there is one. NULL: the prompt is
 * not UTF-8, or memory is out. */
static json_t *build_messages(const qn_args *args, const qn_buf *prompt)
{
    const char *system = qn_arg_str(args, "system-prompt"), *prefill = qn_arg_str(args, "prefill-response");
    json_t *list = json_array();
    int bad = 0;
    if (system) bad |= json_array_append_new(list, message("system", system, strlen(system)));
    bad |= json_array_append_new(list, message("user", prompt->data, prompt->len));
    if (prefill) bad |= json_array_append_new(list, message("assistant", prefill, strlen(prefill)));
    if (!bad) return list;
    json_decref(list);
    return NULL;
}

static qn_code render(const qn_args *args, const qn_session *s, const qn_buf *prompt, qn_buf *text, qn_err *err)
{
    const char *config = qn_arg_str(args, "chat-template-config");
    json_error_t at;
    json_t *vars = config ? json_loads(config, 0, &at) : json_object();
    if (!json_is_object(vars)) {
        json_decref(vars);
        return qn_err_set(err, QN_INVALID, "--chat-template-config expects a JSON object, not %.60s", config);
    }
    json_t *messages = build_messages(args, prompt);
    bool prefilled = qn_arg_given(args, "prefill-response");
    qn_code rc = QN_OK;
    if (!messages) rc = qn_err_set(err, QN_INVALID, "the prompt is not valid UTF-8");
    else rc = qn_chat_render(s->loaded->chat, messages, NULL, vars, !prefilled, prefilled, text, err);
    json_decref(messages);
    json_decref(vars);
    return rc;
}

/* With a cache file the prompt's message is open already: of the rendered text only what begins with
 * the prompt is left, as in mlx_lm. */
static qn_code render_rest(const qn_args *args, const qn_session *s, const qn_buf *prompt, qn_buf *text, qn_err *err)
{
    static const char mark[] = "<query>";
    qn_buf probe = {0}, query = {.data = (char *)(uintptr_t)mark, .len = sizeof mark - 1};
    qn_code rc = render(args, s, prompt, text, err);
    if (!rc) rc = render(args, s, &query, &probe, err);
    const char *at = rc ? NULL : memmem(probe.data, probe.len, mark, sizeof mark - 1);
    if (!rc && (!at || (size_t)(at - probe.data) > text->len))
        rc = qn_err_set(err, QN_UNSUPPORTED,
                        "--prompt-cache-file: this chat template does not show where the prompt begins");
    else if (!rc) qn_buf_drop(text, (size_t)(at - probe.data));
    qn_buf_release(&probe);
    return rc;
}

static qn_code encode(const qn_args *args, const qn_session *s, const qn_buf *prompt, qn_ids *ids, qn_err *err)
{
    if (qn_arg_given(args, "prompt-cache-file") && !qn_arg_bool(args, "raw")) {
        qn_buf rest = {0};
        qn_code rc = render_rest(args, s, prompt, &rest, err);
        if (!rc) rc = qn_tokenizer_encode(s->loaded->tok, rest.data, rest.len, 0, ids, err);
        qn_buf_release(&rest);
        return rc;
    }
    if (qn_arg_bool(args, "raw")) {
        return qn_tokenizer_encode(s->loaded->tok, prompt->data, prompt->len, QN_ENCODE_ADD_SPECIAL, ids, err);
    }
    qn_buf text = {0};
    qn_code rc = render(args, s, prompt, &text, err);
    if (!rc) rc = qn_chat_encode(s->loaded->encoder, s->loaded->chat, NULL, &text, ids, err);
    qn_buf_release(&text);
    return rc;
}

/* The model's end tokens and those of --extra-eos-token. */
static qn_code read_eos(const qn_args *args, const qn_session *s, qn_ids *eos, qn_err *err)
{
    size_t n;
    const char *const *words = qn_arg_words(args, "extra-eos-token", &n);
    qn_ids_put(eos, s->loaded->eos, s->loaded->n_eos);
    for (size_t i = 0; i < n; i++) {
        uint32_t id = qn_tokenizer_find(s->loaded->tok, words[i], strlen(words[i]));
        if (id == QN_NO_TOKEN) {
            return qn_err_set(err, QN_INVALID, "--extra-eos-token: \"%s\" is not a token of this model", words[i]);
        }
        qn_ids_put(eos, &id, 1);
    }
    return eos->failed ? qn_err_set(err, QN_NOMEM, "generate: out of memory") : QN_OK;
}

/* ---- the answer ---- */

typedef struct screen {
    double first_ms;   /* of the first text, from the start of the process */
    bool broken;       /* stdout is gone */
    bool ends_in_newline;
} screen;

/* Milliseconds since this process was started, by the system's clock. */
static double process_age_ms(void)
{
    FILE *f = fopen("/proc/self/stat", "r");
    unsigned long long start_ticks = 0;
    char line[1024] = "";
    if (f && fgets(line, sizeof line, f)) {
        const char *p = strrchr(line, ')'); /* the name may hold anything; field 3 follows it */
        for (int field = 3; p && field <= 22; field++) p = strchr(p + 1, ' ');
        if (p) start_ticks = strtoull(p, NULL, 10);
    }
    if (f) fclose(f);
    struct timespec now;
    if (!start_ticks || clock_gettime(CLOCK_BOOTTIME, &now)) return 0;
    double start_ms = (double)start_ticks * 1000 / (double)sysconf(_SC_CLK_TCK);
    return (double)now.tv_sec * 1000 + (double)now.tv_nsec / 1e6 - start_ms;
}

/* Step 12 of the data path. */
static bool show(void *ctx, const char *text, size_t n)
{
    screen *s = ctx;
    if (s->first_ms == 0) s->first_ms = process_age_ms();
    s->ends_in_newline = text[n - 1] == '\n';
    if (fwrite(text, 1, n, stdout) != n || fflush(stdout)) s->broken = true;
    return !s->broken;
}

/* The cache file's path and, in *model, the model it was made for if the command line names none.
 * Without a file path is empty. */
static qn_code find_cache(const qn_args *args, char *path, size_t cap, const char **model, qn_buf *of, qn_err *err)
{
    const char *name = qn_arg_str(args, "prompt-cache-file");
    path[0] = '\0';
    if (!name) return QN_OK;
    qn_code rc = qn_mlx_cache_path(path, cap, name, err);
    if (rc || (rc = qn_mlx_cache_model(path, of, err))) return rc;
    if (!*model && !qn_arg_given(args, "model") && !qn_arg_given(args, "query") && of->len) *model = of->data;
    return QN_OK;
}

static qn_code answer(const qn_args *args, const qn_session *s, const qn_buf *prompt, const qn_image *start,
                      screen *sc, qn_answer *a, qn_err *err)
{
    qn_ids ids = {0}, eos = {0}, special = {0};
    qn_code rc = read_eos(args, s, &eos, err);
    if (!rc) rc = qn_xtc_special(s, &eos, &special, err);
    if (!rc) rc = encode(args, s, prompt, &ids, err);
    if (!rc) {
        qn_request req = {.prompt = ids.data, .n_prompt = ids.len, .eos = eos.data, .n_eos = eos.len,
                          .max_tokens = (uint32_t)qn_arg_int(args, "max-tokens"),
                          .start = start, .sampling = qn_sampling_read(args, NULL)};
        req.sampling.special = special.data;
        req.sampling.n_special = special.len;
        /* mlx_lm.generate seeds before it builds the model. */
        req.sampling.exact_splits = s->loaded->model->info.n_init_draws;
        const char *prefill = qn_arg_str(args, "prefill-response");
        if (prefill && *prefill) show(sc, prefill, strlen(prefill)), sc->first_ms = 0;
        rc = qn_generate(s, &req, show, sc, false, a, err);
    }
    qn_ids_release(&ids);
    qn_ids_release(&eos);
    qn_ids_release(&special);
    return rc;
}

static const char ruler[] = "==========";

/* The end of what mlx_lm.generate prints unless it is told not to. */
static void print_report(const qn_answer *a)
{
    const qn_gen_stats *st = &a->stats;
    double prefill_s = st->prefill_ms / 1000, decode_s = st->decode_ms / 1000;
    printf("\n%s\n", ruler);
    if (!st->generated_tokens) {
        puts("No text generated for this prompt");
        return;
    }
    printf("Prompt: %u tokens, %.3f tokens-per-sec\n", st->prompt_tokens,
           prefill_s > 0 ? st->prompt_tokens / prefill_s : 0);
    printf("Generation: %u tokens, %.3f tokens-per-sec\n", st->generated_tokens,
           decode_s > 0 ? st->generated_tokens / decode_s : 0);
    printf("Peak memory: %.3f GB\n", (double)qn_peak_bytes() / 1e9);
}

static int run_generate(const qn_args *args)
{
    qn_err err = {0};
    qn_session s = {0};
    qn_buf prompt = {0};
    qn_answer a = {0};
    screen sc = {0};
    qn_buf cache_of = {0};
    qn_image *start = NULL;
    char cache[PATH_MAX];
    const char *model;
    int status = QN_EXIT_OK;
    if (read_prompt(args, &model, &prompt, &err)) {
        qn_buf_release(&prompt);
        return qn_fail_usage(&err);
    }
    bool report = qn_arg_bool(args, "mlx-lm-report");
    qn_stop_catch();
    if (find_cache(args, cache, sizeof cache, &model, &cache_of, &err) ||
        qn_session_open(&s, args, model, cache[0] ? cache : NULL, &(qn_engine_opts){.max_rows = 1}, &err) ||
        (cache[0] && qn_mlx_cache_read(cache, &s.loaded->model->kv, &start, &err)))
        status = qn_fail(&err);
    else if (report) puts(ruler);
    if (!status && answer(args, &s, &prompt, start, &sc, &a, &err)) status = qn_fail(&err);
    if (!status && !sc.broken && report) print_report(&a);
    else if (!status && !sc.broken && !sc.ends_in_newline) putchar('\n');
    if (!status && qn_arg_bool(args, "stats")) fflush(stdout), qn_stats_line(stderr, &a, sc.first_ms);
    if (sc.broken) status = QN_EXIT_FAILED;
    if (qn_stop_asked()) status = qn_stop_status();
    qn_buf_release(&prompt);
    qn_session_close(&s);
    qn_buf_release(&cache_of);
    qn_image_free(start);
    return status;
}

static const qn_opt opts[] = {
    {.name = "prompt", .brief = "p", .kind = QN_OPT_STR, .help = "the prompt; - reads standard input"},
    {.name = "max-tokens", .brief = "m", .kind = QN_OPT_INT, .min = 1, .max = 1e7, .dflt = "256",
     .help = "stop after this many tokens"},
    {.name = "system-prompt", .kind = QN_OPT_STR, .help = "a system message before the prompt"},
    {.name = "prefill-response", .kind = QN_OPT_STR, .help = "the first words of the answer"},
    {.name = "raw", .kind = QN_OPT_BOOL, .help = "continue the prompt as it is, without the chat template"},
    {.name = "ignore-chat-template", .kind = QN_OPT_BOOL, .same_as = "raw"},
    {.name = "chat-template-config", .kind = QN_OPT_STR, .arg = "JSON", .help = "variables for the chat template"},
    {.name = "prompt-cache-file", .kind = QN_OPT_STR, .arg = "FILE",
     .help = "go on from a prompt that cache-prompt or mlx_lm.cache_prompt has computed"},
    {.name = "extra-eos-token", .kind = QN_OPT_WORDS, .help = "tokens that end the answer besides the model's own"},
    {.name = "stats", .kind = QN_OPT_BOOL, .help = "print a line of speeds on stderr at the end"},
    {.name = "verbose", .kind = QN_OPT_BOOL, .same_as = "stats", .hidden = true},
    {.name = "mlx-lm-report", .kind = QN_OPT_BOOL,
     .help = "the text between mlx_lm's lines, on stdout", .hidden = true},
    {0},
};
static const qn_opt_group groups[] = {
    {"Prompt and answer", opts}, {"Model", qn_opts_model}, {"Sampling", qn_opts_sampling},
    {"Device", qn_opts_device},
    {"Steps", qn_opts_step}, {"KV cache", qn_opts_kv}, {"Known from mlx_lm", qn_opts_refused}, {0}};
static const qn_pos pos[] = {
    {"MODEL", "a folder, or a part of the name of a model on this machine", false},
    {"PROMPT", "the prompt, if --prompt is not given; without both, standard input is read", false},
    {0},
};
const qn_verb qn_verb_generate = {
    .name = "generate", .alias = "gen", .summary = "answer one prompt", .pos = pos, .groups = groups,
    .about = "The text alone goes to stdout, as it is made. Without --temperature the most likely token\n"
             "is taken every time, so that the same prompt gives the same text.\n",
    .examples = "  quern generate smollm2 \"What is the capital of France?\"\n"
                "  quern generate --model ./my-model -p \"Once upon a time\" --raw --temp 0.8 --seed 1\n"
                "  git diff | quern generate smollm2 --system-prompt \"Describe this change.\"\n",
    .run = run_generate,
};
