/* jinja_str.c - the methods of Python's str. Positions and widths count code points. */
#include <string.h>

#include "core/utf8.h"
#include "text/jinja_filters.h"
#include "text/jinja_methods.h"
#include "text/jinja_text.h"

enum { MAX_WIDTH = 10000000 };

/* A new string of the same kind (safe or not) as `like`, over bytes of it or of the arena. */
static qn_jval part(qn_jrun *run, qn_jval like, const char *p, size_t n)
{
    qn_jval v = qn_jstr_borrow(run, p, n);
    v.safe = like.safe;
    return v;
}

static qn_jval take(qn_jrun *run, qn_jval like, qn_buf *b)
{
    qn_jval v = qn_jstr_take(run, b);
    v.safe = like.safe;
    return v;
}

/* An argument that must be a string; false after recording an error. */
static bool need_str(qn_jrun *run, qn_jval v, const char *what)
{
    if (run->failed) return false;
    if (v.type == QN_J_STR) return true;
    if (v.type == QN_J_UNDEF) qn_jfail_undef(run, v);
    else qn_jfail(run, "%s must be a string, not %s", what, qn_jtype_name(v));
    return false;
}

static bool absent(qn_jval v) { return v.type == QN_J_MISSING || v.type == QN_J_NONE; }

/* ---- case ---- */

static qn_jval recase(qn_jrun *run, qn_jval self, qn_jcase to)
{
    qn_buf b = {0};
    qn_jput_case(&b, self.s->p, self.s->n, to);
    return take(run, self, &b);
}

static qn_jval s_upper(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return recase(run, self, QN_J_UPPER);
}
static qn_jval s_lower(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return recase(run, self, QN_J_LOWER);
}
static qn_jval s_title(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return recase(run, self, QN_J_TITLE);
}
static qn_jval s_casefold(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    return recase(run, self, QN_J_FOLD);
}

static qn_jval s_capitalize(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    if (self.s->n == 0) return self;
    qn_buf b = {0}, first = {0}, lower = {0};
    unsigned cp;
    qn_utf8_decode(self.s->p, self.s->n, &cp);
    qn_jput_cp_case(&b, cp, QN_J_TITLE);
    qn_jput_cp_case(&first, cp, QN_J_LOWER);
    qn_jput_case(&lower, self.s->p, self.s->n, QN_J_LOWER);
    if (qn_jbuf_ok(run, &first) && qn_jbuf_ok(run, &lower))
        qn_buf_put(&b, lower.data + first.len, lower.len - first.len);
    qn_buf_release(&first);
    qn_buf_release(&lower);
    return take(run, self, &b);
}

static qn_jval s_swapcase(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)c;
    qn_buf b = {0};
    for (size_t i = 0; i < self.s->n;) {
        unsigned cp;
        size_t k = qn_utf8_decode(self.s->p + i, self.s->n - i, &cp);
        if (qn_jcp_upper(cp)) qn_jput_cp_case(&b, cp, QN_J_LOWER);
        else if (qn_jcp_lower(cp)) qn_jput_cp_case(&b, cp, QN_J_UPPER);
        else qn_buf_put(&b, self.s->p + i, k);
        i += k;
    }
    return take(run, self, &b);
}

/* ---- stripping ---- */

static qn_jval strip(qn_jrun *run, qn_jval self, qn_jval chars, bool left, bool right)
{
    const char *set = NULL, *p = self.s->p;
    size_t m = 0, n = self.s->n;
    if (!absent(chars)) {
        if (!need_str(run, chars, "the characters to strip")) return qn_jundef(NULL);
        set = chars.s->p;
        m = chars.s->n;
    }
    size_t a = left ? qn_jstrip_left(p, n, set, m) : 0;
    size_t b = right ? qn_jstrip_right(p + a, n - a, set, m) : 0;
    return part(run, self, p + a, n - a - b);
}

static qn_jval s_strip(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return strip(run, self, c->a[0], true, true);
}
static qn_jval s_lstrip(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return strip(run, self, c->a[0], true, false);
}
static qn_jval s_rstrip(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return strip(run, self, c->a[0], false, true);
}

static bool begins(const qn_jstr *s, const qn_jstr *with)
{
    return s->n >= with->n && memcmp(s->p, with->p, with->n) == 0;
}

static bool ends(const qn_jstr *s, const qn_jstr *with)
{
    return s->n >= with->n && memcmp(s->p + s->n - with->n, with->p, with->n) == 0;
}

static qn_jval s_removeprefix(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    if (!need_str(run, c->a[0], "the prefix")) return qn_jundef(NULL);
    size_t k = begins(self.s, c->a[0].s) ? c->a[0].s->n : 0;
    return part(run, self, self.s->p + k, self.s->n - k);
}

static qn_jval s_removesuffix(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    if (!need_str(run, c->a[0], "the suffix")) return qn_jundef(NULL);
    size_t k = ends(self.s, c->a[0].s) ? c->a[0].s->n : 0;
    return part(run, self, self.s->p, self.s->n - k);
}

/* ---- searching ---- */

/* The part of self between two optional positions, as str.find and friends take them; false if the
 * start lies behind the end. *base: code points before it. */
static bool window(qn_jrun *run, qn_jval self, qn_jval from, qn_jval to, qn_jval *out,
                   int64_t *base)
{
    int64_t n = (int64_t)qn_jstr_len(self.s), a = 0, b = n;
    if (!absent(from)) a = qn_jarg_int(run, from, 0);
    if (!absent(to)) b = qn_jarg_int(run, to, n);
    if (run->failed) return false;
    if (a < 0) a = a < -n ? 0 : a + n;
    if (b < 0) b = b < -n ? 0 : b + n;
    if (b > n) b = n;
    *base = a;
    if (a > b) return false;
    *out = absent(from) && absent(to) ? self
                                      : qn_jslice(run, self, qn_jint(a), qn_jint(b), qn_jnone());
    return !run->failed;
}

static bool affix_matches(qn_jrun *run, qn_jval v, qn_jval affix, bool prefix)
{
    if (affix.type == QN_J_TUPLE) {
        for (size_t i = 0; i < affix.list->n; i++) {
            if (!need_str(run, affix.list->v[i], "every item of the tuple")) return false;
            if (affix_matches(run, v, affix.list->v[i], prefix)) return true;
        }
        return false;
    }
    if (!need_str(run, affix, "the argument (a string or a tuple of strings)")) return false;
    return prefix ? begins(v.s, affix.s) : ends(v.s, affix.s);
}

static qn_jval affix(qn_jrun *run, qn_jval self, qn_jcall *c, bool prefix)
{
    qn_jval v;
    int64_t base;
    if (!window(run, self, c->a[1], c->a[2], &v, &base)) return qn_jbool(false);
    return qn_jbool(affix_matches(run, v, c->a[0], prefix));
}

static qn_jval s_startswith(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return affix(run, self, c, true);
}
static qn_jval s_endswith(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return affix(run, self, c, false);
}

static const char *search(const char *p, size_t n, const qn_jstr *what, bool last)
{
    if (!last) return what->n == 0 ? p : memmem(p, n, what->p, what->n);
    if (what->n > n) return NULL;
    for (const char *at = p + n - what->n;; at--) {
        if (memcmp(at, what->p, what->n) == 0) return at;
        if (at == p) return NULL;
    }
}

/* Code point index of the first or last occurrence; -1 if there is none. */
static int64_t find(qn_jrun *run, qn_jval self, qn_jcall *c, bool last)
{
    qn_jval v;
    int64_t base;
    if (!need_str(run, c->a[0], "the text to find") ||
        !window(run, self, c->a[1], c->a[2], &v, &base))
        return -1;
    const char *hit = search(v.s->p, v.s->n, c->a[0].s, last);
    if (!hit) return -1;
    qn_jstr before = {.p = v.s->p, .n = (size_t)(hit - v.s->p)};
    return base + (int64_t)qn_jstr_len(&before);
}

static qn_jval s_find(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return qn_jint(find(run, self, c, false));
}
static qn_jval s_rfind(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return qn_jint(find(run, self, c, true));
}

static qn_jval must_find(qn_jrun *run, int64_t at)
{
    return at < 0 ? qn_jfail(run, "substring not found") : qn_jint(at);
}

static qn_jval s_index(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return must_find(run, find(run, self, c, false));
}
static qn_jval s_rindex(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return must_find(run, find(run, self, c, true));
}

static qn_jval s_count(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jval v;
    int64_t base, n = 0;
    if (!need_str(run, c->a[0], "the text to count")) return qn_jundef(NULL);
    if (!window(run, self, c->a[1], c->a[2], &v, &base)) return qn_jint(0);
    if (c->a[0].s->n == 0) return qn_jint((int64_t)qn_jstr_len(v.s) + 1);
    const char *p = v.s->p, *end = p + v.s->n;
    while ((p = memmem(p, (size_t)(end - p), c->a[0].s->p, c->a[0].s->n))) {
        n++;
        p += c->a[0].s->n;
    }
    return qn_jint(n);
}

/* ---- replacing, joining, splitting ---- */

static qn_jval s_replace(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    int64_t left = qn_jarg_int(run, c->a[2], -1);
    if (!need_str(run, c->a[0], "the text to replace")) return qn_jundef(NULL);
    qn_jval with = self.safe ? qn_jescape(run, c->a[1]) : c->a[1];
    if (!need_str(run, with, "the replacement")) return qn_jundef(NULL);
    const qn_jstr *old = c->a[0].s;
    const char *p = self.s->p, *end = p + self.s->n;
    if (left != 0 && !memmem(p, self.s->n, old->p, old->n) && old->n) return self;
    qn_buf b = {0};
    while (left != 0 && qn_jbuf_ok(run, &b)) {
        const char *hit = old->n ? memmem(p, (size_t)(end - p), old->p, old->n) : p;
        if (!hit) break;
        qn_buf_put(&b, p, (size_t)(hit - p));
        qn_buf_put(&b, with.s->p, with.s->n);
        p = hit + old->n;
        left -= left > 0;
        if (old->n) continue;
        if (p == end) break;
        unsigned cp; /* an empty pattern matches before every character and at the end */
        size_t k = qn_utf8_decode(p, (size_t)(end - p), &cp);
        qn_buf_put(&b, p, k);
        p += k;
    }
    qn_buf_put(&b, p, (size_t)(end - p));
    return take(run, self, &b);
}

static qn_jval s_join(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    qn_jiter it;
    qn_jval item;
    qn_buf b = {0};
    if (!qn_jiter_start(run, c->a[0], &it)) return qn_jundef(NULL);
    for (size_t i = 0; qn_jiter_next(run, &it, &item); i++) {
        if (self.safe) item = qn_jescape(run, item);
        if (!need_str(run, item, "every item to join")) break;
        if (i) qn_buf_put(&b, self.s->p, self.s->n);
        qn_buf_put(&b, item.s->p, item.s->n);
        if (!qn_jbuf_ok(run, &b)) break;
    }
    return take(run, self, &b);
}

static void split_space(qn_jrun *run, qn_jval self, int64_t max, qn_jlist *out)
{
    const char *p = self.s->p;
    size_t n = self.s->n, at = qn_jstrip_left(p, n, NULL, 0);
    while (at < n && !run->failed) {
        if (max-- == 0) {
            qn_jlist_add(run, out, part(run, self, p + at, n - at));
            return;
        }
        size_t end = at;
        unsigned cp;
        for (size_t k; end < n; end += k) {
            k = qn_utf8_decode(p + end, n - end, &cp);
            if (qn_jcp_space(cp)) break;
        }
        qn_jlist_add(run, out, part(run, self, p + at, end - at));
        at = end + qn_jstrip_left(p + end, n - end, NULL, 0);
    }
}

static void rsplit_space(qn_jrun *run, qn_jval self, int64_t max, qn_jlist *out)
{
    const char *p = self.s->p;
    size_t end = self.s->n - qn_jstrip_right(p, self.s->n, NULL, 0);
    while (end > 0 && !run->failed) {
        if (max-- == 0) {
            qn_jlist_add(run, out, part(run, self, p, end));
            return;
        }
        size_t at = end;
        while (at > 0) {
            size_t start = at - 1;
            while (start > 0 && ((unsigned char)p[start] & 0xC0) == 0x80) start--;
            unsigned cp;
            qn_utf8_decode(p + start, at - start, &cp);
            if (qn_jcp_space(cp)) break;
            at = start;
        }
        qn_jlist_add(run, out, part(run, self, p + at, end - at));
        end = at - qn_jstrip_right(p, at, NULL, 0);
    }
}

static void split_sep(qn_jrun *run, qn_jval self, const qn_jstr *sep, int64_t max, bool last,
                      qn_jlist *out)
{
    const char *p = self.s->p, *end = p + self.s->n;
    while (max-- != 0 && !run->failed) {
        const char *hit = search(p, (size_t)(end - p), sep, last);
        if (!hit) break;
        if (last) {
            qn_jlist_add(run, out, part(run, self, hit + sep->n, (size_t)(end - hit) - sep->n));
            end = hit;
        } else {
            qn_jlist_add(run, out, part(run, self, p, (size_t)(hit - p)));
            p = hit + sep->n;
        }
    }
    qn_jlist_add(run, out, part(run, self, p, (size_t)(end - p)));
}

static qn_jval split(qn_jrun *run, qn_jval self, qn_jcall *c, bool last)
{
    int64_t max = qn_jarg_int(run, c->a[1], -1);
    qn_jval out = qn_jlist_new(run, QN_J_LIST, 0);
    if (run->failed) return out;
    if (absent(c->a[0])) {
        (last ? rsplit_space : split_space)(run, self, max, out.list);
    } else {
        if (!need_str(run, c->a[0], "the separator")) return qn_jundef(NULL);
        if (c->a[0].s->n == 0) return qn_jfail(run, "empty separator");
        split_sep(run, self, c->a[0].s, max, last, out.list);
    }
    qn_jlist *l = out.list;
    for (size_t i = 0, k = l->n; last && !run->failed && i + 1 < k; i++) {
        qn_jval t = l->v[i];
        l->v[i] = l->v[--k];
        l->v[k] = t;
    }
    return out;
}

static qn_jval s_split(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return split(run, self, c, false);
}
static qn_jval s_rsplit(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return split(run, self, c, true);
}

static qn_jval s_splitlines(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    bool keep = qn_jarg_bool(c->a[0], false);
    qn_jval out = qn_jlist_new(run, QN_J_LIST, 0);
    const char *p = self.s->p;
    for (size_t i = 0, start = 0; !run->failed && start < self.s->n;) {
        unsigned cp = 0;
        size_t k = i < self.s->n ? qn_utf8_decode(p + i, self.s->n - i, &cp) : 0;
        bool line = (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 ||
                    cp == 0x2028 || cp == 0x2029;
        if (k && !line) {
            i += k;
            continue;
        }
        size_t next = i + k + (cp == '\r' && i + 1 < self.s->n && p[i + 1] == '\n');
        qn_jlist_add(run, out.list, part(run, self, p + start, (keep ? next : i) - start));
        i = start = next;
    }
    return out;
}

static qn_jval partition(qn_jrun *run, qn_jval self, qn_jcall *c, bool last)
{
    if (!need_str(run, c->a[0], "the separator")) return qn_jundef(NULL);
    if (c->a[0].s->n == 0) return qn_jfail(run, "empty separator");
    const char *p = self.s->p, *hit = search(p, self.s->n, c->a[0].s, last);
    size_t n = self.s->n, sep = c->a[0].s->n, at = hit ? (size_t)(hit - p) : 0;
    qn_jval none = part(run, self, "", 0);
    if (!hit && last) return qn_jtuple(run, (const qn_jval[]){none, none, self}, 3);
    if (!hit) return qn_jtuple(run, (const qn_jval[]){self, none, none}, 3);
    return qn_jtuple(run, (const qn_jval[]){part(run, self, p, at), part(run, self, hit, sep),
                                            part(run, self, hit + sep, n - at - sep)}, 3);
}

static qn_jval s_partition(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return partition(run, self, c, false);
}
static qn_jval s_rpartition(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return partition(run, self, c, true);
}

/* ---- widths ---- */

static qn_jval pad(qn_jrun *run, qn_jval self, qn_jcall *c, int side)
{
    int64_t width = qn_jarg_int(run, c->a[0], 0), n = (int64_t)qn_jstr_len(self.s);
    qn_jval fill = c->a[1].type == QN_J_MISSING ? qn_jstr_borrow(run, " ", 1) : c->a[1];
    if (!need_str(run, fill, "the fill character")) return qn_jundef(NULL);
    if (self.safe) fill = qn_jescape(run, fill);
    if (run->failed) return fill;
    if (qn_jstr_len(fill.s) != 1)
        return qn_jfail(run, "the fill character must be exactly one character long");
    if (width > MAX_WIDTH) return qn_jfail(run, "a width must be at most %d", MAX_WIDTH);
    int64_t total = width > n ? width - n : 0;
    int64_t left = side < 0 ? total : side > 0 ? 0 : total / 2 + (total & width & 1);
    qn_buf b = {0};
    for (int64_t i = 0; i < left; i++) qn_buf_put(&b, fill.s->p, fill.s->n);
    qn_buf_put(&b, self.s->p, self.s->n);
    for (int64_t i = left; i < total; i++) qn_buf_put(&b, fill.s->p, fill.s->n);
    return take(run, self, &b);
}

static qn_jval s_center(qn_jrun *run, qn_jval self, qn_jcall *c) { return pad(run, self, c, 0); }
static qn_jval s_ljust(qn_jrun *run, qn_jval self, qn_jcall *c) { return pad(run, self, c, 1); }
static qn_jval s_rjust(qn_jrun *run, qn_jval self, qn_jcall *c) { return pad(run, self, c, -1); }

static qn_jval s_zfill(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    int64_t width = qn_jarg_int(run, c->a[0], 0), n = (int64_t)qn_jstr_len(self.s);
    if (width > MAX_WIDTH) return qn_jfail(run, "a width must be at most %d", MAX_WIDTH);
    if (run->failed || width <= n) return self;
    bool sign = self.s->n > 0 && (self.s->p[0] == '-' || self.s->p[0] == '+');
    qn_buf b = {0};
    if (sign) qn_buf_putc(&b, self.s->p[0]);
    for (int64_t i = n; i < width; i++) qn_buf_putc(&b, '0');
    qn_buf_put(&b, self.s->p + sign, self.s->n - sign);
    return take(run, self, &b);
}

static qn_jval s_expandtabs(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    int64_t size = qn_jarg_int(run, c->a[0], 8), column = 0;
    if (size > MAX_WIDTH) return qn_jfail(run, "a tab size must be at most %d", MAX_WIDTH);
    qn_buf b = {0};
    for (size_t i = 0; i < self.s->n && qn_jbuf_ok(run, &b); i++) {
        char ch = self.s->p[i];
        if (ch == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            column += n;
            while (n-- > 0) qn_buf_putc(&b, ' ');
            continue;
        }
        qn_buf_putc(&b, ch);
        if (ch == '\n' || ch == '\r') column = 0;
        else column += ((unsigned char)ch & 0xC0) != 0x80;
    }
    return take(run, self, &b);
}

/* ---- classes ---- */

static qn_jval every(qn_jval self, bool (*is)(unsigned), bool empty)
{
    for (size_t i = 0; i < self.s->n;) {
        unsigned cp;
        i += qn_utf8_decode(self.s->p + i, self.s->n - i, &cp);
        if (!is(cp)) return qn_jbool(false);
    }
    return qn_jbool(self.s->n > 0 || empty);
}

static bool is_alnum(unsigned cp) { return qn_jcp_alpha(cp) || qn_jcp_numeric(cp); }
static bool is_ascii(unsigned cp) { return cp < 0x80; }

static qn_jval s_isalnum(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return every(v, is_alnum, false);
}
static qn_jval s_isalpha(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return every(v, qn_jcp_alpha, false);
}
static qn_jval s_isascii(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return every(v, is_ascii, true);
}
static qn_jval s_isdecimal(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return every(v, qn_jcp_decimal, false);
}
static qn_jval s_isdigit(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return every(v, qn_jcp_digit, false);
}
static qn_jval s_isnumeric(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return every(v, qn_jcp_numeric, false);
}
static qn_jval s_isspace(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return every(v, qn_jcp_space, false);
}
static qn_jval s_isprintable(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return every(v, qn_jcp_printable, true);
}

static qn_jval s_isidentifier(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    unsigned cp;
    if (v.s->n == 0) return qn_jbool(false);
    qn_utf8_decode(v.s->p, v.s->n, &cp);
    return qn_jcp_name_start(cp) ? every(v, qn_jcp_name, false) : qn_jbool(false);
}

static qn_jval one_case(qn_jval v, bool (*want)(unsigned), bool (*other)(unsigned))
{
    bool any = false;
    for (size_t i = 0; i < v.s->n;) {
        unsigned cp;
        i += qn_utf8_decode(v.s->p + i, v.s->n - i, &cp);
        if (other(cp) || qn_jcp_title(cp)) return qn_jbool(false);
        any = any || want(cp);
    }
    return qn_jbool(any);
}

static qn_jval s_islower(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return one_case(v, qn_jcp_lower, qn_jcp_upper);
}
static qn_jval s_isupper(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    return one_case(v, qn_jcp_upper, qn_jcp_lower);
}

static qn_jval s_istitle(qn_jrun *r, qn_jval v, qn_jcall *c)
{
    (void)r, (void)c;
    bool in_word = false, any = false;
    for (size_t i = 0; i < v.s->n;) {
        unsigned cp;
        i += qn_utf8_decode(v.s->p + i, v.s->n - i, &cp);
        bool up = qn_jcp_upper(cp) || qn_jcp_title(cp), low = qn_jcp_lower(cp);
        if ((up && in_word) || (low && !in_word)) return qn_jbool(false);
        in_word = up || low;
        any = any || in_word;
    }
    return qn_jbool(any);
}

static qn_jval s_format(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    return qn_jformat_braces(run, self, c);
}

static qn_jval s_format_map(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    static const qn_jdict nothing; /* Python looks at the mapping only when a field needs it */
    const qn_jdict *d = c->a[0].type == QN_J_DICT ? c->a[0].dict : &nothing;
    qn_jcall named = {.kw = qn_jtake(run, d->n + 1, sizeof *named.kw)};
    for (size_t i = 0; named.kw && i < d->n; i++)
        if (d->e[i].key.type == QN_J_STR)
            named.kw[named.n_kw++] = (qn_jkw){d->e[i].key.s, d->e[i].value};
    return qn_jformat_braces(run, self, &named);
}

static qn_jval s_unsupported(qn_jrun *run, qn_jval self, qn_jcall *c)
{
    (void)self, (void)c;
    return qn_jfail(run, "not supported yet: str.encode, str.maketrans and str.translate");
}

const qn_jfn qn_jstr_methods[] = {
    {"split", s_split, "sep maxsplit", 0, false},
    {"rsplit", s_rsplit, "sep maxsplit", 0, false},
    {"strip", s_strip, "chars", 0, true},
    {"lstrip", s_lstrip, "chars", 0, true},
    {"rstrip", s_rstrip, "chars", 0, true},
    {"startswith", s_startswith, "prefix start end", 1, true},
    {"endswith", s_endswith, "suffix start end", 1, true},
    {"replace", s_replace, "old new count", 2, true},
    {"join", s_join, "iterable", 1, true},
    {"upper", s_upper, "", 0, true},
    {"lower", s_lower, "", 0, true},
    {"title", s_title, "", 0, true},
    {"capitalize", s_capitalize, "", 0, true},
    {"casefold", s_casefold, "", 0, true},
    {"swapcase", s_swapcase, "", 0, true},
    {"find", s_find, "sub start end", 1, true},
    {"rfind", s_rfind, "sub start end", 1, true},
    {"index", s_index, "sub start end", 1, true},
    {"rindex", s_rindex, "sub start end", 1, true},
    {"count", s_count, "sub start end", 1, true},
    {"splitlines", s_splitlines, "keepends", 0, false},
    {"partition", s_partition, "sep", 1, true},
    {"rpartition", s_rpartition, "sep", 1, true},
    {"removeprefix", s_removeprefix, "prefix", 1, true},
    {"removesuffix", s_removesuffix, "suffix", 1, true},
    {"center", s_center, "width fillchar", 1, true},
    {"ljust", s_ljust, "width fillchar", 1, true},
    {"rjust", s_rjust, "width fillchar", 1, true},
    {"zfill", s_zfill, "width", 1, true},
    {"expandtabs", s_expandtabs, "tabsize", 0, false},
    {"isalnum", s_isalnum, "", 0, true},
    {"isalpha", s_isalpha, "", 0, true},
    {"isascii", s_isascii, "", 0, true},
    {"isdecimal", s_isdecimal, "", 0, true},
    {"isdigit", s_isdigit, "", 0, true},
    {"isnumeric", s_isnumeric, "", 0, true},
    {"isspace", s_isspace, "", 0, true},
    {"isprintable", s_isprintable, "", 0, true},
    {"isidentifier", s_isidentifier, "", 0, true},
    {"islower", s_islower, "", 0, true},
    {"isupper", s_isupper, "", 0, true},
    {"istitle", s_istitle, "", 0, true},
    {"format", s_format, NULL, 0, false},
    {"format_map", s_format_map, "mapping", 1, true},
    {"encode", s_unsupported, NULL, 0, false},
    {"maketrans", s_unsupported, NULL, 0, false},
    {"translate", s_unsupported, NULL, 0, false},
    {NULL, NULL, NULL, 0, false},
};
