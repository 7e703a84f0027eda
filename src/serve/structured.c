/* structured.c - see structured.h. */
#include "serve/structured.h"

#include <string.h>

#include "serve/json.h"
#include "serve/tool_value.h"

const char qn_structured_warning[] =
    "grammar not enforced: no grammar engine - falling back to prompt injection";

/* What is wanted, in the words for the model. */
static const char any_object[] = "Reply with one JSON object and nothing else.";
static const char schema_words[] =
    "Reply with JSON that conforms to the following JSON schema, and with nothing else.\n";
static const char regex_words[] =
    "Reply with text that matches the following regular expression, and with nothing else.\n";
static const char choice_words[] =
    "Reply with exactly one of the following texts, without quotes, and with nothing else.\n";
static const char grammar_words[] =
    "Reply with text of the following grammar, and with nothing else.\n";

static bool wrong(qn_http_error *e, const char *field, const char *type)
{
    return qn_fail_field(e, field, "%s must be of type %s", field, type);
}

static bool ask_text(qn_buf *words, const char *intro, const json_t *v, const char *field,
                     qn_http_error *e)
{
    if (!json_is_string(v)) return wrong(e, field, "string");
    qn_buf_puts(words, intro);
    qn_buf_put(words, json_string_value(v), json_string_length(v));
    return true;
}

static bool ask_choice(qn_buf *words, const json_t *v, const char *field, qn_http_error *e)
{
    size_t i;
    json_t *one;
    if (!json_is_array(v) || !json_array_size(v)) return wrong(e, field, "array of strings");
    json_array_foreach(v, i, one) {
        if (!json_is_string(one)) return wrong(e, field, "array of strings");
    }
    qn_buf_puts(words, choice_words);
    qn_tool_write_args(words, v);
    return true;
}

/* A schema: an object or a bool, or the JSON text of one. */
static bool ask_schema(qn_buf *words, const json_t *v, const char *field, qn_http_error *e)
{
    json_t *inner = json_is_string(v)
                        ? qn_json_value(json_string_value(v), json_string_length(v))
                        : json_incref((json_t *)(uintptr_t)v);
    bool ok = json_is_object(inner) || json_is_boolean(inner);
    if (ok) {
        qn_buf_puts(words, schema_words);
        qn_tool_write_args(words, inner);
    }
    json_decref(inner);
    return ok || qn_fail_with(e, 400, "invalid_request_error", "unsupported_schema", field,
                              "%s: the schema must be of type object (a JSON schema)", field);
}

static bool ask_json_object(qn_buf *words, const json_t *schema, const char *field,
                            qn_http_error *e)
{
    if (json_is_object(schema)) return ask_schema(words, schema, field, e);
    qn_buf_puts(words, any_object);
    return true;
}

/* ---- the fields ---- */

static bool ask_response_format(qn_buf *words, const json_t *v, qn_http_error *e)
{
    static const char field[] = "response_format";
    if (!json_is_object(v)) return wrong(e, field, "object");
    const json_t *type_value = qn_json_get(v, "type");
    const char *type = json_string_value(type_value);
    if (!type_value || (type && !strcmp(type, "text"))) return true;
    if (!type) return wrong(e, "response_format.type", "string");
    if (!strcmp(type, "json_object")) {
        return ask_json_object(words, json_object_get(v, "schema"), field, e);
    }
    if (strcmp(type, "json_schema")) {
        return qn_fail_field(e, field,
                             "response_format.type must be text, json_object or json_schema");
    }
    const json_t *inner = json_object_get(v, "json_schema");
    if (!json_is_object(inner)) inner = v;
    const json_t *schema = qn_json_get(inner, "schema");
    if (!schema) return qn_fail_field(e, field, "response_format: the schema is missing");
    return ask_schema(words, schema, field, e);
}

/* vLLM's form has one of its own keys and none that a schema begins with. */
static bool is_vllm_form(const json_t *v)
{
    static const char *const own[] = {"json", "regex", "choice", "grammar", "structural_tag",
                                      "json_object"};
    static const char *const schema[] = {"type", "properties", "$schema", "anyOf"};
    bool found = false;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) found |= json_object_get(v, own[i]) != NULL;
    for (size_t i = 0; i < sizeof schema / sizeof *schema; i++) {
        found = found && !json_object_get(v, schema[i]);
    }
    return found;
}

static bool ask_structured_outputs(qn_buf *words, const json_t *v, qn_http_error *e)
{
    static const char field[] = "structured_outputs";
    if (!json_is_object(v)) return wrong(e, field, "object");
    if (!is_vllm_form(v)) return ask_schema(words, v, field, e);
    const json_t *one;
    if ((one = qn_json_get(v, "json"))) return ask_schema(words, one, field, e);
    if ((one = qn_json_get(v, "regex"))) return ask_text(words, regex_words, one, field, e);
    if ((one = qn_json_get(v, "choice"))) return ask_choice(words, one, field, e);
    if ((one = qn_json_get(v, "grammar"))) return ask_text(words, grammar_words, one, field, e);
    if (qn_json_get(v, "json_object")) return ask_json_object(words, NULL, field, e);
    return qn_fail_field(e, field, "not supported yet: structured_outputs.structural_tag");
}

bool qn_structured_read(const json_t *body, bool *asked, qn_buf *words, qn_http_error *e)
{
    /* The first that asks for something wins. */
    const json_t *v;
    bool ok = true;
    size_t before = words->len;
    if ((v = qn_json_get(body, "guided_grammar"))) {
        ok = ask_text(words, grammar_words, v, "guided_grammar", e);
    }
    if (ok && words->len == before && (v = qn_json_get(body, "response_format"))) {
        ok = ask_response_format(words, v, e);
    }
    if (ok && words->len == before && (v = qn_json_get(body, "structured_outputs"))) {
        ok = ask_structured_outputs(words, v, e);
    }
    if (ok && words->len == before && (v = qn_json_get(body, "guided_json"))) {
        ok = ask_schema(words, v, "guided_json", e);
    }
    if (ok && words->len == before && (v = qn_json_get(body, "guided_regex"))) {
        ok = ask_text(words, regex_words, v, "guided_regex", e);
    }
    if (ok && words->len == before && (v = qn_json_get(body, "guided_choice"))) {
        ok = ask_choice(words, v, "guided_choice", e);
    }
    if (ok && words->len == before && (v = qn_json_get(body, "grammar"))) {
        ok = ask_text(words, grammar_words, v, "grammar", e);
    }
    if (ok && words->len == before && (v = qn_json_get(body, "json_schema"))) {
        ok = ask_schema(words, v, "json_schema", e);
    }
    *asked = words->len > before;
    if (ok && words->failed) {
        return qn_fail_with(e, 500, "server_error", NULL, NULL, "out of memory");
    }
    return ok;
}
