/* jinja_tests.c - the tests of jinja2 (`x is ...`). */
#include <math.h>
#include <string.h>

#include "core/utf8.h"
#include "text/jinja_run.h"
#include "text/jinja_text.h"

static qn_jval t_defined(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type != QN_J_UNDEF);
}

static qn_jval t_undefined(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_UNDEF);
}

static qn_jval remainder_is(qn_jrun *r, qn_jval v, qn_jval by, int64_t want)
{
    qn_jval m = qn_jbinary(r, QN_J_MOD, v, by);
    return qn_jbool(!r->failed && qn_jequal(r, m, qn_jint(want)));
}

static qn_jval t_odd(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)c;
    return remainder_is(r, v, qn_jint(2), 1);
}

static qn_jval t_even(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)c;
    return remainder_is(r, v, qn_jint(2), 0);
}

static qn_jval t_divisibleby(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    return remainder_is(r, v, c->a[0], 0);
}

static qn_jval t_filter(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)c;
    uint64_t hash;
    if (v.type == QN_J_STR) return qn_jbool(qn_jfilter_find(v.s->p, v.s->n) != NULL);
    qn_jhash(r, v, &hash);
    return qn_jbool(false);
}

static qn_jval t_test(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)c;
    uint64_t hash;
    if (v.type == QN_J_STR) return qn_jbool(qn_jtest_find(v.s->p, v.s->n) != NULL);
    qn_jhash(r, v, &hash);
    return qn_jbool(false);
}

static qn_jval t_none(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_NONE);
}

static qn_jval t_boolean(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_BOOL);
}

static qn_jval t_true(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_BOOL && v.b);
}

static qn_jval t_false(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_BOOL && !v.b);
}

static qn_jval t_integer(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_INT);
}

static qn_jval t_float(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_FLOAT);
}

static qn_jval t_number(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(qn_jis_number(v));
}

static qn_jval t_string(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_STR);
}

static qn_jval t_mapping(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_DICT);
}

static qn_jval t_sequence(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_STR || v.type == QN_J_LIST || v.type == QN_J_TUPLE ||
                    v.type == QN_J_DICT || v.type == QN_J_RANGE || v.type == QN_J_UNDEF);
}

static qn_jval t_iterable(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(qn_jiterable(v));
}

static qn_jval t_callable(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_MACRO || v.type == QN_J_METHOD || v.type == QN_J_FUNC ||
                    v.type == QN_J_LOOP || v.type == QN_J_JOINER || v.type == QN_J_UNDEF);
}

static qn_jval t_escaped(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return qn_jbool(v.type == QN_J_STR && v.safe);
}

/* All cased letters of str(v) are in one case, and there is one. */
static qn_jval case_is(qn_jrun *r, qn_jval v, bool (*want)(unsigned), bool (*other)(unsigned))
{
    v = qn_jto_str(r, v.type == QN_J_UNDEF ? qn_jstr_borrow(r, "", 0) : v);
    if (r->failed) return v;
    bool any = false;
    for (size_t i = 0; i < v.s->n;) {
        unsigned cp;
        i += qn_utf8_decode(v.s->p + i, v.s->n - i, &cp);
        if (other(cp) || qn_jcp_title(cp)) return qn_jbool(false);
        any = any || want(cp);
    }
    return qn_jbool(any);
}

static qn_jval t_lower(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)c;
    return case_is(r, v, qn_jcp_lower, qn_jcp_upper);
}

static qn_jval t_upper(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)c;
    return case_is(r, v, qn_jcp_upper, qn_jcp_lower);
}

static qn_jval t_sameas(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r;
    qn_jval o = c->a[0];
    if (v.type != o.type) return qn_jbool(false);
    if (v.type == QN_J_NONE) return qn_jbool(true);
    if (v.type == QN_J_BOOL) return qn_jbool(v.b == o.b);
    if (v.type == QN_J_INT)
        return qn_jbool(v.i == o.i); /* CPython shares small ints and literals */
    if (v.type == QN_J_FLOAT) return qn_jbool(v.f == o.f);
    if (v.type == QN_J_STR) return qn_jbool(qn_jequal(r, v, o));
    return qn_jbool(v.p == o.p);
}

static qn_jval t_in(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    return qn_jbool(qn_jcontains(r, c->a[0], v));
}

static qn_jval t_eq(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    return qn_jbool(qn_jequal(r, v, c->a[0]));
}

static qn_jval t_ne(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    return qn_jbool(!qn_jequal(r, v, c->a[0]));
}

/* Order of two values: -1, 0, 1; 2 for NaN and errors. */
static int order(qn_jrun *r, qn_jval a, qn_jval b, const char *op)
{
    int o = 2;
    return qn_jcompare(r, a, b, op, &o) ? o : 2;
}

static qn_jval t_lt(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    return qn_jbool(order(r, v, c->a[0], "<") < 0);
}

static qn_jval t_le(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    return qn_jbool(order(r, v, c->a[0], "<=") <= 0);
}

static qn_jval t_gt(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    return qn_jbool(order(r, v, c->a[0], ">") == 1);
}

static qn_jval t_ge(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    int o = order(r, v, c->a[0], ">=");
    return qn_jbool(o == 0 || o == 1);
}

static const qn_jfn tests[] = {
    {"odd", t_odd, "", 0, false},
    {"even", t_even, "", 0, false},
    {"divisibleby", t_divisibleby, "num", 1, false},
    {"defined", t_defined, "", 0, false},
    {"undefined", t_undefined, "", 0, false},
    {"filter", t_filter, "", 0, false},
    {"test", t_test, "", 0, false},
    {"none", t_none, "", 0, false},
    {"boolean", t_boolean, "", 0, false},
    {"false", t_false, "", 0, false},
    {"true", t_true, "", 0, false},
    {"integer", t_integer, "", 0, false},
    {"float", t_float, "", 0, false},
    {"lower", t_lower, "", 0, false},
    {"upper", t_upper, "", 0, false},
    {"string", t_string, "", 0, false},
    {"mapping", t_mapping, "", 0, false},
    {"number", t_number, "", 0, false},
    {"sequence", t_sequence, "", 0, false},
    {"iterable", t_iterable, "", 0, false},
    {"callable", t_callable, "", 0, true},
    {"sameas", t_sameas, "other", 1, false},
    {"escaped", t_escaped, "", 0, false},
    {"in", t_in, "seq", 1, false},
    {"==", t_eq, "b", 1, true},
    {"eq", t_eq, "b", 1, true},
    {"equalto", t_eq, "b", 1, true},
    {"!=", t_ne, "b", 1, true},
    {"ne", t_ne, "b", 1, true},
    {">", t_gt, "b", 1, true},
    {"gt", t_gt, "b", 1, true},
    {"greaterthan", t_gt, "b", 1, true},
    {"ge", t_ge, "b", 1, true},
    {">=", t_ge, "b", 1, true},
    {"<", t_lt, "b", 1, true},
    {"lt", t_lt, "b", 1, true},
    {"lessthan", t_lt, "b", 1, true},
    {"<=", t_le, "b", 1, true},
    {"le", t_le, "b", 1, true},
};

const qn_jfn *qn_jtest_find(const char *name, size_t n)
{
    qn_jstr s = {.p = name, .n = n};
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (qn_jstr_is(&s, tests[i].name)) return &tests[i];
    return NULL;
}
