/* ids.h - random identifiers. Threads: any. */
#ifndef QN_SERVE_IDS_H
#define QN_SERVE_IDS_H

#include <stdbool.h>
#include <stddef.h>

/* A random UUID, version 4, as 36 characters and a NUL (no failure; aborts if the system has no
 * random bytes). */
void qn_uuid4(char out[37]);

/* PREFIX and 24 random hex digits, with a NUL; cap must hold them (no failure; aborts as
 * qn_uuid4). */
void qn_hex_id(char *out, size_t cap, const char *prefix);

enum { QN_CALL_ID = 32, QN_SHORT_ID = 9 };

/* A random id of a tool call: "call_" and 24 hex digits, or nine letters and digits where the
 * model's template wants those (no failure; aborts as qn_uuid4). */
void qn_call_id(char out[QN_CALL_ID], bool is_short);

#endif
