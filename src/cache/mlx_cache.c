/* mlx_cache.c - reading and writing mlx-lm's prompt cache files. */
#include "cache/mlx_cache.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum cache_kind {
    KV_CACHE,
    QUANTIZED_CACHE,
    ROTATING_CACHE,
    ARRAYS_CACHE,
    CHUNKED_CACHE,
    N_KINDS
} cache_kind;

static const char *const class_names[] = {"KVCache", "QuantizedKVCache", "RotatingKVCache",
                                          "ArraysCache", "ChunkedKVCache"};

enum { NAME_BYTES = 32 };

/* ---- reading ---- */

typedef struct reader {
    const qn_shard *file;
    const qn_kv_spec *spec;
    bool old; /* the form before mlx-lm 0.32: numbers are in the metadata */
    qn_image *img;
} reader;

static const char *meta_at(const reader *r, const char *kind, uint32_t layer)
{
    char key[NAME_BYTES];
    snprintf(key, sizeof key, "%s.%u", kind, layer);
    return qn_shard_meta(r->file, key);
}

static qn_code missing(uint32_t layer, const char *what, qn_err *err)
{
    return qn_err_set(err, QN_FORMAT, "cache file, layer %u: %s is missing or of another type",
                      layer, what);
}

/* Number `i` of a layer's cache, as its tensor "L.i", or "0.L.i_old" of the metadata. */
static qn_code read_number(const reader *r, uint32_t layer, uint32_t i, uint32_t i_old,
                           uint32_t *out, qn_err *err)
{
    char name[NAME_BYTES];
    int64_t v = -1;
    if (r->old) {
        snprintf(name, sizeof name, "0.%u.%u", layer, i_old);
        const char *text = qn_shard_meta(r->file, name);
        char *end = NULL;
        if (text && *text >= '0' && *text <= '9') v = strtoll(text, &end, 10);
        if (!end || *end) return missing(layer, name, err);
    } else {
        snprintf(name, sizeof name, "%u.%u", layer, i);
        const qn_stored *t = qn_shard_find(r->file, name);
        if (!t || t->bytes != qn_dtype_size(t->dtype) || t->rank > 1) return missing(layer, name, err);
        int32_t narrow;
        if (t->dtype == QN_I32) memcpy(&narrow, t->data, sizeof narrow), v = narrow;
        else if (t->dtype == QN_I64) memcpy(&v, t->data, sizeof v);
        else return missing(layer, name, err);
    }
    if (v < 0 || v > QN_MAX_CACHE_TOKENS) {
        return qn_err_set(err, QN_LIMIT, "cache file: %s is %lld; at most %d is supported", name,
                          (long long)v, QN_MAX_CACHE_TOKENS);
    }
    *out = (uint32_t)v;
    return QN_OK;
}

enum { ANY_FLOAT = -1 };

/* Tensor `name` of a type with these dimensions; dims[i] 0: any, and it is filled in. */
static qn_code find_typed(const reader *r, const char *name, int type, uint32_t rank, uint64_t *dims,
                          const qn_stored **out, qn_err *err)
{
    const qn_stored *t = qn_shard_find(r->file, name);
    if (!t) return qn_err_set(err, QN_FORMAT, "cache file: no tensor \"%s\"", name);
    bool fits = t->rank == rank && (type == ANY_FLOAT ? t->dtype <= QN_BF16 : (int)t->dtype == type);
    for (uint32_t i = 0; fits && i < rank; i++) {
        if (!dims[i]) dims[i] = t->dims[i];
        fits = dims[i] == t->dims[i];
    }
    if (!fits) {
        return qn_err_set(err, QN_INVALID,
                          "cache file: tensor \"%s\" has another shape or type than this model's "
                          "caches; the file was made for another model",
                          name);
    }
    *out = t;
    return QN_OK;
}

static qn_code find_tensor(const reader *r, const char *name, uint32_t rank, uint64_t *dims,
                           const qn_stored **out, qn_err *err)
{
    return find_typed(r, name, ANY_FLOAT, rank, dims, out, err);
}

/* Which rows of a stored buffer hold which positions: of the n rows behind the first `keep` ones, row
 * (first + i) % n has position n_tokens - n + i. */
typedef struct ring {
    uint32_t keep, n, first;
} ring;

/* Copy positions of one tensor [1, H, S, D] into the image's rows [n, H*D]. */
static void read_rows(float *dst, const qn_stored *t, const qn_image_layer *x, uint32_t n_tokens,
                      ring at)
{
    size_t heads = t->dims[1], rows = t->dims[2], d = t->dims[3], size = qn_dtype_size(t->dtype);
    for (uint32_t p = 0; p < x->n; p++) {
        uint32_t pos = qn_image_position(x, p);
        size_t row = pos < at.keep ? pos : at.keep + (at.first + pos - (n_tokens - at.n)) % at.n;
        for (size_t h = 0; h < heads; h++) {
            qn_widen(dst + (p * heads + h) * d, (const char *)t->data + (h * rows + row) * d * size,
                     t->dtype, d);
        }
    }
}

static qn_code read_kv(reader *r, uint32_t layer, ring at, qn_err *err)
{
    const qn_kv_layer *l = &r->spec->layers[layer];
    qn_image_layer *x = &r->img->layers[layer];
    const qn_stored *k, *v;
    char k_name[NAME_BYTES], v_name[NAME_BYTES];
    snprintf(k_name, sizeof k_name, "%u.0", layer);
    snprintf(v_name, sizeof v_name, "%u.1", layer);
    uint64_t k_dims[4] = {1, l->n_kv_heads, 0, l->d_k};
    qn_code rc = find_tensor(r, k_name, 4, k_dims, &k, err);
    uint64_t v_dims[4] = {1, l->n_kv_heads, k_dims[2], l->d_v};
    if (rc || (rc = find_tensor(r, v_name, 4, v_dims, &v, err))) return rc;
    qn_check(at.keep + at.n <= k_dims[2] && x->n <= at.keep + at.n); /* read_length made sure */
    read_rows(x->k, k, x, r->img->n_tokens, at);
    read_rows(x->v, v, x, r->img->n_tokens, at);
    return QN_OK;
}

/* Bits and group size of a quantized layer's cache, as a codec of the spec's type of scales. */
static qn_code read_codec(const reader *r, uint32_t layer, qn_kv_codec *out, qn_err *err)
{
    uint32_t group = 0, bits = 0;
    qn_code rc = read_number(r, layer, 3, 1, &group, err);
    if (rc || (rc = read_number(r, layer, 4, 2, &bits, err))) return rc;
    if (bits != 8 && bits != 4)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "not supported yet: cache files with keys and values of %u bits (layer "
                          "%u); 8 and 4 are", bits, layer);
    if (group != 32 && group != 64 && group != 128)
        return qn_err_set(err, QN_FORMAT,
                          "cache file, layer %u: groups of %u elements; must be 32, 64 or 128",
                          layer, group);
    qn_dtype scales = r->spec->layers[layer].k_codec.scales;
    *out = (qn_kv_codec){bits == 8 ? QN_KV_Q8 : QN_KV_Q4, group, scales};
    return QN_OK;
}

/* Copy positions of one part of quantized heads [1, H, S, row] into the image's [n, H, row]. */
static void read_codes(void *dst, const qn_stored *t, const qn_image_layer *x, size_t row)
{
    size_t heads = t->dims[1], stored = t->dims[2];
    for (uint32_t p = 0; p < x->n; p++) {
        size_t pos = qn_image_position(x, p);
        for (size_t h = 0; h < heads; h++)
            memcpy((char *)dst + (p * heads + h) * row, (const char *)t->data + (h * stored + pos) * row,
                   row);
    }
}

/* Keys ("L.0.*") or values ("L.1.*") of a quantized layer, heads of d elements. */
static qn_code read_coded_heads(const reader *r, uint32_t layer, uint32_t part, qn_kv_codec c,
                                uint32_t d, uint64_t *n_stored, const qn_kv_codes *to, qn_err *err)
{
    const qn_kv_layer *l = &r->spec->layers[layer];
    void *dst[] = {to->words, to->scales, to->biases};
    for (uint32_t i = 0; i < 3; i++) {
        char name[NAME_BYTES];
        const qn_stored *t;
        snprintf(name, sizeof name, "%u.%u.%u", layer, part, i);
        uint64_t dims[] = {1, l->n_kv_heads, *n_stored, i ? d / c.group : qn_kv_code_words(c, d)};
        qn_code rc = find_typed(r, name, i ? (int)c.scales : QN_U32, 4, dims, &t, err);
        if (rc) return rc;
        *n_stored = dims[2];
        qn_check(r->img->n_tokens <= dims[2]); /* read_length made sure */
        read_codes(dst[i], t, &r->img->layers[layer],
                   i ? qn_kv_scale_bytes(c, d) : qn_kv_code_words(c, d) * sizeof(uint32_t));
    }
    return QN_OK;
}

static bool same_codec(qn_kv_codec a, qn_kv_codec b)
{
    return a.form == b.form && a.group == b.group && a.scales == b.scales;
}

static qn_code read_quantized(reader *r, uint32_t layer, qn_err *err)
{
    const qn_kv_layer *l = &r->spec->layers[layer];
    const qn_image_layer *x = &r->img->layers[layer];
    qn_kv_codec c;
    uint64_t n = 0;
    qn_code rc = read_codec(r, layer, &c, err);
    if (rc) return rc;
    if (!same_codec(c, l->k_codec) || !same_codec(c, l->v_codec))
        return qn_err_set(err, QN_INVALID,
                          "cache file: layer %u is quantized to %u bits in groups of %u, this KV "
                          "cache is not", layer, qn_kv_form_bits(c.form), c.group);
    rc = read_coded_heads(r, layer, 0, c, l->d_k, &n, &x->k_codes, err);
    return rc ? rc : read_coded_heads(r, layer, 1, c, l->d_v, &n, &x->v_codes, err);
}

/* Most positions of a rotating cache, and how many of them are those at the start. */
static qn_code read_limit(const reader *r, uint32_t layer, uint32_t *max_size, uint32_t *keep,
                          qn_err *err)
{
    qn_code rc = read_number(r, layer, 3, 0, keep, err);
    return rc ? rc : read_number(r, layer, 4, 1, max_size, err);
}

/* The buffer of a rotating cache: in order of positions until it is full, then a ring behind the
 * positions that are kept. */
static qn_code read_rotating(reader *r, uint32_t layer, qn_err *err)
{
    uint32_t offset, keep, max_size, idx;
    char name[NAME_BYTES];
    const qn_stored *k;
    qn_code rc;
    if ((rc = read_number(r, layer, 2, 2, &offset, err)) ||
        (rc = read_limit(r, layer, &max_size, &keep, err)) ||
        (rc = read_number(r, layer, 5, 3, &idx, err)))
        return rc;
    snprintf(name, sizeof name, "%u.0", layer);
    uint64_t dims[4] = {1, 0, 0, 0};
    if ((rc = find_tensor(r, name, 4, dims, &k, err))) return rc;
    bool full = offset >= dims[2], turned = full && idx < dims[2];
    uint32_t rows = full ? (uint32_t)dims[2] : offset;
    if (offset <= dims[2]) keep = 0; /* nothing is left out yet */
    if (!dims[2] || idx > dims[2] || !offset || keep >= dims[2] || (turned && idx < keep))
        return qn_err_set(err, QN_FORMAT, "cache file, layer %u: an empty or broken ring", layer);
    if (r->img->layers[layer].keep > keep && offset > dims[2])
        return qn_err_set(err, QN_INVALID,
                          "cache file: layer %u has kept the first %u tokens, this KV cache needs %u",
                          layer, keep, r->img->layers[layer].keep);
    return read_kv(r, layer, (ring){keep, rows - keep, turned ? idx - keep : 0}, err);
}

static qn_code read_arrays(reader *r, uint32_t layer, qn_err *err)
{
    const qn_state_layer *s = &r->spec->layers[layer].state;
    const qn_stored *conv, *state;
    char conv_name[NAME_BYTES], state_name[NAME_BYTES];
    snprintf(conv_name, sizeof conv_name, "%u.0.0", layer);
    snprintf(state_name, sizeof state_name, "%u.0.1", layer);
    uint64_t conv_dims[3] = {1, s->conv_width, s->conv_channels};
    uint64_t state_dims[4] = {1, s->n_heads, s->d_v, s->d_k};
    qn_code rc = find_tensor(r, conv_name, 3, conv_dims, &conv, err);
    if (rc || (rc = find_tensor(r, state_name, 4, state_dims, &state, err))) return rc;
    qn_image_layer *x = &r->img->layers[layer];
    qn_widen(x->conv, conv->data, conv->dtype, (size_t)s->conv_width * s->conv_channels);
    qn_widen(x->s, state->data, state->dtype, (size_t)s->n_heads * s->d_v * s->d_k);
    return QN_OK;
}

/* A chunked cache has a row for each position from start_position on. */
static qn_code read_chunked(reader *r, uint32_t layer, qn_err *err)
{
    uint32_t start;
    qn_code rc = read_number(r, layer, 4, 0, &start, err);
    return rc ? rc : read_kv(r, layer, (ring){0, r->img->n_tokens - start, 0}, err);
}

/* The class of a layer's cache. */
static qn_code read_kind(const reader *r, uint32_t layer, cache_kind *out, qn_err *err)
{
    const char *name = meta_at(r, r->old ? "2" : "1", layer);
    if (!name) return missing(layer, "the class of its cache", err);
    for (int i = 0; i < N_KINDS; i++) {
        if (strcmp(name, class_names[i])) continue;
        *out = (cache_kind)i;
        const qn_kv_layer *l = &r->spec->layers[layer];
        const bool chunked = l->n_kv_heads && r->spec->groups[l->group].rule == QN_KV_CHUNKED;
        if ((i == ARRAYS_CACHE ? l->state.n_heads : l->n_kv_heads) > 0 && (i == CHUNKED_CACHE) == chunked)
            return QN_OK;
        return qn_err_set(err, QN_INVALID,
                          "cache file: layer %u has a %s; the file was made for another model",
                          layer, name);
    }
    return qn_err_set(err, QN_UNSUPPORTED, "not supported yet: cache files with a %.60s (layer %u)",
                      name, layer);
}

/* Of the first n tokens, how many positions a chunked cache holds: to the chunk's start at least. */
static qn_code read_held(const reader *r, uint32_t layer, uint32_t n, uint64_t *held, qn_err *err)
{
    const qn_kv_group *g = &r->spec->groups[r->spec->layers[layer].group];
    uint32_t chunk, start;
    if (r->old)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "not supported yet: cache files with a ChunkedKVCache (layer %u) of mlx-lm "
                          "before 0.32", layer);
    qn_code rc = read_number(r, layer, 3, 0, &chunk, err);
    if (rc || (rc = read_number(r, layer, 4, 0, &start, err))) return rc;
    if (chunk != g->window || start > qn_kv_first_seen(g, n))
        return qn_err_set(err, QN_INVALID,
                          "cache file: layer %u has chunks of %u positions and holds those from %u of %u; this "
                          "model's are %u", layer, chunk, start, n, g->window);
    *held = n - start;
    return QN_OK;
}

/* Tokens in the layer's cache, no more than it can hold; 0: this kind does not say. */
static qn_code read_length(const reader *r, uint32_t layer, cache_kind kind, uint32_t *n,
                           qn_err *err)
{
    *n = 0;
    if (kind == ARRAYS_CACHE) return QN_OK;
    bool coded = kind == QUANTIZED_CACHE;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, coded ? "%u.0.0" : "%u.0", layer);
    const qn_stored *k;
    uint64_t dims[4] = {1, 0, 0, 0};
    qn_code rc = find_typed(r, name, coded ? QN_U32 : ANY_FLOAT, 4, dims, &k, err);
    if (rc) return rc;
    if (dims[2] > QN_MAX_CACHE_TOKENS)
        return qn_err_set(err, QN_LIMIT, "cache file: more than %d tokens", QN_MAX_CACHE_TOKENS);
    if (kind == KV_CACHE && r->old) *n = (uint32_t)dims[2];
    else if ((rc = read_number(r, layer, 2, coded ? 0 : 2, n, err))) return rc;
    const qn_kv_group *g = &r->spec->groups[r->spec->layers[layer].group];
    uint64_t seen = (uint64_t)g->keep + g->window, need = *n;
    /* Only rotating and chunked caches may have let go of some. */
    if (kind == ROTATING_CACHE && g->rule == QN_KV_SLIDING && need > seen) need = seen;
    if (kind == CHUNKED_CACHE && (rc = read_held(r, layer, *n, &need, err))) return rc;
    if (need <= dims[2]) return QN_OK;
    return qn_err_set(err, QN_INVALID, "cache file: layer %u holds %llu positions, %llu are needed",
                      layer, (unsigned long long)dims[2], (unsigned long long)need);
}

/* One kind for every layer of the model, and the number of tokens on which they must agree. */
static qn_code read_outline(const reader *r, cache_kind *kinds, uint32_t *n_tokens, qn_err *err)
{
    *n_tokens = 0;
    for (uint32_t i = 0; i < r->spec->n_layers; i++) {
        uint32_t n;
        qn_code rc = read_kind(r, i, &kinds[i], err);
        if (rc || (rc = read_length(r, i, kinds[i], &n, err))) return rc;
        if (!*n_tokens) *n_tokens = n;
        if (kinds[i] != ARRAYS_CACHE && (!n || n != *n_tokens))
            return qn_err_set(err, QN_FORMAT, "cache file: layer %u holds %u tokens, others %u", i,
                              n, *n_tokens);
    }
    if (meta_at(r, r->old ? "2" : "1", r->spec->n_layers))
        return qn_err_set(err, QN_INVALID,
                          "cache file: more than the %u layers of this model; the file was made "
                          "for another one",
                          r->spec->n_layers);
    if (*n_tokens) return QN_OK;
    return qn_err_set(err, QN_UNSUPPORTED,
                      "not supported yet: cache files of models without attention layers, which do "
                      "not say how many tokens they hold");
}

static reader reader_of(const qn_shard *file, const qn_kv_spec *spec)
{
    return (reader){.file = file, .spec = spec, .old = !qn_shard_meta(file, "1.0")};
}

qn_code qn_mlx_cache_read_codecs(const qn_shard *file, const qn_kv_spec *spec, qn_kv_codec *codecs,
                                 bool *coded, qn_err *err)
{
    reader r = reader_of(file, spec);
    *coded = false;
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        qn_dtype t = spec->layers[i].k_codec.scales;
        codecs[i] = (qn_kv_codec){t == QN_F16 ? QN_KV_F16 : t == QN_BF16 ? QN_KV_BF16 : QN_KV_F32, 0, t};
        cache_kind kind = KV_CACHE;
        qn_code rc = read_kind(&r, i, &kind, err);
        if (!rc && kind == QUANTIZED_CACHE) rc = read_codec(&r, i, &codecs[i], err);
        if (rc) return rc;
        if (kind == QUANTIZED_CACHE) *coded = true;
    }
    return QN_OK;
}

qn_code qn_mlx_cache_read_limit(const qn_shard *file, const qn_kv_spec *spec, uint32_t *max_size,
                                uint32_t *keep, qn_err *err)
{
    reader r = reader_of(file, spec);
    bool any = false;
    *max_size = *keep = 0;
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        const qn_kv_layer *l = &spec->layers[i];
        if (!l->n_kv_heads || spec->groups[l->group].rule != QN_KV_FULL) continue;
        cache_kind kind = KV_CACHE;
        uint32_t n = 0, n_kept = 0;
        qn_code rc = read_kind(&r, i, &kind, err);
        if (!rc && kind == ROTATING_CACHE) rc = read_limit(&r, i, &n, &n_kept, err);
        if (rc) return rc;
        if (any && (n != *max_size || n_kept != *keep))
            return qn_err_set(err, QN_UNSUPPORTED,
                              "not supported yet: cache files whose layers are limited differently "
                              "(layer %u to %u positions, others to %u)", i, n, *max_size);
        *max_size = n, *keep = n_kept, any = true;
    }
    return QN_OK;
}

static qn_code read_layer(reader *r, uint32_t layer, cache_kind kind, qn_err *err)
{
    const qn_image_layer *x = &r->img->layers[layer];
    if (kind == ARRAYS_CACHE) return read_arrays(r, layer, err);
    if (kind == QUANTIZED_CACHE) return read_quantized(r, layer, err);
    if (!x->k || !x->v) /* other layers of the file are quantized */
        return qn_err_set(err, QN_INVALID, "cache file: layer %u is not quantized, this KV cache is",
                          layer);
    if (kind == ROTATING_CACHE) return read_rotating(r, layer, err);
    if (kind == CHUNKED_CACHE) return read_chunked(r, layer, err);
    return read_kv(r, layer, (ring){0, r->img->n_tokens, 0}, err);
}

qn_code qn_mlx_cache_parse(const qn_shard *file, const qn_kv_spec *spec, qn_image **out,
                           qn_err *err)
{
    *out = NULL;
    reader r = reader_of(file, spec);
    cache_kind *kinds = calloc(spec->n_layers + 1u, sizeof *kinds);
    if (!kinds) return qn_err_set(err, QN_NOMEM, "cache file: out of memory");
    uint32_t n_tokens;
    bool coded = false;
    qn_code rc = read_outline(&r, kinds, &n_tokens, err);
    for (uint32_t i = 0; i < spec->n_layers; i++) coded |= kinds[i] == QUANTIZED_CACHE;
    if (!rc) rc = qn_image_new(&r.img, spec, n_tokens, coded, err);
    for (uint32_t i = 0; !rc && i < spec->n_layers; i++) rc = read_layer(&r, i, kinds[i], err);
    free(kinds);
    if (rc) qn_image_free(r.img);
    else *out = r.img;
    return rc;
}

qn_code qn_mlx_cache_path(char *out, size_t cap, const char *name, qn_err *err)
{
    static const char suffix[] = ".safetensors";
    size_t n = strlen(name), m = sizeof suffix - 1;
    bool has = n >= m && !strcmp(name + n - m, suffix);
    if (snprintf(out, cap, "%s%s", name, has ? "" : suffix) < (int)cap) return QN_OK;
    return qn_err_set(err, QN_LIMIT, "the path of the cache file is too long");
}

qn_code qn_mlx_cache_model(const char *path, qn_buf *model, qn_err *err)
{
    qn_shard *file;
    qn_code rc = qn_shard_open(&file, path, err);
    if (rc) return rc;
    const char *name = qn_shard_meta(file, "0.model");
    if (!name) name = qn_shard_meta(file, "1.model");
    if (name) qn_buf_puts(model, name);
    qn_shard_close(file);
    return model->failed ? qn_err_set(err, QN_NOMEM, "cache file: out of memory") : QN_OK;
}

qn_code qn_mlx_cache_codecs(const char *path, const qn_kv_spec *spec, qn_kv_codec *codecs,
                            bool *coded, qn_err *err)
{
    qn_shard *file;
    qn_code rc = qn_shard_open(&file, path, err);
    if (rc) return rc;
    rc = qn_mlx_cache_read_codecs(file, spec, codecs, coded, err);
    qn_shard_close(file);
    return rc;
}

qn_code qn_mlx_cache_limit(const char *path, const qn_kv_spec *spec, uint32_t *max_size,
                           uint32_t *keep, qn_err *err)
{
    qn_shard *file;
    qn_code rc = qn_shard_open(&file, path, err);
    if (rc) return rc;
    rc = qn_mlx_cache_read_limit(file, spec, max_size, keep, err);
    qn_shard_close(file);
    return rc;
}

qn_code qn_mlx_cache_read(const char *path, const qn_kv_spec *spec, qn_image **out, qn_err *err)
{
    *out = NULL;
    qn_shard *file;
    qn_code rc = qn_shard_open(&file, path, err);
    if (rc) return rc;
    rc = qn_mlx_cache_parse(file, spec, out, err);
    qn_shard_close(file);
    return rc;
}

/* ---- writing ---- */

typedef struct writer {
    FILE *f;
    const qn_image *img;
    const qn_kv_spec *spec;
    qn_dtype type;         /* of keys, values and convolution inputs */
    json_t *header, *meta; /* meta is in header */
    uint64_t at;           /* bytes planned */
    uint32_t n_scalars;
} writer;

static void put_meta(writer *w, const char *value, const char *fmt, uint32_t a, uint32_t b)
{
    char key[NAME_BYTES];
    snprintf(key, sizeof key, fmt, a, b);
    json_object_set_new(w->meta, key, json_string(value));
}

/* The next tensor in the file's order. */
static void plan(writer *w, const char *name, qn_dtype t, uint32_t rank, const uint64_t *dims)
{
    json_t *shape = json_array();
    uint64_t bytes = qn_dtype_size(t);
    for (uint32_t i = 0; i < rank; i++) {
        json_array_append_new(shape, json_integer((json_int_t)dims[i]));
        bytes *= dims[i];
    }
    json_object_set_new(w->header, name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", qn_dtype_name(t), "shape", shape,
                                  "data_offsets", (json_int_t)w->at, (json_int_t)(w->at + bytes)));
    w->at += bytes;
}

/* A number or None of a cache's state: a tensor, and its name in the list of those. */
static void plan_scalar(writer *w, uint32_t layer, uint32_t i, bool none)
{
    char name[NAME_BYTES];
    uint64_t empty = 0;
    snprintf(name, sizeof name, "%u.%u", layer, i);
    plan(w, name, none ? QN_F32 : QN_I32, none, &empty);
    w->n_scalars++;
    put_meta(w, name, "2.%u.%u", w->n_scalars, 0);
    put_meta(w, none ? "none" : "scalar", "2.%u.%u", w->n_scalars, 1);
}

static cache_kind kind_of(const writer *w, uint32_t layer)
{
    const qn_kv_layer *l = &w->spec->layers[layer];
    if (l->state.n_heads) return ARRAYS_CACHE;
    if (w->spec->groups[l->group].rule == QN_KV_SLIDING) return ROTATING_CACHE;
    if (w->spec->groups[l->group].rule == QN_KV_CHUNKED) return CHUNKED_CACHE;
    return w->img->layers[layer].k ? KV_CACHE : QUANTIZED_CACHE;
}

static void plan_coded_heads(writer *w, uint32_t layer, uint32_t part, uint32_t d)
{
    const qn_kv_layer *l = &w->spec->layers[layer];
    qn_kv_codec c = l->k_codec;
    uint64_t dims[] = {1, l->n_kv_heads, w->img->n_tokens, qn_kv_code_words(c, d)};
    for (uint32_t i = 0; i < 3; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%u.%u.%u", layer, part, i);
        if (i) dims[3] = d / c.group;
        plan(w, name, i ? c.scales : QN_U32, 4, dims);
    }
}

static void plan_quantized(writer *w, uint32_t i)
{
    plan_coded_heads(w, i, 0, w->spec->layers[i].d_k);
    plan_coded_heads(w, i, 1, w->spec->layers[i].d_v);
    put_meta(w, class_names[QUANTIZED_CACHE], "1.%u", i, 0);
    for (uint32_t c = 2; c < 5; c++) plan_scalar(w, i, c, false);
}

/* Beside keys and values: offset; of a rotating cache also keep, max_size and the next row to write, of
 * a chunked one chunk_size and start_position. */
static uint32_t n_numbers(cache_kind kind)
{
    return kind == ROTATING_CACHE ? 4 : kind == CHUNKED_CACHE ? 3 : 1;
}

static void plan_layer(writer *w, uint32_t i)
{
    if (kind_of(w, i) == QUANTIZED_CACHE) {
        plan_quantized(w, i);
        return;
    }
    const qn_kv_layer *l = &w->spec->layers[i];
    const qn_state_layer *s = &l->state;
    cache_kind kind = kind_of(w, i);
    bool arrays = kind == ARRAYS_CACHE;
    uint64_t n = w->img->layers[i].n;
    uint64_t conv[] = {1, s->conv_width, s->conv_channels}, k[] = {1, l->n_kv_heads, n, l->d_k},
             state[] = {1, s->n_heads, s->d_v, s->d_k}, v[] = {1, l->n_kv_heads, n, l->d_v};
    char a[NAME_BYTES], b[NAME_BYTES];
    snprintf(a, sizeof a, arrays ? "%u.0.0" : "%u.0", i);
    snprintf(b, sizeof b, arrays ? "%u.0.1" : "%u.1", i);
    plan(w, a, w->type, arrays ? 3 : 4, arrays ? conv : k);
    plan(w, b, arrays ? QN_F32 : w->type, 4, arrays ? state : v);
    put_meta(w, class_names[kind], "1.%u", i, 0);
    uint32_t first = arrays ? 1 : 2, end = arrays ? 3 : 2 + n_numbers(kind);
    for (uint32_t c = first; c < end; c++) plan_scalar(w, i, c, arrays);
}

/* n floats as the file's type. */
static void put_floats(writer *w, const float *x, qn_dtype t, size_t n)
{
    char chunk[4096];
    size_t size = qn_dtype_size(t), most = sizeof chunk / size;
    for (size_t i = 0; i < n; i += most) {
        size_t m = n - i < most ? n - i : most;
        qn_narrow(chunk, t, x + i, m);
        fwrite(chunk, size, m, w->f);
    }
}

static void put_rows(writer *w, const float *x, uint32_t n, uint32_t heads, uint32_t d)
{
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t p = 0; p < n; p++)
            put_floats(w, x + ((size_t)p * heads + h) * d, w->type, d);
    }
}

static void put_code_rows(writer *w, const void *x, uint32_t heads, size_t row)
{
    for (uint32_t h = 0; h < heads; h++) {
        for (size_t p = 0; p < w->img->n_tokens; p++)
            fwrite((const char *)x + (p * heads + h) * row, 1, row, w->f);
    }
}

static void put_coded_heads(writer *w, const qn_kv_layer *l, const qn_kv_codes *x, uint32_t d)
{
    qn_kv_codec c = l->k_codec;
    put_code_rows(w, x->words, l->n_kv_heads, qn_kv_code_words(c, d) * sizeof *x->words);
    put_code_rows(w, x->scales, l->n_kv_heads, qn_kv_scale_bytes(c, d));
    put_code_rows(w, x->biases, l->n_kv_heads, qn_kv_scale_bytes(c, d));
}

static void put_quantized(writer *w, uint32_t i)
{
    const qn_kv_layer *l = &w->spec->layers[i];
    const qn_image_layer *x = &w->img->layers[i];
    put_coded_heads(w, l, &x->k_codes, l->d_k);
    put_coded_heads(w, l, &x->v_codes, l->d_v);
    int32_t numbers[] = {(int32_t)w->img->n_tokens, (int32_t)l->k_codec.group,
                         (int32_t)qn_kv_form_bits(l->k_codec.form)};
    fwrite(numbers, sizeof *numbers, 3, w->f);
}

static void put_layer(writer *w, uint32_t i)
{
    if (kind_of(w, i) == QUANTIZED_CACHE) {
        put_quantized(w, i);
        return;
    }
    const qn_kv_layer *l = &w->spec->layers[i];
    const qn_state_layer *s = &l->state;
    const qn_image_layer *x = &w->img->layers[i];
    if (kind_of(w, i) == ARRAYS_CACHE) {
        put_floats(w, x->conv, w->type, (size_t)s->conv_width * s->conv_channels);
        put_floats(w, x->s, QN_F32, (size_t)s->n_heads * s->d_v * s->d_k);
        return;
    }
    put_rows(w, x->k, x->n, l->n_kv_heads, l->d_k);
    put_rows(w, x->v, x->n, l->n_kv_heads, l->d_v);
    const qn_kv_group *g = &w->spec->groups[l->group];
    const int32_t offset = (int32_t)w->img->n_tokens;
    const int32_t rotating[] = {offset, (int32_t)g->keep, (int32_t)(g->keep + g->window), (int32_t)x->n},
                  chunked[] = {offset, (int32_t)g->window, (int32_t)x->first};
    const cache_kind kind = kind_of(w, i);
    fwrite(kind == CHUNKED_CACHE ? chunked : rotating, sizeof *rotating, n_numbers(kind), w->f);
}

static qn_code put_all(writer *w, qn_err *err)
{
    char *text = json_dumps(w->header, JSON_COMPACT);
    if (!text) return qn_err_set(err, QN_NOMEM, "cache file: out of memory");
    size_t len = strlen(text), pad = (8 - len % 8) % 8;
    uint8_t le[8];
    for (int i = 0; i < 8; i++) le[i] = (uint8_t)((uint64_t)(len + pad) >> 8 * i);
    fwrite(le, 1, sizeof le, w->f);
    fwrite(text, 1, len, w->f);
    fwrite("        ", 1, pad, w->f);
    free(text);
    for (uint32_t i = 0; i < w->spec->n_layers; i++) put_layer(w, i);
    return QN_OK;
}

static qn_code check_layer(const qn_kv_spec *spec, uint32_t i, bool coded, qn_err *err)
{
    const qn_kv_layer *l = &spec->layers[i];
    if (!l->n_kv_heads && !l->state.n_heads)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "not supported yet: cache files of models whose layer %u keeps nothing", i);
    coded = coded && (qn_kv_quantized(l->k_codec) || qn_kv_quantized(l->v_codec));
    if (!l->n_kv_heads || !coded) return QN_OK;
    if (spec->groups[l->group].rule != QN_KV_FULL)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "not supported yet: cache files of quantized windows (layer %u); mlx_lm has "
                          "none, quantize no layers that have a window", i);
    if (same_codec(l->k_codec, l->v_codec)) return QN_OK;
    return qn_err_set(err, QN_UNSUPPORTED,
                      "not supported yet: cache files with keys and values quantized apart (layer "
                      "%u); mlx_lm has one number of bits for both", i);
}

qn_code qn_mlx_cache_check(const qn_kv_spec *spec, bool coded, qn_err *err)
{
    qn_code rc = QN_OK;
    for (uint32_t i = 0; !rc && i < spec->n_layers; i++) rc = check_layer(spec, i, coded, err);
    return rc;
}

static qn_code open_writer(writer *w, const char *model, const char *tokenizer_config, qn_err *err)
{
    qn_code rc = qn_mlx_cache_check(w->spec, w->img->coded, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < w->spec->n_layers; i++)
        if (w->spec->layers[i].n_kv_heads) w->type = w->spec->layers[i].k_codec.scales;
    w->header = json_object();
    w->meta = json_object();
    json_object_set_new(w->header, "__metadata__", w->meta);
    json_object_set_new(w->meta, "0.model", json_string(model));
    json_object_set_new(w->meta, "0.tokenizer_config", json_string(tokenizer_config));
    put_meta(w, "", "2.%u", 0, 0);
    for (uint32_t i = 0; i < w->spec->n_layers; i++) plan_layer(w, i);
    return QN_OK;
}

static qn_code write_to(writer *w, const char *tmp, const char *path, qn_err *err)
{
    w->f = fopen(tmp, "wb");
    if (!w->f) return qn_err_set(err, QN_IO, "cannot write %s: %m", tmp);
    qn_code rc = put_all(w, err);
    bool bad = ferror(w->f) || fflush(w->f) || fsync(fileno(w->f));
    if ((fclose(w->f) || bad) && !rc) rc = qn_err_set(err, QN_IO, "cannot write %s: %m", tmp);
    if (!rc && rename(tmp, path))
        rc = qn_err_set(err, QN_IO, "cannot rename %s to %s: %m", tmp, path);
    if (rc) unlink(tmp);
    return rc;
}

qn_code qn_mlx_cache_write(const char *path, const qn_image *img, const qn_kv_spec *spec,
                           const char *model, const char *tokenizer_config, qn_err *err)
{
    char tmp[PATH_MAX];
    if (snprintf(tmp, sizeof tmp, "%s.tmp-%ld", path, (long)getpid()) >= (int)sizeof tmp)
        return qn_err_set(err, QN_LIMIT, "the path of the cache file is too long");
    writer w = {.img = img, .spec = spec};
    qn_code rc = open_writer(&w, model, tokenizer_config, err);
    if (!rc) rc = write_to(&w, tmp, path, err);
    json_decref(w.header);
    return rc;
}
