/* stops.c - see stops.h. */
#include "engine/stops.h"

#include <stdlib.h>
#include <string.h>

#include "core/finder.h"

_Static_assert((int)QN_MAX_STOPS <= (int)QN_MAX_NEEDLES, "a stop string is a needle");

struct qn_stops {
    qn_finder finder;
    const char *met;
    size_t n;
    char list[QN_MAX_STOPS][QN_MAX_STOP_BYTES + 1];
};

static qn_code add(qn_stops *s, const char *text, qn_err *err)
{
    size_t n = strlen(text);
    if (!n) return QN_OK;
    if (n > QN_MAX_STOP_BYTES) {
        return qn_err_set(err, QN_LIMIT, "a stop string has %zu bytes; at most %d are allowed", n,
                          QN_MAX_STOP_BYTES);
    }
    if (s->n == QN_MAX_STOPS) {
        return qn_err_set(err, QN_LIMIT, "too many stop strings; at most %d are allowed",
                          QN_MAX_STOPS);
    }
    memcpy(s->list[s->n++], text, n + 1);
    return QN_OK;
}

qn_code qn_stops_new(qn_stops **out, const char *const *texts, size_t n, qn_err *err)
{
    *out = NULL;
    qn_stops *s = calloc(1, sizeof *s);
    if (!s) return qn_err_set(err, QN_NOMEM, "stop strings: out of memory");
    qn_code rc = QN_OK;
    for (size_t i = 0; i < n && !rc; i++) rc = add(s, texts[i], err);
    if (rc) {
        qn_stops_free(s);
        return rc;
    }
    const char *needles[QN_MAX_STOPS];
    for (size_t i = 0; i < s->n; i++) needles[i] = s->list[i];
    qn_finder_set(&s->finder, needles, s->n);
    *out = s;
    return QN_OK;
}

void qn_stops_free(qn_stops *s)
{
    if (!s) return;
    qn_finder_release(&s->finder);
    free(s);
}

bool qn_stops_push(qn_stops *s, const char *text, size_t n, qn_buf *out)
{
    if (s->met) return true;
    qn_found found;
    qn_finder_push(&s->finder, text, n);
    out->failed |= s->finder.held.failed;
    while (!s->met && qn_finder_next(&s->finder, &found)) {
        qn_buf_put(out, found.text, found.n);
        if (found.needle != QN_NO_NEEDLE) s->met = s->list[found.needle];
    }
    return s->met != NULL;
}

bool qn_stops_flush(qn_stops *s, qn_buf *out)
{
    if (s->met) return true;
    qn_found found;
    qn_finder_rest(&s->finder, &found);
    qn_buf_put(out, found.text, found.n);
    return false;
}

const char *qn_stops_met(const qn_stops *s)
{
    return s->met;
}
