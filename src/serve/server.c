/* server.c - see server.h: the socket, and starting and stopping the parts. */
#include "serve/server.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "serve/exchange.h"
#include "serve/probe.h"

enum {
    BODY_LIMIT_BYTES = 128 << 20,
    BODY_TIMEOUT_MS = 60000,
    PING_MS = 15000,
    STORE_BYTES = 32 << 20,
    STORE_TTL_MS = 3600000,
    BACKLOG = 256,
    FORCED_END_MS = 5000
};

static const char default_host[] = "127.0.0.1";
static const char *const any_origin[] = {"*", NULL};

/* ---- the listening socket ---- */

static qn_code fail_listen(int fd, const char *where, unsigned port, qn_err *err)
{
    int why = errno;
    if (fd >= 0) close(fd);
    if (why == EADDRINUSE) {
        return qn_err_set(err, QN_IO,
                          "port %u on %s is in use; choose another with --port (0: any free one)",
                          port, where);
    }
    return qn_err_set(err, QN_IO, "cannot listen on %s port %u: %s", where, port, strerror(why));
}

static qn_code listen_tcp(qn_server *s, qn_err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char service[8];
    snprintf(service, sizeof service, "%u", s->opts.port);
    int rc = getaddrinfo(s->opts.host, service, &hints, &found);
    if (rc) {
        return qn_err_set(err, QN_IO, "cannot listen on host %s: %s", s->opts.host,
                          gai_strerror(rc));
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1;
    bool ok = fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) &&
              !bind(fd, found->ai_addr, found->ai_addrlen) && !listen(fd, BACKLOG);
    freeaddrinfo(found);
    if (!ok) return fail_listen(fd, s->opts.host, s->opts.port, err);

    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    char port[8] = "0", address[64] = "";
    getsockname(fd, (struct sockaddr *)&bound, &n);
    getnameinfo((struct sockaddr *)&bound, n, address, sizeof address, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    s->port = (uint16_t)atoi(port);
    s->is_loopback = qn_guard_is_loopback(address); /* a name may stand for it */
    bool is_v6 = strchr(s->opts.host, ':') != NULL;
    snprintf(s->url, sizeof s->url, "http://%s%s%s:%s", is_v6 ? "[" : "", s->opts.host,
             is_v6 ? "]" : "", port);
    s->listen_fd = fd;
    return QN_OK;
}

/* Is there a server behind a socket in the file system, or did an earlier run leave it behind? */
static bool unix_answers(const struct sockaddr_un *at)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool ok = fd >= 0 && (!connect(fd, (const struct sockaddr *)at, sizeof *at) || errno == EAGAIN);
    if (fd >= 0) close(fd);
    return ok;
}

/* Fill in the address; refuse one that another server has. */
static qn_code find_unix(const char *path, struct sockaddr_un *at, qn_err *err)
{
    if (strlen(path) >= sizeof at->sun_path) {
        return qn_err_set(err, QN_INVALID, "socket path %s is longer than %zu bytes", path,
                          sizeof at->sun_path - 1);
    }
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    strcpy(at->sun_path, path);
    if (!unix_answers(at)) return QN_OK;
    return qn_err_set(err, QN_IO, "socket %s is in use by another server; choose another with --unix",
                      path);
}

static qn_code listen_unix(qn_server *s, qn_err *err)
{
    struct sockaddr_un at;
    struct stat st;
    const char *path = s->opts.unix_path;
    qn_code rc = find_unix(path, &at, err);
    if (rc) return rc;
    if (!lstat(path, &st) && S_ISSOCK(st.st_mode)) unlink(path); /* left behind by an earlier run */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool ok = fd >= 0 && !fchmod(fd, 0600) && !bind(fd, (struct sockaddr *)&at, sizeof at) &&
              !chmod(path, 0600) && !lstat(path, &st) && !listen(fd, BACKLOG);
    if (!ok) {
        int why = errno;
        if (fd >= 0) close(fd);
        return qn_err_set(err, QN_IO, "cannot listen on socket %s: %s", path, strerror(why));
    }
    s->unix_dev = st.st_dev;
    s->unix_ino = st.st_ino;
    snprintf(s->url, sizeof s->url, "unix:%s", path);
    s->listen_fd = fd;
    return QN_OK;
}

/* The file goes away with the server, unless another one has replaced it. */
static void remove_unix(const qn_server *s)
{
    struct stat st;
    const char *path = s->opts.unix_path;
    if (!path || lstat(path, &st)) return;
    if (st.st_dev == s->unix_dev && st.st_ino == s->unix_ino) unlink(path);
}

qn_code qn_server_check_address(const qn_server_opts *opts, qn_err *err)
{
    struct sockaddr_un at;
    char model[128];
    if (opts->unix_path) return find_unix(opts->unix_path, &at, err);
    if (opts->port && qn_probe_model(opts->port, model, sizeof model)) {
        return qn_err_set(err, QN_IO,
                          "port %u is in use: it serves %s already; choose another with --port (0: any "
                          "free one)", opts->port, model);
    }
    qn_server probe = {.opts = *opts};
    if (!probe.opts.host) probe.opts.host = default_host;
    qn_code rc = listen_tcp(&probe, err);
    if (!rc) close(probe.listen_fd);
    return rc;
}

/* ---- start ---- */

/* End-of-text and newline ids: xtc never removes them. */
static void fill_special(qn_server *s)
{
    const qn_loaded *loaded = s->opts.loaded;
    qn_ids newline = {0};
    for (size_t i = 0; i < loaded->n_eos; i++) s->special[s->n_special++] = loaded->eos[i];
    if (!qn_tokenizer_encode(loaded->tok, "\n", 1, 0, &newline, NULL)) {
        for (size_t i = 0; i < newline.len && i < QN_MAX_NEWLINE; i++) {
            s->special[s->n_special++] = newline.data[i];
        }
    }
    qn_ids_release(&newline);
}

static void fill_defaults(qn_server *s)
{
    qn_server_opts *o = &s->opts;
    if (!o->host) o->host = default_host;
    if (!o->body_limit_bytes) o->body_limit_bytes = BODY_LIMIT_BYTES;
    if (!o->body_timeout_ms) o->body_timeout_ms = BODY_TIMEOUT_MS;
    if (!o->ping_ms) o->ping_ms = PING_MS;
    if (!o->store_bytes) o->store_bytes = STORE_BYTES;
    if (!o->store_ttl_ms) o->store_ttl_ms = STORE_TTL_MS;
    if (!o->metrics_prefix) o->metrics_prefix = "quern:";
    s->origins = o->allowed_origins ? o->allowed_origins : any_origin;
    s->started = (int64_t)time(NULL);
    fill_special(s);
    qn_engine_stats stats;
    qn_engine_stats_get(o->engine, &stats);
    s->lane = stats.max_rows > 1 ? "batched" : "serial";
    snprintf(s->fingerprint, sizeof s->fingerprint, "quern-%s-%s", QN_VERSION,
             o->loaded->dev->name);
}

/* A file that cannot be used costs conversations their memory across restarts, not the server its
 * start. */
static qn_code open_store(qn_server *s, qn_err *err)
{
    qn_response_store_opts o = {.path = s->opts.store_path, .max_bytes = s->opts.store_bytes,
                                .ttl_ms = s->opts.store_ttl_ms};
    qn_err why = {0};
    if (s->opts.no_store || !qn_response_store_open(&s->responses, &o, &why)) return QN_OK;
    qn_log(QN_WARNING, "%s; responses are stored in memory instead", why.text);
    o.path = NULL;
    return qn_response_store_open(&s->responses, &o, err);
}

qn_code qn_server_start(qn_server **out, const qn_server_opts *opts, qn_err *err)
{
    *out = NULL;
    qn_server *s = calloc(1, sizeof *s);
    if (!s) return qn_err_set(err, QN_NOMEM, "server: out of memory");
    s->opts = *opts;
    s->listen_fd = -1;
    fill_defaults(s);
    signal(SIGPIPE, SIG_IGN); /* a client that leaves is an error value, not a signal */
    pthread_mutex_init(&s->lock, NULL);
    qn_metrics_init(&s->metrics);
    pthread_cond_init(&s->prepare_some, NULL);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    qn_code rc = opts->unix_path ? listen_unix(s, err) : listen_tcp(s, err);
    if (!rc) rc = open_store(s, err);
    if (!rc) rc = qn_pump_start(s, err);
    if (!rc) rc = qn_generations_start(s, err);
    if (!rc) rc = qn_http_start(s, err);
    if (rc) {
        qn_server_stop(s, 0);
        return rc;
    }
    *out = s;
    return QN_OK;
}

uint16_t qn_server_port(const qn_server *s)
{
    return s->port;
}

const char *qn_server_url(const qn_server *s)
{
    return s->url;
}

/* ---- stop ---- */

/* Wait until no generation runs; returns how many still do after `limit_ms`. */
static unsigned wait_idle(qn_server *s, double limit_ms)
{
    double end_ms = qn_now_ms() + limit_ms;
    const struct timespec nap = {.tv_nsec = 5000000};
    while (atomic_load(&s->n_generations) && qn_now_ms() < end_ms) nanosleep(&nap, NULL);
    return atomic_load(&s->n_generations);
}

unsigned qn_server_stop(qn_server *s, uint32_t drain_ms)
{
    if (!s) return 0;
    atomic_store(&s->draining, true);
    unsigned n_ended = 0;
    if (s->daemon) MHD_quiesce_daemon(s->daemon);
    if (s->listen_fd >= 0) {
        /* Who connects from here on is refused at once instead of waiting for the end. */
        shutdown(s->listen_fd, SHUT_RDWR);
        remove_unix(s);
    }
    if (s->daemon) {
        n_ended = wait_idle(s, drain_ms);
        if (n_ended) {
            qn_pump_cancel(s);
            wait_idle(s, FORCED_END_MS);
        }
    }
    if (s->listen_fd >= 0) close(s->listen_fd);
    qn_generations_stop(s);
    qn_pump_stop(s);
    qn_http_stop(s);
    qn_pump_forget(s);
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    if (s->wake_fd >= 0) close(s->wake_fd);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->prepare_some);
    qn_metrics_release(&s->metrics);
    qn_response_store_close(s->responses);
    free(s);
    return n_ended;
}
