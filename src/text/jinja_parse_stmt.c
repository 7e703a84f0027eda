/* jinja_parse_stmt.c - statements of the template language; expressions are in jinja_parse.c. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja_parse.h"

static void parse_body(qn_jparser *p, qn_jnodes *out, const char *const *ends);

/* The rest of a block statement's tag, then its body up to one of `ends` (NULL terminated), whose
 * name token is then the current one. */
static void parse_statements(qn_jparser *p, qn_jnodes *out, const char *const *ends)
{
    qn_jp_skip(p, QN_JT_COLON);
    if (!qn_jp_expect(p, QN_JT_BLOCK_END)) return;
    if (!qn_jp_enter(p)) return;
    parse_body(p, out, ends);
    p->depth--;
    if (!p->rc && qn_jp_is(p, QN_JT_EOF))
        qn_jp_fail(p, "unexpected end of template, '%s' is missing", ends[0]);
}

/* The same with one end, which is skipped. */
static void parse_until(qn_jparser *p, qn_jnodes *out, const char *end)
{
    parse_statements(p, out, (const char *const[]){end, NULL});
    if (!p->rc) p->at++;
}

static bool assignable(qn_jparser *p, const qn_jnode *n)
{
    if (!n) return false;
    if (n->kind == QN_JN_NAME || n->kind == QN_JN_NSREF) return true;
    if (n->kind == QN_JN_TUPLE) {
        for (size_t i = 0; i < n->list.n; i++)
            if (!assignable(p, n->list.v[i])) return false;
        return true;
    }
    qn_jp_fail(p, "cannot assign to this expression");
    return false;
}

static qn_jnode *parse_target(qn_jparser *p, bool namespaces)
{
    qn_jnode *n = qn_jp_tuple(p, (qn_jtuple_rule){.simple = true, .namespaces = namespaces});
    return assignable(p, n) ? n : NULL;
}

static qn_jnode *parse_target_name(qn_jparser *p)
{
    const qn_jtok *k = qn_jp_expect(p, QN_JT_NAME);
    qn_jnode *n = k ? qn_jp_node(p, QN_JN_NAME, k->line) : NULL;
    if (!n) return NULL;
    n->name = qn_jp_str(p, k->p, k->n);
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; n->name && i < sizeof constants / sizeof *constants; i++)
        if (qn_jstr_is(n->name, constants[i]))
            return qn_jp_fail(p, "cannot assign to '%s'", constants[i]);
    return n;
}

static qn_jnode *parse_set(qn_jparser *p, uint32_t line)
{
    qn_jnode *target = parse_target(p, true);
    qn_jnode *n = qn_jp_node(p, QN_JN_SET, line);
    if (!n) return NULL;
    n->a = target;
    if (qn_jp_skip(p, QN_JT_ASSIGN)) {
        n->b = qn_jp_tuple(p, (qn_jtuple_rule){.cond = true});
        return n;
    }
    n->kind = QN_JN_SETBLOCK;
    n->b = qn_jp_filter(p, NULL, false);
    parse_until(p, &n->body, "endset");
    return n;
}

static qn_jnode *parse_for(qn_jparser *p, uint32_t line)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_FOR, line);
    if (!n) return NULL;
    n->a = parse_target(p, false);
    if (p->rc) return NULL;
    if (!qn_jp_skip_name(p, "in")) return qn_jp_fail(p, "expected 'in'");
    n->b = qn_jp_tuple(p, (qn_jtuple_rule){.cond = false});
    if (qn_jp_skip_name(p, "if")) n->c = qn_jp_expression(p, true);
    n->recursive = qn_jp_skip_name(p, "recursive");
    p->loops++;
    parse_statements(p, &n->body, (const char *const[]){"endfor", "else", NULL});
    p->loops--;
    if (p->rc) return NULL;
    if (qn_jp_skip_name(p, "endfor")) return n;
    p->at++;
    parse_until(p, &n->orelse, "endfor");
    return n;
}

static qn_jnode *parse_if(qn_jparser *p, uint32_t line)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    qn_jnode *first = qn_jp_node(p, QN_JN_IF, line), *n = first;
    while (n) {
        n->a = qn_jp_tuple(p, (qn_jtuple_rule){.cond = false});
        parse_statements(p, &n->body, ends);
        if (p->rc) return NULL;
        if (qn_jp_skip_name(p, "elif")) {
            qn_jnode *next = qn_jp_node(p, QN_JN_IF, qn_jp_now(p)->line);
            qn_jp_add(p, &n->orelse, next);
            n = next;
            continue;
        }
        if (qn_jp_skip_name(p, "else")) parse_until(p, &n->orelse, "endif");
        else p->at++;
        break;
    }
    return p->rc ? NULL : first;
}

/* (a, b=1): names to n->list, their defaults (NULL: none) to n->list2. */
static void parse_signature(qn_jparser *p, qn_jnode *n)
{
    if (!qn_jp_expect(p, QN_JT_LPAREN)) return;
    bool defaults = false;
    while (!p->rc && !qn_jp_is(p, QN_JT_RPAREN)) {
        if (n->list.n && !qn_jp_expect(p, QN_JT_COMMA)) return;
        qn_jnode *name = parse_target_name(p);
        for (size_t i = 0; name && name->name && i < n->list.n; i++)
            if (n->list.v[i]->name->n == name->name->n &&
                memcmp(n->list.v[i]->name->p, name->name->p, name->name->n) == 0)
                qn_jp_fail(p, "duplicate parameter '%.*s'", (int)name->name->n, name->name->p);
        if (n->list.n == QN_J_MAX_NAMES) qn_jp_fail(p, "more than %d parameters", QN_J_MAX_NAMES);
        qn_jp_add(p, &n->list, name);
        qn_jnode *value = NULL;
        if (qn_jp_skip(p, QN_JT_ASSIGN)) {
            defaults = true;
            value = qn_jp_expression(p, true);
        } else if (defaults) {
            qn_jp_fail(p, "a parameter without default follows one with default");
        }
        qn_jp_add(p, &n->list2, value);
    }
    qn_jp_expect(p, QN_JT_RPAREN);
}

/* A body that is a function of its own: loops around it cannot be left from inside. */
static void parse_function_body(qn_jparser *p, qn_jnode *n, const char *end)
{
    int loops = p->loops;
    p->loops = 0;
    parse_until(p, &n->body, end);
    p->loops = loops;
}

static qn_jnode *parse_macro(qn_jparser *p, uint32_t line)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_MACRO, line), *name = parse_target_name(p);
    if (!n || !name) return NULL;
    n->name = name->name;
    parse_signature(p, n);
    parse_function_body(p, n, "endmacro");
    return n;
}

static qn_jnode *parse_callblock(qn_jparser *p, uint32_t line)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_CALLBLOCK, line);
    if (!n) return NULL;
    if (qn_jp_is(p, QN_JT_LPAREN)) parse_signature(p, n);
    n->a = qn_jp_expression(p, true);
    if (n->a && n->a->kind != QN_JN_CALL) return qn_jp_fail(p, "expected a call behind 'call'");
    n->name = qn_jp_str(p, "caller", 6);
    parse_function_body(p, n, "endcall");
    return n;
}

static qn_jnode *parse_filterblock(qn_jparser *p, uint32_t line)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_FILTERBLOCK, line);
    if (!n) return NULL;
    n->b = qn_jp_filter(p, NULL, true);
    parse_until(p, &n->body, "endfilter");
    return n;
}

static qn_jnode *parse_with(qn_jparser *p, uint32_t line)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_WITH, line);
    if (!n) return NULL;
    while (!p->rc && !qn_jp_is(p, QN_JT_BLOCK_END)) {
        if (n->list.n && !qn_jp_expect(p, QN_JT_COMMA)) return NULL;
        qn_jp_add(p, &n->list, parse_target(p, false));
        if (!qn_jp_expect(p, QN_JT_ASSIGN)) return NULL;
        qn_jp_add(p, &n->list2, qn_jp_expression(p, true));
    }
    parse_until(p, &n->body, "endwith");
    return n;
}

static qn_jnode *parse_block(qn_jparser *p, uint32_t line)
{
    const qn_jtok *name = qn_jp_expect(p, QN_JT_NAME);
    qn_jnode *n = qn_jp_node(p, QN_JN_BLOCK, line);
    if (!n) return NULL;
    n->name = qn_jp_str(p, name->p, name->n);
    for (size_t i = 0; n->name && i < p->blocks.n; i++)
        if (p->blocks.v[i]->name->n == name->n &&
            memcmp(p->blocks.v[i]->name->p, name->p, name->n) == 0)
            return qn_jp_fail(p, "block '%.*s' is defined twice", name->n > 60 ? 60 : (int)name->n,
                              name->p);
    if (p->blocks.n == QN_J_MAX_NAMES) return qn_jp_fail(p, "more than %d blocks", QN_J_MAX_NAMES);
    qn_jp_add(p, &p->blocks, n);
    if (qn_jp_skip_name(p, "scoped") || qn_jp_skip_name(p, "required"))
        return qn_jp_fail(p, "not supported yet: scoped and required blocks");
    parse_function_body(p, n, "endblock");
    if (!p->rc && qn_jp_is(p, QN_JT_NAME) && qn_jp_now(p)->n == name->n &&
        memcmp(qn_jp_now(p)->p, name->p, name->n) == 0)
        p->at++;
    return n;
}

static qn_jnode *parse_print(qn_jparser *p, uint32_t line)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_PRINT, line);
    while (n && !p->rc && !qn_jp_is(p, QN_JT_BLOCK_END)) {
        if (n->list.n && !qn_jp_expect(p, QN_JT_COMMA)) return NULL;
        qn_jp_add(p, &n->list, qn_jp_expression(p, true));
    }
    return n;
}

static qn_jnode *parse_generation(qn_jparser *p, uint32_t line)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_GENERATION, line);
    if (n) parse_function_body(p, n, "endgeneration");
    return n;
}

static qn_jnode *parse_jump(qn_jparser *p, uint32_t line, qn_jkind kind)
{
    if (p->loops == 0)
        return qn_jp_fail(p, "'%s' outside of a loop", kind == QN_JN_BREAK ? "break" : "continue");
    return qn_jp_node(p, kind, line);
}

static qn_jnode *parse_break(qn_jparser *p, uint32_t line)
{
    return parse_jump(p, line, QN_JN_BREAK);
}
static qn_jnode *parse_continue(qn_jparser *p, uint32_t line)
{
    return parse_jump(p, line, QN_JN_CONTINUE);
}

/* include, import, from, extends: there is nothing to load from, which jinja2 notices when it gets
 * there. */
static qn_jnode *parse_load(qn_jparser *p, uint32_t line)
{
    while (!p->rc && !qn_jp_is(p, QN_JT_BLOCK_END) && !qn_jp_is(p, QN_JT_EOF)) p->at++;
    return qn_jp_node(p, QN_JN_LOAD, line);
}

static qn_jnode *parse_autoescape(qn_jparser *p, uint32_t line)
{
    (void)line;
    return qn_jp_fail(p, "not supported yet: autoescape blocks");
}

static qn_jnode *parse_statement(qn_jparser *p)
{
    static const struct {
        const char *name;
        qn_jnode *(*parse)(qn_jparser *, uint32_t);
    } table[] = {
        {"if", parse_if}, {"set", parse_set}, {"for", parse_for}, {"macro", parse_macro},
        {"call", parse_callblock}, {"filter", parse_filterblock}, {"with", parse_with},
        {"block", parse_block}, {"print", parse_print}, {"generation", parse_generation},
        {"break", parse_break}, {"continue", parse_continue}, {"autoescape", parse_autoescape},
        {"include", parse_load}, {"import", parse_load}, {"from", parse_load},
        {"extends", parse_load},
    };
    const qn_jtok *k = qn_jp_now(p);
    if (k->type != QN_JT_NAME) return qn_jp_fail(p, "expected the name of a tag");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!qn_jp_is_name(p, table[i].name)) continue;
        p->at++;
        return table[i].parse(p, k->line);
    }
    return qn_jp_fail(p, "unknown tag '%.*s'", k->n > 60 ? 60 : (int)k->n, k->p);
}

static void add_text(qn_jparser *p, qn_jnodes *out)
{
    const qn_jtok *k = qn_jp_now(p);
    qn_jnode *n = qn_jp_node(p, QN_JN_TEXT, k->line);
    if (n) n->value = (qn_jval){.type = QN_J_STR, .s = qn_jp_str(p, k->p, k->n)};
    p->at++;
    qn_jp_add(p, out, n);
    qn_jp_add(p, &p->t->literals, n);
}

static void add_print(qn_jparser *p, qn_jnodes *out)
{
    qn_jnode *n = qn_jp_node(p, QN_JN_PRINT, qn_jp_now(p)->line);
    p->at++;
    if (n) qn_jp_add(p, &n->list, qn_jp_tuple(p, (qn_jtuple_rule){.cond = true}));
    qn_jp_expect(p, QN_JT_VAR_END);
    qn_jp_add(p, out, n);
}

static void parse_body(qn_jparser *p, qn_jnodes *out, const char *const *ends)
{
    while (!p->rc && !qn_jp_is(p, QN_JT_EOF)) {
        if (qn_jp_is(p, QN_JT_DATA)) {
            add_text(p, out);
        } else if (qn_jp_is(p, QN_JT_VAR_BEGIN)) {
            add_print(p, out);
        } else {
            if (!qn_jp_expect(p, QN_JT_BLOCK_BEGIN)) return;
            for (size_t i = 0; ends && ends[i]; i++)
                if (qn_jp_is_name(p, ends[i])) return;
            qn_jp_add(p, out, parse_statement(p));
            qn_jp_expect(p, QN_JT_BLOCK_END);
        }
    }
}

qn_code qn_jparse(qn_jtree *t, qn_err *err)
{
    qn_jtok *tok = NULL;
    size_t count = 0;
    qn_code rc = qn_jlex(t, &tok, &count, err);
    if (rc) return rc;
    qn_jparser p = {.t = t, .err = err, .tok = tok};
    parse_body(&p, &t->body, NULL);
    free(tok);
    return p.rc;
}
