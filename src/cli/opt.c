/* opt.c - the parser behind opt.h. */
#include "cli/opt.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/arena.h"
#include "core/rt.h"

enum { MAX_POSITIONALS = 16, MAX_FLAG_NAME = 64 };

/* Where a value came from; a higher origin is not replaced by a lower one. */
typedef enum origin { FROM_NOWHERE = 0, FROM_DEFAULT, FROM_ENV, FROM_OTHER_NAME, FROM_FLAG } origin;

typedef struct value {
    origin from;
    bool on;
    int64_t i;
    double f;
    uint64_t bytes;
    const char *s;
    const char **words;
    int64_t *ints;
    size_t n;
} value;

struct qn_args {
    const qn_verb *verb;
    const qn_opt **opts; /* [n_opts], all groups in a row */
    value *values;       /* [n_opts] */
    size_t n_opts;
    const char *pos[MAX_POSITIONALS];
    size_t n_pos;
    bool wants_help;
    qn_arena arena;
};

/* ---- small readers ---- */

static bool read_bool(const char *s, bool *out)
{
    static const char *const yes[] = {"on", "1", "true"}, *const no[] = {"off", "0", "false"};
    for (size_t i = 0; i < 3; i++) {
        if (!strcasecmp(s, yes[i])) return *out = true, true;
        if (!strcasecmp(s, no[i])) return *out = false, true;
    }
    return false;
}

static bool read_int(const char *s, int64_t *out)
{
    const char *digits = s + (*s == '-' || *s == '+');
    if (!isdigit((unsigned char)*digits)) return false;
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (*end || errno) return false;
    *out = v;
    return true;
}

static bool read_float(const char *s, double *out)
{
    if (!*s || isspace((unsigned char)*s)) return false;
    char *end;
    double v = strtod(s, &end);
    if (*end || !isfinite(v)) return false;
    *out = v;
    return true;
}

static bool is_negative_number(const char *s)
{
    double v;
    return s[0] == '-' && (isdigit((unsigned char)s[1]) || s[1] == '.') && read_float(s, &v);
}

/* May this token be the value of a flag? "-" and negative numbers may, other dash-led ones not. */
static bool is_value(const char *s)
{
    return s[0] != '-' || !s[1] || is_negative_number(s);
}

bool qn_size_parse(const char *text, qn_size_rule rule, uint64_t *bytes)
{
    static const struct { const char *suffix; double unit[4]; } units[] = {
        /*        GB       GIB      LS       BYTES (0: not in this grammar) */
        {"",    {1e9,     1 << 30, 1 << 30, 1}},
        {"GB",  {1e9,     1e9,     1 << 30, 1e9}},
        {"MB",  {1e6,     1e6,     1 << 20, 1e6}},
        {"GiB", {1 << 30, 1 << 30, 0,       0}},
        {"MiB", {1 << 20, 1 << 20, 0,       0}},
        {"G",   {0,       0,       1 << 30, 1e9}},
        {"M",   {0,       0,       1 << 20, 1e6}},
    };
    size_t n_digits = strspn(text, "0123456789.");
    if (!n_digits || n_digits > 30) return false;
    char number[32];
    memcpy(number, text, n_digits);
    number[n_digits] = '\0';
    double v;
    if (!read_float(number, &v)) return false;
    const char *suffix = text + n_digits;
    suffix += strspn(suffix, " ");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        double unit = units[i].unit[rule];
        if (unit == 0 || strcasecmp(suffix, units[i].suffix)) continue;
        if (v * unit >= 9.2e18) return false;
        *bytes = (uint64_t)(v * unit);
        return true;
    }
    return false;
}

/* ---- suggestions ---- */

static size_t edit_distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    if (na >= MAX_FLAG_NAME || nb >= MAX_FLAG_NAME) return MAX_FLAG_NAME;
    size_t row[MAX_FLAG_NAME + 1];
    for (size_t j = 0; j <= nb; j++) row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}

const char *qn_nearest(const char *word, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    size_t best_distance = 3;
    for (size_t i = 0; i < n; i++) {
        size_t d = edit_distance(word, candidates[i]);
        if (d >= best_distance || d >= strlen(candidates[i])) continue;
        best = candidates[i];
        best_distance = d;
    }
    return best;
}

/* ---- tables ---- */

static size_t find_name(const qn_args *a, const char *name, size_t len)
{
    for (size_t i = 0; i < a->n_opts; i++) {
        if (strlen(a->opts[i]->name) == len && !memcmp(a->opts[i]->name, name, len)) return i;
    }
    return a->n_opts;
}

static size_t find_brief(const qn_args *a, const char *name, size_t len)
{
    for (size_t i = 0; i < a->n_opts; i++) {
        const char *brief = a->opts[i]->brief;
        if (brief && strlen(brief) == len && !memcmp(brief, name, len)) return i;
    }
    return a->n_opts;
}

static qn_code collect_options(qn_args *a, qn_err *err)
{
    size_t n = 0;
    for (const qn_opt_group *g = a->verb->groups; g && g->title; g++) {
        for (const qn_opt *o = g->opts; o->kind; o++) n++;
    }
    a->opts = qn_arena_take(&a->arena, n + 1, sizeof *a->opts);
    a->values = qn_arena_take(&a->arena, n + 1, sizeof *a->values);
    if (!a->opts || !a->values) return qn_err_set(err, QN_NOMEM, "options: out of memory");
    for (const qn_opt_group *g = a->verb->groups; g && g->title; g++) {
        for (const qn_opt *o = g->opts; o->kind; o++) {
            assert(find_name(a, o->name, strlen(o->name)) == a->n_opts);
            a->opts[a->n_opts++] = o;
        }
    }
    return QN_OK;
}

/* ---- one value ---- */

static qn_code check_range(const qn_opt *o, const char *label, const char *text, double v, qn_err *err)
{
    if ((o->min == 0 && o->max == 0) || (v >= o->min && v <= o->max)) return QN_OK;
    return qn_err_set(err, QN_INVALID, "%s: %s is outside of %.10g to %.10g", label, text, o->min, o->max);
}

static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *c = choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL) {
        size_t len = strcspn(c, "|");
        if (len == n && !memcmp(c, text, n)) return true;
    }
    return false;
}

static qn_code split_list(qn_args *a, const char *text, value *v, qn_err *err)
{
    size_t n = 1;
    for (const char *c = text; *c; c++) n += *c == ',';
    v->words = qn_arena_take(&a->arena, n + 1, sizeof *v->words);
    if (!v->words) return qn_err_set(err, QN_NOMEM, "options: out of memory");
    v->n = 0;
    for (const char *c = text; *c;) {
        size_t len = strcspn(c, ",");
        if (len && !(v->words[v->n++] = qn_arena_dup(&a->arena, c, len))) {
            return qn_err_set(err, QN_NOMEM, "options: out of memory");
        }
        c += len + (c[len] == ',');
    }
    return QN_OK;
}

static qn_code read_ints(qn_args *a, const qn_opt *o, const char *label, value *v, qn_err *err)
{
    v->ints = qn_arena_take(&a->arena, v->n + 1, sizeof *v->ints);
    if (!v->ints) return qn_err_set(err, QN_NOMEM, "options: out of memory");
    for (size_t i = 0; i < v->n; i++) {
        if (!read_int(v->words[i], &v->ints[i])) {
            return qn_err_set(err, QN_INVALID, "%s expects whole numbers with commas between them, not \"%s\"",
                              label, v->words[i]);
        }
        qn_code rc = check_range(o, label, v->words[i], (double)v->ints[i], err);
        if (rc) return rc;
    }
    return QN_OK;
}

/* Read `text` by the option's kind into *v. `label` is what errors call the option. */
static qn_code read_value(qn_args *a, const qn_opt *o, const char *label, const char *text, value *v, qn_err *err)
{
    qn_code rc;
    switch (o->kind) {
    case QN_OPT_BOOL:
    case QN_OPT_SWITCH:
        if (read_bool(text, &v->on)) return QN_OK;
        return qn_err_set(err, QN_INVALID, "%s expects on or off, not \"%s\"", label, text);
    case QN_OPT_STR:
        v->s = text;
        return o->check ? o->check(text, err) : QN_OK;
    case QN_OPT_INT:
        if (!read_int(text, &v->i)) {
            return qn_err_set(err, QN_INVALID, "%s expects a whole number, not \"%s\"", label, text);
        }
        return check_range(o, label, text, (double)v->i, err);
    case QN_OPT_FLOAT:
        if (!read_float(text, &v->f)) {
            return qn_err_set(err, QN_INVALID, "%s expects a number, not \"%s\"", label, text);
        }
        return check_range(o, label, text, v->f, err);
    case QN_OPT_SIZE:
        if (!qn_size_parse(text, o->size_rule, &v->bytes)) {
            return qn_err_set(err, QN_INVALID, "%s: bad size: %s (right would be 1.5GB)", label, text);
        }
        return check_range(o, label, text, (double)v->bytes, err);
    case QN_OPT_ENUM:
        v->s = text;
        if (is_choice(o->choices, text)) return QN_OK;
        return qn_err_set(err, QN_INVALID, "%s: \"%s\" is not one of %s", label, text, o->choices);
    case QN_OPT_LIST:
    case QN_OPT_WORDS:
        rc = split_list(a, text, v, err);
        if (rc || v->n || !o->adds) return rc;
        return qn_err_set(err, QN_INVALID, "%s expects a value, not \"%s\"", label, text);
    case QN_OPT_INTS:
        rc = split_list(a, text, v, err);
        return rc ? rc : read_ints(a, o, label, v, err);
    case QN_OPT_END:
        break;
    }
    QN_UNREACHABLE();
}

static const char *flag_label(qn_args *a, const qn_opt *o)
{
    const char *label = qn_arena_printf(&a->arena, "--%s", o->name);
    return label ? label : o->name;
}

/* The slot a flag fills: its own, or that of the option it is another spelling of. */
static value *slot_of(qn_args *a, size_t at, origin *from)
{
    const qn_opt *o = a->opts[at];
    *from = FROM_FLAG;
    if (!o->same_as) return &a->values[at];
    size_t target = find_name(a, o->same_as, strlen(o->same_as));
    qn_check(target < a->n_opts && a->opts[target]->kind == o->kind);
    *from = FROM_OTHER_NAME;
    return &a->values[target];
}

/* The earlier words before v's. */
static qn_code add_words(qn_args *a, const value *earlier, value *v, qn_err *err)
{
    size_t n = earlier->n + v->n;
    const char **words = qn_arena_take(&a->arena, n + 1, sizeof *words);
    if (!words) return qn_err_set(err, QN_NOMEM, "options: out of memory");
    memcpy(words, earlier->words, earlier->n * sizeof *words);
    memcpy(words + earlier->n, v->words, v->n * sizeof *words);
    v->words = words;
    v->n = n;
    return QN_OK;
}

static qn_code keep_value(qn_args *a, size_t at, value v, qn_err *err)
{
    origin from;
    value *slot = slot_of(a, at, &from);
    if (slot->from > from) return QN_OK;
    if (a->opts[at]->adds && slot->from == from) {
        qn_code rc = add_words(a, slot, &v, err);
        if (rc) return rc;
    }
    v.from = from;
    *slot = v;
    return QN_OK;
}

/* ---- tokens ---- */

typedef struct tokens {
    char **argv;
    int argc, at; /* at: the next token */
} tokens;

static qn_code unknown_flag(const qn_args *a, const char *token, qn_err *err)
{
    char name[MAX_FLAG_NAME];
    size_t len = strcspn(token + 2, "=");
    const char *near = NULL;
    if (token[1] == '-' && len < sizeof name) {
        memcpy(name, token + 2, len);
        name[len] = '\0';
        const char *names[256];
        size_t n = 0;
        for (size_t i = 0; i < a->n_opts && n < 255; i++) {
            if (!a->opts[i]->hidden) names[n++] = a->opts[i]->name;
        }
        names[n++] = "help";
        near = qn_nearest(name, names, n);
    }
    int shown = (int)strcspn(token, "=");
    if (near) {
        return qn_err_set(err, QN_INVALID, "unknown flag %.*s; did you mean --%s?", shown, token, near);
    }
    return qn_err_set(err, QN_INVALID, "unknown flag %.*s; \"quern help %s\" lists the flags", shown, token,
                      a->verb->name);
}

static qn_code take_words(qn_args *a, size_t at, tokens *t, value *v, qn_err *err)
{
    v->words = qn_arena_take(&a->arena, (size_t)(t->argc - t->at) + 1, sizeof *v->words);
    if (!v->words) return qn_err_set(err, QN_NOMEM, "options: out of memory");
    while (t->at < t->argc && is_value(t->argv[t->at])) v->words[v->n++] = t->argv[t->at++];
    if (v->n) return QN_OK;
    return qn_err_set(err, QN_INVALID, "--%s expects a value", a->opts[at]->name);
}

/* Handle one flag; `attached` is the text behind "=" (or glued to a short flag), or NULL. */
static qn_code take_flag(qn_args *a, size_t at, const char *attached, tokens *t, qn_err *err)
{
    const qn_opt *o = a->opts[at];
    value v = {0};
    qn_code rc = QN_OK;
    if (o->refused) return qn_err_set(err, QN_UNSUPPORTED, "not supported yet: --%s: %s", o->name, o->refused);
    if (o->kind == QN_OPT_BOOL && !attached) {
        v.on = true;
    } else if (o->kind == QN_OPT_WORDS && !attached) {
        rc = take_words(a, at, t, &v, err);
    } else {
        const char *text = attached;
        if (!text) {
            if (t->at >= t->argc || !is_value(t->argv[t->at])) {
                return qn_err_set(err, QN_INVALID, "--%s expects a value", o->name);
            }
            text = t->argv[t->at++];
        }
        rc = read_value(a, o, flag_label(a, o), text, &v, err);
    }
    if (rc) return rc;
    if (o->ignored) fprintf(stderr, "quern: warning: --%s has no effect: %s\n", o->name, o->ignored);
    return keep_value(a, at, v, err);
}

static qn_code take_long(qn_args *a, const char *token, tokens *t, qn_err *err)
{
    size_t len = strcspn(token + 2, "=");
    size_t at = find_name(a, token + 2, len);
    if (at == a->n_opts) return unknown_flag(a, token, err);
    return take_flag(a, at, token[2 + len] == '=' ? token + 3 + len : NULL, t, err);
}

/* "-m 5", "-m=5", "-m5", and declared names of several letters such as "-qa". */
static qn_code take_short(qn_args *a, const char *token, tokens *t, qn_err *err)
{
    size_t len = strcspn(token + 1, "=");
    size_t at = find_brief(a, token + 1, len);
    if (at < a->n_opts) return take_flag(a, at, token[1 + len] == '=' ? token + 2 + len : NULL, t, err);
    at = find_brief(a, token + 1, 1);
    if (at == a->n_opts || a->opts[at]->kind == QN_OPT_BOOL) return unknown_flag(a, token, err);
    return take_flag(a, at, token + 2, t, err);
}

static qn_code take_positional(qn_args *a, const char *token, qn_err *err)
{
    size_t n_declared = 0;
    while (a->verb->pos && a->verb->pos[n_declared].name) n_declared++;
    assert(n_declared <= MAX_POSITIONALS);
    if (a->n_pos == n_declared) {
        return qn_err_set(err, QN_INVALID, "unexpected argument \"%s\"; \"quern %s\" takes %zu at most", token,
                          a->verb->name, n_declared);
    }
    a->pos[a->n_pos++] = token;
    return QN_OK;
}

static qn_code take_tokens(qn_args *a, tokens *t, qn_err *err)
{
    bool options = true;
    qn_code rc = QN_OK;
    while (!rc && t->at < t->argc) {
        const char *token = t->argv[t->at++];
        if (options && !strcmp(token, "--")) options = false;
        else if (!options || is_value(token)) rc = take_positional(a, token, err);
        else if (token[1] == '-') rc = take_long(a, token, t, err);
        else rc = take_short(a, token, t, err);
    }
    return rc;
}

/* Fill what no flag set: from the environment, else from the table's default. */
static qn_code fill_rest(qn_args *a, qn_err *err)
{
    for (size_t i = 0; i < a->n_opts; i++) {
        const qn_opt *o = a->opts[i];
        value *v = &a->values[i];
        if (v->from || o->same_as) continue;
        const char *env = o->env ? qn_rt_value(o->env) : NULL;
        const char *text = env ? env : o->dflt;
        if (!text) continue;
        const char *label = env ? qn_arena_printf(&a->arena, "QUERN_%s", o->env) : flag_label(a, o);
        qn_code rc = read_value(a, o, label ? label : o->name, text, v, err);
        if (rc) return rc;
        v->from = env ? FROM_ENV : FROM_DEFAULT;
    }
    return QN_OK;
}

/* What belongs to the whole command line: options that exclude each other, arguments that must be
 * there. */
static qn_code check_all(const qn_args *a, qn_err *err)
{
    for (size_t i = 0; i < a->n_opts; i++) {
        const qn_opt *o = a->opts[i];
        if (!o->not_with || !qn_arg_given(a, o->name) || !qn_arg_given(a, o->not_with)) continue;
        return qn_err_set(err, QN_INVALID, "--%s and --%s exclude each other: give one of them",
                          o->not_with, o->name);
    }
    for (size_t i = 0; a->verb->pos && a->verb->pos[i].name; i++) {
        if (!a->verb->pos[i].required || i < a->n_pos) continue;
        return qn_err_set(err, QN_INVALID, "%s is missing; \"quern help %s\" shows how to call it",
                          a->verb->pos[i].name, a->verb->name);
    }
    return QN_OK;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++) {
        if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help")) return true;
    }
    return false;
}

qn_code qn_args_parse(qn_args **out, const qn_verb *verb, int argc, char **argv, qn_err *err)
{
    *out = NULL;
    qn_args *a = calloc(1, sizeof *a);
    if (!a) return qn_err_set(err, QN_NOMEM, "options: out of memory");
    a->verb = verb;
    a->wants_help = asks_for_help(argc, argv);
    tokens t = {argv, argc, 0};
    qn_code rc = collect_options(a, err);
    if (!rc && !a->wants_help) rc = take_tokens(a, &t, err);
    if (!rc && !a->wants_help) rc = fill_rest(a, err);
    if (!rc && !a->wants_help) rc = check_all(a, err);
    if (rc) qn_args_free(a);
    else *out = a;
    return rc;
}

void qn_args_free(qn_args *args)
{
    if (!args) return;
    qn_arena_release(&args->arena);
    free(args);
}

/* ---- reading ---- */

bool qn_args_wants_help(const qn_args *args) { return args->wants_help; }

const char *qn_arg_pos(const qn_args *args, size_t i)
{
    return i < args->n_pos ? args->pos[i] : NULL;
}

static const value *value_of(const qn_args *a, const char *name, unsigned kinds)
{
    size_t at = find_name(a, name, strlen(name));
    qn_check(at < a->n_opts && !a->opts[at]->same_as);
    qn_check(kinds & 1u << a->opts[at]->kind);
    return &a->values[at];
}

bool qn_arg_given(const qn_args *args, const char *name)
{
    return value_of(args, name, ~0u)->from >= FROM_ENV;
}

bool qn_arg_bool(const qn_args *args, const char *name)
{
    return value_of(args, name, 1u << QN_OPT_BOOL | 1u << QN_OPT_SWITCH)->on;
}

const char *qn_arg_str(const qn_args *args, const char *name)
{
    return value_of(args, name, 1u << QN_OPT_STR | 1u << QN_OPT_ENUM)->s;
}

int64_t qn_arg_int(const qn_args *args, const char *name)
{
    return value_of(args, name, 1u << QN_OPT_INT)->i;
}

double qn_arg_float(const qn_args *args, const char *name)
{
    return value_of(args, name, 1u << QN_OPT_FLOAT)->f;
}

uint64_t qn_arg_bytes(const qn_args *args, const char *name)
{
    return value_of(args, name, 1u << QN_OPT_SIZE)->bytes;
}

const char *const *qn_arg_words(const qn_args *args, const char *name, size_t *n)
{
    const value *v = value_of(args, name, 1u << QN_OPT_LIST | 1u << QN_OPT_WORDS);
    *n = v->n;
    return v->words;
}

const int64_t *qn_arg_ints(const qn_args *args, const char *name, size_t *n)
{
    const value *v = value_of(args, name, 1u << QN_OPT_INTS);
    *n = v->n;
    return v->ints;
}
