/* error.h - what a client is told when a request fails.
 *
 * One value holds everything that a surface needs to word it: status, type, code, the field at
 * fault.
 * Threads: a value belongs to one thread at a time.
 */
#ifndef QN_SERVE_ERROR_H
#define QN_SERVE_ERROR_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

typedef struct qn_http_error {
    int status;           /* 0: no error */
    const char *type;     /* constant; NULL is written as null */
    const char *code;     /* constant; NULL is written as null */
    char param[96];       /* the field at fault; empty is written as null */
    char message[QN_ERR_TEXT];
    uint32_t n_prompt_tokens, n_ctx; /* of context_length_exceeded, else 0 */
} qn_http_error;

/* Fill an error; the first one wins. Returns false, so that a failing line is one statement. param
 * may be NULL (no failure). */
__attribute__((format(printf, 6, 7)))
bool qn_fail_with(qn_http_error *e, int status, const char *type, const char *code,
                  const char *param, const char *fmt, ...);

/* 400 invalid_request_error for a field. Returns false (no failure). */
__attribute__((format(printf, 3, 4)))
bool qn_fail_field(qn_http_error *e, const char *param, const char *fmt, ...);

/* 400 context_length_exceeded in words that clients recognise (spec server 18.2); with by_budget
 * context_over_budget: the operator's memory budget makes the context that short. Returns false (no
 * failure). */
bool qn_fail_context(qn_http_error *e, uint32_t n_prompt_tokens, uint32_t n_ctx, bool by_budget,
                     const char *param);

/* 429 for a full queue; 503 while draining. They return false (no failure). */
bool qn_fail_queue(qn_http_error *e);
bool qn_fail_draining(qn_http_error *e);

/* Turn an internal error into one for the client: QN_INVALID, QN_FORMAT, QN_LIMIT, QN_UNSUPPORTED
 * are the client's (400), QN_CANCELLED is a full queue (429), the rest is ours (500). Returns false
 * (no failure). */
bool qn_fail_err(qn_http_error *e, const qn_err *err, const char *param);

/* {"error":{"message","type","param","code"}}, the OpenAI shape; NULL without memory. The caller
 * gives it back with json_decref. Errors: NULL only. */
json_t *qn_error_openai(const qn_http_error *e);

#endif
