/* synthetic.c - see synthetic.h. */
#include "cli/synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/file.h"
#include "format/quant.h"
#include "format/shard.h"

enum { PATH_CAP = 4096, CHUNK = 1 << 20, MAX_TENSORS = 2048 };

/* One model shape of the llama family; field names as in config.json. */
typedef struct shape {
    const char *name;
    uint32_t num_hidden_layers, hidden_size, intermediate_size, num_attention_heads, num_key_value_heads, head_dim;
    uint32_t vocab_size, max_position_embeddings;
    double rope_theta;
    bool tie_word_embeddings;
} shape;

static const shape shapes[] = {
    {"smollm2-135m", 30, 576, 1536, 9, 3, 64, 49152, 8192, 100000, true},
    {"smollm2-1.7b", 24, 2048, 8192, 32, 32, 64, 49152, 8192, 130000, true},
    {"llama-3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 500000, true},
    {"llama-3.2-3b", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 500000, true},
    {"llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 500000, false},
};
const char qn_synthetic_names[] = "smollm2-135m|smollm2-1.7b|llama-3.2-1b|llama-3.2-3b|llama-3.1-8b";

typedef struct maker {
    const shape *s;
    qn_qspec q;
    qn_arena arena;            /* tensor names */
    qn_plan_tensor *plan;      /* [n] */
    size_t n;
    uint64_t done, total;      /* bytes */
    bool (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
    uint64_t random;           /* state of the generator */
} maker;

/* ---- what is in it ---- */

static uint64_t plan_bytes(const qn_plan_tensor *t)
{
    uint64_t n = qn_dtype_size(t->dtype);
    for (uint32_t i = 0; i < t->rank; i++) n *= t->dims[i];
    return n;
}

static void add_tensor(maker *m, const char *module, const char *part, qn_dtype t, uint64_t rows, uint64_t columns)
{
    qn_check(m->n < MAX_TENSORS);
    qn_plan_tensor *p = &m->plan[m->n++];
    *p = (qn_plan_tensor){.name = qn_arena_printf(&m->arena, "%s.%s", module, part), .dtype = t,
                          .rank = columns ? 2 : 1, .dims = {rows, columns}};
    m->total += plan_bytes(p);
}

static void add_matrix(maker *m, const char *module, uint64_t n_out, uint64_t n_in)
{
    add_tensor(m, module, "weight", QN_U32, n_out, n_in * m->q.bits / 32);
    add_tensor(m, module, "scales", QN_BF16, n_out, n_in / m->q.group_size);
    add_tensor(m, module, "biases", QN_BF16, n_out, n_in / m->q.group_size);
}

static void add_layer(maker *m, uint32_t i)
{
    const shape *s = m->s;
    const uint64_t e = s->hidden_size, q = s->num_attention_heads * (uint64_t)s->head_dim,
                   kv = s->num_key_value_heads * (uint64_t)s->head_dim, f = s->intermediate_size;
    const struct { const char *name; uint64_t n_out, n_in; } parts[] = {
        {"self_attn.q_proj", q, e}, {"self_attn.k_proj", kv, e}, {"self_attn.v_proj", kv, e},
        {"self_attn.o_proj", e, q}, {"mlp.gate_proj", f, e}, {"mlp.up_proj", f, e}, {"mlp.down_proj", e, f},
        {"input_layernorm", e, 0}, {"post_attention_layernorm", e, 0},
    };
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        char module[96];
        snprintf(module, sizeof module, "model.layers.%u.%s", i, parts[k].name);
        if (parts[k].n_in) add_matrix(m, module, parts[k].n_out, parts[k].n_in);
        else add_tensor(m, module, "weight", QN_BF16, parts[k].n_out, 0);
    }
}

static qn_code plan_all(maker *m, qn_err *err)
{
    m->plan = calloc(MAX_TENSORS, sizeof *m->plan);
    if (!m->plan) return qn_err_set(err, QN_NOMEM, "synthetic: out of memory");
    add_matrix(m, "model.embed_tokens", m->s->vocab_size, m->s->hidden_size);
    for (uint32_t i = 0; i < m->s->num_hidden_layers; i++) add_layer(m, i);
    add_tensor(m, "model.norm", "weight", QN_BF16, m->s->hidden_size, 0);
    if (!m->s->tie_word_embeddings) add_matrix(m, "lm_head", m->s->vocab_size, m->s->hidden_size);
    for (size_t i = 0; i < m->n; i++) {
        if (!m->plan[i].name) return qn_err_set(err, QN_NOMEM, "synthetic: out of memory");
    }
    return QN_OK;
}

/* ---- values ---- */

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Weights are near normal size: uniform codes times a scale that gives a standard deviation of about
 * 0.02, and a bias that puts their mean at 0. Norms are 1. */
static void fill(maker *m, const qn_plan_tensor *t, uint8_t *out, size_t n)
{
    if (t->dtype == QN_U32) {
        for (size_t i = 0; i < n; i += 8) {
            uint64_t v = next_random(&m->random);
            memcpy(out + i, &v, n - i < 8 ? n - i : 8);
        }
        return;
    }
    float top = (float)((1u << m->q.bits) - 1), scale = 0.02f / (top * 0.289f);
    bool is_norm = t->rank == 1, is_bias = strstr(t->name, ".biases") != NULL;
    float value = is_norm ? 1 : is_bias ? -scale * top / 2 : scale;
    uint16_t bits = qn_f32_bf16(value);
    for (size_t i = 0; i < n; i += 2) memcpy(out + i, &bits, 2);
}

static qn_code write_tensors(maker *m, qn_shard_writer *w, qn_err *err)
{
    uint8_t *chunk = malloc(CHUNK);
    qn_code rc = chunk ? QN_OK : qn_err_set(err, QN_NOMEM, "synthetic: out of memory");
    for (size_t i = 0; i < m->n && !rc; i++) {
        const qn_plan_tensor *t = &m->plan[qn_shard_writer_order(w, i)];
        for (uint64_t left = plan_bytes(t); left && !rc;) {
            size_t n = left < CHUNK ? (size_t)left : CHUNK;
            fill(m, t, chunk, n);
            rc = qn_shard_writer_put(w, chunk, n, err);
            left -= n;
            m->done += n;
            if (!rc && m->progress && !m->progress(m->ctx, m->done, m->total)) {
                rc = qn_err_set(err, QN_CANCELLED, "synthetic: stopped");
            }
        }
    }
    free(chunk);
    return rc;
}

static qn_code write_config(const maker *m, const char *dir, qn_err *err)
{
    const shape *s = m->s;
    char path[PATH_CAP + 64], text[1024];
    snprintf(path, sizeof path, "%s/config.json", dir);
    int n = snprintf(text, sizeof text,
                     "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": \"silu\", "
                     "\"num_hidden_layers\": %u, \"hidden_size\": %u, \"intermediate_size\": %u, "
                     "\"num_attention_heads\": %u, \"num_key_value_heads\": %u, \"head_dim\": %u, \"vocab_size\": %u, "
                     "\"max_position_embeddings\": %u, \"rms_norm_eps\": 1e-05, \"rope_theta\": %.1f, "
                     "\"tie_word_embeddings\": %s, \"torch_dtype\": \"bfloat16\", "
                     "\"quantization\": {\"group_size\": %u, \"bits\": %u}}\n",
                     s->num_hidden_layers, s->hidden_size, s->intermediate_size, s->num_attention_heads,
                     s->num_key_value_heads, s->head_dim, s->vocab_size, s->max_position_embeddings, s->rope_theta,
                     s->tie_word_embeddings ? "true" : "false", m->q.group_size, m->q.bits);
    return qn_file_write(path, text, (size_t)n, err);
}

static qn_code write_all(maker *m, const char *dir, qn_err *err)
{
    qn_shard_writer *w;
    qn_code rc = plan_all(m, err);
    if (rc || (rc = qn_shard_writer_new(&w, dir, m->plan, m->n, 0, 0, err))) return rc;
    if ((rc = write_tensors(m, w, err))) {
        qn_shard_writer_close(w, NULL);
        return rc;
    }
    if ((rc = qn_shard_writer_close(w, err))) return rc;
    return write_config(m, dir, err);
}

/* Write into a folder beside the target, then rename: what is there is whole. */
static qn_code make_folder(maker *m, const char *dir, qn_err *err)
{
    char partial[PATH_CAP + 32];
    snprintf(partial, sizeof partial, "%s.partial-%d", dir, (int)getpid());
    qn_code rc = qn_mkdirs(partial, err);
    if (!rc) rc = write_all(m, partial, err);
    if (!rc && rename(partial, dir)) rc = qn_err_set(err, QN_IO, "%s: cannot be renamed into place", partial);
    if (rc) qn_remove_tree(partial, NULL);
    return rc;
}

static const shape *find_shape(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (!strcmp(shapes[i].name, name)) return &shapes[i];
    }
    return NULL;
}

qn_code qn_synthetic_make(const char *name, uint32_t bits, uint32_t group_size,
                          bool (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx, char *out, size_t cap,
                          qn_err *err)
{
    maker m = {.s = find_shape(name), .q = {QN_Q_AFFINE, bits, group_size}, .progress = progress, .ctx = ctx};
    if (!m.s) return qn_err_set(err, QN_INVALID, "synthetic: \"%s\" is not one of %s", name, qn_synthetic_names);
    qn_code rc = qn_qspec_check(&m.q, m.s->hidden_size, err);
    if (rc || (rc = qn_qspec_check(&m.q, m.s->intermediate_size, err))) return rc;
    char sub[128];
    snprintf(sub, sizeof sub, "synthetic/%s-%ubit-g%u", name, bits, group_size);
    if ((rc = qn_state_path(out, cap < PATH_CAP ? cap : PATH_CAP, sub, err))) return rc;
    if (!qn_is_dir(out)) rc = make_folder(&m, out, err);
    qn_arena_release(&m.arena);
    free(m.plan);
    return rc;
}
