/* kv_b.c - splitting the matrix that brings latents to the keys and values of all heads. */
#include <string.h>

#include "model/dense.h"

/* Memory for a stack of the form of m. */
static qn_code new_stack(qn_matrix *s, const qn_matrix *m, uint32_t n, uint32_t n_out, uint32_t n_in,
                         qn_arena *a, qn_err *err)
{
    const bool dense = m->spec.mode == QN_Q_NONE;
    const size_t size = qn_dtype_size(m->dtype), rows = (size_t)n * n_out;
    const size_t row = dense ? n_in * size : qn_qrow_bytes(&m->spec, n_in);
    *s = (qn_matrix){.spec = m->spec, .n_experts = n, .n_out = n_out, .n_in = n_in, .dtype = m->dtype};
    s->weight = qn_arena_take(a, rows, row);
    if (!dense) {
        s->scales = qn_arena_take(a, rows, n_in / m->spec.group_size * size);
        s->biases = qn_arena_take(a, rows, n_in / m->spec.group_size * size);
    }
    if (!s->weight || (!dense && (!s->scales || !s->biases)))
        return qn_err_set(err, QN_NOMEM, "model: out of memory for a split kv_b_proj");
    return QN_OK;
}

/* Store row i of a stack whose memory is ours; x has values of the stack's type. */
static void put_row(const qn_matrix *s, size_t i, const float *x)
{
    const size_t size = qn_dtype_size(s->dtype);
    if (s->spec.mode == QN_Q_NONE) {
        qn_narrow((uint8_t *)(uintptr_t)s->weight + i * s->n_in * size, s->dtype, x, s->n_in);
        return;
    }
    const size_t group = i * (s->n_in / s->spec.group_size) * size;
    qn_quantize_row(&s->spec, s->dtype, x, s->n_in,
                    (uint8_t *)(uintptr_t)s->weight + i * qn_qrow_bytes(&s->spec, s->n_in),
                    (uint8_t *)(uintptr_t)s->scales + group, (uint8_t *)(uintptr_t)s->biases + group);
}

qn_code qn_kv_b_split(const qn_matrix *m, uint32_t n_heads, uint32_t n, uint32_t v, const char *path,
                      qn_arena *a, qn_matrix *embed, qn_matrix *unembed, qn_err *err)
{
    const uint32_t latent = m->n_in, width = n + v;
    const qn_qspec *q = &m->spec;
    qn_check(m->n_out == n_heads * width);
    if ((q->mode != QN_Q_NONE && q->mode != QN_Q_AFFINE) || (q->mode && n % q->group_size))
        return qn_err_set(err, QN_UNSUPPORTED,
                          "%s: not supported yet: splitting a matrix in the form %s with groups of %u into "
                          "heads of %u and %u", path, qn_qmode_name(q->mode), q->group_size, n, v);
    qn_code rc = new_stack(embed, m, n_heads, latent, n, a, err);
    if (!rc) rc = new_stack(unembed, m, n_heads, v, latent, a, err);
    qn_arena own = {0}; /* a head's rows, and the first of them transposed */
    float *rows = rc ? NULL : qn_arena_take(&own, (size_t)width * latent, sizeof *rows);
    float *turned = rc ? NULL : qn_arena_take(&own, (size_t)n * latent, sizeof *turned);
    if (!rc && (!rows || !turned))
        rc = qn_err_set(err, QN_NOMEM, "model: out of memory for a split kv_b_proj");
    for (uint32_t h = 0; !rc && h < n_heads; h++) {
        for (uint32_t i = 0; i < width; i++)
            qn_matrix_row(m, (size_t)h * width + i, true, rows + (size_t)i * latent);
        qn_transpose_heads(turned, rows, 1, n, latent);
        for (uint32_t i = 0; i < latent; i++)
            put_row(embed, (size_t)h * latent + i, turned + (size_t)i * n);
        for (uint32_t i = 0; i < v; i++)
            put_row(unembed, (size_t)h * v + i, rows + (size_t)(n + i) * latent);
    }
    qn_arena_release(&own);
    return rc;
}
