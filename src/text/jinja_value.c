/* jinja_value.c - strings, lists, dicts and walking them; comparing and printing are in
 * jinja_compare.c. */
#include "text/jinja_value.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/hash.h"
#include "core/utf8.h"
#include "text/jinja_run.h"

enum { SMALL_DICT = 8, MAX_JSON_DEPTH = 500 };

void *qn_jtake(qn_jrun *run, size_t n, size_t size)
{
    void *p = qn_arena_take(&run->arena, n, size);
    if (p) return p;
    size_t bytes, max = run->max_memory;
    bool over = qn_mul_size(n, size, &bytes) || bytes > max || run->arena.used_bytes > max - bytes;
    if (over) qn_jfail(run, "the template needs more than %zu KiB of memory", max >> 10);
    else qn_jfail(run, "out of memory");
    return NULL;
}

/* ---- strings ---- */

static qn_jval str_over(qn_jrun *run, const char *p, size_t n)
{
    qn_jstr *s = qn_jtake(run, 1, sizeof *s);
    if (!s) return qn_jundef(NULL);
    s->p = p;
    s->n = n;
    return (qn_jval){.type = QN_J_STR, .s = s};
}

qn_jval qn_jstr_borrow(qn_jrun *run, const char *p, size_t n) { return str_over(run, p, n); }

qn_jval qn_jstr_copy(qn_jrun *run, const char *p, size_t n)
{
    char *copy = qn_jtake(run, n + 1, 1);
    if (!copy) return qn_jundef(NULL);
    if (n) memcpy(copy, p, n);
    return str_over(run, copy, n);
}

qn_jval qn_jstr_printf(qn_jrun *run, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) n = 0;
    return qn_jstr_copy(run, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

qn_jval qn_jstr_take(qn_jrun *run, qn_buf *b)
{
    qn_jval v =
        qn_jbuf_ok(run, b) ? qn_jstr_copy(run, b->data ? b->data : "", b->len) : qn_jundef(NULL);
    qn_buf_release(b);
    return v;
}

static size_t count_cps(const char *p, size_t n)
{
    size_t cps = 0;
    for (size_t i = 0; i < n;) {
        unsigned cp;
        i += qn_utf8_decode(p + i, n - i, &cp);
        cps++;
    }
    return cps;
}

size_t qn_jstr_len(const qn_jstr *s)
{
    /* Strings of a render belong to one thread; literals are counted when they are made. */
    if (s->cps == 0 && s->n > 0) ((qn_jstr *)s)->cps = count_cps(s->p, s->n);
    return s->cps;
}

size_t qn_jstr_offset(const qn_jstr *s, size_t at)
{
    if (qn_jstr_len(s) == s->n) return at;
    size_t i = 0;
    for (; at > 0 && i < s->n; at--) {
        unsigned cp;
        i += qn_utf8_decode(s->p + i, s->n - i, &cp);
    }
    return i;
}

bool qn_jstr_is(const qn_jstr *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->p, text, s->n) == 0;
}

/* ---- lists ---- */

qn_jval qn_jlist_new(qn_jrun *run, qn_jtype type, size_t cap)
{
    qn_jlist *l = qn_jtake(run, 1, sizeof *l);
    if (!l) return qn_jundef(NULL);
    if (cap && !(l->v = qn_jtake(run, cap, sizeof *l->v))) return qn_jundef(NULL);
    l->cap = cap;
    return (qn_jval){.type = (uint8_t)type, .list = l};
}

bool qn_jlist_add(qn_jrun *run, qn_jlist *l, qn_jval v)
{
    if (run->failed) return false;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        qn_jval *grown = qn_jtake(run, cap, sizeof *grown);
        if (!grown) return false;
        if (l->n) memcpy(grown, l->v, l->n * sizeof *grown);
        l->v = grown;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return true;
}

qn_jval qn_jtuple(qn_jrun *run, const qn_jval *v, size_t n)
{
    qn_jval t = qn_jlist_new(run, QN_J_TUPLE, n);
    if (run->failed) return t;
    if (n) memcpy(t.list->v, v, n * sizeof *v);
    t.list->n = n;
    return t;
}

/* ---- dicts ---- */

qn_jval qn_jdict_new(qn_jrun *run)
{
    qn_jdict *d = qn_jtake(run, 1, sizeof *d);
    return d ? (qn_jval){.type = QN_J_DICT, .dict = d} : qn_jundef(NULL);
}

static uint64_t hash_str(const char *p, size_t n) { return qn_hash64(p, n, 0); }

static bool hash_tuple(qn_jrun *run, const qn_jlist *l, uint64_t *out)
{
    if (!qn_jenter(run)) return false;
    *out = 3;
    bool ok = true;
    for (size_t i = 0; i < l->n && ok; i++) {
        uint64_t one = 0;
        ok = qn_jstep(run, 1) && qn_jhash(run, l->v[i], &one);
        *out = qn_hash64(&one, sizeof one, *out);
    }
    run->depth--;
    return ok;
}

bool qn_jhash(qn_jrun *run, qn_jval v, uint64_t *out)
{
    switch (v.type) {
    case QN_J_STR: *out = hash_str(v.s->p, v.s->n); return true;
    case QN_J_BOOL:
    case QN_J_INT: {
        int64_t i = qn_jas_int(v);
        *out = qn_hash64(&i, sizeof i, 1);
        return true;
    }
    case QN_J_FLOAT: {
        if (v.f >= -9e18 && v.f <= 9e18 && v.f == (double)(int64_t)v.f)
            return qn_jhash(run, qn_jint((int64_t)v.f), out);
        *out = qn_hash64(&v.f, sizeof v.f, 2);
        return true;
    }
    case QN_J_TUPLE: return hash_tuple(run, v.list, out);
    case QN_J_LIST:
    case QN_J_DICT:
    case QN_J_VIEW: qn_jfail(run, "unhashable type: '%s'", qn_jtype_name(v)); return false;
    case QN_J_UNDEF:
    case QN_J_NONE: *out = v.type; return true;
    default: *out = qn_hash64(&v.p, sizeof v.p, 4); return true;
    }
}

/* Keys are nearly always strings, which need no run to compare. */
static bool same_key(qn_jrun *run, qn_jval a, qn_jval b)
{
    if (a.type == QN_J_STR && b.type == QN_J_STR)
        return a.s->n == b.s->n && memcmp(a.s->p, b.s->p, a.s->n) == 0;
    return run && qn_jequal(run, a, b);
}

static size_t find_entry(qn_jrun *run, const qn_jdict *d, qn_jval key, uint64_t hash)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->e[i].hash == hash && same_key(run, d->e[i].key, key)) return i;
        return SIZE_MAX;
    }
    for (size_t at = hash & (d->index_cap - 1); d->index[at]; at = (at + 1) & (d->index_cap - 1)) {
        size_t i = d->index[at] - 1;
        if (d->e[i].hash == hash && same_key(run, d->e[i].key, key)) return i;
    }
    return SIZE_MAX;
}

static void index_put(qn_jdict *d, size_t i)
{
    size_t at = d->e[i].hash & (d->index_cap - 1);
    while (d->index[at]) at = (at + 1) & (d->index_cap - 1);
    d->index[at] = (uint32_t)i + 1;
}

static bool grow(qn_jrun *run, qn_jdict *d)
{
    size_t cap = d->cap ? d->cap * 2 : SMALL_DICT;
    qn_jentry *e = qn_jtake(run, cap, sizeof *e);
    if (!e) return false;
    if (d->n) memcpy(e, d->e, d->n * sizeof *e);
    d->e = e;
    d->cap = cap;
    if (cap <= SMALL_DICT) return true;
    d->index_cap = cap * 2;
    d->index = qn_jtake(run, d->index_cap, sizeof *d->index);
    if (!d->index) return false;
    for (size_t i = 0; i < d->n; i++) index_put(d, i);
    return true;
}

bool qn_jdict_set(qn_jrun *run, qn_jdict *d, qn_jval key, qn_jval value)
{
    uint64_t hash;
    if (run->failed || !qn_jhash(run, key, &hash)) return false;
    size_t i = find_entry(run, d, key, hash);
    if (i != SIZE_MAX) {
        d->e[i].value = value;
        return true;
    }
    if (d->n == d->cap && !grow(run, d)) return false;
    d->e[d->n] = (qn_jentry){key, value, hash};
    d->n++;
    if (d->index) index_put(d, d->n - 1);
    return true;
}

const qn_jval *qn_jdict_get(qn_jrun *run, const qn_jdict *d, qn_jval key)
{
    uint64_t hash;
    if (!qn_jhash(run, key, &hash)) return NULL;
    size_t i = find_entry(run, d, key, hash);
    return i == SIZE_MAX ? NULL : &d->e[i].value;
}

const qn_jval *qn_jdict_find(const qn_jdict *d, const char *key, size_t n)
{
    qn_jstr s = {.p = key, .n = n};
    size_t i = find_entry(NULL, d, (qn_jval){.type = QN_J_STR, .s = &s}, hash_str(key, n));
    return i == SIZE_MAX ? NULL : &d->e[i].value;
}

/* ---- walking ---- */

bool qn_jiterable(qn_jval v)
{
    switch (v.type) {
    case QN_J_UNDEF: case QN_J_STR: case QN_J_LIST: case QN_J_TUPLE: case QN_J_DICT: case QN_J_VIEW:
    case QN_J_RANGE: case QN_J_ITER: case QN_J_LOOP: return true;
    default: return false;
    }
}

static bool next_entry(qn_jrun *run, qn_jiter *it, const qn_jdict *d, qn_jview_kind kind,
                       qn_jval *out)
{
    if (it->at >= d->n) return false;
    const qn_jentry *e = &d->e[it->at++];
    if (kind == QN_J_KEYS) *out = e->key;
    else if (kind == QN_J_VALUES) *out = e->value;
    else *out = qn_jtuple(run, (const qn_jval[]){e->key, e->value}, 2);
    return !run->failed;
}

static bool next_plain(qn_jrun *run, qn_jiter *it, qn_jval *out)
{
    qn_jval v = it->over;
    switch (v.type) {
    case QN_J_LIST:
    case QN_J_TUPLE:
        if (it->at >= v.list->n) return false;
        *out = v.list->v[it->at++];
        return true;
    case QN_J_DICT: return next_entry(run, it, v.dict, QN_J_KEYS, out);
    case QN_J_VIEW: return next_entry(run, it, v.view->dict, v.view->kind, out);
    case QN_J_STR: {
        if (it->at >= v.s->n) return false;
        unsigned cp;
        size_t k = qn_utf8_decode(v.s->p + it->at, v.s->n - it->at, &cp);
        *out = qn_jstr_borrow(run, v.s->p + it->at, k);
        out->safe = false;
        it->at += k;
        return !run->failed;
    }
    case QN_J_RANGE:
        if ((int64_t)it->at >= v.range->n) return false;
        *out = qn_jint(v.range->start + (int64_t)it->at++ * v.range->step);
        return true;
    default: return false;
    }
}

/* Walking a generator through a second cursor. */
static bool next_through(qn_jrun *run, qn_jiter *it, qn_jval *out)
{
    return it->over.iter->next(run, it->over.iter, out);
}

bool qn_jiter_start(qn_jrun *run, qn_jval v, qn_jiter *it)
{
    *it = (qn_jiter){.next = v.type == QN_J_ITER ? next_through : next_plain, .over = v};
    if (run->failed) return false;
    if (qn_jiterable(v) && v.type != QN_J_LOOP) return true;
    qn_jfail(run, "'%s' object is not iterable", qn_jtype_name(v));
    return false;
}

bool qn_jiter_next(qn_jrun *run, qn_jiter *it, qn_jval *out)
{
    return qn_jstep(run, 1) && it->next(run, it, out) && !run->failed;
}

qn_jval qn_jiter_new(qn_jrun *run, qn_jval source, bool (*next)(qn_jrun *, qn_jiter *, qn_jval *),
                     void *state)
{
    qn_jiter *it = qn_jtake(run, 1, sizeof *it), *inner = qn_jtake(run, 1, sizeof *inner);
    if (!it || !inner) return qn_jundef(NULL);
    *it = (qn_jiter){.next = next, .over = source, .inner = inner, .state = state};
    return (qn_jval){.type = QN_J_ITER, .iter = it};
}

qn_jval qn_jto_list(qn_jrun *run, qn_jval v)
{
    qn_jiter it;
    qn_jval out = qn_jlist_new(run, QN_J_LIST,
                               v.type == QN_J_LIST || v.type == QN_J_TUPLE ? v.list->n : 0),
            item;
    if (run->failed || !qn_jiter_start(run, v, &it)) return qn_jundef(NULL);
    while (qn_jiter_next(run, &it, &item)) qn_jlist_add(run, out.list, item);
    return out;
}

/* ---- JSON ---- */

static qn_jval from_object(qn_jrun *run, const json_t *j, int depth)
{
    qn_jval d = qn_jdict_new(run);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)j, key, value) {
        if (run->failed) break;
        qn_jdict_set(run, d.dict, qn_jstr_borrow(run, key, strlen(key)),
                     qn_jfrom_json(run, value, depth + 1));
    }
    return d;
}

static qn_jval from_array(qn_jrun *run, const json_t *j, int depth)
{
    size_t n = json_array_size(j);
    qn_jval l = qn_jlist_new(run, QN_J_LIST, n);
    for (size_t i = 0; i < n && !run->failed; i++)
        qn_jlist_add(run, l.list, qn_jfrom_json(run, json_array_get(j, i), depth + 1));
    return l;
}

qn_jval qn_jfrom_json(qn_jrun *run, const json_t *j, int depth)
{
    if (depth > MAX_JSON_DEPTH)
        return qn_jfail(run, "the variables are nested more than %d deep", MAX_JSON_DEPTH);
    switch (json_typeof(j)) {
    case JSON_OBJECT: return from_object(run, j, depth);
    case JSON_ARRAY: return from_array(run, j, depth);
    case JSON_STRING: return qn_jstr_borrow(run, json_string_value(j), json_string_length(j));
    case JSON_INTEGER: return qn_jint(json_integer_value(j));
    case JSON_REAL: return qn_jfloat(json_real_value(j));
    case JSON_TRUE: return qn_jbool(true);
    case JSON_FALSE: return qn_jbool(false);
    default: return qn_jnone();
    }
}
