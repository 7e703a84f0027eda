/* random.h - Threefry-2x32 random numbers keyed by (seed, step).
 *
 * Source: spec engine 2.5 (MLX's generator). Threads: any, no state.
 */
#ifndef QN_SAMPLE_RANDOM_H
#define QN_SAMPLE_RANDOM_H

#include <stdint.h>

typedef struct qn_key {
    uint32_t w[2];
} qn_key;

/* One Threefry block: out[2] from a key and a counter (no failure). */
void qn_threefry(qn_key key, uint32_t c0, uint32_t c1, uint32_t out[2]);

/* The key of sample k under a seed: seed XOR ((k+1) * 0x9e3779b97f4a7c15) (no failure). */
qn_key qn_step_key(uint64_t seed, uint64_t k);

/* Two independent keys from one (no failure). */
void qn_key_split(qn_key key, qn_key out[2]);

/* One uniform float32 in [0, 1) (no failure). */
float qn_uniform(qn_key key);

#endif
