/* ref_kv.h - where keys and values lie in the blocks of the reference device.
 *
 * MLX's cache keeps keys and values in the type they were computed in. Here they are stored as
 * float32, which holds every such value exactly; a float codec of the spec is not applied. The type
 * is noted for each layer by the step's kv_write, because attention rounds to it.
 *
 * mlx-lm quantizes a cache after the forward pass that made it long enough, and attends to codes
 * from then on. A layer with a quantized codec stores both forms of every token: what was computed,
 * and what its codes stand for. Which of them an item attends to follows from its first position
 * (qn_kv_spec.quantized_start), so blocks can be shared and filled in any order. The codes themselves
 * are there for files; of a token that came as codes what was computed is not known.
 *
 * A block holds block_tokens positions of every layer of its group. In it, layers ascending, one or
 * two forms:
 *   keys    per KV head, per tile of 16 positions: [d_k][16]
 *   values  per KV head: [block_tokens][v_ld], v_ld = d_v rounded up to 16, padding zero
 * and of quantized keys, then of quantized values:
 *   codes   per KV head and position: the words, then the scales and the biases as float32
 */
#ifndef QN_COMPUTE_REF_REF_KV_H
#define QN_COMPUTE_REF_REF_KV_H

#include "compute/ref/ref.h"

/* A layer inside its group's blocks; floats. */
typedef struct qn_ref_place {
    size_t k, v;           /* offset of the first head's keys and values */
    size_t k_head, v_head; /* from one head to the next */
    size_t k_codes, v_codes; /* the same offsets of the form that codes stand for */
    size_t k_raw, v_raw;     /* of the codes of quantized heads */
    uint32_t v_ld;
    qn_dtype k_type, v_type; /* of what the step under way has written */
} qn_ref_place;

struct qn_kv {
    qn_kv_spec spec;     /* layers are our copy */
    qn_ref_place *place; /* [n_layers] */
    float *pool[QN_MAX_KV_GROUPS];
    size_t block_floats[QN_MAX_KV_GROUPS], pool_bytes[QN_MAX_KV_GROUPS];
    uint32_t n_blocks[QN_MAX_KV_GROUPS];
    float *states; /* [n_states] slots of state_floats; ref_recurrent.c has the layout */
    size_t state_floats;
};

/* The block of `item` that holds position `pos` in group g; stops the process when the item's table
 * does not cover it (no failure). */
float *qn_ref_kv_block(const qn_kv *kv, const qn_item *item, uint32_t g, uint32_t pos);

enum { QN_REF_RUNS = 3 };

/* The positions that a query sees, in the order of their sums: runs, some of them often empty, of n
 * positions together. */
typedef struct qn_ref_visible {
    uint32_t first[QN_REF_RUNS], end[QN_REF_RUNS];
    uint32_t n;
} qn_ref_visible;

/* What the query at `pos` sees of a group's layers (ref_attend.c) (no failure). */
qn_ref_visible qn_ref_visible_to(const qn_kv_group *group, const qn_item *item, uint32_t pos);

#endif
