/* dense_open.c - binding a checkpoint's tensors to a descriptor and loading them onto a device.
 *
 * All matrices go to the device in one call, so that it can build or find its derived layout for
 * the whole model; vectors are uploaded one by one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/dense.h"

enum { MAX_PATH = 160, MATRICES_PER_LAYER = 20, FORGET_BYTES = 16 << 20 };

typedef struct binder {
    qn_dense *m;
    qn_folder *f;
    qn_matrix_src *src;   /* matrices to load, in order */
    qn_linear **where;    /* and the field that gets each */
    size_t n, cap;
    qn_err *err;
} binder;

/* Path of `name` in layer i, or of `name` alone when i < 0. In the arena: it names cache entries.
 */
static char *path_of(binder *b, int i, const char *name)
{
    qn_arena *a = &b->m->arena;
    char *p = i < 0 ? qn_arena_dup(a, name, strlen(name))
                    : qn_arena_printf(a, "%s.%d.%s", b->m->d.names.layers, i, name);
    if (!p) qn_err_set(b->err, QN_NOMEM, "model: out of memory");
    return p;
}

static qn_code bind_vector(binder *b, const char *name, uint64_t count, bool optional, bool add_one,
                           qn_tensor *out)
{
    const qn_stored *t;
    qn_code rc = qn_folder_vector(b->f, name, count, optional, &t, b->err);
    if (rc || !t) return rc;
    b->m->base.info.n_params += count;
    const qn_ops *ops = b->m->base.dev->ops;
    if (!add_one)
        return ops->upload(b->m->base.dev, t->data, t->dtype, 1, (uint32_t)count, out, b->err);
    float *v = malloc(count * sizeof *v);
    if (!v) return qn_err_set(b->err, QN_NOMEM, "model: out of memory");
    qn_widen(v, t->data, t->dtype, count);
    for (uint64_t i = 0; i < count; i++) v[i] = 1 + v[i];
    void *rounded = malloc(count * sizeof *v);
    if (rounded) {
        qn_narrow(rounded, t->dtype, v, count);
        rc = ops->upload(b->m->base.dev, rounded, t->dtype, 1, (uint32_t)count, out, b->err);
    } else {
        rc = qn_err_set(b->err, QN_NOMEM, "model: out of memory");
    }
    free(rounded);
    free(v);
    return rc;
}

static qn_code bind_norm(binder *b, int i, const char *name, uint32_t width, qn_norm *out)
{
    if (!name) return QN_OK;
    char *path = path_of(b, i, name), full[MAX_PATH + 8];
    if (!path) return QN_NOMEM;
    snprintf(full, sizeof full, "%s.weight", path);
    qn_code rc = bind_vector(b, full, width, false, b->m->d.norm == QN_NORM_RMS1, &out->w);
    if (rc || b->m->d.norm != QN_NORM_LAYER) return rc;
    snprintf(full, sizeof full, "%s.bias", path);
    return bind_vector(b, full, width, true, false, &out->b);
}

/* Upload a small tensor [rows, cols] of layer i by its full name. */
static qn_code bind_tensor(binder *b, int i, const char *name, uint32_t rows, uint32_t cols,
                           qn_tensor *out)
{
    char *path = path_of(b, i, name);
    const qn_stored *t;
    if (!path) return QN_NOMEM;
    qn_code rc = qn_folder_vector(b->f, path, (uint64_t)rows * cols, false, &t, b->err);
    if (rc) return rc;
    b->m->base.info.n_params += (uint64_t)rows * cols;
    return b->m->base.dev->ops->upload(b->m->base.dev, t->data, t->dtype, rows, cols, out, b->err);
}

/* Queue the matrix `name` for loading into *out; with_bias: the module has a `.bias` vector. */
static qn_code bind_stack(binder *b, int i, const char *name, uint32_t n_experts, uint32_t n_out,
                          uint32_t n_in, qn_linear *out)
{
    char *path = path_of(b, i, name);
    if (!path) return QN_NOMEM;
    qn_check(b->n < b->cap);
    qn_matrix_src *s = &b->src[b->n];
    s->path = path;
    qn_code rc = qn_folder_matrix(b->f, path, n_experts, n_out, n_in, &s->m, b->err);
    if (!rc) b->where[b->n++] = out;
    return rc;
}

static qn_code bind_linear(binder *b, int i, const char *name, uint32_t n_out, uint32_t n_in,
                           bool with_bias, qn_linear *out)
{
    if (!name) return QN_OK;
    qn_code rc = bind_stack(b, i, name, 0, n_out, n_in, out);
    if (rc) return rc;
    char *path = path_of(b, i, name);
    if (!path) return QN_NOMEM;
    if (!with_bias) return QN_OK;
    char full[MAX_PATH + 8];
    snprintf(full, sizeof full, "%s.bias", path);
    return bind_vector(b, full, n_out, false, false, &out->bias);
}

/* Stack the matrices of raw checkpoints, "EXPERTS.e.PROJ", into one matrix in the model's arena. */
static qn_code stack_raw(binder *b, int i, const char *proj, uint32_t n_out, uint32_t n_in,
                         qn_linear *out)
{
    const qn_moe *moe = &b->m->d.moe;
    qn_matrix_src *s = &b->src[b->n];
    uint8_t *all[3] = {0}; /* weight, scales, biases */
    size_t bytes[3] = {0};
    qn_check(b->n < b->cap);
    for (uint32_t e = 0; e < moe->n_experts; e++) {
        qn_matrix m;
        char *path = qn_arena_printf(&b->m->arena, "%s.%d.%s.%u.%s", b->m->d.names.layers, i,
                                     b->m->d.names.experts, e, proj);
        if (!path) return qn_err_set(b->err, QN_NOMEM, "model: out of memory");
        qn_code rc = qn_folder_matrix(b->f, path, 0, n_out, n_in, &m, b->err);
        if (rc) return rc;
        const void *part[3] = {m.weight, m.scales, m.biases};
        if (e == 0) {
            *s = (qn_matrix_src){.path = path, .m = m};
            size_t groups = m.spec.mode ? (size_t)n_out * n_in / m.spec.group_size : 0;
            bytes[0] = m.spec.mode ? n_out * qn_qrow_bytes(&m.spec, n_in)
                                   : (size_t)n_out * n_in * qn_dtype_size(m.dtype);
            bytes[1] = bytes[2] =
                groups * (m.spec.mode == QN_Q_AFFINE ? qn_dtype_size(m.dtype) : 1);
        }
        if (memcmp(&m.spec, &s->m.spec, sizeof m.spec) || m.dtype != s->m.dtype) {
            return qn_err_set(b->err, QN_FORMAT,
                              "%s: experts of one layer differ in number type or quantization",
                              path);
        }
        for (int k = 0; k < 3; k++) {
            if (!part[k]) continue;
            if (!all[k] && !(all[k] = qn_arena_take(&b->m->arena, moe->n_experts, bytes[k]))) {
                return qn_err_set(b->err, QN_NOMEM, "model: out of memory for stacked experts");
            }
            memcpy(all[k] + e * bytes[k], part[k], bytes[k]);
        }
    }
    s->m.n_experts = moe->n_experts;
    s->m.weight = all[0];
    s->m.scales = all[1];
    s->m.biases = all[2];
    b->where[b->n++] = out;
    return QN_OK;
}

/* Queue a matrix that was made, not bound. */
static void add_made(binder *b, const char *path, const qn_matrix *m, qn_linear *out)
{
    qn_check(b->n < b->cap);
    b->src[b->n] = (qn_matrix_src){path, *m};
    b->where[b->n++] = out;
}

/* The transposed stack [E, n_in, cols] of a raw checkpoint, or n_out of its columns from `from` on, as
 * the stack `name` [E, n_out, n_in] in the model's arena. */
static qn_code turn_raw(binder *b, int i, const char *raw, uint32_t cols, uint32_t from, const char *name,
                        uint32_t n_out, uint32_t n_in, qn_linear *out)
{
    const uint32_t n = b->m->d.moe.n_experts;
    char *full = path_of(b, i, raw), *path = path_of(b, i, name);
    const qn_stored *t;
    if (!full || !path) return QN_NOMEM;
    qn_code rc = qn_folder_vector(b->f, full, (uint64_t)n * n_in * cols, false, &t, b->err);
    if (rc) return rc;
    if (t->rank != 3 || t->dims[0] != n || t->dims[1] != n_in || t->dtype > QN_BF16)
        return qn_err_set(b->err, QN_FORMAT, "tensor \"%s\" must be [%u, %u, %u] of a float type", full, n,
                          n_in, cols);
    const size_t size = qn_dtype_size(t->dtype), rows = (size_t)n * n_in;
    uint8_t *all = qn_arena_take(&b->m->arena, rows * n_out, size);
    if (!all) return qn_err_set(b->err, QN_NOMEM, "model: out of memory for transposed experts");
    for (size_t row = 0; row < rows; row++) {
        const uint8_t *x = (const uint8_t *)t->data + (row * cols + from) * size;
        uint8_t *y = all + (row / n_in * n_out * n_in + row % n_in) * size;
        for (uint32_t o = 0; o < n_out; o++) memcpy(y + (size_t)o * n_in * size, x + o * size, size);
    }
    const qn_matrix m = {.n_experts = n, .n_out = n_out, .n_in = n_in, .weight = all, .dtype = t->dtype};
    add_made(b, path, &m, out);
    return QN_OK;
}

static qn_code turn_experts(binder *b, int i, qn_layer *l)
{
    const qn_names *n = &b->m->d.names;
    const uint32_t e = b->m->d.d_model, ff = b->m->d.moe.d_ff;
    qn_code rc;
    if ((rc = turn_raw(b, i, n->turned_gate_up, 2 * ff, 0, n->e_gate, ff, e, &l->e_gate))) return rc;
    if ((rc = turn_raw(b, i, n->turned_gate_up, 2 * ff, ff, n->e_up, ff, e, &l->e_up))) return rc;
    return turn_raw(b, i, n->turned_down, e, 0, n->e_down, e, ff, &l->e_down);
}

static bool has_turned_experts(binder *b, int i)
{
    char *path = b->m->d.names.turned_down ? path_of(b, i, b->m->d.names.turned_down) : NULL;
    return path && qn_folder_has(b->f, path);
}

static bool has_raw_experts(binder *b, int i)
{
    char name[MAX_PATH];
    const qn_names *n = &b->m->d.names;
    if (!n->experts) return false;
    snprintf(name, sizeof name, "%s.%d.%s.0.up_proj.weight", n->layers, i, n->experts);
    return qn_folder_has(b->f, name);
}

static qn_code bind_experts(binder *b, int i, qn_layer *l)
{
    const qn_desc *d = &b->m->d;
    const qn_names *n = &d->names;
    const qn_moe *moe = &d->moe;
    uint32_t e = d->d_model;
    qn_code rc;
    if ((rc = bind_linear(b, i, n->router, moe->n_experts, e, false, &l->router))) return rc;
    if (n->router_bias && (rc = bind_tensor(b, i, n->router_bias, 1, moe->n_experts, &l->router_bias)))
        return rc;
    if (has_turned_experts(b, i)) {
        if ((rc = turn_experts(b, i, l))) return rc;
    } else if (has_raw_experts(b, i)) {
        if ((rc = stack_raw(b, i, "gate_proj", moe->d_ff, e, &l->e_gate))) return rc;
        if ((rc = stack_raw(b, i, "up_proj", moe->d_ff, e, &l->e_up))) return rc;
        if ((rc = stack_raw(b, i, "down_proj", e, moe->d_ff, &l->e_down))) return rc;
    } else {
        if ((rc = bind_stack(b, i, n->e_gate, moe->n_experts, moe->d_ff, e, &l->e_gate))) return rc;
        if ((rc = bind_stack(b, i, n->e_up, moe->n_experts, moe->d_ff, e, &l->e_up))) return rc;
        if ((rc = bind_stack(b, i, n->e_down, moe->n_experts, e, moe->d_ff, &l->e_down))) return rc;
    }
    if (!moe->d_ff_shared) return QN_OK;
    if ((rc = bind_linear(b, i, n->s_gate, moe->d_ff_shared, e, false, &l->s_gate))) return rc;
    if ((rc = bind_linear(b, i, n->s_up, moe->d_ff_shared, e, false, &l->s_up))) return rc;
    if ((rc = bind_linear(b, i, n->s_down, e, moe->d_ff_shared, false, &l->s_down))) return rc;
    return bind_linear(b, i, n->s_mix, 1, e, false, &l->s_mix);
}

static qn_code bind_gated_delta(binder *b, int i, qn_layer *l)
{
    const qn_desc *d = &b->m->d;
    const qn_names *n = &d->names;
    const qn_gdn *g = &d->gdn;
    uint32_t e = d->d_model, n_v = g->n_v_heads * g->d_v,
             channels = 2 * g->n_k_heads * g->d_k + n_v;
    qn_code rc;
    if ((rc = bind_linear(b, i, n->g_qkv, channels, e, false, &l->g_qkv))) return rc;
    if ((rc = bind_linear(b, i, n->g_z, n_v, e, false, &l->g_z))) return rc;
    if ((rc = bind_linear(b, i, n->g_b, g->n_v_heads, e, false, &l->g_b))) return rc;
    if ((rc = bind_linear(b, i, n->g_a, g->n_v_heads, e, false, &l->g_a))) return rc;
    if ((rc = bind_linear(b, i, n->g_out, e, n_v, false, &l->g_out))) return rc;
    if ((rc = bind_tensor(b, i, n->g_conv, channels, g->conv_width + 1, &l->g_conv))) return rc;
    if ((rc = bind_tensor(b, i, n->g_dt_bias, 1, g->n_v_heads, &l->g_dt_bias))) return rc;
    if ((rc = bind_tensor(b, i, n->g_a_log, 1, g->n_v_heads, &l->g_a_log))) return rc;
    return bind_tensor(b, i, n->g_norm, 1, g->d_v, &l->g_norm);
}

static qn_code bind_mlp(binder *b, int i, qn_layer *l)
{
    if (l->d->sparse) return bind_experts(b, i, l);
    const qn_desc *d = &b->m->d;
    const qn_names *n = &d->names;
    uint32_t e = d->d_model, ff = l->d->d_ff;
    qn_code rc;
    if (d->mlp == QN_MLP_GLU_FUSED) {
        if ((rc = bind_linear(b, i, n->gate_up, 2 * ff, e, d->mlp_bias, &l->gate_up))) return rc;
    } else {
        if (d->mlp == QN_MLP_GLU && (rc = bind_linear(b, i, n->gate, ff, e, d->mlp_bias, &l->gate)))
            return rc;
        if ((rc = bind_linear(b, i, n->up, ff, e, d->mlp_bias, &l->up))) return rc;
    }
    return bind_linear(b, i, n->down, e, ff, d->mlp_bias, &l->down);
}

static qn_code bind_attention(binder *b, int i, qn_layer *l)
{
    const qn_desc *d = &b->m->d;
    const qn_names *n = &d->names;
    uint32_t e = d->d_model, nq = l->d->n_heads * l->d->d_head,
             nk = l->d->n_kv_heads * l->d->d_head;
    qn_code rc;
    if (n->qkv) {
        if ((rc = bind_linear(b, i, n->qkv, nq + 2 * nk, e, d->qkv_bias, &l->qkv))) return rc;
    } else {
        if ((rc = bind_linear(b, i, n->q, d->attn_gate ? 2 * nq : nq, e, d->qkv_bias, &l->q)))
            return rc;
        if ((rc = bind_linear(b, i, n->k, nk, e, d->qkv_bias, &l->k))) return rc;
        if ((rc = bind_linear(b, i, n->v, nk, e, d->qkv_bias, &l->v))) return rc;
    }
    if ((rc = bind_linear(b, i, n->o, e, nq, d->o_bias, &l->o))) return rc;
    if (d->qk_norm == QN_QK_NONE) return QN_OK;
    bool head = d->qk_norm == QN_QK_HEAD;
    if ((rc = bind_norm(b, i, n->q_norm, head ? l->d->d_head : nq, &l->q_norm))) return rc;
    return bind_norm(b, i, n->k_norm, head ? l->d->d_head : nk, &l->k_norm);
}

/* What brings queries to the latent and latents to results: two stacks, or `kv_b`. */
static qn_code bind_absorbed(binder *b, int i, qn_layer *l)
{
    const qn_names *n = &b->m->d.names;
    const qn_mla *d = &b->m->d.mla;
    const uint32_t heads = l->d->n_heads;
    if (d->expands)
        return bind_linear(b, i, n->kv_b, heads * (d->d_nope + d->d_v), d->kv_lora, false, &l->kv_b);
    char *raw = path_of(b, i, n->kv_b), *embed = path_of(b, i, n->embed_q),
         *unembed = path_of(b, i, n->unembed), name[MAX_PATH + 8];
    qn_matrix all, parts[2];
    qn_code rc;
    if (!raw || !embed || !unembed) return QN_NOMEM;
    snprintf(name, sizeof name, "%s.weight", raw);
    if (!qn_folder_has(b->f, name)) {
        rc = bind_stack(b, i, n->embed_q, heads, d->kv_lora, d->d_nope, &l->embed_q);
        return rc ? rc : bind_stack(b, i, n->unembed, heads, d->d_v, d->kv_lora, &l->unembed);
    }
    if ((rc = qn_folder_matrix(b->f, raw, 0, heads * (d->d_nope + d->d_v), d->kv_lora, &all, b->err)))
        return rc;
    rc = qn_kv_b_split(&all, heads, d->d_nope, d->d_v, raw, &b->m->arena, &parts[0], &parts[1], b->err);
    if (rc) return rc;
    add_made(b, embed, &parts[0], &l->embed_q);
    add_made(b, unembed, &parts[1], &l->unembed);
    return QN_OK;
}

static qn_code bind_latent(binder *b, int i, qn_layer *l)
{
    const qn_desc *d = &b->m->d;
    const qn_names *n = &d->names;
    const qn_mla *a = &d->mla;
    const uint32_t e = d->d_model, nq = l->d->n_heads * l->d->d_head;
    qn_code rc;
    if (a->q_lora) {
        if ((rc = bind_linear(b, i, n->q_a, a->q_lora, e, d->qkv_bias, &l->q_a))) return rc;
        if ((rc = bind_norm(b, i, n->q_a_norm, a->q_lora, &l->q_norm))) return rc;
        if ((rc = bind_linear(b, i, n->q_b, nq, a->q_lora, false, &l->q))) return rc;
    } else if ((rc = bind_linear(b, i, n->q, nq, e, false, &l->q))) {
        return rc;
    }
    if ((rc = bind_linear(b, i, n->kv_a, a->kv_lora + a->d_rope, e, d->qkv_bias, &l->kv_a))) return rc;
    if ((rc = bind_norm(b, i, n->kv_a_norm, a->kv_lora, &l->k_norm))) return rc;
    if ((rc = bind_absorbed(b, i, l))) return rc;
    return bind_linear(b, i, n->o, e, l->d->n_heads * a->d_v, d->o_bias, &l->o);
}

static qn_code bind_mixer(binder *b, int i, qn_layer *l)
{
    return l->d->recurrent ? bind_gated_delta(b, i, l)
           : l->d->latent  ? bind_latent(b, i, l)
                           : bind_attention(b, i, l);
}

static qn_code bind_layer(binder *b, int i)
{
    qn_layer *l = &b->m->layers[i];
    const qn_names *n = &b->m->d.names;
    uint32_t e = b->m->d.d_model;
    l->d = &b->m->d.layers[i];
    qn_code rc;
    if ((rc = bind_norm(b, i, n->n1, e, &l->n1))) return rc;
    if ((rc = bind_norm(b, i, n->n2, e, &l->n2))) return rc;
    if ((rc = bind_norm(b, i, n->n3, e, &l->n3))) return rc;
    if ((rc = bind_norm(b, i, n->n4, e, &l->n4))) return rc;
    if ((rc = bind_mixer(b, i, l))) return rc;
    return bind_mlp(b, i, l);
}

/* Names that raw checkpoints carry and no graph uses. */
static void drop_unused(binder *b)
{
    const qn_shards *s = qn_folder_shards(b->f);
    const qn_desc *d = &b->m->d;
    for (size_t i = 0; i < qn_shards_count(s); i++) {
        const char *name = qn_shards_at(s, i)->name;
        bool rotary = strstr(name, "self_attn.rotary_emb.inv_freq") != NULL;
        size_t n = strlen(d->names.head);
        bool head =
            d->tied && d->drop_head_if_tied && !strncmp(name, d->names.head, n) && name[n] == '.';
        if (rotary || head) qn_folder_drop(b->f, name);
    }
}

static qn_code bind_all(binder *b)
{
    qn_dense *m = b->m;
    const qn_desc *d = &m->d;
    qn_code rc;
    drop_unused(b);
    if ((rc = bind_linear(b, -1, d->names.embed, d->n_vocab, d->d_model, false, &m->embed)))
        return rc;
    for (uint32_t i = 0; i < d->n_layers; i++) {
        if ((rc = bind_layer(b, (int)i))) return rc;
    }
    if ((rc = bind_norm(b, -1, d->names.final_norm, d->d_model, &m->final_norm))) return rc;
    if (!d->tied &&
        (rc = bind_linear(b, -1, d->names.head, d->n_vocab, d->d_model, d->head_bias, &m->head)))
        return rc;
    return qn_folder_check_all_used(b->f, b->err);
}

/* Is it a stack with a matrix per head? All of those are read for a token. */
static bool is_of_heads(const qn_dense *m, const qn_linear *w)
{
    for (uint32_t i = 0; i < m->d.n_layers; i++)
        if (w == &m->layers[i].embed_q || w == &m->layers[i].unembed) return true;
    return false;
}

static void count_params(qn_dense *m, const binder *b)
{
    for (size_t i = 0; i < b->n; i++) {
        const qn_matrix *x = &b->src[i].m;
        uint64_t n = (uint64_t)x->n_experts * x->n_out * x->n_in,
                 rows = (uint64_t)x->n_experts * x->n_out, bytes;
        if (x->spec.mode == QN_Q_NONE) {
            bytes = n * qn_dtype_size(x->dtype);
        } else {
            uint64_t groups = n / x->spec.group_size;
            bool affine = x->spec.mode == QN_Q_AFFINE;
            bytes = rows * qn_qrow_bytes(&x->spec, x->n_in) +
                    groups * (affine ? 2 * qn_dtype_size(x->dtype) : 1);
        }
        m->base.info.n_params += n;
        bool lookup = b->where[i] == &m->embed && !m->d.tied;
        uint64_t read = lookup ? bytes / x->n_out : bytes;
        const bool heads = is_of_heads(m, b->where[i]);
        if (x->n_experts > 1 && !heads)
            read = bytes / x->n_experts * m->d.moe.router.k; /* a token meets k experts */
        m->base.info.step_bytes += read;
    }
}

/* A layer that mlx-lm builds draws its weights, and again when it is replaced by its quantized form;
 * a Linear draws its bias too. Gated delta layers also draw their convolution and their decay. DeepSeek's
 * routers start as zeros. */
static void count_init_draws(qn_dense *m, const binder *b)
{
    const qn_router_kind kind = m->d.moe.router.kind;
    uint32_t n = m->d.extra_init_draws;
    for (size_t i = 0; i < b->n; i++) {
        const qn_matrix *x = &b->src[i].m;
        n += 1 + (x->spec.mode != QN_Q_NONE) + (x->n_experts <= 1 && b->where[i]->bias.addr);
    }
    for (uint32_t i = 0; i < m->d.n_layers; i++) {
        const qn_layer_desc *l = &m->d.layers[i];
        n += l->recurrent ? 2 : 0;
        n -= l->sparse && (kind == QN_ROUTE_SIGMOID || kind == QN_ROUTE_SOFTMAX_GROUPS);
    }
    m->base.info.n_init_draws = n;
}

/* The float type of the checkpoint: that of the final norm's neighbours, the first matrix's scales.
 */
static qn_dtype model_dtype(const binder *b)
{
    const json_t *cfg = qn_folder_config(b->f);
    for (size_t i = 0; i < b->n; i++) {
        if (b->src[i].m.spec.mode == QN_Q_AFFINE || b->src[i].m.spec.mode == QN_Q_NONE)
            return b->src[i].m.dtype;
    }
    qn_dtype t = QN_BF16;
    const char *name = json_string_value(json_object_get(cfg, "torch_dtype"));
    if (!name) name = json_string_value(json_object_get(cfg, "dtype"));
    if (name) qn_dtype_parse(name, &t);
    return t;
}

typedef struct loading {
    const qn_model_opts *opts;
    const qn_shards *files;
    uint64_t forgotten; /* bytes made when the files were last forgotten */
} loading;

/* A device that makes its own layout reads each part of the files once; both must not be in memory. */
static void on_load(void *user, uint64_t done, uint64_t total)
{
    loading *l = user;
    if (done - l->forgotten >= FORGET_BYTES || done == total) {
        qn_shards_forget(l->files);
        l->forgotten = done;
    }
    if (l->opts->progress) l->opts->progress(l->opts->user, done, total);
}

static qn_code load_matrices(binder *b, const qn_model_opts *opts)
{
    loading l = {.opts = opts, .files = qn_folder_shards(b->f)};
    qn_weight **w = calloc(b->n, sizeof *w);
    if (!w) return qn_err_set(b->err, QN_NOMEM, "model: out of memory");
    qn_load_opts lo = {
        .fingerprint = qn_shards_fingerprint(l.files),
        .cache_dir = opts->cache_dir,
        .model_dtype = b->m->base.info.dtype,
        .progress = on_load,
        .user = &l,
    };
    qn_device *dev = b->m->base.dev;
    qn_code rc = dev->ops->load(dev, b->src, b->n, &lo, w, b->err);
    if (!rc) qn_shards_forget(l.files); /* vectors were copied, and the headers are read */
    for (size_t i = 0; !rc && i < b->n; i++) b->where[i]->w = w[i];
    if (!rc && b->m->d.tied) b->m->head = b->m->embed;
    free(w);
    return rc;
}

static qn_kv_codec codec_of(qn_dtype t)
{
    return (qn_kv_codec){t == QN_F16 ? QN_KV_F16 : t == QN_F32 ? QN_KV_F32 : QN_KV_BF16, 0, t};
}

/* One group per distinct window; layers share a group when they share a rule. */
static qn_code plan_kv(qn_dense *m, qn_err *err)
{
    qn_kv_spec *kv = &m->base.kv;
    kv->n_layers = m->d.n_layers;
    kv->layers = qn_arena_take(&m->arena, kv->n_layers, sizeof *kv->layers);
    if (!kv->layers) return qn_err_set(err, QN_NOMEM, "model: out of memory");
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        const qn_layer_desc *l = &m->d.layers[i];
        if (l->recurrent) {
            const qn_gdn *g = &m->d.gdn;
            uint32_t channels = 2 * g->n_k_heads * g->d_k + g->n_v_heads * g->d_v;
            kv->layers[i].state =
                (qn_state_layer){g->conv_width, channels, g->n_v_heads, g->d_v, g->d_k};
            kv->n_states = 1; /* the engine sets how many */
            continue;
        }
        uint32_t g = 0;
        const qn_kv_rule rule = l->chunked ? QN_KV_CHUNKED : l->window ? QN_KV_SLIDING : QN_KV_FULL;
        while (g < kv->n_groups && (kv->groups[g].window != l->window || kv->groups[g].rule != rule)) g++;
        if (g == kv->n_groups) {
            if (g == QN_MAX_KV_GROUPS) {
                return qn_err_set(err, QN_UNSUPPORTED, "more than %d different attention windows",
                                  QN_MAX_KV_GROUPS);
            }
            kv->groups[g] = (qn_kv_group){rule, l->window, 0};
            kv->n_groups++;
        }
        kv->layers[i] = (qn_kv_layer){.group = g,
                                      .n_kv_heads = l->n_kv_heads,
                                      .d_k = l->d_head,
                                      .d_v = l->latent ? m->d.mla.d_v : l->d_head,
                                      .k_codec = codec_of(m->base.info.dtype),
                                      .v_codec = codec_of(m->base.info.dtype)};
        if (!l->latent || m->d.mla.expands) continue;
        kv->layers[i].latent = true;
        kv->layers[i].d_k = m->d.mla.kv_lora;
        kv->layers[i].d_v = m->d.mla.d_rope;
    }
    return QN_OK;
}

static qn_code make_ropes(qn_dense *m, uint32_t max_positions, qn_err *err)
{
    qn_device *dev = m->base.dev;
    for (uint32_t i = 0; i < m->d.n_ropes; i++) {
        qn_code rc = dev->ops->rope_new(dev, &m->d.ropes[i], max_positions, &m->ropes[i], err);
        if (rc) return rc;
    }
    return QN_OK;
}

static void dense_close(qn_model *base)
{
    qn_dense *m = (qn_dense *)base;
    qn_arena_release(&m->arena);
    free(m);
}

static const qn_model_ops dense_ops = {qn_dense_forward, dense_close};

/* Kernels trust the descriptor, and its numbers come from a file: heads must divide, and the rotated part of a head
 * must lie inside it. */
static qn_code check_desc(const binder *b)
{
    const qn_desc *d = &b->m->d;
    for (uint32_t i = 0; i < d->n_layers; i++) {
        const qn_layer_desc *l = &d->layers[i];
        if (l->recurrent) continue;
        if (!l->n_kv_heads || l->n_heads % l->n_kv_heads) {
            return qn_err_set(b->err, QN_FORMAT, "config.json: layer %u has %u heads over %u KV heads", i,
                              l->n_heads, l->n_kv_heads);
        }
        if (l->rope == QN_NO_ROPE) continue;
        if (l->rope >= d->n_ropes || d->ropes[l->rope].dims > l->d_head) {
            return qn_err_set(b->err, QN_FORMAT,
                              "config.json: layer %u rotates %u elements of heads of %u; at most the whole "
                              "head can be rotated", i, d->ropes[l->rope].dims, l->d_head);
        }
    }
    return QN_OK;
}

/* A device may lack the operations of a kind of layer. */
static qn_code check_device(const binder *b)
{
    const qn_device *dev = b->m->base.dev;
    for (uint32_t i = 0; i < b->m->d.n_layers; i++) {
        const qn_layer_desc *l = &b->m->d.layers[i];
        const char *what = l->sparse && !dev->ops->route           ? "experts"
                           : l->recurrent && !dev->ops->delta      ? "gated delta layers"
                           : l->latent && !b->m->d.mla.expands && !dev->ops->attend_latent ? "latent attention"
                                                                   : NULL;
        if (what)
            return qn_err_set(b->err, QN_UNSUPPORTED, "not supported yet: %s on the device %s",
                              what, dev->name);
    }
    return QN_OK;
}

static qn_code open_parts(binder *b, const qn_model_opts *opts)
{
    qn_dense *m = b->m;
    qn_code rc = check_desc(b);
    if (rc || (rc = check_device(b)) || (rc = bind_all(b))) return rc;
    m->base.info.dtype = model_dtype(b);
    count_params(m, b);
    count_init_draws(m, b);
    if ((rc = load_matrices(b, opts))) return rc;
    if ((rc = plan_kv(m, b->err))) return rc;
    uint32_t reach = opts->max_positions  ? opts->max_positions
                     : m->d.max_positions ? m->d.max_positions
                                          : 32768;
    return make_ropes(m, reach, b->err);
}

qn_code qn_dense_open(qn_model **out, const qn_desc *d, qn_folder *f, qn_device *dev,
                      qn_arena *arena, const qn_model_opts *opts, qn_err *err)
{
    *out = NULL;
    qn_dense *m = calloc(1, sizeof *m);
    if (!m) {
        qn_arena_release(arena);
        return qn_err_set(err, QN_NOMEM, "model: out of memory");
    }
    m->base = (qn_model){.ops = &dense_ops, .dev = dev};
    m->d = *d;
    m->arena = *arena;
    *arena = (qn_arena){0};
    m->base.info.n_vocab = d->n_vocab;
    m->base.info.n_layers = d->n_layers;
    m->base.info.d_model = d->d_model;
    m->base.info.max_positions = d->max_positions;
    binder b = {.m = m, .f = f, .err = err, .cap = (size_t)d->n_layers * MATRICES_PER_LAYER + 2};
    b.src = calloc(b.cap, sizeof *b.src);
    b.where = calloc(b.cap, sizeof *b.where);
    m->layers = qn_arena_take(&m->arena, d->n_layers, sizeof *m->layers);
    qn_code rc = b.src && b.where && m->layers ? open_parts(&b, opts)
                                               : qn_err_set(err, QN_NOMEM, "model: out of memory");
    free(b.src);
    free(b.where);
    if (rc) {
        dense_close(&m->base);
        return rc;
    }
    *out = &m->base;
    return QN_OK;
}
