/* chat.c - "quern chat": a conversation in the terminal.
 *
 * The conversation is a list of messages that is rendered anew every turn. Ctrl-C stops the answer in
 * progress, Ctrl-D ends the program.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/pick.h"
#include "cli/session.h"
#include "cli/stop.h"
#include "cli/verbs.h"
#include "core/file.h"
#include "text/boundary.h"

enum { CHAT_FILE_MAX = 256 << 20 };

typedef struct chat {
    qn_session s;
    qn_sampling sampling;
    uint32_t max_tokens;
    json_t *messages;   /* array */
    json_t *system;     /* the system message, or NULL */
    bool stats;
    qn_boundary boundary;
} chat;

/* ---- reading a turn ---- */

/* Read one line without its newline into *line (getline's memory). False at the end of the input or
 * on SIGTERM; Ctrl-C drops what was typed and asks again. */
static bool read_line(const char *prompt, char **line, size_t *cap)
{
    for (;;) {
        if (isatty(STDIN_FILENO)) fputs(prompt, stderr);
        fflush(stderr);
        errno = 0;
        ssize_t n = getline(line, cap, stdin);
        if (n >= 0) {
            if (n && (*line)[n - 1] == '\n') (*line)[n - 1] = '\0';
            return true;
        }
        if (errno != EINTR || qn_stop_status() != 130) return false;
        qn_stop_clear();
        clearerr(stdin);
        fputs("\n(Ctrl-D or q ends the chat)\n", stderr);
    }
}

/* A turn: one line, or several between lines of """. False at the end. */
static bool read_turn(qn_buf *out)
{
    char *line = NULL;
    size_t cap = 0;
    qn_buf_clear(out);
    bool more = read_line("> ", &line, &cap);
    if (more && strncmp(line, "\"\"\"", 3)) {
        qn_buf_puts(out, line);
    } else if (more) {
        qn_buf_puts(out, line + 3);
        while ((more = read_line(". ", &line, &cap))) {
            size_t n = strlen(line);
            bool last = n >= 3 && !strcmp(line + n - 3, "\"\"\"");
            if (last) line[n - 3] = '\0';
            if (out->len) qn_buf_putc(out, '\n');
            qn_buf_puts(out, line);
            if (last) break;
        }
    }
    free(line);
    return more && !out->failed;
}

/* ---- commands ---- */

static void say(const char *text) { fprintf(stderr, "%s\n", text); }

static void show_help(void)
{
    say("q, /bye, Ctrl-D   end the chat\n"
        "r, /clear         forget the conversation\n"
        "/set KEY VALUE    system, temperature, top-p, top-k, min-p, max-tokens, seed\n"
        "/save FILE        write the conversation as JSON\n"
        "/load FILE        go on with a saved conversation\n"
        "\"\"\"               begin and end a message of several lines\n"
        "Ctrl-C            stop the answer\n"
        "h, /help          this text");
}

static void set_system(chat *c, const char *text)
{
    json_t *m = *text ? json_pack("{s:s, s:s}", "role", "system", "content", text) : NULL;
    if (*text && !m) {
        say("the system message is not valid UTF-8");
        return;
    }
    json_decref(c->system);
    c->system = m;
}

static void set_option(chat *c, const char *key, const char *text)
{
    if (!strcmp(key, "system")) {
        set_system(c, text);
        return;
    }
    char *end;
    double v = strtod(text, &end);
    bool good = *text && !*end && v >= 0 && v <= 9e15;
    if (good && !strcmp(key, "temperature") && v <= 5) c->sampling.temperature = (float)v;
    else if (good && !strcmp(key, "top-p") && v <= 1) c->sampling.top_p = (float)v;
    else if (good && !strcmp(key, "min-p") && v <= 1) c->sampling.min_p = (float)v;
    else if (good && !strcmp(key, "top-k") && v <= 1e6) c->sampling.top_k = (uint32_t)v;
    else if (good && !strcmp(key, "max-tokens") && v >= 1 && v <= 1e7) c->max_tokens = (uint32_t)v;
    else if (good && !strcmp(key, "seed")) c->sampling.has_seed = true, c->sampling.seed = (uint64_t)v;
    else fprintf(stderr, "/set %s %s: unknown key or value out of range; h shows the keys\n", key, text);
}

static void save(const chat *c, const char *path)
{
    qn_err err = {0};
    json_t *all = json_pack("{s:O?, s:O}", "system", c->system, "messages", c->messages);
    char *text = all ? json_dumps(all, JSON_INDENT(1)) : NULL;
    if (!text) say("out of memory");
    else if (qn_file_write(path, text, strlen(text), &err)) say(err.text);
    else fprintf(stderr, "saved %zu messages to %s\n", json_array_size(c->messages), path);
    free(text);
    json_decref(all);
}

static bool are_messages(const json_t *list)
{
    size_t i;
    json_t *m;
    if (!json_is_array(list)) return false;
    json_array_foreach(list, i, m) {
        if (!json_is_string(json_object_get(m, "role")) || !json_is_string(json_object_get(m, "content"))) return false;
    }
    return true;
}

static void load(chat *c, const char *path)
{
    qn_err err = {0};
    char *text;
    size_t size;
    if (qn_file_read(path, CHAT_FILE_MAX, &text, &size, &err)) {
        say(err.text);
        return;
    }
    json_t *all = json_loadb(text, size, 0, NULL);
    free(text);
    json_t *list = json_object_get(all, "messages"), *system = json_object_get(all, "system");
    if (!are_messages(list)) {
        fprintf(stderr, "%s is not a conversation that /save wrote\n", path);
    } else {
        json_decref(c->messages);
        c->messages = json_incref(list);
        json_decref(c->system);
        c->system = json_is_object(system) ? json_incref(system) : NULL;
        fprintf(stderr, "%zu messages\n", json_array_size(list));
    }
    json_decref(all);
}

/* Handle a line that is a command. Returns false if it is none; *quit says to end. */
static bool take_command(chat *c, char *line, bool *quit)
{
    *quit = !strcmp(line, "q") || !strcmp(line, "/bye");
    if (*quit) return true;
    if (!strcmp(line, "h") || !strcmp(line, "/help")) return show_help(), true;
    if (!strcmp(line, "r") || !strcmp(line, "/clear")) return json_array_clear(c->messages), say("forgotten"), true;
    if (line[0] != '/') return false;
    char *word = line + strcspn(line, " ");
    if (*word) *word++ = '\0';
    word += strspn(word, " ");
    if (!strcmp(line, "/set")) {
        char *value = word + strcspn(word, " ");
        if (*value) *value++ = '\0';
        set_option(c, word, value);
    } else if (!strcmp(line, "/save") && *word) {
        save(c, word);
    } else if (!strcmp(line, "/load") && *word) {
        load(c, word);
    } else {
        fprintf(stderr, "unknown command %s; h shows the commands\n", line);
    }
    return true;
}

/* ---- answering ---- */

static bool show(void *ctx, const char *text, size_t n)
{
    (void)ctx;
    return fwrite(text, 1, n, stdout) == n && !fflush(stdout);
}

/* *shared: the tokens that the next turn will begin with. */
static qn_code encode(chat *c, qn_ids *ids, uint32_t *shared, qn_err *err)
{
    qn_buf text = {0};
    json_t *all = json_array(), *no_vars = json_object();
    if (c->system) json_array_append(all, c->system);
    json_array_extend(all, c->messages);
    qn_code rc = qn_chat_render(c->s.loaded->chat, all, NULL, no_vars, true, false, &text, err);
    if (!rc) rc = qn_chat_encode(c->s.loaded->encoder, c->s.loaded->chat, NULL, &text, ids, err);
    if (!rc && c->s.loaded->model->kv.n_states) {
        *shared = qn_boundary_find(&c->boundary, &(qn_chat_turn){
            .encoder = c->s.loaded->encoder, .chat = c->s.loaded->chat, .messages = all,
            .vars = no_vars, .text = &text, .ids = ids});
    }
    json_decref(all);
    json_decref(no_vars);
    qn_buf_release(&text);
    return rc;
}

static qn_code answer(chat *c, qn_answer *a, qn_err *err)
{
    const qn_loaded *l = c->s.loaded;
    qn_ids ids = {0};
    uint32_t shared = 0;
    qn_code rc = encode(c, &ids, &shared, err);
    if (!rc) {
        qn_request req = {.prompt = ids.data, .n_prompt = ids.len, .max_tokens = c->max_tokens, .eos = l->eos,
                          .n_eos = l->n_eos, .sampling = c->sampling, .snapshot_at = shared};
        req.sampling.special = l->eos;
        req.sampling.n_special = l->n_eos;
        rc = qn_generate(&c->s, &req, show, NULL, true, a, err);
    }
    qn_ids_release(&ids);
    return rc;
}

static void take_turn(chat *c, const qn_buf *text)
{
    qn_err err = {0};
    qn_answer a = {0};
    json_t *user = json_pack("{s:s, s:s%}", "role", "user", "content", text->data, text->len);
    if (!user || json_array_append_new(c->messages, user)) {
        say("the message is not valid UTF-8");
        return;
    }
    qn_code rc = answer(c, &a, &err);
    if (a.text.len) putchar('\n'), fflush(stdout);
    json_t *reply = rc ? NULL : json_pack("{s:s, s:s%}", "role", "assistant", "content", a.text.data ? a.text.data : "",
                                          a.text.len);
    if (rc) qn_fail(&err);
    if (!reply || json_array_append_new(c->messages, reply)) {
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    } else if (c->stats) {
        qn_stats_line(stderr, &a, 0);
    }
    qn_buf_release(&a.text);
}

static void converse(chat *c)
{
    qn_buf line = {0};
    bool quit = false;
    while (!quit && read_turn(&line)) {
        if (!line.len || take_command(c, line.data, &quit)) continue;
        take_turn(c, &line);
        if (qn_stop_status() == 143) break;
        qn_stop_clear();
    }
    qn_buf_release(&line);
    if (isatty(STDIN_FILENO)) fputc('\n', stderr);
}

static int run_chat(const qn_args *args)
{
    qn_err err = {0};
    chat c = {.messages = json_array(), .max_tokens = (uint32_t)qn_arg_int(args, "max-tokens"),
              .stats = qn_arg_bool(args, "stats")};
    qn_stop_catch();
    int status = QN_EXIT_OK;
    if (qn_session_open(&c.s, args, qn_arg_pos(args, 0), NULL, &(qn_engine_opts){.max_rows = 1}, &err)) {
        status = qn_fail(&err);
        if (qn_stop_asked()) status = qn_stop_status();
    } else {
        c.sampling = qn_sampling_read(args, c.s.loaded->folder);
        if (qn_arg_str(args, "system-prompt")) set_system(&c, qn_arg_str(args, "system-prompt"));
        if (isatty(STDIN_FILENO)) fprintf(stderr, "%s; h shows the commands, Ctrl-D ends\n", c.s.loaded->id);
        converse(&c);
        if (qn_stop_status() == 143) status = 143;
    }
    json_decref(c.messages);
    json_decref(c.system);
    qn_session_close(&c.s);
    return status;
}

static const qn_opt opts[] = {
    {.name = "max-tokens", .brief = "m", .kind = QN_OPT_INT, .min = 1, .max = 1e7, .dflt = "256",
     .help = "stop an answer after this many tokens"},
    {.name = "system-prompt", .kind = QN_OPT_STR, .help = "a system message before the conversation"},
    {.name = "stats", .kind = QN_OPT_BOOL, .dflt = "on", .help = "a line of speeds after each answer"},
    {0},
};
static const qn_opt_group groups[] = {
    {"Conversation", opts}, {"Model", qn_opts_model}, {"Sampling", qn_opts_sampling}, {"Device", qn_opts_device},
    {"Steps", qn_opts_step},
    {"KV cache", qn_opts_kv}, {"Known from mlx_lm", qn_opts_refused}, {0}};
static const qn_pos pos[] = {{"MODEL", "a folder, or a part of the name of a model on this machine", false}, {0}};
const qn_verb qn_verb_chat = {
    .name = "chat", .summary = "talk to a model in the terminal", .pos = pos, .groups = groups,
    .about = "Temperature, top-p and top-k come from the model's generation_config.json unless they are\n"
             "given. Answers go to stdout, the rest to stderr. h in the chat shows its commands.\n",
    .examples = "  quern chat smollm2\n  quern chat ./my-model --temp 0.7 --system-prompt \"Answer briefly.\"\n",
    .run = run_chat,
};
