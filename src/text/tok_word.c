/* tok_word.c - WordPiece and WordLevel models. */
#include <string.h>

#include "core/utf8.h"
#include "text/tok_impl.h"

static qn_code put_unk(const tok_model *m, qn_ids *out, qn_err *err)
{
    if (m->unk == QN_NO_TOKEN) {
        return qn_err_set(err, QN_FORMAT,
                          "tokenizer.json: model.unk_token \"%s\" is not in model.vocab",
                          m->unk_token.s ? m->unk_token.s : "");
    }
    qn_ids_put(out, &m->unk, 1);
    return QN_OK;
}

/* The longest entry that s[from..n) starts with, with the continuation prefix unless from is 0. */
static uint32_t longest_prefix(const tok_model *m, tok_scratch *sc, tok_str s, size_t from,
                               size_t *end)
{
    size_t prefix = from ? m->prefix.n : 0;
    size_t stop = s.n - from > m->max_token ? from + m->max_token : s.n;
    qn_buf_clear(&sc->key);
    qn_buf_put(&sc->key, m->prefix.s, prefix);
    qn_buf_put(&sc->key, s.s + from, stop - from);
    if (sc->key.failed) return QN_NO_TOKEN;
    for (size_t e = stop; e > from; e--) {
        if (e < s.n && ((unsigned char)s.s[e] & 0xC0) == 0x80) continue;
        uint32_t id = tok_vocab_find(&m->vocab, sc->key.data, prefix + e - from);
        if (id == QN_NO_TOKEN) continue;
        *end = e;
        return id;
    }
    return QN_NO_TOKEN;
}

static size_t count_chars(tok_str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.s[i] & 0xC0) != 0x80;
    return n;
}

qn_code tok_wordpiece_encode(const qn_tokenizer *t, tok_scratch *sc, tok_str piece, qn_ids *out,
                             qn_err *err)
{
    const tok_model *m = &t->model;
    size_t before = out->len;
    if (count_chars(piece) > m->max_word_chars) return put_unk(m, out, err);
    for (size_t i = 0; i < piece.n;) {
        uint32_t id = longest_prefix(m, sc, piece, i, &i);
        if (id == QN_NO_TOKEN) { /* one unknown part makes the word unknown */
            out->len = before;
            return put_unk(m, out, err);
        }
        qn_ids_put(out, &id, 1);
    }
    return QN_OK;
}

qn_code tok_wordlevel_encode(const qn_tokenizer *t, tok_str piece, qn_ids *out, qn_err *err)
{
    uint32_t id = tok_vocab_find(&t->model.vocab, piece.s, piece.n);
    if (id == QN_NO_TOKEN) return put_unk(&t->model, out, err);
    qn_ids_put(out, &id, 1);
    return QN_OK;
}
