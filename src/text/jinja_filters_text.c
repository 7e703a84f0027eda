/* jinja_filters_text.c - filters over texts, numbers and single values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "text/jinja_filters.h"
#include "text/jinja_text.h"

enum { MAX_WIDTH = 10000000 };

qn_jval qn_jsoft_str(qn_jrun *run, qn_jval v)
{
    return v.type == QN_J_UNDEF ? qn_jstr_borrow(run, "", 0) : qn_jto_str(run, v);
}

int64_t qn_jarg_int(qn_jrun *run, qn_jval v, int64_t dflt)
{
    if (v.type == QN_J_MISSING) return dflt;
    if (qn_jis_int(v)) return qn_jas_int(v);
    if (v.type == QN_J_UNDEF) qn_jfail_undef(run, v);
    else qn_jfail(run, "an integer is needed, got %s", qn_jtype_name(v));
    return dflt;
}

qn_jval qn_jescape(qn_jrun *run, qn_jval v)
{
    if (v.type == QN_J_STR && v.safe) return v;
    v = qn_jsoft_str(run, v);
    if (run->failed) return v;
    qn_buf b = {0};
    for (size_t i = 0; i < v.s->n; i++) {
        switch (v.s->p[i]) {
        case '&': qn_buf_puts(&b, "&amp;"); break;
        case '<': qn_buf_puts(&b, "&lt;"); break;
        case '>': qn_buf_puts(&b, "&gt;"); break;
        case '\'': qn_buf_puts(&b, "&#39;"); break;
        case '"': qn_buf_puts(&b, "&#34;"); break;
        default: qn_buf_putc(&b, v.s->p[i]);
        }
    }
    qn_jval out = qn_jstr_take(run, &b);
    out.safe = true;
    return out;
}

static qn_jval f_escape(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return qn_jescape(run, self);
}

static qn_jval f_forceescape(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    self.safe = false;
    return qn_jescape(run, self);
}

static qn_jval f_safe(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    qn_jval v = qn_jsoft_str(run, self);
    v.safe = v.type == QN_J_STR;
    return v;
}

static qn_jval f_string(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return qn_jsoft_str(run, self);
}

static qn_jval recase(qn_jrun *run, qn_jval self, qn_jcase to)
{
    qn_jval v = qn_jsoft_str(run, self);
    if (run->failed) return v;
    qn_buf b = {0};
    qn_jput_case(&b, v.s->p, v.s->n, to);
    qn_jval out = qn_jstr_take(run, &b);
    out.safe = v.safe;
    return out;
}

static qn_jval f_upper(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return recase(run, self, QN_J_UPPER);
}

static qn_jval f_lower(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return recase(run, self, QN_J_LOWER);
}

static qn_jval call_method(qn_jrun *run, qn_jval v, const char *name, qn_jval *pos, size_t n)
{
    qn_jval m = run->failed ? qn_jundef(NULL) : qn_jattr_builtin(run, v, name, strlen(name));
    qn_jcall c = {.pos = pos, .n_pos = n};
    return run->failed ? m : qn_jcall_value(run, m, &c);
}

static qn_jval f_capitalize(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return call_method(run, qn_jsoft_str(run, self), "capitalize", NULL, 0);
}

static qn_jval f_trim(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return call_method(run, qn_jsoft_str(run, self), "strip", c->a, c->a[0].type != QN_J_MISSING);
}

static qn_jval f_center(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jval width = c->a[0].type == QN_J_MISSING ? qn_jint(80) : c->a[0];
    return call_method(run, qn_jsoft_str(run, self), "center", &width, 1);
}

static bool splits_words(unsigned cp)
{
    return cp == '-' || qn_jcp_space(cp) || cp == '(' || cp == '{' || cp == '[' || cp == '<';
}

static qn_jval f_title(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    qn_jval v = qn_jsoft_str(run, self);
    if (run->failed) return v;
    qn_buf b = {0};
    for (size_t i = 0; i < v.s->n;) {
        unsigned cp;
        size_t k = qn_utf8_decode(v.s->p + i, v.s->n - i, &cp);
        if (splits_words(cp)) {
            qn_buf_put(&b, v.s->p + i, k);
            i += k;
            continue;
        }
        qn_jput_cp_case(&b, cp, QN_J_UPPER);
        size_t from = i += k;
        while (i < v.s->n && (k = qn_utf8_decode(v.s->p + i, v.s->n - i, &cp)) && !splits_words(cp))
            i += k;
        qn_jput_case(&b, v.s->p + from, i - from, QN_J_LOWER);
    }
    return qn_jstr_take(run, &b);
}

static qn_jval f_replace(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jval s = qn_jsoft_str(run, self),
            pos[3] = {qn_jsoft_str(run, c->a[0]), qn_jsoft_str(run, c->a[1]), c->a[2]};
    s.safe = pos[0].safe = pos[1].safe = false;
    if (pos[2].type == QN_J_MISSING || pos[2].type == QN_J_NONE) pos[2] = qn_jint(-1);
    return call_method(run, s, "replace", pos, 3);
}

static qn_jval f_default(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    bool falsy = qn_jarg_bool(c->a[1], false) && !qn_jtruth(self);
    if (self.type != QN_J_UNDEF && !falsy) return self;
    return c->a[0].type == QN_J_MISSING ? qn_jstr_borrow(run, "", 0) : c->a[0];
}

static qn_jval f_attr(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    if (c->a[0].type != QN_J_STR) return qn_jfail(run, "attr needs the name of an attribute");
    const qn_jstr *name = c->a[0].s;
    if (self.type != QN_J_DICT) return qn_jget_attr(run, self, name);
    qn_jval empty = qn_jdict_new(run); /* attributes only: no item of the mapping may answer */
    return run->failed ? empty
           : qn_jattr_builtin(run, empty, name->p, name->n).type == QN_J_MISSING
               ? qn_jundef("no such attribute")
               : qn_jget_attr(run, self, name);
}

/* ---- lines ---- */

/* The end of the line at p[at], and behind its line break: Python's splitlines. */
static size_t line_end(const char *p, size_t n, size_t at, size_t *next)
{
    while (at < n) {
        unsigned cp;
        size_t k = qn_utf8_decode(p + at, n - at, &cp);
        if ((cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 ||
            cp == 0x2029) {
            *next = at + k + (cp == '\r' && at + 1 < n && p[at + 1] == '\n');
            return at;
        }
        at += k;
    }
    *next = n;
    return n;
}

static qn_jval f_indent(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    if (self.type != QN_J_STR) {
        if (self.type == QN_J_UNDEF) return qn_jfail_undef(run, self);
        return qn_jfail(run, "indent needs a string, got %s", qn_jtype_name(self));
    }
    qn_jval unit = c->a[0];
    if (unit.type != QN_J_STR) {
        int64_t n = qn_jarg_int(run, unit, 4);
        if (n > MAX_WIDTH) return qn_jfail(run, "indent: the width must be at most %d", MAX_WIDTH);
        qn_jval space = qn_jstr_borrow(run, " ", 1);
        unit = run->failed ? space : qn_jbinary(run, QN_J_MUL, space, qn_jint(n));
    }
    if (run->failed) return unit;
    bool first = qn_jarg_bool(c->a[1], false), blank = qn_jarg_bool(c->a[2], false);
    if (self.safe) unit = qn_jescape(run, unit);
    qn_buf b = {0};
    const char *p = self.s->p;
    size_t n = self.s->n, at = 0, next = 0;
    if (first) qn_buf_put(&b, unit.s->p, unit.s->n);
    for (bool start = true; start || at < n; start = false) {
        size_t end = line_end(p, n, at, &next);
        if (!start) {
            qn_buf_putc(&b, '\n');
            if (blank || end > at) qn_buf_put(&b, unit.s->p, unit.s->n);
        }
        qn_buf_put(&b, p + at, end - at);
        bool last_break =
            end < next && next == n; /* a break at the end leaves one more, empty line */
        at = next;
        if (!qn_jbuf_ok(run, &b)) break;
        if (last_break) {
            qn_buf_putc(&b, '\n');
            if (blank) qn_buf_put(&b, unit.s->p, unit.s->n);
        }
    }
    qn_jval v = qn_jstr_take(run, &b);
    v.safe = self.safe;
    return v;
}

static qn_jval f_truncate(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    int64_t length = qn_jarg_int(run, c->a[0], 255);
    bool kill = qn_jarg_bool(c->a[1], false);
    qn_jval end = c->a[2].type == QN_J_MISSING ? qn_jstr_borrow(run, "...", 3) : c->a[2];
    bool no_leeway = c->a[3].type == QN_J_MISSING || c->a[3].type == QN_J_NONE;
    int64_t leeway = no_leeway ? 5 : qn_jarg_int(run, c->a[3], 5);
    size_t n;
    if (run->failed) return qn_jundef(NULL);
    if (end.type != QN_J_STR) return qn_jfail(run, "truncate: end must be a string");
    int64_t end_len = (int64_t)qn_jstr_len(end.s);
    if (length < end_len || leeway < 0)
        return qn_jfail(run, "truncate: length must be at least %d", (int)end_len);
    if (!qn_jlength(run, self, &n)) return qn_jundef(NULL);
    if (leeway >= (int64_t)n - length) return self;
    if (self.type != QN_J_STR)
        return qn_jfail(run, "truncate needs a string, got %s", qn_jtype_name(self));
    qn_jval cut = qn_jslice(run, self, qn_jnone(), qn_jint(length - end_len), qn_jnone());
    if (run->failed) return cut;
    if (!kill) {
        const char *space = memrchr(cut.s->p, ' ', cut.s->n);
        if (space) {
            bool safe = cut.safe;
            cut = qn_jstr_borrow(run, cut.s->p, (size_t)(space - cut.s->p));
            cut.safe = safe;
        }
    }
    return qn_jadd(run, cut, end);
}

static qn_jval f_wordcount(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    qn_jval v = qn_jsoft_str(run, self);
    int64_t words = 0;
    bool in_word = false;
    for (size_t i = 0; !run->failed && i < v.s->n;) {
        unsigned cp;
        i += qn_utf8_decode(v.s->p + i, v.s->n - i, &cp);
        bool word = cp == '_' || qn_jcp_alpha(cp) || qn_jcp_numeric(cp);
        words += word && !in_word;
        in_word = word;
    }
    return qn_jint(words);
}

static void put_quoted(qn_buf *b, const qn_jstr *s, bool query)
{
    for (size_t i = 0; i < s->n; i++) {
        unsigned char ch = (unsigned char)s->p[i];
        bool plain = (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') ||
                     (ch >= 'A' && ch <= 'Z') || (ch && strchr("_.-~", ch)) ||
                     (ch == '/' && !query);
        if (plain) qn_buf_putc(b, (char)ch);
        else if (ch == ' ' && query) qn_buf_putc(b, '+');
        else qn_buf_printf(b, "%%%02X", ch);
    }
}

static qn_jval f_urlencode(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    qn_buf b = {0};
    if (self.type == QN_J_STR || !qn_jiterable(self)) {
        qn_jval v = qn_jsoft_str(run, self);
        if (!run->failed) put_quoted(&b, v.s, false);
        return qn_jstr_take(run, &b);
    }
    qn_jview view = {self.dict, QN_J_ITEMS};
    qn_jval over = self.type == QN_J_DICT ? (qn_jval){.type = QN_J_VIEW, .view = &view} : self,
            pair;
    qn_jiter it;
    if (!qn_jiter_start(run, over, &it)) return qn_jundef(NULL);
    for (size_t i = 0; qn_jiter_next(run, &it, &pair); i++) {
        qn_jval kv = qn_jto_list(run, pair);
        if (run->failed) break;
        if (kv.list->n != 2) {
            qn_jfail(run, "urlencode needs pairs of key and value");
            break;
        }
        qn_jval k = qn_jsoft_str(run, kv.list->v[0]), v = qn_jsoft_str(run, kv.list->v[1]);
        if (run->failed) break;
        if (i) qn_buf_putc(&b, '&');
        put_quoted(&b, k.s, true);
        qn_buf_putc(&b, '=');
        put_quoted(&b, v.s, true);
    }
    return qn_jstr_take(run, &b);
}

/* ---- numbers ---- */

static qn_jval f_abs(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    if (self.type == QN_J_FLOAT) return qn_jfloat(fabs(self.f));
    if (qn_jis_int(self))
        return qn_jas_int(self) < 0 ? qn_jnegate(run, self) : qn_jint(qn_jas_int(self));
    if (self.type == QN_J_UNDEF) return qn_jfail_undef(run, self);
    return qn_jfail(run, "bad operand type for abs: '%s'", qn_jtype_name(self));
}

static qn_jval float_to_int(qn_jrun *run, double f, qn_jval dflt)
{
    if (isnan(f) || isinf(f)) return dflt;
    if (f >= 9223372036854775808.0 || f < -9223372036854775808.0)
        return qn_jfail(run, "an integer does not fit 64 bits");
    return qn_jint((int64_t)f);
}

static qn_jval f_int(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jval dflt = c->a[0].type == QN_J_MISSING ? qn_jint(0) : c->a[0];
    int64_t base = qn_jarg_int(run, c->a[1], 10), i;
    double f;
    bool over = false;
    if (run->failed) return dflt;
    if (qn_jis_int(self)) return qn_jint(qn_jas_int(self));
    if (self.type == QN_J_FLOAT) {
        if (isinf(self.f)) return qn_jfail(run, "cannot convert an infinite float to an integer");
        return float_to_int(run, self.f, dflt);
    }
    if (self.type == QN_J_UNDEF) return qn_jfail_undef(run, self);
    if (self.type != QN_J_STR) return dflt;
    bool base_ok = base == 0 || (base >= 2 && base <= 36);
    if (base_ok && qn_jparse_int(self.s->p, self.s->n, (int)base, &i, &over))
        return over ? qn_jfail(run, "an integer does not fit 64 bits") : qn_jint(i);
    return qn_jparse_float(self.s->p, self.s->n, &f) ? float_to_int(run, f, dflt) : dflt;
}

static qn_jval f_float(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jval dflt = c->a[0].type == QN_J_MISSING ? qn_jfloat(0) : c->a[0];
    double f;
    if (qn_jis_number(self)) return qn_jfloat(qn_jas_float(self));
    if (self.type == QN_J_UNDEF) return qn_jfail_undef(run, self);
    return self.type == QN_J_STR && qn_jparse_float(self.s->p, self.s->n, &f) ? qn_jfloat(f) : dflt;
}

/* round(f, digits) as Python does: correctly rounded from the exact value. */
static double round_digits(double f, int64_t digits)
{
    if (!isfinite(f) || digits > 322) return f;
    if (digits < -308) return copysign(0, f);
    if (digits >= 0) {
        char text[400 + 330];
        snprintf(text, sizeof text, "%.*f", (int)digits, f);
        return strtod(text, NULL);
    }
    double unit = pow(10, (double)-digits), q = f / unit, r = rint(q);
    return r * unit;
}

static qn_jval round_common(qn_jrun *run, qn_jval v, int64_t digits)
{
    if (v.type == QN_J_FLOAT) {
        double f = round_digits(v.f, digits);
        return isinf(f) && isfinite(v.f) ? qn_jfail(run, "round: the value is too large")
                                         : qn_jfloat(f);
    }
    int64_t i = qn_jas_int(v);
    if (digits >= 0) return qn_jint(i);
    if (digits < -18) return qn_jint(0);
    int64_t unit = 1;
    for (int64_t k = digits; k < 0; k++) unit *= 10;
    int64_t rest = i % unit, down = i - rest; /* half to even */
    if (rest < 0) {
        rest += unit;
        down -= unit;
    }
    bool up = rest > unit / 2 || (rest == unit / 2 && (down / unit) % 2 != 0);
    return up ? qn_jadd(run, qn_jint(down), qn_jint(unit)) : qn_jint(down);
}

static qn_jval f_round(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    int64_t digits = qn_jarg_int(run, c->a[0], 0);
    const qn_jval how = c->a[1];
    bool common = how.type == QN_J_MISSING || (how.type == QN_J_STR && qn_jstr_is(how.s, "common"));
    bool up = how.type == QN_J_STR && qn_jstr_is(how.s, "ceil"),
         down = how.type == QN_J_STR && qn_jstr_is(how.s, "floor");
    if (run->failed) return how;
    if (!common && !up && !down)
        return qn_jfail(run, "round: method must be common, ceil or floor");
    if (self.type == QN_J_UNDEF) return qn_jfail_undef(run, self);
    if (!qn_jis_number(self))
        return qn_jfail(run, "round needs a number, got %s", qn_jtype_name(self));
    if (common) return round_common(run, self, digits);
    double unit = pow(10, (double)digits), scaled = qn_jas_float(self) * unit;
    return qn_jfloat((up ? ceil(scaled) : floor(scaled)) / unit);
}

static qn_jval f_filesizeformat(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    bool binary = qn_jarg_bool(c->a[0], false);
    double bytes, base = binary ? 1024 : 1000, unit = base;
    if (qn_jis_number(self)) bytes = qn_jas_float(self);
    else if (self.type != QN_J_STR || !qn_jparse_float(self.s->p, self.s->n, &bytes))
        return qn_jfail(run, "filesizeformat needs a number");
    if (bytes == 1) return qn_jstr_printf(run, "1 Byte");
    if (bytes < base) return qn_jstr_printf(run, "%lld Bytes", (long long)bytes);
    static const char letters[] = "kMGTPEZY";
    size_t i = 0;
    for (unit = base * base; i < 7 && bytes >= unit; i++) unit *= base;
    char letter = binary && i == 0 ? 'K' : letters[i];
    return qn_jstr_printf(run, "%.1f %c%sB", base * bytes / unit, letter, binary ? "i" : "");
}

static qn_jval f_format(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jval format = qn_jsoft_str(run, self), arg;
    if (c->n_pos && c->n_kw)
        return qn_jfail(run, "format takes positional or keyword arguments, not both");
    if (c->n_kw) {
        arg = qn_jdict_new(run);
        for (size_t i = 0; i < c->n_kw && !run->failed; i++)
            qn_jdict_set(run, arg.dict, (qn_jval){.type = QN_J_STR, .s = c->kw[i].name},
                         c->kw[i].value);
    } else {
        arg = qn_jtuple(run, c->pos, c->n_pos);
    }
    return run->failed ? arg : qn_jformat_percent(run, format, arg);
}

static qn_jval f_unsupported(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)self, (void)c;
    return qn_jfail(
        run,
        "not supported yet: this filter (pprint, random, striptags, urlize, wordwrap, xmlattr)");
}

const qn_jfn qn_jfilters_text[] = {
    {"escape", f_escape, "", 0, false},
    {"e", f_escape, "", 0, false},
    {"forceescape", f_forceescape, "", 0, false},
    {"safe", f_safe, "", 0, false},
    {"string", f_string, "", 0, false},
    {"upper", f_upper, "", 0, false},
    {"lower", f_lower, "", 0, false},
    {"capitalize", f_capitalize, "", 0, false},
    {"title", f_title, "", 0, false},
    {"trim", f_trim, "chars", 0, false},
    {"center", f_center, "width", 0, false},
    {"replace", f_replace, "old new count", 2, false},
    {"default", f_default, "default_value boolean", 0, false},
    {"d", f_default, "default_value boolean", 0, false},
    {"attr", f_attr, "name", 1, false},
    {"indent", f_indent, "width first blank", 0, false},
    {"truncate", f_truncate, "length killwords end leeway", 0, false},
    {"wordcount", f_wordcount, "", 0, false},
    {"urlencode", f_urlencode, "", 0, false},
    {"abs", f_abs, "", 0, false},
    {"int", f_int, "default base", 0, false},
    {"float", f_float, "default", 0, false},
    {"round", f_round, "precision method", 0, false},
    {"filesizeformat", f_filesizeformat, "binary", 0, false},
    {"format", f_format, NULL, 0, false},
    {"pprint", f_unsupported, NULL, 0, false},
    {"random", f_unsupported, NULL, 0, false},
    {"striptags", f_unsupported, NULL, 0, false},
    {"urlize", f_unsupported, NULL, 0, false},
    {"wordwrap", f_unsupported, NULL, 0, false},
    {"xmlattr", f_unsupported, NULL, 0, false},
    {NULL, NULL, NULL, 0, false},
};
