/* memory.h - how much memory this process may still use. Threads: any. */
#ifndef QN_CORE_MEMORY_H
#define QN_CORE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

/* Bytes that can be had without swapping: what the kernel calls available (page cache that can be dropped included),
 * and not more than the control group leaves. 1 GiB where the system does not say (no failure). */
uint64_t qn_memory_available(void);

/* True if the kernel gives huge pages of 2 MiB to memory that asks for them (no failure). */
bool qn_memory_huge_pages(void);

/* Bytes of [p, p + n) that this process has in memory, whole pages at the ends; n where the system does
 * not say (no failure). */
uint64_t qn_memory_resident(const void *p, uint64_t n);

/* Bring [p, p + n) into memory, whole pages at the ends, and keep it there; `all` is what the caller pins
 * together. Errors: QN_LIMIT (names `all` and the system's limit). */
qn_code qn_memory_pin(const void *p, uint64_t n, uint64_t all, qn_err *err);

/* Bytes of memory that this process holds now and held at most; 0 where the system does not say (no
 * failure). */
void qn_memory_used(uint64_t *now, uint64_t *peak);

#endif
