/* plan.c - the form of every module in the output; see plan.h. */
#include "tune/plan.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && !strcmp(s + n - m, tail);
}

/* The last components of `path` are `tail`: "x.mlp.gate" ends with "mlp.gate", "x.amlp.gate" does
 * not. */
static bool path_ends(const char *path, const char *tail)
{
    size_t n = strlen(path), m = strlen(tail);
    return ends_with(path, tail) && (n == m || path[n - m - 1] == '.');
}

static bool starts_with(const char *s, const char *head) { return !strncmp(s, head, strlen(head)); }

bool qn_is_module_weight(const char *name, uint32_t rank)
{
    if (!ends_with(name, ".weight") || strstr(name, "conv") || strstr(name, "norm")) return false;
    if (strstr(name, "vision") || strstr(name, "visual") || strstr(name, "audio") ||
        strstr(name, "multi_modal_projector"))
        return false;
    if (rank == 2) return true;
    return rank == 3 && (strstr(name, "switch_mlp") || strstr(name, "experts") ||
                         strstr(name, "embed_q") || strstr(name, "unembed_out"));
}

bool qn_is_raw_gate(const char *model_type, const char *path)
{
    static const char *const families[] = {"deepseek", "glm4_moe", "glm_moe_dsa", "dots1",
                                           "exaone_moe", "mimo_v2", "nemotron_h", "kimi_k2"};
    if (!path_ends(path, "mlp.gate") && !path_ends(path, "mixer.gate")) return false;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (starts_with(model_type, families[i])) return true;
    return false;
}

/* Routers that mlx-lm quantizes to 8 bits in groups of 64 whatever the rest gets. */
static bool is_wide_router(const char *model_type, const char *path)
{
    static const struct { const char *family, *tail; } table[] = {
        {"qwen3_moe", "mlp.gate"}, {"qwen3_next", "mlp.gate"}, {"qwen3_5", "mlp.gate"},
        {"qwen3_next", "mlp.shared_expert_gate"}, {"qwen3_5", "mlp.shared_expert_gate"},
        {"Klear", "mlp.gate"}, {"kimi_linear", "mlp.gate"}, {"mellum", "mlp.gate"},
        {"gpt_oss", "router"}, {"jamba", "router"}, {"gemma4", "router.proj"},
        {"afmoe", "router.gate"}, {"lfm2_moe", "feed_forward.gate"},
        {"minimax", "block_sparse_moe.gate"}, {"granitemoe", "block_sparse_moe.router.layer"},
        {"granitemoehybrid", "router.layer"}, {"longcat", "classifier"},
        {"bailing_moe", "mlp.gate.gate_proj"}, {"step3p5", "mlp.gate.gate"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (starts_with(model_type, table[i].family) && path_ends(path, table[i].tail)) return true;
    return false;
}

/* ---- recipes ---- */

typedef struct recipe {
    const char *name;
    uint32_t low, high;
    size_t layer_at; /* which component of a path is the layer number */
    uint32_t n_layers;
} recipe;

static const recipe recipes[] = {
    {"mixed_2_6", 2, 6, 0, 0}, {"mixed_3_4", 3, 4, 0, 0},
    {"mixed_3_6", 3, 6, 0, 0}, {"mixed_4_6", 4, 6, 0, 0},
};

static const recipe *find_recipe(const char *name)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (!strcmp(recipes[i].name, name)) return &recipes[i];
    return NULL;
}

bool qn_is_recipe(const char *name) { return find_recipe(name) != NULL; }

/* Component number `at` of a dotted path, and its length; NULL if the path is shorter. */
static const char *component(const char *path, size_t at, size_t *n)
{
    while (at-- > 0) {
        path = strchr(path, '.');
        if (!path) return NULL;
        path++;
    }
    *n = strcspn(path, ".");
    return path;
}

static bool all_digits(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isdigit((unsigned char)s[i])) return false;
    return n > 0;
}

/* The layer number sits where the first path with a down_proj has its first number. */
static qn_code locate_layer(const qn_job *job, recipe *r, qn_err *err)
{
    for (size_t i = 0; i < job->n_items; i++) {
        if (!job->items[i].is_module || !strstr(job->items[i].name, "down_proj")) continue;
        size_t n;
        const char *c;
        for (size_t at = 0; (c = component(job->items[i].name, at, &n)); at++) {
            if (!all_digits(c, n)) continue;
            r->layer_at = at;
            return QN_OK;
        }
    }
    return qn_err_set(err, QN_INVALID, "recipe %s needs a model with down_proj matrices in "
                      "numbered layers, this one has none", r->name);
}

static uint32_t recipe_bits(const recipe *r, const char *path)
{
    size_t n;
    const char *c = component(path, r->layer_at, &n);
    int layer = c && all_digits(c, n) ? atoi(c) : 0;
    int eighth = (int)r->n_layers / 8, tail = 7 * (int)r->n_layers / 8;
    bool more = layer < eighth || layer >= tail || (layer - eighth) % 3 == 2;
    bool is_value = strstr(path, "v_proj") || strstr(path, "v_a_proj") || strstr(path, "v_b_proj");
    bool wide = (more && (is_value || strstr(path, "down_proj"))) || strstr(path, "lm_head");
    return wide ? r->high : r->low;
}

/* ---- the three plans ---- */

static void set_dense(qn_item *it)
{
    it->spec = (qn_qspec){QN_Q_NONE, 0, 0};
    it->keep = false;
}

static qn_qspec wanted_spec(const qn_convert_opts *o)
{
    qn_qspec s = qn_qspec_default(o->mode == QN_Q_NONE ? QN_Q_AFFINE : o->mode);
    if (o->bits) s.bits = o->bits;
    if (o->group_size) s.group_size = o->group_size;
    return s;
}

static qn_code plan_quantize(qn_job *job, uint32_t n_layers, qn_err *err)
{
    recipe r = {0};
    const char *name = job->opts->recipe;
    if (name) {
        r = *find_recipe(name);
        r.n_layers = n_layers;
        qn_code rc = locate_layer(job, &r, err);
        if (rc) return rc;
    }
    job->top = wanted_spec(job->opts);
    for (size_t i = 0; i < job->n_items; i++) {
        qn_item *it = &job->items[i];
        set_dense(it);
        if (!it->is_module || it->is_raw_gate || it->rows.n_in % job->top.group_size) continue;
        qn_qspec s = job->top;
        if (name) s.bits = recipe_bits(&r, it->name);
        else if (is_wide_router(job->model_type, it->name)) s = (qn_qspec){QN_Q_AFFINE, 8, 64};
        if (it->rows.n_in % s.group_size == 0) it->spec = s;
    }
    return QN_OK;
}

/* The most common spec becomes the block's top level, so that few modules need an entry. */
qn_qspec qn_plan_common(const qn_job *job)
{
    qn_qspec best = {QN_Q_NONE, 0, 0};
    size_t best_n = 0;
    for (size_t i = 0; i < job->n_items; i++) {
        qn_qspec s = job->items[i].spec;
        if (s.mode == QN_Q_NONE) continue;
        size_t n = 0;
        for (size_t j = i; j < job->n_items; j++) {
            qn_qspec t = job->items[j].spec;
            n += t.mode == s.mode && t.bits == s.bits && t.group_size == s.group_size;
        }
        if (n > best_n) {
            best = s;
            best_n = n;
        }
    }
    return best;
}

/* Keep what has an MLX form; quantize again what has none. */
static void plan_keep(qn_job *job)
{
    uint32_t bits = job->opts->requant_bits ? job->opts->requant_bits : 8;
    size_t n_again = 0;
    for (size_t i = 0; i < job->n_items; i++) {
        qn_item *it = &job->items[i];
        set_dense(it);
        if (!it->is_module) continue;
        it->spec = qn_rows_spec(&it->rows);
        it->keep = it->spec.mode != QN_Q_NONE;
        if (it->keep || it->rows.kind != QN_ROWS_GGUF || it->rows.layout->dense) continue;
        it->spec = (qn_qspec){QN_Q_AFFINE, bits, 32};
        n_again++;
    }
    if (n_again)
        qn_job_note(job, "%zu matrices have a GGUF type without an MLX form; they were quantized "
                    "again to %u bits in groups of 32", n_again, bits);
    if (job->gguf) job->top = qn_plan_common(job);
}

qn_code qn_plan(qn_job *job, uint32_t n_layers, qn_err *err)
{
    if (job->opts->quantize) return plan_quantize(job, n_layers, err);
    if (!job->opts->dequantize) {
        plan_keep(job);
        return QN_OK;
    }
    for (size_t i = 0; i < job->n_items; i++) set_dense(&job->items[i]);
    return QN_OK;
}
