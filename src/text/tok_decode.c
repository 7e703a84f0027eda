/* tok_decode.c - decoders: token strings back to text, one token at a time.
 *
 * A decoder is a chain of stages; each takes tokens and hands tokens on, holding back only what
 * later input could still change. Once a stage has fused all tokens into one (Fuse, ByteLevel), the
 * stages behind it see that one token in fragments (`joined`). Decoding at once and streaming are
 * the same code.
 */
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/tok_impl.h"

/* ---- parsing ---- */

static qn_code parse_replace(qn_tokenizer *t, const json_t *o, tok_dec *d, qn_err *err)
{
    bool regex;
    qn_code rc = tok_json_pattern(t, o, "decoder", &d->pattern, &regex, err);
    if (!rc) rc = tok_json_need_str(t, o, "decoder", "content", &d->content, err);
    if (!rc && regex) rc = tok_regex_compile(&d->re, d->pattern, err);
    return rc;
}

static qn_code parse_strip(qn_tokenizer *t, const json_t *o, tok_dec *d, qn_err *err)
{
    qn_code rc;
    if ((rc = tok_json_need_str(t, o, "decoder", "content", &d->pattern, err))) return rc;
    if ((rc = tok_json_u32(o, "decoder", "start", 0, &d->start, err))) return rc;
    if ((rc = tok_json_u32(o, "decoder", "stop", 0, &d->stop, err))) return rc;
    if (d->pattern.n) return QN_OK;
    return qn_err_set(err, QN_FORMAT,
                      "tokenizer.json: decoder.content is empty, it must be one character");
}

static qn_code parse_metaspace(qn_tokenizer *t, const json_t *o, tok_dec *d, qn_err *err)
{
    const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
    bool legacy;
    qn_code rc;
    if ((rc = tok_json_need_str(t, o, "decoder", "replacement", &d->pattern, err))) return rc;
    if ((rc = tok_json_bool(o, "decoder", "add_prefix_space", true, &legacy, err))) return rc;
    if (!d->pattern.n) {
        return qn_err_set(err, QN_FORMAT,
                          "tokenizer.json: decoder.replacement is empty, it must be one character");
    }
    d->flag = scheme ? strcmp(scheme, "never") : legacy;
    return QN_OK;
}

static qn_code parse_wordpiece(qn_tokenizer *t, const json_t *o, tok_dec *d, qn_err *err)
{
    qn_code rc = tok_json_str(t, o, "decoder", "prefix", &d->pattern, err);
    if (!d->pattern.s) d->pattern = (tok_str){"##", 2};
    return rc ? rc : tok_json_bool(o, "decoder", "cleanup", true, &d->flag, err);
}

static qn_code parse_suffix(qn_tokenizer *t, const json_t *o, tok_dec *d, qn_err *err)
{
    qn_code rc = tok_json_str(t, o, "decoder", "suffix", &d->pattern, err);
    if (!d->pattern.s) d->pattern = (tok_str){"</w>", 4};
    return rc;
}

static qn_code parse_ctc(qn_tokenizer *t, const json_t *o, tok_dec *d, qn_err *err)
{
    qn_code rc;
    if ((rc = tok_json_str(t, o, "decoder", "pad_token", &d->pattern, err))) return rc;
    if ((rc = tok_json_str(t, o, "decoder", "word_delimiter_token", &d->content, err))) return rc;
    if (!d->pattern.s) d->pattern = (tok_str){"<pad>", 5};
    if (!d->content.s) d->content = (tok_str){"|", 1};
    return tok_json_bool(o, "decoder", "cleanup", true, &d->flag, err);
}

static const struct {
    const char *name;
    tok_dec_kind kind;
    qn_code (*parse)(qn_tokenizer *t, const json_t *o, tok_dec *d, qn_err *err);
} dec_types[] = {
    {"ByteLevel", DEC_BYTE_LEVEL, NULL},
    {"ByteFallback", DEC_BYTE_FALLBACK, NULL},
    {"Fuse", DEC_FUSE, NULL},
    {"Replace", DEC_REPLACE, parse_replace},
    {"Strip", DEC_STRIP, parse_strip},
    {"Metaspace", DEC_METASPACE, parse_metaspace},
    {"WordPiece", DEC_WORDPIECE, parse_wordpiece},
    {"BPEDecoder", DEC_BPE_SUFFIX, parse_suffix},
    {"CTC", DEC_CTC, parse_ctc},
};

static tok_dec *add_stage(qn_tokenizer *t, tok_dec_kind kind)
{
    tok_dec *d = &t->decs[t->n_decs++];
    const tok_dec *before = t->n_decs > 1 ? d - 1 : NULL;
    d->kind = kind;
    d->joined =
        before && (before->joined || before->kind == DEC_FUSE || before->kind == DEC_BYTE_LEVEL);
    return d;
}

static qn_code add_decs(qn_tokenizer *t, const json_t *o, int depth, qn_err *err)
{
    const char *type;
    qn_code rc = tok_json_type(o, "decoder", &type, err);
    if (rc) return rc;
    if (depth > TOK_MAX_DEPTH || t->n_decs == TOK_MAX_STAGES) {
        return qn_err_set(err, QN_LIMIT,
                          "tokenizer.json: decoder has more than %d steps or %d levels",
                          TOK_MAX_STAGES, TOK_MAX_DEPTH);
    }
    if (!strcmp(type, "Sequence")) {
        const json_t *list = json_object_get(o, "decoders");
        if (!json_is_array(list)) {
            return qn_err_set(err, QN_FORMAT,
                              "tokenizer.json: decoder.decoders is missing or not an array");
        }
        for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
            rc = add_decs(t, json_array_get(list, i), depth + 1, err);
        }
        return rc;
    }
    for (size_t i = 0; i < sizeof dec_types / sizeof *dec_types; i++) {
        if (strcmp(type, dec_types[i].name)) continue;
        tok_dec *d = add_stage(t, dec_types[i].kind);
        return dec_types[i].parse ? dec_types[i].parse(t, o, d, err) : QN_OK;
    }
    return qn_err_set(err, QN_UNSUPPORTED, "tokenizer.json: not supported yet: decoder \"%.60s\"",
                      type);
}

qn_code tok_parse_dec(qn_tokenizer *t, const json_t *dec, qn_err *err)
{
    t->decs = qn_arena_take(&t->arena, TOK_MAX_STAGES + 1, sizeof *t->decs);
    if (!t->decs) return qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory");
    if (dec && !json_is_null(dec)) return add_decs(t, dec, 0, err);
    add_stage(t, DEC_JOIN); /* without a decoder tokens are joined by spaces */
    return QN_OK;
}

/* ---- stages ---- */

static void emit(tok_dec_run *r, size_t stage, tok_str s);

static bool take_prefix(tok_str *s, tok_str prefix)
{
    if (!prefix.n || s->n < prefix.n || memcmp(s->s, prefix.s, prefix.n)) return false;
    s->s += prefix.n;
    s->n -= prefix.n;
    return true;
}

/* Every `from` in s becomes `to`. */
static void put_replaced(qn_buf *out, tok_str s, tok_str from, tok_str to)
{
    const char *hit;
    while (from.n && (hit = memmem(s.s, s.n, from.s, from.n))) {
        size_t n = (size_t)(hit - s.s);
        qn_buf_put(out, s.s, n);
        qn_buf_put(out, to.s, to.n);
        s.s += n + from.n;
        s.n -= n + from.n;
    }
    qn_buf_put(out, s.s, s.n);
}

static void replace_regex(tok_dec_run *r, const tok_dec *d, tok_str s, qn_buf *out)
{
    tok_scratch *sc = tok_scratch_take(r->t);
    size_t from = 0, start, end;
    while (sc && from < s.n && tok_regex_next(&d->re, sc, s.s, s.n, from, &start, &end, NULL) > 0 &&
           end > start) {
        qn_buf_put(out, s.s + from, start - from);
        qn_buf_put(out, d->content.s, d->content.n);
        from = end;
    }
    qn_buf_put(out, s.s + from, s.n - from);
    if (sc) {
        tok_scratch_put(r->t, sc);
    } else {
        out->failed = true;
    }
}

/* Move what `b` holds on to the next stage. */
static void emit_buf(tok_dec_run *r, size_t stage, qn_buf *b)
{
    if (b->failed) r->out->failed = true;
    emit(r, stage + 1, (tok_str){b->data ? b->data : "", b->len});
}

/* Bytes that came in, as text: what is complete goes on, an open sequence waits, what can never
 * become a character is U+FFFD. */
static void push_bytes(tok_dec_run *r, size_t stage, tok_str bytes)
{
    qn_buf *hold = &r->states[stage].hold;
    qn_buf_put(hold, bytes.s, bytes.n);
    if (hold->failed || !hold->len) return;
    size_t n = hold->len - qn_utf8_tail(hold->data, hold->len);
    if (qn_utf8_valid(hold->data, n)) {
        if (n) emit(r, stage + 1, (tok_str){hold->data, n});
    } else {
        qn_buf clean = {0};
        for (size_t i = 0; i < n;) {
            unsigned cp;
            i += qn_utf8_decode(hold->data + i, n - i, &cp);
            qn_buf_put_utf8(&clean, cp);
        }
        emit_buf(r, stage, &clean);
        qn_buf_release(&clean);
    }
    qn_buf_drop(hold, n);
}

static void byte_level(tok_dec_run *r, size_t stage, tok_str s)
{
    qn_buf bytes = {0};
    if (tok_alphabet_to_bytes(s.s, s.n, &bytes)) {
        if (bytes.failed) r->out->failed = true;
        push_bytes(r, stage, (tok_str){bytes.data ? bytes.data : "", bytes.len});
    } else {
        push_bytes(r, stage, s);
    }
    qn_buf_release(&bytes);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0xNN>" to its byte; -1 for any other token. */
static int fallback_byte(tok_str s)
{
    if (s.n != 6 || memcmp(s.s, "<0x", 3) || s.s[5] != '>') return -1;
    int high = hex_digit(s.s[3]), low = hex_digit(s.s[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* A run of byte tokens is one piece of text if all of it is valid, else one U+FFFD for each byte;
 * so it can only go out when it has ended. */
static void end_byte_run(tok_dec_run *r, size_t stage)
{
    qn_buf *hold = &r->states[stage].hold;
    if (!hold->len) return;
    if (qn_utf8_valid(hold->data, hold->len)) {
        emit(r, stage + 1, (tok_str){hold->data, hold->len});
    } else {
        for (size_t i = 0; i < hold->len; i++) emit(r, stage + 1, (tok_str){"\xEF\xBF\xBD", 3});
    }
    qn_buf_clear(hold);
}

static void byte_fallback(tok_dec_run *r, size_t stage, tok_str s)
{
    int b = fallback_byte(s);
    if (b >= 0) {
        qn_buf_putc(&r->states[stage].hold, (char)b);
        return;
    }
    end_byte_run(r, stage);
    emit(r, stage + 1, s);
}

/* Strip on whole tokens. */
static void strip_token(tok_dec_run *r, size_t stage, const tok_dec *d, tok_str s)
{
    for (uint32_t i = 0; i < d->start && take_prefix(&s, d->pattern); i++) continue;
    for (uint32_t i = 0; i < d->stop && s.n >= d->pattern.n; i++) {
        if (memcmp(s.s + s.n - d->pattern.n, d->pattern.s, d->pattern.n)) break;
        s.n -= d->pattern.n;
    }
    emit(r, stage + 1, s);
}

/* Strip on the one joined token: the front loses up to `start` characters, and up to `stop`
 * matching ones at the end wait, because they may be the last. */
static void strip_joined(tok_dec_run *r, size_t stage, const tok_dec *d, tok_str s)
{
    tok_dec_state *st = &r->states[stage];
    while (st->count < d->start && s.n) {
        if (!take_prefix(&s, d->pattern)) {
            st->count = d->start;
            break;
        }
        st->count++;
    }
    qn_buf_put(&st->hold, s.s, s.n);
    size_t n = st->hold.len;
    for (uint32_t i = 0; i < d->stop && n >= d->pattern.n; i++) {
        if (memcmp(st->hold.data + n - d->pattern.n, d->pattern.s, d->pattern.n)) break;
        n -= d->pattern.n;
    }
    if (!n || st->hold.failed) return;
    emit(r, stage + 1, (tok_str){st->hold.data, n});
    qn_buf_drop(&st->hold, n);
}

/* English clean-up of one token, in the oracle's order. */
static void cleanup(qn_buf *b)
{
    static const char *const rules[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        qn_buf next = {0};
        tok_str from = {rules[i][0], strlen(rules[i][0])}, to = {rules[i][1], strlen(rules[i][1])};
        put_replaced(&next, (tok_str){b->data, b->len}, from, to);
        qn_buf_release(b);
        *b = next;
    }
}

static void wordpiece(tok_dec_run *r, size_t stage, const tok_dec *d, tok_str s)
{
    qn_buf b = {0};
    if (r->states[stage].count && !take_prefix(&s, d->pattern)) qn_buf_putc(&b, ' ');
    qn_buf_put(&b, s.s, s.n);
    if (d->flag) cleanup(&b);
    r->states[stage].count = 1;
    emit_buf(r, stage, &b);
    qn_buf_release(&b);
}

/* The suffix is a space except in the last token, so one token waits. */
static void bpe_suffix(tok_dec_run *r, size_t stage, const tok_dec *d, tok_str s, bool last)
{
    tok_dec_state *st = &r->states[stage];
    if (st->count) {
        qn_buf b = {0};
        put_replaced(&b, (tok_str){st->hold.data, st->hold.len}, d->pattern,
                     (tok_str){" ", last ? 0u : 1u});
        emit_buf(r, stage, &b);
        qn_buf_release(&b);
    }
    qn_buf_clear(&st->hold);
    qn_buf_put(&st->hold, s.s, s.n);
    st->count = 1;
}

/* Of a run of equal tokens one stays; pads go, word delimiters are spaces. */
static void ctc(tok_dec_run *r, size_t stage, const tok_dec *d, tok_str s)
{
    tok_dec_state *st = &r->states[stage];
    if (st->count && st->hold.len == s.n && !memcmp(st->hold.data, s.s, s.n)) return;
    qn_buf_clear(&st->hold);
    qn_buf_put(&st->hold, s.s, s.n);
    st->count = 1;
    qn_buf b = {0};
    put_replaced(&b, s, d->pattern, (tok_str){"", 0});
    if (d->flag && b.len) {
        qn_buf spaced = {0};
        cleanup(&b);
        put_replaced(&spaced, (tok_str){b.data, b.len}, d->content, (tok_str){" ", 1});
        qn_buf_release(&b);
        b = spaced;
    }
    if (b.len || b.failed) emit_buf(r, stage, &b);
    qn_buf_release(&b);
}

static void rewrite(tok_dec_run *r, size_t stage, const tok_dec *d, tok_str s)
{
    qn_buf b = {0};
    tok_dec_state *st = &r->states[stage];
    if (d->kind == DEC_METASPACE) {
        put_replaced(&b, s, d->pattern, (tok_str){" ", !st->count && d->flag ? 0u : 1u});
    } else if (d->kind == DEC_JOIN) {
        if (st->count) qn_buf_putc(&b, ' ');
        qn_buf_put(&b, s.s, s.n);
    } else if (d->re.code) {
        replace_regex(r, d, s, &b);
    } else {
        put_replaced(&b, s, d->pattern, d->content);
    }
    st->count = 1;
    emit_buf(r, stage, &b);
    qn_buf_release(&b);
}

/* A whole token through one stage. */
static void stage_token(tok_dec_run *r, size_t stage, const tok_dec *d, tok_str s)
{
    switch (d->kind) {
    case DEC_BYTE_LEVEL: byte_level(r, stage, s); return;
    case DEC_BYTE_FALLBACK: byte_fallback(r, stage, s); return;
    case DEC_FUSE: emit(r, stage + 1, s); return;
    case DEC_STRIP: strip_token(r, stage, d, s); return;
    case DEC_WORDPIECE: wordpiece(r, stage, d, s); return;
    case DEC_BPE_SUFFIX: bpe_suffix(r, stage, d, s, false); return;
    case DEC_CTC: ctc(r, stage, d, s); return;
    case DEC_REPLACE:
    case DEC_METASPACE:
    case DEC_JOIN: rewrite(r, stage, d, s); return;
    }
    QN_UNREACHABLE();
}

/* Stages that cannot work on fragments collect the joined token and run at the end. */
static bool collects(const tok_dec *d)
{
    return d->joined && d->kind != DEC_FUSE && d->kind != DEC_STRIP;
}

static void emit(tok_dec_run *r, size_t stage, tok_str s)
{
    if (stage == r->t->n_decs) {
        qn_buf_put(r->out, s.s, s.n);
        return;
    }
    const tok_dec *d = &r->t->decs[stage];
    if (collects(d)) {
        qn_buf_put(&r->states[stage].hold, s.s, s.n);
    } else if (d->joined && d->kind == DEC_STRIP) {
        strip_joined(r, stage, d, s);
    } else {
        stage_token(r, stage, d, s);
    }
}

static void finish_stage(tok_dec_run *r, size_t stage)
{
    const tok_dec *d = &r->t->decs[stage];
    tok_dec_state *st = &r->states[stage];
    if (collects(d)) {
        qn_buf whole = st->hold;
        st->hold = (qn_buf){0};
        stage_token(r, stage, d, (tok_str){whole.data ? whole.data : "", whole.len});
        qn_buf_release(&whole);
    }
    if (d->kind == DEC_BYTE_LEVEL && st->hold.len) {
        emit(r, stage + 1,
             (tok_str){"\xEF\xBF\xBD", 3}); /* the open sequence is one maximal subpart */
    } else if (d->kind == DEC_BYTE_FALLBACK) {
        end_byte_run(r, stage);
    } else if (d->kind == DEC_BPE_SUFFIX && st->count) {
        bpe_suffix(r, stage, d, (tok_str){"", 0}, true);
    }
}

/* ---- the chain ---- */

qn_code tok_dec_init(tok_dec_run *r, const qn_tokenizer *t, qn_err *err)
{
    *r = (tok_dec_run){.t = t};
    r->states = calloc(t->n_decs + 1, sizeof *r->states);
    return r->states ? QN_OK : qn_err_set(err, QN_NOMEM, "detokenizer: out of memory");
}

void tok_dec_push(tok_dec_run *r, tok_str token)
{
    emit(r, 0, token);
}

void tok_dec_finish(tok_dec_run *r)
{
    for (size_t i = 0; i < r->t->n_decs; i++) finish_stage(r, i);
    tok_dec_reset(r);
}

void tok_dec_reset(tok_dec_run *r)
{
    for (size_t i = 0; i < r->t->n_decs; i++) {
        if (r->states[i].hold.failed && r->out) r->out->failed = true;
        qn_buf_clear(&r->states[i].hold);
        r->states[i].count = 0;
    }
}

void tok_dec_release(tok_dec_run *r)
{
    for (size_t i = 0; r->states && i < r->t->n_decs; i++) qn_buf_release(&r->states[i].hold);
    free(r->states);
    *r = (tok_dec_run){0};
}

/* ---- public ---- */

static bool is_shown(const qn_tokenizer *t, uint32_t id, bool skip_special, tok_str *token)
{
    token->s = qn_tokenizer_token(t, id, &token->n);
    return token->s && !(skip_special && qn_tokenizer_is_special(t, id));
}

qn_code qn_tokenizer_decode(const qn_tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                            qn_buf *out, qn_err *err)
{
    tok_dec_run r;
    qn_code rc = tok_dec_init(&r, t, err);
    if (rc) return rc;
    r.out = out;
    for (size_t i = 0; i < n; i++) {
        tok_str token;
        if (is_shown(t, ids[i], skip_special, &token)) tok_dec_push(&r, token);
    }
    tok_dec_finish(&r);
    tok_dec_release(&r);
    return out->failed ? qn_err_set(err, QN_NOMEM, "detokenizer: out of memory") : QN_OK;
}

void qn_tokenizer_token_bytes(const qn_tokenizer *t, uint32_t id, qn_buf *out)
{
    tok_str s;
    if (!is_shown(t, id, false, &s)) return;
    for (size_t i = 0; i < t->n_decs; i++) {
        const tok_dec *d = &t->decs[i];
        if (d->kind == DEC_BYTE_LEVEL && tok_alphabet_to_bytes(s.s, s.n, out)) return;
        if (d->kind == DEC_BYTE_FALLBACK && fallback_byte(s) >= 0) {
            qn_buf_putc(out, (char)fallback_byte(s));
            return;
        }
        if ((d->kind == DEC_REPLACE && !d->re.code) || d->kind == DEC_METASPACE) {
            tok_str space = {" ", 1};
            put_replaced(out, s, d->pattern, d->kind == DEC_METASPACE ? space : d->content);
            if (memmem(s.s, s.n, d->pattern.s, d->pattern.n) || i + 1 == t->n_decs) return;
            out->len -= s.n; /* unchanged: later stages may still know it */
        }
    }
    qn_buf_put(out, s.s, s.n);
}
