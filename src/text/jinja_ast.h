/* jinja_ast.h - a compiled template: its tree, its scopes, and the steps that make it.
 *
 * qn_jtree owns everything in one arena. After qn_jparse and qn_jresolve it is read-only and may be
 * rendered by many threads at once.
 */
#ifndef QN_TEXT_JINJA_AST_H
#define QN_TEXT_JINJA_AST_H

#include "core/err.h"
#include "text/jinja_value.h"

enum {
    QN_J_MAX_NEST = 150,        /* nested expressions and blocks in the source */
    QN_J_MAX_SOURCE = 2 << 20,  /* bytes of a template */
    QN_J_MAX_NAMES = 2000,      /* variables of one scope, keywords of one call, blocks */
};

typedef enum qn_jop {
    QN_J_ADD, QN_J_SUB, QN_J_MUL, QN_J_DIV, QN_J_FLOORDIV, QN_J_MOD, QN_J_POW,
    QN_J_EQ, QN_J_NE, QN_J_LT, QN_J_LE, QN_J_GT, QN_J_GE, QN_J_IN, QN_J_NOT_IN,
    QN_J_NOP
} qn_jop;

typedef enum qn_jkind {
    /* expressions */
    QN_JN_CONST,   /* value */
    QN_JN_NAME,    /* name; hops, slot */
    QN_JN_NSREF,   /* name; hops, slot: the namespace; attr */
    QN_JN_TUPLE,   /* list */
    QN_JN_LIST,    /* list */
    QN_JN_DICT,    /* list: key, value, key, value */
    QN_JN_ATTR,    /* a.attr */
    QN_JN_ITEM,    /* a[b] */
    QN_JN_SLICE,   /* list of 3, NULL where absent; only as b of an item or inside a tuple */
    QN_JN_CALL,    /* a(args) */
    QN_JN_FILTER,  /* a | fn(args); a NULL: the captured block */
    QN_JN_TEST,    /* a is fn(args) */
    QN_JN_BINARY,  /* a op b */
    QN_JN_COMPARE, /* a op list[0] op list[1] ...; ops */
    QN_JN_CONCAT,  /* list */
    QN_JN_AND,
    QN_JN_OR, /* a, b */
    QN_JN_NOT,
    QN_JN_NEG,
    QN_JN_POS,  /* a */
    QN_JN_COND, /* a if b else c; c NULL: undefined */
    /* statements */
    QN_JN_TEXT,  /* value */
    QN_JN_PRINT, /* list */
    QN_JN_IF,    /* a: test; body; orelse */
    QN_JN_FOR, /* a: target, b: iterable, c: test; body; orelse; scope, scope2 (else), scope3 (test)
                */
    QN_JN_SET, /* a: target, b: value */
    QN_JN_SETBLOCK,    /* a: target, b: filter or NULL; body; scope */
    QN_JN_MACRO,       /* name; list: parameters, defaults; body; scope */
    QN_JN_CALLBLOCK,   /* a: call; otherwise as a macro */
    QN_JN_FILTERBLOCK, /* b: filter; body; scope */
    QN_JN_WITH,        /* list: targets, list2: values; body; scope */
    QN_JN_BLOCK,       /* body; scope */
    QN_JN_GENERATION,  /* body; scope */
    QN_JN_BREAK,
    QN_JN_CONTINUE,
    QN_JN_LOAD /* include and its kin: an error when it is reached */
} qn_jkind;

typedef struct qn_jnode qn_jnode;

typedef struct qn_jnodes {
    qn_jnode **v;
    size_t n, cap;
} qn_jnodes;

typedef struct qn_jargs {
    qn_jnodes pos;
    qn_jnodes kw_values;
    const qn_jstr **kw_names; /* [kw_values.n] */
    qn_jnode *star, *star_star;
} qn_jargs;

/* What a scope does with a variable when it opens. */
typedef enum qn_jload {
    QN_JL_NONE,      /* not known here */
    QN_JL_PARAMETER, /* filled by the owner: loop target, macro parameter */
    QN_JL_RESOLVE,   /* taken from the template's variables */
    QN_JL_ALIAS,     /* copied from the enclosing scope that has it */
    QN_JL_UNDEFINED  /* starts without a value */
} qn_jload;

typedef struct qn_jsymbol {
    const qn_jstr *name;
    qn_jload load;
    bool stored;
    uint32_t hops, slot; /* QN_JL_ALIAS: where the outer variable is, seen from the parent scope */
} qn_jsymbol;

typedef struct qn_jscope {
    struct qn_jscope *parent;
    qn_jsymbol *sym; /* slot i holds sym[i] */
    size_t n, cap;
    int loop_slot; /* slot of `loop`, -1 if the body does not use it */
    int caller_slot, kwargs_slot, varargs_slot;   /* macros; -1 if not used */
    bool explicit_caller;                         /* `caller` is a declared parameter */
    bool toplevel;                                /* assignments here are exported to macros */
} qn_jscope;

struct qn_jnode {
    qn_jkind kind;
    uint32_t line;
    qn_jop op;
    bool toplevel;  /* a statement of the template's top level */
    bool recursive; /* QN_JN_FOR */
    uint32_t hops, slot;
    const qn_jstr *name, *attr;
    const qn_jfn *fn; /* filters and tests; NULL: unknown, an error when it is reached */
    qn_jnode *a, *b, *c;
    qn_jnodes list, list2, body, orelse;
    qn_jop *ops;
    qn_jargs *args;
    qn_jval value;
    qn_jscope *scope, *scope2, *scope3;
};

typedef struct qn_jtree {
    qn_arena arena;
    char *name;      /* for messages */
    char *source;    /* with normalised line ends */
    size_t size;
    qn_jnodes body;
    qn_jnodes literals; /* every text and string constant */
    qn_jscope *scope;
} qn_jtree;

/* Find the text of a line, 1-based, without its end (no failure). */
void qn_jtree_line(const qn_jtree *t, uint32_t line, const char **p, size_t *n);

/* Record a compile error with the line and its text. Errors: this is one; QN_INVALID. */
__attribute__((format(printf, 4, 5)))
qn_code qn_jtree_error(const qn_jtree *t, uint32_t line, qn_err *err, const char *fmt, ...);

/* The code of a failed allocation of the tree: QN_LIMIT if it is too large. Errors: QN_NOMEM else.
 */
qn_code qn_jtree_nomem(const qn_jtree *t, qn_err *err);

/* Parse t->source into t->body. Errors: QN_INVALID (syntax, unknown filter or test), QN_LIMIT,
 * QN_NOMEM. */
qn_code qn_jparse(qn_jtree *t, qn_err *err);

/* Give every name its scope and slot, as jinja2's compiler does. Errors: QN_INVALID, QN_NOMEM. */
qn_code qn_jresolve(qn_jtree *t, qn_err *err);

/* Append a node to a list in the tree's arena. Errors: false without memory. */
bool qn_jnodes_add(qn_jtree *t, qn_jnodes *l, qn_jnode *n);

#endif
