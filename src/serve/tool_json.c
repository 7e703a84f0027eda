/* tool_json.c - calls whose body is JSON: Qwen and Hermes. */
#include "serve/tool_formats.h"
#include "serve/tool_value.h"

static qn_code not_json(qn_err *err)
{
    return qn_err_set(err, QN_FORMAT, "the body is not the JSON of a call");
}

/* One {"name", "arguments" or "parameters"}, perhaps inside {"function": ...}. */
static qn_code add_json_call(const json_t *v, json_t *calls, qn_err *err)
{
    if (json_is_object(json_object_get(v, "function"))) v = json_object_get(v, "function");
    json_t *name = json_object_get(v, "name"), *args = json_object_get(v, "arguments");
    json_t *id = json_object_get(v, "id");
    if (!json_is_string(name)) return not_json(err);
    if (!args) args = json_object_get(v, "parameters");
    json_t *call = json_object();
    json_object_set(call, "name", name);
    if (args) json_object_set(call, "arguments", args);
    if (json_is_string(id)) json_object_set(call, "id", id);
    json_array_append_new(calls, call);
    return QN_OK;
}

static qn_code parse_json(const char *body, size_t n, unsigned mark, const json_t *tools,
                          json_t *calls, qn_err *err)
{
    (void)mark, (void)tools;
    json_t *v = qn_value_json(body, n), *one;
    size_t i;
    qn_code rc = v ? QN_OK : not_json(err);
    if (json_is_array(v)) {
        json_array_foreach(v, i, one) {
            if (!rc) rc = add_json_call(one, calls, err);
        }
    } else if (!rc) {
        rc = add_json_call(v, calls, err);
    }
    json_decref(v);
    return rc;
}

const qn_tool_format qn_tool_json = {
    .name = "json_tools", .marks = {{"<tool_call>", "</tool_call>"}}, .parse = parse_json};
