/* rows.h - where the rows of an output tensor come from, and how they are made.
 *
 * Every tensor is seen as n_rows rows of n_in elements (experts stacked on top of each other). A
 * qn_rows borrows mapped memory of the source; it owns nothing.
 * Threads: any; making rows changes only the caller's buffers.
 */
#ifndef QN_TUNE_ROWS_H
#define QN_TUNE_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/dtype.h"
#include "format/gguf_blocks.h"
#include "format/quant.h"

typedef enum qn_rows_kind {
    QN_ROWS_STORED, /* dense, of any stored type */
    QN_ROWS_MLX,    /* an MLX quantized matrix */
    QN_ROWS_GGUF    /* blocks of a GGUF type */
} qn_rows_kind;

typedef struct qn_rows {
    qn_rows_kind kind;
    size_t n_rows, n_in;
    qn_dtype dtype;               /* STORED: of the elements */
    const void *const *experts;   /* STORED: first row of each expert */
    size_t expert_rows;           /* STORED: rows of one expert */
    size_t stride;                /* STORED: elements from one of a row to its next, when rows lie as the columns of
                                   * a matrix, side by side; 0: one after the other */
    qn_matrix matrix;             /* MLX */
    const qn_gguf_layout *layout; /* GGUF */
    const uint8_t *blocks;        /* GGUF: the first row */
    uint32_t head_rows;           /* GGUF: rows per head to un-permute; 0: none */
    float shift;                  /* GGUF: added to every value (-1 for gemma's norms) */
} qn_rows;

typedef struct qn_packed { /* a quantized matrix in memory, rows one after the other */
    uint8_t *words, *scales, *biases; /* biases NULL for the floating-point modes */
} qn_packed;

/* The source row that becomes output row r: GGUF files of the llama family hold Q and K with the
 * pairs of interleaved rope side by side; hf_row[h*D + a*D/2 + b] = gguf_row[h*D + 2b + a]
 * (no failure). */
size_t qn_rows_source(const qn_rows *rows, size_t r);

/* True if the rows are floating point numbers (no failure). */
bool qn_rows_is_float(const qn_rows *rows);

/* The quantization that the source rows have; mode NONE for dense and for types without an MLX form
 * (no failure). */
qn_qspec qn_rows_spec(const qn_rows *rows);

/* Make dense rows [r0, r1) of type `dtype` at out [r1-r0, n_in]. Rows of other than float types
 * are copied as they are. Returns 0, or -1 when a finite value does not fit into `dtype`, or memory
 * ran out (no failure otherwise). */
int qn_rows_dense(const qn_rows *rows, size_t r0, size_t r1, qn_dtype dtype, uint8_t *out);

/* Make quantized rows [r0, r1) in `out` (offsets are those of the whole matrix), scales of `dtype`.
 * keep: the source has this spec, its codes are taken over; else values are rounded to `dtype` and
 * quantized. Returns as qn_rows_dense (no failure otherwise). */
int qn_rows_pack(const qn_rows *rows, size_t r0, size_t r1, const qn_qspec *spec, qn_dtype dtype,
                 bool keep, const qn_packed *out);

#endif
