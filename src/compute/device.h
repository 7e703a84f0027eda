/* device.h - opening a device by name.
 *
 * Threads: open and close from one thread.
 */
#ifndef QN_COMPUTE_DEVICE_H
#define QN_COMPUTE_DEVICE_H

#include "compute/ops.h"

/* How the fast CPU device treats the activations that meet a quantized matrix: one of these for
 * every number of rows. */
typedef enum qn_act_mode {
    QN_ACT_DEFAULT = 0,
    QN_ACT_INT16, /* 16-bit integers per group: float32 quality */
    QN_ACT_INT8   /* 8-bit integers per group: fewer instructions, less exact */
} qn_act_mode;

typedef struct qn_device_opts {
    const char *name;       /* "cpu" (default when NULL) or "ref" (the bits of MLX) */
    uint32_t n_threads;     /* 0: QUERN_THREADS, else the physical cores this process may use */
    const char *isa;        /* NULL: the best of "avx512", "avx2", "portable" this machine has */
    qn_act_mode act;
} qn_device_opts;

/* Open a device; the caller closes it with dev->ops->close(dev). Errors: QN_UNSUPPORTED (an unknown
 * device or instruction set: names the choices), QN_NOMEM. */
qn_code qn_device_open(qn_device **out, const qn_device_opts *opts, qn_err *err);

/* The instruction set picked, "avx512", "avx2" or "portable"; "" for devices without one
 * (no failure). */
const char *qn_device_isa(const qn_device *d);

#endif
