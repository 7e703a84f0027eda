/* sanitize.c - see sanitize.h. */
#include "text/sanitize.h"

#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/tok_impl.h"
#include "text/unicode.h"

static const char mark_start[] = "\xF3\xB0\x80\x80", mark_end[] = "\xF3\xB0\x80\x81";
enum { MARK = 4 }; /* bytes of one */

struct qn_sanitizer {
    const qn_tokenizer *t;
    qn_arena arena;
    tok_trie control; /* of the control tokens */
    qn_ids newline;   /* "\n" encoded */
};

static bool is_white(tok_str s)
{
    for (size_t i = 0; i < s.n;) {
        unsigned cp;
        i += qn_utf8_decode(s.s + i, s.n - i, &cp);
        if (!qn_uchar_is_space(cp)) return false;
    }
    return true;
}

/* A built-in builder has no text to look into: there every added token counts. */
static bool is_control(const tok_added *a, const qn_chat_template *ct)
{
    if (a->special) return true;
    if (is_white(a->content)) return false;
    return qn_chat_template_kind(ct) != QN_CHAT_JINJA ||
           qn_chat_template_writes(ct, a->content.s, a->content.n);
}

static qn_code fill(qn_sanitizer *s, const qn_chat_template *ct, qn_err *err)
{
    for (size_t i = 0; i < s->t->n_added; i++) {
        const tok_added *a = &s->t->added[i];
        if (is_control(a, ct) && !tok_trie_add(&s->arena, &s->control, a->content, (uint32_t)i)) {
            return qn_err_set(err, QN_NOMEM, "sanitizer: out of memory");
        }
    }
    return qn_tokenizer_encode(s->t, "\n", 1, 0, &s->newline, err);
}

qn_code qn_sanitizer_new(qn_sanitizer **out, const qn_tokenizer *t, const qn_chat_template *ct,
                         qn_err *err)
{
    *out = NULL;
    if (qn_chat_template_kind(ct) == QN_CHAT_FALLBACK) {
        return qn_err_set(err, QN_UNSUPPORTED,
                          "not supported yet: control tokens cannot be told from text for a model "
                          "without a chat template");
    }
    qn_sanitizer *s = calloc(1, sizeof *s);
    if (!s) return qn_err_set(err, QN_NOMEM, "sanitizer: out of memory");
    s->t = t;
    qn_code rc = fill(s, ct, err);
    if (rc) {
        qn_sanitizer_free(s);
        return rc;
    }
    *out = s;
    return QN_OK;
}

void qn_sanitizer_free(qn_sanitizer *s)
{
    if (!s) return;
    qn_arena_release(&s->arena);
    qn_ids_release(&s->newline);
    free(s);
}

/* ---- marking ---- */

static bool mark_at(const char *s, size_t n)
{
    return n >= MARK && (!memcmp(s, mark_start, MARK) || !memcmp(s, mark_end, MARK));
}

/* The text without marks of its own: they could be used to forge one. */
static void put_unmarked(qn_buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        const char *hit = memchr(s + i, mark_start[0], n - i);
        size_t end = hit ? (size_t)(hit - s) : n;
        qn_buf_put(out, s + i, end - i);
        i = end;
        if (!hit) break;
        bool is_mark = mark_at(hit, n - i);
        if (!is_mark) qn_buf_putc(out, *hit);
        i += is_mark ? MARK : 1;
    }
}

static json_t *mark_string(const qn_sanitizer *s, const json_t *value)
{
    qn_buf clean = {0}, out = {0};
    put_unmarked(&clean, json_string_value(value), json_string_length(value));
    size_t done = 0, n;
    for (size_t i = 0; i < clean.len; i += n ? n : 1) {
        n = tok_trie_longest(&s->control, (tok_str){clean.data + i, clean.len - i}, NULL);
        if (!n) continue;
        qn_buf_put(&out, clean.data + done, i - done);
        qn_buf_put(&out, mark_start, MARK);
        qn_buf_put(&out, clean.data + i, n);
        qn_buf_put(&out, mark_end, MARK);
        done = i + n;
    }
    qn_buf_put(&out, clean.data ? clean.data + done : "", clean.len - done);
    bool failed = clean.failed || out.failed;
    json_t *marked = failed ? NULL : json_stringn_nocheck(out.data ? out.data : "", out.len);
    qn_buf_release(&clean);
    qn_buf_release(&out);
    return marked;
}

json_t *qn_sanitizer_mark(const qn_sanitizer *s, const json_t *value)
{
    if (json_is_string(value)) return mark_string(s, value);
    json_t *in = (json_t *)(uintptr_t)value, *member, *out;
    bool failed = false;
    if (json_is_array(value)) {
        size_t i;
        out = json_array();
        json_array_foreach(in, i, member) {
            failed = failed || json_array_append_new(out, qn_sanitizer_mark(s, member));
        }
    } else if (json_is_object(value)) {
        const char *key;
        size_t n_key;
        out = json_object();
        json_object_keylen_foreach(in, key, n_key, member) {
            failed = failed ||
                     json_object_setn_new_nocheck(out, key, n_key, qn_sanitizer_mark(s, member));
        }
    } else {
        return json_incref(in);
    }
    if (!failed) return out;
    json_decref(out);
    return NULL;
}

/* ---- encoding ---- */

bool qn_sanitizer_is_marked(const char *text, size_t n)
{
    const char *end = text + n;
    for (const char *s = text; (s = memchr(s, mark_start[0], (size_t)(end - s))); s++) {
        if (mark_at(s, (size_t)(end - s))) return true;
        if (s + 1 == end) break;
    }
    return false;
}

/* Encode text behind a newline, which goes away again: so the tokenizer does not take it for the
 * start of a text. Where the newline became one token with the text, it is encoded alone. */
static qn_code encode_behind_newline(const qn_sanitizer *s, tok_str text, unsigned flags,
                                     qn_ids *out, qn_err *err)
{
    qn_buf line = {0};
    qn_ids ids = {0};
    size_t n = s->newline.len;
    qn_buf_putc(&line, '\n');
    qn_buf_put(&line, text.s, text.n);
    qn_code rc = line.failed ? qn_err_set(err, QN_NOMEM, "sanitizer: out of memory")
                             : qn_tokenizer_encode(s->t, line.data, line.len, flags, &ids, err);
    if (!rc && ids.len >= n && !memcmp(ids.data, s->newline.data, n * sizeof *ids.data)) {
        qn_ids_put(out, ids.data + n, ids.len - n);
    } else if (!rc) {
        rc = qn_tokenizer_encode(s->t, text.s, text.n, flags, out, err);
    }
    qn_buf_release(&line);
    qn_ids_release(&ids);
    return rc;
}

/* A marked token, as plain text. */
static qn_code encode_token(const qn_sanitizer *s, tok_str token, uint32_t id, qn_ids *out,
                            qn_err *err)
{
    size_t from = out->len;
    qn_code rc = encode_behind_newline(s, token, QN_ENCODE_NO_ADDED, out, err);
    for (size_t i = from; i < out->len && !rc; i++) {
        if (out->data[i] != id) continue;
        rc = qn_err_set(err, QN_INVALID,
                        "a message spells the control token \"%.*s\", and the tokenizer makes that "
                        "token of plain text too, so it cannot be told from a real one",
                        token.n > 60 ? 60 : (int)token.n, token.s);
    }
    return rc;
}

/* The added token of exactly this text; NULL if there is none. */
static const tok_added *added_of(const qn_tokenizer *t, tok_str s)
{
    uint32_t id = qn_tokenizer_find(t, s.s, s.n);
    uint32_t i = id < t->n_vocab ? t->added_of_id[id] : 0;
    const tok_added *a = i ? &t->added[i - 1] : NULL;
    return a && a->content.n == s.n && !memcmp(a->content.s, s.s, s.n) ? a : NULL;
}

/* The first mark of s at or after `from`, or s.n. */
static size_t next_mark(tok_str s, size_t from)
{
    while (from < s.n && !mark_at(s.s + from, s.n - from)) from++;
    return from;
}

qn_code qn_sanitizer_encode(const qn_sanitizer *s, const char *text, size_t n, qn_ids *out,
                            qn_err *err)
{
    tok_str all = {text, n};
    size_t at = next_mark(all, 0);
    qn_code rc = qn_tokenizer_encode(s->t, text, at, 0, out, err);
    while (!rc && at < n) {
        /* at a mark: the start of a token and its end mark, or one alone */
        size_t next = next_mark(all, at + MARK);
        tok_str piece = {text + at + MARK, next - at - MARK};
        bool closed = next < n && !memcmp(text + at, mark_start, MARK) &&
                      !memcmp(text + next, mark_end, MARK);
        const tok_added *a = closed ? added_of(s->t, piece) : NULL;
        if (a) {
            rc = encode_token(s, piece, a->id, out, err);
            at = next;
            next = next_mark(all, at + MARK);
            piece = (tok_str){text + at + MARK, next - at - MARK};
        }
        if (!rc && piece.n) rc = encode_behind_newline(s, piece, 0, out, err);
        at = next;
    }
    if (!rc && out->failed) rc = qn_err_set(err, QN_NOMEM, "sanitizer: out of memory");
    return rc;
}
