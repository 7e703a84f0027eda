/* find.c - from what the user typed to one model. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/file.h"
#include "store/private.h"

enum { LISTED = 8 }; /* names in an error before "and N more" */

/* ---- matching ---- */

static const char *name_part(const char *id)
{
    const char *slash = strrchr(id, '/');
    return slash ? slash + 1 : id;
}

static bool id_is(const qn_model_entry *e, const char *q) { return !strcmp(e->id, q); }

static bool id_is_any_case(const qn_model_entry *e, const char *q) { return !strcasecmp(e->id, q); }

static bool name_is(const qn_model_entry *e, const char *q) { return !strcasecmp(name_part(e->id), q); }

static bool name_ends_with(const qn_model_entry *e, const char *q)
{
    size_t n = strlen(e->id), m = strlen(q);
    return n >= m && !strcasecmp(e->id + n - m, q);
}

/* ASCII letters in any case, as the query rules want it in every locale. */
static bool contains(const char *text, const char *part)
{
    size_t m = strlen(part);
    for (; *text; text++) {
        if (!strncasecmp(text, part, m)) return true;
    }
    return !m;
}

bool qn_entry_matches(const qn_model_entry *e, const char *query)
{
    return !query || contains(e->id, query) || contains(e->model_type, query);
}

typedef bool (*rule)(const qn_model_entry *e, const char *q);
static const rule rules[] = {id_is, id_is_any_case, name_is, name_ends_with, qn_entry_matches};

static bool is_candidate(const qn_model_entry *e) { return e->canonical && !e->drafter; }

/* ---- errors that list names ---- */

typedef struct names {
    char text[320];
    size_t len, shown, hidden;
} names;

static void add_name(names *l, const char *name)
{
    int n = -1;
    if (l->shown < LISTED) {
        n = snprintf(l->text + l->len, sizeof l->text - l->len, "%s%s", l->shown ? ", " : "", name);
    }
    if (n < 0 || l->len + (size_t)n >= sizeof l->text - 20) {
        l->text[l->len] = '\0';
        l->hidden++;
        return;
    }
    l->len += (size_t)n;
    l->shown++;
}

static const char *names_text(names *l)
{
    if (l->hidden) snprintf(l->text + l->len, sizeof l->text - l->len, " and %zu more", l->hidden);
    l->hidden = 0;
    return l->text;
}

static qn_code ambiguous(const qn_store *s, rule matches, const char *query, qn_err *err)
{
    names l = {0};
    for (size_t i = 0; i < s->n; i++) {
        const qn_model_entry *e = s->entries[i];
        if (is_candidate(e) && matches(e, query)) add_name(&l, e->id);
    }
    return qn_err_set(err, QN_INVALID, "\"%.80s\" is ambiguous: %s", query, names_text(&l));
}

/* How alike two names are: the length of the longest run of letters they share. */
static size_t shared_run(const char *a, const char *b)
{
    size_t best = 0;
    for (const char *pa = a; *pa; pa++) {
        for (const char *pb = b; *pb; pb++) {
            size_t n = 0;
            while (pa[n] && pb[n] && tolower((unsigned char)pa[n]) == tolower((unsigned char)pb[n])) n++;
            if (n > best) best = n;
        }
    }
    return best;
}

static qn_code not_found(const qn_store *s, const char *query, qn_err *err)
{
    names l = {0};
    size_t enough = strlen(name_part(query)) / 2 > 3 ? strlen(name_part(query)) / 2 : 3;
    for (size_t i = 0; i < s->n && strlen(query) < 200; i++) {
        const qn_model_entry *e = s->entries[i];
        if (is_candidate(e) && shared_run(name_part(query), name_part(e->id)) >= enough) add_name(&l, e->id);
    }
    if (l.shown) {
        return qn_err_set(err, QN_NOT_FOUND, "no model matches \"%.80s\"; near it: %s", query, names_text(&l));
    }
    return qn_err_set(err, QN_NOT_FOUND, "no model matches \"%.80s\"; \"quern ls\" lists the models on this "
                      "machine, \"quern convert SOURCE\" adds one", query);
}

/* ---- finding ---- */

static qn_code find_among(const qn_store *s, const char *query, const qn_model_entry **out, qn_err *err)
{
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        const qn_model_entry *hit = NULL;
        for (size_t i = 0; i < s->n; i++) {
            const qn_model_entry *e = s->entries[i];
            if (!is_candidate(e) || !rules[r](e, query)) continue;
            if (hit && strcmp(hit->id, e->id)) return ambiguous(s, rules[r], query, err);
            if (!hit || e->own) hit = e; /* the same id in both places: Quern's own */
        }
        if (!hit) continue;
        *out = hit;
        return QN_OK;
    }
    return not_found(s, query, err);
}

static qn_code pick_only_one(const qn_store *s, const qn_model_entry **out, qn_err *err)
{
    names l = {0};
    const qn_model_entry *hit = NULL;
    for (size_t i = 0; i < s->n; i++) {
        const qn_model_entry *e = s->entries[i];
        if (!is_candidate(e) || !e->supported) continue;
        if (hit && !strcmp(hit->id, e->id) && !e->own) continue;
        if (!hit || strcmp(hit->id, e->id)) add_name(&l, e->id);
        hit = e;
    }
    if (l.shown + l.hidden > 1) {
        return qn_err_set(err, QN_INVALID, "several models are here; name one of: %s", names_text(&l));
    }
    if (!hit) {
        return qn_err_set(err, QN_NOT_FOUND, "no model that Quern can run is on this machine; \"quern convert "
                          "SOURCE\" adds one");
    }
    *out = hit;
    return QN_OK;
}

/* The name of a folder in Quern's models folder, which may lie behind links; NULL for other folders. */
static const char *own_id(const qn_store *s, const char *real)
{
    char own[QN_PATH_CAP];
    if (s->opts.own_dir) snprintf(own, sizeof own, "%s", s->opts.own_dir);
    else if (qn_store_own_dir(own, sizeof own, NULL)) return NULL;
    char *base = realpath(own, NULL);
    size_t n = base ? strlen(base) : 0;
    bool inside = n && !strncmp(real, base, n) && real[n] == '/';
    free(base);
    return inside ? real + n + 1 : NULL;
}

static const char *id_of_folder(qn_store *s, const char *real)
{
    const char *id = qn_hub_id_of(s, real);
    if (!id) id = own_id(s, real);
    return id ? id : name_part(real);
}

static qn_code open_folder(qn_store *s, const char *path, const qn_model_entry **out, qn_err *err)
{
    char *real = realpath(path, NULL);
    if (!real) return qn_err_set(err, QN_IO, "%s: the folder cannot be read", path);
    qn_model_entry *e;
    qn_code rc = qn_entry_read(s, real, id_of_folder(s, real), &e, err);
    if (!rc && !e) {
        rc = qn_err_set(err, QN_FORMAT, "%s: config.json is broken, or no .safetensors file is beside it", path);
    }
    free(real);
    if (!rc) *out = e;
    return rc;
}

static bool is_path_like(const char *q)
{
    return q[0] == '/' || !strncmp(q, "./", 2) || !strncmp(q, "../", 3) || !strcmp(q, ".") || !strcmp(q, "..");
}

qn_code qn_store_find(qn_store *s, const char *query, const qn_model_entry **out, qn_err *err)
{
    *out = NULL;
    qn_code rc;
    if (!query) return (rc = qn_store_scan(s, err)) ? rc : pick_only_one(s, out, err);
    char config[QN_PATH_CAP];
    int n = snprintf(config, sizeof config, "%s/config.json", query);
    if (n >= (int)sizeof config) return qn_err_set(err, QN_LIMIT, "a model's name of %d bytes is too long", n);
    if (!*query) return qn_err_set(err, QN_INVALID, "the model's name is empty");
    if (qn_is_file(config)) return open_folder(s, query, out, err);
    if (qn_is_file(query)) {
        return qn_err_set(err, QN_INVALID, "%s is a file; a model is a folder (\"quern convert %s\" imports a GGUF "
                          "file)", query, query);
    }
    if (is_path_like(query) && qn_is_dir(query)) {
        return qn_err_set(err, QN_NOT_FOUND, "%s is not a model folder: it has no config.json", query);
    }
    if (is_path_like(query)) return qn_err_set(err, QN_NOT_FOUND, "%s: no such folder", query);
    return (rc = qn_store_scan(s, err)) ? rc : find_among(s, query, out, err);
}
