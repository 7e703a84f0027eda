/* tokenizer.c - opening a tokenizer, and questions about its vocabulary. */
#include "text/tokenizer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "text/tok_impl.h"

/* ---- tokenizer_config.json ---- */

const char *qn_tokenizer_special(const qn_tokenizer *t, const char *name)
{
    const json_t *v = json_object_get(t->config, name);
    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_string_value(v);
}

static uint32_t special_id(const qn_tokenizer *t, const char *name)
{
    const char *s = qn_tokenizer_special(t, name);
    return s ? qn_tokenizer_find(t, s, strlen(s)) : QN_NO_TOKEN;
}

static qn_code parse_config(qn_tokenizer *t, const char *json, size_t n, qn_err *err)
{
    json_error_t e;
    if (n > TOK_MAX_CONFIG) {
        return qn_err_set(err, QN_LIMIT,
                          "tokenizer_config.json has %zu bytes, more than the limit of %d", n,
                          TOK_MAX_CONFIG);
    }
    t->config = json_loadb(json, n, JSON_ALLOW_NUL, &e);
    if (!t->config && json_error_code(&e) == json_error_numeric_overflow) {
        /* transformers writes a model_max_length of 1e30 without a point where it knows no limit */
        t->config = json_loadb(json, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    }
    if (!t->config) {
        return qn_err_set(err, QN_FORMAT, "tokenizer_config.json: line %d: %s", e.line, e.text);
    }
    if (json_is_object(t->config)) return QN_OK;
    return qn_err_set(err, QN_FORMAT, "tokenizer_config.json is not a JSON object");
}

/* ---- tokenizer.json ---- */

static qn_code build(qn_tokenizer *t, const json_t *root, qn_err *err)
{
    qn_code rc;
    if (!json_is_object(root)) {
        return qn_err_set(err, QN_FORMAT, "tokenizer.json is not a JSON object");
    }
    if ((rc = tok_parse_model(t, json_object_get(root, "model"), err))) return rc;
    if ((rc = tok_parse_norm(t, json_object_get(root, "normalizer"), err))) return rc;
    if ((rc = tok_parse_pre(t, json_object_get(root, "pre_tokenizer"), err))) return rc;
    if ((rc = tok_parse_post(t, json_object_get(root, "post_processor"), err))) return rc;
    if ((rc = tok_parse_dec(t, json_object_get(root, "decoder"), err))) return rc;
    if ((rc = tok_parse_added(t, json_object_get(root, "added_tokens"), err))) return rc;
    if ((rc = tok_bpe_prepare(t, err))) return rc;
    if ((rc = tok_added_index(t, err))) return rc;
    tok_cut_prepare(t);
    return QN_OK;
}

static qn_code load_json(const char *json, size_t n, json_t **root, qn_err *err)
{
    json_error_t e;
    if (n > TOK_MAX_FILE) {
        return qn_err_set(err, QN_LIMIT, "tokenizer.json has %zu bytes, more than the limit of %d",
                          n, TOK_MAX_FILE);
    }
    *root = json_loadb(json, n, JSON_ALLOW_NUL, &e);
    if (*root) return QN_OK;
    return qn_err_set(err, QN_FORMAT, "tokenizer.json: not valid JSON at line %d, column %d: %s",
                      e.line, e.column, e.text);
}

/* From the cache where there is one, else from the text, which then leaves a cache behind. */
static qn_code read_json(qn_tokenizer *t, const char *json, size_t n, bool cache, qn_err *err)
{
    json_t *root = NULL;
    uint64_t key[2];
    tok_str rest = {json, n};
    bool hit = false;
    if (cache) {
        tok_cache_key(json, n, key);
        hit = tok_cache_open(t, key, &rest);
    }
    qn_code rc = load_json(rest.s, rest.n, &root, err);
    if (!rc) rc = build(t, root, err);
    if (!rc && cache && !hit) tok_cache_save(t, root, key);
    json_decref(root);
    return rc;
}

typedef enum source_kind { SOURCE_JSON, SOURCE_SPM, SOURCE_TIKTOKEN } source_kind;

typedef struct source {
    source_kind kind;
    const char *data, *config; /* config NULL: none */
    size_t n, n_config;
    bool cache;
} source;

/* From a file that is not JSON: the reader says the rest of the pipeline as JSON. */
static qn_code read_other(qn_tokenizer *t, const source *s, qn_err *err)
{
    json_t *root = NULL;
    if (s->n > TOK_MAX_FILE) {
        return qn_err_set(err, QN_LIMIT, "the tokenizer has %zu bytes, more than the limit of %d",
                          s->n, TOK_MAX_FILE);
    }
    qn_code rc = s->kind == SOURCE_SPM ? tok_spm_read(t, s->data, s->n, &root, err)
                                       : tok_tiktoken_read(t, s->data, s->n, &root, err);
    if (!rc) rc = build(t, root, err);
    json_decref(root);
    return rc;
}

static qn_code open_source(qn_tokenizer **out, const source *s, qn_err *err)
{
    *out = NULL;
    qn_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
    pthread_mutex_init(&t->lock, NULL);
    qn_code rc = s->config ? parse_config(t, s->config, s->n_config, err) : QN_OK;
    if (!rc) {
        rc = s->kind == SOURCE_JSON ? read_json(t, s->data, s->n, s->cache, err)
                                    : read_other(t, s, err);
    }
    if (rc) {
        qn_tokenizer_close(t);
        return rc;
    }
    t->bos = special_id(t, "bos_token");
    t->eos = special_id(t, "eos_token");
    *out = t;
    return QN_OK;
}

qn_code qn_tokenizer_parse(qn_tokenizer **out, const char *json, size_t n, const char *config,
                           size_t n_config, qn_err *err)
{
    const source s = {.data = json, .n = n, .config = config, .n_config = n_config};
    return open_source(out, &s, err);
}

qn_code qn_tokenizer_parse_spm(qn_tokenizer **out, const void *model, size_t n, const char *config,
                               size_t n_config, qn_err *err)
{
    const source s = {SOURCE_SPM, model, config, n, n_config, false};
    return open_source(out, &s, err);
}

qn_code qn_tokenizer_parse_tiktoken(qn_tokenizer **out, const void *model, size_t n,
                                    const char *config, size_t n_config, qn_err *err)
{
    const source s = {SOURCE_TIKTOKEN, model, config, n, n_config, false};
    return open_source(out, &s, err);
}

static qn_code join(char out[PATH_MAX], const char *dir, const char *name, qn_err *err)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", dir, name);
    return n > 0 && n < PATH_MAX ? QN_OK : qn_err_set(err, QN_LIMIT, "path too long: %s", dir);
}

static const char *const source_names[] = {"tokenizer.json", "tokenizer.model", "tiktoken.model"};

/* The first of the known files that a folder has; without any, the name of the first stays. */
static qn_code find_file(const char *dir, char file[PATH_MAX], source_kind *kind, qn_err *err)
{
    qn_code rc;
    for (int i = SOURCE_TIKTOKEN; i >= SOURCE_JSON; i--) {
        char path[PATH_MAX];
        if ((rc = join(path, dir, source_names[i], err))) return rc;
        if (i != SOURCE_JSON && !qn_is_file(path)) continue;
        if (i == SOURCE_JSON && *kind != SOURCE_JSON && !qn_is_file(path)) continue;
        *kind = (source_kind)i;
        memcpy(file, path, sizeof path);
    }
    return QN_OK;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static const char *bytes_of(const qn_map *m)
{
    return m->data ? (const char *)m->data : "";
}

qn_code qn_tokenizer_open(qn_tokenizer **out, const char *path, qn_err *err)
{
    *out = NULL;
    char file[PATH_MAX], config_file[PATH_MAX];
    source s = {.kind = SOURCE_JSON};
    bool folder = qn_is_dir(path), has_config = false;
    qn_code rc = QN_OK;
    if (folder && (rc = find_file(path, file, &s.kind, err))) return rc;
    if (folder && (rc = join(config_file, path, "tokenizer_config.json", err))) return rc;
    if (folder) has_config = qn_is_file(config_file);
    else if (ends_with(path, source_names[SOURCE_TIKTOKEN])) s.kind = SOURCE_TIKTOKEN;
    else if (ends_with(path, ".model")) s.kind = SOURCE_SPM;
    qn_map data = {0}, config = {0};
    rc = qn_map_open(&data, folder ? file : path, err);
    if (!rc && has_config) rc = qn_map_open(&config, config_file, err);
    if (!rc) {
        s.data = bytes_of(&data);
        s.n = data.size;
        s.config = has_config ? bytes_of(&config) : NULL;
        s.n_config = config.size;
        s.cache = data.size >= TOK_CACHE_FROM;
        rc = open_source(out, &s, err);
        if (rc) qn_err_prefix(err, "%s", path);
    }
    qn_map_close(&data);
    qn_map_close(&config);
    return rc;
}

void qn_tokenizer_close(qn_tokenizer *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->n_norms; i++) tok_regex_release(&t->norms[i].re);
    for (size_t i = 0; i < t->n_pres; i++) tok_regex_release(&t->pres[i].re);
    for (size_t i = 0; i < t->n_decs; i++) tok_regex_release(&t->decs[i].re);
    for (tok_scratch *sc = t->pool, *next; sc; sc = next) {
        next = sc->next;
        tok_scratch_free(sc);
    }
    for (size_t i = 0; i < sizeof t->owned / sizeof *t->owned; i++) free(t->owned[i]);
    qn_map_close(&t->map);
    json_decref(t->config);
    qn_arena_release(&t->arena);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---- questions ---- */

static const tok_added *added_of(const qn_tokenizer *t, uint32_t id)
{
    if (id >= t->n_vocab || !t->added_of_id[id]) return NULL;
    return &t->added[t->added_of_id[id] - 1];
}

const char *qn_tokenizer_token(const qn_tokenizer *t, uint32_t id, size_t *n)
{
    const tok_added *a = added_of(t, id);
    tok_str s = a ? a->shown : tok_vocab_token(&t->model.vocab, id);
    if (n) *n = s.n;
    return s.s;
}

uint32_t qn_tokenizer_find(const qn_tokenizer *t, const char *token, size_t n)
{
    uint32_t id = tok_vocab_find(&t->model.vocab, token, n);
    if (id != QN_NO_TOKEN) return id;
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->added[i].content.n == n && !memcmp(t->added[i].content.s, token, n)) {
            return t->added[i].id;
        }
    }
    return QN_NO_TOKEN;
}

uint32_t qn_tokenizer_n_vocab(const qn_tokenizer *t)
{
    return t->n_vocab;
}

bool qn_tokenizer_is_special(const qn_tokenizer *t, uint32_t id)
{
    const tok_added *a = added_of(t, id);
    return a && a->special;
}

uint32_t qn_tokenizer_bos(const qn_tokenizer *t)
{
    return t->bos;
}

uint32_t qn_tokenizer_eos(const qn_tokenizer *t)
{
    return t->eos;
}

const json_t *qn_tokenizer_config(const qn_tokenizer *t)
{
    return t->config;
}
