/* hash.h - hashes: XXH64 for caches, SHA-256 for content. Threads: any. */
#ifndef QN_CORE_HASH_H
#define QN_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* XXH64 of n bytes with a seed; chain parts by passing the previous result as the seed (no
 * failure). */
uint64_t qn_hash64(const void *p, size_t n, uint64_t seed);

/* SHA-256 as 64 lower-case hex digits and a NUL (no failure; aborts if the library refuses). */
void qn_sha256_hex(const void *p, size_t n, char out[65]);

#endif
