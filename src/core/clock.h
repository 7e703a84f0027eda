/* clock.h - time. Threads: any. */
#ifndef QN_CORE_CLOCK_H
#define QN_CORE_CLOCK_H

#include <stdint.h>

/* Monotonic time in nanoseconds since an arbitrary start (no failure). */
uint64_t qn_now_ns(void);

/* The same in milliseconds, with fractions (no failure). */
double qn_now_ms(void);

/* Wall clock: milliseconds since 1970 (no failure). */
int64_t qn_wall_ms(void);

#endif
