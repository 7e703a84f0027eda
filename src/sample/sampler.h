/* sampler.h - from one row of logits to one token.
 *
 * A sampler belongs to one sequence. Sample k of a sequence depends on (seed, k), the logits and
 * the sequence's own history only (spec engine 2). All arithmetic is float32 in one fixed order.
 * What a draw works in is as large as the vocabulary and means nothing afterwards: samplers that
 * take turns share one desk, so that a sequence that waits or thinks holds none of it.
 * Threads: one sequence is sampled by one thread at a time, and so are all at one desk.
 */
#ifndef QN_SAMPLE_SAMPLER_H
#define QN_SAMPLE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "format/dtype.h"
#include "sample/tone.h"

enum { QN_MAX_TOP_LOGPROBS = 20, QN_MAX_LOGIT_BIAS = 1024 };

typedef struct qn_logit_bias {
    uint32_t id;
    float bias;
} qn_logit_bias;

typedef struct qn_desk qn_desk;

/* What a request asks for. Zero-initialised means greedy. */
typedef struct qn_sampling {
    qn_desk *desk;       /* of the sampler's vocabulary, outlives it; NULL: one of its own */
    float temperature;   /* 0: the most likely token, filters ignored */
    float top_p;         /* in (0, 1) active, else off */
    float min_p;         /* in (0, 1] active, 0 off */
    uint32_t min_tokens_to_keep; /* of min_p; 0 counts as 1 */
    uint32_t top_k;      /* 0 or >= vocabulary: off */
    float xtc_probability, xtc_threshold; /* probability > 0: on */
    float repetition_penalty;             /* 0 or 1: off */
    float presence_penalty, frequency_penalty; /* 0: off */
    uint32_t repetition_context, presence_context, frequency_context; /* last n tokens; 0: all */
    qn_tone tone;        /* in place of filters and temperature, unless temperature is 0 */
    const qn_curve_point *curve; /* in place of all those, at any temperature; borrowed, copied */
    size_t n_curve;
    const qn_logit_bias *bias; /* borrowed by qn_sampler_new, copied */
    size_t n_bias;
    bool has_seed;       /* false: 64 bits from the system */
    uint64_t seed;
    bool logprobs;       /* report the token's log-probability */
    uint32_t n_top;      /* and the n most likely ones, at most QN_MAX_TOP_LOGPROBS */
    const uint32_t
        *special; /* ids that xtc never removes (end of text, newline); borrowed, copied */
    size_t n_special;
    bool exact;            /* mlx-lm's bits: every step in the logits' own type, MLX's generator */
    uint32_t exact_splits; /* how often MLX's generator was used between seeding and draw 0 */
} qn_sampling;

typedef struct qn_top {
    uint32_t id;
    float logprob;
} qn_top;

/* Result of one draw. */
typedef struct qn_sample {
    uint32_t token;
    float logprob;  /* of the token; 0 unless asked for */
    uint32_t n_top;
    qn_top top[QN_MAX_TOP_LOGPROBS]; /* by probability, then by id */
} qn_sample;

typedef struct qn_sampler qn_sampler;

/* The memory that samplers for a vocabulary draw in. Free it after them. Errors: QN_NOMEM. */
qn_code qn_desk_new(qn_desk **out, uint32_t n_vocab, qn_err *err);
void qn_desk_free(qn_desk *d);

/* Bytes of a desk, and of the parts that its samplers' options need so far (no failure). */
size_t qn_desk_bytes(uint32_t n_vocab);
size_t qn_desk_used(const qn_desk *d, uint32_t n_vocab);

/* A sampler for a vocabulary. Errors: QN_INVALID (a value out of range: names it and the range),
 * QN_NOMEM. */
qn_code qn_sampler_new(qn_sampler **out, const qn_sampling *s, uint32_t n_vocab, qn_err *err);
void qn_sampler_free(qn_sampler *s);

/* Draw sample number `k` (counted from 0) from logits [n_vocab] float32 holding values of `type`
 * (which only exact sampling looks at); they are overwritten. history [n_history]: prompt and
 * generated tokens so far. Takes no memory. Of several +inf each is as likely, and none has a
 * log-probability. Returns false if there is nothing to draw from, because every logit is -inf or no
 * number (no failure otherwise; exact sampling gives then what mlx-lm gives). */
bool qn_sampler_draw(qn_sampler *s, float *logits, qn_dtype type, const uint32_t *history,
                     size_t n_history, uint64_t k, qn_sample *out);

/* How likely `token` was: its log-probability and the n_top most likely ones, by the logits as they
 * are, without processors; they are overwritten (no failure). */
void qn_sampler_score(qn_sampler *s, float *logits, qn_dtype type, uint32_t token, qn_sample *out);

#endif
