/* panel.h - the one matrix layout of the CPU device, panel16, and the activations that meet it.
 *
 * A matrix W [n_out, n_in] is cut into panels of 16 output rows; the last panel is padded with zero
 * rows. Lanes of a vector are rows: 32-bit lane i of any 64-byte vector belongs to row p*16 + i, so
 * no sum crosses lanes. docs/formats.md, "panel16", has the byte tables.
 *
 * Quantized matrices (QN_PANEL_CODES, _WIDE_CODES, _E4M3): for each panel, groups ascending; a group is
 * its code words, then its scales. The bits of a code are cut into planes, low plane first:
 * 8 = [8], 6 = [4, 2], 5 = [4, 1], 4 = [4], 3 = [2, 1], 2 = [2]. A plane of p bits has G*p/32
 * vectors. Quad T of a group (inputs 4T .. 4T+3) lies in vector T / (8/p); byte c of
 *
 *     (word >> p*(T mod (8/p))) & mask
 *
 * is that plane of the code of input 4T+c: one shift and one mask give the operand of a four-way
 * byte dot product, at every width, without permuting anything.
 *
 * Scales: for 16-bit types 16 pairs {scale, bias}, scale in the low half; for float32 16 scales, then
 * 16 biases; for the floating-point modes 16 scale bytes.
 *
 * Dense matrices (QN_PANEL_F32, _F16, _BF16): for each panel, inputs ascending, 16 elements of the
 * file's type.
 *
 * Arithmetic of CODES. A row of activations is quantized per group to integers,
 *     a = max|x| / 32512,  xq = rint(x * (32512 / max|x|))   (INT8: 127 instead of 32512)
 * and an output is, over the groups ascending, from +0:
 *     y = fma(s*a, (float)dot(q, xq), y);  y = fma(b, X, y);  X = a * (float)sum(xq)
 * The dot product is an exact 32-bit integer (at most 255 * 32512 * 128), so every kernel, for any
 * number of rows, gives the same bits. mxfp4 and nvfp4 codes become q = 2*value + 12 (0..24) with
 * s = scale/2 and b = -6*scale, which is the same value exactly. A group with max|x| < 2^-96 counts
 * as zero; one with an infinity or a NaN gives NaN.
 *
 * Arithmetic of the others. w is widened to float32 (E4M3: value * scale; WIDE_CODES, which are
 * the affine matrices of float32 checkpoints, where 16-bit activations would be felt: s*q + b,
 * rounded twice) and an output is
 *     acc[k mod 2] = fma(w[k], x[k], acc[k mod 2]), k ascending from +0;  y = acc[0] + acc[1].
 * All variants fuse alike, so they agree bit for bit.
 *
 * Threads: everything here is a pure function of its arguments.
 */
#ifndef QN_COMPUTE_CPU_PANEL_H
#define QN_COMPUTE_CPU_PANEL_H

#include <stddef.h>
#include <stdint.h>

#include "compute/device.h"
#include "format/quant.h"

enum {
    QN_PANEL_ROWS = 16,
    QN_PANEL_VERSION = 1,     /* of the layout; part of the cache file's name */
    QN_MAX_GROUP = 128,       /* inputs per scale */
    QN_ACT_TILE = 8,          /* rows of activations that lie interleaved */
    QN_MM_SCRATCH = 160 << 10 /* bytes of 64-byte aligned scratch a qmm or dmm call may use */
};

typedef enum qn_panel_kind {
    QN_PANEL_CODES = 0,  /* affine, mxfp4, nvfp4: integer dot products */
    QN_PANEL_WIDE_CODES, /* affine with float32 scales: float32 activations, like all below */
    QN_PANEL_E4M3,       /* mxfp8 */
    QN_PANEL_F32,
    QN_PANEL_F16,
    QN_PANEL_BF16
} qn_panel_kind;

typedef enum qn_scale_kind {
    QN_SCALE_NONE = 0,
    QN_SCALE_F32,  /* 128 bytes a group */
    QN_SCALE_F16,  /* 64 */
    QN_SCALE_BF16, /* 64 */
    QN_SCALE_E8M0, /* 16 */
    QN_SCALE_E4M3  /* 16 */
} qn_scale_kind;

/* A matrix, or a stack of expert matrices, in panels. */
typedef struct qn_panels {
    qn_qspec spec;
    qn_panel_kind kind;
    qn_scale_kind scale;
    uint32_t n_experts, n_out, n_in;
    uint32_t n_panels;   /* of one expert: n_out / 16, rounded up */
    uint32_t n_groups;   /* n_in / group size; 0 when dense */
    size_t code_bytes;   /* of one group: its code words */
    size_t group_bytes;  /* code words and scales */
    size_t panel_bytes;  /* one panel, all inputs */
    size_t expert_bytes; /* one expert; expert e starts at data + e * expert_bytes */
    const uint8_t *data; /* 64-byte aligned; NULL until the matrix is loaded */
} qn_panels;

/* Activations quantized per group, made by the `qacts` kernels. Rows lie in tiles of QN_ACT_TILE,
 * the last one with fewer; within a tile of R rows, quad T of row r is at (T*R + r) * n_planes * 4:
 * four bytes `lo`, then (INT16) four bytes `hi`, xq = 256*hi + lo, both signed. Scale pairs {a, X}
 * of group g and row r of a tile are at (g*R + r) * 2. */
typedef struct qn_qacts {
    uint32_t n_rows, n_in, group_size, n_groups;
    uint32_t n_planes; /* 2: INT16, 1: INT8 */
    int8_t *xq;        /* [n_rows * n_in * n_planes], 64-byte aligned */
    float *ax;         /* [n_rows * n_groups * 2] */
} qn_qacts;

/* Describe the panels of m; `data` stays NULL. Errors: QN_INVALID (spec, or a size of 0),
 * QN_UNSUPPORTED (number types), QN_LIMIT (the product of sizes does not fit). */
qn_code qn_panels_init(qn_panels *w, const qn_matrix *m, qn_err *err);

/* Bytes of all experts (no failure). */
size_t qn_panels_bytes(const qn_panels *w);

/* Write panel p of expert e of m to dst [panel_bytes] (no failure). */
void qn_panels_pack(const qn_panels *w, uint8_t *dst, const qn_matrix *m, uint32_t expert,
                    uint32_t p);

/* Row `row` of expert `expert` as float32 y [n_in]: plain s*q + b, w for dense (no failure). */
void qn_panels_row(const qn_panels *w, uint32_t expert, uint32_t row, float *y);

/* One group in readable form: q [16, group_size] codes (mapped to 0..24 for the 4-bit float modes,
 * as they are for E4M3), s [16] and b [16] of the formula above (no failure). */
void qn_panel_group(const qn_panels *w, const uint8_t *group, uint8_t *q, float *s, float *b);

/* Set the shape of x for rows activations of a group size, and say how many bytes it needs; then
 * give it the memory (64-byte aligned) (no failure). */
size_t qn_qacts_init(qn_qacts *x, qn_act_mode mode, uint32_t n_rows, uint32_t n_in,
                     uint32_t group_size);
void qn_qacts_place(qn_qacts *x, void *memory);

/* Bits of the low plane of a code of `bits` bits; the rest lies in a second plane, if any (no
 * failure). */
static inline uint32_t qn_panel_low_bits(uint32_t bits)
{
    return bits == 8 ? 8 : bits >= 4 ? 4 : 2;
}

/* First byte of quad T of row t, and the pair {a, X} of a group of row t (no failure). */
static inline uint32_t qn_qacts_tile_rows(const qn_qacts *x, uint32_t t0)
{
    return x->n_rows - t0 < QN_ACT_TILE ? x->n_rows - t0 : QN_ACT_TILE;
}

static inline int8_t *qn_qacts_quad(const qn_qacts *x, uint32_t t, uint32_t quad)
{
    uint32_t t0 = t - t % QN_ACT_TILE;
    size_t at = (size_t)t0 * x->n_in + ((size_t)quad * qn_qacts_tile_rows(x, t0) + (t - t0)) * 4;
    return x->xq + at * x->n_planes;
}

static inline float *qn_qacts_pair(const qn_qacts *x, uint32_t t, uint32_t group)
{
    uint32_t t0 = t - t % QN_ACT_TILE;
    size_t at = (size_t)t0 * x->n_groups + (size_t)group * qn_qacts_tile_rows(x, t0) + (t - t0);
    return x->ax + at * 2;
}

/* The matrix kernels of a variant; contracts in kernels.h. qmm: CODES; dmm: the other kinds. */
#define QN_MM_DECLARE(isa)                                                                       \
    void qn_qmm_##isa(float *y, uint32_t ld, const qn_panels *w, const qn_qacts *x, uint32_t p0, \
                      uint32_t p1, void *scratch);                                               \
    void qn_dmm_##isa(float *y, uint32_t ld, const qn_panels *w, const float *x, uint32_t x_ld,  \
                      uint32_t n_rows, uint32_t p0, uint32_t p1, void *scratch);                 \
    void qn_qacts_##isa(qn_qacts *q, const float *x, uint32_t x_ld, uint32_t t0, uint32_t t1)

QN_MM_DECLARE(portable);
QN_MM_DECLARE(avx2);
QN_MM_DECLARE(avx512);

#endif
