/* unroll.h - how the matrix kernels are inlined and unrolled, private to src/compute/cpu.
 *
 * INLINE bodies are written once with constants as arguments, and instantiated by thin functions.
 * UNROLLED (i, n) is a loop over i < n with a constant n, unrolled so that arrays indexed by i become
 * registers. Debug builds do not unroll: the checks of the sanitizers, unrolled hundreds of times,
 * take minutes to compile.
 */
#ifndef QN_COMPUTE_CPU_UNROLL_H
#define QN_COMPUTE_CPU_UNROLL_H

#define INLINE static inline __attribute__((always_inline))

#ifdef QN_DEBUG
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

#define UNROLLED(i, n) UNROLL for (uint32_t i = 0; i < (n); i++)

#endif
