/* pump.c - the thread that moves exchanges on.
 *
 * It sleeps on one epoll: an eventfd that pokes write, and the sockets of suspended connections,
 * whose clients may leave. It takes the engine's events, lets the protocol turn them into bytes,
 * writes the frames of streams, and resumes connections whose reply is complete.
 *
 * libmicrohttpd sends the headers of a stream, suspends the connection, and sends the end once it
 * is resumed. What comes between goes straight to the socket: resuming for every token costs three
 * times as much. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "serve/exchange.h"
#include "serve/sse.h"

enum {
    SLOW_READER_BYTES = 1 << 20,  /* unsent bytes of a stream before its client is given up */
    WAKE_MS = 1000,               /* how often the pump looks for silent streams */
    N_SOCKETS = 64                /* reports taken from the epoll at once */
};

/* ---- exchanges that want a look ---- */

/* A reference to x, unless its last one has just gone. */
static bool hold(qn_exchange *x)
{
    int n = atomic_load(&x->n_refs);
    while (n > 0 && !atomic_compare_exchange_weak(&x->n_refs, &n, n + 1)) {}
    return n > 0;
}

void qn_exchange_poke(qn_exchange *x)
{
    qn_server *s = x->server;
    if (atomic_exchange(&x->is_ready, true) || !hold(x)) return;
    qn_exchange *top = atomic_load(&s->ready);
    do x->next_ready = top;
    while (!atomic_compare_exchange_weak(&s->ready, &top, x));
    if (!atomic_exchange(&s->pump_awake, true)) eventfd_write(s->wake_fd, 1);
}

/* Take the exchanges that were poked, in that order. */
static qn_exchange *take_ready(qn_server *s)
{
    qn_exchange *x = atomic_exchange(&s->ready, NULL), *first = NULL;
    while (x) { /* the last one is on top */
        qn_exchange *below = x->next_ready;
        x->next_ready = first;
        first = x;
        x = below;
    }
    return first;
}

/* ---- the sockets of suspended connections ---- */

/* What the epoll should report of the socket, besides a connection that broke. */
static void watch(qn_exchange *x, int op)
{
    struct epoll_event ev = {.data.ptr = x};
    if (!x->probed) ev.events |= EPOLLRDHUP;
    if (x->is_full) ev.events |= EPOLLOUT;
    epoll_ctl(x->server->epoll_fd, op, x->fd, &ev);
}

void qn_exchange_suspend(qn_exchange *x)
{
    x->suspended = true;
    watch(x, EPOLL_CTL_ADD);
    MHD_suspend_connection(x->conn);
}

static void resume(qn_exchange *x)
{
    x->suspended = false;
    epoll_ctl(x->server->epoll_fd, EPOLL_CTL_DEL, x->fd, NULL);
    MHD_resume_connection(x->conn);
}

/* The client is gone for certain: stop its work and let libmicrohttpd close the connection. */
static void give_up(qn_exchange *x)
{
    x->gone = true;
    if (x->gen.handle && x->phase == QN_PHASE_RUN) qn_gen_cancel(x->gen.handle);
    if (x->conn) shutdown(x->fd, SHUT_RDWR);
}

/* The socket of a suspended connection reports something. A closed read side may be a client that
 * only finished sending: one harmless byte sequence finds out, because a closed socket answers it
 * with a reset. */
static void on_socket(qn_exchange *x, uint32_t events)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (!x->suspended) return;
    if (events & (EPOLLHUP | EPOLLERR)) {
        give_up(x);
    } else if (events & EPOLLRDHUP && !x->probed) {
        x->probed = true;
        watch(x, EPOLL_CTL_MOD);
        if (x->responded) {
            qn_sse_comment(&x->out, "keepalive");
        } else if (!x->is_http10) {
            ssize_t n = send(x->fd, interim, sizeof interim - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0 && errno != EAGAIN) give_up(x);
        }
    }
    qn_exchange_poke(x);
}

/* ---- sending ---- */

/* The next frame as it goes over the wire: every event is one chunk and one write. */
static void put_frame(qn_exchange *x)
{
    size_t n = qn_sse_frame_bytes(x->out.data, x->out.len);
    qn_buf_clear(&x->wire);
    if (!x->is_http10) qn_buf_printf(&x->wire, "%zx\r\n", n);
    qn_buf_put(&x->wire, x->out.data, n);
    if (!x->is_http10) qn_buf_puts(&x->wire, "\r\n");
    qn_buf_drop(&x->out, n);
    x->sent_bytes += n;
}

/* Write what the socket takes. */
static void send_frames(qn_exchange *x)
{
    bool was_full = x->is_full;
    x->is_full = false;
    while (!x->is_full && !x->gone && (x->wire.len || x->out.len)) {
        if (!x->wire.len) put_frame(x);
        ssize_t n = x->wire.failed ? -1 : send(x->fd, x->wire.data, x->wire.len,
                                               MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) qn_buf_drop(&x->wire, (size_t)n);
        else if (!x->wire.failed && errno == EAGAIN) x->is_full = true;
        else give_up(x);
    }
    if (x->is_full != was_full) watch(x, EPOLL_CTL_MOD);
}

/* A body that does not come: the library only closes the connection then, so the answer is written
 * past it. Nothing else was sent for this request yet. */
static void end_silent_body(qn_exchange *x)
{
    x->error = (qn_http_error){0};
    qn_fail_with(&x->error, 408, "invalid_request_error", "request_timeout", NULL,
                 "the rest of the body did not come within %u seconds",
                 x->server->opts.body_timeout_ms / 1000);
    qn_exchange_reply_error(x);
    qn_buf reply = {0};
    qn_buf_printf(&reply, "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
                  "x-request-id: %s\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
                  x->request_id, x->out.len);
    qn_buf_put(&reply, x->out.data, x->out.len);
    if (!reply.failed) send(x->fd, reply.data, reply.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    x->sent_bytes = x->out.len;
    qn_buf_release(&reply);
    x->responded = true;
    give_up(x);
}

/* ---- one look ---- */

/* Some clients wait for events and do not see comments. */
static void break_silence(qn_exchange *x, double now_ms)
{
    void (*remind)(qn_exchange *) = x->route->protocol->remind;
    double last_ms = remind ? x->gen.at.last_event_ms : x->last_out_ms;
    if (now_ms - last_ms < x->server->opts.ping_ms) return;
    if (remind) remind(x);
    else qn_sse_comment(&x->out, "keepalive");
    x->last_out_ms = now_ms;
}

static void run_on(qn_exchange *x, double now_ms)
{
    qn_generation_take(x);
    if (x->phase == QN_PHASE_RUN && x->stream) break_silence(x, now_ms);
    if (x->out.len > SLOW_READER_BYTES && !x->gone && x->stream) {
        qn_log(QN_WARNING, "%s: the client reads too slowly, giving up", x->request_id);
        give_up(x);
    }
}

/* Does the connection have something to do? */
static bool is_due(const qn_exchange *x)
{
    if (x->gone) return x->phase != QN_PHASE_PREPARE;
    if (x->stream && !x->responded) return x->phase >= QN_PHASE_RUN;
    return x->phase == QN_PHASE_REPLY && (!x->stream || !(x->out.len || x->wire.len));
}

static void look_at(qn_exchange *x, double now_ms)
{
    pthread_mutex_lock(&x->lock);
    if (x->conn && x->phase == QN_PHASE_BODY && !x->responded &&
        now_ms - x->last_body_ms >= x->server->opts.body_timeout_ms) {
        end_silent_body(x);
    }
    if (x->conn && x->phase == QN_PHASE_RUN) run_on(x, now_ms);
    if (x->suspended && x->stream && x->responded) send_frames(x);
    if (x->suspended && is_due(x)) resume(x);
    pthread_mutex_unlock(&x->lock);
}

/* ---- the thread ---- */

/* Do something with every exchange on the list. */
static void for_all(qn_server *s, void (*f)(qn_exchange *x, double now_ms), double now_ms)
{
    size_t n = 0;
    pthread_mutex_lock(&s->lock);
    qn_exchange **list = malloc((s->n_exchanges + 1) * sizeof *list);
    for (qn_exchange *x = s->exchanges; x && list; x = x->next) {
        atomic_fetch_add(&x->n_refs, 1);
        list[n++] = x;
    }
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < n; i++) {
        f(list[i], now_ms);
        qn_exchange_unref(list[i]);
    }
    free(list);
}

static void look_at_ready(qn_server *s, double now_ms)
{
    for (qn_exchange *x = take_ready(s), *after; x; x = after) {
        after = x->next_ready;
        atomic_store(&x->is_ready, false); /* a poke from here on counts */
        look_at(x, now_ms);
        qn_exchange_unref(x);
    }
}

static void pump_once(qn_server *s, double *last_full_ms)
{
    struct epoll_event events[N_SOCKETS];
    int wait_ms = s->opts.ping_ms < WAKE_MS ? (int)s->opts.ping_ms : WAKE_MS;
    atomic_store(&s->pump_awake, false); /* a poke from here on writes the eventfd */
    int n_events = epoll_wait(s->epoll_fd, events, N_SOCKETS, atomic_load(&s->ready) ? 0 : wait_ms);
    atomic_store(&s->pump_awake, true);
    for (int i = 0; i < n_events; i++) {
        qn_exchange *x = events[i].data.ptr;
        eventfd_t count;
        if (!x) {
            eventfd_read(s->wake_fd, &count);
            continue;
        }
        /* Only this thread resumes, so a suspended exchange cannot go away here. */
        pthread_mutex_lock(&x->lock);
        on_socket(x, events[i].events);
        pthread_mutex_unlock(&x->lock);
    }
    double now_ms = qn_now_ms();
    look_at_ready(s, now_ms);
    if (now_ms - *last_full_ms < wait_ms) return;
    *last_full_ms = now_ms;
    for_all(s, look_at, now_ms);
}

static void release(qn_exchange *x, double now_ms)
{
    (void)now_ms;
    pthread_mutex_lock(&x->lock);
    x->gone = true;
    if (x->suspended) resume(x);
    pthread_mutex_unlock(&x->lock);
}

static void cancel(qn_exchange *x, double now_ms)
{
    (void)now_ms;
    pthread_mutex_lock(&x->lock);
    if (x->phase == QN_PHASE_RUN) qn_gen_cancel(x->gen.handle);
    pthread_mutex_unlock(&x->lock);
    qn_exchange_poke(x);
}

void qn_pump_cancel(qn_server *s)
{
    for_all(s, cancel, 0);
}

static void *pump_main(void *user)
{
    qn_server *s = user;
    double last_full_ms = qn_now_ms();
    while (!atomic_load(&s->stop)) pump_once(s, &last_full_ms);
    for_all(s, release, 0); /* nothing may stay suspended when the daemon ends */
    return NULL;
}

qn_code qn_pump_start(qn_server *s, qn_err *err)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
    if (s->epoll_fd < 0 || s->wake_fd < 0 ||
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &ev)) {
        return qn_err_set(err, QN_IO, "server: no event queue: %s", strerror(errno));
    }
    s->pump_runs = !pthread_create(&s->pump, NULL, pump_main, s);
    return s->pump_runs ? QN_OK : qn_err_set(err, QN_NOMEM, "server: no thread for replies");
}

void qn_pump_stop(qn_server *s)
{
    atomic_store(&s->stop, true);
    eventfd_write(s->wake_fd, 1);
    if (s->pump_runs) pthread_join(s->pump, NULL);
    s->pump_runs = false;
}

void qn_pump_forget(qn_server *s)
{
    while (atomic_load(&s->n_alive)) {
        for (qn_exchange *x = take_ready(s), *after; x; x = after) {
            after = x->next_ready;
            qn_exchange_unref(x);
        }
        sched_yield(); /* the engine may be in the middle of a poke */
    }
}
