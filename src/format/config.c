/* config.c - fields of config.json with their types and ranges checked. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "format/folder.h"

bool qn_cfg_is_null(const json_t *cfg, const char *key)
{
    return json_is_null(json_object_get(cfg, key));
}

/* A short picture of a value for an error. */
static const char *show(const json_t *v, char out[64])
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: snprintf(out, 64, "\"%.50s\"", json_string_value(v)); return out;
    case JSON_INTEGER:
        snprintf(out, 64, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return out;
    case JSON_REAL: snprintf(out, 64, "%g", json_real_value(v)); return out;
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return v ? "null" : "missing";
    }
}

__attribute__((format(printf, 4, 5))) static qn_code bad_field(const json_t *cfg, const char *key,
                                                               qn_err *err, const char *fmt, ...)
{
    char text[64], want[96];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(want, sizeof want, fmt, ap);
    va_end(ap);
    return qn_err_set(err, QN_FORMAT, "config.json: \"%s\" is %s; it must be %s", key,
                      show(json_object_get(cfg, key), text), want);
}

static qn_code read_u32(const json_t *cfg, const char *key, uint32_t min, uint32_t max,
                        uint32_t *out, qn_err *err)
{
    const json_t *v = json_object_get(cfg, key);
    double number = json_number_value(v); /* 0 for other types; 53 bits hold every uint32 */
    if (!json_is_number(v) || number != floor(number) || number < min || number > max) {
        return bad_field(cfg, key, err, "a whole number from %u to %u", min, max);
    }
    *out = (uint32_t)number;
    return QN_OK;
}

/* Absent or null: the caller's default holds. */
static bool is_unset(const json_t *cfg, const char *key)
{
    const json_t *v = json_object_get(cfg, key);
    return !v || json_is_null(v);
}

qn_code qn_cfg_u32(const json_t *cfg, const char *key, uint32_t min, uint32_t max, uint32_t *out,
                   qn_err *err)
{
    return read_u32(cfg, key, min, max, out, err);
}

qn_code qn_cfg_f64(const json_t *cfg, const char *key, double *out, qn_err *err)
{
    const json_t *v = json_object_get(cfg, key);
    if (!json_is_number(v)) return bad_field(cfg, key, err, "a number");
    *out = json_number_value(v);
    return QN_OK;
}

qn_code qn_cfg_u32_or(const json_t *cfg, const char *key, uint32_t dflt, uint32_t max,
                      uint32_t *out, qn_err *err)
{
    *out = dflt;
    return is_unset(cfg, key) ? QN_OK : read_u32(cfg, key, 0, max, out, err);
}

qn_code qn_cfg_f64_or(const json_t *cfg, const char *key, double dflt, double *out, qn_err *err)
{
    *out = dflt;
    return is_unset(cfg, key) ? QN_OK : qn_cfg_f64(cfg, key, out, err);
}

qn_code qn_cfg_bool_or(const json_t *cfg, const char *key, bool dflt, bool *out, qn_err *err)
{
    *out = dflt;
    if (is_unset(cfg, key)) return QN_OK;
    const json_t *v = json_object_get(cfg, key);
    if (!json_is_boolean(v)) return bad_field(cfg, key, err, "true or false");
    *out = json_is_true(v);
    return QN_OK;
}

qn_code qn_cfg_str_or(const json_t *cfg, const char *key, const char *dflt, const char **out,
                      qn_err *err)
{
    *out = dflt;
    if (is_unset(cfg, key)) return QN_OK;
    const json_t *v = json_object_get(cfg, key);
    if (!json_is_string(v)) return bad_field(cfg, key, err, "a string");
    *out = json_string_value(v);
    return QN_OK;
}
