/* rt.h - runtime settings: a frozen snapshot of the environment.
 *
 * QUERN_X (else MLX_BUN_X) is read once, at the first call or qn_rt_init. Later changes of the
 * environment are invisible; overrides install a new snapshot and can be undone. Snapshots are
 * never freed while the process lives, so returned strings stay valid.
 * Threads: readers from any thread; qn_rt_set and qn_rt_restore from one thread at a time.
 */
#ifndef QN_CORE_RT_H
#define QN_CORE_RT_H

#include <stdbool.h>

typedef struct qn_rt qn_rt;

/* Capture the environment now. Optional, idempotent (no failure; aborts without memory). */
void qn_rt_init(void);

/* The value of QUERN_<key>, else MLX_BUN_<key>; NULL if unset or empty (no failure). */
const char *qn_rt_value(const char *key);

/* "1" is true, "0" is false, anything else is dflt (no failure). */
bool qn_rt_flag(const char *key, bool dflt);

/* The value as a number; dflt if unset, not entirely a number, or not finite (no failure). */
double qn_rt_number(const char *key, double dflt);

/* Override one key (value NULL: unset). Returns the previous snapshot for qn_rt_restore (no
 * failure; aborts without memory). */
const qn_rt *qn_rt_set(const char *key, const char *value);

/* Put a snapshot back; scopes nest last in, first out (no failure). */
void qn_rt_restore(const qn_rt *previous);

#endif
