/* openai.c - see openai.h. */
#include "serve/openai.h"

#include <math.h>
#include <stdio.h>

#include "core/clock.h"
#include "serve/ids.h"
#include "serve/json.h"
#include "serve/sse.h"

void qn_openai_set_id(qn_exchange *x, const char *prefix)
{
    char uuid[37];
    qn_uuid4(uuid);
    snprintf(x->gen.id, sizeof x->gen.id, "%s%s", prefix, uuid);
}

json_t *qn_openai_head(const qn_exchange *x, const char *object)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", x->gen.id, "object", object, "created",
                     (json_int_t)x->gen.created, "model", x->server->opts.loaded->id,
                     "system_fingerprint", x->server->fingerprint);
}

json_t *qn_openai_usage(const qn_exchange *x)
{
    const qn_pieces *p = &x->gen.pieces;
    json_int_t prompt = (json_int_t)x->gen.prompt.len, completion = p->n_tokens;
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}, s:s}", "prompt_tokens", prompt,
                     "completion_tokens", completion, "total_tokens", prompt + completion,
                     "prompt_tokens_details", "cached_tokens",
                     (json_int_t)x->gen.stats.cached_tokens, "completion_tokens_details",
                     "reasoning_tokens", (json_int_t)p->n_reasoning, "lane", x->server->lane);
}

/* ---- logprobs ---- */

/* JSON has no infinity: an impossible token is written as -9999. */
static json_t *logprob_real(float v)
{
    return json_real(isfinite(v) ? (double)v : -9999.0);
}

static json_t *token_piece(const qn_tokenizer *tok, uint32_t id)
{
    size_t n = 0;
    const char *s = qn_tokenizer_token(tok, id, &n);
    return json_stringn(s ? s : "", s ? n : 0);
}

/* {id, token, bytes, logprob} */
static json_t *entry(const qn_tokenizer *tok, uint32_t id, float logprob)
{
    qn_buf bytes = {0};
    qn_tokenizer_token_bytes(tok, id, &bytes);
    json_t *list = json_array();
    for (size_t i = 0; i < bytes.len; i++) {
        json_array_append_new(list, json_integer((unsigned char)bytes.data[i]));
    }
    qn_buf_release(&bytes);
    json_t *j = json_object();
    json_object_set_new(j, "id", json_integer(id));
    json_object_set_new(j, "token", token_piece(tok, id));
    json_object_set_new(j, "bytes", list);
    json_object_set_new(j, "logprob", logprob_real(logprob));
    return j;
}

json_t *qn_openai_logprobs(const qn_tokenizer *tok, const qn_sample *samples, size_t n)
{
    if (!n) return json_null();
    json_t *content = json_array();
    for (size_t i = 0; i < n; i++) {
        const qn_sample *s = &samples[i];
        json_t *j = entry(tok, s->token, s->logprob), *top = json_array();
        for (uint32_t k = 0; k < s->n_top; k++) {
            json_array_append_new(top, entry(tok, s->top[k].id, s->top[k].logprob));
        }
        json_object_set_new(j, "top_logprobs", top);
        json_array_append_new(content, j);
    }
    return json_pack("{s:o}", "content", content);
}

/* Characters that a token adds to the reply: the first bytes of characters in it. */
static size_t token_characters(const qn_tokenizer *tok, uint32_t id, bool is_trimmed)
{
    if (qn_tokenizer_is_special(tok, id)) return 0;
    qn_buf bytes = {0};
    qn_tokenizer_token_bytes(tok, id, &bytes);
    size_t n = 0;
    for (size_t i = 0; i < bytes.len; i++) n += (bytes.data[i] & 0xC0) != 0x80;
    bool trimmed = is_trimmed && bytes.len && bytes.data[0] == ' '; /* text/detok.h drops it */
    qn_buf_release(&bytes);
    return n - trimmed;
}

json_t *qn_openai_legacy_new(void)
{
    return json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs",
                     "text_offset");
}

void qn_openai_legacy_add(json_t *lp, const qn_tokenizer *tok, uint32_t token, const qn_sample *s,
                          size_t offset)
{
    json_t *top = s ? json_object() : json_null();
    for (uint32_t k = 0; s && k < s->n_top; k++) {
        size_t n = 0;
        const char *piece = qn_tokenizer_token(tok, s->top[k].id, &n);
        if (piece) json_object_set_new(top, piece, logprob_real(s->top[k].logprob));
    }
    json_array_append_new(json_object_get(lp, "tokens"), token_piece(tok, token));
    json_array_append_new(json_object_get(lp, "token_logprobs"),
                          s ? logprob_real(s->logprob) : json_null());
    json_array_append_new(json_object_get(lp, "top_logprobs"), top);
    json_array_append_new(json_object_get(lp, "text_offset"), json_integer((json_int_t)offset));
}

void qn_openai_legacy_samples(json_t *lp, qn_exchange *x, const qn_sample *samples, size_t n)
{
    const qn_tokenizer *tok = x->server->opts.loaded->tok;
    qn_generation *g = &x->gen;
    for (size_t i = 0; i < n; i++) {
        qn_openai_legacy_add(lp, tok, samples[i].token, &samples[i], g->n_chars_out);
        bool trimmed = g->n_chars_out == 0 && !g->fields.echo;
        g->n_chars_out += token_characters(tok, samples[i].token, trimmed);
    }
}

/* ---- timings and progress, as llama-server gives them ---- */

json_t *qn_openai_timings(const qn_exchange *x)
{
    const qn_gen_stats *st = &x->gen.stats;
    double prompt_n = st->prompt_tokens - st->cached_tokens, n = x->gen.pieces.n_tokens;
    double prompt_ms = st->prefill_ms, ms = st->decode_ms;
    return json_pack(
        "{s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "cache_n",
        (json_int_t)st->cached_tokens, "prompt_n", (json_int_t)prompt_n, "prompt_ms", prompt_ms,
        "prompt_per_token_ms", prompt_n > 0 ? prompt_ms / prompt_n : 0, "prompt_per_second",
        prompt_ms > 0 ? 1000 * prompt_n / prompt_ms : 0, "predicted_n", (json_int_t)n,
        "predicted_ms", ms, "predicted_per_token_ms", n > 0 ? ms / n : 0, "predicted_per_second",
        ms > 0 ? 1000 * n / ms : 0);
}

/* ---- chunks ---- */

static json_t *chunk_with(const qn_exchange *x, const char *object, json_t *choice)
{
    json_t *chunk = qn_openai_head(x, object), *choices = json_array();
    if (choice) json_array_append_new(choices, choice);
    json_object_set_new(chunk, "choices", choices);
    return chunk;
}

void qn_openai_chunk(qn_exchange *x, const char *object, json_t *choice)
{
    qn_openai_frame(&x->out, x, object, choice);
}

void qn_openai_frame(qn_buf *out, const qn_exchange *x, const char *object, json_t *choice)
{
    qn_sse_data(out, chunk_with(x, object, choice));
}

void qn_openai_progress(qn_exchange *x, const char *object, const qn_event *ev)
{
    json_t *chunk = chunk_with(x, object, NULL);
    json_t *progress = json_pack("{s:I, s:I, s:I, s:I}", "total", (json_int_t)ev->total, "cache",
                                 (json_int_t)ev->stats.cached_tokens, "processed",
                                 (json_int_t)ev->done, "time_ms",
                                 (json_int_t)(qn_now_ms() - x->start_ms));
    json_object_set_new(chunk, "prompt_progress", progress);
    qn_sse_data(&x->out, chunk);
}

void qn_openai_end(qn_exchange *x, const char *object, json_t *choice)
{
    json_t *chunk = chunk_with(x, object, choice);
    qn_usage_mode mode = x->gen.fields.usage;
    if (mode == QN_USAGE_ON_FINISH) json_object_set_new(chunk, "usage", qn_openai_usage(x));
    json_object_set_new(chunk, "timings", qn_openai_timings(x));
    qn_sse_data(&x->out, chunk);
    if (mode == QN_USAGE_CHUNK) {
        chunk = chunk_with(x, object, NULL);
        json_object_set_new(chunk, "usage", qn_openai_usage(x));
        qn_sse_data(&x->out, chunk);
    }
    qn_sse_done(&x->out);
}

void qn_openai_stream_error(qn_exchange *x)
{
    qn_sse_data(&x->out, qn_error_openai(&x->error));
}
