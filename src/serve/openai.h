/* openai.h - what the two OpenAI surfaces share: ids, usage, logprobs, the end of a stream.
 *
 * Threads: as the protocol functions of exchange.h.
 */
#ifndef QN_SERVE_OPENAI_H
#define QN_SERVE_OPENAI_H

#include "serve/exchange.h"

/* Give the exchange its id, PREFIX + a random UUID (no failure). */
void qn_openai_set_id(qn_exchange *x, const char *prefix);

/* {id, object, created, model, system_fingerprint}, the beginning of every reply and chunk; the
 * caller owns it. Errors: NULL without memory. */
json_t *qn_openai_head(const qn_exchange *x, const char *object);

/* {prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details,
 * completion_tokens_details}. Errors: NULL without memory. */
json_t *qn_openai_usage(const qn_exchange *x);

/* {content: [{id, token, bytes, logprob, top_logprobs}]} for samples [n]; null if n is 0.
 * Errors: NULL without memory. */
json_t *qn_openai_logprobs(const qn_tokenizer *tok, const qn_sample *samples, size_t n);

/* The old form, {tokens, token_logprobs, top_logprobs, text_offset}, empty; the caller owns it.
 * Errors: NULL without memory. */
json_t *qn_openai_legacy_new(void);

/* Add one token, whose text begins `offset` characters into the reply; s NULL: nothing is known
 * about it (no failure). */
void qn_openai_legacy_add(json_t *lp, const qn_tokenizer *tok, uint32_t token, const qn_sample *s,
                          size_t offset);

/* Add the next samples [n] of the reply and count their characters (no failure). */
void qn_openai_legacy_samples(json_t *lp, qn_exchange *x, const qn_sample *samples, size_t n);

/* {cache_n, prompt_n, prompt_ms, ..., predicted_per_second}. Errors: NULL without memory. */
json_t *qn_openai_timings(const qn_exchange *x);

/* Append a chunk with prompt_progress and no choice. Errors: x->out.failed. */
void qn_openai_progress(qn_exchange *x, const char *object, const qn_event *ev);

/* Append the chunk with this finish choice, with timings, the usage where the request wants
 * it, and [DONE].
 * Takes `choice`. Errors: x->out.failed. */
void qn_openai_end(qn_exchange *x, const char *object, json_t *choice);

/* Append one chunk. Takes `choice`. Errors: x->out.failed. */
void qn_openai_chunk(qn_exchange *x, const char *object, json_t *choice);

/* As qn_openai_chunk, but append to `out`. Takes `choice`. Errors: out->failed. */
void qn_openai_frame(qn_buf *out, const qn_exchange *x, const char *object, json_t *choice);

/* x->error as the last frame of a stream (no failure). */
void qn_openai_stream_error(qn_exchange *x);

#endif
