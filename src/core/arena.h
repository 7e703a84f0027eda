/* arena.h - memory with one owner and one end: a model's arena, a request's arena.
 *
 * A growing arena is a list of chunks; everything in it is freed at once. Memory is zeroed.
 * Threads: one thread at a time.
 */
#ifndef QN_CORE_ARENA_H
#define QN_CORE_ARENA_H

#include <stddef.h>

typedef struct qn_arena_chunk qn_arena_chunk;

typedef struct qn_arena {
    qn_arena_chunk *head; /* newest chunk first; NULL when empty */
    size_t used_bytes;    /* bytes handed out */
    size_t limit_bytes;   /* 0: none; else an allocation beyond it returns NULL */
} qn_arena;

/* Allocate count*size zeroed bytes, aligned to 16. Returns NULL when memory or the limit is
 * exhausted or the product overflows. The arena keeps the memory until qn_arena_release.
 * Errors: NULL only. */
void *qn_arena_take(qn_arena *a, size_t count, size_t size);

/* Copy `n` bytes and add a NUL. Returns NULL on exhaustion. Errors: NULL only. */
char *qn_arena_dup(qn_arena *a, const char *s, size_t n);

/* printf into the arena. Returns NULL on exhaustion. Errors: NULL only. */
__attribute__((format(printf, 2, 3)))
char *qn_arena_printf(qn_arena *a, const char *fmt, ...);

/* Free everything and leave the arena empty and usable (no failure). */
void qn_arena_release(qn_arena *a);

#endif
