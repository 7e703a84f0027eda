/* jinja_lex.c - tokens of a template; see jinja_lex.h. */
#include "text/jinja_lex.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/jinja_run.h"
#include "text/jinja_text.h"

enum { MAX_TOKENS = 2 << 20 };

typedef struct lexer {
    qn_jtree *t;
    qn_err *err;
    const char *p; /* source */
    size_t n, at;
    uint32_t line;
    bool line_starting; /* the last token ended a line */
    qn_jtok *tok;
    size_t count, cap;
    char *balance; /* open brackets, the closing kind */
    size_t depth, balance_cap;
    qn_code rc;
} lexer;

static const struct {
    const char text[3];
    qn_jtok_type type;
} operators[] = {
    {"//", QN_JT_FLOORDIV}, {"**", QN_JT_POW}, {"==", QN_JT_EQ}, {"!=", QN_JT_NE}, {">=", QN_JT_GE},
    {"<=", QN_JT_LE}, {"+", QN_JT_ADD}, {"-", QN_JT_SUB}, {"/", QN_JT_DIV}, {"*", QN_JT_MUL},
    {"%", QN_JT_MOD}, {"~", QN_JT_TILDE}, {"[", QN_JT_LBRACKET}, {"]", QN_JT_RBRACKET},
    {"(", QN_JT_LPAREN}, {")", QN_JT_RPAREN}, {"{", QN_JT_LBRACE}, {"}", QN_JT_RBRACE},
    {">", QN_JT_GT}, {"<", QN_JT_LT}, {"=", QN_JT_ASSIGN}, {".", QN_JT_DOT}, {":", QN_JT_COLON},
    {"|", QN_JT_PIPE}, {",", QN_JT_COMMA}, {";", QN_JT_SEMICOLON},
};

const char *qn_jtok_name(qn_jtok_type type)
{
    switch (type) {
    case QN_JT_EOF: return "end of template";
    case QN_JT_DATA: return "template text";
    case QN_JT_BLOCK_BEGIN: return "begin of statement block";
    case QN_JT_BLOCK_END: return "end of statement block";
    case QN_JT_VAR_BEGIN: return "begin of print statement";
    case QN_JT_VAR_END: return "end of print statement";
    case QN_JT_NAME: return "name";
    case QN_JT_STRING: return "string";
    case QN_JT_INTEGER: return "integer";
    case QN_JT_FLOAT: return "float";
    default: break;
    }
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (operators[i].type == type) return operators[i].text;
    return "token";
}

static qn_jtok *push(lexer *x, qn_jtok_type type)
{
    if (x->count == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        qn_jtok *tok = cap <= MAX_TOKENS ? realloc(x->tok, cap * sizeof *tok) : NULL;
        if (!tok) {
            x->rc = qn_err_set(x->err, QN_NOMEM, "template: no memory for more than %zu tokens",
                               x->count);
            return NULL;
        }
        x->tok = tok;
        x->cap = cap;
    }
    qn_jtok *k = &x->tok[x->count++];
    *k = (qn_jtok){.type = type, .line = x->line};
    return k;
}

/* Move to `to`, counting lines. */
static void advance(lexer *x, size_t to)
{
    for (size_t i = x->at; i < to; i++) x->line += x->p[i] == '\n';
    if (to > x->at) x->line_starting = x->p[to - 1] == '\n';
    x->at = to;
}

static bool starts(const lexer *x, size_t at, const char *text)
{
    size_t n = strlen(text);
    return x->n - at >= n && memcmp(x->p + at, text, n) == 0;
}

static size_t skip_space(const lexer *x, size_t at)
{
    while (at < x->n) {
        unsigned cp;
        size_t k = qn_utf8_decode(x->p + at, x->n - at, &cp);
        if (!qn_jcp_space(cp)) break;
        at += k;
    }
    return at;
}

static bool is_sign(char c) { return c == '-' || c == '+'; }

/* The end of a tag written `close` at `at`: returns the position behind it with its white space
 * control, 0 if there is none. `plus`: "+" may stand before it; `trim`: a newline goes with it. */
static size_t match_end(const lexer *x, size_t at, const char *close, bool plus, bool trim)
{
    if (at < x->n && x->p[at] == '-' && starts(x, at + 1, close)) return skip_space(x, at + 3);
    if (plus && at < x->n && x->p[at] == '+' && starts(x, at + 1, close)) return at + 3;
    if (!starts(x, at, close)) return 0;
    at += 2;
    return trim && at < x->n && x->p[at] == '\n' ? at + 1 : at;
}

/* Data up to a tag: strip as the tag's sign says and emit. */
static void emit_data(lexer *x, size_t to, char sign, bool block)
{
    const char *p = x->p + x->at;
    size_t n = to - x->at, keep = n;
    if (sign == '-') {
        keep = n - qn_jstrip_right(p, n, NULL, 0);
    } else if (sign != '+' && block) {
        size_t start = n;
        while (start > 0 && p[start - 1] != '\n') start--;
        bool at_line_start = start > 0 || x->line_starting;
        if (at_line_start && qn_jstrip_left(p + start, n - start, NULL, 0) == n - start)
            keep = start;
    }
    if (keep > 0) {
        qn_jtok *k = push(x, QN_JT_DATA);
        if (!k) return;
        k->p = p;
        k->n = keep;
    }
    advance(x, to);
}

/* "{% raw %}" at `at`: returns the position behind it, 0 if it is none. */
static size_t match_raw(const lexer *x, size_t at)
{
    if (!starts(x, at, "{%")) return 0;
    size_t i = at + 2;
    if (i < x->n && is_sign(x->p[i])) i++;
    i = skip_space(x, i);
    if (!starts(x, i, "raw")) return 0;
    return match_end(x, skip_space(x, i + 3), "%}", false, false);
}

static void fail(lexer *x, const char *what)
{
    x->rc = qn_jtree_error(x->t, x->line, x->err, "%s", what);
}

static void lex_raw(lexer *x)
{
    for (size_t i = x->at; i + 1 < x->n; i++) {
        if (!starts(x, i, "{%")) continue;
        size_t k = i + 2;
        char sign = 0;
        if (k < x->n && is_sign(x->p[k])) sign = x->p[k++];
        k = skip_space(x, k);
        if (!starts(x, k, "endraw")) continue;
        size_t end = match_end(x, skip_space(x, k + 6), "%}", true, true);
        if (!end) continue;
        emit_data(x, i, sign, true);
        advance(x, end);
        return;
    }
    if (x->at < x->n) fail(x, "missing end of raw block"); /* nothing left: jinja2 lets it pass */
}

static void lex_comment(lexer *x)
{
    for (size_t i = x->at; i < x->n; i++) {
        size_t end = match_end(x, i, "#}", true, true);
        if (!end) continue;
        advance(x, end);
        return;
    }
    if (x->at < x->n) fail(x, "missing end of comment");
}

static int hex_value(const char *p, size_t digits, unsigned *out)
{
    unsigned v = 0;
    for (size_t i = 0; i < digits; i++) {
        if (!isxdigit((unsigned char)p[i])) return -1;
        v = v * 16 + (unsigned)(isdigit((unsigned char)p[i])
                                    ? p[i] - '0'
                                    : tolower((unsigned char)p[i]) - 'a' + 10);
    }
    *out = v;
    return 0;
}

/* One escape at p[0] == '\\', n bytes left. Returns the bytes consumed, 0 for an error. */
static size_t unescape(qn_buf *b, const char *p, size_t n)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    if (n < 2) return 0;
    const char *hit = p[1] ? strchr(from, p[1]) : NULL;
    if (hit) {
        qn_buf_putc(b, to[hit - from]);
        return 2;
    }
    if (p[1] == '\n') return 2;
    if (p[1] >= '0' && p[1] <= '7') {
        unsigned v = 0;
        size_t i = 1;
        for (; i < n && i < 4 && p[i] >= '0' && p[i] <= '7'; i++)
            v = v * 8 + (unsigned)(p[i] - '0');
        qn_buf_put_utf8(b, v);
        return i;
    }
    if (p[1] == 'x' || p[1] == 'u' || p[1] == 'U') {
        size_t digits = p[1] == 'x' ? 2 : p[1] == 'u' ? 4 : 8;
        unsigned v;
        if (n < 2 + digits || hex_value(p + 2, digits, &v) || v > 0x10FFFF) return 0;
        qn_buf_put_utf8(b, v);
        return 2 + digits;
    }
    if (p[1] == 'N') return 0;
    if ((unsigned char)p[1] >=
        0x80) { /* Python sees an escaped backslash before the code's digits */
        unsigned cp;
        size_t k = qn_utf8_decode(p + 1, n - 1, &cp);
        qn_buf_printf(b, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        return 1 + k;
    }
    qn_buf_put(b, p, 2);
    return 2;
}

static void lex_string(lexer *x)
{
    char quote = x->p[x->at];
    size_t i = x->at + 1;
    bool escapes = false;
    while (i < x->n && x->p[i] != quote) {
        if (x->p[i] == '\\') {
            escapes = true;
            i++;
        }
        i++;
    }
    if (i >= x->n) {
        fail(x, "a string is not closed");
        return;
    }
    qn_jtok *k = push(x, QN_JT_STRING);
    if (!k) return;
    k->p = x->p + x->at + 1;
    k->n = i - x->at - 1;
    if (escapes) {
        qn_buf b = {0};
        for (size_t at = 0; at < k->n;) {
            size_t used = 1;
            if (k->p[at] == '\\') {
                used = unescape(&b, k->p + at, k->n - at);
                if (!used) break;
            } else {
                qn_buf_putc(&b, k->p[at]);
            }
            at += used;
            if (at >= k->n) escapes = false;
        }
        if (escapes)
            fail(x, "a string has a bad or unsupported escape (\\xHH, \\uHHHH, \\UHHHHHHHH)");
        k->n = b.len;
        k->p = b.failed ? NULL : qn_arena_dup(&x->t->arena, b.data ? b.data : "", b.len);
        qn_buf_release(&b);
        if (!k->p) x->rc = qn_jtree_nomem(x->t, x->err);
    }
    advance(x, i + 1);
}

/* Digits with single underscores between them; returns the end, `at` if there is no digit. */
static size_t digits(const lexer *x, size_t at, int base)
{
    size_t end = at;
    while (at < x->n) {
        size_t i = at > end ? at : end;
        if (i < x->n && x->p[i] == '_' && end > 0) i++;
        if (i >= x->n) break;
        char c = x->p[i];
        bool ok = base == 16 ? isxdigit((unsigned char)c) != 0 : c >= '0' && c < '0' + base;
        if (!ok) break;
        end = at = i + 1;
    }
    return end;
}

static size_t plain_digits(const lexer *x, size_t at)
{
    size_t i = at;
    if (i >= x->n || !isdigit((unsigned char)x->p[i])) return at;
    for (;;) {
        while (i < x->n && isdigit((unsigned char)x->p[i])) i++;
        if (i + 1 < x->n && x->p[i] == '_' && isdigit((unsigned char)x->p[i + 1])) i++;
        else return i;
    }
}

static size_t match_float(const lexer *x)
{
    if (x->at > 0 && x->p[x->at - 1] == '.') return 0;
    size_t i = plain_digits(x, x->at);
    if (i == x->at) return 0;
    size_t end = 0;
    if (i < x->n && x->p[i] == '.') {
        size_t frac = plain_digits(x, i + 1);
        if (frac > i + 1) end = i = frac;
    }
    if (i < x->n && (x->p[i] == 'e' || x->p[i] == 'E')) {
        size_t e = i + 1;
        if (e < x->n && is_sign(x->p[e])) e++;
        size_t stop = plain_digits(x, e);
        if (stop > e) end = stop;
    }
    return end;
}

static size_t match_integer(const lexer *x)
{
    const char *p = x->p + x->at;
    if (x->n - x->at > 2 && p[0] == '0') {
        char c = (char)tolower((unsigned char)p[1]);
        int base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        size_t end = base ? digits(x, x->at + 2, base) : 0;
        if (base && end > x->at + 2) return end;
    }
    if (*p != '0') return plain_digits(x, x->at);
    size_t i = x->at + 1;
    for (;;) {
        if (i < x->n && x->p[i] == '0') i++;
        else if (i + 1 < x->n && x->p[i] == '_' && x->p[i + 1] == '0') i += 2;
        else return i;
    }
}

static void lex_number(lexer *x, size_t end, bool real)
{
    qn_jtok *k = push(x, real ? QN_JT_FLOAT : QN_JT_INTEGER);
    if (!k) return;
    char *text = qn_arena_take(&x->t->arena, end - x->at + 1, 1);
    if (!text) {
        x->rc = qn_jtree_nomem(x->t, x->err);
        return;
    }
    size_t n = 0;
    for (size_t i = x->at; i < end; i++)
        if (x->p[i] != '_') text[n++] = x->p[i];
    bool overflow = false;
    if (real) k->f = strtod(text, NULL);
    else if (!qn_jparse_int(text, n, 0, &k->i, &overflow) || overflow)
        fail(x, "an integer does not fit 64 bits");
    advance(x, end);
}

static void lex_name(lexer *x)
{
    size_t i = x->at;
    unsigned cp = 0;
    while (i < x->n) {
        size_t k = qn_utf8_decode(x->p + i, x->n - i, &cp);
        if (!qn_jcp_name(cp)) break;
        i += k;
    }
    qn_jtok *k = push(x, QN_JT_NAME);
    if (!k) return;
    k->p = x->p + x->at;
    k->n = i - x->at;
    advance(x, i);
}

static void lex_operator(lexer *x)
{
    size_t which = 0, total = sizeof operators / sizeof *operators;
    while (which < total && !starts(x, x->at, operators[which].text)) which++;
    if (which == total) {
        unsigned cp;
        qn_utf8_decode(x->p + x->at, x->n - x->at, &cp);
        x->rc = qn_jtree_error(x->t, x->line, x->err, "unexpected character U+%04X", cp);
        return;
    }
    qn_jtok_type type = operators[which].type;
    if (type == QN_JT_LBRACE || type == QN_JT_LPAREN || type == QN_JT_LBRACKET) {
        if (x->depth == x->balance_cap) {
            char *b = realloc(x->balance, x->balance_cap + 64);
            if (!b) {
                x->rc = qn_jtree_nomem(x->t, x->err);
                return;
            }
            x->balance = b;
            x->balance_cap += 64;
        }
        x->balance[x->depth++] = type == QN_JT_LBRACE ? '}' : type == QN_JT_LPAREN ? ')' : ']';
    } else if (type == QN_JT_RBRACE || type == QN_JT_RPAREN || type == QN_JT_RBRACKET) {
        if (x->depth == 0 || x->balance[--x->depth] != operators[which].text[0]) {
            x->rc = qn_jtree_error(x->t, x->line, x->err, "unexpected '%s'", operators[which].text);
            return;
        }
    }
    if (push(x, type)) advance(x, x->at + strlen(operators[which].text));
}

/* The inside of "{{ }}" or "{% %}". */
static void lex_tag(lexer *x, bool block)
{
    if (!push(x, block ? QN_JT_BLOCK_BEGIN : QN_JT_VAR_BEGIN)) return;
    while (!x->rc && x->at < x->n) {
        size_t end = x->depth ? 0 : match_end(x, x->at, block ? "%}" : "}}", block, block);
        if (end) {
            if (push(x, block ? QN_JT_BLOCK_END : QN_JT_VAR_END)) advance(x, end);
            return;
        }
        size_t space = skip_space(x, x->at);
        unsigned cp;
        if (space > x->at) {
            advance(x, space);
        } else if ((end = match_float(x))) {
            lex_number(x, end, true);
        } else if (isdigit((unsigned char)x->p[x->at])) {
            lex_number(x, match_integer(x), false);
        } else if (qn_utf8_decode(x->p + x->at, x->n - x->at, &cp) && qn_jcp_name_start(cp)) {
            lex_name(x);
        } else if (x->p[x->at] == '"' || x->p[x->at] == '\'') {
            lex_string(x);
        } else {
            lex_operator(x);
        }
    }
}

/* Template text up to the next tag, and the tag. */
static void lex_root(lexer *x)
{
    size_t i = x->at;
    while (i + 1 < x->n && !(x->p[i] == '{' && strchr("%{#", x->p[i + 1]) && x->p[i + 1])) {
        const char *hit = memchr(x->p + i + 1, '{', x->n - i - 1);
        i = hit ? (size_t)(hit - x->p) : x->n;
    }
    if (i + 1 >= x->n) {
        emit_data(x, x->n, '+', false);
        return;
    }
    char kind = x->p[i + 1];
    char sign = i + 2 < x->n && is_sign(x->p[i + 2]) ? x->p[i + 2] : 0;
    size_t raw = match_raw(x, i);
    emit_data(x, i, sign, kind != '{');
    if (x->rc) return;
    advance(x, raw ? raw : i + 2 + (sign != 0));
    if (raw) lex_raw(x);
    else if (kind == '#') lex_comment(x);
    else lex_tag(x, kind == '%');
}

qn_code qn_jlex(qn_jtree *t, qn_jtok **out, size_t *count, qn_err *err)
{
    lexer x = {.t = t, .err = err, .p = t->source, .n = t->size, .line = 1, .line_starting = true};
    while (!x.rc && x.at < x.n) lex_root(&x);
    if (!x.rc) push(&x, QN_JT_EOF);
    free(x.balance);
    if (x.rc) {
        free(x.tok);
        return x.rc;
    }
    *out = x.tok;
    *count = x.count;
    return QN_OK;
}
