/* log.c - the log sink; its level is the program's only mutable global beside the settings. */
#include "core/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "core/rt.h"

static _Atomic int threshold = -1;

static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"};

void qn_log_set_level(qn_level level)
{
    atomic_store(&threshold, (int)level);
}

bool qn_level_parse(const char *name, qn_level *out)
{
    for (int i = 0; i <= QN_CRITICAL; i++) {
        if (!strcasecmp(name, names[i])) {
            *out = (qn_level)i;
            return true;
        }
    }
    return false;
}

static int level_now(void)
{
    int t = atomic_load(&threshold);
    if (t >= 0) return t;
    qn_level l = QN_WARNING;
    const char *v = qn_rt_value("LOG");
    if (v) qn_level_parse(v, &l);
    int unset = -1;
    atomic_compare_exchange_strong(&threshold, &unset, (int)l);
    return atomic_load(&threshold);
}

bool qn_log_enabled(qn_level level)
{
    return (int)level >= level_now();
}

void qn_log(qn_level level, const char *fmt, ...)
{
    if (!qn_log_enabled(level)) return;
    char line[2048];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    localtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%d %H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ",%03ld - %s - ", ts.tv_nsec / 1000000, names[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (m < 0) return;
    n += (size_t)m < sizeof line - n - 1 ? (size_t)m : sizeof line - n - 2;
    line[n++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, n);
    (void)ignored;
}
