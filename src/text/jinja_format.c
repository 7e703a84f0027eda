/* jinja_format.c - Python's two ways to format: "%5.2f" % x and "{:>5}".format(x), and reading
 * numbers from text. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/jinja_filters.h"
#include "text/jinja_text.h"

enum { MAX_FORMAT_WIDTH = 100000, MAX_PRECISION = 500 };

/* ---- reading numbers ---- */

bool qn_jparse_int(const char *p, size_t n, int base, int64_t *out, bool *overflow)
{
    size_t skip = qn_jstrip_left(p, n, NULL, 0);
    p += skip;
    n -= skip;
    n -= qn_jstrip_right(p, n, NULL, 0);
    bool minus = n > 0 && *p == '-';
    if (n > 0 && (*p == '-' || *p == '+')) p++, n--;
    int prefix = n > 2 && *p == '0' ? tolower((unsigned char)p[1]) : 0;
    int implied = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
    bool underscore_ok = false;
    if (implied && (base == 0 || base == implied)) {
        base = implied;
        p += 2;
        n -= 2;
        underscore_ok = true;
    } else if (base == 0) {
        base = 10;
        for (size_t i = 0; n > 1 && *p == '0' && i < n; i++)
            if (p[i] != '0' && p[i] != '_') return false;
    }
    uint64_t v = 0;
    bool digit = false;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '_' && (digit || underscore_ok)) {
            digit = underscore_ok = false;
            if (i + 1 == n) return false;
            continue;
        }
        unsigned char c = (unsigned char)tolower((unsigned char)p[i]);
        int d = isdigit(c) ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
        if (d >= base) return false;
        digit = true;
        if (__builtin_mul_overflow(v, (uint64_t)base, &v) ||
            __builtin_add_overflow(v, (uint64_t)d, &v))
            *overflow = true;
    }
    if (!digit) return false;
    if (v > (uint64_t)INT64_MAX + minus) *overflow = true;
    *out = minus ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

bool qn_jparse_float(const char *p, size_t n, double *out)
{
    size_t skip = qn_jstrip_left(p, n, NULL, 0);
    p += skip;
    n -= skip;
    n -= qn_jstrip_right(p, n, NULL, 0);
    char small[64], *text = n < sizeof small ? small : malloc(n + 1);
    if (!text) return false;
    size_t m = 0;
    bool ok = n > 0, alpha = false;
    for (size_t i = 0; i < n && ok; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c == '_') { /* only between digits */
            ok = i > 0 && i + 1 < n && isdigit((unsigned char)p[i - 1]) &&
                 isdigit((unsigned char)p[i + 1]);
            continue;
        }
        alpha = alpha || (isalpha(c) && tolower(c) != 'e');
        ok = isalnum(c) || c == '+' || c == '-' || c == '.';
        text[m++] = (char)c;
    }
    text[m] = 0;
    const char *word = text + (m && (*text == '-' || *text == '+'));
    if (alpha)
        ok = ok && (!strcasecmp(word, "nan") || !strcasecmp(word, "inf") ||
                    !strcasecmp(word, "infinity"));
    char *end = text;
    if (ok) *out = strtod(text, &end);
    ok = ok && end == text + m && end > text;
    if (text != small) free(text);
    return ok;
}

/* ---- one formatted value ---- */

typedef struct spec {
    unsigned fill; /* code point */
    char align;    /* < > = ^ or 0 */
    char sign;     /* + - space or 0 */
    bool alt, zero;
    int64_t width;
    char group; /* , _ or 0 */
    int precision; /* -1: not given */
    char type;
} spec;

static void put_fill(qn_buf *b, unsigned fill, int64_t n)
{
    for (; n > 0; n--) qn_buf_put_utf8(b, fill);
}

/* Text with its sign and prefix kept apart, padded to the width. */
static qn_jval finish(qn_jrun *run, const spec *f, const char *lead, const char *body, size_t n,
                      char dflt_align)
{
    qn_jstr s = {.p = body, .n = n};
    int64_t len = (int64_t)(strlen(lead) + qn_jstr_len(&s)),
            pad = f->width > len ? f->width - len : 0;
    char align = f->align ? f->align : dflt_align;
    int64_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    qn_buf b = {0};
    put_fill(&b, f->fill, left);
    qn_buf_puts(&b, lead);
    if (align == '=') put_fill(&b, f->fill, pad);
    qn_buf_put(&b, body, n);
    if (align == '<' || align == '^') put_fill(&b, f->fill, pad - left);
    return qn_jstr_take(run, &b);
}

/* Insert the group character into the whole part of a number. */
static void put_grouped(qn_buf *b, const char *digits, char group, int every)
{
    size_t whole = strspn(digits, every == 3 ? "0123456789" : "0123456789abcdefABCDEF");
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % (size_t)every == 0 && group) qn_buf_putc(b, group);
        qn_buf_putc(b, digits[i]);
    }
    qn_buf_puts(b, digits + whole);
}

static qn_jval finish_number(qn_jrun *run, const spec *f, bool minus, const char *prefix,
                             const char *digits, int every)
{
    char lead[8];
    const char *sign = minus ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
    snprintf(lead, sizeof lead, "%s%s", sign, prefix);
    qn_buf b = {0};
    bool grouped_zeros = f->zero && f->group && (!f->align || f->align == '=');
    if (grouped_zeros) {
        size_t whole = strspn(digits, "0123456789"), rest = strlen(digits + whole);
        int64_t room = f->width - (int64_t)(strlen(lead) + rest), have = (int64_t)whole;
        while (have + (have - 1) / every < room) {
            have++;
            qn_buf_putc(&b, '0');
        }
    }
    qn_buf_puts(&b, digits);
    qn_buf g = {0};
    put_grouped(&g, b.data ? b.data : "", f->group, every);
    qn_jval v = qn_jbuf_ok(run, &g) ? finish(run, f, lead, g.data ? g.data : "", g.len, '>')
                                    : qn_jundef(NULL);
    qn_buf_release(&b);
    qn_buf_release(&g);
    return v;
}

static qn_jval format_float(qn_jrun *run, const spec *f, double v)
{
    qn_buf b = {0};
    double mag = fabs(v);
    bool minus = signbit(v) && !isnan(v);
    int precision = f->precision < 0 ? 6 : f->precision;
    char type = f->type ? f->type : 'r';
    if (type == '%') {
        mag *= 100;
        type = 'f';
    }
    if (type == 'n') type = 'g';
    if (isnan(v) || isinf(v)) {
        qn_buf_puts(&b, isupper((unsigned char)type) ? (isnan(v) ? "NAN" : "INF")
                        : isnan(v)                   ? "nan"
                                                     : "inf");
    } else if (type == 'r' && f->precision < 0) {
        qn_jput_float(&b, mag);
    } else {
        char c_format[8] = {'%', f->alt ? '#' : '.', f->alt ? '.' : '*', f->alt ? '*' : type,
                            f->alt ? type : 0};
        if (type == 'r') {
            c_format[f->alt ? 4 : 3] = 'g';
            if (precision == 0) precision = 1;
        }
        char text[MAX_PRECISION + 340];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof text, c_format, precision, mag);
#pragma GCC diagnostic pop
        qn_buf_puts(&b, text);
        if (type == 'r' && !strpbrk(text, ".e")) qn_buf_puts(&b, ".0");
    }
    if (f->type == '%') qn_buf_putc(&b, '%');
    qn_jval out =
        b.failed ? qn_jfail(run, "out of memory") : finish_number(run, f, minus, "", b.data, 3);
    qn_buf_release(&b);
    return out;
}

static void put_base(char *out, uint64_t v, unsigned base, bool upper)
{
    char tmp[66];
    int n = 0;
    do {
        tmp[n++] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[v % base];
        v /= base;
    } while (v);
    while (n > 0) *out++ = tmp[--n];
    *out = 0;
}

static qn_jval format_int(qn_jrun *run, const spec *f, int64_t v)
{
    if (f->type && strchr("eEfFgG%", f->type)) return format_float(run, f, (double)v);
    if (f->precision >= 0) return qn_jfail(run, "precision is not allowed for integers");
    char digits[72];
    uint64_t mag = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    switch (f->type) {
    case 0:
    case 'd':
    case 'n': put_base(digits, mag, 10, false); return finish_number(run, f, v < 0, "", digits, 3);
    case 'b':
        put_base(digits, mag, 2, false);
        return finish_number(run, f, v < 0, f->alt ? "0b" : "", digits, 4);
    case 'o':
        put_base(digits, mag, 8, false);
        return finish_number(run, f, v < 0, f->alt ? "0o" : "", digits, 4);
    case 'x':
        put_base(digits, mag, 16, false);
        return finish_number(run, f, v < 0, f->alt ? "0x" : "", digits, 4);
    case 'X':
        put_base(digits, mag, 16, true);
        return finish_number(run, f, v < 0, f->alt ? "0X" : "", digits, 4);
    case 'c': {
        qn_buf b = {0};
        if (v < 0 || v > 0x10FFFF) return qn_jfail(run, "%%c needs a code point");
        qn_buf_put_utf8(&b, (unsigned)v);
        qn_jval out =
            b.failed ? qn_jfail(run, "out of memory") : finish(run, f, "", b.data, b.len, '<');
        qn_buf_release(&b);
        return out;
    }
    default: return qn_jfail(run, "unknown format code '%c' for an integer", f->type);
    }
}

static qn_jval format_text(qn_jrun *run, const spec *f, qn_jval v)
{
    if (f->type && f->type != 's')
        return qn_jfail(run, "unknown format code '%c' for a string", f->type);
    if (f->sign || f->alt || f->group || f->align == '=')
        return qn_jfail(run, "this format is not allowed for strings");
    if (f->precision >= 0) v = qn_jslice(run, v, qn_jnone(), qn_jint(f->precision), qn_jnone());
    return run->failed ? v : finish(run, f, "", v.s->p, v.s->n, '<');
}

static bool is_align(unsigned c) { return c == '<' || c == '>' || c == '=' || c == '^'; }

static size_t read_number(const char *p, size_t n, size_t at, int64_t *out)
{
    *out = 0;
    for (; at < n && isdigit((unsigned char)p[at]); at++)
        if (*out <= MAX_FORMAT_WIDTH) *out = *out * 10 + (p[at] - '0');
    return at;
}

static bool parse_spec(qn_jrun *run, const char *p, size_t n, spec *f)
{
    *f = (spec){.fill = ' ', .precision = -1};
    unsigned cp = 0;
    size_t at = 0, k = n ? qn_utf8_decode(p, n, &cp) : 0;
    if (k < n && is_align((unsigned char)p[k])) {
        f->fill = cp;
        f->align = p[k];
        at = k + 1;
    } else if (n && is_align(cp)) {
        f->align = p[0];
        at = 1;
    }
    bool filled = at > 1;
    if (at < n && (p[at] == '+' || p[at] == '-' || p[at] == ' ')) f->sign = p[at++];
    if (at < n && p[at] == '#') f->alt = true, at++;
    if (at < n && p[at] == '0') {
        f->zero = true;
        if (!filled) f->fill = '0';
        if (!f->align) f->align = '=';
        at++;
    }
    at = read_number(p, n, at, &f->width);
    if (at < n && (p[at] == ',' || p[at] == '_')) f->group = p[at++];
    if (at < n && p[at] == '.') {
        int64_t precision;
        size_t from = at + 1;
        at = read_number(p, n, from, &precision);
        f->precision = precision > MAX_FORMAT_WIDTH ? MAX_FORMAT_WIDTH : (int)precision;
        if (at == from) at = n + 1;
    }
    if (at < n) f->type = p[at++];
    if (at == n && f->width <= MAX_FORMAT_WIDTH) return true;
    qn_jfail(run, "invalid format specifier '%.*s'", n > 60 ? 60 : (int)n, p);
    return false;
}

qn_jval qn_jformat_spec(qn_jrun *run, qn_jval v, const char *p, size_t n)
{
    if (n == 0) return v.type == QN_J_UNDEF ? qn_jstr_borrow(run, "", 0) : qn_jto_str(run, v);
    spec f;
    if (!qn_jis_number(v) && v.type != QN_J_STR)
        return qn_jfail(run, "unsupported format string passed to %s", qn_jtype_name(v));
    if (!parse_spec(run, p, n, &f)) return qn_jundef(NULL);
    if (v.type == QN_J_STR) {
        if (f.zero && f.align == '=') f.align = '<'; /* "05" pads texts on the right */
        return format_text(run, &f, v);
    }
    if (f.precision > MAX_PRECISION)
        return qn_jfail(run, "a precision must be at most %d", MAX_PRECISION);
    if (qn_jis_int(v)) return format_int(run, &f, qn_jas_int(v));
    if (f.type && !strchr("eEfFgGn%", f.type))
        return qn_jfail(run, "unknown format code '%c' for a float", f.type);
    return format_float(run, &f, v.f);
}

/* repr(v) with everything beyond ASCII escaped if `ascii`. */
static qn_jval to_repr(qn_jrun *run, qn_jval v, bool ascii)
{
    qn_buf b = {0}, out = {0};
    qn_jput_repr(run, &b, v);
    if (!ascii || run->failed) return qn_jstr_take(run, &b);
    for (size_t i = 0; i < b.len;) {
        unsigned cp;
        i += qn_utf8_decode(b.data + i, b.len - i, &cp);
        if (cp < 0x80) qn_buf_putc(&out, (char)cp);
        else qn_buf_printf(&out, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    }
    qn_buf_release(&b);
    return qn_jstr_take(run, &out);
}

/* ---- "%" ---- */

typedef struct percent {
    qn_jrun *run;
    qn_jval value;
    size_t used; /* arguments taken */
    bool escape;
} percent;

static qn_jval next_arg(percent *w)
{
    bool tuple = w->value.type == QN_J_TUPLE;
    size_t n = tuple ? w->value.list->n : 1;
    if (w->used >= n) return qn_jfail(w->run, "not enough arguments for the format string");
    w->used++;
    return tuple ? w->value.list->v[w->used - 1] : w->value;
}

static qn_jval percent_number(percent *w, qn_jval v, spec *f)
{
    qn_jrun *run = w->run;
    if (v.type == QN_J_UNDEF) return qn_jfail_undef(run, v);
    if (!qn_jis_number(v))
        return qn_jfail(run, "%%%c needs a number, not %s", f->type, qn_jtype_name(v));
    if (f->precision > MAX_PRECISION)
        return qn_jfail(run, "a precision must be at most %d", MAX_PRECISION);
    if (strchr("eEfFgG", f->type)) return format_float(run, f, qn_jas_float(v));
    if (v.type == QN_J_FLOAT) {
        bool decimal = strchr("diu", f->type) != NULL;
        if (!decimal) return qn_jfail(run, "%%%c needs an integer, not float", f->type);
        if (!(v.f > -9e18 && v.f < 9e18)) return qn_jfail(run, "an integer does not fit 64 bits");
        v = qn_jint((int64_t)v.f);
    }
    if (strchr("iu", f->type)) f->type = 'd';
    int precision = f->precision;
    f->precision = -1;
    if (precision < 0) return format_int(run, f, qn_jas_int(v));
    spec plain = {.fill = '0',
                  .align = '=',
                  .precision = -1,
                  .type = f->type,
                  .sign = f->sign,
                  .alt = f->alt,
                  .width = precision + (qn_jas_int(v) < 0 || f->sign)};
    qn_jval digits = format_int(run, &plain, qn_jas_int(v));
    if (f->align == '=') f->align = '>', f->fill = ' ';
    return run->failed ? digits : finish(run, f, "", digits.s->p, digits.s->n, '>');
}

static qn_jval percent_value(percent *w, qn_jval v, spec *f)
{
    qn_jrun *run = w->run;
    if (f->type == 'c') {
        f->precision = -1;
        if (v.type == QN_J_STR && qn_jstr_len(v.s) == 1)
            return finish(run, f, "", v.s->p, v.s->n, '>');
        if (!qn_jis_int(v)) return qn_jfail(run, "%%c needs an integer or a character");
        if (!f->align) f->align = '>';
        return format_int(run, f, qn_jas_int(v));
    }
    if (!strchr("sra", f->type)) return percent_number(w, v, f);
    qn_jval s = f->type == 's' ? (w->escape ? qn_jescape(run, v) : qn_jsoft_str(run, v))
                               : to_repr(run, v, f->type == 'a');
    if (w->escape && f->type != 's') s = qn_jescape(run, s);
    if (run->failed) return s;
    if (f->precision >= 0) s = qn_jslice(run, s, qn_jnone(), qn_jint(f->precision), qn_jnone());
    if (f->align == '=') f->align = '>';
    f->fill = ' ';
    return run->failed ? s : finish(run, f, "", s.s->p, s.s->n, '>');
}

/* Width or precision: digits or "*". */
static size_t percent_size(percent *w, const char *p, size_t n, size_t at, int64_t *out)
{
    if (at >= n || p[at] != '*') return read_number(p, n, at, out);
    *out = qn_jarg_int(w->run, next_arg(w), 0);
    return at + 1;
}

/* One conversion behind its "%". Returns the position behind it. */
static size_t percent_one(percent *w, qn_buf *b, const char *p, size_t n, size_t at)
{
    spec f = {.fill = ' ', .precision = -1};
    qn_jval v = qn_jmissing();
    if (at < n && p[at] == '(') {
        size_t end = ++at, depth = 1;
        for (; end < n && depth; end++) depth += p[end] == '(' ? 1 : p[end] == ')' ? (size_t)-1 : 0;
        if (depth || w->value.type != QN_J_DICT) {
            qn_jfail(w->run, "the format needs a mapping");
            return n;
        }
        const qn_jval *hit = qn_jdict_find(w->value.dict, p + at, end - 1 - at);
        if (!hit)
            qn_jfail(w->run, "the format's key '%.*s' is missing",
                     (int)(end - 1 - at > 60 ? 60 : end - 1 - at), p + at);
        else v = *hit;
        at = end;
    }
    for (; at < n && p[at] && strchr("-+ #0", p[at]); at++) {
        if (p[at] == '-') f.align = '<';
        else if (p[at] == '#') f.alt = true;
        else if (p[at] == '0') f.zero = true;
        else if (p[at] == '+' || f.sign == 0) f.sign = p[at];
    }
    int64_t precision = -1;
    at = percent_size(w, p, n, at, &f.width);
    if (f.width < 0) {
        f.width = -f.width;
        f.align = '<';
    }
    if (at < n && p[at] == '.') at = percent_size(w, p, n, at + 1, &precision);
    if (f.width > MAX_FORMAT_WIDTH || precision > MAX_FORMAT_WIDTH)
        qn_jfail(w->run, "the width of a format is too large");
    f.precision = (int)(precision < -1 ? 0 : precision);
    if (f.zero && !f.align) f.align = '=', f.fill = '0';
    if (at < n && p[at] && strchr("hlL", p[at])) at++;
    if (w->run->failed) return n;
    if (at >= n || !p[at] || !strchr("diuoxXeEfFgGcrsa%", p[at])) {
        qn_jfail(w->run, "unsupported or incomplete format");
        return n;
    }
    f.type = p[at];
    if (f.type == '%') {
        qn_buf_putc(b, '%');
        return at + 1;
    }
    if (v.type == QN_J_MISSING) v = next_arg(w);
    qn_jval s = w->run->failed ? v : percent_value(w, v, &f);
    if (!w->run->failed) qn_buf_put(b, s.s->p, s.s->n);
    return at + 1;
}

qn_jval qn_jformat_percent(qn_jrun *run, qn_jval format, qn_jval value)
{
    percent w = {.run = run, .value = value, .escape = format.safe};
    const char *p = format.s->p;
    size_t n = format.s->n;
    qn_buf b = {0};
    for (size_t at = 0; at < n && qn_jbuf_ok(run, &b);) {
        const char *hit = memchr(p + at, '%', n - at);
        size_t end = hit ? (size_t)(hit - p) : n;
        qn_buf_put(&b, p + at, end - at);
        at = hit ? percent_one(&w, &b, p, n, end + 1) : n;
    }
    /* What Python can index counts as a mapping, whose values need not all be used. */
    bool mapping = value.type == QN_J_DICT || value.type == QN_J_LIST || value.type == QN_J_UNDEF ||
                   value.type == QN_J_RANGE;
    size_t given = value.type == QN_J_TUPLE ? value.list->n : mapping ? 0 : 1;
    if (!run->failed && w.used < given)
        qn_jfail(run, "not all arguments were converted by the format string");
    qn_jval v = qn_jstr_take(run, &b);
    v.safe = format.safe;
    return v;
}

/* ---- "{}" ---- */

typedef struct braces {
    qn_jrun *run;
    qn_jcall *call;
    int64_t next;       /* automatic numbering, -1 after explicit numbers */
    bool automatic, escape;
} braces;

static void put_braces(braces *w, qn_buf *b, const char *p, size_t n, int depth);

static qn_jval field_start(braces *w, const char *p, size_t n)
{
    qn_jrun *run = w->run;
    bool number = n > 0;
    for (size_t i = 0; i < n; i++) number = number && isdigit((unsigned char)p[i]);
    if (n == 0 || number) {
        int64_t at = n ? 0 : w->next;
        if (n) read_number(p, n, 0, &at);
        if ((n == 0 && w->next < 0) || (n && w->automatic))
            return qn_jfail(run, "a format cannot mix automatic and given field numbers");
        w->automatic = w->automatic || n == 0;
        w->next = n ? -1 : w->next + 1;
        if (at >= (int64_t)w->call->n_pos)
            return qn_jfail(run, "format: there is no argument %lld", (long long)at);
        return w->call->pos[at];
    }
    for (size_t i = 0; i < w->call->n_kw; i++)
        if (w->call->kw[i].name->n == n && memcmp(w->call->kw[i].name->p, p, n) == 0)
            return w->call->kw[i].value;
    return qn_jfail(run, "format: there is no argument '%.*s'", n > 60 ? 60 : (int)n, p);
}

/* "0.name[key]": the value of a field. */
static qn_jval field_value(braces *w, const char *p, size_t n)
{
    qn_jrun *run = w->run;
    size_t at = 0;
    while (at < n && p[at] != '.' && p[at] != '[') at++;
    qn_jval v = field_start(w, p, at);
    while (at < n && !run->failed) {
        bool item = p[at++] == '[';
        size_t end = at;
        while (end < n && (item ? p[end] != ']' : p[end] != '.' && p[end] != '[')) end++;
        if (end == at || (item && end == n))
            return qn_jfail(run, "format: a field name is malformed");
        int64_t i;
        bool over = false, number = item && isdigit((unsigned char)p[at]);
        qn_jval key = number && qn_jparse_int(p + at, end - at, 10, &i, &over) && !over
                          ? qn_jint(i) : qn_jstr_borrow(run, p + at, end - at);
        v = item || run->failed ? qn_jget_item(run, v, key) : qn_jget_attr(run, v, key.s);
        at = end + item;
        if (item && at < n && p[at] != '.' && p[at] != '[')
            return qn_jfail(run, "format: a field name is malformed");
    }
    return v;
}

static void put_field(braces *w, qn_buf *b, const char *p, size_t n, int depth)
{
    qn_jrun *run = w->run;
    size_t name = 0, colon, square = 0;
    for (; name < n && (square || (p[name] != '!' && p[name] != ':')); name++)
        square = p[name] == '[' ? 1 : p[name] == ']' ? 0 : square;
    qn_jval v = field_value(w, p, name);
    colon = name;
    if (name < n && p[name] == '!' && !run->failed) {
        char how = name + 1 < n ? p[name + 1] : 0;
        colon = name + 2;
        if (!how || !strchr("rsa", how) || (colon < n && p[colon] != ':'))
            qn_jfail(run, "format: bad conversion");
        else v = how == 's' ? qn_jsoft_str(run, v) : to_repr(run, v, how == 'a');
    }
    if (run->failed) return;
    qn_buf nested = {0};
    if (colon < n) put_braces(w, &nested, p + colon + 1, n - colon - 1, depth + 1);
    if (qn_jbuf_ok(run, &nested)) {
        qn_jval s = qn_jformat_spec(run, v, nested.data ? nested.data : "", nested.len);
        if (w->escape && !run->failed) {
            s.safe = v.type == QN_J_STR && v.safe;
            s = qn_jescape(run, s);
        }
        if (!run->failed) qn_buf_put(b, s.s->p, s.s->n);
    }
    qn_buf_release(&nested);
}

static void put_braces(braces *w, qn_buf *b, const char *p, size_t n, int depth)
{
    if (depth > 1) {
        qn_jfail(w->run, "format: fields are nested too deep");
        return;
    }
    for (size_t at = 0; at < n && qn_jbuf_ok(w->run, b);) {
        char c = p[at++];
        if (c != '{' && c != '}') {
            qn_buf_putc(b, c);
            continue;
        }
        if (at < n && p[at] == c) {
            qn_buf_putc(b, c);
            at++;
            continue;
        }
        size_t end = at, open = 1;
        for (; c == '{' && end < n; end++) {
            open += p[end] == '{' ? 1 : p[end] == '}' ? (size_t)-1 : 0;
            if (open == 0) break;
        }
        if (c == '}' || open) {
            qn_jfail(w->run, "format: a single '%c' in the format string", c);
            return;
        }
        put_field(w, b, p + at, end - at, depth);
        at = end + 1;
    }
}

qn_jval qn_jformat_braces(qn_jrun *run, qn_jval format, qn_jcall *c)
{
    braces w = {.run = run, .call = c, .escape = format.safe};
    qn_buf b = {0};
    put_braces(&w, &b, format.s->p, format.s->n, 0);
    qn_jval v = qn_jstr_take(run, &b);
    v.safe = format.safe;
    return v;
}
