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

enum {
    QN_CPU_ROPE_SLOTS = 4,            /* rotary tables of one step kept at the same time */
    QN_CPU_THREAD_BYTES = 1 << 20,    /* scratch of one thread, at most */
    QN_CPU_PARTIAL_BYTES = 16 << 20   /* partial softmaxes of a long decode, at most */
};

/* cos and sin of the positions of the step under way, for one table (rope.c). */
typedef struct qn_cpu_rope_slot {
    const qn_rope *rope; /* NULL: empty */
    float *table;        /* [max_tokens, dims] */
} qn_cpu_rope_slot;

/* Bytes of the parts of a run's memory, multiples of 64. */
typedef struct qn_cpu_need {
    size_t thread;   /* of each thread's scratch */
    size_t partials;
    size_t ropes[QN_CPU_ROPE_SLOTS];
    size_t scratch;
} qn_cpu_need;

typedef struct qn_cpu_run {
    qn_run base;
    qn_cpu *cpu;
    qn_run_limits limits;
    bool measures;           /* no memory yet: operations take it without touching it */
    qn_cpu_need need;        /* grows while it measures */
    uint8_t *memory;         /* one anonymous mapping that the next four are parts of */
    size_t memory_bytes;
    uint8_t *thread_scratch; /* [n_threads, need.thread] for kernels */
    uint8_t *partials;       /* [need.partials] for attend.c */
    qn_cpu_rope_slot ropes[QN_CPU_ROPE_SLOTS];
    uint8_t *scratch;        /* [need.scratch] tensors of the step, a stack */
    uint32_t next_rope;
    size_t used, peak;       /* bytes of scratch; peak over the life of the run */
    size_t partials_peak;    /* bytes of partials that were used */
    size_t pinned;           /* reset stops here: what `fetch` gave out stays until `end` */
} qn_cpu_run;

/* Open the fast CPU device. n_threads 0: qn_pool_default_threads; act DEFAULT: INT16.
 * Errors: QN_UNSUPPORTED (instruction set), QN_INVALID, QN_NOMEM, QN_IO (threads). */
qn_code qn_cpu_open(qn_device **out, const qn_device_opts *opts, qn_err *err);

/* Zeroed memory that begins on a huge page and takes room as it is touched; NULL without memory (no
 * failure otherwise). Unmap accepts NULL. */
void *qn_cpu_map(size_t bytes);
void qn_cpu_unmap(void *p, size_t bytes);

/* Call fn over the rows [0, rows) of a tensor of `cols` columns: at once on the calling thread, or in
 * ranges over the pool when the tensor is large. Rows must not depend on each other (no failure). */
typedef void (*qn_cpu_rows_fn)(const void *arg, uint32_t r0, uint32_t r1);
void qn_cpu_rows(qn_cpu_run *r, qn_cpu_rows_fn fn, const void *arg, uint32_t rows, uint32_t cols);

/* qn_pool_run for the work of a step: neither this nor qn_cpu_rows calls fn while the run measures
 * (no failure). */
void qn_cpu_parts(qn_cpu_run *r, qn_pool_fn fn, void *arg, uint32_t n_parts);

/* The scratch of a thread (no failure). */
static inline void *qn_cpu_thread(const qn_cpu_run *r, uint32_t thread)
{
    return r->thread_scratch + thread * r->need.thread;
}

/* Host pointer of a tensor's row; only inside src/compute/cpu (no failure). */
static inline float *qn_cpu_row(qn_tensor x, uint32_t row)
{
    return (float *)(uintptr_t)x.addr + (size_t)row * x.ld;
}

/* Take a [rows, cols] float32 tensor from the run's scratch, rows 64-byte aligned when cols is a
 * multiple of 16. Stops the process if the run's limits are exceeded (no failure). */
qn_tensor qn_cpu_take(qn_cpu_run *r, uint32_t rows, uint32_t cols);

/* Raw scratch, 64-byte aligned (no failure). */
void *qn_cpu_bytes(qn_cpu_run *r, size_t bytes);

/* Open the device; qn_device_open calls it (cpu.c). Errors: QN_UNSUPPORTED (an unknown instruction
 * set: names the choices), QN_NOMEM, QN_IO. */
qn_code qn_cpu_open(qn_device **out, const qn_device_opts *opts, qn_err *err);

/* The slots of the table of operations, by file. Contracts are those of compute/ops.h. */
/* weights.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_code qn_cpu_load(qn_device *d, const qn_matrix_src *src, size_t n, const qn_load_opts *opts,
                    qn_weight **out, qn_err *err);
void qn_cpu_store_free(qn_cpu_store *s);
uint64_t qn_cpu_weights_bytes(const qn_device *d, uint64_t *resident);
qn_code qn_cpu_weights_pin(const qn_device *d, qn_err *err);
/* linear.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
void qn_cpu_linear(qn_run *r, size_t n, qn_tensor *y, qn_tensor x, const qn_linear *const *w);
qn_tensor qn_cpu_embed(qn_run *r, const qn_weight *w);
/* norm.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_tensor qn_cpu_rms_norm(qn_run *r, qn_tensor x, qn_tensor weight, uint32_t width, float eps);
qn_tensor qn_cpu_layer_norm(qn_run *r, qn_tensor x, qn_tensor weight, qn_tensor bias, float eps);
/* rope.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_code qn_cpu_rope_new(qn_device *d, const qn_rope_desc *desc, uint32_t max_positions, qn_rope **out,
                        qn_err *err);
void qn_cpu_rope(qn_run *r, qn_tensor x, uint32_t d_head, const qn_rope *rope);
/* kv.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
size_t qn_cpu_kv_block_bytes(const qn_device *d, const qn_kv_spec *spec, uint32_t group);
qn_code qn_cpu_kv_new(qn_device *d, const qn_kv_spec *spec, const uint32_t *n_blocks, qn_kv **out, qn_err *err);
void qn_cpu_kv_free(qn_kv *kv);
void qn_cpu_kv_copy(qn_kv *kv, uint32_t group, uint32_t dst, uint32_t src);
void qn_cpu_kv_read(qn_kv *kv, uint32_t group, uint32_t block, void *host);
void qn_cpu_kv_store(qn_kv *kv, uint32_t group, uint32_t block, const void *host);
void qn_cpu_kv_write(qn_run *r, uint32_t layer, qn_tensor k, qn_tensor v);
/* attend.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_tensor qn_cpu_attend(qn_run *r, qn_tensor q, const qn_attend *a);
/* latent.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_tensor qn_cpu_attend_latent(qn_run *r, qn_tensor q, const qn_latent *a);
/* elementwise.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_tensor qn_cpu_act(qn_run *r, qn_tensor x, qn_act kind);
qn_tensor qn_cpu_glu(qn_run *r, qn_tensor gate, qn_tensor up, qn_act kind);
qn_tensor qn_cpu_add(qn_run *r, qn_tensor a, qn_tensor b);
qn_tensor qn_cpu_mul(qn_run *r, qn_tensor a, qn_tensor b);
qn_tensor qn_cpu_scale(qn_run *r, qn_tensor x, float s);
qn_tensor qn_cpu_softcap(qn_run *r, qn_tensor x, float cap);
void qn_cpu_accumulate(qn_run *r, qn_tensor *x, qn_tensor y);
qn_tensor qn_cpu_mul_rows(qn_run *r, qn_tensor x, qn_tensor s);
qn_tensor qn_cpu_scale_by_pos(qn_run *r, qn_tensor x, const qn_pos_scale *how);
qn_tensor qn_cpu_widen(qn_run *r, qn_tensor x);
qn_tensor qn_cpu_cast_like(qn_run *r, qn_tensor x, qn_tensor like);
qn_tensor qn_cpu_head_part(qn_run *r, qn_tensor x, uint32_t d, uint32_t from, uint32_t n,
                           qn_tensor tail);
/* experts.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_routing qn_cpu_route(qn_run *r, qn_tensor logits, const qn_router *how);
void qn_cpu_expert_linear(qn_run *r, size_t n, qn_tensor *y, qn_tensor x, qn_tensor ids,
                          const qn_linear *const *w);
qn_tensor qn_cpu_combine(qn_run *r, qn_tensor y, qn_tensor weights);
/* recurrent.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
size_t qn_cpu_state_bytes(const qn_device *d, const qn_kv_spec *spec);
void qn_cpu_state_clear(qn_kv *kv, uint32_t slot);
void qn_cpu_state_copy(qn_kv *kv, uint32_t dst, uint32_t src);
void qn_cpu_state_get(const qn_kv *kv, uint32_t layer, uint32_t slot, float *conv, float *s);
void qn_cpu_state_put(qn_kv *kv, uint32_t layer, uint32_t slot, const float *conv, const float *s);
void qn_cpu_kv_get(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                   float *k, float *v);
void qn_cpu_kv_put(qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                   const float *k, const float *v);
void qn_cpu_kv_get_codes(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                         const qn_kv_codes *k, const qn_kv_codes *v);
void qn_cpu_kv_put_codes(qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                         const qn_kv_codes *k, const qn_kv_codes *v);
qn_tensor qn_cpu_conv(qn_run *r, uint32_t layer, qn_tensor x, qn_tensor w);
qn_tensor qn_cpu_decay(qn_run *r, qn_tensor a, qn_tensor a_log, qn_tensor dt_bias);
qn_tensor qn_cpu_delta(qn_run *r, uint32_t layer, qn_tensor q, qn_tensor k, qn_tensor v, qn_tensor g,
                       qn_tensor beta);

#endif
