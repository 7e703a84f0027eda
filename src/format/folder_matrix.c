/* folder_matrix.c - binding tensors of a folder to the shapes that a family asks for, and keeping
 * account of which tensors were bound.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "format/folder_private.h"

enum { SHOWN_UNUSED = 3 };

bool qn_folder_has(const qn_folder *f, const char *name)
{
    return f->shards && qn_shards_find(f->shards, name);
}

void qn_folder_drop(qn_folder *f, const char *name)
{
    size_t i = f->shards ? qn_shards_index(f->shards, name) : SIZE_MAX;
    if (i != SIZE_MAX) f->touched[i] = true;
}

void qn_folder_drop_prefix(qn_folder *f, const char *prefix)
{
    const qn_shards *s = qn_folder_shards(f);
    for (size_t i = 0; i < qn_shards_count(s); i++) {
        const char *name = qn_shards_at(s, i)->name;
        if (!strncmp(name, prefix, strlen(prefix))) qn_folder_drop(f, name);
    }
}

/* Finds a tensor and marks it. */
static const qn_stored *touch(qn_folder *f, const char *name)
{
    size_t i = f->shards ? qn_shards_index(f->shards, name) : SIZE_MAX;
    if (i == SIZE_MAX) return NULL;
    f->touched[i] = true;
    return qn_shards_at(f->shards, i);
}

static qn_code missing(const qn_folder *f, const char *name, qn_err *err)
{
    return qn_err_set(err, QN_NOT_FOUND, "%s: tensor \"%s\" is missing", f->dir, name);
}

static qn_code find_part(qn_folder *f, const char *path, const char *part, const qn_stored **out,
                         qn_err *err)
{
    char name[QN_MAX_TENSOR_NAME];
    int n = snprintf(name, sizeof name, "%s.%s", path, part);
    if (n < 0 || (size_t)n >= sizeof name) {
        return qn_err_set(err, QN_LIMIT, "tensor name too long: %s", path);
    }
    *out = touch(f, name);
    return *out ? QN_OK : missing(f, name, err);
}

static const char *show_shape(const uint64_t *dims, uint32_t rank, char out[192])
{
    size_t n = (size_t)snprintf(out, 192, "[");
    for (uint32_t i = 0; i < rank; i++) {
        n += (size_t)snprintf(out + n, 192 - n, "%s%" PRIu64, i ? ", " : "", dims[i]);
    }
    snprintf(out + n, 192 - n, "]");
    return out;
}

/* ---- matrices ---- */

/* What a matrix's tensors must look like: [experts,] n_out, cols. */
static qn_code check_shape(const qn_stored *t, const qn_matrix *m, bool stacked, uint64_t cols,
                           qn_err *err)
{
    uint64_t want[3] = {m->n_experts, m->n_out, cols};
    const uint64_t *dims = stacked ? want : want + 1;
    uint32_t rank = stacked ? 3 : 2;
    if (t->rank == rank && !memcmp(t->dims, dims, rank * sizeof *dims)) return QN_OK;
    char has[192], right[192], note[64] = "";
    if (m->spec.mode != QN_Q_NONE) {
        snprintf(note, sizeof note, " with %u bits and group size %u", m->spec.bits,
                 m->spec.group_size);
    }
    return qn_err_set(err, QN_FORMAT, "tensor \"%s\" has shape %s; it must be %s%s", t->name,
                      show_shape(t->dims, t->rank, has), show_shape(dims, rank, right), note);
}

/* Takes what the caller left open (0) from the weight's outer dimensions and checks the rank. */
static qn_code resolve_outer(const qn_stored *w, qn_matrix *m, bool *stacked, qn_err *err)
{
    char has[192];
    *stacked = w->rank == 3;
    bool rank_fits = w->rank == 2 ? m->n_experts <= 1 : w->rank == 3;
    for (uint32_t i = 0; i < w->rank; i++) rank_fits &= w->dims[i] >= 1 && w->dims[i] <= UINT32_MAX;
    if (!rank_fits) {
        return qn_err_set(err, QN_FORMAT, "tensor \"%s\" has shape %s; it must be a matrix%s",
                          w->name, show_shape(w->dims, w->rank, has),
                          m->n_experts == 1 ? "" : " or a stack of them");
    }
    if (!m->n_experts) m->n_experts = *stacked ? (uint32_t)w->dims[0] : 1;
    if (!m->n_out) m->n_out = (uint32_t)w->dims[w->rank - 2];
    return QN_OK;
}

static bool is_activation_type(qn_dtype t)
{
    return t == QN_F32 || t == QN_F16 || t == QN_BF16;
}

static qn_code bad_dtype(const qn_stored *t, const char *right, qn_err *err)
{
    return qn_err_set(err, QN_FORMAT, "tensor \"%s\" has dtype %s; it must be %s", t->name,
                      qn_dtype_name(t->dtype), right);
}

static qn_code bind_dense(const qn_stored *w, bool stacked, qn_matrix *m, qn_err *err)
{
    if (!is_activation_type(w->dtype)) {
        return bad_dtype(w, "F32, F16 or BF16 where the module is not quantized", err);
    }
    if (!m->n_in) m->n_in = (uint32_t)w->dims[w->rank - 1];
    m->weight = w->data;
    m->dtype = w->dtype;
    return check_shape(w, m, stacked, m->n_in, err);
}

/* The scales decide the row length where the caller left it open: their groups are whole. */
static qn_code resolve_n_in(const qn_stored *scales, qn_matrix *m, qn_err *err)
{
    if (!m->n_in) {
        uint64_t groups = scales->rank ? scales->dims[scales->rank - 1] : 0;
        if (groups < 1 || groups > UINT32_MAX / m->spec.group_size) {
            return qn_err_set(err, QN_FORMAT,
                              "tensor \"%s\" has %" PRIu64 " groups in a row; it must be 1 to %u",
                              scales->name, groups, UINT32_MAX / m->spec.group_size);
        }
        m->n_in = (uint32_t)groups * m->spec.group_size;
    }
    return qn_qspec_check(&m->spec, m->n_in, err);
}

static qn_code bind_biases(qn_folder *f, const char *path, bool stacked, qn_matrix *m, qn_err *err)
{
    const qn_stored *biases;
    qn_code rc = find_part(f, path, "biases", &biases, err);
    if (rc) return rc;
    if (biases->dtype != m->dtype) return bad_dtype(biases, "the type of the scales", err);
    m->biases = biases->data;
    return check_shape(biases, m, stacked, m->n_in / m->spec.group_size, err);
}

static qn_code bind_quantized(qn_folder *f, const char *path, const qn_stored *w, bool stacked,
                              qn_matrix *m, qn_err *err)
{
    const qn_stored *scales;
    qn_code rc;
    if ((rc = find_part(f, path, "scales", &scales, err))) return rc;
    if (w->dtype != QN_U32) return bad_dtype(w, "U32 where the module is quantized", err);
    if ((rc = resolve_n_in(scales, m, err))) return rc;
    if ((rc = check_shape(w, m, stacked, (uint64_t)m->n_in * m->spec.bits / 32, err))) return rc;
    if ((rc = check_shape(scales, m, stacked, m->n_in / m->spec.group_size, err))) return rc;
    m->weight = w->data;
    m->scales = scales->data;
    if (m->spec.mode == QN_Q_AFFINE) {
        if (!is_activation_type(scales->dtype)) return bad_dtype(scales, "F32, F16 or BF16", err);
        m->dtype = scales->dtype;
        return bind_biases(f, path, stacked, m, err);
    }
    if (scales->dtype != QN_U8 && scales->dtype != QN_F8_E4M3 && scales->dtype != QN_F8_E8M0) {
        return bad_dtype(scales, "U8 in this quantization mode", err);
    }
    m->dtype = QN_BF16;
    return QN_OK;
}

qn_code qn_folder_matrix(qn_folder *f, const char *path, uint32_t n_experts, uint32_t n_out,
                         uint32_t n_in, qn_matrix *out, qn_err *err)
{
    const qn_stored *w;
    bool stacked;
    qn_matrix m = {.n_experts = n_experts, .n_out = n_out, .n_in = n_in};
    qn_code rc;
    *out = (qn_matrix){0};
    if ((rc = find_part(f, path, "weight", &w, err))) return rc;
    if ((rc = qn_folder_qspec(f, path, &m.spec, err))) return rc;
    if ((rc = resolve_outer(w, &m, &stacked, err))) return rc;
    if (m.spec.mode == QN_Q_NONE) rc = bind_dense(w, stacked, &m, err);
    else rc = bind_quantized(f, path, w, stacked, &m, err);
    if (!rc) *out = m;
    return rc;
}

/* ---- vectors and the account ---- */

qn_code qn_folder_vector(qn_folder *f, const char *name, uint64_t count, bool optional,
                         const qn_stored **out, qn_err *err)
{
    *out = NULL;
    const qn_stored *t = touch(f, name);
    if (!t) return optional ? QN_OK : missing(f, name, err);
    uint64_t has = t->bytes / qn_dtype_size(t->dtype);
    if (count && has != count) {
        char shape[192];
        return qn_err_set(err, QN_FORMAT,
                          "tensor \"%s\" has shape %s; it must have %" PRIu64 " elements", name,
                          show_shape(t->dims, t->rank, shape), count);
    }
    *out = t;
    return QN_OK;
}

qn_code qn_folder_check_all_used(const qn_folder *f, qn_err *err)
{
    size_t unused = 0, n = f->shards ? qn_shards_count(f->shards) : 0;
    qn_buf names = {0};
    for (size_t i = 0; i < n; i++) {
        if (f->touched[i]) continue;
        if (unused < SHOWN_UNUSED) {
            qn_buf_printf(&names, "%s\"%.100s\"", unused ? ", " : "",
                          qn_shards_at(f->shards, i)->name);
        }
        unused++;
    }
    qn_code rc = QN_OK;
    if (unused) {
        rc = qn_err_set(err, QN_FORMAT, "%s: %zu tensor%s not part of this architecture: %s%s",
                        f->dir, unused, unused == 1 ? " is" : "s are",
                        names.failed ? "" : names.data, unused > SHOWN_UNUSED ? ", ..." : "");
    }
    qn_buf_release(&names);
    return rc;
}
