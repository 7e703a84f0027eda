/* entry.c - what the store knows about one model folder. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "format/folder.h"
#include "store/private.h"

enum { README_MAX = 16 << 20, TEMPLATE_MAX = 64 << 20, INDEX_MAX = 64 << 20, FRONT_MATTER = 4096 };

static const char sidecar[] = "optiq_vision.safetensors";

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static bool join(char out[QN_PATH_CAP], const char *dir, const char *name)
{
    int n = snprintf(out, QN_PATH_CAP, "%s/%s", dir, name);
    return n > 0 && n < QN_PATH_CAP;
}

static bool has_file(const char *dir, const char *name)
{
    char path[QN_PATH_CAP];
    return join(path, dir, name) && qn_is_file(path);
}

/* The parsed index file, or NULL. */
static json_t *read_index(const char *dir)
{
    char path[QN_PATH_CAP], *text;
    size_t size;
    if (!join(path, dir, "model.safetensors.index.json")) return NULL;
    if (qn_file_read(path, INDEX_MAX, &text, &size, NULL)) return NULL;
    json_t *j = json_loadb(text, size, 0, NULL);
    free(text);
    return j;
}

/* Is `name` one of the files that the index names? Without an index every file counts. */
static bool is_used(const json_t *index, const char *name)
{
    const json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map)) return strcmp(name, sidecar) != 0;
    const char *key;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, key, file) {
        if (json_is_string(file) && !strcmp(json_string_value(file), name)) return true;
    }
    return false;
}

/* Sum of the weight files; *n_files counts them. */
static uint64_t weight_bytes(const char *dir, const json_t *index, size_t *n_files)
{
    uint64_t sum = 0;
    *n_files = 0;
    DIR *d = opendir(dir);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[QN_PATH_CAP];
        struct stat st;
        if (!ends_with(e->d_name, ".safetensors") || !is_used(index, e->d_name)) continue;
        if (!join(path, dir, e->d_name) || stat(path, &st) || !S_ISREG(st.st_mode)) continue;
        sum += (uint64_t)st.st_size;
        (*n_files)++;
    }
    closedir(d);
    return sum;
}

static const char *keep(qn_store *s, const char *text)
{
    return qn_arena_dup(&s->arena, text, strlen(text));
}

static uint32_t small_uint(const json_t *o, const char *key)
{
    json_int_t v = json_integer_value(json_object_get(o, key));
    return v > 0 && v < 1 << 20 ? (uint32_t)v : 0;
}

static void read_quantization(qn_store *s, qn_model_entry *e, const json_t *config)
{
    const json_t *q = json_object_get(config, "quantization");
    if (!json_is_object(q)) q = json_object_get(config, "quantization_config");
    if (!json_is_object(q)) return;
    const json_t *mode = json_object_get(q, "mode");
    e->quant_bits = small_uint(q, "bits");
    e->quant_group = small_uint(q, "group_size");
    if (e->quant_bits) e->quant_mode = keep(s, json_is_string(mode) ? json_string_value(mode) : "affine");
}

static bool has_experts(const json_t *config)
{
    static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    const json_t *text = json_object_get(config, "text_config");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (small_uint(config, keys[i]) || small_uint(text, keys[i])) return true;
    }
    return false;
}

static void read_capabilities(qn_model_entry *e, const json_t *config)
{
    const json_t *vision = json_object_get(json_object_get(config, "vision_config"), "model_type");
    bool unified = json_is_string(vision) && ends_with(json_string_value(vision), "unified_vision");
    e->has_vision = unified || has_file(e->path, sidecar);
    e->has_audio = json_is_object(json_object_get(config, "audio_config"));
    e->has_kv_config = has_file(e->path, "kv_config.json");
    e->has_mtp = has_file(e->path, "mtp/config.json");
    e->is_moe = has_experts(config);
    e->drafter = ends_with(e->model_type, "_assistant") || ends_with(e->model_type, "_mtp");
}

/* ---- details ---- */

static bool file_contains(const char *dir, const char *name, const char *word)
{
    char path[QN_PATH_CAP];
    qn_map map = {0};
    if (!join(path, dir, name) || qn_map_open(&map, path, NULL)) return false;
    bool found = map.size && map.size <= TEMPLATE_MAX && memmem(map.data, map.size, word, strlen(word));
    qn_map_close(&map);
    return found;
}

/* The value of a line "KEY: VALUE" in the README's front matter, unquoted; false if there is none. */
static bool front_matter(const char *text, const char *key, char *out, size_t cap)
{
    size_t n_key = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, "---", 3) && line != text) return false;
        if (strncmp(line, key, n_key) || line[n_key] != ':') continue;
        const char *v = line + n_key + 1;
        v += strspn(v, " \"'");
        size_t n = strcspn(v, "\r\n\"'");
        while (n && v[n - 1] == ' ') n--;
        if (!n || n >= cap) return false;
        memcpy(out, v, n);
        out[n] = '\0';
        return true;
    }
    return false;
}

static const char *read_license(qn_store *s, const char *dir)
{
    char path[QN_PATH_CAP], name[128], *text;
    size_t size;
    if (!join(path, dir, "README.md") || qn_file_read(path, README_MAX, &text, &size, NULL)) return NULL;
    if (size > FRONT_MATTER) text[FRONT_MATTER] = '\0';
    const char *found = NULL;
    if (!strncmp(text, "---", 3) && front_matter(text, "license", name, sizeof name)) {
        if (!strcmp(name, "other")) front_matter(text, "license_name", name, sizeof name);
        found = keep(s, name);
    }
    free(text);
    return found;
}

/* Elements of a stored tensor; a packed weight counts as what it unpacks to. */
static uint64_t tensor_elements(const qn_folder *f, const qn_stored *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++) n *= t->dims[i];
    if (!ends_with(t->name, ".weight")) return n;
    char name[512];
    int len = (int)(strlen(t->name) - strlen(".weight"));
    int wrote = snprintf(name, sizeof name, "%.*s.scales", len, t->name);
    qn_qspec q;
    if (wrote < 0 || (size_t)wrote >= sizeof name || !qn_folder_has(f, name)) return n;
    name[len] = '\0';
    if (qn_folder_qspec(f, name, &q, NULL) || !q.bits) return n;
    return n * 32 / q.bits;
}

static uint64_t count_params(const char *dir, const json_t *index)
{
    const json_t *stated = json_object_get(json_object_get(index, "metadata"), "total_parameters");
    if (json_integer_value(stated) > 0) return (uint64_t)json_integer_value(stated);
    qn_folder *f;
    if (qn_folder_open(&f, dir, false, NULL)) return 0;
    const qn_shards *shards = qn_folder_shards(f);
    uint64_t sum = 0;
    for (size_t i = 0; i < qn_shards_count(shards); i++) {
        const qn_stored *t = qn_shards_at(shards, i);
        if (!ends_with(t->name, ".scales") && !ends_with(t->name, ".biases")) sum += tensor_elements(f, t);
    }
    qn_folder_close(f);
    return sum;
}

static void read_details(qn_store *s, qn_model_entry *e, const json_t *index)
{
    e->n_params = count_params(e->path, index);
    e->license = read_license(s, e->path);
    e->has_tools = file_contains(e->path, "chat_template.jinja", "tool_call") ||
                   file_contains(e->path, "tokenizer_config.json", "tool_call");
}

/* ---- the whole entry ---- */

static qn_code fill_entry(qn_store *s, qn_model_entry *e, const json_t *config, const json_t *index, qn_err *err)
{
    const json_t *type = json_object_get(config, "model_type");
    e->model_type = keep(s, json_is_string(type) ? json_string_value(type) : "unknown");
    if (!e->model_type) return qn_err_set(err, QN_NOMEM, "models: out of memory");
    e->supported = !s->opts.supports || s->opts.supports(e->model_type);
    read_quantization(s, e, config);
    read_capabilities(e, config);
    if (s->opts.details) read_details(s, e, index);
    return QN_OK;
}

qn_code qn_entry_read(qn_store *s, const char *path, const char *id, qn_model_entry **out, qn_err *err)
{
    *out = NULL;
    qn_folder *f;
    if (!has_file(path, "config.json") || qn_folder_open(&f, path, true, NULL)) return QN_OK;
    json_t *index = read_index(path);
    size_t n_files;
    uint64_t size = weight_bytes(path, index, &n_files);
    qn_code rc = QN_OK;
    if (n_files) {
        qn_model_entry *e = qn_arena_take(&s->arena, 1, sizeof *e);
        if (e) *e = (qn_model_entry){.id = keep(s, id), .path = keep(s, path), .canonical = true, .size_bytes = size};
        if (!e || !e->id || !e->path) rc = qn_err_set(err, QN_NOMEM, "models: out of memory");
        else rc = fill_entry(s, e, qn_folder_config(f), index, err);
        if (!rc) *out = e;
    }
    json_decref(index);
    qn_folder_close(f);
    return rc;
}
