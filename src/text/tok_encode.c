/* tok_encode.c - one text through the whole pipeline, and the scratch memory that this takes. */
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/tok_impl.h"
#include "text/unicode.h"

/* ---- ids ---- */

void qn_ids_put(qn_ids *v, const uint32_t *ids, size_t n)
{
    if (v->failed) return;
    if (n > v->cap - v->len) {
        size_t cap = v->cap ? v->cap : 64;
        while (cap - v->len < n && cap < SIZE_MAX / 16) cap *= 2;
        uint32_t *p = cap - v->len < n ? NULL : realloc(v->data, cap * sizeof *p);
        if (!p) {
            v->failed = true;
            return;
        }
        v->data = p;
        v->cap = cap;
    }
    if (n) memcpy(v->data + v->len, ids, n * sizeof *ids);
    v->len += n;
}

void qn_ids_release(qn_ids *v)
{
    free(v->data);
    *v = (qn_ids){0};
}

/* ---- scratch ---- */

void tok_scratch_free(tok_scratch *sc)
{
    if (!sc) return;
    for (int i = 0; i < 2; i++) {
        qn_buf_release(&sc->norm[i]);
        qn_buf_release(&sc->pre[i]);
        free(sc->list[i].v);
    }
    qn_buf_release(&sc->key);
    qn_ids_release(&sc->text_ids);
    free(sc->symbols);
    free(sc->heap);
    free(sc->lattice);
    free(sc->cache);
    pcre2_match_data_free(sc->match);
    free(sc);
}

static tok_scratch *new_scratch(void)
{
    tok_scratch *sc = calloc(1, sizeof *sc);
    if (!sc) return NULL;
    sc->match = pcre2_match_data_create(1, NULL);
    sc->cache = calloc(TOK_CACHE_SLOTS, sizeof *sc->cache);
    if (sc->match && sc->cache) return sc;
    tok_scratch_free(sc);
    return NULL;
}

tok_scratch *tok_scratch_take(const qn_tokenizer *t)
{
    qn_tokenizer *pool = (qn_tokenizer *)(uintptr_t)t; /* the pool is the one mutable part */
    pthread_mutex_lock(&pool->lock);
    tok_scratch *sc = pool->pool;
    if (sc) pool->pool = sc->next;
    pthread_mutex_unlock(&pool->lock);
    return sc ? sc : new_scratch();
}

/* Forget the buffers of an unusually long text rather than keep them for ever. */
static void shrink(tok_scratch *sc)
{
    enum { KEEP = 1 << 20 };
    qn_buf *bufs[] = {&sc->norm[0], &sc->norm[1], &sc->pre[0], &sc->pre[1], &sc->key};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) {
        if (bufs[i]->cap > KEEP) qn_buf_release(bufs[i]);
    }
    for (int i = 0; i < 2; i++) {
        if (sc->list[i].cap > KEEP) {
            free(sc->list[i].v);
            sc->list[i] = (tok_pieces){0};
        }
        sc->list[i].failed = false;
    }
    if (sc->symbols_cap > KEEP) {
        free(sc->symbols);
        sc->symbols = NULL;
        sc->symbols_cap = 0;
    }
    if (sc->heap_cap > KEEP) {
        free(sc->heap);
        sc->heap = NULL;
        sc->heap_cap = 0;
    }
    if (sc->lattice_cap > KEEP) {
        free(sc->lattice);
        sc->lattice = NULL;
        sc->lattice_cap = 0;
    }
    if (sc->text_ids.cap > KEEP) qn_ids_release(&sc->text_ids);
    sc->text_ids.failed = false;
}

void tok_scratch_put(const qn_tokenizer *t, tok_scratch *sc)
{
    qn_tokenizer *pool = (qn_tokenizer *)(uintptr_t)t;
    shrink(sc);
    pthread_mutex_lock(&pool->lock);
    sc->next = pool->pool;
    pool->pool = sc;
    pthread_mutex_unlock(&pool->lock);
}

/* ---- the pipeline ---- */

typedef struct encoder {
    const qn_tokenizer *t;
    tok_scratch *sc;
    bool plain; /* special tokens do not match in the text */
    bool bare;  /* no added token does */
    qn_ids *out;
    tok_marks *marks; /* NULL: none wanted */
    const char *whole; /* the start of the text that marks count from */
    qn_err *err;
} encoder;

static qn_code encode_piece(encoder *e, tok_str piece)
{
    switch (e->t->model.kind) {
    case MODEL_BPE: return tok_bpe_encode(e->t, e->sc, piece, e->out, e->err);
    case MODEL_WORDPIECE: return tok_wordpiece_encode(e->t, e->sc, piece, e->out, e->err);
    case MODEL_UNIGRAM: return tok_unigram_encode(e->t, e->sc, piece, e->out, e->err);
    case MODEL_WORDLEVEL: return tok_wordlevel_encode(e->t, piece, e->out, e->err);
    }
    QN_UNREACHABLE();
}

/* Text that holds no added token any more. */
static qn_code encode_plain(encoder *e, tok_str s, bool origin)
{
    tok_str text;
    tok_pieces *list;
    qn_code rc = tok_pre_run(e->t, e->sc, s, origin, &text, &list, e->err);
    if (rc) return rc;
    for (size_t i = 0; i < list->n && !rc; i++) {
        rc = encode_piece(e, (tok_str){text.s + list->v[i].at, list->v[i].len});
    }
    return rc;
}

static bool word_before(tok_str s, size_t at)
{
    if (!at) return false;
    size_t i = at - 1;
    while (i && ((unsigned char)s.s[i] & 0xC0) == 0x80) i--;
    unsigned cp;
    qn_utf8_decode(s.s + i, at - i, &cp);
    return qn_uchar_is_word(cp);
}

static bool word_after(tok_str s, size_t at)
{
    if (at == s.n) return false;
    unsigned cp;
    qn_utf8_decode(s.s + at, s.n - at, &cp);
    return qn_uchar_is_word(cp);
}

/* The start of the white space that ends at `at`, not before `least`. */
static size_t space_start(tok_str s, size_t at, size_t least)
{
    while (at > least) {
        size_t i = at - 1;
        while (i > least && ((unsigned char)s.s[i] & 0xC0) == 0x80) i--;
        unsigned cp;
        qn_utf8_decode(s.s + i, at - i, &cp);
        if (!qn_uchar_is_space(cp)) break;
        at = i;
    }
    return at;
}

static size_t space_end(tok_str s, size_t at)
{
    while (at < s.n) {
        unsigned cp;
        size_t k = qn_utf8_decode(s.s + at, s.n - at, &cp);
        if (!qn_uchar_is_space(cp)) break;
        at += k;
    }
    return at;
}

typedef qn_code (*between_fn)(encoder *e, tok_str s, bool origin);

static void put_mark(encoder *e, size_t at)
{
    tok_marks *m = e->marks;
    if (!m || (m->n && m->v[m->n - 1].at >= at)) return;
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 64;
        tok_mark *v = realloc(m->v, cap * sizeof *v);
        if (!v) return; /* without it more is encoded again */
        m->v = v;
        m->cap = cap;
    }
    m->v[m->n++] = (tok_mark){at, e->out->len};
}

/* Split `s`, from offset `done` on, by the added tokens of one trie: their ids go out, what lies
 * between goes to `between`. Matching goes on behind the bare match even where rstrip took more, as
 * the oracle does. */
static qn_code split_added(encoder *e, const tok_trie *trie, tok_str s, size_t done, bool origin,
                           between_fn between)
{
    size_t from = done, start, end;
    const tok_added *a;
    qn_code rc = QN_OK;
    while (!rc && (a = tok_trie_next(trie, e->t, s, from, &start, &end))) {
        from = end;
        if (e->plain && a->special) continue;
        if (a->single_word && (word_before(s, start) || word_after(s, end))) continue;
        if (a->lstrip && start > done) start = space_start(s, start, done);
        if (a->rstrip) end = space_end(s, end);
        if (start > done) rc = between(e, (tok_str){s.s + done, start - done}, origin && done == 0);
        if (!rc) qn_ids_put(e->out, &a->id, 1);
        done = end;
        if (trie == &e->t->raw_trie && !a->rstrip && !a->single_word) put_mark(e, end);
    }
    if (!rc && done < s.n) rc = between(e, (tok_str){s.s + done, s.n - done}, origin && done == 0);
    return rc;
}

static qn_code encode_section(encoder *e, tok_str s, bool origin)
{
    qn_code rc = tok_norm_run(e->t, e->sc, s, &s, &origin, e->err);
    if (rc || !s.n) return rc;
    if (!e->t->normalized_added || e->bare) return encode_plain(e, s, origin);
    return split_added(e, &e->t->norm_trie, s, 0, origin, encode_plain);
}

/* Long text goes through the pipeline in parts, which stay in the processor's caches. */
static qn_code encode_sections(encoder *e, tok_str s, bool origin)
{
    enum { PART = 4096 };
    qn_code rc = QN_OK;
    for (size_t i = 0; i < s.n && !rc;) {
        size_t end = tok_next_cut(e->t, s, i, PART);
        rc = encode_section(e, (tok_str){s.s + i, end - i}, origin && i == 0);
        if (!rc && end < s.n) put_mark(e, (size_t)(s.s - e->whole) + end);
        i = end;
    }
    return rc;
}

static qn_code encode_text(encoder *e, tok_str s, size_t from)
{
    if (from == s.n) return QN_OK;
    e->whole = s.s;
    qn_code rc = e->bare ? encode_sections(e, (tok_str){s.s + from, s.n - from}, from == 0)
                         : split_added(e, &e->t->raw_trie, s, from, true, encode_sections);
    if (!rc && e->out->failed) rc = qn_err_set(e->err, QN_NOMEM, "tokenizer: out of memory");
    return rc;
}

/* Each invalid part becomes U+FFFD, so that everything behind sees well-formed text. */
qn_code tok_clean(const char **text, size_t *n, qn_buf *clean, qn_err *err)
{
    if (*n > TOK_MAX_TEXT) {
        return qn_err_set(err, QN_LIMIT,
                          "tokenizer: a text of %zu bytes is longer than the limit of %d", *n,
                          TOK_MAX_TEXT);
    }
    if (qn_utf8_valid(*text, *n)) return QN_OK;
    qn_buf_clear(clean);
    for (size_t i = 0; i < *n;) {
        unsigned cp;
        i += qn_utf8_decode(*text + i, *n - i, &cp);
        qn_buf_put_utf8(clean, cp);
    }
    if (clean->failed) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
    *text = clean->data;
    *n = clean->len;
    return QN_OK;
}

static size_t count_texts(const qn_tokenizer *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_post; i++) n += t->post[i].is_text;
    return n;
}

/* What is before the text is there already when `from` is not 0. */
static qn_code encode_with_post(encoder *e, tok_str s, size_t from)
{
    const qn_tokenizer *t = e->t;
    size_t text_at = SIZE_MAX, text_len = 0; /* where the text's ids are once they exist */
    qn_code rc = QN_OK;
    for (size_t i = 0; i < t->n_post && !rc; i++) {
        if (!t->post[i].is_text) {
            if (!from || text_at != SIZE_MAX) qn_ids_put(e->out, &t->post[i].id, 1);
        } else if (text_at == SIZE_MAX) {
            text_at = e->out->len;
            rc = encode_text(e, s, from);
            text_len = e->out->len - text_at;
        } else {
            e->sc->text_ids.len = 0;
            qn_ids_put(&e->sc->text_ids, e->out->data + text_at, text_len);
            qn_ids_put(e->out, e->sc->text_ids.data, e->sc->text_ids.len);
        }
    }
    if (!rc && e->out->failed) rc = qn_err_set(e->err, QN_NOMEM, "tokenizer: out of memory");
    return rc;
}

qn_code tok_encode_from(const qn_tokenizer *t, tok_str text, size_t from, unsigned flags,
                        qn_ids *out, tok_marks *marks, qn_err *err)
{
    tok_scratch *sc = tok_scratch_take(t);
    if (!sc) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
    bool post = flags & QN_ENCODE_ADD_SPECIAL && t->n_post;
    if (post && count_texts(t) != 1) marks = NULL; /* ids before a mark are not all of the text's */
    encoder e = {.t = t, .sc = sc, .plain = flags & QN_ENCODE_PLAIN,
                 .bare = flags & QN_ENCODE_NO_ADDED, .out = out, .marks = marks,
                 .err = err};
    qn_code rc = post ? encode_with_post(&e, text, from) : encode_text(&e, text, from);
    tok_scratch_put(t, sc);
    return rc;
}

qn_code qn_tokenizer_encode(const qn_tokenizer *t, const char *text, size_t n, unsigned flags,
                            qn_ids *out, qn_err *err)
{
    qn_buf clean = {0};
    qn_code rc = tok_clean(&text, &n, &clean, err);
    if (!rc) rc = tok_encode_from(t, (tok_str){text, n}, 0, flags, out, NULL, err);
    qn_buf_release(&clean);
    return rc;
}
