/* response_store.h - stored responses of /v1/responses: what previous_response_id and GET find.
 *
 * A table in an SQLite file of Quern's own folder, so that a conversation survives a restart; or in
 * memory. Bounded by age and by bytes of JSON: what has expired goes first, then what was not used
 * for longest. Several servers may share the file.
 *
 * A put returns at once and a thread of the store writes, because the thread that feeds the streams
 * must not wait for a disk. Whoever looks something up waits for the puts before.
 * Threads: any; locks inside.
 */
#ifndef QN_SERVE_RESPONSE_STORE_H
#define QN_SERVE_RESPONSE_STORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

typedef struct qn_response_store qn_response_store;

typedef struct qn_response_store_opts {
    const char *path;   /* NULL: in memory */
    uint64_t max_bytes; /* 0: store nothing */
    int64_t ttl_ms;     /* age at which a response is gone */
} qn_response_store_opts;

typedef struct qn_response_store_stats {
    uint64_t entries, bytes;
} qn_response_store_stats;

/* Open, and make the table if there is none. Errors: QN_IO (names the file), QN_NOMEM. */
qn_code qn_response_store_open(qn_response_store **out, const qn_response_store_opts *opts,
                               qn_err *err);

/* Write what waits and close. NULL is allowed (no failure). */
void qn_response_store_close(qn_response_store *s);

/* Keep a response, as JSON text, with the list of items that it answered. Takes both texts, which
 * are empty afterwards. One that is larger than the whole store, or than the room that waiting ones
 * leave, is not kept. A failure to write is logged. Errors: QN_LIMIT, QN_NOMEM. */
qn_code qn_response_store_put(qn_response_store *s, const char *id, qn_buf *response, qn_buf *input,
                              int64_t now_ms, qn_err *err);

/* Find a response. *response and *input become the caller's trees; either may be NULL, meaning not
 * wanted. Returns false if there is none, or no longer (no failure). */
bool qn_response_store_get(qn_response_store *s, const char *id, int64_t now_ms, json_t **response,
                           json_t **input);

/* Remove a response. Returns false if there was none (no failure). */
bool qn_response_store_delete(qn_response_store *s, const char *id, int64_t now_ms);

/* What is stored now (no failure). */
void qn_response_store_stats_get(qn_response_store *s, int64_t now_ms,
                                 qn_response_store_stats *out);

#endif
