/* panel.c - sizes, packing and readable forms of panel16 (panel.h). */
#include "compute/cpu/panel.h"

#include <assert.h>
#include <string.h>

/* ---- shape ---- */

static qn_code dense_kind(qn_panels *w, qn_dtype t, qn_err *err)
{
    switch (t) {
    case QN_F32: w->kind = QN_PANEL_F32; return QN_OK;
    case QN_F16: w->kind = QN_PANEL_F16; return QN_OK;
    case QN_BF16: w->kind = QN_PANEL_BF16; return QN_OK;
    default:
        return qn_err_set(err, QN_UNSUPPORTED,
                          "not supported yet: a dense matrix of type %s; F32, F16 and BF16 are",
                          qn_dtype_name(t));
    }
}

static qn_code affine_scale(qn_panels *w, qn_dtype t, qn_err *err)
{
    switch (t) {
    case QN_F32: w->scale = QN_SCALE_F32; return QN_OK;
    case QN_F16: w->scale = QN_SCALE_F16; return QN_OK;
    case QN_BF16: w->scale = QN_SCALE_BF16; return QN_OK;
    default:
        return qn_err_set(err, QN_UNSUPPORTED,
                          "not supported yet: scales of type %s; F32, F16 and BF16 are",
                          qn_dtype_name(t));
    }
}

static qn_code pick_kind(qn_panels *w, const qn_matrix *m, qn_err *err)
{
    switch (m->spec.mode) {
    case QN_Q_NONE: return dense_kind(w, m->dtype, err);
    case QN_Q_AFFINE:
        w->kind = m->dtype == QN_F32 ? QN_PANEL_WIDE_CODES : QN_PANEL_CODES;
        return affine_scale(w, m->dtype, err);
    case QN_Q_MXFP4:
        w->kind = QN_PANEL_CODES;
        w->scale = QN_SCALE_E8M0;
        return QN_OK;
    case QN_Q_NVFP4:
        w->kind = QN_PANEL_CODES;
        w->scale = QN_SCALE_E4M3;
        return QN_OK;
    case QN_Q_MXFP8:
        w->kind = QN_PANEL_E4M3;
        w->scale = QN_SCALE_E8M0;
        return QN_OK;
    }
    QN_UNREACHABLE();
}

static size_t scale_bytes(qn_scale_kind s)
{
    switch (s) {
    case QN_SCALE_NONE: return 0;
    case QN_SCALE_F32: return 128;
    case QN_SCALE_F16:
    case QN_SCALE_BF16: return 64;
    case QN_SCALE_E8M0:
    case QN_SCALE_E4M3: return 16;
    }
    QN_UNREACHABLE();
}

qn_code qn_panels_init(qn_panels *w, const qn_matrix *m, qn_err *err)
{
    *w =
        (qn_panels){.spec = m->spec, .n_experts = m->n_experts, .n_out = m->n_out, .n_in = m->n_in};
    if (!m->n_experts || !m->n_out || !m->n_in) {
        return qn_err_set(err, QN_INVALID, "a matrix of %u x %u x %u is empty", m->n_experts,
                          m->n_out, m->n_in);
    }
    qn_code rc = qn_qspec_check(&m->spec, m->n_in, err);
    if (rc || (rc = pick_kind(w, m, err))) return rc;
    w->n_panels = (m->n_out - 1) / QN_PANEL_ROWS + 1;
    size_t per_input = 0; /* dense: bytes of 16 elements */
    if (m->spec.mode == QN_Q_NONE) {
        per_input = QN_PANEL_ROWS * qn_dtype_size(m->dtype);
    } else {
        w->n_groups = m->n_in / m->spec.group_size;
        w->code_bytes = (size_t)m->spec.bits * m->spec.group_size / 32 * 64;
        w->group_bytes = w->code_bytes + scale_bytes(w->scale);
    }
    size_t units = per_input ? m->n_in : w->n_groups;
    if (qn_mul_size(units, per_input ? per_input : w->group_bytes, &w->panel_bytes) ||
        qn_mul_size(w->panel_bytes, w->n_panels, &w->expert_bytes) ||
        w->expert_bytes > PTRDIFF_MAX / m->n_experts) {
        return qn_err_set(err, QN_LIMIT, "a matrix of %u x %u x %u does not fit into memory",
                          m->n_experts, m->n_out, m->n_in);
    }
    return QN_OK;
}

size_t qn_panels_bytes(const qn_panels *w)
{
    return w->expert_bytes * w->n_experts;
}

/* ---- planes ---- */

typedef struct planes {
    uint32_t n;
    uint32_t bits[2];
} planes;

/* The planes of a code width, low bits first (panel.h). */
static planes planes_of(uint32_t bits)
{
    const uint32_t low = qn_panel_low_bits(bits);
    return (planes){low < bits ? 2 : 1, {low, bits - low}};
}

/* The low `bits` bits of each of four bytes. */
static uint32_t byte_mask(uint32_t bits)
{
    return 0x01010101u * ((1u << bits) - 1u);
}

/* ---- packing ---- */

/* Codes of one group from MLX's bit stream. Eight codes are `bits` whole bytes at every width, and
 * groups are multiples of 16. `bits` is a constant where this is inlined. */
static inline void unpack_stream(uint8_t *q, const uint8_t *p, uint32_t bits, uint32_t n)
{
    const uint64_t mask = (1u << bits) - 1u;
    for (uint32_t k = 0; k < n; k += 8, p += bits) {
        uint64_t v = 0;
        memcpy(&v, p, bits);
        for (uint32_t i = 0; i < 8; i++) q[k + i] = (uint8_t)(v >> (bits * i) & mask);
    }
}

static void unpack_codes(uint8_t *q, const uint8_t *p, uint32_t bits, uint32_t n)
{
    switch (bits) {
    case 2: unpack_stream(q, p, 2, n); return;
    case 3: unpack_stream(q, p, 3, n); return;
    case 4: unpack_stream(q, p, 4, n); return;
    case 5: unpack_stream(q, p, 5, n); return;
    case 6: unpack_stream(q, p, 6, n); return;
    case 8: memcpy(q, p, n); return;
    default: QN_UNREACHABLE();
    }
}

/* One row's words of one plane: word j of the plane goes to dst[j*16]. */
static inline void pack_plane(uint32_t *dst, const uint8_t *q, uint32_t n, uint32_t low,
                              uint32_t bits)
{
    const uint32_t quads = 8 / bits, mask = byte_mask(bits);
    for (uint32_t j = 0; j * quads * 4 < n; j++) {
        uint32_t word = 0;
        for (uint32_t t = 0; t < quads; t++) {
            uint32_t quad;
            memcpy(&quad, q + (j * quads + t) * 4, 4);
            word |= (quad >> low & mask) << (bits * t);
        }
        dst[j * QN_PANEL_ROWS] = word;
    }
}

static void pack_codes(uint32_t *dst, const uint8_t *q, uint32_t n, uint32_t bits)
{
    planes pl = planes_of(bits);
    for (uint32_t i = 0, low = 0; i < pl.n; low += pl.bits[i], i++) {
        switch (pl.bits[i]) {
        case 1: pack_plane(dst, q, n, low, 1); break;
        case 2: pack_plane(dst, q, n, low, 2); break;
        case 4: pack_plane(dst, q, n, low, 4); break;
        default: pack_plane(dst, q, n, low, 8); break;
        }
        dst += n * pl.bits[i] / 32 * QN_PANEL_ROWS;
    }
}

/* Scale and bias of row i of a group; `at` counts groups over the rows of the file. */
static void pack_scale(const qn_panels *w, uint8_t *dst, const qn_matrix *m, uint32_t i, size_t at)
{
    const uint8_t *s = m->scales, *b = m->biases;
    switch (w->scale) {
    case QN_SCALE_F32:
        memcpy(dst + 4 * i, s + 4 * at, 4);
        memcpy(dst + 64 + 4 * i, b + 4 * at, 4);
        return;
    case QN_SCALE_F16:
    case QN_SCALE_BF16:
        memcpy(dst + 4 * i, s + 2 * at, 2);
        memcpy(dst + 4 * i + 2, b + 2 * at, 2);
        return;
    default: dst[i] = s[at]; return;
    }
}

static void pack_quantized(const qn_panels *w, uint8_t *dst, const qn_matrix *m, size_t row0,
                           uint32_t n_rows)
{
    const uint32_t bits = w->spec.bits, n = w->spec.group_size;
    const size_t row_bytes = qn_qrow_bytes(&w->spec, w->n_in), part = (size_t)bits * n / 8;
    uint8_t q[QN_MAX_GROUP];
    for (uint32_t g = 0; g < w->n_groups; g++, dst += w->group_bytes) {
        for (uint32_t i = 0; i < n_rows; i++) {
            const uint8_t *src = (const uint8_t *)m->weight + (row0 + i) * row_bytes + g * part;
            unpack_codes(q, src, bits, n);
            pack_codes((uint32_t *)(void *)dst + i, q, n, bits);
            pack_scale(w, dst + w->code_bytes, m, i, (row0 + i) * w->n_groups + g);
        }
    }
}

static void pack_dense(const qn_panels *w, uint8_t *dst, const qn_matrix *m, size_t row0,
                       uint32_t n_rows)
{
    const size_t size = qn_dtype_size(m->dtype);
    const uint8_t *src = (const uint8_t *)m->weight + row0 * w->n_in * size;
    enum { BLOCK = 64 }; /* inputs at a time, so that the 16 destination streams stay in cache */
    for (uint32_t k0 = 0; k0 < w->n_in; k0 += BLOCK) {
        uint32_t n = w->n_in - k0 < BLOCK ? w->n_in - k0 : BLOCK;
        for (uint32_t i = 0; i < n_rows; i++) {
            const uint8_t *s = src + ((size_t)i * w->n_in + k0) * size;
            uint8_t *d = dst + ((size_t)k0 * QN_PANEL_ROWS + i) * size;
            for (uint32_t k = 0; k < n; k++, s += size, d += QN_PANEL_ROWS * size) {
                if (size == 2) memcpy(d, s, 2);
                else memcpy(d, s, 4);
            }
        }
    }
}

void qn_panels_pack(const qn_panels *w, uint8_t *dst, const qn_matrix *m, uint32_t expert,
                    uint32_t p)
{
    assert(p < w->n_panels && expert < w->n_experts);
    uint32_t row = p * QN_PANEL_ROWS, left = w->n_out - row;
    uint32_t n_rows = left < QN_PANEL_ROWS ? left : QN_PANEL_ROWS;
    size_t row0 = (size_t)expert * w->n_out + row;
    if (n_rows < QN_PANEL_ROWS) memset(dst, 0, w->panel_bytes);
    if (w->n_groups) pack_quantized(w, dst, m, row0, n_rows);
    else pack_dense(w, dst, m, row0, n_rows);
}

/* ---- readable forms ---- */

static uint16_t load16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

/* s and b of row i as stored; the float modes have no bias. */
static void read_scale(const qn_panels *w, const uint8_t *p, uint32_t i, float *s, float *b)
{
    *b = 0.0f;
    switch (w->scale) {
    case QN_SCALE_F32:
        memcpy(s, p + 4 * i, 4);
        memcpy(b, p + 64 + 4 * i, 4);
        return;
    case QN_SCALE_F16:
        *s = qn_f16_f32(load16(p + 4 * i));
        *b = qn_f16_f32(load16(p + 4 * i + 2));
        return;
    case QN_SCALE_BF16:
        *s = qn_bf16_f32(load16(p + 4 * i));
        *b = qn_bf16_f32(load16(p + 4 * i + 2));
        return;
    case QN_SCALE_E8M0: *s = qn_e8m0_f32(p[i]); return;
    default: *s = qn_e4m3_f32(p[i]); return;
    }
}

/* One row's codes of a group. */
static void read_codes(const qn_panels *w, const uint8_t *group, uint32_t i, uint8_t *q)
{
    const uint32_t n = w->spec.group_size;
    const planes pl = planes_of(w->spec.bits);
    memset(q, 0, n);
    for (uint32_t j = 0, low = 0; j < pl.n; low += pl.bits[j], j++) {
        const uint32_t bits = pl.bits[j], quads = 8 / bits, mask = byte_mask(bits);
        for (uint32_t t = 0; t * 4 < n; t++) {
            uint32_t word, have;
            memcpy(&word, group + (t / quads * QN_PANEL_ROWS + i) * 4, 4);
            memcpy(&have, q + t * 4, 4);
            have |= (word >> (bits * (t % quads)) & mask) << low;
            memcpy(q + t * 4, &have, 4);
        }
        group += (size_t)n * bits / 32 * 64;
    }
}

/* q = 2*value + 12 of an E2M1 code. */
static const uint8_t e2m1_codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* One row of a group: codes and scales of the formula y = s*q + b. */
static void read_row(const qn_panels *w, const uint8_t *group, uint32_t i, uint8_t *q, float *s,
                     float *b)
{
    read_codes(w, group, i, q);
    read_scale(w, group + w->code_bytes, i, s, b);
    if (w->kind != QN_PANEL_CODES || w->spec.mode == QN_Q_AFFINE) return;
    for (uint32_t k = 0; k < w->spec.group_size; k++) q[k] = e2m1_codes[q[k]];
    *b = -6.0f * *s;
    *s = 0.5f * *s;
}

void qn_panel_group(const qn_panels *w, const uint8_t *group, uint8_t *q, float *s, float *b)
{
    assert(w->n_groups);
    for (uint32_t i = 0; i < QN_PANEL_ROWS; i++)
        read_row(w, group, i, q + (size_t)i * w->spec.group_size, s + i, b + i);
}

static void row_quantized(const qn_panels *w, const uint8_t *panel, uint32_t i, float *y)
{
    const uint32_t n = w->spec.group_size;
    uint8_t q[QN_MAX_GROUP];
    for (uint32_t g = 0; g < w->n_groups; g++, panel += w->group_bytes, y += n) {
        float s, b;
        read_row(w, panel, i, q, &s, &b);
        if (w->kind == QN_PANEL_E4M3) {
            for (uint32_t k = 0; k < n; k++) y[k] = qn_e4m3_f32(q[k]) * s;
        } else {
            for (uint32_t k = 0; k < n; k++) y[k] = s * (float)q[k] + b;
        }
    }
}

static void row_dense(const qn_panels *w, const uint8_t *panel, uint32_t i, float *y)
{
    const qn_dtype t = w->kind == QN_PANEL_F32   ? QN_F32
                       : w->kind == QN_PANEL_F16 ? QN_F16
                                                 : QN_BF16;
    const size_t size = qn_dtype_size(t);
    for (uint32_t k = 0; k < w->n_in; k++)
        qn_widen(y + k, panel + ((size_t)k * QN_PANEL_ROWS + i) * size, t, 1);
}

void qn_panels_row(const qn_panels *w, uint32_t expert, uint32_t row, float *y)
{
    assert(w->data && row < w->n_out && expert < w->n_experts);
    const uint8_t *panel = w->data + expert * w->expert_bytes +
                           (size_t)(row / QN_PANEL_ROWS) * w->panel_bytes;
    if (w->n_groups) row_quantized(w, panel, row % QN_PANEL_ROWS, y);
    else row_dense(w, panel, row % QN_PANEL_ROWS, y);
}

/* ---- activations ---- */

size_t qn_qacts_init(qn_qacts *x, qn_act_mode mode, uint32_t n_rows, uint32_t n_in,
                     uint32_t group_size)
{
    assert(group_size && n_in % group_size == 0 && group_size <= QN_MAX_GROUP);
    *x = (qn_qacts){.n_rows = n_rows,
                    .n_in = n_in,
                    .group_size = group_size,
                    .n_groups = n_in / group_size,
                    .n_planes = mode == QN_ACT_INT8 ? 1 : 2};
    size_t codes = ((size_t)n_rows * n_in * x->n_planes + 63) / 64 * 64;
    return codes + (size_t)n_rows * x->n_groups * 2 * sizeof(float);
}

void qn_qacts_place(qn_qacts *x, void *memory)
{
    size_t codes = ((size_t)x->n_rows * x->n_in * x->n_planes + 63) / 64 * 64;
    x->xq = memory;
    x->ax = (float *)(void *)((uint8_t *)memory + codes);
}
