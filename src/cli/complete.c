/* complete.c - shell completion scripts out of the option tables. Model names are asked from
 * "quern ls --ids" when the user presses the key, so they are never stale. */
#include <string.h>

#include "cli/help.h"

/* Does the first positional of this verb name a model? */
static bool takes_model(const qn_verb *v)
{
    return v->pos && v->pos->name && (!strcmp(v->pos->name, "MODEL") || !strcmp(v->pos->name, "SOURCE"));
}

/* Does the first positional of this verb name a shell, or a verb? */
static bool takes(const qn_verb *v, const char *what)
{
    return v->pos && v->pos->name && !strcmp(v->pos->name, what);
}

static void put_choices(FILE *f, const char *choices)
{
    for (; *choices; choices++) fputc(*choices == '|' ? ' ' : *choices, f);
}

/* Words for the value of an option, separated by spaces; nothing if any text may follow. */
static void put_value_words(FILE *f, const qn_opt *o)
{
    if (o->kind == QN_OPT_ENUM) put_choices(f, o->choices);
    if (o->kind == QN_OPT_SWITCH) fputs("on off", f);
}

static bool is_offered(const qn_opt *o)
{
    return !o->hidden && !o->refused && !o->ignored;
}

static void put_verb_names(FILE *f, const qn_verb *const *verbs)
{
    for (; *verbs; verbs++) fprintf(f, "%s ", (*verbs)->name);
}

static void bash_verb(FILE *f, const qn_verb *const *verbs, const qn_verb *v)
{
    fprintf(f, "    %s%s%s)\n      flags=\"--help", v->name, v->alias ? "|" : "", v->alias ? v->alias : "");
    for (const qn_opt_group *g = v->groups; g && g->title; g++) {
        for (const qn_opt *o = g->opts; o->kind; o++) {
            if (is_offered(o)) fprintf(f, " --%s", o->name);
        }
    }
    fputs("\"\n      case \"$prev\" in\n", f);
    for (const qn_opt_group *g = v->groups; g && g->title; g++) {
        for (const qn_opt *o = g->opts; o->kind; o++) {
            if (!is_offered(o) || (o->kind != QN_OPT_ENUM && o->kind != QN_OPT_SWITCH)) continue;
            fprintf(f, "        --%s) values=\"", o->name);
            put_value_words(f, o);
            fputs("\" ;;\n", f);
        }
    }
    fputs("      esac\n", f);
    if (takes_model(v)) fputs("      words=\"$(quern ls --ids 2>/dev/null)\"\n", f);
    if (takes(v, "SHELL")) fputs("      words=\"bash zsh fish\"\n", f);
    if (takes(v, "VERB")) fputs("      words=\"", f), put_verb_names(f, verbs), fputs("\"\n", f);
    fputs("      ;;\n", f);
}

static void complete_bash(FILE *f, const qn_verb *const *verbs)
{
    fputs("# bash completion for quern\n_quern() {\n"
          "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
          "  local flags=\"\" values=\"\" words=\"\"\n"
          "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W \"", f);
    put_verb_names(f, verbs);
    fputs("\" -- \"$cur\"))\n    return\n  fi\n  case \"${COMP_WORDS[1]}\" in\n", f);
    for (const qn_verb *const *v = verbs; *v; v++) bash_verb(f, verbs, *v);
    fputs("  esac\n"
          "  if [ -n \"$values\" ]; then COMPREPLY=($(compgen -W \"$values\" -- \"$cur\"))\n"
          "  elif [[ \"$cur\" == -* ]]; then COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
          "  else COMPREPLY=($(compgen -W \"$words\" -- \"$cur\") $(compgen -f -- \"$cur\"))\n"
          "  fi\n}\ncomplete -o filenames -F _quern quern\n", f);
}

/* Text inside single quotes of zsh's _arguments: brackets and colons have a meaning there. */
static void put_zsh(FILE *f, const char *s)
{
    for (; s && *s; s++) {
        if (*s == '\'') { fputs("'\\''", f); continue; }
        if (strchr("[]:\\", *s)) fputc('\\', f);
        fputc(*s, f);
    }
}

static void zsh_option(FILE *f, const qn_opt *o)
{
    const char *arg = qn_opt_arg(o);
    fprintf(f, "        '--%s[", o->name);
    put_zsh(f, o->same_as ? o->same_as : o->help);
    fputc(']', f);
    if (arg) {
        fputc(':', f);
        put_zsh(f, arg);
        fputc(':', f);
        if (o->kind == QN_OPT_ENUM || o->kind == QN_OPT_SWITCH) {
            fputc('(', f);
            put_value_words(f, o);
            fputc(')', f);
        } else if (o->kind == QN_OPT_STR) {
            fputs("_files", f);
        }
    }
    fputs("' \\\n", f);
}

static void complete_zsh(FILE *f, const qn_verb *const *verbs)
{
    fputs("#compdef quern\n_quern() {\n  local -a verbs models\n  verbs=(\n", f);
    for (const qn_verb *const *v = verbs; *v; v++) {
        fprintf(f, "    '%s:", (*v)->name);
        put_zsh(f, (*v)->summary);
        fputs("'\n", f);
    }
    fputs("  )\n  if (( CURRENT == 2 )); then\n    _describe verb verbs\n    return\n  fi\n"
          "  local verb=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $verb in\n", f);
    for (const qn_verb *const *v = verbs; *v; v++) {
        fprintf(f, "    %s%s%s)\n", (*v)->name, (*v)->alias ? "|" : "", (*v)->alias ? (*v)->alias : "");
        if (takes_model(*v)) fputs("      models=(${(f)\"$(quern ls --ids 2>/dev/null)\"})\n", f);
        fputs("      _arguments \\\n        '--help[show the options]' \\\n", f);
        for (const qn_opt_group *g = (*v)->groups; g && g->title; g++) {
            for (const qn_opt *o = g->opts; o->kind; o++) {
                if (is_offered(o)) zsh_option(f, o);
            }
        }
        if (takes_model(*v)) fputs("        '1:model:{_alternative \"models:model:compadd -a models\" "
                                   "\"files:folder:_files\"}' '*:file:_files'\n", f);
        else if (takes(*v, "SHELL")) fputs("        '1:shell:(bash zsh fish)'\n", f);
        else if (takes(*v, "VERB")) fputs("        '1:verb:(", f), put_verb_names(f, verbs), fputs(")'\n", f);
        else fputs("        '*:file:_files'\n", f);
        fputs("      ;;\n", f);
    }
    fputs("  esac\n}\ncompdef _quern quern\n", f);
}

static void put_quoted(FILE *f, const char *s)
{
    fputc('\'', f);
    for (; s && *s; s++) {
        if (*s == '\'' || *s == '\\') fputc('\\', f);
        fputc(*s, f);
    }
    fputc('\'', f);
}

static void complete_fish(FILE *f, const qn_verb *const *verbs)
{
    fputs("# fish completion for quern\n", f);
    for (const qn_verb *const *v = verbs; *v; v++) {
        fprintf(f, "complete -c quern -n __fish_use_subcommand -f -a %s -d ", (*v)->name);
        put_quoted(f, (*v)->summary);
        fputc('\n', f);
    }
    for (const qn_verb *const *v = verbs; *v; v++) {
        char when[128];
        snprintf(when, sizeof when, "complete -c quern -n '__fish_seen_subcommand_from %s %s'", (*v)->name,
                 (*v)->alias ? (*v)->alias : "");
        if (takes_model(*v)) fprintf(f, "%s -a '(quern ls --ids 2>/dev/null)'\n", when);
        if (takes(*v, "SHELL")) fprintf(f, "%s -f -a 'bash zsh fish'\n", when);
        for (const qn_opt_group *g = (*v)->groups; g && g->title; g++) {
            for (const qn_opt *o = g->opts; o->kind; o++) {
                if (!is_offered(o)) continue;
                fprintf(f, "%s -l %s", when, o->name);
                if (o->brief && !o->brief[1]) fprintf(f, " -s %s", o->brief);
                if (qn_opt_arg(o)) fputs(" -r", f);
                if (o->kind == QN_OPT_ENUM || o->kind == QN_OPT_SWITCH) {
                    fputs(" -f -a '", f);
                    put_value_words(f, o);
                    fputc('\'', f);
                }
                fputs(" -d ", f);
                put_quoted(f, o->same_as ? o->same_as : o->help);
                fputc('\n', f);
            }
        }
    }
}

qn_code qn_complete(FILE *f, const qn_verb *const *verbs, const char *shell, qn_err *err)
{
    if (!strcmp(shell, "bash")) complete_bash(f, verbs);
    else if (!strcmp(shell, "zsh")) complete_zsh(f, verbs);
    else if (!strcmp(shell, "fish")) complete_fish(f, verbs);
    else return qn_err_set(err, QN_INVALID, "completion: \"%s\" is not one of bash, zsh, fish", shell);
    return QN_OK;
}
