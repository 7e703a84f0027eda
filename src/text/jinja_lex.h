/* jinja_lex.h - template source to tokens.
 *
 * The rules are those of jinja2 with trim_blocks and lstrip_blocks on.
 * Threads: any; the token array belongs to the caller.
 */
#ifndef QN_TEXT_JINJA_LEX_H
#define QN_TEXT_JINJA_LEX_H

#include "text/jinja_ast.h"

typedef enum qn_jtok_type {
    QN_JT_EOF,
    QN_JT_DATA,
    QN_JT_BLOCK_BEGIN,
    QN_JT_BLOCK_END,
    QN_JT_VAR_BEGIN,
    QN_JT_VAR_END,
    QN_JT_NAME,
    QN_JT_STRING,
    QN_JT_INTEGER,
    QN_JT_FLOAT,
    QN_JT_ADD,
    QN_JT_SUB,
    QN_JT_DIV,
    QN_JT_FLOORDIV,
    QN_JT_MUL,
    QN_JT_MOD,
    QN_JT_POW,
    QN_JT_TILDE,
    QN_JT_LBRACKET,
    QN_JT_RBRACKET,
    QN_JT_LPAREN,
    QN_JT_RPAREN,
    QN_JT_LBRACE,
    QN_JT_RBRACE,
    QN_JT_EQ,
    QN_JT_NE,
    QN_JT_GT,
    QN_JT_GE,
    QN_JT_LT,
    QN_JT_LE,
    QN_JT_ASSIGN,
    QN_JT_DOT,
    QN_JT_COLON,
    QN_JT_PIPE,
    QN_JT_COMMA,
    QN_JT_SEMICOLON
} qn_jtok_type;

typedef struct qn_jtok {
    qn_jtok_type type;
    uint32_t line;
    const char *p; /* text of names, strings (unescaped) and data */
    size_t n;
    int64_t i;
    double f;
} qn_jtok;

/* Tokens of t->source, ended by QN_JT_EOF. The array comes from malloc and the caller frees it;
 * texts live in t->arena. Errors: QN_INVALID with line and text, QN_NOMEM. */
qn_code qn_jlex(qn_jtree *t, qn_jtok **out, size_t *count, qn_err *err);

/* Text of a token for messages (no failure). */
const char *qn_jtok_name(qn_jtok_type type);

#endif
