/* ref.h - the reference device: the bits of mlx-lm on MLX's CPU backend. Private to
 * src/compute/ref, except qn_ref_open.
 *
 * Every operation rounds where MLX does, and every sum has MLX's order (docs/numerics.md). A
 * tensor's elements are stored in its own type (float32, float16 or bfloat16); types meet by MLX's
 * promotion. Scratch reserves four bytes for each element, so that `accumulate` can widen a tensor
 * where it is. Matrices are read in MLX's own packing from the mapped file. Work is divided over
 * outputs only: the number of threads and the instruction set cannot change a bit.
 */
#ifndef QN_COMPUTE_REF_REF_H
#define QN_COMPUTE_REF_REF_H

#include "compute/cpu/pool.h"
#include "compute/device.h"
#include "compute/ref/ref_kernels.h"
#include "core/arena.h"
#include "format/dtype.h"

enum {
    QN_REF_ROPE_SLOTS = 4,  /* rotary tables of one step kept at the same time */
    QN_REF_MAX_HEAD = 1024, /* elements of a key or value head */
    QN_REF_KEY_TILE = 16,   /* keys side by side in storage */
    QN_REF_MAX_TAPS = 64,   /* of a convolution */
    QN_REF_N_ACTS = 5       /* kinds of qn_act */
};

struct qn_weight {
    qn_matrix m; /* borrowed pointers into the mapped file */
};

typedef struct qn_ref {
    qn_device base;
    qn_pool *pool;
    const qn_ref_kernels *k;
    qn_arena arena; /* weights' descriptions, uploaded vectors, rotary tables */
    struct qn_ref_load *loads; /* newest first */
    qn_dtype table_type; /* F16 or BF16 once act_table is filled, F32 before */
    uint16_t *act_table; /* [QN_REF_N_ACTS, 65536] activation of every code of table_type */
} qn_ref;

/* cos and sin of the positions of the step under way, for one rotary description (ref_rope.c). */
typedef struct qn_ref_rope_slot {
    const qn_rope *rope; /* NULL: empty */
    float *table;        /* [max_tokens, dims] */
} qn_ref_rope_slot;

typedef struct qn_ref_run {
    qn_run base;
    qn_ref *ref;
    qn_run_limits limits;
    bool measures;   /* no memory yet: operations take it without touching it */
    uint8_t *memory; /* one anonymous mapping that the next three are parts of */
    size_t memory_bytes;
    uint8_t *thread_scratch; /* [n_threads, thread_bytes] */
    qn_ref_rope_slot ropes[QN_REF_ROPE_SLOTS];
    uint8_t *scratch; /* [scratch_bytes] tensors of the step, a stack */
    uint32_t next_rope;
    size_t thread_bytes, rope_bytes[QN_REF_ROPE_SLOTS], scratch_bytes; /* grow while it measures */
    size_t used, peak; /* bytes of scratch; peak over the life of the run */
    size_t pinned; /* reset stops here: what `fetch` gave out stays until `end` */
} qn_ref_run;

/* Open the reference device. n_threads 0: qn_pool_default_threads. Errors: QN_UNSUPPORTED (an
 * unknown instruction set: names the choices), QN_INVALID, QN_NOMEM, QN_IO (threads). */
qn_code qn_ref_open(qn_device **out, const qn_device_opts *opts, qn_err *err);

/* The name of the instruction set in use (no failure). */
const char *qn_ref_isa(const qn_device *d);

/* MLX's promotion of two float types: equal types stay, different ones give float32 (no failure).
 */
static inline qn_dtype qn_ref_promote(qn_dtype a, qn_dtype b) { return a == b ? a : QN_F32; }

/* v rounded to type t, as a float32 (ref_math.c) (no failure). */
float qn_ref_round(float v, qn_dtype t);

/* MLX's own approximations in float32, and its unary operations in type t: x is a value of t, and
 * so is the result (ref_math.c; docs/numerics.md has the formulas) (no failure). */
float qn_ref_expf(float x);
float qn_ref_sinf(float x);
float qn_ref_cosf(float x);
float qn_ref_exp(float x, qn_dtype t);
float qn_ref_sigmoid(float x, qn_dtype t);
float qn_ref_erf(float x, qn_dtype t);
float qn_ref_logaddexp(float a, float b, qn_dtype t);
float qn_ref_act_of(float x, qn_act kind, qn_dtype t);
float qn_ref_softcap_of(float x, float cap, qn_dtype t);

/* Call fn over the rows [0, rows): on the calling thread, or in ranges over the pool when rows*cols
 * elements are worth it. Rows must not depend on each other (ref.c) (no failure). */
typedef void (*qn_ref_rows_fn)(const void *arg, uint32_t r0, uint32_t r1);
void qn_ref_rows(qn_ref_run *r, qn_ref_rows_fn fn, const void *arg, uint32_t rows, uint32_t cols);

/* qn_pool_run for the work of a step: neither this nor qn_ref_rows calls fn while the run measures
 * (ref.c) (no failure). */
void qn_ref_parts(qn_ref_run *r, qn_pool_fn fn, void *arg, uint32_t n_parts);

/* Take a [rows, cols] tensor of type t from the run's scratch; stops the process if the run's
 * limits are exceeded (ref.c) (no failure). */
qn_tensor qn_ref_take(qn_ref_run *r, uint32_t rows, uint32_t cols, qn_dtype t);

/* Raw scratch, 64-byte aligned; the executing thread's own scratch, thread_bytes (no failure). */
void *qn_ref_bytes(qn_ref_run *r, size_t bytes);
static inline void *qn_ref_thread(const qn_ref_run *r, uint32_t thread)
{
    return r->thread_scratch + thread * r->thread_bytes;
}

/* Host address of element (row, col) of a tensor (no failure). */
static inline uint8_t *qn_ref_at(qn_tensor x, uint32_t row, uint32_t col)
{
    return (uint8_t *)(uintptr_t)x.addr + ((size_t)row * x.ld + col) * qn_dtype_size(x.dtype);
}

/* A vector operand [1, cols] as float32 for every part of an operation: the tensor's own memory, or
 * a widened copy in scratch; NULL when it is absent (ref.c) (no failure). */
const float *qn_ref_vector(qn_ref_run *r, qn_tensor t, uint32_t cols);

/* x as float32 values, rows following each other: its own memory or a copy in scratch; and the type
 * of the products and sums of a matrix with activations of type x (ref_linear.c) (no failure). */
const float *qn_ref_widen_rows(qn_ref_run *r, qn_tensor x);
qn_dtype qn_ref_chain_type(const qn_matrix *m, qn_dtype x);

/* Matrix i of a stack (ref_linear.c) (no failure). */
qn_matrix qn_ref_matrix_of(const qn_matrix *stack, uint32_t i);

/* s = exp(s - max) / sum over n scores and, when there is one, the sink: in float32 with one serial
 * sum, rounded to t once (ref_attend.c) (no failure). */
void qn_ref_softmax(const qn_ref_kernels *k, float *s, uint32_t n, const float *sink, qn_dtype t);

/* The slots of the table of operations, by file. Contracts are those of compute/ops.h. */
/* ref_weights.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_code qn_ref_load(qn_device *d, const qn_matrix_src *src, size_t n, const qn_load_opts *opts,
                    qn_weight **out, qn_err *err);
uint64_t qn_ref_weights_bytes(const qn_device *d, uint64_t *resident);
qn_code qn_ref_weights_pin(const qn_device *d, qn_err *err);
qn_code qn_ref_upload(qn_device *d, const void *data, qn_dtype t, uint32_t rows, uint32_t cols,
                      qn_tensor *out, qn_err *err);
/* ref_linear.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
void qn_ref_linear(qn_run *r, size_t n, qn_tensor *y, qn_tensor x, const qn_linear *const *w);
qn_tensor qn_ref_embed(qn_run *r, const qn_weight *w);
/* ref_experts.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_routing qn_ref_route(qn_run *r, qn_tensor logits, const qn_router *how);
void qn_ref_expert_linear(qn_run *r, size_t n, qn_tensor *y, qn_tensor x, qn_tensor ids,
                          const qn_linear *const *w);
qn_tensor qn_ref_combine(qn_run *r, qn_tensor y, qn_tensor weights);
/* ref_recurrent.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
size_t qn_ref_state_bytes(const qn_device *d, const qn_kv_spec *spec);
void qn_ref_state_clear(qn_kv *kv, uint32_t slot);
void qn_ref_state_copy(qn_kv *kv, uint32_t dst, uint32_t src);
void qn_ref_state_get(const qn_kv *kv, uint32_t layer, uint32_t slot, float *conv, float *s);
void qn_ref_state_put(qn_kv *kv, uint32_t layer, uint32_t slot, const float *conv, const float *s);
void qn_ref_kv_get(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                   float *k, float *v);
void qn_ref_kv_put(qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                   const float *k, const float *v);
void qn_ref_kv_get_codes(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                         const qn_kv_codes *k, const qn_kv_codes *v);
void qn_ref_kv_put_codes(qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                         const qn_kv_codes *k, const qn_kv_codes *v);
qn_tensor qn_ref_conv(qn_run *r, uint32_t layer, qn_tensor x, qn_tensor w);
qn_tensor qn_ref_decay(qn_run *r, qn_tensor a, qn_tensor a_log, qn_tensor dt_bias);
qn_tensor qn_ref_delta(qn_run *r, uint32_t layer, qn_tensor q, qn_tensor k, qn_tensor v,
                       qn_tensor g, qn_tensor beta);
/* ref_norm.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_tensor qn_ref_rms_norm(qn_run *r, qn_tensor x, qn_tensor weight, uint32_t width, float eps);
qn_tensor qn_ref_layer_norm(qn_run *r, qn_tensor x, qn_tensor weight, qn_tensor bias, float eps);
/* ref_rope.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_code qn_ref_rope_new(qn_device *d, const qn_rope_desc *desc, uint32_t max_positions,
                        qn_rope **out, qn_err *err);
void qn_ref_rope(qn_run *r, qn_tensor x, uint32_t d_head, const qn_rope *rope);
/* ref_kv.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
size_t qn_ref_kv_block_bytes(const qn_device *d, const qn_kv_spec *spec, uint32_t group);
qn_code qn_ref_kv_new(qn_device *d, const qn_kv_spec *spec, const uint32_t *n_blocks, qn_kv **out,
                      qn_err *err);
void qn_ref_kv_free(qn_kv *kv);
void qn_ref_kv_copy(qn_kv *kv, uint32_t group, uint32_t dst, uint32_t src);
void qn_ref_kv_read(qn_kv *kv, uint32_t group, uint32_t block, void *host);
void qn_ref_kv_store(qn_kv *kv, uint32_t group, uint32_t block, const void *host);
void qn_ref_kv_write(qn_run *r, uint32_t layer, qn_tensor k, qn_tensor v);
/* ref_attend.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_tensor qn_ref_attend(qn_run *r, qn_tensor q, const qn_attend *a);
/* ref_latent.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_tensor qn_ref_attend_latent(qn_run *r, qn_tensor q, const qn_latent *a);
/* ref_elementwise.c: slots of qn_ops, contracts in compute/ops.h. Errors: as there. */
qn_tensor qn_ref_act(qn_run *r, qn_tensor x, qn_act kind);
qn_tensor qn_ref_glu(qn_run *r, qn_tensor gate, qn_tensor up, qn_act kind);
qn_tensor qn_ref_add(qn_run *r, qn_tensor a, qn_tensor b);
qn_tensor qn_ref_mul(qn_run *r, qn_tensor a, qn_tensor b);
qn_tensor qn_ref_scale(qn_run *r, qn_tensor x, float s);
qn_tensor qn_ref_softcap(qn_run *r, qn_tensor x, float cap);
qn_tensor qn_ref_mul_rows(qn_run *r, qn_tensor x, qn_tensor s);
qn_tensor qn_ref_scale_by_pos(qn_run *r, qn_tensor x, const qn_pos_scale *how);
qn_tensor qn_ref_widen(qn_run *r, qn_tensor x);
qn_tensor qn_ref_cast_like(qn_run *r, qn_tensor x, qn_tensor like);
qn_tensor qn_ref_head_part(qn_run *r, qn_tensor x, uint32_t d, uint32_t from, uint32_t n,
                           qn_tensor tail);
void qn_ref_accumulate(qn_run *r, qn_tensor *x, qn_tensor y);

#endif
