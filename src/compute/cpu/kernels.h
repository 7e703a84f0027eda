/* kernels.h - the inner loops of the CPU device that exist once per instruction set.
 *
 * The portable body is the definition, written for reading. A variant file (FILE_avx2.c,
 * FILE_avx512.c) may leave any slot empty; pick.c then keeps the portable one. Chosen once, at
 * qn_device_open. Integer sums are exact, so the quantized products give the same bits in every
 * variant; float sums have one fixed order per variant.
 */
#ifndef QN_COMPUTE_CPU_KERNELS_H
#define QN_COMPUTE_CPU_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/cpu/attend.h"
#include "compute/cpu/elementwise.h"
#include "compute/cpu/panel.h"

struct qn_cpu_kernels {
    const char *name;     /* "portable", "avx2", "avx512" */
    bool (*usable)(void); /* cpuid and operating system state */

    /* ---- panel.h: quantized and dense matrix products ---- */

    /* y[t][p*16 + i] = row i of panel p times activation row t, for panels [p0, p1) of the first
     * expert and all rows of the activations (qmm: x->n_rows; dmm: x [n_rows, n_in], x_ld floats from
     * one row to the next). Rows past n_out in the last panel are not stored. y has ld floats per
     * row; scratch has QN_MM_SCRATCH bytes. Thread safe for disjoint panel ranges. */
    void (*qmm)(float *y, uint32_t ld, const qn_panels *w, const qn_qacts *x, uint32_t p0, uint32_t p1,
                void *scratch);
    void (*dmm)(float *y, uint32_t ld, const qn_panels *w, const float *x, uint32_t x_ld,
                uint32_t n_rows, uint32_t p0, uint32_t p1, void *scratch);

    /* Quantize rows [t0, t1) of x [n_rows, n_in] into q, which was placed. Thread safe for disjoint
     * row ranges. */
    void (*qacts)(qn_qacts *q, const float *x, uint32_t x_ld, uint32_t t0, uint32_t t1);

    /* ---- attend.h: attention over one split of QN_KV_SPLIT positions ---- */
    void (*attend_split)(const struct qn_attend_job *job);
    /* Add the partial `b` of n_rows rows to `a`, one softmax over both: `acc` has v_ld floats a row. */
    void (*attend_merge)(const struct qn_attend_part *a, const struct qn_attend_part *b,
                         uint32_t n_rows, uint32_t v_ld);

    /* ---- elementwise.h: one row of n floats; out may equal in; w and b may be NULL ---- */
    void (*rms_norm)(float *y, const float *x, const float *w, uint32_t n, float eps);
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, uint32_t n, float eps);
    void (*act)(float *y, const float *x, uint32_t n, qn_act kind);
    void (*glu)(float *y, const float *gate, const float *up, uint32_t n, qn_act kind);
    void (*softcap)(float *y, const float *x, uint32_t n, float cap);
};

/* The kernels for `isa` (NULL: the best usable). NULL when that name is unknown or not usable here
 * (no failure otherwise). */
const struct qn_cpu_kernels *qn_cpu_pick(const char *isa);

#endif
