/* responses.c - POST /v1/responses, and its token count.
 *
 * The parts of a reply (parts.h) are the output items of a response, in order and one for one, so
 * that an item's output_index is its part's, and its id follows from the response's. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "serve/chat_form.h"
#include "serve/chat_prompt.h"
#include "serve/ids.h"
#include "serve/json.h"
#include "serve/openai.h"
#include "serve/response_store.h"
#include "serve/responses_request.h"
#include "serve/sse.h"

static const char id_prefix[] = "resp_";

static const qn_form_name own_names[] = {
    {"max_completion_tokens", "max_output_tokens"}, {"messages", "input"},
    {"response_format", "text.format"},             {"reasoning_effort", "reasoning.effort"},
    {NULL, NULL},
};

/* ---- request ---- */

/* Put the items of a stored response, reasoning left out, behind those that it answered. */
static void append_output(json_t *items, const json_t *response)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(response, "output"), i, item) {
        const char *type = json_string_value(json_object_get(item, "type"));
        if (type && strcmp(type, "reasoning")) json_array_append(items, item);
    }
}

/* Find the response that this one follows; *items and *instructions are the caller's, NULL if it
 * follows none. */
static bool load_past(const qn_exchange *x, json_t **items, json_t **instructions, qn_http_error *e)
{
    const char *id = NULL;
    json_t *response = NULL;
    *items = *instructions = NULL;
    if (!qn_field_string(x->gen.body, "previous_response_id", &id, e)) return false;
    if (!id) return true;
    qn_response_store *store = x->server->responses;
    if (!store || !qn_response_store_get(store, id, qn_wall_ms(), &response, items)) {
        return qn_fail_with(e, 404, "invalid_request_error", "previous_response_not_found",
                            "previous_response_id",
                            "previous_response_id: there is no stored response %.64s", id);
    }
    append_output(*items, response);
    *instructions = json_incref(qn_json_get(response, "instructions"));
    json_decref(response);
    return true;
}

/* Make the chat form; fill x->gen.own with what the reply and the store need of the request:
 * "input", all items so far, and "instructions". */
static bool chat_form(qn_exchange *x, json_t **chat, qn_http_error *e)
{
    const json_t *body = x->gen.body;
    json_t *items, *instructions;
    *chat = NULL;
    if (!load_past(x, &items, &instructions, e)) return false;
    const qn_responses_past past = {
        .items = items, .instructions = instructions,
        .keep_reasoning = qn_form_keeps_reasoning(x->server->opts.loaded->chat),
    };
    bool ok = qn_responses_to_chat(body, &past, chat, e);
    if (ok) {
        json_t *given = qn_json_get(body, "instructions"), *all = items ? items : json_array();
        json_t *fresh = qn_responses_input_items(body);
        json_array_extend(all, fresh);
        json_decref(fresh);
        x->gen.own = json_pack("{s:O}", "input", all);
        if (!given) given = instructions;
        if (given) json_object_set(x->gen.own, "instructions", given);
        if (!items) json_decref(all);
    }
    json_decref(items);
    json_decref(instructions);
    return ok;
}

static bool prepare(qn_exchange *x, qn_http_error *e)
{
    json_t *chat;
    bool keep = true;
    qn_hex_id(x->gen.id, sizeof x->gen.id, id_prefix);
    if (!qn_field_bool(x->gen.body, "store", &keep, e) || !chat_form(x, &chat, e)) return false;
    if (!keep || !x->server->responses) json_object_del(x->gen.own, "input");
    bool ok = qn_chat_prepare(x, chat, e);
    if (!ok) qn_form_rename_error(e, own_names);
    json_decref(chat);
    return ok;
}

json_t *qn_responses_count_tokens(qn_exchange *x, qn_http_error *e)
{
    json_t *chat;
    if (!chat_form(x, &chat, e)) return NULL;
    json_t *j = qn_chat_count(x->server, chat, "response.input_tokens", e);
    if (!j) qn_form_rename_error(e, own_names);
    return j;
}

/* ---- items ---- */

static const qn_part *part_at(const qn_exchange *x, size_t k)
{
    return &x->gen.pieces.parts.list[k];
}

static bool is_custom(const qn_exchange *x, const char *name)
{
    return qn_responses_is_custom_tool(x->gen.body, name);
}

static json_t *item_id(const qn_exchange *x, size_t k)
{
    const qn_part *p = part_at(x, k);
    const char *prefix = "msg";
    if (p->kind == QN_PART_REASONING) prefix = "rs";
    if (p->kind == QN_PART_CALL) prefix = is_custom(x, p->call_name) ? "ctc" : "fc";
    return json_sprintf("%s_%s%02zx", prefix, x->gen.id + sizeof id_prefix - 1, k);
}

static json_t *text_value(const qn_part *p)
{
    return json_stringn(p->text.data ? p->text.data : "", p->text.len);
}

/* The text that a custom tool gets: the one argument of its function. */
static json_t *custom_input(const qn_part *p)
{
    json_t *args = p->text.len ? json_loadb(p->text.data, p->text.len, JSON_ALLOW_NUL, NULL) : NULL;
    json_t *input = json_object_get(args, "input");
    json_t *out = json_is_string(input) ? json_incref(input) : text_value(p);
    json_decref(args);
    return out;
}

static json_t *summary_part(json_t *text)
{
    return json_pack("{s:s, s:o}", "type", "summary_text", "text", text);
}

/* Log-probabilities of the tokens behind part k, as far as they have come. */
static json_t *logprobs_of(const qn_exchange *x, size_t k)
{
    char key[24];
    snprintf(key, sizeof key, "%zu", k);
    json_t *list = json_object_get(json_object_get(x->gen.own, "logprobs"), key);
    return list ? json_incref(list) : json_array();
}

/* Takes both. */
static json_t *text_part(json_t *text, json_t *logprobs)
{
    return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", text, "annotations",
                     "logprobs", logprobs);
}

/* Item k with its content, or, as it begins, without. */
static json_t *item_of(const qn_exchange *x, size_t k, const char *status, bool with_content)
{
    const qn_part *p = part_at(x, k);
    json_t *j = json_pack("{s:o, s:s}", "id", item_id(x, k), "status", status);
    json_t *list = json_array();
    switch (p->kind) {
    case QN_PART_TEXT:
        if (with_content) json_array_append_new(list, text_part(text_value(p), logprobs_of(x, k)));
        json_object_set_new(j, "type", json_string("message"));
        json_object_set_new(j, "role", json_string("assistant"));
        json_object_set(j, "content", list);
        break;
    case QN_PART_REASONING:
        if (with_content) json_array_append_new(list, summary_part(text_value(p)));
        json_object_set_new(j, "type", json_string("reasoning"));
        json_object_set(j, "summary", list);
        break;
    case QN_PART_CALL: {
        bool custom = is_custom(x, p->call_name);
        json_t *value = !with_content ? json_string("") : custom ? custom_input(p) : text_value(p);
        json_object_set_new(j, "type", json_string(custom ? "custom_tool_call" : "function_call"));
        json_object_set_new(j, "call_id", json_string(p->call_id));
        json_object_set_new(j, "name", json_string(p->call_name));
        json_object_set_new(j, custom ? "input" : "arguments", value);
        break;
    }
    }
    json_decref(list);
    return j;
}

static bool was_cut(const qn_exchange *x)
{
    return x->gen.finish && !strcmp(x->gen.finish, "length");
}

/* What was being written when the tokens ran out is incomplete. */
static const char *item_status(const qn_exchange *x, size_t k)
{
    return was_cut(x) && k + 1 == x->gen.pieces.parts.n ? "incomplete" : "completed";
}

static json_t *all_items(const qn_exchange *x)
{
    json_t *list = json_array();
    for (size_t k = 0; k < x->gen.pieces.parts.n; k++) {
        json_array_append_new(list, item_of(x, k, item_status(x, k), true));
    }
    return list;
}

/* ---- the response ---- */

/* The request's value, or the one that stands for its absence. Takes dflt. */
static void echo(json_t *j, const qn_exchange *x, const char *key, json_t *dflt)
{
    json_t *given = qn_json_get(x->gen.body, key);
    json_object_set(j, key, given ? given : dflt);
    json_decref(dflt);
}

/* The tools with all the members that a function tool has in a response. */
static json_t *echo_tools(const qn_exchange *x)
{
    json_t *list = json_deep_copy(qn_json_get(x->gen.body, "tools")), *tool;
    size_t i;
    if (!list) return json_array();
    json_array_foreach(list, i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!type || strcmp(type, "function")) continue;
        if (!json_object_get(tool, "parameters")) json_object_set_new(tool, "parameters", json_null());
        if (!json_object_get(tool, "strict")) json_object_set_new(tool, "strict", json_null());
    }
    return list;
}

static void put_request(json_t *j, const qn_exchange *x)
{
    const qn_sampling *s = &x->gen.fields.sampling;
    json_t *text = json_pack("{s:{s:s}}", "format", "type", "text");
    json_t *reasoning = json_pack("{s:n, s:n}", "effort", "summary");
    json_object_update(text, qn_json_get(x->gen.body, "text"));
    json_object_update(reasoning, qn_json_get(x->gen.body, "reasoning"));
    json_t *instructions = json_object_get(x->gen.own, "instructions");
    json_object_set(j, "instructions", instructions ? instructions : json_null());
    echo(j, x, "max_output_tokens", json_null());
    echo(j, x, "parallel_tool_calls", json_true());
    echo(j, x, "previous_response_id", json_null());
    json_object_set_new(j, "reasoning", reasoning);
    json_object_set_new(j, "store", json_boolean(json_object_get(x->gen.own, "input")));
    json_object_set_new(j, "temperature", qn_json_float(s->temperature));
    json_object_set_new(j, "text", text);
    echo(j, x, "tool_choice", json_string("auto"));
    json_object_set_new(j, "tools", echo_tools(x));
    json_object_set_new(j, "top_p", s->top_p > 0 ? qn_json_float(s->top_p) : json_real(1));
    json_object_set_new(j, "truncation", json_string("disabled"));
    echo(j, x, "user", json_null());
    echo(j, x, "metadata", json_object());
}

static json_t *usage(const qn_exchange *x)
{
    json_int_t in = (json_int_t)x->gen.prompt.len, out = x->gen.pieces.n_tokens;
    return json_pack("{s:I, s:{s:I, s:i}, s:I, s:{s:I}, s:I}", "input_tokens", in,
                     "input_tokens_details", "cached_tokens",
                     (json_int_t)x->gen.stats.cached_tokens, "cache_write_tokens", 0,
                     "output_tokens", out,
                     "output_tokens_details", "reasoning_tokens",
                     (json_int_t)x->gen.pieces.n_reasoning, "total_tokens", in + out);
}

/* The response object. Takes output; usage comes with an end. */
static json_t *response_of(const qn_exchange *x, const char *status, json_t *output)
{
    bool ended = strcmp(status, "in_progress") && strcmp(status, "failed");
    json_t *j = json_pack("{s:s, s:s, s:I, s:s, s:n, s:s, s:o}", "id", x->gen.id, "object",
                          "response", "created_at", (json_int_t)x->gen.created, "status", status,
                          "error", "model", x->server->opts.loaded->id, "output", output);
    json_object_set_new(j, "incomplete_details",
                        strcmp(status, "incomplete")
                            ? json_null() : json_pack("{s:s}", "reason", "max_output_tokens"));
    json_object_set_new(j, "usage", ended ? usage(x) : json_null());
    put_request(j, x);
    return j;
}

static const char *final_status(const qn_exchange *x)
{
    return was_cut(x) ? "incomplete" : "completed";
}

static void store(const qn_exchange *x, const json_t *response)
{
    const json_t *input = json_object_get(x->gen.own, "input");
    qn_buf out = {0}, in = {0};
    qn_err err = {0};
    if (!input) return;
    qn_json_write(&out, response);
    qn_json_write(&in, input);
    if (qn_response_store_put(x->server->responses, x->gen.id, &out, &in, qn_wall_ms(), &err)) {
        qn_log(QN_WARNING, "%s: %s", x->request_id, err.text);
    }
    qn_buf_release(&out);
    qn_buf_release(&in);
}

static void reply(qn_exchange *x)
{
    json_t *j = response_of(x, final_status(x), all_items(x));
    store(x, j);
    qn_exchange_reply(x, 200, j);
}

/* ---- the stream ---- */

/* Takes the event, adds its number and sends it. */
static void send_event(qn_exchange *x, const char *type, json_t *event)
{
    json_t *j = json_pack("{s:s, s:I}", "type", type, "sequence_number",
                          (json_int_t)x->gen.at.sequence++);
    json_object_update(j, event);
    json_decref(event);
    if (x->stream) qn_sse_event(&x->out, j);
    else json_decref(j);
    x->gen.at.last_event_ms = qn_now_ms();
}

/* An event about the open item: `event` with item_id and output_index. */
static void send_of_item(qn_exchange *x, const char *type, json_t *event)
{
    json_object_set_new(event, "item_id", item_id(x, x->gen.at.index));
    json_object_set_new(event, "output_index", json_integer((json_int_t)x->gen.at.index));
    send_event(x, type, event);
}

static void send_item(qn_exchange *x, const char *type, json_t *item)
{
    send_event(x, type, json_pack("{s:I, s:o}", "output_index", (json_int_t)x->gen.at.index, "item",
                                  item));
}

static void send_progress(qn_exchange *x, const char *type)
{
    json_t *response = response_of(x, "in_progress", json_array());
    send_event(x, type, json_pack("{s:o}", "response", response));
}

static void begin(qn_exchange *x)
{
    send_progress(x, "response.created");
    send_progress(x, "response.in_progress");
}

static void remind(qn_exchange *x)
{
    send_progress(x, "response.in_progress");
}

static void open_item(qn_exchange *x, qn_part_kind kind)
{
    qn_cursor *at = &x->gen.at;
    at->kind = kind;
    at->is_open = true;
    send_item(x, "response.output_item.added", item_of(x, at->index, "in_progress", false));
    if (kind == QN_PART_REASONING) {
        send_of_item(x, "response.reasoning_summary_part.added",
                     json_pack("{s:i, s:o}", "summary_index", 0, "part",
                               summary_part(json_string(""))));
    } else if (kind == QN_PART_TEXT) {
        send_of_item(x, "response.content_part.added",
                     json_pack("{s:i, s:o}", "content_index", 0, "part",
                               text_part(json_string(""), json_array())));
    }
}

/* The last events of a call's content. */
static void finish_call(qn_exchange *x, const qn_part *p)
{
    if (is_custom(x, p->call_name)) {
        json_t *input = custom_input(p);
        send_of_item(x, "response.custom_tool_call_input.delta", json_pack("{s:O}", "delta", input));
        send_of_item(x, "response.custom_tool_call_input.done", json_pack("{s:o}", "input", input));
    } else {
        send_of_item(x, "response.function_call_arguments.done",
                     json_pack("{s:o, s:s}", "arguments", text_value(p), "name", p->call_name));
    }
}

static void close_item(qn_exchange *x)
{
    qn_cursor *at = &x->gen.at;
    if (!at->is_open) return;
    const qn_part *p = part_at(x, at->index);
    switch (at->kind) {
    case QN_PART_REASONING:
        send_of_item(x, "response.reasoning_summary_text.done",
                     json_pack("{s:i, s:o}", "summary_index", 0, "text", text_value(p)));
        send_of_item(x, "response.reasoning_summary_part.done",
                     json_pack("{s:i, s:o}", "summary_index", 0, "part",
                               summary_part(text_value(p))));
        break;
    case QN_PART_TEXT:
        send_of_item(x, "response.output_text.done",
                     json_pack("{s:i, s:o, s:o}", "content_index", 0, "text", text_value(p),
                               "logprobs", logprobs_of(x, at->index)));
        send_of_item(x, "response.content_part.done",
                     json_pack("{s:i, s:o}", "content_index", 0, "part",
                               text_part(text_value(p), logprobs_of(x, at->index))));
        break;
    case QN_PART_CALL: finish_call(x, p); break;
    }
    send_item(x, "response.output_item.done",
              item_of(x, at->index, item_status(x, at->index), true));
    at->is_open = false;
    at->index++;
}

static void send_text(qn_exchange *x, const qn_piece *p, json_t *logprobs)
{
    json_t *delta = json_pack("{s:i, s:o}", "content_index", 0, "logprobs", logprobs);
    qn_json_put_text(delta, "delta", p->text, p->n);
    send_of_item(x, "response.output_text.delta", delta);
}

static void send_reasoning(qn_exchange *x, const qn_piece *p)
{
    json_t *delta = json_pack("{s:i}", "summary_index", 0);
    qn_json_put_text(delta, "delta", p->text, p->n);
    send_of_item(x, "response.reasoning_summary_text.delta", delta);
}

static void send_arguments(qn_exchange *x, const qn_piece *p)
{
    if (is_custom(x, p->call_name)) return; /* its text is known at the end */
    json_t *delta = json_object();
    qn_json_put_text(delta, "delta", p->text, p->n);
    send_of_item(x, "response.function_call_arguments.delta", delta);
}

/* The piece's log-probabilities, kept for the end of its item as well; an array for the caller. */
static json_t *take_logprobs(qn_exchange *x, const qn_piece *p)
{
    char key[24];
    snprintf(key, sizeof key, "%u", x->gen.at.index);
    json_t *block = qn_openai_logprobs(x->server->opts.loaded->tok, p->samples, p->n_samples);
    json_t *list = json_incref(json_object_get(block, "content"));
    json_decref(block);
    if (!list) return json_array();
    json_t *all = json_object_get(x->gen.own, "logprobs"), *kept;
    if (!all) {
        all = json_object();
        json_object_set_new(x->gen.own, "logprobs", all);
    }
    kept = json_object_get(all, key);
    if (kept) json_array_extend(kept, list);
    else json_object_set_new(all, key, json_copy(list));
    return list;
}

/* Of a reply that is not streamed, only the log-probabilities stay. */
static void piece(qn_exchange *x, const qn_piece *p)
{
    qn_cursor *at = &x->gen.at;
    qn_part_kind kind = qn_piece_part(p->kind);
    bool is_new = p->kind == QN_PIECE_CALL || !at->is_open || at->kind != kind;
    if (is_new) {
        close_item(x);
        open_item(x, kind);
    }
    switch (p->kind) {
    case QN_PIECE_TEXT: send_text(x, p, take_logprobs(x, p)); break;
    case QN_PIECE_REASONING: send_reasoning(x, p); break;
    case QN_PIECE_CALL: break;
    case QN_PIECE_ARGS: send_arguments(x, p); break;
    case QN_PIECE_CALL_END: close_item(x); break;
    }
}

static void end(qn_exchange *x, const qn_piece *rest)
{
    (void)rest;
    close_item(x);
    const char *status = final_status(x);
    json_t *response = response_of(x, status, all_items(x));
    store(x, response);
    char type[32];
    snprintf(type, sizeof type, "response.%s", status);
    send_event(x, type, json_pack("{s:o}", "response", response));
}

static void stream_error(qn_exchange *x)
{
    const qn_http_error *e = &x->error;
    send_event(x, "error", json_pack("{s:s?, s:s, s:n}", "code", e->code ? e->code : e->type,
                                     "message", e->message, "param"));
    json_t *response = response_of(x, "failed", json_array());
    json_object_set_new(response, "error", json_pack("{s:s, s:s}", "code", "server_error", "message",
                                                     e->message));
    send_event(x, "response.failed", json_pack("{s:o}", "response", response));
}

const qn_protocol qn_responses = {
    .prompt_param = "input", .prepare = prepare, .begin = begin, .piece = piece, .end = end,
    .reply = reply, .stream_error = stream_error, .remind = remind, .sorts_logprobs = true,
};
