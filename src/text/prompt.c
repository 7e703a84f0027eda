/* prompt.c - see prompt.h. */
#include "text/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "text/tok_impl.h"

struct qn_prompt {
    const qn_tokenizer *t;
    unsigned flags;
    qn_buf text; /* the last one, well-formed */
    qn_ids ids;
    tok_marks marks; /* ascending */
    size_t kept;
};

qn_code qn_prompt_new(qn_prompt **out, const qn_tokenizer *t, unsigned flags, qn_err *err)
{
    qn_prompt *p = *out = calloc(1, sizeof *p);
    if (!p) return qn_err_set(err, QN_NOMEM, "prompt: out of memory");
    p->t = t;
    p->flags = flags;
    return QN_OK;
}

static void forget(qn_prompt *p)
{
    qn_buf_clear(&p->text);
    p->ids.len = 0;
    p->ids.failed = false;
    p->marks.n = 0;
    p->kept = 0;
}

void qn_prompt_free(qn_prompt *p)
{
    if (!p) return;
    qn_buf_release(&p->text);
    qn_ids_release(&p->ids);
    free(p->marks.v);
    free(p);
}

size_t qn_prompt_common(const qn_prompt *p, const char *text, size_t n)
{
    enum { BLOCK = 4096 };
    size_t i = 0, most = n < p->text.len ? n : p->text.len;
    while (most - i >= BLOCK && !memcmp(p->text.data + i, text + i, BLOCK)) i += BLOCK;
    while (i < most && p->text.data[i] == text[i]) i++;
    return i;
}

/* Go back to the last mark that nothing behind the common part can have moved: an added token is
 * found by looking at most max_added bytes ahead, a cut at the letter behind its space. */
static void rewind_to(qn_prompt *p, size_t common)
{
    size_t ahead = p->t->max_added > 2 ? p->t->max_added : 2;
    while (p->marks.n && p->marks.v[p->marks.n - 1].at + ahead > common) p->marks.n--;
    p->kept = p->marks.n ? p->marks.v[p->marks.n - 1].at : 0;
    p->ids.len = p->marks.n ? p->marks.v[p->marks.n - 1].n_ids : 0;
}

qn_code qn_prompt_encode(qn_prompt *p, const char *text, size_t n, const qn_ids **ids, qn_err *err)
{
    qn_buf clean = {0};
    qn_code rc = tok_clean(&text, &n, &clean, err);
    if (!rc) {
        rewind_to(p, qn_prompt_common(p, text, n));
        qn_buf_clear(&p->text);
        qn_buf_put(&p->text, text, n);
        rc = tok_encode_from(p->t, (tok_str){text, n}, p->kept, p->flags, &p->ids, &p->marks, err);
        if (!rc && p->text.failed) rc = qn_err_set(err, QN_NOMEM, "prompt: out of memory");
    }
    qn_buf_release(&clean);
    if (rc) forget(p);
    *ids = &p->ids;
    return rc;
}

size_t qn_prompt_kept(const qn_prompt *p)
{
    return p->kept;
}

size_t qn_prompt_length(const qn_prompt *p)
{
    return p->text.len;
}

size_t qn_prompt_bytes(const qn_prompt *p)
{
    return sizeof *p + p->text.cap + p->ids.cap * sizeof *p->ids.data +
           p->marks.cap * sizeof *p->marks.v;
}
