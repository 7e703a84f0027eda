/* engine.h - the generation engine: many sequences, one path.
 *
 * The engine owns the KV pools, the sequences and one thread that runs steps: it collects new and
 * cancelled requests, plans one ragged batch (decode rows first, prefill chunks in what is left),
 * runs one forward pass, samples, and hands events out. A request's tokens depend on the model, its
 * prompt, its options and its seed only (design 2.2).
 *
 * A generation (qn_gen) is the caller's handle. Events wait in its bounded ring until the caller
 * takes them; a full ring pauses that row, never the others. `notify` is called from the engine
 * thread when events appear: it must not block or call into the engine.
 *
 * Threads: submit, stats from any thread. The calls on one qn_gen from one thread at a time, except
 * cancel, which may come from any.
 */
#ifndef QN_ENGINE_ENGINE_H
#define QN_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/image.h"
#include "core/err.h"
#include "model/model.h"
#include "sample/sampler.h"

typedef struct qn_engine qn_engine;
typedef struct qn_gen qn_gen;

typedef struct qn_engine_opts {
    uint32_t max_rows;      /* sequences running at once; 0: 8 */
    uint32_t max_queue;     /* waiting requests beyond those; 0: 256 */
    uint32_t step_tokens;   /* token budget of a step that only prefills; 0: 512 */
    uint32_t mixed_tokens;  /* token budget of a step that also decodes; 0: 256, at most
                               step_tokens */
    uint32_t block_tokens;  /* of the KV cache; 0: 64 */
    uint64_t kv_bytes;      /* memory for KV blocks; 0: a share of what the machine has free */
    uint64_t memory_bytes;  /* for all that qn_memory_terms counts; 0: no limit */
    uint64_t beside_bytes;  /* what the caller will take after this, for a server: counts as base */
    bool strict_kv;         /* a row starts only when it and the running ones fit at full length, so
                               that none needs to be preempted. Else only its own size counts, and of
                               its reply 4096 tokens */
    uint32_t max_positions; /* longest prompt + reply; 0: the model's own */
    uint32_t prefill_rows;  /* most prompts that share a step; 0: 8 */
    uint32_t sink_timeout_ms; /* a row whose reader leaves its ring full for so long is cancelled;
                                 0: it waits for ever */
    bool no_prefix_cache;   /* do not reuse KV of earlier prompts and replies */
    uint64_t prefix_bytes;  /* most bytes of cached KV and states; 0: whatever running rows leave */
    uint32_t prefix_entries; /* and most ends of sequences; 0: no such limit */
    uint32_t mlx_prefill;   /* devices with mlx-lm's bits: its prefill_step_size; 0: 2048 */
    /* Models with recurrent layers: states kept for the prefix cache (0: up to 64, as memory
     * allows), one after every so many tokens of a prompt (0: 2048), and the least uncached tokens
     * for which one is taken near the prompt's end (0: 256). */
    uint32_t max_checkpoints, checkpoint_tokens, checkpoint_min;
} qn_engine_opts;

/* Which of a prompt's hidden states (the residual stream after the final norm) to keep. */
typedef enum qn_hidden { QN_HIDDEN_NONE = 0, QN_HIDDEN_LAST, QN_HIDDEN_ALL } qn_hidden;

/* A limit on reasoning between two marker tokens: once it holds n_tokens, the next one is `end`. */
typedef struct qn_think_limit {
    uint32_t n_tokens;   /* 0: no limit */
    uint32_t start, end; /* ids of the markers */
    bool is_open;        /* the prompt ends inside the reasoning */
} qn_think_limit;

typedef struct qn_request {
    const uint32_t *prompt; /* copied by submit */
    size_t n_prompt;        /* >= 1 */
    const float *embeddings; /* [n_prompt, d_model] of the whole prompt, unscaled, instead of the
                                rows of its ids, which are still needed; copied. NULL: none. Such a
                                row neither reads nor feeds the prefix cache. */
    uint32_t snapshot_at;   /* tokens that the next turn's prompt will share (text/boundary.h), where a
                               model with recurrent layers keeps a checkpoint; 0: not known */
    /* What comes before the prompt, read from a file: the prompt's first token is at position
     * start->n_tokens. Borrowed until DONE. Such a request shares no prefixes. */
    const qn_image *start;
    qn_image *keep;         /* prefill only (max_tokens 0): gets what is stored at the end. Of
                               start->n_tokens + n_prompt tokens; borrowed until DONE */
    uint64_t cache_space;   /* requests share cached prefixes only with those of the same number */
    uint32_t max_tokens;    /* 0: prefill only */
    bool prompt_logprobs;   /* report every prompt token but the first: QN_EV_PROMPT */
    qn_hidden hidden;       /* only with max_tokens 0; see qn_gen_hidden */
    const uint32_t *eos;    /* ids that end the reply; copied */
    size_t n_eos;
    bool ignore_eos;        /* benchmarks: never end before max_tokens */
    qn_think_limit think;
    uint32_t min_tokens;    /* no eos id is sampled before that many tokens of the reply */
    qn_sampling sampling;
    const char *request_id, *route; /* names for a trace (QUERN_P2R_TRACE=1); NULL: none */
    void (*notify)(void *user); /* NULL: the caller polls or waits */
    void *user;
} qn_request;

typedef enum qn_finish {
    QN_FINISH_NONE = 0,
    QN_FINISH_STOP,      /* an end-of-text token, or qn_gen_stop */
    QN_FINISH_LENGTH,    /* max_tokens or the context was reached */
    QN_FINISH_CANCELLED, /* qn_gen_cancel */
    QN_FINISH_ERROR      /* see the event's err */
} qn_finish;

typedef struct qn_gen_stats {
    uint32_t prompt_tokens, cached_tokens, generated_tokens; /* generated: the end token included */
    uint32_t stored_tokens; /* of prompt, then reply: so many had their KV stored at the end */
    double queue_ms;   /* from submit to admission */
    double prefill_ms; /* from admission to token 0 on the host */
    double decode_ms;  /* from token 0 to the last one */
    double prefill_tok_s; /* prompt tokens that were not cached, per second of prefill_ms; or 0 */
    double decode_tok_s;  /* generated tokens per second of decode_ms; or 0 */
} qn_gen_stats;

typedef enum qn_event_kind {
    QN_EV_PROGRESS = 1,
    QN_EV_TOKEN,
    QN_EV_DONE,
    QN_EV_PROMPT,  /* a prompt token's log-probability, in order, before the reply's tokens */
    QN_EV_ADMITTED /* the row runs: once, before all others but a DONE of one that never ran */
} qn_event_kind;

typedef struct qn_event {
    qn_event_kind kind;
    uint32_t done, total;  /* ADMITTED, PROGRESS: prompt tokens computed, of how many */
    uint32_t index;        /* TOKEN: 0, 1, ...; PROMPT: position, from 1 */
    bool is_eos;           /* TOKEN: the end-of-text token itself; it has no text */
    qn_sample sample;      /* TOKEN, PROMPT (there always with the token's logprob) */
    qn_finish finish;      /* DONE, always the last event, exactly once */
    qn_gen_stats stats;    /* DONE; ADMITTED, PROGRESS: prompt_tokens and cached_tokens */
    qn_err err;            /* the last member: DONE with QN_FINISH_ERROR; with QN_FINISH_CANCELLED
                              if the engine itself cancelled */
} qn_event;

/* Start an engine over a model, which must outlive it. Errors: QN_NOMEM, QN_LIMIT (the pools do not
 * fit), QN_INVALID. */
qn_code qn_engine_new(qn_engine **out, qn_model *model, const qn_engine_opts *opts, qn_err *err);

/* Stop: running generations end as cancelled; all handles must be freed before (no failure). */
void qn_engine_free(qn_engine *e);

/* Longest sequence (prompt + reply) this engine takes, in tokens (no failure). */
uint32_t qn_engine_max_positions(const qn_engine *e);

/* True if that is less than was asked for, because the KV pools are no larger (no failure). */
bool qn_engine_memory_binds(const qn_engine *e);

/* Queue a request. Everything the request points to is copied. Errors: QN_INVALID (empty prompt, an
 * id outside the vocabulary, a sampling value), QN_LIMIT "prompt too long" (prompt and max_tokens
 * against the context and the pools; the text starts with
 * "memory_admission" when the pools are the smaller), QN_CANCELLED when the queue is full, QN_NOMEM. */
qn_code qn_engine_submit(qn_engine *e, const qn_request *req, qn_gen **out, qn_err *err);

/* Take the next event if there is one. Returns false if none is waiting (no failure). */
bool qn_gen_next(qn_gen *g, qn_event *ev);

/* Wait up to timeout_ms (< 0: for ever) for an event and take it; false on timeout (no failure). */
bool qn_gen_wait(qn_gen *g, qn_event *ev, int timeout_ms);

/* The hidden states that the request asked for, float32 [1, d_model] or [n_prompt, d_model]: valid
 * from DONE with QN_FINISH_LENGTH to qn_gen_free; NULL if none were asked for (no failure). */
const float *qn_gen_hidden(const qn_gen *g);

/* Ask the row to end; DONE follows within one step, with QN_FINISH_CANCELLED (no failure). */
void qn_gen_cancel(qn_gen *g);

/* The caller has all that it wants, at a stop string for example: as cancel, with QN_FINISH_STOP (no
 * failure). */
void qn_gen_stop(qn_gen *g);

/* Give the handle back; a running generation is cancelled first and ends on its own. `notify` is
 * not called any more once this returns (no failure). */
void qn_gen_free(qn_gen *g);

/* Run fn in the engine's thread between two steps: no forward pass is under way, running rows go on
 * afterwards. Jobs run in the order of the calls; the call returns when its job is done. fn may use
 * the model, and must not call into this engine. Never from `notify`. Errors: QN_CANCELLED (the
 * engine stops; fn did not run), and fn's. */
typedef qn_code (*qn_exclusive_fn)(void *user, qn_err *err);
qn_code qn_engine_exclusive(qn_engine *e, qn_exclusive_fn fn, void *user, qn_err *err);

typedef struct qn_engine_stats {
    uint32_t active_rows, waiting_rows, max_rows;
    uint64_t submitted, finished, prompt_tokens, generated_tokens, steps, preemptions;
    uint64_t cached_tokens; /* prompt tokens taken from the prefix cache */
    uint32_t cache_entries; /* ends of sequences in it, those of running rows included */
    uint64_t cache_bytes_max; /* kv_bytes_cached is at most this */
    uint64_t kv_bytes_used; /* by running rows */
    uint64_t kv_bytes_peak; /* the most that was, the prefix cache included */
    uint64_t kv_bytes_cached, kv_bytes_total, weights_bytes;
} qn_engine_stats;

/* A snapshot of the counters (no failure). */
void qn_engine_stats_get(const qn_engine *e, qn_engine_stats *out);

/* Where memory goes, in bytes. */
typedef struct qn_memory_terms {
    uint64_t base;    /* what the process held before the engine (program, tokenizer, heap), and
                         beside_bytes */
    uint64_t weights; /* matrices, in memory or mapped */
    uint64_t kv;      /* blocks, those of the prefix cache included */
    uint64_t states;  /* of recurrent layers: slots of rows and checkpoints */
    uint64_t arena;   /* a step's activations, logits and the device's own work */
    uint64_t rows;    /* requests: tokens, events, block tables; what sampling works in */
} qn_memory_terms;

typedef struct qn_memory {
    qn_memory_terms planned; /* at most, when every row runs at full length and the queue is full;
                                the queue's tokens come on top */
    qn_memory_terms used;    /* the most of each so far; of the weights, what is in memory now */
    uint64_t planned_sum, used_sum;
    uint64_t resident, resident_peak; /* of the whole process, as the kernel has it */
} qn_memory;

/* The plan and what became of it; walks the page tables of the weights (no failure). */
void qn_engine_memory(const qn_engine *e, qn_memory *out);

#endif
