/* elementwise_portable.c - norms and activations, plain C: the definition of the results. */
#include "compute/cpu/v16_portable.h"

#define QN_ISA(name) name##_portable

#include "compute/cpu/elementwise_body.h"
