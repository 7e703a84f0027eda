/* memory.h - how much memory this process may still use. Threads: any. */
#ifndef QN_CORE_MEMORY_H
#define QN_CORE_MEMORY_H

#include <stdint.h>

/* Bytes that can be had without swapping: what the kernel calls available (page cache that can be dropped included),
 * and not more than the control group leaves. 1 GiB where the system does not say (no failure). */
uint64_t qn_memory_available(void);

/* Bytes of [p, p + n) that this process has in memory, whole pages at the ends; n where the system does
 * not say (no failure). */
uint64_t qn_memory_resident(const void *p, uint64_t n);

/* Bytes of memory that this process holds now and held at most; 0 where the system does not say (no
 * failure). */
void qn_memory_used(uint64_t *now, uint64_t *peak);

#endif
