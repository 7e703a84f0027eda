/* rope.c - rotary embedding.
 *
 * cos and sin of a step's positions are computed once per table, from the absolute position, when
 * the step first uses the table; all its layers then read them.
 */
#include "compute/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>

#include "compute/cpu/kv_layout.h"

struct qn_rope {
    qn_rope_desc desc;
    float *inv; /* [dims/2] */
};

qn_code qn_cpu_rope_new(qn_device *d, const qn_rope_desc *desc, uint32_t max_positions,
                        qn_rope **out, qn_err *err)
{
    (void)max_positions; /* any float32 position works */
    *out = NULL;
    if (desc->dims % 2 || desc->dims == 0 || desc->dims > QN_CPU_MAX_HEAD)
        return qn_err_set(err, QN_INVALID,
                          "rotary dimensions %u: an even number from 2 to %d is needed",
                          desc->dims, QN_CPU_MAX_HEAD);
    if (!desc->freqs && !(desc->base > 0 && isfinite(desc->base)))
        return qn_err_set(err, QN_INVALID, "rotary base %g: a positive number is needed",
                          (double)desc->base);
    qn_arena *arena = &((qn_cpu *)d)->arena;
    qn_rope *rope = qn_arena_take(arena, 1, sizeof *rope);
    float *inv = qn_arena_take(arena, desc->dims / 2, sizeof *inv);
    if (!rope || !inv) return qn_err_set(err, QN_NOMEM, "out of memory for a rotary table");
    qn_rope_inv(desc, inv);
    rope->desc = *desc;
    rope->desc.freqs = NULL;
    rope->inv = inv;
    *out = rope;
    return QN_OK;
}

typedef struct rope_job {
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
        float *cos_row = j->table + (size_t)r * 2 * half, *sin_row = cos_row + half;
        float pos = (float)j->pos[r] * j->rope->desc.pos_scale;
        for (uint32_t k = 0; k < half; k++)
            sincosf(pos * j->rope->inv[k], &sin_row[k], &cos_row[k]);
    }
}

static void rotate_halves(float *restrict a, float *restrict b, const float *c, const float *s,
                          uint32_t half)
{
    for (uint32_t k = 0; k < half; k++) {
        float x = a[k], y = b[k];
        a[k] = x * c[k] - y * s[k];
        b[k] = x * s[k] + y * c[k];
    }
}

static void rotate_pairs(float *x, const float *c, const float *s, uint32_t half)
{
    for (uint32_t k = 0; k < half; k++) {
        float a = x[2 * k], b = x[2 * k + 1];
        x[2 * k] = a * c[k] - b * s[k];
        x[2 * k + 1] = a * s[k] + b * c[k];
    }
}

static void rotate_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const rope_job *j = arg;
    const qn_rope_desc *d = &j->rope->desc;
    uint32_t half = d->dims / 2;
    for (uint32_t r = r0; r < r1; r++) {
        const float *c = j->table + (size_t)r * d->dims, *s = c + half;
        for (uint32_t col = 0; col < j->x.cols; col += j->d_head) {
            float *x = qn_cpu_row(j->x, r) + col;
            if (d->mscale != 1)
                for (uint32_t i = 0; i < d->dims; i++) x[i] *= d->mscale;
            if (d->traditional) rotate_pairs(x, c, s, half);
            else rotate_halves(x, x + half, c, s, half);
        }
    }
}

/* The step's table for this rope: filled on first use. With more tables in a step than slots, the
 * oldest is computed again when it is needed. */
static float *step_table(qn_cpu_run *r, const qn_rope *rope)
{
    for (uint32_t i = 0; i < QN_CPU_ROPE_SLOTS; i++)
        if (r->ropes[i].rope == rope) return r->ropes[i].table;
    qn_cpu_rope_slot *slot = &r->ropes[r->next_rope++ % QN_CPU_ROPE_SLOTS];
    slot->rope = rope;
    if (r->measures) {
        size_t *bytes = &r->need.ropes[slot - r->ropes];
        size_t n = ((size_t)r->limits.max_tokens * rope->desc.dims * sizeof(float) + 63) / 64 * 64;
        if (n > *bytes) *bytes = n;
    }
    rope_job j = {.rope = rope, .pos = r->base.batch->pos, .table = slot->table};
    /* A sine costs as much as 16 plain elements. */
    qn_cpu_rows(r, table_rows, &j, r->base.batch->n_tokens, rope->desc.dims * 16);
    return slot->table;
}

void qn_cpu_rope(qn_run *r, qn_tensor x, uint32_t d_head, const qn_rope *rope)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    qn_check(x.rows == r->batch->n_tokens && d_head && rope->desc.dims <= d_head);
    qn_check(x.cols % d_head == 0 || x.cols % d_head >= rope->desc.dims);
    rope_job j = {.rope = rope, .table = step_table(c, rope), .x = x, .d_head = d_head};
    qn_cpu_rows(c, rotate_rows, &j, x.rows, x.cols);
}
