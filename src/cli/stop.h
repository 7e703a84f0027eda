/* stop.h - SIGINT and SIGTERM as a flag that long verbs look at between steps, so that an interrupted
 * verb removes what it had half written and ends with 130 or 143.
 *
 * Threads: qn_stop_catch from the main thread; the others from any.
 */
#ifndef QN_CLI_STOP_H
#define QN_CLI_STOP_H

#include <stdbool.h>

/* Catch SIGINT and SIGTERM from now on. The first sets the flag; a second one ends the process at
 * once (no failure). */
void qn_stop_catch(void);

/* True once a signal came (no failure). */
bool qn_stop_asked(void);

/* 130 or 143, the exit status for the signal that came; 0 if none did (no failure). */
int qn_stop_status(void);

/* Sleep until a signal came, or it is there already (no failure). */
void qn_stop_wait(void);

/* Forget a SIGINT, so that the next one is a first one again (no failure). */
void qn_stop_clear(void);

#endif
