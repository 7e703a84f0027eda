/* dtype.c - names, sizes and conversions of stored number types.
 *
 * The 16-bit conversions are branch-free integer code with one float addition for the subnormals,
 * so that the compiler vectorises the loops of qn_widen and qn_narrow without instruction-set
 * flags.
 */
#include "format/dtype.h"

#include <string.h>

#include "core/err.h"

typedef struct dtype_info {
    const char *name, *config_name;
    size_t size;
} dtype_info;

static const dtype_info dtypes[] = {
    [QN_F32] = {"F32", "float32", 4},    [QN_F16] = {"F16", "float16", 2},
    [QN_BF16] = {"BF16", "bfloat16", 2}, [QN_I8] = {"I8", NULL, 1},
    [QN_I16] = {"I16", NULL, 2},         [QN_I32] = {"I32", NULL, 4},
    [QN_I64] = {"I64", NULL, 8},         [QN_U8] = {"U8", NULL, 1},
    [QN_U16] = {"U16", NULL, 2},         [QN_U32] = {"U32", NULL, 4},
    [QN_U64] = {"U64", NULL, 8},         [QN_BOOL] = {"BOOL", NULL, 1},
    [QN_F8_E4M3] = {"F8_E4M3", NULL, 1}, [QN_F8_E8M0] = {"F8_E8M0", NULL, 1},
    [QN_C64] = {"C64", NULL, 8},
};
_Static_assert(sizeof dtypes / sizeof *dtypes == QN_N_DTYPES, "one row per number type");

static const dtype_info *info(qn_dtype t)
{
    qn_check((unsigned)t < QN_N_DTYPES);
    return &dtypes[t];
}

size_t qn_dtype_size(qn_dtype t)
{
    return info(t)->size;
}

const char *qn_dtype_name(qn_dtype t)
{
    return info(t)->name;
}

const char *qn_dtype_config_name(qn_dtype t)
{
    return info(t)->config_name;
}

int qn_dtype_parse(const char *name, qn_dtype *out)
{
    for (int t = 0; t < QN_N_DTYPES; t++) {
        const char *config_name = dtypes[t].config_name;
        if (!strcmp(name, dtypes[t].name) || (config_name && !strcmp(name, config_name))) {
            *out = (qn_dtype)t;
            return 0;
        }
    }
    return -1;
}

static inline uint32_t bits_of(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = f};
    return v.u;
}

static inline float float_of(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = u};
    return v.f;
}

static inline uint16_t to_bf16(float f)
{
    uint32_t u = bits_of(f);
    uint32_t rounded = (u + (((u >> 16) & 1u) + 0x7FFFu)) >> 16;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}

static inline float from_f16(uint16_t h)
{
    const uint32_t rebias = 112u << 23; /* 127 - 15 */
    uint32_t mag = h & 0x7FFFu;
    uint32_t normal = (mag << 13) + rebias;
    uint32_t tiny = bits_of(float_of(mag | 0x3F000000u) - 0.5f); /* mag * 2^-24, exact */
    uint32_t special = (normal + rebias) | (mag > 0x7C00u ? 0x400000u : 0u); /* NaN becomes quiet */
    uint32_t u = mag < 0x400u ? tiny : normal;
    u = mag >= 0x7C00u ? special : u;
    return float_of(u | (uint32_t)(h & 0x8000u) << 16);
}

static inline uint16_t to_f16(float f)
{
    uint32_t u = bits_of(f), mag = u & 0x7FFFFFFFu;
    uint32_t normal = (mag - (112u << 23) + 0xFFFu + ((mag >> 13) & 1u)) >> 13;
    /* Below 2^-14 adding 0.5 makes the hardware round at 2^-24, the step of f16's subnormals. */
    uint32_t tiny = bits_of(float_of(mag) + 0.5f) - 0x3F000000u;
    uint32_t h = mag < 0x38800000u ? tiny : normal;
    h = mag >= 0x477FF000u ? 0x7C00u : h; /* 65520 and more */
    h = mag > 0x7F800000u ? 0x7D00u : h;
    return (uint16_t)(h | (u >> 16 & 0x8000u));
}

uint16_t qn_f32_bf16(float f)
{
    return to_bf16(f);
}

float qn_f16_f32(uint16_t h)
{
    return from_f16(h);
}

uint16_t qn_f32_f16(float f)
{
    return to_f16(f);
}

float qn_e4m3_f32(uint8_t c)
{
    uint32_t sign = (uint32_t)(c & 0x80u) << 24, exponent = (c >> 3) & 15u, mantissa = c & 7u;
    if (exponent == 0) return float_of(bits_of((float)mantissa * 0x1p-9f) | sign);
    if ((c & 0x7Fu) == 0x7Fu) return float_of(sign | 0x7FF00000u);
    return float_of(sign | (exponent + 120u) << 23 | mantissa << 20);
}

uint8_t qn_f32_e4m3(float f)
{
    uint32_t u = bits_of(f), sign = u >> 24 & 0x80u, mag = u & 0x7FFFFFFFu;
    uint32_t code;
    if (mag >= 0x43E00000u) { /* 448, inf, NaN */
        code = 0x7Eu;
    } else if (mag < 121u << 23) { /* below 2^-6: adding 2^14 rounds at 2^-9 */
        code = bits_of(float_of(mag) + 0x1p14f) - bits_of(0x1p14f);
    } else {
        code = (mag - (120u << 23) + 0x7FFFFu + ((mag >> 20) & 1u)) >> 20;
    }
    return (uint8_t)(code | sign);
}

float qn_e8m0_f32(uint8_t c)
{
    return c ? float_of((uint32_t)c << 23) : 0x1p-127f;
}

float qn_e2m1_f32(uint8_t c)
{
    static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return values[c & 15u];
}

/* Sources may be unaligned: memcpy of one element compiles to a plain load. */
#define WIDEN(type, convert)                                                                       \
    for (size_t i = 0; i < n; i++) {                                                               \
        type v;                                                                                    \
        memcpy(&v, (const char *)src + i * sizeof v, sizeof v);                                    \
        dst[i] = convert(v);                                                                       \
    }                                                                                              \
    return

void qn_widen(float *dst, const void *src, qn_dtype t, size_t n)
{
    switch (t) {
    case QN_F32:
        if (n) memcpy(dst, src, n * sizeof *dst);
        return;
    case QN_F16: WIDEN(uint16_t, from_f16);
    case QN_BF16: WIDEN(uint16_t, qn_bf16_f32);
    case QN_I8: WIDEN(int8_t, (float));
    case QN_I16: WIDEN(int16_t, (float));
    case QN_I32: WIDEN(int32_t, (float));
    case QN_I64: WIDEN(int64_t, (float));
    case QN_U8: WIDEN(uint8_t, (float));
    case QN_U16: WIDEN(uint16_t, (float));
    case QN_U32: WIDEN(uint32_t, (float));
    case QN_U64: WIDEN(uint64_t, (float));
    default: QN_UNREACHABLE();
    }
}

void qn_narrow(void *dst, qn_dtype t, const float *src, size_t n)
{
    if (t == QN_F32) {
        if (n) memcpy(dst, src, n * sizeof *src);
        return;
    }
    qn_check(t == QN_F16 || t == QN_BF16);
    if (t == QN_F16) {
        for (size_t i = 0; i < n; i++) {
            uint16_t h = to_f16(src[i]);
            memcpy((char *)dst + i * sizeof h, &h, sizeof h);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h = to_bf16(src[i]);
        memcpy((char *)dst + i * sizeof h, &h, sizeof h);
    }
}
