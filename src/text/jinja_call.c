/* jinja_call.c - calling: arguments of built-ins, loop objects, errors and limits of a render. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_loop.h"
#include "text/jinja_run.h"

qn_jval qn_jfail(qn_jrun *run, const char *fmt, ...)
{
    if (run->failed) return qn_jundef(NULL);
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    run->failed = true;
    qn_jtree_error(run->tree, run->line, run->err, "%s", text);
    return qn_jundef(NULL);
}

bool qn_jstep(qn_jrun *run, int64_t n)
{
    if (run->failed) return false;
    run->steps += n < 0 ? 0 : n;
    if (run->steps > run->max_steps)
        qn_jfail(run, "the template takes more than %lld steps", (long long)run->max_steps);
    return !run->failed;
}

bool qn_jenter(qn_jrun *run)
{
    if (run->failed) return false;
    if (++run->depth <= QN_J_MAX_DEPTH) return true;
    run->depth--;
    qn_jfail(run, "nested more than %d levels deep (does a macro call itself without end?)",
             QN_J_MAX_DEPTH);
    return false;
}

/* ---- built-ins ---- */

/* The position of a parameter in a space separated list; -1 if there is none. */
static int param_index(const char *params, const qn_jstr *name)
{
    int at = 0;
    for (const char *p = params; *p; at++) {
        const char *end = strchr(p, ' ');
        size_t n = end ? (size_t)(end - p) : strlen(p);
        if (n == name->n && memcmp(p, name->p, n) == 0) return at;
        p += n + (end != NULL);
    }
    return -1;
}

static int param_count(const char *params)
{
    if (!*params) return 0;
    int n = 1;
    for (const char *p = params; *p; p++) n += *p == ' ';
    return n;
}

static bool bind(qn_jrun *run, const qn_jfn *fn, qn_jcall *c)
{
    size_t count = (size_t)param_count(fn->params);
    for (size_t i = 0; i < QN_J_MAX_PARAMS; i++) c->a[i] = qn_jmissing();
    if (c->n_pos > count) {
        qn_jfail(run, "%s takes at most %zu arguments, got %zu", fn->name, count, c->n_pos);
        return false;
    }
    for (size_t i = 0; i < c->n_pos; i++) c->a[i] = c->pos[i];
    for (size_t i = 0; i < c->n_kw; i++) {
        int at = fn->positional ? -1 : param_index(fn->params, c->kw[i].name);
        if (at >= 0 && c->a[at].type == QN_J_MISSING) {
            c->a[at] = c->kw[i].value;
            continue;
        }
        qn_jfail(run, at < 0 ? "%s has no keyword argument '%.*s'" : "%s got two values for '%.*s'",
                 fn->name, (int)c->kw[i].name->n, c->kw[i].name->p);
        return false;
    }
    for (size_t i = 0; i < fn->required; i++) {
        if (c->a[i].type != QN_J_MISSING) continue;
        qn_jfail(run, "%s needs %d arguments (%s)", fn->name, fn->required, fn->params);
        return false;
    }
    return true;
}

qn_jval qn_jfn_call(qn_jrun *run, const qn_jfn *fn, qn_jval self, qn_jcall *c)
{
    if (run->failed || (fn->params && !bind(run, fn, c))) return qn_jundef(NULL);
    return fn->call(run, self, c);
}

qn_jval qn_jcall_value(qn_jrun *run, qn_jval callee, qn_jcall *c)
{
    switch (callee.type) {
    case QN_J_MACRO: return qn_jmacro_call(run, callee.macro, c);
    case QN_J_METHOD: return qn_jfn_call(run, callee.method->fn, callee.method->self, c);
    case QN_J_FUNC: return qn_jfn_call(run, callee.fn, qn_jnone(), c);
    case QN_J_LOOP:
        if (c->n_pos != 1 || c->n_kw) return qn_jfail(run, "loop() takes one argument");
        return qn_jloop_recurse(run, callee.loop, c->pos[0]);
    case QN_J_JOINER:
        if (c->n_pos || c->n_kw) return qn_jfail(run, "a joiner takes no arguments");
        if (callee.joiner->used) return callee.joiner->sep;
        callee.joiner->used = true;
        return qn_jstr_borrow(run, "", 0);
    case QN_J_UNDEF: return qn_jfail_undef(run, callee);
    default: return qn_jfail(run, "'%s' object is not callable", qn_jtype_name(callee));
    }
}

/* ---- loop objects ---- */

bool qn_jloop_start(qn_jrun *run, qn_jloop *l, qn_jval items)
{
    *l = (qn_jloop){.iterable = items, .index0 = -1, .length = -1, .changed = qn_jmissing()};
    return qn_jiter_start(run, items, &l->it);
}

static bool peek(qn_jrun *run, qn_jloop *l)
{
    if (!l->has_after && !l->at_end) {
        l->has_after = qn_jiter_next(run, &l->it, &l->after);
        l->at_end = !l->has_after;
    }
    return l->has_after;
}

bool qn_jloop_next(qn_jrun *run, qn_jloop *l, qn_jval *out)
{
    if (!peek(run, l)) return false;
    *out = l->after;
    l->has_after = false;
    l->index0++;
    l->before = l->current;
    l->current = *out;
    return true;
}

static int64_t loop_length(qn_jrun *run, qn_jloop *l)
{
    if (l->length >= 0) return l->length;
    size_t n;
    if (l->iterable.type != QN_J_ITER) {
        if (qn_jlength(run, l->iterable, &n)) l->length = (int64_t)n;
    } else { /* a generator: read the rest */
        qn_jval rest = qn_jlist_new(run, QN_J_LIST, 0), item;
        while (!run->failed && qn_jiter_next(run, &l->it, &item))
            qn_jlist_add(run, rest.list, item);
        if (run->failed) return 0;
        l->length = (int64_t)rest.list->n + l->index0 + 1 + l->has_after;
        if (!l->has_after) l->at_end = false;
        qn_jiter_start(run, rest, &l->it);
    }
    return l->length;
}

static qn_jval loop_cycle(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    if (c->n_kw) return qn_jfail(run, "loop.cycle takes no keyword arguments");
    if (c->n_pos == 0) return qn_jfail(run, "no items for cycling given");
    return c->pos[(uint64_t)self.loop->index0 % c->n_pos];
}

static qn_jval loop_changed(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    if (c->n_kw) return qn_jfail(run, "loop.changed takes no keyword arguments");
    qn_jval now = qn_jtuple(run, c->pos, c->n_pos);
    if (run->failed) return now;
    if (self.loop->changed.type != QN_J_MISSING && qn_jequal(run, self.loop->changed, now))
        return qn_jbool(false);
    self.loop->changed = now;
    return qn_jbool(true);
}

static qn_jval loop_method(qn_jrun *run, qn_jval self, const qn_jfn *fn)
{
    qn_jmethod *m = qn_jtake(run, 1, sizeof *m);
    if (!m) return qn_jundef(NULL);
    m->self = self;
    m->fn = fn;
    return (qn_jval){.type = QN_J_METHOD, .method = m};
}

qn_jval qn_jloop_attr(qn_jrun *run, qn_jval loop, const char *name, size_t n)
{
    static const qn_jfn cycle = {.name = "loop.cycle", .call = loop_cycle};
    static const qn_jfn changed = {.name = "loop.changed", .call = loop_changed};
    qn_jloop *l = loop.loop;
    qn_jstr s = {.p = name, .n = n};
    if (qn_jstr_is(&s, "index")) return qn_jint(l->index0 + 1);
    if (qn_jstr_is(&s, "index0")) return qn_jint(l->index0);
    if (qn_jstr_is(&s, "first")) return qn_jbool(l->index0 == 0);
    if (qn_jstr_is(&s, "last")) return qn_jbool(!peek(run, l));
    if (qn_jstr_is(&s, "length")) return qn_jint(loop_length(run, l));
    if (qn_jstr_is(&s, "revindex")) return qn_jint(loop_length(run, l) - l->index0);
    if (qn_jstr_is(&s, "revindex0")) return qn_jint(loop_length(run, l) - l->index0 - 1);
    if (qn_jstr_is(&s, "depth")) return qn_jint(l->depth0 + 1);
    if (qn_jstr_is(&s, "depth0")) return qn_jint(l->depth0);
    if (qn_jstr_is(&s, "previtem"))
        return l->index0 == 0 ? qn_jundef("there is no previous item") : l->before;
    if (qn_jstr_is(&s, "nextitem"))
        return peek(run, l) ? l->after : qn_jundef("there is no next item");
    if (qn_jstr_is(&s, "cycle")) return loop_method(run, loop, &cycle);
    if (qn_jstr_is(&s, "changed")) return loop_method(run, loop, &changed);
    return qn_jmissing();
}
