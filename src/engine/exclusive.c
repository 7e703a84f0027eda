/* exclusive.c - work that needs the engine's thread for itself, between two steps. */
#include "engine/internal.h"

qn_code qn_engine_exclusive(qn_engine *e, qn_exclusive_fn fn, void *user, qn_err *err)
{
    qn_check(!pthread_equal(pthread_self(), e->thread));
    qn_job job = {.fn = fn, .user = user, .err = err};
    sem_init(&job.done, 0, 0);
    pthread_mutex_lock(&e->lock);
    bool stopping = e->stopping;
    if (!stopping) {
        if (e->jobs_tail) e->jobs_tail->next = &job;
        else e->jobs = &job;
        e->jobs_tail = &job;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    if (stopping) job.rc = qn_err_set(err, QN_CANCELLED, "the engine is stopping");
    else while (sem_wait(&job.done)) {}
    sem_destroy(&job.done);
    return job.rc;
}

void qn_engine_run_jobs(qn_engine *e, bool cancel)
{
    pthread_mutex_lock(&e->lock);
    qn_job *j = e->jobs;
    e->jobs = e->jobs_tail = NULL;
    pthread_mutex_unlock(&e->lock);
    while (j) {
        qn_job *next = j->next; /* the job is gone once its caller wakes */
        if (cancel) j->rc = qn_err_set(j->err, QN_CANCELLED, "the engine is stopping");
        else j->rc = j->fn(j->user, j->err);
        sem_post(&j->done);
        j = next;
    }
}
