/* finder.c - see finder.h. */
#include "core/finder.h"

#include <string.h>

void qn_finder_release(qn_finder *f)
{
    qn_buf_release(&f->held);
    memset(f, 0, sizeof *f);
}

void qn_finder_set(qn_finder *f, const char *const *needles, size_t n)
{
    f->n_needles = n < QN_MAX_NEEDLES ? n : QN_MAX_NEEDLES;
    for (size_t i = 0; i < f->n_needles; i++) {
        f->needles[i] = needles[i];
        f->sizes[i] = strlen(needles[i]);
    }
    f->n_checked = 0;
}

static void forget_used(qn_finder *f)
{
    if (f->n_used) qn_buf_drop(&f->held, f->n_used);
    f->n_used = 0;
}

void qn_finder_push(qn_finder *f, const char *text, size_t n)
{
    forget_used(f);
    if (n) qn_buf_put(&f->held, text, n);
}

/* The longest needle that ends at byte `end`. */
static int ending_at(const qn_finder *f, size_t end)
{
    int best = QN_NO_NEEDLE;
    for (size_t i = 0; i < f->n_needles; i++) {
        size_t n = f->sizes[i];
        if (!n || n > end || memcmp(f->held.data + end - n, f->needles[i], n)) continue;
        if (best == QN_NO_NEEDLE || n > f->sizes[best]) best = (int)i;
    }
    return best;
}

/* Bytes at the end that begin some needle. */
static size_t hidden_tail(const qn_finder *f)
{
    size_t best = 0, len = f->held.len;
    for (size_t i = 0; i < f->n_needles; i++) {
        if (!f->sizes[i]) continue;
        size_t n = f->sizes[i] - 1 < len ? f->sizes[i] - 1 : len;
        while (n > best && memcmp(f->held.data + len - n, f->needles[i], n)) n--;
        if (n > best) best = n;
    }
    return best;
}

bool qn_finder_next(qn_finder *f, qn_found *out)
{
    forget_used(f);
    *out = (qn_found){.text = f->held.data ? f->held.data : "", .needle = QN_NO_NEEDLE};
    for (size_t end = f->n_checked + 1; end <= f->held.len; end++) {
        int hit = ending_at(f, end);
        if (hit == QN_NO_NEEDLE) continue;
        out->n = end - f->sizes[hit];
        out->needle = hit;
        f->n_used = end;
        f->n_checked = 0;
        return true;
    }
    out->n = f->held.len - hidden_tail(f);
    f->n_used = out->n;
    f->n_checked = f->held.len - out->n;
    return out->n > 0;
}

void qn_finder_rest(qn_finder *f, qn_found *out)
{
    forget_used(f);
    *out = (qn_found){.text = f->held.data ? f->held.data : "", .n = f->held.len,
                      .needle = QN_NO_NEEDLE};
    f->n_used = f->held.len;
    f->n_checked = 0;
}
