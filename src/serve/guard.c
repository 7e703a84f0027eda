/* guard.c - who may ask: the Host check against DNS rebinding, API keys, CORS. */
#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "serve/exchange.h"

static const char *header(struct MHD_Connection *conn, const char *name)
{
    return MHD_lookup_connection_value(conn, MHD_HEADER_KIND, name);
}

/* ---- Host ---- */

bool qn_guard_is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (!strcasecmp(host, "localhost")) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* The name part of a Host header: brackets and port removed. */
static void host_name(const char *value, char *out, size_t cap)
{
    const char *end = value + strcspn(value, ":");
    if (*value == '[') {
        value++;
        end = value + strcspn(value, "]");
    }
    snprintf(out, cap, "%.*s", (int)(end - value), value);
}

static bool host_allowed(const qn_server *s, const char *value)
{
    char name[256];
    if (!value) return true; /* HTTP/1.0; browsers always send one */
    host_name(value, name, sizeof name);
    return qn_guard_is_loopback(name) || !strcasecmp(name, s->opts.host);
}

/* ---- keys ---- */

static bool same_key(const char *a, const char *b)
{
    size_t n = strlen(a);
    return n == strlen(b) && !CRYPTO_memcmp(a, b, n);
}

static bool key_allowed(const qn_server *s, struct MHD_Connection *conn)
{
    const char *bearer = header(conn, "Authorization");
    const char *plain = header(conn, "x-api-key");
    if (bearer && strncasecmp(bearer, "Bearer ", 7)) bearer = NULL;
    bool ok = false;
    for (const char *const *k = s->opts.api_keys; *k; k++) {
        if (bearer && same_key(bearer + 7, *k)) ok = true;
        if (plain && same_key(plain, *k)) ok = true;
    }
    return ok;
}

bool qn_guard_check(const qn_server *s, struct MHD_Connection *conn, bool is_open, qn_http_error *e)
{
    bool has_keys = s->opts.api_keys && s->opts.api_keys[0];
    if (s->is_loopback && !has_keys && !host_allowed(s, header(conn, "Host"))) {
        return qn_fail_with(e, 403, "permission_error", NULL, NULL,
                            "this server answers to localhost only; start it with --host or "
                            "--api-key to be reached by another name");
    }
    if (!has_keys || is_open || key_allowed(s, conn)) return true;
    return qn_fail_with(e, 401, "authentication_error", "invalid_api_key", NULL,
                        "a valid API key is required: send it as \"Authorization: Bearer KEY\"");
}

/* ---- CORS ---- */

/* The value for Access-Control-Allow-Origin, or NULL; *by_name: the origin is on the list. */
static const char *allowed_origin(const qn_server *s, const char *origin, bool *by_name)
{
    *by_name = false;
    bool any = false;
    for (const char *const *o = s->origins; *o; o++) {
        if (!strcmp(*o, "*")) any = true;
        if (origin && !strcasecmp(*o, origin)) *by_name = true;
    }
    if (any && !*by_name) return "*";
    return *by_name ? origin : NULL;
}

void qn_guard_cors(const qn_server *s, struct MHD_Connection *conn, const char *path,
                   struct MHD_Response *r, bool preflight)
{
    if (strncmp(path, "/v1", 3) && strcmp(path, "/health")) return;
    bool by_name;
    const char *origin = allowed_origin(s, header(conn, "Origin"), &by_name);
    if (by_name) MHD_add_response_header(r, "Vary", "Origin");
    if (!origin) return;
    MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
    const char *asked = header(conn, "Access-Control-Request-Headers");
    MHD_add_response_header(r, "Access-Control-Allow-Methods", "*");
    MHD_add_response_header(r, "Access-Control-Allow-Headers", asked ? asked : "*");
    if (!preflight) return;
    MHD_add_response_header(r, "Access-Control-Max-Age", "600");
    const char *private_net = header(conn, "Access-Control-Request-Private-Network");
    if (by_name && private_net && !strcasecmp(private_net, "true")) {
        MHD_add_response_header(r, "Access-Control-Allow-Private-Network", "true");
    }
}
