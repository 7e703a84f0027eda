/* cache_mlxcache_fuzz.c - mlx-lm's prompt cache files against a small model of three kinds of
 * layers, one with chunks, and against one whose layers take the file's codecs. */
#include <stdlib.h>

#include "cache/mlx_cache.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every value that the image promises is there. */
static void read_all(const qn_image *img, const qn_kv_spec *spec)
{
    float sum = 0;
    uint32_t bits = 0;
    for (uint32_t i = 0; i < img->n_layers; i++) {
        const qn_kv_layer *l = &spec->layers[i];
        const qn_image_layer *x = &img->layers[i];
        size_t heads = (size_t)x->n * l->n_kv_heads;
        for (size_t e = 0; x->k && e < heads * l->d_k; e++) sum += x->k[e];
        for (size_t e = 0; x->v && e < heads * l->d_v; e++) sum += x->v[e];
        if (!x->k_codes.words) continue;
        for (size_t e = 0; e < heads * qn_kv_code_words(l->k_codec, l->d_k); e++)
            bits ^= x->k_codes.words[e];
        for (size_t e = 0; e < heads * qn_kv_scale_bytes(l->v_codec, l->d_v); e++)
            bits ^= ((uint8_t *)x->v_codes.biases)[e];
    }
    if (sum == 1e30f && bits == 0x12345678) abort();
}

static void parse(const qn_shard *file, const qn_kv_spec *spec)
{
    qn_image *img;
    qn_err err = {0};
    if (qn_mlx_cache_parse(file, spec, &img, &err)) return;
    read_all(img, spec);
    qn_image_free(img);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_kv_layer three[] = {
        {.group = 0, .n_kv_heads = 2, .d_k = 4, .d_v = 4},
        {.group = 1, .n_kv_heads = 2, .d_k = 4, .d_v = 4},
        {.state = {.conv_width = 3, .conv_channels = 8, .n_heads = 2, .d_v = 4, .d_k = 4}},
    };
    qn_kv_spec spec = {.block_tokens = 16, .n_groups = 2, .n_layers = 3, .layers = three};
    spec.groups[1] = (qn_kv_group){QN_KV_SLIDING, 6, 0};
    qn_shard *file;
    qn_err err = {0};
    if (qn_shard_parse(&file, data, size, "input", &err)) return 0;
    parse(file, &spec);
    spec.groups[1] = (qn_kv_group){QN_KV_CHUNKED, 6, 0};
    spec.n_layers = 2;
    parse(file, &spec);
    qn_kv_codec codec = {QN_KV_F16, 0, QN_F16}, codecs[2];
    qn_kv_layer two[] = {
        {.group = 1, .n_kv_heads = 2, .d_k = 64, .d_v = 32, .k_codec = codec, .v_codec = codec},
        {.group = 0, .n_kv_heads = 1, .d_k = 128, .d_v = 128, .k_codec = codec, .v_codec = codec},
    };
    qn_kv_spec coded = {.block_tokens = 16, .n_groups = 2, .n_layers = 2, .layers = two};
    coded.groups[1] = (qn_kv_group){QN_KV_SLIDING, 4, 2};
    bool any;
    if (!qn_mlx_cache_read_codecs(file, &coded, codecs, &any, &err)) {
        for (int i = 0; i < 2; i++) two[i].k_codec = two[i].v_codec = codecs[i];
        parse(file, &coded);
    }
    uint32_t max_size, keep;
    coded.groups[1] = (qn_kv_group){0};
    if (!qn_mlx_cache_read_limit(file, &coded, &max_size, &keep, &err) && max_size > keep &&
        keep <= QN_KV_SPLIT) {
        coded.groups[0] = coded.groups[1] = (qn_kv_group){QN_KV_SLIDING, max_size - keep, keep};
        parse(file, &coded);
    }
    qn_shard_close(file);
    return 0;
}
