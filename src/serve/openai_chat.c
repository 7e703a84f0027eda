/* openai_chat.c - POST /v1/chat/completions. */
#include "serve/chat_prompt.h"
#include "serve/json.h"
#include "serve/openai.h"
#include "serve/sse.h"

static const char whole_name[] = "chat.completion", chunk_name[] = "chat.completion.chunk";

static bool prepare(qn_exchange *x, qn_http_error *e)
{
    qn_openai_set_id(x, "chatcmpl-");
    return qn_chat_prepare(x, x->gen.body, e);
}

/* ---- reply ---- */

static json_t *logprobs_of(qn_exchange *x, const qn_piece *p)
{
    return qn_openai_logprobs(x->server->opts.loaded->tok, p->samples, p->n_samples);
}

/* Set the reasoning under the names that the operator chose. */
static void put_reasoning(const qn_exchange *x, json_t *object, const char *text, size_t n)
{
    qn_reasoning_field field = x->server->opts.reasoning_field;
    if (field != QN_REASONING_CONTENT) qn_json_put_text(object, "reasoning", text, n);
    if (field != QN_REASONING_PLAIN) qn_json_put_text(object, "reasoning_content", text, n);
}

/* Takes `call`. */
static void put_call_delta(json_t *delta, json_t *call)
{
    json_t *calls = json_array();
    json_array_append_new(calls, call);
    json_object_set_new(delta, "tool_calls", calls);
}

/* A choice of a chunk. Takes the delta. */
static json_t *chunk_choice(qn_exchange *x, json_t *delta, const qn_piece *p, const char *finish)
{
    json_t *j = json_object();
    json_object_set_new(j, "index", json_integer(0));
    json_object_set_new(j, "delta", delta);
    json_object_set_new(j, "logprobs", p ? logprobs_of(x, p) : json_null());
    json_object_set_new(j, "finish_reason", finish ? json_string(finish) : json_null());
    return j;
}

static void begin(qn_exchange *x)
{
    json_t *delta = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    qn_openai_chunk(x, chunk_name, chunk_choice(x, delta, NULL, NULL));
}

/* The delta that a piece becomes; NULL: it is none of this protocol's. */
static json_t *delta_of(qn_exchange *x, const qn_piece *p)
{
    json_t *delta = json_object();
    switch (p->kind) {
    case QN_PIECE_TEXT: qn_json_put_text(delta, "content", p->text, p->n); return delta;
    case QN_PIECE_REASONING: put_reasoning(x, delta, p->text, p->n); return delta;
    case QN_PIECE_CALL:
        put_call_delta(delta, json_pack("{s:I, s:s, s:s, s:{s:s, s:s}}", "index",
                                        (json_int_t)p->call_index, "id", p->call_id, "type",
                                        "function", "function", "name", p->call_name, "arguments",
                                        ""));
        return delta;
    case QN_PIECE_ARGS: {
        json_t *function = json_object();
        qn_json_put_text(function, "arguments", p->text, p->n);
        put_call_delta(delta, json_pack("{s:I, s:o}", "index", (json_int_t)p->call_index,
                                        "function", function));
        return delta;
    }
    case QN_PIECE_CALL_END: break;
    }
    json_decref(delta);
    return NULL;
}

/* Text without logprobs, which is nearly everything: only the text changes from chunk to chunk. */
static void put_text(qn_exchange *x, const qn_piece *p)
{
    qn_buf *frame = &x->gen.frames[p->kind == QN_PIECE_REASONING];
    if (!frame->len) {
        const qn_piece hole = {.kind = p->kind, .text = QN_SSE_HOLE, .n = 1};
        qn_openai_frame(frame, x, chunk_name, chunk_choice(x, delta_of(x, &hole), &hole, NULL));
    }
    qn_sse_fill(&x->out, frame, p->text, p->n);
}

static void piece(qn_exchange *x, const qn_piece *p)
{
    if (!p->n_samples && (p->kind == QN_PIECE_TEXT || p->kind == QN_PIECE_REASONING)) {
        put_text(x, p);
        return;
    }
    json_t *delta = delta_of(x, p);
    if (delta) qn_openai_chunk(x, chunk_name, chunk_choice(x, delta, p, NULL));
}

static void end(qn_exchange *x, const qn_piece *rest)
{
    qn_openai_end(x, chunk_name, chunk_choice(x, json_object(), rest, x->gen.finish));
}

/* The calls of the reply, or NULL. */
static json_t *calls_of(const qn_parts *parts)
{
    if (!parts->n_calls) return NULL;
    json_t *calls = json_array();
    for (size_t i = 0; i < parts->n; i++) {
        const qn_part *part = &parts->list[i];
        if (part->kind != QN_PART_CALL) continue;
        json_t *function = json_pack("{s:s}", "name", part->call_name);
        qn_json_put_text(function, "arguments", part->text.data, part->text.len);
        json_array_append_new(calls, json_pack("{s:s, s:s, s:o}", "id", part->call_id, "type",
                                               "function", "function", function));
    }
    return calls;
}

static json_t *message_of(const qn_exchange *x)
{
    const qn_parts *parts = &x->gen.pieces.parts;
    json_t *message = json_pack("{s:s}", "role", "assistant"), *calls = calls_of(parts);
    qn_buf text = {0}, reasoning = {0};
    qn_parts_join(parts, QN_PART_TEXT, &text);
    qn_parts_join(parts, QN_PART_REASONING, &reasoning);
    if (calls && !text.len) json_object_set_new(message, "content", json_null());
    else qn_json_put_text(message, "content", text.data, text.len);
    if (reasoning.len) put_reasoning(x, message, reasoning.data, reasoning.len);
    if (calls) json_object_set_new(message, "tool_calls", calls);
    qn_buf_release(&text);
    qn_buf_release(&reasoning);
    return message;
}

static void reply(qn_exchange *x)
{
    const qn_pieces *all = &x->gen.pieces;
    qn_piece p = {.samples = all->samples, .n_samples = all->n_samples};
    json_t *choice = json_object(), *choices = json_array(), *j = qn_openai_head(x, whole_name);
    json_object_set_new(choice, "index", json_integer(0));
    json_object_set_new(choice, "message", message_of(x));
    json_object_set_new(choice, "logprobs", logprobs_of(x, &p));
    json_object_set_new(choice, "finish_reason", json_string(x->gen.finish));
    json_array_append_new(choices, choice);
    json_object_set_new(j, "choices", choices);
    json_object_set_new(j, "usage", qn_openai_usage(x));
    json_object_set_new(j, "timings", qn_openai_timings(x));
    qn_exchange_reply(x, 200, j);
}

static void progress(qn_exchange *x, const qn_event *ev)
{
    qn_openai_progress(x, chunk_name, ev);
}

const qn_protocol qn_openai_chat = {
    .prompt_param = "messages", .prepare = prepare, .begin = begin, .piece = piece, .end = end,
    .reply = reply, .stream_error = qn_openai_stream_error, .progress = progress,
};
