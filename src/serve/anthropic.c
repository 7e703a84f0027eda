/* anthropic.c - POST /v1/messages and /v1/messages/count_tokens.
 *
 * The parts of a reply (parts.h) are the content blocks of a message, in order and one for one, so
 * that a block's index is its part's. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "serve/anthropic_request.h"
#include "serve/chat_form.h"
#include "serve/chat_prompt.h"
#include "serve/ids.h"
#include "serve/json.h"
#include "serve/sse.h"

/* ---- request ---- */

static const qn_form_name own_names[] = {
    {"messages", "messages"},                  {"stop", "stop_sequences"},
    {"response_format", "output_config.format"}, {"reasoning_effort", "output_config.effort"},
    {NULL, NULL},
};

/* The chat form of x->gen.body. */
static bool chat_form(const qn_exchange *x, json_t **chat, qn_http_error *e)
{
    bool keep = qn_form_keeps_reasoning(x->server->opts.loaded->chat);
    return qn_anthropic_to_chat(x->gen.body, keep, chat, e);
}

static bool prepare(qn_exchange *x, qn_http_error *e)
{
    json_t *chat;
    qn_hex_id(x->gen.id, sizeof x->gen.id, "msg_");
    if (!chat_form(x, &chat, e)) return false;
    bool ok = qn_chat_prepare(x, chat, e);
    if (!ok) qn_form_rename_error(e, own_names);
    json_decref(chat);
    return ok;
}

json_t *qn_anthropic_count_tokens(qn_exchange *x, qn_http_error *e)
{
    json_t *chat;
    if (!chat_form(x, &chat, e)) return NULL;
    json_t *j = qn_chat_count(x->server, chat, NULL, e);
    if (!j) qn_form_rename_error(e, own_names);
    return j;
}

/* ---- the message ---- */

/* Anthropic's clients know calls by "toolu_"; an id that the model wrote itself stays. */
static json_t *call_id(const char *id)
{
    static const char ours[] = "call_";
    bool is_ours = !strncmp(id, ours, sizeof ours - 1);
    return is_ours ? json_sprintf("toolu_%s", id + sizeof ours - 1) : json_string(id);
}

static json_t *tool_use(const char *id, const char *name, json_t *input)
{
    return json_pack("{s:s, s:o, s:s, s:o}", "type", "tool_use", "id", call_id(id), "name", name,
                     "input", input);
}

static json_t *text_block(const qn_buf *text)
{
    json_t *block = json_pack("{s:s}", "type", "text");
    qn_json_put_text(block, "text", text ? text->data : NULL, text ? text->len : 0);
    return block;
}

static json_t *block_of(const qn_part *part)
{
    json_t *block = NULL, *input;
    switch (part->kind) {
    case QN_PART_TEXT: block = text_block(&part->text); break;
    case QN_PART_REASONING:
        block = json_pack("{s:s, s:s}", "type", "thinking", "signature", "");
        qn_json_put_text(block, "thinking", part->text.data, part->text.len);
        break;
    case QN_PART_CALL:
        input = part->text.len ? json_loadb(part->text.data, part->text.len, JSON_ALLOW_NUL, NULL)
                               : NULL;
        block = tool_use(part->call_id, part->call_name, input ? input : json_object());
        break;
    }
    return block;
}

/* The blocks of a whole reply; an empty reply is one empty text. */
static json_t *content(const qn_exchange *x)
{
    const qn_parts *parts = &x->gen.pieces.parts;
    json_t *list = json_array();
    for (size_t i = 0; i < parts->n; i++) json_array_append_new(list, block_of(&parts->list[i]));
    if (!parts->n) json_array_append_new(list, text_block(NULL));
    return list;
}

/* Was the reply cut by the context, and not by the request's max_tokens? */
static bool context_ended(const qn_generation *g)
{
    return g->fields.max_tokens < 0 || g->fields.max_tokens > g->max_tokens;
}

/* Add stop_reason and stop_sequence. */
static void put_stop(const qn_exchange *x, json_t *j)
{
    const qn_generation *g = &x->gen;
    const char *stop = qn_pieces_stop(&g->pieces), *reason = "end_turn";
    bool by_length = !strcmp(g->finish, "length"), by_calls = !strcmp(g->finish, "tool_calls");
    if (by_calls) reason = "tool_use";
    else if (by_length) reason = context_ended(g) ? "model_context_window_exceeded" : "max_tokens";
    else if (stop) reason = "stop_sequence";
    bool is_stop = stop && !by_calls && !by_length;
    json_object_set_new(j, "stop_reason", json_string(reason));
    json_object_set_new(j, "stop_sequence", is_stop ? json_string(stop) : json_null());
}

/* The three input counts sum up to the prompt. */
static json_t *usage(const qn_exchange *x, json_int_t cached, json_int_t output)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "input_tokens", (json_int_t)x->gen.prompt.len - cached,
                     "cache_creation_input_tokens", (json_int_t)0, "cache_read_input_tokens", cached,
                     "output_tokens", output);
}

static json_t *final_usage(const qn_exchange *x)
{
    return usage(x, x->gen.stats.cached_tokens, x->gen.pieces.n_tokens);
}

/* {id, type, role, model, content}. Takes the content. */
static json_t *message_head(const qn_exchange *x, json_t *blocks)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", x->gen.id, "type", "message", "role",
                     "assistant", "model", x->server->opts.loaded->id, "content", blocks);
}

static void reply(qn_exchange *x)
{
    json_t *j = message_head(x, content(x));
    put_stop(x, j);
    json_object_set_new(j, "usage", final_usage(x));
    qn_exchange_reply(x, 200, j);
}

/* ---- the stream ---- */

static void send_event(qn_exchange *x, json_t *event)
{
    qn_sse_event(&x->out, event);
    x->gen.at.last_event_ms = qn_now_ms();
}

static void admitted(qn_exchange *x)
{
    json_t *m = message_head(x, json_array());
    json_object_set_new(m, "stop_reason", json_null());
    json_object_set_new(m, "stop_sequence", json_null());
    json_object_set_new(m, "usage", usage(x, x->gen.stats.cached_tokens, 0));
    send_event(x, json_pack("{s:s, s:o}", "type", "message_start", "message", m));
}

static void send_delta(qn_exchange *x, const char *type, const char *key, const char *text, size_t n)
{
    json_t *delta = json_pack("{s:s}", "type", type);
    qn_json_put_text(delta, key, text, n);
    send_event(x, json_pack("{s:s, s:i, s:o}", "type", "content_block_delta", "index",
                            (int)x->gen.at.index, "delta", delta));
}

static void close_block(qn_exchange *x)
{
    qn_cursor *at = &x->gen.at;
    if (!at->is_open) return;
    if (at->kind == QN_PART_REASONING) send_delta(x, "signature_delta", "signature", "", 0);
    send_event(x, json_pack("{s:s, s:i}", "type", "content_block_stop", "index", (int)at->index));
    at->is_open = false;
    at->index++;
}

/* Begin a block of p's kind. NULL: an empty text. */
static void open_block(qn_exchange *x, const qn_piece *p)
{
    qn_cursor *at = &x->gen.at;
    json_t *block = NULL;
    close_block(x);
    at->kind = p ? qn_piece_part(p->kind) : QN_PART_TEXT;
    at->is_open = true;
    switch (at->kind) {
    case QN_PART_TEXT: block = text_block(NULL); break;
    case QN_PART_REASONING:
        block = json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", "");
        break;
    case QN_PART_CALL: block = tool_use(p->call_id, p->call_name, json_object()); break;
    }
    send_event(x, json_pack("{s:s, s:i, s:o}", "type", "content_block_start", "index",
                            (int)at->index, "content_block", block));
}

static void piece(qn_exchange *x, const qn_piece *p)
{
    const qn_cursor *at = &x->gen.at;
    bool is_new = p->kind == QN_PIECE_CALL || !at->is_open || at->kind != qn_piece_part(p->kind);
    if (is_new && p->kind != QN_PIECE_CALL_END) open_block(x, p);
    switch (p->kind) {
    case QN_PIECE_TEXT: send_delta(x, "text_delta", "text", p->text, p->n); break;
    case QN_PIECE_REASONING: send_delta(x, "thinking_delta", "thinking", p->text, p->n); break;
    case QN_PIECE_ARGS:
        send_delta(x, "input_json_delta", "partial_json", p->text, p->n);
        break;
    case QN_PIECE_CALL: break;
    case QN_PIECE_CALL_END: close_block(x); break;
    }
}

static void end(qn_exchange *x, const qn_piece *rest)
{
    (void)rest;
    if (!x->gen.at.is_open && !x->gen.at.index) open_block(x, NULL);
    close_block(x);
    json_t *delta = json_object();
    put_stop(x, delta);
    send_event(x, json_pack("{s:s, s:o, s:o}", "type", "message_delta", "delta", delta, "usage",
                            final_usage(x)));
    send_event(x, json_pack("{s:s}", "type", "message_stop"));
}

static void remind(qn_exchange *x)
{
    send_event(x, json_pack("{s:s}", "type", "ping"));
}

/* ---- errors ---- */

static const char *error_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

json_t *qn_anthropic_error(const qn_http_error *e, const char *request_id)
{
    qn_buf text = {0};
    /* The words by which clients of this protocol know that they should shorten the history. */
    if (e->n_ctx) {
        qn_buf_printf(&text, "prompt is too long: %u tokens > %u maximum. ", e->n_prompt_tokens,
                      e->n_ctx);
    }
    qn_buf_puts(&text, e->message);
    json_t *in = json_pack("{s:s, s:o}", "type", error_type(e->status), "message",
                           qn_form_take_text(&text));
    return json_pack("{s:s, s:o, s:s}", "type", "error", "error", in, "request_id", request_id);
}

static void stream_error(qn_exchange *x)
{
    send_event(x, qn_anthropic_error(&x->error, x->request_id));
}

const qn_protocol qn_anthropic_messages = {
    .prompt_param = "messages", .prepare = prepare, .admitted = admitted, .piece = piece, .end = end,
    .reply = reply, .stream_error = stream_error, .remind = remind,
};
