/* probe.c - see probe.h. */
#include "serve/probe.h"

#include <jansson.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/clock.h"

enum { WAIT_MS = 1500, MAX_REPLY_BYTES = 1 << 20 };

/* Wait for the socket; false when the time is over. */
static bool wait_for(int fd, short events, double end_ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    int left = (int)(end_ms - qn_now_ms());
    return left > 0 && poll(&p, 1, left) == 1;
}

/* Connect, without blocking for longer than until end_ms; -1: nobody is there. */
static int dial(const struct addrinfo *at, double end_ms)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), why = 0;
    socklen_t n = sizeof why;
    if (fd < 0) return -1;
    bool ok = !connect(fd, at->ai_addr, at->ai_addrlen) ||
              (wait_for(fd, POLLOUT, end_ms) && !getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n) && !why);
    if (ok) return fd;
    close(fd);
    return -1;
}

/* Everything that comes until the other side closes; false when the time is over. */
static bool receive(int fd, qn_buf *reply, double end_ms)
{
    char piece[4096];
    while (reply->len < MAX_REPLY_BYTES && wait_for(fd, POLLIN, end_ms)) {
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n <= 0) return n == 0;
        qn_buf_put(reply, piece, (size_t)n);
    }
    return false;
}

static bool read_model(const qn_buf *reply, char *model, size_t cap)
{
    const char *body = reply->len ? memmem(reply->data, reply->len, "\r\n\r\n", 4) : NULL;
    if (!body) return false;
    json_t *j = json_loadb(body + 4, (size_t)(reply->data + reply->len - body - 4), 0, NULL);
    json_t *row = json_array_get(json_object_get(j, "data"), 0);
    const char *id = json_string_value(json_object_get(row, "id"));
    if (id) snprintf(model, cap, "%s", id);
    json_decref(j);
    return id != NULL;
}

static bool ask(const struct addrinfo *at, char *model, size_t cap)
{
    /* HTTP/1.0, so that the reply has no chunks and ends with the connection. */
    static const char request[] = "GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n";
    double end_ms = qn_now_ms() + WAIT_MS;
    qn_buf reply = {0};
    int fd = dial(at, end_ms);
    if (fd < 0) return false;
    bool ok = send(fd, request, sizeof request - 1, MSG_NOSIGNAL) == (ssize_t)sizeof request - 1 &&
              receive(fd, &reply, end_ms) && read_model(&reply, model, cap);
    close(fd);
    qn_buf_release(&reply);
    return ok;
}

bool qn_probe_model(uint16_t port, char *model, size_t cap)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo("localhost", service, &hints, &found)) return false;
    bool ok = false;
    for (const struct addrinfo *at = found; at && !ok; at = at->ai_next) ok = ask(at, model, cap);
    freeaddrinfo(found);
    return ok;
}
