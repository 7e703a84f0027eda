/* text_tokfiles_fuzz.c - tokenizer.model and tiktoken.model from anywhere: they open or say why, and
 * an open one encodes and decodes without a fault. Input: a byte (even: tokenizer.model), the file. */
#include <stdint.h>
#include <string.h>

#include "text/detok.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char config[] = "{\"tokenizer_class\": \"LlamaTokenizer\", \"bos_token\": \"<s>\", "
                             "\"added_tokens_decoder\": {\"3\": {\"content\": \"<x>\"}}}";
static const char text[] = " a b  ab\n<x></s>\xE6\xBC\xA2\xE5\xAD\x97 e\xCC\x81 \xE2\x96\x81 1234";

static void exercise(const qn_tokenizer *t)
{
    qn_err err = {0};
    qn_ids ids = {0};
    qn_buf a = {0}, b = {0};
    qn_detok *d = NULL;
    if (!qn_tokenizer_encode(t, text, sizeof text - 1, QN_ENCODE_ADD_SPECIAL, &ids, &err)) {
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
    if (!size) return 0;
    qn_err err = {0};
    qn_tokenizer *t;
    qn_code rc = data[0] % 2
                     ? qn_tokenizer_parse_tiktoken(&t, data + 1, size - 1, config,
                                                   sizeof config - 1, &err)
                     : qn_tokenizer_parse_spm(&t, data + 1, size - 1, config, sizeof config - 1,
                                              &err);
    if (rc) {
        qn_check(err.code && err.text[0] && !t);
        return 0;
    }
    exercise(t);
    qn_tokenizer_close(t);
    return 0;
}
