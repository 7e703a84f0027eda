/* error.c - see error.h. */
#include "serve/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/utf8.h"

/* The reply must be UTF-8: a cut may have split a character, and a path may hold anything. */
static void keep_valid(char *s)
{
    size_t n = strlen(s);
    n -= qn_utf8_tail(s, n);
    s[n] = '\0';
    if (qn_utf8_valid(s, n)) return;
    for (; *s; s++) *s = (unsigned char)*s < 0x80 ? *s : '?';
}

static bool fail_v(qn_http_error *e, int status, const char *type, const char *code,
                   const char *param, const char *fmt, va_list ap)
{
    if (e->status) return false;
    e->status = status;
    e->type = type;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    keep_valid(e->message);
    keep_valid(e->param);
    return false;
}

bool qn_fail_with(qn_http_error *e, int status, const char *type, const char *code,
                  const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_v(e, status, type, code, param, fmt, ap);
    va_end(ap);
    return false;
}

bool qn_fail_field(qn_http_error *e, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_v(e, 400, "invalid_request_error", NULL, param, fmt, ap);
    va_end(ap);
    return false;
}

bool qn_fail_context(qn_http_error *e, uint32_t n_prompt_tokens, uint32_t n_ctx, bool by_budget,
                     const char *param)
{
    if (e->status) return false;
    e->n_prompt_tokens = n_prompt_tokens;
    e->n_ctx = n_ctx;
    return qn_fail_with(e, 400, by_budget ? "memory_admission" : "invalid_request_error",
                        by_budget ? "context_over_budget" : "context_length_exceeded", param,
                        "This model's maximum context length is %u tokens%s, but the prompt has %u "
                        "tokens: the request exceeds the available context size. Shorten the "
                        "prompt.",
                        n_ctx, by_budget ? " within this server's memory budget" : "",
                        n_prompt_tokens);
}

bool qn_fail_queue(qn_http_error *e)
{
    return qn_fail_with(e, 429, "resource_admission", "queue_full", NULL,
                        "too many requests are waiting; try again in a moment");
}

bool qn_fail_draining(qn_http_error *e)
{
    return qn_fail_with(e, 503, "overloaded_error", "draining", NULL,
                        "the server is shutting down");
}

bool qn_fail_err(qn_http_error *e, const qn_err *err, const char *param)
{
    switch (err->code) {
    case QN_INVALID:
    case QN_FORMAT:
    case QN_LIMIT:
    case QN_UNSUPPORTED: return qn_fail_field(e, param, "%s", err->text);
    case QN_CANCELLED: return qn_fail_queue(e);
    default: return qn_fail_with(e, 500, "server_error", NULL, NULL, "%s", err->text);
    }
}

static json_t *text_or_null(const char *s)
{
    return s && s[0] ? json_string(s) : json_null();
}

json_t *qn_error_openai(const qn_http_error *e)
{
    json_t *in = json_object();
    json_object_set_new(in, "message", text_or_null(e->message));
    json_object_set_new(in, "type", text_or_null(e->type));
    json_object_set_new(in, "param", text_or_null(e->param));
    json_object_set_new(in, "code", text_or_null(e->code));
    if (e->n_ctx) {
        json_object_set_new(in, "n_prompt_tokens", json_integer(e->n_prompt_tokens));
        json_object_set_new(in, "n_ctx", json_integer(e->n_ctx));
    }
    return json_pack("{s:o}", "error", in);
}
