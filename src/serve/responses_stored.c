/* responses_stored.c - GET and DELETE of stored responses, and GET of the items that one answered. */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "serve/exchange.h"
#include "serve/json.h"

enum { MAX_ITEMS = 100, DEFAULT_ITEMS = 20 }; /* of one page; OpenAI's */

static bool fail_unknown(const char *id, qn_http_error *e)
{
    return qn_fail_with(e, 404, "invalid_request_error", NULL, "response_id",
                        "there is no stored response %.64s", id);
}

json_t *qn_responses_get(qn_exchange *x, qn_http_error *e)
{
    json_t *response = NULL;
    qn_response_store *s = x->server->responses;
    const char *stream = qn_exchange_query(x, "stream");
    if (stream && strcmp(stream, "false")) {
        qn_fail_field(e, "stream", "not supported yet: the events of a stored response; it is given "
                                   "whole without stream=%.16s", stream);
        return NULL;
    }
    if (!s || !qn_response_store_get(s, x->tail, qn_wall_ms(), &response, NULL)) {
        fail_unknown(x->tail, e);
    }
    return response;
}

json_t *qn_responses_delete(qn_exchange *x, qn_http_error *e)
{
    qn_response_store *s = x->server->responses;
    if (!s || !qn_response_store_delete(s, x->tail, qn_wall_ms())) {
        fail_unknown(x->tail, e);
        return NULL;
    }
    return json_pack("{s:s, s:s, s:b}", "id", x->tail, "object", "response", "deleted", 1);
}

/* ---- the items that a response answered ---- */

typedef struct page {
    size_t limit;
    bool is_descending;
    const char *after; /* id of the item before the page, or NULL */
} page;

static bool read_page(const qn_exchange *x, page *p, qn_http_error *e)
{
    const char *limit = qn_exchange_query(x, "limit"), *order = qn_exchange_query(x, "order");
    *p = (page){DEFAULT_ITEMS, true, qn_exchange_query(x, "after")};
    if (limit) {
        char *end;
        long n = strtol(limit, &end, 10);
        if (*end || n < 1 || n > MAX_ITEMS) {
            return qn_fail_field(e, "limit", "limit must be an integer from 1 to %d, not %.16s",
                                 MAX_ITEMS, limit);
        }
        p->limit = (size_t)n;
    }
    p->is_descending = !order || strcmp(order, "asc") != 0;
    if (order && p->is_descending && strcmp(order, "desc")) {
        return qn_fail_field(e, "order", "order must be asc or desc, not %.16s", order);
    }
    return true;
}

/* A message's text as a list of parts. */
static void spread_content(json_t *message)
{
    json_t *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!json_is_string(content)) return;
    json_t *part = json_pack("{s:s, s:O}", "type", "input_text", "text", content);
    if (role && !strcmp(role, "assistant")) {
        json_object_set_new(part, "type", json_string("output_text"));
        json_object_set_new(part, "annotations", json_array());
    }
    json_object_set_new(message, "content", json_pack("[o]", part));
}

/* What clients may leave out of an item and expect to find in it. The id follows from the
 * response's, so that it is the same every time. */
static void complete_item(json_t *item, const char *response_id, size_t i)
{
    static const char *const prefixes[][2] = {
        {"function_call", "fc"}, {"function_call_output", "fco"}, {"custom_tool_call", "ctc"},
        {"custom_tool_call_output", "ctco"}, {"reasoning", "rs"}};
    const char *type = json_string_value(json_object_get(item, "type")), *prefix = "msg";
    const char *number = strchr(response_id, '_');
    for (size_t k = 0; type && k < sizeof prefixes / sizeof *prefixes; k++) {
        if (!strcmp(type, prefixes[k][0])) prefix = prefixes[k][1];
    }
    if (!type) json_object_set_new(item, "type", json_string("message"));
    if (!strcmp(prefix, "msg")) spread_content(item);
    if (!json_is_string(json_object_get(item, "id"))) {
        json_object_set_new(item, "id",
                            json_sprintf("%s_%si%02zx", prefix, number ? number + 1 : "", i));
    }
    if (strcmp(prefix, "rs") && !json_is_string(json_object_get(item, "status"))) {
        json_object_set_new(item, "status", json_string("completed"));
    }
}

/* The items of a page, in its order, or NULL with *e filled. */
static json_t *cut_page(const json_t *all, const page *p, bool *has_more, qn_http_error *e)
{
    size_t n = json_array_size(all), i = 0;
    json_t *data = json_array(), *item;
    bool is_in = !p->after;
    for (; i < n && json_array_size(data) < p->limit; i++) {
        item = json_array_get(all, p->is_descending ? n - 1 - i : i);
        if (is_in) json_array_append(data, item);
        else is_in = !strcmp(json_string_value(json_object_get(item, "id")), p->after);
    }
    *has_more = i < n;
    if (is_in) return data;
    json_decref(data);
    qn_fail_field(e, "after", "after: the response has no input item %.64s", p->after);
    return NULL;
}

json_t *qn_responses_items(qn_exchange *x, qn_http_error *e)
{
    char id[sizeof x->path];
    size_t n = strlen(x->tail) - strlen(x->route->suffix), i; /* of the id */
    page p;
    json_t *all = NULL, *item;
    qn_response_store *s = x->server->responses;
    memcpy(id, x->tail, n);
    id[n] = '\0';
    if (!read_page(x, &p, e)) return NULL;
    if (!s || !qn_response_store_get(s, id, qn_wall_ms(), NULL, &all)) {
        fail_unknown(id, e);
        return NULL;
    }
    json_array_foreach(all, i, item) complete_item(item, id, i);
    bool has_more;
    json_t *data = cut_page(all, &p, &has_more, e), *out = NULL;
    json_decref(all);
    if (!data) return NULL;
    size_t n_data = json_array_size(data);
    json_t *first = json_object_get(json_array_get(data, 0), "id");
    json_t *last = n_data ? json_object_get(json_array_get(data, n_data - 1), "id") : NULL;
    out = json_pack("{s:s, s:O?, s:O?, s:b}", "object", "list", "first_id", first, "last_id", last,
                    "has_more", has_more);
    json_object_set_new(out, "data", data);
    return out;
}
