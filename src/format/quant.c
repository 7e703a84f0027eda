/* quant.c - quantization specs, code access and dequantization. Quantizing is in quantize.c. */
#include "format/quant.h"

#include <assert.h>
#include <string.h>

/* ---- specs ---- */

static const char *const mode_names[] = {
    [QN_Q_NONE] = "none",   [QN_Q_AFFINE] = "affine", [QN_Q_MXFP4] = "mxfp4",
    [QN_Q_MXFP8] = "mxfp8", [QN_Q_NVFP4] = "nvfp4",
};

const char *qn_qmode_name(qn_qmode m)
{
    qn_check(m >= QN_Q_NONE && m <= QN_Q_NVFP4);
    return mode_names[m];
}

int qn_qmode_parse(const char *name, qn_qmode *out)
{
    for (int m = QN_Q_AFFINE; m <= QN_Q_NVFP4; m++) {
        if (strcmp(name, mode_names[m])) continue;
        *out = (qn_qmode)m;
        return 0;
    }
    return -1;
}

qn_qspec qn_qspec_default(qn_qmode mode)
{
    static const qn_qspec defaults[] = {
        [QN_Q_NONE] = {QN_Q_NONE, 0, 0},    [QN_Q_AFFINE] = {QN_Q_AFFINE, 4, 64},
        [QN_Q_MXFP4] = {QN_Q_MXFP4, 4, 32}, [QN_Q_MXFP8] = {QN_Q_MXFP8, 8, 32},
        [QN_Q_NVFP4] = {QN_Q_NVFP4, 4, 16},
    };
    qn_check(mode >= QN_Q_NONE && mode <= QN_Q_NVFP4);
    return defaults[mode];
}

static qn_code check_affine(const qn_qspec *s, qn_err *err)
{
    if (s->bits < 2 || s->bits == 7 || s->bits > 8) {
        return qn_err_set(err, QN_INVALID,
                          "affine quantization has no %u bits; choose 2, 3, 4, 5, 6 or 8", s->bits);
    }
    if (s->group_size != 32 && s->group_size != 64 && s->group_size != 128) {
        return qn_err_set(err, QN_INVALID,
                          "affine quantization has no group size %u; choose 32, 64 or 128",
                          s->group_size);
    }
    return QN_OK;
}

qn_code qn_qspec_check(const qn_qspec *s, uint32_t n_in, qn_err *err)
{
    if (s->mode == QN_Q_NONE) return QN_OK;
    if (s->mode < QN_Q_NONE || s->mode > QN_Q_NVFP4) {
        return qn_err_set(err, QN_INVALID,
                          "unknown quantization mode %d; choose affine, mxfp4, mxfp8 or nvfp4",
                          (int)s->mode);
    }
    if (s->mode == QN_Q_AFFINE) {
        qn_code rc = check_affine(s, err);
        if (rc) return rc;
    } else {
        qn_qspec want = qn_qspec_default(s->mode);
        if (s->bits != want.bits || s->group_size != want.group_size) {
            return qn_err_set(
                err, QN_INVALID, "%s quantization has %u bits and group size %u, not %u and %u",
                mode_names[s->mode], want.bits, want.group_size, s->bits, s->group_size);
        }
    }
    if (n_in % s->group_size) {
        return qn_err_set(err, QN_INVALID,
                          "a row of %u inputs cannot be quantized in groups of %u: not a multiple",
                          n_in, s->group_size);
    }
    return QN_OK;
}

size_t qn_qrow_bytes(const qn_qspec *s, uint32_t n_in)
{
    return (size_t)n_in * s->bits / 8;
}

/* ---- single codes ---- */

uint32_t qn_qcode(const void *row, uint32_t bits, size_t k)
{
    const uint8_t *p = (const uint8_t *)row + k * bits / 8;
    uint32_t shift = (uint32_t)(k * bits % 8);
    uint32_t word = p[0];
    if (shift + bits > 8) {
        word |= (uint32_t)p[1] << 8; /* the last code must not read past the row */
    }
    return word >> shift & ((1u << bits) - 1u);
}

void qn_qcode_put(void *row, uint32_t bits, size_t k, uint32_t code)
{
    uint8_t *p = (uint8_t *)row + k * bits / 8;
    uint32_t shift = (uint32_t)(k * bits % 8);
    uint32_t word = code << shift;
    p[0] = (uint8_t)(p[0] | word);
    if (shift + bits > 8) p[1] = (uint8_t)(p[1] | word >> 8);
}

float qn_qvalue(qn_qmode mode, uint32_t code)
{
    return mode == QN_Q_MXFP8 ? qn_e4m3_f32((uint8_t)code) : qn_e2m1_f32((uint8_t)code);
}

/* ---- scales ---- */

static float load_scale(const void *p, qn_dtype t, size_t i)
{
    float f;
    qn_widen(&f, (const char *)p + i * qn_dtype_size(t), t, 1);
    return f;
}

static size_t groups_of(const qn_matrix *m)
{
    return m->n_in / m->spec.group_size;
}

float qn_qscale(const qn_matrix *m, size_t row, size_t g)
{
    size_t i = row * groups_of(m) + g;
    if (m->spec.mode == QN_Q_AFFINE) return load_scale(m->scales, m->dtype, i);
    uint8_t byte = ((const uint8_t *)m->scales)[i];
    return m->spec.mode == QN_Q_NVFP4 ? qn_e4m3_f32(byte) : qn_e8m0_f32(byte);
}

float qn_qbias(const qn_matrix *m, size_t row, size_t g)
{
    if (m->spec.mode != QN_Q_AFFINE) return 0.0f;
    return load_scale(m->biases, m->dtype, row * groups_of(m) + g);
}

/* ---- rows ---- */

enum { MAX_GROUP = 128 };

/* Eight codes are `bits` whole bytes at every width; with a constant width the loop unrolls into
 * shifts and masks. */
static inline void unpack_eights(const uint8_t *p, unsigned bits, uint32_t n, uint8_t *codes)
{
    for (uint32_t i = 0; i < n; i += 8, p += bits) {
        uint64_t word = 0;
        memcpy(&word, p, bits);
        for (unsigned j = 0; j < 8; j++) {
            codes[i + j] = (uint8_t)(word >> (j * bits) & ((1u << bits) - 1u));
        }
    }
}

static void unpack_nibbles(const uint8_t *p, uint32_t n, uint8_t *codes)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        codes[2 * i] = p[i] & 15u;
        codes[2 * i + 1] = p[i] >> 4;
    }
}

/* One group of n codes, n a multiple of 16; groups start at whole bytes. */
static void unpack_group(const uint8_t *p, unsigned bits, uint32_t n, uint8_t *codes)
{
    switch (bits) {
    case 2: unpack_eights(p, 2, n, codes); return;
    case 3: unpack_eights(p, 3, n, codes); return;
    case 4: unpack_nibbles(p, n, codes); return;
    case 5: unpack_eights(p, 5, n, codes); return;
    case 6: unpack_eights(p, 6, n, codes); return;
    case 8: memcpy(codes, p, n); return;
    default: QN_UNREACHABLE();
    }
}

/* Round a group of values to dtype t, through its bits. */
static void round_group(float *y, uint32_t n, qn_dtype t)
{
    uint16_t h[MAX_GROUP];
    if (t == QN_F32) return;
    qn_narrow(h, t, y, n);
    qn_widen(y, h, t, n);
}

/* y = scale*code + bias; `exact` rounds the product and the sum to dtype t. */
static void affine_group(const uint8_t *codes, uint32_t n, float scale, float bias, qn_dtype t,
                         bool exact, float *y)
{
    if (!exact) {
        for (uint32_t i = 0; i < n; i++) y[i] = scale * (float)codes[i] + bias;
        return;
    }
    for (uint32_t i = 0; i < n; i++) y[i] = scale * (float)codes[i];
    round_group(y, n, t);
    for (uint32_t i = 0; i < n; i++) y[i] += bias;
    round_group(y, n, t);
}

static void affine_row(const qn_matrix *m, size_t row, bool exact, float *y)
{
    const qn_qspec *s = &m->spec;
    const uint8_t *words = (const uint8_t *)m->weight + row * qn_qrow_bytes(s, m->n_in);
    size_t group_bytes = (size_t)s->group_size * s->bits / 8;
    uint8_t codes[MAX_GROUP];
    for (size_t g = 0; g < groups_of(m); g++) {
        unpack_group(words + g * group_bytes, s->bits, s->group_size, codes);
        affine_group(codes, s->group_size, qn_qscale(m, row, g), qn_qbias(m, row, g), m->dtype,
                     exact, y + g * s->group_size);
    }
}

static void float_row(const qn_matrix *m, size_t row, bool exact, float *y)
{
    const qn_qspec *s = &m->spec;
    const uint8_t *words = (const uint8_t *)m->weight + row * qn_qrow_bytes(s, m->n_in);
    size_t group_bytes = (size_t)s->group_size * s->bits / 8;
    uint8_t codes[MAX_GROUP];
    float values[256];
    for (uint32_t c = 0; c < 1u << s->bits; c++) values[c] = qn_qvalue(s->mode, c);
    for (size_t g = 0; g < groups_of(m); g++, y += s->group_size) {
        float scale = qn_qscale(m, row, g);
        if (exact) round_group(&scale, 1, m->dtype);
        unpack_group(words + g * group_bytes, s->bits, s->group_size, codes);
        for (uint32_t i = 0; i < s->group_size; i++) y[i] = scale * values[codes[i]];
        if (exact) round_group(y, s->group_size, m->dtype);
    }
}

void qn_matrix_row(const qn_matrix *m, size_t row, bool exact, float *y)
{
    assert(row < (size_t)m->n_experts * m->n_out);
    if (m->spec.mode == QN_Q_NONE) {
        size_t row_bytes = m->n_in * qn_dtype_size(m->dtype);
        qn_widen(y, (const char *)m->weight + row * row_bytes, m->dtype, m->n_in);
        return;
    }
    assert(m->spec.group_size <= MAX_GROUP && m->n_in % m->spec.group_size == 0);
    if (m->spec.mode == QN_Q_AFFINE) affine_row(m, row, exact, y);
    else float_row(m, row, exact, y);
}
