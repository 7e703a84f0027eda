/* kv.h - what the KV cache of a model looks like, and pools of its blocks on a device.
 *
 * Layers that share a visibility rule form a group. One block holds `block_tokens` positions of all
 * layers of its group; how it lies inside a block is the device's business. Pools have a fixed
 * number of blocks; which sequence owns which block is decided by src/cache. Threads: the engine
 * thread.
 */
#ifndef QN_COMPUTE_KV_H
#define QN_COMPUTE_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/batch.h"
#include "core/err.h"
#include "format/dtype.h"

enum {
    QN_KV_SPLIT = 256,      /* attention merges partial results at multiples of this position */
    QN_KV_LATENT_UNIT = 16  /* elements: the parts of a latent layer's rows are multiples */
};

typedef enum qn_kv_rule {
    QN_KV_FULL = 0, /* query p sees keys 0..p */
    QN_KV_SLIDING,  /* query p sees keys p-window+1..p, and the first `keep` ones of the sequence */
    QN_KV_CHUNKED   /* query p sees keys of its own chunk, up to p: chunks start at multiples of window */
} qn_kv_rule;

/* How the elements of a key or value head are kept. Q8 and Q4 are MLX's affine quantization along
 * the head: a group of elements shares a scale and a bias, element = scale * code + bias (spec
 * engine 3.4). A head is a whole number of groups, so that every token is encoded by itself. */
typedef enum qn_kv_form { QN_KV_F32 = 0, QN_KV_F16, QN_KV_BF16, QN_KV_Q8, QN_KV_Q4 } qn_kv_form;

typedef struct qn_kv_codec {
    qn_kv_form form;
    uint32_t group;     /* Q8, Q4: 32, 64 or 128 elements; else 0 */
    qn_dtype scales;    /* of scales and biases, should the codec become Q8 or Q4 */
} qn_kv_codec;

/* Quantized heads in host memory as MLX has them, in no device's layout. Of every position and head:
 * the code words [d*bits/32], a little-endian bit stream, and the scales and biases [d/group] of the
 * codec's type. Borrowed pointers. */
typedef struct qn_kv_codes {
    uint32_t *words;
    void *scales, *biases;
} qn_kv_codes;

typedef struct qn_kv_group {
    qn_kv_rule rule;
    uint32_t window; /* most positions of a run that a query sees, its own included; FULL: 0 */
    uint32_t keep;   /* SLIDING: positions at the start that stay visible, at most QN_KV_SPLIT */
} qn_kv_group;

/* What a recurrent layer keeps per sequence (spec models 3.8); all zero for other layers. */
typedef struct qn_state_layer {
    uint32_t conv_width, conv_channels; /* K-1 inputs of C channels */
    uint32_t n_heads, d_v, d_k;         /* S [n_heads, d_v, d_k] float32 */
} qn_state_layer;

typedef struct qn_kv_layer {
    uint32_t group;
    uint32_t n_kv_heads, d_k, d_v; /* head sizes of keys and values */
    /* One row per token serves all query heads (MLA, spec models 3.10), named as in mlx-lm: the key
     * is a latent vector, from which a device makes what heads need of it, and the "value" is the
     * key's rotated part. Nothing else is stored. Says what a token keeps, not who sees it: that is
     * the group's rule, so windows hold for these layers too. One KV head, parts of one codec that
     * is not quantized, sizes multiples of QN_KV_LATENT_UNIT. */
    bool latent;
    qn_kv_codec k_codec, v_codec;
    qn_state_layer state;
} qn_kv_layer;

typedef struct qn_kv_spec {
    uint32_t block_tokens; /* a power of two from 16 to 256 */
    uint32_t n_groups, n_layers;
    qn_kv_group groups[QN_MAX_KV_GROUPS];
    /* Where a device imitates mlx-lm (qn_device.exact): an item that starts at this position or
     * later attends to quantized KV, an earlier one, and always the first, to what was computed.
     * Other devices encode on append and attend to the codes from the first token on; for them it
     * is 0. */
    uint32_t quantized_start;
    uint32_t n_states;     /* slots for recurrent state; 0 when no layer has any */
    qn_kv_layer *layers;   /* [n_layers]; layers without KV have n_kv_heads 0 */
} qn_kv_spec;

/* Start of the run of keys that ends with the query's own, at `pos`; kept ones come before it (no
 * failure). */
uint32_t qn_kv_first_seen(const qn_kv_group *g, uint32_t pos);

/* True for the affine forms; bits of a code or an element of a form (no failure). */
bool qn_kv_quantized(qn_kv_codec c);
uint32_t qn_kv_form_bits(qn_kv_form f);

/* Bytes that n elements take, scales and biases included; n a whole number of groups (no failure).
 */
size_t qn_kv_codec_bytes(qn_kv_codec c, size_t n);

/* Of a quantized codec: words of a head of d elements, and bytes of its scales, or of its biases (no
 * failure). */
size_t qn_kv_code_words(qn_kv_codec c, size_t d);
size_t qn_kv_scale_bytes(qn_kv_codec c, size_t d);

/* The codes `n_heads` heads further on (no failure). */
qn_kv_codes qn_kv_codes_at(const qn_kv_codes *x, qn_kv_codec c, size_t d, size_t n_heads);

/* Blocks that hold the positions a group keeps at the start of a sequence: the head of its block
 * tables (no failure). */
static inline uint32_t qn_kv_head_blocks(const qn_kv_group *g, uint32_t block_tokens)
{
    return (g->keep + block_tokens - 1) / block_tokens;
}

/* Where block number `block` of a sequence stands in its table, of which `dropped` blocks behind the
 * head are gone (no failure). */
static inline uint32_t qn_kv_entry(uint32_t block, uint32_t head, uint32_t dropped)
{
    return block < head ? block : block - dropped;
}

/* Is it there (no failure)? */
static inline bool qn_kv_entry_held(uint32_t block, uint32_t head, uint32_t dropped)
{
    return block < head || block >= head + dropped;
}

/* Bytes of one position of a layer, keys and values of all its heads (no failure). */
size_t qn_kv_layer_bytes(const qn_kv_layer *l);

/* What every device asks of a spec; head sizes are at most max_head. Errors: QN_UNSUPPORTED, naming
 * the layer, the value and what would be right. */
qn_code qn_kv_spec_check(const qn_kv_spec *spec, uint32_t max_head, qn_err *err);

typedef struct qn_kv qn_kv; /* the pools of all groups on one device; made by qn_ops.kv_new */

#endif
