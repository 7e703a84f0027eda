/* batch.h - the work of one step, as the scheduler hands it to the kernels.
 *
 * A batch is a flat list of tokens, cut into items; an item is a run of consecutive tokens of one
 * sequence: one token when decoding, a chunk when prefilling, 1+k when verifying drafts. Rows of
 * every activation tensor are the tokens of the batch in order. All arrays are host memory, built
 * and owned by the scheduler, unchanged from qn_ops.begin to qn_ops.end; a device copies what its
 * kernels need in `begin`.
 * Threads: built by the engine thread, read by the device.
 */
#ifndef QN_COMPUTE_BATCH_H
#define QN_COMPUTE_BATCH_H

#include <stdint.h>

enum { QN_MAX_KV_GROUPS = 4 };

typedef struct qn_item {
    uint32_t row0;   /* first row in the batch */
    uint32_t n_new;  /* rows of this item, >= 1 */
    uint32_t
        n_past; /* absolute position of its first token; that many tokens are stored before it */
    uint32_t state;  /* recurrent state slot, for models that have one */
    const float *given; /* [n_new, E] embeddings of these tokens, as merged from text and media;
                           NULL: the embedding matrix's rows of their ids */
    /* First position that a reference computes in a call of one token, the ones before in larger
     * calls; 1: all of them, from position 0; 0: none. For devices that follow the order of a
     * reference's rotating cache or its two forms of latent attention; others ignore it. */
    uint32_t decode_from;
    /* Positions that were brought in not quantized before the sequence's first pass. To devices that
     * quantize KV after a pass, as mlx-lm does, an item from there is still a first one; others
     * ignore it. */
    uint32_t n_brought;
    /* Block table per KV group: position p lives in block blocks[g][i], i being qn_kv_entry (kv.h) of
     * p / block_tokens. Covers every position the item may read or write. */
    const uint32_t *blocks[QN_MAX_KV_GROUPS];
    uint32_t dropped[QN_MAX_KV_GROUPS]; /* blocks behind the head that windows have released */
} qn_item;

typedef struct qn_batch {
    uint32_t n_tokens, n_items, n_out;
    uint32_t n_hidden;        /* of the out rows, the last ones: their final hidden state is wanted
                                 instead of logits */
    const uint32_t *ids;      /* [n_tokens] token ids, each below the vocabulary size */
    const uint32_t *pos;      /* [n_tokens] absolute positions */
    const qn_item *items;     /* [n_items], ascending row0, covering all rows */
    const uint32_t *out_rows; /* [n_out] rows that need a result; first those with logits */
} qn_batch;

#endif
