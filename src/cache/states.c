/* states.c - the free list of state slots and their holders. */
#include "cache/states.h"

#include <stdlib.h>

struct qn_states {
    qn_device *dev;
    qn_kv *kv;
    uint32_t total, n_free, least_free; /* least_free: that ever was */
    uint32_t *stack; /* [total] free slots, the next one last */
    uint32_t *ref;   /* [total] holders of each slot */
    size_t bytes;    /* of one slot */
};

qn_code qn_states_new(qn_states **out, qn_device *dev, qn_kv *kv, uint32_t n, size_t bytes,
                      qn_err *err)
{
    *out = NULL;
    qn_states *s = calloc(1, sizeof *s);
    if (!s) return qn_err_set(err, QN_NOMEM, "state slots: out of memory");
    *s = (qn_states){.dev = dev, .kv = kv, .total = n, .n_free = n, .least_free = n, .bytes = bytes};
    s->stack = malloc((n ? n : 1) * sizeof *s->stack);
    s->ref = calloc(n ? n : 1, sizeof *s->ref);
    if (!s->stack || !s->ref) {
        qn_states_free(s);
        return qn_err_set(err, QN_NOMEM, "state slots: out of memory");
    }
    for (uint32_t i = 0; i < n; i++) s->stack[i] = n - 1 - i;
    *out = s;
    return QN_OK;
}

void qn_states_free(qn_states *s)
{
    if (!s) return;
    free(s->stack);
    free(s->ref);
    free(s);
}

uint32_t qn_states_take(qn_states *s)
{
    if (!s->n_free) return QN_NO_STATE;
    uint32_t slot = s->stack[--s->n_free];
    if (s->n_free < s->least_free) s->least_free = s->n_free;
    qn_check(s->ref[slot] == 0);
    s->ref[slot] = 1;
    return slot;
}

void qn_states_ref(qn_states *s, uint32_t slot)
{
    qn_check(slot < s->total && s->ref[slot] > 0);
    s->ref[slot]++;
}

void qn_states_unref(qn_states *s, uint32_t slot)
{
    qn_check(slot < s->total && s->ref[slot] > 0);
    if (--s->ref[slot] == 0) s->stack[s->n_free++] = slot;
}

void qn_states_clear(qn_states *s, uint32_t slot)
{
    qn_check(slot < s->total && s->ref[slot] == 1);
    s->dev->ops->state_clear(s->kv, slot);
}

void qn_states_copy(qn_states *s, uint32_t dst, uint32_t src)
{
    qn_check(dst < s->total && s->ref[dst] == 1 && src < s->total && s->ref[src] > 0);
    s->dev->ops->state_copy(s->kv, dst, src);
}

uint32_t qn_states_available(const qn_states *s)
{
    return s->n_free;
}

uint32_t qn_states_touched(const qn_states *s)
{
    return s->total - s->least_free;
}

uint32_t qn_states_total(const qn_states *s)
{
    return s->total;
}

size_t qn_states_bytes(const qn_states *s)
{
    return s->bytes;
}

uint32_t qn_states_holders(const qn_states *s, uint32_t slot)
{
    return s->ref[slot];
}
