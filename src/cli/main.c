/* main.c - the entry: finds the verb, parses its options, runs it. */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/help.h"
#include "cli/mlx_lm.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "core/rt.h"

const qn_verb *const qn_verbs[] = {
    &qn_verb_generate, &qn_verb_chat, &qn_verb_serve, &qn_verb_convert, &qn_verb_tokenize,
    &qn_verb_template, &qn_verb_logits, &qn_verb_cache_prompt, &qn_verb_ls, &qn_verb_benchmark,
    &qn_verb_help, &qn_verb_version, &qn_verb_completion, NULL,
};

const qn_verb *qn_verb_find(const char *name)
{
    for (const qn_verb *const *v = qn_verbs; *v; v++) {
        if (!strcmp((*v)->name, name) || ((*v)->alias && !strcmp((*v)->alias, name))) return *v;
    }
    return NULL;
}

int qn_fail(const qn_err *err)
{
    const qn_style st = qn_style_of(stderr);
    fprintf(stderr, "%squern: error:%s %s\n", st.bad, st.reset, err->text);
    return QN_EXIT_FAILED;
}

int qn_fail_usage(const qn_err *err)
{
    qn_fail(err);
    return QN_EXIT_USAGE;
}

static int unknown_verb(const char *name)
{
    const char *names[64];
    size_t n = 0;
    for (const qn_verb *const *v = qn_verbs; *v && n < 64; v++) names[n++] = (*v)->name;
    const char *near = qn_nearest(name, names, n);
    fprintf(stderr, "quern: error: unknown command: %s", name);
    if (near) fprintf(stderr, "; did you mean %s?", near);
    fputc('\n', stderr);
    qn_help_overview(stdout, qn_verbs);
    return QN_EXIT_USAGE;
}

/* Step 1 of the data path. */
static int run_verb(const qn_verb *verb, int argc, char **argv)
{
    qn_err err = {0};
    qn_args *args;
    if (qn_args_parse(&args, verb, argc, argv, &err)) return qn_fail_usage(&err);
    int status = QN_EXIT_OK;
    if (qn_args_wants_help(args)) qn_help_verb(stdout, verb);
    else status = verb->run(args);
    qn_args_free(args);
    if (fflush(stdout) && !status) {
        fputs("quern: error: the output could not be written\n", stderr);
        status = QN_EXIT_FAILED;
    }
    return status;
}

static int run_mlx_lm(const char *command, int argc, char **argv)
{
    qn_err err = {0};
    qn_mlx_lm t;
    int status;
    if (qn_mlx_lm_translate(&t, command, argc, argv, &err)) status = qn_fail_usage(&err);
    else status = run_verb(t.verb, t.argc, t.argv);
    qn_mlx_lm_free(&t);
    return status;
}

static int run_without_verb(int argc, char **argv)
{
    const qn_verb *serve = qn_verb_find("serve");
    if (!serve) return unknown_verb(argc ? argv[0] : "serve");
    const qn_style st = qn_style_of(stderr);
    fprintf(stderr, "%sno verb given: quern serve (\"quern help\" lists the verbs)%s\n", st.dim, st.reset);
    return run_verb(serve, argc, argv);
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN);
    qn_rt_init();
    const char *command = qn_mlx_lm_command(argv[0]);
    if (command) return run_mlx_lm(command, argc - 1, argv + 1);
    if (argc < 2) return run_without_verb(0, argv + 1);
    const char *first = argv[1];
    if (!strcmp(first, "-h") || !strcmp(first, "--help")) return run_verb(&qn_verb_help, 0, NULL);
    if (!strcmp(first, "-v") || !strcmp(first, "--version")) return run_verb(&qn_verb_version, 0, NULL);
    if (first[0] == '-') return run_without_verb(argc - 1, argv + 1);
    const qn_verb *verb = qn_verb_find(first);
    return verb ? run_verb(verb, argc - 2, argv + 2) : unknown_verb(first);
}
