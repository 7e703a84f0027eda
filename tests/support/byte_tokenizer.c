/* byte_tokenizer.c - see byte_tokenizer.h. */
#include "byte_tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* The letters that byte-level vocabularies write for the bytes. */
static json_t *byte_vocabulary(void)
{
    json_t *vocab = json_object();
    unsigned next = 256;
    for (unsigned b = 0; b < QN_BYTE_TOKENS; b++) {
        bool plain = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        qn_buf letter = {0};
        qn_buf_put_utf8(&letter, plain ? b : next++);
        json_object_set_new(vocab, letter.data, json_integer(b));
        qn_buf_release(&letter);
    }
    return vocab;
}

static json_t *added_tokens(const qn_byte_token *added, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(
            list, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", QN_BYTE_TOKENS + (int)i,
                            "content", added[i].text, "single_word", 0, "lstrip", 0, "rstrip", 0,
                            "normalized", 0, "special", added[i].is_special));
    }
    return list;
}

static json_t *byte_level(void)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", 0);
}

char *qn_byte_tokenizer_file(const qn_byte_token *added, size_t n)
{
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:o, s:[]}", "type", "BPE",
                              "dropout", "unk_token", "continuing_subword_prefix",
                              "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "vocab",
                              byte_vocabulary(), "merges");
    json_t *file = json_pack("{s:s, s:o, s:n, s:o, s:n, s:o, s:o}", "version", "1.0",
                             "added_tokens", added_tokens(added, n), "normalizer", "pre_tokenizer",
                             byte_level(), "post_processor", "decoder", byte_level(), "model",
                             model);
    char *text = json_dumps(file, 0);
    qn_check(text);
    json_decref(file);
    return text;
}

qn_tokenizer *qn_byte_tokenizer(const qn_byte_token *added, size_t n, const char *config)
{
    char *text = qn_byte_tokenizer_file(added, n);
    qn_tokenizer *t;
    qn_err err = {0};
    qn_check(!qn_tokenizer_parse(&t, text, strlen(text), config, config ? strlen(config) : 0,
                                 &err));
    free(text);
    return t;
}
