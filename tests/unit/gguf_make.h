/* gguf_make.h - building small GGUF files in memory for tests. Threads: any. */
#ifndef QN_TESTS_GGUF_MAKE_H
#define QN_TESTS_GGUF_MAKE_H

#include <stdint.h>
#include <string.h>

#include "core/buf.h"

typedef struct gguf_make { /* zero-initialise; keys, records and data grow apart */
    qn_buf keys, records, data;
    uint64_t n_keys, n_tensors;
    uint32_t version; /* 0: 3 */
    uint32_t align;   /* 0: 32 */
} gguf_make;

static inline void put_u32(qn_buf *b, uint32_t v)
{
    for (int i = 0; i < 4; i++) qn_buf_putc(b, (char)(v >> 8 * i));
}

static inline void put_u64(qn_buf *b, uint64_t v)
{
    put_u32(b, (uint32_t)v);
    put_u32(b, (uint32_t)(v >> 32));
}

static inline void put_str(qn_buf *b, const char *s)
{
    put_u64(b, strlen(s));
    qn_buf_puts(b, s);
}

static inline void make_key(gguf_make *m, const char *name, uint32_t kind)
{
    put_str(&m->keys, name);
    put_u32(&m->keys, kind);
    m->n_keys++;
}

static inline void make_u32(gguf_make *m, const char *name, uint32_t v)
{
    make_key(m, name, 4);
    put_u32(&m->keys, v);
}

static inline void make_f32(gguf_make *m, const char *name, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    make_key(m, name, 6);
    put_u32(&m->keys, u);
}

static inline void make_str(gguf_make *m, const char *name, const char *v)
{
    make_key(m, name, 8);
    put_str(&m->keys, v);
}

static inline void make_strings(gguf_make *m, const char *name, const char *const *v, size_t n)
{
    make_key(m, name, 9);
    put_u32(&m->keys, 8);
    put_u64(&m->keys, n);
    for (size_t i = 0; i < n; i++) put_str(&m->keys, v[i]);
}

/* dims outermost first. */
static inline void make_tensor(gguf_make *m, const char *name, uint32_t type, const uint64_t *dims,
                               uint32_t rank, const void *data, size_t bytes)
{
    uint32_t align = m->align ? m->align : 32;
    while (m->data.len % align) qn_buf_putc(&m->data, 0);
    put_str(&m->records, name);
    put_u32(&m->records, rank);
    for (uint32_t i = rank; i-- > 0;) put_u64(&m->records, dims[i]);
    put_u32(&m->records, type);
    put_u64(&m->records, m->data.len);
    qn_buf_put(&m->data, data, bytes);
    m->n_tensors++;
}

/* The whole file; the parts are released. */
static inline qn_buf make_done(gguf_make *m)
{
    qn_buf b = {0};
    uint32_t align = m->align ? m->align : 32;
    qn_buf_puts(&b, "GGUF");
    put_u32(&b, m->version ? m->version : 3);
    put_u64(&b, m->n_tensors);
    put_u64(&b, m->n_keys);
    if (m->keys.len) qn_buf_put(&b, m->keys.data, m->keys.len);
    if (m->records.len) qn_buf_put(&b, m->records.data, m->records.len);
    while (b.len % align) qn_buf_putc(&b, 0);
    if (m->data.len) qn_buf_put(&b, m->data.data, m->data.len);
    qn_buf_release(&m->keys);
    qn_buf_release(&m->records);
    qn_buf_release(&m->data);
    return b;
}

#endif
