/* gguf_blocks.c - block layouts; the tables of spec quantize-eval A7 as code. */
#include "format/gguf_blocks.h"

#include <assert.h>
#include <string.h>

#include "format/dtype.h"

#define AFFINE(b) {QN_Q_AFFINE, b, 32}
#define NO_SPEC {QN_Q_NONE, 0, 0}

static const qn_gguf_layout layouts[] = {
    /* type, name, items, bytes, MLX form, exact, dense, readable */
    {QN_GGUF_T_F32, "F32", 1, 4, NO_SPEC, false, true, true},
    {QN_GGUF_T_F16, "F16", 1, 2, NO_SPEC, false, true, true},
    {QN_GGUF_T_BF16, "BF16", 1, 2, NO_SPEC, false, true, true},
    {QN_GGUF_T_Q4_0, "Q4_0", 32, 18, AFFINE(4), true, false, true},
    {QN_GGUF_T_Q4_1, "Q4_1", 32, 20, AFFINE(4), true, false, true},
    {QN_GGUF_T_Q5_0, "Q5_0", 32, 22, AFFINE(5), true, false, true},
    {QN_GGUF_T_Q5_1, "Q5_1", 32, 24, AFFINE(5), true, false, true},
    {QN_GGUF_T_Q8_0, "Q8_0", 32, 34, AFFINE(8), true, false, true},
    {QN_GGUF_T_Q2_K, "Q2_K", 256, 84, NO_SPEC, false, false, true},
    {QN_GGUF_T_Q3_K, "Q3_K", 256, 110, NO_SPEC, false, false, true},
    {QN_GGUF_T_Q4_K, "Q4_K", 256, 144, AFFINE(4), false, false, true},
    {QN_GGUF_T_Q5_K, "Q5_K", 256, 176, AFFINE(5), false, false, true},
    {QN_GGUF_T_Q6_K, "Q6_K", 256, 210, NO_SPEC, false, false, true},
    {QN_GGUF_T_IQ4_NL, "IQ4_NL", 32, 18, NO_SPEC, false, false, true},
    {QN_GGUF_T_MXFP4, "MXFP4", 32, 17, {QN_Q_MXFP4, 4, 32}, true, false, true},
    /* Known by name only, so that a refusal can say what it met. */
    {9, "Q8_1", 32, 0, NO_SPEC, false, false, false},
    {15, "Q8_K", 256, 0, NO_SPEC, false, false, false},
    {16, "IQ2_XXS", 256, 0, NO_SPEC, false, false, false},
    {17, "IQ2_XS", 256, 0, NO_SPEC, false, false, false},
    {18, "IQ3_XXS", 256, 0, NO_SPEC, false, false, false},
    {19, "IQ1_S", 256, 0, NO_SPEC, false, false, false},
    {21, "IQ3_S", 256, 0, NO_SPEC, false, false, false},
    {22, "IQ2_S", 256, 0, NO_SPEC, false, false, false},
    {23, "IQ4_XS", 256, 0, NO_SPEC, false, false, false},
    {24, "I8", 1, 0, NO_SPEC, false, false, false},
    {25, "I16", 1, 0, NO_SPEC, false, false, false},
    {26, "I32", 1, 0, NO_SPEC, false, false, false},
    {27, "I64", 1, 0, NO_SPEC, false, false, false},
    {28, "F64", 1, 0, NO_SPEC, false, false, false},
    {29, "IQ1_M", 256, 0, NO_SPEC, false, false, false},
    {34, "TQ1_0", 256, 0, NO_SPEC, false, false, false},
    {35, "TQ2_0", 256, 0, NO_SPEC, false, false, false},
};

const qn_gguf_layout *qn_gguf_layout_of(uint32_t type)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (layouts[i].type == type) return &layouts[i];
    return NULL;
}

static float half_at(const uint8_t *p) { return qn_f16_f32((uint16_t)(p[0] | p[1] << 8)); }

static uint32_t word_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Byte j of 16 holds item j in its low and item j+16 in its high nibble. */
static void unfold_nibbles(const uint8_t *q, uint8_t code[32])
{
    for (int j = 0; j < 16; j++) {
        code[j] = q[j] & 15;
        code[j + 16] = q[j] >> 4;
    }
}

static void add_fifth_bits(const uint8_t *qh, uint8_t code[32])
{
    uint32_t bits = word_at(qh);
    for (int j = 0; j < 32; j++) code[j] |= (uint8_t)((bits >> j & 1) << 4);
}

/* Scale and min number j (0..7) of the 12 packed bytes of Q4_K and Q5_K, 6 bits each. */
static void k_scale_min(const uint8_t *c, int j, int *sc, int *m)
{
    if (j < 4) {
        *sc = c[j] & 63;
        *m = c[j + 4] & 63;
    } else {
        *sc = (c[j + 4] & 15) | (c[j - 4] >> 6) << 4;
        *m = (c[j + 4] >> 4) | (c[j] >> 6) << 4;
    }
}

/* One group of 32 codes with its scale and bias: the common shape of all MLX-compatible types. */
typedef struct group32 {
    uint8_t code[32];
    float scale, bias;
} group32;

/* Group `g` (0..7) of a Q4_K or Q5_K block. The bias is -(dmin*m): adding it equals subtracting. */
static void k_group(const uint8_t *block, int g, bool is_q5, group32 *out)
{
    int sc, m;
    k_scale_min(block + 4, g, &sc, &m);
    out->scale = half_at(block) * (float)sc;
    out->bias = -(half_at(block + 2) * (float)m);
    const uint8_t *qh = block + 16, *qs = block + (is_q5 ? 48 : 16) + 32 * (g / 2);
    for (int i = 0; i < 32; i++) {
        out->code[i] = g % 2 ? qs[i] >> 4 : qs[i] & 15;
        if (is_q5) out->code[i] |= (uint8_t)((qh[i] >> g & 1) << 4);
    }
}

/* Group `g` of a row of any affine type. */
static void affine_group(const qn_gguf_layout *l, const uint8_t *row, size_t g, group32 *out)
{
    size_t per_block = l->block_items / 32;
    const uint8_t *b = row + g / per_block * l->block_bytes;
    out->scale = half_at(b);
    switch ((qn_gguf_type)l->type) {
    case QN_GGUF_T_Q4_0:
        unfold_nibbles(b + 2, out->code);
        out->bias = -8.0f * out->scale;
        break;
    case QN_GGUF_T_Q4_1:
        unfold_nibbles(b + 4, out->code);
        out->bias = half_at(b + 2);
        break;
    case QN_GGUF_T_Q5_0:
        unfold_nibbles(b + 6, out->code);
        add_fifth_bits(b + 2, out->code);
        out->bias = -16.0f * out->scale;
        break;
    case QN_GGUF_T_Q5_1:
        unfold_nibbles(b + 8, out->code);
        add_fifth_bits(b + 4, out->code);
        out->bias = half_at(b + 2);
        break;
    case QN_GGUF_T_Q8_0:
        for (int j = 0; j < 32; j++) out->code[j] = b[2 + j] ^ 0x80;
        out->bias = -128.0f * out->scale;
        break;
    case QN_GGUF_T_Q4_K: k_group(b, (int)(g % per_block), false, out); break;
    case QN_GGUF_T_Q5_K: k_group(b, (int)(g % per_block), true, out); break;
    default: QN_UNREACHABLE();
    }
}

static void put_codes(uint8_t *words, uint32_t bits, size_t at, const uint8_t code[32])
{
    for (size_t i = 0; i < 32; i++) qn_qcode_put(words, bits, at + i, code[i]);
}

static void pack_mxfp4(const uint8_t *row, size_t n_in, uint8_t *words, uint8_t *scale_bytes)
{
    for (size_t g = 0; g < n_in / 32; g++) {
        const uint8_t *b = row + 17 * g;
        uint8_t code[32];
        unfold_nibbles(b + 1, code);
        scale_bytes[g] = b[0];
        put_codes(words, 4, 32 * g, code);
    }
}

void qn_gguf_row_pack(const qn_gguf_layout *l, const uint8_t *row, size_t n_in, uint8_t *words,
                      float *scales, float *biases, uint8_t *scale_bytes)
{
    assert(l->spec.mode != QN_Q_NONE && n_in % l->block_items == 0);
    memset(words, 0, n_in / 8 * l->spec.bits);
    if (l->spec.mode == QN_Q_MXFP4) {
        pack_mxfp4(row, n_in, words, scale_bytes);
        return;
    }
    for (size_t g = 0; g < n_in / 32; g++) {
        group32 v;
        affine_group(l, row, g, &v);
        scales[g] = v.scale;
        biases[g] = v.bias;
        put_codes(words, l->spec.bits, 32 * g, v.code);
    }
}

/* ---- values ---- */

/* Two quarters of 2-bit items: item 32*q+i of a half is at bits 2q of byte i. */
static int two_bits(const uint8_t *qs, int item)
{
    int half = item / 128, quarter = item % 128 / 32, i = item % 32;
    return qs[32 * half + i] >> 2 * quarter & 3;
}

static void values_q2_k(const uint8_t *b, float *y)
{
    float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int i = 0; i < 256; i++) {
        float scale = d * (float)(b[i / 16] & 15), low = dmin * (float)(b[i / 16] >> 4);
        y[i] = scale * (float)two_bits(b + 16, i) - low;
    }
}

static int q3_k_scale(const uint8_t *s, int j)
{
    int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
    return (low | (s[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
}

static void values_q3_k(const uint8_t *b, float *y)
{
    float d = half_at(b + 108);
    for (int i = 0; i < 256; i++) {
        int has_high = b[i % 32] >> i / 32 & 1;
        int q = two_bits(b + 32, i) - (has_high ? 0 : 4);
        y[i] = d * (float)q3_k_scale(b + 96, i / 16) * (float)q;
    }
}

static void values_q6_k(const uint8_t *b, float *y)
{
    const uint8_t *scales = b + 192;
    float d = half_at(b + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, quarter = i % 128 / 32, l = i % 32;
        uint8_t low = b[64 * half + l + (quarter & 1) * 32];
        int q = quarter < 2 ? low & 15 : low >> 4;
        q |= (b[128 + 32 * half + l] >> 2 * quarter & 3) << 4;
        y[i] = d * (float)(int8_t)scales[i / 16] * (float)(q - 32);
    }
}

static void values_iq4_nl(const uint8_t *b, float *y)
{
    static const int8_t table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1, 13, 25, 38, 53, 69, 89, 113};
    uint8_t code[32];
    unfold_nibbles(b + 2, code);
    for (int i = 0; i < 32; i++) y[i] = half_at(b) * (float)table[code[i]];
}

static void values_mxfp4(const uint8_t *b, float *y)
{
    uint8_t code[32];
    unfold_nibbles(b + 1, code);
    for (int i = 0; i < 32; i++) y[i] = qn_e8m0_f32(b[0]) * qn_e2m1_f32(code[i]);
}

/* Q4_0 and the like store code - offset; computing (code - offset) * d keeps ggml's rounding. */
static void values_affine(const qn_gguf_layout *l, const uint8_t *row, size_t g, float *y)
{
    group32 v;
    affine_group(l, row, g, &v);
    int offset = l->type == QN_GGUF_T_Q4_0 ? 8 : l->type == QN_GGUF_T_Q5_0 ? 16 :
                 l->type == QN_GGUF_T_Q8_0 ? 128 : 0;
    for (int i = 0; i < 32; i++)
        y[i] = offset ? v.scale * (float)(v.code[i] - offset)
                      : v.scale * (float)v.code[i] + v.bias;
}

qn_dtype qn_gguf_dense_dtype(const qn_gguf_layout *l)
{
    assert(l->dense);
    if (l->type == QN_GGUF_T_F32) return QN_F32;
    return l->type == QN_GGUF_T_F16 ? QN_F16 : QN_BF16;
}

void qn_gguf_row_values(const qn_gguf_layout *l, const uint8_t *row, size_t n_in, float *y)
{
    assert(l->readable && n_in % l->block_items == 0);
    if (l->dense) {
        qn_widen(y, row, qn_gguf_dense_dtype(l), n_in);
        return;
    }
    if (l->spec.mode == QN_Q_AFFINE) {
        for (size_t g = 0; g < n_in / 32; g++) values_affine(l, row, g, y + 32 * g);
        return;
    }
    for (size_t i = 0; i < n_in / l->block_items; i++, row += l->block_bytes, y += l->block_items) {
        switch ((qn_gguf_type)l->type) {
        case QN_GGUF_T_Q2_K: values_q2_k(row, y); break;
        case QN_GGUF_T_Q3_K: values_q3_k(row, y); break;
        case QN_GGUF_T_Q6_K: values_q6_k(row, y); break;
        case QN_GGUF_T_IQ4_NL: values_iq4_nl(row, y); break;
        case QN_GGUF_T_MXFP4: values_mxfp4(row, y); break;
        default: QN_UNREACHABLE();
        }
    }
}
