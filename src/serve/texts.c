/* texts.c - text to tokens and back, and the chat template, in the shapes of llama-server and vLLM
 * at once: POST /tokenize, /detokenize, /apply-template, /v1/chat/completions/input_tokens. */
#include <string.h>

#include "serve/chat_prompt.h"
#include "serve/exchange.h"
#include "serve/json.h"
#include "text/chat.h"

static json_t *no_memory(qn_http_error *e)
{
    qn_fail_with(e, 500, "server_error", NULL, NULL, "out of memory");
    return NULL;
}

/* ---- /tokenize ---- */

typedef struct tokenize_opts {
    bool add_special, parse_special, with_pieces, with_strings;
} tokenize_opts;

/* llama-server: content, add_special = false. vLLM: prompt or messages, add_special_tokens, true
 * for a prompt and false for messages, whose template writes them. */
static bool read_tokenize_opts(const json_t *body, bool is_prompt, tokenize_opts *o,
                               qn_http_error *e)
{
    *o = (tokenize_opts){.add_special = is_prompt, .parse_special = true};
    return qn_field_bool(body, "add_special", &o->add_special, e) &&
           qn_field_bool(body, "add_special_tokens", &o->add_special, e) &&
           qn_field_bool(body, "parse_special", &o->parse_special, e) &&
           qn_field_bool(body, "with_pieces", &o->with_pieces, e) &&
           qn_field_bool(body, "return_token_strs", &o->with_strings, e);
}

static bool encode(qn_exchange *x, const char *text, size_t n, unsigned flags, const char *param,
                   qn_http_error *e)
{
    qn_err err = {0};
    const qn_tokenizer *tok = x->server->opts.loaded->tok;
    if (!qn_tokenizer_encode(tok, text ? text : "", n, flags, &x->gen.prompt, &err)) return true;
    return qn_fail_err(e, &err, param);
}

/* Fill x->gen.prompt from content, prompt or messages. */
static bool tokens_of(qn_exchange *x, tokenize_opts *o, qn_http_error *e)
{
    const json_t *body = x->gen.body;
    const char *field = qn_json_get(body, "content") ? "content" : "prompt";
    const json_t *v = qn_json_get(body, field);
    if (!read_tokenize_opts(body, v && !strcmp(field, "prompt"), o, e)) return false;
    unsigned flags = (o->add_special ? QN_ENCODE_ADD_SPECIAL : 0u) |
                     (o->parse_special ? 0u : (unsigned)QN_ENCODE_PLAIN);
    if (v && !json_is_string(v)) return qn_fail_field(e, field, "%s must be of type string", field);
    if (v) {
        return encode(x, json_string_value(v), json_string_length(v), flags, field, e);
    }
    if (!qn_json_get(body, "messages")) {
        return qn_fail_field(e, "content", "content, prompt or messages required");
    }
    qn_buf text = {0};
    flags |= qn_chat_encode_flags(x->server->opts.loaded->chat);
    bool ok = qn_chat_prompt_text(x->server, x->gen.body, &text, e) &&
              encode(x, text.data, text.len, flags, "messages", e);
    qn_buf_release(&text);
    return ok;
}

/* The bytes of a token as text, or as a list of numbers where they are no whole characters. */
static json_t *piece_of(const qn_tokenizer *tok, uint32_t id)
{
    qn_buf bytes = {0};
    qn_tokenizer_token_bytes(tok, id, &bytes);
    json_t *j = json_stringn(bytes.data ? bytes.data : "", bytes.len);
    if (!j) {
        j = json_array();
        for (size_t i = 0; i < bytes.len; i++) {
            json_array_append_new(j, json_integer((unsigned char)bytes.data[i]));
        }
    }
    qn_buf_release(&bytes);
    return j;
}

json_t *qn_tokenize(qn_exchange *x, qn_http_error *e)
{
    const qn_tokenizer *tok = x->server->opts.loaded->tok;
    tokenize_opts o;
    if (!tokens_of(x, &o, e)) return NULL;
    json_t *tokens = json_array(), *strings = o.with_strings ? json_array() : NULL;
    for (size_t i = 0; i < x->gen.prompt.len; i++) {
        uint32_t id = x->gen.prompt.data[i];
        size_t n = 0;
        const char *spelled = qn_tokenizer_token(tok, id, &n);
        json_array_append_new(
            tokens, o.with_pieces ? json_pack("{s:i, s:o}", "id", (int)id, "piece",
                                              piece_of(tok, id))
                                  : json_integer(id));
        if (strings) json_array_append_new(strings, json_stringn(spelled ? spelled : "", n));
    }
    json_t *j = json_object();
    json_object_set_new(j, "tokens", tokens);
    json_object_set_new(j, "count", json_integer((json_int_t)x->gen.prompt.len));
    json_object_set_new(j, "max_model_len",
                        json_integer(qn_engine_max_positions(x->server->opts.engine)));
    if (strings) json_object_set_new(j, "token_strs", strings);
    return j ? j : no_memory(e);
}

/* ---- /detokenize ---- */

static bool read_ids(qn_exchange *x, qn_http_error *e)
{
    const json_t *list = qn_json_get(x->gen.body, "tokens");
    uint32_t n_vocab = qn_tokenizer_n_vocab(x->server->opts.loaded->tok);
    if (!json_is_array(list)) {
        return qn_fail_field(e, "tokens", "tokens required: an array of token ids");
    }
    return qn_field_ids(list, "tokens", n_vocab, &x->gen.prompt, e);
}

/* The text under both servers' names. Takes nothing. */
static json_t *text_reply(const qn_buf *text, const char *also)
{
    json_t *j = json_object();
    const char *s = text->data ? text->data : "";
    qn_json_put_text(j, "prompt", s, text->len);
    if (also) qn_json_put_text(j, also, s, text->len);
    return j;
}

json_t *qn_detokenize(qn_exchange *x, qn_http_error *e)
{
    qn_buf text = {0};
    qn_err err = {0};
    json_t *j = NULL;
    if (read_ids(x, e)) {
        const qn_ids *ids = &x->gen.prompt;
        if (qn_tokenizer_decode(x->server->opts.loaded->tok, ids->data, ids->len, false, &text,
                                &err)) {
            qn_fail_err(e, &err, "tokens");
        } else {
            j = text_reply(&text, "content");
            if (!j) no_memory(e);
        }
    }
    qn_buf_release(&text);
    return j;
}

/* ---- the template ---- */

json_t *qn_apply_template(qn_exchange *x, qn_http_error *e)
{
    qn_buf text = {0};
    json_t *j = NULL;
    if (qn_chat_prompt_text(x->server, x->gen.body, &text, e)) {
        j = text_reply(&text, NULL);
        if (!j) no_memory(e);
    }
    qn_buf_release(&text);
    return j;
}

json_t *qn_count_chat(qn_exchange *x, qn_http_error *e)
{
    if (!qn_openai_chat.prepare(x, e)) return NULL;
    json_t *j = json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens",
                          (json_int_t)x->gen.prompt.len);
    return j ? j : no_memory(e);
}
