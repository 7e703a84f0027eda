/* response_store.c - see response_store.h. */
#include "serve/response_store.h"

#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUSY_MS = 1000 }; /* how long another server's write is waited for */

struct qn_response_store {
    sqlite3 *db;
    pthread_mutex_t lock; /* a put is several statements */
    uint64_t max_bytes;
    int64_t ttl_ms;
};

static const char schema[] =
    "PRAGMA journal_mode = WAL;"
    "PRAGMA synchronous = NORMAL;"
    "CREATE TABLE IF NOT EXISTS responses ("
    "  id TEXT PRIMARY KEY,"
    "  created INTEGER NOT NULL," /* ms since 1970 */
    "  used INTEGER NOT NULL,"    /* grows with every use */
    "  bytes INTEGER NOT NULL,"
    "  response TEXT NOT NULL,"
    "  input TEXT NOT NULL);"
    "CREATE INDEX IF NOT EXISTS responses_used ON responses (used);"
    "CREATE INDEX IF NOT EXISTS responses_created ON responses (created);"
    /* The sum of bytes, kept by triggers: a full store has too many rows to add up for each put. */
    "CREATE TABLE IF NOT EXISTS responses_total (bytes INTEGER NOT NULL);"
    "INSERT INTO responses_total SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM responses_total);"
    "CREATE TRIGGER IF NOT EXISTS responses_in AFTER INSERT ON responses BEGIN"
    "  UPDATE responses_total SET bytes = bytes + new.bytes; END;"
    "CREATE TRIGGER IF NOT EXISTS responses_out AFTER DELETE ON responses BEGIN"
    "  UPDATE responses_total SET bytes = bytes - old.bytes; END;";

static qn_code fail(const qn_response_store *s, qn_err *err)
{
    return qn_err_set(err, QN_IO, "the store of responses: %s",
                      s->db ? sqlite3_errmsg(s->db) : "out of memory");
}

/* The file holds what users wrote: nobody else may read it. SQLite's other files follow it. */
static void make_private(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
}

qn_code qn_response_store_open(qn_response_store **out, const qn_response_store_opts *opts,
                               qn_err *err)
{
    *out = NULL;
    qn_response_store *s = calloc(1, sizeof *s);
    if (!s) return qn_err_set(err, QN_NOMEM, "the store of responses: out of memory");
    s->max_bytes = opts->max_bytes;
    s->ttl_ms = opts->ttl_ms;
    pthread_mutex_init(&s->lock, NULL);
    if (opts->path) make_private(opts->path);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX;
    bool ok = sqlite3_open_v2(opts->path ? opts->path : ":memory:", &s->db, flags, NULL) == SQLITE_OK;
    if (ok) sqlite3_busy_timeout(s->db, BUSY_MS);
    ok = ok && sqlite3_exec(s->db, schema, NULL, NULL, NULL) == SQLITE_OK;
    if (!ok) {
        qn_code rc = qn_err_set(err, QN_IO, "the store of responses in %s: %s",
                                opts->path ? opts->path : "memory",
                                s->db ? sqlite3_errmsg(s->db) : "out of memory");
        qn_response_store_close(s);
        return rc;
    }
    *out = s;
    return QN_OK;
}

void qn_response_store_close(qn_response_store *s)
{
    if (!s) return;
    sqlite3_close(s->db);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- statements ---- */

/* A statement with an id and a number for its parameters ?1 and ?2; NULL if the database refuses. */
static sqlite3_stmt *statement(qn_response_store *s, const char *sql, const char *id, int64_t number)
{
    sqlite3_stmt *st = NULL;
    if (sqlite3_prepare_v2(s->db, sql, -1, &st, NULL) != SQLITE_OK) return NULL;
    if (id) sqlite3_bind_text(st, 1, id, -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 2, number);
    return st;
}

/* Run one to its end; *changed: rows it changed, or NULL. */
static bool run(qn_response_store *s, sqlite3_stmt *st, int *changed)
{
    bool ok = st && sqlite3_step(st) == SQLITE_DONE;
    if (changed) *changed = ok ? sqlite3_changes(s->db) : 0;
    sqlite3_finalize(st);
    return ok;
}

static bool drop_expired(qn_response_store *s, int64_t now_ms)
{
    return run(s, statement(s, "DELETE FROM responses WHERE created <= ?2", NULL,
                            now_ms - s->ttl_ms), NULL);
}

/* Drop what was not used for longest until the rest fits. */
static bool drop_over_limit(qn_response_store *s)
{
    static const char sql[] =
        "DELETE FROM responses WHERE (SELECT bytes FROM responses_total) > ?2"
        " AND rowid = (SELECT rowid FROM responses ORDER BY used LIMIT 1)";
    int n = 1;
    while (n) {
        if (!run(s, statement(s, sql, NULL, (int64_t)s->max_bytes), &n)) return false;
    }
    return true;
}

static bool insert(qn_response_store *s, const char *id, const qn_buf *response, const qn_buf *input,
                   int64_t now_ms)
{
    static const char sql[] =
        "INSERT INTO responses (id, created, used, bytes, response, input) VALUES (?1,"
        " ?2, (SELECT coalesce(max(used), 0) + 1 FROM responses), ?3, ?4, ?5)";
    sqlite3_stmt *st = statement(s, sql, id, now_ms);
    if (!st) return false;
    sqlite3_bind_int64(st, 3, (int64_t)(response->len + input->len));
    sqlite3_bind_text64(st, 4, response->data, response->len, SQLITE_STATIC, SQLITE_UTF8);
    sqlite3_bind_text64(st, 5, input->data, input->len, SQLITE_STATIC, SQLITE_UTF8);
    return run(s, st, NULL);
}

/* ---- the store ---- */

qn_code qn_response_store_put(qn_response_store *s, const char *id, const qn_buf *response,
                              const qn_buf *input, int64_t now_ms, qn_err *err)
{
    if (response->failed || input->failed) {
        return qn_err_set(err, QN_NOMEM, "the store of responses: out of memory");
    }
    if (response->len + input->len > s->max_bytes) {
        return qn_err_set(err, QN_LIMIT, "a response of %zu bytes is not stored: the store is for "
                                         "%llu bytes", response->len + input->len,
                          (unsigned long long)s->max_bytes);
    }
    pthread_mutex_lock(&s->lock);
    bool ok = sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK;
    bool begun = ok;
    ok = ok && insert(s, id, response, input, now_ms) && drop_expired(s, now_ms) &&
         drop_over_limit(s) && sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL) == SQLITE_OK;
    qn_code rc = ok ? QN_OK : fail(s, err);
    if (begun && !ok) sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static json_t *column_tree(sqlite3_stmt *st, int column)
{
    const char *text = (const char *)sqlite3_column_text(st, column);
    return text ? json_loadb(text, (size_t)sqlite3_column_bytes(st, column), JSON_ALLOW_NUL, NULL)
                : NULL;
}

bool qn_response_store_get(qn_response_store *s, const char *id, int64_t now_ms, json_t **response,
                           json_t **input)
{
    static const char find[] = "SELECT response, input FROM responses WHERE id = ?1 AND created > ?2";
    static const char touch[] = "UPDATE responses SET used = (SELECT max(used) + 1 FROM responses)"
                                " WHERE id = ?1";
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *st = statement(s, find, id, now_ms - s->ttl_ms);
    bool found = st && sqlite3_step(st) == SQLITE_ROW;
    if (found) {
        json_t *trees[] = {column_tree(st, 0), column_tree(st, 1)};
        found = trees[0] && trees[1];
        if (found && response) *response = json_incref(trees[0]);
        if (found && input) *input = json_incref(trees[1]);
        json_decref(trees[0]);
        json_decref(trees[1]);
    }
    sqlite3_finalize(st);
    if (found) run(s, statement(s, touch, id, 0), NULL);
    pthread_mutex_unlock(&s->lock);
    return found;
}

bool qn_response_store_delete(qn_response_store *s, const char *id, int64_t now_ms)
{
    int n = 0;
    pthread_mutex_lock(&s->lock);
    run(s, statement(s, "DELETE FROM responses WHERE id = ?1 AND created > ?2", id,
                     now_ms - s->ttl_ms), &n);
    pthread_mutex_unlock(&s->lock);
    return n > 0;
}

void qn_response_store_stats_get(qn_response_store *s, int64_t now_ms,
                                 qn_response_store_stats *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *st = statement(s, "SELECT count(*), sum(bytes) FROM responses WHERE created > ?2",
                                 NULL, now_ms - s->ttl_ms);
    if (st && sqlite3_step(st) == SQLITE_ROW) {
        out->entries = (uint64_t)sqlite3_column_int64(st, 0);
        out->bytes = (uint64_t)sqlite3_column_int64(st, 1);
    }
    sqlite3_finalize(st);
    pthread_mutex_unlock(&s->lock);
}
