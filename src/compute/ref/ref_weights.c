/* ref_weights.c - loading: matrices are used where the file's mapping has them, vectors are copied.
 */
#include <string.h>

#include "compute/ref/ref.h"
#include "core/memory.h"

/* What one call of load brought. */
struct qn_ref_load {
    struct qn_ref_load *next;
    qn_weight *w;
    size_t n;
};

/* A matrix's parts in the file: codes, scales, biases. */
static void part_bytes(const qn_matrix *m, size_t bytes[3])
{
    size_t rows = (size_t)m->n_experts * m->n_out;
    bool dense = m->spec.mode == QN_Q_NONE, affine = m->spec.mode == QN_Q_AFFINE;
    bytes[0] = rows * (dense ? m->n_in * qn_dtype_size(m->dtype) : qn_qrow_bytes(&m->spec, m->n_in));
    bytes[1] = dense ? 0 : rows * (m->n_in / m->spec.group_size) * (affine ? qn_dtype_size(m->dtype) : 1);
    bytes[2] = affine ? bytes[1] : 0;
}

uint64_t qn_ref_weights_bytes(const qn_device *d, uint64_t *resident)
{
    uint64_t total = 0;
    size_t bytes[3];
    if (resident) *resident = 0;
    for (const struct qn_ref_load *l = ((const qn_ref *)(const void *)d)->loads; l; l = l->next) {
        for (size_t i = 0; i < l->n; i++) {
            const qn_matrix *m = &l->w[i].m;
            const void *parts[3] = {m->weight, m->scales, m->biases};
            part_bytes(m, bytes);
            for (int k = 0; k < 3; k++) {
                total += bytes[k];
                if (resident && bytes[k]) *resident += qn_memory_resident(parts[k], bytes[k]);
            }
        }
    }
    return total;
}

qn_code qn_ref_weights_pin(const qn_device *d, qn_err *err)
{
    const uint64_t all = qn_ref_weights_bytes(d, NULL);
    size_t bytes[3];
    for (const struct qn_ref_load *l = ((const qn_ref *)(const void *)d)->loads; l; l = l->next) {
        for (size_t i = 0; i < 3 * l->n; i++) {
            const qn_matrix *m = &l->w[i / 3].m;
            const void *parts[3] = {m->weight, m->scales, m->biases};
            part_bytes(m, bytes);
            qn_code rc = qn_memory_pin(parts[i % 3], bytes[i % 3], all, err);
            if (rc) return rc;
        }
    }
    return QN_OK;
}

static qn_code check_matrix(const qn_matrix_src *src, qn_err *err)
{
    const qn_matrix *m = &src->m;
    qn_code rc = qn_qspec_check(&m->spec, m->n_in, err);
    if (rc) return qn_err_prefix(err, "%s", src->path);
    if (m->dtype != QN_F32 && m->dtype != QN_F16 && m->dtype != QN_BF16)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "%s: weights of type %s; F32, F16 and BF16 can be computed", src->path,
                          qn_dtype_name(m->dtype));
    return QN_OK;
}

/* Activations of a 16-bit model: every code once. */
static qn_code fill_act_table(qn_ref *ref, qn_dtype t, qn_err *err)
{
    if (t == QN_F32 || ref->table_type == t) return QN_OK;
    if (!ref->act_table)
        ref->act_table = qn_arena_take(&ref->arena, QN_REF_N_ACTS << 16, sizeof(uint16_t));
    if (!ref->act_table) return qn_err_set(err, QN_NOMEM, "out of memory for the reference device");
    for (uint32_t kind = 0; kind < QN_REF_N_ACTS; kind++) {
        uint16_t *table = ref->act_table + ((size_t)kind << 16);
        for (uint32_t code = 0; code < 1u << 16; code++) {
            uint16_t h = (uint16_t)code;
            float x = t == QN_BF16 ? qn_bf16_f32(h) : qn_f16_f32(h);
            float y = qn_ref_act_of(x, (qn_act)kind, t);
            table[code] = t == QN_BF16 ? qn_f32_bf16(y) : qn_f32_f16(y);
        }
    }
    ref->table_type = t;
    return QN_OK;
}

qn_code qn_ref_load(qn_device *d, const qn_matrix_src *src, size_t n, const qn_load_opts *opts,
                    qn_weight **out, qn_err *err)
{
    qn_ref *ref = (qn_ref *)(void *)d;
    qn_code rc;
    for (size_t i = 0; i < n; i++)
        if ((rc = check_matrix(&src[i], err))) return rc;
    if ((rc = fill_act_table(ref, opts->model_dtype, err))) return rc;
    qn_weight *w = qn_arena_take(&ref->arena, n, sizeof *w);
    struct qn_ref_load *load = qn_arena_take(&ref->arena, 1, sizeof *load);
    if (!w || !load) return qn_err_set(err, QN_NOMEM, "out of memory for %zu matrices", n);
    for (size_t i = 0; i < n; i++) {
        w[i].m = src[i].m;
        out[i] = &w[i];
    }
    *load = (struct qn_ref_load){.next = ref->loads, .w = w, .n = n};
    ref->loads = load;
    const uint64_t total = qn_ref_weights_bytes(d, NULL);
    if (opts->progress) opts->progress(opts->user, total, total);
    return QN_OK;
}

qn_code qn_ref_upload(qn_device *d, const void *data, qn_dtype t, uint32_t rows, uint32_t cols,
                      qn_tensor *out, qn_err *err)
{
    size_t n, bytes;
    *out = (qn_tensor){0};
    if (t != QN_F32 && t != QN_F16 && t != QN_BF16)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "a tensor of type %s; F32, F16 and BF16 can be computed",
                          qn_dtype_name(t));
    void *p = NULL;
    if (!qn_mul_size(rows, cols, &n) && !qn_mul_size(n, qn_dtype_size(t), &bytes))
        p = qn_arena_take(&((qn_ref *)(void *)d)->arena, bytes ? bytes : 1, 1);
    if (!p)
        return qn_err_set(err, QN_NOMEM, "out of memory for a tensor of %u x %u elements", rows,
                          cols);
    memcpy(p, data, bytes);
    *out = (qn_tensor){(uintptr_t)p, t, rows, cols, cols};
    return QN_OK;
}
