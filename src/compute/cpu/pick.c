/* pick.c - the kernel tables of the instruction sets, and choosing one. */
#include <string.h>

#include "compute/cpu/cpu.h"
#include "compute/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define PRODUCTS(isa) .qmm = qn_qmm_##isa, .dmm = qn_dmm_##isa, .qacts = qn_qacts_##isa
#define OTHERS(isa)                                                                        \
    .attend_split = qn_attend_split_##isa, .attend_merge = qn_attend_merge_##isa,          \
    .rms_norm = qn_rms_norm_##isa, .layer_norm = qn_layer_norm_##isa, .act = qn_act_##isa, \
    .glu = qn_glu_##isa, .softcap = qn_softcap_##isa

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)

/* The compiler's cpuid checks include the operating system's support for the registers. */
static bool has_avx2(void)
{
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512bf16");
}

static const qn_cpu_kernels avx512 = {
    .name = "avx512", .usable = has_avx512, PRODUCTS(avx512), OTHERS(avx512)};
static const qn_cpu_kernels avx2 = {
    .name = "avx2", .usable = has_avx2, PRODUCTS(avx2), OTHERS(avx2)};
#endif

static const qn_cpu_kernels portable = {
    .name = "portable", .usable = always, PRODUCTS(portable), OTHERS(portable)};

static const qn_cpu_kernels *const candidates[] = {
    /* best first */
#if defined(__x86_64__)
    &avx512,
    &avx2,
#endif
    &portable,
};

const qn_cpu_kernels *qn_cpu_pick(const char *isa)
{
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        const qn_cpu_kernels *k = candidates[i];
        if ((!isa || !strcmp(isa, k->name)) && k->usable()) return k;
    }
    return NULL;
}
