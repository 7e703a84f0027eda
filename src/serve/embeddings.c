/* embeddings.c - POST /v1/embeddings: texts to vectors, for Qwen3-Embedding. */
#include <math.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "engine/embed.h"
#include "serve/exchange.h"
#include "serve/json.h"

enum { MAX_INPUTS = 2048 };

static const char end_token[] = "<|endoftext|>"; /* what the model was trained to end texts with */

bool qn_embeds(const qn_server *s)
{
    const qn_loaded *loaded = s->opts.loaded;
    return !strcmp(loaded->model->info.model_type, "qwen3") &&
           qn_tokenizer_find(loaded->tok, end_token, sizeof end_token - 1) != QN_NO_TOKEN;
}

/* One request's work. */
typedef struct job {
    qn_exchange *x;
    const char *instruction;
    bool base64;
    uint32_t width, n_kept; /* elements of a vector, and how many of them are sent */
    float *vector;          /* [width] */
    uint64_t n_tokens;
    json_t *data;
} job;

static bool out_of_memory(qn_http_error *e)
{
    return qn_fail_with(e, 500, "server_error", NULL, NULL, "out of memory");
}

static bool read_fields(job *b, qn_http_error *e)
{
    const json_t *body = b->x->gen.body;
    const char *format = "float", *model = NULL;
    int64_t dimensions = b->width;
    if (!qn_field_string(body, "model", &model, e) ||
        !qn_field_string(body, "encoding_format", &format, e) ||
        !qn_field_string(body, "instruction", &b->instruction, e) ||
        !qn_field_int(body, "dimensions", 1, b->width, &dimensions, e)) {
        return false;
    }
    b->n_kept = (uint32_t)dimensions;
    b->base64 = !strcmp(format, "base64");
    if (b->base64 || !strcmp(format, "float")) return true;
    return qn_fail_field(e, "encoding_format", "encoding_format must be float or base64");
}

/* ---- input to ids ---- */

static bool add_text(job *b, const json_t *v, qn_ids *ids, qn_http_error *e)
{
    qn_buf text = {0};
    qn_err err = {0};
    if (b->instruction && *b->instruction) {
        qn_buf_printf(&text, "Instruct: %s\nQuery:", b->instruction);
    }
    qn_buf_put(&text, json_string_value(v), json_string_length(v));
    bool ok = !text.failed || out_of_memory(e);
    if (ok && qn_tokenizer_encode(b->x->server->opts.loaded->tok, text.data ? text.data : "",
                                  text.len, 0, ids, &err)) {
        ok = qn_fail_err(e, &err, "input");
    }
    qn_buf_release(&text);
    return ok;
}

/* One input: a text, or the ids of one. */
static bool collect(job *b, const json_t *v, qn_ids *ids, qn_http_error *e)
{
    const qn_loaded *loaded = b->x->server->opts.loaded;
    bool ok = json_is_string(v) ? json_string_length(v) > 0 && add_text(b, v, ids, e)
                                : json_array_size(v) > 0 && qn_field_ids(v, "input",
                                      loaded->model->info.n_vocab, ids, e);
    if (!ok) {
        return qn_fail_field(e, "input",
                             "input must be a non-empty string, a list of token ids, or a list of "
                             "those");
    }
    uint32_t end = qn_tokenizer_find(loaded->tok, end_token, sizeof end_token - 1);
    qn_ids_put(ids, &end, 1);
    uint32_t n_ctx = qn_engine_max_positions(b->x->server->opts.engine);
    if (ids->failed) return out_of_memory(e);
    if (ids->len <= n_ctx) return true;
    return qn_fail_context(e, (uint32_t)ids->len, n_ctx, b->x->server->opts.budget_binds, "input");
}

/* ---- vectors ---- */

static bool client_left(void *user)
{
    qn_exchange *x = user;
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    return gone || atomic_load(&x->server->stop);
}

/* A shorter vector gets length 1 again. */
static void shorten(float *v, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)v[i] * v[i];
    for (uint32_t i = 0; i < n && sum > 0; i++) v[i] = (float)(v[i] / sqrt(sum));
}

/* The bytes of little-endian float32, which is what this machine has. */
static json_t *as_base64(const float *v, uint32_t n)
{
    int size = (int)(n * sizeof *v);
    unsigned char *text = malloc((size_t)(size + 2) / 3 * 4 + 1);
    if (!text) return NULL;
    int len = EVP_EncodeBlock(text, (const unsigned char *)v, size);
    json_t *j = json_stringn((const char *)text, (size_t)len);
    free(text);
    return j;
}

static json_t *as_list(const float *v, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) json_array_append_new(list, json_real(v[i]));
    return list;
}

static bool embed(job *b, const json_t *v, qn_http_error *e)
{
    qn_exchange *x = b->x;
    qn_ids ids = {0};
    qn_err err = {0};
    bool ok = collect(b, v, &ids, e);
    if (ok && qn_engine_embed(x->server->opts.engine, ids.data, ids.len, client_left, x, b->vector,
                              &err)) {
        if (err.code != QN_CANCELLED) ok = qn_fail_err(e, &err, "input");
        else if (client_left(x)) ok = qn_fail_with(e, 499, NULL, NULL, NULL, "the client left");
        else ok = qn_fail_queue(e);
    }
    if (ok) {
        if (b->n_kept < b->width) shorten(b->vector, b->n_kept);
        json_t *row = json_pack("{s:s, s:I, s:o}", "object", "embedding", "index",
                                (json_int_t)json_array_size(b->data), "embedding",
                                b->base64 ? as_base64(b->vector, b->n_kept)
                                          : as_list(b->vector, b->n_kept));
        ok = (row && !json_array_append_new(b->data, row)) || out_of_memory(e);
        b->n_tokens += ids.len;
    }
    qn_ids_release(&ids);
    return ok;
}

/* A list of numbers is one input, a list of anything else is several. */
static bool embed_all(job *b, qn_http_error *e)
{
    const json_t *input = qn_json_get(b->x->gen.body, "input");
    if (!json_is_array(input) || json_is_number(json_array_get(input, 0))) {
        return embed(b, input, e);
    }
    size_t n = json_array_size(input);
    if (n > MAX_INPUTS) {
        return qn_fail_field(e, "input", "input has %zu entries; at most %d are allowed", n,
                             MAX_INPUTS);
    }
    if (!n) return embed(b, NULL, e);
    for (size_t i = 0; i < n; i++) {
        if (!embed(b, json_array_get(input, i), e)) return false;
    }
    return true;
}

json_t *qn_embeddings(qn_exchange *x, qn_http_error *e)
{
    const qn_loaded *loaded = x->server->opts.loaded;
    job b = {.x = x, .width = qn_engine_embed_width(x->server->opts.engine), .data = json_array()};
    json_t *j = NULL;
    if (!qn_embeds(x->server)) {
        qn_fail_field(e, "model", "%s is not an embedding model", loaded->id);
    } else if (read_fields(&b, e)) {
        b.vector = calloc(b.width, sizeof *b.vector);
        if (!b.vector || !b.data) out_of_memory(e);
        else if (embed_all(&b, e)) {
            j = json_pack("{s:s, s:O, s:s, s:{s:I, s:I}}", "object", "list", "data", b.data,
                          "model", loaded->id, "usage", "prompt_tokens", (json_int_t)b.n_tokens,
                          "total_tokens", (json_int_t)b.n_tokens);
            if (!j) out_of_memory(e);
        }
    }
    json_decref(b.data);
    free(b.vector);
    return j;
}
