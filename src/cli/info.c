/* info.c - the verbs that only tell about the program: "quern help", "quern version" and
 * "quern completion". */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/git_id.h"
#include "cli/help.h"
#include "cli/verbs.h"

/* ---- help ---- */

static int help_one(const qn_verb *v, bool markdown)
{
    if (markdown) qn_help_markdown(stdout, v);
    else qn_help_verb(stdout, v);
    return QN_EXIT_OK;
}

static int run_help(const qn_args *args)
{
    qn_err err = {0};
    const char *name = qn_arg_pos(args, 0);
    if (qn_arg_bool(args, "json")) return qn_help_json(stdout, qn_verbs, &err) ? qn_fail(&err) : QN_EXIT_OK;
    if (!name) {
        qn_help_overview(stdout, qn_verbs);
        return QN_EXIT_OK;
    }
    const qn_verb *v = qn_verb_find(name);
    if (v) return help_one(v, qn_arg_bool(args, "markdown"));
    qn_err_set(&err, QN_INVALID, "unknown command: %s", name);
    return qn_fail_usage(&err);
}

static const qn_opt help_opts[] = {
    {.name = "json", .kind = QN_OPT_BOOL, .help = "print the option tables of all verbs as JSON"},
    {.name = "markdown", .kind = QN_OPT_BOOL, .help = "print a verb's options as Markdown, for the pages in docs/"},
    {0},
};
static const qn_opt_group help_groups[] = {{"Options", help_opts}, {0}};
static const qn_pos help_pos[] = {{"VERB", "the verb to explain; without it all verbs are listed", false}, {0}};
const qn_verb qn_verb_help = {
    .name = "help", .summary = "explain a verb", .pos = help_pos, .groups = help_groups, .run = run_help,
};

/* ---- version ---- */

static json_t *isa_list(void)
{
    json_t *list = json_array();
#if defined(__x86_64__)
    static const char *const names[] = {"avx2", "avx512f", "avx512vnni", "avx512bf16"};
    __builtin_cpu_init();
    const int has[] = {__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
                       __builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512vnni"),
                       __builtin_cpu_supports("avx512bf16")};
    for (size_t i = 0; i < sizeof has / sizeof *has; i++) {
        if (has[i]) json_array_append_new(list, json_string(names[i]));
    }
#endif
    return list;
}

static int run_version(const qn_args *args)
{
    if (!qn_arg_bool(args, "json")) {
        printf("quern %s\n", QN_VERSION);
        return QN_EXIT_OK;
    }
    json_t *j = json_pack("{s:s, s:s, s:s, s:o, s:n}", "version", QN_VERSION, "git", QN_GIT, "compiler",
                          __VERSION__, "isa", isa_list(), "cuda");
    if (!j) return QN_EXIT_FAILED;
    json_dumpf(j, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(j);
    return QN_EXIT_OK;
}

static const qn_opt version_opts[] = {
    {.name = "json", .kind = QN_OPT_BOOL, .help = "print version, commit, compiler and usable instruction sets"},
    {0},
};
static const qn_opt_group version_groups[] = {{"Options", version_opts}, {0}};
const qn_verb qn_verb_version = {
    .name = "version", .summary = "print the version", .groups = version_groups, .run = run_version,
};

/* ---- completion ---- */

static int run_completion(const qn_args *args)
{
    qn_err err = {0};
    return qn_complete(stdout, qn_verbs, qn_arg_pos(args, 0), &err) ? qn_fail_usage(&err) : QN_EXIT_OK;
}

static const qn_pos completion_pos[] = {{"SHELL", "bash, zsh or fish", true}, {0}};
const qn_verb qn_verb_completion = {
    .name = "completion", .summary = "print a completion script for a shell", .pos = completion_pos,
    .examples = "  quern completion bash > ~/.local/share/bash-completion/completions/quern\n"
                "  quern completion zsh > ~/.zfunc/_quern\n"
                "  quern completion fish > ~/.config/fish/completions/quern.fish\n",
    .run = run_completion,
};
