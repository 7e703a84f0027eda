/* ref_kernels.h - the inner loops of the reference device that exist once per instruction set.
 *
 * One body (ref_body.h) is compiled for every instruction set over lanes of its own width
 * (ref_lanes_ISA.h). One lane is one output: each output's sum is serial, so all variants give the
 * same bits. Chosen once, at qn_ref_open.
 */
#ifndef QN_COMPUTE_REF_REF_KERNELS_H
#define QN_COMPUTE_REF_REF_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "format/quant.h"

enum {
    QN_REF_STRIP = 128,          /* inputs of a row that are unpacked at a time */
    QN_REF_MM_ROWS = 32,         /* activation rows that share an unpacked strip */
    QN_REF_MAX_BLOCK = 64,       /* outputs computed side by side, at most */
    QN_REF_MM_SCRATCH = 96 << 10 /* bytes of thread scratch that mm takes */
};

/* y [n_rows, n_out] = x W^T (+ bias), the sums in the order and the types of MLX. */
typedef struct qn_ref_mm {
    const qn_matrix *m;
    const float *x;    /* [n_rows, m->n_in], values of the activations' type */
    const float *bias; /* [n_out] or NULL; added to the sum, before the last rounding */
    bool round_first;  /* round the sum to `type` before the bias as well */
    uint32_t n_rows;
    qn_dtype type;   /* T of the sum's roundings */
    qn_dtype y_type; /* of the result, at least as wide as `type` */
    uint8_t *y;
    uint32_t y_ld; /* elements */
} qn_ref_mm;

typedef struct qn_ref_kernels {
    const char *name;     /* "portable", "avx2", "avx512" */
    bool (*usable)(void); /* cpuid and operating system state */
    uint32_t block;       /* outputs of one call of mm */

    /* Outputs [n0, n0+block) of all rows; scratch has QN_REF_MM_SCRATCH bytes, 64-byte aligned.
     * Thread safe for disjoint outputs. */
    void (*mm)(const qn_ref_mm *job, uint32_t n0, void *scratch);

    /* s[i] = q . key i, for n_tiles tiles of [d, 16] keys that follow each other. Every product and
     * every sum is rounded to `chain`: float32, or the type of a product with codes. */
    void (*scores)(float *s, const float *q, const float *k, uint32_t d, uint32_t n_tiles,
                   qn_dtype chain);

    /* acc[c] += p[i] * v[i][c] for i ascending, rounded like scores; c below cols, a multiple of 16
     * and the distance from one row of v to the next. */
    void (*add_values)(float *acc, const float *p, const float *v, uint32_t n, uint32_t cols,
                       qn_dtype chain);

    /* e[i] = exp(s[i] - shift) by MLX's exp; s may be e. */
    void (*exp_shifted)(float *e, const float *s, uint32_t n, float shift);

    /* x rounded to type t in place; n values of type t to and from float32, unaligned. */
    void (*round)(float *x, qn_dtype t, uint32_t n);
    void (*widen)(float *dst, const void *src, qn_dtype t, uint32_t n);
    void (*narrow)(void *dst, qn_dtype t, const float *src, uint32_t n);
} qn_ref_kernels;

/* The kernels for `isa` (NULL: the best usable). NULL when that name is unknown or not usable here
 * (no failure otherwise). */
const qn_ref_kernels *qn_ref_pick(const char *isa);

/* The bodies of each variant, as in the table (no failure). */
#define QN_REF_DECLARE(isa)                                                              \
    void qn_ref_mm_##isa(const qn_ref_mm *job, uint32_t n0, void *scratch);              \
    void qn_ref_scores_##isa(float *s, const float *q, const float *k, uint32_t d,       \
                             uint32_t n_tiles, qn_dtype chain);                          \
    void qn_ref_add_values_##isa(float *acc, const float *p, const float *v, uint32_t n, \
                                 uint32_t cols, qn_dtype chain);                         \
    void qn_ref_exp_shifted_##isa(float *e, const float *s, uint32_t n, float shift);    \
    void qn_ref_round_##isa(float *x, qn_dtype t, uint32_t n);                           \
    void qn_ref_widen_##isa(float *dst, const void *src, qn_dtype t, uint32_t n);        \
    void qn_ref_narrow_##isa(void *dst, qn_dtype t, const float *src, uint32_t n);
QN_REF_DECLARE(portable)
QN_REF_DECLARE(avx2)
QN_REF_DECLARE(avx512)

#endif
