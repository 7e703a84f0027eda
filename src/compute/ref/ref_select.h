/* ref_select.h - the order that MLX's argpartition leaves, which is that of libstdc++'s
 * nth_element. Threads: any.
 */
#ifndef QN_COMPUTE_REF_REF_SELECT_H
#define QN_COMPUTE_REF_REF_SELECT_H

#include <stdint.h>

/* Arrange idx [n], which holds 0..n-1 ascending, so that idx[nth] is where sorting would put it,
 * what is before it is not larger and what is after it not smaller. Order: by value, NaN last, then
 * by index. nth < n (no failure). */
void qn_ref_argpartition(uint32_t *idx, const float *values, uint32_t n, uint32_t nth);

#endif
