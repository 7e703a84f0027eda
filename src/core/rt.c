/* rt.c - the settings snapshot. */
#include "core/rt.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"

extern char **environ;

typedef struct entry {
    char *key, *value; /* value "" means unset by an override */
} entry;

struct qn_rt {
    entry *entries;
    size_t n;
    const qn_rt *older; /* the snapshot made before this one */
};

static _Atomic(const qn_rt *) current;
static const qn_rt *newest; /* head of all overrides: none is ever freed, and leak checkers see that */

static char *copy(const char *s, size_t n)
{
    char *p = malloc(n + 1);
    qn_check(p);
    memcpy(p, s, n);
    p[n] = '\0';
    return p;
}

static const entry *find(const qn_rt *rt, const char *key)
{
    for (size_t i = 0; i < rt->n; i++) {
        if (!strcmp(rt->entries[i].key, key)) return &rt->entries[i];
    }
    return NULL;
}

static void capture_prefix(qn_rt *rt, const char *prefix)
{
    size_t np = strlen(prefix);
    for (char **e = environ; *e; e++) {
        const char *eq = strchr(*e, '=');
        if (!eq || strncmp(*e, prefix, np) || !eq[1]) continue;
        char *key = copy(*e + np, (size_t)(eq - *e) - np);
        if (find(rt, key)) {
            free(key);
            continue;
        }
        rt->entries = realloc(rt->entries, (rt->n + 1) * sizeof *rt->entries);
        qn_check(rt->entries);
        rt->entries[rt->n++] = (entry){key, copy(eq + 1, strlen(eq + 1))};
    }
}

static const qn_rt *snapshot(void)
{
    const qn_rt *rt = atomic_load_explicit(&current, memory_order_acquire);
    if (rt) return rt;
    qn_rt *made = calloc(1, sizeof *made);
    qn_check(made);
    capture_prefix(made, "QUERN_");
    capture_prefix(made, "MLX_BUN_");
    const qn_rt *none = NULL;
    if (atomic_compare_exchange_strong(&current, &none, made)) return made;
    for (size_t i = 0; i < made->n; i++) {
        free(made->entries[i].key);
        free(made->entries[i].value);
    }
    free(made->entries);
    free(made);
    return none;
}

void qn_rt_init(void)
{
    (void)snapshot();
}

const char *qn_rt_value(const char *key)
{
    const entry *e = find(snapshot(), key);
    return e && *e->value ? e->value : NULL;
}

bool qn_rt_flag(const char *key, bool dflt)
{
    const char *v = qn_rt_value(key);
    if (v && !strcmp(v, "1")) return true;
    if (v && !strcmp(v, "0")) return false;
    return dflt;
}

double qn_rt_number(const char *key, double dflt)
{
    const char *v = qn_rt_value(key);
    if (!v) return dflt;
    char *end;
    double d = strtod(v, &end);
    while (*end == ' ' || *end == '\t') end++;
    return end == v || *end || !isfinite(d) ? dflt : d;
}

const qn_rt *qn_rt_set(const char *key, const char *value)
{
    const qn_rt *old = snapshot();
    qn_rt *made = calloc(1, sizeof *made);
    qn_check(made);
    made->entries = calloc(old->n + 1, sizeof *made->entries);
    qn_check(made->entries);
    for (size_t i = 0; i < old->n; i++) {
        if (strcmp(old->entries[i].key, key)) made->entries[made->n++] = old->entries[i];
    }
    made->entries[made->n++] = (entry){copy(key, strlen(key)), copy(value ? value : "", value ? strlen(value) : 0)};
    made->older = newest;
    newest = made;
    atomic_store_explicit(&current, made, memory_order_release);
    return old;
}

void qn_rt_restore(const qn_rt *previous)
{
    atomic_store_explicit(&current, previous, memory_order_release);
}
