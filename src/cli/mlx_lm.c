/* mlx_lm.c - see mlx_lm.h. */
#include "cli/mlx_lm.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cli/verbs.h"

enum { MAX_DEFAULTS = 16 };

typedef struct command {
    const char *name, *verb;
    const char *defaults[MAX_DEFAULTS]; /* mlx_lm's, where ours differ */
} command;

static const command commands[] = {
    {"server", "serve",
     {"--temp", "0", "--top-p", "1", "--top-k", "0", "--min-p", "0", "--max-tokens", "512",
      "--decode-concurrency", "32"}},
    {"generate", "generate",
     {"--prompt", "hello", "--max-tokens", "100", "--temp", "0", "--mlx-lm-report"}},
    {"chat", "chat",
     {"--temp", "0", "--top-p", "1", "--xtc-threshold", "0", "--seed", "0", "--max-tokens",
      "256"}},
    {"convert", "convert", {NULL}},
    {"benchmark", "benchmark", {NULL}},
    {"cache_prompt", "cache-prompt", {NULL}},
    {"perplexity", "perplexity", {NULL}},
    {"evaluate", "eval", {NULL}},
    {"fuse", "fuse", {NULL}},
    {"lora", "train", {NULL}},
    {"upload", "upload", {NULL}},
    {"manage", "manage", {NULL}},
};

const char *qn_mlx_lm_command(const char *argv0)
{
    const char *base = strrchr(argv0, '/');
    base = base ? base + 1 : argv0;
    if (!strncmp(base, "mlx_lm.", 7)) return base + 7;
    return !strncmp(base, "quern.", 6) ? base + 6 : NULL;
}

static qn_code find_command(const command **out, const qn_verb **verb, const char *name,
                            qn_err *err)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, name)) continue;
        *out = &commands[i];
        *verb = qn_verb_find(commands[i].verb);
        if (*verb) return QN_OK;
    }
    return qn_err_set(err, QN_UNSUPPORTED,
                      "not supported yet: mlx_lm.%s; \"quern help\" lists what there is", name);
}

/* ---- cut flags ---- */

/* What a flag means: the name of the option that it is a spelling of. */
static const char *meaning(const qn_opt *o)
{
    return o->same_as ? o->same_as : o->name;
}

/* The one option whose name begins with token [n], in *full; *full is NULL if there is none, or if
 * the token is a whole name. */
static qn_code complete(const qn_verb *verb, const char *token, size_t n, const char **full,
                        qn_err *err)
{
    const qn_opt *found = NULL;
    *full = NULL;
    for (const qn_opt_group *g = verb->groups; g && g->title; g++) {
        for (const qn_opt *o = g->opts; o->kind != QN_OPT_END; o++) {
            if (strncmp(o->name, token, n) || !strncmp(o->name, "mlx-lm-", 7)) continue;
            if (!o->name[n]) return QN_OK;
            if (found && strcmp(meaning(found), meaning(o))) {
                *full = "";
                qn_err_set(err, QN_INVALID, "--%.*s is ambiguous: --%s or --%s", (int)n, token,
                           found->name, o->name);
            } else if (!found) {
                found = o;
            }
        }
    }
    if (*full) return QN_INVALID;
    if (found) *full = found->name;
    return QN_OK;
}

/* ---- words ---- */

static void put(qn_mlx_lm *t, const char *word)
{
    t->argv[t->argc++] = (char *)(uintptr_t)word; /* the parser borrows and does not write */
}

/* mlx_lm.generate lets a shell's "\n" and "\t" stand for the characters. */
static qn_code put_unescaped(qn_mlx_lm *t, const char *text, qn_err *err)
{
    char *copy = qn_arena_take(&t->arena, strlen(text) + 1, 1), *to = copy;
    if (!copy) return qn_err_set(err, QN_NOMEM, "options: out of memory");
    for (const char *s = text; *s; s++) {
        bool escape = s[0] == '\\' && (s[1] == 'n' || s[1] == 't');
        *to++ = !escape ? *s : s[1] == 'n' ? '\n' : '\t';
        s += escape;
    }
    *to = '\0';
    put(t, copy);
    return QN_OK;
}

/* Flags of generate whose values are read differently. Returns how many words were taken. */
static int take_special(qn_mlx_lm *t, const char *word, const char *next, qn_code *rc, qn_err *err)
{
    const char *value = strchr(word, '=');
    if (!strncmp(word, "--verbose", 9) && (value || next)) {
        const char *v = value ? value + 1 : next;
        bool off = !strcasecmp(v, "false") || !strcasecmp(v, "f");
        put(t, off ? "--mlx-lm-report=off" : "--mlx-lm-report=on");
        return value ? 1 : 2;
    }
    if (!strncmp(word, "--prompt=", 9)) {
        put(t, "--prompt");
        *rc = put_unescaped(t, word + 9, err);
        return 1;
    }
    if (next && (!strcmp(word, "--prompt") || !strcmp(word, "-p"))) {
        put(t, "--prompt");
        *rc = put_unescaped(t, next, err);
        return 2;
    }
    return 0;
}

/* A word with its flag spelled out. */
static qn_code put_word(qn_mlx_lm *t, const char *word, qn_err *err)
{
    if (strncmp(word, "--", 2) || !word[2]) return put(t, word), QN_OK;
    size_t n = strcspn(word + 2, "=");
    const char *full;
    qn_code rc = complete(t->verb, word + 2, n, &full, err);
    if (rc || !full) return rc ? rc : (put(t, word), QN_OK);
    const char *rest = word + 2 + n;
    size_t size = strlen(full) + strlen(rest) + 3;
    char *whole = qn_arena_take(&t->arena, size, 1);
    if (!whole) return qn_err_set(err, QN_NOMEM, "options: out of memory");
    snprintf(whole, size, "--%s%s", full, rest);
    return put(t, whole), QN_OK;
}

qn_code qn_mlx_lm_translate(qn_mlx_lm *out, const char *name, int argc, char **argv, qn_err *err)
{
    const command *c;
    *out = (qn_mlx_lm){0};
    qn_code rc = find_command(&c, &out->verb, name, err);
    if (rc) return rc;
    size_t room = MAX_DEFAULTS + 2 * (size_t)(argc > 0 ? argc : 0) + 1;
    out->argv = qn_arena_take(&out->arena, room, sizeof *out->argv);
    if (!out->argv) return qn_err_set(err, QN_NOMEM, "options: out of memory");
    for (size_t i = 0; i < MAX_DEFAULTS && c->defaults[i]; i++) put(out, c->defaults[i]);
    bool is_generate = !strcmp(name, "generate");
    for (int i = 0; i < argc && !rc;) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        int taken = is_generate ? take_special(out, argv[i], next, &rc, err) : 0;
        if (!taken) rc = put_word(out, argv[i++], err);
        i += taken;
    }
    return rc;
}

void qn_mlx_lm_free(qn_mlx_lm *t)
{
    qn_arena_release(&t->arena);
}
