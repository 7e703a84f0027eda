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
    return qn_field_ids(list, "prompt", x->server->opts.loaded->model->info.n_vocab, &x->gen.prompt,
                       e);
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
    int64_t best_of = 1;
    const char *suffix = NULL;
    if (!qn_field_int(body, "best_of", 1, INT64_MAX, &best_of, e) ||
        !qn_field_string(body, "suffix", &suffix, e)) {
        return false;
    }
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

/* echo shows the log-probabilities of the prompt in the old form only. */
static bool read_echo(qn_generation *g, qn_http_error *e)
{
    qn_fields *f = &g->fields;
    if (!qn_field_bool(g->body, "echo", &f->echo, e)) return false;
    g->output.keeps_space = f->echo;
    if (!f->echo || !f->logprobs || f->legacy_logprobs) return true;
    return qn_fail_field(e, "logprobs", "logprobs must be of type int with echo");
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
           read_echo(g, e) && take_prompt(x, e);
}

/* ---- reply ---- */

/* The text of the prompt, as it was sent or decoded. Errors: out->failed. */
static void prompt_text(const qn_exchange *x, qn_buf *out)
{
    const json_t *v = qn_json_get(x->gen.body, "prompt");
    const qn_tokenizer *tok = x->server->opts.loaded->tok;
    const qn_ids *ids = &x->gen.prompt;
    qn_err err = {0};
    if (json_is_array(v) && !is_id_list(v)) v = json_array_get(v, 0);
    if (json_is_string(v)) qn_buf_put(out, json_string_value(v), json_string_length(v));
    else if (qn_tokenizer_decode(tok, ids->data, ids->len, false, out, &err)) out->failed = true;
}

/* Characters of text [n]. */
static size_t characters(const char *text, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += (text[i] & 0xC0) != 0x80;
    return chars;
}

/* Add the prompt's tokens to lp. A token that the text does not show, such as one that the
 * tokenizer adds in front, stands where the next one does. */
static void add_prompt(qn_exchange *x, json_t *lp, const qn_buf *text)
{
    qn_generation *g = &x->gen;
    const qn_tokenizer *tok = x->server->opts.loaded->tok;
    size_t at = 0, offset = 0;
    qn_buf bytes = {0};
    for (size_t i = 0; i < g->prompt.len; i++) {
        uint32_t id = g->prompt.data[i];
        qn_openai_legacy_add(lp, tok, id, i ? &g->prompt_samples[i] : NULL, offset);
        qn_buf_clear(&bytes);
        qn_tokenizer_token_bytes(tok, id, &bytes);
        if (!bytes.len || bytes.len > text->len - at) continue;
        if (memcmp(text->data + at, bytes.data, bytes.len)) continue;
        offset += characters(bytes.data, bytes.len);
        at += bytes.len;
    }
    qn_buf_release(&bytes);
}

/* The prompt, for the beginning of an echoed reply: its text, and its tokens in *lp. */
static void echo(qn_exchange *x, qn_buf *text, json_t **lp)
{
    *lp = x->gen.fields.logprobs ? qn_openai_legacy_new() : NULL;
    prompt_text(x, text);
    if (*lp && !text->failed) add_prompt(x, *lp, text);
    x->gen.n_chars_out = characters(text->data, text->len);
    x->gen.echoed = true;
}

/* A choice. lp: log-probabilities in the old form to go on with, which is taken; or NULL. */
static json_t *choice(qn_exchange *x, const qn_piece *p, json_t *lp, const char *finish)
{
    const qn_fields *f = &x->gen.fields;
    if (f->legacy_logprobs && (lp || p->n_samples)) {
        if (!lp) lp = qn_openai_legacy_new();
        qn_openai_legacy_samples(lp, x, p->samples, p->n_samples);
    } else if (!lp) {
        lp = qn_openai_logprobs(x->server->opts.loaded->tok, p->samples, p->n_samples);
    }
    json_t *j = json_object();
    qn_json_put_text(j, "text", p->text, p->n);
    json_object_set_new(j, "index", json_integer(0));
    json_object_set_new(j, "logprobs", lp);
    json_object_set_new(j, "finish_reason", finish ? json_string(finish) : json_null());
    return j;
}

/* A stream starts with its first text; the headers are out by then. */
static void begin(qn_exchange *x)
{
    (void)x;
}

/* The prompt goes out before the first text, when its log-probabilities are there. */
static void stream_echo(qn_exchange *x)
{
    if (!x->gen.fields.echo || x->gen.echoed) return;
    qn_buf text = {0};
    json_t *lp;
    echo(x, &text, &lp);
    const qn_piece p = {.text = text.data, .n = text.len};
    qn_openai_chunk(x, object_name, choice(x, &p, lp, NULL));
    x->out.failed |= text.failed;
    qn_buf_release(&text);
}

static void piece(qn_exchange *x, const qn_piece *p)
{
    stream_echo(x);
    qn_openai_chunk(x, object_name, choice(x, p, NULL, NULL));
}

static void end(qn_exchange *x, const qn_piece *rest)
{
    stream_echo(x);
    qn_openai_end(x, object_name, choice(x, rest, NULL, x->gen.finish));
}

static void progress(qn_exchange *x, const qn_event *ev)
{
    qn_openai_progress(x, object_name, ev);
}

static void reply(qn_exchange *x)
{
    qn_pieces *all = &x->gen.pieces;
    qn_buf text = {0};
    json_t *lp = NULL;
    if (x->gen.fields.echo) echo(x, &text, &lp);
    qn_parts_join(&all->parts, QN_PART_TEXT, &text);
    qn_piece p = {.text = text.data, .n = text.len, .samples = all->samples,
                  .n_samples = all->n_samples};
    json_t *j = qn_openai_head(x, object_name), *choices = json_array();
    json_array_append_new(choices, choice(x, &p, lp, x->gen.finish));
    qn_buf_release(&text);
    json_object_set_new(j, "choices", choices);
    json_object_set_new(j, "usage", qn_openai_usage(x));
    json_object_set_new(j, "timings", qn_openai_timings(x));
    qn_exchange_reply(x, 200, j);
}

const qn_protocol qn_openai_completions = {
    .prompt_param = "prompt", .prepare = prepare, .begin = begin, .piece = piece, .end = end,
    .reply = reply, .stream_error = qn_openai_stream_error, .progress = progress,
};
