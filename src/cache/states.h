/* states.h - slots for what recurrent layers keep of a sequence: who holds which.
 *
 * A slot holds the state of all recurrent layers of one sequence at one position; the bytes are the
 * device's. A running row writes to a slot that only it holds; the prefix tree holds slots as
 * checkpoints, which nobody writes to any more. Invariant: free + held = total.
 * Threads: the engine thread.
 */
#ifndef QN_CACHE_STATES_H
#define QN_CACHE_STATES_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/ops.h"
#include "core/err.h"

typedef struct qn_states qn_states;

#define QN_NO_STATE UINT32_MAX

/* The n slots of `kv`, each of `bytes`, all free. Errors: QN_NOMEM. */
qn_code qn_states_new(qn_states **out, qn_device *dev, qn_kv *kv, uint32_t n, size_t bytes,
                      qn_err *err);
void qn_states_free(qn_states *s);

/* A free slot, held once, its contents undefined; QN_NO_STATE if there is none (no failure). */
uint32_t qn_states_take(qn_states *s);

/* One more holder of a slot; one less, and the last one frees it (no failure). */
void qn_states_ref(qn_states *s, uint32_t slot);
void qn_states_unref(qn_states *s, uint32_t slot);

/* Zero a slot, which is the state before the first token; copy src into dst. The slot written must
 * have one holder (no failure). */
void qn_states_clear(qn_states *s, uint32_t slot);
void qn_states_copy(qn_states *s, uint32_t dst, uint32_t src);

/* Free slots, all slots, bytes of one (no failure). */
uint32_t qn_states_available(const qn_states *s);
uint32_t qn_states_total(const qn_states *s);
uint32_t qn_states_touched(const qn_states *s); /* the most that were in use at a time */
size_t qn_states_bytes(const qn_states *s);

/* Holders of a slot; for checks (no failure). */
uint32_t qn_states_holders(const qn_states *s, uint32_t slot);

#endif
