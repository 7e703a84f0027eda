/* tok_spm.c - tokenizer.model: SentencePiece's protocol buffer, kinds unigram and bpe.
 *
 * Fields that are read; all others are passed over:
 *
 *   ModelProto      1 pieces (repeated), 2 trainer, 3 normalizer
 *   piece           1 text, 2 score (float), 3 type: 1 normal (also without one), 2 unknown,
 *                   3 control, 4 user defined, 5 unused, 6 byte
 *   trainer         3 kind: 1 unigram, 2 bpe; 24 spaces end words; 35 byte fallback; 40 id of
 * unknown normalizer      2 character map, 3 add a space in front, 4 remove extra spaces, 5 spaces
 *                   become U+2581 (3 to 5 are true where absent)
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/tok_impl.h"

static const char space_mark[] = "\xE2\x96\x81";

enum { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };
enum { KIND_UNIGRAM = 1, KIND_BPE = 2 };

typedef struct piece {
    tok_str text;
    float score;
    uint64_t type;
} piece;

typedef struct spm {
    piece *pieces;
    size_t n, cap;
    uint64_t kind, suffix, byte_fallback;
    uint64_t prefix, remove_extra, escape;
    tok_str charsmap;
} spm;

/* ---- the wire format ---- */

typedef struct field {
    uint64_t number, value; /* value: varint, or the bits of a fixed one */
    int wire;
    tok_str bytes; /* wire 2 */
} field;

typedef struct reader {
    const uint8_t *p, *end;
} reader;

static bool read_varint(reader *r, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 70 && r->p < r->end; shift += 7) {
        uint8_t b = *r->p++;
        if (shift == 63 && b > 1) return false;
        *out |= (uint64_t)(b & 127) << shift;
        if (b < 128) return true;
    }
    return false;
}

static bool read_fixed(reader *r, size_t n, uint64_t *out)
{
    if ((size_t)(r->end - r->p) < n) return false;
    *out = 0;
    for (size_t i = 0; i < n; i++) *out |= (uint64_t)r->p[i] << 8 * i;
    r->p += n;
    return true;
}

static bool read_field(reader *r, field *f)
{
    uint64_t tag, n;
    if (!read_varint(r, &tag) || tag >> 32 || !(tag >> 3)) return false;
    *f = (field){.number = tag >> 3, .wire = (int)(tag & 7)};
    switch (f->wire) {
    case 0: return read_varint(r, &f->value);
    case 1: return read_fixed(r, 8, &f->value);
    case 5: return read_fixed(r, 4, &f->value);
    case 2:
        if (!read_varint(r, &n) || n > (size_t)(r->end - r->p)) return false;
        f->bytes = (tok_str){(const char *)r->p, (size_t)n};
        r->p += n;
        return true;
    default: return false;
    }
}

static reader reader_of(tok_str s)
{
    return (reader){(const uint8_t *)s.s, (const uint8_t *)s.s + s.n};
}

static qn_code broken(const char *where, qn_err *err)
{
    return qn_err_set(err, QN_FORMAT, "tokenizer.model: %s is cut or not a protocol buffer", where);
}

/* ---- the messages ---- */

static qn_code read_piece(spm *m, tok_str s, qn_err *err)
{
    piece p = {.type = PIECE_NORMAL};
    reader r = reader_of(s);
    field f;
    while (r.p < r.end) {
        if (!read_field(&r, &f)) return broken("a piece", err);
        if (f.number == 1 && f.wire == 2) p.text = f.bytes;
        if (f.number == 2 && f.wire == 5) memcpy(&p.score, &(uint32_t){(uint32_t)f.value}, 4);
        if (f.number == 3 && f.wire == 0) p.type = f.value;
    }
    if (!p.text.n || p.text.n > TOK_MAX_TOKEN || !qn_utf8_valid(p.text.s, p.text.n) ||
        memchr(p.text.s, 0, p.text.n) || !isfinite(p.score) || p.type < PIECE_NORMAL ||
        p.type > PIECE_BYTE) {
        return qn_err_set(err, QN_FORMAT,
                          "tokenizer.model: piece %zu has no text, a score that is no number, or "
                          "a type outside 1 to 6",
                          m->n);
    }
    if (m->n == TOK_MAX_IDS) {
        return qn_err_set(err, QN_LIMIT, "tokenizer.model: more than %d pieces", TOK_MAX_IDS);
    }
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 1024;
        piece *v = realloc(m->pieces, cap * sizeof *v);
        if (!v) return qn_err_set(err, QN_NOMEM, "tokenizer.model: out of memory");
        m->pieces = v;
        m->cap = cap;
    }
    m->pieces[m->n++] = p;
    return QN_OK;
}

static qn_code read_trainer(spm *m, tok_str s, qn_err *err)
{
    reader r = reader_of(s);
    field f;
    while (r.p < r.end) {
        if (!read_field(&r, &f)) return broken("the trainer's part", err);
        if (f.wire) continue;
        if (f.number == 3) m->kind = f.value;
        if (f.number == 24) m->suffix = f.value;
        if (f.number == 35) m->byte_fallback = f.value;
    }
    return QN_OK;
}

static qn_code read_normalizer(spm *m, tok_str s, qn_err *err)
{
    reader r = reader_of(s);
    field f;
    while (r.p < r.end) {
        if (!read_field(&r, &f)) return broken("the normalizer's part", err);
        if (f.number == 2 && f.wire == 2) m->charsmap = f.bytes;
        if (f.wire) continue;
        if (f.number == 3) m->prefix = f.value;
        if (f.number == 4) m->remove_extra = f.value;
        if (f.number == 5) m->escape = f.value;
    }
    return QN_OK;
}

static qn_code read_model(spm *m, tok_str s, qn_err *err)
{
    reader r = reader_of(s);
    field f;
    qn_code rc = QN_OK;
    while (!rc && r.p < r.end) {
        if (!read_field(&r, &f)) return broken("the file", err);
        if (f.wire != 2) continue;
        if (f.number == 1) rc = read_piece(m, f.bytes, err);
        if (f.number == 2) rc = read_trainer(m, f.bytes, err);
        if (f.number == 3) rc = read_normalizer(m, f.bytes, err);
    }
    if (!rc && !m->n) rc = qn_err_set(err, QN_FORMAT, "tokenizer.model: there are no pieces");
    if (!rc && m->kind != KIND_UNIGRAM && m->kind != KIND_BPE) {
        rc =
            qn_err_set(err, QN_UNSUPPORTED,
                       "tokenizer.model: not supported yet: kind %llu; unigram (1) and bpe (2) are",
                       (unsigned long long)m->kind);
    }
    return rc;
}

/* ---- the vocabulary ---- */

static qn_code build_vocab(qn_tokenizer *t, const spm *m, qn_err *err)
{
    tok_entry *entries = malloc(m->n * sizeof *entries);
    if (!entries) return qn_err_set(err, QN_NOMEM, "tokenizer.model: out of memory");
    for (size_t i = 0; i < m->n; i++) entries[i] = (tok_entry){m->pieces[i].text, (uint32_t)i};
    qn_code rc = tok_vocab_build(t, entries, m->n, err);
    free(entries);
    for (uint32_t id = 0; id < m->n && !rc; id++) {
        tok_str s = m->pieces[id].text;
        if (tok_vocab_find(&t->model.vocab, s.s, s.n) == id) continue;
        rc = qn_err_set(err, QN_FORMAT, "tokenizer.model: piece %u, \"%.*s\", is there twice", id,
                        (int)(s.n < 60 ? s.n : 60), s.s);
    }
    return rc;
}

/* Which pieces text can become, and the user-defined ones, which are matched before anything. */
static qn_code build_kinds(qn_tokenizer *t, const spm *m, qn_err *err)
{
    tok_model *out = &t->model;
    uint8_t *hidden = qn_arena_take(&t->arena, m->n, 1);
    if (!hidden) return qn_err_set(err, QN_NOMEM, "tokenizer.model: out of memory");
    out->hidden = hidden;
    out->unk = QN_NO_TOKEN;
    for (uint32_t id = 0; id < m->n; id++) {
        const piece *p = &m->pieces[id];
        hidden[id] = p->type != PIECE_NORMAL && p->type != PIECE_USER;
        if (p->type == PIECE_UNKNOWN) out->unk = id;
        if (p->type == PIECE_USER && !tok_trie_add(&t->arena, &out->user, p->text, id)) {
            return qn_err_set(err, QN_NOMEM, "tokenizer.model: out of memory");
        }
    }
    if (out->unk != QN_NO_TOKEN) return QN_OK;
    return qn_err_set(err, QN_FORMAT, "tokenizer.model: no piece has the type unknown");
}

/* Scores as the library sums them: floats; a user-defined piece gets a tenth for every byte but the
 * first, which makes it win. */
static qn_code build_scores(qn_tokenizer *t, const spm *m, qn_err *err)
{
    double *scores = t->owned[3] = malloc(m->n * sizeof *scores);
    float low = HUGE_VALF;
    if (!scores) return qn_err_set(err, QN_NOMEM, "tokenizer.model: out of memory");
    for (size_t i = 0; i < m->n; i++) {
        if (m->pieces[i].type != PIECE_NORMAL) continue;
        low = fminf(low, m->pieces[i].score);
    }
    if (low == HUGE_VALF) low = 0;
    for (size_t i = 0; i < m->n; i++) {
        const piece *p = &m->pieces[i];
        float bonus = (float)(0.1 * ((double)p->text.n - 1));
        scores[i] = (double)(p->type == PIECE_USER ? bonus : p->score);
    }
    t->model.vocab.scores = scores;
    t->model.unk_score = (double)(low - 10.0f);
    return QN_OK;
}

/* A merge makes any two neighbours whose text together is a piece; so every character of a piece
 * must be one, or pieces would be out of reach that the library reaches. */
static qn_code check_reachable(const qn_tokenizer *t, const spm *m, qn_err *err)
{
    for (size_t i = 0; i < m->n; i++) {
        const piece *p = &m->pieces[i];
        if (p->type == PIECE_UNUSED) {
            return qn_err_set(err, QN_UNSUPPORTED,
                              "tokenizer.model: not supported yet: unused pieces of kind bpe");
        }
        for (size_t at = 0; p->type == PIECE_NORMAL && at < p->text.n;) {
            unsigned cp;
            size_t k = qn_utf8_decode(p->text.s + at, p->text.n - at, &cp);
            uint32_t id = tok_vocab_find(&t->model.vocab, p->text.s + at, k);
            if (id == QN_NO_TOKEN || t->model.hidden[id]) {
                return qn_err_set(err, QN_UNSUPPORTED,
                                  "tokenizer.model: not supported yet: U+%04X of piece %zu is no "
                                  "piece of its own",
                                  cp, i);
            }
            at += k;
        }
    }
    return QN_OK;
}

static int by_score(const void *a, const void *b)
{
    const piece *x = *(const piece *const *)a, *y = *(const piece *const *)b;
    return (x->score < y->score) - (x->score > y->score);
}

/* Ranks for merges: pieces with the highest score first, equal scores together. */
static qn_code build_merges(qn_tokenizer *t, const spm *m, qn_err *err)
{
    const piece **sorted = malloc(m->n * sizeof *sorted);
    uint32_t *ranks = malloc(m->n * sizeof *ranks);
    bool *no_part = malloc(m->n * sizeof *no_part);
    qn_code rc = sorted && ranks && no_part
                     ? check_reachable(t, m, err)
                     : qn_err_set(err, QN_NOMEM, "tokenizer.model: out of memory");
    for (size_t i = 0; i < m->n && !rc; i++) {
        sorted[i] = &m->pieces[i];
        no_part[i] = m->pieces[i].type != PIECE_NORMAL;
    }
    if (!rc) {
        qsort(sorted, m->n, sizeof *sorted, by_score);
        for (uint32_t i = 0, rank = 0; i < m->n; i++) {
            if (i && sorted[i]->score < sorted[i - 1]->score) rank = i;
            ranks[sorted[i] - m->pieces] = rank;
        }
        rc = tok_bpe_merges_of_vocab(t, ranks, no_part, err);
    }
    free(sorted);
    free(ranks);
    free(no_part);
    return rc;
}

/* ---- the rest of the pipeline, as a tokenizer.json would say it ---- */

static bool config_says(const qn_tokenizer *t, const char *key, bool dflt)
{
    const json_t *v = json_object_get(t->config, key);
    return json_is_boolean(v) ? json_is_true(v) : dflt;
}

static bool class_is(const qn_tokenizer *t, const char *prefix)
{
    const char *s = json_string_value(json_object_get(t->config, "tokenizer_class"));
    return s && !strncmp(s, prefix, strlen(prefix));
}

static void put_added(json_t *list, const char *text, size_t n, bool special, const json_t *flags)
{
    json_t *o =
        json_pack("{s:s%, s:b, s:b}", "content", text, n, "special", special, "normalized", 0);
    static const char *const keys[] = {"lstrip", "rstrip", "single_word"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *v = json_object_get(flags, keys[i]);
        if (v) json_object_set(o, keys[i], v);
    }
    json_array_append_new(list, o);
}

/* Control pieces match in text, as the tokens that tokenizer_config.json adds, by ascending id. */
static qn_code added_tokens(const qn_tokenizer *t, const spm *m, json_t *list, qn_err *err)
{
    const json_t *named = json_object_get(t->config, "added_tokens_decoder");
    for (uint32_t id = 0; id < m->n; id++) {
        const piece *p = &m->pieces[id];
        if (p->type != PIECE_CONTROL && p->type != PIECE_UNKNOWN) continue;
        put_added(list, p->text.s, p->text.n, true, NULL);
    }
    size_t beyond = 0, found = 0;
    const char *key;
    json_t *token;
    json_object_foreach((json_t *)(uintptr_t)named, key, token)
    {
        beyond += strtoul(key, NULL, 10) >= m->n;
    }
    for (size_t id = 0; id < m->n + beyond; id++) {
        char text[24];
        snprintf(text, sizeof text, "%zu", id);
        const json_t *o = json_object_get(named, text), *content = json_object_get(o, "content");
        if (!json_is_string(content) || (id < m->n && m->pieces[id].type == PIECE_CONTROL))
            continue;
        found += id >= m->n;
        put_added(list, json_string_value(content), json_string_length(content),
                  json_is_true(json_object_get(o, "special")), o);
    }
    if (found == beyond) return QN_OK;
    return qn_err_set(err, QN_UNSUPPORTED,
                      "tokenizer_config.json: not supported yet: the ids of added_tokens_decoder "
                      "do not follow those of tokenizer.model without a gap");
}

/* bos and eos around the text, where tokenizer_config.json or the class that it names wants them.
 */
static json_t *post_processor(const qn_tokenizer *t)
{
    bool llama = class_is(t, "Llama") || class_is(t, "CodeLlama") || class_is(t, "Gemma");
    bool want[2] = {config_says(t, "add_bos_token", llama),
                    config_says(t, "add_eos_token", class_is(t, "T5"))};
    static const char *const names[2] = {"bos_token", "eos_token"};
    json_t *single = json_array(), *table = json_object();
    for (int i = 0; i < 2; i++) {
        const char *s = qn_tokenizer_special(t, names[i]);
        uint32_t id = s ? tok_vocab_find(&t->model.vocab, s, strlen(s)) : QN_NO_TOKEN;
        if (want[i] && id != QN_NO_TOKEN) {
            json_array_append_new(single, json_pack("{s:{s:s}}", "SpecialToken", "id", s));
            json_object_set_new(table, s, json_pack("{s:[i]}", "ids", (int)id));
        }
        if (!i) json_array_append_new(single, json_pack("{s:{s:s}}", "Sequence", "id", "A"));
    }
    return json_pack("{s:s, s:o, s:o}", "type", "TemplateProcessing", "single", single,
                     "special_tokens", table);
}

static json_t *decoder(const spm *m)
{
    bool strips = (m->prefix || m->remove_extra) && !m->suffix;
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}, {s:s, s:s, s:i, s:i}]}", "type",
                     "Sequence", "decoders", "type", "Replace", "pattern", "String", space_mark,
                     "content", " ", "type", "ByteFallback", "type", "Fuse", "type", "Strip",
                     "content", " ", "start", strips ? 1 : 0, "stop", 0);
}

static qn_code add_normalizer(qn_tokenizer *t, const spm *m, qn_err *err)
{
    tok_norm *n = t->norms = qn_arena_take(&t->arena, 1, sizeof *n);
    if (!n) return qn_err_set(err, QN_NOMEM, "tokenizer.model: out of memory");
    *n = (tok_norm){.kind = NORM_SPM,
                    .prefix = m->prefix && !m->suffix,
                    .suffix = m->prefix && m->suffix,
                    .remove_extra = m->remove_extra,
                    .escape = m->escape,
                    .every_section = config_says(t, "legacy", true)};
    t->n_norms = 1;
    return m->charsmap.n ? tok_charsmap_read(t, m->charsmap.s, m->charsmap.n, &n->map, err) : QN_OK;
}

qn_code tok_spm_read(qn_tokenizer *t, const void *data, size_t n, json_t **root, qn_err *err)
{
    spm m = {.kind = KIND_UNIGRAM, .prefix = 1, .remove_extra = 1, .escape = 1};
    json_t *added = json_array();
    t->model.spm = true;
    qn_code rc = read_model(&m, (tok_str){data, n}, err);
    if (!rc) rc = build_vocab(t, &m, err);
    if (!rc) rc = build_kinds(t, &m, err);
    if (!rc) rc = m.kind == KIND_BPE ? build_merges(t, &m, err) : build_scores(t, &m, err);
    if (!rc) rc = add_normalizer(t, &m, err);
    if (!rc) rc = added_tokens(t, &m, added, err);
    if (!rc) {
        tok_str unk = m.pieces[t->model.unk].text;
        *root = json_pack("{s:{s:s, s:b, s:b, s:s%, s:i}, s:O, s:o, s:o}", "model", "type",
                          m.kind == KIND_BPE ? "BPE" : "Unigram", "byte_fallback",
                          m.byte_fallback != 0, "fuse_unk", 1, "unk_token", unk.s, unk.n, "unk_id",
                          (int)t->model.unk, "added_tokens", added, "post_processor",
                          post_processor(t), "decoder", decoder(&m));
        if (!*root) rc = qn_err_set(err, QN_NOMEM, "tokenizer.model: out of memory");
    }
    json_decref(added);
    free(m.pieces);
    return rc;
}

/* ---- the normalizer ---- */

/* What the front of s becomes; returns how much of s it is. */
static size_t normalize_prefix(const qn_tokenizer *t, const tok_norm *n, tok_str s, tok_str *to)
{
    size_t k = tok_trie_longest(&t->model.user, s, NULL);
    if (!k && n->map.n_units)
        k = tok_charsmap_longest(&n->map, s.s, s.n, to);
    else if (k)
        *to = (tok_str){s.s, k};
    if (k) return k;
    unsigned cp;
    k = qn_utf8_decode(s.s, s.n, &cp);
    *to = (tok_str){s.s, k};
    return k;
}

static void put_space(const tok_norm *n, qn_buf *out)
{
    qn_buf_puts(out, n->escape ? space_mark : " ");
}

static void drop_end(const tok_norm *n, qn_buf *out)
{
    size_t k = n->escape ? 3 : 1;
    const char *space = n->escape ? space_mark : " ";
    while (out->len >= k && !memcmp(out->data + out->len - k, space, k)) out->len -= k;
}

void tok_spm_normalize(const qn_tokenizer *t, const tok_norm *n, tok_str in, bool origin,
                       qn_buf *out)
{
    tok_str to;
    while (n->remove_extra && in.n) {
        size_t k = normalize_prefix(t, n, in, &to);
        if (to.n != 1 || to.s[0] != ' ') break;
        in = (tok_str){in.s + k, in.n - k};
    }
    if (!in.n) return;
    bool edge = origin || n->every_section, after_space = n->remove_extra;
    if (n->prefix && edge) put_space(n, out);
    while (in.n) {
        size_t k = normalize_prefix(t, n, in, &to), i = 0;
        while (after_space && i < to.n && to.s[i] == ' ') i++;
        if (i < to.n) after_space = n->remove_extra && to.s[to.n - 1] == ' ';
        for (; i < to.n; i++) {
            if (to.s[i] == ' ') {
                put_space(n, out);
            } else {
                qn_buf_putc(out, to.s[i]);
            }
        }
        in = (tok_str){in.s + k, in.n - k};
    }
    if (n->remove_extra && out->len) drop_end(n, out);
    if (n->suffix && edge) put_space(n, out);
}
