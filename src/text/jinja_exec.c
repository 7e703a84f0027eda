/* jinja_exec.c - statements: scopes, output, loops, macros. */
#include <string.h>

#include "text/jinja_loop.h"
#include "text/jinja_run.h"

typedef enum flow { GO, BREAK, CONTINUE } flow;

static flow exec_all(qn_jrun *run, qn_jframe *f, const qn_jnodes *l);

/* ---- output ---- */

void qn_jwrite(qn_jrun *run, const char *p, size_t n)
{
    if (run->failed) return;
    run->put += n;
    qn_buf_put(run->out, p, n);
    if (run->put > QN_J_MAX_OUTPUT)
        qn_jfail(run, "the output is longer than %zu MiB", QN_J_MAX_OUTPUT >> 20);
    else qn_jbuf_ok(run, run->out);
}

bool qn_jbuf_ok(qn_jrun *run, const qn_buf *b)
{
    if (run->failed) return false;
    if (b->failed) qn_jfail(run, "out of memory");
    else if (b->len > QN_J_MAX_OUTPUT)
        qn_jfail(run, "a text is longer than %zu MiB", QN_J_MAX_OUTPUT >> 20);
    return !run->failed;
}

static void print_value(qn_jrun *run, qn_jval v)
{
    if (run->failed) return;
    if (v.type == QN_J_STR) {
        qn_jwrite(run, v.s->p, v.s->n);
        return;
    }
    qn_buf b = {0};
    qn_jput_str(run, &b, v);
    if (!run->failed && b.len) qn_jwrite(run, b.data, b.len);
    qn_buf_release(&b);
}

/* The result of a call or filter block, which jinja2 wants to be a string. */
static void print_text(qn_jrun *run, qn_jval v, const char *what)
{
    if (run->failed) return;
    if (v.type == QN_J_STR) qn_jwrite(run, v.s->p, v.s->n);
    else qn_jfail(run, "the result of a %s must be a string, not %s", what, qn_jtype_name(v));
}

/* ---- scopes ---- */

/* A name that the template did not set: what it set before at its top level (for blocks), the
 * caller's variables, the built-in functions. */
static qn_jval lookup_name(qn_jrun *run, const qn_jstr *name)
{
    const qn_jval *v = qn_jdict_find(run->context, name->p, name->n);
    if (!v) v = qn_jdict_find(run->vars, name->p, name->n);
    if (v) return *v;
    const qn_jfn *fn = qn_jglobal_find(name->p, name->n);
    return fn ? (qn_jval){.type = QN_J_FUNC, .fn = fn} : qn_jmissing();
}

static void load_frame(qn_jrun *run, qn_jframe *f)
{
    for (size_t i = 0; i < f->scope->n; i++) {
        const qn_jsymbol *sym = &f->scope->sym[i];
        qn_jval v = qn_jmissing();
        if (sym->load == QN_JL_RESOLVE) v = lookup_name(run, sym->name);
        if (sym->load == QN_JL_ALIAS) {
            const qn_jframe *from = f->parent;
            for (uint32_t h = 0; h < sym->hops; h++) from = from->parent;
            v = from->slots[sym->slot];
        }
        if (sym->load != QN_JL_PARAMETER) f->slots[i] = v;
    }
}

qn_jframe *qn_jframe_new(qn_jrun *run, const qn_jscope *scope, qn_jframe *parent)
{
    qn_jframe *f = qn_jtake(run, 1, sizeof *f + scope->n * sizeof f->slots[0]);
    if (!f) return NULL;
    f->parent = parent;
    f->scope = scope;
    for (size_t i = 0; i < scope->n; i++) f->slots[i] = qn_jmissing();
    load_frame(run, f);
    return f;
}

/* ---- assignment ---- */

static qn_jval *slot_of(qn_jframe *f, const qn_jnode *name)
{
    for (uint32_t i = 0; i < name->hops; i++) f = f->parent;
    return &f->slots[name->slot];
}

static void assign_namespace(qn_jrun *run, qn_jframe *f, const qn_jnode *target, qn_jval v)
{
    qn_jval ns = *slot_of(f, target);
    if (ns.type != QN_J_NAMESPACE) {
        qn_jfail(run, "cannot assign attribute '%.*s': '%.*s' is not a namespace",
                 (int)target->attr->n, target->attr->p, (int)target->name->n, target->name->p);
        return;
    }
    if (target->attr->n && target->attr->p[0] == '_') {
        qn_jfail(run, "an attribute of a namespace may not start with '_': '%.*s'",
                 (int)target->attr->n, target->attr->p);
        return;
    }
    qn_jdict_set(run, ns.dict, (qn_jval){.type = QN_J_STR, .s = target->attr}, v);
}

static void assign(qn_jrun *run, qn_jframe *f, const qn_jnode *target, qn_jval v, bool top)
{
    if (run->failed) return;
    if (target->kind == QN_JN_NSREF) {
        assign_namespace(run, f, target, v);
    } else if (target->kind == QN_JN_NAME) {
        *slot_of(f, target) = v;
        if (top) qn_jdict_set(run, run->context, (qn_jval){.type = QN_J_STR, .s = target->name}, v);
    } else {
        qn_jval items = qn_jto_list(run, v);
        if (run->failed) return;
        if (items.list->n != target->list.n) {
            qn_jfail(run, "cannot unpack %zu values into %zu names", items.list->n, target->list.n);
            return;
        }
        for (size_t i = 0; i < target->list.n; i++)
            assign(run, f, target->list.v[i], items.list->v[i], top);
    }
}

/* ---- captured output ---- */

/* Run a body with its output in a string. A jump out of the body is passed on in *jump. */
static qn_jval capture(qn_jrun *run, qn_jframe *f, const qn_jnodes *body, flow *jump)
{
    qn_buf b = {0}, *outer = run->out;
    run->out = &b;
    *jump = exec_all(run, f, body);
    run->out = outer;
    return qn_jstr_take(run, &b);
}

static flow exec_setblock(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jframe *in = qn_jframe_new(run, n->scope, f);
    if (!in) return GO;
    flow jump;
    qn_jval v = capture(run, in, &n->body, &jump);
    if (jump != GO || run->failed) return jump;
    if (n->b) v = qn_jeval_filter(run, in, n->b, v);
    assign(run, f, n->a, v, n->toplevel);
    return GO;
}

static flow exec_filterblock(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jframe *in = qn_jframe_new(run, n->scope, f);
    if (!in) return GO;
    flow jump;
    qn_jval v = capture(run, in, &n->body, &jump);
    if (jump != GO || run->failed) return jump;
    print_text(run, qn_jeval_filter(run, in, n->b, v), "filter block");
    return GO;
}

static flow exec_with(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jframe *in = qn_jframe_new(run, n->scope, f);
    if (!in) return GO;
    for (size_t i = 0; i < n->list.n; i++)
        assign(run, in, n->list.v[i], qn_jeval(run, f, n->list2.v[i]), false);
    return exec_all(run, in, &n->body);
}

static flow exec_scope(qn_jrun *run, qn_jframe *parent, const qn_jnode *n)
{
    qn_jframe *in = qn_jframe_new(run, n->scope, parent);
    return in ? exec_all(run, in, &n->body) : GO;
}

/* ---- loops ---- */

/* The generator behind `for x in items if test`. */
typedef struct filtered {
    const qn_jnode *node;
    qn_jframe *frame;
    qn_jiter src;
} filtered;

static bool next_filtered(qn_jrun *run, qn_jiter *it, qn_jval *out)
{
    filtered *s = it->state;
    while (qn_jiter_next(run, &s->src, out)) {
        load_frame(run, s->frame);
        assign(run, s->frame, s->node->a, *out, false);
        if (run->failed) return false;
        qn_jval ok = qn_jeval(run, s->frame, s->node->c);
        if (run->failed) return false;
        if (qn_jtruth(ok)) return true;
    }
    return false;
}

static qn_jval filter_items(qn_jrun *run, qn_jframe *f, const qn_jnode *n, qn_jval items)
{
    filtered *s = qn_jtake(run, 1, sizeof *s);
    if (!s || !(s->frame = qn_jframe_new(run, n->scope3, f))) return qn_jundef(NULL);
    s->node = n;
    if (!qn_jiter_start(run, items, &s->src)) return qn_jundef(NULL);
    return qn_jiter_new(run, items, next_filtered, s);
}

static flow run_loop(qn_jrun *run, qn_jframe *f, const qn_jnode *n, qn_jval items, int64_t depth0)
{
    if (n->c) items = filter_items(run, f, n, items);
    qn_jloop *l = run->failed ? NULL : qn_jtake(run, 1, sizeof *l);
    if (!l || !qn_jloop_start(run, l, items)) return GO;
    qn_jframe *in = qn_jframe_new(run, n->scope, f);
    if (!in) return GO;
    l->depth0 = depth0;
    if (n->recursive) {
        l->node = n;
        l->frame = f;
    }
    bool completed = false; /* as in jinja2, `else` runs unless one pass reached its end */
    qn_jval item;
    while (qn_jloop_next(run, l, &item)) {
        load_frame(run, in);
        if (n->scope->loop_slot >= 0)
            in->slots[n->scope->loop_slot] = (qn_jval){.type = QN_J_LOOP, .loop = l};
        assign(run, in, n->a, item, false);
        flow jump = exec_all(run, in, &n->body);
        if (run->failed || jump == BREAK) break;
        if (jump == GO) completed = true;
    }
    if (run->failed || completed || !n->scope2) return GO;
    qn_jframe *other = qn_jframe_new(run, n->scope2, f);
    return other ? exec_all(run, other, &n->orelse) : GO;
}

static flow exec_for(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jval items = qn_jeval(run, f, n->b);
    run->line = n->line;
    if (run->failed) return GO;
    return run_loop(run, f, n, items, 0);
}

qn_jval qn_jloop_recurse(qn_jrun *run, qn_jloop *loop, qn_jval items)
{
    if (!loop->node) return qn_jfail(run, "the loop must have the 'recursive' marker to be called");
    qn_buf b = {0}, *outer = run->out;
    run->out = &b;
    run_loop(run, loop->frame, loop->node, items, loop->depth0 + 1);
    run->out = outer;
    return qn_jstr_take(run, &b);
}

/* ---- macros ---- */

static qn_jval make_macro(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jmacro *m = qn_jtake(run, 1, sizeof *m);
    if (!m) return qn_jundef(NULL);
    m->node = n;
    m->frame = f;
    return (qn_jval){.type = QN_J_MACRO, .macro = m};
}

static void exec_macro(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    qn_jval m = make_macro(run, f, n);
    *slot_of(f, n) = m;
    if (n->toplevel && !run->failed)
        qn_jdict_set(run, run->context, (qn_jval){.type = QN_J_STR, .s = n->name}, m);
}

static void exec_callblock(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    static const qn_jstr caller = {.p = "caller", .n = 6, .cps = 6};
    qn_jval callee = qn_jeval(run, f, n->a->a);
    qn_jcall c;
    if (run->failed || !qn_jeval_args(run, f, n->a->args, &c)) return;
    qn_jkw *kw = qn_jtake(run, c.n_kw + 1, sizeof *kw);
    if (!kw) return;
    if (c.n_kw) memcpy(kw, c.kw, c.n_kw * sizeof *kw);
    kw[c.n_kw++] = (qn_jkw){&caller, make_macro(run, f, n)};
    c.kw = kw;
    run->line = n->line;
    print_text(run, qn_jcall_value(run, callee, &c), "call block");
}

/* Take the keyword `name` out of the call; QN_J_MISSING if it is not given. */
static qn_jval take_keyword(qn_jcall *c, const qn_jstr *name)
{
    for (size_t i = 0; i < c->n_kw; i++) {
        if (c->kw[i].name->n != name->n || memcmp(c->kw[i].name->p, name->p, name->n) != 0)
            continue;
        qn_jval v = c->kw[i].value;
        memmove(&c->kw[i], &c->kw[i + 1], (c->n_kw - i - 1) * sizeof *c->kw);
        c->n_kw--;
        return v;
    }
    return qn_jmissing();
}

static void bind_rest(qn_jrun *run, qn_jframe *in, const qn_jnode *n, qn_jcall *c, size_t used)
{
    static const qn_jstr caller_name = {.p = "caller", .n = 6, .cps = 6};
    const qn_jscope *s = n->scope;
    if (s->caller_slot >= 0) {
        qn_jval caller = take_keyword(c, &caller_name);
        bool none = caller.type == QN_J_MISSING || caller.type == QN_J_NONE;
        in->slots[s->caller_slot] = none ? qn_jundef("no caller defined") : caller;
    }
    if (s->kwargs_slot >= 0) {
        qn_jval d = qn_jdict_new(run);
        for (size_t i = 0; i < c->n_kw && !run->failed; i++)
            qn_jdict_set(run, d.dict, (qn_jval){.type = QN_J_STR, .s = c->kw[i].name},
                         c->kw[i].value);
        in->slots[s->kwargs_slot] = d;
    } else if (c->n_kw) {
        qn_jfail(run, "macro '%.*s' takes no keyword argument '%.*s'", (int)n->name->n, n->name->p,
                 (int)c->kw[0].name->n, c->kw[0].name->p);
        return;
    }
    if (s->varargs_slot >= 0)
        in->slots[s->varargs_slot] =
            qn_jtuple(run, c->n_pos ? c->pos + used : NULL, c->n_pos - used);
    else if (c->n_pos > n->list.n)
        qn_jfail(run, "macro '%.*s' takes not more than %zu arguments, got %zu", (int)n->name->n,
                 n->name->p, n->list.n, c->n_pos);
}

qn_jval qn_jmacro_call(qn_jrun *run, qn_jmacro *m, qn_jcall *c)
{
    const qn_jnode *n = m->node;
    qn_jframe *in = qn_jenter(run) ? qn_jframe_new(run, n->scope, m->frame) : NULL;
    if (!in) return qn_jundef(NULL);
    size_t used = c->n_pos < n->list.n ? c->n_pos : n->list.n;
    for (size_t i = 0; i < n->list.n; i++)
        in->slots[n->list.v[i]->slot] = i < used ? c->pos[i] : take_keyword(c, n->list.v[i]->name);
    bind_rest(run, in, n, c, used);
    for (size_t i = 0; i < n->list.n && !run->failed; i++) {
        qn_jval *slot = &in->slots[n->list.v[i]->slot];
        if (slot->type == QN_J_MISSING && n->list2.v[i]) *slot = qn_jeval(run, in, n->list2.v[i]);
    }
    flow jump;
    qn_jval v = run->failed ? qn_jundef(NULL) : capture(run, in, &n->body, &jump);
    run->depth--;
    return v;
}

/* ---- statements ---- */

static flow exec_if(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    for (;;) {
        qn_jval test = qn_jeval(run, f, n->a);
        if (run->failed) return GO;
        if (qn_jtruth(test)) return exec_all(run, f, &n->body);
        bool chain = n->orelse.n == 1 && n->orelse.v[0]->kind == QN_JN_IF;
        if (!chain) return exec_all(run, f, &n->orelse);
        n = n->orelse.v[0];
    }
}

static flow exec(qn_jrun *run, qn_jframe *f, const qn_jnode *n)
{
    switch (n->kind) {
    case QN_JN_TEXT: qn_jwrite(run, n->value.s->p, n->value.s->n); return GO;
    case QN_JN_PRINT:
        for (size_t i = 0; i < n->list.n && !run->failed; i++)
            print_value(run, qn_jeval(run, f, n->list.v[i]));
        return GO;
    case QN_JN_IF: return exec_if(run, f, n);
    case QN_JN_FOR: return exec_for(run, f, n);
    case QN_JN_SET: assign(run, f, n->a, qn_jeval(run, f, n->b), n->toplevel); return GO;
    case QN_JN_SETBLOCK: return exec_setblock(run, f, n);
    case QN_JN_MACRO: exec_macro(run, f, n); return GO;
    case QN_JN_CALLBLOCK: exec_callblock(run, f, n); return GO;
    case QN_JN_FILTERBLOCK: return exec_filterblock(run, f, n);
    case QN_JN_WITH: return exec_with(run, f, n);
    case QN_JN_BLOCK: return exec_scope(run, NULL, n);
    case QN_JN_GENERATION: return exec_scope(run, f, n);
    case QN_JN_BREAK: return BREAK;
    case QN_JN_CONTINUE: return CONTINUE;
    case QN_JN_LOAD:
        qn_jfail(
            run,
            "a chat template cannot load others: include, import and extends are not possible");
        return GO;
    default: qn_jfail(run, "this is not a statement"); return GO;
    }
}

static flow exec_all(qn_jrun *run, qn_jframe *f, const qn_jnodes *l)
{
    flow jump = GO;
    if (!qn_jenter(run)) return GO;
    for (size_t i = 0; i < l->n && jump == GO && !run->failed && qn_jstep(run, 1); i++) {
        run->line = l->v[i]->line;
        jump = exec(run, f, l->v[i]);
    }
    run->depth--;
    return jump;
}

void qn_jexec_template(qn_jrun *run)
{
    run->root = qn_jframe_new(run, run->tree->scope, NULL);
    if (run->root) exec_all(run, run->root, &run->tree->body);
}
