/* tok_vocab.c - the vocabulary arrays: token text by id, id by token text. */
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "text/tok_impl.h"

tok_str tok_vocab_token(const tok_vocab *v, uint32_t id)
{
    if (id >= v->n_ids || v->offs[id] == v->offs[id + 1]) return (tok_str){0};
    return (tok_str){v->text + v->offs[id], v->offs[id + 1] - v->offs[id] - 1};
}

uint32_t tok_vocab_find(const tok_vocab *v, const char *s, size_t n)
{
    if (!v->slots) return QN_NO_TOKEN;
    uint32_t at = (uint32_t)qn_hash64(s, n, 0) & v->slot_mask;
    while (v->slots[at]) {
        uint32_t id = v->slots[at] - 1;
        uint32_t start = v->offs[id];
        if (v->offs[id + 1] - start - 1 == n && !memcmp(v->text + start, s, n)) return id;
        at = (at + 1) & v->slot_mask;
    }
    return QN_NO_TOKEN;
}

static uint32_t slots_for(size_t n)
{
    uint32_t cap = 16;
    while (cap < n * 2) cap *= 2;
    return cap;
}

/* Token lengths to offsets; an id that appears twice keeps its last token, as a JSON map would. */
static qn_code lay_out(uint32_t *offs, const tok_entry **by_id, uint32_t n_ids, size_t *bytes,
                       qn_err *err)
{
    size_t at = 0;
    for (uint32_t id = 0; id < n_ids; id++) {
        offs[id] = (uint32_t)at;
        if (by_id[id]) at += by_id[id]->token.n + 1;
        if (at > UINT32_MAX / 2) {
            return qn_err_set(err, QN_LIMIT,
                              "tokenizer.json: model.vocab holds more than 2 GiB of text");
        }
    }
    offs[n_ids] = (uint32_t)at;
    *bytes = at;
    return QN_OK;
}

static bool same_token(tok_str a, tok_str b)
{
    return a.n == b.n && !memcmp(a.s, b.s, a.n);
}

static void fill(qn_tokenizer *t, const tok_entry **by_id, uint32_t *offs, char *text,
                 uint32_t *slots)
{
    tok_vocab *v = &t->model.vocab;
    for (uint32_t id = 0; id < v->n_ids; id++) {
        if (!by_id[id]) continue;
        tok_str tk = by_id[id]->token;
        memcpy(text + offs[id], tk.s, tk.n);
        text[offs[id] + tk.n] = '\0';
        uint32_t at = (uint32_t)qn_hash64(tk.s, tk.n, 0) & v->slot_mask;
        /* A text that appears twice belongs to the later id. */
        while (slots[at] && !same_token(by_id[slots[at] - 1]->token, tk)) {
            at = (at + 1) & v->slot_mask;
        }
        slots[at] = id + 1;
        if (tk.n > t->model.max_token) t->model.max_token = tk.n;
    }
}

qn_code tok_vocab_build(qn_tokenizer *t, const tok_entry *entries, size_t n, qn_err *err)
{
    tok_vocab *v = &t->model.vocab;
    uint32_t n_ids = 0;
    for (size_t i = 0; i < n; i++) {
        if (entries[i].id >= n_ids) n_ids = entries[i].id + 1;
    }
    size_t bytes = 0;
    qn_code rc = QN_NOMEM;
    const tok_entry **by_id = calloc((size_t)n_ids + 1, sizeof *by_id);
    uint32_t *offs = t->owned[0] = malloc(((size_t)n_ids + 1) * sizeof *offs);
    if (!by_id || !offs) goto done;
    for (size_t i = 0; i < n; i++) by_id[entries[i].id] = &entries[i];
    rc = lay_out(offs, by_id, n_ids, &bytes, err);
    if (rc) goto done;
    v->n_ids = n_ids;
    v->n_entries = (uint32_t)n;
    v->slot_mask = slots_for(n) - 1;
    char *text = t->owned[1] = malloc(bytes + 1);
    uint32_t *slots = t->owned[2] = calloc((size_t)v->slot_mask + 1, sizeof *slots);
    if (!text || !slots) {
        rc = QN_NOMEM;
        goto done;
    }
    fill(t, by_id, offs, text, slots);
    v->offs = offs;
    v->text = text;
    v->slots = slots;
done:
    free(by_id);
    return rc == QN_NOMEM ? qn_err_set(err, rc, "tokenizer.json: out of memory for the vocabulary")
                          : rc;
}
