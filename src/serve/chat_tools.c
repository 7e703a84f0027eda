/* chat_tools.c - see chat_tools.h. */
#include "serve/chat_tools.h"

#include <string.h>

#include "serve/json.h"
#include "serve/request.h"

enum { MAX_TOOL_NAME = 64 };

/* ---- schemas ---- */

static const char *type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "object";
    case JSON_ARRAY: return "array";
    case JSON_INTEGER: return "integer";
    case JSON_REAL: return "number";
    case JSON_TRUE:
    case JSON_FALSE: return "boolean";
    case JSON_NULL: return "null";
    default: return "string";
    }
}

static const char *const branch_keys[] = {"anyOf", "oneOf", "allOf"};

/* The type of a node that has none; its branches have theirs. */
static json_t *guess_type(const json_t *node)
{
    const json_t *values = json_object_get(node, "enum"), *fixed = json_object_get(node, "const");
    if (json_array_size(values)) return json_string(type_of_value(json_array_get(values, 0)));
    if (fixed) return json_string(type_of_value(fixed));
    if (json_object_get(node, "properties") || json_object_get(node, "additionalProperties")) {
        return json_string("object");
    }
    if (json_object_get(node, "items") || json_object_get(node, "prefixItems")) {
        return json_string("array");
    }
    for (size_t k = 0; k < sizeof branch_keys / sizeof *branch_keys; k++) {
        size_t i;
        json_t *branch;
        json_array_foreach(json_object_get(node, branch_keys[k]), i, branch) {
            json_t *type = json_object_get(branch, "type");
            if (type) return json_incref(type);
        }
    }
    return json_string("string");
}

static void fill_members(json_t *map)
{
    const char *key;
    json_t *v;
    if (!json_is_object(map)) return;
    json_object_foreach(map, key, v) qn_schema_fill_types(v);
}

static void fill_items(json_t *list)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) qn_schema_fill_types(v);
}

void qn_schema_fill_types(json_t *schema)
{
    if (!json_is_object(schema)) return;
    fill_members(json_object_get(schema, "properties"));
    fill_members(json_object_get(schema, "$defs"));
    fill_members(json_object_get(schema, "definitions"));
    fill_items(json_object_get(schema, "prefixItems"));
    for (size_t k = 0; k < sizeof branch_keys / sizeof *branch_keys; k++) {
        fill_items(json_object_get(schema, branch_keys[k]));
    }
    qn_schema_fill_types(json_object_get(schema, "items"));
    qn_schema_fill_types(json_object_get(schema, "additionalProperties"));
    if (!json_object_get(schema, "type")) json_object_set_new(schema, "type", guess_type(schema));
}

/* ---- tools ---- */

static bool name_is_good(const char *name)
{
    size_t n = strlen(name);
    return n && n <= MAX_TOOL_NAME &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") == n;
}

static const char *name_of(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

/* Append a function to the given tools. */
static bool add_function(qn_chat_tools *t, json_t *function, const char *param, qn_http_error *e)
{
    const char *name = json_string_value(json_object_get(function, "name"));
    if (!name) return qn_fail_field(e, param, "%s: every function needs a name", param);
    if (!name_is_good(name)) {
        return qn_fail_field(e, param,
                             "%s: the name %.80s must have 1 to %d of the characters A-Z a-z 0-9 "
                             "_ . -", param, name, MAX_TOOL_NAME);
    }
    const json_t *schema = qn_json_get(function, "parameters");
    if (schema && !json_is_object(schema)) {
        return qn_fail_field(e, param, "%s: the parameters of %.64s must be of type object", param,
                             name);
    }
    if (!t->given) t->given = json_array();
    json_array_append_new(t->given, json_pack("{s:s, s:O}", "type", "function", "function",
                                              function));
    return true;
}

static bool read_tools(qn_chat_tools *t, const json_t *body, qn_http_error *e)
{
    const json_t *tools = qn_json_get(body, "tools"), *functions = qn_json_get(body, "functions");
    size_t i;
    json_t *v;
    if (tools && !json_is_array(tools)) {
        return qn_fail_field(e, "tools", "tools must be of type array");
    }
    if (functions && !json_is_array(functions)) {
        return qn_fail_field(e, "functions", "functions must be of type array");
    }
    json_array_foreach(tools, i, v) {
        if (!json_is_object(v)) return qn_fail_field(e, "tools", "tools must hold objects");
        const char *type = json_string_value(json_object_get(v, "type"));
        json_t *function = json_object_get(v, "function");
        if (type && strcmp(type, "function")) continue; /* tools that a server runs itself */
        if (!json_is_object(function)) {
            return qn_fail_field(e, "tools", "tools[%zu].function must be of type object", i);
        }
        if (!add_function(t, function, "tools", e)) return false;
    }
    if (tools) return true;
    json_array_foreach(functions, i, v) {
        if (!add_function(t, v, "functions", e)) return false;
    }
    return true;
}

/* ---- choice ---- */

static bool check_named(const qn_chat_tools *t, const char *name, const char *param,
                        qn_http_error *e)
{
    size_t i;
    json_t *tool;
    json_array_foreach(t->given, i, tool) {
        if (name && !strcmp(name_of(tool), name)) return true;
    }
    return qn_fail_field(e, param, "%s names the tool %.64s, which is not among the tools", param,
                         name ? name : "(none)");
}

static void hide_all(qn_chat_tools *t)
{
    json_decref(t->given);
    t->given = NULL;
}

static const char *chosen_name(const json_t *choice)
{
    const json_t *function = json_object_get(choice, "function");
    return json_string_value(json_object_get(json_is_object(function) ? function : choice, "name"));
}

/* Tools that a server runs itself are not here, and may be named all the same. */
static bool is_function(const json_t *choice)
{
    const char *type = json_string_value(json_object_get(choice, "type"));
    return !type || !strcmp(type, "function") || !strcmp(type, "custom");
}

static bool is_listed(const json_t *choices, const char *name)
{
    size_t i;
    json_t *one;
    json_array_foreach(choices, i, one) {
        const char *chosen = is_function(one) ? chosen_name(one) : NULL;
        if (chosen && !strcmp(chosen, name)) return true;
    }
    return false;
}

/* {"mode", "tools"}: the request goes on as if it had only those of its tools. */
static bool read_allowed(qn_chat_tools *t, const json_t *v, const char *param, qn_http_error *e)
{
    const json_t *choices = json_object_get(v, "tools");
    const char *mode = json_string_value(json_object_get(v, "mode"));
    t->is_forced = mode && !strcmp(mode, "required");
    if (!json_is_array(choices) || !mode || (!t->is_forced && strcmp(mode, "auto"))) {
        return qn_fail_field(e, param, "%s: allowed_tools needs a mode, auto or required, and an "
                                       "array of tools", param);
    }
    size_t i;
    json_t *one;
    json_array_foreach(choices, i, one) {
        if (is_function(one) && !check_named(t, chosen_name(one), param, e)) return false;
    }
    for (i = json_array_size(t->given); i-- > 0;) {
        if (!is_listed(choices, name_of(json_array_get(t->given, i)))) json_array_remove(t->given, i);
    }
    if (!json_array_size(t->given)) hide_all(t);
    return true;
}

/* `v` is tool_choice, or the older function_call. */
static bool read_choice(qn_chat_tools *t, const json_t *v, const char *param, qn_http_error *e)
{
    if (json_is_string(v)) {
        const char *word = json_string_value(v);
        if (!strcmp(word, "none")) hide_all(t);
        else if (!strcmp(word, "required") || !strcmp(word, "any")) t->is_forced = true;
        else if (strcmp(word, "auto")) {
            return qn_fail_field(e, param, "%s must be none, auto, required or a function", param);
        }
        return true;
    }
    if (!json_is_object(v)) {
        return qn_fail_field(e, param, "%s must be of type string or object", param);
    }
    const json_t *allowed = json_object_get(v, "allowed_tools");
    if (json_is_object(allowed)) return read_allowed(t, allowed, param, e);
    t->is_forced = true;
    return check_named(t, chosen_name(v), param, e);
}

bool qn_chat_tools_read(qn_chat_tools *t, const json_t *body, qn_http_error *e)
{
    static const char *const choices[] = {"tool_choice", "function_call"};
    bool parallel = true, chosen = false;
    memset(t, 0, sizeof *t);
    if (!read_tools(t, body, e) || !qn_field_bool(body, "parallel_tool_calls", &parallel, e)) {
        return false;
    }
    for (size_t i = 0; i < 2 && !chosen; i++) {
        const json_t *v = qn_json_get(body, choices[i]);
        chosen = v != NULL;
        if (v && !read_choice(t, v, choices[i], e)) return false;
    }
    t->one_call = !parallel;
    t->is_forced = t->is_forced && t->given;
    t->shown = t->given ? json_deep_copy(t->given) : NULL;
    size_t i;
    json_t *tool;
    json_array_foreach(t->shown, i, tool) {
        json_t *function = json_object_get(tool, "function");
        qn_schema_fill_types(json_object_get(function, "parameters"));
    }
    return true;
}

bool qn_chat_tools_describe(qn_chat_tools *t)
{
    size_t i;
    json_t *tool;
    bool changed = false;
    json_array_foreach(t->shown, i, tool) {
        json_t *function = json_object_get(tool, "function");
        if (qn_json_get(function, "description")) continue;
        json_object_set_new(function, "description", json_string(""));
        changed = true;
    }
    return changed;
}

void qn_chat_tools_release(qn_chat_tools *t)
{
    json_decref(t->given);
    json_decref(t->shown);
    memset(t, 0, sizeof *t);
}
