/* weights.h - matrices loaded into a CPU device, private to src/compute/cpu.
 *
 * A load brings its matrices into one piece of memory: a mapped panel cache file (panel_file.h), or
 * anonymous memory. The store keeps all pieces until the device is closed.
 * Threads: the engine thread; kernels read panels from any.
 */
#ifndef QN_COMPUTE_CPU_WEIGHTS_H
#define QN_COMPUTE_CPU_WEIGHTS_H

#include "compute/cpu/panel.h"
#include "compute/ops.h"

struct qn_weight {
    qn_panels panels;
};

enum { QN_GROUP_SIZES = 4 }; /* 16, 32, 64, 128 */

typedef struct qn_segment {
    struct qn_segment *next;
    void *data; /* mapped */
    size_t size;
} qn_segment;

struct qn_cpu_store {
    qn_segment *segments;
    uint64_t weights_bytes;
};

/* Index of a group size, below QN_GROUP_SIZES (no failure; stops the process for another size). */
uint32_t qn_group_slot(uint32_t group_size);

#endif
