/* help.c - help text, Markdown and JSON out of the option tables. */
#include "cli/help.h"

#include <jansson.h>
#include <string.h>

#include "cli/term.h"

enum { HELP_COLUMN = 30, HELP_WIDTH = 98 };

const char *qn_opt_arg(const qn_opt *o)
{
    if (o->kind == QN_OPT_BOOL) return NULL;
    if (o->arg) return o->arg;
    switch (o->kind) {
    case QN_OPT_SWITCH: return "on|off";
    case QN_OPT_INT: return "N";
    case QN_OPT_FLOAT: return "X";
    case QN_OPT_SIZE: return "SIZE";
    case QN_OPT_ENUM: return o->choices;
    case QN_OPT_LIST: return "A,B";
    case QN_OPT_INTS: return "N,N";
    case QN_OPT_WORDS: return "WORD...";
    default: return "TEXT";
    }
}

static const char *kind_name(qn_opt_kind kind)
{
    static const char *const names[] = {"", "bool", "switch", "str", "int", "float", "size", "enum", "list",
                                        "ints", "words"};
    return names[kind];
}

void qn_help_overview(FILE *f, const qn_verb *const *verbs)
{
    const qn_style st = qn_style_of(f);
    fprintf(f, "%squern%s - run MLX models on Linux\n\n", st.bold, st.reset);
    fprintf(f, "%susage:%s quern VERB [options]\n\n%sverbs%s\n", st.dim, st.reset, st.bold, st.reset);
    for (; *verbs; verbs++) {
        fprintf(f, "  %s%-12s%s %s", st.accent, (*verbs)->name, st.reset, (*verbs)->summary);
        if ((*verbs)->alias) fprintf(f, " %s(also: %s)%s", st.dim, (*verbs)->alias, st.reset);
        fputc('\n', f);
    }
    fputs("\n\"quern help VERB\" or \"quern VERB --help\" shows a verb's options.\n", f);
}

/* Write `text` from column `at` on, wrapped between words, further lines indented to `at`. */
static void wrap(FILE *f, const char *text, size_t at)
{
    size_t indent = at;
    while (*text) {
        size_t len = strcspn(text, " ");
        if (at > indent && at + 1 + len > HELP_WIDTH) {
            fprintf(f, "\n%*s", (int)indent, "");
            at = indent;
        } else if (at > indent) {
            fputc(' ', f);
            at++;
        }
        fwrite(text, 1, len, f);
        at += len;
        text += len + strspn(text + len, " ");
    }
    fputc('\n', f);
}

static void print_usage(FILE *f, const qn_verb *v)
{
    fprintf(f, "quern %s", v->name);
    for (const qn_pos *p = v->pos; p && p->name; p++) fprintf(f, p->required ? " %s" : " [%s]", p->name);
    if (v->groups) fputs(" [options]", f);
    fputc('\n', f);
}

/* The help line of an option: its text, limits are left to the errors, then default and key. */
static void option_text(const qn_opt *o, char *out, size_t cap)
{
    int n = snprintf(out, cap, "%s", o->help ? o->help : "");
    if (o->same_as) n = snprintf(out, cap, "same as --%s", o->same_as);
    if (o->ignored) n = snprintf(out, cap, "accepted without effect: %s", o->ignored);
    if (o->refused) n = snprintf(out, cap, "not supported yet: %s", o->refused);
    if (n > 0 && (size_t)n < cap && o->dflt && !o->ignored && !o->refused) {
        n += snprintf(out + n, cap - (size_t)n, " [default: %s]", o->dflt);
    }
    if (n > 0 && (size_t)n < cap && o->env) snprintf(out + n, cap - (size_t)n, " [env: QUERN_%s]", o->env);
}

static void print_option(FILE *f, const qn_opt *o, const qn_style *st)
{
    char left[128], text[512];
    const char *arg = qn_opt_arg(o);
    int n = snprintf(left, sizeof left, "%s%s%s--%s%s%s", o->brief ? "-" : "    ", o->brief ? o->brief : "",
                     o->brief ? ", " : "", o->name, arg ? " " : "", arg ? arg : "");
    fprintf(f, "  %s%s%s", st->accent, left, st->reset);
    size_t at = 2 + (size_t)n;
    if (at + 2 > HELP_COLUMN) fprintf(f, "\n%*s", HELP_COLUMN, "");
    else fprintf(f, "%*s", (int)(HELP_COLUMN - at), "");
    option_text(o, text, sizeof text);
    wrap(f, text, HELP_COLUMN);
}

static bool group_is_shown(const qn_opt_group *g)
{
    for (const qn_opt *o = g->opts; o->kind; o++) {
        if (!o->hidden) return true;
    }
    return false;
}

void qn_help_verb(FILE *f, const qn_verb *v)
{
    const qn_style st = qn_style_of(f);
    fprintf(f, "%squern %s%s - %s\n\n%susage:%s ", st.bold, v->name, st.reset, v->summary, st.dim, st.reset);
    print_usage(f, v);
    if (v->about) fprintf(f, "\n%s", v->about);
    if (v->pos && v->pos->name) fputc('\n', f);
    for (const qn_pos *p = v->pos; p && p->name; p++) {
        fprintf(f, "  %s%-*s%s", st.accent, HELP_COLUMN - 2, p->name, st.reset);
        wrap(f, p->help, HELP_COLUMN);
    }
    for (const qn_opt_group *g = v->groups; g && g->title; g++) {
        if (!group_is_shown(g)) continue;
        fprintf(f, "\n%s%s%s\n", st.bold, g->title, st.reset);
        for (const qn_opt *o = g->opts; o->kind; o++) {
            if (!o->hidden) print_option(f, o, &st);
        }
    }
    if (v->examples) fprintf(f, "\n%sexamples%s\n%s", st.bold, st.reset, v->examples);
}

/* ---- Markdown ---- */

static void put_cell(FILE *f, const char *s)
{
    for (; *s; s++) {
        if (*s == '|') fputc('\\', f);
        fputc(*s, f);
    }
}

void qn_help_markdown(FILE *f, const qn_verb *v)
{
    fputs("```\n", f);
    print_usage(f, v);
    fputs("```\n", f);
    if (v->pos && v->pos->name) fputs("\n| argument | meaning |\n| --- | --- |\n", f);
    for (const qn_pos *p = v->pos; p && p->name; p++) {
        fprintf(f, "| `%s` | ", p->name);
        put_cell(f, p->help);
        fputs(" |\n", f);
    }
    for (const qn_opt_group *g = v->groups; g && g->title; g++) {
        if (!group_is_shown(g)) continue;
        fprintf(f, "\n| %s | meaning |\n| --- | --- |\n", g->title);
        for (const qn_opt *o = g->opts; o->kind; o++) {
            if (o->hidden) continue;
            const char *arg = qn_opt_arg(o);
            char text[512];
            option_text(o, text, sizeof text);
            fputs("| `", f);
            if (o->brief) fprintf(f, "-%s`, `", o->brief);
            fprintf(f, "--%s%s", o->name, arg ? " " : "");
            put_cell(f, arg ? arg : "");
            fputs("` | ", f);
            put_cell(f, text);
            fputs(" |\n", f);
        }
    }
    if (v->examples) fprintf(f, "\nExamples:\n\n```\n%s```\n", v->examples);
}

/* ---- JSON ---- */

static void set_str(json_t *o, const char *key, const char *s)
{
    if (s) json_object_set_new(o, key, json_string(s));
}

static json_t *option_json(const qn_opt *o, const char *group)
{
    json_t *j = json_object();
    set_str(j, "name", o->name);
    set_str(j, "short", o->brief);
    set_str(j, "kind", kind_name(o->kind));
    if (o->min != 0 || o->max != 0) {
        json_object_set_new(j, "min", json_real(o->min));
        json_object_set_new(j, "max", json_real(o->max));
    }
    set_str(j, "default", o->dflt);
    if (o->env) json_object_set_new(j, "env", json_sprintf("QUERN_%s", o->env));
    set_str(j, "choices", o->choices);
    set_str(j, "same_as", o->same_as);
    set_str(j, "ignored", o->ignored);
    set_str(j, "refused", o->refused);
    json_object_set_new(j, "hidden", json_boolean(o->hidden));
    set_str(j, "help", o->help);
    set_str(j, "group", group);
    return j;
}

static json_t *verb_json(const qn_verb *v)
{
    json_t *j = json_object(), *pos = json_array(), *opts = json_array();
    set_str(j, "name", v->name);
    set_str(j, "alias", v->alias);
    set_str(j, "summary", v->summary);
    for (const qn_pos *p = v->pos; p && p->name; p++) {
        json_array_append_new(pos, json_pack("{s:s, s:s, s:b}", "name", p->name, "help", p->help, "required",
                                             p->required));
    }
    for (const qn_opt_group *g = v->groups; g && g->title; g++) {
        for (const qn_opt *o = g->opts; o->kind; o++) json_array_append_new(opts, option_json(o, g->title));
    }
    json_object_set_new(j, "positionals", pos);
    json_object_set_new(j, "options", opts);
    return j;
}

qn_code qn_help_json(FILE *f, const qn_verb *const *verbs, qn_err *err)
{
    json_t *list = json_array();
    for (; *verbs; verbs++) json_array_append_new(list, verb_json(*verbs));
    json_t *root = json_pack("{s:o}", "verbs", list);
    if (!root) return qn_err_set(err, QN_NOMEM, "help: out of memory");
    int failed = json_dumpf(root, f, JSON_INDENT(1)) || fputc('\n', f) == EOF;
    json_decref(root);
    return failed ? qn_err_set(err, QN_IO, "help: the output cannot be written") : QN_OK;
}
