/* scan.c - the two places where models are: Quern's own folder and the Hugging Face cache. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "store/private.h"

static const char hub_prefix[] = "models--";

/* ---- where they are ---- */

qn_code qn_store_own_dir(char *out, size_t cap, qn_err *err)
{
    return qn_state_path(out, cap, "models", err);
}

static const char *env_value(const char *key)
{
    const char *v = getenv(key);
    return v && *v ? v : NULL;
}

/* Copy `text` with a leading ~ and every $NAME or ${NAME} replaced. */
static qn_code expand(const char *text, char *out, size_t cap, qn_err *err)
{
    size_t n = 0;
    const char *home = env_value("HOME");
    if (text[0] == '~' && (!text[1] || text[1] == '/') && home) {
        n = (size_t)snprintf(out, cap, "%s", home);
        text++;
    }
    while (*text && n < cap) {
        if (*text != '$') {
            out[n++] = *text++;
            continue;
        }
        bool braces = text[1] == '{';
        const char *name = text + 1 + braces;
        size_t len = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
        char key[128];
        if (!len || len >= sizeof key || (braces && name[len] != '}')) {
            out[n++] = *text++;
            continue;
        }
        memcpy(key, name, len);
        key[len] = '\0';
        const char *value = getenv(key);
        n += (size_t)snprintf(out + n, cap - n, "%s", value ? value : "");
        text = name + len + braces;
    }
    if (n >= cap) return qn_err_set(err, QN_LIMIT, "the path of the Hugging Face cache is longer than %zu bytes", cap);
    out[n] = '\0';
    return QN_OK;
}

qn_code qn_store_hub_dir(char *out, size_t cap, qn_err *err)
{
    static const struct { const char *key, *tail; } places[] = {
        {"HF_HUB_CACHE", ""}, {"HUGGINGFACE_HUB_CACHE", ""}, {"HF_HOME", "/hub"},
        {"XDG_CACHE_HOME", "/huggingface/hub"}, {"HOME", "/.cache/huggingface/hub"},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *base = env_value(places[i].key);
        if (!base) continue;
        char joined[QN_PATH_CAP];
        int n = snprintf(joined, sizeof joined, "%s%s", base, places[i].tail);
        if (n < 0 || n >= (int)sizeof joined) {
            return qn_err_set(err, QN_LIMIT, "%s is longer than %zu bytes", places[i].key, sizeof joined);
        }
        return expand(joined, out, cap, err);
    }
    return qn_err_set(err, QN_NOT_FOUND, "no folder for models: HOME is not set");
}

/* ---- names ---- */

const char *qn_hub_id(qn_store *s, const char *folder, size_t len)
{
    size_t n_prefix = sizeof hub_prefix - 1;
    if (len <= n_prefix || memcmp(folder, hub_prefix, n_prefix)) return NULL;
    char *id = qn_arena_dup(&s->arena, folder + n_prefix, len - n_prefix);
    if (!id) return NULL;
    char *to = id;
    for (const char *from = id; *from;) {
        if (from[0] == '-' && from[1] == '-') *to++ = '/', from += 2;
        else *to++ = *from++;
    }
    *to = '\0';
    return id;
}

const char *qn_hub_id_of(qn_store *s, const char *path)
{
    const char *snapshots = strstr(path, "/snapshots/");
    if (!snapshots) return NULL;
    const char *folder = snapshots;
    while (folder > path && folder[-1] != '/') folder--;
    return qn_hub_id(s, folder, (size_t)(snapshots - folder));
}

/* ---- scanning ---- */

/* The folders in `dir` whose names do not start with a dot, sorted; the caller frees the list and
 * each name. A missing folder gives 0. */
static int list_folders(const char *dir, struct dirent ***out)
{
    int n = scandir(dir, out, NULL, alphasort);
    int kept = 0;
    for (int i = 0; i < n; i++) {
        char path[QN_PATH_CAP];
        struct dirent *e = (*out)[i];
        int len = snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        bool good = e->d_name[0] != '.' && len > 0 && len < (int)sizeof path && qn_is_dir(path) &&
                    !strstr(e->d_name, ".partial-");
        if (good) (*out)[kept++] = e;
        else free(e);
    }
    if (n < 0) *out = NULL;
    return kept;
}

static void free_folders(struct dirent **list, int n)
{
    for (int i = 0; i < n; i++) free(list[i]);
    free(list);
}

qn_code qn_store_add(qn_store *s, qn_model_entry *e, qn_err *err)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 16;
        qn_model_entry **grown = realloc(s->entries, cap * sizeof *grown);
        if (!grown) return qn_err_set(err, QN_NOMEM, "models: out of memory");
        s->entries = grown;
        s->cap = cap;
    }
    s->entries[s->n++] = e;
    return QN_OK;
}

/* Models at DIR/NAME and, where NAME is no model, at DIR/NAME/SUB. `prefix` is "" or "NAME/". */
static qn_code scan_own(qn_store *s, const char *dir, const char *prefix, qn_err *err)
{
    struct dirent **list;
    int n = list_folders(dir, &list);
    qn_code rc = QN_OK;
    for (int i = 0; i < n && !rc; i++) {
        char path[QN_PATH_CAP], id[QN_PATH_CAP];
        qn_model_entry *e;
        int n_path = snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name);
        int n_id = snprintf(id, sizeof id, "%s%s", prefix, list[i]->d_name);
        if (n_path >= (int)sizeof path || n_id + 1 >= (int)sizeof id) continue;
        if ((rc = qn_entry_read(s, path, id, &e, err))) break;
        if (e) {
            e->own = true;
            rc = qn_store_add(s, e, err);
        } else if (!*prefix) {
            memcpy(id + n_id, "/", 2);
            rc = scan_own(s, path, id, err);
        }
    }
    free_folders(list, n);
    return rc;
}

/* The commit in refs/main, or "". */
static void read_main_ref(const char *repo, char commit[128])
{
    char path[QN_PATH_CAP], *text;
    size_t size;
    commit[0] = '\0';
    int n = snprintf(path, sizeof path, "%s/refs/main", repo);
    if (n >= (int)sizeof path || qn_file_read(path, 127, &text, &size, NULL)) return;
    text[strcspn(text, " \r\n\t")] = '\0';
    snprintf(commit, 128, "%s", text);
    free(text);
}

/* Mark the snapshot that a query means among entries [first, n): the one of refs/main, else the newest,
 * else the first by path. */
static void mark_canonical(qn_store *s, size_t first, const char *main_commit)
{
    size_t best = s->n;
    struct timespec best_time = {0};
    for (size_t i = first; i < s->n; i++) {
        struct stat st;
        qn_model_entry *e = s->entries[i];
        e->canonical = false;
        if (!strcmp(e->revision, main_commit)) {
            best = i;
            break;
        }
        if (stat(e->path, &st)) continue;
        bool newer = st.st_mtim.tv_sec > best_time.tv_sec ||
                     (st.st_mtim.tv_sec == best_time.tv_sec && st.st_mtim.tv_nsec > best_time.tv_nsec);
        if (best == s->n || newer) {
            best = i;
            best_time = st.st_mtim;
        }
    }
    for (size_t i = first; i < s->n; i++) s->entries[i]->canonical = i == best;
}

static qn_code scan_repo(qn_store *s, const char *repo, const char *id, qn_err *err)
{
    char dir[QN_PATH_CAP], commit[128];
    if (snprintf(dir, sizeof dir, "%s/snapshots", repo) >= (int)sizeof dir) return QN_OK;
    struct dirent **list;
    int n = list_folders(dir, &list);
    size_t first = s->n;
    qn_code rc = QN_OK;
    for (int i = 0; i < n && !rc; i++) {
        char path[QN_PATH_CAP];
        qn_model_entry *e;
        if (snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name) >= (int)sizeof path) continue;
        if ((rc = qn_entry_read(s, path, id, &e, err)) || !e) continue;
        e->revision = strrchr(e->path, '/') + 1;
        rc = qn_store_add(s, e, err);
    }
    free_folders(list, n);
    read_main_ref(repo, commit);
    mark_canonical(s, first, commit);
    return rc;
}

static qn_code scan_hub(qn_store *s, const char *hub, qn_err *err)
{
    struct dirent **list;
    int n = list_folders(hub, &list);
    qn_code rc = QN_OK;
    for (int i = 0; i < n && !rc; i++) {
        char repo[QN_PATH_CAP];
        const char *id = qn_hub_id(s, list[i]->d_name, strlen(list[i]->d_name));
        if (!id || snprintf(repo, sizeof repo, "%s/%s", hub, list[i]->d_name) >= (int)sizeof repo) continue;
        rc = scan_repo(s, repo, id, err);
    }
    free_folders(list, n);
    return rc;
}

static int by_size_then_id(const void *pa, const void *pb)
{
    const qn_model_entry *a = *(qn_model_entry *const *)pa, *b = *(qn_model_entry *const *)pb;
    if (a->size_bytes != b->size_bytes) return a->size_bytes < b->size_bytes ? -1 : 1;
    int order = strcmp(a->id, b->id);
    return order ? order : strcmp(a->path, b->path);
}

qn_code qn_store_open(qn_store **out, const qn_store_opts *opts, qn_err *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return qn_err_set(err, QN_NOMEM, "models: out of memory");
    (*out)->opts = *opts;
    return QN_OK;
}

qn_code qn_store_scan(qn_store *s, qn_err *err)
{
    if (s->scanned) return QN_OK;
    char own[QN_PATH_CAP], hub[QN_PATH_CAP];
    qn_code rc;
    if (s->opts.own_dir) snprintf(own, sizeof own, "%s", s->opts.own_dir);
    else if ((rc = qn_store_own_dir(own, sizeof own, err))) return rc;
    if (s->opts.hub_dir) snprintf(hub, sizeof hub, "%s", s->opts.hub_dir);
    else if ((rc = qn_store_hub_dir(hub, sizeof hub, err))) return rc;
    if ((rc = scan_own(s, own, "", err)) || (rc = scan_hub(s, hub, err))) return rc;
    if (s->n) qsort(s->entries, s->n, sizeof *s->entries, by_size_then_id);
    s->scanned = true;
    return QN_OK;
}

void qn_store_close(qn_store *s)
{
    if (!s) return;
    qn_arena_release(&s->arena);
    free(s->entries);
    free(s);
}

size_t qn_store_count(const qn_store *s) { return s->n; }

const qn_model_entry *qn_store_at(const qn_store *s, size_t i) { return s->entries[i]; }
