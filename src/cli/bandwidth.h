/* bandwidth.h - the machine's own ceiling: how fast memory can be read.
 *
 * Threads: the main thread; starts workers of its own for the time of the call.
 */
#ifndef QN_CLI_BANDWIDTH_H
#define QN_CLI_BANDWIDTH_H

#include <stdint.h>

#include "core/err.h"

/* Read bandwidth of n_threads threads in bytes per second: the best of several passes over a buffer
 * much larger than the caches. Takes about a second. Errors: QN_NOMEM, QN_IO (threads). */
qn_code qn_read_bandwidth(uint32_t n_threads, double *bytes_per_s, qn_err *err);

#endif
