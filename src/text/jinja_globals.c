/* jinja_globals.c - the functions a template can call: range, namespace, dict, cycler, joiner,
 * raise_exception, strftime_now. */
#include <limits.h>
#include <string.h>
#include <time.h>

#include "text/jinja_run.h"

static qn_jval g_raise(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)self;
    qn_jval text =
        c->a[0].type == QN_J_UNDEF ? qn_jstr_borrow(run, "", 0) : qn_jto_str(run, c->a[0]);
    if (run->failed) return text;
    run->failed = true;
    int n = text.s->n > QN_ERR_TEXT ? QN_ERR_TEXT : (int)text.s->n;
    qn_err_set(run->err, QN_INVALID, "%.*s", n, n ? text.s->p : "");
    return qn_jundef(NULL);
}

static qn_jval g_strftime(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)self;
    if (c->a[0].type != QN_J_STR) return qn_jfail(run, "strftime_now needs a format string");
    time_t now = (time_t)run->clock(run->clock_arg);
    struct tm tm;
    localtime_r(&now, &tm);
    char format[256], text[1024];
    if (c->a[0].s->n >= sizeof format - 1)
        return qn_jfail(run, "strftime_now: the format is too long");
    memcpy(format, c->a[0].s->p, c->a[0].s->n);
    format[c->a[0].s->n] = 'x'; /* so that an empty result is not mistaken for a failure */
    format[c->a[0].s->n + 1] = 0;
    size_t n = strftime(text, sizeof text, format, &tm);
    if (n == 0) return qn_jfail(run, "strftime_now: the result is too long");
    return qn_jstr_copy(run, text, n - 1);
}

static qn_jval g_range(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)self;
    if (c->n_kw || c->n_pos < 1 || c->n_pos > 3)
        return qn_jfail(run, "range takes 1 to 3 integers");
    int64_t v[3] = {0, 0, 1};
    for (size_t i = 0; i < c->n_pos; i++) {
        if (c->pos[i].type == QN_J_UNDEF) return qn_jfail_undef(run, c->pos[i]);
        if (!qn_jis_int(c->pos[i]))
            return qn_jfail(run, "range needs integers, got %s", qn_jtype_name(c->pos[i]));
        v[c->n_pos == 1 ? 1 : i] = qn_jas_int(c->pos[i]);
    }
    if (v[2] == 0) return qn_jfail(run, "range: the step must not be 0");
    __int128 span = v[2] > 0 ? (__int128)v[1] - v[0] : (__int128)v[0] - v[1];
    __int128 by = v[2] > 0 ? (__int128)v[2] : -(__int128)v[2],
             n = span <= 0 ? 0 : (span - 1) / by + 1;
    if (n > QN_J_MAX_RANGE) return qn_jfail(run, "range: more than %d items", QN_J_MAX_RANGE);
    qn_jval r = {.type = QN_J_RANGE, .range = qn_jtake(run, 1, sizeof *r.range)};
    if (!r.range) return qn_jundef(NULL);
    *r.range = (qn_jrange){v[0], v[1], v[2], (int64_t)n};
    return r;
}

static bool fill_pairs(qn_jrun *run, qn_jdict *d, qn_jval from)
{
    if (from.type == QN_J_DICT) {
        for (size_t i = 0; i < from.dict->n; i++)
            qn_jdict_set(run, d, from.dict->e[i].key, from.dict->e[i].value);
        return !run->failed;
    }
    qn_jiter it;
    qn_jval pair;
    if (!qn_jiter_start(run, from, &it)) return false;
    while (qn_jiter_next(run, &it, &pair)) {
        qn_jval kv = qn_jto_list(run, pair);
        if (run->failed) return false;
        if (kv.list->n != 2) {
            qn_jfail(run, "dict: every item must be a pair, got %zu values", kv.list->n);
            return false;
        }
        qn_jdict_set(run, d, kv.list->v[0], kv.list->v[1]);
    }
    return !run->failed;
}

static qn_jval g_dict(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)self;
    qn_jval d = qn_jdict_new(run);
    if (c->n_pos > 1) return qn_jfail(run, "dict takes at most one positional argument");
    if (run->failed || (c->n_pos && !fill_pairs(run, d.dict, c->pos[0]))) return qn_jundef(NULL);
    for (size_t i = 0; i < c->n_kw; i++)
        qn_jdict_set(run, d.dict, (qn_jval){.type = QN_J_STR, .s = c->kw[i].name}, c->kw[i].value);
    return d;
}

static qn_jval g_namespace(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jval d = g_dict(run, self, c);
    if (run->failed) return d;
    for (size_t i = 0; i < d.dict->n; i++) {
        qn_jval key = d.dict->e[i].key;
        if (key.type == QN_J_STR && key.s->n && key.s->p[0] == '_')
            return qn_jfail(run, "an attribute of a namespace may not start with '_': '%.*s'",
                            key.s->n > 80 ? 80 : (int)key.s->n, key.s->p);
    }
    d.type = QN_J_NAMESPACE;
    return d;
}

static qn_jval g_cycler(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)self;
    if (c->n_kw || c->n_pos == 0) return qn_jfail(run, "cycler needs at least one item");
    qn_jval items = qn_jtuple(run, c->pos, c->n_pos);
    qn_jcycler *cy = run->failed ? NULL : qn_jtake(run, 1, sizeof *cy);
    if (!cy) return qn_jundef(NULL);
    cy->items = items.list;
    return (qn_jval){.type = QN_J_CYCLER, .cycler = cy};
}

static qn_jval g_joiner(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)self;
    qn_jjoiner *j = qn_jtake(run, 1, sizeof *j);
    if (!j) return qn_jundef(NULL);
    j->sep = c->a[0].type == QN_J_MISSING ? qn_jstr_borrow(run, ", ", 2) : c->a[0];
    return (qn_jval){.type = QN_J_JOINER, .joiner = j};
}

static qn_jval g_lipsum(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)self, (void)c;
    return qn_jfail(run, "not supported yet: lipsum");
}

const qn_jfn *qn_jglobal_find(const char *name, size_t n)
{
    static const qn_jfn table[] = {
        {"raise_exception", g_raise, "message", 1, false},
        {"strftime_now", g_strftime, "format", 1, false},
        {"range", g_range, NULL, 0, false},
        {"dict", g_dict, NULL, 0, false},
        {"namespace", g_namespace, NULL, 0, false},
        {"cycler", g_cycler, NULL, 0, false},
        {"joiner", g_joiner, "sep", 0, false},
        {"lipsum", g_lipsum, NULL, 0, false},
    };
    qn_jstr s = {.p = name, .n = n};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (qn_jstr_is(&s, table[i].name)) return &table[i];
    return NULL;
}
