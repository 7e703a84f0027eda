/* arena.c - the chunk list behind qn_arena. */
#include "core/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 64 * 1024, ALIGN = 16 };

struct qn_arena_chunk {
    qn_arena_chunk *next;
    size_t used, cap;
    _Alignas(16) unsigned char bytes[];
};

void *qn_arena_take(qn_arena *a, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (bytes == 0) bytes = ALIGN;
    if (a->limit_bytes && (bytes > a->limit_bytes || a->used_bytes > a->limit_bytes - bytes)) return NULL;
    qn_arena_chunk *c = a->head;
    if (!c || c->cap - c->used < bytes) {
        size_t cap = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        c = calloc(1, sizeof *c + cap);
        if (!c) return NULL;
        c->cap = cap;
        c->next = a->head;
        a->head = c;
    }
    void *p = c->bytes + c->used;
    c->used += bytes;
    a->used_bytes += bytes;
    return p;
}

char *qn_arena_dup(qn_arena *a, const char *s, size_t n)
{
    if (n == SIZE_MAX) return NULL;
    char *p = qn_arena_take(a, n + 1, 1);
    if (p && n) memcpy(p, s, n);
    return p;
}

char *qn_arena_printf(qn_arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) return NULL;
    char *p = qn_arena_take(a, (size_t)n + 1, 1);
    if (!p) return NULL;
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

void qn_arena_release(qn_arena *a)
{
    qn_arena_chunk *c = a->head;
    while (c) {
        qn_arena_chunk *next = c->next;
        free(c);
        c = next;
    }
    a->head = NULL;
    a->used_bytes = 0;
}
