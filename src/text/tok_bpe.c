/* tok_bpe.c - byte-pair encoding: from a piece to ids by the ranked merges.
 *
 * Symbols start as bytes (raw_bytes) or characters. Short pieces scan for the lowest rank, long
 * ones use a heap; both merge the lowest rank first and the leftmost among equals. In raw mode a
 * cache of short pieces gives most of the speed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/tok_impl.h"

enum {
    SCAN_SYMBOLS = 40, /* up to this many symbols the quadratic scan is faster than a heap */
    CACHE_KEY = 15,    /* bytes of the longest cached piece */
    CACHE_IDS = 4
};

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    return x ^ x >> 29;
}

/* ---- the merge table ---- */

static uint32_t merge_slot(const tok_merge *table, uint32_t mask, uint32_t left, uint32_t right)
{
    uint32_t at = (uint32_t)mix((uint64_t)left << 32 | right) & mask;
    while (table[at].left != QN_NO_TOKEN && (table[at].left != left || table[at].right != right)) {
        at = (at + 1) & mask;
    }
    return at;
}

/* The rule for a pair, or NULL. */
static const tok_merge *find_merge(const tok_model *m, uint32_t left, uint32_t right)
{
    const tok_merge *r = &m->merges[merge_slot(m->merges, m->merge_mask, left, right)];
    return r->left == QN_NO_TOKEN ? NULL : r;
}

static qn_code merge_text(const json_t *entry, size_t rank, tok_str *a, tok_str *b, qn_err *err)
{
    if (json_is_string(entry)) {
        const char *s = json_string_value(entry);
        size_t n = json_string_length(entry);
        const char *space = memchr(s, ' ', n);
        if (space) {
            *a = (tok_str){s, (size_t)(space - s)};
            *b = (tok_str){space + 1, n - a->n - 1};
            return QN_OK;
        }
    } else if (json_is_array(entry) && json_array_size(entry) == 2) {
        const json_t *x = json_array_get(entry, 0), *y = json_array_get(entry, 1);
        if (json_is_string(x) && json_is_string(y)) {
            *a = (tok_str){json_string_value(x), json_string_length(x)};
            *b = (tok_str){json_string_value(y), json_string_length(y)};
            return QN_OK;
        }
    }
    return qn_err_set(err, QN_FORMAT,
                      "tokenizer.json: model.merges[%zu] must be \"a b\" or [\"a\", \"b\"]", rank);
}

static qn_code unknown_part(size_t rank, tok_str s, qn_err *err)
{
    return qn_err_set(
        err, QN_FORMAT,
        "tokenizer.json: model.merges[%zu] needs the token \"%.*s\", which is not in model.vocab",
        rank, (int)(s.n < 80 ? s.n : 80), s.s);
}

static qn_code read_merge(const qn_tokenizer *t, const json_t *entry, size_t rank, qn_buf *joined,
                          tok_merge *out, qn_err *err)
{
    const tok_model *m = &t->model;
    tok_str a = {0}, b = {0};
    qn_code rc = merge_text(entry, rank, &a, &b, err);
    if (rc) return rc;
    size_t skip =
        m->prefix.n < b.n ? m->prefix.n : b.n; /* the right part's continuing prefix goes */
    qn_buf_clear(joined);
    qn_buf_put(joined, a.s, a.n);
    qn_buf_put(joined, b.s + skip, b.n - skip);
    if (joined->failed) return qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory");
    *out = (tok_merge){tok_vocab_find(&m->vocab, a.s, a.n), tok_vocab_find(&m->vocab, b.s, b.n),
                       (uint32_t)rank, tok_vocab_find(&m->vocab, joined->data, joined->len)};
    if (out->left == QN_NO_TOKEN) return unknown_part(rank, a, err);
    if (out->right == QN_NO_TOKEN) return unknown_part(rank, b, err);
    if (out->id == QN_NO_TOKEN) {
        return unknown_part(rank, (tok_str){joined->data, joined->len}, err);
    }
    return QN_OK;
}

static qn_code parse_merges(qn_tokenizer *t, const json_t *merges, qn_err *err)
{
    if (!json_is_array(merges)) {
        return qn_err_set(err, QN_FORMAT,
                          "tokenizer.json: model.merges is missing or not an array");
    }
    size_t n = json_array_size(merges), cap = 16;
    if (n > TOK_MAX_MERGES) {
        return qn_err_set(err, QN_LIMIT,
                          "tokenizer.json: model.merges has %zu entries, more than the limit of %d",
                          n, TOK_MAX_MERGES);
    }
    while (cap < n * 2) cap *= 2;
    tok_merge *table = t->owned[3] = malloc(cap * sizeof *table);
    if (!table) return qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory for the merges");
    for (size_t i = 0; i < cap; i++) table[i].left = QN_NO_TOKEN;
    t->model.merges = table;
    t->model.merge_mask = (uint32_t)cap - 1;
    qn_buf joined = {0};
    qn_code rc = QN_OK;
    for (size_t i = 0; i < n && !rc; i++) {
        tok_merge r;
        rc = read_merge(t, json_array_get(merges, i), i, &joined, &r, err);
        /* A pair that appears twice has the later rank. */
        if (!rc) table[merge_slot(table, t->model.merge_mask, r.left, r.right)] = r;
    }
    qn_buf_release(&joined);
    return rc;
}

/* Add the pairs that make token `id`; they are only counted while there is no table. */
static size_t add_splits(const tok_model *m, tok_merge *table, uint32_t id, uint32_t rank,
                         const bool *no_part)
{
    tok_str s = tok_vocab_token(&m->vocab, id);
    size_t n = 0;
    for (size_t i = 1; i < s.n; i++) {
        if (((unsigned char)s.s[i] & 0xC0) == 0x80) continue;
        uint32_t a = tok_vocab_find(&m->vocab, s.s, i);
        uint32_t b = tok_vocab_find(&m->vocab, s.s + i, s.n - i);
        if (a == QN_NO_TOKEN || b == QN_NO_TOKEN) continue;
        if (no_part && (no_part[a] || no_part[b])) continue;
        if (table) table[merge_slot(table, m->merge_mask, a, b)] = (tok_merge){a, b, rank, id};
        n++;
    }
    return n;
}

qn_code tok_bpe_merges_of_vocab(qn_tokenizer *t, const uint32_t *ranks, const bool *no_part,
                                qn_err *err)
{
    tok_model *m = &t->model;
    size_t n = 0, cap = 16;
    for (uint32_t id = 0; id < m->vocab.n_ids; id++) {
        if (!m->hidden || !m->hidden[id]) n += add_splits(m, NULL, id, 0, no_part);
        if (n > TOK_MAX_MERGES) {
            return qn_err_set(err, QN_LIMIT, "tokenizer: the tokens make more than %d merges",
                              TOK_MAX_MERGES);
        }
    }
    while (cap < n * 2) cap *= 2;
    tok_merge *table = t->owned[3] = malloc(cap * sizeof *table);
    if (!table) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory for the merges");
    for (size_t i = 0; i < cap; i++) table[i].left = QN_NO_TOKEN;
    m->merges = table;
    m->merge_mask = (uint32_t)cap - 1;
    for (uint32_t id = 0; id < m->vocab.n_ids; id++) {
        if (!m->hidden || !m->hidden[id]) add_splits(m, table, id, ranks ? ranks[id] : id, no_part);
    }
    return QN_OK;
}

qn_code tok_parse_bpe(qn_tokenizer *t, const json_t *model, qn_err *err)
{
    tok_model *m = &t->model;
    qn_code rc;
    if ((rc = tok_json_bool(model, "model", "ignore_merges", false, &m->ignore_merges, err))) {
        return rc;
    }
    if ((rc = tok_json_bool(model, "model", "byte_fallback", false, &m->byte_fallback, err))) {
        return rc;
    }
    if ((rc = tok_json_bool(model, "model", "fuse_unk", false, &m->fuse_unk, err))) return rc;
    if ((rc = tok_json_str(t, model, "model", "continuing_subword_prefix", &m->prefix, err))) {
        return rc;
    }
    if ((rc = tok_json_str(t, model, "model", "end_of_word_suffix", &m->suffix, err))) return rc;
    return m->merges ? QN_OK : parse_merges(t, json_object_get(model, "merges"), err);
}

static const char space_mark[] = "\xE2\x96\x81";

static bool is_crossing(const tok_model *m, uint32_t cp)
{
    for (size_t i = 0; i < m->n_crossing; i++) {
        if (m->crossing[i] == cp) return true;
    }
    return false;
}

/* The character that ends at s[at]. */
static unsigned char_before(tok_str s, size_t at)
{
    size_t i = at - 1;
    while (i && ((unsigned char)s.s[i] & 0xC0) == 0x80) i--;
    unsigned cp;
    qn_utf8_decode(s.s + i, at - i, &cp);
    return cp;
}

/* Note the characters that stand right before a space mark inside this token. */
static bool add_crossings(tok_model *m, tok_str tk)
{
    for (size_t i = 1; i + 3 <= tk.n; i++) {
        if (memcmp(tk.s + i, space_mark, 3)) continue;
        unsigned cp = char_before(tk, i);
        if (cp == 0x2581 || is_crossing(m, cp)) continue;
        if (m->n_crossing == sizeof m->crossing / sizeof *m->crossing) return false;
        m->crossing[m->n_crossing++] = cp;
    }
    return true;
}

/* A text may be cut before a space mark, without changing a single id, where no merge makes a token
 * that has the character before and the mark side by side. True if only few characters forbid it.
 */
static bool space_is_boundary(tok_model *m)
{
    if (tok_vocab_find(&m->vocab, space_mark, 3) == QN_NO_TOKEN) return false;
    for (uint32_t i = 0; i <= m->merge_mask; i++) {
        const tok_merge *r = &m->merges[i];
        if (r->left != QN_NO_TOKEN && !add_crossings(m, tok_vocab_token(&m->vocab, r->id))) {
            return false;
        }
    }
    return true;
}

qn_code tok_bpe_prepare(qn_tokenizer *t, qn_err *err)
{
    (void)err;
    tok_model *m = &t->model;
    if (m->kind != MODEL_BPE) return QN_OK;
    bool affixes = m->prefix.n || m->suffix.n;
    tok_pre *last = t->n_pres ? &t->pres[t->n_pres - 1] : NULL;
    if (last && last->kind == PRE_BYTE_LEVEL && !affixes && !m->byte_fallback) {
        last->raw = true;
        m->raw_bytes = true;
    }
    m->space_boundary = !m->raw_bytes && !m->user.n && !affixes && !m->ignore_merges &&
                        space_is_boundary(m);
    for (unsigned b = 0; b < 256; b++) {
        char s[8];
        qn_buf c = {0};
        qn_buf_put_utf8(&c, tok_byte_to_char((uint8_t)b));
        m->byte_id[b] = c.failed ? QN_NO_TOKEN : tok_vocab_find(&m->vocab, c.data, c.len);
        qn_buf_release(&c);
        snprintf(s, sizeof s, "<0x%02X>", b);
        m->fallback[b] = tok_vocab_find(&m->vocab, s, 6);
    }
    return QN_OK;
}

/* ---- symbols ---- */

static bool add_symbol(tok_scratch *sc, size_t *n, uint32_t id)
{
    if (*n == sc->symbols_cap) {
        size_t cap = sc->symbols_cap ? sc->symbols_cap * 2 : 256;
        tok_symbol *p = realloc(sc->symbols, cap * sizeof *p);
        if (!p) return false;
        sc->symbols = p;
        sc->symbols_cap = cap;
    }
    sc->symbols[*n] = (tok_symbol){id, (int32_t)*n - 1, (int32_t)*n + 1};
    ++*n;
    return true;
}

static qn_code no_memory(qn_err *err)
{
    return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
}

/* The id of one character, with the affixes that its place asks for. */
static uint32_t char_id(const tok_model *m, tok_scratch *sc, tok_str c, bool first, bool last)
{
    bool prefix = !first && m->prefix.n, suffix = last && m->suffix.n;
    if (!prefix && !suffix) return tok_vocab_find(&m->vocab, c.s, c.n);
    qn_buf_clear(&sc->key);
    if (prefix) qn_buf_put(&sc->key, m->prefix.s, m->prefix.n);
    qn_buf_put(&sc->key, c.s, c.n);
    if (suffix) qn_buf_put(&sc->key, m->suffix.s, m->suffix.n);
    return tok_vocab_find(&m->vocab, sc->key.data, sc->key.len);
}

static bool add_fallback(const tok_model *m, tok_scratch *sc, size_t *n, tok_str c, bool *ok)
{
    for (size_t i = 0; i < c.n; i++) {
        if (m->fallback[(uint8_t)c.s[i]] == QN_NO_TOKEN) return false;
    }
    for (size_t i = 0; i < c.n && *ok; i++) *ok = add_symbol(sc, n, m->fallback[(uint8_t)c.s[i]]);
    return true;
}

/* Cut the piece into its first symbols. An unknown character waits in `unk` until the next known
 * one, so that fuse_unk can join a run of them; the oracle does not flush it before fallback bytes.
 */
static qn_code split_symbols(const tok_model *m, tok_scratch *sc, tok_str piece, size_t *n,
                             qn_err *err)
{
    bool ok = true, unk = false;
    *n = 0;
    for (size_t i = 0; i < piece.n && ok;) {
        unsigned cp;
        uint32_t user = QN_NO_TOKEN;
        size_t k = tok_trie_longest(&m->user, (tok_str){piece.s + i, piece.n - i}, &user);
        if (!k) k = m->raw_bytes ? 1 : qn_utf8_decode(piece.s + i, piece.n - i, &cp);
        tok_str c = {piece.s + i, k};
        uint32_t id = user != QN_NO_TOKEN ? user
                      : m->raw_bytes      ? m->byte_id[(uint8_t)*c.s]
                                          : char_id(m, sc, c, i == 0, i + k == piece.n);
        if (m->hidden && id != QN_NO_TOKEN && m->hidden[id]) id = QN_NO_TOKEN;
        i += k;
        if (id != QN_NO_TOKEN) {
            if (unk) ok = add_symbol(sc, n, m->unk);
            unk = false;
            ok = ok && add_symbol(sc, n, id);
        } else if (m->byte_fallback && add_fallback(m, sc, n, c, &ok)) {
            continue;
        } else if (m->unk_token.s) {
            if (m->unk == QN_NO_TOKEN) {
                return qn_err_set(err, QN_FORMAT,
                                  "tokenizer.json: model.unk_token \"%s\" is not in model.vocab",
                                  m->unk_token.s);
            }
            if (unk && !m->fuse_unk) ok = add_symbol(sc, n, m->unk);
            unk = true;
        }
    }
    if (ok && unk) ok = add_symbol(sc, n, m->unk);
    if (ok && *n) sc->symbols[*n - 1].next = -1;
    return ok ? QN_OK : no_memory(err);
}

/* ---- merging by scan ---- */

static size_t merge_scan(const tok_model *m, tok_symbol *sym, size_t n, uint32_t *ids)
{
    const tok_merge *rule[SCAN_SYMBOLS]; /* rule[i] joins symbols i and i + 1 */
    for (size_t i = 0; i < n; i++) ids[i] = sym[i].id;
    for (size_t i = 0; i + 1 < n; i++) rule[i] = find_merge(m, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        uint32_t rank = QN_NO_TOKEN;
        for (size_t i = 0; i + 1 < n; i++) {
            if (rule[i] && rule[i]->rank < rank) {
                rank = rule[i]->rank;
                best = i;
            }
        }
        if (rank == QN_NO_TOKEN) break;
        ids[best] = rule[best]->id;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (best + 1 < n) memmove(rule + best, rule + best + 1, (n - best - 1) * sizeof *rule);
        if (best) rule[best - 1] = find_merge(m, ids[best - 1], ids[best]);
        if (best + 1 < n) rule[best] = find_merge(m, ids[best], ids[best + 1]);
    }
    return n;
}

/* ---- merging by heap ---- */

static void sift_down(tok_candidate *h, size_t n, size_t i)
{
    tok_candidate c = h[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && h[child + 1].key < h[child].key) child++;
        if (h[child].key >= c.key) break;
        h[i] = h[child];
    }
    h[i] = c;
}

static void sift_up(tok_candidate *h, size_t i)
{
    tok_candidate c = h[i];
    while (i && h[(i - 1) / 2].key > c.key) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = c;
}

/* Add the pair (left, its next) to the heap's array if a rule joins it. The heap never outgrows
 * three entries per symbol: n - 1 at first and two more for each of at most n - 1 merges. */
static bool add_candidate(const tok_model *m, tok_scratch *sc, int32_t left)
{
    const tok_symbol *s = &sc->symbols[left];
    if (s->next < 0) return false;
    const tok_merge *r = find_merge(m, s->id, sc->symbols[s->next].id);
    if (!r) return false;
    sc->heap[sc->n_heap++] = (tok_candidate){(uint64_t)r->rank << 32 | (uint32_t)left, r->id};
    return true;
}

static bool reserve_heap(tok_scratch *sc, size_t n)
{
    if (n * 3 <= sc->heap_cap) return true;
    free(sc->heap);
    sc->heap = malloc(n * 3 * sizeof *sc->heap);
    sc->heap_cap = sc->heap ? n * 3 : 0;
    return sc->heap;
}

static void apply_candidate(const tok_model *m, tok_scratch *sc, tok_candidate c)
{
    int32_t at = (int32_t)(uint32_t)c.key;
    tok_symbol *left = &sc->symbols[at];
    if (left->id == QN_NO_TOKEN || left->next < 0) return;
    tok_symbol *right = &sc->symbols[left->next];
    const tok_merge *r = find_merge(m, left->id, right->id);
    if (!r || r->id != c.id) return; /* stale: one side was merged meanwhile */
    left->id = c.id;
    left->next = right->next;
    right->id = QN_NO_TOKEN;
    if (left->next >= 0) sc->symbols[left->next].prev = at;
    if (left->prev >= 0 && add_candidate(m, sc, left->prev)) sift_up(sc->heap, sc->n_heap - 1);
    if (add_candidate(m, sc, at)) sift_up(sc->heap, sc->n_heap - 1);
}

static bool merge_heap(const tok_model *m, tok_scratch *sc, size_t n)
{
    if (!reserve_heap(sc, n)) return false;
    sc->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++) add_candidate(m, sc, (int32_t)i);
    for (size_t i = sc->n_heap / 2; i-- > 0;) sift_down(sc->heap, sc->n_heap, i);
    while (sc->n_heap) {
        tok_candidate c = sc->heap[0];
        sc->heap[0] = sc->heap[--sc->n_heap];
        if (sc->n_heap) sift_down(sc->heap, sc->n_heap, 0);
        apply_candidate(m, sc, c);
    }
    return true;
}

/* ---- one piece ---- */

static qn_code encode_symbols(const tok_model *m, tok_scratch *sc, tok_str piece, qn_ids *out,
                              qn_err *err)
{
    size_t n;
    qn_code rc = split_symbols(m, sc, piece, &n, err);
    if (rc || !n) return rc;
    if (n <= SCAN_SYMBOLS) {
        uint32_t ids[SCAN_SYMBOLS];
        qn_ids_put(out, ids, merge_scan(m, sc->symbols, n, ids));
        return QN_OK;
    }
    if (!merge_heap(m, sc, n)) return no_memory(err);
    for (int32_t i = 0; i >= 0; i = sc->symbols[i].next) qn_ids_put(out, &sc->symbols[i].id, 1);
    return QN_OK;
}

/* The whole piece as a vocabulary entry. */
static uint32_t whole_piece(const tok_model *m, tok_scratch *sc, tok_str piece)
{
    if (piece.n > m->max_token) return QN_NO_TOKEN;
    if (!m->raw_bytes) return tok_vocab_find(&m->vocab, piece.s, piece.n);
    qn_buf_clear(&sc->key);
    tok_bytes_to_alphabet(piece.s, piece.n, &sc->key);
    return sc->key.failed ? QN_NO_TOKEN : tok_vocab_find(&m->vocab, sc->key.data, sc->key.len);
}

static qn_code encode_uncached(const tok_model *m, tok_scratch *sc, tok_str piece, qn_ids *out,
                               qn_err *err)
{
    if (m->ignore_merges) {
        uint32_t id = whole_piece(m, sc, piece);
        if (id != QN_NO_TOKEN) {
            qn_ids_put(out, &id, 1);
            return QN_OK;
        }
    }
    return encode_symbols(m, sc, piece, out, err);
}

static qn_code encode_cached(const tok_model *m, tok_scratch *sc, tok_str piece, qn_ids *out,
                             qn_err *err)
{
    unsigned char raw[16] = {0};
    uint64_t key[2];
    memcpy(raw, piece.s, piece.n);
    raw[15] = (unsigned char)piece.n;
    memcpy(key, raw, 16);
    tok_cache_slot *slot = &sc->cache[mix(key[0] ^ mix(key[1])) & (TOK_CACHE_SLOTS - 1)];
    if (slot->key[0] != key[0] || slot->key[1] != key[1]) {
        size_t before = out->len;
        qn_code rc = encode_uncached(m, sc, piece, out, err);
        size_t n = out->len - before;
        if (rc || out->failed || n > CACHE_IDS) return rc;
        for (size_t i = 0; i < CACHE_IDS; i++) {
            slot->ids[i] = i < n ? out->data[before + i] : QN_NO_TOKEN;
        }
        memcpy(slot->key, key, sizeof key);
        return QN_OK;
    }
    size_t n = 0;
    while (n < CACHE_IDS && slot->ids[n] != QN_NO_TOKEN) n++;
    qn_ids_put(out, slot->ids, n);
    return QN_OK;
}

static qn_code encode_short(const tok_model *m, tok_scratch *sc, tok_str piece, qn_ids *out,
                            qn_err *err)
{
    if (!piece.n) return QN_OK;
    if (piece.n <= CACHE_KEY) return encode_cached(m, sc, piece, out, err);
    return encode_uncached(m, sc, piece, out, err);
}

/* The end of the part of s that starts at `from`: before the next space mark where a cut is safe.
 */
static size_t next_boundary(const tok_model *m, tok_str s, size_t from)
{
    const char *hit;
    for (size_t i = from + 1; i < s.n && (hit = memmem(s.s + i, s.n - i, space_mark, 3)); i++) {
        i = (size_t)(hit - s.s);
        unsigned cp = char_before(s, i);
        if (cp != 0x2581 && !is_crossing(m, cp)) return i;
    }
    return s.n;
}

qn_code tok_bpe_encode(const qn_tokenizer *t, tok_scratch *sc, tok_str piece, qn_ids *out,
                       qn_err *err)
{
    const tok_model *m = &t->model;
    qn_code rc = QN_OK;
    if (!m->space_boundary) return encode_short(m, sc, piece, out, err);
    for (size_t i = 0; i < piece.n && !rc;) {
        size_t end = next_boundary(m, piece, i);
        rc = encode_short(m, sc, (tok_str){piece.s + i, end - i}, out, err);
        i = end;
    }
    return rc;
}
