/* rows.c - making dense and quantized rows from any source; see rows.h. */
#include "tune/rows.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t qn_rows_source(const qn_rows *rows, size_t r)
{
    size_t d = rows->head_rows;
    if (!d) return r;
    size_t in_head = r % d, a = in_head / (d / 2), b = in_head % (d / 2);
    return r - in_head + 2 * b + a;
}

bool qn_rows_is_float(const qn_rows *rows)
{
    return rows->kind != QN_ROWS_STORED || rows->dtype == QN_F32 || rows->dtype == QN_F16 ||
           rows->dtype == QN_BF16;
}

qn_qspec qn_rows_spec(const qn_rows *rows)
{
    if (rows->kind == QN_ROWS_MLX) return rows->matrix.spec;
    if (rows->kind == QN_ROWS_GGUF) return rows->layout->spec;
    return (qn_qspec){QN_Q_NONE, 0, 0};
}

static const uint8_t *stored_row(const qn_rows *rows, size_t r)
{
    size_t row_bytes = rows->n_in * qn_dtype_size(rows->dtype);
    const uint8_t *expert = rows->experts[r / rows->expert_rows];
    return expert + r % rows->expert_rows * row_bytes;
}

static const uint8_t *gguf_row(const qn_rows *rows, size_t r)
{
    const qn_gguf_layout *l = rows->layout;
    return rows->blocks + qn_rows_source(rows, r) * (rows->n_in / l->block_items) * l->block_bytes;
}

/* A row that lies as a column. */
static void column_values(const qn_rows *rows, size_t r, float *y)
{
    enum { CHUNK = 256 };
    uint8_t chunk[CHUNK * sizeof(float)];
    const size_t size = qn_dtype_size(rows->dtype), step = rows->stride * size;
    const uint8_t *x = (const uint8_t *)rows->experts[r / rows->expert_rows] + r % rows->expert_rows * size;
    for (size_t i = 0, n; i < rows->n_in; i += n) {
        n = rows->n_in - i < CHUNK ? rows->n_in - i : CHUNK;
        for (size_t k = 0; k < n; k++) memcpy(chunk + k * size, x + (i + k) * step, size);
        qn_widen(y + i, chunk, rows->dtype, n);
    }
}

/* The bytes of row r if it is dense and of type `dtype` already; else NULL. */
static const uint8_t *same_bytes(const qn_rows *rows, size_t r, qn_dtype dtype)
{
    if (rows->stride) return NULL;
    if (rows->kind == QN_ROWS_STORED)
        return rows->dtype == dtype || !qn_rows_is_float(rows) ? stored_row(rows, r) : NULL;
    if (rows->kind != QN_ROWS_GGUF || !rows->layout->dense || rows->shift != 0.0f) return NULL;
    return qn_gguf_dense_dtype(rows->layout) == dtype ? gguf_row(rows, r) : NULL;
}

/* exact: a quantized matrix is evaluated with MLX's roundings in the type of its scales. */
static void row_values(const qn_rows *rows, size_t r, bool exact, float *y)
{
    switch (rows->kind) {
    case QN_ROWS_STORED:
        if (rows->stride) column_values(rows, r, y);
        else qn_widen(y, stored_row(rows, r), rows->dtype, rows->n_in);
        break;
    case QN_ROWS_MLX: qn_matrix_row(&rows->matrix, r, exact, y); break;
    case QN_ROWS_GGUF: qn_gguf_row_values(rows->layout, gguf_row(rows, r), rows->n_in, y); break;
    }
    if (rows->shift != 0.0f)
        for (size_t i = 0; i < rows->n_in; i++) y[i] += rows->shift;
}

/* Round n values to `dtype`; false when one of them became infinite. */
static bool narrow(uint8_t *dst, qn_dtype dtype, const float *x, size_t n)
{
    qn_narrow(dst, dtype, x, n);
    if (dtype != QN_F16) return true;
    for (size_t i = 0; i < n; i++)
        if (fabsf(x[i]) >= 65520.0f && isfinite(x[i])) return false;
    return true;
}

int qn_rows_dense(const qn_rows *rows, size_t r0, size_t r1, qn_dtype dtype, uint8_t *out)
{
    qn_dtype out_type = qn_rows_is_float(rows) ? dtype : rows->dtype;
    size_t row_bytes = rows->n_in * qn_dtype_size(out_type);
    float *y = malloc(rows->n_in * sizeof *y);
    bool ok = y != NULL;
    for (size_t r = r0; ok && r < r1; r++, out += row_bytes) {
        const uint8_t *same = same_bytes(rows, r, dtype);
        if (same) {
            memcpy(out, same, row_bytes);
            continue;
        }
        row_values(rows, r, dtype != QN_F32, y);
        ok = narrow(out, dtype, y, rows->n_in);
    }
    free(y);
    return ok ? 0 : -1;
}

typedef struct row_out { /* where one row of a packed matrix goes */
    uint8_t *words, *scales, *biases;
    size_t n_groups;
} row_out;

static row_out out_at(const qn_packed *p, size_t r, size_t n_in, const qn_qspec *spec,
                      qn_dtype dtype)
{
    size_t n_groups = n_in / spec->group_size;
    size_t scale_bytes = spec->mode == QN_Q_AFFINE ? qn_dtype_size(dtype) : 1;
    row_out o = {.n_groups = n_groups};
    o.words = p->words + r * qn_qrow_bytes(spec, (uint32_t)n_in);
    o.scales = p->scales + r * n_groups * scale_bytes;
    o.biases = p->biases ? p->biases + r * n_groups * scale_bytes : NULL;
    return o;
}

static bool keep_mlx_row(const qn_rows *rows, size_t r, qn_dtype dtype, row_out *o)
{
    const qn_matrix *m = &rows->matrix;
    size_t row_bytes = qn_qrow_bytes(&m->spec, (uint32_t)rows->n_in);
    memcpy(o->words, (const uint8_t *)m->weight + r * row_bytes, row_bytes);
    if (m->spec.mode != QN_Q_AFFINE) {
        memcpy(o->scales, (const uint8_t *)m->scales + r * o->n_groups, o->n_groups);
        return true;
    }
    bool ok = true;
    size_t size = qn_dtype_size(dtype);
    for (size_t g = 0; g < o->n_groups; g++) {
        float s = qn_qscale(m, r, g), b = qn_qbias(m, r, g);
        ok &= narrow(o->scales + g * size, dtype, &s, 1);
        ok &= narrow(o->biases + g * size, dtype, &b, 1);
    }
    return ok;
}

/* `tmp` has room for 2*n_in floats. */
static bool keep_gguf_row(const qn_rows *rows, size_t r, qn_dtype dtype, float *tmp, row_out *o)
{
    float *scales = tmp, *biases = tmp + o->n_groups;
    qn_gguf_row_pack(rows->layout, gguf_row(rows, r), rows->n_in, o->words, scales, biases,
                     o->scales);
    if (rows->layout->spec.mode != QN_Q_AFFINE) return true;
    return narrow(o->scales, dtype, scales, o->n_groups) &&
           narrow(o->biases, dtype, biases, o->n_groups);
}

static bool quantize_row(const qn_rows *rows, size_t r, const qn_qspec *spec, qn_dtype dtype,
                         float *tmp, row_out *o)
{
    row_values(rows, r, true, tmp);
    bool ok = true;
    if (dtype != QN_F32) {
        uint8_t *rounded = (uint8_t *)(tmp + rows->n_in);
        ok = narrow(rounded, dtype, tmp, rows->n_in);
        qn_widen(tmp, rounded, dtype, rows->n_in);
    }
    qn_quantize_row(spec, dtype, tmp, (uint32_t)rows->n_in, o->words, o->scales, o->biases);
    return ok;
}

int qn_rows_pack(const qn_rows *rows, size_t r0, size_t r1, const qn_qspec *spec, qn_dtype dtype,
                 bool keep, const qn_packed *out)
{
    assert(!keep || rows->kind != QN_ROWS_STORED);
    float *tmp = malloc(2 * rows->n_in * sizeof *tmp);
    bool ok = tmp != NULL;
    for (size_t r = r0; ok && r < r1; r++) {
        row_out o = out_at(out, r, rows->n_in, spec, dtype);
        if (!keep) ok = quantize_row(rows, r, spec, dtype, tmp, &o);
        else if (rows->kind == QN_ROWS_MLX) ok = keep_mlx_row(rows, r, dtype, &o);
        else ok = keep_gguf_row(rows, r, dtype, tmp, &o);
    }
    free(tmp);
    return ok ? 0 : -1;
}
