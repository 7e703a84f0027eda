/* Request bodies of the chat and completion surfaces, up to the parsed request; no engine. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "core/utf8.h"
#include "serve/json.h"
#include "serve/messages.h"
#include "serve/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whatever goes wrong, the client's error must be something that can be written. */
static void write_error(const qn_http_error *e)
{
    json_t *j = qn_error_openai(e);
    qn_buf out = {0};
    if (!j) abort();
    qn_json_write(&out, j);
    if (out.failed || e->status < 400 || !qn_utf8_valid(out.data, out.len)) abort();
    qn_buf_release(&out);
    json_decref(j);
}

static void check_fields(const qn_fields *f)
{
    if (f->n_stops > QN_MAX_STOPS || f->sampling.n_top > QN_MAX_TOP_LOGPROBS) abort();
    if (!(f->sampling.temperature >= 0) || !(f->sampling.top_p <= 1)) abort();
    for (size_t i = 0; i < f->sampling.n_bias; i++) {
        if (f->sampling.bias[i].id >= 1000) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const qn_request_defaults dflt = {.max_tokens = -1};
    json_t *body;
    qn_err err = {0};
    if (qn_json_parse(&body, (const char *)data, size, &err)) {
        qn_http_error e = {0};
        qn_fail_err(&e, &err, NULL);
        write_error(&e);
        return 0;
    }
    for (int is_completion = 0; is_completion < 2; is_completion++) {
        qn_arena arena = {0};
        qn_fields f;
        qn_http_error e = {0};
        if (qn_fields_check_supported(body, &e) && qn_fields_read(&f, body, &dflt, 1000, is_completion, &arena, &e)) {
            check_fields(&f);
        } else {
            write_error(&e);
        }
        qn_arena_release(&arena);
    }
    qn_http_error e = {0};
    json_t *messages = qn_json_get(body, "messages");
    if (!qn_messages_normalize(messages, "model", &e)) write_error(&e);
    else qn_messages_join_system(messages);
    qn_buf text = {0};
    qn_json_write(&text, body);
    qn_buf_release(&text);
    json_decref(body);
    return 0;
}
