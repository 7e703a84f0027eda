/* quant.h - MLX quantization: specs, packing, and readable (slow, exact) forms.
 *
 * A matrix [n_out, n_in] is quantized per group of `group_size` inputs. Its codes are one
 * little-endian bit stream per row: code k of a row occupies bits [k*bits, k*bits+bits), stored as
 * uint32 words [n_out, n_in*bits/32]. docs/formats.md has the table. Source: spec numerics 2.
 * Threads: any.
 */
#ifndef QN_FORMAT_QUANT_H
#define QN_FORMAT_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "format/dtype.h"

typedef enum qn_qmode { QN_Q_NONE = 0, QN_Q_AFFINE, QN_Q_MXFP4, QN_Q_MXFP8, QN_Q_NVFP4 } qn_qmode;

typedef struct qn_qspec {
    qn_qmode mode;       /* NONE: a dense matrix; the other fields are 0 */
    uint32_t bits;       /* bits per code */
    uint32_t group_size; /* inputs per scale */
} qn_qspec;

/* A matrix as the file has it: borrowed pointers into a mapping, possibly unaligned. */
typedef struct qn_matrix {
    qn_qspec spec;
    uint32_t n_experts;   /* leading dimension of a 3-D expert stack, else 1 */
    uint32_t n_out, n_in; /* of one expert */
    const void *weight;   /* dense: [n_experts, n_out, n_in] of `dtype`; else uint32 words */
    const void *scales;   /* [n_experts, n_out, n_in/group_size]: `dtype` for affine, else bytes */
    const void *biases;   /* affine only, as scales */
    qn_dtype dtype;       /* type of a dense weight, or of affine scales; BF16 for fp modes */
} qn_matrix;

/* Check mode, bits, group size and that n_in is divisible by the group (n_in 0: not checked).
 * Errors: QN_INVALID, naming the value and the choices. */
qn_code qn_qspec_check(const qn_qspec *s, uint32_t n_in, qn_err *err);

/* Defaults of a mode: affine 4/64, mxfp4 4/32, mxfp8 8/32, nvfp4 4/16 (no failure). */
qn_qspec qn_qspec_default(qn_qmode mode);

/* "affine", "mxfp4", "mxfp8", "nvfp4" (no failure); parse returns 0 or -1. */
const char *qn_qmode_name(qn_qmode m);
int qn_qmode_parse(const char *name, qn_qmode *out);

/* Bytes of the code words of one row: n_in*bits/8 (no failure). */
size_t qn_qrow_bytes(const qn_qspec *s, uint32_t n_in);

/* Read code k of a packed row of any width; `row` may be unaligned (no failure). */
uint32_t qn_qcode(const void *row, uint32_t bits, size_t k);

/* Store code k into a zeroed packed row (no failure). */
void qn_qcode_put(void *row, uint32_t bits, size_t k, uint32_t code);

/* The value of code c in a floating-point mode, without its scale (no failure). */
float qn_qvalue(qn_qmode mode, uint32_t code);

/* Scale (and bias) of group g of a row as float32. `row` counts rows over experts (no failure). */
float qn_qscale(const qn_matrix *m, size_t row, size_t g);
float qn_qbias(const qn_matrix *m, size_t row, size_t g);

/* Dequantize row `row` (over experts) to float32 y [n_in]. exact=true: scale*code and the sum are
 * each rounded to the scales' type, as MLX does; false: plain float32. Dense rows are widened
 * (no failure). */
void qn_matrix_row(const qn_matrix *m, size_t row, bool exact, float *y);

/* Affine codes of n values, one byte each, and the scale and bias of each group of `group` values as
 * float32, not rounded (spec numerics 2.2); n is a whole number of groups (no failure). */
void qn_affine_encode(uint32_t bits, uint32_t group, const float *x, size_t n, uint8_t *codes,
                      float *scales, float *biases);

/* Quantize one row of n_in float32 values that were rounded to `dtype` before: codes into `words`
 * (qn_qrow_bytes, zeroed by the call), scales and biases [n_in/group_size] of `dtype` (affine) or
 * bytes (fp modes; biases NULL). Source of the arithmetic: spec numerics 2.2 and 2.5. For the fp
 * modes the CPU reference's choices (2.5) are followed. Errors: none, the spec was checked before
 * (no failure). */
void qn_quantize_row(const qn_qspec *s, qn_dtype dtype, const float *x, uint32_t n_in, void *words,
                     void *scales, void *biases);

#endif
