/* text_tokcache_fuzz.c - the tokenizer cache file: whatever its bytes, it is refused or safe to
 * use. The hash is set right first, so that the checks behind it are reached. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/tok_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { HEAD = 96, AT_KEY = 8, AT_HASH = 24, AT_SIZE = 32 };
    static const uint64_t key[2] = {1, 2};
    if (size < HEAD) return 0;
    char *copy = malloc(size);
    if (!copy) return 0;
    memcpy(copy, data, size);
    uint64_t n = size;
    memcpy(copy, "QNTOK 1", 8);
    memcpy(copy + AT_KEY, key, sizeof key);
    memcpy(copy + AT_SIZE, &n, sizeof n);
    uint64_t hash = tok_cache_hash(copy, size);
    memcpy(copy + AT_HASH, &hash, sizeof hash);
    qn_tokenizer t = {0};
    tok_str rest;
    if (tok_cache_read(&t, copy, size, key, &rest)) {
        const tok_vocab *v = &t.model.vocab;
        for (uint32_t id = 0; id < v->n_ids; id++) {
            tok_str s = tok_vocab_token(v, id);
            if (s.s) tok_vocab_find(v, s.s, s.n);
        }
        tok_vocab_find(v, "absent", 6);
    }
    free(copy);
    return 0;
}
