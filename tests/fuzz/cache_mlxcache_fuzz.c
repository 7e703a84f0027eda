/* cache_mlxcache_fuzz.c - mlx-lm's prompt cache files against a small model of three kinds of
 * layers. */
#include <stdlib.h>

#include "cache/mlx_cache.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_kv_layer layers[] = {
        {.group = 0, .n_kv_heads = 2, .d_k = 4, .d_v = 4},
        {.group = 1, .n_kv_heads = 2, .d_k = 4, .d_v = 4},
        {.state = {.conv_width = 3, .conv_channels = 8, .n_heads = 2, .d_v = 4, .d_k = 4}},
    };
    qn_kv_spec spec = {.block_tokens = 16, .n_groups = 2, .n_layers = 3, .layers = layers};
    spec.groups[1] = (qn_kv_group){QN_KV_SLIDING, 6};
    qn_shard *file;
    qn_image *img = NULL;
    qn_err err = {0};
    if (qn_shard_parse(&file, data, size, "input", &err)) return 0;
    if (!qn_mlx_cache_parse(file, &spec, &img, &err)) {
        float sum = 0;
        for (uint32_t i = 0; i < img->layers[1].n * 8; i++) sum += img->layers[1].k[i];
        if (sum == 1e30f) abort(); /* every value that the image promises is there */
        qn_image_free(img);
    }
    qn_shard_close(file);
    return 0;
}
