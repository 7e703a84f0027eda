/* request.c - see request.h. */
#include "serve/request.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/json.h"

enum { PENALTY_WINDOW = 20 }; /* tokens that penalties look back on where a request is silent */

/* ---- typed readers ---- */

static bool wrong_type(qn_http_error *e, const char *name, const char *type)
{
    return qn_fail_field(e, name, "%s must be of type %s", name, type);
}

bool qn_field_bool(const json_t *body, const char *name, bool *out, qn_http_error *e)
{
    const json_t *v = qn_json_get(body, name);
    if (!v) return true;
    if (!json_is_boolean(v)) return wrong_type(e, name, "bool");
    *out = json_is_true(v);
    return true;
}

bool qn_field_int(const json_t *body, const char *name, int64_t min, int64_t max, int64_t *out,
                  qn_http_error *e)
{
    const json_t *v = qn_json_get(body, name);
    if (!v) return true;
    json_int_t i;
    if (!qn_json_int(v, &i)) return wrong_type(e, name, "int");
    if (i < min) return qn_fail_field(e, name, "%s must be at least %" PRId64, name, min);
    if (i > max) return qn_fail_field(e, name, "%s must be at most %" PRId64, name, max);
    *out = i;
    return true;
}

bool qn_field_number(const json_t *body, const char *name, double min, double max, double *out,
                     qn_http_error *e)
{
    const json_t *v = qn_json_get(body, name);
    if (!v) return true;
    if (!json_is_number(v)) return wrong_type(e, name, "number");
    double d = json_number_value(v);
    if (d < min) return qn_fail_field(e, name, "%s must be at least %g", name, min);
    if (d > max) return qn_fail_field(e, name, "%s must be at most %g", name, max);
    *out = d;
    return true;
}

bool qn_field_string(const json_t *body, const char *name, const char **out, qn_http_error *e)
{
    const json_t *v = qn_json_get(body, name);
    if (!v) return true;
    if (!json_is_string(v)) return wrong_type(e, name, "string");
    *out = json_string_value(v);
    return true;
}

bool qn_field_object(const json_t *body, const char *name, json_t **out, qn_http_error *e)
{
    json_t *v = qn_json_get(body, name);
    if (!v) return true;
    if (!json_is_object(v)) return wrong_type(e, name, "object");
    *out = v;
    return true;
}

bool qn_field_ids(const json_t *list, const char *name, uint32_t n_vocab, qn_ids *out,
                 qn_http_error *e)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        json_int_t id;
        if (!qn_json_int(v, &id)) {
            return qn_fail_field(e, name, "%s: token ids must be of type int", name);
        }
        if (id < 0 || id >= n_vocab) {
            return qn_fail_field(e, name,
                                 "%s: token id %lld is outside the vocabulary of %u tokens", name,
                                 (long long)id, n_vocab);
        }
        uint32_t id32 = (uint32_t)id;
        qn_ids_put(out, &id32, 1);
    }
    return !out->failed || qn_fail_with(e, 500, "server_error", NULL, NULL, "out of memory");
}

/* ---- the sampling fields, as a table ---- */

typedef struct sampling_field {
    const char *name;
    bool is_int;   /* a count stored as uint32_t; else a number stored as float */
    double min, max;
    size_t offset; /* in qn_sampling */
} sampling_field;

#define AT(field) offsetof(qn_sampling, field)
static const sampling_field sampling_fields[] = {
    {"temperature", false, 0, FLT_MAX, AT(temperature)},
    {"top_p", false, 0, 1, AT(top_p)},
    {"min_p", false, 0, 1, AT(min_p)},
    {"top_k", true, 0, UINT32_MAX, AT(top_k)},
    {"xtc_probability", false, 0, 1, AT(xtc_probability)},
    {"xtc_threshold", false, 0, 0.5, AT(xtc_threshold)},
    {"repetition_penalty", false, 0, FLT_MAX, AT(repetition_penalty)},
    {"presence_penalty", false, -FLT_MAX, FLT_MAX, AT(presence_penalty)},
    {"frequency_penalty", false, -FLT_MAX, FLT_MAX, AT(frequency_penalty)},
    {"repetition_context_size", true, 0, UINT32_MAX, AT(repetition_context)},
    {"presence_context_size", true, 0, UINT32_MAX, AT(presence_context)},
    {"frequency_context_size", true, 0, UINT32_MAX, AT(frequency_context)},
};
#undef AT

static bool read_sampling(qn_sampling *s, const json_t *body, qn_http_error *e)
{
    for (size_t i = 0; i < sizeof sampling_fields / sizeof *sampling_fields; i++) {
        const sampling_field *f = &sampling_fields[i];
        void *at = (char *)s + f->offset;
        if (f->is_int) {
            int64_t v = *(uint32_t *)at;
            if (!qn_field_int(body, f->name, (int64_t)f->min, (int64_t)f->max, &v, e)) return false;
            *(uint32_t *)at = (uint32_t)v;
        } else {
            double v = *(float *)at;
            if (!qn_field_number(body, f->name, f->min, f->max, &v, e)) return false;
            *(float *)at = (float)v;
        }
    }
    int64_t seed = 0;
    if (!qn_field_int(body, "seed", INT64_MIN, INT64_MAX, &seed, e)) return false;
    if (qn_json_get(body, "seed")) {
        s->has_seed = true;
        s->seed = (uint64_t)seed;
    }
    return true;
}

/* hlg: {enabled, width, shoulder, toe, pivot_offset}, over the operator's curve. */
static bool read_curve(qn_tone *t, const json_t *body, qn_http_error *e)
{
    enum { MAX_NATS = 100 };
    json_t *v = NULL;
    bool on = t->kind == QN_TONE_CURVE;
    if (!qn_field_object(body, "hlg", &v, e) || !v) return !e->status;
    if (t->kind == QN_TONE_OFF) *t = qn_tone_default(QN_TONE_CURVE);
    double width = t->width, shoulder = t->shoulder, toe = t->toe, offset = t->pivot_offset;
    if (!qn_field_bool(v, "enabled", &on, e) ||
        !qn_field_number(v, "width", 0, MAX_NATS, &width, e) ||
        !qn_field_number(v, "shoulder", 0, MAX_NATS, &shoulder, e) ||
        !qn_field_number(v, "toe", 0, MAX_NATS, &toe, e) ||
        !qn_field_number(v, "pivot_offset", 0, MAX_NATS, &offset, e)) {
        snprintf(e->param, sizeof e->param, "hlg");
        return false;
    }
    t->kind = on ? QN_TONE_CURVE : QN_TONE_OFF;
    t->width = (float)width;
    t->shoulder = (float)shoulder;
    t->toe = (float)toe;
    t->pivot_offset = (float)offset;
    return true;
}

/* ---- logit_bias ---- */

static bool bias_entry(qn_logit_bias *b, const char *key, const json_t *value, uint32_t n_vocab,
                       qn_http_error *e)
{
    char *end;
    errno = 0;
    long long id = strtoll(key, &end, 10);
    bool is_int = *key && !*end && !errno && strspn(key, "-0123456789") == strlen(key);
    if (!is_int || !json_is_number(value)) {
        return qn_fail_field(e, "logit_bias", "logit_bias must be a dict of int to float");
    }
    if (id < 0 || id >= n_vocab) {
        return qn_fail_field(e, "logit_bias",
                             "logit_bias: token id %lld is outside the vocabulary of %u tokens", id,
                             n_vocab);
    }
    double bias = json_number_value(value);
    if (bias > FLT_MAX) bias = FLT_MAX;
    if (bias < -FLT_MAX) bias = -FLT_MAX;
    b->id = (uint32_t)id;
    b->bias = (float)bias;
    return true;
}

static bool read_bias(qn_sampling *s, const json_t *body, uint32_t n_vocab, qn_arena *arena,
                      qn_http_error *e)
{
    json_t *v = qn_json_get(body, "logit_bias");
    if (!v) return true;
    if (!json_is_object(v)) {
        return qn_fail_field(e, "logit_bias", "logit_bias must be a dict of int to float");
    }
    size_t n = json_object_size(v);
    if (n > QN_MAX_LOGIT_BIAS) {
        return qn_fail_field(e, "logit_bias", "logit_bias has %zu entries; at most %d are allowed",
                             n, QN_MAX_LOGIT_BIAS);
    }
    qn_logit_bias *bias = qn_arena_take(arena, n ? n : 1, sizeof *bias);
    if (!bias) return qn_fail_with(e, 500, "server_error", NULL, NULL, "out of memory");
    const char *key;
    json_t *value;
    size_t i = 0;
    json_object_foreach(v, key, value) {
        if (!bias_entry(&bias[i++], key, value, n_vocab, e)) return false;
    }
    s->bias = bias;
    s->n_bias = n;
    return true;
}

/* ---- stop, logprobs, stream_options ---- */

static bool add_stop(qn_fields *f, const json_t *v, qn_http_error *e)
{
    size_t n = json_string_length(v);
    if (!json_is_string(v) || !n) return true;
    if (n > QN_MAX_STOP_BYTES) {
        return qn_fail_field(e, "stop", "stop: a string has %zu bytes; at most %d are allowed", n,
                             QN_MAX_STOP_BYTES);
    }
    if (strlen(json_string_value(v)) != n) {
        return qn_fail_field(e, "stop", "stop: a string has a NUL character");
    }
    if (f->n_stops == QN_MAX_STOPS) {
        return qn_fail_field(e, "stop", "stop must have at most %d strings", QN_MAX_STOPS);
    }
    f->stops[f->n_stops++] = json_string_value(v);
    return true;
}

static bool read_stops(qn_fields *f, const json_t *body, qn_http_error *e)
{
    json_t *v = qn_json_get(body, "stop");
    if (!v) return true;
    if (json_is_string(v)) return add_stop(f, v, e);
    if (!json_is_array(v)) {
        return qn_fail_field(e, "stop", "stop must be of type string or array of strings");
    }
    size_t i;
    json_t *item;
    json_array_foreach(v, i, item) {
        if (!add_stop(f, item, e)) return false;
    }
    return true;
}

/* logprobs: a bool, and for completions also the old integer form. top_logprobs wins over both. */
static bool read_logprobs(qn_fields *f, const json_t *body, bool is_completion, qn_http_error *e)
{
    const json_t *v = qn_json_get(body, "logprobs");
    json_int_t k;
    if (is_completion && v && qn_json_int(v, &k)) {
        if (k < 0 || k > QN_LEGACY_TOP_LOGPROBS) {
            return qn_fail_field(e, "logprobs", "logprobs must be at %s %d",
                                 k < 0 ? "least" : "most", k < 0 ? 0 : QN_LEGACY_TOP_LOGPROBS);
        }
        f->logprobs = f->legacy_logprobs = true;
        f->sampling.n_top = (uint32_t)k;
    } else if (!qn_field_bool(body, "logprobs", &f->logprobs, e)) {
        return false;
    }
    int64_t top = -1;
    const json_t *t = qn_json_get(body, "top_logprobs");
    bool unset = qn_json_int(t, &k) && k == -1;
    if (!unset && !qn_field_int(body, "top_logprobs", 0, QN_API_TOP_LOGPROBS, &top, e)) {
        return false;
    }
    if (top > 0) {
        f->logprobs = true;
        f->sampling.n_top = (uint32_t)top;
    }
    f->sampling.logprobs = f->logprobs;
    return true;
}

static bool read_stream(qn_fields *f, const json_t *body, qn_http_error *e)
{
    if (!qn_field_bool(body, "stream", &f->stream, e)) return false;
    json_t *options = NULL;
    if (!qn_field_object(body, "stream_options", &options, e)) return false;
    const json_t *v = options ? qn_json_get(options, "include_usage") : NULL;
    if (!v) return true;
    if (!json_is_boolean(v)) {
        return qn_fail_field(e, "stream_options.include_usage",
                             "stream_options.include_usage must be of type bool");
    }
    f->usage = json_is_true(v) ? QN_USAGE_CHUNK : QN_USAGE_NONE;
    return true;
}

bool qn_fields_read(qn_fields *f, const json_t *body, const qn_request_defaults *dflt,
                    uint32_t n_vocab, bool is_completion, qn_arena *arena, qn_http_error *e)
{
    memset(f, 0, sizeof *f);
    f->sampling = dflt->sampling;
    f->max_tokens = dflt->max_tokens;
    f->sampling.repetition_context = PENALTY_WINDOW;
    f->sampling.presence_context = PENALTY_WINDOW;
    f->sampling.frequency_context = PENALTY_WINDOW;
    const char *model = NULL;
    if (!qn_field_string(body, "model", &model, e)) return false;
    /* max_completion_tokens is read last so that it wins, but both are checked. */
    if (!qn_field_int(body, "max_tokens", 0, INT64_MAX, &f->max_tokens, e)) return false;
    if (!qn_field_int(body, "max_completion_tokens", 0, INT64_MAX, &f->max_tokens, e)) return false;
    int64_t n = 1;
    if (!qn_field_int(body, "n", 1, INT64_MAX, &n, e)) return false;
    if (n > 1) {
        return qn_fail_field(e, "n",
                             "n must be 1: several choices in one request are not supported yet");
    }
    int64_t min_tokens = 0;
    if (!qn_field_int(body, "min_tokens", 0, UINT32_MAX, &min_tokens, e) ||
        !qn_field_bool(body, "ignore_eos", &f->ignore_eos, e) ||
        !qn_field_bool(body, "return_progress", &f->return_progress, e)) {
        return false;
    }
    f->min_tokens = (uint32_t)min_tokens;
    return read_stream(f, body, e) && read_sampling(&f->sampling, body, e) &&
           read_curve(&f->sampling.tone, body, e) &&
           read_bias(&f->sampling, body, n_vocab, arena, e) && read_stops(f, body, e) &&
           read_logprobs(f, body, is_completion, e);
}

/* ---- what is not done yet ---- */

bool qn_fields_check_supported(const json_t *body, qn_http_error *e)
{
    const char *adapter = NULL;
    if (!qn_field_string(body, "adapter", &adapter, e)) return false;
    if (!adapter && !qn_field_string(body, "adapters", &adapter, e)) return false;
    if (adapter && strcmp(adapter, "none")) {
        return qn_fail_field(e, "adapter", "unknown adapter: %.64s; this server has none", adapter);
    }
    return true;
}
