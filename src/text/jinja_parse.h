/* jinja_parse.h - what the two halves of the parser share.
 *
 * Every function returns NULL (or false) once p->rc is set; callers may go on and check at the end.
 * Threads: one parser, one thread.
 */
#ifndef QN_TEXT_JINJA_PARSE_H
#define QN_TEXT_JINJA_PARSE_H

#include <stdarg.h>
#include <stdio.h>

#include "text/jinja_lex.h"

typedef struct qn_jparser {
    qn_jtree *t;
    qn_err *err;
    const qn_jtok *tok; /* ends with QN_JT_EOF */
    size_t at;
    int depth;
    int loops; /* loops around this statement that break and continue may leave */
    qn_jnodes blocks; /* named blocks so far */
    qn_code rc;
} qn_jparser;

/* How a comma list is read. */
typedef struct qn_jtuple_rule {
    bool simple;          /* names and literals only */
    bool cond;            /* `a if b else c` is allowed */
    bool parens;          /* inside parentheses: may be empty */
    bool namespaces;      /* ns.attr is allowed (assignment) */
} qn_jtuple_rule;

/* The token here (no failure). */
static inline const qn_jtok *qn_jp_now(const qn_jparser *p) { return &p->tok[p->at]; }

/* Record a syntax error at the token here. Errors: this is one; returns NULL. */
__attribute__((format(printf, 2, 3)))
qn_jnode *qn_jp_fail(qn_jparser *p, const char *fmt, ...);

/* Tree memory: a node; append to a list; a string over borrowed bytes [n]. Errors: QN_NOMEM in
 * p->rc. */
qn_jnode *qn_jp_node(qn_jparser *p, qn_jkind kind, uint32_t line);
void qn_jp_add(qn_jparser *p, qn_jnodes *l, qn_jnode *n);
const qn_jstr *qn_jp_str(qn_jparser *p, const char *text, size_t n);

/* Look at or take the token here (no failure); expect: Errors: another token. */
bool qn_jp_is(const qn_jparser *p, qn_jtok_type type);
bool qn_jp_is_name(const qn_jparser *p, const char *name);
bool qn_jp_skip(qn_jparser *p, qn_jtok_type type);
bool qn_jp_skip_name(qn_jparser *p, const char *name);
const qn_jtok *qn_jp_expect(qn_jparser *p, qn_jtok_type type);

/* One nesting level more; pair with p->depth--. Errors: too deep. */
bool qn_jp_enter(qn_jparser *p);

/* Expressions. Errors: syntax. */
qn_jnode *qn_jp_expression(qn_jparser *p, bool cond);
qn_jnode *qn_jp_tuple(qn_jparser *p, qn_jtuple_rule rule);
qn_jnode *qn_jp_primary(qn_jparser *p, bool with_namespace);
qn_jargs *qn_jp_args(qn_jparser *p);
/* Filters behind `n`; start_inline: the first one has no bar. Errors: syntax. */
qn_jnode *qn_jp_filter(qn_jparser *p, qn_jnode *n, bool start_inline);

#endif
