/* routes.c - every path that the server answers. */
#include <string.h>

#include "serve/exchange.h"

static const qn_route routes[] = {
    {.method = "POST", .path = "/v1/chat/completions", .protocol = &qn_openai_chat},
    {.method = "POST", .path = "/chat/completions", .protocol = &qn_openai_chat},
    {.method = "POST", .path = "/v1/completions", .protocol = &qn_openai_completions},
    {.method = "POST", .path = "/v1/chat/completions/input_tokens", .answer = qn_count_chat},
    {.method = "POST", .path = "/v1/messages", .protocol = &qn_anthropic_messages},
    {.method = "POST", .path = "/v1/messages/count_tokens", .answer = qn_anthropic_count_tokens},
    {.method = "POST", .path = "/v1/responses", .protocol = &qn_responses},
    {.method = "POST", .path = "/v1/responses/input_tokens", .answer = qn_responses_count_tokens},
    {.method = "GET", .path = "/v1/responses/", .suffix = "/input_items",
     .answer = qn_responses_items},
    {.method = "GET", .path = "/v1/responses/", .answer = qn_responses_get},
    {.method = "DELETE", .path = "/v1/responses/", .answer = qn_responses_delete},
    {.method = "POST", .path = "/v1/embeddings", .answer = qn_embeddings},
    {.method = "GET", .path = "/v1/models", .handle = qn_models_list},
    {.method = "GET", .path = "/v1/models/", .handle = qn_models_one},
    {.method = "GET", .path = "/v1", .handle = qn_index},
    {.method = "GET", .path = "/", .handle = qn_index},
    {.method = "GET", .path = "/openapi.json", .handle = qn_openapi},
    {.method = "GET", .path = "/health", .handle = qn_health, .open = true},
    {.method = "GET", .path = "/v1/health", .handle = qn_health, .open = true},
    {.method = "GET", .path = "/stats", .handle = qn_stats_page},
    {.method = "GET", .path = "/metrics", .handle = qn_metrics_page},
    {.method = "GET", .path = "/props", .handle = qn_props_page},
    {.method = "GET", .path = "/slots", .handle = qn_slots_page},
    {.method = "POST", .path = "/tokenize", .answer = qn_tokenize},
    {.method = "POST", .path = "/detokenize", .answer = qn_detokenize},
    {.method = "POST", .path = "/apply-template", .answer = qn_apply_template},
    {.method = "POST", .path = "/admin/cache/flush", .handle = qn_cache_flush},
};

const qn_route *qn_route_at(size_t i)
{
    return i < sizeof routes / sizeof *routes ? &routes[i] : NULL;
}

static bool fits(const qn_route *r, const char *path)
{
    size_t n = strlen(r->path), n_suffix = r->suffix ? strlen(r->suffix) : 0, n_all = strlen(path);
    bool takes_tail = n > 1 && r->path[n - 1] == '/';
    if (!takes_tail) return !strcmp(path, r->path);
    return n_all > n + n_suffix && !strncmp(path, r->path, n) &&
           (!r->suffix || !strcmp(path + n_all - n_suffix, r->suffix));
}

const qn_route *qn_route_find(const char *method, const char *path, const char **tail,
                              const char **allow)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const qn_route *r = &routes[i];
        if (!fits(r, path)) continue;
        *tail = path + strlen(r->path);
        if (!strcmp(r->method, method)) return r;
        if (!strcmp(r->method, "GET") && !strcmp(method, "HEAD")) return r;
        if (!strcmp(r->method, "DELETE")) *allow = "GET, HEAD, DELETE, OPTIONS";
        else *allow = !strcmp(r->method, "GET") ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
        if (r->suffix) return NULL; /* it is not the argument of the route without one */
    }
    return NULL;
}
