/* pretok_regex.c - patterns of tokenizer.json, written for Oniguruma, compiled by PCRE2.
 *
 * The two disagree in places, so a pattern is translated first:
 *   \p{X}, \s, \d, \w   the oracle's Unicode version: ranges assigned later are added
 *   \h                  a hexadecimal digit, not a blank
 *   {m,n}+              a repeated repetition, not a possessive one
 *   [a[bc]], [a&&b]     union and intersection of classes
 *   ^ $                 at every line
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tok_impl.h"
#include "text/unicode.h"

enum {
    MAX_PATTERN = 1 << 16, /* bytes */
    MAX_GROUPS = 100,      /* nesting of groups and classes */
    JIT_STACK_MAX = 32 << 20,
    MATCH_LIMIT = 50000000
};

typedef struct translator {
    const char *s;
    size_t n, i;
    qn_buf out;
    size_t atom;                /* where the last atom starts in out */
    size_t groups[MAX_GROUPS];  /* where open groups start in out */
    int n_groups;
    qn_err *err;
} translator;

static qn_code bad(translator *tr, const char *what)
{
    return qn_err_set(tr->err, QN_UNSUPPORTED,
                      "tokenizer.json: not supported yet: %s at byte %zu of the pattern \"%.200s\"",
                      what, tr->i, tr->s);
}

/* Ranges of characters in `mask` among those whose category changed after the library's table. */
static void put_late_ranges(qn_buf *out, unsigned mask)
{
    size_t n;
    const uint32_t *ranges = qn_ucat_changed(&n);
    for (size_t i = 0; i < n; i++) {
        for (unsigned c = ranges[2 * i]; c <= ranges[2 * i + 1]; c++) {
            unsigned first = c;
            while (c <= ranges[2 * i + 1] && qn_ucat_in(c, mask)) c++;
            if (c > first) qn_buf_printf(out, "\\x{%x}-\\x{%x}", first, c - 1);
        }
    }
}

static const char space_items[] = "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{"
                                  "2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

/* The inside of a bracket class for one escape; *negate if the escape is the complement. */
static qn_code put_items(translator *tr, char esc, qn_buf *items, bool *negate)
{
    *negate = esc == 'S' || esc == 'D' || esc == 'W' || esc == 'H' || esc == 'P';
    switch (esc) {
    case 's':
    case 'S': qn_buf_puts(items, space_items); return QN_OK;
    case 'd':
    case 'D':
        qn_buf_puts(items, "\\p{Nd}");
        put_late_ranges(items, QN_UBIT(QN_ND));
        return QN_OK;
    case 'w':
    case 'W':
        qn_buf_puts(items,
                    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe\\x{24b6}-\\x{24e9}"
                    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}");
        put_late_ranges(items,
                        QN_U_LETTER | QN_U_MARK | QN_UBIT(QN_ND) | QN_UBIT(QN_NL) | QN_UBIT(QN_PC));
        return QN_OK;
    case 'h':
    case 'H': qn_buf_puts(items, "0-9a-fA-F"); return QN_OK;
    default: break;
    }
    const char *open = tr->s + tr->i; /* \p{Name} or \p{^Name} */
    const char *close = tr->i < tr->n && *open == '{' ? memchr(open, '}', tr->n - tr->i) : NULL;
    if (!close || close - open > 40) return bad(tr, "a property without {name}");
    open++;
    if (*open == '^') {
        *negate = !*negate;
        open++;
    }
    size_t n = (size_t)(close - open);
    tr->i = (size_t)(close - tr->s) + 1;
    unsigned mask = qn_ucat_parse(open, n);
    if (mask) {
        qn_buf_printf(items, "\\p{%.*s}", (int)n, open);
        put_late_ranges(items, mask);
        return QN_OK;
    }
    qn_buf_printf(items, "\\p{sc:%.*s}", (int)n, open);
    if (n == 3 && !memcmp(open, "Han", 3)) {
        qn_buf_puts(items, "\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}");
    }
    return QN_OK;
}

static bool is_set_escape(char c)
{
    return strchr("sSdDwWhHpP", c) && c;
}

/* \uHHHH is \x{HHHH}; other escapes mean the same in both. */
static void put_escape(translator *tr, qn_buf *out)
{
    char c = tr->s[tr->i++];
    if (c == 'u' && tr->n - tr->i >= 4) {
        qn_buf_printf(out, "\\x{%.4s}", tr->s + tr->i);
        tr->i += 4;
    } else if (c == 'x' && tr->i < tr->n && tr->s[tr->i] == '{') {
        qn_buf_puts(out, "\\x");
    } else {
        qn_buf_putc(out, '\\');
        qn_buf_putc(out, c);
    }
}

/* One element of a bracket class that is not itself a class. A complement such as \S inside a class
 * keeps PCRE2's meaning. */
static qn_code class_item(translator *tr, qn_buf *items)
{
    char c = tr->s[tr->i];
    if (c == '\\' && tr->i + 1 < tr->n) {
        tr->i++;
        if (!is_set_escape(tr->s[tr->i])) {
            put_escape(tr, items);
            return QN_OK;
        }
        char esc = tr->s[tr->i++];
        size_t name = tr->i, before = items->len;
        bool negate;
        qn_code rc = put_items(tr, esc, items, &negate);
        if (rc || !negate) return rc;
        items->len = before;
        if (esc == 'H') return bad(tr, "\\H inside a class");
        qn_buf_putc(items, '\\');
        qn_buf_putc(items, esc);
        qn_buf_put(items, tr->s + name, tr->i - name);
        return QN_OK;
    }
    if (c == '[' && tr->i + 1 < tr->n && tr->s[tr->i + 1] == ':') {
        const char *end = memmem(tr->s + tr->i, tr->n - tr->i, ":]", 2);
        if (!end) return bad(tr, "an open [:name:]");
        size_t len = (size_t)(end - tr->s) + 2 - tr->i;
        qn_buf_put(items, tr->s + tr->i, len);
        tr->i += len;
        return QN_OK;
    }
    qn_buf_putc(items, c);
    tr->i++;
    return QN_OK;
}

static qn_code read_class(translator *tr, int depth, qn_buf *items, bool *negated, qn_buf *both);

/* A class inside a class. A plain one adds its elements; a complement must be one whole side of an
 * intersection and becomes a lookahead. */
static qn_code nested_class(translator *tr, int depth, qn_buf *items, bool side_empty, qn_buf *both)
{
    qn_buf inner = {0}, inner_both = {0};
    bool negated;
    qn_code rc = read_class(tr, depth + 1, &inner, &negated, &inner_both);
    bool side_ends = tr->i < tr->n && (tr->s[tr->i] == ']' || tr->s[tr->i] == '&');
    if (!rc && (inner_both.len || (negated && !(side_empty && side_ends)))) {
        rc = bad(tr, "a complement or intersection nested in a class");
    } else if (!rc && negated) {
        qn_buf_puts(both, "(?=[^");
        qn_buf_put(both, inner.data, inner.len);
        qn_buf_puts(both, "])");
    } else if (!rc) {
        qn_buf_put(items, inner.data, inner.len);
    }
    if (inner.failed || inner_both.failed) items->failed = true;
    qn_buf_release(&inner);
    qn_buf_release(&inner_both);
    return rc;
}

/* Read "[...]" at tr->i. Its elements go to items; for each "&&" what stood before it goes to
 * `both` as a lookahead. */
static qn_code read_class(translator *tr, int depth, qn_buf *items, bool *negated, qn_buf *both)
{
    if (depth > MAX_GROUPS) return bad(tr, "a class nested too deeply");
    tr->i++;
    *negated = tr->i < tr->n && tr->s[tr->i] == '^';
    if (*negated) tr->i++;
    size_t start = items->len;
    bool first = true;
    while (tr->i < tr->n && (tr->s[tr->i] != ']' || first)) {
        if (tr->s[tr->i] == '&' && tr->i + 1 < tr->n && tr->s[tr->i + 1] == '&') {
            tr->i += 2;
            if (items->len > start) {
                qn_buf_puts(both, "(?=[");
                qn_buf_put(both, items->data + start, items->len - start);
                qn_buf_puts(both, "])");
            }
            items->len = start;
            continue;
        }
        if (tr->s[tr->i] == '[' && !(tr->i + 1 < tr->n && tr->s[tr->i + 1] == ':')) {
            qn_code rc = nested_class(tr, depth, items, items->len == start, both);
            if (rc) return rc;
            first = false;
            continue;
        }
        if (first && tr->s[tr->i] == ']') {
            qn_buf_puts(items, "\\]");
            tr->i++;
        } else {
            qn_code rc = class_item(tr, items);
            if (rc) return rc;
        }
        first = false;
    }
    if (tr->i >= tr->n) return bad(tr, "an open class");
    tr->i++;
    return QN_OK;
}

static qn_code put_class(translator *tr)
{
    qn_buf items = {0}, both = {0};
    bool negated;
    qn_code rc = read_class(tr, 0, &items, &negated, &both);
    if (!rc && both.len) {
        qn_buf_puts(&tr->out, negated ? "(?:(?!" : "(?:");
        qn_buf_puts(&tr->out, both.data);
        if (items.len) qn_buf_printf(&tr->out, "[%.*s]", (int)items.len, items.data);
        if (!items.len && !negated) qn_buf_puts(&tr->out, "(?s:.)");
        qn_buf_puts(&tr->out, negated ? ")(?s:.))" : ")");
    } else if (!rc) {
        qn_buf_printf(&tr->out, "[%s%.*s]", negated ? "^" : "", (int)items.len,
                      items.len ? items.data : "");
    }
    if (items.failed || both.failed) tr->out.failed = true;
    qn_buf_release(&items);
    qn_buf_release(&both);
    return rc;
}

/* An escape outside a class. */
static qn_code put_atom_escape(translator *tr)
{
    tr->i++;
    if (tr->i >= tr->n) return bad(tr, "a backslash");
    if (!is_set_escape(tr->s[tr->i])) {
        put_escape(tr, &tr->out);
        return QN_OK;
    }
    qn_buf items = {0};
    bool negate;
    qn_code rc = put_items(tr, tr->s[tr->i++], &items, &negate);
    if (!rc) qn_buf_printf(&tr->out, "[%s%s]", negate ? "^" : "", items.data);
    if (items.failed) tr->out.failed = true;
    qn_buf_release(&items);
    return rc;
}

/* "{m,n}" copied; a "+" behind it repeats the whole, which PCRE2 would read as possessive. */
static bool put_bounds(translator *tr)
{
    size_t j = tr->i + 1;
    while (j < tr->n && strchr("0123456789,", tr->s[j])) j++;
    if (j >= tr->n || tr->s[j] != '}' || j == tr->i + 1) return false;
    qn_buf_put(&tr->out, tr->s + tr->i, j + 1 - tr->i);
    tr->i = j + 1;
    if (tr->i < tr->n && tr->s[tr->i] == '+') {
        char *body = strdup(tr->out.data + tr->atom);
        if (!body) tr->out.failed = true;
        tr->out.len = tr->atom;
        qn_buf_printf(&tr->out, "(?:%s)+", body ? body : "");
        free(body);
        tr->i++;
    }
    return true;
}

/* A group opener with its "?..." part, so that its letters are not taken for atoms. Oniguruma's m
 * is PCRE2's s. */
static qn_code put_group(translator *tr)
{
    if (tr->n_groups == MAX_GROUPS) return bad(tr, "a group nested too deeply");
    tr->groups[tr->n_groups++] = tr->out.len;
    qn_buf_putc(&tr->out, '(');
    tr->i++;
    if (tr->i >= tr->n || tr->s[tr->i] != '?') return QN_OK;
    while (tr->i < tr->n && strchr("?imx-<!=:>", tr->s[tr->i])) {
        char c = tr->s[tr->i++];
        qn_buf_putc(&tr->out, c == 'm' ? 's' : c);
        if (c == ':' || c == '=' || c == '!' || c == '>') break;
    }
    return QN_OK;
}

static qn_code translate(translator *tr)
{
    qn_code rc = QN_OK;
    while (tr->i < tr->n && !rc) {
        char c = tr->s[tr->i];
        size_t before = tr->out.len;
        if (c == '{' && put_bounds(tr)) continue;
        if (c == '(') {
            rc = put_group(tr);
            continue;
        }
        if (c == ')') {
            qn_buf_putc(&tr->out, c);
            tr->i++;
            if (tr->n_groups) tr->atom = tr->groups[--tr->n_groups];
            continue;
        }
        if (strchr("*+?|", c)) {
            qn_buf_putc(&tr->out, c);
            tr->i++;
            continue;
        }
        tr->atom = before;
        if (c == '[') {
            rc = put_class(tr);
        } else if (c == '\\') {
            rc = put_atom_escape(tr);
        } else {
            do {
                qn_buf_putc(&tr->out, tr->s[tr->i++]);
            } while (tr->i < tr->n && ((unsigned char)tr->s[tr->i] & 0xC0) == 0x80);
        }
    }
    return rc;
}

static qn_code compile(tok_regex *re, const char *pattern, size_t n, tok_str original, qn_err *err)
{
    int code;
    PCRE2_SIZE at;
    re->code = pcre2_compile((PCRE2_SPTR)pattern, n,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &code, &at, NULL);
    if (!re->code) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof text);
        return qn_err_set(err, QN_FORMAT,
                          "tokenizer.json: the pattern \"%.200s\" does not compile: %s", original.s,
                          (const char *)text);
    }
    /* Without JIT the interpreter gives the same matches, only slower. */
    pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE);
    re->ctx = pcre2_match_context_create(NULL);
    if (!re->ctx) return qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory for a pattern");
    pcre2_set_match_limit(re->ctx, MATCH_LIMIT);
    return QN_OK;
}

qn_code tok_regex_compile(tok_regex *re, tok_str pattern, qn_err *err)
{
    if (pattern.n > MAX_PATTERN) {
        return qn_err_set(err, QN_LIMIT,
                          "tokenizer.json: a pattern has %zu bytes, more than the limit of %d",
                          pattern.n, MAX_PATTERN);
    }
    translator tr = {.s = pattern.s, .n = pattern.n, .err = err};
    qn_buf_puts(&tr.out, "");
    qn_code rc = translate(&tr);
    if (!rc && tr.out.failed) {
        rc = qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory for a pattern");
    }
    if (!rc) rc = compile(re, tr.out.data, tr.out.len, pattern, err);
    qn_buf_release(&tr.out);
    return rc;
}

void tok_regex_release(tok_regex *re)
{
    pcre2_code_free(re->code);
    pcre2_match_context_free(re->ctx);
    *re = (tok_regex){0};
}

/* A match that needs more stack than JIT has by default runs once more with a large one. */
static int match_with_stack(const tok_regex *re, tok_scratch *sc, const char *s, size_t n,
                            size_t from)
{
    pcre2_match_context *ctx = pcre2_match_context_copy(re->ctx);
    pcre2_jit_stack *stack = pcre2_jit_stack_create(1 << 16, JIT_STACK_MAX, NULL);
    int rc = PCRE2_ERROR_NOMEMORY;
    if (ctx && stack) {
        pcre2_jit_stack_assign(ctx, NULL, stack);
        rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, sc->match, ctx);
    }
    pcre2_match_context_free(ctx);
    pcre2_jit_stack_free(stack);
    return rc;
}

int tok_regex_next(const tok_regex *re, tok_scratch *sc, const char *s, size_t n, size_t from,
                   size_t *start, size_t *end, qn_err *err)
{
    int rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, sc->match, re->ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match_with_stack(re, sc, s, n, from);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        qn_err_set(err, QN_LIMIT,
                   "tokenizer: a pattern of tokenizer.json gave up on the text (PCRE2 error %d)",
                   rc);
        return -1;
    }
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(sc->match);
    *start = v[0];
    *end = v[1];
    return *end >= *start ? 1 : 0;
}
