/* folder_import.c - a model folder with safetensors as items of a job (quantize-eval A3 to A5).
 *
 * Families whose raw tensors already have MLX's names and layouts pass as they are, after the steps
 * that the llama-like families share: rotary inv_freq and a tied lm_head are dropped, experts that
 * come one by one are stacked, llama4's are turned, and the matrix that latent attention has for all heads is
 * split. A
 * family that needs more is refused; one that is not known is copied by name, with a note.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "tune/job.h"
#include "tune/plan.h"

static const char kv_b[] = ".kv_b_proj.weight";

enum { MAX_CONFIG = 1 << 26, MAX_EXPERTS = 1 << 14, MAX_LAYERS = 1 << 14, MAX_HEADS = 1 << 12 };

typedef struct source { /* what the import needs beside the job */
    qn_job *job;
    const qn_shards *shards;
    json_t *raw;      /* config.json as it is */
    bool has_cast;    /* floats are cast to `cast` */
    qn_dtype cast;
    bool tied;
    uint32_t n_layers;
} source;

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && !strcmp(s + n - m, tail);
}

/* ---- config ---- */

static qn_code read_config(source *s, const char *dir, qn_err *err)
{
    char *path = NULL, *text = NULL;
    size_t size;
    json_error_t at;
    if (asprintf(&path, "%s/config.json", dir) < 0)
        return qn_err_set(err, QN_NOMEM, "config.json: out of memory");
    qn_code rc = qn_file_read(path, MAX_CONFIG, &text, &size, err);
    if (!rc) {
        s->raw = json_loadb(text, size, 0, &at);
        if (!json_is_object(s->raw))
            rc = qn_err_set(err, QN_FORMAT, "%s is not a JSON object: line %d: %s", path, at.line,
                            at.text);
    }
    free(path);
    free(text);
    return rc;
}

/* A key of the top level, else of text_config. */
static const json_t *text_key(const source *s, const char *key)
{
    const json_t *v = json_object_get(s->raw, key);
    if (v && !json_is_null(v)) return v;
    return json_object_get(json_object_get(s->raw, "text_config"), key);
}

static void read_cast(source *s)
{
    const char *want = s->job->opts->dtype;
    const char *const keys[] = {"torch_dtype", "dtype"};
    for (size_t i = 0; !want && i < sizeof keys / sizeof *keys; i++)
        want = json_string_value(text_key(s, keys[i]));
    s->has_cast = want && !qn_dtype_parse(want, &s->cast) && qn_dtype_config_name(s->cast);
}

/* mlx-lm's llama and qwen2 tie when the key is missing; other families name it. */
static bool is_tied(const source *s)
{
    const json_t *v = text_key(s, "tie_word_embeddings");
    if (v) return json_is_true(v);
    const char *const ties[] = {"llama", "mistral", "iquestcoder", "qwen2", "gemma", "gemma2"};
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++)
        if (!strcmp(s->job->model_type, ties[i])) return true;
    return false;
}

static qn_code check_foreign(const source *s, qn_err *err)
{
    if (json_object_get(s->raw, "quantization")) return QN_OK;
    const char *method = json_string_value(
        json_object_get(text_key(s, "quantization_config"), "quant_method"));
    if (!method) return QN_OK;
    return qn_err_set(err, QN_UNSUPPORTED, "a checkpoint with quant_method \"%s\" is not supported "
                      "yet as a source; use an unquantized or an MLX one", method);
}

/* Latent attention as mlx-lm's deepseek_v3 has it. */
static bool has_latents(const source *s)
{
    static const char *const types[] = {"deepseek_v3", "kimi_k2", "joyai_llm_flash", "glm4_moe_lite"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(s->job->model_type, types[i])) return true;
    return false;
}

static bool is_llama4(const source *s) { return !strcmp(s->job->model_type, "llama4"); }

/* Families whose raw checkpoints need more than renaming nothing. */
static qn_code check_family(const source *s, qn_err *err)
{
    static const char *const plain[] = {
        "llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mixtral", "gemma",
        "gemma2", "gemma3_text", "phi3", "olmo2", "olmo3", "cohere", "cohere2", "granite",
        "starcoder2", "smollm3", "helium", "seed_oss", "ernie4_5", "internlm3", "mimo", "exaone4",
        "olmoe",
        "glm", "glm4", "stablelm", "phi", "iquestcoder", "deepseek_v2"};
    const char *type = s->job->model_type;
    if (qn_shards_find(s->shards, "model.language_model.embed_tokens.weight"))
        return qn_err_set(err, QN_UNSUPPORTED, "converting a raw %s checkpoint (tensors under "
                          "model.language_model) is not supported yet; an MLX one is", type);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!strcmp(type, plain[i])) return QN_OK;
    if (has_latents(s) || is_llama4(s) || !strcmp(type, "glm4_moe")) return QN_OK;
    qn_job_note(s->job, "quern does not know what a %s checkpoint needs: tensors keep their names "
                "and layouts", type);
    return QN_OK;
}

static qn_code read_layers(source *s, qn_err *err)
{
    const json_t *v = text_key(s, "num_hidden_layers");
    if (!v) v = text_key(s, "n_layer");
    json_int_t n = json_integer_value(v);
    if (v && (n < 1 || n > MAX_LAYERS))
        return qn_err_set(err, QN_FORMAT, "config.json: num_hidden_layers must be 1 to %d",
                          MAX_LAYERS);
    s->n_layers = (uint32_t)n;
    return QN_OK;
}

static void set_out_config(source *s)
{
    const qn_convert_opts *o = s->job->opts;
    s->job->config = json_deep_copy(s->raw);
    json_t *c = s->job->config;
    if (o->quantize || o->dequantize) {
        json_object_del(c, "quantization");
        json_object_del(c, "quantization_config");
    }
    if (!o->dtype) return;
    const char *const keys[] = {"torch_dtype", "dtype"};
    json_t *levels[] = {c, json_object_get(c, "text_config")};
    for (size_t i = 0; i < 4; i++)
        if (json_object_get(levels[i / 2], keys[i % 2]))
            json_object_set_new(levels[i / 2], keys[i % 2],
                                json_string(qn_dtype_config_name(s->cast)));
}

/* ---- tensors ---- */

/* Tensors that keep their type whatever the cast (A5). */
static bool is_exempt(const char *model_type, const char *name)
{
    if (ends_with(name, "e_score_correction_bias") || ends_with(name, ".expert_bias")) return true;
    if (ends_with(name, ".router_bias") && !strcmp(model_type, "step3p5")) return true;
    bool has_decay = !strncmp(model_type, "qwen3_5", 7) || !strcmp(model_type, "nemotron_h") ||
                     !strncmp(model_type, "kimi", 4);
    if (ends_with(name, ".A_log") && has_decay) return true;
    return ends_with(name, ".dt_bias") && !strncmp(model_type, "kimi", 4);
}

static bool is_float(qn_dtype t) { return t == QN_F32 || t == QN_F16 || t == QN_BF16; }

/* A layer past the last one, which predicts more tokens ahead. */
static bool is_later_layer(const source *s, const char *name)
{
    static const char layers[] = "model.layers.";
    if (!has_latents(s) && strcmp(s->job->model_type, "glm4_moe")) return false;
    if (strncmp(name, layers, sizeof layers - 1)) return false;
    const char *number = name + sizeof layers - 1;
    return isdigit((unsigned char)*number) && strtoul(number, NULL, 10) >= s->n_layers;
}

static bool is_dropped(const source *s, const char *name)
{
    if (is_later_layer(s, name)) return true;
    if (strstr(name, "rotary_emb.inv_freq")) return true;
    if (is_llama4(s) && (strstr(name, "vision_model") || strstr(name, "multi_modal_projector"))) return true;
    return s->tied && !strncmp(name, "lm_head.", 8);
}

/* "P.experts.7.gate_proj.weight": the parts, or false. Mixtral's w1, w2, w3 are gate, down, up. */
typedef struct expert_name { int prefix; unsigned expert; const char *proj; } expert_name;

static bool parse_expert(const char *name, expert_name *e)
{
    static const char *const projs[][2] = {
        {"gate_proj.weight", "gate_proj"}, {"up_proj.weight", "up_proj"},
        {"down_proj.weight", "down_proj"}, {"w1.weight", "gate_proj"},
        {"w3.weight", "up_proj"}, {"w2.weight", "down_proj"}};
    const char *at = strstr(name, ".experts.");
    if (!at) return false;
    const char *number = at + strlen(".experts.");
    size_t digits = strspn(number, "0123456789");
    if (!digits || digits > 5 || number[digits] != '.') return false;
    for (size_t i = 0; i < sizeof projs / sizeof *projs; i++) {
        if (strcmp(number + digits + 1, projs[i][0])) continue;
        *e = (expert_name){(int)(at - name), (unsigned)atoi(number), projs[i][1]};
        return true;
    }
    return false;
}

static void set_shape(qn_item *it, const qn_stored *t)
{
    it->rank = t->rank;
    memcpy(it->dims, t->dims, sizeof it->dims);
    it->rows.n_rows = qn_item_rows(it);
    it->rows.n_in = t->rank ? (size_t)t->dims[t->rank - 1] : 1;
}

/* A stack is put together when its expert 0 is met; the others are skipped when met. */
static qn_code add_stack(source *s, const qn_stored *t, const expert_name *e, qn_err *err)
{
    if (e->expert != 0) return QN_OK;
    qn_job *job = s->job;
    const char *tail = strstr(t->name, ".experts.") + strlen(".experts.0");
    const void **experts = NULL;
    size_t n = 0, cap = 0;
    for (;; n++) {
        char name[1024];
        snprintf(name, sizeof name, "%.*s.experts.%zu%s", e->prefix, t->name, n, tail);
        const qn_stored *x = qn_shards_find(s->shards, name);
        if (!x) break;
        if (n == cap) {
            cap = cap ? 2 * cap : 64;
            const void **more = qn_arena_take(&job->arena, cap, sizeof *more);
            if (!more || cap > MAX_EXPERTS)
                return qn_err_set(err, QN_LIMIT, "tensor %s: more than %d experts", name,
                                  MAX_EXPERTS);
            if (n) memcpy(more, experts, n * sizeof *more);
            experts = more;
        }
        if (x->rank != 2 || x->dtype != t->dtype || memcmp(x->dims, t->dims, 2 * sizeof *t->dims))
            return qn_err_set(err, QN_FORMAT, "tensor %s differs in shape or type from expert 0",
                              name);
        experts[n] = x->data;
    }
    char path[1024];
    snprintf(path, sizeof path, "%.*s.switch_mlp.%s", e->prefix, t->name, e->proj);
    qn_item *it = qn_job_add(job, path);
    if (!it) return qn_err_set(err, QN_NOMEM, "tensor %s: out of memory", path);
    it->is_module = true;
    it->rank = 3;
    it->dims[0] = n;
    it->dims[1] = t->dims[0];
    it->dims[2] = t->dims[1];
    it->rows = (qn_rows){.kind = QN_ROWS_STORED, .dtype = t->dtype, .experts = experts,
                         .expert_rows = (size_t)t->dims[0], .n_rows = qn_item_rows(it),
                         .n_in = (size_t)t->dims[1]};
    it->dtype = s->has_cast ? s->cast : t->dtype;
    return QN_OK;
}

/* ---- llama4's stacks of experts: transposed, gate and up in one ---- */

static const char turned_gate_up[] = ".experts.gate_up_proj", turned_down[] = ".experts.down_proj";

/* n_out columns of t [E, n_in, cols] from `from` on as the stack "P.experts.PROJ" [E, n_out, n_in];
 * `prefix`: length of P. */
static qn_code add_turned(source *s, const qn_stored *t, int prefix, const char *proj, uint64_t from,
                          uint64_t n_out, qn_err *err)
{
    const size_t size = qn_dtype_size(t->dtype), expert = (size_t)(t->dims[1] * t->dims[2]) * size;
    const size_t n = (size_t)t->dims[0];
    char path[1024];
    snprintf(path, sizeof path, "%.*s.experts.%s", prefix, t->name, proj);
    qn_item *it = qn_job_add(s->job, path);
    const void **experts = qn_arena_take(&s->job->arena, n, sizeof *experts);
    if (!it || !experts) return qn_err_set(err, QN_NOMEM, "tensor %s: out of memory", path);
    for (size_t e = 0; e < n; e++) experts[e] = (const uint8_t *)t->data + e * expert + (size_t)from * size;
    it->is_module = true;
    it->rank = 3;
    it->dims[0] = n;
    it->dims[1] = n_out;
    it->dims[2] = t->dims[1];
    it->rows = (qn_rows){.kind = QN_ROWS_STORED, .dtype = t->dtype, .experts = experts,
                         .expert_rows = (size_t)n_out, .stride = (size_t)t->dims[2],
                         .n_rows = qn_item_rows(it), .n_in = (size_t)t->dims[1]};
    it->dtype = s->has_cast ? s->cast : t->dtype;
    return QN_OK;
}

static qn_code add_llama4_experts(source *s, const qn_stored *t, qn_err *err)
{
    const bool both = ends_with(t->name, turned_gate_up);
    const int prefix = (int)(strlen(t->name) - strlen(both ? turned_gate_up : turned_down));
    const uint64_t cols = t->dims[2];
    if (t->rank != 3 || !t->dims[0] || !t->dims[1] || !cols || (both && cols % 2))
        return qn_err_set(err, QN_FORMAT, "tensor %s is not a stack of experts [E, in, out]", t->name);
    if (!both) return add_turned(s, t, prefix, "down_proj", 0, cols, err);
    qn_code rc = add_turned(s, t, prefix, "gate_proj", 0, cols / 2, err);
    return rc ? rc : add_turned(s, t, prefix, "up_proj", cols / 2, cols / 2, err);
}

/* ---- the matrix of all heads: keys and values from latents ---- */

typedef struct heads_dims { size_t n, nope, v; } heads_dims;

static qn_code read_heads(const source *s, const qn_stored *t, heads_dims *d, qn_err *err)
{
    const char *const keys[] = {"num_attention_heads", "qk_nope_head_dim", "v_head_dim"};
    size_t *const to[] = {&d->n, &d->nope, &d->v};
    for (size_t i = 0; i < 3; i++) {
        json_int_t x = json_integer_value(text_key(s, keys[i]));
        if (x < 1 || x > MAX_HEADS)
            return qn_err_set(err, QN_FORMAT, "config.json: %s must be 1 to %d", keys[i], MAX_HEADS);
        *to[i] = (size_t)x;
    }
    if (t->rank == 2 && t->dims[0] == d->n * (d->nope + d->v)) return QN_OK;
    return qn_err_set(err, QN_FORMAT, "tensor %s must have %zu rows: %zu heads of %zu and %zu", t->name,
                      d->n * (d->nope + d->v), d->n, d->nope, d->v);
}

/* A module [n, rows, n_in] whose matrices lie at heads[n]; its path is that of t with another name. */
static qn_code add_heads(source *s, const qn_stored *t, const char *name, const void **heads, size_t n,
                         size_t rows, size_t n_in, qn_err *err)
{
    char path[1024];
    snprintf(path, sizeof path, "%.*s%s", (int)(strlen(t->name) - strlen(kv_b)), t->name, name);
    qn_item *it = qn_job_add(s->job, path);
    if (!it) return qn_err_set(err, QN_NOMEM, "tensor %s: out of memory", path);
    it->is_module = true;
    it->rank = 3;
    it->dims[0] = n;
    it->dims[1] = rows;
    it->dims[2] = n_in;
    it->rows = (qn_rows){.kind = QN_ROWS_STORED, .dtype = t->dtype, .experts = heads,
                         .expert_rows = rows, .n_rows = n * rows, .n_in = n_in};
    it->dtype = s->has_cast ? s->cast : t->dtype;
    return QN_OK;
}

/* kv_b_proj [H*(nope+v), L] as embed_q [H, L, nope] and unembed_out [H, v, L]. */
static qn_code add_kv_b(source *s, const qn_stored *t, qn_err *err)
{
    heads_dims d;
    qn_code rc = read_heads(s, t, &d, err);
    if (rc) return rc;
    const size_t latent = (size_t)t->dims[1], size = qn_dtype_size(t->dtype), row = latent * size;
    qn_arena *a = &s->job->arena;
    const void **keys = qn_arena_take(a, d.n, sizeof *keys), **values = qn_arena_take(a, d.n, sizeof *values);
    uint8_t *turned = qn_arena_take(a, d.n * d.nope, row);
    if (!keys || !values || !turned)
        return qn_err_set(err, QN_NOMEM, "tensor %s: out of memory", t->name);
    for (size_t h = 0; h < d.n; h++) {
        const uint8_t *from = (const uint8_t *)t->data + h * (d.nope + d.v) * row;
        uint8_t *to = turned + h * d.nope * row;
        for (size_t i = 0; i < d.nope; i++)
            for (size_t k = 0; k < latent; k++)
                memcpy(to + (k * d.nope + i) * size, from + i * row + k * size, size);
        keys[h] = to;
        values[h] = from + d.nope * row;
    }
    rc = add_heads(s, t, ".embed_q", keys, d.n, latent, d.nope, err);
    return rc ? rc : add_heads(s, t, ".unembed_out", values, d.n, d.v, latent, err);
}

/* A module that is quantized in the source; its scales and biases come with it. */
static qn_code add_mlx(source *s, const qn_stored *t, const char *path, qn_err *err)
{
    qn_matrix m;
    qn_code rc = qn_folder_matrix(s->job->folder, path, 0, 0, 0, &m, err);
    if (rc) return rc;
    qn_item *it = qn_job_add(s->job, path);
    if (!it) return qn_err_set(err, QN_NOMEM, "tensor %s: out of memory", path);
    it->is_module = true;
    it->rank = t->rank;
    memcpy(it->dims, t->dims, sizeof it->dims);
    it->dims[t->rank - 1] = m.n_in;
    it->rows = (qn_rows){.kind = QN_ROWS_MLX, .matrix = m, .n_rows = qn_item_rows(it),
                         .n_in = m.n_in};
    it->dtype = m.spec.mode == QN_Q_AFFINE ? m.dtype : QN_BF16;
    if (s->job->opts->dtype) it->dtype = s->cast;
    else if (s->has_cast && !s->job->opts->dequantize && !s->job->opts->quantize &&
             m.spec.mode == QN_Q_AFFINE)
        it->dtype = s->cast;
    return QN_OK;
}

static qn_code add_dense(source *s, const qn_stored *t, qn_err *err)
{
    qn_job *job = s->job;
    bool is_module = qn_is_module_weight(t->name, t->rank) && is_float(t->dtype);
    char path[1024];
    snprintf(path, sizeof path, "%s", t->name);
    if (is_module) path[strlen(path) - strlen(".weight")] = '\0';
    qn_item *it = qn_job_add(job, path);
    const void **data = qn_arena_take(&job->arena, 1, sizeof *data);
    if (!it || !data) return qn_err_set(err, QN_NOMEM, "tensor %s: out of memory", t->name);
    *data = t->data;
    it->is_module = is_module;
    it->is_raw_gate = is_module && qn_is_raw_gate(job->model_type, path);
    it->rows = (qn_rows){.kind = QN_ROWS_STORED, .dtype = t->dtype, .experts = data};
    set_shape(it, t);
    it->rows.expert_rows = it->rows.n_rows ? it->rows.n_rows : 1;
    it->dtype = s->has_cast && !is_exempt(job->model_type, t->name) ? s->cast : t->dtype;
    return QN_OK;
}

/* If t is part of a quantized module, its path in `path`: the module has scales. */
static bool quantized_path(const source *s, const char *name, char *path, size_t cap)
{
    const char *const parts[] = {".weight", ".scales", ".biases"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!ends_with(name, parts[i])) continue;
        int n = (int)(strlen(name) - strlen(parts[i]));
        snprintf(path, cap, "%.*s.scales", n, name);
        if (!qn_shards_find(s->shards, path)) continue;
        path[n] = '\0';
        return true;
    }
    return false;
}

static qn_code add_tensors(source *s, qn_err *err)
{
    qn_code rc = QN_OK;
    for (size_t i = 0; !rc && i < qn_shards_count(s->shards); i++) {
        const qn_stored *t = qn_shards_at(s->shards, i);
        char path[1024];
        expert_name e;
        if (strlen(t->name) > 900)
            return qn_err_set(err, QN_LIMIT, "a tensor's name has more than 900 bytes");
        if (is_dropped(s, t->name)) continue;
        if (quantized_path(s, t->name, path, sizeof path)) {
            if (ends_with(t->name, ".weight")) rc = add_mlx(s, t, path, err);
        } else if (parse_expert(t->name, &e) && t->rank == 2 && is_float(t->dtype)) {
            rc = add_stack(s, t, &e, err);
        } else if (has_latents(s) && ends_with(t->name, kv_b) && is_float(t->dtype)) {
            rc = add_kv_b(s, t, err);
        } else if (is_llama4(s) && is_float(t->dtype) &&
                   (ends_with(t->name, turned_gate_up) || ends_with(t->name, turned_down))) {
            rc = add_llama4_experts(s, t, err);
        } else {
            rc = add_dense(s, t, err);
        }
    }
    return rc;
}

static void note_source(const qn_job *job)
{
    size_t n = 0;
    for (size_t i = 0; i < job->n_items; i++) n += job->items[i].rows.kind == QN_ROWS_MLX;
    if (n && job->opts->quantize)
        qn_job_note(job, "the source is quantized: %zu matrices are dequantized and quantized "
                    "again, which adds error", n);
}

static void set_name(qn_job *job, const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && dir[from - 1] != '/') from--;
    snprintf(job->name, sizeof job->name, "%.*s", (int)(n - from), dir + from);
}

static qn_code describe_source(source *s, qn_err *err)
{
    qn_job *job = s->job;
    qn_code rc = read_config(s, job->opts->source, err);
    if (rc) return rc;
    const char *type = json_string_value(json_object_get(s->raw, "model_type"));
    if (!type)
        return qn_err_set(err, QN_FORMAT, "%s/config.json: model_type is missing",
                          job->opts->source);
    snprintf(job->model_type, sizeof job->model_type, "%s", type);
    read_cast(s);
    s->tied = is_tied(s);
    if ((rc = check_foreign(s, err)) || (rc = check_family(s, err)) || (rc = read_layers(s, err)))
        return rc;
    if ((rc = add_tensors(s, err))) return rc;
    note_source(job);
    set_out_config(s);
    if (!job->config) return qn_err_set(err, QN_NOMEM, "config.json: out of memory");
    return qn_plan(job, s->n_layers, err);
}

qn_code qn_import_folder(qn_job *job, qn_err *err)
{
    qn_code rc = qn_folder_open(&job->folder, job->opts->source, false, err);
    if (rc) return rc;
    set_name(job, job->opts->source);
    source s = {.job = job, .shards = qn_folder_shards(job->folder)};
    rc = describe_source(&s, err);
    json_decref(s.raw);
    return rc;
}
