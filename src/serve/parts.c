/* parts.c - see parts.h. */
#include "serve/parts.h"

#include <stdlib.h>
#include <string.h>

void qn_parts_release(qn_parts *p)
{
    for (size_t i = 0; i < p->n; i++) {
        qn_buf_release(&p->list[i].text);
        free(p->list[i].call_id);
        free(p->list[i].call_name);
    }
    free(p->list);
    memset(p, 0, sizeof *p);
}

/* A new part at the end, or NULL. */
static qn_part *add(qn_parts *p, qn_part_kind kind)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 4;
        qn_part *grown = realloc(p->list, cap * sizeof *grown);
        if (!grown) {
            p->failed = true;
            return NULL;
        }
        p->list = grown;
        p->cap = cap;
    }
    qn_part *part = &p->list[p->n++];
    *part = (qn_part){.kind = kind};
    return part;
}

static void put(qn_parts *p, qn_part *part, const char *text, size_t n)
{
    qn_buf_put(&part->text, text, n);
    p->failed |= part->text.failed;
}

void qn_parts_text(qn_parts *p, qn_part_kind kind, const char *text, size_t n)
{
    if (!n) return;
    qn_part *part = p->n && p->list[p->n - 1].kind == kind ? &p->list[p->n - 1] : add(p, kind);
    if (part) put(p, part, text, n);
}

void qn_parts_open_call(qn_parts *p, const char *name, const char *id, bool is_short)
{
    char made[QN_CALL_ID];
    qn_part *part = add(p, QN_PART_CALL);
    if (!part) return;
    if (!id) qn_call_id(made, is_short);
    part->call_index = p->n_calls++;
    part->call_id = strdup(id ? id : made);
    part->call_name = strdup(name);
    p->failed |= !part->call_id || !part->call_name;
}

void qn_parts_call_args(qn_parts *p, const char *text, size_t n)
{
    if (p->n) put(p, &p->list[p->n - 1], text, n);
}

void qn_parts_close_call(qn_parts *p)
{
    if (p->n) p->list[p->n - 1].is_closed = true;
}

void qn_parts_join(const qn_parts *p, qn_part_kind kind, qn_buf *out)
{
    for (size_t i = 0; i < p->n; i++) {
        if (p->list[i].kind == kind) qn_buf_put(out, p->list[i].text.data, p->list[i].text.len);
    }
}
