/* ref_pick.c - the kernel tables of the instruction sets, and choosing one. */
#include <string.h>

#include "compute/ref/ref_kernels.h"

#define BODIES(isa)                                                                              \
    .mm = qn_ref_mm_##isa, .scores = qn_ref_scores_##isa, .add_values = qn_ref_add_values_##isa, \
    .exp_shifted = qn_ref_exp_shifted_##isa, .round = qn_ref_round_##isa,                        \
    .widen = qn_ref_widen_##isa, .narrow = qn_ref_narrow_##isa

static bool always(void) { return true; }

#if defined(__x86_64__)

#include <cpuid.h>

static bool has_avx2(void)
{
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* What CMakeLists.txt lets the compiler use in *_avx512.c. */
static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512bf16");
}

static const qn_ref_kernels avx512 = {
    .name = "avx512", .usable = has_avx512, .block = 64, BODIES(avx512)};
static const qn_ref_kernels avx2 = {.name = "avx2", .usable = has_avx2, .block = 32, BODIES(avx2)};
#endif

static const qn_ref_kernels portable = {
    .name = "portable", .usable = always, .block = 16, BODIES(portable)};

static const qn_ref_kernels *const candidates[] = {
    /* best first */
#if defined(__x86_64__)
    &avx512,
    &avx2,
#endif
    &portable,
};

const qn_ref_kernels *qn_ref_pick(const char *isa)
{
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        const qn_ref_kernels *k = candidates[i];
        if ((!isa || !strcmp(isa, k->name)) && k->usable()) return k;
    }
    return NULL;
}
