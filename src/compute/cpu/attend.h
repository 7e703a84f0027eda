/* attend.h - attention of some query rows over one split of the KV cache, per instruction set.
 *
 * A split is QN_KV_SPLIT positions that start at a multiple of QN_KV_SPLIT. For a row, the split
 * yields a partial softmax (max, sum, acc): acc[d] = sum over visible keys of exp(s - max) * v[d],
 * not divided by the sum. Partials are merged in ascending order of their positions, always by
 * attend_merge. The order of every sum is fixed and the same in all variants, which therefore give
 * the same bits:
 *   scores  one chain of fused multiply-adds per (row, key), over the head dimension ascending
 *   sum     16 lanes (key mod 16), keys ascending within a lane, then one fixed tree
 *   acc     one chain of fused multiply-adds per (row, d), keys ascending
 * Nothing depends on which rows are computed together. Keys outside a row's range are never used,
 * whatever their memory holds.
 *
 * Keys lie in tiles of 16 positions, transposed: element (d, lane) of a tile at d*16 + lane, so
 * that 16 scores grow side by side. Values lie as rows of v_ld elements.
 */
#ifndef QN_COMPUTE_CPU_ATTEND_H
#define QN_COMPUTE_CPU_ATTEND_H

#include <stdint.h>

#include "compute/kv.h"

enum {
    QN_KV_TILE = 16,                               /* positions of a tile */
    QN_SPLIT_TILES = QN_KV_SPLIT / QN_KV_TILE,
    QN_ATTEND_ROWS = 64                            /* most rows of a job */
};

/* Partial softmax of some rows. */
typedef struct qn_attend_part {
    float *max, *sum; /* [n_rows] */
    float *acc;       /* [n_rows, v_ld] */
} qn_attend_part;

/* Rows (query heads of one KV head, at one or more positions) times one split. */
typedef struct qn_attend_job {
    qn_kv_codec codec;
    uint32_t n_rows;          /* 1 .. QN_ATTEND_ROWS */
    uint32_t d_k, v_ld;       /* v_ld: the value head size rounded up to 16 */
    float softcap;            /* 0: none */
    const float *q;           /* [n_rows, d_k], multiplied by the scale */
    const uint32_t *lo, *hi;  /* [n_rows] visible keys lo <= j < hi of the split; lo < hi */
    const void *k[QN_SPLIT_TILES]; /* tile t: [d_k, 16] elements of the codec */
    const void *v[QN_SPLIT_TILES]; /* tile t: [16, v_ld]; tiles that no row sees are not read, but
                                    * their pointers must not be NULL */
    float *p;                 /* scratch [n_rows, QN_KV_SPLIT] */
    qn_attend_part out;
} qn_attend_job;

/* The functions of a variant: the partials of a job; a = a merged with b, `a` of lower positions
 * (n_rows rows of v_ld floats) (no failure). */
#define QN_ATTEND_DECLARE(isa)                                                                    \
    void qn_attend_split_##isa(const qn_attend_job *job);                                         \
    void qn_attend_merge_##isa(const qn_attend_part *a, const qn_attend_part *b, uint32_t n_rows, \
                               uint32_t v_ld)

QN_ATTEND_DECLARE(portable);
QN_ATTEND_DECLARE(avx2);
QN_ATTEND_DECLARE(avx512);

#endif
