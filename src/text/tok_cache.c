/* tok_cache.c - the mapped cache of a parsed tokenizer.json.
 *
 * The file's name is the hash of the tokenizer.json that it was made from. Layout, little endian as
 * in memory, sections in this order, each starting at a multiple of 16:
 *
 *   offset  size            meaning
 *   0       96              tok_cache_head
 *   96      (n_ids+1)*4     offs: start of each token in text
 *           text_bytes      text: tokens, each with a NUL
 *           n_slots*4       slots: hash table of tokens, id + 1
 *           n_merges*16     merges: hash table of pairs (0 slots without merges)
 *           n_scores*8      scores (0 or n_ids)
 *           rest_bytes      tokenizer.json without model.vocab and model.merges
 *
 * A file that is missing, cut, stale or altered is no error: the caller parses tokenizer.json and
 * writes the cache anew.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/hash.h"
#include "text/tok_impl.h"

static const char magic[8] = "QNTOK 1";

typedef struct tok_cache_head {
    char magic[8];
    uint64_t key[2];    /* hash of the tokenizer.json, two seeds */
    uint64_t hash;      /* tok_cache_hash of the file */
    uint64_t file_bytes;
    uint64_t text_bytes, rest_bytes;
    uint32_t n_ids, n_entries, n_slots, n_merges, n_scores;
    uint32_t zero[5];
} tok_cache_head;

_Static_assert(sizeof(tok_cache_head) == 96, "the head's size is part of the format");

enum { N_SECTIONS = 6, SECTION_ALIGN = 16 };

/* Start of each section, and the end of the last. Errors: false if the sizes do not fit. */
static bool lay_out(const tok_cache_head *h, size_t at[N_SECTIONS + 1])
{
    const uint64_t sizes[N_SECTIONS] = {
        ((uint64_t)h->n_ids + 1) * sizeof(uint32_t), h->text_bytes,
        (uint64_t)h->n_slots * sizeof(uint32_t),     (uint64_t)h->n_merges * sizeof(tok_merge),
        (uint64_t)h->n_scores * sizeof(double),      h->rest_bytes,
    };
    uint64_t pos = sizeof *h;
    for (int i = 0; i < N_SECTIONS; i++) {
        at[i] = (size_t)pos;
        if (sizes[i] > UINT32_MAX) return false;
        pos += (sizes[i] + SECTION_ALIGN - 1) & ~(uint64_t)(SECTION_ALIGN - 1);
    }
    at[N_SECTIONS] = (size_t)pos;
    return true;
}

static bool is_power_of_two(uint32_t n)
{
    return n && !(n & (n - 1));
}

static bool check_vocab(tok_model *m, const tok_cache_head *h)
{
    const tok_vocab *v = &m->vocab;
    for (uint32_t id = 0; id < h->n_ids; id++) {
        if (v->offs[id] > v->offs[id + 1]) return false;
        size_t n = v->offs[id + 1] - v->offs[id];
        if (n && n - 1 > m->max_token) m->max_token = n - 1;
    }
    if (v->offs[h->n_ids] != h->text_bytes) return false;
    uint32_t used = 0;
    for (uint32_t i = 0; i < h->n_slots; i++) {
        uint32_t s = v->slots[i];
        if (s > h->n_ids || (s && v->offs[s - 1] == v->offs[s])) return false;
        used += s != 0;
    }
    return used < h->n_slots; /* a search must find an empty slot */
}

static bool check_merges(const tok_model *m, const tok_cache_head *h)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < h->n_merges; i++) {
        const tok_merge *r = &m->merges[i];
        if (r->left == QN_NO_TOKEN) continue;
        if (r->left >= h->n_ids || r->right >= h->n_ids || r->id >= h->n_ids) return false;
        used++;
    }
    return !h->n_merges || used < h->n_merges;
}

uint64_t tok_cache_hash(const void *data, size_t n)
{
    tok_cache_head h;
    memcpy(&h, data, sizeof h);
    h.hash = 0;
    return qn_hash64((const char *)data + sizeof h, n - sizeof h, qn_hash64(&h, sizeof h, 0));
}

bool tok_cache_read(qn_tokenizer *t, const void *data, size_t n, const uint64_t key[2],
                    tok_str *rest)
{
    tok_cache_head h;
    size_t at[N_SECTIONS + 1];
    const char *base = data;
    if (n < sizeof h) return false;
    memcpy(&h, data, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) || h.key[0] != key[0] || h.key[1] != key[1]) {
        return false;
    }
    if (h.file_bytes != n || h.n_ids > TOK_MAX_IDS || !is_power_of_two(h.n_slots)) return false;
    if ((h.n_merges && !is_power_of_two(h.n_merges)) || (h.n_scores && h.n_scores != h.n_ids)) {
        return false;
    }
    if (!lay_out(&h, at) || at[N_SECTIONS] != n) return false;
    if (tok_cache_hash(data, n) != h.hash) return false;
    tok_model m = {
        .vocab = {.n_ids = h.n_ids,
                  .n_entries = h.n_entries,
                  .offs = (const void *)(base + at[0]),
                  .text = base + at[1],
                  .slots = (const void *)(base + at[2]),
                  .slot_mask = h.n_slots - 1,
                  .scores = h.n_scores ? (const void *)(base + at[4]) : NULL},
        .merges = h.n_merges ? (const void *)(base + at[3]) : NULL,
        .merge_mask = h.n_merges ? h.n_merges - 1 : 0,
    };
    if (!check_vocab(&m, &h) || !check_merges(&m, &h)) return false;
    t->model = m;
    *rest = (tok_str){base + at[5], (size_t)h.rest_bytes};
    return true;
}

void tok_cache_write(const qn_tokenizer *t, const char *rest, size_t n_rest, const uint64_t key[2],
                     qn_buf *out)
{
    const tok_model *m = &t->model;
    const tok_vocab *v = &m->vocab;
    tok_cache_head h = {
        .key = {key[0], key[1]},
        .text_bytes = v->offs[v->n_ids],
        .rest_bytes = n_rest,
        .n_ids = v->n_ids,
        .n_entries = v->n_entries,
        .n_slots = v->slot_mask + 1,
        .n_merges = m->merges ? m->merge_mask + 1 : 0,
        .n_scores = v->scores ? v->n_ids : 0,
    };
    size_t at[N_SECTIONS + 1];
    memcpy(h.magic, magic, sizeof magic);
    if (!lay_out(&h, at)) {
        out->failed = true;
        return;
    }
    h.file_bytes = at[N_SECTIONS];
    const struct {
        const void *data;
        size_t n;
    } sections[N_SECTIONS] = {
        {v->offs, ((size_t)h.n_ids + 1) * sizeof(uint32_t)},
        {v->text, (size_t)h.text_bytes},
        {v->slots, h.n_slots * sizeof(uint32_t)},
        {m->merges, h.n_merges * sizeof(tok_merge)},
        {v->scores, h.n_scores * sizeof(double)},
        {rest, n_rest},
    };
    static const char zeros[SECTION_ALIGN];
    qn_buf_put(out, &h, sizeof h); /* once more below, with the hash */
    for (int i = 0; i < N_SECTIONS; i++) {
        qn_buf_put(out, sections[i].data, sections[i].n);
        if (!out->failed) qn_buf_put(out, zeros, at[i + 1] - out->len);
    }
    if (out->failed) return;
    h.hash = tok_cache_hash(out->data, out->len);
    memcpy(out->data, &h, sizeof h);
}

void tok_cache_key(const char *json, size_t n, uint64_t key[2])
{
    key[0] = qn_hash64(json, n, 0);
    key[1] = qn_hash64(json, n, 0x9E3779B97F4A7C15u);
}

static bool cache_path(char out[PATH_MAX], const uint64_t key[2])
{
    char name[64];
    qn_err err = {0};
    snprintf(name, sizeof name, "tokenizers/%016llx%016llx.tok", (unsigned long long)key[0],
             (unsigned long long)key[1]);
    return !qn_state_path(out, PATH_MAX, name, &err);
}

bool tok_cache_open(qn_tokenizer *t, const uint64_t key[2], tok_str *rest)
{
    char path[PATH_MAX];
    qn_err err = {0};
    qn_map map;
    if (!cache_path(path, key) || !qn_is_file(path) || qn_map_open(&map, path, &err)) return false;
    if (!tok_cache_read(t, map.data, map.size, key, rest)) {
        qn_map_close(&map);
        return false;
    }
    t->map = map;
    return true;
}

void tok_cache_save(const qn_tokenizer *t, const json_t *root, const uint64_t key[2])
{
    char path[PATH_MAX], dir[PATH_MAX];
    qn_err err = {0};
    json_t *slim = json_copy((json_t *)(uintptr_t)root);
    json_t *model = json_copy(json_object_get(root, "model"));
    json_object_del(model, "vocab");
    json_object_del(model, "merges");
    json_object_set_new(slim, "model", model);
    char *rest = json_dumps(slim, JSON_COMPACT);
    qn_buf body = {0};
    if (rest) tok_cache_write(t, rest, strlen(rest), key, &body);
    if (rest && !body.failed && cache_path(path, key) &&
        !qn_state_path(dir, sizeof dir, "tokenizers", &err) && !qn_mkdirs(dir, &err)) {
        qn_file_write(path, body.data, body.len,
                      &err); /* a cache that cannot be written is only slower */
    }
    qn_buf_release(&body);
    free(rest);
    json_decref(slim);
}
