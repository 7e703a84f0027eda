/* stats.c - GET /stats, /metrics, /props and /slots, POST /admin/cache/flush. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/clock.h"
#include "serve/exchange.h"
#include "serve/json.h"

static qn_engine_stats stats_now(const qn_server *s)
{
    qn_engine_stats now;
    qn_engine_stats_get(s->opts.engine, &now);
    return now;
}

static void put_int(json_t *j, const char *key, uint64_t v)
{
    json_object_set_new(j, key, json_integer((json_int_t)v));
}

/* What the operator allows; null: nothing was said. */
static void put_limit(json_t *j, const char *key, uint64_t v)
{
    json_object_set_new(j, key, v ? json_integer((json_int_t)v) : json_null());
}

/* ---- /stats ---- */

static json_t *prompt_cache(qn_server *s, const qn_engine_stats *now)
{
    uint64_t hits, misses;
    qn_metrics_cache(&s->metrics, &hits, &misses);
    json_t *j = json_object();
    put_int(j, "entries", now->cache_entries);
    put_int(j, "bytes", now->kv_bytes_cached);
    put_int(j, "max_bytes", now->cache_bytes_max);
    put_int(j, "hits", hits);
    put_int(j, "misses", misses);
    return j;
}

static json_t *response_store(qn_server *s)
{
    qn_response_store_stats now = {0};
    if (s->responses) qn_response_store_stats_get(s->responses, qn_wall_ms(), &now);
    json_t *j = json_object();
    put_int(j, "entries", now.entries);
    put_int(j, "bytes", now.bytes);
    put_int(j, "max_bytes", s->responses ? s->opts.store_bytes : 0);
    put_int(j, "ttl_ms", s->opts.store_ttl_ms);
    return j;
}

/* "bf16", "kv8", or "k8v4" where keys and values differ. */
static void codec_name(char *out, size_t bytes, const qn_kv_layer *l)
{
    static const char *const names[] = {"f32", "f16", "bf16", "kv8", "kv4"};
    uint32_t k = qn_kv_form_bits(l->k_codec.form), v = qn_kv_form_bits(l->v_codec.form);
    if (l->k_codec.form == l->v_codec.form) snprintf(out, bytes, "%s", names[l->k_codec.form]);
    else snprintf(out, bytes, "k%uv%u", k, v);
}

/* What the KV cache is made of: layers by codec, and by what they see. */
static json_t *kv_layers(const qn_kv_spec *kv)
{
    json_t *layers = json_object();
    uint32_t n[QN_KV_CHUNKED + 1] = {0};
    char name[16], first[16] = "", mode[32];
    bool mixed = false;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        const qn_kv_layer *l = &kv->layers[i];
        if (!l->n_kv_heads) continue;
        codec_name(name, sizeof name, l);
        json_int_t known = json_integer_value(json_object_get(layers, name));
        json_object_set_new(layers, name, json_integer(known + 1));
        if (!first[0]) memcpy(first, name, sizeof first);
        else if (strcmp(first, name)) mixed = true;
        n[kv->groups[l->group].rule]++;
    }
    json_t *attention = json_object(), *j = json_object();
    put_int(attention, "global", n[QN_KV_FULL]);
    put_int(attention, "sliding_window", n[QN_KV_SLIDING]);
    if (n[QN_KV_CHUNKED]) put_int(attention, "chunked", n[QN_KV_CHUNKED]);
    snprintf(mode, sizeof mode, "%s%s", first[0] == 'k' ? "uniform-" : "",
             first[0] ? first : "none");
    json_object_set_new(j, "mode", json_string(mixed ? "mixed (kv_config.json)" : mode));
    json_object_set_new(j, "layers", layers);
    json_object_set_new(j, "attention", attention);
    return j;
}

static json_t *admission(const qn_server *s, const qn_engine_stats *now)
{
    json_t *j = json_object();
    put_int(j, "max_safe_context", qn_engine_max_positions(s->opts.engine));
    put_limit(j, "memory_budget_bytes", s->opts.memory_budget_bytes);
    put_int(j, "usable_bytes", now->kv_bytes_total + now->weights_bytes);
    put_int(j, "weights_bytes", now->weights_bytes);
    put_int(j, "kv_pool_bytes", now->kv_bytes_total);
    put_int(j, "kv_peak_bytes", now->kv_bytes_peak);
    return j;
}

static json_t *memory_terms(const qn_memory_terms *t, uint64_t sum)
{
    json_t *j = json_object();
    put_int(j, "base_bytes", t->base);
    put_int(j, "weights_bytes", t->weights);
    put_int(j, "kv_bytes", t->kv);
    put_int(j, "state_bytes", t->states);
    put_int(j, "arena_bytes", t->arena);
    put_int(j, "rows_bytes", t->rows);
    put_int(j, "sum_bytes", sum);
    return j;
}

/* What was planned, what was used of it, and what the kernel says. */
static json_t *memory(const qn_server *s)
{
    qn_memory m;
    qn_engine_memory(s->opts.engine, &m);
    json_t *j = json_object();
    json_object_set_new(j, "planned", memory_terms(&m.planned, m.planned_sum));
    json_object_set_new(j, "used", memory_terms(&m.used, m.used_sum));
    put_int(j, "resident_bytes", m.resident);
    put_int(j, "resident_peak_bytes", m.resident_peak);
    return j;
}

static json_t *batch(const qn_server *s, const qn_engine_stats *now)
{
    json_t *j = json_object();
    put_int(j, "configured", now->max_rows);
    json_object_set_new(j, "mode", json_string(now->max_rows > 1 ? "batch" : "serial"));
    json_object_set_new(j, "batched", json_boolean(now->max_rows > 1));
    put_int(j, "active_rows", now->active_rows);
    put_int(j, "pending_rows", now->waiting_rows);
    put_int(j, "submitted_rows", now->submitted);
    put_int(j, "kv_bytes", now->kv_bytes_used);
    put_limit(j, "kv_budget_bytes", s->opts.kv_budget_bytes);
    return j;
}

void qn_stats_page(qn_exchange *x)
{
    qn_server *s = x->server;
    const qn_engine_stats now = stats_now(s);
    json_t *server = json_object(), *j = json_object();
    json_object_set_new(server, "owner", json_string("serve"));
    json_object_set_new(server, "model", json_string(s->opts.loaded->id));
    json_object_set_new(server, "started_at", json_integer(s->started * 1000));
    json_object_set_new(j, "server", server);
    json_object_set_new(j, "prompt_cache", prompt_cache(s, &now));
    json_object_set_new(j, "response_store", response_store(s));
    json_object_set_new(j, "kv_quant", kv_layers(&s->opts.loaded->model->kv));
    json_object_set_new(j, "admission", admission(s, &now));
    json_object_set_new(j, "memory", memory(s));
    json_object_set_new(j, "batch", batch(s, &now));
    qn_exchange_reply(x, 200, j);
}

/* ---- /metrics ---- */

void qn_metrics_page(qn_exchange *x)
{
    qn_server *s = x->server;
    const qn_engine_stats now = stats_now(s);
    qn_metrics_write(&s->metrics, &now, s->opts.metrics_prefix, s->opts.loaded->id, s->started,
                     &x->out);
    x->content_type = "text/plain; version=0.0.4; charset=utf-8";
    x->status = x->out.failed ? 500 : 200;
    x->phase = QN_PHASE_REPLY;
}

/* ---- /props and /slots, as llama-server has them ---- */

static json_t *default_params(const qn_server *s)
{
    const qn_sampling *d = &s->opts.defaults.sampling;
    json_t *j = json_object();
    json_object_set_new(j, "temperature", qn_json_float(d->temperature));
    json_object_set_new(j, "top_k", json_integer(d->top_k));
    json_object_set_new(j, "top_p", qn_json_float(d->top_p));
    json_object_set_new(j, "min_p", qn_json_float(d->min_p));
    json_object_set_new(j, "max_tokens", json_integer(s->opts.defaults.max_tokens));
    return j;
}

static json_t *template_caps(const qn_chat_template *chat)
{
    json_t *j = json_object();
    json_object_set_new(j, "supports_tools", json_boolean(qn_chat_template_mentions(chat, "tools")));
    json_object_set_new(j, "supports_tool_calls",
                        json_boolean(qn_chat_template_mentions(chat, "tool_calls")));
    json_object_set_new(j, "supports_enable_thinking",
                        json_boolean(qn_chat_template_mentions(chat, "enable_thinking")));
    return j;
}

void qn_props_page(qn_exchange *x)
{
    const qn_server *s = x->server;
    const qn_loaded *loaded = s->opts.loaded;
    const char *source = qn_chat_template_source(loaded->chat, false);
    const char *dir = loaded->folder ? qn_folder_dir(loaded->folder) : "";
    json_t *settings = json_object(), *modalities = json_object(), *j = json_object();
    put_int(settings, "n_ctx", qn_engine_max_positions(s->opts.engine));
    json_object_set_new(settings, "params", default_params(s));
    json_object_set_new(modalities, "vision", json_false());
    json_object_set_new(modalities, "audio", json_false());
    json_object_set_new(j, "default_generation_settings", settings);
    put_int(j, "total_slots", stats_now(s).max_rows);
    json_object_set_new(j, "model_alias", json_string(loaded->id));
    qn_json_put_text(j, "model_path", dir, strlen(dir));
    json_object_set_new(j, "chat_template", source ? json_string(source) : json_null());
    json_object_set_new(j, "chat_template_caps", template_caps(loaded->chat));
    json_object_set_new(j, "modalities", modalities);
    json_object_set_new(j, "build_info", json_string("quern-" QN_VERSION));
    qn_exchange_reply(x, 200, j);
}

void qn_slots_page(qn_exchange *x)
{
    const qn_server *s = x->server;
    const qn_engine_stats now = stats_now(s);
    const char *asked = MHD_lookup_connection_value(x->conn, MHD_GET_ARGUMENT_KIND,
                                                    "fail_on_no_slot");
    if (asked && !strcmp(asked, "1") && now.active_rows >= now.max_rows) {
        qn_fail_with(&x->error, 503, "unavailable_error", "no_slot", NULL, "no slot available");
        qn_exchange_reply_error(x);
        return;
    }
    json_t *list = json_array();
    for (uint32_t i = 0; i < now.max_rows; i++) {
        json_t *slot = json_object();
        put_int(slot, "id", i);
        put_int(slot, "n_ctx", qn_engine_max_positions(s->opts.engine));
        json_object_set_new(slot, "speculative", json_false());
        json_object_set_new(slot, "is_processing", json_boolean(i < now.active_rows));
        json_array_append_new(list, slot);
    }
    qn_exchange_reply(x, 200, list);
}

/* ---- /admin/cache/flush ---- */

/* Without a disk tier nothing is pending, so everything that should be durable is. A page of
 * another site cannot send this content type without being allowed to first. */
void qn_cache_flush(qn_exchange *x)
{
    static const char *const counts[] = {
        "pendingSnapshots", "pendingSpills",    "pendingSpillBytes", "droppedSpills",
        "failedSpills",     "flushedSnapshots", "missingSnapshots",  "entries",
        "longest_durable_prefix_tokens"};
    double start_ms = qn_now_ms();
    const char *type = qn_exchange_header(x, "Content-Type");
    if (!type || strncasecmp(type, "application/json", 16)) {
        qn_fail_with(&x->error, 415, "invalid_request_error", "unsupported_media_type", NULL,
                     "send Content-Type: application/json");
        qn_exchange_reply_error(x);
        return;
    }
    json_t *j = json_object();
    json_object_set_new(j, "durable", json_true());
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) put_int(j, counts[i], 0);
    json_object_set_new(j, "elapsedMs", json_real(qn_now_ms() - start_ms));
    qn_exchange_reply(x, 200, j);
}
