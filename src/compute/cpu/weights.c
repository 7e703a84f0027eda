/* weights.c - bringing matrices into panels: from the panel cache file, or by building them. */
#include "compute/cpu/weights.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "compute/cpu/cpu.h"
#include "compute/cpu/panel_file.h"
#include "core/buf.h"
#include "core/log.h"
#include "core/memory.h"

/* ---- the store ---- */

uint32_t qn_group_slot(uint32_t group_size)
{
    switch (group_size) {
    case 16: return 0;
    case 32: return 1;
    case 64: return 2;
    case 128: return 3;
    default: QN_UNREACHABLE();
    }
}

void qn_cpu_store_free(qn_cpu_store *s)
{
    while (s && s->segments) {
        qn_segment *next = s->segments->next;
        munmap(s->segments->data, s->segments->size);
        free(s->segments);
        s->segments = next;
    }
    free(s);
}

uint64_t qn_cpu_weights_bytes(const qn_device *d, uint64_t *resident)
{
    const qn_cpu_store *s = ((const qn_cpu *)(const void *)d)->store;
    if (resident) *resident = 0;
    for (const qn_segment *g = s ? s->segments : NULL; resident && g; g = g->next)
        *resident += qn_memory_resident(g->data, g->size);
    return s ? s->weights_bytes : 0;
}

qn_code qn_cpu_weights_pin(const qn_device *d, qn_err *err)
{
    const qn_cpu_store *s = ((const qn_cpu *)(const void *)d)->store;
    qn_code rc = QN_OK;
    for (const qn_segment *g = s ? s->segments : NULL; !rc && g; g = g->next)
        rc = qn_memory_pin(g->data, g->size, s->weights_bytes, err);
    return rc;
}

/* ---- a load under way ---- */

typedef struct load {
    qn_cpu *cpu;
    const qn_matrix_src *src; /* [n] */
    size_t n;
    const qn_load_opts *opts;
    qn_panels *panels; /* [n] */
    uint64_t *at;      /* [n] where each matrix lies in the file or the memory */
    uint64_t *part0;   /* [n + 1] first part of each matrix */
    qn_buf header;
    uint64_t file_bytes, total_bytes;
    _Atomic uint64_t done_bytes;
    uint8_t *base; /* memory being built */
} load;

enum { PART_BYTES = 1 << 20 }; /* panels packed by one part of the pool's task */

/* Panels of one part of matrix i. */
static uint64_t part_panels(const load *l, size_t i)
{
    uint64_t n = PART_BYTES / l->panels[i].panel_bytes;
    return n ? n : 1;
}

static qn_code describe(load *l, qn_err *err)
{
    l->panels = calloc(l->n ? l->n : 1, sizeof *l->panels);
    l->at = calloc(l->n ? l->n : 1, sizeof *l->at);
    l->part0 = calloc(l->n + 1, sizeof *l->part0);
    if (!l->panels || !l->at || !l->part0)
        return qn_err_set(err, QN_NOMEM, "out of memory for %zu matrices", l->n);
    for (size_t i = 0; i < l->n; i++) {
        qn_code rc = qn_panels_init(&l->panels[i], &l->src[i].m, err);
        if (rc) return qn_err_prefix(err, "%s", l->src[i].path);
        uint64_t panels = (uint64_t)l->panels[i].n_experts * l->panels[i].n_panels;
        l->part0[i + 1] = l->part0[i] + (panels - 1) / part_panels(l, i) + 1;
        l->total_bytes += qn_panels_bytes(&l->panels[i]);
    }
    if (l->part0[l->n] > UINT32_MAX) return qn_err_set(err, QN_LIMIT, "the matrices are too large");
    return qn_panel_header(&l->header, l->at, &l->file_bytes, l->opts->fingerprint, l->src,
                           l->panels, l->n, err);
}

static void load_release(load *l)
{
    free(l->panels);
    free(l->at);
    free(l->part0);
    qn_buf_release(&l->header);
}

/* ---- building ---- */

/* The matrix that a part belongs to: the last one whose first part is not after it. */
static size_t part_matrix(const load *l, uint32_t part)
{
    size_t lo = 0, hi = l->n;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (l->part0[mid] <= part) lo = mid;
        else hi = mid;
    }
    return lo;
}

/* Pack the panels of one part; progress is told by the calling thread only. */
static void pack_part(void *arg, uint32_t part, uint32_t thread)
{
    load *l = arg;
    const size_t i = part_matrix(l, part);
    const qn_panels *w = &l->panels[i];
    const uint64_t all = (uint64_t)w->n_experts * w->n_panels, per_part = part_panels(l, i);
    const uint64_t p0 = (part - l->part0[i]) * per_part,
                   p1 = p0 + per_part < all ? p0 + per_part : all;
    for (uint64_t p = p0; p < p1; p++) {
        qn_panels_pack(w, l->base + l->at[i] + p * w->panel_bytes, &l->src[i].m,
                       (uint32_t)(p / w->n_panels), (uint32_t)(p % w->n_panels));
    }
    uint64_t bytes = (p1 - p0) * w->panel_bytes;
    uint64_t done = atomic_fetch_add_explicit(&l->done_bytes, bytes, memory_order_relaxed) + bytes;
    if (thread == 0 && l->opts->progress) l->opts->progress(l->opts->user, done, l->total_bytes);
}

static void build(load *l, void *base)
{
    l->base = base;
    qn_pool_run(l->cpu->pool, pack_part, l, (uint32_t)l->part0[l->n]);
    if (l->opts->progress) l->opts->progress(l->opts->user, l->total_bytes, l->total_bytes);
}

static void *build_in_memory(load *l, qn_err *err)
{
    void *p = mmap(NULL, l->file_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        qn_err_set(err, QN_NOMEM, "cannot get %llu bytes of memory for the matrices",
                   (unsigned long long)l->file_bytes);
        return NULL;
    }
    madvise(p, l->file_bytes, MADV_HUGEPAGE);
    build(l, p);
    mprotect(p, l->file_bytes, PROT_READ);
    return p;
}

/* Build the cache file and return its mapping, or NULL when it cannot be had. */
static void *build_in_file(load *l, const char *path)
{
    qn_err why = {0};
    qn_panel_new f;
    if (qn_panel_new_open(&f, path, &l->header, l->file_bytes, &why)) {
        qn_log(QN_WARNING, "%s; the matrices stay in memory this time", why.text);
        return NULL;
    }
    build(l, f.data);
    if (qn_panel_new_publish(&f, &why)) qn_log(QN_WARNING, "%s; it will be built again", why.text);
    return f.data;
}

/* The memory with all panels: mapped, built into the cache file, or built in memory. */
static void *acquire(load *l, qn_err *err)
{
    void *data = NULL;
    if (l->opts->cache_dir) {
        char *path = qn_panel_path(l->opts->cache_dir, l->opts->fingerprint);
        if (path) data = qn_panel_file_open(path, &l->header, l->file_bytes);
        if (path && !data) data = build_in_file(l, path);
        free(path);
    }
    return data ? data : build_in_memory(l, err);
}

/* ---- handing over ---- */

static qn_code keep(load *l, void *data, qn_weight **out, qn_err *err)
{
    qn_cpu *cpu = l->cpu;
    if (!cpu->store) cpu->store = calloc(1, sizeof *cpu->store);
    qn_segment *segment = malloc(sizeof *segment);
    qn_weight *weights = qn_arena_take(&cpu->arena, l->n ? l->n : 1, sizeof *weights);
    if (!cpu->store || !segment || !weights) {
        free(segment);
        munmap(data, l->file_bytes);
        return qn_err_set(err, QN_NOMEM, "out of memory for %zu matrices", l->n);
    }
    *segment = (qn_segment){.next = cpu->store->segments, .data = data, .size = l->file_bytes};
    cpu->store->segments = segment;
    cpu->store->weights_bytes += l->total_bytes;
    for (size_t i = 0; i < l->n; i++) {
        qn_panels *w = &weights[i].panels;
        *w = l->panels[i];
        w->data = (const uint8_t *)data + l->at[i];
        out[i] = &weights[i];
    }
    return QN_OK;
}

qn_code qn_cpu_load(qn_device *d, const qn_matrix_src *src, size_t n, const qn_load_opts *opts,
                    qn_weight **out, qn_err *err)
{
    load l = {.cpu = (qn_cpu *)(void *)d, .src = src, .n = n, .opts = opts};
    qn_code rc = describe(&l, err);
    void *data = rc ? NULL : acquire(&l, err);
    if (data) rc = keep(&l, data, out, err);
    else if (!rc) rc = QN_NOMEM;
    load_release(&l);
    return rc;
}
