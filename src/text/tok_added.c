/* tok_added.c - added tokens: their ids, and finding them in text.
 *
 * Matching is leftmost-longest over a byte trie; one trie for tokens that match the raw text, one
 * for those that match the normalised text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tok_impl.h"

/* ---- ids ---- */

/* The id that the oracle gives: the vocabulary's own for a known text, else the next one after the
 * vocabulary and all added tokens before. The file's "id" is only a claim. */
static uint32_t next_id(const qn_tokenizer *t, uint32_t largest, bool any)
{
    uint32_t size = t->model.vocab.n_entries;
    return any && (largest >= size || size == 0) ? largest + 1 : size;
}

static qn_code read_added(qn_tokenizer *t, const json_t *o, size_t i, tok_added *a, qn_err *err)
{
    char where[48];
    snprintf(where, sizeof where, "added_tokens[%zu]", i);
    qn_code rc;
    if (!json_is_object(o)) {
        return qn_err_set(err, QN_FORMAT, "tokenizer.json: %s is not an object", where);
    }
    if ((rc = tok_json_need_str(t, o, where, "content", &a->content, err))) return rc;
    if ((rc = tok_json_bool(o, where, "special", false, &a->special, err))) return rc;
    if ((rc = tok_json_bool(o, where, "lstrip", false, &a->lstrip, err))) return rc;
    if ((rc = tok_json_bool(o, where, "rstrip", false, &a->rstrip, err))) return rc;
    if ((rc = tok_json_bool(o, where, "single_word", false, &a->single_word, err))) return rc;
    return tok_json_bool(o, where, "normalized", !a->special, &a->normalized, err);
}

static qn_code assign_ids(qn_tokenizer *t, const json_t *list, qn_err *err)
{
    size_t n = json_array_size(list);
    uint32_t largest = 0;
    qn_code rc = QN_OK;
    json_t *seen = json_object(); /* contents so far */
    for (size_t i = 0; i < n && !rc; i++) {
        tok_added a = {0};
        rc = read_added(t, json_array_get(list, i), i, &a, err);
        /* Of a repeated token only the first counts. */
        if (rc || !a.content.n || json_object_getn(seen, a.content.s, a.content.n)) continue;
        a.id = tok_vocab_find(&t->model.vocab, a.content.s, a.content.n);
        if (a.id == QN_NO_TOKEN) a.id = next_id(t, largest, t->n_added > 0);
        if (a.id >= TOK_MAX_IDS) {
            rc = qn_err_set(err, QN_LIMIT,
                            "tokenizer.json: added_tokens[%zu] would get id %u, more than %d", i,
                            a.id, TOK_MAX_IDS - 1);
            break;
        }
        if (a.id > largest) largest = a.id;
        if (json_object_setn_new(seen, a.content.s, a.content.n, json_true())) {
            rc = qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory for the added tokens");
        }
        t->added[t->n_added++] = a;
    }
    json_decref(seen);
    return rc;
}

static qn_code index_by_id(qn_tokenizer *t, qn_err *err)
{
    t->n_vocab = t->model.vocab.n_ids;
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->added[i].id >= t->n_vocab) t->n_vocab = t->added[i].id + 1;
    }
    t->added_of_id = qn_arena_take(&t->arena, (size_t)t->n_vocab + 1, sizeof *t->added_of_id);
    if (!t->added_of_id) {
        return qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory for the added tokens");
    }
    for (size_t i = 0; i < t->n_added; i++) t->added_of_id[t->added[i].id] = (uint32_t)i + 1;
    return QN_OK;
}

qn_code tok_parse_added(qn_tokenizer *t, const json_t *list, qn_err *err)
{
    if (list && !json_is_null(list) && !json_is_array(list)) {
        return qn_err_set(err, QN_FORMAT, "tokenizer.json: added_tokens is not an array");
    }
    size_t n = json_array_size(list);
    if (n > TOK_MAX_ADDED) {
        return qn_err_set(err, QN_LIMIT,
                          "tokenizer.json: added_tokens has %zu entries, more than the limit of %d",
                          n, TOK_MAX_ADDED);
    }
    t->added = qn_arena_take(&t->arena, n + 1, sizeof *t->added);
    if (!t->added) {
        return qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory for the added tokens");
    }
    qn_code rc = assign_ids(t, list, err);
    return rc ? rc : index_by_id(t, err);
}

/* ---- the trie ---- */

static uint32_t new_node(qn_arena *arena, tok_trie *trie, uint8_t byte)
{
    if (trie->n == trie->cap) {
        uint32_t cap = trie->cap ? trie->cap * 2 : 256;
        tok_trie_node *p = qn_arena_take(arena, cap, sizeof *p);
        if (!p) return 0;
        if (trie->n) memcpy(p, trie->nodes, trie->n * sizeof *p);
        trie->nodes = p;
        trie->cap = cap;
        if (!trie->n) trie->n = 1;
    }
    trie->nodes[trie->n].byte = byte;
    return trie->n++;
}

uint32_t tok_trie_step(const tok_trie *trie, uint32_t first, uint8_t byte)
{
    while (first && trie->nodes[first].byte != byte) first = trie->nodes[first].sibling;
    return first;
}

bool tok_trie_add(qn_arena *arena, tok_trie *trie, tok_str s, uint32_t index)
{
    uint32_t node = 0;
    for (size_t i = 0; i < s.n; i++) {
        uint8_t byte = (uint8_t)s.s[i];
        uint32_t first = node ? trie->nodes[node].child : trie->root[byte];
        uint32_t next = tok_trie_step(trie, first, byte);
        if (!next) {
            next = new_node(arena, trie, byte);
            if (!next) return false;
            trie->nodes[next].sibling = first;
            if (node) {
                trie->nodes[node].child = next;
            } else {
                trie->root[byte] = next;
            }
        }
        node = next;
    }
    if (node && !trie->nodes[node].token) trie->nodes[node].token = index + 1;
    return true;
}

static qn_code index_one(qn_tokenizer *t, tok_scratch *sc, size_t i, qn_err *err)
{
    tok_added *a = &t->added[i];
    a->shown = a->content;
    if (a->normalized) {
        tok_str s;
        bool origin = true;
        qn_code rc = tok_norm_run(t, sc, a->content, &s, &origin, err);
        if (rc) return rc;
        a->shown = (tok_str){qn_arena_dup(&t->arena, s.s, s.n), s.n};
        if (!a->shown.s) return QN_NOMEM;
        if (s.n) t->normalized_added = true;
    }
    return tok_trie_add(&t->arena, a->normalized ? &t->norm_trie : &t->raw_trie, a->shown, (uint32_t)i)
               ? QN_OK
               : QN_NOMEM;
}

/* Special tokens go first: where two normalise to the same text, the oracle finds the special one.
 */
qn_code tok_added_index(qn_tokenizer *t, qn_err *err)
{
    tok_scratch *sc = tok_scratch_take(t);
    qn_code rc = sc ? QN_OK : QN_NOMEM;
    for (int special = 1; special >= 0; special--) {
        for (size_t i = 0; i < t->n_added && !rc; i++) {
            if (t->added[i].special == (bool)special) rc = index_one(t, sc, i, err);
        }
    }
    if (sc) tok_scratch_put(t, sc);
    return rc == QN_NOMEM
               ? qn_err_set(err, rc, "tokenizer.json: out of memory for the added tokens")
               : rc;
}

size_t tok_trie_longest(const tok_trie *trie, tok_str s, uint32_t *index)
{
    size_t best = 0;
    uint32_t node = s.n ? trie->root[(uint8_t)s.s[0]] : 0;
    for (size_t i = 1; node; i++) {
        if (trie->nodes[node].token) {
            best = i;
            if (index) *index = trie->nodes[node].token - 1;
        }
        if (i == s.n) break;
        node = tok_trie_step(trie, trie->nodes[node].child, (uint8_t)s.s[i]);
    }
    return best;
}

const tok_added *tok_trie_next(const tok_trie *trie, const qn_tokenizer *t, tok_str text,
                               size_t from, size_t *start, size_t *end)
{
    for (size_t i = from; i < text.n; i++) {
        uint32_t node = trie->root[(uint8_t)text.s[i]], best = 0;
        for (size_t j = i; node;) {
            j++;
            if (trie->nodes[node].token) {
                best = trie->nodes[node].token;
                *end = j;
            }
            if (j == text.n) break;
            node = tok_trie_step(trie, trie->nodes[node].child, (uint8_t)text.s[j]);
        }
        if (best) {
            *start = i;
            return &t->added[best - 1];
        }
    }
    return NULL;
}
