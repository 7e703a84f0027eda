/* cpu.h - the fast CPU device, private to src/compute/cpu.
 *
 * Activations are float32 between operations. Matrices are panel16 (panel.h). The instruction set is
 * picked once, at open, by filling one table of kernels (kernels.h).
 */
#ifndef QN_COMPUTE_CPU_CPU_H
#define QN_COMPUTE_CPU_CPU_H

#include "compute/device.h"
#include "compute/cpu/pool.h"
#include "core/arena.h"

typedef struct qn_cpu_kernels qn_cpu_kernels; /* kernels.h: the picked instruction set */
typedef struct qn_cpu_store qn_cpu_store;     /* weights.c: loaded matrices and the panel cache */

typedef struct qn_cpu {
    qn_device base;
    qn_pool *pool;
    const qn_cpu_kernels *k;
    qn_act_mode act;     /* INT16 or INT8 */
    qn_arena arena;      /* uploaded vectors, rotary tables, small objects */
    qn_cpu_store *store; /* NULL until the first load */
} qn_cpu;

typedef struct qn_cpu_run {
    qn_run base;
    qn_cpu *cpu;
    qn_run_limits limits;
    uint8_t *scratch;    /* one anonymous mapping of limits.scratch_bytes, huge pages advised */
    size_t used, peak;   /* bytes */
    uint8_t *thread_scratch; /* n_threads areas of thread_bytes for kernels */
    size_t thread_bytes;
} qn_cpu_run;

/* Host pointer of a tensor's row; only inside src/compute/cpu (no failure). */
static inline float *qn_cpu_row(qn_tensor x, uint32_t row) { return (float *)(uintptr_t)x.addr + (size_t)row * x.ld; }

/* Take a [rows, cols] float32 tensor from the run's scratch, rows 64-byte aligned when cols is a
 * multiple of 16. Stops the process if the run's limits are exceeded (no failure). */
qn_tensor qn_cpu_take(qn_cpu_run *r, uint32_t rows, uint32_t cols);

/* Raw scratch, 64-byte aligned (no failure). */
void *qn_cpu_bytes(qn_cpu_run *r, size_t bytes);

/* Open the device; qn_device_open calls it (cpu.c). Errors: QN_UNSUPPORTED (an unknown instruction
 * set: names the choices), QN_NOMEM, QN_IO. */
qn_code qn_cpu_open(qn_device **out, const qn_device_opts *opts, qn_err *err);

/* The slots of the table of operations, by file. Contracts are those of compute/ops.h. */
/* weights.c */
qn_code qn_cpu_load(qn_device *d, const qn_matrix_src *src, size_t n, const qn_load_opts *opts,
                    qn_weight **out, qn_err *err);
void qn_cpu_store_free(qn_cpu_store *s);
uint64_t qn_cpu_weights_bytes(const qn_device *d);
/* linear.c */
/* Scratch that `linear` takes besides its results, for batches of up to max_tokens rows of any matrix
 * loaded so far; run_new adds it to limits.scratch_bytes. Kernels use up to QN_MM_SCRATCH bytes of a
 * thread's scratch (panel.h) (no failure). */
size_t qn_cpu_linear_bytes(const qn_cpu *cpu, uint32_t max_tokens);
void qn_cpu_linear(qn_run *r, size_t n, qn_tensor *y, qn_tensor x, const qn_linear *const *w);
qn_tensor qn_cpu_embed(qn_run *r, const qn_weight *w);
/* norm.c */
qn_tensor qn_cpu_rms_norm(qn_run *r, qn_tensor x, qn_tensor weight, uint32_t width, float eps);
qn_tensor qn_cpu_layer_norm(qn_run *r, qn_tensor x, qn_tensor weight, qn_tensor bias, float eps);
/* rope.c */
qn_code qn_cpu_rope_new(qn_device *d, const qn_rope_desc *desc, uint32_t max_positions, qn_rope **out,
                        qn_err *err);
void qn_cpu_rope(qn_run *r, qn_tensor x, uint32_t d_head, const qn_rope *rope);
/* kv.c */
size_t qn_cpu_kv_block_bytes(const qn_device *d, const qn_kv_spec *spec, uint32_t group);
qn_code qn_cpu_kv_new(qn_device *d, const qn_kv_spec *spec, const uint32_t *n_blocks, qn_kv **out, qn_err *err);
void qn_cpu_kv_free(qn_kv *kv);
void qn_cpu_kv_copy(qn_kv *kv, uint32_t group, uint32_t dst, uint32_t src);
void qn_cpu_kv_read(qn_kv *kv, uint32_t group, uint32_t block, void *host);
void qn_cpu_kv_store(qn_kv *kv, uint32_t group, uint32_t block, const void *host);
void qn_cpu_kv_write(qn_run *r, uint32_t layer, qn_tensor k, qn_tensor v);
/* attend.c */
qn_tensor qn_cpu_attend(qn_run *r, qn_tensor q, const qn_attend *a);
/* elementwise.c */
qn_tensor qn_cpu_act(qn_run *r, qn_tensor x, qn_act kind);
qn_tensor qn_cpu_glu(qn_run *r, qn_tensor gate, qn_tensor up, qn_act kind);
qn_tensor qn_cpu_add(qn_run *r, qn_tensor a, qn_tensor b);
qn_tensor qn_cpu_mul(qn_run *r, qn_tensor a, qn_tensor b);
qn_tensor qn_cpu_scale(qn_run *r, qn_tensor x, float s);
qn_tensor qn_cpu_softcap(qn_run *r, qn_tensor x, float cap);
void qn_cpu_accumulate(qn_run *r, qn_tensor *x, qn_tensor y);

#endif
