/* response_store.c - see response_store.h. */
#include "serve/response_store.h"

#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"

enum { BUSY_MS = 1000 }; /* how long another server's write is waited for */

/* A response on its way to the database. */
typedef struct entry {
    struct entry *next;
    char id[64];
    qn_buf response, input;
    int64_t now_ms;
} entry;

struct qn_response_store {
    uint64_t max_bytes;
    int64_t ttl_ms;

    pthread_mutex_t db_lock;  /* a put is several statements */
    sqlite3 *db;

    pthread_mutex_t lock;     /* guards what follows */
    pthread_cond_t some, done;
    entry *head, *tail;       /* to be written */
    uint64_t n_put, n_written, waiting_bytes;
    bool stop, runs;
    pthread_t writer;
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

/* The file holds what users wrote: nobody else may read it. SQLite's other files follow it. */
static void make_private(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
}

static void *writer_main(void *user);

static bool open_db(qn_response_store *s, const char *path)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX;
    if (path) make_private(path);
    if (sqlite3_open_v2(path ? path : ":memory:", &s->db, flags, NULL) != SQLITE_OK) return false;
    sqlite3_busy_timeout(s->db, BUSY_MS);
    return sqlite3_exec(s->db, schema, NULL, NULL, NULL) == SQLITE_OK;
}

qn_code qn_response_store_open(qn_response_store **out, const qn_response_store_opts *opts,
                               qn_err *err)
{
    *out = NULL;
    qn_code rc = QN_OK;
    qn_response_store *s = calloc(1, sizeof *s);
    if (!s) return qn_err_set(err, QN_NOMEM, "the store of responses: out of memory");
    s->max_bytes = opts->max_bytes;
    s->ttl_ms = opts->ttl_ms;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->db_lock, NULL);
    pthread_cond_init(&s->some, NULL);
    pthread_cond_init(&s->done, NULL);
    if (!open_db(s, opts->path)) {
        rc = qn_err_set(err, QN_IO, "the store of responses in %s: %s",
                        opts->path ? opts->path : "memory",
                        s->db ? sqlite3_errmsg(s->db) : "out of memory");
    } else {
        s->runs = !pthread_create(&s->writer, NULL, writer_main, s);
        if (!s->runs) rc = qn_err_set(err, QN_NOMEM, "the store of responses: no thread");
    }
    if (rc) qn_response_store_close(s);
    else *out = s;
    return rc;
}

void qn_response_store_close(qn_response_store *s)
{
    if (!s) return;
    if (s->runs) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->some);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->writer, NULL);
    }
    sqlite3_close(s->db);
    pthread_cond_destroy(&s->some);
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->db_lock);
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

static bool insert(qn_response_store *s, const entry *e)
{
    static const char sql[] =
        "INSERT INTO responses (id, created, used, bytes, response, input) VALUES (?1,"
        " ?2, (SELECT coalesce(max(used), 0) + 1 FROM responses), ?3, ?4, ?5)";
    sqlite3_stmt *st = statement(s, sql, e->id, e->now_ms);
    if (!st) return false;
    sqlite3_bind_int64(st, 3, (int64_t)(e->response.len + e->input.len));
    sqlite3_bind_text64(st, 4, e->response.data, e->response.len, SQLITE_STATIC, SQLITE_UTF8);
    sqlite3_bind_text64(st, 5, e->input.data, e->input.len, SQLITE_STATIC, SQLITE_UTF8);
    return run(s, st, NULL);
}

/* ---- writing ---- */

static void write_entry(qn_response_store *s, const entry *e)
{
    pthread_mutex_lock(&s->db_lock);
    bool begun = sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK;
    bool ok = begun && insert(s, e) && drop_expired(s, e->now_ms) && drop_over_limit(s) &&
              sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL) == SQLITE_OK;
    if (!ok) qn_log(QN_WARNING, "%s is not stored: %s", e->id, sqlite3_errmsg(s->db));
    if (begun && !ok) sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    pthread_mutex_unlock(&s->db_lock);
}

static void *writer_main(void *user)
{
    qn_response_store *s = user;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->head && !s->stop) pthread_cond_wait(&s->some, &s->lock);
        entry *e = s->head;
        if (!e) break;
        s->head = e->next;
        pthread_mutex_unlock(&s->lock);
        write_entry(s, e);
        pthread_mutex_lock(&s->lock);
        s->n_written++;
        s->waiting_bytes -= e->response.len + e->input.len;
        pthread_cond_broadcast(&s->done);
        qn_buf_release(&e->response);
        qn_buf_release(&e->input);
        free(e);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Take the database once everything that was put so far is in it. */
static void lock_written(qn_response_store *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t until = s->n_put;
    while (s->n_written < until) pthread_cond_wait(&s->done, &s->lock);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&s->db_lock);
}

/* ---- the store ---- */

qn_code qn_response_store_put(qn_response_store *s, const char *id, qn_buf *response, qn_buf *input,
                              int64_t now_ms, qn_err *err)
{
    qn_code rc = QN_OK;
    size_t n = response->len + input->len;
    entry *e = response->failed || input->failed ? NULL : calloc(1, sizeof *e);
    if (!e) return qn_err_set(err, QN_NOMEM, "the store of responses: out of memory");
    snprintf(e->id, sizeof e->id, "%s", id);
    e->now_ms = now_ms;
    pthread_mutex_lock(&s->lock);
    if (n > s->max_bytes || s->waiting_bytes > s->max_bytes - n) {
        rc = qn_err_set(err, QN_LIMIT, "a response of %zu bytes is not stored: the store is for %llu "
                                       "bytes, of which %llu wait to be written", n,
                        (unsigned long long)s->max_bytes, (unsigned long long)s->waiting_bytes);
        free(e);
    } else {
        e->response = *response;
        e->input = *input;
        *response = *input = (qn_buf){0};
        if (s->head) s->tail->next = e;
        else s->head = e;
        s->tail = e;
        s->n_put++;
        s->waiting_bytes += n;
        pthread_cond_signal(&s->some);
    }
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
    lock_written(s);
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
    pthread_mutex_unlock(&s->db_lock);
    return found;
}

bool qn_response_store_delete(qn_response_store *s, const char *id, int64_t now_ms)
{
    int n = 0;
    lock_written(s);
    run(s, statement(s, "DELETE FROM responses WHERE id = ?1 AND created > ?2", id,
                     now_ms - s->ttl_ms), &n);
    pthread_mutex_unlock(&s->db_lock);
    return n > 0;
}

void qn_response_store_stats_get(qn_response_store *s, int64_t now_ms,
                                 qn_response_store_stats *out)
{
    memset(out, 0, sizeof *out);
    lock_written(s);
    sqlite3_stmt *st = statement(s, "SELECT count(*), sum(bytes) FROM responses WHERE created > ?2",
                                 NULL, now_ms - s->ttl_ms);
    if (st && sqlite3_step(st) == SQLITE_ROW) {
        out->entries = (uint64_t)sqlite3_column_int64(st, 0);
        out->bytes = (uint64_t)sqlite3_column_int64(st, 1);
    }
    sqlite3_finalize(st);
    pthread_mutex_unlock(&s->db_lock);
}
