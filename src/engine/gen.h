/* gen.h - the two halves of a generation, private to src/engine.
 *
 * The engine thread writes events into a bounded ring, the caller reads them: one writer, one
 * reader, two counters. A semaphore counts waiting events, so that a caller can sleep. The object
 * has two owners (the engine and the handle) and is freed by the last one to leave.
 */
#ifndef QN_ENGINE_GEN_H
#define QN_ENGINE_GEN_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>

#include "cache/prefix.h"
#include "engine/engine.h"
#include "engine/trace.h"

/* Idle; the engine is inside notify; the handle is given back, notify is never called again. */
enum { QN_NOTIFY_IDLE = 0, QN_NOTIFY_CALLING, QN_NOTIFY_OVER };
enum { QN_RING = 256, QN_RING_BYTES = QN_RING * offsetof(qn_event, err) }; /* events; a power of two */

typedef enum qn_row_state { QN_ROW_WAITING = 0, QN_ROW_RUNNING, QN_ROW_DONE } qn_row_state;

struct qn_gen {
    /* shared */
    _Atomic uint32_t owners;      /* 2, 1, 0 */
    _Atomic int cancel;           /* QN_FINISH_*: how the caller wants it to end; NONE: not yet */
    _Atomic bool paused;          /* the engine found the ring full and skips this row */
    _Atomic uint32_t head, tail;  /* events written and read */
    sem_t events;                 /* written and not yet read */
    uint8_t *ring;                /* [QN_RING] events without their err, which only DONE has */
    qn_err why;                   /* DONE's */
    _Atomic int notify_state;     /* QN_NOTIFY_*: guards notify against qn_gen_free */
    void (*notify)(void *user);
    void *user;
    qn_engine *engine;

    /* the engine thread's */
    qn_gen *next;                 /* in the queue, or among the ended ones */
    qn_row_state state;
    uint32_t *tokens;             /* [n_prompt + max_tokens] prompt, then generated */
    uint32_t n_prompt, len;       /* len: tokens known */
    uint32_t computed;            /* tokens whose KV is stored; <= len */
    uint32_t max_tokens, n_generated;
    uint32_t *eos;
    size_t n_eos;
    bool ignore_eos;
    uint32_t min_tokens;
    qn_think_limit think;        /* is_open: as of the last token */
    uint32_t n_thought;          /* tokens of reasoning so far */
    float *given;                 /* [n_prompt, d_model]; NULL: none */
    uint32_t snapshot_at;
    uint64_t cache_space;
    const qn_image *start;        /* what is stored before the prompt; NULL: nothing */
    qn_image *keep;               /* where to leave what is stored at the end; NULL: nowhere */
    bool prompt_logprobs;
    uint32_t n_scored;            /* positions whose next token's logprob was reported */
    qn_hidden hidden_kind;
    float *hidden;                /* [1 or n_prompt, d_model]; NULL: not asked for */
    qn_sampler *sampler;
    qn_table table;
    qn_prefix_place place;        /* in the prefix tree; while running */
    uint32_t state_slot;          /* of recurrent layers, while running; else QN_NO_STATE */
    uint32_t n_planned;           /* tokens of this row in the step being run */
    bool was_parked;              /* gave its blocks to others because nobody read its events */
    bool was_admitted;            /* before a preemption, perhaps */
    bool came_back;               /* after one: its tokens are not counted again */
    bool waits;                   /* sits the step out for another row's blocks */
    qn_trace *trace;              /* NULL: none */
    double prompt_ms;             /* when the prompt was stored; for the trace */
    size_t bytes;                 /* of this object and all it holds */
    qn_finish finish;             /* once DONE */
    double paused_ms;             /* since when its ring is full; 0: it is not */
    double submit_ms, admit_ms, first_ms, last_ms;
    qn_gen_stats stats;
};

/* A generation with copies of everything in `req`; both owners hold it. Errors: QN_NOMEM,
 * QN_INVALID. */
qn_code qn_gen_new(qn_gen **out, qn_engine *e, const qn_request *req, uint32_t n_vocab,
                   qn_err *err);

/* Bytes of a generation of n_tokens, prompt and reply together, without embeddings and hidden states
 * (no failure). */
size_t qn_gen_bytes(const qn_engine *e, uint32_t n_tokens);

/* True while a result is wanted at every position that the row computes (no failure). */
bool qn_gen_is_wide(const qn_gen *g);

/* True if the row's next events fit into its ring. If not, its reader will wake the engine (no failure).
 */
bool qn_gen_can_run(qn_gen *g);

/* One owner leaves; the last one frees (no failure). */
void qn_gen_leave(qn_gen *g);

/* True if `n` more events fit, one place for DONE kept free (no failure). */
bool qn_gen_room(const qn_gen *g, uint32_t n);

/* Write an event and notify; a PROGRESS event is dropped when the ring is half full. Engine thread
 * (no failure; the caller made sure that there is room). */
void qn_gen_emit(qn_gen *g, const qn_event *ev);

#endif
