/* buf.h - a growable byte string.
 *
 * Zero-initialise to start. Growth failure sets `failed` and later appends do nothing, so that a
 * writer checks once at the end. `data` is always NUL terminated once anything was appended.
 * Threads: one thread at a time.
 */
#ifndef QN_CORE_BUF_H
#define QN_CORE_BUF_H

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_buf {
    char *data;  /* NULL until the first append */
    size_t len;  /* bytes in use, the NUL not counted */
    size_t cap;  /* bytes allocated */
    bool failed; /* an append could not get memory */
} qn_buf;

/* Append `n` bytes. Errors: sets b->failed. */
void qn_buf_put(qn_buf *b, const void *p, size_t n);

/* Append a NUL terminated string. Errors: sets b->failed. */
void qn_buf_puts(qn_buf *b, const char *s);

/* Append one byte. Errors: sets b->failed. */
void qn_buf_putc(qn_buf *b, char c);

/* Append formatted text. Errors: sets b->failed. */
__attribute__((format(printf, 2, 3)))
void qn_buf_printf(qn_buf *b, const char *fmt, ...);

/* Append a code point as UTF-8; surrogates and values over 0x10FFFF become U+FFFD.
 * Errors: sets b->failed. */
void qn_buf_put_utf8(qn_buf *b, unsigned cp);

/* Keep the memory, forget the content and the failure (no failure). */
void qn_buf_clear(qn_buf *b);

/* Remove the first `n` bytes; n <= len (no failure). */
void qn_buf_drop(qn_buf *b, size_t n);

/* Give the bytes to the caller, who frees them with free(); the buffer is empty afterwards. NULL
 * when an append failed; an empty buffer gives "". Errors: NULL only. */
char *qn_buf_take(qn_buf *b);

/* Free the content and re-initialise (no failure). */
void qn_buf_release(qn_buf *b);

#endif
