/* tok_unigram.c - the Unigram model: the segmentation with the highest sum of scores.
 *
 * Viterbi over byte positions; a trie of the vocabulary gives the tokens that start at each. Sums
 * and ties follow the oracle: doubles, added left to right, the first best kept.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/tok_impl.h"

enum { NO_START = -1 };

typedef struct node {
    double score;   /* of the best path that ends here */
    int32_t start;  /* where its last token starts, NO_START: no path yet */
    uint32_t id;
} node;

/* ---- parsing ---- */

static qn_code read_entry(const json_t *e, size_t i, tok_entry *entry, double *score, qn_err *err)
{
    const json_t *token = json_array_get(e, 0), *value = json_array_get(e, 1);
    if (!json_is_string(token) || !json_is_number(value) ||
        json_string_length(token) > TOK_MAX_TOKEN) {
        return qn_err_set(err, QN_FORMAT, "tokenizer.json: model.vocab[%zu] must be [token, score]",
                          i);
    }
    *entry = (tok_entry){{json_string_value(token), json_string_length(token)}, (uint32_t)i};
    *score = json_number_value(value);
    return QN_OK;
}

static qn_code parse_vocab(qn_tokenizer *t, const json_t *vocab, qn_err *err)
{
    size_t n = json_array_size(vocab);
    if (!n || n > TOK_MAX_IDS) {
        return qn_err_set(err, QN_LIMIT,
                          "tokenizer.json: model.vocab has %zu tokens, it must have 1 to %d", n,
                          TOK_MAX_IDS);
    }
    tok_entry *entries = malloc(n * sizeof *entries);
    double *scores = t->owned[3] = malloc(n * sizeof *scores);
    qn_code rc = entries && scores ? QN_OK
                                   : qn_err_set(err, QN_NOMEM,
                                                "tokenizer.json: out of memory for the vocabulary");
    for (size_t i = 0; i < n && !rc; i++) {
        rc = read_entry(json_array_get(vocab, i), i, &entries[i], &scores[i], err);
    }
    if (!rc) rc = tok_vocab_build(t, entries, n, err);
    t->model.vocab.scores = scores;
    free(entries);
    return rc;
}

qn_code tok_parse_unigram(qn_tokenizer *t, const json_t *model, qn_err *err)
{
    tok_model *m = &t->model;
    qn_code rc = m->vocab.slots ? QN_OK : parse_vocab(t, json_object_get(model, "vocab"), err);
    if (!rc && !m->vocab.scores) {
        rc = qn_err_set(err, QN_FORMAT, "tokenizer.json: model.vocab has no scores");
    }
    if (!rc) rc = tok_json_bool(model, "model", "byte_fallback", false, &m->byte_fallback, err);
    if (!rc) rc = tok_json_u32(model, "model", "unk_id", QN_NO_TOKEN, &m->unk, err);
    if (!rc && m->unk != QN_NO_TOKEN && m->unk >= m->vocab.n_ids) {
        rc = qn_err_set(err, QN_FORMAT,
                        "tokenizer.json: model.unk_id is %u, the vocabulary has %u tokens", m->unk,
                        m->vocab.n_ids);
    }
    double lowest = rc ? 0 : m->vocab.scores[0];
    for (uint32_t id = 0; id < m->vocab.n_ids && !rc; id++) {
        if (m->vocab.scores[id] < lowest) lowest = m->vocab.scores[id];
    }
    if (!m->spm) m->unk_score = lowest - 10.0; /* the penalty of an unknown character */
    for (unsigned b = 0; b < 256 && !rc; b++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", b);
        m->fallback[b] = tok_vocab_find(&m->vocab, s, 6);
    }
    for (uint32_t id = 0; id < m->vocab.n_ids && !rc; id++) {
        tok_str s = tok_vocab_token(&m->vocab, id);
        if (m->hidden && m->hidden[id]) continue;
        if (s.n && !tok_trie_add(&t->arena, &m->trie, s, id)) {
            rc = qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory for the vocabulary");
        }
    }
    return rc;
}

/* ---- the best path ---- */

/* SentencePiece adds and compares floats. */
static double rounded(const tok_model *m, double score)
{
    return m->spm ? (double)(float)score : score;
}

static void offer(const tok_model *m, node *best, size_t end, size_t start, double score,
                  uint32_t id)
{
    score = rounded(m, score);
    if (best[end].start != NO_START && !(score > best[end].score)) return;
    best[end] = (node){score, (int32_t)start, id};
}

/* Offer every token that starts at `at`. Returns true if one of them is exactly the character. */
static bool offer_tokens(const tok_model *m, tok_str s, size_t at, size_t char_len, node *best)
{
    bool single = false;
    uint32_t n = m->trie.root[(uint8_t)s.s[at]];
    for (size_t end = at + 1; n; end++) {
        const tok_trie_node *tn = &m->trie.nodes[n];
        if (tn->token) {
            offer(m, best, end, at, m->vocab.scores[tn->token - 1] + best[at].score, tn->token - 1);
            single |= end - at == char_len;
        }
        if (end == s.n) break;
        n = tok_trie_step(&m->trie, tn->child, (uint8_t)s.s[end]);
    }
    return single;
}

static qn_code no_unk(qn_err *err)
{
    return qn_err_set(
        err, QN_FORMAT,
        "tokenizer.json: the text needs the unknown token and model.unk_id is not set");
}

static qn_code find_path(const tok_model *m, tok_str s, node *best, qn_err *err)
{
    for (size_t i = 0; i <= s.n; i++) best[i] = (node){0, NO_START, 0};
    for (size_t i = 0; i < s.n;) {
        unsigned cp;
        size_t k = qn_utf8_decode(s.s + i, s.n - i, &cp);
        if (!offer_tokens(m, s, i, k, best)) {
            double score = rounded(m, m->unk_score + best[i].score);
            if (best[i + k].start == NO_START || score > best[i + k].score) {
                if (m->unk == QN_NO_TOKEN) return no_unk(err);
                best[i + k] = (node){score, (int32_t)i, m->unk};
            }
        }
        i += k;
    }
    return QN_OK;
}

static qn_code put_token(const tok_model *m, tok_str s, uint32_t found, qn_ids *out, qn_err *err)
{
    uint32_t id = m->spm ? found : tok_vocab_find(&m->vocab, s.s, s.n);
    if (m->spm && id == m->unk) id = QN_NO_TOKEN;
    bool bytes = id == QN_NO_TOKEN && m->byte_fallback;
    for (size_t i = 0; i < s.n && bytes; i++) bytes = m->fallback[(uint8_t)s.s[i]] != QN_NO_TOKEN;
    if (bytes) {
        for (size_t i = 0; i < s.n; i++) qn_ids_put(out, &m->fallback[(uint8_t)s.s[i]], 1);
        return QN_OK;
    }
    if (id == QN_NO_TOKEN) id = m->unk;
    if (id == QN_NO_TOKEN) return no_unk(err);
    qn_ids_put(out, &id, 1);
    return QN_OK;
}

qn_code tok_unigram_encode(const qn_tokenizer *t, tok_scratch *sc, tok_str piece, qn_ids *out,
                           qn_err *err)
{
    const tok_model *m = &t->model;
    if (!piece.n) return QN_OK;
    if (sc->lattice_cap < piece.n + 1) {
        free(sc->lattice);
        sc->lattice = malloc((piece.n + 1) * sizeof(node));
        sc->lattice_cap = sc->lattice ? piece.n + 1 : 0;
        if (!sc->lattice) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
    }
    node *best = sc->lattice;
    qn_code rc = find_path(m, piece, best, err);
    if (rc) return rc;
    /* Walk back, turning each end's link into a forward one; a run of unknowns is one token. */
    size_t next = piece.n;
    for (size_t at = piece.n; at > 0;) {
        size_t start = (size_t)best[at].start;
        bool unk = best[at].id == m->unk;
        while (unk && start > 0 && best[start].id == m->unk) start = (size_t)best[start].start;
        at = start;
        best[at].score = (double)next; /* where the token that starts here ends */
        next = at;
    }
    for (size_t at = 0; at < piece.n && !rc; at = next) {
        next = (size_t)best[at].score;
        rc = put_token(m, (tok_str){piece.s + at, next - at}, best[next].id, out, err);
    }
    return rc;
}
