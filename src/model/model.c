/* model.c - from a folder's model_type to a family, and opening it. */
#include "model/model.h"

#include <string.h>

#include "core/buf.h"
#include "model/families.h"

/* In alphabetical order. */
static const qn_family families[] = {
    {"cohere2", qn_cohere2_read},
    {"deepseek_v2", qn_deepseek_v2_read},
    {"deepseek_v3", qn_deepseek_v3_read},
    {"ernie4_5", qn_ernie4_5_read},
    {"exaone", qn_exaone_read},
    {"exaone4", qn_exaone4_read},
    {"gemma", qn_gemma_read},
    {"gemma2", qn_gemma2_read},
    {"gemma3", qn_gemma3_read},
    {"gemma3_text", qn_gemma3_text_read},
    {"glm", qn_glm_read},
    {"glm4", qn_glm4_read},
    {"glm4_moe", qn_glm4_moe_read},
    {"glm4_moe_lite", qn_glm4_moe_lite_read},
    {"granite", qn_granite_read},
    {"helium", qn_helium_read},
    {"hunyuan_v1_dense", qn_hunyuan_dense_read},
    {"internlm3", qn_internlm3_read},
    {"kimi_k25", qn_kimi_k25_read},
    {"lille-130m", qn_lille_read},
    {"llama", qn_llama_read},
    {"llama4", qn_llama4_read},
    {"llama4_text", qn_llama4_text_read},
    {"mimo", qn_mimo_read},
    {"minicpm", qn_minicpm_read},
    {"olmo2", qn_olmo2_read},
    {"olmo3", qn_olmo3_read},
    {"phi", qn_phi_read},
    {"phi3", qn_phi3_read},
    {"qwen", qn_qwen_read},
    {"qwen2", qn_qwen2_read},
    {"qwen2_moe", qn_qwen2_moe_read},
    {"qwen3", qn_qwen3_read},
    {"qwen3_5", qn_qwen3_5_read},
    {"qwen3_5_moe", qn_qwen3_5_read},
    {"qwen3_moe", qn_qwen3_moe_read},
    {"seed_oss", qn_seed_oss_read},
    {"smollm3", qn_smollm3_read},
    {"starcoder2", qn_starcoder2_read},
    {"telechat3", qn_telechat3_read},
};

static const struct { const char *alias, *model_type; } aliases[] = {
    {"mistral", "llama"},
    {"iquestcoder", "llama"},
    {"joyai_llm_flash", "deepseek_v3"},
    {"kimi_k2", "deepseek_v3"},
    {"qwen3_5_text", "qwen3_5"},
};

enum {
    N_FAMILIES = sizeof families / sizeof *families,
    N_ALIASES = sizeof aliases / sizeof *aliases
};

const qn_family *qn_family_find(const char *model_type)
{
    for (size_t i = 0; i < N_ALIASES; i++) {
        if (!strcmp(aliases[i].alias, model_type)) model_type = aliases[i].model_type;
    }
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (!strcmp(families[i].model_type, model_type)) return &families[i];
    }
    return NULL;
}

bool qn_model_supported(const char *model_type)
{
    return qn_family_find(model_type) != NULL;
}

const char *const *qn_model_types(void)
{
    static const char *const types[] = {
        "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5", "exaone", "exaone4", "gemma", "gemma2", "gemma3",
        "gemma3_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "granite", "helium", "hunyuan_v1_dense",
        "internlm3", "iquestcoder", "joyai_llm_flash", "kimi_k2", "kimi_k25", "lille-130m", "llama",
        "llama4", "llama4_text", "mimo", "minicpm", "mistral", "olmo2", "olmo3", "phi", "phi3", "qwen",
        "qwen2", "qwen2_moe", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_moe",
        "seed_oss", "smollm3", "starcoder2", "telechat3", NULL,
    };
    _Static_assert(sizeof types / sizeof *types == N_FAMILIES + N_ALIASES + 1,
                   "list every family and alias");
    return types;
}

qn_code qn_model_check_type(const char *model_type, qn_err *err)
{
    if (qn_model_supported(model_type)) return QN_OK;
    qn_buf list = {0};
    for (const char *const *t = qn_model_types(); *t; t++)
        qn_buf_printf(&list, "%s%s", list.len ? ", " : "", *t);
    qn_err_set(err, QN_UNSUPPORTED, "model_type \"%s\" is not supported yet; supported: %s",
               model_type, list.data ? list.data : "");
    qn_buf_release(&list);
    return QN_UNSUPPORTED;
}

qn_code qn_model_open(qn_model **out, qn_folder *folder, qn_device *dev, const qn_model_opts *opts,
                      qn_err *err)
{
    *out = NULL;
    const json_t *cfg = qn_folder_config(folder);
    const char *type = json_string_value(json_object_get(cfg, "model_type"));
    if (!type)
        return qn_err_set(err, QN_FORMAT, "config.json: model_type is missing or not a string");
    qn_code rc = qn_model_check_type(type, err);
    if (rc) return rc;
    const qn_family *family = qn_family_find(type);
    qn_arena arena = {0};
    qn_desc d;
    rc = family->read(&d, cfg, folder, &arena, err);
    if (rc) {
        qn_arena_release(&arena);
        return rc;
    }
    if ((rc = qn_dense_open(out, &d, folder, dev, &arena, opts, err))) return rc;
    size_t n = strlen(family->model_type);
    memcpy((*out)->info.model_type, family->model_type, n + 1);
    return QN_OK;
}

void qn_model_close(qn_model *m)
{
    if (m) m->ops->close(m);
}

/* Measure a forward pass over the largest batch; the last n_hidden results are hidden states. */
static qn_code measure(qn_model *m, qn_run *run, qn_kv *kv, const qn_run_limits *l,
                       uint32_t n_hidden, qn_err *err)
{
    const qn_batch b = {.n_tokens = l->max_tokens, .n_out = l->max_out, .n_hidden = n_hidden};
    const qn_ops *ops = m->dev->ops;
    ops->begin(run, &b, kv);
    qn_tensor hidden, logits = m->ops->forward(m, run, &hidden);
    if (hidden.addr) ops->fetch(run, hidden);
    if (logits.addr) ops->fetch(run, logits);
    return ops->end(run, err);
}

qn_code qn_model_run_new(qn_run **out, qn_model *m, const qn_kv_spec *kv,
                         const qn_run_limits *limits, qn_err *err)
{
    *out = NULL;
    const qn_ops *ops = m->dev->ops;
    const uint32_t one_block[QN_MAX_KV_GROUPS] = {1, 1, 1, 1};
    qn_run *run = NULL;
    qn_kv *pools = NULL; /* only for how keys and values lie in them */
    qn_code rc = ops->run_new(m->dev, limits, &run, err);
    if (!rc) rc = ops->kv_new(m->dev, kv, one_block, &pools, err);
    if (!rc) rc = measure(m, run, pools, limits, 0, err);
    if (!rc) rc = measure(m, run, pools, limits, limits->max_out, err);
    if (pools) ops->kv_free(pools);
    if (!rc) *out = run;
    else if (run) ops->run_free(run);
    return rc;
}
