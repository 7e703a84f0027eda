/* text_tokenizer_fuzz.c - tokenizer.json from anywhere: it opens or says why, and an open one
 * encodes and decodes without a fault. Input: a tokenizer.json, a NUL byte, a text. */
#include <stdint.h>
#include <string.h>

#include "text/detok.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void exercise(const qn_tokenizer *t, const char *text, size_t n)
{
    qn_err err = {0};
    qn_ids ids = {0};
    qn_buf a = {0}, b = {0};
    qn_detok *d = NULL;
    if (!qn_tokenizer_encode(t, text, n, QN_ENCODE_ADD_SPECIAL, &ids, &err)) {
        qn_tokenizer_decode(t, ids.data, ids.len, false, &a, &err);
        if (!qn_detok_new(&d, t, 0, &err)) {
            for (size_t i = 0; i < ids.len; i++) qn_detok_push(d, ids.data[i], &b, &err);
            qn_detok_finish(d, &b, &err);
        }
        qn_check(a.len == b.len && (!a.len || !memcmp(a.data, b.data, a.len)));
    }
    qn_detok_free(d);
    qn_buf_release(&a);
    qn_buf_release(&b);
    qn_ids_release(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *s = (const char *)data, *nul = size ? memchr(s, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - s) : size;
    qn_err err = {0};
    qn_tokenizer *t;
    if (qn_tokenizer_parse(&t, s, n, NULL, 0, &err)) {
        qn_check(err.code && err.text[0] && !t);
        return 0;
    }
    exercise(t, nul ? nul + 1 : "a b", nul ? size - n - 1 : 3);
    qn_tokenizer_close(t);
    return 0;
}
