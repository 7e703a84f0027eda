/* template.c - the chat template of a model folder: finding it, choosing among several, and the
 * variables that every render gets. The Jinja interpreter is in jinja*.c. */
#include "text/template.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "text/template_builders.h"

enum { MAX_TEMPLATES = 32, MAX_NAME = 128, MAX_TEMPLATE_FILE = 4 << 20 };

typedef struct named {
    char *name, *source;
    qn_template *compiled; /* NULL: `broken` says why */
    qn_err broken;
} named;

struct qn_chat_template {
    qn_chat_kind kind;
    named list[MAX_TEMPLATES];
    size_t n;
    json_t *tokens; /* special tokens by their variable's name */
};

static named *find_named(const qn_chat_template *ct, const char *name)
{
    for (size_t i = 0; i < ct->n; i++)
        if (strcmp(ct->list[i].name, name) == 0) return (named *)&ct->list[i];
    return NULL;
}

/* Keep and compile one template; the first one of a name stays. One that does not compile is kept
 * with its error: the model can still complete plain text. */
static qn_code add_template(qn_chat_template *ct, const char *name, const char *source, size_t size,
                            qn_err *err)
{
    if (find_named(ct, name)) return QN_OK;
    if (ct->n == MAX_TEMPLATES)
        return qn_err_set(err, QN_LIMIT, "chat template: more than %d named templates",
                          MAX_TEMPLATES);
    if (strlen(name) >= MAX_NAME)
        return qn_err_set(err, QN_LIMIT, "chat template: the name '%.40s...' is too long", name);
    named *t = &ct->list[ct->n++];
    t->name = strdup(name);
    t->source = malloc(size + 1);
    if (!t->name || !t->source) return qn_err_set(err, QN_NOMEM, "chat template: out of memory");
    memcpy(t->source, source, size);
    t->source[size] = 0;
    char title[MAX_NAME + 32];
    bool plain = strcmp(name, "default") == 0;
    snprintf(title, sizeof title, plain ? "chat template" : "chat template '%s'", name);
    return qn_template_compile(&t->compiled, source, size, title, &t->broken) == QN_NOMEM
               ? qn_err_set(err, QN_NOMEM, "chat template: out of memory") : QN_OK;
}

static qn_code add_file(qn_chat_template *ct, const char *name, const char *path, qn_err *err)
{
    char *text = NULL;
    size_t size = 0;
    qn_code rc = qn_file_read(path, MAX_TEMPLATE_FILE, &text, &size, err);
    if (!rc) rc = add_template(ct, name, text, size, err);
    free(text);
    return rc;
}

/* additional_chat_templates/NAME.jinja */
static qn_code add_folder(qn_chat_template *ct, const char *dir, qn_err *err)
{
    DIR *d = opendir(dir);
    if (!d) return QN_OK;
    qn_code rc = QN_OK;
    for (struct dirent *e; !rc && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n <= 6 || n >= MAX_NAME || strcmp(e->d_name + n - 6, ".jinja") != 0) continue;
        char path[4096], name[MAX_NAME];
        snprintf(name, sizeof name, "%.*s", (int)(n - 6), e->d_name);
        if (snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path)
            rc =
                qn_err_set(err, QN_LIMIT, "chat template: the path of '%s' is too long", e->d_name);
        else rc = add_file(ct, name, path, err);
    }
    closedir(d);
    return rc;
}

/* A "chat_template" member: a string, or a list of {name, template}. */
static qn_code add_json(qn_chat_template *ct, const json_t *j, qn_err *err)
{
    if (!j || json_is_null(j)) return QN_OK;
    if (json_is_string(j))
        return add_template(ct, "default", json_string_value(j), json_string_length(j), err);
    if (!json_is_array(j))
        return qn_err_set(err, QN_FORMAT,
                          "chat_template must be a string or a list of {name, template}");
    for (size_t i = 0; i < json_array_size(j); i++) {
        const json_t *item = json_array_get(j, i), *source = json_object_get(item, "template");
        const char *name = json_string_value(json_object_get(item, "name"));
        if (!name || !json_is_string(source))
            return qn_err_set(err, QN_FORMAT,
                              "chat_template[%zu] must be an object with strings name and template",
                              i);
        qn_code rc =
            add_template(ct, name, json_string_value(source), json_string_length(source), err);
        if (rc) return rc;
    }
    return QN_OK;
}

/* chat_template.json: {"chat_template": ...}, as processors save it. */
static qn_code add_json_file(qn_chat_template *ct, const char *path, qn_err *err)
{
    if (!qn_is_file(path)) return QN_OK;
    char *text = NULL;
    size_t size = 0;
    qn_code rc = qn_file_read(path, MAX_TEMPLATE_FILE, &text, &size, err);
    if (rc) return rc;
    json_error_t why;
    json_t *j = json_loadb(text, size, 0, &why);
    free(text);
    if (!j) return qn_err_set(err, QN_FORMAT, "%s: line %d: %s", path, why.line, why.text);
    rc = add_json(ct, json_object_get(j, "chat_template"), err);
    json_decref(j);
    return rc;
}

static qn_code add_from_dir(qn_chat_template *ct, const char *dir, const json_t *config,
                            qn_err *err)
{
    char path[4096];
    if (strlen(dir) > sizeof path - 64)
        return qn_err_set(err, QN_LIMIT, "the path of the model folder is too long");
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    qn_code rc = qn_is_file(path) ? add_file(ct, "default", path, err) : QN_OK;
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    if (!rc) rc = add_folder(ct, path, err);
    if (!rc && !find_named(ct, "default"))
        rc = add_json(ct, json_object_get(config, "chat_template"), err);
    snprintf(path, sizeof path, "%s/chat_template.json", dir);
    if (!rc && !find_named(ct, "default")) rc = add_json_file(ct, path, err);
    return rc;
}

/* Every NAME_token of the config that is a string or an {"content": string}. */
static qn_code read_tokens(qn_chat_template *ct, const json_t *config, qn_err *err)
{
    ct->tokens = json_object();
    if (!ct->tokens) return qn_err_set(err, QN_NOMEM, "chat template: out of memory");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)config, key, value) {
        size_t n = strlen(key);
        if (n < 6 || strcmp(key + n - 6, "_token") != 0) continue;
        json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
        if (json_is_string(text) && json_object_set(ct->tokens, key, text))
            return qn_err_set(err, QN_NOMEM, "chat template: out of memory");
    }
    return QN_OK;
}

qn_code qn_chat_template_open(qn_chat_template **out, const char *model_dir,
                              const json_t *tokenizer_config, qn_err *err)
{
    *out = NULL;
    qn_chat_template *ct = calloc(1, sizeof *ct);
    if (!ct) return qn_err_set(err, QN_NOMEM, "chat template: out of memory");
    const char *type = json_string_value(json_object_get(tokenizer_config, "chat_template_type"));
    qn_code rc = read_tokens(ct, tokenizer_config, err);
    if (!rc && type) {
        ct->kind = QN_CHAT_DEEPSEEK;
        if (strcmp(type, "deepseek_v32") != 0)
            rc = qn_err_set(err, QN_UNSUPPORTED,
                            "not supported yet: chat_template_type '%.60s' (only deepseek_v32)",
                            type);
    } else if (!rc) {
        rc = add_from_dir(ct, model_dir, tokenizer_config, err);
        ct->kind = ct->n ? QN_CHAT_JINJA : QN_CHAT_FALLBACK;
    }
    if (rc) {
        qn_chat_template_free(ct);
        return rc;
    }
    *out = ct;
    return QN_OK;
}

qn_code qn_chat_template_from_source(qn_chat_template **out, const char *source, size_t size,
                                     const json_t *tokenizer_config, qn_err *err)
{
    *out = NULL;
    qn_chat_template *ct = calloc(1, sizeof *ct);
    if (!ct) return qn_err_set(err, QN_NOMEM, "chat template: out of memory");
    qn_code rc = read_tokens(ct, tokenizer_config, err);
    if (!rc) rc = add_template(ct, "default", source, size, err);
    if (!rc && !ct->list[0].compiled)
        rc = qn_err_set(err, ct->list[0].broken.code, "%s", ct->list[0].broken.text);
    if (rc) {
        qn_chat_template_free(ct);
        return rc;
    }
    *out = ct;
    return QN_OK;
}

void qn_chat_template_free(qn_chat_template *ct)
{
    if (!ct) return;
    for (size_t i = 0; i < ct->n; i++) {
        free(ct->list[i].name);
        free(ct->list[i].source);
        qn_template_free(ct->list[i].compiled);
    }
    json_decref(ct->tokens);
    free(ct);
}

/* ---- rendering ---- */

static const named *choose(const qn_chat_template *ct, bool tools)
{
    const named *t = tools ? find_named(ct, "tool_use") : NULL;
    return t ? t : find_named(ct, "default");
}

/* The messages without the members that are null: templates expect those to be absent, and so
 * transformers hands them over. NULL without memory. */
static json_t *without_nulls(const json_t *messages)
{
    json_t *list = json_array(), *m;
    bool failed = !list;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)messages, i, m) {
        json_t *copy = json_copy(m), *value;
        const char *key;
        void *next;
        json_object_foreach_safe(copy, next, key, value) {
            if (json_is_null(value)) json_object_del(copy, key);
        }
        failed = failed || json_array_append_new(list, copy);
    }
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

/* The caller's variables over the model's special tokens. NULL without memory. */
static json_t *all_vars(const qn_chat_template *ct, const json_t *vars)
{
    json_t *all = json_copy(ct->tokens);
    if (!all) return NULL;
    bool failed = json_object_set_new(all, "tools", json_null()) ||
                  json_object_set_new(all, "documents", json_null()) ||
                  json_object_update(all, (json_t *)vars) ||
                  json_object_set_new(all, "messages",
                                      without_nulls(json_object_get(vars, "messages")));
    if (!json_object_get(all, "add_generation_prompt"))
        failed = failed || json_object_set_new(all, "add_generation_prompt", json_false());
    if (!failed) return all;
    json_decref(all);
    return NULL;
}

qn_code qn_chat_template_render(const qn_chat_template *ct, const json_t *vars, qn_buf *out,
                                qn_err *err)
{
    if (!json_is_array(json_object_get(vars, "messages")))
        return qn_err_set(err, QN_INVALID, "chat template: messages must be a list");
    if (ct->kind == QN_CHAT_FALLBACK) return qn_build_fallback(vars, out, err);
    if (ct->kind == QN_CHAT_DEEPSEEK) return qn_build_deepseek_v32(vars, out, err);
    const json_t *tools = json_object_get(vars, "tools");
    const named *t = choose(ct, tools && !json_is_null(tools));
    if (!t)
        return qn_err_set(err, QN_INVALID,
                          "the model has no chat template named default (only '%s')",
                          ct->list[0].name);
    if (!t->compiled) return qn_err_set(err, t->broken.code, "%s", t->broken.text);
    json_t *all = all_vars(ct, vars);
    if (!all) return qn_err_set(err, QN_NOMEM, "chat template: out of memory");
    qn_code rc = qn_template_render(t->compiled, all, out, err);
    json_decref(all);
    return rc;
}

qn_chat_kind qn_chat_template_kind(const qn_chat_template *ct) { return ct->kind; }

bool qn_chat_template_mentions(const qn_chat_template *ct, const char *text)
{
    for (size_t i = 0; i < ct->n; i++)
        if (strstr(ct->list[i].source, text)) return true;
    return ct->kind == QN_CHAT_DEEPSEEK && strcmp(text, "enable_thinking") == 0;
}

bool qn_chat_template_writes(const qn_chat_template *ct, const char *s, size_t n)
{
    for (size_t i = 0; i < ct->n; i++) {
        const qn_template *t = ct->list[i].compiled;
        if (t && qn_template_writes(t, s, n)) return true;
    }
    return false;
}

const char *qn_chat_template_source(const qn_chat_template *ct, bool tools)
{
    const named *t = choose(ct, tools);
    return t ? t->source : NULL;
}

void qn_chat_template_set_clock(qn_chat_template *ct, int64_t (*clock)(void *arg), void *arg)
{
    for (size_t i = 0; i < ct->n; i++)
        if (ct->list[i].compiled) qn_template_set_clock(ct->list[i].compiled, clock, arg);
}
