/* synth.c - synthetic checkpoints from recipes. */
#include "synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "format/quant.h"
#include "format/shard.h"

enum { MAX_OUT = 4096, MAX_PATH = 240, MAX_NAME = MAX_PATH + 16 };

typedef struct piece { /* one output tensor: its plan and its bytes */
    char name[MAX_NAME];
    qn_plan_tensor plan;
    uint8_t *data;
    size_t bytes;
} piece;

typedef struct synth {
    piece *pieces;
    size_t n;
    uint64_t seed;
    const json_t *quant;
    qn_err *err;
} synth;

static uint64_t fnv1a64(const char *s)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001B3u;
    return h;
}

static float uniform24(uint64_t z)
{
    z *= 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)(z >> 40);
}

static void fill(float *v, size_t n, const char *name, uint64_t seed, float amp, float mean)
{
    uint64_t key = fnv1a64(name) ^ seed * 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < n; i++) {
        float u = uniform24(key + i + 1) * 0x1p-23f - 1.0f;
        v[i] = mean + amp * u;
    }
}

static piece *add(synth *s, const char *name, qn_dtype t, uint32_t rank, const uint64_t *dims)
{
    qn_check(s->n < MAX_OUT);
    piece *p = &s->pieces[s->n++];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->plan = (qn_plan_tensor){.name = p->name, .dtype = t, .rank = rank};
    p->bytes = qn_dtype_size(t);
    for (uint32_t i = 0; i < rank; i++) {
        p->plan.dims[i] = dims[i];
        p->bytes *= dims[i];
    }
    p->data = calloc(p->bytes ? p->bytes : 1, 1);
    qn_check(p->data);
    return p;
}

/* The spec of a module: the override for its path, else the top-level values. */
static qn_qspec spec_for(const synth *s, const char *path)
{
    const json_t *q = json_object_get(json_object_get(s->quant, "overrides"), path);
    if (!q) q = s->quant;
    qn_qspec spec = {QN_Q_AFFINE, (uint32_t)json_integer_value(json_object_get(q, "bits")),
                     (uint32_t)json_integer_value(json_object_get(q, "group_size"))};
    const char *mode = json_string_value(json_object_get(q, "mode"));
    if (mode) qn_check(qn_qmode_parse(mode, &spec.mode) == 0);
    return spec;
}

static void add_quantized(synth *s, const char *path, const float *v, qn_dtype t, uint32_t rank,
                          const uint64_t *dims)
{
    qn_qspec spec = spec_for(s, path);
    uint64_t d[QN_MAX_RANK], n_in = dims[rank - 1], rows = 1;
    for (uint32_t i = 0; i + 1 < rank; i++) rows *= d[i] = dims[i];
    char name[MAX_NAME];
    bool affine = spec.mode == QN_Q_AFFINE;
    qn_dtype st = affine ? t : QN_U8;
    size_t row_bytes = qn_qrow_bytes(&spec, (uint32_t)n_in), groups = n_in / spec.group_size;
    d[rank - 1] = row_bytes / 4;
    snprintf(name, sizeof name, "%.239s.weight", path);
    piece *w = add(s, name, QN_U32, rank, d);
    d[rank - 1] = groups;
    snprintf(name, sizeof name, "%.239s.scales", path);
    piece *sc = add(s, name, st, rank, d), *bi = NULL;
    snprintf(name, sizeof name, "%.239s.biases", path);
    if (affine) bi = add(s, name, st, rank, d);
    size_t step = groups * qn_dtype_size(st);
    for (uint64_t r = 0; r < rows; r++) {
        qn_quantize_row(&spec, t, v + r * n_in, (uint32_t)n_in, w->data + r * row_bytes,
                        sc->data + r * step, bi ? bi->data + r * step : NULL);
    }
}

static qn_code add_tensor(synth *s, const json_t *t)
{
    const char *name = json_string_value(json_object_get(t, "name"));
    const json_t *shape = json_object_get(t, "shape");
    qn_dtype dtype;
    if (!name || qn_dtype_parse(json_string_value(json_object_get(t, "dtype")), &dtype)) {
        return qn_err_set(s->err, QN_FORMAT,
                          "recipe: a tensor without a name or with an unknown dtype");
    }
    uint64_t dims[QN_MAX_RANK], n = 1;
    uint32_t rank = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < rank; i++)
        n *= dims[i] = (uint64_t)json_integer_value(json_array_get(shape, i));
    float *v = malloc((n ? n : 1) * sizeof *v);
    qn_check(v);
    fill(v, n, name, s->seed, (float)json_number_value(json_object_get(t, "amp")),
         (float)json_number_value(json_object_get(t, "mean")));
    if (json_is_true(json_object_get(t, "quantize"))) {
        for (uint64_t i = 0; i < n; i++) { /* quantization sees values of the checkpoint's dtype */
            uint8_t raw[4];
            qn_narrow(raw, dtype, &v[i], 1);
            qn_widen(&v[i], raw, dtype, 1);
        }
        char path[MAX_PATH];
        snprintf(path, sizeof path, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
        add_quantized(s, path, v, dtype, rank, dims);
    } else {
        qn_narrow(add(s, name, dtype, rank, dims)->data, dtype, v, n);
    }
    free(v);
    return QN_OK;
}

static qn_code write_tensors(synth *s, const char *dir)
{
    qn_plan_tensor *plan = malloc(s->n * sizeof *plan);
    qn_check(plan);
    for (size_t i = 0; i < s->n; i++) plan[i] = s->pieces[i].plan;
    qn_shard_writer *w;
    qn_code rc = qn_shard_writer_new(&w, dir, plan, s->n, 0, 0, s->err);
    if (!rc) {
        for (size_t i = 0; !rc && i < s->n; i++) {
            const piece *p = &s->pieces[qn_shard_writer_order(w, i)];
            rc = qn_shard_writer_put(w, p->data, p->bytes, s->err);
        }
        qn_code end = qn_shard_writer_close(w, rc ? NULL : s->err);
        if (!rc) rc = end;
    }
    free(plan);
    return rc;
}

static qn_code write_config(const synth *s, const json_t *recipe, const char *dir)
{
    json_t *config = json_deep_copy(json_object_get(recipe, "config"));
    if (s->quant) {
        json_t *q = json_pack("{s:O, s:O}", "group_size", json_object_get(s->quant, "group_size"),
                              "bits", json_object_get(s->quant, "bits"));
        const char *mode = json_string_value(json_object_get(s->quant, "mode"));
        json_object_set_new(q, "mode", json_string(mode ? mode : "affine"));
        json_object_update(q, json_object_get(s->quant, "overrides"));
        json_object_set_new(config, "quantization", q);
    }
    char *text = json_dumps(config, 0), path[4096];
    snprintf(path, sizeof path, "%s/config.json", dir);
    qn_code rc = qn_file_write(path, text, strlen(text), s->err);
    free(text);
    json_decref(config);
    return rc;
}

qn_code qn_synth_write(const json_t *recipe, const char *dir, qn_err *err)
{
    synth s = {.seed = (uint64_t)json_integer_value(json_object_get(recipe, "seed")),
               .quant = json_object_get(recipe, "quant"), .err = err};
    s.pieces = calloc(MAX_OUT, sizeof *s.pieces);
    qn_check(s.pieces);
    qn_code rc = QN_OK;
    size_t i;
    json_t *t;
    json_array_foreach(json_object_get(recipe, "tensors"), i, t) {
        if (!rc) rc = add_tensor(&s, t);
    }
    if (!rc) rc = write_tensors(&s, dir);
    if (!rc) rc = write_config(&s, recipe, dir);
    for (size_t k = 0; k < s.n; k++) free(s.pieces[k].data);
    free(s.pieces);
    return rc;
}

/* ---- opened ---- */

static void close_parts(qn_synth_model *m)
{
    if (m->model) qn_model_close(m->model);
    if (m->dev) m->dev->ops->close(m->dev);
    if (m->folder) qn_folder_close(m->folder);
}

qn_code qn_synth_open(qn_synth_model *m, const json_t *recipe, const qn_device_opts *device,
                      qn_err *err)
{
    *m = (qn_synth_model){.dir = "/tmp/quern-synth-XXXXXX"};
    if (!mkdtemp(m->dir)) return qn_err_set(err, QN_IO, "no folder for a synthetic model");
    qn_code rc = qn_synth_write(recipe, m->dir, err);
    if (!rc) rc = qn_folder_open(&m->folder, m->dir, false, err);
    if (!rc) rc = qn_device_open(&m->dev, device, err);
    if (!rc) rc = qn_model_open(&m->model, m->folder, m->dev, &(qn_model_opts){0}, err);
    if (rc) close_parts(m);
    return rc;
}

qn_code qn_synth_close(qn_synth_model *m, qn_err *err)
{
    close_parts(m);
    return qn_remove_tree(m->dir, err);
}
