/* qmm_portable.c - matrix products and activation quantization in plain C: the definition that
 * every variant must match bit for bit (panel.h, "Arithmetic"). */
#include <math.h>
#include <string.h>

#include "compute/cpu/panel.h"

/* ---- activations ---- */

/* The largest |x| as its bits: infinities and NaNs are larger than every number that way. */
static uint32_t max_bits(const float *x, uint32_t n)
{
    uint32_t max = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t u;
        memcpy(&u, x + k, 4);
        u &= 0x7fffffffu;
        if (u > max) max = u;
    }
    return max;
}

/* Quantize one group: integers to xq, scale to *a. */
static void quantize_group(const float *x, uint32_t n, float range, int32_t *xq, float *a)
{
    union {
        uint32_t u;
        float f;
    } max = {.u = max_bits(x, n)};
    bool usable = max.u >= 0x0f800000u && max.u < 0x7f800000u; /* 2^-96 and up, finite */
    if (!usable) {
        memset(xq, 0, n * sizeof *xq);
        *a = max.u > 0x7f7fffffu ? NAN : 0.0f;
        return;
    }
    *a = max.f / range;
    float inverse = range / max.f;
    for (uint32_t k = 0; k < n; k++) xq[k] = (int32_t)rintf(x[k] * inverse);
}

void qn_qacts_portable(qn_qacts *q, const float *x, uint32_t x_ld, uint32_t t0, uint32_t t1)
{
    const float range = q->n_planes == 2 ? 32512.0f : 127.0f;
    int32_t xq[QN_MAX_GROUP];
    for (uint32_t t = t0; t < t1; t++) {
        for (uint32_t g = 0; g < q->n_groups; g++) {
            float a;
            int32_t sum = 0;
            quantize_group(x + (size_t)t * x_ld + (size_t)g * q->group_size, q->group_size, range,
                           xq, &a);
            for (uint32_t k = 0; k < q->group_size; k++) {
                int8_t *quad = qn_qacts_quad(q, t, (g * q->group_size + k) / 4);
                int32_t hi = (xq[k] + 128) >> 8;
                quad[k % 4] = (int8_t)(q->n_planes == 2 ? xq[k] - hi * 256 : xq[k]);
                if (q->n_planes == 2) quad[4 + k % 4] = (int8_t)hi;
                sum += xq[k];
            }
            float *pair = qn_qacts_pair(q, t, g);
            pair[0] = a;
            pair[1] = a * (float)sum;
        }
    }
}

/* ---- quantized ---- */

/* Row t's integers of group g. */
static void read_acts(const qn_qacts *x, uint32_t t, uint32_t g, int32_t *xq)
{
    for (uint32_t k = 0; k < x->group_size; k++) {
        const int8_t *quad = qn_qacts_quad(x, t, (g * x->group_size + k) / 4);
        xq[k] = x->n_planes == 2 ? 256 * quad[4 + k % 4] + quad[k % 4] : quad[k % 4];
    }
}

static int32_t dot(const uint8_t *q, const int32_t *xq, uint32_t n)
{
    int32_t sum = 0;
    for (uint32_t k = 0; k < n; k++) sum += q[k] * xq[k];
    return sum;
}

void qn_qmm_portable(float *y, uint32_t ld, const qn_panels *w, const qn_qacts *x, uint32_t p0,
                     uint32_t p1, void *scratch)
{
    const uint32_t n = w->spec.group_size;
    uint8_t *q = scratch; /* [16, n] */
    float s[QN_PANEL_ROWS], b[QN_PANEL_ROWS];
    int32_t xq[QN_MAX_GROUP];
    for (uint32_t p = p0; p < p1; p++) {
        const uint8_t *group = w->data + p * w->panel_bytes;
        const uint32_t row0 = p * QN_PANEL_ROWS;
        const uint32_t rows = w->n_out - row0 < QN_PANEL_ROWS ? w->n_out - row0 : QN_PANEL_ROWS;
        for (uint32_t g = 0; g < w->n_groups; g++, group += w->group_bytes) {
            qn_panel_group(w, group, q, s, b);
            for (uint32_t t = 0; t < x->n_rows; t++) {
                const float *pair = qn_qacts_pair(x, t, g);
                float *out = y + (size_t)t * ld + row0;
                read_acts(x, t, g, xq);
                for (uint32_t i = 0; i < rows; i++) {
                    float sum =
                        fmaf(s[i] * pair[0], (float)dot(q + i * n, xq, n), g ? out[i] : 0.0f);
                    out[i] = fmaf(b[i], pair[1], sum);
                }
            }
        }
    }
}

/* ---- float activations ---- */

enum { BLOCK = 64 }; /* rows of activations between two readings of a panel */

static void widen_e4m3(const qn_panels *w, const uint8_t *panel, uint32_t k, float *out)
{
    const uint32_t n = w->spec.group_size;
    const uint8_t *group = panel + k / n * w->group_bytes, *codes = group + k % n / 4 * 64 + k % 4;
    const uint8_t *scales = group + w->code_bytes;
    for (uint32_t i = 0; i < QN_PANEL_ROWS; i++)
        out[i] = qn_e4m3_f32(codes[4 * i]) * qn_e8m0_f32(scales[i]);
}

/* One plane's part of the code of row i and input k of a group. */
static uint32_t plane_code(const uint8_t *plane, uint32_t bits, uint32_t k, uint32_t i)
{
    const uint32_t quad = k / 4, per_word = 8 / bits;
    uint32_t word;
    memcpy(&word, plane + (quad / per_word * QN_PANEL_ROWS + i) * 4, 4);
    return word >> (bits * (quad % per_word) + 8 * (k % 4)) & ((1u << bits) - 1u);
}

static void widen_codes(const qn_panels *w, const uint8_t *panel, uint32_t k, float *out)
{
    const uint32_t n = w->spec.group_size, low = qn_panel_low_bits(w->spec.bits);
    const uint32_t high = w->spec.bits - low;
    const uint8_t *group = panel + k / n * w->group_bytes, *plane2 = group + n * low / 32 * 64;
    float s[2][QN_PANEL_ROWS]; /* scales, biases */
    memcpy(s, group + w->code_bytes, sizeof s);
    for (uint32_t i = 0; i < QN_PANEL_ROWS; i++) {
        uint32_t q = plane_code(group, low, k % n, i);
        if (high) q |= plane_code(plane2, high, k % n, i) << low;
        out[i] = s[0][i] * (float)q + s[1][i];
    }
}

/* The 16 weights of input k of a panel. */
static void widen(const qn_panels *w, const uint8_t *panel, uint32_t k, float *out)
{
    switch (w->kind) {
    case QN_PANEL_F32: memcpy(out, panel + (size_t)k * 64, 64); return;
    case QN_PANEL_F16: qn_widen(out, panel + (size_t)k * 32, QN_F16, QN_PANEL_ROWS); return;
    case QN_PANEL_BF16: qn_widen(out, panel + (size_t)k * 32, QN_BF16, QN_PANEL_ROWS); return;
    case QN_PANEL_WIDE_CODES: widen_codes(w, panel, k, out); return;
    case QN_PANEL_E4M3: widen_e4m3(w, panel, k, out); return;
    case QN_PANEL_CODES: QN_UNREACHABLE();
    }
}

void qn_dmm_portable(float *y, uint32_t ld, const qn_panels *w, const float *x, uint32_t x_ld,
                     uint32_t n_rows, uint32_t p0, uint32_t p1, void *scratch)
{
    float(*acc)[2][QN_PANEL_ROWS] = scratch; /* [BLOCK] */
    for (uint32_t p = p0; p < p1; p++) {
        const uint8_t *panel = w->data + p * w->panel_bytes;
        const uint32_t row0 = p * QN_PANEL_ROWS;
        const uint32_t rows = w->n_out - row0 < QN_PANEL_ROWS ? w->n_out - row0 : QN_PANEL_ROWS;
        for (uint32_t t0 = 0; t0 < n_rows; t0 += BLOCK) {
            const uint32_t n = n_rows - t0 < BLOCK ? n_rows - t0 : BLOCK;
            memset(acc, 0, n * sizeof *acc);
            for (uint32_t k = 0; k < w->n_in; k++) {
                float wk[QN_PANEL_ROWS];
                widen(w, panel, k, wk);
                for (uint32_t t = 0; t < n; t++) {
                    float xk = x[(size_t)(t0 + t) * x_ld + k], *a = acc[t][k % 2];
                    for (uint32_t i = 0; i < QN_PANEL_ROWS; i++) a[i] = fmaf(wk[i], xk, a[i]);
                }
            }
            for (uint32_t t = 0; t < n; t++) {
                float *out = y + (size_t)(t0 + t) * ld + row0;
                for (uint32_t i = 0; i < rows; i++) out[i] = acc[t][0][i] + acc[t][1][i];
            }
        }
    }
}
