/* attend.h - attention of some query rows over one split of the KV cache, per instruction set.
 *
 * A split is QN_KV_SPLIT positions that start at a multiple of QN_KV_SPLIT. For a row, the split
 * yields a partial softmax (max, sum, acc): acc[d] = sum over visible keys of exp(s - max) * v[d],
 * not divided by the sum. Partials are merged in ascending order of their positions, always by
 * attend_merge. The order of every sum is fixed and the same in all variants, which therefore give
 * the same bits:
 *   scores  one chain of fused multiply-adds per (row, key), over the head dimension ascending
 *           (latent: 16 lanes (d mod 16), d ascending within a lane, then one fixed tree)
 *   sum     16 lanes (key mod 16), keys ascending within a lane, then one fixed tree
 *   acc     one chain of fused multiply-adds per (row, d), keys ascending
 * Nothing depends on which rows are computed together. Keys outside a row's range are never used,
 * whatever their memory holds.
 *
 * Keys lie in tiles of 16 positions, transposed, so that 16 scores grow side by side; values as rows
 * of v_ld elements. A tile of n = d_k or v_ld elements a position:
 *   not quantized  keys: element d of position `lane` at d*16 + lane; values: at lane*n + d
 *   Q8             the same with one byte codes, then the tables
 *   Q4             keys: byte (d/2)*16 + lane has d even in its low half, d odd in the high half;
 *                  values: byte (lane*n + d)/2, d even in the low half; then the tables
 *   tables         scales [n/group][16 positions], then biases, of the codec's type
 * A latent key is its value and more: v has its first v_ld elements, k the other k_ld, both in tiles
 * of rows, so that nothing is stored twice. Its scores are sums along a row.
 * A byte belongs to one position, so positions can be written by different threads. A quantized
 * element is fma(scale, code, bias) in float32, rounded once: the sums above are the same as over
 * float32 elements of these values.
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
    qn_kv_codec k_codec, v_codec;
    uint32_t n_rows;          /* 1 .. QN_ATTEND_ROWS */
    uint32_t d_k, v_ld;       /* v_ld: the value head size rounded up to 16 */
    uint32_t k_ld;            /* latent keys: elements of k, d_k = v_ld + k_ld; else 0 */
    float softcap;            /* 0: none */
    const float *q;           /* [n_rows, d_k], multiplied by the scale */
    const uint32_t *lo, *hi;  /* [n_rows] visible keys lo <= j < hi of the split; lo < hi */
    const void *k[QN_SPLIT_TILES]; /* tile t of keys */
    const void *v[QN_SPLIT_TILES]; /* tile t of values; tiles that no row sees are not read, but
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
