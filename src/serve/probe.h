/* probe.h - which model answers on a port of this machine already?
 *
 * Threads: any.
 */
#ifndef QN_SERVE_PROBE_H
#define QN_SERVE_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ask http://localhost:PORT/v1/models and write the first model's id to `model` [cap]. False: nothing
 * answers with a model within 1.5 seconds (no failure). */
bool qn_probe_model(uint16_t port, char *model, size_t cap);

#endif
