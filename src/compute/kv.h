/* kv.h - what the KV cache of a model looks like, and pools of its blocks on a device.
 *
 * Layers that share a visibility rule form a group. One block holds `block_tokens` positions of all
 * layers of its group; how it lies inside a block is the device's business. Pools have a fixed
 * number of blocks; which sequence owns which block is decided by src/cache. Threads: the engine
 * thread.
 */
#ifndef QN_COMPUTE_KV_H
#define QN_COMPUTE_KV_H

#include <stdint.h>

#include "compute/batch.h"

enum { QN_KV_SPLIT = 256 }; /* attention merges partial results at multiples of this position */

typedef enum qn_kv_rule {
    QN_KV_FULL = 0, /* query p sees keys 0..p */
    QN_KV_SLIDING   /* query p sees keys p-window+1..p */
} qn_kv_rule;

typedef enum qn_kv_codec { QN_KV_F32 = 0, QN_KV_F16, QN_KV_BF16 } qn_kv_codec;

typedef struct qn_kv_group {
    qn_kv_rule rule;
    uint32_t window; /* SLIDING: positions, the query's own included; else 0 */
} qn_kv_group;

/* What a recurrent layer keeps per sequence (spec models 3.8); all zero for other layers. */
typedef struct qn_state_layer {
    uint32_t conv_width, conv_channels; /* K-1 inputs of C channels */
    uint32_t n_heads, d_v, d_k;         /* S [n_heads, d_v, d_k] float32 */
} qn_state_layer;

typedef struct qn_kv_layer {
    uint32_t group;
    uint32_t n_kv_heads, d_k, d_v; /* head sizes of keys and values */
    qn_kv_codec codec;
    qn_state_layer state;
} qn_kv_layer;

typedef struct qn_kv_spec {
    uint32_t block_tokens; /* a power of two from 16 to 256 */
    uint32_t n_groups, n_layers;
    qn_kv_group groups[QN_MAX_KV_GROUPS];
    uint32_t n_states;     /* slots for recurrent state; 0 when no layer has any */
    qn_kv_layer *layers;   /* [n_layers]; layers without KV have n_kv_heads 0 */
} qn_kv_spec;

typedef struct qn_kv qn_kv; /* the pools of all groups on one device; made by qn_ops.kv_new */

#endif
