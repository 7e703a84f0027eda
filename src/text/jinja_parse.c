/* jinja_parse.c - tokens to expressions and statements.
 *
 * Precedence, and the odd places where jinja2's grammar differs from what one would expect, follow
 * jinja2 3.1 (spec models 11.4). Statements are in jinja_parse_stmt.c.
 */
#include "text/jinja_parse.h"

#include <stdlib.h>
#include <string.h>

#include "text/jinja_run.h"

void qn_jtree_line(const qn_jtree *t, uint32_t line, const char **p, size_t *n)
{
    const char *at = t->source, *end = t->source + t->size;
    for (uint32_t i = 1; i < line && at < end; i++) {
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        at = nl ? nl + 1 : end;
    }
    const char *nl = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
    *p = at;
    *n = (size_t)((nl ? nl : end) - at);
}

qn_code qn_jtree_error(const qn_jtree *t, uint32_t line, qn_err *err, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const char *p;
    size_t n;
    qn_jtree_line(t, line, &p, &n);
    while (n > 0 && (*p == ' ' || *p == '\t')) p++, n--;
    return qn_err_set(err, QN_INVALID, "%s, line %u: %s, in \"%.*s\"", t->name, line, text,
                      n > 120 ? 120 : (int)n, p);
}

bool qn_jnodes_add(qn_jtree *t, qn_jnodes *l, qn_jnode *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        qn_jnode **v = qn_arena_take(&t->arena, cap, sizeof *v);
        if (!v) return false;
        if (l->n) memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return true;
}

qn_code qn_jtree_nomem(const qn_jtree *t, qn_err *err)
{
    if (t->arena.used_bytes > t->arena.limit_bytes / 2)
        return qn_err_set(err, QN_LIMIT,
                          "%s: the template is too large: it needs more than %zu MiB", t->name,
                          t->arena.limit_bytes >> 20);
    return qn_err_set(err, QN_NOMEM, "template: out of memory");
}

/* ---- helpers shared with the statements ---- */

static qn_jnode *nomem(qn_jparser *p)
{
    if (!p->rc) p->rc = qn_jtree_nomem(p->t, p->err);
    return NULL;
}

qn_jnode *qn_jp_fail(qn_jparser *p, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!p->rc) p->rc = qn_jtree_error(p->t, qn_jp_now(p)->line, p->err, "%s", text);
    return NULL;
}

qn_jnode *qn_jp_node(qn_jparser *p, qn_jkind kind, uint32_t line)
{
    qn_jnode *n = p->rc ? NULL : qn_arena_take(&p->t->arena, 1, sizeof *n);
    if (!n) {
        nomem(p);
        return NULL;
    }
    n->kind = kind;
    n->line = line;
    return n;
}

void qn_jp_add(qn_jparser *p, qn_jnodes *l, qn_jnode *n)
{
    if (!p->rc && !qn_jnodes_add(p->t, l, n)) nomem(p);
}

const qn_jstr *qn_jp_str(qn_jparser *p, const char *text, size_t n)
{
    qn_jstr *s = p->rc ? NULL : qn_arena_take(&p->t->arena, 1, sizeof *s);
    if (!s) {
        nomem(p);
        return NULL;
    }
    s->p = text;
    s->n = n;
    s->cps = qn_jstr_len(s);
    return s;
}

bool qn_jp_is(const qn_jparser *p, qn_jtok_type type) { return qn_jp_now(p)->type == type; }

static bool tok_is(const qn_jtok *k, const char *name)
{
    return k->type == QN_JT_NAME && k->n == strlen(name) && memcmp(k->p, name, k->n) == 0;
}

bool qn_jp_is_name(const qn_jparser *p, const char *name) { return tok_is(qn_jp_now(p), name); }

bool qn_jp_skip(qn_jparser *p, qn_jtok_type type)
{
    if (p->rc || !qn_jp_is(p, type)) return false;
    p->at++;
    return true;
}

bool qn_jp_skip_name(qn_jparser *p, const char *name)
{
    if (p->rc || !qn_jp_is_name(p, name)) return false;
    p->at++;
    return true;
}

const qn_jtok *qn_jp_expect(qn_jparser *p, qn_jtok_type type)
{
    if (p->rc) return NULL;
    const qn_jtok *k = qn_jp_now(p);
    if (k->type != type) {
        if (k->type == QN_JT_NAME)
            qn_jp_fail(p, "expected '%s', got '%.*s'", qn_jtok_name(type),
                       k->n > 60 ? 60 : (int)k->n, k->p);
        else qn_jp_fail(p, "expected '%s', got '%s'", qn_jtok_name(type), qn_jtok_name(k->type));
        return NULL;
    }
    p->at++;
    return k;
}

bool qn_jp_enter(qn_jparser *p)
{
    if (p->rc) return false;
    if (++p->depth > QN_J_MAX_NEST) {
        p->depth--;
        qn_jp_fail(p, "nested more than %d levels deep", QN_J_MAX_NEST);
        return false;
    }
    return true;
}

/* ---- expressions ---- */

static qn_jnode *parse_or(qn_jparser *p);
static qn_jnode *parse_unary(qn_jparser *p, bool with_filter);

static qn_jnode *binary(qn_jparser *p, qn_jkind kind, qn_jop op, qn_jnode *a, qn_jnode *b,
                        uint32_t line)
{
    qn_jnode *n = qn_jp_node(p, kind, line);
    if (!n) return NULL;
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

static qn_jnode *constant(qn_jparser *p, qn_jval v, uint32_t line)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_CONST, line);
    if (!n) return NULL;
    n->value = v;
    if (v.type == QN_J_STR) qn_jp_add(p, &p->t->literals, n);
    return n;
}

static qn_jnode *parse_name(qn_jparser *p, bool with_namespace)
{
    const qn_jtok *k = qn_jp_now(p);
    p->at++;
    if (tok_is(k, "true") || tok_is(k, "True")) return constant(p, qn_jbool(true), k->line);
    if (tok_is(k, "false") || tok_is(k, "False")) return constant(p, qn_jbool(false), k->line);
    if (tok_is(k, "none") || tok_is(k, "None")) return constant(p, qn_jnone(), k->line);
    qn_jnode *n = qn_jp_node(p, QN_JN_NAME, k->line);
    if (!n) return NULL;
    n->name = qn_jp_str(p, k->p, k->n);
    if (with_namespace && qn_jp_skip(p, QN_JT_DOT)) {
        const qn_jtok *attr = qn_jp_expect(p, QN_JT_NAME);
        if (!attr) return NULL;
        n->kind = QN_JN_NSREF;
        n->attr = qn_jp_str(p, attr->p, attr->n);
    }
    return n;
}

static qn_jnode *parse_string(qn_jparser *p)
{
    const qn_jtok *k = qn_jp_now(p);
    size_t total = 0, count = 0;
    while (k[count].type == QN_JT_STRING) total += k[count++].n;
    p->at += count;
    const char *text = k->p;
    if (count > 1) {
        char *joined = qn_arena_take(&p->t->arena, total + 1, 1);
        if (!joined) {
            nomem(p);
            return NULL;
        }
        size_t at = 0;
        for (size_t i = 0; i < count; i++) {
            memcpy(joined + at, k[i].p, k[i].n);
            at += k[i].n;
        }
        text = joined;
    }
    return constant(p, (qn_jval){.type = QN_J_STR, .s = qn_jp_str(p, text, total)}, k->line);
}

static qn_jnode *parse_list(qn_jparser *p)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_LIST, qn_jp_now(p)->line);
    if (!n) return NULL;
    p->at++;
    while (!p->rc && !qn_jp_is(p, QN_JT_RBRACKET)) {
        if (n->list.n && !qn_jp_expect(p, QN_JT_COMMA)) return NULL;
        if (qn_jp_is(p, QN_JT_RBRACKET)) break;
        qn_jp_add(p, &n->list, qn_jp_expression(p, true));
    }
    return qn_jp_expect(p, QN_JT_RBRACKET) ? n : NULL;
}

static qn_jnode *parse_dict(qn_jparser *p)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_DICT, qn_jp_now(p)->line);
    if (!n) return NULL;
    p->at++;
    while (!p->rc && !qn_jp_is(p, QN_JT_RBRACE)) {
        if (n->list.n && !qn_jp_expect(p, QN_JT_COMMA)) return NULL;
        if (qn_jp_is(p, QN_JT_RBRACE)) break;
        qn_jp_add(p, &n->list, qn_jp_expression(p, true));
        if (!qn_jp_expect(p, QN_JT_COLON)) return NULL;
        qn_jp_add(p, &n->list, qn_jp_expression(p, true));
    }
    return qn_jp_expect(p, QN_JT_RBRACE) ? n : NULL;
}

qn_jnode *qn_jp_primary(qn_jparser *p, bool with_namespace)
{
    if (p->rc) return NULL;
    const qn_jtok *k = qn_jp_now(p);
    qn_jnode *n;
    switch (k->type) {
    case QN_JT_NAME: return parse_name(p, with_namespace);
    case QN_JT_STRING: return parse_string(p);
    case QN_JT_INTEGER: p->at++; return constant(p, qn_jint(k->i), k->line);
    case QN_JT_FLOAT: p->at++; return constant(p, qn_jfloat(k->f), k->line);
    case QN_JT_LPAREN:
        p->at++;
        n = qn_jp_tuple(p, (qn_jtuple_rule){.cond = true, .parens = true});
        return qn_jp_expect(p, QN_JT_RPAREN) ? n : NULL;
    case QN_JT_LBRACKET: return parse_list(p);
    case QN_JT_LBRACE: return parse_dict(p);
    default: return qn_jp_fail(p, "unexpected '%s'", qn_jtok_name(k->type));
    }
}

/* One part of [ ]: an expression or a slice. */
static qn_jnode *parse_subscribed(qn_jparser *p)
{
    uint32_t line = qn_jp_now(p)->line;
    qn_jnode *part[3] = {NULL, NULL, NULL};
    if (!qn_jp_is(p, QN_JT_COLON)) {
        part[0] = qn_jp_expression(p, true);
        if (p->rc || !qn_jp_is(p, QN_JT_COLON)) return part[0];
    }
    p->at++;
    if (!qn_jp_is(p, QN_JT_COLON) && !qn_jp_is(p, QN_JT_RBRACKET) && !qn_jp_is(p, QN_JT_COMMA))
        part[1] = qn_jp_expression(p, true);
    if (qn_jp_skip(p, QN_JT_COLON) && !qn_jp_is(p, QN_JT_RBRACKET) && !qn_jp_is(p, QN_JT_COMMA))
        part[2] = qn_jp_expression(p, true);
    qn_jnode *n = qn_jp_node(p, QN_JN_SLICE, line);
    for (int i = 0; n && i < 3; i++) qn_jp_add(p, &n->list, part[i]);
    return n;
}

static qn_jnode *parse_subscript(qn_jparser *p, qn_jnode *of)
{
    const qn_jtok *k = qn_jp_now(p);
    p->at++;
    qn_jnode *n = qn_jp_node(p, QN_JN_ITEM, k->line);
    if (!n) return NULL;
    n->a = of;
    if (k->type == QN_JT_DOT) {
        const qn_jtok *attr = qn_jp_now(p);
        if (attr->type == QN_JT_NAME) {
            n->kind = QN_JN_ATTR;
            n->attr = qn_jp_str(p, attr->p, attr->n);
        } else if (attr->type == QN_JT_INTEGER) {
            n->b = constant(p, qn_jint(attr->i), attr->line);
        } else {
            return qn_jp_fail(p, "expected a name or number behind '.'");
        }
        p->at++;
        return n;
    }
    qn_jnodes parts = {0};
    while (!p->rc && !qn_jp_is(p, QN_JT_RBRACKET)) {
        if (parts.n && !qn_jp_expect(p, QN_JT_COMMA)) return NULL;
        qn_jp_add(p, &parts, parse_subscribed(p));
    }
    if (!qn_jp_expect(p, QN_JT_RBRACKET)) return NULL;
    if (parts.n == 1) {
        n->b = parts.v[0];
    } else {
        n->b = qn_jp_node(p, QN_JN_TUPLE, k->line);
        if (n->b) n->b->list = parts;
    }
    return n;
}

static void add_keyword(qn_jparser *p, qn_jargs *a)
{
    const qn_jtok *key = qn_jp_now(p);
    p->at += 2;
    size_t n = a->kw_values.n;
    if (n == QN_J_MAX_NAMES) {
        qn_jp_fail(p, "more than %d keyword arguments", QN_J_MAX_NAMES);
        return;
    }
    if ((n & (n - 1)) == 0) { /* grow at powers of two */
        const qn_jstr **names = qn_arena_take(&p->t->arena, n ? n * 2 : 1, sizeof *names);
        if (!names) {
            nomem(p);
            return;
        }
        if (n) memcpy(names, a->kw_names, n * sizeof *names);
        a->kw_names = names;
    }
    const qn_jstr *name = qn_jp_str(p, key->p, key->n);
    for (size_t i = 0; name && i < n; i++)
        if (a->kw_names[i]->n == name->n && memcmp(a->kw_names[i]->p, name->p, name->n) == 0)
            qn_jp_fail(p, "keyword argument repeated: %.*s", (int)name->n, name->p);
    a->kw_names[n] = name;
    qn_jp_add(p, &a->kw_values, qn_jp_expression(p, true));
}

qn_jargs *qn_jp_args(qn_jparser *p)
{
    if (!qn_jp_expect(p, QN_JT_LPAREN)) return NULL;
    qn_jargs *a = qn_arena_take(&p->t->arena, 1, sizeof *a);
    if (!a) {
        nomem(p);
        return NULL;
    }
    bool comma = false, ok = true;
    while (!p->rc && !qn_jp_is(p, QN_JT_RPAREN)) {
        if (comma && !qn_jp_expect(p, QN_JT_COMMA)) return NULL;
        if (comma && qn_jp_is(p, QN_JT_RPAREN)) break;
        if (qn_jp_skip(p, QN_JT_MUL)) {
            ok = ok && !a->star && !a->star_star;
            a->star = qn_jp_expression(p, true);
        } else if (qn_jp_skip(p, QN_JT_POW)) {
            ok = ok && !a->star_star;
            a->star_star = qn_jp_expression(p, true);
        } else if (qn_jp_is(p, QN_JT_NAME) && qn_jp_now(p)[1].type == QN_JT_ASSIGN) {
            ok = ok && !a->star_star;
            add_keyword(p, a);
        } else {
            ok = ok && !a->star && !a->star_star && a->kw_values.n == 0;
            qn_jp_add(p, &a->pos, qn_jp_expression(p, true));
        }
        if (!ok) {
            qn_jp_fail(p, "invalid order of arguments in a call");
            return NULL;
        }
        comma = true;
    }
    return qn_jp_expect(p, QN_JT_RPAREN) ? a : NULL;
}

static qn_jnode *parse_call(qn_jparser *p, qn_jnode *callee)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_CALL, qn_jp_now(p)->line);
    if (!n) return NULL;
    n->a = callee;
    n->args = qn_jp_args(p);
    return n->args ? n : NULL;
}

static qn_jnode *parse_postfix(qn_jparser *p, qn_jnode *n)
{
    while (!p->rc) {
        if (qn_jp_is(p, QN_JT_DOT) || qn_jp_is(p, QN_JT_LBRACKET)) n = parse_subscript(p, n);
        else if (qn_jp_is(p, QN_JT_LPAREN)) n = parse_call(p, n);
        else return n;
    }
    return NULL;
}

/* A filter's or test's name, which may have dots. */
static const qn_jstr *dotted_name(qn_jparser *p)
{
    const qn_jtok *k = qn_jp_expect(p, QN_JT_NAME);
    if (!k) return NULL;
    if (!qn_jp_is(p, QN_JT_DOT)) return qn_jp_str(p, k->p, k->n);
    qn_jp_fail(p, "no filter or test named '%.*s.…'", k->n > 60 ? 60 : (int)k->n, k->p);
    return NULL;
}

qn_jnode *qn_jp_filter(qn_jparser *p, qn_jnode *n, bool start_inline)
{
    while (!p->rc && (qn_jp_is(p, QN_JT_PIPE) || start_inline)) {
        if (!start_inline) p->at++;
        uint32_t line = qn_jp_now(p)->line;
        const qn_jstr *name = dotted_name(p);
        qn_jnode *f = qn_jp_node(p, QN_JN_FILTER, line);
        if (!f) return NULL;
        f->name = name;
        f->a = n;
        f->fn = qn_jfilter_find(name->p, name->n);
        if (qn_jp_is(p, QN_JT_LPAREN)) f->args = qn_jp_args(p);
        n = f;
        start_inline = false;
    }
    return p->rc ? NULL : n;
}

static qn_jnode *parse_test(qn_jparser *p, qn_jnode *of)
{
    uint32_t line = qn_jp_now(p)->line;
    p->at++;
    bool negated = qn_jp_skip_name(p, "not");
    const qn_jstr *name = dotted_name(p);
    qn_jnode *n = qn_jp_node(p, QN_JN_TEST, line);
    if (!n) return NULL;
    n->name = name;
    n->a = of;
    n->fn = qn_jtest_find(name->p, name->n);
    qn_jtok_type t = qn_jp_now(p)->type;
    if (t == QN_JT_LPAREN) {
        n->args = qn_jp_args(p);
    } else if ((t == QN_JT_NAME || t == QN_JT_STRING || t == QN_JT_INTEGER || t == QN_JT_FLOAT ||
                t == QN_JT_LBRACKET || t == QN_JT_LBRACE) &&
               !qn_jp_is_name(p, "else") && !qn_jp_is_name(p, "or") && !qn_jp_is_name(p, "and")) {
        if (qn_jp_is_name(p, "is")) return qn_jp_fail(p, "tests cannot be chained with 'is'");
        n->args = qn_arena_take(&p->t->arena, 1, sizeof *n->args);
        if (!n->args) return nomem(p);
        qn_jp_add(p, &n->args->pos, parse_postfix(p, qn_jp_primary(p, false)));
    }
    if (!negated) return n;
    qn_jnode *not = qn_jp_node(p, QN_JN_NOT, line);
    if (not) not->a = n;
    return not;
}

static qn_jnode *parse_filter_expr(qn_jparser *p, qn_jnode *n)
{
    while (!p->rc) {
        if (qn_jp_is(p, QN_JT_PIPE)) n = qn_jp_filter(p, n, false);
        else if (qn_jp_is_name(p, "is")) n = parse_test(p, n);
        else if (qn_jp_is(p, QN_JT_LPAREN)) n = parse_call(p, n);
        else return n;
    }
    return NULL;
}

static qn_jnode *parse_unary(qn_jparser *p, bool with_filter)
{
    if (!qn_jp_enter(p)) return NULL;
    uint32_t line = qn_jp_now(p)->line;
    qn_jnode *n;
    bool minus = qn_jp_is(p, QN_JT_SUB);
    if (minus || qn_jp_is(p, QN_JT_ADD)) {
        p->at++;
        qn_jnode *of = parse_unary(p, false);
        n = qn_jp_node(p, minus ? QN_JN_NEG : QN_JN_POS, line);
        if (n) n->a = of;
    } else {
        n = qn_jp_primary(p, false);
    }
    n = parse_postfix(p, n);
    if (with_filter) n = parse_filter_expr(p, n);
    p->depth--;
    return p->rc ? NULL : n;
}

static qn_jnode *parse_pow(qn_jparser *p)
{
    uint32_t line = qn_jp_now(p)->line;
    qn_jnode *n = parse_unary(p, true);
    while (qn_jp_skip(p, QN_JT_POW))
        n = binary(p, QN_JN_BINARY, QN_J_POW, n, parse_unary(p, true), line);
    return n;
}

static qn_jop product_op(const qn_jparser *p)
{
    switch (qn_jp_now(p)->type) {
    case QN_JT_MUL: return QN_J_MUL;
    case QN_JT_DIV: return QN_J_DIV;
    case QN_JT_FLOORDIV: return QN_J_FLOORDIV;
    case QN_JT_MOD: return QN_J_MOD;
    default: return QN_J_NOP;
    }
}

static qn_jnode *parse_product(qn_jparser *p)
{
    uint32_t line = qn_jp_now(p)->line;
    qn_jnode *n = parse_pow(p);
    for (qn_jop op; !p->rc && (op = product_op(p)) != QN_J_NOP;) {
        p->at++;
        n = binary(p, QN_JN_BINARY, op, n, parse_pow(p), line);
    }
    return n;
}

static qn_jnode *parse_concat(qn_jparser *p)
{
    uint32_t line = qn_jp_now(p)->line;
    qn_jnode *first = parse_product(p);
    if (p->rc || !qn_jp_is(p, QN_JT_TILDE)) return first;
    qn_jnode *n = qn_jp_node(p, QN_JN_CONCAT, line);
    if (!n) return NULL;
    qn_jp_add(p, &n->list, first);
    while (qn_jp_skip(p, QN_JT_TILDE)) qn_jp_add(p, &n->list, parse_product(p));
    return n;
}

static qn_jnode *parse_sum(qn_jparser *p)
{
    uint32_t line = qn_jp_now(p)->line;
    qn_jnode *n = parse_concat(p);
    while (!p->rc && (qn_jp_is(p, QN_JT_ADD) || qn_jp_is(p, QN_JT_SUB))) {
        qn_jop op = qn_jp_is(p, QN_JT_ADD) ? QN_J_ADD : QN_J_SUB;
        p->at++;
        n = binary(p, QN_JN_BINARY, op, n, parse_concat(p), line);
    }
    return n;
}

/* The comparison operator here, skipped; QN_J_NOP if there is none. */
static qn_jop compare_op(qn_jparser *p)
{
    static const struct { qn_jtok_type t; qn_jop op; } table[] = {
        {QN_JT_EQ, QN_J_EQ}, {QN_JT_NE, QN_J_NE}, {QN_JT_LT, QN_J_LT},
        {QN_JT_LE, QN_J_LE}, {QN_JT_GT, QN_J_GT}, {QN_JT_GE, QN_J_GE},
    };
    if (p->rc) return QN_J_NOP;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (qn_jp_skip(p, table[i].t)) return table[i].op;
    if (qn_jp_skip_name(p, "in")) return QN_J_IN;
    if (qn_jp_is_name(p, "not") && tok_is(qn_jp_now(p) + 1, "in")) {
        p->at += 2;
        return QN_J_NOT_IN;
    }
    return QN_J_NOP;
}

static qn_jnode *parse_compare(qn_jparser *p)
{
    uint32_t line = qn_jp_now(p)->line;
    qn_jnode *first = parse_sum(p), *n = NULL;
    for (qn_jop op; (op = compare_op(p)) != QN_J_NOP;) {
        if (!n) {
            n = qn_jp_node(p, QN_JN_COMPARE, line);
            if (!n) return NULL;
            n->a = first;
        }
        size_t count = n->list.n;
        if ((count & (count - 1)) == 0) { /* grow at powers of two */
            qn_jop *ops = qn_arena_take(&p->t->arena, count ? count * 2 : 1, sizeof *ops);
            if (!ops) return nomem(p);
            if (count) memcpy(ops, n->ops, count * sizeof *ops);
            n->ops = ops;
        }
        n->ops[count] = op;
        qn_jp_add(p, &n->list, parse_sum(p));
    }
    return n ? n : first;
}

static qn_jnode *parse_not(qn_jparser *p)
{
    if (p->rc) return NULL;
    uint32_t line = qn_jp_now(p)->line;
    if (!qn_jp_is_name(p, "not")) return parse_compare(p);
    if (!qn_jp_enter(p)) return NULL;
    p->at++;
    qn_jnode *of = parse_not(p);
    p->depth--;
    qn_jnode *n = qn_jp_node(p, QN_JN_NOT, line);
    if (n) n->a = of;
    return n;
}

static qn_jnode *parse_and(qn_jparser *p)
{
    uint32_t line = qn_jp_now(p)->line;
    qn_jnode *n = parse_not(p);
    while (qn_jp_skip_name(p, "and")) n = binary(p, QN_JN_AND, QN_J_NOP, n, parse_not(p), line);
    return n;
}

static qn_jnode *parse_or(qn_jparser *p)
{
    uint32_t line = qn_jp_now(p)->line;
    qn_jnode *n = parse_and(p);
    while (qn_jp_skip_name(p, "or")) n = binary(p, QN_JN_OR, QN_J_NOP, n, parse_and(p), line);
    return n;
}

static qn_jnode *parse_cond(qn_jparser *p)
{
    uint32_t line = qn_jp_now(p)->line;
    qn_jnode *n = parse_or(p);
    while (qn_jp_skip_name(p, "if")) {
        qn_jnode *cond = qn_jp_node(p, QN_JN_COND, line);
        if (!cond) return NULL;
        cond->a = n;
        cond->b = parse_or(p);
        if (qn_jp_skip_name(p, "else")) cond->c = qn_jp_expression(p, true);
        n = cond;
    }
    return n;
}

qn_jnode *qn_jp_expression(qn_jparser *p, bool cond)
{
    if (!qn_jp_enter(p)) return NULL;
    qn_jnode *n = cond ? parse_cond(p) : parse_or(p);
    p->depth--;
    return p->rc ? NULL : n;
}

static bool tuple_end(const qn_jparser *p)
{
    return qn_jp_is(p, QN_JT_VAR_END) || qn_jp_is(p, QN_JT_BLOCK_END) || qn_jp_is(p, QN_JT_RPAREN);
}

qn_jnode *qn_jp_tuple(qn_jparser *p, qn_jtuple_rule rule)
{
    uint32_t line = qn_jp_now(p)->line;
    qn_jnodes items = {0};
    bool is_tuple = false;
    while (!p->rc) {
        if (items.n && !qn_jp_expect(p, QN_JT_COMMA)) return NULL;
        if (tuple_end(p)) break;
        qn_jp_add(p, &items,
                  rule.simple ? qn_jp_primary(p, rule.namespaces) : qn_jp_expression(p, rule.cond));
        if (p->rc || !qn_jp_is(p, QN_JT_COMMA)) break;
        is_tuple = true;
    }
    if (p->rc) return NULL;
    if (!is_tuple && items.n) return items.v[0];
    if (!is_tuple && !rule.parens)
        return qn_jp_fail(p, "expected an expression, got '%s'", qn_jtok_name(qn_jp_now(p)->type));
    qn_jnode *n = qn_jp_node(p, QN_JN_TUPLE, line);
    if (n) n->list = items;
    return n;
}
