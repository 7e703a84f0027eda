/* jinja_compare.c - equality, order, membership, truth, and how values print. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/jinja_loop.h"
#include "text/jinja_run.h"
#include "text/jinja_text.h"

const char *qn_jtype_name(qn_jval v)
{
    static const char *const names[] = {
        [QN_J_UNDEF] = "Undefined",  [QN_J_MISSING] = "Undefined", [QN_J_NONE] = "NoneType",
        [QN_J_BOOL] = "bool",        [QN_J_INT] = "int",           [QN_J_FLOAT] = "float",
        [QN_J_STR] = "str",          [QN_J_LIST] = "list",         [QN_J_TUPLE] = "tuple",
        [QN_J_DICT] = "dict",        [QN_J_VIEW] = "dict view",    [QN_J_RANGE] = "range",
        [QN_J_ITER] = "generator",   [QN_J_MACRO] = "Macro",       [QN_J_NAMESPACE] = "Namespace",
        [QN_J_LOOP] = "LoopContext", [QN_J_METHOD] = "method",     [QN_J_FUNC] = "function",
        [QN_J_CYCLER] = "Cycler",    [QN_J_JOINER] = "Joiner",
    };
    return names[v.type];
}

static bool equal_lists(qn_jrun *run, const qn_jlist *a, const qn_jlist *b)
{
    if (a == b) return true;
    if (a->n != b->n || !qn_jenter(run)) return false;
    bool same = true;
    for (size_t i = 0; i < a->n && same; i++)
        same = qn_jstep(run, 1) && qn_jequal(run, a->v[i], b->v[i]);
    run->depth--;
    return same;
}

static bool equal_dicts(qn_jrun *run, const qn_jdict *a, const qn_jdict *b)
{
    if (a == b) return true;
    if (a->n != b->n || !qn_jenter(run)) return false;
    bool same = true;
    for (size_t i = 0; i < a->n && same; i++) {
        const qn_jval *other = qn_jdict_get(run, b, a->e[i].key);
        same = qn_jstep(run, 1) && other && qn_jequal(run, a->e[i].value, *other);
    }
    run->depth--;
    return same;
}

static bool equal_ranges(const qn_jrange *a, const qn_jrange *b)
{
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

/* Compare an int64 with a double without losing bits of either. Returns 2 for NaN. */
static int order_mixed(int64_t i, double f)
{
    if (isnan(f)) return 2;
    if (f >= 9223372036854775808.0) return -1;
    if (f < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)f;
    if (i != whole) return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

static int order_numbers(qn_jval a, qn_jval b)
{
    if (qn_jis_int(a) && qn_jis_int(b)) {
        int64_t x = qn_jas_int(a), y = qn_jas_int(b);
        return x < y ? -1 : x > y;
    }
    if (qn_jis_int(a)) return order_mixed(qn_jas_int(a), b.f);
    if (qn_jis_int(b)) {
        int o = order_mixed(qn_jas_int(b), a.f);
        return o == 2 ? 2 : -o;
    }
    if (isnan(a.f) || isnan(b.f)) return 2;
    return a.f < b.f ? -1 : a.f > b.f;
}

bool qn_jequal(qn_jrun *run, qn_jval a, qn_jval b)
{
    if (qn_jis_number(a) && qn_jis_number(b)) return order_numbers(a, b) == 0;
    if (a.type != b.type) return false;
    switch (a.type) {
    case QN_J_UNDEF:
    case QN_J_NONE: return true;
    case QN_J_STR: return a.s->n == b.s->n && memcmp(a.s->p, b.s->p, a.s->n) == 0;
    case QN_J_LIST:
    case QN_J_TUPLE: return equal_lists(run, a.list, b.list);
    case QN_J_DICT: return equal_dicts(run, a.dict, b.dict);
    case QN_J_RANGE: return equal_ranges(a.range, b.range);
    case QN_J_METHOD:
        return a.method->fn == b.method->fn && a.method->self.type == b.method->self.type &&
               a.method->self.p == b.method->self.p;
    default: return a.p == b.p;
    }
}

bool qn_jtruth(qn_jval v)
{
    switch (v.type) {
    case QN_J_UNDEF:
    case QN_J_MISSING:
    case QN_J_NONE: return false;
    case QN_J_BOOL: return v.b;
    case QN_J_INT: return v.i != 0;
    case QN_J_FLOAT: return v.f != 0;
    case QN_J_STR: return v.s->n > 0;
    case QN_J_LIST:
    case QN_J_TUPLE: return v.list->n > 0;
    case QN_J_DICT: return v.dict->n > 0;
    case QN_J_VIEW: return v.view->dict->n > 0;
    case QN_J_RANGE: return v.range->n > 0;
    default: return true;
    }
}

static int order_strings(const qn_jstr *a, const qn_jstr *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int o = n ? memcmp(a->p, b->p, n) : 0;
    if (o) return o < 0 ? -1 : 1;
    return a->n < b->n ? -1 : a->n > b->n;
}

bool qn_jcompare(qn_jrun *run, qn_jval a, qn_jval b, const char *op, int *order)
{
    if (qn_jis_number(a) && qn_jis_number(b)) {
        *order = order_numbers(a, b);
        return true;
    }
    if (a.type == QN_J_STR && b.type == QN_J_STR) {
        *order = order_strings(a.s, b.s);
        return true;
    }
    if (a.type == b.type && (a.type == QN_J_LIST || a.type == QN_J_TUPLE)) {
        size_t n = a.list->n < b.list->n ? a.list->n : b.list->n;
        for (size_t i = 0; i < n; i++) {
            if (qn_jequal(run, a.list->v[i], b.list->v[i])) continue;
            if (!qn_jenter(run)) return false;
            bool ok = qn_jcompare(run, a.list->v[i], b.list->v[i], op, order);
            run->depth--;
            return ok;
        }
        *order = a.list->n < b.list->n ? -1 : a.list->n > b.list->n;
        return true;
    }
    if (a.type == QN_J_UNDEF) qn_jfail_undef(run, a);
    else if (b.type == QN_J_UNDEF) qn_jfail_undef(run, b);
    else
        qn_jfail(run, "'%s' not supported between instances of '%s' and '%s'", op, qn_jtype_name(a),
                 qn_jtype_name(b));
    return false;
}

bool qn_jcontains(qn_jrun *run, qn_jval hay, qn_jval needle)
{
    if (hay.type == QN_J_STR) {
        if (needle.type != QN_J_STR) {
            qn_jfail(run, "'in <string>' requires a string as left operand, not %s",
                     qn_jtype_name(needle));
            return false;
        }
        return needle.s->n == 0 || memmem(hay.s->p, hay.s->n, needle.s->p, needle.s->n) != NULL;
    }
    if (hay.type == QN_J_DICT) return qn_jdict_get(run, hay.dict, needle) != NULL;
    if (hay.type == QN_J_VIEW && hay.view->kind == QN_J_KEYS)
        return qn_jdict_get(run, hay.view->dict, needle) != NULL;
    qn_jiter it;
    qn_jval item;
    if (!qn_jiterable(hay)) {
        qn_jfail(run, "argument of type '%s' is not iterable", qn_jtype_name(hay));
        return false;
    }
    if (!qn_jiter_start(run, hay, &it)) return false;
    while (qn_jiter_next(run, &it, &item))
        if (qn_jequal(run, item, needle)) return true;
    return false;
}

bool qn_jlength(qn_jrun *run, qn_jval v, size_t *out)
{
    switch (v.type) {
    case QN_J_UNDEF: *out = 0; return true;
    case QN_J_STR: *out = qn_jstr_len(v.s); return true;
    case QN_J_LIST:
    case QN_J_TUPLE: *out = v.list->n; return true;
    case QN_J_DICT: *out = v.dict->n; return true;
    case QN_J_VIEW: *out = v.view->dict->n; return true;
    case QN_J_RANGE: *out = (size_t)v.range->n; return true;
    case QN_J_LOOP: {
        qn_jval n = qn_jloop_attr(run, v, "length", 6);
        *out = run->failed ? 0 : (size_t)n.i;
        return !run->failed;
    }
    default: qn_jfail(run, "object of type '%s' has no len()", qn_jtype_name(v)); return false;
    }
}

/* ---- printing ---- */

void qn_jput_float(qn_buf *b, double f)
{
    if (isnan(f) || isinf(f)) {
        qn_buf_puts(b, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    char text[40];
    for (int digits = 0; digits < DBL_DECIMAL_DIG; digits++) {
        snprintf(text, sizeof text, "%.*e", digits, f);
        if (strtod(text, NULL) == f) break;
    }
    char *e = strchr(text, 'e');
    int exp = atoi(e + 1);
    char digits[24];
    size_t n = 0;
    for (char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    if (text[0] == '-') qn_buf_putc(b, '-');
    if (exp < -4 || exp >= 16) {
        qn_buf_putc(b, digits[0]);
        if (n > 1) qn_buf_putc(b, '.');
        qn_buf_put(b, digits + 1, n - 1);
        qn_buf_printf(b, "e%c%02d", exp < 0 ? '-' : '+', exp < 0 ? -exp : exp);
        return;
    }
    if (exp < 0) {
        qn_buf_puts(b, "0.");
        for (int i = -1; i > exp; i--) qn_buf_putc(b, '0');
        qn_buf_put(b, digits, n);
        return;
    }
    for (int i = 0; i <= exp; i++) qn_buf_putc(b, (size_t)i < n ? digits[i] : '0');
    qn_buf_putc(b, '.');
    if (n > (size_t)exp + 1) qn_buf_put(b, digits + exp + 1, n - (size_t)exp - 1);
    else qn_buf_putc(b, '0');
}

static void put_str_repr(qn_buf *b, const qn_jstr *s)
{
    bool single = memchr(s->p, '\'', s->n) != NULL, dbl = memchr(s->p, '"', s->n) != NULL;
    char quote = single && !dbl ? '"' : '\'';
    qn_buf_putc(b, quote);
    for (size_t i = 0; i < s->n;) {
        unsigned cp;
        size_t k = qn_utf8_decode(s->p + i, s->n - i, &cp);
        if (cp == (unsigned)quote || cp == '\\') qn_buf_printf(b, "\\%c", (char)cp);
        else if (cp == '\n') qn_buf_puts(b, "\\n");
        else if (cp == '\r') qn_buf_puts(b, "\\r");
        else if (cp == '\t') qn_buf_puts(b, "\\t");
        else if (qn_jcp_printable(cp)) qn_buf_put(b, s->p + i, k);
        else qn_buf_printf(b, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        i += k;
    }
    qn_buf_putc(b, quote);
}

static void put_list_repr(qn_jrun *run, qn_buf *b, qn_jval v)
{
    bool tuple = v.type == QN_J_TUPLE;
    qn_buf_putc(b, tuple ? '(' : '[');
    for (size_t i = 0; i < v.list->n && qn_jstep(run, 1); i++) {
        if (i) qn_buf_puts(b, ", ");
        qn_jput_repr(run, b, v.list->v[i]);
    }
    if (tuple && v.list->n == 1) qn_buf_putc(b, ',');
    qn_buf_putc(b, tuple ? ')' : ']');
}

static void put_dict_repr(qn_jrun *run, qn_buf *b, const qn_jdict *d)
{
    qn_buf_putc(b, '{');
    for (size_t i = 0; i < d->n && qn_jstep(run, 1); i++) {
        if (i) qn_buf_puts(b, ", ");
        qn_jput_repr(run, b, d->e[i].key);
        qn_buf_puts(b, ": ");
        qn_jput_repr(run, b, d->e[i].value);
    }
    qn_buf_putc(b, '}');
}

static void put_view_repr(qn_jrun *run, qn_buf *b, qn_jval v)
{
    static const char *const names[] = {"dict_keys(", "dict_values(", "dict_items("};
    qn_buf_puts(b, names[v.view->kind]);
    qn_jval list = qn_jto_list(run, v);
    if (!run->failed) put_list_repr(run, b, list);
    qn_buf_putc(b, ')');
}

static void put_range_repr(qn_buf *b, const qn_jrange *r)
{
    qn_buf_printf(b, "range(%lld, %lld", (long long)r->start, (long long)r->stop);
    if (r->step != 1) qn_buf_printf(b, ", %lld", (long long)r->step);
    qn_buf_putc(b, ')');
}

void qn_jput_repr(qn_jrun *run, qn_buf *b, qn_jval v)
{
    if (!qn_jenter(run)) return;
    switch (v.type) {
    case QN_J_UNDEF:
    case QN_J_MISSING: qn_buf_puts(b, "Undefined"); break;
    case QN_J_NONE: qn_buf_puts(b, "None"); break;
    case QN_J_BOOL: qn_buf_puts(b, v.b ? "True" : "False"); break;
    case QN_J_INT: qn_buf_printf(b, "%lld", (long long)v.i); break;
    case QN_J_FLOAT: qn_jput_float(b, v.f); break;
    case QN_J_STR:
        if (v.safe) qn_buf_puts(b, "Markup(");
        put_str_repr(b, v.s);
        if (v.safe) qn_buf_putc(b, ')');
        break;
    case QN_J_LIST:
    case QN_J_TUPLE: put_list_repr(run, b, v); break;
    case QN_J_DICT: put_dict_repr(run, b, v.dict); break;
    case QN_J_VIEW: put_view_repr(run, b, v); break;
    case QN_J_RANGE: put_range_repr(b, v.range); break;
    case QN_J_NAMESPACE:
        qn_buf_puts(b, "<Namespace ");
        put_dict_repr(run, b, v.dict);
        qn_buf_putc(b, '>');
        break;
    case QN_J_LOOP: {
        size_t n = 0;
        if (qn_jlength(run, v, &n))
            qn_buf_printf(b, "<LoopContext %lld/%zu>", (long long)v.loop->index0 + 1, n);
        break;
    }
    case QN_J_MACRO:
        qn_buf_puts(b, "<Macro ");
        if (v.macro->node->kind == QN_JN_CALLBLOCK) qn_buf_puts(b, "anonymous");
        else put_str_repr(b, v.macro->node->name);
        qn_buf_putc(b, '>');
        break;
    default: qn_buf_printf(b, "<%s object>", qn_jtype_name(v)); break;
    }
    run->depth--;
    qn_jbuf_ok(run, b);
}

void qn_jput_str(qn_jrun *run, qn_buf *b, qn_jval v)
{
    if (v.type == QN_J_STR) qn_buf_put(b, v.s->p, v.s->n);
    else if (v.type != QN_J_UNDEF) qn_jput_repr(run, b, v);
    qn_jbuf_ok(run, b);
}

qn_jval qn_jto_str(qn_jrun *run, qn_jval v)
{
    if (v.type == QN_J_STR || run->failed) return v;
    qn_buf b = {0};
    qn_jput_str(run, &b, v);
    return qn_jstr_take(run, &b);
}
