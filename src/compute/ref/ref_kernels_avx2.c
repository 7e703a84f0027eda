/* ref_kernels_avx2.c - the inner loops of the reference device over the lanes of ref_lanes_avx2.h.
 */
#include "compute/ref/ref_lanes_avx2.h"

#define QN_ISA(name) name##_avx2

#include "compute/ref/ref_body.h"
