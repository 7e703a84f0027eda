/* ref_kernels_avx512.c - the inner loops of the reference device over the lanes of
 * ref_lanes_avx512.h. */
#include "compute/ref/ref_lanes_avx512.h"

#define QN_ISA(name) name##_avx512

#include "compute/ref/ref_body.h"
