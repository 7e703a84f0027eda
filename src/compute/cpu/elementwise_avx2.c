/* elementwise_avx2.c - norms and activations, AVX2, FMA and F16C. */
#include "compute/cpu/v16_avx2.h"

#define QN_ISA(name) name##_avx2

#include "compute/cpu/elementwise_body.h"
