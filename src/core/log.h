/* log.h - log lines on stderr, one writer for the whole program.
 *
 * A line is "2026-01-02 03:04:05,678 - LEVEL - text". The level comes from QUERN_LOG (debug, info,
 * warning, error, critical) or qn_log_set_level; default warning, so that one-shot commands stay
 * quiet; `serve` sets info.
 * Threads: any thread; one line is one write.
 */
#ifndef QN_CORE_LOG_H
#define QN_CORE_LOG_H

#include <stdbool.h>

typedef enum qn_level { QN_DEBUG_LINE = 0, QN_INFO, QN_WARNING, QN_ERROR, QN_CRITICAL } qn_level;

/* Set the lowest level that is written (no failure). */
void qn_log_set_level(qn_level level);

/* Parse a level name, any case. Returns false if the name is unknown (no failure otherwise). */
bool qn_level_parse(const char *name, qn_level *out);

/* Would a line of this level be written? (no failure) */
bool qn_log_enabled(qn_level level);

/* Write one line if the level is enabled (no failure). */
__attribute__((format(printf, 2, 3)))
void qn_log(qn_level level, const char *fmt, ...);

#endif
