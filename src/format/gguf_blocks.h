/* gguf_blocks.h - the block layouts of GGUF tensors: sizes, values, and the exact way to MLX.
 *
 * A row of n_in items is n_in/block_items blocks, one after the other. Types whose blocks are
 * "scale times small integer plus offset" per 32 items have an MLX form with group size 32: the
 * same numbers in another order (gguf.h's file says which tensors there are). For others the values
 * can be read as float32 and quantized again. Source: spec quantize-eval A7.
 * Threads: any; nothing here has state.
 */
#ifndef QN_FORMAT_GGUF_BLOCKS_H
#define QN_FORMAT_GGUF_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/quant.h"

typedef enum qn_gguf_type { /* the file's numbers; the rest is not read */
    QN_GGUF_T_F32 = 0, QN_GGUF_T_F16 = 1, QN_GGUF_T_Q4_0 = 2, QN_GGUF_T_Q4_1 = 3,
    QN_GGUF_T_Q5_0 = 6, QN_GGUF_T_Q5_1 = 7, QN_GGUF_T_Q8_0 = 8,
    QN_GGUF_T_Q2_K = 10, QN_GGUF_T_Q3_K = 11, QN_GGUF_T_Q4_K = 12, QN_GGUF_T_Q5_K = 13,
    QN_GGUF_T_Q6_K = 14, QN_GGUF_T_IQ4_NL = 20, QN_GGUF_T_BF16 = 30, QN_GGUF_T_MXFP4 = 39
} qn_gguf_type;

typedef struct qn_gguf_layout {
    uint32_t type;
    const char *name;     /* "Q4_1" */
    uint32_t block_items; /* items per block */
    uint32_t block_bytes; /* bytes per block; 0: size not known */
    qn_qspec spec;        /* MLX form, or mode NONE: dense, or to be quantized again */
    bool exact;           /* the MLX form holds the same numbers (up to the scale's dtype) */
    bool dense;           /* F32, F16, BF16 */
    bool readable;        /* qn_gguf_row_values works */
} qn_gguf_layout;

/* The layout of a type number, or NULL for a number that no list knows (no failure). */
const qn_gguf_layout *qn_gguf_layout_of(uint32_t type);

/* The number type of a dense layout (no failure). */
qn_dtype qn_gguf_dense_dtype(const qn_gguf_layout *l);

/* Values of one row: row [n_in/block_items] blocks -> y [n_in] float32, in the arithmetic of ggml's
 * own float32 reference. The layout must be readable and n_in a multiple of block_items
 * (no failure). */
void qn_gguf_row_values(const qn_gguf_layout *l, const uint8_t *row, size_t n_in, float *y);

/* One row in MLX form: codes into words [n_in*bits/32 u32], scales and biases [n_in/32] as float32
 * (affine), or scale bytes [n_in/32] with biases unused (mxfp4). The layout's spec must not be NONE
 * (no failure). */
void qn_gguf_row_pack(const qn_gguf_layout *l, const uint8_t *row, size_t n_in, uint8_t *words,
                      float *scales, float *biases, uint8_t *scale_bytes);

#endif
