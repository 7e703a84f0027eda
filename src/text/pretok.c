/* pretok.c - pre-tokenizers: the steps that cut text into the pieces that the model sees. */
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/tok_impl.h"
#include "text/unicode.h"

/* ---- parsing ---- */

static qn_code parse_behavior(const json_t *o, tok_split_behavior *out, qn_err *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *s = json_string_value(json_object_get(o, "behavior"));
    for (size_t i = 0; s && i < sizeof names / sizeof *names; i++) {
        if (strcmp(s, names[i])) continue;
        *out = (tok_split_behavior)i;
        return QN_OK;
    }
    return qn_err_set(
        err, QN_FORMAT,
        "tokenizer.json: pre_tokenizer.behavior is \"%.60s\", it must be Removed, Isolated, "
        "MergedWithPrevious, MergedWithNext or Contiguous",
        s ? s : "");
}

/* A known pattern gets its scanner where matches and what lies between are pieces; others go
 * through PCRE2. */
static qn_code set_regex(tok_pre *p, tok_str pattern, qn_err *err)
{
    if (p->behavior == SPLIT_ISOLATED || (p->behavior == SPLIT_REMOVED && p->invert)) {
        const tok_known_pattern *known = tok_scan_for(pattern);
        if (known && (!known->gaps || p->behavior == SPLIT_ISOLATED)) {
            p->scan = known->scan;
            p->ends_word = known->ends_word;
            return QN_OK;
        }
    }
    return tok_regex_compile(&p->re, pattern, err);
}

static tok_pre *add_stage(qn_tokenizer *t, tok_pre_kind kind)
{
    tok_pre *p = &t->pres[t->n_pres++];
    p->kind = kind;
    return p;
}

static qn_code parse_split(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    tok_pre *p = add_stage(t, PRE_SPLIT);
    tok_str pattern;
    bool regex;
    qn_code rc;
    if ((rc = parse_behavior(o, &p->behavior, err))) return rc;
    if ((rc = tok_json_bool(o, "pre_tokenizer", "invert", false, &p->invert, err))) return rc;
    if ((rc = tok_json_pattern(t, o, "pre_tokenizer", &pattern, &regex, err))) return rc;
    if (regex) return set_regex(p, pattern, err);
    p->literal = pattern;
    return QN_OK;
}

static qn_code parse_byte_level(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    bool prefix, use_regex;
    qn_code rc;
    if ((rc = tok_json_bool(o, "pre_tokenizer", "add_prefix_space", true, &prefix, err))) return rc;
    if ((rc = tok_json_bool(o, "pre_tokenizer", "use_regex", true, &use_regex, err))) return rc;
    /* Two steps where both are wanted: the space, the split, then the alphabet. */
    if (prefix && use_regex) {
        tok_pre *space = add_stage(t, PRE_BYTE_LEVEL);
        space->add_prefix_space = true;
        space->raw = true;
    }
    if (use_regex) {
        tok_pre *split = add_stage(t, PRE_SPLIT);
        split->behavior = SPLIT_ISOLATED;
        rc = set_regex(split, (tok_str){tok_pattern_gpt2, strlen(tok_pattern_gpt2)}, err);
        if (rc) return rc;
    }
    tok_pre *p = add_stage(t, PRE_BYTE_LEVEL);
    p->add_prefix_space = prefix && !use_regex;
    return QN_OK;
}

static qn_code parse_digits(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    bool individual;
    qn_code rc = tok_json_bool(o, "pre_tokenizer", "individual_digits", false, &individual, err);
    tok_pre *p = add_stage(t, PRE_SPLIT);
    p->behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    p->is_match = qn_uchar_is_numeric;
    return rc;
}

static qn_code parse_punctuation(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    tok_pre *p = add_stage(t, PRE_SPLIT);
    p->behavior = SPLIT_ISOLATED;
    p->is_match = qn_uchar_is_punct;
    return json_object_get(o, "behavior") ? parse_behavior(o, &p->behavior, err) : QN_OK;
}

static qn_code parse_whitespace_split(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    (void)o;
    (void)err;
    tok_pre *p = add_stage(t, PRE_SPLIT);
    p->behavior = SPLIT_REMOVED;
    p->is_match = qn_uchar_is_space;
    return QN_OK;
}

static qn_code parse_bert(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    parse_whitespace_split(t, o, err);
    tok_pre *p = add_stage(t, PRE_SPLIT);
    p->behavior = SPLIT_ISOLATED;
    p->is_match = qn_uchar_is_punct;
    return QN_OK;
}

/* A run of word characters, or of characters that are neither word nor space, or of spaces. */
static size_t scan_words(const char *s, size_t n)
{
    size_t i = 0;
    int kind = -1;
    while (i < n) {
        unsigned cp;
        size_t k = qn_utf8_decode(s + i, n - i, &cp);
        int is = qn_uchar_is_word(cp) ? 0 : qn_uchar_is_space(cp) ? 2 : 1;
        if (kind >= 0 && is != kind) break;
        kind = is;
        i += k;
    }
    return i;
}

static qn_code parse_whitespace(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    tok_pre *p = add_stage(t, PRE_SPLIT);
    p->behavior = SPLIT_ISOLATED;
    p->scan = scan_words;
    p->ends_word = true;
    return parse_whitespace_split(t, o, err); /* what is left of the spaces goes */
}

static qn_code parse_char_delimiter(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    tok_pre *p = add_stage(t, PRE_SPLIT);
    p->behavior = SPLIT_REMOVED;
    return tok_json_need_str(t, o, "pre_tokenizer", "delimiter", &p->literal, err);
}

static qn_code parse_metaspace(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    tok_pre *p = add_stage(t, PRE_METASPACE);
    const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
    bool legacy; /* older files say add_prefix_space */
    qn_code rc;
    if ((rc = tok_json_need_str(t, o, "pre_tokenizer", "replacement", &p->replacement, err))) {
        return rc;
    }
    if ((rc = tok_json_bool(o, "pre_tokenizer", "split", true, &p->split, err))) return rc;
    if ((rc = tok_json_bool(o, "pre_tokenizer", "add_prefix_space", true, &legacy, err))) return rc;
    if (!p->replacement.n) {
        return qn_err_set(
            err, QN_FORMAT,
            "tokenizer.json: pre_tokenizer.replacement is empty, it must be one character");
    }
    if (!scheme) scheme = legacy ? "always" : "never";
    if (!strcmp(scheme, "always")) {
        p->prepend = PREPEND_ALWAYS;
    } else if (!strcmp(scheme, "first")) {
        p->prepend = PREPEND_FIRST;
    } else if (strcmp(scheme, "never")) {
        return qn_err_set(
            err, QN_FORMAT,
            "tokenizer.json: pre_tokenizer.prepend_scheme is \"%.60s\", it must be always, "
            "first or never",
            scheme);
    }
    return QN_OK;
}

static qn_code parse_scripts(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    (void)o;
    (void)err;
    add_stage(t, PRE_SCRIPTS);
    return QN_OK;
}

static qn_code parse_fixed(qn_tokenizer *t, const json_t *o, qn_err *err)
{
    tok_pre *p = add_stage(t, PRE_FIXED);
    qn_code rc = tok_json_u32(o, "pre_tokenizer", "length", 5, &p->length, err);
    if (rc || p->length) return rc;
    return qn_err_set(err, QN_FORMAT,
                      "tokenizer.json: pre_tokenizer.length is 0, it must be 1 or more");
}

static const struct {
    const char *name;
    qn_code (*parse)(qn_tokenizer *t, const json_t *o, qn_err *err);
} pre_types[] = {
    {"Split", parse_split},
    {"ByteLevel", parse_byte_level},
    {"Digits", parse_digits},
    {"Punctuation", parse_punctuation},
    {"Whitespace", parse_whitespace},
    {"WhitespaceSplit", parse_whitespace_split},
    {"BertPreTokenizer", parse_bert},
    {"CharDelimiterSplit", parse_char_delimiter},
    {"Metaspace", parse_metaspace},
    {"UnicodeScripts", parse_scripts},
    {"FixedLength", parse_fixed},
};

static qn_code add_pres(qn_tokenizer *t, const json_t *o, int depth, qn_err *err)
{
    const char *type;
    qn_code rc = tok_json_type(o, "pre_tokenizer", &type, err);
    if (rc) return rc;
    if (depth > TOK_MAX_DEPTH || t->n_pres + 3 > TOK_MAX_STAGES) {
        return qn_err_set(err, QN_LIMIT,
                          "tokenizer.json: pre_tokenizer has more than %d steps or %d levels",
                          TOK_MAX_STAGES, TOK_MAX_DEPTH);
    }
    if (!strcmp(type, "Sequence")) {
        const json_t *list = json_object_get(o, "pretokenizers");
        if (!json_is_array(list)) {
            return qn_err_set(
                err, QN_FORMAT,
                "tokenizer.json: pre_tokenizer.pretokenizers is missing or not an array");
        }
        for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
            rc = add_pres(t, json_array_get(list, i), depth + 1, err);
        }
        return rc;
    }
    for (size_t i = 0; i < sizeof pre_types / sizeof *pre_types; i++) {
        if (!strcmp(type, pre_types[i].name)) return pre_types[i].parse(t, o, err);
    }
    return qn_err_set(err, QN_UNSUPPORTED,
                      "tokenizer.json: not supported yet: pre_tokenizer \"%.60s\"", type);
}

qn_code tok_parse_pre(qn_tokenizer *t, const json_t *pre, qn_err *err)
{
    if (!pre || json_is_null(pre)) return QN_OK;
    t->pres = qn_arena_take(&t->arena, TOK_MAX_STAGES, sizeof *t->pres);
    if (!t->pres) return qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory");
    return add_pres(t, pre, 0, err);
}

/* ---- splitting ---- */

void tok_pieces_put(tok_pieces *l, size_t at, size_t len, bool origin)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 256;
        tok_piece *p = realloc(l->v, cap * sizeof *p);
        if (!p) {
            l->failed = true;
            return;
        }
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = (tok_piece){(uint32_t)at, (uint32_t)len, origin};
}

/* Turns the sequence of matches and gaps of one piece into new pieces. */
typedef struct splitter {
    tok_split_behavior behavior;
    tok_pieces *out;
    size_t base;       /* of the piece in the text */
    bool origin;       /* of the piece */
    bool previous;     /* the last part was a match */
    bool open;         /* a piece [at, at + len) waits for its end */
    size_t at, len;
} splitter;

static void flush(splitter *sp)
{
    if (sp->open && sp->len) {
        tok_pieces_put(sp->out, sp->base + sp->at, sp->len, sp->origin && sp->at == 0);
    }
    sp->open = false;
}

static void part(splitter *sp, size_t at, size_t end, bool match)
{
    bool join = false, previous = sp->previous;
    switch (sp->behavior) {
    case SPLIT_REMOVED:
        if (match) {
            flush(sp);
            return;
        }
        break;
    case SPLIT_ISOLATED: break;
    case SPLIT_CONTIGUOUS: join = sp->open && match == previous; break;
    case SPLIT_MERGED_PREV: join = sp->open && match && !previous; break;
    /* A match belongs to what follows, unless a match follows. */
    case SPLIT_MERGED_NEXT: join = sp->open && previous && !match; break;
    }
    sp->previous = match;
    if (join) {
        sp->len = end - sp->at;
        return;
    }
    flush(sp);
    sp->open = true;
    sp->at = at;
    sp->len = end - at;
}

static qn_code split_regex(const tok_pre *p, tok_scratch *sc, splitter *sp, tok_str s, qn_err *err)
{
    size_t from = 0, done = 0, start, end;
    bool any = false;
    int found = 0;
    while (from <= s.n &&
           (found = tok_regex_next(&p->re, sc, s.s, s.n, from, &start, &end, err)) > 0) {
        if (start == end && any && end == done) { /* an empty match right after a match is none */
            unsigned cp;
            from = end + (end < s.n ? qn_utf8_decode(s.s + end, s.n - end, &cp) : 1);
            continue;
        }
        if (start > done) part(sp, done, start, p->invert);
        part(sp, start, end, !p->invert);
        from = done = end;
        any = true;
    }
    if (found < 0) return err->code;
    if (done < s.n) part(sp, done, s.n, p->invert);
    return QN_OK;
}

static void split_literal(const tok_pre *p, splitter *sp, tok_str s)
{
    size_t done = 0;
    const char *hit;
    while (p->literal.n && (hit = memmem(s.s + done, s.n - done, p->literal.s, p->literal.n))) {
        size_t start = (size_t)(hit - s.s);
        if (start > done) part(sp, done, start, p->invert);
        done = start + p->literal.n;
        part(sp, start, done, !p->invert);
    }
    if (done < s.n) part(sp, done, s.n, p->invert);
}

static void split_chars(const tok_pre *p, splitter *sp, tok_str s)
{
    size_t done = 0;
    for (size_t i = 0; i < s.n;) {
        unsigned cp;
        size_t k = qn_utf8_decode(s.s + i, s.n - i, &cp);
        if (p->is_match(cp)) {
            if (i > done) part(sp, done, i, false);
            part(sp, i, i + k, true);
            done = i + k;
        }
        i += k;
    }
    if (done < s.n) part(sp, done, s.n, false);
}

/* Pieces start where the script changes; a space has the script of what is before it. Spaces at the
 * very front start no piece and are lost, as with the oracle. */
static void split_scripts(const char *text, tok_piece piece, tok_pieces *out)
{
    size_t start = piece.len;
    unsigned last = QN_SCRIPT_ANY;
    for (size_t i = 0; i < piece.len;) {
        unsigned cp;
        size_t k = qn_utf8_decode(text + piece.at + i, piece.len - i, &cp);
        unsigned script = qn_uchar_script(cp);
        if (script != QN_SCRIPT_ANY && script != last) {
            if (i > start) tok_pieces_put(out, piece.at + start, i - start, piece.origin && !start);
            start = i;
            last = script;
        }
        i += k;
    }
    if (start < piece.len) {
        tok_pieces_put(out, piece.at + start, piece.len - start, piece.origin && !start);
    }
}

static void split_fixed(const char *text, tok_piece piece, uint32_t length, tok_pieces *out)
{
    size_t start = 0;
    uint32_t n = 0;
    for (size_t i = 0; i < piece.len;) {
        unsigned cp;
        i += qn_utf8_decode(text + piece.at + i, piece.len - i, &cp);
        if (++n < length && i < piece.len) continue;
        tok_pieces_put(out, piece.at + start, i - start, piece.origin && !start);
        start = i;
        n = 0;
    }
}

static qn_code split_piece(const tok_pre *p, tok_scratch *sc, const char *text, tok_piece piece,
                           tok_pieces *out, qn_err *err)
{
    tok_str s = {text + piece.at, piece.len};
    if (p->scan) {
        for (size_t i = 0; i < s.n;) {
            size_t k = p->scan(s.s + i, s.n - i);
            tok_pieces_put(out, piece.at + i, k, piece.origin && i == 0);
            i += k;
        }
        return QN_OK;
    }
    splitter sp = {.behavior = p->behavior, .out = out, .base = piece.at, .origin = piece.origin};
    qn_code rc = QN_OK;
    if (p->is_match) {
        split_chars(p, &sp, s);
    } else if (p->re.code) {
        rc = split_regex(p, sc, &sp, s, err);
    } else {
        split_literal(p, &sp, s);
    }
    flush(&sp);
    return rc;
}

/* ---- steps that change the text ---- */

static bool starts_with(tok_str s, tok_str prefix)
{
    return s.n >= prefix.n && !memcmp(s.s, prefix.s, prefix.n);
}

static void byte_level_piece(const tok_pre *p, tok_str s, qn_buf *out)
{
    bool space = p->add_prefix_space && !(s.n && s.s[0] == ' ');
    if (p->raw) {
        if (space) qn_buf_putc(out, ' ');
        qn_buf_put(out, s.s, s.n);
    } else {
        if (space) tok_bytes_to_alphabet(" ", 1, out);
        tok_bytes_to_alphabet(s.s, s.n, out);
    }
}

static void metaspace_piece(const tok_pre *p, tok_str s, bool origin, qn_buf *out)
{
    bool marked = starts_with(s, p->replacement) || (s.n && s.s[0] == ' ');
    if (!marked && (p->prepend == PREPEND_ALWAYS || (p->prepend == PREPEND_FIRST && origin))) {
        qn_buf_put(out, p->replacement.s, p->replacement.n);
    }
    for (size_t i = 0; i < s.n; i++) {
        if (s.s[i] == ' ') {
            qn_buf_put(out, p->replacement.s, p->replacement.n);
        } else {
            qn_buf_putc(out, s.s[i]);
        }
    }
}

static void rewrite_piece(const tok_pre *p, const char *text, tok_piece piece, qn_buf *buf,
                          tok_pieces *out)
{
    tok_str s = {text + piece.at, piece.len};
    size_t at = buf->len;
    if (p->kind == PRE_METASPACE) {
        metaspace_piece(p, s, piece.origin, buf);
    } else {
        byte_level_piece(p, s, buf);
    }
    if (buf->failed) return;
    if (p->kind == PRE_METASPACE && p->split) {
        splitter sp = {
            .behavior = SPLIT_MERGED_NEXT, .out = out, .base = at, .origin = piece.origin};
        tok_pre by = {.literal = p->replacement};
        split_literal(&by, &sp, (tok_str){buf->data + at, buf->len - at});
        flush(&sp);
    } else {
        tok_pieces_put(out, at, buf->len - at, piece.origin);
    }
}

static qn_code run_stage(const tok_pre *p, tok_scratch *sc, size_t stage, const char **text,
                         const tok_pieces *in, tok_pieces *out, qn_err *err)
{
    qn_code rc = QN_OK;
    if (p->kind == PRE_SPLIT) {
        for (size_t i = 0; i < in->n && !rc; i++) {
            rc = split_piece(p, sc, *text, in->v[i], out, err);
        }
    } else if (p->kind == PRE_SCRIPTS) {
        for (size_t i = 0; i < in->n; i++) split_scripts(*text, in->v[i], out);
    } else if (p->kind == PRE_FIXED) {
        for (size_t i = 0; i < in->n; i++) split_fixed(*text, in->v[i], p->length, out);
    } else {
        qn_buf *buf = &sc->pre[stage & 1];
        qn_buf_clear(buf);
        for (size_t i = 0; i < in->n; i++) rewrite_piece(p, *text, in->v[i], buf, out);
        if (buf->failed) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
        if (buf->len > UINT32_MAX) {
            return qn_err_set(err, QN_LIMIT, "tokenizer: the text grew over 4 GiB");
        }
        *text = buf->data;
    }
    if (out->failed) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
    return rc;
}

qn_code tok_pre_run(const qn_tokenizer *t, tok_scratch *sc, tok_str in, bool origin, tok_str *text,
                    tok_pieces **list, qn_err *err)
{
    tok_pieces *cur = &sc->list[0], *next = &sc->list[1];
    const char *s = in.s;
    size_t n_rewrites = 0;
    cur->n = 0;
    if (in.n) tok_pieces_put(cur, 0, in.n, origin);
    if (cur->failed) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
    for (size_t i = 0; i < t->n_pres; i++) {
        const tok_pre *p = &t->pres[i];
        if (p->raw && !p->add_prefix_space) continue; /* the model reads the bytes as they are */
        next->n = 0;
        qn_code rc = run_stage(p, sc, n_rewrites, &s, cur, next, err);
        if (rc) return rc;
        if (p->kind == PRE_BYTE_LEVEL || p->kind == PRE_METASPACE) n_rewrites++;
        tok_pieces *swap = cur;
        cur = next;
        next = swap;
    }
    *text = (tok_str){s, in.n};
    *list = cur;
    return QN_OK;
}
