/* err.h - how failures travel.
 *
 * Two kinds of failure exist. A broken invariant is a bug: `assert` or `qn_check` stop the
 * process. Everything else (foreign bytes, files, memory, limits, devices) is a value: a function
 * that can fail returns a qn_code and fills the caller's qn_err with one sentence that says what
 * was wrong, with which value, and what would be right. Only src/cli may end the process.
 *
 * Threads: a qn_err belongs to one thread at a time.
 */
#ifndef QN_CORE_ERR_H
#define QN_CORE_ERR_H

#include <stddef.h>

typedef enum qn_code {
    QN_OK = 0,
    QN_NOMEM,       /* memory could not be had */
    QN_IO,          /* a file, socket or system call failed */
    QN_FORMAT,      /* foreign bytes break their format */
    QN_UNSUPPORTED, /* valid, but not something this program can do */
    QN_LIMIT,       /* larger than a named limit */
    QN_CANCELLED,   /* the caller or a signal asked to stop */
    QN_DEVICE,      /* the compute device failed */
    QN_INVALID,     /* an argument or request is wrong */
    QN_NOT_FOUND    /* a named thing does not exist */
} qn_code;

enum { QN_ERR_TEXT = 504 };

typedef struct qn_err {
    qn_code code;
    char text[QN_ERR_TEXT]; /* one line, NUL terminated, cut at the end if too long */
} qn_err;                   /* caller's memory, zeroed before first use */

/* Record the first cause and return `code`, so that a failing line is one statement. Later calls
 * on the same object change nothing: the root cause wins. `err` may be NULL. Cannot fail
 * (no failure). */
__attribute__((format(printf, 3, 4)))
qn_code qn_err_set(qn_err *err, qn_code code, const char *fmt, ...);

/* Put "WHAT: " in front of an error that is already set, for callers that know the context (a file
 * name, a tensor). Does nothing if no error is set. Returns err->code (no failure). */
__attribute__((format(printf, 2, 3)))
qn_code qn_err_prefix(qn_err *err, const char *fmt, ...);

/* Forget the error, so that the object can be used again (no failure). */
void qn_err_clear(qn_err *err);

/* Stop the process with file, line and the expression; see qn_check (no failure). */
_Noreturn void qn_panic(const char *file, int line, const char *what);

/* A cheap check that stays in every build: its failure would corrupt memory or another user's
 * output. */
#define qn_check(x) ((x) ? (void)0 : qn_panic(__FILE__, __LINE__, #x))

/* The default of a closed switch. */
#define QN_UNREACHABLE() qn_panic(__FILE__, __LINE__, "unreachable")

/* *out = a * b; returns 0, or 1 when the product does not fit (no failure otherwise). */
static inline int qn_mul_size(size_t a, size_t b, size_t *out) { return __builtin_mul_overflow(a, b, out); }

/* *out = a + b; returns 0, or 1 when the sum does not fit (no failure otherwise). */
static inline int qn_add_size(size_t a, size_t b, size_t *out) { return __builtin_add_overflow(a, b, out); }

#endif
