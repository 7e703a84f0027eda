/* tok_json.c - reading typed fields of tokenizer.json, with errors that name the field. */
#include <string.h>

#include "text/tok_impl.h"

static const char *type_name(const json_t *v)
{
    if (!v) return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

static qn_code wrong_type(const json_t *v, const char *where, const char *key, const char *want,
                          qn_err *err)
{
    return qn_err_set(err, QN_FORMAT, "tokenizer.json: %s.%s is %s, it must be %s", where, key,
                      type_name(v), want);
}

qn_code tok_json_bool(const json_t *o, const char *where, const char *key, bool dflt, bool *out,
                      qn_err *err)
{
    const json_t *v = json_object_get(o, key);
    *out = dflt;
    if (!v || json_is_null(v)) return QN_OK;
    if (!json_is_boolean(v)) return wrong_type(v, where, key, "a boolean", err);
    *out = json_is_true(v);
    return QN_OK;
}

qn_code tok_json_u32(const json_t *o, const char *where, const char *key, uint32_t dflt,
                     uint32_t *out, qn_err *err)
{
    const json_t *v = json_object_get(o, key);
    *out = dflt;
    if (!v || json_is_null(v)) return QN_OK;
    if (!json_is_integer(v)) return wrong_type(v, where, key, "a whole number", err);
    json_int_t n = json_integer_value(v);
    if (n < 0 || n >= QN_NO_TOKEN) {
        return qn_err_set(err, QN_FORMAT,
                          "tokenizer.json: %s.%s is %lld, it must be between 0 and 4294967294",
                          where, key, (long long)n);
    }
    *out = (uint32_t)n;
    return QN_OK;
}

qn_code tok_json_str(qn_tokenizer *t, const json_t *o, const char *where, const char *key,
                     tok_str *out, qn_err *err)
{
    const json_t *v = json_object_get(o, key);
    *out = (tok_str){0};
    if (!v || json_is_null(v)) return QN_OK;
    if (!json_is_string(v)) return wrong_type(v, where, key, "a string", err);
    size_t n = json_string_length(v);
    if (n > TOK_MAX_TOKEN) {
        return qn_err_set(err, QN_LIMIT,
                          "tokenizer.json: %s.%s has %zu bytes, more than the limit of %d", where,
                          key, n, TOK_MAX_TOKEN);
    }
    char *copy = qn_arena_dup(&t->arena, json_string_value(v), n);
    if (!copy) return qn_err_set(err, QN_NOMEM, "tokenizer.json: out of memory");
    *out = (tok_str){copy, n};
    return QN_OK;
}

qn_code tok_json_need_str(qn_tokenizer *t, const json_t *o, const char *where, const char *key,
                          tok_str *out, qn_err *err)
{
    qn_code rc = tok_json_str(t, o, where, key, out, err);
    if (!rc && !out->s) return wrong_type(json_object_get(o, key), where, key, "a string", err);
    return rc;
}

qn_code tok_json_type(const json_t *o, const char *where, const char **out, qn_err *err)
{
    if (!json_is_object(o)) {
        return qn_err_set(err, QN_FORMAT, "tokenizer.json: %s is %s, it must be an object", where,
                          type_name(o));
    }
    const json_t *v = json_object_get(o, "type");
    if (!json_is_string(v)) return wrong_type(v, where, "type", "a string", err);
    *out = json_string_value(v);
    return QN_OK;
}

qn_code tok_json_pattern(qn_tokenizer *t, const json_t *o, const char *where, tok_str *out,
                         bool *regex, qn_err *err)
{
    const json_t *p = json_object_get(o, "pattern");
    *regex = false;
    if (json_is_string(p)) return tok_json_need_str(t, o, where, "pattern", out, err);
    if (!json_is_object(p)) {
        return wrong_type(p, where, "pattern", "an object with String or Regex", err);
    }
    *regex = json_object_get(p, "Regex") != NULL;
    return tok_json_need_str(t, p, where, *regex ? "Regex" : "String", out, err);
}
