/* http.c - connections: routing, reading bodies, sending replies. Everything here but the exchange
 * helpers runs in libmicrohttpd's one thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/clock.h"
#include "core/log.h"
#include "serve/exchange.h"
#include "serve/ids.h"
#include "serve/json.h"

enum {
    HEADER_LIMIT_BYTES = 64 * 1024,
    /* Headers and the write buffer of one connection, which the library touches as a whole. More
     * than the limit, so that most of the too large ones get our answer and not the library's. */
    CONNECTION_MEMORY_BYTES = 160 * 1024,
    IDLE_TIMEOUT_S = 600, /* a connection without a request */
};

/* ---- exchanges ---- */

void qn_exchange_unref(qn_exchange *x)
{
    qn_server *s = x->server;
    if (atomic_fetch_sub(&x->n_refs, 1) != 1) return;
    qn_generation_release(&x->gen);
    json_decref(x->query);
    qn_buf_release(&x->body);
    qn_buf_release(&x->out);
    qn_buf_release(&x->wire);
    pthread_mutex_destroy(&x->lock);
    free(x);
    atomic_fetch_sub(&s->n_alive, 1); /* the server may be freed from here on */
}

void qn_exchange_reply(qn_exchange *x, int status, json_t *tree)
{
    qn_buf_clear(&x->out);
    qn_json_write(&x->out, tree);
    json_decref(tree);
    x->status = status;
    if (x->out.failed) {
        qn_buf_clear(&x->out);
        x->status = 500;
    }
    x->phase = QN_PHASE_REPLY;
}

/* Errors, also of requests without a route, have the shape of the surface that was asked. */
static bool is_anthropic(const qn_exchange *x)
{
    static const char surface[] = "/v1/messages";
    size_t n = sizeof surface - 1;
    return !strncmp(x->path, surface, n) && (!x->path[n] || x->path[n] == '/');
}

void qn_exchange_reply_error(qn_exchange *x)
{
    qn_exchange_reply(x, x->error.status,
                      is_anthropic(x) ? qn_anthropic_error(&x->error, x->request_id)
                                      : qn_error_openai(&x->error));
}

static void list_add(qn_server *s, qn_exchange *x)
{
    pthread_mutex_lock(&s->lock);
    x->next = s->exchanges;
    if (x->next) x->next->prev = x;
    s->exchanges = x;
    s->n_exchanges++;
    pthread_mutex_unlock(&s->lock);
}

static void list_remove(qn_server *s, qn_exchange *x)
{
    pthread_mutex_lock(&s->lock);
    if (x->next) x->next->prev = x->prev;
    if (x->prev) x->prev->next = x->next;
    else s->exchanges = x->next;
    s->n_exchanges--;
    pthread_mutex_unlock(&s->lock);
}

/* ---- the start of a request ---- */

const char *qn_exchange_header(const qn_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, name);
}

const char *qn_exchange_query(const qn_exchange *x, const char *name)
{
    return json_string_value(json_object_get(x->query, name));
}

/* What is not UTF-8 counts as not given. */
static enum MHD_Result keep_argument(void *query, enum MHD_ValueKind kind, const char *name,
                                     const char *value)
{
    (void)kind;
    json_object_set_new(query, name, json_string(value ? value : ""));
    return MHD_YES;
}

/* The preparing thread must not ask the connection, which may be closed meanwhile. */
static void keep_query(qn_exchange *x, const char *method)
{
    if (!x->route || !x->route->answer || !strcmp(method, "POST")) return;
    x->query = json_object();
    MHD_get_connection_values(x->conn, MHD_GET_ARGUMENT_KIND, keep_argument, x->query);
}

/* The client's x-request-id if it is printable and short, else a new one. */
static void choose_request_id(qn_exchange *x)
{
    const char *given = qn_exchange_header(x, "x-request-id");
    size_t n = given ? strlen(given) : 0;
    bool ok = n > 0 && n <= 128;
    for (size_t i = 0; i < n && ok; i++) ok = given[i] > ' ' && given[i] < 127;
    if (ok) snprintf(x->request_id, sizeof x->request_id, "%s", given);
    else qn_uuid4(x->request_id);
}

static enum MHD_Result count_header(void *user, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    (void)kind, (void)value;
    unsigned *counts = user;
    counts[0] += !strcasecmp(name, "Content-Length");
    counts[1] += !strcasecmp(name, "Host");
    return MHD_YES;
}

/* A proxy before us may have believed the other one of two lengths or names. */
static bool check_doubles(qn_exchange *x)
{
    unsigned counts[2] = {0};
    MHD_get_connection_values(x->conn, MHD_HEADER_KIND, count_header, counts);
    for (int i = 0; i < 2; i++) {
        if (counts[i] > 1) {
            return qn_fail_with(&x->error, 400, "invalid_request_error", NULL, NULL,
                                "the request has %u %s headers; right would be one", counts[i],
                                i ? "Host" : "Content-Length");
        }
    }
    return true;
}

/* Is the request too big to be read, by its own account? */
static bool check_sizes(qn_exchange *x)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->conn, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (info && info->header_size > HEADER_LIMIT_BYTES) {
        return qn_fail_with(&x->error, 431, "invalid_request_error", "headers_too_large", NULL,
                            "the headers are larger than %d bytes", HEADER_LIMIT_BYTES);
    }
    const char *coding = qn_exchange_header(x, "Transfer-Encoding");
    if (coding && strcasecmp(coding, "chunked")) {
        return qn_fail_with(&x->error, 400, "invalid_request_error", NULL, NULL,
                            "Transfer-Encoding: %.32s is not supported; right would be chunked",
                            coding);
    }
    const char *length = qn_exchange_header(x, "Content-Length");
    if (!length || strtoull(length, NULL, 10) <= x->server->opts.body_limit_bytes) return true;
    return qn_fail_with(&x->error, 413, "invalid_request_error", "request_too_large", NULL,
                        "the body is larger than %zu bytes", x->server->opts.body_limit_bytes);
}

static void check_route(qn_exchange *x, const char *method)
{
    if (!qn_guard_check(x->server, x->conn, x->route && x->route->open, &x->error)) return;
    if (x->route) return;
    if (x->allow) {
        qn_fail_with(&x->error, 405, "invalid_request_error", "method_not_allowed", NULL,
                     "%.16s is not allowed on this path; it takes %s", method, x->allow);
    } else {
        qn_fail_with(&x->error, 404, "invalid_request_error", "not_found", NULL, "not found");
    }
}

/* A request line may name the server as well: "http://HOST/PATH". */
static const char *path_of(const char *url)
{
    if (strncasecmp(url, "http://", 7)) return url;
    const char *path = strchr(url + 7, '/');
    return path ? path : "/";
}

static enum MHD_Result send_reply(qn_exchange *x);

/* First call for a request: the headers are in, the body is not. */
static enum MHD_Result begin(qn_server *s, struct MHD_Connection *conn, const char *url,
                             const char *method, const char *version, void **slot)
{
    qn_exchange *x = calloc(1, sizeof *x);
    if (!x) return MHD_NO;
    x->server = s;
    x->conn = conn;
    x->fd = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    x->is_http10 = !strcmp(version, MHD_HTTP_VERSION_1_0);
    x->start_ms = x->last_body_ms = qn_now_ms();
    atomic_init(&x->n_refs, 1);
    atomic_fetch_add(&s->n_alive, 1);
    pthread_mutex_init(&x->lock, NULL);
    snprintf(x->path, sizeof x->path, "%s", path_of(url));
    size_t n = strlen(x->path);
    if (n > 1 && x->path[n - 1] == '/') x->path[n - 1] = '\0';
    choose_request_id(x);
    x->route = qn_route_find(method, x->path, &x->tail, &x->allow);
    keep_query(x, method);
    *slot = x;
    list_add(s, x);
    MHD_set_connection_option(conn, MHD_CONNECTION_OPTION_TIMEOUT, 0u); /* the pump watches it */

    pthread_mutex_lock(&x->lock); /* the pump sees everything on the list */
    bool fits = check_sizes(x) && check_doubles(x);
    if (!fits) qn_exchange_reply_error(x);
    else if (strcmp(method, "OPTIONS")) check_route(x, method);
    else x->status = 204;
    x->responded = !fits;
    pthread_mutex_unlock(&x->lock);
    return fits ? MHD_YES : send_reply(x);
}

/* ---- bodies ---- */

static enum MHD_Result take_body(qn_exchange *x, const char *data, size_t *n)
{
    size_t limit = x->server->opts.body_limit_bytes;
    x->last_body_ms = qn_now_ms();
    x->body_bytes += *n;
    if (x->gone || x->body_bytes > 2 * (uint64_t)limit) return MHD_NO; /* told 413, and still sending */
    if (x->body.len + *n > limit) {
        qn_fail_with(&x->error, 413, "invalid_request_error", "request_too_large", NULL,
                     "the body is larger than %zu bytes", limit);
    }
    if (x->error.status) qn_buf_release(&x->body);
    else qn_buf_put(&x->body, data, *n);
    *n = 0;
    return x->body.failed ? MHD_NO : MHD_YES;
}

/* ---- sending ---- */

static void add_common_headers(qn_exchange *x, struct MHD_Response *r)
{
    MHD_add_response_header(r, "x-request-id", x->request_id);
    if (is_anthropic(x)) MHD_add_response_header(r, "request-id", x->request_id);
    qn_guard_cors(x->server, x->conn, x->path, r, x->status == 204);
    if (x->status == 405) MHD_add_response_header(r, "Allow", x->allow);
    if (x->status == 401) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (x->status == 429 || x->status == 503) MHD_add_response_header(r, "Retry-After", "1");
    else if (x->status >= 400 && x->status != 408) MHD_add_response_header(r, "x-should-retry", "false");
    for (size_t i = 0; i < x->gen.n_warnings; i++) {
        MHD_add_response_header(r, "Warning", x->gen.warnings[i]);
    }
}

static enum MHD_Result queue(qn_exchange *x, struct MHD_Response *r)
{
    if (!r) return MHD_NO;
    add_common_headers(x, r);
    enum MHD_Result ok = MHD_queue_response(x->conn, (unsigned)x->status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result send_reply(qn_exchange *x)
{
    size_t n = x->out.len;
    char *bytes = qn_buf_take(&x->out);
    if (!bytes) return MHD_NO;
    struct MHD_Response *r = MHD_create_response_from_buffer(n, bytes, MHD_RESPMEM_MUST_FREE);
    if (!r) free(bytes);
    const char *type = x->content_type ? x->content_type : "application/json";
    if (r && x->status != 204) MHD_add_response_header(r, "Content-Type", type);
    x->sent_bytes = n;
    return queue(x, r);
}

/* libmicrohttpd has sent the headers and asks for the bytes of a stream. The pump writes them; the
 * library is asked again at the end. */
static ssize_t read_stream(void *user, uint64_t pos, char *buf, size_t max)
{
    (void)pos, (void)buf, (void)max;
    qn_exchange *x = user;
    pthread_mutex_lock(&x->lock);
    ssize_t got = 0;
    if (x->gone) {
        got = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (x->phase == QN_PHASE_REPLY && !x->out.len && !x->wire.len) {
        got = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        qn_exchange_suspend(x);
        qn_exchange_poke(x);
    }
    pthread_mutex_unlock(&x->lock);
    return got;
}

static enum MHD_Result send_stream(qn_exchange *x)
{
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 1024, read_stream, x, NULL);
    x->status = 200;
    if (r) {
        MHD_add_response_header(r, "Content-Type", "text/event-stream");
        MHD_add_response_header(r, "Cache-Control", "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    return queue(x, r);
}

/* The body is in: find out what to do. */
static void dispatch(qn_exchange *x)
{
    if (x->error.status) qn_exchange_reply_error(x);
    else if (x->status == 204) x->phase = QN_PHASE_REPLY;
    else if (x->route->handle) x->route->handle(x);
    else if (!qn_generation_start(x)) qn_exchange_reply_error(x);
}

/* What the connection does next. The library's own locks are taken when a response is made and
 * while it is read, so that responses are made without holding the exchange's. */
typedef enum next_step { NEXT_WAIT, NEXT_CLOSE, NEXT_REPLY, NEXT_STREAM } next_step;

static next_step advance(qn_exchange *x)
{
    if (x->phase == QN_PHASE_REPLY && x->gone) return NEXT_CLOSE;
    if (x->responded) return NEXT_WAIT;
    if (x->phase == QN_PHASE_BODY) {
        dispatch(x);
        /* The library calls again at once, and only then does it count the request as read:
         * suspended here it would look for more to read after the wait, and close on a client that
         * has finished sending. */
        if (x->phase != QN_PHASE_REPLY) return NEXT_WAIT;
    }
    if (x->gone) return NEXT_CLOSE;
    x->responded = x->stream || x->phase == QN_PHASE_REPLY;
    if (x->responded) return x->stream ? NEXT_STREAM : NEXT_REPLY;
    qn_exchange_suspend(x);
    return NEXT_WAIT;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *conn, const char *url,
                                  const char *method,
                                  const char *version, const char *data, size_t *n, void **slot)
{
    qn_exchange *x = *slot;
    if (!x) return begin(cls, conn, url, method, version, slot);
    enum MHD_Result result = MHD_YES;
    next_step next = NEXT_WAIT;
    pthread_mutex_lock(&x->lock);
    if (*n) result = take_body(x, data, n);
    else next = advance(x);
    pthread_mutex_unlock(&x->lock);
    switch (next) {
    case NEXT_WAIT: return result;
    case NEXT_CLOSE: return MHD_NO;
    case NEXT_REPLY: return send_reply(x);
    case NEXT_STREAM: return send_stream(x);
    }
    QN_UNREACHABLE();
}

/* ---- the end of a request ---- */

/* 499: the client left. A 408 never completes: the connection is closed behind it. */
static int final_status(const qn_exchange *x, bool completed)
{
    return completed || x->status == 408 ? x->status : 499;
}

static void log_line(const qn_exchange *x, bool completed)
{
    const qn_generation *g = &x->gen;
    const char *route = x->route ? x->route->path : "-";
    int status = final_status(x, completed);
    if (x->phase < QN_PHASE_RUN || !g->handle) {
        qn_log(QN_INFO, "%s %s status=%d bytes=%" PRIu64 " ms=%.0f", x->request_id, route, status,
               x->sent_bytes, qn_now_ms() - x->start_ms);
        return;
    }
    double decode_s = g->stats.decode_ms / 1000;
    double rate = decode_s > 0 && g->pieces.n_tokens > 1 ? (g->pieces.n_tokens - 1) / decode_s : 0;
    qn_log(QN_INFO,
           "%s %s status=%d prompt=%zu cached=%u completion=%u queue_ms=%.0f ttft_ms=%.0f "
           "tok_s=%.1f finish=%s lane=%s bytes=%" PRIu64,
           x->request_id, route, status, g->prompt.len, g->stats.cached_tokens, g->pieces.n_tokens,
           g->stats.queue_ms, g->ttft_ms, rate, g->finish ? g->finish : "-", x->server->lane,
           x->sent_bytes);
}

static void on_completed(void *cls, struct MHD_Connection *conn, void **slot,
                         enum MHD_RequestTerminationCode how)
{
    (void)conn;
    qn_server *s = cls;
    qn_exchange *x = *slot;
    if (!x) return;
    *slot = NULL;
    pthread_mutex_lock(&x->lock);
    bool counted = x->counted;
    x->conn = NULL;
    x->gone = true;
    /* In PREPARE the preparing thread finds out by itself. */
    if (x->phase == QN_PHASE_RUN) qn_gen_cancel(x->gen.handle);
    bool completed = how == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    log_line(x, completed);
    int status = final_status(x, completed);
    if (status >= 400) qn_metrics_failed(&s->metrics, status);
    pthread_mutex_unlock(&x->lock);
    list_remove(s, x);
    if (counted) atomic_fetch_sub(&s->n_generations, 1);
    qn_exchange_unref(x);
}

__attribute__((format(printf, 2, 0)))
static void on_library_log(void *cls, const char *fmt, va_list ap)
{
    (void)cls;
    char text[256];
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = '\0';
    qn_log(QN_DEBUG_LINE, "http: %s", text);
}

qn_code qn_http_start(qn_server *s, qn_err *err)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, s,
                                 MHD_OPTION_EXTERNAL_LOGGER, on_library_log, NULL,
                                 MHD_OPTION_LISTEN_SOCKET, s->listen_fd,
                                 MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)CONNECTION_MEMORY_BYTES,
                                 MHD_OPTION_CONNECTION_LIMIT, 1024u,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_TIMEOUT_S,
                                 MHD_OPTION_END);
    return s->daemon ? QN_OK : qn_err_set(err, QN_IO, "the HTTP library refused to start");
}

void qn_http_stop(qn_server *s)
{
    if (s->daemon) MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
