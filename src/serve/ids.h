/* ids.h - random identifiers. Threads: any. */
#ifndef QN_SERVE_IDS_H
#define QN_SERVE_IDS_H

/* A random UUID, version 4, as 36 characters and a NUL (no failure; aborts if the system has no
 * random bytes). */
void qn_uuid4(char out[37]);

#endif
