/* jinja_json.c - the tojson filter with the options transformers gives it: json.dumps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/jinja_run.h"

enum { MAX_INDENT = 1000 };

typedef struct writer {
    qn_jrun *run;
    qn_buf b;
    bool ascii, sort, pretty;
    qn_jval indent;          /* a string: one level; only if pretty */
    qn_jval item_sep, key_sep;
    int level;
} writer;

static void put_string(writer *w, const qn_jstr *s)
{
    qn_buf *b = &w->b;
    qn_buf_putc(b, '"');
    for (size_t i = 0; i < s->n;) {
        unsigned cp;
        size_t k = qn_utf8_decode(s->p + i, s->n - i, &cp);
        switch (cp) {
        case '"': qn_buf_puts(b, "\\\""); break;
        case '\\': qn_buf_puts(b, "\\\\"); break;
        case '\n': qn_buf_puts(b, "\\n"); break;
        case '\r': qn_buf_puts(b, "\\r"); break;
        case '\t': qn_buf_puts(b, "\\t"); break;
        case '\f': qn_buf_puts(b, "\\f"); break;
        case '\b': qn_buf_puts(b, "\\b"); break;
        default:
            if (cp < 0x20 || (w->ascii && cp >= 0x7F && cp < 0x10000)) {
                qn_buf_printf(b, "\\u%04x", cp);
            } else if (w->ascii && cp >= 0x10000) {
                unsigned v = cp - 0x10000;
                qn_buf_printf(b, "\\u%04x\\u%04x", 0xD800 + (v >> 10), 0xDC00 + (v & 0x3FF));
            } else {
                qn_buf_put(b, s->p + i, k);
            }
        }
        i += k;
    }
    qn_buf_putc(b, '"');
}

static void put_float(writer *w, double f)
{
    if (isnan(f)) qn_buf_puts(&w->b, "NaN");
    else if (isinf(f)) qn_buf_puts(&w->b, f < 0 ? "-Infinity" : "Infinity");
    else qn_jput_float(&w->b, f);
}

static void put_line(writer *w)
{
    if (!w->pretty) return;
    qn_buf_putc(&w->b, '\n');
    for (int i = 0; i < w->level && qn_jbuf_ok(w->run, &w->b); i++)
        qn_buf_put(&w->b, w->indent.s->p, w->indent.s->n);
}

static void put_value(writer *w, qn_jval v);

static void put_list(writer *w, const qn_jlist *l)
{
    if (l->n == 0) {
        qn_buf_puts(&w->b, "[]");
        return;
    }
    qn_buf_putc(&w->b, '[');
    w->level++;
    for (size_t i = 0; i < l->n && !w->run->failed; i++) {
        if (i) qn_buf_put(&w->b, w->item_sep.s->p, w->item_sep.s->n);
        put_line(w);
        put_value(w, l->v[i]);
    }
    w->level--;
    put_line(w);
    qn_buf_putc(&w->b, ']');
}

static void put_key(writer *w, qn_jval key)
{
    if (key.type == QN_J_STR) {
        put_string(w, key.s);
    } else if (qn_jis_number(key) || key.type == QN_J_NONE) {
        qn_buf_putc(&w->b, '"');
        put_value(w, key);
        qn_buf_putc(&w->b, '"');
    } else {
        qn_jfail(w->run, "tojson: keys must be str, int, float, bool or None, not %s",
                 qn_jtype_name(key));
    }
}

typedef struct sort_key {
    qn_jrun *run;
    const qn_jentry *e;
} sort_key;

static int by_key(const void *a, const void *b)
{
    const sort_key *x = a, *y = b;
    int o = 0;
    if (!x->run->failed) qn_jcompare(x->run, x->e->key, y->e->key, "<", &o);
    return o == 2 ? 0 : o;
}

static void put_dict(writer *w, const qn_jdict *d)
{
    if (d->n == 0) {
        qn_buf_puts(&w->b, "{}");
        return;
    }
    sort_key *order = qn_jtake(w->run, d->n, sizeof *order);
    if (!order) return;
    for (size_t i = 0; i < d->n; i++) order[i] = (sort_key){w->run, &d->e[i]};
    if (w->sort) qsort(order, d->n, sizeof *order, by_key);
    qn_buf_putc(&w->b, '{');
    w->level++;
    for (size_t i = 0; i < d->n && !w->run->failed; i++) {
        if (i) qn_buf_put(&w->b, w->item_sep.s->p, w->item_sep.s->n);
        put_line(w);
        put_key(w, order[i].e->key);
        qn_buf_put(&w->b, w->key_sep.s->p, w->key_sep.s->n);
        put_value(w, order[i].e->value);
    }
    w->level--;
    put_line(w);
    qn_buf_putc(&w->b, '}');
}

static void put_value(writer *w, qn_jval v)
{
    if (!qn_jstep(w->run, 1) || !qn_jenter(w->run)) return;
    switch (v.type) {
    case QN_J_NONE: qn_buf_puts(&w->b, "null"); break;
    case QN_J_BOOL: qn_buf_puts(&w->b, v.b ? "true" : "false"); break;
    case QN_J_INT: qn_buf_printf(&w->b, "%lld", (long long)v.i); break;
    case QN_J_FLOAT: put_float(w, v.f); break;
    case QN_J_STR: put_string(w, v.s); break;
    case QN_J_LIST:
    case QN_J_TUPLE: put_list(w, v.list); break;
    case QN_J_DICT: put_dict(w, v.dict); break;
    default: qn_jfail(w->run, "tojson: an object of type %s has no JSON form", qn_jtype_name(v));
    }
    w->run->depth--;
    qn_jbuf_ok(w->run, &w->b);
}

static bool read_indent(writer *w, qn_jval v)
{
    if (v.type == QN_J_MISSING || v.type == QN_J_NONE) return true;
    w->pretty = true;
    if (v.type == QN_J_STR) {
        w->indent = v;
        return true;
    }
    if (!qn_jis_int(v) || qn_jas_int(v) > MAX_INDENT) {
        qn_jfail(w->run, "tojson: indent must be a string or a number up to %d", MAX_INDENT);
        return false;
    }
    char spaces[MAX_INDENT];
    memset(spaces, ' ', sizeof spaces);
    int64_t n = qn_jas_int(v);
    w->indent = qn_jstr_copy(w->run, spaces, n > 0 ? (size_t)n : 0);
    return !w->run->failed;
}

static bool read_separators(writer *w, qn_jval v)
{
    w->item_sep = qn_jstr_borrow(w->run, w->pretty ? "," : ", ", w->pretty ? 1 : 2);
    w->key_sep = qn_jstr_borrow(w->run, ": ", 2);
    if (w->run->failed || v.type == QN_J_MISSING || v.type == QN_J_NONE) return !w->run->failed;
    qn_jval pair = qn_jto_list(w->run, v);
    if (w->run->failed) return false;
    if (pair.list->n != 2 || pair.list->v[0].type != QN_J_STR || pair.list->v[1].type != QN_J_STR) {
        qn_jfail(w->run, "tojson: separators must be two strings");
        return false;
    }
    w->item_sep = pair.list->v[0];
    w->key_sep = pair.list->v[1];
    return true;
}

qn_jval qn_jfilter_tojson(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    writer w = {.run = run, .ascii = c->a[0].type != QN_J_MISSING && qn_jtruth(c->a[0]),
                .sort = c->a[3].type != QN_J_MISSING && qn_jtruth(c->a[3])};
    if (!read_indent(&w, c->a[1]) || !read_separators(&w, c->a[2])) return qn_jundef(NULL);
    put_value(&w, self);
    return qn_jstr_take(run, &w.b);
}
