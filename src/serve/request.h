/* request.h - the fields that all generation requests share (spec server 4).
 *
 * null means absent, unknown fields are ignored, integral doubles are integers. A wrong type or
 * range is a 400 that names the field. Protocols with other names for a field translate them
 * before.
 *
 * Ownership: strings and trees are borrowed from the body, which must live as long as the fields.
 * Threads: one thread at a time.
 */
#ifndef QN_SERVE_REQUEST_H
#define QN_SERVE_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "engine/reply.h"
#include "sample/sampler.h"
#include "serve/error.h"
#include "text/tokenizer.h"

enum { QN_API_TOP_LOGPROBS = 11, QN_LEGACY_TOP_LOGPROBS = 5 };

typedef enum qn_usage_mode {
    QN_USAGE_ON_FINISH = 0, /* include_usage absent: on the chunk with the finish reason */
    QN_USAGE_CHUNK,         /* true: a chunk of its own */
    QN_USAGE_NONE           /* false */
} qn_usage_mode;

/* What the server puts in where a request says nothing. */
typedef struct qn_request_defaults {
    qn_sampling sampling;    /* temperature, top_p, top_k, min_p */
    bool sampling_explicit;  /* the temperature was chosen by the operator, not by the model */
    int64_t max_tokens;      /* < 0: up to the context limit */
} qn_request_defaults;

typedef struct qn_fields {
    bool stream;
    qn_usage_mode usage;
    int64_t max_tokens;      /* < 0: up to the context limit */
    qn_sampling sampling;    /* bias points into the arena */
    const char *stops[QN_MAX_STOPS];
    size_t n_stops;
    bool logprobs;           /* report log-probabilities */
    bool legacy_logprobs;    /* in the shape of the old completions API */
    bool echo;               /* completions: the reply begins with the prompt */
    bool ignore_eos;         /* only max_tokens and stop strings end the reply */
    uint32_t min_tokens;     /* no end token before this many */
    bool return_progress;    /* stream: progress of the prompt as chunks */
} qn_fields;

/* Read the shared fields of a body. n_vocab bounds token ids in logit_bias. is_completion allows
 * the integer form of logprobs. Memory comes from `arena`. Returns false with *e filled. Errors:
 * 400 with param, 500 without memory. */
bool qn_fields_read(qn_fields *f, const json_t *body, const qn_request_defaults *dflt,
                    uint32_t n_vocab, bool is_completion, qn_arena *arena, qn_http_error *e);

/* Refuse, by name, fields that ask for something this server does not do yet. Returns false with *e
 * filled. Errors: 400 with param. */
bool qn_fields_check_supported(const json_t *body, qn_http_error *e);

/* Typed readers for the protocols' own fields: absent or null leaves *out alone. Return false with
 * *e filled. Errors: 400 "X must be of type T", "X must be at least N", "X must be at most N". */
bool qn_field_bool(const json_t *body, const char *name, bool *out, qn_http_error *e);
bool qn_field_int(const json_t *body, const char *name, int64_t min, int64_t max, int64_t *out,
                  qn_http_error *e);
bool qn_field_number(const json_t *body, const char *name, double min, double max, double *out,
                     qn_http_error *e);
bool qn_field_string(const json_t *body, const char *name, const char **out, qn_http_error *e);
bool qn_field_object(const json_t *body, const char *name, json_t **out, qn_http_error *e);

/* Append the token ids in array `list`, the value of field `name`. Returns false with *e filled.
 * Errors: 400 (not an integer, not below n_vocab), 500 without memory. */
bool qn_field_ids(const json_t *list, const char *name, uint32_t n_vocab, qn_ids *out,
                 qn_http_error *e);

#endif
