/* ref_kernels_portable.c - the inner loops of the reference device over the lanes of
 * ref_lanes_portable.h. */
#include "compute/ref/ref_lanes_portable.h"

#define QN_ISA(name) name##_portable

#include "compute/ref/ref_body.h"
