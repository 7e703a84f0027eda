/* gguf_config.c - config.json from the keys of a GGUF file (spec quantize-eval A7). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tune/gguf_family.h"

static const qn_gguf_family families[] = {
    {"llama", "llama", "LlamaForCausalLM", QN_FAM_PERMUTED},
    {"mistral", "mistral", "MistralForCausalLM", QN_FAM_PERMUTED},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", QN_FAM_BIAS},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", QN_FAM_QK_NORM},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", QN_FAM_QK_NORM | QN_FAM_EXPERTS},
    {"gemma", "gemma", "GemmaForCausalLM", QN_FAM_NORM_PLUS | QN_FAM_GELU},
    {"gemma2", "gemma2", "Gemma2ForCausalLM", QN_FAM_NORM_PLUS | QN_FAM_SANDWICH | QN_FAM_GELU},
};

enum { MAX_KEY = 128 };

qn_code qn_gguf_family_of(const qn_gguf *g, const qn_gguf_family **out, qn_err *err)
{
    qn_gguf_str arch;
    qn_code rc = qn_gguf_text(g, "general.architecture", &arch, err);
    if (rc) return rc;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        *out = &families[i];
        if (strlen(families[i].arch) == arch.n && !memcmp(families[i].arch, arch.p, arch.n))
            return QN_OK;
    }
    return qn_err_set(err, QN_UNSUPPORTED, "GGUF architecture \"%.*s\" is not supported yet: "
                      "llama, mistral, qwen2, qwen3, qwen3moe, gemma and gemma2 are",
                      (int)(arch.n < 64 ? arch.n : 64), arch.p);
}

/* "ARCH.name" in `key`, for the getters. */
static const char *arch_key(char key[MAX_KEY], const qn_gguf_family *f, const char *name)
{
    snprintf(key, MAX_KEY, "%s.%s", f->arch, name);
    return key;
}

/* A required dimension, 1 to max. */
static qn_code read_dim(const qn_gguf *g, const qn_gguf_family *f, const char *name, uint64_t max,
                        uint64_t *out, qn_err *err)
{
    char key[MAX_KEY];
    qn_code rc = qn_gguf_u64(g, arch_key(key, f, name), out, err);
    if (rc) return rc;
    if (*out < 1 || *out > max)
        return qn_err_set(err, QN_FORMAT, "key %s is %llu, it must be 1 to %llu", key,
                          (unsigned long long)*out, (unsigned long long)max);
    return QN_OK;
}

static qn_code read_heads(const qn_gguf *g, const qn_gguf_family *f, qn_gguf_dims *d, qn_err *err)
{
    char key[MAX_KEY];
    uint64_t value, rope;
    qn_code rc = read_dim(g, f, "attention.head_count", 1 << 16, &d->n_heads, err);
    if (rc) return rc;
    arch_key(key, f, "attention.head_count_kv");
    if ((rc = qn_gguf_u64_or(g, key, d->n_heads, &d->n_kv_heads, err))) return rc;
    if (d->n_kv_heads < 1 || d->n_kv_heads > d->n_heads || d->n_heads % d->n_kv_heads)
        return qn_err_set(err, QN_FORMAT, "key %s is %llu, it must divide the %llu heads", key,
                          (unsigned long long)d->n_kv_heads, (unsigned long long)d->n_heads);
    arch_key(key, f, "attention.key_length");
    if ((rc = qn_gguf_u64_or(g, key, d->d_model / d->n_heads, &d->d_head, err))) return rc;
    if (d->d_head < 2 || d->d_head > 1 << 16 || d->d_head % 2)
        return qn_err_set(err, QN_FORMAT, "the head dimension is %llu, it must be even",
                          (unsigned long long)d->d_head);
    arch_key(key, f, "attention.value_length");
    if ((rc = qn_gguf_u64_or(g, key, d->d_head, &value, err))) return rc;
    arch_key(key, f, "rope.dimension_count");
    if ((rc = qn_gguf_u64_or(g, key, d->d_head, &rope, err))) return rc;
    if (value != d->d_head || rope != d->d_head)
        return qn_err_set(err, QN_UNSUPPORTED, "%s with rope over %llu and values of %llu of %llu "
                          "head dimensions is not supported yet", f->arch, (unsigned long long)rope,
                          (unsigned long long)value, (unsigned long long)d->d_head);
    return QN_OK;
}

qn_code qn_gguf_read_dims(const qn_gguf *g, const qn_gguf_family *f, qn_gguf_dims *d, qn_err *err)
{
    char key[MAX_KEY];
    qn_code rc = read_dim(g, f, "block_count", 1 << 12, &d->n_layers, err);
    if (!rc) rc = read_dim(g, f, "embedding_length", 1 << 20, &d->d_model, err);
    if (!rc) rc = read_dim(g, f, "feed_forward_length", 1 << 22, &d->d_ff, err);
    if (!rc) rc = read_dim(g, f, "context_length", UINT32_MAX, &d->context, err);
    if (!rc) rc = read_heads(g, f, d, err);
    if (!rc)
        rc = qn_gguf_f64_or(g, arch_key(key, f, "rope.freq_base"), 10000.0, &d->rope_theta, err);
    return rc;
}

/* ---- config.json ---- */

/* GGUF keeps floats as float32; the shortest decimal that gives the same float32 is what the
 * original config said. */
static json_t *short_real(double v)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtof(text, NULL) == (float)v) break;
    }
    return json_real(strtod(text, NULL));
}

static void set_int(json_t *c, const char *key, uint64_t v)
{
    json_object_set_new(c, key, json_integer((json_int_t)v));
}

static json_t *scaling_object(const char *type, double factor)
{
    json_t *o = json_object();
    json_object_set_new(o, "rope_type", json_string(type));
    json_object_set_new(o, "type", json_string(type));
    json_object_set_new(o, "factor", short_real(factor));
    return o;
}

/* The divisors that Llama 3's rope scaling applies to pair i of D/2, for factor, 1, 4, 8192. */
static double llama3_divisor(double theta, uint64_t d_head, size_t i, double factor)
{
    double wave = 2.0 * 3.14159265358979323846 * pow(theta, 2.0 * (double)i / (double)d_head);
    if (wave < 8192.0 / 4.0) return 1.0;
    if (wave > 8192.0) return factor;
    double smooth = (8192.0 / wave - 1.0) / (4.0 - 1.0);
    return 1.0 / ((1.0 - smooth) / factor + smooth);
}

/* rope_freqs.weight holds those divisors; config.json holds the rule, which must give them. */
static qn_code llama3_scaling(const qn_gguf_tensor *t, const qn_gguf_dims *d, json_t *c,
                              qn_err *err)
{
    if (t->type != QN_GGUF_T_F32 || t->n_elements != d->d_head / 2)
        return qn_err_set(err, QN_FORMAT, "tensor %s must hold %llu float32", t->name,
                          (unsigned long long)d->d_head / 2);
    size_t n = (size_t)t->n_elements;
    float *v = malloc(n * sizeof *v);
    if (!v) return qn_err_set(err, QN_NOMEM, "tensor %s: out of memory", t->name);
    qn_widen(v, t->data, QN_F32, n);
    double factor = 0;
    for (size_t i = 0; i < n; i++) factor = fmax(factor, (double)v[i]);
    bool same = factor > 0;
    for (size_t i = 0; same && i < n; i++) {
        double want = llama3_divisor(d->rope_theta, d->d_head, i, factor);
        same = fabs(want - (double)v[i]) <= 1e-4 * fmax(1.0, want);
    }
    free(v);
    if (!same)
        return qn_err_set(err, QN_UNSUPPORTED, "tensor %s is not Llama 3's rope scaling (factor "
                          "%g, 1, 4, 8192); other tables are not supported yet", t->name, factor);
    json_t *o = scaling_object("llama3", factor);
    json_object_set_new(o, "low_freq_factor", json_real(1.0));
    json_object_set_new(o, "high_freq_factor", json_real(4.0));
    json_object_set_new(o, "original_max_position_embeddings", json_integer(8192));
    json_object_set_new(c, "rope_scaling", o);
    return QN_OK;
}

static qn_code add_scaling(const qn_gguf *g, const qn_gguf_family *f, const qn_gguf_dims *d,
                           json_t *c, qn_err *err)
{
    const qn_gguf_tensor *t = qn_gguf_find(g, "rope_freqs.weight");
    if (t) return llama3_scaling(t, d, c, err);
    char key[MAX_KEY];
    qn_gguf_str type;
    json_object_set_new(c, "rope_scaling", json_null());
    if (!qn_gguf_has(g, arch_key(key, f, "rope.scaling.type"))) return QN_OK;
    qn_code rc = qn_gguf_text(g, key, &type, err);
    if (rc) return rc;
    if (type.n == 4 && !memcmp(type.p, "none", 4)) return QN_OK;
    bool linear = type.n == 6 && !memcmp(type.p, "linear", 6);
    bool yarn = type.n == 4 && !memcmp(type.p, "yarn", 4);
    if (!linear && !yarn)
        return qn_err_set(err, QN_UNSUPPORTED, "key %s is \"%.*s\"; none, linear and yarn are "
                          "supported", key, (int)(type.n < 64 ? type.n : 64), type.p);
    double factor;
    uint64_t original;
    if ((rc = qn_gguf_f64(g, arch_key(key, f, "rope.scaling.factor"), &factor, err))) return rc;
    json_t *o = scaling_object(linear ? "linear" : "yarn", factor);
    json_object_set_new(c, "rope_scaling", o);
    if (linear) return QN_OK;
    rc = qn_gguf_u64(g, arch_key(key, f, "rope.scaling.original_context_length"), &original, err);
    if (!rc) set_int(o, "original_max_position_embeddings", original);
    return rc;
}

static qn_code add_experts(const qn_gguf *g, const qn_gguf_family *f, json_t *c, qn_err *err)
{
    uint64_t n, used, width;
    qn_code rc = read_dim(g, f, "expert_count", 1 << 16, &n, err);
    if (!rc) rc = read_dim(g, f, "expert_used_count", n, &used, err);
    if (!rc) rc = read_dim(g, f, "expert_feed_forward_length", 1 << 22, &width, err);
    if (rc) return rc;
    set_int(c, "num_experts", n);
    set_int(c, "num_experts_per_tok", used);
    set_int(c, "moe_intermediate_size", width);
    set_int(c, "decoder_sparse_step", 1);
    json_object_set_new(c, "mlp_only_layers", json_array());
    json_object_set_new(c, "norm_topk_prob", json_true());
    return QN_OK;
}

static qn_code add_gemma2(const qn_gguf *g, const qn_gguf_family *f, const qn_gguf_dims *d,
                          json_t *c, qn_err *err)
{
    char key[MAX_KEY];
    double attn, final;
    uint64_t window;
    qn_code rc = qn_gguf_f64_or(g, arch_key(key, f, "attn_logit_softcapping"), 50.0, &attn, err);
    if (!rc)
        rc = qn_gguf_f64_or(g, arch_key(key, f, "final_logit_softcapping"), 30.0, &final, err);
    if (!rc)
        rc = qn_gguf_u64_or(g, arch_key(key, f, "attention.sliding_window"), 4096, &window, err);
    if (rc) return rc;
    json_object_set_new(c, "attn_logit_softcapping", short_real(attn));
    json_object_set_new(c, "final_logit_softcapping", short_real(final));
    set_int(c, "sliding_window", window);
    /* No key holds it; only the 27B model (46 layers) scales by the width per head. */
    set_int(c, "query_pre_attn_scalar", d->n_layers == 46 ? d->d_model / d->n_heads : d->d_head);
    return QN_OK;
}

/* A family of which some models have biases says so in config.json; MLX's llama then wants all. */
static qn_code add_biases(const qn_gguf *g, const qn_gguf_family *f, json_t *c, qn_err *err)
{
    bool attention = qn_gguf_find(g, "blk.0.attn_q.bias") != NULL;
    bool mlp = qn_gguf_find(g, "blk.0.ffn_up.bias") != NULL;
    if (f->traits & QN_FAM_BIAS) return QN_OK;
    if (attention && !qn_gguf_find(g, "blk.0.attn_output.bias"))
        return qn_err_set(err, QN_UNSUPPORTED, "%s with biases on Q, K and V alone is not "
                          "supported yet", f->arch);
    json_object_set_new(c, "attention_bias", json_boolean(attention));
    json_object_set_new(c, "mlp_bias", json_boolean(mlp));
    return QN_OK;
}

static void add_token_ids(const qn_gguf *g, json_t *c)
{
    static const char *const names[][2] = {
        {"bos_token_id", "tokenizer.ggml.bos_token_id"},
        {"eos_token_id", "tokenizer.ggml.eos_token_id"},
        {"pad_token_id", "tokenizer.ggml.padding_token_id"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t id;
        if (!qn_gguf_u64(g, names[i][1], &id, NULL)) set_int(c, names[i][0], id);
    }
}

/* vocab_size is the number of rows of the embedding: that is what a loader checks. */
static qn_code read_vocab(const qn_gguf *g, uint64_t *n, qn_err *err)
{
    const qn_gguf_tensor *t = qn_gguf_find(g, "token_embd.weight");
    if (!t || t->rank != 2)
        return qn_err_set(err, QN_FORMAT, "tensor token_embd.weight is missing or not a matrix");
    *n = t->dims[0];
    qn_gguf_array tokens;
    if (!qn_gguf_has(g, "tokenizer.ggml.tokens")) return QN_OK;
    qn_code rc = qn_gguf_list(g, "tokenizer.ggml.tokens", &tokens, err);
    if (!rc && tokens.n > *n)
        rc = qn_err_set(err, QN_FORMAT, "%zu tokens, but token_embd.weight has %llu rows", tokens.n,
                        (unsigned long long)*n);
    return rc;
}

static qn_code fill_config(qn_job *job, const qn_gguf_family *f, const qn_gguf_dims *d,
                           qn_dtype dtype, qn_err *err)
{
    const qn_gguf *g = job->gguf;
    json_t *c = job->config;
    char key[MAX_KEY];
    double eps;
    uint64_t n_vocab = 0;
    qn_code rc = read_vocab(g, &n_vocab, err);
    if (rc) return rc;
    arch_key(key, f, "attention.layer_norm_rms_epsilon");
    if ((rc = qn_gguf_f64(g, key, &eps, err))) return rc;
    json_object_set_new(c, "architectures", json_pack("[s]", f->class_name));
    json_object_set_new(c, "model_type", json_string(f->model_type));
    add_token_ids(g, c);
    const char *act = f->traits & QN_FAM_GELU ? "gelu_pytorch_tanh" : "silu";
    json_object_set_new(c, "hidden_act", json_string(act));
    if (f->traits & QN_FAM_GELU) json_object_set_new(c, "hidden_activation", json_string(act));
    set_int(c, "hidden_size", d->d_model);
    set_int(c, "intermediate_size", d->d_ff);
    set_int(c, "num_hidden_layers", d->n_layers);
    set_int(c, "num_attention_heads", d->n_heads);
    set_int(c, "num_key_value_heads", d->n_kv_heads);
    set_int(c, "head_dim", d->d_head);
    set_int(c, "max_position_embeddings", d->context);
    json_object_set_new(c, "rms_norm_eps", short_real(eps));
    json_object_set_new(c, "rope_theta", short_real(d->rope_theta));
    if ((rc = add_scaling(g, f, d, c, err))) return rc;
    bool tied = !qn_gguf_find(g, "output.weight");
    json_object_set_new(c, "tie_word_embeddings", json_boolean(tied));
    json_object_set_new(c, "torch_dtype", json_string(qn_dtype_config_name(dtype)));
    set_int(c, "vocab_size", n_vocab);
    if ((rc = add_biases(g, f, c, err))) return rc;
    if ((f->traits & QN_FAM_EXPERTS) && (rc = add_experts(g, f, c, err))) return rc;
    if ((f->traits & QN_FAM_SANDWICH) && (rc = add_gemma2(g, f, d, c, err))) return rc;
    return QN_OK;
}

qn_code qn_gguf_config(qn_job *job, const qn_gguf_family *f, const qn_gguf_dims *d, qn_dtype dtype,
                       qn_err *err)
{
    qn_gguf_str name = {f->arch, strlen(f->arch)};
    if (qn_gguf_has(job->gguf, "general.name")) {
        qn_code rc = qn_gguf_text(job->gguf, "general.name", &name, err);
        if (rc) return rc;
    }
    snprintf(job->name, sizeof job->name, "%.*s", (int)(name.n < 127 ? name.n : 127), name.p);
    snprintf(job->model_type, sizeof job->model_type, "%s", f->model_type);
    job->config = json_object();
    if (!job->config) return qn_err_set(err, QN_NOMEM, "config.json: out of memory");
    return fill_config(job, f, d, dtype, err);
}
