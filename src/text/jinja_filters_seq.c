/* jinja_filters_seq.c - filters over sequences: order, grouping, picking. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja_filters.h"
#include "text/jinja_text.h"

enum { MAX_SLICES = 1000000 };

qn_jval qn_jignore_case(qn_jrun *run, qn_jval v)
{
    if (v.type != QN_J_STR || run->failed) return v;
    qn_buf b = {0};
    qn_jput_case(&b, v.s->p, v.s->n, QN_J_LOWER);
    return qn_jstr_take(run, &b);
}

static bool all_digits(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] < '0' || p[i] > '9') return false;
    return n > 0 && n < 19;
}

qn_jval qn_jpath_get(qn_jrun *run, qn_jval item, qn_jval path, qn_jval dflt)
{
    if (path.type == QN_J_MISSING || path.type == QN_J_NONE) return item;
    bool has_default = dflt.type != QN_J_MISSING && dflt.type != QN_J_NONE;
    if (path.type != QN_J_STR) {
        item = qn_jget_item(run, item, path);
        return has_default && item.type == QN_J_UNDEF ? dflt : item;
    }
    const char *p = path.s->p, *end = p + path.s->n;
    while (!run->failed) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        size_t n = (size_t)((dot ? dot : end) - p);
        qn_jval key = all_digits(p, n) ? qn_jint(strtoll(p, NULL, 10)) : qn_jstr_borrow(run, p, n);
        item = qn_jget_item(run, item, key);
        if (has_default && item.type == QN_J_UNDEF && !run->failed) item = dflt;
        if (!dot) break;
        p = dot + 1;
    }
    return item;
}

/* ---- sorting ---- */

typedef struct keyed {
    qn_jval key, value;
    size_t at;
} keyed;

/* Merge sort: stable, and safe with a comparison that fails half way. */
static void merge_sort(qn_jrun *run, keyed *v, keyed *tmp, size_t n, bool reverse)
{
    if (n < 2 || !qn_jstep(run, (int64_t)n)) return;
    size_t half = n / 2, a = 0, b = half, out = 0;
    merge_sort(run, v, tmp, half, reverse);
    merge_sort(run, v + half, tmp, n - half, reverse);
    while (a < half && b < n && !run->failed) {
        int o = 0;
        if (!qn_jcompare(run, v[b].key, v[a].key, "<", &o) || o == 2) o = 0;
        bool take_b = reverse ? o > 0 : o < 0;
        tmp[out++] = take_b ? v[b++] : v[a++];
    }
    while (a < half) tmp[out++] = v[a++];
    while (b < n) tmp[out++] = v[b++];
    memcpy(v, tmp, n * sizeof *v);
}

static qn_jval sort_keyed(qn_jrun *run, keyed *v, size_t n, bool reverse)
{
    keyed *tmp = qn_jtake(run, n + 1, sizeof *tmp);
    if (!tmp) return qn_jundef(NULL);
    merge_sort(run, v, tmp, n, reverse);
    qn_jval l = qn_jlist_new(run, QN_J_LIST, n);
    for (size_t i = 0; i < n && !run->failed; i++) qn_jlist_add(run, l.list, v[i].value);
    return l;
}

/* The sort key of an item: one attribute, or a list of the comma separated ones. */
static qn_jval multi_key(qn_jrun *run, qn_jval item, qn_jval attr, bool case_sensitive)
{
    qn_jval keys = qn_jlist_new(run, QN_J_LIST, 1);
    const char *p = attr.type == QN_J_STR ? attr.s->p : NULL, *end = p ? p + attr.s->n : NULL;
    while (!run->failed) {
        const char *comma = p ? memchr(p, ',', (size_t)(end - p)) : NULL;
        qn_jval part = p ? qn_jstr_borrow(run, p, (size_t)((comma ? comma : end) - p)) : attr;
        qn_jval key = qn_jpath_get(run, item, part, qn_jmissing());
        qn_jlist_add(run, keys.list, case_sensitive ? key : qn_jignore_case(run, key));
        if (!comma) break;
        p = comma + 1;
    }
    return keys;
}

static qn_jval f_sort(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jval items = qn_jto_list(run, self);
    if (run->failed) return items;
    size_t n = items.list->n;
    keyed *v = qn_jtake(run, n + 1, sizeof *v);
    bool case_sensitive = qn_jarg_bool(c->a[1], false);
    for (size_t i = 0; v && i < n && !run->failed; i++)
        v[i] =
            (keyed){multi_key(run, items.list->v[i], c->a[2], case_sensitive), items.list->v[i], i};
    return run->failed ? qn_jundef(NULL) : sort_keyed(run, v, n, qn_jarg_bool(c->a[0], false));
}

static qn_jval f_dictsort(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    bool case_sensitive = qn_jarg_bool(c->a[0], false), by_value = false;
    if (c->a[1].type != QN_J_MISSING) {
        by_value = c->a[1].type == QN_J_STR && qn_jstr_is(c->a[1].s, "value");
        if (!by_value && !(c->a[1].type == QN_J_STR && qn_jstr_is(c->a[1].s, "key")))
            return qn_jfail(run, "dictsort: by must be \"key\" or \"value\"");
    }
    if (self.type == QN_J_UNDEF) return qn_jfail_undef(run, self);
    if (self.type != QN_J_DICT)
        return qn_jfail(run, "dictsort needs a mapping, got %s", qn_jtype_name(self));
    size_t n = self.dict->n;
    keyed *v = qn_jtake(run, n + 1, sizeof *v);
    for (size_t i = 0; v && i < n && !run->failed; i++) {
        const qn_jentry *e = &self.dict->e[i];
        qn_jval key = by_value ? e->value : e->key;
        v[i] = (keyed){case_sensitive ? key : qn_jignore_case(run, key),
                       qn_jtuple(run, (const qn_jval[]){e->key, e->value}, 2), i};
    }
    return run->failed ? qn_jundef(NULL) : sort_keyed(run, v, n, qn_jarg_bool(c->a[2], false));
}

static qn_jval group_pair(qn_jrun *run, qn_jval key, qn_jval items)
{
    qn_jval pair = qn_jtuple(run, (const qn_jval[]){key, items}, 2);
    if (!run->failed) pair.list->group = true;
    return pair;
}

static qn_jval f_groupby(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    bool case_sensitive = qn_jarg_bool(c->a[2], false);
    qn_jval items = qn_jto_list(run, self);
    if (run->failed) return items;
    size_t n = items.list->n;
    keyed *v = qn_jtake(run, n + 1, sizeof *v);
    for (size_t i = 0; v && i < n && !run->failed; i++) {
        qn_jval key = qn_jpath_get(run, items.list->v[i], c->a[0], c->a[1]);
        v[i] = (keyed){case_sensitive ? key : qn_jignore_case(run, key), items.list->v[i], i};
    }
    if (run->failed) return qn_jundef(NULL);
    sort_keyed(run, v, n, false);
    qn_jval out = qn_jlist_new(run, QN_J_LIST, 0), group = qn_jundef(NULL);
    for (size_t i = 0; i < n && !run->failed; i++) {
        if (i == 0 || !qn_jequal(run, v[i - 1].key, v[i].key)) {
            group = qn_jlist_new(run, QN_J_LIST, 0);
            qn_jval shown =
                case_sensitive ? v[i].key : qn_jpath_get(run, v[i].value, c->a[0], c->a[1]);
            qn_jlist_add(run, out.list, group_pair(run, shown, group));
        }
        if (!run->failed) qn_jlist_add(run, group.list, v[i].value);
    }
    return out;
}

/* ---- picking ---- */

static qn_jval extreme(qn_jrun *run, qn_jval self, qn_jcall *c, bool max)
{
    qn_jiter it;
    qn_jval item, best, best_key = qn_jmissing();
    if (!qn_jiter_start(run, self, &it)) return qn_jundef(NULL);
    while (qn_jiter_next(run, &it, &item)) {
        qn_jval key = qn_jpath_get(run, item, c->a[1], qn_jmissing());
        if (!qn_jarg_bool(c->a[0], false)) key = qn_jignore_case(run, key);
        int o = -1;
        if (best_key.type != QN_J_MISSING) {
            bool ok = max ? qn_jcompare(run, best_key, key, ">", &o)
                          : qn_jcompare(run, key, best_key, "<", &o);
            if (!ok) return qn_jundef(NULL);
        }
        if (o != -1 && !(o < 0)) continue;
        best = item;
        best_key = key;
    }
    if (best_key.type == QN_J_MISSING)
        return qn_jundef("no aggregated item, the sequence was empty");
    return best;
}

static qn_jval f_min(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return extreme(run, self, c, false);
}

static qn_jval f_max(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return extreme(run, self, c, true);
}

static qn_jval f_first(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    qn_jiter it;
    qn_jval item;
    if (!qn_jiter_start(run, self, &it)) return qn_jundef(NULL);
    return qn_jiter_next(run, &it, &item) ? item
                                          : qn_jundef("no first item, the sequence was empty");
}

static bool reversible(qn_jval v)
{
    return v.type == QN_J_STR || v.type == QN_J_LIST || v.type == QN_J_TUPLE ||
           v.type == QN_J_DICT || v.type == QN_J_VIEW || v.type == QN_J_RANGE ||
           v.type == QN_J_UNDEF;
}

static qn_jval f_last(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    if (!reversible(self))
        return qn_jfail(run, "'%s' object is not reversible", qn_jtype_name(self));
    qn_jval l = qn_jto_list(run, self);
    if (run->failed) return l;
    return l.list->n ? l.list->v[l.list->n - 1] : qn_jundef("no last item, the sequence was empty");
}

static qn_jval f_reverse(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    if (self.type == QN_J_STR) return qn_jslice(run, self, qn_jnone(), qn_jnone(), qn_jint(-1));
    qn_jval l = qn_jto_list(run, self);
    if (run->failed) return l;
    for (size_t i = 0, k = l.list->n; i + 1 < k; i++) {
        k--;
        qn_jval t = l.list->v[i];
        l.list->v[i] = l.list->v[k];
        l.list->v[k] = t;
    }
    if (!reversible(self)) return l;
    qn_jval out = qn_jiter_new(run, l, NULL, NULL);
    if (!run->failed) {
        qn_jiter_start(run, l, out.iter); /* a plain cursor that is used up once */
    }
    return out;
}

static qn_jval f_list(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return qn_jto_list(run, self);
}

static qn_jval f_length(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    size_t n;
    return qn_jlength(run, self, &n) ? qn_jint((int64_t)n) : qn_jundef(NULL);
}

static qn_jval f_join(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jval sep = c->a[0].type == QN_J_MISSING ? qn_jstr_borrow(run, "", 0)
                                               : qn_jto_str(run, c->a[0]),
            item;
    if (sep.type == QN_J_UNDEF) sep = qn_jstr_borrow(run, "", 0);
    qn_jiter it;
    qn_buf b = {0};
    if (run->failed || !qn_jiter_start(run, self, &it)) return qn_jundef(NULL);
    for (size_t i = 0; qn_jiter_next(run, &it, &item); i++) {
        if (i) qn_buf_put(&b, sep.s->p, sep.s->n);
        qn_jput_str(run, &b, qn_jpath_get(run, item, c->a[1], qn_jmissing()));
    }
    return qn_jstr_take(run, &b);
}

static qn_jval f_sum(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jval total = c->a[1].type == QN_J_MISSING ? qn_jint(0) : c->a[1], item;
    qn_jiter it;
    if (total.type == QN_J_STR) return qn_jfail(run, "sum cannot add strings: use join");
    if (!qn_jiter_start(run, self, &it)) return qn_jundef(NULL);
    while (qn_jiter_next(run, &it, &item))
        total = qn_jadd(run, total, qn_jpath_get(run, item, c->a[0], qn_jmissing()));
    return total;
}

/* ---- unique, items, batch, slice: generators, which look at their value when the first item is
 * wanted ---- */

typedef struct unique_state {
    qn_jiter src;
    bool started;
    qn_jval attr;
    bool case_sensitive;
    qn_jval seen;
} unique_state;

static bool next_unique(qn_jrun *run, qn_jiter *it, qn_jval *out)
{
    unique_state *s = it->state;
    if (!s->started && !qn_jiter_start(run, it->over, &s->src)) return false;
    s->started = true;
    while (qn_jiter_next(run, &s->src, out)) {
        qn_jval key = qn_jpath_get(run, *out, s->attr, qn_jmissing());
        if (!s->case_sensitive) key = qn_jignore_case(run, key);
        if (run->failed || qn_jdict_get(run, s->seen.dict, key)) continue;
        qn_jdict_set(run, s->seen.dict, key, qn_jnone());
        return !run->failed;
    }
    return false;
}

static qn_jval f_unique(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    unique_state *s = qn_jtake(run, 1, sizeof *s);
    if (!s) return qn_jundef(NULL);
    s->attr = c->a[1];
    s->case_sensitive = qn_jarg_bool(c->a[0], false);
    s->seen = qn_jdict_new(run);
    return qn_jiter_new(run, self, next_unique, s);
}

static bool next_item(qn_jrun *run, qn_jiter *it, qn_jval *out)
{
    if (it->over.type == QN_J_UNDEF) return false;
    if (it->over.type != QN_J_DICT) {
        qn_jfail(run, "items can only be taken from a mapping, not from %s",
                 qn_jtype_name(it->over));
        return false;
    }
    if (it->at >= it->over.dict->n) return false;
    const qn_jentry *e = &it->over.dict->e[it->at++];
    *out = qn_jtuple(run, (const qn_jval[]){e->key, e->value}, 2);
    return !run->failed;
}

static qn_jval f_items(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return qn_jiter_new(run, self, next_item, NULL);
}

typedef struct chunks {
    qn_jiter src;      /* batch */
    qn_jval list;      /* slice; batch(0) */
    qn_jval count;     /* as given */
    int64_t n;
    int64_t at;
    bool started;
    qn_jval fill;
} chunks;

static bool start_batch(qn_jrun *run, qn_jval over, chunks *s)
{
    if (s->started) return true;
    s->started = true;
    s->n = qn_jarg_int(run, s->count, 0);
    if (s->n == 0) over = s->list = qn_jto_list(run, over);
    return qn_jiter_start(run, over, &s->src);
}

static bool next_batch(qn_jrun *run, qn_jiter *it, qn_jval *out)
{
    chunks *s = it->state;
    qn_jval item;
    if (!start_batch(run, it->over, s)) return false;
    *out = qn_jlist_new(run, QN_J_LIST, 0);
    if (s->n == 0 && s->at++ == 0)
        return !run->failed && s->list.list->n > 0; /* jinja2's odd empty batch */
    /* As in jinja2, a count below 1 never cuts a batch. */
    while (!run->failed && (s->n < 1 || (int64_t)out->list->n != s->n) &&
           qn_jiter_next(run, &s->src, &item))
        qn_jlist_add(run, out->list, item);
    if (run->failed || out->list->n == 0) return false;
    while (s->fill.type != QN_J_NONE && s->fill.type != QN_J_MISSING &&
           (int64_t)out->list->n < s->n && !run->failed)
        qn_jlist_add(run, out->list, s->fill);
    return !run->failed;
}

static qn_jval f_batch(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    chunks *s = qn_jtake(run, 1, sizeof *s);
    if (!s) return qn_jundef(NULL);
    s->count = c->a[0];
    s->fill = c->a[1];
    return qn_jiter_new(run, self, next_batch, s);
}

static bool start_slice(qn_jrun *run, qn_jval over, chunks *s)
{
    if (s->started) return true;
    s->started = true;
    s->list = qn_jto_list(run, over);
    s->n = qn_jarg_int(run, s->count, 0);
    if (s->n == 0 || s->n > MAX_SLICES)
        qn_jfail(run, "slice: the count must be 1 to %d", MAX_SLICES);
    return !run->failed;
}

static bool next_slice(qn_jrun *run, qn_jiter *it, qn_jval *out)
{
    chunks *s = it->state;
    if (!start_slice(run, it->over, s) || s->at >= s->n) return false;
    int64_t len = (int64_t)s->list.list->n, each = len / s->n, extra = len % s->n, i = s->at++;
    int64_t from = i * each + (i < extra ? i : extra), n = each + (i < extra);
    *out = qn_jlist_new(run, QN_J_LIST, (size_t)n + 1);
    for (int64_t k = 0; k < n && !run->failed; k++)
        qn_jlist_add(run, out->list, s->list.list->v[from + k]);
    if (s->fill.type != QN_J_NONE && s->fill.type != QN_J_MISSING && i >= extra && !run->failed)
        qn_jlist_add(run, out->list, s->fill);
    return !run->failed;
}

static qn_jval f_slice(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    chunks *s = qn_jtake(run, 1, sizeof *s);
    if (!s) return qn_jundef(NULL);
    s->count = c->a[0];
    s->fill = c->a[1];
    return qn_jiter_new(run, self, next_slice, s);
}

const qn_jfn qn_jfilters_seq[] = {
    {"sort", f_sort, "reverse case_sensitive attribute", 0, false},
    {"dictsort", f_dictsort, "case_sensitive by reverse", 0, false},
    {"groupby", f_groupby, "attribute default case_sensitive", 1, false},
    {"min", f_min, "case_sensitive attribute", 0, false},
    {"max", f_max, "case_sensitive attribute", 0, false},
    {"first", f_first, "", 0, false},
    {"last", f_last, "", 0, false},
    {"reverse", f_reverse, "", 0, false},
    {"list", f_list, "", 0, false},
    {"length", f_length, "", 0, false},
    {"count", f_length, "", 0, false},
    {"join", f_join, "d attribute", 0, false},
    {"sum", f_sum, "attribute start", 0, false},
    {"unique", f_unique, "case_sensitive attribute", 0, false},
    {"items", f_items, "", 0, false},
    {"batch", f_batch, "linecount fill_with", 1, false},
    {"slice", f_slice, "slices fill_with", 1, false},
    {NULL, NULL, NULL, 0, false},
};
