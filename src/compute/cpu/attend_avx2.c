/* attend_avx2.c - attention over a split, AVX2, FMA and F16C. */
#include "compute/cpu/v16_avx2.h"

#define QN_ISA(name) name##_avx2

#include "compute/cpu/attend_body.h"
