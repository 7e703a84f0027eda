/* ref_rope.c - rotary embedding. Cosines and sines of a step's positions are made in float32 once
 * per description, then rounded to the type of what they rotate. */
#include <math.h>
#include <string.h>

#include "compute/ref/ref.h"

struct qn_rope {
    qn_rope_desc desc;
    float *inv; /* [dims/2] */
};

qn_code qn_ref_rope_new(qn_device *d, const qn_rope_desc *desc, uint32_t max_positions,
                        qn_rope **out, qn_err *err)
{
    (void)max_positions; /* any float32 position works */
    *out = NULL;
    if (desc->dims % 2 || desc->dims == 0 || desc->dims > QN_REF_MAX_HEAD)
        return qn_err_set(err, QN_INVALID,
                          "rotary dimensions %u: an even number from 2 to %d is needed", desc->dims,
                          QN_REF_MAX_HEAD);
    if (!desc->freqs && !(desc->base > 0 && isfinite(desc->base)))
        return qn_err_set(err, QN_INVALID, "rotary base %g: a positive number is needed",
                          (double)desc->base);
    qn_arena *arena = &((qn_ref *)(void *)d)->arena;
    qn_rope *rope = qn_arena_take(arena, 1, sizeof *rope);
    float *inv = qn_arena_take(arena, desc->dims / 2, sizeof *inv);
    if (!rope || !inv) return qn_err_set(err, QN_NOMEM, "out of memory for a rotary table");
    qn_rope_inv(desc, inv);
    *rope = (qn_rope){.desc = *desc, .inv = inv};
    rope->desc.freqs = NULL;
    *out = rope;
    return QN_OK;
}

typedef struct rope_job {
    const qn_ref_kernels *k;
    const qn_rope *rope;
    const uint32_t *pos;
    float *table; /* [T, dims]: dims/2 cosines, then dims/2 sines */
    qn_tensor x;
    uint32_t d_head;
} rope_job;

static void table_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const rope_job *j = arg;
    uint32_t half = j->rope->desc.dims / 2;
    for (uint32_t r = r0; r < r1; r++) {
        float *c = j->table + (size_t)r * 2 * half, *s = c + half;
        float pos = (float)j->pos[r] * j->rope->desc.pos_scale;
        for (uint32_t k = 0; k < half; k++) {
            float theta = pos * j->rope->inv[k];
            c[k] = qn_ref_cosf(theta);
            s[k] = qn_ref_sinf(theta);
        }
    }
}

/* One head: x1*C - x2*S and x1*S + x2*C, every product and sum rounded to t. */
static void rotate_head(const rope_job *j, float *x, const float *cs, qn_dtype t)
{
    const qn_rope_desc *d = &j->rope->desc;
    uint32_t half = d->dims / 2, step = d->traditional ? 2 : 1, second = d->traditional ? 1 : half;
    float p[4][QN_REF_MAX_HEAD / 2]; /* x1*C, x2*S, x1*S, x2*C; then the two results */
    if (d->mscale != 1) {
        float m = qn_ref_round(d->mscale, t);
        for (uint32_t i = 0; i < d->dims; i++) x[i] = x[i] * m;
        j->k->round(x, t, d->dims);
    }
    for (uint32_t k = 0; k < half; k++) {
        float x1 = x[k * step], x2 = x[k * step + second];
        p[0][k] = x1 * cs[k];
        p[1][k] = x2 * cs[half + k];
        p[2][k] = x1 * cs[half + k];
        p[3][k] = x2 * cs[k];
    }
    for (int i = 0; i < 4; i++) j->k->round(p[i], t, half);
    for (uint32_t k = 0; k < half; k++) {
        x[k * step] = p[0][k] - p[1][k];
        x[k * step + second] = p[2][k] + p[3][k];
    }
}

static void rotate_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const rope_job *j = arg;
    uint32_t dims = j->rope->desc.dims;
    float cs[QN_REF_MAX_HEAD], head[QN_REF_MAX_HEAD];
    qn_dtype t = j->x.dtype;
    for (uint32_t r = r0; r < r1; r++) {
        memcpy(cs, j->table + (size_t)r * dims, dims * sizeof *cs);
        j->k->round(cs, t, dims);
        for (uint32_t c = 0; c < j->x.cols; c += j->d_head) {
            uint8_t *at = qn_ref_at(j->x, r, c);
            j->k->widen(head, at, t, dims);
            rotate_head(j, head, cs, t);
            j->k->narrow(at, t, head, dims);
        }
    }
}

/* The step's table: filled on first use. With more tables in a step than slots, the oldest is
 * computed again when it is needed. */
static float *step_table(qn_ref_run *r, const qn_rope *rope)
{
    for (uint32_t i = 0; i < QN_REF_ROPE_SLOTS; i++)
        if (r->ropes[i].rope == rope) return r->ropes[i].table;
    qn_ref_rope_slot *slot = &r->ropes[r->next_rope++ % QN_REF_ROPE_SLOTS];
    slot->rope = rope;
    if (r->measures) {
        size_t *bytes = &r->rope_bytes[slot - r->ropes];
        size_t n = ((size_t)r->limits.max_tokens * rope->desc.dims * sizeof(float) + 63) / 64 * 64;
        if (n > *bytes) *bytes = n;
    }
    rope_job j = {.rope = rope, .pos = r->base.batch->pos, .table = slot->table};
    /* A sine costs as much as 16 plain elements. */
    qn_ref_rows(r, table_rows, &j, r->base.batch->n_tokens, rope->desc.dims * 16);
    return slot->table;
}

void qn_ref_rope(qn_run *r, qn_tensor x, uint32_t d_head, const qn_rope *rope)
{
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    qn_check(x.rows == r->batch->n_tokens && d_head && rope->desc.dims <= d_head);
    qn_check(x.cols % d_head == 0 || x.cols % d_head >= rope->desc.dims);
    rope_job j = {
        .k = c->ref->k, .rope = rope, .table = step_table(c, rope), .x = x, .d_head = d_head};
    qn_ref_rows(c, rotate_rows, &j, x.rows, x.cols);
}
