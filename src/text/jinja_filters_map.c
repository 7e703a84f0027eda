/* jinja_filters_map.c - map, select, reject, selectattr, rejectattr; and finding filters by name.
 */
#include <string.h>

#include "text/jinja_filters.h"

typedef struct mapper {
    qn_jiter src;
    const qn_jfn *fn; /* the filter or test; NULL: see below */
    qn_jcall call;    /* its arguments, without the name */
    qn_jval attr;     /* attribute path, QN_J_MISSING: the item itself */
    qn_jval dflt;
    bool select;      /* keep the item if the test holds, instead of its value */
    bool negate;
    const qn_jstr *unknown; /* no such filter or test: an error at the first item */
    bool is_test;
} mapper;

static bool next_mapped(qn_jrun *run, qn_jiter *it, qn_jval *out)
{
    mapper *m = it->state;
    qn_jval item;
    while (qn_jiter_next(run, &m->src, &item)) {
        if (m->unknown) {
            qn_jfail(run, "no %s named '%.*s'", m->is_test ? "test" : "filter", (int)m->unknown->n,
                     m->unknown->p);
            return false;
        }
        qn_jval v = qn_jpath_get(run, item, m->attr, m->dflt);
        if (m->fn && !run->failed) {
            qn_jcall c = m->call;
            v = qn_jfn_call(run, m->fn, v, &c);
        }
        if (run->failed) return false;
        *out = m->select ? item : v;
        if (!m->select || qn_jtruth(v) != m->negate) return true;
    }
    return false;
}

/* Take the keyword out of the call; QN_J_MISSING if absent. */
static qn_jval keyword(qn_jcall *c, const char *name)
{
    for (size_t i = 0; i < c->n_kw; i++) {
        if (!qn_jstr_is(c->kw[i].name, name)) continue;
        qn_jval v = c->kw[i].value;
        memmove(&c->kw[i], &c->kw[i + 1], (c->n_kw - i - 1) * sizeof *c->kw);
        c->n_kw--;
        return v;
    }
    return qn_jmissing();
}

static mapper *new_mapper(qn_jrun *run, qn_jcall *c)
{
    mapper *m = qn_jtake(run, 1, sizeof *m);
    if (!m) return NULL;
    m->attr = m->dflt = qn_jmissing();
    m->call = *c;
    return m;
}

/* Take the name of a filter or test from the positional arguments. */
static void take_name(mapper *m, bool test)
{
    qn_jval name = m->call.pos[0];
    m->call.pos++;
    m->call.n_pos--;
    m->is_test = test;
    static const qn_jstr odd_name = {.p = "?", .n = 1, .cps = 1};
    if (name.type == QN_J_STR)
        m->fn = test ? qn_jtest_find(name.s->p, name.s->n) : qn_jfilter_find(name.s->p, name.s->n);
    if (!m->fn) m->unknown = name.type == QN_J_STR ? name.s : &odd_name;
}

/* The generator bodies of jinja2 look at their arguments when the first item is wanted, and not at
 * all if the value is empty: an error in them is no error then. */
typedef struct deferred {
    mapper *m;
    qn_jval value;
    bool started, (*prepare)(qn_jrun *, mapper *);
} deferred;

static bool next_deferred(qn_jrun *run, qn_jiter *it, qn_jval *out)
{
    deferred *d = it->state;
    if (!d->started) {
        d->started = true;
        if (!qn_jtruth(d->value)) {
            d->value = qn_jundef(NULL);
        } else if (!d->prepare(run, d->m)) {
            return false;
        }
        if (!qn_jiter_start(run, d->value, &d->m->src)) return false;
        it->inner->state = d->m;
    }
    return next_mapped(run, it->inner, out);
}

static qn_jval defer(qn_jrun *run, qn_jval value, mapper *m, bool (*prepare)(qn_jrun *, mapper *))
{
    deferred *d = qn_jtake(run, 1, sizeof *d);
    if (!d || !m) return qn_jundef(NULL);
    d->m = m;
    d->value = value;
    d->prepare = prepare;
    qn_jval v = qn_jiter_new(run, value, next_deferred, d);
    if (!run->failed) v.iter->inner->state = m;
    return v;
}

static bool prepare_map(qn_jrun *run, mapper *m)
{
    if (m->call.n_pos == 0) {
        m->attr = keyword(&m->call, "attribute");
        if (m->attr.type == QN_J_MISSING) {
            qn_jfail(run, "map requires a filter argument");
            return false;
        }
        m->dflt = keyword(&m->call, "default");
        if (m->call.n_kw == 0) return true;
        qn_jfail(run, "map has no keyword argument '%.*s'", (int)m->call.kw[0].name->n,
                 m->call.kw[0].name->p);
        return false;
    }
    take_name(m, false);
    return true;
}

static bool prepare_select(qn_jrun *run, mapper *m)
{
    (void)run;
    if (m->call.n_pos) take_name(m, true);
    return true;
}

static bool prepare_attr(qn_jrun *run, mapper *m)
{
    if (m->call.n_pos == 0) {
        qn_jfail(run, "the name of an attribute is missing");
        return false;
    }
    m->attr = m->call.pos[0];
    m->call.pos++;
    m->call.n_pos--;
    return prepare_select(run, m);
}

static qn_jval pick(qn_jrun *run, qn_jval self, qn_jcall *c, bool attr, bool negate)
{
    mapper *m = new_mapper(run, c);
    if (!m) return qn_jundef(NULL);
    m->select = true;
    m->negate = negate;
    return defer(run, self, m, attr ? prepare_attr : prepare_select);
}

static qn_jval f_map(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return defer(run, self, new_mapper(run, c), prepare_map);
}

static qn_jval f_select(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return pick(run, self, c, false, false);
}

static qn_jval f_reject(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return pick(run, self, c, false, true);
}

static qn_jval f_selectattr(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return pick(run, self, c, true, false);
}

static qn_jval f_rejectattr(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return pick(run, self, c, true, true);
}

const qn_jfn qn_jfilters_map[] = {
    {"map", f_map, NULL, 0, false},
    {"select", f_select, NULL, 0, false},
    {"reject", f_reject, NULL, 0, false},
    {"selectattr", f_selectattr, NULL, 0, false},
    {"rejectattr", f_rejectattr, NULL, 0, false},
    {"tojson", qn_jfilter_tojson, "ensure_ascii indent separators sort_keys", 0, false},
    {NULL, NULL, NULL, 0, false},
};

const qn_jfn *qn_jfilter_find(const char *name, size_t n)
{
    static const qn_jfn *const tables[] = {qn_jfilters_text, qn_jfilters_seq, qn_jfilters_map};
    qn_jstr s = {.p = name, .n = n};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const qn_jfn *f = tables[t]; f->name; f++)
            if (qn_jstr_is(&s, f->name)) return f;
    return NULL;
}
