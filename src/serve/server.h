/* server.h - the HTTP server: one model behind the OpenAI protocol.
 *
 * What is inside, one file each: http.c (connections, routing, replies), guard.c (who may ask),
 * routes.c (the paths), generation.c (preparing requests, taking the engine's events), pump.c (the
 * thread that does the latter, and writes streams), request.c and messages.c (fields),
 * chat_prompt.c (a chat request to its prompt), pieces.c, markers.c and parts.c (tokens to the parts
 * of a reply), tool_*.c (how families write tool calls), openai_*.c (one per protocol surface),
 * models.c (models, health), stats.c and metrics.c (figures), texts.c (tokenizer and template),
 * probe.c (does a server answer on the port already?).
 *
 * The server borrows the engine and the model, which outlive it. It starts three threads of its
 * own: one for connections, one that prepares requests, one that turns events into replies. No
 * request ends the process.
 * Threads: start and stop from one thread; the others from any.
 */
#ifndef QN_SERVE_SERVER_H
#define QN_SERVE_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "engine/engine.h"
#include "engine/loaded.h"
#include "serve/request.h"
#include "text/sanitize.h"

typedef struct qn_server qn_server;

/* The name of the reasoning in chat replies. */
typedef enum qn_reasoning_field {
    QN_REASONING_BOTH = 0,
    QN_REASONING_PLAIN,  /* reasoning */
    QN_REASONING_CONTENT /* reasoning_content */
} qn_reasoning_field;

typedef struct qn_server_opts {
    const char *host;      /* address to listen on; NULL: 127.0.0.1 */
    uint16_t port;         /* 0: any free one */
    const char *unix_path; /* a socket in the file system instead of host and port; NULL: none */
    qn_engine *engine;
    const qn_loaded *loaded;
    const char *const *api_keys;        /* NULL terminated; NULL or empty: none needed */
    const char *const *allowed_origins; /* NULL terminated; NULL: "*" */
    size_t body_limit_bytes;            /* 0: 128 MiB */
    uint32_t body_timeout_ms;           /* silence while a body is read; 0: 60000 */
    uint32_t ping_ms;                   /* silence before a comment in a stream; 0: 15000 */
    qn_request_defaults defaults;       /* for chat; completions use 512 tokens when none are set */
    const qn_sanitizer *sanitizer;      /* of what goes into the chat template; NULL: none */
    const json_t *template_args;        /* object for every chat template; NULL: none */
    uint64_t memory_budget_bytes;       /* what the operator allows; 0: no budget */
    uint64_t kv_budget_bytes;           /* the same for the KV cache alone */
    bool budget_binds;                  /* the context is shorter because of that budget */
    const char *metrics_prefix;         /* of the names in /metrics; NULL: "quern:" */
    qn_reasoning_field reasoning_field; /* names in chat replies */
    const char *store_path;             /* file of stored responses; NULL: in memory */
    uint64_t store_bytes;               /* most bytes of stored responses; 0: 32 MiB */
    uint32_t store_ttl_ms;              /* their age; 0: an hour */
    bool no_store;                      /* store no responses */
} qn_server_opts;

/* Listen and serve. Strings and lists are borrowed until qn_server_stop. Errors: QN_IO (the address
 * is unknown or in use: names it), QN_NOMEM, QN_INVALID. */
qn_code qn_server_start(qn_server **out, const qn_server_opts *opts, qn_err *err);

/* Try the address and let it go again, so that a port in use is known before a model is loaded.
 * A server that answers on the same port of localhost counts, whatever its address: QN_IO names its
 * model. Errors: as qn_server_start for the address. */
qn_code qn_server_check_address(const qn_server_opts *opts, qn_err *err);

/* The port in use; 0 on a unix socket (no failure). */
uint16_t qn_server_port(const qn_server *s);

/* "http://HOST:PORT" or "unix:PATH"; kept until qn_server_stop (no failure). */
const char *qn_server_url(const qn_server *s);

/* Stop accepting, let running requests finish for up to drain_ms, end the rest with an error, free
 * everything. Returns how many requests had to be ended (no failure). */
unsigned qn_server_stop(qn_server *s, uint32_t drain_ms);

#endif
