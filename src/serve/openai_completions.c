/* openai_completions.c - POST /v1/completions: raw text in, raw text out. */
#include <string.h>

#include "serve/json.h"
#include "serve/openai.h"
#include "serve/structured.h"

enum { DEFAULT_MAX_TOKENS = 512 };

static const char object_name[] = "text_completion";

/* ---- request ---- */

static bool is_id_list(const json_t *v)
{
    return json_is_array(v) && json_array_size(v) && !json_is_string(json_array_get(v, 0)) &&
           !json_is_array(json_array_get(v, 0));
}

static bool take_ids(qn_exchange *x, const json_t *list, qn_http_error *e)
{
    uint32_t n_vocab = x->server->opts.loaded->model->info.n_vocab;
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        json_int_t id;
        if (!qn_json_int(v, &id)) {
            return qn_fail_field(e, "prompt", "prompt: token ids must be of type int");
        }
        if (id < 0 || id >= n_vocab) {
            return qn_fail_field(e, "prompt",
                                 "prompt: token id %lld is outside the vocabulary of %u tokens",
                                 (long long)id, n_vocab);
        }
        uint32_t id32 = (uint32_t)id;
        qn_ids_put(&x->gen.prompt, &id32, 1);
    }
    if (x->gen.prompt.failed) {
        return qn_fail_with(e, 500, "server_error", NULL, NULL, "out of memory");
    }
    return true;
}

/* prompt: text, a list of token ids, or a list with one of either. */
static bool take_prompt(qn_exchange *x, qn_http_error *e)
{
    const json_t *v = qn_json_get(x->gen.body, "prompt");
    if (json_is_array(v) && !is_id_list(v)) {
        if (json_array_size(v) > 1) {
            return qn_fail_field(e, "prompt",
                                 "prompt: several prompts in one request are not supported yet");
        }
        v = json_array_get(v, 0);
    }
    if (is_id_list(v)) return take_ids(x, v, e);
    if (!json_is_string(v) || !json_string_length(v)) {
        return qn_fail_field(e, "prompt",
                             "prompt required: a non-empty string or a list of token ids");
    }
    qn_err err = {0};
    const qn_tokenizer *tok = x->server->opts.loaded->tok;
    if (qn_tokenizer_encode(tok, json_string_value(v), json_string_length(v), QN_ENCODE_ADD_SPECIAL,
                            &x->gen.prompt, &err)) {
        return qn_fail_err(e, &err, "prompt");
    }
    return true;
}

static bool check_own_fields(const json_t *body, qn_http_error *e)
{
    bool echo = false;
    int64_t best_of = 1;
    const char *suffix = NULL;
    if (!qn_field_bool(body, "echo", &echo, e) ||
        !qn_field_int(body, "best_of", 1, INT64_MAX, &best_of, e) ||
        !qn_field_string(body, "suffix", &suffix, e)) {
        return false;
    }
    if (echo) return qn_fail_field(e, "echo", "not supported yet: echo");
    if (best_of > 1) return qn_fail_field(e, "best_of", "best_of must be 1");
    if (suffix && *suffix) return qn_fail_field(e, "suffix", "suffix is not supported");
    return true;
}

/* Nothing is asked of the model in words here: the prompt stays what it is. */
static bool check_structured(qn_generation *g, qn_http_error *e)
{
    bool asked;
    qn_buf words = {0};
    bool ok = qn_structured_read(g->body, &asked, &words, e);
    if (ok && asked) g->warnings[g->n_warnings++] = qn_structured_warning;
    qn_buf_release(&words);
    return ok;
}

static bool prepare(qn_exchange *x, qn_http_error *e)
{
    qn_generation *g = &x->gen;
    const qn_loaded *loaded = x->server->opts.loaded;
    qn_request_defaults dflt = x->server->opts.defaults;
    if (dflt.max_tokens < 0) dflt.max_tokens = DEFAULT_MAX_TOKENS;
    qn_openai_set_id(x, "cmpl-");
    return qn_fields_check_supported(g->body, e) && check_own_fields(g->body, e) &&
           check_structured(g, e) &&
           qn_fields_read(&g->fields, g->body, &dflt, loaded->model->info.n_vocab, true, &g->arena,
                          e) &&
           take_prompt(x, e);
}

/* ---- reply ---- */

static json_t *logprobs_of(qn_exchange *x, const qn_piece *p)
{
    const qn_tokenizer *tok = x->server->opts.loaded->tok;
    if (!x->gen.fields.legacy_logprobs) return qn_openai_logprobs(tok, p->samples, p->n_samples);
    return qn_openai_legacy_logprobs(tok, p->samples, p->n_samples, &x->gen.n_chars_out);
}

static json_t *choice(qn_exchange *x, const qn_piece *p, const char *finish)
{
    json_t *j = json_object();
    qn_json_put_text(j, "text", p->text, p->n);
    json_object_set_new(j, "index", json_integer(0));
    json_object_set_new(j, "logprobs", logprobs_of(x, p));
    json_object_set_new(j, "finish_reason", finish ? json_string(finish) : json_null());
    return j;
}

/* A stream starts with its first text; the headers are out by then. */
static void begin(qn_exchange *x)
{
    (void)x;
}

static void piece(qn_exchange *x, const qn_piece *p)
{
    qn_openai_chunk(x, object_name, choice(x, p, NULL));
}

static void end(qn_exchange *x, const qn_piece *rest)
{
    qn_openai_end(x, object_name, choice(x, rest, x->gen.finish));
}

static void reply(qn_exchange *x)
{
    qn_pieces *all = &x->gen.pieces;
    qn_buf text = {0};
    qn_parts_join(&all->parts, QN_PART_TEXT, &text);
    qn_piece p = {.text = text.data, .n = text.len, .samples = all->samples,
                  .n_samples = all->n_samples};
    json_t *j = qn_openai_head(x, object_name), *choices = json_array();
    json_array_append_new(choices, choice(x, &p, x->gen.finish));
    qn_buf_release(&text);
    json_object_set_new(j, "choices", choices);
    json_object_set_new(j, "usage", qn_openai_usage(x));
    qn_exchange_reply(x, 200, j);
}

const qn_protocol qn_openai_completions = {
    .prompt_param = "prompt", .prepare = prepare, .begin = begin, .piece = piece, .end = end,
    .reply = reply, .stream_error = qn_openai_stream_error,
};
