/* hash.c - thin covers over xxHash and libcrypto. */
#include "core/hash.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <xxhash.h>

#include "core/err.h"

uint64_t qn_hash64(const void *p, size_t n, uint64_t seed)
{
    return XXH64(p, n, seed);
}

void qn_sha256_hex(const void *p, size_t n, char out[65])
{
    unsigned char md[32];
    unsigned int len = sizeof md;
    qn_check(EVP_Digest(p, n, md, &len, EVP_sha256(), NULL) == 1);
    for (int i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", md[i]);
}
