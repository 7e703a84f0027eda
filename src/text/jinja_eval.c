/* jinja_eval.c - expressions: names, attributes, operators, calls. */
#include <math.h>
#include <string.h>

#include "text/jinja_filters.h"
#include "text/jinja_loop.h"
#include "text/jinja_run.h"

/* ---- arithmetic ---- */

qn_jval qn_jfail_undef(qn_jrun *run, qn_jval v)
{
    return qn_jfail(run, "%s", v.hint ? v.hint : "the value is undefined");
}

static qn_jval fail_operands(qn_jrun *run, const char *op, qn_jval a, qn_jval b)
{
    if (a.type == QN_J_UNDEF) return qn_jfail_undef(run, a);
    if (b.type == QN_J_UNDEF) return qn_jfail_undef(run, b);
    return qn_jfail(run, "unsupported operand types for %s: '%s' and '%s'", op, qn_jtype_name(a),
                    qn_jtype_name(b));
}

static qn_jval overflow(qn_jrun *run) { return qn_jfail(run, "an integer does not fit 64 bits"); }

/* a followed by n bytes. A template that builds its prompt with `s = s ~ more` would copy it every
 * time: the last text made here keeps room behind it, and is extended in place if it is `a`. What
 * others see of it does not change. */
static qn_jval append(qn_jrun *run, const qn_jstr *a, const char *p, size_t n)
{
    enum { WORTH_ROOM = 1024 };
    qn_jtail *t = &run->text_tail;
    if (a->n && a->p + a->n == (char *)t->end && (size_t)((char *)t->limit - (char *)t->end) >= n) {
        if (n) memcpy(t->end, p, n);
        t->end = (char *)t->end + n;
        return qn_jstr_borrow(run, a->p, a->n + n);
    }
    size_t room = a->n > WORTH_ROOM ? a->n : 0;
    char *copy = run->failed ? NULL : qn_jtake(run, a->n + n + room + 1, 1);
    if (!copy) return qn_jundef(NULL);
    if (a->n) memcpy(copy, a->p, a->n);
    if (n) memcpy(copy + a->n, p, n);
    if (room) *t = (qn_jtail){copy + a->n + n, copy + a->n + n + room};
    return qn_jstr_borrow(run, copy, a->n + n);
}

static qn_jval concat_strings(qn_jrun *run, qn_jval a, qn_jval b)
{
    bool safe = a.safe || b.safe;
    if (safe) {
        a = qn_jescape(run, a);
        b = qn_jescape(run, b);
    }
    if (run->failed) return qn_jundef(NULL);
    qn_jval v = append(run, a.s, b.s->p, b.s->n);
    v.safe = safe;
    return v;
}

/* The same for lists: `l = l + [x]`. */
static qn_jval concat_lists(qn_jrun *run, qn_jval a, qn_jval b)
{
    enum { WORTH_ROOM = 16 };
    size_t na = a.list->n, nb = b.list->n;
    qn_jtail *t = &run->list_tail;
    qn_jval v = qn_jlist_new(run, a.type, 0);
    if (run->failed) return v;
    bool extend = na && a.list->v + na == (qn_jval *)t->end &&
                  (size_t)((qn_jval *)t->limit - (qn_jval *)t->end) >= nb;
    qn_jval *items = a.list->v;
    if (!extend) {
        size_t room = na > WORTH_ROOM ? na : 0;
        items = qn_jstep(run, (int64_t)na) ? qn_jtake(run, na + nb + room, sizeof *items) : NULL;
        if (!items) return qn_jundef(NULL);
        if (na) memcpy(items, a.list->v, na * sizeof *items);
        if (room) *t = (qn_jtail){items + na + nb, items + na + nb + room};
    } else {
        t->end = items + na + nb;
    }
    if (nb) memcpy(items + na, b.list->v, nb * sizeof *items);
    *v.list = (qn_jlist){.v = items, .n = na + nb, .cap = na + nb};
    return qn_jstep(run, (int64_t)nb) ? v : qn_jundef(NULL);
}

qn_jval qn_jadd(qn_jrun *run, qn_jval a, qn_jval b)
{
    if (qn_jis_int(a) && qn_jis_int(b)) {
        int64_t r;
        return __builtin_add_overflow(qn_jas_int(a), qn_jas_int(b), &r) ? overflow(run)
                                                                        : qn_jint(r);
    }
    if (qn_jis_number(a) && qn_jis_number(b)) return qn_jfloat(qn_jas_float(a) + qn_jas_float(b));
    if (a.type == QN_J_STR && b.type == QN_J_STR) return concat_strings(run, a, b);
    if (a.type == b.type && (a.type == QN_J_LIST || a.type == QN_J_TUPLE))
        return concat_lists(run, a, b);
    return fail_operands(run, "+", a, b);
}

static qn_jval repeat(qn_jrun *run, qn_jval v, int64_t times)
{
    size_t n = v.type == QN_J_STR ? v.s->n : v.list->n,
           unit = v.type == QN_J_STR ? 1 : sizeof(qn_jval), total;
    if (times < 0) times = 0;
    if (qn_mul_size(n, (size_t)times, &total) || total > run->max_memory) {
        qn_jtake(run, SIZE_MAX / 4, 1);
        return qn_jundef(NULL);
    }
    char *p = qn_jtake(run, total + 1, unit);
    if (!p || !qn_jstep(run, (int64_t)(total / 16))) return qn_jundef(NULL);
    const void *from = v.type == QN_J_STR ? (const void *)v.s->p : (const void *)v.list->v;
    for (int64_t i = 0; i < times && n; i++) memcpy(p + (size_t)i * n * unit, from, n * unit);
    if (v.type == QN_J_STR) {
        qn_jval s = qn_jstr_borrow(run, p, total);
        s.safe = v.safe;
        return s;
    }
    qn_jval l = qn_jlist_new(run, v.type, 0);
    if (run->failed) return l;
    *l.list = (qn_jlist){.v = (qn_jval *)(void *)p, .n = total, .cap = total};
    return l;
}

static bool repeatable(qn_jval v)
{
    return v.type == QN_J_STR || v.type == QN_J_LIST || v.type == QN_J_TUPLE;
}

static qn_jval multiply(qn_jrun *run, qn_jval a, qn_jval b)
{
    if (qn_jis_int(a) && qn_jis_int(b)) {
        int64_t r;
        return __builtin_mul_overflow(qn_jas_int(a), qn_jas_int(b), &r) ? overflow(run)
                                                                        : qn_jint(r);
    }
    if (qn_jis_number(a) && qn_jis_number(b)) return qn_jfloat(qn_jas_float(a) * qn_jas_float(b));
    if (repeatable(a) && qn_jis_int(b)) return repeat(run, a, qn_jas_int(b));
    if (repeatable(b) && qn_jis_int(a)) return repeat(run, b, qn_jas_int(a));
    return fail_operands(run, "*", a, b);
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0)) m += b;
    return m == 0 ? copysign(0, b) : m;
}

static qn_jval divide(qn_jrun *run, qn_jop op, qn_jval a, qn_jval b)
{
    const char *name = op == QN_J_DIV ? "/" : op == QN_J_FLOORDIV ? "//" : "%";
    if (!qn_jis_number(a) || !qn_jis_number(b)) return fail_operands(run, name, a, b);
    if (qn_jas_float(b) == 0) return qn_jfail(run, "division by zero");
    if (op == QN_J_DIV) return qn_jfloat(qn_jas_float(a) / qn_jas_float(b));
    if (qn_jis_int(a) && qn_jis_int(b)) {
        int64_t x = qn_jas_int(a), y = qn_jas_int(b);
        if (y == -1) {
            if (op == QN_J_MOD) return qn_jint(0);
            return x == INT64_MIN ? overflow(run) : qn_jint(-x);
        }
        int64_t q = x / y, m = x % y;
        if (m != 0 && (m < 0) != (y < 0)) {
            q--;
            m += y;
        }
        return qn_jint(op == QN_J_MOD ? m : q);
    }
    double x = qn_jas_float(a), y = qn_jas_float(b), m = float_mod(x, y);
    if (op == QN_J_MOD) return qn_jfloat(m);
    double q = (x - m) / y, whole = floor(q);
    if (q - whole > 0.5) whole += 1;
    return qn_jfloat(q == 0 ? copysign(0, x / y) : whole);
}

static qn_jval power(qn_jrun *run, qn_jval a, qn_jval b)
{
    if (!qn_jis_number(a) || !qn_jis_number(b)) return fail_operands(run, "**", a, b);
    if (qn_jis_int(a) && qn_jis_int(b) && qn_jas_int(b) >= 0) {
        int64_t base = qn_jas_int(a), e = qn_jas_int(b), r = 1;
        while (e > 0) {
            if ((e & 1) && __builtin_mul_overflow(r, base, &r)) return overflow(run);
            e >>= 1;
            if (e && __builtin_mul_overflow(base, base, &base)) return overflow(run);
        }
        return qn_jint(r);
    }
    double x = qn_jas_float(a), y = qn_jas_float(b);
    if (x == 0 && y < 0) return qn_jfail(run, "0.0 cannot be raised to a negative power");
    if (x < 0 && isfinite(y) && y != floor(y))
        return qn_jfail(run, "not supported yet: complex numbers");
    double r = pow(x, y);
    if (isinf(r) && isfinite(x) && isfinite(y))
        return qn_jfail(run, "the result of ** is too large");
    return qn_jfloat(r);
}

qn_jval qn_jbinary(qn_jrun *run, qn_jop op, qn_jval a, qn_jval b)
{
    if (run->failed) return qn_jundef(NULL);
    switch (op) {
    case QN_J_ADD: return qn_jadd(run, a, b);
    case QN_J_SUB:
        if (qn_jis_int(a) && qn_jis_int(b)) {
            int64_t r;
            return __builtin_sub_overflow(qn_jas_int(a), qn_jas_int(b), &r) ? overflow(run)
                                                                            : qn_jint(r);
        }
        if (qn_jis_number(a) && qn_jis_number(b))
            return qn_jfloat(qn_jas_float(a) - qn_jas_float(b));
        return fail_operands(run, "-", a, b);
    case QN_J_MUL: return multiply(run, a, b);
    case QN_J_MOD:
        if (a.type == QN_J_STR) return qn_jformat_percent(run, a, b);
        return divide(run, op, a, b);
    case QN_J_DIV:
    case QN_J_FLOORDIV: return divide(run, op, a, b);
    default: return power(run, a, b);
    }
}

qn_jval qn_jnegate(qn_jrun *run, qn_jval v)
{
    if (v.type == QN_J_FLOAT) return qn_jfloat(-v.f);
    if (qn_jis_int(v)) return qn_jas_int(v) == INT64_MIN ? overflow(run) : qn_jint(-qn_jas_int(v));
    if (v.type == QN_J_UNDEF) return qn_jfail_undef(run, v);
    return qn_jfail(run, "bad operand type for unary -: '%s'", qn_jtype_name(v));
}

/* ---- attributes and items ---- */

static qn_jval missing_attr(qn_jrun *run, qn_jval of, const qn_jstr *name)
{
    char *hint = qn_arena_printf(&run->arena, "'%s object' has no attribute '%.*s'",
                                 qn_jtype_name(of), name->n > 80 ? 80 : (int)name->n, name->p);
    return qn_jundef(hint);
}

/* Attributes that exist in Python but that the sandbox hides: using them is an error, looking is
 * not. */
static bool hidden_attr(qn_jval v, const qn_jstr *name)
{
    static const char *const list_names[] = {"append", "clear", "pop",    "reverse",
                                             "insert", "sort",  "extend", "remove"};
    static const char *const dict_names[] = {"clear", "pop", "popitem", "setdefault", "update"};
    if (name->n > 4 && memcmp(name->p, "__", 2) == 0 && memcmp(name->p + name->n - 2, "__", 2) == 0)
        return true;
    const char *const *names = v.type == QN_J_LIST ? list_names : dict_names;
    size_t n = v.type == QN_J_LIST ? 8 : v.type == QN_J_DICT ? 5 : 0;
    for (size_t i = 0; i < n; i++)
        if (qn_jstr_is(name, names[i])) return true;
    return false;
}

/* An attribute as Python's getattr with the sandbox's rules; QN_J_MISSING if there is none. */
static qn_jval own_attr(qn_jrun *run, qn_jval v, const qn_jstr *name)
{
    if (hidden_attr(v, name)) {
        char *hint =
            qn_arena_printf(&run->arena, "access to attribute '%.*s' of '%s' object is unsafe",
                            name->n > 80 ? 80 : (int)name->n, name->p, qn_jtype_name(v));
        return qn_jundef(hint);
    }
    if (v.type == QN_J_NAMESPACE) {
        const qn_jval *found = qn_jdict_find(v.dict, name->p, name->n);
        return found ? *found : qn_jmissing();
    }
    if (v.type == QN_J_LOOP) return qn_jloop_attr(run, v, name->p, name->n);
    return qn_jattr_builtin(run, v, name->p, name->n);
}

qn_jval qn_jget_attr(qn_jrun *run, qn_jval v, const qn_jstr *name)
{
    if (run->failed) return qn_jundef(NULL);
    if (v.type == QN_J_UNDEF) {
        return hidden_attr(v, name) ? missing_attr(run, v, name) : qn_jfail_undef(run, v);
    }
    qn_jval attr = own_attr(run, v, name);
    if (attr.type != QN_J_MISSING || run->failed) return attr;
    if (v.type == QN_J_DICT) {
        const qn_jval *found = qn_jdict_find(v.dict, name->p, name->n);
        if (found) return *found;
    }
    return missing_attr(run, v, name);
}

static qn_jval index_sequence(qn_jrun *run, qn_jval v, int64_t i)
{
    size_t n;
    if (!qn_jlength(run, v, &n)) return qn_jundef(NULL);
    if (i < 0) i += (int64_t)n;
    if (i < 0 || i >= (int64_t)n) return qn_jmissing();
    if (v.type == QN_J_RANGE) return qn_jint(v.range->start + i * v.range->step);
    if (v.type != QN_J_STR) return v.list->v[i];
    if (n != v.s->n) qn_jstep(run, i / 256); /* finding the place is work */
    size_t at = qn_jstr_offset(v.s, (size_t)i), end = at + 1;
    while (end < v.s->n && ((unsigned char)v.s->p[end] & 0xC0) == 0x80) end++;
    qn_jval s = qn_jstr_borrow(run, v.s->p + at, end - at);
    s.safe = v.safe;
    return s;
}

qn_jval qn_jget_item(qn_jrun *run, qn_jval v, qn_jval key)
{
    if (run->failed) return qn_jundef(NULL);
    if (v.type == QN_J_UNDEF) return qn_jfail_undef(run, v);
    qn_jval found = qn_jmissing();
    uint64_t hash;
    if (v.type == QN_J_DICT) {
        bool hashable = key.type != QN_J_LIST && key.type != QN_J_DICT && key.type != QN_J_VIEW;
        const qn_jval *hit =
            hashable && qn_jhash(run, key, &hash) ? qn_jdict_get(run, v.dict, key) : NULL;
        if (hit) found = *hit;
    } else if (qn_jis_int(key) && (v.type == QN_J_LIST || v.type == QN_J_TUPLE ||
                                   v.type == QN_J_STR || v.type == QN_J_RANGE)) {
        found = index_sequence(run, v, qn_jas_int(key));
    }
    if (found.type == QN_J_MISSING && key.type == QN_J_STR) found = own_attr(run, v, key.s);
    if (found.type != QN_J_MISSING || run->failed) return found;
    if (key.type == QN_J_STR) return missing_attr(run, v, key.s);
    return qn_jundef(
        qn_arena_printf(&run->arena, "'%s object' has no such element", qn_jtype_name(v)));
}

/* A bound of a slice, clipped as Python does. */
static bool slice_bound(qn_jrun *run, qn_jval v, int64_t n, int64_t dflt, int64_t low, int64_t *out)
{
    *out = dflt;
    if (v.type == QN_J_NONE) return true;
    if (!qn_jis_int(v)) {
        if (v.type == QN_J_UNDEF) qn_jfail_undef(run, v);
        else qn_jfail(run, "slice indices must be integers or None, not '%s'", qn_jtype_name(v));
        return false;
    }
    int64_t i = qn_jas_int(v), high = n + low;
    if (i < 0) i = i < -n ? low : i + n;
    *out = i > high ? high : i < low ? low : i;
    return true;
}

qn_jval qn_jslice(qn_jrun *run, qn_jval v, qn_jval lo, qn_jval hi, qn_jval step)
{
    bool str = v.type == QN_J_STR;
    if (v.type == QN_J_UNDEF) return qn_jfail_undef(run, v);
    if (!str && v.type != QN_J_LIST && v.type != QN_J_TUPLE && v.type != QN_J_RANGE)
        return qn_jfail(run, "'%s' object cannot be sliced", qn_jtype_name(v));
    size_t len;
    int64_t by = 1, from, to;
    if (!qn_jlength(run, v, &len)) return qn_jundef(NULL);
    int64_t n = (int64_t)len;
    if (step.type != QN_J_NONE) {
        if (!qn_jis_int(step)) return qn_jfail(run, "slice indices must be integers or None");
        by = qn_jas_int(step);
        if (by == 0) return qn_jfail(run, "slice step cannot be zero");
        if (by == INT64_MIN) by++;
    }
    if (!slice_bound(run, lo, n, by > 0 ? 0 : n - 1, by > 0 ? 0 : -1, &from) ||
        !slice_bound(run, hi, n, by > 0 ? n : -1, by > 0 ? 0 : -1, &to))
        return qn_jundef(NULL);
    int64_t count = by > 0 ? (to > from ? (to - from - 1) / by + 1 : 0)
                           : (from > to ? (from - to - 1) / -by + 1 : 0);
    if (str && by == 1) {
        size_t a = qn_jstr_offset(v.s, (size_t)from),
               b = count ? qn_jstr_offset(v.s, (size_t)to) : a;
        qn_jval s = qn_jstr_borrow(run, v.s->p + a, b - a);
        s.safe = v.safe;
        return s;
    }
    if (!qn_jstep(run, count)) return qn_jundef(NULL);
    if (v.type == QN_J_RANGE) {
        qn_jval r = {.type = QN_J_RANGE, .range = qn_jtake(run, 1, sizeof *r.range)};
        if (!r.range) return qn_jundef(NULL);
        const qn_jrange *of = v.range;
        *r.range = (qn_jrange){of->start + from * of->step, of->start + to * of->step,
                               of->step * by, count};
        return r;
    }
    if (!str) {
        qn_jval l = qn_jlist_new(run, v.type, (size_t)count);
        for (int64_t i = 0; i < count && !run->failed; i++)
            l.list->v[l.list->n++] = v.list->v[from + i * by];
        return l;
    }
    qn_jval chars = qn_jto_list(run, v);
    qn_buf b = {0};
    for (int64_t i = 0; i < count && !run->failed; i++) {
        const qn_jstr *c = chars.list->v[from + i * by].s;
        qn_buf_put(&b, c->p, c->n);
    }
    qn_jval s = qn_jstr_take(run, &b);
    s.safe = v.safe;
    return s;
}

/* ---- evaluation ---- */

static qn_jval eval_name(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    for (uint32_t i = 0; i < n->hops; i++) f = f->parent;
    qn_jval v = f->slots[n->slot];
    if (v.type != QN_J_MISSING) return v;
    return qn_jundef(qn_arena_printf(&run->arena, "'%.*s' is undefined",
                                     n->name->n > 80 ? 80 : (int)n->name->n, n->name->p));
}

static qn_jval eval_sequence(qn_jrun *run, qn_jframe *f, const qn_jnode *n, qn_jtype type)
{
    qn_jval l = qn_jlist_new(run, type, n->list.n);
    for (size_t i = 0; i < n->list.n && !run->failed; i++) {
        const qn_jnode *item = n->list.v[i];
        if (item->kind == QN_JN_SLICE)
            return qn_jfail(run, "a slice cannot be part of a tuple of indices");
        qn_jlist_add(run, l.list, qn_jeval(run, f, item));
    }
    return l;
}

static qn_jval eval_dict(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jval d = qn_jdict_new(run);
    for (size_t i = 0; i + 1 < n->list.n && !run->failed; i += 2) {
        qn_jval key = qn_jeval(run, f, n->list.v[i]), value = qn_jeval(run, f, n->list.v[i + 1]);
        qn_jdict_set(run, d.dict, key, value);
    }
    return d;
}

static qn_jval eval_item(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jval of = qn_jeval(run, f, n->a);
    if (run->failed) return of;
    if (n->b->kind != QN_JN_SLICE) {
        qn_jval key = qn_jeval(run, f, n->b);
        run->line = n->line;
        return qn_jget_item(run, of, key);
    }
    qn_jval part[3];
    for (int i = 0; i < 3; i++) {
        const qn_jnode *p = n->b->list.v[i];
        part[i] = p ? qn_jeval(run, f, p) : qn_jnone();
    }
    return run->failed ? qn_jundef(NULL) : qn_jslice(run, of, part[0], part[1], part[2]);
}

static bool add_star(qn_jrun *run, qn_jframe *f, const qn_jnode *n, qn_jcall *c)
{
    qn_jval items = qn_jto_list(run, qn_jeval(run, f, n));
    if (run->failed) return false;
    qn_jval *pos = qn_jtake(run, c->n_pos + items.list->n + 1, sizeof *pos);
    if (!pos) return false;
    if (c->n_pos) memcpy(pos, c->pos, c->n_pos * sizeof *pos);
    if (items.list->n) memcpy(pos + c->n_pos, items.list->v, items.list->n * sizeof *pos);
    c->pos = pos;
    c->n_pos += items.list->n;
    return true;
}

static bool add_star_star(qn_jrun *run, qn_jframe *f, const qn_jnode *n, qn_jcall *c)
{
    qn_jval d = qn_jeval(run, f, n);
    if (run->failed) return false;
    if (d.type != QN_J_DICT) {
        qn_jfail(run, "argument after ** must be a mapping, not %s", qn_jtype_name(d));
        return false;
    }
    qn_jkw *kw = qn_jtake(run, c->n_kw + d.dict->n + 1, sizeof *kw);
    if (!kw) return false;
    if (c->n_kw) memcpy(kw, c->kw, c->n_kw * sizeof *kw);
    c->kw = kw;
    for (size_t i = 0; i < d.dict->n; i++) {
        if (d.dict->e[i].key.type != QN_J_STR) {
            qn_jfail(run, "keywords must be strings");
            return false;
        }
        const qn_jstr *name = d.dict->e[i].key.s;
        for (size_t k = 0; k < c->n_kw; k++) {
            if (kw[k].name->n != name->n || memcmp(kw[k].name->p, name->p, name->n) != 0) continue;
            qn_jfail(run, "got multiple values for keyword argument '%.*s'", (int)name->n, name->p);
            return false;
        }
        kw[c->n_kw++] = (qn_jkw){name, d.dict->e[i].value};
    }
    return true;
}

bool qn_jeval_args(qn_jrun *run, qn_jframe *f, const qn_jargs *args, qn_jcall *c)
{
    memset(c, 0, sizeof *c);
    if (!args) return true;
    size_t n_pos = args->pos.n, n_kw = args->kw_values.n;
    if (n_pos && !(c->pos = qn_jtake(run, n_pos, sizeof *c->pos))) return false;
    if (n_kw && !(c->kw = qn_jtake(run, n_kw + 1, sizeof *c->kw))) return false;
    for (size_t i = 0; i < n_pos && !run->failed; i++)
        c->pos[c->n_pos++] = qn_jeval(run, f, args->pos.v[i]);
    for (size_t i = 0; i < n_kw && !run->failed; i++)
        c->kw[c->n_kw++] = (qn_jkw){args->kw_names[i], qn_jeval(run, f, args->kw_values.v[i])};
    if (args->star && !run->failed) add_star(run, f, args->star, c);
    if (args->star_star && !run->failed) add_star_star(run, f, args->star_star, c);
    return !run->failed;
}

static qn_jval eval_call(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jval callee = qn_jeval(run, f, n->a);
    qn_jcall c;
    if (run->failed || !qn_jeval_args(run, f, n->args, &c)) return qn_jundef(NULL);
    run->line = n->line;
    return qn_jcall_value(run, callee, &c);
}

qn_jval qn_jeval_filter(qn_jrun *run, qn_jframe *f, const qn_jnode *n, qn_jval subject)
{
    if (n->a)
        subject = n->a->kind == QN_JN_FILTER ? qn_jeval_filter(run, f, n->a, subject)
                                             : qn_jeval(run, f, n->a);
    qn_jcall c;
    if (run->failed || !qn_jeval_args(run, f, n->args, &c)) return qn_jundef(NULL);
    run->line = n->line;
    if (!n->fn) return qn_jfail(run, "no filter named '%.*s'", (int)n->name->n, n->name->p);
    return qn_jfn_call(run, n->fn, subject, &c);
}

static qn_jval eval_test(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jval subject = qn_jeval(run, f, n->a);
    qn_jcall c;
    if (run->failed || !qn_jeval_args(run, f, n->args, &c)) return qn_jundef(NULL);
    run->line = n->line;
    if (!n->fn) return qn_jfail(run, "no test named '%.*s'", (int)n->name->n, n->name->p);
    return qn_jfn_call(run, n->fn, subject, &c);
}

static bool compare_one(qn_jrun *run, qn_jop op, qn_jval a, qn_jval b)
{
    static const char *const names[] = {
        [QN_J_LT] = "<", [QN_J_LE] = "<=", [QN_J_GT] = ">", [QN_J_GE] = ">="};
    int order = 0;
    switch (op) {
    case QN_J_EQ: return qn_jequal(run, a, b);
    case QN_J_NE: return !qn_jequal(run, a, b);
    case QN_J_IN: return qn_jcontains(run, b, a);
    case QN_J_NOT_IN: return !qn_jcontains(run, b, a);
    default: break;
    }
    if (!qn_jcompare(run, a, b, names[op], &order) || order == 2) return false;
    return op == QN_J_LT   ? order < 0
           : op == QN_J_LE ? order <= 0
           : op == QN_J_GT ? order > 0
                           : order >= 0;
}

static qn_jval eval_compare(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jval left = qn_jeval(run, f, n->a);
    for (size_t i = 0; i < n->list.n && !run->failed; i++) {
        qn_jval right = qn_jeval(run, f, n->list.v[i]);
        run->line = n->line;
        if (run->failed || !compare_one(run, n->ops[i], left, right)) return qn_jbool(false);
        left = right;
    }
    return qn_jbool(true);
}

static qn_jval eval_concat(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jval v = qn_jsoft_str(run, qn_jeval(run, f, n->list.v[0]));
    for (size_t i = 1; i < n->list.n && !run->failed; i++) {
        qn_jval more = qn_jsoft_str(run, qn_jeval(run, f, n->list.v[i]));
        if (!run->failed) v = append(run, v.s, more.s->p, more.s->n);
    }
    v.safe = false;
    return v;
}

static qn_jval eval_cond(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jval test = qn_jeval(run, f, n->b);
    if (run->failed) return test;
    if (qn_jtruth(test)) return qn_jeval(run, f, n->a);
    if (n->c) return qn_jeval(run, f, n->c);
    return qn_jundef("an inline if-expression evaluated to false and has no else");
}

static qn_jval eval_sign(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jval v = qn_jeval(run, f, n->a);
    if (run->failed) return v;
    if (n->kind == QN_JN_NEG) return qn_jnegate(run, v);
    if (qn_jis_int(v)) return qn_jint(qn_jas_int(v));
    if (v.type == QN_J_FLOAT) return v;
    if (v.type == QN_J_UNDEF) return qn_jfail_undef(run, v);
    return qn_jfail(run, "bad operand type for unary +: '%s'", qn_jtype_name(v));
}

static qn_jval eval_inner(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jval a, b;
    switch (n->kind) {
    case QN_JN_CONST: return n->value;
    case QN_JN_NAME: return eval_name(run, f, n);
    case QN_JN_TUPLE: return eval_sequence(run, f, n, QN_J_TUPLE);
    case QN_JN_LIST: return eval_sequence(run, f, n, QN_J_LIST);
    case QN_JN_DICT: return eval_dict(run, f, n);
    case QN_JN_ATTR:
        a = qn_jeval(run, f, n->a);
        run->line = n->line;
        return qn_jget_attr(run, a, n->attr);
    case QN_JN_ITEM: return eval_item(run, f, n);
    case QN_JN_CALL: return eval_call(run, f, n);
    case QN_JN_FILTER: return qn_jeval_filter(run, f, n, qn_jundef(NULL));
    case QN_JN_TEST: return eval_test(run, f, n);
    case QN_JN_BINARY:
        a = qn_jeval(run, f, n->a);
        b = run->failed ? a : qn_jeval(run, f, n->b);
        run->line = n->line;
        return qn_jbinary(run, n->op, a, b);
    case QN_JN_COMPARE: return eval_compare(run, f, n);
    case QN_JN_CONCAT: return eval_concat(run, f, n);
    case QN_JN_AND:
        a = qn_jeval(run, f, n->a);
        return !run->failed && qn_jtruth(a) ? qn_jeval(run, f, n->b) : a;
    case QN_JN_OR:
        a = qn_jeval(run, f, n->a);
        return !run->failed && !qn_jtruth(a) ? qn_jeval(run, f, n->b) : a;
    case QN_JN_NOT:
        a = qn_jeval(run, f, n->a);
        return qn_jbool(!qn_jtruth(a));
    case QN_JN_NEG:
    case QN_JN_POS: return eval_sign(run, f, n);
    case QN_JN_COND: return eval_cond(run, f, n);
    default: return qn_jfail(run, "this is not an expression");
    }
}

qn_jval qn_jeval(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    if (run->failed || !qn_jstep(run, 1) || !qn_jenter(run)) return qn_jundef(NULL);
    run->line = n->line;
    qn_jval v = eval_inner(run, f, n);
    run->depth--;
    return v;
}
