/* attend_avx512.c - attention over a split, AVX-512. */
#include "compute/cpu/v16_avx512.h"

#define QN_ISA(name) name##_avx512

#include "compute/cpu/attend_body.h"
