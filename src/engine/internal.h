/* internal.h - the engine's state, private to src/engine.
 *
 * `lock` guards the inbox and the flags; everything else belongs to the engine thread. The step
 * itself takes no lock that can be held for long.
 */
#ifndef QN_ENGINE_INTERNAL_H
#define QN_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/gen.h"

enum {
    QN_WIDE_OUT = 32,     /* results per step for rows that want one at every position of their
                           * prompt, beside one per row */
    QN_MLX_PREFILL = 2048 /* prompt tokens of one forward pass of mlx-lm, unless it is told others */
};

/* A call of qn_engine_exclusive that waits; on its caller's stack. */
typedef struct qn_job {
    struct qn_job *next;
    qn_exclusive_fn fn;
    void *user;
    qn_err *err;
    qn_code rc;
    sem_t done;
} qn_job;

typedef struct qn_plan {
    qn_batch batch;      /* arrays below */
    uint32_t *ids, *pos; /* [max tokens of a step] */
    qn_item *items;      /* [max rows] */
    uint32_t *out_rows;  /* [max rows + QN_WIDE_OUT] */
    qn_gen **item_gen;   /* [max rows] row of each item */
    qn_gen **out_gen;    /* [max rows + QN_WIDE_OUT] row of each result */
    uint32_t *out_pos;   /* [max rows + QN_WIDE_OUT] and its position in that row */
} qn_plan;

struct qn_engine {
    qn_model *model;
    qn_engine_opts o;    /* defaults filled in */
    qn_kv_spec kv;       /* the model's, with the block size */
    qn_blocks *blocks;
    qn_states *states;   /* NULL: the model has no recurrent layers */
    qn_prefix *prefix;   /* NULL: off */
    _Atomic bool audit;  /* tests: check qn_engine_sound at every step */
    qn_run *run;
    uint32_t asked_positions; /* the context length before the pools' size cut o.max_positions */
    qn_desk *desk;            /* where rows are sampled */
    uint64_t base_bytes;      /* what the process held before, without the weights */
    uint64_t arena_bytes;     /* of the run */
    uint64_t page_bytes;      /* of the device's memory */
    bool exact;          /* the device gives mlx-lm's bits: so do the samplers */
    bool compat;         /* and its KV is quantized: prompts are cut where mlx-lm cuts them */
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool woken, stopping;      /* under lock */
    qn_gen *inbox, *inbox_tail; /* under lock: submitted, not yet seen by the engine thread */
    uint32_t n_inbox;           /* under lock */
    qn_job *jobs, *jobs_tail;   /* under lock */

    qn_gen *queue, *queue_tail; /* waiting rows, in order */
    _Atomic uint32_t n_queue;
    qn_gen **rows;              /* [max_rows] running rows, in order of admission */
    _Atomic uint32_t n_rows;
    qn_plan plan;
    qn_gen *ended;              /* rows whose memory is given back after the step */
    bool traces, logs_memory;   /* QUERN_P2R_TRACE, QUERN_PREFILL_MEM_LOG */
    double step_ms;             /* when the step began; only if it traces */
    void (*on_step)(bool begins); /* tests: around the part that must be quiet; NULL */

    _Atomic uint64_t submitted, finished, prompt_tokens, generated_tokens, steps, preemptions,
        cached_tokens, kv_used, kv_cached, kv_peak, kv_touched,
        states_touched, arena_used, row_bytes, row_peak;
    _Atomic uint32_t cache_entries;
};

/* budget.c: note what the process holds, before the engine takes anything (no failure). */
void qn_engine_note_base(qn_engine *e);

/* budget.c: bytes for KV blocks and state slots: those given, within the budget for everything.
 * Errors: QN_LIMIT. */
qn_code qn_engine_kv_budget(const qn_engine *e, uint64_t *bytes, qn_err *err);

/* budget.c: memory of a request came, or went (bytes < 0). Any thread (no failure). */
void qn_engine_count_row(qn_engine *e, int64_t bytes);

/* Make the engine thread look at its inbox, flags and rows. Any thread (no failure). */
void qn_engine_wake(qn_engine *e);

/* exclusive.c: run the jobs that wait now; with cancel, refuse them (no failure). */
void qn_engine_run_jobs(qn_engine *e, bool cancel);

/* schedule.c: take waiting rows into the running set while they fit; FIFO (no failure). */
void qn_engine_admit(qn_engine *e);

/* Step 6 of the data path. schedule.c: plan the next step into e->plan; false if no row can run
 * (no failure). */
bool qn_engine_plan(qn_engine *e);

/* stored.c: fill in the options about checkpoints and the number of state slots, for kv_bytes of
 * KV; make the slots and the prefix tree over the pools, which are there. Errors: QN_NOMEM. */
void qn_engine_plan_states(qn_engine *e, uint64_t kv_bytes);
qn_code qn_engine_open_stored(qn_engine *e, qn_err *err);

/* stored.c: the first position after pos where a chunk of this row must end, because a checkpoint
 * is due there; UINT32_MAX: none (no failure). */
uint32_t qn_engine_stop_after(const qn_engine *e, const qn_gen *g, uint32_t pos);

/* stored.c: give an admitted row its state slot and the longest known prefix of its tokens (no
 * failure). */
void qn_engine_start_row(qn_engine *e, qn_gen *g);

/* stored.c: rows that share more with an older row than they have computed take it from there, once
 * that row has all they share. Before a step is planned, while n_planned and `waits` tell what ran
 * in the last one (no failure). */
void qn_engine_adopt(qn_engine *e);

/* stored.c: true if rows[i] should sit this step out, because an older row that is in it, or waits
 * for one that is, computes at least a block for both (no failure). */
bool qn_engine_row_waits(qn_engine *e, uint32_t i);

/* stored.c: the row has advanced from `before` tokens to `computed`: publish what others can use
 * (no failure). */
void qn_engine_keep(qn_engine *e, qn_gen *g, uint32_t before);

/* stored.c: the row gives everything back that it has stored; with `keep` it leaves it to the
 * prefix tree first (no failure). */
void qn_engine_stop_row(qn_engine *e, qn_gen *g, bool keep);

/* stored.c: update the counters of bytes; check what must hold for a planned step (I1, I2, I3, I5,
 * I6 and I9 of spec engine 9) (no failure). */
void qn_engine_count_stored(qn_engine *e);
bool qn_engine_sound(qn_engine *e);

/* outputs.c: hand on what a step gave: sample rows, report prompt tokens, keep hidden states. logits
 * [n_out - n_hidden, V] hold values of `type` and are overwritten; states [n_hidden, d_model] (no
 * failure). */
void qn_engine_outputs(qn_engine *e, float *logits, qn_dtype type, const float *states);

/* engine.c: take row i out of rows[]; take g, which follows `prev` (NULL: it is the head), out of the
 * queue (no failure). */
void qn_engine_remove_row(qn_engine *e, uint32_t i);
void qn_engine_unqueue(qn_engine *e, qn_gen *prev, qn_gen *g);

/* engine.c: take a running row out of rows[] and end it (no failure). */
void qn_engine_end_row(qn_engine *e, qn_gen *g, qn_finish finish, const qn_err *why);

/* engine.c: end a row: DONE event, blocks freed, the engine's share of the object dropped. The row
 * must already be out of the queue and of rows[] (no failure). */
void qn_engine_retire(qn_engine *e, qn_gen *g, qn_finish finish, const qn_err *why);

#endif
