/* format_shard_fuzz.c - any bytes as a safetensors file: an error or tensors whose every byte can
 * be read. */
#include <stddef.h>
#include <stdint.h>

#include "core/hash.h"
#include "format/shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_err err = {0};
    qn_shard *s;
    qn_code rc = qn_shard_parse(&s, data, size, "fuzz", &err);
    qn_check((rc == QN_OK) == (s != NULL) && rc == err.code);
    if (rc) return 0;
    for (size_t i = 0; i < qn_shard_count(s); i++) {
        const qn_stored *t = qn_shard_at(s, i);
        qn_check(qn_shard_find(s, t->name) == t);
        (void)qn_hash64(t->data, (size_t)t->bytes, 0); /* the sanitizer watches every byte */
    }
    (void)qn_shard_meta(s, "format");
    qn_shard_close(s);
    return 0;
}
