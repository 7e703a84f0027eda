/* attend_portable.c - attention over a split, plain C: the definition of the results. */
#include "compute/cpu/v16_portable.h"

#define QN_ISA(name) name##_portable

#include "compute/cpu/attend_body.h"
