/* image.h - what a sequence has stored, in host memory and in no device's layout.
 *
 * The bridge between pools and files: per layer the keys and values of the positions that are still
 * needed, or the state of a recurrent layer, as float32; quantized keys and values as their codes.
 * Full layers keep every position, windows the last ones and those at the start that they keep, chunked
 * layers those of the chunk that the next position belongs to.
 * Ownership: an image owns its arrays. Threads: one at a time.
 */
#ifndef QN_CACHE_IMAGE_H
#define QN_CACHE_IMAGE_H

#include "compute/ops.h"

struct qn_blocks; /* cache/blocks.h */
struct qn_table;

typedef struct qn_image_layer {
    /* Positions [0, keep) and, behind them, [first, first + n - keep); n 0: the layer has no keys and
     * values, or a chunk is over. While nothing is left out, keep and first are 0. */
    uint32_t keep, first, n;
    float *k, *v;      /* [n, n_kv_heads * d_k], [n, n_kv_heads * d_v]; NULL: there are codes */
    qn_kv_codes k_codes, v_codes; /* of n * n_kv_heads heads; words NULL: there are floats */
    float *conv, *s;   /* [conv_width, conv_channels], [n_heads, d_v, d_k]; NULL: not recurrent */
} qn_image_layer;

/* Position of the p-th one of a layer, p < n (no failure). */
static inline uint32_t qn_image_position(const qn_image_layer *x, uint32_t p)
{
    return p < x->keep ? p : x->first + (p - x->keep);
}

typedef struct qn_image {
    uint32_t n_tokens, n_layers;
    bool coded; /* what the spec quantizes is there as codes; else everything is there as floats */
    qn_image_layer *layers;
} qn_image;

/* Memory for a sequence of n_tokens under this spec, contents undefined. Errors: QN_NOMEM. */
qn_code qn_image_new(qn_image **out, const qn_kv_spec *spec, uint32_t n_tokens, bool coded,
                     qn_err *err);
void qn_image_free(qn_image *img);

/* Is KV of a sequence of n_tokens quantized? Only devices that imitate mlx-lm wait for
 * quantized_start (no failure). */
bool qn_image_is_coded(const qn_kv_spec *spec, uint32_t n_tokens);

/* Copy from the pools what the table and the state slot hold of the image's tokens, or back. The
 * spec is the pools'; the table covers the image's positions. Floats of a layer that is quantized
 * can be saved where qn_image_is_coded says no, and are encoded when they are loaded (no failure). */
void qn_image_save(qn_image *img, qn_device *dev, const qn_kv_spec *spec, const struct qn_blocks *b,
                   const struct qn_table *t, uint32_t slot);
void qn_image_load(const qn_image *img, qn_device *dev, const qn_kv_spec *spec, const struct qn_blocks *b,
                   const struct qn_table *t, uint32_t slot);

#endif
