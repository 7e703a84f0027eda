/* tok_norm.c - normalizers: the steps that rewrite text before it is split. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "core/utf8.h"
#include "text/tok_impl.h"
#include "text/unicode.h"

/* ---- parsing ---- */

static qn_code parse_replace(qn_tokenizer *t, const json_t *o, tok_norm *n, qn_err *err)
{
    bool regex;
    qn_code rc = tok_json_pattern(t, o, "normalizer", &n->pattern, &regex, err);
    if (!rc) rc = tok_json_need_str(t, o, "normalizer", "content", &n->content, err);
    if (!rc && regex) rc = tok_regex_compile(&n->re, n->pattern, err);
    return rc;
}

static qn_code parse_prepend(qn_tokenizer *t, const json_t *o, tok_norm *n, qn_err *err)
{
    return tok_json_need_str(t, o, "normalizer", "prepend", &n->content, err);
}

static qn_code parse_strip(qn_tokenizer *t, const json_t *o, tok_norm *n, qn_err *err)
{
    (void)t;
    qn_code rc = tok_json_bool(o, "normalizer", "strip_left", true, &n->left, err);
    return rc ? rc : tok_json_bool(o, "normalizer", "strip_right", true, &n->right, err);
}

static qn_code parse_bert(qn_tokenizer *t, const json_t *o, tok_norm *n, qn_err *err)
{
    (void)t;
    qn_code rc;
    if ((rc = tok_json_bool(o, "normalizer", "clean_text", true, &n->clean, err))) return rc;
    if ((rc = tok_json_bool(o, "normalizer", "handle_chinese_chars", true, &n->chinese, err))) {
        return rc;
    }
    if ((rc = tok_json_bool(o, "normalizer", "lowercase", true, &n->lowercase, err))) return rc;
    return tok_json_bool(o, "normalizer", "strip_accents", n->lowercase, &n->strip_accents, err);
}

static qn_code parse_precompiled(qn_tokenizer *t, const json_t *o, tok_norm *n, qn_err *err)
{
    return tok_charsmap_parse(t, o, &n->map, err);
}

static const struct {
    const char *name;
    tok_norm_kind kind;
    qn_code (*parse)(qn_tokenizer *t, const json_t *o, tok_norm *n, qn_err *err);
} norm_types[] = {
    {"NFC", NORM_NFC, NULL},
    {"NFD", NORM_NFD, NULL},
    {"NFKC", NORM_NFKC, NULL},
    {"NFKD", NORM_NFKD, NULL},
    {"Prepend", NORM_PREPEND, parse_prepend},
    {"Replace", NORM_REPLACE, parse_replace},
    {"Lowercase", NORM_LOWERCASE, NULL},
    {"Strip", NORM_STRIP, parse_strip},
    {"StripAccents", NORM_STRIP_ACCENTS, NULL},
    {"BertNormalizer", NORM_BERT, parse_bert},
    {"ByteLevel", NORM_BYTE_LEVEL, NULL},
    {"Precompiled", NORM_PRECOMPILED, parse_precompiled},
    {"Nmt", NORM_NMT, NULL},
};

static qn_code add_norms(qn_tokenizer *t, const json_t *o, int depth, qn_err *err);

static qn_code add_sequence(qn_tokenizer *t, const json_t *list, int depth, qn_err *err)
{
    if (!json_is_array(list)) {
        return qn_err_set(err, QN_FORMAT,
                          "tokenizer.json: normalizer.normalizers is missing or not an array");
    }
    qn_code rc = QN_OK;
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        rc = add_norms(t, json_array_get(list, i), depth + 1, err);
    }
    return rc;
}

static qn_code add_norms(qn_tokenizer *t, const json_t *o, int depth, qn_err *err)
{
    const char *type;
    qn_code rc = tok_json_type(o, "normalizer", &type, err);
    if (rc) return rc;
    if (depth > TOK_MAX_DEPTH || t->n_norms == TOK_MAX_STAGES) {
        return qn_err_set(err, QN_LIMIT,
                          "tokenizer.json: normalizer has more than %d steps or %d levels",
                          TOK_MAX_STAGES, TOK_MAX_DEPTH);
    }
    if (!strcmp(type, "Sequence")) {
        return add_sequence(t, json_object_get(o, "normalizers"), depth, err);
    }
    for (size_t i = 0; i < sizeof norm_types / sizeof *norm_types; i++) {
        if (strcmp(type, norm_types[i].name)) continue;
        tok_norm *n = &t->norms[t->n_norms++];
        n->kind = norm_types[i].kind;
        return norm_types[i].parse ? norm_types[i].parse(t, o, n, err) : QN_OK;
    }
    return qn_err_set(err, QN_UNSUPPORTED,
                      "tokenizer.json: not supported yet: normalizer \"%.60s\"", type);
}

qn_code tok_parse_norm(qn_tokenizer *t, const json_t *norm, qn_err *err)
{
    if (!norm || json_is_null(norm)) return QN_OK;
    t->norms = qn_arena_take(&t->arena, TOK_MAX_STAGES, sizeof *t->norms);
    if (!t->norms) return qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory");
    return add_norms(t, norm, 0, err);
}

/* ---- normal forms ---- */

/* Characters that no normal form C touches and that never join with what stands before them. Not
 * all of them, only those that make up most text. */
static bool is_inert_nfc(unsigned cp)
{
    static const unsigned ranges[][2] = {
        {0x0, 0x2FF},     {0x388, 0x482},   {0x48A, 0x52F},   {0x5D0, 0x5EA},     {0x621, 0x64A},
        {0x904, 0x939},   {0x2010, 0x2046}, {0x3001, 0x3020}, {0x3041, 0x3096},   {0x30A1, 0x30FA},
        {0x4E00, 0x9FFF}, {0xAC00, 0xD7A3}, {0xFF01, 0xFFEF}, {0x1F300, 0x1FAFF},
    };
    if (cp < 0x300) return true;
    for (size_t i = 1; i < sizeof ranges / sizeof *ranges && cp >= ranges[i][0]; i++) {
        if (cp <= ranges[i][1]) return true;
    }
    return qn_uchar_is_late(cp);
}

static bool is_inert_ascii(unsigned cp)
{
    return cp < 0x80 || qn_uchar_is_late(cp);
}

/* Code points of one stretch, decomposed. */
typedef struct points {
    utf8proc_int32_t *v;
    size_t n, cap;
} points;

static qn_code decompose(tok_str s, int options, points *p, qn_err *err)
{
    enum { MOST = 32 }; /* more than any character decomposes to */
    int boundary = 0;
    for (size_t i = 0; i < s.n;) {
        unsigned cp;
        i += qn_utf8_decode(s.s + i, s.n - i, &cp);
        if (p->cap - p->n < MOST) {
            size_t cap = p->cap ? p->cap * 2 : 256;
            utf8proc_int32_t *v = realloc(p->v, cap * sizeof *v);
            if (!v) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
            p->v = v;
            p->cap = cap;
        }
        utf8proc_ssize_t k =
            utf8proc_decompose_char((utf8proc_int32_t)cp, p->v + p->n, MOST,
                                    (utf8proc_option_t)(options | UTF8PROC_DECOMPOSE), &boundary);
        if (k < 0 || k > MOST) {
            return qn_err_set(err, QN_FORMAT, "tokenizer: U+%04X does not decompose", cp);
        }
        p->n += (size_t)k;
    }
    return QN_OK;
}

static int ccc(utf8proc_int32_t cp)
{
    return (int)utf8proc_get_property(cp)->combining_class;
}

/* Stable counting sort of a run of marks by combining class: linear, where the library's own
 * exchange sort takes minutes for a megabyte of marks. */
static bool sort_marks(utf8proc_int32_t *v, size_t n)
{
    size_t start[257] = {0};
    bool sorted = true;
    for (size_t i = 1; i < n && sorted; i++) sorted = ccc(v[i - 1]) <= ccc(v[i]);
    if (sorted) return true;
    utf8proc_int32_t *copy = malloc(n * sizeof *copy);
    if (!copy) return false;
    memcpy(copy, v, n * sizeof *copy);
    for (size_t i = 0; i < n; i++) start[ccc(copy[i]) + 1]++;
    for (size_t c = 1; c < 257; c++) start[c] += start[c - 1];
    for (size_t i = 0; i < n; i++) v[start[ccc(copy[i])]++] = copy[i];
    free(copy);
    return true;
}

static bool order_marks(points *p)
{
    for (size_t i = 0; i < p->n;) {
        size_t end = i;
        while (end < p->n && ccc(p->v[end])) end++;
        if (end > i + 1 && !sort_marks(p->v + i, end - i)) return false;
        i = end + (end == i);
    }
    return true;
}

static qn_code map_segment(tok_str s, int options, qn_buf *out, qn_err *err)
{
    points p = {0};
    qn_code rc = decompose(s, options, &p, err);
    if (!rc && !order_marks(&p)) rc = qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
    if (!rc && options & UTF8PROC_COMPOSE) {
        p.n = (size_t)utf8proc_normalize_utf32(p.v, (utf8proc_ssize_t)p.n,
                                               (utf8proc_option_t)options);
    }
    for (size_t i = 0; i < p.n && !rc; i++) qn_buf_put_utf8(out, (unsigned)p.v[i]);
    free(p.v);
    return rc;
}

/* Hand only the stretches around characters that are not inert to the library: from the character
 * before (a mark joins it) to the next inert one. */
static qn_code normal_form(tok_norm_kind kind, tok_str in, qn_buf *out, qn_err *err)
{
    static const int options[] = {
        [NORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [NORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [NORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [NORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    bool (*inert)(unsigned) = kind == NORM_NFC ? is_inert_nfc : is_inert_ascii;
    size_t copied = 0, previous = 0;
    qn_code rc = QN_OK;
    for (size_t i = 0; i < in.n && !rc;) {
        unsigned cp;
        size_t k = qn_utf8_decode(in.s + i, in.n - i, &cp);
        if (inert(cp)) {
            /* A late character stays out of the library's hands: it would decompose it. */
            previous = qn_uchar_is_late(cp) ? i + k : i;
            i += k;
            continue;
        }
        qn_buf_put(out, in.s + copied, previous - copied);
        while (i < in.n) {
            k = qn_utf8_decode(in.s + i, in.n - i, &cp);
            if (inert(cp)) break;
            i += k;
        }
        rc = map_segment((tok_str){in.s + previous, i - previous}, options[kind], out, err);
        copied = previous = i;
    }
    qn_buf_put(out, in.s + copied, in.n - copied);
    return rc;
}

/* ---- the other steps ---- */

static qn_code replace_all(const tok_norm *n, tok_scratch *sc, tok_str in, qn_buf *out, qn_err *err)
{
    size_t from = 0, copied = 0, start, end;
    if (n->re.code) {
        int found = 0;
        bool any = false;
        while (from <= in.n &&
               (found = tok_regex_next(&n->re, sc, in.s, in.n, from, &start, &end, err)) > 0) {
            if (start == end && any &&
                end == copied) { /* an empty match right after a match is none */
                unsigned cp;
                from = end + (end < in.n ? qn_utf8_decode(in.s + end, in.n - end, &cp) : 1);
                continue;
            }
            qn_buf_put(out, in.s + copied, start - copied);
            qn_buf_put(out, n->content.s, n->content.n);
            from = copied = end;
            any = true;
        }
        if (found < 0) return err->code;
    } else {
        const char *hit;
        while (n->pattern.n &&
               (hit = memmem(in.s + from, in.n - from, n->pattern.s, n->pattern.n))) {
            qn_buf_put(out, in.s + from, (size_t)(hit - in.s) - from);
            qn_buf_put(out, n->content.s, n->content.n);
            from = copied = (size_t)(hit - in.s) + n->pattern.n;
        }
    }
    qn_buf_put(out, in.s + copied, in.n - copied);
    return QN_OK;
}

/* Returns how many bytes went from the front. */
static size_t strip(const tok_norm *n, tok_str in, qn_buf *out)
{
    size_t first = in.n, last = 0; /* the text that is not space */
    for (size_t i = 0; i < in.n;) {
        unsigned cp;
        size_t k = qn_utf8_decode(in.s + i, in.n - i, &cp);
        if (!qn_uchar_is_space(cp)) {
            if (first == in.n) first = i;
            last = i + k;
        }
        i += k;
    }
    size_t a = n->left ? first : 0, b = n->right ? last : in.n;
    if (a < b) qn_buf_put(out, in.s + a, b - a);
    return a;
}

static void put_lower(unsigned cp, qn_buf *out)
{
    if (cp == 0x130) { /* the one lower case that is two characters */
        qn_buf_puts(out, "i\xCC\x87");
        return;
    }
    /* Pairs of Unicode 16 and 17, which the library may not know yet: first, last, distance. */
    static const struct {
        unsigned first, last;
        int distance;
    } late[] = {
        {0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
        {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
        {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
        {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
        {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 0x1B},
    };
    for (size_t i = 0; cp >= late[0].first && i < sizeof late / sizeof *late; i++) {
        if (cp < late[i].first || cp > late[i].last) continue;
        qn_buf_put_utf8(out, (unsigned)((int)cp + late[i].distance));
        return;
    }
    qn_buf_put_utf8(out, (unsigned)utf8proc_tolower((utf8proc_int32_t)cp));
}

static bool is_chinese(unsigned cp)
{
    return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) ||
           (cp >= 0x20000 && cp <= 0x2A6DF) || (cp >= 0x2A700 && cp <= 0x2B73F) ||
           (cp >= 0x2B740 && cp <= 0x2B81F) || (cp >= 0x2B920 && cp <= 0x2CEAF) ||
           (cp >= 0xF900 && cp <= 0xFAFF) || (cp >= 0x2F800 && cp <= 0x2FA1F);
}

/* Characters that the Bert cleaner drops: NUL, U+FFFD, controls, formats, private use. */
static bool bert_drops(unsigned cp)
{
    if (cp == '\t' || cp == '\n' || cp == '\r') return false;
    /* Formats that came after the cleaner's Unicode version stay. */
    if (cp == 0x890 || cp == 0x891 || cp == 0x8E2 || cp == 0x110CD ||
        (cp >= 0x13430 && cp <= 0x1343F)) {
        return false;
    }
    return cp == 0 || cp == 0xFFFD ||
           qn_ucat_in(cp, QN_UBIT(QN_CC) | QN_UBIT(QN_CF) | QN_UBIT(QN_CO));
}

static void bert_chars(const tok_norm *n, tok_str in, qn_buf *out)
{
    for (size_t i = 0; i < in.n;) {
        unsigned cp;
        i += qn_utf8_decode(in.s + i, in.n - i, &cp);
        if (n->clean && bert_drops(cp)) continue;
        if (n->clean && qn_uchar_is_space(cp)) cp = ' ';
        bool pad = n->chinese && is_chinese(cp);
        if (pad) qn_buf_putc(out, ' ');
        qn_buf_put_utf8(out, cp);
        if (pad) qn_buf_putc(out, ' ');
    }
}

static qn_code bert(const tok_norm *n, tok_str in, qn_buf *out, qn_err *err)
{
    qn_buf a = {0}, b = {0};
    qn_code rc = QN_OK;
    bert_chars(n, in, &a);
    if (n->strip_accents && a.len) {
        rc = normal_form(NORM_NFD, (tok_str){a.data, a.len}, &b, err);
    } else {
        qn_buf_put(&b, a.data, a.len);
    }
    for (size_t i = 0; i < b.len && !rc;) {
        unsigned cp;
        i += qn_utf8_decode(b.data + i, b.len - i, &cp);
        if (n->strip_accents && qn_uchar_is_bert_accent(cp)) continue;
        if (n->lowercase) {
            put_lower(cp, out);
        } else {
            qn_buf_put_utf8(out, cp);
        }
    }
    if (a.failed || b.failed) out->failed = true;
    qn_buf_release(&a);
    qn_buf_release(&b);
    return rc;
}

static void map_chars(const tok_norm *n, tok_str in, qn_buf *out)
{
    for (size_t i = 0; i < in.n;) {
        unsigned cp;
        i += qn_utf8_decode(in.s + i, in.n - i, &cp);
        if (n->kind == NORM_LOWERCASE) {
            put_lower(cp, out);
        } else if (!qn_uchar_is_accent(cp)) {
            qn_buf_put_utf8(out, cp);
        }
    }
}

/* What the Nmt normalizer drops: most control characters. */
static bool nmt_drops(unsigned cp)
{
    return (cp >= 0x1 && cp <= 0x8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) || cp == 0x7F ||
           cp == 0x8F || cp == 0x9F;
}

/* What it takes for a space. */
static bool nmt_is_space(unsigned cp)
{
    return cp == 0x9 || cp == 0xA || cp == 0xC || cp == 0xD || cp == 0x1680 ||
           (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
           cp == 0xFEFF || cp == 0xFFFD;
}

static void nmt(tok_str in, qn_buf *out)
{
    for (size_t i = 0; i < in.n;) {
        unsigned cp;
        i += qn_utf8_decode(in.s + i, in.n - i, &cp);
        if (nmt_is_space(cp)) {
            qn_buf_putc(out, ' ');
        } else if (!nmt_drops(cp)) {
            qn_buf_put_utf8(out, cp);
        }
    }
}

static qn_code run_one(const tok_norm *n, tok_scratch *sc, tok_str in, qn_buf *out,
                       size_t *stripped, qn_err *err)
{
    switch (n->kind) {
    case NORM_NFC:
    case NORM_NFD:
    case NORM_NFKC:
    case NORM_NFKD: return normal_form(n->kind, in, out, err);
    case NORM_PREPEND:
        if (in.n) qn_buf_put(out, n->content.s, n->content.n);
        qn_buf_put(out, in.s, in.n);
        return QN_OK;
    case NORM_REPLACE: return replace_all(n, sc, in, out, err);
    case NORM_STRIP: *stripped = strip(n, in, out); return QN_OK;
    case NORM_BERT: return bert(n, in, out, err);
    case NORM_BYTE_LEVEL: tok_bytes_to_alphabet(in.s, in.n, out); return QN_OK;
    case NORM_PRECOMPILED: tok_charsmap_run(&n->map, in, out); return QN_OK;
    case NORM_NMT: nmt(in, out); return QN_OK;
    case NORM_SPM: break; /* tok_norm_run's own */
    case NORM_LOWERCASE:
    case NORM_STRIP_ACCENTS: map_chars(n, in, out); return QN_OK;
    }
    QN_UNREACHABLE();
}

/* After a Strip step took bytes from the front: is what is left still made of the caller's first
 * character? One that decomposes to a space and a mark is, without its space. */
static bool is_still_first(const qn_tokenizer *t, tok_scratch *sc, size_t n_before, tok_str whole,
                           size_t stripped)
{
    unsigned cp;
    qn_buf a = {0}, b = {0};
    tok_str s = {whole.s, qn_utf8_decode(whole.s, whole.n, &cp)};
    size_t unused;
    for (size_t i = 0; i < n_before && s.n; i++) {
        qn_err err = {0};
        qn_buf_clear(&b);
        if (run_one(&t->norms[i], sc, s, &b, &unused, &err) || b.failed) break;
        qn_buf swap = a;
        a = b;
        b = swap;
        s = (tok_str){a.data, a.len};
    }
    qn_buf_release(&a);
    qn_buf_release(&b);
    return s.n > stripped;
}

qn_code tok_norm_run(const qn_tokenizer *t, tok_scratch *sc, tok_str in, tok_str *out, bool *origin,
                     qn_err *err)
{
    const tok_str whole = in;
    for (size_t i = 0; i < t->n_norms; i++) {
        qn_buf *b = &sc->norm[i & 1];
        size_t stripped = 0;
        qn_buf_clear(b);
        qn_code rc = QN_OK;
        if (t->norms[i].kind == NORM_SPM) {
            tok_spm_normalize(t, &t->norms[i], in, *origin, b);
        } else {
            rc = run_one(&t->norms[i], sc, in, b, &stripped, err);
        }
        if (rc) return rc;
        if (stripped && !is_still_first(t, sc, i, whole, stripped)) *origin = false;
        qn_buf_put(b, "", 0); /* `data` is never NULL behind this */
        if (b->failed) return qn_err_set(err, QN_NOMEM, "tokenizer: out of memory");
        if (b->len > TOK_MAX_TEXT) {
            return qn_err_set(err, QN_LIMIT,
                              "tokenizer: the normalised text has more than %d bytes",
                              TOK_MAX_TEXT);
        }
        in = (tok_str){b->data, b->len};
    }
    *out = in;
    return QN_OK;
}
