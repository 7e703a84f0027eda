/* tok_cut.c - places where a text may be cut without changing a single id.
 *
 * The place is before a space between two ASCII letters ("a| b"). It holds where every step of the
 * pipeline works on both sides as on the whole, and one of them ends a piece there in any case:
 *   normalizers   work character by character, or on what composes: a space never does
 *   splitters     look at single characters, or are known scanners that end a word before a space
 *   model         sees each piece alone; BPE over whole texts cuts before a space mark itself
 * Added tokens that match normalised text must not reach over a space. What is not known to be safe
 * is never cut.
 */
#include <string.h>

#include "text/tok_impl.h"
#include "text/unicode.h"

static const char space_mark[] = "\xE2\x96\x81";

static bool is_text(tok_str s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.s, text, s.n);
}

static bool replaces_space(const tok_norm *n)
{
    return n->kind == NORM_REPLACE && !n->re.code && is_text(n->pattern, " ");
}

static bool norm_is_local(const tok_norm *n)
{
    switch (n->kind) {
    case NORM_NFC:
    case NORM_NFD:
    case NORM_NFKC:
    case NORM_NFKD:
    case NORM_LOWERCASE:
    case NORM_STRIP_ACCENTS:
    case NORM_BERT:
    case NORM_NMT: return true;
    default: return replaces_space(n);
    }
}

static bool pre_is_local(const tok_pre *p)
{
    if (p->kind == PRE_SPLIT) return p->scan || p->is_match || (!p->re.code && p->literal.n == 1);
    return p->kind == PRE_BYTE_LEVEL || p->kind == PRE_METASPACE;
}

/* True if this step ends a piece before a space that a letter precedes. */
static bool pre_ends_piece(const tok_pre *p)
{
    if (p->kind == PRE_METASPACE) return p->split;
    return p->kind == PRE_SPLIT && (p->ends_word || p->is_match == qn_uchar_is_space);
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Whole texts go to BPE with the space mark for spaces: it cuts there itself. */
static bool model_ends_piece(const qn_tokenizer *t)
{
    if (t->model.kind != MODEL_BPE || !t->model.space_boundary) return false;
    for (size_t i = 0; i < t->model.n_crossing; i++) {
        if (t->model.crossing[i] < 0x80 && is_letter((char)t->model.crossing[i])) return false;
    }
    if (t->n_norms == 1) {
        return replaces_space(&t->norms[0]) && is_text(t->norms[0].content, space_mark);
    }
    return !t->n_norms && t->n_pres == 1 && t->pres[0].kind == PRE_METASPACE &&
           is_text(t->pres[0].replacement, space_mark);
}

static bool added_stay_within_words(const qn_tokenizer *t)
{
    bool marks = false; /* a mark in a token can stand for a space */
    for (size_t i = 0; i < t->n_norms; i++) marks |= replaces_space(&t->norms[i]);
    for (size_t i = 0; i < t->n_added; i++) {
        const tok_added *a = &t->added[i];
        if (!a->normalized) continue;
        if (a->lstrip || a->rstrip || a->single_word) return false;
        if (memchr(a->content.s, ' ', a->content.n)) return false;
        if (marks && memmem(a->shown.s, a->shown.n, space_mark, 3)) return false;
    }
    return true;
}

void tok_cut_prepare(qn_tokenizer *t)
{
    bool local = added_stay_within_words(t), ends = false, spaces_gone = false;
    for (size_t i = 0; i < t->n_norms; i++) {
        local &= norm_is_local(&t->norms[i]) && !spaces_gone;
        spaces_gone |= replaces_space(&t->norms[i]);
    }
    for (size_t i = 0; i < t->n_pres; i++) {
        local &= pre_is_local(&t->pres[i]);
        ends |= !spaces_gone && pre_ends_piece(&t->pres[i]);
        spaces_gone |= t->pres[i].kind != PRE_SPLIT;
    }
    t->cuts = local && (ends || model_ends_piece(t));
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->added[i].content.n > t->max_added) t->max_added = t->added[i].content.n;
    }
}

size_t tok_next_cut(const qn_tokenizer *t, tok_str s, size_t from, size_t least)
{
    if (!t->cuts || s.n - from <= least) return s.n;
    const char *hit;
    for (size_t i = from + least; (hit = memchr(s.s + i, ' ', s.n - i)); i++) {
        i = (size_t)(hit - s.s);
        if (i && i + 1 < s.n && is_letter(s.s[i - 1]) && is_letter(s.s[i + 1])) return i;
    }
    return s.n;
}
