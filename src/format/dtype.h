/* dtype.h - number types of stored tensors and the conversions between them.
 *
 * Conversions follow MLX on the CPU (spec: numerics, section 1): round to nearest even, subnormals
 * kept. Threads: any.
 */
#ifndef QN_FORMAT_DTYPE_H
#define QN_FORMAT_DTYPE_H

#include <stddef.h>
#include <stdint.h>

typedef enum qn_dtype {
    QN_F32 = 0, QN_F16, QN_BF16,                 /* the activation types */
    QN_I8, QN_I16, QN_I32, QN_I64,
    QN_U8, QN_U16, QN_U32, QN_U64,
    QN_BOOL, QN_F8_E4M3, QN_F8_E8M0, QN_C64,
    QN_N_DTYPES
} qn_dtype;

/* Bytes of one element (no failure). */
size_t qn_dtype_size(qn_dtype t);

/* The safetensors name, "F32", "BF16", ... (no failure). */
const char *qn_dtype_name(qn_dtype t);

/* The config.json name of a float type, "float32", "float16", "bfloat16"; NULL for others (no
 * failure). */
const char *qn_dtype_config_name(qn_dtype t);

/* Parse either spelling. Returns 0, or -1 if the name is unknown (no failure otherwise). */
int qn_dtype_parse(const char *name, qn_dtype *out);

/* bfloat16 and float16 bits to and from float32 (no failure). NaN: to bf16 0x7FC0, to f16
 * sign|0x7D00. */
static inline float qn_bf16_f32(uint16_t h)
{
    union { uint32_t u; float f; } v = {.u = (uint32_t)h << 16};
    return v.f;
}
uint16_t qn_f32_bf16(float f);
float qn_f16_f32(uint16_t h);
uint16_t qn_f32_f16(float f);

/* OCP E4M3 to and from float32: codes 0x7F and 0xFF decode to NaN (MLX 0.32.4; earlier versions had
 * 480), encoding saturates at 0x7E (no failure). */
float qn_e4m3_f32(uint8_t c);
uint8_t qn_f32_e4m3(float f);

/* E8M0 scale byte to float32: 2^(c-127), with 0 -> 2^-127 and 255 -> +inf (no failure). */
float qn_e8m0_f32(uint8_t c);

/* E2M1 code 0..15 to float32: 0 .5 1 1.5 2 3 4 6 and the negatives (no failure). */
float qn_e2m1_f32(uint8_t c);

/* Widen n elements of type t (F32, F16, BF16, or an integer type) at src to float32; src may be
 * unaligned (no failure; aborts for other types). */
void qn_widen(float *dst, const void *src, qn_dtype t, size_t n);

/* Round n float32 to type t (F32, F16, BF16); dst may be unaligned (no failure; aborts for other
 * types). */
void qn_narrow(void *dst, qn_dtype t, const float *src, size_t n);

#endif
