/* jinja_scope.c - which variable a name means.
 *
 * jinja2 decides this when it compiles: a scope first collects the names its own statements load
 * and store (a nested scope contributes only what it evaluates outside of itself), and each name
 * gets one rule for its value when the scope opens. The order of loads and stores matters, and `if`
 * branches are merged. The results differ from a plain chain of dictionaries in cases that
 * templates meet (a set block that reads its own name, a name that is set later in the same loop
 * body), so the same algorithm is used here.
 */
#include <string.h>

#include "text/jinja_ast.h"
#include "text/jinja_run.h"

enum { MAX_WALK = 1000 };

typedef struct resolver {
    qn_jtree *t;
    qn_err *err;
    qn_code rc;
    int depth;
} resolver;

static void resolve(resolver *r, qn_jscope *s, qn_jnode *n, bool soft, bool top);

static void out_of_memory(resolver *r)
{
    if (!r->rc) r->rc = qn_jtree_nomem(r->t, r->err);
}

static bool same(const qn_jstr *a, const qn_jstr *b)
{
    return a->n == b->n && memcmp(a->p, b->p, a->n) == 0;
}

static qn_jsymbol *find_own(const qn_jscope *s, const qn_jstr *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->sym[i].load != QN_JL_NONE && same(s->sym[i].name, name)) return &s->sym[i];
    return NULL;
}

/* The scope and slot of a name, seen from s. */
static bool find_ref(const qn_jscope *s, const qn_jstr *name, uint32_t *hops, uint32_t *slot)
{
    for (*hops = 0; s; s = s->parent, (*hops)++) {
        qn_jsymbol *sym = find_own(s, name);
        if (!sym) continue;
        *slot = (uint32_t)(sym - s->sym);
        return true;
    }
    return false;
}

/* The entry of a name in its scope, made if needed: a name keeps its slot through every branch. */
static qn_jsymbol *entry(resolver *r, qn_jscope *s, const qn_jstr *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (same(s->sym[i].name, name)) return &s->sym[i];
    if (s->n == QN_J_MAX_NAMES) {
        if (!r->rc)
            r->rc = qn_err_set(r->err, QN_LIMIT, "%s: more than %d variables in one scope",
                               r->t->name, QN_J_MAX_NAMES);
        return NULL;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 8;
        qn_jsymbol *sym = qn_arena_take(&r->t->arena, cap, sizeof *sym);
        if (!sym) {
            out_of_memory(r);
            return NULL;
        }
        if (s->n) memcpy(sym, s->sym, s->n * sizeof *sym);
        s->sym = sym;
        s->cap = cap;
    }
    s->sym[s->n] = (qn_jsymbol){.name = name};
    return &s->sym[s->n++];
}

static int declare(resolver *r, qn_jscope *s, const qn_jstr *name)
{
    qn_jsymbol *sym = entry(r, s, name);
    if (!sym) return -1;
    sym->load = QN_JL_PARAMETER;
    sym->stored = true;
    return (int)(sym - s->sym);
}

static int declare_text(resolver *r, qn_jscope *s, const char *name)
{
    qn_jstr *str = qn_arena_take(&r->t->arena, 1, sizeof *str);
    if (!str) {
        out_of_memory(r);
        return -1;
    }
    *str = (qn_jstr){.p = name, .n = strlen(name), .cps = strlen(name)};
    return declare(r, s, str);
}

static void alias_or(qn_jscope *s, qn_jsymbol *sym, qn_jload otherwise)
{
    sym->load = otherwise;
    if (s->parent && find_ref(s->parent, sym->name, &sym->hops, &sym->slot))
        sym->load = QN_JL_ALIAS;
}

static void note_store(resolver *r, qn_jscope *s, const qn_jstr *name)
{
    qn_jsymbol *sym = entry(r, s, name);
    if (!sym) return;
    sym->stored = true;
    if (sym->load == QN_JL_NONE) alias_or(s, sym, QN_JL_UNDEFINED);
}

static void note_load(resolver *r, qn_jscope *s, const qn_jstr *name)
{
    uint32_t hops, slot;
    if (find_ref(s, name, &hops, &slot)) return;
    qn_jsymbol *sym = entry(r, s, name);
    if (sym) sym->load = QN_JL_RESOLVE;
}

/* ---- collecting what one scope loads and stores ---- */

static void collect(resolver *r, qn_jscope *s, const qn_jnode *n);

static bool deeper(resolver *r, uint32_t line)
{
    if (r->rc) return false;
    if (++r->depth <= MAX_WALK) return true;
    r->depth--;
    r->rc = qn_jtree_error(r->t, line, r->err, "nested more than %d levels deep", MAX_WALK);
    return false;
}

static void collect_all(resolver *r, qn_jscope *s, const qn_jnodes *l)
{
    for (size_t i = 0; i < l->n && !r->rc; i++) collect(r, s, l->v[i]);
}

static void collect_args(resolver *r, qn_jscope *s, const qn_jargs *a)
{
    if (!a) return;
    collect_all(r, s, &a->pos);
    collect_all(r, s, &a->kw_values);
    collect(r, s, a->star);
    collect(r, s, a->star_star);
}

static void collect_store(resolver *r, qn_jscope *s, const qn_jnode *target, bool parameter)
{
    if (!target || r->rc) return;
    if (target->kind == QN_JN_TUPLE) {
        for (size_t i = 0; i < target->list.n; i++)
            collect_store(r, s, target->list.v[i], parameter);
    } else if (target->kind == QN_JN_NSREF) {
        note_load(r, s, target->name);
    } else if (parameter) {
        declare(r, s, target->name);
    } else {
        note_store(r, s, target->name);
    }
}

/* The state of a scope's symbols, for trying out branches. */
typedef struct snapshot {
    qn_jsymbol *sym;
    size_t n;
} snapshot;

static snapshot take_snapshot(resolver *r, const qn_jscope *s)
{
    snapshot shot = {qn_arena_take(&r->t->arena, s->n + 1, sizeof *s->sym), s->n};
    if (!shot.sym) out_of_memory(r);
    else if (s->n) memcpy(shot.sym, s->sym, s->n * sizeof *s->sym);
    return shot;
}

/* Put the loads and stores back; slots stay. */
static void restore(qn_jscope *s, const snapshot *shot)
{
    for (size_t i = 0; i < s->n; i++) {
        if (i < shot->n) s->sym[i] = shot->sym[i];
        else s->sym[i] = (qn_jsymbol){.name = s->sym[i].name};
    }
}

static void collect_if(resolver *r, qn_jscope *s, const qn_jnode *n)
{
    collect(r, s, n->a);
    snapshot before = take_snapshot(r, s);
    if (r->rc) return;
    collect_all(r, s, &n->body);
    snapshot body = take_snapshot(r, s);
    if (r->rc) return;
    restore(s, &before);
    collect_all(r, s, &n->orelse);
    if (r->rc) return;
    for (size_t i = 0; i < s->n; i++) { /* s holds the else branch: merge the body into it */
        qn_jsymbol *sym = &s->sym[i];
        bool stored_before = i < before.n && before.sym[i].stored;
        bool stored_body = i < body.n && body.sym[i].stored;
        if (sym->load == QN_JL_NONE && i < body.n) {
            qn_jsymbol from = body.sym[i];
            sym->load = from.load;
            sym->hops = from.hops;
            sym->slot = from.slot;
        }
        bool stored = sym->stored || stored_body;
        if (stored && !stored_before) alias_or(s, sym, QN_JL_RESOLVE);
        sym->stored = stored;
    }
}

static void collect(resolver *r, qn_jscope *s, const qn_jnode *n)
{
    if (!n || !deeper(r, n->line)) return;
    switch (n->kind) {
    case QN_JN_NAME: note_load(r, s, n->name); break;
    case QN_JN_NSREF: note_load(r, s, n->name); break;
    case QN_JN_IF: collect_if(r, s, n); break;
    case QN_JN_SET:
        collect(r, s, n->b);
        collect_store(r, s, n->a, false);
        break;
    case QN_JN_FOR: collect(r, s, n->b); break;
    case QN_JN_SETBLOCK: collect_store(r, s, n->a, false); break;
    case QN_JN_MACRO: note_store(r, s, n->name); break;
    case QN_JN_CALLBLOCK: collect(r, s, n->a); break;
    case QN_JN_FILTERBLOCK: collect(r, s, n->b); break;
    case QN_JN_WITH: collect_all(r, s, &n->list2); break;
    case QN_JN_BLOCK:
    case QN_JN_GENERATION: break;
    default:
        collect(r, s, n->a);
        collect(r, s, n->b);
        collect(r, s, n->c);
        collect_all(r, s, &n->list);
        collect_args(r, s, n->args);
    }
    r->depth--;
}

/* ---- does a body use a special name? ---- */

typedef struct search {
    const char *name;
    bool found, stored; /* stored: assigned before it was used, so it is an ordinary name */
} search;

static void look(resolver *r, search *q, const qn_jnode *n);

static void look_all(resolver *r, search *q, const qn_jnodes *l)
{
    for (size_t i = 0; i < l->n && !q->found && !q->stored; i++) look(r, q, l->v[i]);
}

static void look_store(search *q, const qn_jnode *target)
{
    if (!target) return;
    if (target->kind == QN_JN_TUPLE)
        for (size_t i = 0; i < target->list.n; i++) look_store(q, target->list.v[i]);
    else if (target->kind == QN_JN_NAME && qn_jstr_is(target->name, q->name)) q->stored = true;
}

static void look(resolver *r, search *q, const qn_jnode *n)
{
    if (!n || q->found || q->stored || n->kind == QN_JN_BLOCK || !deeper(r, n->line)) return;
    bool macro = n->kind == QN_JN_MACRO || n->kind == QN_JN_CALLBLOCK;
    bool targets = n->kind == QN_JN_FOR || n->kind == QN_JN_SET || n->kind == QN_JN_SETBLOCK;
    if (n->kind == QN_JN_NAME) q->found = qn_jstr_is(n->name, q->name);
    if (targets) look_store(q, n->a);
    else look(r, q, n->a);
    if (macro || n->kind == QN_JN_WITH)
        for (size_t i = 0; i < n->list.n; i++) look_store(q, n->list.v[i]);
    else look_all(r, q, &n->list);
    look_all(r, q, &n->list2);
    look(r, q, n->b);
    look(r, q, n->c);
    if (n->args) {
        look_all(r, q, &n->args->pos);
        look_all(r, q, &n->args->kw_values);
        look(r, q, n->args->star);
        look(r, q, n->args->star_star);
    }
    look_all(r, q, &n->body);
    look_all(r, q, &n->orelse);
    r->depth--;
}

static bool uses(resolver *r, const qn_jnodes *body, const char *name)
{
    search q = {.name = name};
    look_all(r, &q, body);
    return q.found;
}

/* ---- opening scopes and resolving what is inside ---- */

static qn_jscope *new_scope(resolver *r, qn_jscope *parent)
{
    qn_jscope *s = qn_arena_take(&r->t->arena, 1, sizeof *s);
    if (!s) {
        out_of_memory(r);
        return NULL;
    }
    s->parent = parent;
    s->loop_slot = s->caller_slot = s->kwargs_slot = s->varargs_slot = -1;
    return s;
}

static void resolve_all(resolver *r, qn_jscope *s, const qn_jnodes *l, bool soft, bool top)
{
    for (size_t i = 0; i < l->n && !r->rc; i++) resolve(r, s, l->v[i], soft, top);
}

static bool stores_loop(const qn_jnode *n);

static bool any_stores_loop(const qn_jnodes *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i] && stores_loop(l->v[i])) return true;
    return false;
}

/* True if something in the statement assigns to `loop`. */
static bool stores_loop(const qn_jnode *n)
{
    search q = {.name = "loop"};
    if (n->kind == QN_JN_FOR || n->kind == QN_JN_SET || n->kind == QN_JN_SETBLOCK)
        look_store(&q, n->a);
    return q.stored || any_stores_loop(&n->body) || any_stores_loop(&n->orelse);
}

static void resolve_for(resolver *r, qn_jscope *s, qn_jnode *n)
{
    if (stores_loop(n)) {
        r->rc = qn_jtree_error(r->t, n->line, r->err,
                               "cannot assign to the special variable 'loop' in a loop");
        return;
    }
    qn_jscope *body = n->scope = new_scope(r, s);
    if (!body) return;
    if (n->recursive || uses(r, &n->body, "loop")) body->loop_slot = declare_text(r, body, "loop");
    collect_store(r, body, n->a, true);
    collect_all(r, body, &n->body);
    if (n->orelse.n && (n->scope2 = new_scope(r, s))) collect_all(r, n->scope2, &n->orelse);
    if (n->c && (n->scope3 = new_scope(r, s))) {
        if (body->loop_slot >= 0)
            entry(r, n->scope3, body->sym[0].name); /* the target has one slot in both */
        collect_store(r, n->scope3, n->a, true);
        collect(r, n->scope3, n->c);
    }
    resolve(r, s, n->b, false, false);
    if (n->c && !r->rc) resolve(r, n->scope3, n->c, false, false);
    resolve(r, body, n->a, false, false);
    resolve_all(r, body, &n->body, false, false);
    if (n->scope2) resolve_all(r, n->scope2, &n->orelse, false, false);
}

static void resolve_macro(resolver *r, qn_jscope *s, qn_jnode *n)
{
    qn_jscope *in = n->scope = new_scope(r, s);
    if (!in) return;
    bool caller = uses(r, &n->body, "caller"), kwargs = uses(r, &n->body, "kwargs");
    bool varargs = uses(r, &n->body, "varargs");
    for (size_t i = 0; i < n->list.n && !r->rc; i++) {
        const qn_jnode *p = n->list.v[i];
        declare(r, in, p->name);
        if (qn_jstr_is(p->name, "kwargs")) kwargs = false;
        if (qn_jstr_is(p->name, "varargs")) varargs = false;
        if (!qn_jstr_is(p->name, "caller")) continue;
        in->explicit_caller = true;
        if (caller && !n->list2.v[i])
            r->rc = qn_jtree_error(r->t, n->line, r->err,
                                   "the parameter 'caller' needs a default or must be left out");
    }
    collect_all(r, in, &n->list2);
    collect_all(r, in, &n->body);
    if (caller && !in->explicit_caller) in->caller_slot = declare_text(r, in, "caller");
    if (kwargs) in->kwargs_slot = declare_text(r, in, "kwargs");
    if (varargs) in->varargs_slot = declare_text(r, in, "varargs");
    resolve_all(r, in, &n->list, false, false);
    resolve_all(r, in, &n->list2, false, false);
    resolve_all(r, in, &n->body, false, false);
}

/* Statements whose body is a scope with nothing declared. */
static void resolve_plain(resolver *r, qn_jscope *parent, qn_jnode *n)
{
    qn_jscope *in = n->scope = new_scope(r, parent);
    if (!in) return;
    if (n->kind == QN_JN_WITH)
        for (size_t i = 0; i < n->list.n; i++) collect_store(r, in, n->list.v[i], true);
    collect_all(r, in, &n->body);
    collect(r, in, n->b);
    if (n->kind == QN_JN_WITH) resolve_all(r, in, &n->list, false, false);
    resolve_all(r, in, &n->body, false, false);
    if (n->b) resolve(r, in, n->b, false, false);
}

static void resolve_name(resolver *r, qn_jscope *s, qn_jnode *n)
{
    if (!find_ref(s, n->name, &n->hops, &n->slot))
        r->rc = qn_jtree_error(r->t, n->line, r->err, "cannot find the variable '%.*s'",
                               (int)n->name->n, n->name->p);
}

static void resolve_children(resolver *r, qn_jscope *s, qn_jnode *n, bool soft, bool top)
{
    if (n->a) resolve(r, s, n->a, soft, false);
    if (n->b) resolve(r, s, n->b, soft, false);
    if (n->c) resolve(r, s, n->c, soft, false);
    for (size_t i = 0; i < n->list.n && !r->rc; i++)
        if (n->list.v[i]) resolve(r, s, n->list.v[i], soft, false);
    if (n->args) {
        resolve_all(r, s, &n->args->pos, soft, false);
        resolve_all(r, s, &n->args->kw_values, soft, false);
        resolve(r, s, n->args->star, soft, false);
        resolve(r, s, n->args->star_star, soft, false);
    }
    resolve_all(r, s, &n->body, soft, top);
    resolve_all(r, s, &n->orelse, soft, top);
}

/* soft: inside an `if` of this scope, where an unknown filter is an error only when it is reached.
 * top: a statement of the template's top level. */
static void resolve(resolver *r, qn_jscope *s, qn_jnode *n, bool soft, bool top)
{
    if (!n || !s || !deeper(r, n->line)) return;
    n->toplevel = top;
    switch (n->kind) {
    case QN_JN_NAME:
    case QN_JN_NSREF: resolve_name(r, s, n); break;
    case QN_JN_FOR: resolve_for(r, s, n); break;
    case QN_JN_MACRO: 
        resolve_name(r, s, n);
        if (!r->rc) resolve_macro(r, s, n);
        break;
    case QN_JN_CALLBLOCK:
        resolve_macro(r, s, n);
        resolve(r, s, n->a, soft, false);
        break;
    case QN_JN_SETBLOCK:
        resolve(r, s, n->a, soft, false);
        resolve_plain(r, s, n);
        break;
    case QN_JN_WITH:
        resolve_all(r, s, &n->list2, soft, false);
        resolve_plain(r, s, n);
        break;
    case QN_JN_FILTERBLOCK:
    case QN_JN_GENERATION: resolve_plain(r, s, n); break;
    case QN_JN_BLOCK: resolve_plain(r, NULL, n); break;
    case QN_JN_FILTER:
    case QN_JN_TEST:
        if (!n->fn && !soft)
            r->rc = qn_jtree_error(r->t, n->line, r->err, "no %s named '%.*s'",
                                   n->kind == QN_JN_FILTER ? "filter" : "test", (int)n->name->n,
                                   n->name->p);
        else resolve_children(r, s, n, soft, false);
        break;
    case QN_JN_IF:
    case QN_JN_COND: resolve_children(r, s, n, true, top); break;
    default: resolve_children(r, s, n, soft, top);
    }
    r->depth--;
}

qn_code qn_jresolve(qn_jtree *t, qn_err *err)
{
    resolver r = {.t = t, .err = err};
    t->scope = new_scope(&r, NULL);
    if (!t->scope) return r.rc;
    t->scope->toplevel = true;
    collect_all(&r, t->scope, &t->body);
    resolve_all(&r, t->scope, &t->body, false, true);
    return r.rc;
}
