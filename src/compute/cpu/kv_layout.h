/* kv_layout.h - where keys and values lie in the blocks of the CPU device.
 *
 * A block holds block_tokens positions of every layer of its group. In it, layers ascending:
 *   keys    per KV head, per tile of 16 positions: a key tile (attend.h)
 *   values  per KV head, per tile of 16 positions: a value tile of rows of v_ld elements, v_ld = d_v
 *           rounded up to 16, the rest unused
 * of a latent layer both are value tiles, rows of d_k and of d_v elements;
 * each by its codec; each of the two starts at a multiple of 64 bytes. A layer without KV takes no
 * room.
 */
#ifndef QN_COMPUTE_CPU_KV_LAYOUT_H
#define QN_COMPUTE_CPU_KV_LAYOUT_H

#include "compute/cpu/attend.h"
#include "compute/cpu/cpu.h"

enum {
    QN_CPU_MAX_HEAD = 1024,                       /* elements of a key or value head */
    QN_CPU_MAX_GROUPS = QN_CPU_MAX_HEAD / 32      /* scales of a quantized head */
};

/* A layer inside its group's blocks; bytes. */
typedef struct qn_kv_place {
    size_t k, v;           /* offset of the first head's keys and values */
    size_t k_head, v_head; /* from one head to the next */
    size_t k_tile, v_tile; /* 16 positions of one head */
    uint32_t v_ld;         /* elements */
} qn_kv_place;

struct qn_kv {
    qn_kv_spec spec;    /* layers are our copy */
    qn_kv_place *place; /* [n_layers] */
    uint8_t *pool[QN_MAX_KV_GROUPS];
    size_t block_bytes[QN_MAX_KV_GROUPS], pool_bytes[QN_MAX_KV_GROUPS];
    uint32_t n_blocks[QN_MAX_KV_GROUPS];
    uint8_t *states;    /* [n_states] slots of state_bytes; recurrent.c has the layout */
    size_t state_bytes;
};

/* The block of `item` that holds position `pos` in group g; stops the process when the item's table
 * does not cover it (no failure). */
uint8_t *qn_cpu_kv_block(const qn_kv *kv, const qn_item *item, uint32_t g, uint32_t pos);

#endif
