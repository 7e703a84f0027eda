/* err.c - recording errors and stopping on broken invariants. */
#include "core/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

qn_code qn_err_set(qn_err *err, qn_code code, const char *fmt, ...)
{
    if (!err || err->code) return code;
    err->code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    for (char *p = err->text; *p; p++) {
        if (*p == '\n' || *p == '\r') *p = ' '; /* an error is one line */
    }
    return code;
}

qn_code qn_err_prefix(qn_err *err, const char *fmt, ...)
{
    if (!err || !err->code) return err ? err->code : QN_OK;
    char old[QN_ERR_TEXT];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err->text) {
        size_t room = sizeof err->text - (size_t)n;
        snprintf(err->text + n, room, ": %.*s", (int)room, old); /* cut at the end if too long */
    }
    return err->code;
}

void qn_err_clear(qn_err *err)
{
    if (!err) return;
    err->code = QN_OK;
    err->text[0] = '\0';
}

_Noreturn void qn_panic(const char *file, int line, const char *what)
{
    fprintf(stderr, "quern: internal error at %s:%d: %s\n", file, line, what);
    abort();
}
