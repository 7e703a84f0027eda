/* desk.h - what a draw works in, private to src/sample: [n_vocab] each, without meaning between draws
 * but for the zeros of `counts`. Threads: one at a time.
 */
#ifndef QN_SAMPLE_DESK_H
#define QN_SAMPLE_DESK_H

#include "sample/sampler.h"

enum { QN_DESK_BUCKETS = 1024 };

struct qn_desk {
    uint32_t *counts; /* zeros between draws */
    float *w;         /* weights of a draw */
    qn_top *cand;     /* candidates; exact sampling keeps 2 * n_vocab keys there */
    float *order;
    float *mass;      /* [QN_DESK_BUCKETS] */
    float *segments;  /* [n_vocab / 1024 + 1] */
    _Atomic uint32_t per_token; /* bytes for each token of the vocabulary that draws use */
};

#endif
