/* jinja_run.h - one render in progress: memory, limits, errors, and how built-ins are called.
 *
 * Threads: a qn_jrun belongs to one thread. The tables of filters, tests and methods are constant.
 */
#ifndef QN_TEXT_JINJA_RUN_H
#define QN_TEXT_JINJA_RUN_H

#include <time.h>

#include "core/err.h"
#include "text/jinja_ast.h"
#include "text/jinja_value.h"

enum {
    QN_J_MAX_DEPTH = 1200,          /* nested evaluations and macro calls */
    QN_J_MAX_RANGE = 100000,        /* items of a range(), as in jinja2's sandbox */
    QN_J_MAX_STEPS = 50 * 1000000,  /* evaluated nodes and walked items, unless set otherwise */
};
#define QN_J_MAX_OUTPUT ((size_t)64 << 20) /* bytes of text in all buffers */
#define QN_J_MAX_MEMORY ((size_t)256 << 20)   /* bytes of values, unless set otherwise */

/* The variables of one activation of a scope. */
typedef struct qn_jframe qn_jframe;
struct qn_jframe {
    qn_jframe *parent;
    const qn_jscope *scope;
    qn_jval slots[];
};

/* Room behind the last joined text or list. */
typedef struct qn_jtail {
    void *end, *limit;
} qn_jtail;

struct qn_jrun {
    qn_arena arena;
    qn_jtail text_tail, list_tail;
    const qn_jtree *tree;
    qn_err *err;
    bool failed;
    uint32_t line;   /* of the node in evaluation, 1-based */
    int depth;       /* nested evaluations */
    int64_t steps;   /* nodes and items so far */
    int64_t max_steps;
    size_t max_memory; /* bytes of values */
    size_t put;      /* bytes of text so far */
    qn_buf *out;     /* where output goes now */
    qn_jframe *root;
    qn_jdict *vars;  /* the caller's variables */
    qn_jdict *context; /* what the template set at its top level */
    int64_t (*clock)(void *arg); /* seconds since 1970 */
    void *clock_arg;
    const char *raised; /* the text of raise_exception, NULL before */
};

/* A macro: its node and the frame it was defined in. */
struct qn_jmacro {
    const qn_jnode *node;
    qn_jframe *frame;
};

typedef struct qn_jkw {
    const qn_jstr *name;
    qn_jval value;
} qn_jkw;

enum { QN_J_MAX_PARAMS = 6 };

/* The arguments of a call: as written, and bound to the parameters of the callee (missing ones have
 * type QN_J_MISSING). */
typedef struct qn_jcall {
    qn_jval *pos;
    size_t n_pos;
    qn_jkw *kw;
    size_t n_kw;
    qn_jval a[QN_J_MAX_PARAMS];
} qn_jcall;

/* A built-in function, filter, test or method. */
struct qn_jfn {
    const char *name;
    qn_jval (*call)(qn_jrun *run, qn_jval self, qn_jcall *c);
    const char *params; /* space separated names; NULL: the function reads pos and kw itself */
    uint8_t required;   /* how many of them must be given */
    bool positional;    /* names may not be used as keywords */
};

/* Record an error with the line and return undefined. The first one wins. Errors: this is one. */
__attribute__((format(printf, 2, 3)))
qn_jval qn_jfail(qn_jrun *run, const char *fmt, ...);
/* Record the error of using an undefined value (no failure otherwise). */
qn_jval qn_jfail_undef(qn_jrun *run, qn_jval v);
/* Count work. Errors: the step limit: recorded, false. */
bool qn_jstep(qn_jrun *run, int64_t n);
/* Go one level deeper; pair with run->depth--. Errors: the depth limit: recorded, false. */
bool qn_jenter(qn_jrun *run);
/* Append text to the output. Errors: the output limit, memory: recorded. */
void qn_jwrite(qn_jrun *run, const char *p, size_t n);
/* Check the buffer against the output limit and memory. Errors: recorded, false. */
bool qn_jbuf_ok(qn_jrun *run, const qn_buf *b);

/* Call a built-in: bind the arguments, then run it. Errors: wrong arguments, those of the callee.
 */
qn_jval qn_jfn_call(qn_jrun *run, const qn_jfn *fn, qn_jval self, qn_jcall *c);
/* Call any value. Errors: not callable, those of the callee. */
qn_jval qn_jcall_value(qn_jrun *run, qn_jval callee, qn_jcall *c);
/* Call a macro / render a recursive loop again. Errors: wrong arguments, those of the body. */
qn_jval qn_jmacro_call(qn_jrun *run, qn_jmacro *m, qn_jcall *c);
qn_jval qn_jloop_recurse(qn_jrun *run, qn_jloop *loop, qn_jval items);
/* The value of loop.NAME; undefined if there is no such attribute. Errors: those of its iterator.
 */
qn_jval qn_jloop_attr(qn_jrun *run, qn_jval loop, const char *name, size_t n);

/* Look up built-ins by name of n bytes [n]; NULL if there is none (no failure). */
const qn_jfn *qn_jfilter_find(const char *name, size_t n);
const qn_jfn *qn_jtest_find(const char *name, size_t n);
const qn_jfn *qn_jglobal_find(const char *name, size_t n);
/* A method of a value as a bound method, or another built-in attribute; QN_J_MISSING if the type
 * has none of that name. Errors: memory. */
qn_jval qn_jattr_builtin(qn_jrun *run, qn_jval v, const char *name, size_t n);
/* `v.name` and `v[key]` with the sandbox's rules. Errors: attribute of undefined. */
qn_jval qn_jget_attr(qn_jrun *run, qn_jval v, const qn_jstr *name);
qn_jval qn_jget_item(qn_jrun *run, qn_jval v, qn_jval key);
/* v[lo:hi:step]; QN_J_NONE stands for an absent bound. Errors: not a sequence, step 0. */
qn_jval qn_jslice(qn_jrun *run, qn_jval v, qn_jval lo, qn_jval hi, qn_jval step);

/* Arithmetic. Errors: wrong types, overflow of 64 bits, division by zero. */
qn_jval qn_jadd(qn_jrun *run, qn_jval a, qn_jval b);
qn_jval qn_jbinary(qn_jrun *run, qn_jop op, qn_jval a, qn_jval b);
qn_jval qn_jnegate(qn_jrun *run, qn_jval v);

/* Evaluate an expression in a frame. Errors: recorded in run. */
qn_jval qn_jeval(qn_jrun *run, qn_jframe *f, const qn_jnode *n);
/* Apply a filter node (n->a NULL: to `subject`). Errors: recorded in run. */
qn_jval qn_jeval_filter(qn_jrun *run, qn_jframe *f, const qn_jnode *n, qn_jval subject);
/* Evaluate call arguments into c. Errors: recorded, false. */
bool qn_jeval_args(qn_jrun *run, qn_jframe *f, const qn_jargs *args, qn_jcall *c);
/* Open a scope: a frame with its loads done. Errors: memory: NULL. */
qn_jframe *qn_jframe_new(qn_jrun *run, const qn_jscope *scope, qn_jframe *parent);
/* Run the whole template into run->out. Errors: recorded in run. */
void qn_jexec_template(qn_jrun *run);

/* JSON text with the options of transformers' tojson. Errors: values JSON has no form for. */
qn_jval qn_jfilter_tojson(qn_jrun *run, qn_jval self, qn_jcall *c);
/* `format % value` and format.format(...). Errors: those Python raises. */
qn_jval qn_jformat_percent(qn_jrun *run, qn_jval format, qn_jval value);
qn_jval qn_jformat_braces(qn_jrun *run, qn_jval format, qn_jcall *c);
/* format(value, spec). Errors: those Python raises. */
qn_jval qn_jformat_spec(qn_jrun *run, qn_jval value, const char *spec, size_t n);
/* HTML-escape str(v); safe strings are returned as they are. Errors: memory. */
qn_jval qn_jescape(qn_jrun *run, qn_jval v);
/* Convert as Python's int() and float() do for strings [n]; false if the text is no number. */
bool qn_jparse_int(const char *p, size_t n, int base, int64_t *out, bool *overflow);
bool qn_jparse_float(const char *p, size_t n, double *out);

#endif
