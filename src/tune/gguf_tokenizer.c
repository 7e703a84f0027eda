/* gguf_tokenizer.c - tokenizer.json and its companions from the keys of a GGUF file.
 *
 * Two kinds: byte-level BPE ("gpt2", with the pre-tokenizer that tokenizer.ggml.pre names) and
 * SentencePiece BPE ("llama", whose merges are rebuilt from the scores). Others are refused.
 * Source: spec quantize-eval A7.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tune/job.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE }; /* token_type */

enum { MAX_VOCAB = 1 << 24, MAX_MERGES = 1 << 26 };

static const char llama3_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen2_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

typedef struct pre_rule { /* what tokenizer.ggml.pre stands for */
    const char *name;
    bool digits;         /* every digit on its own, then GPT-2's pattern */
    const char *pattern; /* split by this instead of GPT-2's; NULL: GPT-2's */
    bool nfc;
    bool ignore_merges;  /* a word that is a token is that token */
    bool add_bos;        /* when the file does not say */
} pre_rule;

static const pre_rule pre_rules[] = {
    {"gpt-2", false, NULL, false, false, false},
    {"default", false, NULL, false, false, false},
    {"smollm", true, NULL, false, false, false},
    {"starcoder", true, NULL, false, false, false},
    {"refact", true, NULL, false, false, false},
    {"command-r", true, NULL, false, false, false},
    {"codeshell", true, NULL, false, false, false},
    {"exaone", true, NULL, false, false, false},
    {"minerva-7b", true, NULL, false, false, false},
    {"llama-bpe", false, llama3_pattern, false, true, true},
    {"qwen2", false, qwen2_pattern, true, false, false},
};

typedef struct vocab { /* the token list of the file */
    size_t n;
    qn_gguf_str *tokens;
    qn_gguf_array types; /* n elements, or 0: all normal */
    json_t *ids;         /* token text to id; borrowed from the tokenizer.json being built */
} vocab;

static bool str_is(qn_gguf_str s, const char *want)
{
    return strlen(want) == s.n && !memcmp(s.p, want, s.n);
}

static int token_type(const vocab *v, size_t id)
{
    return v->types.n ? (int)qn_gguf_number(&v->types, id) : NORMAL;
}

static qn_code read_vocab(qn_job *job, vocab *v, qn_err *err)
{
    const qn_gguf *g = job->gguf;
    qn_gguf_array tokens;
    qn_code rc = qn_gguf_list(g, "tokenizer.ggml.tokens", &tokens, err);
    if (rc) return rc;
    if (tokens.n == 0 || tokens.n > MAX_VOCAB)
        return qn_err_set(err, QN_LIMIT, "key tokenizer.ggml.tokens has %zu tokens, it must be 1 "
                          "to %d", tokens.n, MAX_VOCAB);
    v->n = tokens.n;
    v->tokens = qn_arena_take(&job->arena, v->n, sizeof *v->tokens);
    if (!v->tokens) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
    if ((rc = qn_gguf_strings(&tokens, "tokenizer.ggml.tokens", v->tokens, err))) return rc;
    if (!qn_gguf_has(g, "tokenizer.ggml.token_type")) return QN_OK;
    if ((rc = qn_gguf_list(g, "tokenizer.ggml.token_type", &v->types, err))) return rc;
    if (v->types.n == v->n && v->types.kind != QN_GGUF_STRING) return QN_OK;
    return qn_err_set(err, QN_FORMAT, "key tokenizer.ggml.token_type has %zu numbers for %zu "
                      "tokens", v->types.n, v->n);
}

/* ---- parts of tokenizer.json ---- */

static qn_code make_ids(vocab *v, json_t *model, qn_err *err)
{
    v->ids = json_object();
    json_object_set_new(model, "vocab", v->ids);
    for (size_t i = 0; i < v->n; i++) {
        qn_gguf_str t = v->tokens[i];
        const json_t *seen = json_object_getn(v->ids, t.p, t.n);
        if (seen)
            return qn_err_set(err, QN_FORMAT, "token text \"%.*s\" belongs to ids %lld and %zu",
                              (int)(t.n < 64 ? t.n : 64), t.p,
                              (long long)json_integer_value(seen), i);
        json_t *id = json_integer((json_int_t)i);
        if (json_object_setn_new(v->ids, t.p, t.n, id) || memchr(t.p, 0, t.n))
            return qn_err_set(err, QN_FORMAT, "token %zu is not UTF-8 text without NUL", i);
    }
    return QN_OK;
}

/* Control tokens, and the unknown token, are matched as they are and hidden from output. */
static json_t *added_tokens(const vocab *v)
{
    json_t *list = json_array();
    for (size_t i = 0; i < v->n; i++) {
        int type = token_type(v, i);
        if (type != CONTROL && type != USER_DEFINED && type != UNKNOWN) continue;
        qn_gguf_str t = v->tokens[i];
        json_array_append_new(list, json_pack("{s:I, s:s%, s:b, s:b, s:b, s:b, s:b}", "id",
            (json_int_t)i, "content", t.p, t.n, "single_word", 0, "lstrip", 0, "rstrip", 0,
            "normalized", 0, "special", type != USER_DEFINED));
    }
    return list;
}

static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", use_regex);
}

static json_t *pre_tokenizer(const pre_rule *r)
{
    if (!r->digits && !r->pattern) return byte_level(true);
    json_t *first;
    if (r->digits) first = json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1);
    else first = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                           r->pattern, "behavior", "Isolated", "invert", 0);
    return json_pack("{s:s, s:[o, o]}", "type", "Sequence", "pretokenizers", first,
                     byte_level(r->digits));
}

/* A token reference of a template: {"SpecialToken": {"id": text, "type_id": n}}. */
static json_t *template_token(qn_gguf_str t, int type_id)
{
    return json_pack("{s:{s:s%, s:i}}", "SpecialToken", "id", t.p, t.n, "type_id", type_id);
}

static json_t *template_sequence(const char *id, int type_id)
{
    return json_pack("{s:{s:s, s:i}}", "Sequence", "id", id, "type_id", type_id);
}

static void template_add(json_t *list, const vocab *v, int64_t bos, int64_t eos, const char *id,
                         int type_id)
{
    if (bos >= 0) json_array_append_new(list, template_token(v->tokens[bos], type_id));
    json_array_append_new(list, template_sequence(id, type_id));
    if (eos >= 0) json_array_append_new(list, template_token(v->tokens[eos], type_id));
}

static void template_name(json_t *names, const vocab *v, int64_t id)
{
    if (id < 0) return;
    qn_gguf_str t = v->tokens[id];
    json_object_setn_new(names, t.p, t.n, json_pack("{s:s%, s:[I], s:[s%]}", "id", t.p, t.n, "ids",
                         (json_int_t)id, "tokens", t.p, t.n));
}

/* bos, eos: ids to put around a text, -1 for none. */
static json_t *post_processor(const vocab *v, int64_t bos, int64_t eos)
{
    if (bos < 0 && eos < 0) return json_null();
    json_t *single = json_array(), *pair = json_array(), *names = json_object();
    template_add(single, v, bos, eos, "A", 0);
    template_add(pair, v, bos, eos, "A", 0);
    template_add(pair, v, bos, eos, "B", 1);
    template_name(names, v, bos);
    template_name(names, v, eos);
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", names);
}

static json_t *bpe_model(bool byte_fallback, bool ignore_merges)
{
    return json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b}", "type", "BPE", "dropout",
                     "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                     byte_fallback, "byte_fallback", byte_fallback, "ignore_merges", ignore_merges);
}

/* ---- byte-level BPE ---- */

static qn_code split_merges(qn_job *job, const vocab *v, json_t *model, qn_err *err)
{
    static const char key[] = "tokenizer.ggml.merges";
    qn_gguf_array a;
    qn_code rc = qn_gguf_list(job->gguf, key, &a, err);
    if (rc) return rc;
    if (a.n > MAX_MERGES) return qn_err_set(err, QN_LIMIT, "key %s has %zu merges", key, a.n);
    qn_gguf_str *m = qn_arena_take(&job->arena, a.n + 1, sizeof *m);
    if (!m) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
    if ((rc = qn_gguf_strings(&a, key, m, err))) return rc;
    json_t *list = json_array();
    json_object_set_new(model, "merges", list);
    for (size_t i = 0; i < a.n; i++) {
        const char *space = m[i].n ? memchr(m[i].p, ' ', m[i].n) : NULL;
        size_t left = space ? (size_t)(space - m[i].p) : 0;
        if (!left || !json_object_getn(v->ids, m[i].p, left) ||
            !json_object_getn(v->ids, space + 1, m[i].n - left - 1))
            return qn_err_set(err, QN_FORMAT, "merge %zu, \"%.*s\", is not two tokens with a space "
                              "between them", i, (int)(m[i].n < 64 ? m[i].n : 64), m[i].p);
        json_array_append_new(list, json_pack("[s%, s%]", m[i].p, left, space + 1,
                                              m[i].n - left - 1));
    }
    return QN_OK;
}

static qn_code find_pre(const qn_gguf *g, const pre_rule **out, qn_err *err)
{
    static const char key[] = "tokenizer.ggml.pre";
    qn_gguf_str pre = {"default", 7};
    qn_code rc = qn_gguf_has(g, key) ? qn_gguf_text(g, key, &pre, err) : QN_OK;
    if (rc) return rc;
    for (size_t i = 0; i < sizeof pre_rules / sizeof *pre_rules; i++) {
        *out = &pre_rules[i];
        if (str_is(pre, pre_rules[i].name)) return QN_OK;
    }
    return qn_err_set(err, QN_UNSUPPORTED, "tokenizer pre-processing \"%.*s\" is not supported "
                      "yet; name a folder with the tokenizer's own files (--tokenizer DIR)",
                      (int)(pre.n < 64 ? pre.n : 64), pre.p);
}

static qn_code build_byte_level(qn_job *job, vocab *v, json_t *t, bool *add_bos, qn_err *err)
{
    const pre_rule *r = NULL;
    qn_code rc = find_pre(job->gguf, &r, err);
    if (rc) return rc;
    *add_bos = r->add_bos;
    json_t *model = bpe_model(false, r->ignore_merges);
    json_object_set_new(t, "normalizer", r->nfc ? json_pack("{s:s}", "type", "NFC") : json_null());
    json_object_set_new(t, "pre_tokenizer", pre_tokenizer(r));
    json_object_set_new(t, "post_processor", json_null());
    json_object_set_new(t, "decoder", byte_level(true));
    json_object_set_new(t, "model", model);
    if ((rc = make_ids(v, model, err))) return rc;
    return split_merges(job, v, model, err);
}

/* ---- SentencePiece BPE ---- */

typedef struct merge { /* token `id` made of its first `left` bytes and the rest */
    size_t id, left;
    int64_t left_id, right_id;
    double score;
} merge;

/* By score, highest first; then by token, then by the halves' ids: the order in which a stable sort
 * leaves them. */
static int merge_order(const void *pa, const void *pb)
{
    const merge *a = pa, *b = pb;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->id != b->id) return a->id < b->id ? -1 : 1;
    if (a->left_id != b->left_id) return a->left_id < b->left_id ? -1 : 1;
    return a->right_id < b->right_id ? -1 : a->right_id > b->right_id;
}

typedef struct merge_list { merge *data; size_t n, cap; } merge_list;

static bool merge_push(merge_list *l, merge m)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4096;
        merge *data = cap > MAX_MERGES ? NULL : realloc(l->data, cap * sizeof *data);
        if (!data) return false;
        l->data = data;
        l->cap = cap;
    }
    l->data[l->n++] = m;
    return true;
}

/* Every way to cut token `id` between two characters into two tokens. */
static bool add_splits(const vocab *v, const qn_gguf_array *scores, size_t id, merge_list *out)
{
    qn_gguf_str t = v->tokens[id];
    for (size_t cut = 1; cut < t.n; cut++) {
        if (((unsigned char)t.p[cut] & 0xC0) == 0x80) continue;
        const json_t *l = json_object_getn(v->ids, t.p, cut);
        const json_t *r = l ? json_object_getn(v->ids, t.p + cut, t.n - cut) : NULL;
        if (!r) continue;
        merge m = {id, cut, json_integer_value(l), json_integer_value(r),
                   qn_gguf_number(scores, id)};
        if (!merge_push(out, m)) return false;
    }
    return true;
}

static qn_code rebuild_merges(qn_job *job, const vocab *v, json_t *model, qn_err *err)
{
    qn_gguf_array scores;
    qn_code rc = qn_gguf_list(job->gguf, "tokenizer.ggml.scores", &scores, err);
    if (rc) return rc;
    if (scores.n != v->n || scores.kind == QN_GGUF_STRING)
        return qn_err_set(err, QN_FORMAT, "key tokenizer.ggml.scores has %zu numbers for %zu "
                          "tokens", scores.n, v->n);
    merge_list l = {0};
    bool ok = true;
    for (size_t id = 0; ok && id < v->n; id++) ok = add_splits(v, &scores, id, &l);
    if (!ok) {
        free(l.data);
        return qn_err_set(err, QN_LIMIT, "tokenizer: more than %d merges, or out of memory",
                          MAX_MERGES);
    }
    if (l.n) qsort(l.data, l.n, sizeof *l.data, merge_order);
    json_t *list = json_array();
    json_object_set_new(model, "merges", list);
    for (size_t i = 0; i < l.n; i++) {
        qn_gguf_str t = v->tokens[l.data[i].id];
        size_t left = l.data[i].left;
        json_array_append_new(list, json_pack("[s%, s%]", t.p, left, t.p + left, t.n - left));
    }
    free(l.data);
    return QN_OK;
}

#define BLOCK "\xE2\x96\x81" /* U+2581, SentencePiece's visible space */

static json_t *replace_step(const char *from, const char *to)
{
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", from, "content",
                     to);
}

static json_t *piece_normalizer(bool prefix)
{
    if (!prefix) return replace_step(" ", BLOCK);
    return json_pack("{s:s, s:[{s:s, s:s}, o]}", "type", "Sequence", "normalizers", "type",
                     "Prepend", "prepend", BLOCK, replace_step(" ", BLOCK));
}

static json_t *piece_decoder(bool prefix)
{
    json_t *steps = json_pack("[o, {s:s}, {s:s}]", replace_step(BLOCK, " "), "type", "ByteFallback",
                              "type", "Fuse");
    if (prefix)
        json_array_append_new(steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content",
                                               " ", "start", 1, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

static qn_code build_pieces(qn_job *job, vocab *v, json_t *t, bool *add_bos, qn_err *err)
{
    bool prefix;
    uint64_t unk;
    qn_code rc = qn_gguf_bool_or(job->gguf, "tokenizer.ggml.add_space_prefix", true, &prefix, err);
    if (!rc) rc = qn_gguf_u64_or(job->gguf, "tokenizer.ggml.unknown_token_id", 0, &unk, err);
    if (rc) return rc;
    *add_bos = true;
    json_t *model = bpe_model(true, false);
    if (unk < v->n)
        json_object_set_new(model, "unk_token", json_stringn(v->tokens[unk].p, v->tokens[unk].n));
    json_object_set_new(t, "normalizer", piece_normalizer(prefix));
    json_object_set_new(t, "pre_tokenizer", json_null());
    json_object_set_new(t, "post_processor", json_null());
    json_object_set_new(t, "decoder", piece_decoder(prefix));
    json_object_set_new(t, "model", model);
    if ((rc = make_ids(v, model, err))) return rc;
    return rebuild_merges(job, v, model, err);
}

/* ---- the three files ---- */

/* A special token's id, -1 if the key is absent. */
static qn_code special_id(const qn_gguf *g, const vocab *v, const char *name, int64_t *out,
                          qn_err *err)
{
    char key[96];
    uint64_t id;
    *out = -1;
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    if (!qn_gguf_has(g, key)) return QN_OK;
    qn_code rc = qn_gguf_u64(g, key, &id, err);
    if (rc) return rc;
    if (id >= v->n)
        return qn_err_set(err, QN_FORMAT, "key %s is %llu, there are %zu tokens", key,
                          (unsigned long long)id, v->n);
    *out = (int64_t)id;
    return QN_OK;
}

typedef struct specials { int64_t bos, eos, unk, pad, eot; bool add_bos, add_eos; } specials;

static qn_code read_specials(const qn_gguf *g, const vocab *v, bool add_bos, specials *s,
                             qn_err *err)
{
    qn_code rc = special_id(g, v, "bos", &s->bos, err);
    if (!rc) rc = special_id(g, v, "eos", &s->eos, err);
    if (!rc) rc = special_id(g, v, "unknown", &s->unk, err);
    if (!rc) rc = special_id(g, v, "padding", &s->pad, err);
    if (!rc) rc = special_id(g, v, "eot", &s->eot, err);
    if (!rc) rc = qn_gguf_bool_or(g, "tokenizer.ggml.add_bos_token", add_bos, &s->add_bos, err);
    if (!rc) rc = qn_gguf_bool_or(g, "tokenizer.ggml.add_eos_token", false, &s->add_eos, err);
    return rc;
}

static void set_text(json_t *o, const char *key, const vocab *v, int64_t id)
{
    if (id < 0) json_object_set_new(o, key, json_null());
    else json_object_set_new(o, key, json_stringn(v->tokens[id].p, v->tokens[id].n));
}

static qn_code write_config(qn_job *job, const vocab *v, const specials *s, const char *dir,
                            qn_err *err)
{
    json_t *c = json_object();
    json_object_set_new(c, "add_bos_token", json_boolean(s->add_bos));
    json_object_set_new(c, "add_eos_token", json_boolean(s->add_eos));
    set_text(c, "bos_token", v, s->bos);
    set_text(c, "eos_token", v, s->eos);
    set_text(c, "unk_token", v, s->unk);
    set_text(c, "pad_token", v, s->pad);
    json_object_set_new(c, "clean_up_tokenization_spaces", json_false());
    json_t *context = json_object_get(job->config, "max_position_embeddings");
    if (context) json_object_set(c, "model_max_length", context);
    json_object_set_new(c, "tokenizer_class", json_string("PreTrainedTokenizerFast"));
    qn_gguf_str text;
    qn_code rc = QN_OK;
    if (qn_gguf_has(job->gguf, "tokenizer.chat_template")) {
        rc = qn_gguf_text(job->gguf, "tokenizer.chat_template", &text, err);
        json_t *value = rc ? NULL : json_stringn(text.p, text.n);
        if (!rc && !value)
            rc = qn_err_set(err, QN_FORMAT, "key tokenizer.chat_template is not UTF-8");
        if (value) json_object_set_new(c, "chat_template", value);
    }
    if (!rc) rc = qn_json_file(c, dir, "tokenizer_config.json", err);
    json_decref(c);
    return rc;
}

static qn_code write_generation(const specials *s, const char *dir, qn_err *err)
{
    json_t *c = json_object();
    if (s->bos >= 0) json_object_set_new(c, "bos_token_id", json_integer(s->bos));
    if (s->eos >= 0 && s->eot >= 0 && s->eot != s->eos)
        json_object_set_new(c, "eos_token_id", json_pack("[I, I]", (json_int_t)s->eos,
                                                         (json_int_t)s->eot));
    else if (s->eos >= 0) json_object_set_new(c, "eos_token_id", json_integer(s->eos));
    if (s->pad >= 0) json_object_set_new(c, "pad_token_id", json_integer(s->pad));
    qn_code rc = qn_json_file(c, dir, "generation_config.json", err);
    json_decref(c);
    return rc;
}

static qn_code build(qn_job *job, vocab *v, json_t *t, bool *add_bos, qn_err *err)
{
    qn_gguf_str model;
    qn_code rc = qn_gguf_text(job->gguf, "tokenizer.ggml.model", &model, err);
    if (rc || (rc = read_vocab(job, v, err))) return rc;
    json_object_set_new(t, "version", json_string("1.0"));
    json_object_set_new(t, "truncation", json_null());
    json_object_set_new(t, "padding", json_null());
    json_object_set_new(t, "added_tokens", added_tokens(v));
    if (str_is(model, "gpt2")) return build_byte_level(job, v, t, add_bos, err);
    if (str_is(model, "llama")) return build_pieces(job, v, t, add_bos, err);
    return qn_err_set(err, QN_UNSUPPORTED, "tokenizer model \"%.*s\" is not supported yet, gpt2 "
                      "and llama are; name a folder with the tokenizer's own files (--tokenizer "
                      "DIR)", (int)(model.n < 64 ? model.n : 64), model.p);
}

qn_code qn_write_gguf_tokenizer(qn_job *job, const char *dir, qn_err *err)
{
    vocab v = {0};
    specials s = {0};
    bool add_bos = false;
    json_t *t = json_object();
    if (!t) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
    qn_code rc = build(job, &v, t, &add_bos, err);
    if (!rc) rc = read_specials(job->gguf, &v, add_bos, &s, err);
    if (!rc) {
        json_object_set_new(t, "post_processor", post_processor(&v, s.add_bos ? s.bos : -1,
                                                                s.add_eos ? s.eos : -1));
        rc = qn_json_file(t, dir, "tokenizer.json", err);
    }
    json_decref(t);
    if (!rc) rc = write_config(job, &v, &s, dir, err);
    if (!rc) rc = write_generation(&s, dir, err);
    return rc ? qn_err_prefix(err, "%s", job->opts->source) : QN_OK;
}
