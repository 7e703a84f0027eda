/* folder.c - opening a model folder and deciding how each of its modules is quantized. Binding
 * tensors to shapes is in folder_matrix.c.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "format/folder_private.h"

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* Python writes infinite numbers as the bare word Infinity, which is not JSON; state-space models
 * have one in time_step_limit. 1e308 takes its place: as a float it is infinite. */
static void replace_infinity(char *text)
{
    static const char word[] = "Infinity", number[] = "1e308   ";
    _Static_assert(sizeof word == sizeof number, "replaced in place");
    bool in_string = false;
    for (char *p = text; *p; p++) {
        if (in_string && *p == '\\' && p[1]) p++;
        else if (*p == '"') in_string = !in_string;
        else if (!in_string && !strncmp(p, word, sizeof word - 1)) {
            memcpy(p, number, sizeof word - 1);
        }
    }
}

/* Reads DIR/NAME as a JSON object. */
static qn_code read_object(const char *dir, const char *name, json_t **out, qn_err *err)
{
    *out = NULL;
    char path[PATH_MAX], *text;
    size_t size;
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || n >= PATH_MAX) return qn_err_set(err, QN_LIMIT, "path too long: %s/%s", dir, name);
    qn_code rc = qn_file_read(path, MAX_CONFIG_BYTES, &text, &size, err);
    if (rc) return rc;
    replace_infinity(text);
    json_error_t why;
    json_t *v = json_loadb(text, size, 0, &why);
    free(text);
    if (!v) {
        return qn_err_set(err, QN_FORMAT, "%s: not valid JSON: line %d: %s", path, why.line,
                          why.text);
    }
    if (!json_is_object(v)) {
        json_decref(v);
        return qn_err_set(err, QN_FORMAT, "%s: must be a JSON object", path);
    }
    *out = v;
    return QN_OK;
}

/* ---- the quantization block ---- */

static qn_code read_spec(const json_t *block, qn_qmode dflt, qn_qspec *out, qn_err *err)
{
    const char *mode;
    qn_code rc = qn_cfg_str_or(block, "mode", qn_qmode_name(dflt), &mode, err);
    if (rc) return rc;
    qn_qmode m;
    if (qn_qmode_parse(mode, &m)) {
        return qn_err_set(
            err, QN_UNSUPPORTED,
            "quantization mode \"%.40s\" is unknown; affine, mxfp4, mxfp8 and nvfp4 are known",
            mode);
    }
    *out = qn_qspec_default(m);
    if ((rc = qn_cfg_u32_or(block, "bits", out->bits, 64, &out->bits, err))) return rc;
    rc = qn_cfg_u32_or(block, "group_size", out->group_size, 1 << 20, &out->group_size, err);
    if (rc) return rc;
    return qn_qspec_check(out, 0, err);
}

/* A quantization_config of another tool. The methods taken here are plain metadata: the tensors
 * are already in MLX's layout once the family has renamed them. */
static qn_code read_foreign(qn_folder *f, const json_t *block, const char *method, bool config_only,
                            qn_err *err)
{
    const char *format;
    qn_code rc = qn_cfg_str_or(block, "format", "", &format, err);
    if (rc) return rc;
    if (!strcmp(method, "mxfp4")) {
        f->top = qn_qspec_default(QN_Q_MXFP4);
    } else if (!strcmp(method, "compressed-tensors")) {
        bool nvfp4 = !strcmp(format, "nvfp4-pack-quantized");
        f->top = nvfp4 ? qn_qspec_default(QN_Q_NVFP4) : (qn_qspec){QN_Q_AFFINE, 4, 32};
    } else if (!config_only) {
        return qn_err_set(err, QN_UNSUPPORTED,
                          "not supported yet: weights quantized with \"%.40s\" "
                          "(quantization_config); use a folder "
                          "in MLX's format or one that is not quantized",
                          method);
    }
    return QN_OK;
}

/* The block "quantization" wins; else "quantization_config", on top or in text_config. One without
 * quant_method is a copy of MLX's own block. */
static qn_code read_quantization(qn_folder *f, bool config_only, qn_err *err)
{
    const json_t *block = json_object_get(f->config, "quantization");
    const char *name = "quantization", *method = NULL;
    if (!block || json_is_null(block)) {
        name = "quantization_config";
        block = json_object_get(f->config, name);
        if (!block) block = json_object_get(json_object_get(f->config, "text_config"), name);
        if (!block || json_is_null(block)) return QN_OK;
    }
    if (!json_is_object(block)) {
        return qn_err_set(err, QN_FORMAT, "config.json: \"%s\" must be an object", name);
    }
    if (!strcmp(name, "quantization_config")) {
        method = json_string_value(json_object_get(block, "quant_method"));
    }
    if (method) return read_foreign(f, block, method, config_only, err);
    f->overrides = block;
    qn_code rc = read_spec(block, QN_Q_AFFINE, &f->top, err);
    if (rc) qn_err_prefix(err, "%s", name);
    return rc;
}

static bool has_part(const qn_folder *f, const char *path, const char *part)
{
    char name[QN_MAX_TENSOR_NAME];
    int n = snprintf(name, sizeof name, "%s.%s", path, part);
    return n > 0 && (size_t)n < sizeof name && qn_folder_has(f, name);
}

qn_code qn_folder_qspec(const qn_folder *f, const char *path, qn_qspec *out, qn_err *err)
{
    static const qn_qspec dense = {QN_Q_NONE, 0, 0};
    const json_t *entry = json_object_get(f->overrides, path);
    *out = dense;
    if (json_is_false(entry)) return QN_OK;
    if (json_is_true(entry)) {
        *out = f->top;
        return QN_OK;
    }
    if (json_is_object(entry)) {
        bool affine = !f->shards || has_part(f, path, "biases");
        qn_code rc = read_spec(entry, affine ? QN_Q_AFFINE : f->top.mode, out, err);
        if (rc) qn_err_prefix(err, "quantization of \"%s\"", path);
        return rc;
    }
    if (entry) {
        return qn_err_set(err, QN_FORMAT,
                          "config.json: quantization of \"%s\" must be an object, true or false",
                          path);
    }
    if (f->shards && !has_part(f, path, "scales")) return QN_OK;
    if (f->shards && f->top.mode == QN_Q_NONE) {
        return qn_err_set(err, QN_FORMAT,
                          "tensor \"%s.scales\" exists, but config.json has no quantization block "
                          "that says how \"%s\" is quantized",
                          path, path);
    }
    *out = f->top;
    return QN_OK;
}

/* ---- opening ---- */

/* A malformed generation_config.json is ignored, as mlx-lm does. */
static void read_generation(qn_folder *f)
{
    if (read_object(f->dir, "generation_config.json", &f->generation, NULL)) return;
    json_t *eos = json_object_get(f->generation, "eos_token_id");
    bool truthy = (json_is_integer(eos) && json_integer_value(eos)) || json_array_size(eos);
    if (truthy) json_object_set(f->config, "eos_token_id", eos);
}

static qn_code read_config(qn_folder *f, bool config_only, qn_err *err)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/config.json", f->dir);
    if (n < 0 || n >= PATH_MAX || !qn_is_file(path)) {
        return qn_err_set(err, QN_NOT_FOUND, "not a model folder: %s (no config.json)", f->dir);
    }
    qn_code rc = read_object(f->dir, "config.json", &f->config, err);
    if (rc) return rc;
    const json_t *code = json_object_get(f->config, "model_file");
    if (code && !json_is_null(code)) {
        return qn_err_set(err, QN_UNSUPPORTED,
                          "%s: config.json asks to run its own Python code (model_file); Quern "
                          "runs no code from model folders",
                          f->dir);
    }
    read_generation(f);
    rc = read_quantization(f, config_only, err);
    if (rc) qn_err_prefix(err, "%s", f->dir);
    return rc;
}

qn_code qn_folder_open(qn_folder **out, const char *dir, bool config_only, qn_err *err)
{
    *out = NULL;
    qn_folder *f = calloc(1, sizeof *f);
    if (f) f->dir = strdup(dir);
    if (!f || !f->dir) {
        free(f);
        return qn_err_set(err, QN_NOMEM, "%s: out of memory", dir);
    }
    qn_code rc = read_config(f, config_only, err);
    if (!rc && !config_only) {
        rc = qn_shards_open(&f->shards, dir, err);
        if (!rc) f->touched = calloc(qn_shards_count(f->shards) + 1, sizeof *f->touched);
        if (!rc && !f->touched) rc = qn_err_set(err, QN_NOMEM, "%s: out of memory", dir);
    }
    if (rc) qn_folder_close(f);
    else *out = f;
    return rc;
}

void qn_folder_close(qn_folder *f)
{
    if (!f) return;
    json_decref(f->config);
    json_decref(f->generation);
    qn_shards_close(f->shards);
    free(f->touched);
    free(f->dir);
    free(f);
}

const char *qn_folder_dir(const qn_folder *f)
{
    return f->dir;
}

const json_t *qn_folder_config(const qn_folder *f)
{
    return f->config;
}

const json_t *qn_folder_generation(const qn_folder *f)
{
    return f->generation;
}

const qn_shards *qn_folder_shards(const qn_folder *f)
{
    return f->shards;
}

static size_t add_id(const json_t *v, uint32_t *ids, size_t cap, size_t n)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX) {
        return n;
    }
    if (n < cap) ids[n] = (uint32_t)json_integer_value(v);
    return n + 1;
}

size_t qn_folder_eos(const qn_folder *f, uint32_t *ids, size_t cap)
{
    const json_t *eos = json_object_get(f->config, "eos_token_id");
    if (!json_is_array(eos)) return add_id(eos, ids, cap, 0);
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(eos); i++) {
        n = add_id(json_array_get(eos, i), ids, cap, n);
    }
    return n;
}
