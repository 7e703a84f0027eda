/* jinja_value.h - the values of the template language: what Python objects are to jinja2.
 *
 * A qn_jval is 16 bytes and passed by value. What it points at lives in the arena of the render
 * (or, for literals, in the arena of the compiled template) and is never changed after it was
 * built, except for namespaces, cyclers, joiners, loops and iterators. Strings may point into the
 * caller's JSON variables, which must outlive the render. Threads: values belong to one render,
 * hence to one thread. Literals are shared and read-only.
 *
 * Failure: functions that take a qn_jrun record the first error in it and return an undefined value
 * (or false); callers look at run->failed before they use a result.
 */
#ifndef QN_TEXT_JINJA_VALUE_H
#define QN_TEXT_JINJA_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/buf.h"

typedef struct qn_jrun qn_jrun;

typedef enum qn_jtype {
    QN_J_UNDEF = 0, /* lenient undefined; `hint` says what was missing */
    QN_J_MISSING,   /* a slot without a value; never visible to a template */
    QN_J_NONE,
    QN_J_BOOL,
    QN_J_INT,
    QN_J_FLOAT,
    QN_J_STR,
    QN_J_LIST,
    QN_J_TUPLE,
    QN_J_DICT,
    QN_J_VIEW, /* dict.keys(), values(), items() */
    QN_J_RANGE,
    QN_J_ITER, /* a generator: yields its items once */
    QN_J_MACRO,
    QN_J_NAMESPACE,
    QN_J_LOOP,
    QN_J_METHOD, /* a built-in method bound to a value */
    QN_J_FUNC,   /* a global function */
    QN_J_CYCLER,
    QN_J_JOINER
} qn_jtype;

typedef struct qn_jstr {
    const char *p;
    size_t n;   /* bytes */
    size_t cps; /* code points; 0 with n > 0: not counted yet */
} qn_jstr;

typedef struct qn_jlist qn_jlist;
typedef struct qn_jdict qn_jdict;
typedef struct qn_jview qn_jview;
typedef struct qn_jrange qn_jrange;
typedef struct qn_jiter qn_jiter;
typedef struct qn_jmacro qn_jmacro;
typedef struct qn_jloop qn_jloop;
typedef struct qn_jmethod qn_jmethod;
typedef struct qn_jcycler qn_jcycler;
typedef struct qn_jjoiner qn_jjoiner;
typedef struct qn_jfn qn_jfn;

typedef struct qn_jval {
    uint8_t type; /* qn_jtype */
    bool safe;    /* strings: marked as HTML-safe */
    union {
        bool b;
        int64_t i;
        double f;
        const char *hint; /* QN_J_UNDEF: the error text of a use, or NULL */
        const qn_jstr *s;
        qn_jlist *list; /* QN_J_LIST, QN_J_TUPLE */
        qn_jdict *dict; /* QN_J_DICT, QN_J_NAMESPACE */
        qn_jview *view;
        qn_jrange *range;
        qn_jiter *iter;
        qn_jmacro *macro;
        qn_jloop *loop;
        qn_jmethod *method;
        qn_jcycler *cycler;
        qn_jjoiner *joiner;
        const qn_jfn *fn;
        const void *p;
    };
} qn_jval;

struct qn_jlist {
    qn_jval *v;
    size_t n, cap;
    bool group; /* a groupby pair: .grouper and .list */
};

typedef struct qn_jentry {
    qn_jval key, value;
    uint64_t hash;
} qn_jentry;

struct qn_jdict {
    qn_jentry *e;    /* in insertion order */
    uint32_t *index; /* open addressing, entry number + 1; NULL while the dict is small */
    size_t n, cap, index_cap;
};

typedef enum qn_jview_kind { QN_J_KEYS, QN_J_VALUES, QN_J_ITEMS } qn_jview_kind;

struct qn_jview {
    const qn_jdict *dict;
    qn_jview_kind kind;
};

struct qn_jrange {
    int64_t start, stop, step, n;
};

/* A cursor over a value, and at the same time the state of a generator: `next` makes one item or
 * returns false at the end and on failure. */
struct qn_jiter {
    bool (*next)(qn_jrun *run, qn_jiter *it, qn_jval *out);
    qn_jval over;    /* what is walked */
    size_t at;       /* position in it */
    qn_jiter *inner; /* generators: their source */
    void *state;     /* generators: their own */
};

struct qn_jmethod {
    qn_jval self;
    const qn_jfn *fn;
};

struct qn_jcycler {
    qn_jlist *items;
    size_t at;
};

struct qn_jjoiner {
    qn_jval sep;
    bool used;
};

static inline qn_jval qn_jnone(void) { return (qn_jval){.type = QN_J_NONE}; }
static inline qn_jval qn_jbool(bool b) { return (qn_jval){.type = QN_J_BOOL, .b = b}; }
static inline qn_jval qn_jint(int64_t i) { return (qn_jval){.type = QN_J_INT, .i = i}; }
static inline qn_jval qn_jfloat(double f) { return (qn_jval){.type = QN_J_FLOAT, .f = f}; }
static inline qn_jval qn_jundef(const char *hint)
{
    return (qn_jval){.type = QN_J_UNDEF, .hint = hint};
}
static inline qn_jval qn_jmissing(void) { return (qn_jval){.type = QN_J_MISSING}; }
static inline bool qn_jis_str(qn_jval v) { return v.type == QN_J_STR; }
static inline bool qn_jis_int(qn_jval v) { return v.type == QN_J_INT || v.type == QN_J_BOOL; }
static inline bool qn_jis_number(qn_jval v) { return qn_jis_int(v) || v.type == QN_J_FLOAT; }
static inline int64_t qn_jas_int(qn_jval v) { return v.type == QN_J_BOOL ? v.b : v.i; }
static inline double qn_jas_float(qn_jval v)
{
    return v.type == QN_J_FLOAT ? v.f : (double)qn_jas_int(v);
}

/* Arena memory of a render; NULL after recording "out of memory" or the memory limit. `n` items of
 * `size` bytes [n]. */
void *qn_jtake(qn_jrun *run, size_t n, size_t size);

/* Strings: over borrowed bytes [n] that outlive the render; a copy of bytes; printf; from a buffer,
 * which is emptied. Errors: recorded in run. */
qn_jval qn_jstr_borrow(qn_jrun *run, const char *p, size_t n);
qn_jval qn_jstr_copy(qn_jrun *run, const char *p, size_t n);
__attribute__((format(printf, 2, 3)))
qn_jval qn_jstr_printf(qn_jrun *run, const char *fmt, ...);
qn_jval qn_jstr_take(qn_jrun *run, qn_buf *b);

/* Code points of a string, counted once (no failure). */
size_t qn_jstr_len(const qn_jstr *s);
/* Byte offset of code point `at` <= length (no failure). */
size_t qn_jstr_offset(const qn_jstr *s, size_t at);
/* True if the string's bytes are those of the C string (no failure). */
bool qn_jstr_is(const qn_jstr *s, const char *text);

/* Lists, tuples and dicts; `list_add` appends; `tuple` copies n items [n]. Errors: recorded in run.
 */
qn_jval qn_jlist_new(qn_jrun *run, qn_jtype type, size_t cap);
bool qn_jlist_add(qn_jrun *run, qn_jlist *l, qn_jval v);
qn_jval qn_jtuple(qn_jrun *run, const qn_jval *v, size_t n);
qn_jval qn_jdict_new(qn_jrun *run);
/* Set a key; an existing key keeps its place. Errors: unhashable key, memory: recorded, false. */
bool qn_jdict_set(qn_jrun *run, qn_jdict *d, qn_jval key, qn_jval value);
/* The value of a key; NULL if absent or, with the error recorded, unhashable. Errors: see there. */
const qn_jval *qn_jdict_get(qn_jrun *run, const qn_jdict *d, qn_jval key);
/* The value of a string key of n bytes [n]; NULL if absent (no failure). */
const qn_jval *qn_jdict_find(const qn_jdict *d, const char *key, size_t n);

/* Python's hash contract: equal values have equal hashes. Errors: unhashable type: recorded, false.
 */
bool qn_jhash(qn_jrun *run, qn_jval v, uint64_t *out);

/* Python's ==. Errors: nested too deep, step limit: recorded, false. */
bool qn_jequal(qn_jrun *run, qn_jval a, qn_jval b);
/* Python's truth (no failure). */
bool qn_jtruth(qn_jval v);
/* *order < 0, 0, > 0 as a <, ==, > b. Errors: unordered types, undefined: recorded, false. */
bool qn_jcompare(qn_jrun *run, qn_jval a, qn_jval b, const char *op, int *order);
/* `needle in hay`. Errors: not a container, wrong operand: recorded, false. */
bool qn_jcontains(qn_jrun *run, qn_jval hay, qn_jval needle);
/* len(v). Errors: no length: recorded, false. */
bool qn_jlength(qn_jrun *run, qn_jval v, size_t *out);

/* Start walking a value; generators continue where they are. Errors: not iterable: recorded, false.
 */
bool qn_jiter_start(qn_jrun *run, qn_jval v, qn_jiter *it);
/* The next item; false at the end or when run->failed. Errors: those of generators. */
bool qn_jiter_next(qn_jrun *run, qn_jiter *it, qn_jval *out);
/* A generator over `source` with its own step. Errors: recorded in run. */
qn_jval qn_jiter_new(qn_jrun *run, qn_jval source, bool (*next)(qn_jrun *, qn_jiter *, qn_jval *),
                     void *state);
/* All items as a new list. Errors: not iterable: recorded. */
qn_jval qn_jto_list(qn_jrun *run, qn_jval v);
/* The type would be accepted by Python's iter() (no failure). */
bool qn_jiterable(qn_jval v);

/* The Python name of the type, for messages (no failure). */
const char *qn_jtype_name(qn_jval v);

/* Append str(v) or repr(v). Errors: recursion too deep: recorded in run. */
void qn_jput_str(qn_jrun *run, qn_buf *b, qn_jval v);
void qn_jput_repr(qn_jrun *run, qn_buf *b, qn_jval v);
/* str(v) as a value; strings are returned as they are. Errors: recorded in run. */
qn_jval qn_jto_str(qn_jrun *run, qn_jval v);
/* Append Python's repr of a float (no failure). */
void qn_jput_float(qn_buf *b, double f);

/* A JSON value as a template value; strings and keys are borrowed. Errors: depth, memory. */
qn_jval qn_jfrom_json(qn_jrun *run, const json_t *j, int depth);

#endif
