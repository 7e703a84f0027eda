/* ops.h - the table of operations: everything a model's forward pass may ask of a device.
 *
 * Model code is written once against this table. It never names a device, an instruction set, a
 * number type of the activations or a KV codec: an operation takes tensors and gives a tensor, and
 * the device decides where it lies and in which type its elements are kept (`ref`: the type MLX
 * would give it; `cpu`: float32). A tensor is a small value without ownership: a device address
 * that host code must never dereference, and a shape.
 *
 * Memory: results live in the run's scratch. `mark` and `reset` give the scratch of a layer back;
 * `accumulate` adds into an older tensor in place. Nothing is allocated per step.
 *
 * Determinism (design 2.2): the value of a result's row depends on that row's inputs only, through
 * one summation order, never on the number of rows, the items beside it, or the number of threads.
 *
 * Errors: operations of a step cannot fail; impossible shapes are broken invariants and stop the
 * process. A device failure is reported by `end`.
 *
 * Threads: a run and its operations belong to one thread (the engine's); devices use their own
 * worker threads inside an operation.
 *
 * Shapes: T rows of the batch, E model width, H query heads, Hk KV heads, D head size, F inner
 * width, V vocabulary.
 */
#ifndef QN_COMPUTE_OPS_H
#define QN_COMPUTE_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/batch.h"
#include "compute/kv.h"
#include "core/err.h"
#include "format/quant.h"

typedef struct qn_ops qn_ops;
typedef struct qn_weight qn_weight; /* a matrix in the device's own layout, made by load */
typedef struct qn_rope qn_rope;     /* rotary tables on a device */

typedef struct qn_tensor {
    uint64_t addr;       /* device address; 0: no tensor */
    qn_dtype dtype;      /* chosen by the device */
    uint32_t rows, cols; /* row-major */
    uint32_t ld;         /* elements from one row to the next, >= cols */
} qn_tensor;

/* A device: memory, threads, kernels. Concrete devices embed this as their first member. */
typedef struct qn_device {
    const qn_ops *ops;
    const char *name; /* "cpu", "ref", ... */
    bool exact;       /* imitates mlx-lm: its bits, and the order in which it does things */
} qn_device;

/* One forward pass under way: scratch memory and the batch. Concrete devices embed it. */
typedef struct qn_run {
    const qn_ops *ops;
    qn_device *dev;
    const qn_batch *batch; /* set between begin and end */
    qn_kv *kv;             /* set between begin and end */
} qn_run;

enum { QN_MEASURED = 64 }; /* address of all that a measuring run takes; nobody looks there */

typedef struct qn_run_limits {
    uint32_t max_tokens, max_items, max_out; /* of a batch */
    uint32_t max_positions;                  /* longest sequence */
    size_t scratch_bytes; /* of a step's results; 0: the run measures what it needs (run_new) */
} qn_run_limits;

/* A matrix to load: module path for messages and cache keys, and where the file has it. */
typedef struct qn_matrix_src {
    const char *path;
    qn_matrix m;
} qn_matrix_src;

typedef struct qn_load_opts {
    uint64_t fingerprint;   /* of the model's files; key of a derived cache file */
    const char *cache_dir;  /* folder for derived layouts; NULL: keep them in memory */
    qn_dtype model_dtype;   /* the checkpoint's own float type */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes); /* NULL allowed */
    void *user;
} qn_load_opts;

/* y = x W^T (+ bias). `bias` may be absent (addr 0). */
typedef struct qn_linear {
    const qn_weight *w;
    qn_tensor bias; /* [1, n_out] */
} qn_linear;

typedef enum qn_act { QN_SILU = 0, QN_GELU, QN_GELU_TANH, QN_RELU2, QN_SIGMOID } qn_act;

/* How a router turns its logits [T, E] (E experts) into k experts per row with weights (spec
 * models 3.7). */
typedef enum qn_router_kind {
    QN_ROUTE_SOFTMAX_ALL =
        0, /* R1: probabilities over all experts, the k largest; normalized if asked */
    QN_ROUTE_SOFTMAX_TOP, /* R2: the k largest logits, softmax over those */
    QN_ROUTE_SIGMOID, /* R3, in float32: the k largest of sigmoid + bias, weights without the bias */
    QN_ROUTE_SOFTMAX_GROUPS, /* R4: probabilities over all experts, groups as below, the k largest */
    QN_ROUTE_SIGMOID_INPUT /* R5, k = 1: the largest logit; its sigmoid in float32 is for the expert's input */
} qn_router_kind;

typedef struct qn_router {
    qn_router_kind kind;
    uint32_t k;
    bool normalize; /* R1, R3 with k > 1: divide the k weights by their sum */
    /* R3, R4. With n_groups > 1 the experts of all but the n_kept best groups count as 0, not as
     * impossible: one may still be chosen before a negative. A group is as good as the sum of its two
     * best (R3), or its best (R4). */
    uint32_t n_groups, n_kept;
    float scale;    /* R3, R4: of the weights, at last */
    float eps;      /* R3: added to the sum */
    qn_tensor bias; /* R3: [1, E] */
} qn_router;

/* The experts of every row: ids [T, k] (uint32 on the device), weights [T, k]; rank 0 is the most
 * likely. */
typedef struct qn_routing {
    qn_tensor ids, weights;
} qn_routing;

/* Rotary embedding: angle = pos * pos_scale * inv_k for k < dims/2, where inv_k = exp(-k * ln(base)
 * / (dims/2)), or 1/freqs[k] when a table is given (infinity: angle 0). The rotated part is
 * multiplied by mscale first when that is not 1. Source: spec numerics 6.2, models 3.3. */
typedef struct qn_rope_desc {
    uint32_t dims;      /* rotated elements of each head, even; the rest is copied */
    bool traditional;   /* pairs (2i, 2i+1) instead of (i, i+dims/2) */
    float base, pos_scale, mscale;
    const float *freqs; /* [dims/2] or NULL; copied by rope_new */
} qn_rope_desc;

/* A factor that grows with the position p: log(floor((p + 1) / step) + 1) * rate + 1. */
typedef struct qn_pos_scale {
    float step, rate; /* step 0: none */
} qn_pos_scale;

typedef struct qn_attend {
    uint32_t layer;   /* index into the KV spec's layers */
    uint32_t n_heads; /* H, a multiple of the layer's n_kv_heads; head h reads KV head h*Hk/H */
    float scale;      /* applied to the query */
    float softcap;    /* > 0: scores = tanh(s/softcap)*softcap before the mask */
    qn_tensor sinks;  /* [1, H] or absent: one extra logit per head, its probability dropped */
} qn_attend;

/* Attention of a latent layer (qn_kv_layer.latent). The matrices are stacks of H, one per head: embed
 * [H, Dk, N] brings the part of a query that has no position, N elements, to the latent; unembed
 * [H, M, Dk] brings a latent to the head's result. */
typedef struct qn_latent {
    uint32_t layer;   /* index into the KV spec's layers */
    uint32_t n_heads; /* H */
    float scale;      /* applied to the query */
    const qn_weight *embed, *unembed;
} qn_latent;

struct qn_ops {
    /* ---- load time; errors are values ---- */

    /* Bring n matrices into the device's layout. The sources' memory (mapped files) stays valid
     * until the device is closed. out[n]; all or nothing. Errors: QN_IO, QN_NOMEM, QN_UNSUPPORTED,
     * QN_CANCELLED. */
    qn_code (*load)(qn_device *d, const qn_matrix_src *src, size_t n, const qn_load_opts *opts,
                    qn_weight **out, qn_err *err);

    /* Bring one vector or small tensor [rows, cols] of a float type. Kept until the device is
     * closed. Errors: QN_NOMEM. */
    qn_code (*upload)(qn_device *d, const void *data, qn_dtype t, uint32_t rows, uint32_t cols,
                      qn_tensor *out, qn_err *err);

    /* Make rotary tables for positions below max_positions; kept until the device is closed.
     * Errors: QN_NOMEM, QN_INVALID (dims odd). */
    qn_code (*rope_new)(qn_device *d, const qn_rope_desc *desc, uint32_t max_positions,
                        qn_rope **out, qn_err *err);

    /* Bytes of one block of a group on this device (no failure). */
    size_t (*kv_block_bytes)(const qn_device *d, const qn_kv_spec *spec, uint32_t group);

    /* Pools of n_blocks[g] blocks per group. The spec is copied. Errors: QN_NOMEM, QN_UNSUPPORTED.
     */
    qn_code (*kv_new)(qn_device *d, const qn_kv_spec *spec, const uint32_t *n_blocks, qn_kv **out,
                      qn_err *err);
    void (*kv_free)(qn_kv *kv);

    /* Copy a block within a group: copy on write (no failure). */
    void (*kv_copy)(qn_kv *kv, uint32_t group, uint32_t dst, uint32_t src);

    /* Raw bytes of a block to and from host memory of kv_block_bytes bytes, for the disk tier
     * (no failure). */
    void (*kv_read)(qn_kv *kv, uint32_t group, uint32_t block, void *host);
    void (*kv_store)(qn_kv *kv, uint32_t group, uint32_t block, const void *host);

    /* Keys [n, n_kv_heads, d_k] and values [n, n_kv_heads, d_v] of a layer, of n places from `at` of
     * a block of its group, as float32 in host memory; and back. NULL: those are left alone. With a
     * quantized codec put encodes, and get gives what was computed, which only devices keep that
     * imitate mlx-lm (qn_device.exact); others must not be asked (no failure). */
    void (*kv_get)(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n, float *k,
                   float *v);
    void (*kv_put)(qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                   const float *k, const float *v);

    /* The same of keys and values with a quantized codec as their codes, scales and biases: nothing
     * is decoded, nothing is lost. Words NULL: those are left alone (no failure). */
    void (*kv_get_codes)(const qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                         const qn_kv_codes *k, const qn_kv_codes *v);
    void (*kv_put_codes)(qn_kv *kv, uint32_t layer, uint32_t block, uint32_t at, uint32_t n,
                         const qn_kv_codes *k, const qn_kv_codes *v);

    /* A run for batches within the limits. Without limits.scratch_bytes it has no memory yet and
     * measures: the operations between `begin` and `end` take what they will take later, and neither
     * compute nor touch anything; tensors have shapes only, and the batch has no items. run_open then
     * gives it memory for the largest of those passes. Errors: QN_NOMEM. */
    qn_code (*run_new)(qn_device *d, const qn_run_limits *limits, qn_run **out, qn_err *err);
    qn_code (*run_open)(qn_run *r, qn_err *err);
    void (*run_free)(qn_run *r);

    /* Bytes of all the memory of a run that measures or has measured, and the most of it that steps
     * have used so far (no failure). */
    void (*run_bytes)(const qn_run *r, size_t *all, size_t *used);

    /* Close the device with everything loaded into it (no failure). */
    void (*close)(qn_device *d);

    /* Number of worker threads (no failure). */
    uint32_t (*n_threads)(const qn_device *d);

    /* Pools, state slots and runs take memory as it is touched, from their start on, in pieces of so many
     * bytes (no failure). */
    size_t (*page_bytes)(const qn_device *d);

    /* Bytes of the loaded matrices in the device's layout, and how many of them are in memory now
     * rather than in a file only; `resident` may be NULL (no failure). */
    uint64_t (*weights_bytes)(const qn_device *d, uint64_t *resident);

    /* Bring the loaded matrices into memory and keep them there until the device is closed, as far as
     * the system lets us. Errors: QN_LIMIT (says how much that is, and what the limit). */
    qn_code (*weights_pin)(const qn_device *d, qn_err *err);

    /* ---- one step ---- */

    /* Start a step: scratch is empty, the batch is uploaded. The batch and kv stay valid until
     * `end`. */
    void (*begin)(qn_run *r, const qn_batch *b, qn_kv *kv);

    /* Finish: waits for the device. Errors: QN_DEVICE. */
    qn_code (*end)(qn_run *r, qn_err *err);

    /* Scratch position, and giving back all that was taken after it. */
    size_t (*mark)(qn_run *r);
    void (*reset)(qn_run *r, size_t mark);

    /* Rows of the embedding matrix w [V, E] for the batch's ids: [T, E]. Items with given
     * embeddings get those. */
    qn_tensor (*embed)(qn_run *r, const qn_weight *w);

    /* Rows of x [T, E] that need a result, in order: [n_out, E]. */
    qn_tensor (*out_rows)(qn_run *r, qn_tensor x);

    /* y[i] = x W[i]^T (+ bias[i]) for n matrices that read the same x [T, n_in]; y[i] [T, n_out_i].
     * One call shares the preparation of x between them. */
    void (*linear)(qn_run *r, size_t n, qn_tensor *y, qn_tensor x, const qn_linear *const *w);

    /* RMS norm of every run of `width` columns (width divides cols; a head norm has width D):
     * x * rsqrt(mean(x^2) + eps) * weight. weight [1, width] or absent. */
    qn_tensor (*rms_norm)(qn_run *r, qn_tensor x, qn_tensor weight, uint32_t width, float eps);

    /* Layer norm over the columns; weight and bias [1, cols], each may be absent. */
    qn_tensor (*layer_norm)(qn_run *r, qn_tensor x, qn_tensor weight, qn_tensor bias, float eps);

    /* Rotate the heads of x [T, n*d_head] in place by the batch's positions. Of the last head only
     * the rotated elements need be there: a view that begins inside the heads rotates what lies from
     * there on. */
    void (*rope)(qn_run *r, qn_tensor x, uint32_t d_head, const qn_rope *rope);

    /* Append k [T, Hk*Dk] and v [T, Hk*Dv] at the batch's positions of a layer, encoded by its
     * codec. */
    void (*kv_write)(qn_run *r, uint32_t layer, qn_tensor k, qn_tensor v);

    /* Attention of q [T, H*Dk] over what is stored, the new tokens included: [T, H*Dv]. Softmax
     * partials are formed per QN_KV_SPLIT positions and merged in ascending order (spec engine R3).
     */
    qn_tensor (*attend)(qn_run *r, qn_tensor q, const qn_attend *a);

    /* Attention of q [T, H*(N+Dv)] over a latent layer, heads [without position | rotated]. With the
     * latent c and the rotated part r of a stored row, the score is scale * ((embed q1) . c + q2 . r)
     * and the value unembed c: [T, H*M]. Whether c is brought to the heads or queries and results to c
     * is the device's choice; only devices that imitate mlx-lm (qn_device.exact) let it depend on the
     * item, as mlx-lm lets it depend on the call. */
    qn_tensor (*attend_latent)(qn_run *r, qn_tensor q, const qn_latent *a);

    /* Elementwise: act(x); act(gate)*up; a+b; a*b; x*s. Same shapes; b of add and mul may have one
     * row, which is then used for every row. */
    qn_tensor (*act)(qn_run *r, qn_tensor x, qn_act kind);
    qn_tensor (*glu)(qn_run *r, qn_tensor gate, qn_tensor up, qn_act kind);
    qn_tensor (*add)(qn_run *r, qn_tensor a, qn_tensor b);
    qn_tensor (*mul)(qn_run *r, qn_tensor a, qn_tensor b);
    qn_tensor (*scale)(qn_run *r, qn_tensor x, float s);

    /* tanh(x/cap)*cap. */
    qn_tensor (*softcap)(qn_run *r, qn_tensor x, float cap);

    /* x [T, n] times one factor per row s [T, 1]. */
    qn_tensor (*mul_rows)(qn_run *r, qn_tensor x, qn_tensor s);

    /* x [T, n] times each row's factor by its position. */
    qn_tensor (*scale_by_pos)(qn_run *r, qn_tensor x, const qn_pos_scale *how);

    /* x in float32, and x in the number type of `like`, for the few places where a reference leaves
     * its own type. A device that keeps activations in float32 gives x back. */
    qn_tensor (*widen)(qn_run *r, qn_tensor x);
    qn_tensor (*cast_like)(qn_run *r, qn_tensor x, qn_tensor like);

    /* Columns [from, from+n) of every head of x, whose heads are runs of d columns, and behind each
     * the columns of `tail` [T, c], the same for all heads; it may be absent: [T, cols/d * (n+c)]. */
    qn_tensor (*head_part)(qn_run *r, qn_tensor x, uint32_t d, uint32_t from, uint32_t n,
                           qn_tensor tail);

    /* ---- experts: matrices loaded with n_experts > 1 ---- */

    /* Choose experts from router logits [T, E]. Equal logits: the lower expert first. */
    qn_routing (*route)(qn_run *r, qn_tensor logits, const qn_router *how);

    /* y[i] [T*k, n_out_i]: row t*k+j is x's row times the matrix of expert ids[t][j]. x has T rows
     * (each used k times) or T*k rows. Biases are per expert [E, n_out] or absent. */
    void (*expert_linear)(qn_run *r, size_t n, qn_tensor *y, qn_tensor x, qn_tensor ids,
                          const qn_linear *const *w);

    /* Sum over j, in rank order, of weights[t][j] * y[t*k+j]: [T, n]. */
    qn_tensor (*combine)(qn_run *r, qn_tensor y, qn_tensor weights);

    /* ---- recurrent layers: state slots live beside the KV pools; items name theirs ---- */

    /* Zero a slot; copy one to another (no failure). */
    void (*state_clear)(qn_kv *kv, uint32_t slot);
    void (*state_copy)(qn_kv *kv, uint32_t dst, uint32_t src);

    /* What a layer has in a slot, as float32 in host memory: the convolution's inputs [K-1, C] and
     * S [n_heads, d_v, d_k]; and back (no failure). */
    void (*state_get)(const qn_kv *kv, uint32_t layer, uint32_t slot, float *conv, float *s);
    void (*state_put)(qn_kv *kv, uint32_t layer, uint32_t slot, const float *conv, const float *s);

    /* Bytes of one slot (no failure). */
    size_t (*state_bytes)(const qn_device *d, const qn_kv_spec *spec);

    /* Causal depthwise convolution over each item's rows and the K-1 inputs before them, which the
     * slot keeps; then silu. x [T, C], w [C, K]. */
    qn_tensor (*conv)(qn_run *r, uint32_t layer, qn_tensor x, qn_tensor w);

    /* Decay of the gated delta rule: exp(-exp(a_log) * softplus(a + dt_bias)); a [T, n], a_log and
     * dt_bias [1, n]. */
    qn_tensor (*decay)(qn_run *r, qn_tensor a, qn_tensor a_log, qn_tensor dt_bias);

    /* Gated delta rule over each item's rows in order, from the slot's state S [Hv, Dv, Dk]
     * float32: S *= g; d = (v - S k) * beta; S += d k^T; y = S q. q and k [T, Hk*Dk], v [T, Hv*Dv],
     * g and beta [T, Hv]; value head h reads key head h*Hk/Hv. y [T, Hv*Dv]. Source: spec
     * models 3.8. */
    qn_tensor (*delta)(qn_run *r, uint32_t layer, qn_tensor q, qn_tensor k, qn_tensor v,
                       qn_tensor g, qn_tensor beta);

    /* *x += y in place: the residual stream. */
    void (*accumulate)(qn_run *r, qn_tensor *x, qn_tensor y);

    /* The values of x as float32 [rows, cols] in host memory, to be read after `end` has said that the
     * step succeeded, and valid until the next `begin`; the caller may overwrite them and does not use x
     * any more (no failure). */
    float *(*fetch)(qn_run *r, qn_tensor x);
};

/* n columns of x from column c0, n rows from row r0: views (no failure). */
qn_tensor qn_cols(qn_tensor x, uint32_t c0, uint32_t n);
qn_tensor qn_rows(qn_tensor x, uint32_t r0, uint32_t n);

/* dst [n, b, a] = src [n, a, b] with the last two dimensions exchanged (no failure). */
void qn_transpose_heads(float *dst, const float *src, uint32_t n, uint32_t a, uint32_t b);

/* The inverse frequencies of a rotary table in float32, inv[dims/2], by MLX's formula (spec
 * numerics 6.2, exp of 4.1) (no failure). */
void qn_rope_inv(const qn_rope_desc *desc, float *inv);

/* The factor at a position, in float32 as mlx-lm's llama4 has it (no failure). */
float qn_pos_factor(const qn_pos_scale *how, uint32_t pos);

#endif
