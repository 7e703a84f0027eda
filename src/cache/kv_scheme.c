/* kv_scheme.c - see kv_scheme.h. */
#include "cache/kv_scheme.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/mlx_cache.h"
#include "core/file.h"

enum { MAX_HEAD = 1024 };

/* ---- words ---- */

static bool bits_of(const char *text, size_t n, uint32_t *bits)
{
    static const struct { const char *text; uint32_t bits; } known[] = {{"8", 8}, {"4", 4}, {"16", 0}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].text) != n || memcmp(known[i].text, text, n)) continue;
        *bits = known[i].bits;
        return true;
    }
    return false;
}

qn_code qn_kv_scheme_parse(qn_kv_scheme *s, const char *text, qn_err *err)
{
    s->config = false;
    s->k_bits = s->v_bits = 0;
    if (!strcmp(text, "off")) return QN_OK;
    if (!strcmp(text, "config")) return s->config = true, QN_OK;
    if (!strncmp(text, "turbo", 5))
        return qn_err_set(err, QN_UNSUPPORTED, "not supported yet: KV scheme \"%.40s\"", text);
    if (bits_of(text, strlen(text), &s->k_bits)) {
        s->v_bits = s->k_bits;
        return QN_OK;
    }
    const char *v = strchr(text, 'v');
    if (text[0] == 'k' && v && bits_of(text + 1, (size_t)(v - text - 1), &s->k_bits) &&
        bits_of(v + 1, strlen(v + 1), &s->v_bits))
        return QN_OK;
    return qn_err_set(err, QN_INVALID,
                      "unknown KV scheme \"%.40s\"; choose off, config, 8, 4, or keys and values "
                      "apart as in k8v4", text);
}

/* ---- layers ---- */

/* The codec keeps its type of scales, which is the model's float type. */
static void set_codec(qn_kv_codec *c, uint32_t bits, uint32_t group)
{
    if (!bits) return;
    c->form = bits == 8 ? QN_KV_Q8 : QN_KV_Q4;
    c->group = group;
}

/* Positions of a block are the engine's to choose; heads and groups can be judged now. */
static qn_code check(const qn_kv_spec *kv, qn_err *err)
{
    qn_kv_spec probe = *kv;
    probe.block_tokens = QN_KV_SPLIT;
    return qn_kv_spec_check(&probe, MAX_HEAD, err);
}

/* ---- kv_config.json ---- */

/* A whole number of an entry; missing: dflt, unless that is -1. */
static qn_code entry_int(const json_t *entry, size_t i, const char *key, json_int_t dflt,
                         json_int_t *out, qn_err *err)
{
    const json_t *v = json_object_get(entry, key);
    *out = dflt;
    if (!v && dflt >= 0) return QN_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return qn_err_set(err, QN_FORMAT, "kv_config.json: entry %zu needs a whole number \"%s\"", i,
                          key);
    *out = json_integer_value(v);
    return QN_OK;
}

static qn_code apply_entry(const json_t *entry, size_t i, bool *seen, qn_kv_spec *kv, qn_err *err)
{
    json_int_t layer, bits, group;
    qn_code rc;
    if ((rc = entry_int(entry, i, "layer_idx", -1, &layer, err)) ||
        (rc = entry_int(entry, i, "bits", -1, &bits, err)) ||
        (rc = entry_int(entry, i, "group_size", QN_KV_GROUP, &group, err)))
        return rc;
    if (layer >= kv->n_layers)
        return qn_err_set(err, QN_FORMAT, "kv_config.json: layer_idx %lld, the model has %u layers",
                          (long long)layer, kv->n_layers);
    if (seen[layer])
        return qn_err_set(err, QN_FORMAT, "kv_config.json: layer_idx %lld is listed twice",
                          (long long)layer);
    seen[layer] = true;
    if (bits != 4 && bits != 8)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "kv_config.json: layer_idx %lld: not supported yet: %lld bits; 8 and 4 are",
                          (long long)layer, (long long)bits);
    if (group != 32 && group != 64 && group != 128)
        return qn_err_set(err, QN_FORMAT,
                          "kv_config.json: layer_idx %lld: group_size %lld, must be 32, 64 or 128",
                          (long long)layer, (long long)group);
    qn_kv_layer *l = &kv->layers[layer];
    set_codec(&l->k_codec, (uint32_t)bits, (uint32_t)group);
    set_codec(&l->v_codec, (uint32_t)bits, (uint32_t)group);
    return QN_OK;
}

qn_code qn_kv_config_apply(const char *text, size_t n, qn_kv_spec *kv, qn_err *err)
{
    json_error_t at;
    json_t *list = json_loadb(text, n, 0, &at), *entry;
    bool *seen = calloc(kv->n_layers + 1u, sizeof *seen);
    size_t i;
    qn_code rc = QN_OK;
    if (!seen) rc = qn_err_set(err, QN_NOMEM, "kv_config.json: out of memory");
    else if (!list)
        rc = qn_err_set(err, QN_FORMAT, "kv_config.json: line %d: %.150s", at.line, at.text);
    else if (!json_is_array(list))
        rc = qn_err_set(err, QN_FORMAT, "kv_config.json must be an array of objects");
    json_array_foreach(list, i, entry) {
        if (rc) break;
        rc = apply_entry(entry, i, seen, kv, err);
    }
    json_decref(list);
    free(seen);
    return rc ? rc : check(kv, err);
}

static qn_code read_config(const qn_kv_scheme *s, const char *dir, qn_kv_spec *kv, qn_err *err)
{
    char path[PATH_MAX], *text;
    size_t n;
    if (snprintf(path, sizeof path, "%s/kv_config.json", dir) >= (int)sizeof path)
        return qn_err_set(err, QN_LIMIT, "kv_config.json: the path is too long");
    if (!qn_is_file(path)) {
        if (!s->config_required) return QN_OK;
        return qn_err_set(err, QN_NOT_FOUND, "KV scheme config: there is no %s", path);
    }
    qn_code rc = qn_file_read(path, QN_KV_CONFIG_BYTES, &text, &n, err);
    if (rc) return rc;
    rc = qn_kv_config_apply(text, n, kv, err);
    free(text);
    return rc;
}

/* ---- cache files ---- */

/* Is the codec of a file's layer what was asked for? A group size that was not asked for is the
 * file's. */
static bool agrees(const qn_kv_scheme *s, qn_kv_codec asked, qn_kv_codec file)
{
    if (!qn_kv_quantized(file)) return !qn_kv_quantized(asked);
    if (s->config) return asked.form == file.form && asked.group == file.group;
    if (s->group && s->group != file.group) return false;
    return (!s->k_bits && !s->v_bits) || asked.form == file.form;
}

static qn_code take_codec(const qn_kv_scheme *s, uint32_t layer, qn_kv_codec file, qn_kv_codec *c,
                          qn_err *err)
{
    if (!agrees(s, *c, file) && qn_kv_quantized(file))
        return qn_err_set(err, QN_INVALID,
                          "the prompt cache file has keys and values of %u bits in groups of %u "
                          "(layer %u), the KV cache is asked for in another form; ask for the same, "
                          "or for none", qn_kv_form_bits(file.form), file.group, layer);
    if (!agrees(s, *c, file))
        return qn_err_set(err, QN_INVALID,
                          "the prompt cache file has quantized layers, but not layer %u, which is "
                          "asked for quantized; ask for no form of the KV cache", layer);
    *c = file;
    return QN_OK;
}

/* A file without quantized layers may be gone on from with any scheme. */
/* Limit the layers that attend to everything to max_size positions, the first `keep` ones among them. */
static qn_code limit(qn_kv_spec *kv, uint32_t max_size, uint32_t keep, qn_err *err)
{
    if (keep > QN_KV_SPLIT)
        return qn_err_set(err, QN_UNSUPPORTED,
                          "a KV cache that keeps the first %u positions; at most %d are supported",
                          keep, QN_KV_SPLIT);
    if (max_size <= keep)
        return qn_err_set(err, QN_INVALID,
                          "a KV cache of at most %u positions: must be %u or more, since the first %u "
                          "stay", max_size, keep + 1, keep);
    for (uint32_t g = 0; g < kv->n_groups; g++) {
        if (kv->groups[g].rule == QN_KV_FULL)
            kv->groups[g] = (qn_kv_group){QN_KV_SLIDING, max_size - keep, keep};
    }
    return QN_OK;
}

/* The limit that was asked for, or the cache file's, which must not be another one. */
static qn_code apply_limit(const qn_kv_scheme *s, qn_kv_spec *kv, qn_err *err)
{
    uint32_t max_size = s->max_size, keep = QN_KV_KEEP, n = 0, n_kept = 0;
    if (s->cache_file) {
        qn_code rc = qn_mlx_cache_limit(s->cache_file, kv, &n, &n_kept, err);
        if (rc) return rc;
    }
    if (n && max_size && n != max_size)
        return qn_err_set(err, QN_INVALID,
                          "the cache file is limited to %u positions, --max-kv-size says %u: leave it "
                          "away or give the file's", n, max_size);
    if (n) max_size = n, keep = n_kept;
    return max_size ? limit(kv, max_size, keep, err) : QN_OK;
}

static qn_code take_file(const qn_kv_scheme *s, qn_kv_spec *kv, qn_err *err)
{
    qn_kv_codec *codecs = calloc(kv->n_layers + 1u, sizeof *codecs);
    if (!codecs) return qn_err_set(err, QN_NOMEM, "KV scheme: out of memory");
    bool coded;
    qn_code rc = qn_mlx_cache_codecs(s->cache_file, kv, codecs, &coded, err);
    for (uint32_t i = 0; !rc && coded && i < kv->n_layers; i++) {
        qn_kv_layer *l = &kv->layers[i];
        if (!l->n_kv_heads) continue;
        rc = take_codec(s, i, codecs[i], &l->k_codec, err);
        if (!rc) rc = take_codec(s, i, codecs[i], &l->v_codec, err);
    }
    if (!rc && coded) kv->quantized_start = 0;
    free(codecs);
    return rc;
}

static qn_code apply_asked(const qn_kv_scheme *s, const char *dir, qn_kv_spec *kv, qn_err *err)
{
    if (s->config) return read_config(s, dir, kv, err);
    uint32_t group = s->group ? s->group : QN_KV_GROUP;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        set_codec(&kv->layers[i].k_codec, s->k_bits, group);
        set_codec(&kv->layers[i].v_codec, s->v_bits, group);
    }
    return QN_OK;
}

qn_code qn_kv_scheme_apply(const qn_kv_scheme *s, const char *dir, qn_kv_spec *kv, qn_err *err)
{
    kv->quantized_start = s->start;
    qn_code rc = apply_asked(s, dir, kv, err);
    if (!rc && s->cache_file) rc = take_file(s, kv, err);
    if (!rc) rc = apply_limit(s, kv, err);
    return rc ? rc : check(kv, err);
}
