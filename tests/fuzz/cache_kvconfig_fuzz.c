/* cache_kvconfig_fuzz.c - any bytes as a kv_config.json: an error, or codecs that a device takes. */
#include <stddef.h>
#include <stdint.h>

#include "cache/kv_scheme.h"

enum { N_LAYERS = 6 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_kv_layer layers[N_LAYERS];
    qn_kv_spec kv = {.block_tokens = 64, .n_groups = 1, .n_layers = N_LAYERS, .layers = layers};
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        qn_kv_codec c = {QN_KV_F16, 0, QN_F16};
        uint32_t head = i == 1 ? 80 : i == 2 ? 96 : 128;
        layers[i] = (qn_kv_layer){.n_kv_heads = i != 3, .d_k = head, .d_v = head, .k_codec = c,
                                  .v_codec = c};
    }
    qn_err err = {0};
    qn_code rc = qn_kv_config_apply((const char *)data, size, &kv, &err);
    qn_check(rc == err.code && (rc == QN_OK) == (err.text[0] == 0));
    if (rc == QN_OK) qn_check(qn_kv_spec_check(&kv, 128, &err) == QN_OK);
    return 0;
}
