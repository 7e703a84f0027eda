/* random.c - Threefry-2x32, 20 rounds. */
#include "sample/random.h"

static uint32_t rotl(uint32_t x, int r)
{
    return x << r | x >> (32 - r);
}

void qn_threefry(qn_key key, uint32_t c0, uint32_t c1, uint32_t out[2])
{
    static const int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    uint32_t ks[3] = {key.w[0], key.w[1], key.w[0] ^ key.w[1] ^ 0x1BD11BDAu};
    uint32_t x0 = c0 + ks[0], x1 = c1 + ks[1];
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < 4; j++) {
            x0 += x1;
            x1 = rotl(x1, rotations[i & 1][j]);
            x1 ^= x0;
        }
        x0 += ks[(i + 1) % 3];
        x1 += ks[(i + 2) % 3] + (uint32_t)i + 1;
    }
    out[0] = x0;
    out[1] = x1;
}

qn_key qn_step_key(uint64_t seed, uint64_t k)
{
    uint64_t m = seed ^ (k + 1) * 0x9e3779b97f4a7c15u;
    return (qn_key){{(uint32_t)(m >> 32), (uint32_t)m}};
}

void qn_key_split(qn_key key, qn_key out[2])
{
    uint32_t a[2], b[2];
    qn_threefry(key, 0, 2, a); /* words 0 and 2 of four */
    qn_threefry(key, 1, 3, b); /* words 1 and 3 */
    out[0] = (qn_key){{a[0], b[0]}};
    out[1] = (qn_key){{a[1], b[1]}};
}

float qn_uniform(qn_key key)
{
    uint32_t w[2];
    qn_threefry(key, 0, 0, w);
    float u = (float)w[0] / 4294967296.0f;
    const float below_one = 1.0f - 0x1p-24f;
    return u < below_one ? u : below_one;
}
