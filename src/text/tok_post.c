/* tok_post.c - post-processors: the special tokens around a single text. */
#include <string.h>

#include "text/tok_impl.h"

static qn_code too_long(qn_err *err)
{
    return qn_err_set(err, QN_LIMIT, "tokenizer.json: post_processor adds more than %d tokens",
                      TOK_MAX_POST);
}

/* A post-processor works on what the one before made: put `items` around it. */
static qn_code apply(qn_tokenizer *t, const tok_post_item *items, size_t n, qn_err *err)
{
    tok_post_item next[TOK_MAX_POST];
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        size_t take = items[i].is_text ? t->n_post : 1;
        if (m + take > TOK_MAX_POST) return too_long(err);
        memcpy(next + m, items[i].is_text ? t->post : &items[i], take * sizeof *next);
        m += take;
    }
    memcpy(t->post, next, m * sizeof *next);
    t->n_post = m;
    return QN_OK;
}

/* The ids of special token `name` in a template's table. */
static qn_code template_special(const json_t *o, const char *name, tok_post_item *items, size_t *n,
                                qn_err *err)
{
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(o, "special_tokens"), name), "ids");
    if (!json_is_array(ids)) {
        return qn_err_set(
            err, QN_FORMAT,
            "tokenizer.json: post_processor.special_tokens lacks \"%.80s\" or its ids", name);
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (!json_is_integer(json_array_get(ids, i)) || id < 0 || id >= TOK_MAX_IDS) {
            return qn_err_set(
                err, QN_FORMAT,
                "tokenizer.json: post_processor.special_tokens \"%.80s\" has an id that is "
                "not a token id",
                name);
        }
        if (*n == TOK_MAX_POST) return too_long(err);
        items[(*n)++] = (tok_post_item){false, (uint32_t)id};
    }
    return QN_OK;
}

static qn_code parse_template(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    const json_t *single = json_object_get(o, "single");
    tok_post_item items[TOK_MAX_POST];
    size_t n = 0;
    qn_code rc = QN_OK;
    if (!json_is_array(single)) {
        return qn_err_set(err, QN_FORMAT,
                          "tokenizer.json: post_processor.single is missing or not an array");
    }
    for (size_t i = 0; i < json_array_size(single) && !rc; i++) {
        const json_t *part = json_array_get(single, i);
        const json_t *special = json_object_get(part, "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));
        if (name) {
            rc = template_special(o, name, items, &n, err);
        } else if (json_object_get(part, "Sequence")) {
            if (n == TOK_MAX_POST) return too_long(err);
            items[n++] = (tok_post_item){true, 0};
        } else {
            rc = qn_err_set(
                err, QN_FORMAT,
                "tokenizer.json: post_processor.single[%zu] must be a SpecialToken with an id "
                "or a Sequence",
                i);
        }
    }
    return rc ? rc : apply(t, items, n, err);
}

/* ["[CLS]", 101] */
static qn_code pair_id(const json_t *o, const char *key, uint32_t *id, qn_err *err)
{
    const json_t *v = json_array_get(json_object_get(o, key), 1);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= TOK_MAX_IDS) {
        return qn_err_set(err, QN_FORMAT, "tokenizer.json: post_processor.%s must be [token, id]",
                          key);
    }
    *id = (uint32_t)json_integer_value(v);
    return QN_OK;
}

/* BertProcessing and RobertaProcessing: cls, text, sep. */
static qn_code parse_bert(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    tok_post_item items[3] = {{false, 0}, {true, 0}, {false, 0}};
    qn_code rc = pair_id(o, "cls", &items[0].id, err);
    if (!rc) rc = pair_id(o, "sep", &items[2].id, err);
    return rc ? rc : apply(t, items, 3, err);
}

static qn_code add_posts(qn_tokenizer *t, const json_t *o, int depth, qn_err *err)
{
    const char *type;
    qn_code rc = tok_json_type(o, "post_processor", &type, err);
    if (rc) return rc;
    if (depth > TOK_MAX_DEPTH) {
        return qn_err_set(err, QN_LIMIT, "tokenizer.json: post_processor has more than %d levels",
                          TOK_MAX_DEPTH);
    }
    if (!strcmp(type, "ByteLevel")) return QN_OK; /* moves offsets only */
    if (!strcmp(type, "TemplateProcessing")) return parse_template(t, o, err);
    if (!strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing")) {
        return parse_bert(t, o, err);
    }
    if (strcmp(type, "Sequence")) {
        return qn_err_set(err, QN_UNSUPPORTED,
                          "tokenizer.json: not supported yet: post_processor \"%.60s\"", type);
    }
    const json_t *list = json_object_get(o, "processors");
    if (!json_is_array(list)) {
        return qn_err_set(err, QN_FORMAT,
                          "tokenizer.json: post_processor.processors is missing or not an array");
    }
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        rc = add_posts(t, json_array_get(list, i), depth + 1, err);
    }
    return rc;
}

qn_code tok_parse_post(qn_tokenizer *t, const json_t *post, qn_err *err)
{
    t->post[0] = (tok_post_item){true, 0};
    t->n_post = 1;
    return post && !json_is_null(post) ? add_posts(t, post, 0, err) : QN_OK;
}
