/* exchange.h - one HTTP request and its reply, inside the room: what http.c, generation.c, pump.c
 * and the protocols share.
 *
 * An exchange is made by the connection thread, handed to the preparing thread, then to the pump,
 * which writes the frames of a stream; any other reply, and what stands around the frames, goes out
 * through the connection thread. Phases move forward only:
 *
 *     BODY -> PREPARE -> RUN -> REPLY        a generation
 *     BODY -> REPLY                          everything else, and errors
 *
 * Ownership: counted references; the connection holds one until it is completed, and a poke until
 * the pump has looked.
 * Threads: `lock` guards everything below it. In PREPARE the preparing thread alone touches `gen`.
 * While `suspended`, libmicrohttpd does not look at the connection; only the pump resumes it, and
 * only the pump writes to the socket.
 */
#ifndef QN_SERVE_EXCHANGE_H
#define QN_SERVE_EXCHANGE_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "core/arena.h"
#include "core/buf.h"
#include "serve/error.h"
#include "serve/metrics.h"
#include "serve/pieces.h"
#include "serve/response_store.h"
#include "serve/server.h"
#include "text/boundary.h"

typedef struct qn_exchange qn_exchange;

enum {
    QN_MAX_NEWLINE = 4, /* tokens of a newline */
    QN_MAX_WARNINGS = 4 /* Warning headers of a reply */
};

/* One protocol surface: JSON in, engine request out; pieces of text in, wire bytes out. Prepare
 * runs in the preparing thread; the others with the exchange locked, and append to x->out. */
typedef struct qn_protocol {
    const char *prompt_param; /* the field that a too long prompt is blamed on */
    /* Read x->gen.body into fields and prompt ids. Returns false with *e filled. */
    bool (*prepare)(qn_exchange *x, qn_http_error *e);
    void (*begin)(qn_exchange *x);    /* stream: the frames before admission; NULL: none */
    void (*admitted)(qn_exchange *x); /* stream: cached tokens are known; NULL: does not matter */
    void (*piece)(qn_exchange *x, const qn_piece *p);   /* stream: text became certain */
    void (*end)(qn_exchange *x, const qn_piece *rest);  /* stream: the last frames */
    void (*reply)(qn_exchange *x);                      /* not streamed: the whole body */
    void (*stream_error)(qn_exchange *x);               /* stream: x->error as a frame */
    /* Stream: an event for a client that waits; NULL: comments are enough. */
    void (*remind)(qn_exchange *x);
    /* The logprobs are sorted by part: `piece` is called for a reply that is not streamed too. */
    bool sorts_logprobs;
    /* Stream, for return_progress: so much of the prompt is computed. NULL: a comment says so. */
    void (*progress)(qn_exchange *x, const qn_event *ev);
} qn_protocol;

/* One of handle, answer and protocol is set. */
typedef struct qn_route {
    const char *method;
    const char *path;                 /* ends in "/" when the rest of the path is an argument */
    const char *suffix;               /* what must follow the argument, part of `tail`; or NULL */
    void (*handle)(qn_exchange *x);   /* replies at once, in the connection thread */
    /* Replies in the preparing thread, a POST from its parsed body: the tree for a 200, or NULL
     * with *e filled. */
    json_t *(*answer)(qn_exchange *x, qn_http_error *e);
    const qn_protocol *protocol;      /* of a generation */
    bool open;                        /* needs no key */
} qn_route;

typedef enum qn_phase {
    QN_PHASE_BODY = 0,
    QN_PHASE_PREPARE,
    QN_PHASE_RUN,
    QN_PHASE_REPLY
} qn_phase;

/* Where the stream of a protocol with numbered parts is. */
typedef struct qn_cursor {
    uint32_t index;       /* of the open part, or of the next one */
    bool is_open;
    qn_part_kind kind;    /* of the open part */
    uint64_t sequence;    /* number of the next event */
    double last_event_ms; /* when the last event was added; comments do not count */
} qn_cursor;

/* A generation's own state, part of its exchange. */
typedef struct qn_generation {
    json_t *body;         /* the request; strings in `fields` point into it */
    json_t *chat;         /* the same in the chat form (chat_prompt.h), or NULL */
    json_t *own;          /* what the protocol keeps for itself, or NULL */
    qn_cursor at;
    json_t *tools;        /* the tools of a chat request, or NULL; `output` points to them */
    const char *warnings[QN_MAX_WARNINGS]; /* [n_warnings] headers; constant texts */
    size_t n_warnings;
    qn_arena arena;
    qn_fields fields;
    qn_ids prompt;
    uint32_t snapshot_at; /* of qn_request */
    uint32_t max_tokens;  /* clamped to the context */
    qn_think_limit think; /* of the reasoning's length */
    qn_output output;     /* what the reply may hold besides text */
    qn_buf frames[2];     /* of a chat stream: a chunk of text, and of reasoning (qn_sse_fill) */
    qn_gen *handle;       /* the engine's; NULL before submit */
    qn_pieces pieces;
    char id[48];          /* "chatcmpl-..." */
    int64_t created;      /* seconds since 1970 */
    const char *finish;   /* finish_reason once known: stop, length, tool_calls, error */
    qn_gen_stats stats;   /* once done; from admission: prompt_tokens and cached_tokens */
    qn_sample *prompt_samples; /* [prompt.len] in the arena, for echo with logprobs; else NULL */
    bool echoed;          /* the prompt went out */
    size_t n_chars_out;   /* characters of the reply behind the last logprobs */
    double ttft_ms;       /* from the request to the first token; 0 before */
    double last_token_ms; /* when the last token came; 0 before the first */
} qn_generation;

struct qn_exchange {
    qn_server *server;
    atomic_int n_refs;
    atomic_bool is_ready;        /* poked: the pump is going to look at it */
    qn_exchange *next_ready;     /* in the server's `ready` */
    qn_exchange *prev, *next;    /* the server's list, under its lock */
    qn_exchange *next_prepare;   /* the queue to the preparing thread */

    /* The request; fixed once the headers are in. */
    const qn_route *route;       /* NULL: none */
    char request_id[132];
    char path[512];              /* cut if longer */
    const char *tail;            /* the argument part of `path` */
    json_t *query;               /* of an answered GET: its fields, strings; else NULL */
    bool is_http10;
    double start_ms;

    pthread_mutex_t lock;
    struct MHD_Connection *conn; /* NULL once completed */
    int fd;                      /* of the connection */
    qn_buf body;
    qn_phase phase;
    bool suspended;
    bool responded;              /* headers were handed over */
    bool stream;                 /* the reply is an event stream */
    bool gone;                   /* the client left, or reads too slowly */
    bool counted;                /* in the server's n_generations */
    bool probed;                 /* a byte was sent to find out whether it left */
    int status;                  /* of the reply */
    const char *content_type;    /* of the reply; NULL: application/json */
    const char *allow;           /* for 405: the methods that exist */
    qn_http_error error;
    qn_buf out;                  /* reply bytes not sent yet */
    qn_buf wire;                 /* the rest of a frame that is being sent, as it goes out */
    bool is_full;                /* the socket takes nothing at present */
    uint64_t body_bytes, sent_bytes;
    double last_body_ms;         /* when bytes of the body last came */
    double last_out_ms;          /* when a frame was last added */
    qn_generation gen;
};

struct qn_server {
    qn_server_opts opts;         /* defaults filled in */
    const char *const *origins;
    char url[320];
    uint16_t port;
    int listen_fd;
    dev_t unix_dev;              /* which file the socket in the file system is */
    ino_t unix_ino;
    struct MHD_Daemon *daemon;
    qn_boundary boundary;        /* the preparing thread alone */
    char fingerprint[64];        /* system_fingerprint */
    const char *lane;            /* how requests run, as usage and the log name it */
    qn_metrics metrics;
    qn_response_store *responses; /* NULL: responses are not stored */
    uint32_t special[QN_MAX_EOS + QN_MAX_NEWLINE]; /* ids that xtc never removes */
    size_t n_special;
    int64_t started;             /* seconds since 1970 */
    bool is_loopback;            /* it listens on an address of this machine alone */

    atomic_bool draining;
    atomic_uint n_generations;   /* accepted and not completed */

    pthread_mutex_t lock;        /* the list and the queue */
    qn_exchange *exchanges;
    size_t n_exchanges;
    pthread_cond_t prepare_some;
    qn_exchange *prepare_head, *prepare_tail;
    unsigned n_prepare;

    atomic_int n_alive;          /* exchanges that exist */
    _Atomic(qn_exchange *) ready; /* a stack of those that were poked, by next_ready */
    atomic_bool pump_awake;      /* it is going to look at `ready` by itself */
    pthread_t pump, preparer;
    bool pump_runs, preparer_runs;
    atomic_bool stop;
    int epoll_fd;                /* the pump sleeps here */
    int wake_fd;                 /* eventfd: something became ready while it slept */
};

/* Drop one reference; the last frees (no failure). */
void qn_exchange_unref(qn_exchange *x);

/* Set the reply to the tree with a status, and end the exchange. Takes the tree. x is locked or not
 * shared yet. Errors: without memory the reply is a bare 500. */
void qn_exchange_reply(qn_exchange *x, int status, json_t *tree);

/* Set the reply to x->error (no failure). */
void qn_exchange_reply_error(qn_exchange *x);

/* A header of the request, or NULL. Connection thread (no failure). */
const char *qn_exchange_header(const qn_exchange *x, const char *name);

/* A field of the query of a GET that is answered by the preparing thread, or NULL. Any thread (no
 * failure). */
const char *qn_exchange_query(const qn_exchange *x, const char *name);

/* ---- routes.c ---- */

/* The route of a method and path, with *tail at the path's argument. NULL if there is none; *allow
 * then names the methods that the path takes, or is NULL (no failure). */
const qn_route *qn_route_find(const char *method, const char *path, const char **tail,
                              const char **allow);

/* The i-th route, NULL behind the last (no failure). */
const qn_route *qn_route_at(size_t i);

/* ---- generation.c ---- */

/* Start and end the preparing thread. Errors: QN_NOMEM. */
qn_code qn_generations_start(qn_server *s, qn_err *err);
void qn_generations_stop(qn_server *s);

/* Hand a read request to the preparing thread. Returns false with x->error filled when the queue is
 * full or the server drains. Connection thread, x locked. Errors: 429, 503. */
bool qn_generation_start(qn_exchange *x);

/* Take the engine's events and append to x->out what the protocol makes of them. The pump, x locked
 * and in RUN (no failure: errors become the reply). */
void qn_generation_take(qn_exchange *x);

/* Free what a generation holds; a running one is cancelled (no failure). */
void qn_generation_release(qn_generation *g);

/* ---- pump.c ---- */

/* Start and end the pump; at its end every connection is let go. Errors: QN_IO, QN_NOMEM. */
qn_code qn_pump_start(qn_server *s, qn_err *err);
void qn_pump_stop(qn_server *s);

/* Cancel every running generation: its client gets an error. Any thread (no failure). */
void qn_pump_cancel(qn_server *s);

/* Wait until no exchange is left, dropping what pokes hold. Once all threads of the server have
 * ended (no failure). */
void qn_pump_forget(qn_server *s);

/* Tell the pump to look at x. Any thread, never blocks (no failure). */
void qn_exchange_poke(qn_exchange *x);

/* Suspend the connection until the pump resumes it. Connection thread, x locked (no failure). */
void qn_exchange_suspend(qn_exchange *x);

/* ---- http.c ---- */

/* Start and stop the connection thread on s->listen_fd. Errors: QN_IO. */
qn_code qn_http_start(qn_server *s, qn_err *err);
void qn_http_stop(qn_server *s);

/* ---- guard.c ---- */

/* Check Host and API key of a request. Returns false with *e filled. Errors: 401, 403. */
bool qn_guard_check(const qn_server *s, struct MHD_Connection *conn, bool is_open,
                    qn_http_error *e);

/* Add the CORS headers that fit the request to a response (no failure). */
void qn_guard_cors(const qn_server *s, struct MHD_Connection *conn, const char *path,
                   struct MHD_Response *r, bool preflight);

/* True for an address that only this machine can reach (no failure). */
bool qn_guard_is_loopback(const char *host);

/* ---- the surfaces ---- */

extern const qn_protocol qn_openai_chat, qn_openai_completions, qn_anthropic_messages, qn_responses;

/* anthropic.c: {"type": "error", "error": {"type", "message"}, "request_id"}, which the caller owns.
 * Errors: NULL without memory. */
json_t *qn_anthropic_error(const qn_http_error *e, const char *request_id);

/* Token counts of a request's prompt. Errors: as for the request itself. */
json_t *qn_anthropic_count_tokens(qn_exchange *x, qn_http_error *e);
json_t *qn_responses_count_tokens(qn_exchange *x, qn_http_error *e);

/* responses_stored.c. The store may wait for its disk. Errors: 400 for the query, 404. */
json_t *qn_responses_get(qn_exchange *x, qn_http_error *e);
json_t *qn_responses_items(qn_exchange *x, qn_http_error *e);
json_t *qn_responses_delete(qn_exchange *x, qn_http_error *e);

/* ---- pages ---- */

/* models.c (no failure). */
void qn_models_list(qn_exchange *x);
void qn_models_one(qn_exchange *x);
void qn_health(qn_exchange *x);
void qn_index(qn_exchange *x);
void qn_openapi(qn_exchange *x);

/* stats.c (no failure). */
void qn_stats_page(qn_exchange *x);
void qn_metrics_page(qn_exchange *x);
void qn_props_page(qn_exchange *x);
void qn_slots_page(qn_exchange *x);
void qn_cache_flush(qn_exchange *x);

/* texts.c. Errors: 400 with param, 500 without memory. */
json_t *qn_tokenize(qn_exchange *x, qn_http_error *e);
json_t *qn_detokenize(qn_exchange *x, qn_http_error *e);
json_t *qn_apply_template(qn_exchange *x, qn_http_error *e);
json_t *qn_count_chat(qn_exchange *x, qn_http_error *e);

/* embeddings.c. Errors: 400 with param, 429, 500. */
json_t *qn_embeddings(qn_exchange *x, qn_http_error *e);

/* True for a model whose hidden states are embeddings (no failure). */
bool qn_embeds(const qn_server *s);

#endif
