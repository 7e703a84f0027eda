/* elementwise_avx512.c - norms and activations, AVX-512. */
#include "compute/cpu/v16_avx512.h"

#define QN_ISA(name) name##_avx512

#include "compute/cpu/elementwise_body.h"
