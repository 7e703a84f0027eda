/* Bodies of the Anthropic and Responses surfaces, up to normal chat messages; no engine. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "serve/anthropic_request.h"
#include "serve/chat_tools.h"
#include "serve/json.h"
#include "serve/messages.h"
#include "serve/responses_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a surface made must be readable as a chat body, or be refused with an error. Takes chat. */
static void read_chat(bool ok, json_t *chat, const qn_http_error *e)
{
    if (ok != (chat != NULL) || ok == (e->status != 0)) abort();
    if (!ok) return;
    qn_http_error why = {0};
    qn_chat_tools tools = {0};
    if (!qn_chat_tools_read(&tools, chat, &why) && !why.status) abort();
    qn_chat_tools_release(&tools);
    json_t *messages = json_object_get(chat, "messages");
    if (!json_array_size(messages)) abort();
    why = (qn_http_error){0};
    if (qn_messages_normalize(messages, "model", &why)) qn_messages_join_system(messages);
    else if (!why.status) abort();
    json_decref(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *body, *chat;
    if (qn_json_parse(&body, (const char *)data, size, NULL)) return 0;
    json_t *before = json_deep_copy(body);
    for (int keep = 0; keep < 2; keep++) {
        qn_http_error e = {0};
        bool ok = qn_anthropic_to_chat(body, keep, &chat, &e);
        read_chat(ok, chat, &e);

        /* The same items as a past, behind themselves. */
        json_t *items = qn_responses_input_items(body);
        const qn_responses_past past = {.items = items, .keep_reasoning = keep};
        e = (qn_http_error){0};
        ok = qn_responses_to_chat(body, &past, &chat, &e);
        read_chat(ok, chat, &e);
        json_decref(items);
    }
    if (!json_equal(body, before)) abort(); /* it is what replies repeat and what is stored */
    json_decref(before);
    json_decref(body);
    return 0;
}
