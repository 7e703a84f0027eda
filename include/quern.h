/* quern.h - run language models in the MLX format from C.
 *
 *     char err[512];
 *     quern_model *m = quern_open("folder", NULL, err, sizeof err);
 *     quern_gen *g = quern_start(m, "The sea", NULL, err, sizeof err);
 *     quern_event ev;
 *     while (quern_next(g, &ev, -1)) fwrite(ev.text, 1, ev.n_text, stdout);
 *     quern_gen_free(g);
 *     quern_close(m);
 *
 * docs/examples has whole programs: chat.c (render, poll, statistics), embed.c (vectors of texts).
 *
 * Ownership: what a function gives is freed with the function named beside it. What a caller passes
 * is copied or read during the call only. Strings are UTF-8.
 * Errors: functions return NULL, 0 or -1 and write one sentence into err (err_bytes with the NUL);
 * err may be NULL. Nothing here ends the process because of a bad argument or file.
 * Threads: a model may be used from many threads at once and computes in threads of its own; open
 * and close it from one. A quern_gen belongs to one thread at a time, except for quern_cancel. A
 * model's replies depend on the prompt, the options and the seed only, never on what else runs at
 * the same time.
 */
#ifndef QUERN_H
#define QUERN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define QUERN_API __attribute__((visibility("default")))
#else
#define QUERN_API
#endif

typedef struct quern_model quern_model;
typedef struct quern_gen quern_gen;

/* How a model is opened. Zero means the default of each field. */
typedef struct quern_open_options {
    const char *device;     /* "cpu"; l1 chooses "ref" */
    uint32_t n_threads;     /* 0: the physical cores */
    uint32_t max_rows;      /* generations that run at once; 0: 8 */
    uint32_t max_positions; /* longest prompt + reply in tokens; 0: the model's own */
    int no_panel_cache;     /* do not keep a derived weights file in the cache folder */
    int l1; /* the tokens of mlx-lm on MLX's CPU backend, bit for bit, for comparisons. That reference
             * sums in bfloat16: replies are worse than the default's, and slower. A seed acts as one
             * that is set right before the generation. */
    uint32_t max_kv_size;   /* most tokens of a text that are kept and attended to: the first 4 and the
                             * last ones; 0: all, else at least 5 */
} quern_open_options;

/* What a generation asks for. Zero means the default: greedy, 256 tokens. */
typedef struct quern_options {
    uint32_t max_tokens;
    float temperature, top_p, min_p;
    uint32_t top_k;
    int has_seed;
    uint64_t seed;
    const char *const *stops; /* [n_stops] texts that end the reply and are not shown */
    size_t n_stops;
    int add_special;          /* quern_start: add the tokenizer's own start tokens to the prompt */
    float repetition_penalty, presence_penalty, frequency_penalty; /* over the last 20 tokens */
    int hlg;                  /* bend log-probabilities with the tone curve instead of filters */
    uint32_t min_tokens;      /* no end of text before so many tokens */
    int ignore_eos;           /* never end before max_tokens */
    int logprobs;             /* report log-probabilities */
    uint32_t n_top;           /* and those of the n most likely tokens, at most 20 */
    int prompt_logprobs;      /* QUERN_PROMPT events: the same for the prompt's tokens */
    void (*notify)(void *user); /* called when an event appears, from the model's thread: it must
                                   return soon and call nothing of this library. NULL: none */
    void *user;
} quern_options;

typedef enum quern_event_kind {
    QUERN_TEXT = 1, /* a token of the reply and the text that is certain with it, perhaps none */
    QUERN_PROGRESS, /* the request begins to run, or a piece of the prompt is computed */
    QUERN_DONE,     /* the last one, exactly once */
    QUERN_PROMPT    /* a token of the prompt, before the reply's */
} quern_event_kind;
typedef enum quern_finish {
    QUERN_RUNNING = 0,
    QUERN_STOP,
    QUERN_LENGTH,
    QUERN_CANCELLED,
    QUERN_ERROR
} quern_finish;

typedef struct quern_top {
    uint32_t id;
    float logprob;
} quern_top;

typedef struct quern_event {
    quern_event_kind kind;
    const char
        *text; /* TEXT, and the last piece with DONE: whole characters; valid until the next call */
    size_t n_text;         /* bytes */
    uint32_t done, total;  /* PROGRESS: prompt tokens computed, of how many */
    quern_finish finish;   /* DONE */
    uint32_t token, index; /* TEXT, PROMPT: the token's id, its place in the reply or the prompt */
    float logprob;         /* TEXT, PROMPT: of the token, if asked for */
    const quern_top *top;  /* [n_top] the most likely ones; valid until the next call */
    uint32_t n_top;
    uint32_t prompt_tokens, cached_tokens; /* DONE: cached ones were known from earlier prompts */
    uint32_t generated_tokens;             /* DONE: the end token included */
    double prefill_ms, decode_ms;          /* DONE: to the first token; from it to the last */
    double prefill_tok_s, decode_tok_s;    /* DONE: 0 where there is no time to speak of */
    const char *error;     /* DONE with QUERN_ERROR, else NULL */
} quern_event;

/* "0.1.0" (no failure). */
QUERN_API const char *quern_version(void);

/* Open a model folder (config.json, safetensors, tokenizer). Gives a model, closed with
 * quern_close; all of its generations must be freed before. Errors: NULL and a sentence. */
QUERN_API quern_model *quern_open(const char *folder, const quern_open_options *o, char *err,
                                  size_t err_bytes);
QUERN_API void quern_close(quern_model *m);

/* Render a conversation with the model's chat template. messages: a JSON array of {role, content,
 * ...}; variables: a JSON object of further template variables, or NULL. The generation prompt is
 * added unless variables says otherwise. Gives a string, freed with quern_free. Errors: NULL and a
 * sentence. */
QUERN_API char *quern_render(quern_model *m, const char *messages, const char *variables, char *err,
                             size_t err_bytes);

/* Token ids of text; special tokens inside it are recognised. Gives an array of *n ids, freed with
 * quern_free. Errors: NULL and a sentence. */
QUERN_API uint32_t *quern_tokenize(quern_model *m, const char *text, size_t n_text, int add_special,
                                   size_t *n, char *err, size_t err_bytes);

/* Text of n ids. Gives a string, freed with quern_free. Errors: NULL and a sentence. */
QUERN_API char *quern_detokenize(quern_model *m, const uint32_t *ids, size_t n, char *err,
                                 size_t err_bytes);

/* Start a generation from prompt text, or from n ids. Gives a handle, freed with quern_gen_free.
 * Errors: NULL and a sentence (a prompt longer than the context, a value out of range, a full
 * queue). */
QUERN_API quern_gen *quern_start(quern_model *m, const char *prompt, const quern_options *o,
                                 char *err, size_t err_bytes);
QUERN_API quern_gen *quern_start_ids(quern_model *m, const uint32_t *ids, size_t n,
                                     const quern_options *o, char *err, size_t err_bytes);

/* Wait up to timeout_ms (< 0: for ever) for the next event. Returns 1 with an event, 0 on timeout
 * or after DONE (no failure). */
QUERN_API int quern_next(quern_gen *g, quern_event *ev, int timeout_ms);

/* Called for every event of quern_generate; another value than 0 ends the generation as if a stop
 * string were met: only DONE follows. It may start other generations, of this model too. */
typedef int (*quern_event_fn)(void *user, const quern_event *ev);

/* The same with a callback: start, call fn for every event up to DONE, free. fn runs in the calling
 * thread. Returns 0, or -1 if it could not start or ended with an error. Errors: a sentence. */
QUERN_API int quern_generate(quern_model *m, const char *prompt, const quern_options *o,
                             quern_event_fn fn, void *user, char *err, size_t err_bytes);

/* End the generation early; DONE follows. Any thread (no failure). */
QUERN_API void quern_cancel(quern_gen *g);

/* Free a generation, running or not; NULL is allowed (no failure). */
QUERN_API void quern_gen_free(quern_gen *g);

/* Numbers in a hidden state (no failure). */
QUERN_API size_t quern_state_width(const quern_model *m);

/* The vector of a text for embedding models: the hidden state of the last of n ids after the final
 * norm, divided by its length, into out [quern_state_width]. Returns 0 or -1. Errors: a sentence. */
QUERN_API int quern_embed(quern_model *m, const uint32_t *ids, size_t n, float *out, char *err,
                          size_t err_bytes);

/* The hidden states of all n ids after the final norm, as they are. Gives [n, quern_state_width],
 * freed with quern_free. Errors: NULL and a sentence. */
QUERN_API float *quern_hidden_states(quern_model *m, const uint32_t *ids, size_t n, char *err,
                                     size_t err_bytes);

/* Most tokens of prompt and reply together (no failure). */
QUERN_API uint32_t quern_context_length(const quern_model *m);

/* What a model has done and holds. */
typedef struct quern_stats {
    uint32_t active, waiting; /* generations */
    uint64_t started, finished, prompt_tokens, cached_tokens, generated_tokens;
    uint64_t weights_bytes, kv_bytes, kv_bytes_used, kv_bytes_cached;
} quern_stats;

/* A snapshot of the counters (no failure). */
QUERN_API void quern_get_stats(const quern_model *m, quern_stats *out);

/* Free a string or array given by this library; NULL is allowed (no failure). */
QUERN_API void quern_free(void *p);

#ifdef __cplusplus
}
#endif

#endif
