/* tok_parse.c - from tokenizer.json to the structs of tok_impl.h: the model and its vocabulary. */
#include <stdlib.h>
#include <string.h>

#include "text/tok_impl.h"

static qn_code check_entry(const char *where, size_t len, const json_t *id, qn_err *err)
{
    if (!json_is_integer(id)) {
        return qn_err_set(err, QN_FORMAT, "tokenizer.json: %s: a token's id is not a whole number",
                          where);
    }
    json_int_t n = json_integer_value(id);
    if (n < 0 || n >= TOK_MAX_IDS) {
        return qn_err_set(err, QN_LIMIT, "tokenizer.json: %s: id %lld is outside 0..%d", where,
                          (long long)n, TOK_MAX_IDS - 1);
    }
    if (len > TOK_MAX_TOKEN) {
        return qn_err_set(err, QN_LIMIT,
                          "tokenizer.json: %s: token %lld has %zu bytes, more than the limit of %d",
                          where, (long long)n, len, TOK_MAX_TOKEN);
    }
    return QN_OK;
}

/* {"token": id, ...} */
static qn_code parse_vocab_map(qn_tokenizer *t, const json_t *vocab, qn_err *err)
{
    size_t n = json_object_size(vocab), i = 0;
    tok_entry *entries = malloc((n + 1) * sizeof *entries);
    if (!entries) {
        return qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory for the vocabulary");
    }
    qn_code rc = QN_OK;
    for (void *it = json_object_iter((json_t *)(uintptr_t)vocab); it && !rc;
         it = json_object_iter_next((json_t *)(uintptr_t)vocab, it)) {
        const json_t *id = json_object_iter_value(it);
        tok_str token = {json_object_iter_key(it), json_object_iter_key_len(it)};
        rc = check_entry("model.vocab", token.n, id, err);
        if (!rc) entries[i++] = (tok_entry){token, (uint32_t)json_integer_value(id)};
    }
    if (!rc) rc = tok_vocab_build(t, entries, i, err);
    free(entries);
    return rc;
}

static qn_code need_vocab(const json_t *vocab, bool map, qn_err *err)
{
    if (map ? json_is_object(vocab) : json_is_array(vocab)) return QN_OK;
    return qn_err_set(err, QN_FORMAT, "tokenizer.json: model.vocab is missing or not %s",
                      map ? "an object of token to id" : "an array of [token, score]");
}

static qn_code parse_wordpiece(qn_tokenizer *t, const json_t *model, qn_err *err)
{
    tok_model *m = &t->model;
    qn_code rc;
    if ((rc = tok_json_u32(model, "model", "max_input_chars_per_word", 100, &m->max_word_chars,
                           err)))
        return rc;
    if ((rc = tok_json_str(t, model, "model", "continuing_subword_prefix", &m->prefix, err))) {
        return rc;
    }
    if (!m->prefix.s) m->prefix = (tok_str){"##", 2};
    return QN_OK;
}

static qn_code find_unk(qn_tokenizer *t, const json_t *model, qn_err *err)
{
    tok_model *m = &t->model;
    qn_code rc = tok_json_str(t, model, "model", "unk_token", &m->unk_token, err);
    m->unk = QN_NO_TOKEN;
    if (!rc && m->unk_token.s) m->unk = tok_vocab_find(&m->vocab, m->unk_token.s, m->unk_token.n);
    return rc;
}

/* Old files leave out model.type; the fields tell. */
static const char *model_type(const json_t *model)
{
    const json_t *type = json_object_get(model, "type");
    if (json_is_string(type)) return json_string_value(type);
    if (json_object_get(model, "merges")) return "BPE";
    if (json_object_get(model, "max_input_chars_per_word")) return "WordPiece";
    return json_is_array(json_object_get(model, "vocab")) ? "Unigram" : "WordLevel";
}

qn_code tok_parse_model(qn_tokenizer *t, const json_t *model, qn_err *err)
{
    static const struct {
        const char *name;
        tok_model_kind kind;
        qn_code (*parse)(qn_tokenizer *t, const json_t *model, qn_err *err);
    } models[] = {
        {"BPE", MODEL_BPE, tok_parse_bpe},
        {"Unigram", MODEL_UNIGRAM, tok_parse_unigram},
        {"WordPiece", MODEL_WORDPIECE, parse_wordpiece},
        {"WordLevel", MODEL_WORDLEVEL, NULL},
    };
    if (!json_is_object(model)) {
        return qn_err_set(err, QN_FORMAT, "tokenizer.json: model is missing or not an object");
    }
    const char *type = model_type(model);
    bool cached =
        t->model.vocab.slots; /* from the mapped cache: only the settings are left to read */
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(type, models[i].name)) continue;
        const json_t *vocab = json_object_get(model, "vocab");
        qn_code rc;
        t->model.kind = models[i].kind;
        bool map = models[i].kind != MODEL_UNIGRAM;
        if (!cached && (rc = need_vocab(vocab, map, err))) return rc;
        if (!map) return models[i].parse(t, model, err);
        if (!cached && (rc = parse_vocab_map(t, vocab, err))) return rc;
        if ((rc = find_unk(t, model, err))) return rc;
        return models[i].parse ? models[i].parse(t, model, err) : QN_OK;
    }
    return qn_err_set(err, QN_UNSUPPORTED,
                      "tokenizer.json: not supported yet: model.type \"%.60s\"; BPE, Unigram, "
                      "WordPiece and WordLevel "
                      "are",
                      type);
}
