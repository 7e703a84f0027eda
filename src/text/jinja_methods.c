/* jinja_methods.c - attributes and methods of built-in values other than strings. */
#include <math.h>
#include <string.h>

#include "text/jinja_methods.h"

static qn_jval view_of(qn_jrun *run, qn_jval self, qn_jview_kind kind)
{
    qn_jview *v = qn_jtake(run, 1, sizeof *v);
    if (!v) return qn_jundef(NULL);
    v->dict = self.dict;
    v->kind = kind;
    return (qn_jval){.type = QN_J_VIEW, .view = v};
}

static qn_jval d_items(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return view_of(run, self, QN_J_ITEMS);
}

static qn_jval d_keys(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return view_of(run, self, QN_J_KEYS);
}

static qn_jval d_values(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return view_of(run, self, QN_J_VALUES);
}

static qn_jval d_get(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    const qn_jval *v = qn_jdict_get(run, self.dict, c->a[0]);
    return v ? *v : c->a[1].type == QN_J_MISSING ? qn_jnone() : c->a[1];
}

static qn_jval d_copy(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)run, (void)c;
    return self; /* nothing can change a dict */
}

static qn_jval d_fromkeys(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)self;
    qn_jval d = qn_jdict_new(run), key;
    qn_jiter it;
    if (run->failed || !qn_jiter_start(run, c->a[0], &it)) return qn_jundef(NULL);
    while (qn_jiter_next(run, &it, &key))
        qn_jdict_set(run, d.dict, key, c->a[1].type == QN_J_MISSING ? qn_jnone() : c->a[1]);
    return d;
}

static qn_jval l_count(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    int64_t n = 0;
    qn_jiter it;
    qn_jval item;
    if (!qn_jiter_start(run, self, &it)) return qn_jundef(NULL);
    while (qn_jiter_next(run, &it, &item)) n += qn_jequal(run, item, c->a[0]);
    return qn_jint(n);
}

static qn_jval l_index(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jval l = qn_jto_list(run, self);
    if (run->failed) return l;
    int64_t n = (int64_t)l.list->n, from = 0, to = n;
    if (c->a[1].type == QN_J_INT) from = c->a[1].i < 0 ? c->a[1].i + n : c->a[1].i;
    if (c->a[2].type == QN_J_INT) to = c->a[2].i < 0 ? c->a[2].i + n : c->a[2].i;
    for (int64_t i = from < 0 ? 0 : from; i < to && i < n && qn_jstep(run, 1); i++)
        if (qn_jequal(run, l.list->v[i], c->a[0])) return qn_jint(i);
    return qn_jfail(run, "index: the value is not in the sequence");
}

static qn_jval n_is_integer(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)run, (void)c;
    return qn_jbool(isfinite(self.f) && self.f == floor(self.f));
}

static qn_jval n_bit_length(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)run, (void)c;
    int64_t i = qn_jas_int(self);
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    return qn_jint(u ? 64 - __builtin_clzll(u) : 0);
}

static qn_jval n_bit_count(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)run, (void)c;
    int64_t i = qn_jas_int(self);
    return qn_jint(__builtin_popcountll(i < 0 ? 0 - (uint64_t)i : (uint64_t)i));
}

static qn_jval n_itself(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)run, (void)c;
    return self;
}

static qn_jval n_unsupported(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return qn_jfail(run, "not supported yet: this method of '%s'", qn_jtype_name(self));
}

static qn_jval c_next(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)run, (void)c;
    qn_jcycler *cy = self.cycler;
    qn_jval v = cy->items->v[cy->at];
    cy->at = (cy->at + 1) % cy->items->n;
    return v;
}

static qn_jval c_reset(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)run, (void)c;
    self.cycler->at = 0;
    return qn_jnone();
}

static const qn_jfn dict_methods[] = {
    {"items", d_items, "", 0, true},   {"keys", d_keys, "", 0, true},
    {"values", d_values, "", 0, true}, {"get", d_get, "key default", 1, true},
    {"copy", d_copy, "", 0, true},     {"fromkeys", d_fromkeys, "iterable value", 1, true},
    {NULL, NULL, NULL, 0, false},
};
static const qn_jfn list_methods[] = {
    {"count", l_count, "value", 1, true}, {"index", l_index, "value start stop", 1, true},
    {"copy", n_itself, "", 0, true}, {NULL, NULL, NULL, 0, false},
};
static const qn_jfn tuple_methods[] = {
    {"count", l_count, "value", 1, true}, {"index", l_index, "value start stop", 1, true},
    {NULL, NULL, NULL, 0, false},
};
static const qn_jfn float_methods[] = {
    {"is_integer", n_is_integer, "", 0, true}, {"conjugate", n_itself, "", 0, true},
    {"hex", n_unsupported, "", 0, true}, {"as_integer_ratio", n_unsupported, "", 0, true},
    {"fromhex", n_unsupported, NULL, 0, true}, {NULL, NULL, NULL, 0, false},
};
static const qn_jfn int_methods[] = {
    {"bit_length", n_bit_length, "", 0, true}, {"bit_count", n_bit_count, "", 0, true},
    {"conjugate", n_itself, "", 0, true}, {"as_integer_ratio", n_unsupported, "", 0, true},
    {"to_bytes", n_unsupported, NULL, 0, true}, {"from_bytes", n_unsupported, NULL, 0, true},
    {NULL, NULL, NULL, 0, false},
};
static const qn_jfn cycler_methods[] = {
    {"next", c_next, "", 0, true}, {"reset", c_reset, "", 0, true}, {NULL, NULL, NULL, 0, false},
};
static const qn_jfn no_methods[] = {{NULL, NULL, NULL, 0, false}};

static const qn_jfn *methods_of(qn_jval v)
{
    switch (v.type) {
    case QN_J_STR: return qn_jstr_methods;
    case QN_J_DICT: return dict_methods;
    case QN_J_LIST: return list_methods;
    case QN_J_TUPLE:
    case QN_J_RANGE: return tuple_methods;
    case QN_J_FLOAT: return float_methods;
    case QN_J_BOOL:
    case QN_J_INT: return int_methods;
    case QN_J_CYCLER: return cycler_methods;
    default: return no_methods;
    }
}

static qn_jval number_attr(qn_jval v, const qn_jstr *s)
{
    bool whole = v.type != QN_J_FLOAT;
    if (qn_jstr_is(s, "real")) return whole ? qn_jint(qn_jas_int(v)) : v;
    if (qn_jstr_is(s, "imag")) return whole ? qn_jint(0) : qn_jfloat(0);
    if (whole && qn_jstr_is(s, "numerator")) return qn_jint(qn_jas_int(v));
    if (whole && qn_jstr_is(s, "denominator")) return qn_jint(1);
    return qn_jmissing();
}

static qn_jval macro_attr(qn_jrun *run, qn_jmacro *m, const qn_jstr *s)
{
    const qn_jnode *n = m->node;
    bool anonymous = n->kind == QN_JN_CALLBLOCK;
    if (qn_jstr_is(s, "name"))
        return anonymous ? qn_jnone() : (qn_jval){.type = QN_J_STR, .s = n->name};
    if (qn_jstr_is(s, "caller")) return qn_jbool(n->scope->caller_slot >= 0);
    if (qn_jstr_is(s, "catch_kwargs")) return qn_jbool(n->scope->kwargs_slot >= 0);
    if (qn_jstr_is(s, "catch_varargs")) return qn_jbool(n->scope->varargs_slot >= 0);
    if (!qn_jstr_is(s, "arguments")) return qn_jmissing();
    qn_jval args = qn_jlist_new(run, QN_J_TUPLE, n->list.n);
    for (size_t i = 0; i < n->list.n && !run->failed; i++)
        qn_jlist_add(run, args.list, (qn_jval){.type = QN_J_STR, .s = n->list.v[i]->name});
    return args;
}

/* Attributes that are not methods. */
static qn_jval data_attr(qn_jrun *run, qn_jval v, const qn_jstr *s)
{
    if (qn_jis_number(v)) return number_attr(v, s);
    if (v.type == QN_J_MACRO) return macro_attr(run, v.macro, s);
    if (v.type == QN_J_TUPLE && v.list->group && v.list->n == 2) {
        if (qn_jstr_is(s, "grouper")) return v.list->v[0];
        if (qn_jstr_is(s, "list")) return v.list->v[1];
    }
    if (v.type == QN_J_RANGE) {
        if (qn_jstr_is(s, "start")) return qn_jint(v.range->start);
        if (qn_jstr_is(s, "stop")) return qn_jint(v.range->stop);
        if (qn_jstr_is(s, "step")) return qn_jint(v.range->step);
    }
    if (v.type == QN_J_CYCLER) {
        if (qn_jstr_is(s, "current")) return v.cycler->items->v[v.cycler->at];
        if (qn_jstr_is(s, "pos")) return qn_jint((int64_t)v.cycler->at);
        if (qn_jstr_is(s, "items")) return (qn_jval){.type = QN_J_TUPLE, .list = v.cycler->items};
    }
    if (v.type == QN_J_JOINER) {
        if (qn_jstr_is(s, "sep")) return v.joiner->sep;
        if (qn_jstr_is(s, "used")) return qn_jbool(v.joiner->used);
    }
    if (v.type == QN_J_FUNC && qn_jstr_is(s, "fromkeys") && strcmp(v.fn->name, "dict") == 0)
        return qn_jbind(run, qn_jnone(), &dict_methods[5]);
    return qn_jmissing();
}

qn_jval qn_jbind(qn_jrun *run, qn_jval self, const qn_jfn *fn)
{
    qn_jmethod *m = qn_jtake(run, 1, sizeof *m);
    if (!m) return qn_jundef(NULL);
    m->self = self;
    m->fn = fn;
    return (qn_jval){.type = QN_J_METHOD, .method = m};
}

qn_jval qn_jattr_builtin(qn_jrun *run, qn_jval v, const char *name, size_t n)
{
    qn_jstr s = {.p = name, .n = n};
    for (const qn_jfn *fn = methods_of(v); fn->name; fn++)
        if (qn_jstr_is(&s, fn->name)) return qn_jbind(run, v, fn);
    return data_attr(run, v, &s);
}
