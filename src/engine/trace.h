/* trace.h - where the time of a request went, private to src/engine (spec engine 1.10).
 *
 * With QUERN_P2R_TRACE=1 at the start of an engine every request gets a trace; the engine thread
 * writes spans into its fixed memory during steps and prints it as one line of JSON on stderr after
 * the step in which the row ended. Otherwise there is no trace and nothing to pay for but a test of
 * a pointer.
 * Threads: made by the submitting thread, then the engine's.
 */
#ifndef QN_ENGINE_TRACE_H
#define QN_ENGINE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

typedef struct qn_trace qn_trace;

/* A span that has ended. Numbers below 0 and NULL strings are left out of the record. */
typedef struct qn_span {
    const char *phase;    /* a literal */
    double start_ms, end_ms;
    const char *boundary; /* a literal */
    int64_t prompt_tokens, cached_tokens, start_token, tokens;
    bool final;
} qn_span;

/* A trace; both strings are copied, NULL is allowed. Errors: QN_NOMEM. */
qn_code qn_trace_new(qn_trace **out, const char *request_id, const char *route, double start_ms,
                     qn_err *err);
void qn_trace_free(qn_trace *t);

/* Record a span; beyond the memory's 512 it is only counted (no failure). */
void qn_trace_add(qn_trace *t, const qn_span *span);

/* Another row was live beside this one: the mechanism is "continuous" (no failure). */
void qn_trace_shared(qn_trace *t);

/* Print the line: outcome "success", "error" or "abort" (no failure; without memory nothing). */
void qn_trace_print(const qn_trace *t, const char *outcome, double end_ms);

#endif
