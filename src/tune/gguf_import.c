/* gguf_import.c - the tensors of a GGUF file as items of a job (spec quantize-eval A7). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tune/gguf_family.h"
#include "tune/plan.h"

enum { IS_Q = 1, IS_K = 2, IS_NORM = 4, REQUIRED = 8 };

typedef struct name_rule { /* "blk.N.GGUF.weight" becomes "model.layers.N.MLX.weight" */
    const char *gguf, *mlx;
    unsigned with, without; /* families: traits they must and must not have */
    unsigned flags;
} name_rule;

static const name_rule block_rules[] = {
    {"attn_norm", "input_layernorm", 0, 0, IS_NORM | REQUIRED},
    {"attn_q", "self_attn.q_proj", 0, 0, IS_Q | REQUIRED},
    {"attn_k", "self_attn.k_proj", 0, 0, IS_K | REQUIRED},
    {"attn_v", "self_attn.v_proj", 0, 0, REQUIRED},
    {"attn_output", "self_attn.o_proj", 0, 0, REQUIRED},
    {"attn_q_norm", "self_attn.q_norm", QN_FAM_QK_NORM, 0, IS_NORM | REQUIRED},
    {"attn_k_norm", "self_attn.k_norm", QN_FAM_QK_NORM, 0, IS_NORM | REQUIRED},
    {"ffn_norm", "post_attention_layernorm", 0, QN_FAM_SANDWICH, IS_NORM | REQUIRED},
    {"post_attention_norm", "post_attention_layernorm", QN_FAM_SANDWICH, 0, IS_NORM | REQUIRED},
    {"ffn_norm", "pre_feedforward_layernorm", QN_FAM_SANDWICH, 0, IS_NORM | REQUIRED},
    {"post_ffw_norm", "post_feedforward_layernorm", QN_FAM_SANDWICH, 0, IS_NORM | REQUIRED},
    {"ffn_gate", "mlp.gate_proj", 0, QN_FAM_EXPERTS, REQUIRED},
    {"ffn_up", "mlp.up_proj", 0, QN_FAM_EXPERTS, REQUIRED},
    {"ffn_down", "mlp.down_proj", 0, QN_FAM_EXPERTS, REQUIRED},
    {"ffn_gate_inp", "mlp.gate", QN_FAM_EXPERTS, 0, REQUIRED},
    {"ffn_gate_exps", "mlp.switch_mlp.gate_proj", QN_FAM_EXPERTS, 0, REQUIRED},
    {"ffn_up_exps", "mlp.switch_mlp.up_proj", QN_FAM_EXPERTS, 0, REQUIRED},
    {"ffn_down_exps", "mlp.switch_mlp.down_proj", QN_FAM_EXPERTS, 0, REQUIRED},
};

static const name_rule outer_rules[] = {
    {"token_embd.weight", "model.embed_tokens.weight", 0, 0, REQUIRED},
    {"output_norm.weight", "model.norm.weight", 0, 0, IS_NORM | REQUIRED},
    {"output.weight", "lm_head.weight", 0, 0, 0},
};

enum { N_BLOCK_RULES = sizeof block_rules / sizeof *block_rules };
enum { N_OUTER_RULES = sizeof outer_rules / sizeof *outer_rules };

static bool applies(const name_rule *r, const qn_gguf_family *f)
{
    return (f->traits & r->with) == r->with && !(f->traits & r->without);
}

/* The rule of a GGUF name, and the MLX name in `out`; NULL if no rule knows it. */
static const name_rule *map_name(const qn_gguf_family *f, const char *name, char *out, size_t cap)
{
    for (size_t i = 0; i < N_OUTER_RULES; i++) {
        if (strcmp(outer_rules[i].gguf, name)) continue;
        snprintf(out, cap, "%s", outer_rules[i].mlx);
        return &outer_rules[i];
    }
    if (strncmp(name, "blk.", 4)) return NULL;
    const char *number = name + 4, *rest = strchr(number, '.');
    const char *suffix = rest ? strrchr(rest + 1, '.') : NULL;
    if (!suffix || (strcmp(suffix, ".weight") && strcmp(suffix, ".bias"))) return NULL;
    size_t digits = (size_t)(rest - number), n = (size_t)(suffix - rest - 1);
    if (!digits || digits > 6 || strspn(number, "0123456789") != digits) return NULL;
    for (size_t i = 0; i < N_BLOCK_RULES; i++) {
        const name_rule *r = &block_rules[i];
        if (!applies(r, f) || strlen(r->gguf) != n || strncmp(rest + 1, r->gguf, n)) continue;
        snprintf(out, cap, "model.layers.%.*s.%s%s", (int)digits, number, r->mlx, suffix);
        return r;
    }
    return NULL;
}

static qn_code check_head_rows(const qn_gguf_tensor *t, uint64_t n_heads, uint64_t d_head,
                               qn_err *err)
{
    uint64_t n_rows = t->rank == 1 ? t->n_elements : t->n_elements / t->dims[t->rank - 1];
    if (n_rows == n_heads * d_head) return QN_OK;
    return qn_err_set(err, QN_FORMAT, "tensor %s has %llu rows, %llu heads of %llu need %llu",
                      t->name, (unsigned long long)n_rows, (unsigned long long)n_heads,
                      (unsigned long long)d_head, (unsigned long long)(n_heads * d_head));
}

static qn_code check_layout(const qn_gguf_tensor *t, const qn_gguf_layout **out, qn_err *err)
{
    const qn_gguf_layout *l = qn_gguf_layout_of(t->type);
    *out = l;
    if (l && l->readable) return QN_OK;
    char number[16];
    snprintf(number, sizeof number, "%u", t->type);
    return qn_err_set(err, QN_UNSUPPORTED, "tensor %s has GGUF type %s, which is not supported; "
                      "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL and "
                      "MXFP4 are", t->name, l ? l->name : number);
}

/* A tensor as an item: a vector whose elements are permuted is seen as rows of one element. */
static qn_code add_item(qn_job *job, const qn_gguf_family *f, const qn_gguf_dims *d,
                        const qn_gguf_tensor *t, const name_rule *r, char *name, qn_err *err)
{
    const qn_gguf_layout *l;
    qn_code rc = check_layout(t, &l, err);
    if (rc) return rc;
    bool permuted = (f->traits & QN_FAM_PERMUTED) && (r->flags & (IS_Q | IS_K));
    if (r->flags & (IS_Q | IS_K)) {
        rc = check_head_rows(t, r->flags & IS_Q ? d->n_heads : d->n_kv_heads, d->d_head, err);
        if (rc) return rc;
    }
    bool is_module = qn_is_module_weight(name, t->rank);
    if (is_module) name[strlen(name) - strlen(".weight")] = '\0';
    qn_item *it = qn_job_add(job, name);
    if (!it) return qn_err_set(err, QN_NOMEM, "tensor %s: out of memory", t->name);
    it->is_module = is_module;
    it->rank = t->rank;
    memcpy(it->dims, t->dims, sizeof t->dims);
    it->rows = (qn_rows){.kind = QN_ROWS_GGUF, .layout = l, .blocks = t->data};
    it->rows.n_rows = qn_item_rows(it);
    it->rows.n_in = (size_t)t->dims[t->rank - 1];
    if (permuted) it->rows.head_rows = (uint32_t)d->d_head;
    if (permuted && t->rank == 1) {
        if (l->block_items != 1)
            return qn_err_set(err, QN_UNSUPPORTED, "tensor %s is a bias of type %s", t->name,
                              l->name);
        it->rows.n_rows = it->rows.n_in;
        it->rows.n_in = 1;
    }
    if ((f->traits & QN_FAM_NORM_PLUS) && (r->flags & IS_NORM)) it->rows.shift = -1.0f;
    return QN_OK;
}

static qn_code add_items(qn_job *job, const qn_gguf_family *f, const qn_gguf_dims *d, qn_err *err)
{
    qn_buf unknown = {0};
    size_t n_unknown = 0;
    qn_code rc = QN_OK;
    for (size_t i = 0; !rc && i < qn_gguf_count(job->gguf); i++) {
        const qn_gguf_tensor *t = qn_gguf_at(job->gguf, i);
        char name[QN_GGUF_MAX_NAME + 64];
        if (!strcmp(t->name, "rope_freqs.weight")) continue; /* became rope_scaling */
        const name_rule *r = map_name(f, t->name, name, sizeof name);
        if (r) rc = add_item(job, f, d, t, r, name, err);
        else if (n_unknown++ < 5) qn_buf_printf(&unknown, "%s%s", unknown.len ? ", " : "", t->name);
    }
    if (!rc && n_unknown)
        rc = qn_err_set(err, QN_UNSUPPORTED, "%zu tensors have no place in an MLX %s model: %s%s",
                        n_unknown, f->model_type, unknown.data ? unknown.data : "?",
                        n_unknown > 5 ? ", ..." : "");
    qn_buf_release(&unknown);
    return rc;
}

static qn_code need(const qn_gguf *g, const char *name, qn_err *err)
{
    if (qn_gguf_find(g, name)) return QN_OK;
    return qn_err_set(err, QN_FORMAT, "tensor %s is missing", name);
}

/* A missing tensor is found here rather than by the first one who loads the folder. */
static qn_code check_complete(const qn_gguf *g, const qn_gguf_family *f, const qn_gguf_dims *d,
                              qn_err *err)
{
    qn_code rc = QN_OK;
    for (size_t i = 0; !rc && i < N_OUTER_RULES; i++)
        if (outer_rules[i].flags & REQUIRED) rc = need(g, outer_rules[i].gguf, err);
    for (uint64_t layer = 0; !rc && layer < d->n_layers; layer++) {
        for (size_t i = 0; !rc && i < N_BLOCK_RULES; i++) {
            if (!applies(&block_rules[i], f)) continue;
            char name[96];
            snprintf(name, sizeof name, "blk.%llu.%s.weight", (unsigned long long)layer,
                     block_rules[i].gguf);
            rc = need(g, name, err);
        }
    }
    return rc;
}

/* float16 is GGUF's own type for scales. A file of bfloat16 matrices stays bfloat16. */
static qn_dtype output_dtype(const qn_job *job)
{
    qn_dtype dtype = QN_F16;
    if (job->opts->dtype) {
        qn_dtype_parse(job->opts->dtype, &dtype);
        return dtype;
    }
    bool has_bf16 = false, has_other = false;
    for (size_t i = 0; i < qn_gguf_count(job->gguf); i++) {
        const qn_gguf_tensor *t = qn_gguf_at(job->gguf, i);
        if (t->rank < 2) continue;
        if (t->type == QN_GGUF_T_BF16) has_bf16 = true;
        else if (t->type != QN_GGUF_T_F32) has_other = true;
    }
    return has_bf16 && !has_other ? QN_BF16 : QN_F16;
}

static void note_losses(const qn_job *job, qn_dtype dtype)
{
    bool quantized = false, near = false;
    for (size_t i = 0; i < job->n_items; i++) {
        const qn_item *it = &job->items[i];
        quantized |= it->keep && it->spec.mode == QN_Q_AFFINE;
        near |= it->keep && !it->rows.layout->exact;
    }
    if (quantized && dtype == QN_BF16)
        qn_job_note(job, "--dtype bfloat16 rounds the file's float16 scales: the import is lossy");
    if (near && dtype == QN_F16)
        qn_job_note(job, "Q4_K and Q5_K scales are products that were rounded to float16");
}

qn_code qn_import_gguf(qn_job *job, qn_err *err)
{
    const qn_gguf_family *f = NULL;
    qn_gguf_dims d = {0};
    qn_code rc = qn_gguf_open(&job->gguf, job->opts->source, err);
    if (rc) return rc;
    rc = qn_gguf_family_of(job->gguf, &f, err);
    if (!rc) rc = qn_gguf_read_dims(job->gguf, f, &d, err);
    if (!rc) rc = check_complete(job->gguf, f, &d, err);
    if (!rc) rc = add_items(job, f, &d, err);
    if (!rc) rc = qn_plan(job, (uint32_t)d.n_layers, err);
    if (rc) return qn_err_prefix(err, "%s", job->opts->source);
    qn_dtype dtype = output_dtype(job);
    for (size_t i = 0; i < job->n_items; i++) job->items[i].dtype = dtype;
    note_losses(job, dtype);
    rc = qn_gguf_config(job, f, &d, dtype, err);
    return rc ? qn_err_prefix(err, "%s", job->opts->source) : QN_OK;
}
