/* gen.c - the event ring between the engine thread and a caller. */
#include "engine/gen.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "engine/internal.h"

size_t qn_gen_bytes(const qn_engine *e, uint32_t n_tokens)
{
    size_t table = e->o.max_positions / e->o.block_tokens + 2;
    return sizeof(qn_gen) + QN_RING_BYTES +
           (n_tokens + e->kv.n_groups * table) * sizeof(uint32_t);
}

static void gen_free(qn_gen *g)
{
    qn_engine_count_row(g->engine, -(int64_t)g->bytes);
    qn_sampler_free(g->sampler);
    free(g->tokens);
    free(g->eos);
    free(g->given);
    free(g->hidden);
    qn_trace_free(g->trace);
    free(g->ring);
    sem_destroy(&g->events);
    free(g);
}

static qn_code copy_request(qn_gen *g, const qn_request *req, uint32_t n_vocab, qn_err *err)
{
    size_t n_start = req->start ? req->start->n_tokens : 0;
    size_t n = n_start + req->n_prompt + req->max_tokens;
    g->tokens = calloc(n, sizeof *g->tokens); /* nobody knows those of `start` */
    g->eos = malloc((req->n_eos ? req->n_eos : 1) * sizeof *g->eos);
    g->ring = malloc(QN_RING_BYTES);
    if (!g->tokens || !g->eos || !g->ring)
        return qn_err_set(err, QN_NOMEM, "request: out of memory");
    memcpy(g->tokens + n_start, req->prompt, req->n_prompt * sizeof *g->tokens);
    if (req->n_eos) memcpy(g->eos, req->eos, req->n_eos * sizeof *g->eos);
    g->n_prompt = g->len = (uint32_t)(n_start + req->n_prompt);
    g->start = req->start;
    g->keep = req->keep;
    g->max_tokens = req->max_tokens;
    g->n_eos = req->n_eos;
    g->ignore_eos = req->ignore_eos;
    g->min_tokens = req->min_tokens;
    g->think = req->think;
    g->snapshot_at = req->snapshot_at;
    g->cache_space = req->cache_space;
    g->state_slot = QN_NO_STATE;
    g->prompt_logprobs = req->prompt_logprobs;
    g->notify = req->notify;
    g->user = req->user;
    g->stats.prompt_tokens = (uint32_t)req->n_prompt;
    qn_sampling sampling = req->sampling;
    sampling.exact = g->engine->exact;
    sampling.desk = g->engine->desk; /* rows are sampled one after the other */
    return qn_sampler_new(&g->sampler, &sampling, n_vocab, err);
}

/* Memory for embeddings that come in and hidden states that go out. */
static qn_code copy_vectors(qn_gen *g, const qn_request *req, qn_err *err)
{
    uint32_t n_hidden = req->hidden == QN_HIDDEN_ALL ? g->n_prompt : req->hidden == QN_HIDDEN_LAST;
    size_t width = g->engine->model->info.d_model * sizeof(float), in, out;
    g->hidden_kind = req->hidden;
    if (qn_mul_size(g->n_prompt, width, &in) || qn_mul_size(n_hidden, width, &out))
        return qn_err_set(err, QN_LIMIT, "request: %u hidden states do not fit", g->n_prompt);
    if (req->embeddings && !(g->given = malloc(in)))
        return qn_err_set(err, QN_NOMEM, "request: out of memory for embeddings");
    if (g->given) memcpy(g->given, req->embeddings, in);
    if (n_hidden && !(g->hidden = malloc(out)))
        return qn_err_set(err, QN_NOMEM, "request: out of memory for hidden states");
    g->bytes = qn_gen_bytes(g->engine, g->n_prompt + g->max_tokens) + (g->given ? in : 0) + out;
    qn_engine_count_row(g->engine, (int64_t)g->bytes);
    return QN_OK;
}

qn_code qn_gen_new(qn_gen **out, qn_engine *e, const qn_request *req, uint32_t n_vocab, qn_err *err)
{
    *out = NULL;
    qn_gen *g = calloc(1, sizeof *g);
    if (!g) return qn_err_set(err, QN_NOMEM, "request: out of memory");
    sem_init(&g->events, 0, 0);
    atomic_init(&g->owners, 2);
    g->engine = e;
    g->submit_ms = qn_now_ms();
    qn_code rc = copy_request(g, req, n_vocab, err);
    if (!rc) rc = copy_vectors(g, req, err);
    if (!rc && e->traces)
        rc = qn_trace_new(&g->trace, req->request_id, req->route, g->submit_ms, err);
    if (rc) {
        gen_free(g);
        return rc;
    }
    *out = g;
    return QN_OK;
}

void qn_gen_leave(qn_gen *g)
{
    if (atomic_fetch_sub(&g->owners, 1) == 1) gen_free(g);
}

static uint32_t ring_used(const qn_gen *g)
{
    return atomic_load(&g->head) - atomic_load(&g->tail);
}

static uint8_t *slot_at(const qn_gen *g, uint32_t i)
{
    return g->ring + i % QN_RING * offsetof(qn_event, err);
}

bool qn_gen_room(const qn_gen *g, uint32_t n)
{
    return ring_used(g) + n + 1 <= QN_RING;
}

void qn_gen_emit(qn_gen *g, const qn_event *ev)
{
    if (ev->kind == QN_EV_PROGRESS && ring_used(g) > QN_RING / 2) return;
    uint32_t head = atomic_load(&g->head);
    qn_check(head - atomic_load(&g->tail) < QN_RING);
    memcpy(slot_at(g, head), ev, offsetof(qn_event, err));
    if (ev->kind == QN_EV_DONE) g->why = ev->err;
    atomic_store(&g->head, head + 1);
    sem_post(&g->events);
    int idle = QN_NOTIFY_IDLE;
    if (!g->notify || !atomic_compare_exchange_strong(&g->notify_state, &idle, QN_NOTIFY_CALLING))
        return;
    g->notify(g->user);
    atomic_store(&g->notify_state, QN_NOTIFY_IDLE);
}

/* An event is there: take it, and wake the engine if it had paused the row. */
static void take(qn_gen *g, qn_event *ev)
{
    uint32_t tail = atomic_load(&g->tail);
    memcpy(ev, slot_at(g, tail), offsetof(qn_event, err));
    if (ev->kind == QN_EV_DONE) ev->err = g->why;
    else ev->err = (qn_err){0};
    atomic_store(&g->tail, tail + 1);
    if (atomic_exchange(&g->paused, false)) qn_engine_wake(g->engine);
}

bool qn_gen_next(qn_gen *g, qn_event *ev)
{
    if (sem_trywait(&g->events)) return false;
    take(g, ev);
    return true;
}

/* Step 10 of the data path. */
bool qn_gen_wait(qn_gen *g, qn_event *ev, int timeout_ms)
{
    int rc;
    if (timeout_ms < 0) {
        while ((rc = sem_wait(&g->events)) && errno == EINTR) {}
    } else {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        while ((rc = sem_timedwait(&g->events, &until)) && errno == EINTR) {}
    }
    if (rc) return false;
    take(g, ev);
    return true;
}

const float *qn_gen_hidden(const qn_gen *g)
{
    return g->hidden;
}

/* The first wish counts. */
static void end_early(qn_gen *g, qn_finish how)
{
    int none = QN_FINISH_NONE;
    atomic_compare_exchange_strong(&g->cancel, &none, (int)how);
    qn_engine_wake(g->engine);
}

void qn_gen_cancel(qn_gen *g)
{
    end_early(g, QN_FINISH_CANCELLED);
}

void qn_gen_stop(qn_gen *g)
{
    end_early(g, QN_FINISH_STOP);
}

void qn_gen_free(qn_gen *g)
{
    if (!g) return;
    for (int idle = QN_NOTIFY_IDLE;
         !atomic_compare_exchange_weak(&g->notify_state, &idle, QN_NOTIFY_OVER);
         idle = QN_NOTIFY_IDLE) {
        sched_yield(); /* the engine is inside notify, which is short; the engine never waits */
    }
    if (atomic_load(&g->owners) == 2) qn_gen_cancel(g);
    qn_gen_leave(g);
}
