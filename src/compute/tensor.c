/* tensor.c - views. */
#include "compute/ops.h"

qn_tensor qn_cols(qn_tensor x, uint32_t c0, uint32_t n)
{
    qn_check(c0 <= x.cols && n <= x.cols - c0);
    x.addr += (uint64_t)c0 * qn_dtype_size(x.dtype);
    x.cols = n;
    return x;
}

qn_tensor qn_rows(qn_tensor x, uint32_t r0, uint32_t n)
{
    qn_check(r0 <= x.rows && n <= x.rows - r0);
    x.addr += (uint64_t)r0 * x.ld * qn_dtype_size(x.dtype);
    x.rows = n;
    return x;
}

void qn_transpose_heads(float *dst, const float *src, uint32_t n, uint32_t a, uint32_t b)
{
    for (uint32_t h = 0; h < n; h++) {
        for (uint32_t i = 0; i < a; i++) {
            for (uint32_t j = 0; j < b; j++)
                dst[((size_t)h * b + j) * a + i] = src[((size_t)h * a + i) * b + j];
        }
    }
}
