/* synthetic.h - checkpoints of real shapes with random weights, so that speed can be measured at the
 * sizes people run without downloading anything.
 *
 * Threads: the main thread.
 */
#ifndef QN_CLI_SYNTHETIC_H
#define QN_CLI_SYNTHETIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

/* The names there are, separated by "|" (no failure). */
extern const char qn_synthetic_names[];

/* Make the checkpoint `name`, affine with these bits and group size, in Quern's state folder unless it
 * is there; writes its path [cap] into out. `progress` may return false to stop. On failure nothing
 * new stays. Errors: QN_INVALID (name, bits, group size), QN_CANCELLED, QN_IO, QN_NOMEM, QN_LIMIT. */
qn_code qn_synthetic_make(const char *name, uint32_t bits, uint32_t group_size,
                          bool (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx, char *out, size_t cap,
                          qn_err *err);

#endif
