/* session.c - see session.h. */
#include "cli/session.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "cache/mlx_cache.h"
#include "cli/pick.h"
#include "cli/stop.h"
#include "core/clock.h"
#include "engine/reply.h"

enum { WAIT_MS = 50 }; /* how long a signal may go unseen */

#define NO_LIMIT 9e15

const qn_opt qn_opts_device[] = {
    {.name = "threads",
     .kind = QN_OPT_INT,
     .min = 1,
     .max = 256,
     .env = "THREADS",
     .help = "worker threads; without it: one for each core this process may use"},
    {.name = "device",
     .kind = QN_OPT_STR,
     .arg = "NAME",
     .env = "DEVICE",
     .help = "where to compute: cpu, or ref, which --l1 is short for"},
    {.name = "l1",
     .kind = QN_OPT_BOOL,
     .help =
         "the tokens and logits of mlx-lm on MLX's CPU backend, bit for bit: for comparisons. That "
         "reference "
         "sums bfloat16 products in bfloat16, so replies are worse than the default's, and slower"},
    {.name = "l2",
     .kind = QN_OPT_BOOL,
     .help = "the KV cache as the model's kv_config.json says, where nothing else is said about it; beats "
             "--l1"},
    {.name = "isa",
     .kind = QN_OPT_ENUM,
     .choices = "avx512|avx2|portable",
     .help = "instruction set of the CPU device; without it: the best there is"},
    {.name = "act",
     .kind = QN_OPT_ENUM,
     .choices = "int16|int8",
     .help = "how activations meet quantized weights: int16 (as exact as float32) or int8 (faster, "
             "less exact)"},
    {.name = "context-length",
     .kind = QN_OPT_INT,
     .min = 1,
     .max = 1e9,
     .help =
         "longest prompt and reply together, in tokens; without it: what the model was made for"},
    {.name = "max-model-len",
     .kind = QN_OPT_INT,
     .min = 1,
     .max = 1e9,
     .same_as = "context-length",
     .hidden = true},
    {.name = "no-panel-cache",
     .kind = QN_OPT_BOOL,
     .help =
         "keep the weights' computing layout in memory instead of a file beside Quern's caches"},
    {0},
};

const qn_opt qn_opts_step[] = {
    {.name = "prefill-step-size",
     .kind = QN_OPT_INT,
     .min = 1,
     .max = 65536,
     .help = "most tokens of prompts that a step computes; without it: 512, and with --l1 mlx_lm's 2048. "
             "No answer depends on it, but for those of --l1"},
    {0},
};

static qn_code check_scheme(const char *text, qn_err *err)
{
    qn_kv_scheme s = {0};
    return qn_kv_scheme_parse(&s, text, err);
}

const qn_opt qn_opts_kv[] = {
    {.name = "kv-quant",
     .kind = QN_OPT_STR,
     .arg = "SCHEME",
     .check = check_scheme,
     .help = "quantize the KV cache: 8 or 4 bits, k8v4 (keys and values apart), config (layer by "
             "layer, from the model's kv_config.json), or off"},
    {.name = "kv-bits",
     .kind = QN_OPT_ENUM,
     .choices = "4|8",
     .not_with = "kv-quant",
     .help = "the same as --kv-quant with 8 or 4, as mlx_lm spells it"},
    {.name = "kv-group-size",
     .kind = QN_OPT_ENUM,
     .choices = "32|64|128",
     .dflt = "64",
     .help = "elements of a head that share a scale"},
    {.name = "quantized-kv-start",
     .kind = QN_OPT_INT,
     .min = 0,
     .max = 1e9,
     .help = "with --l1: the length from which on the cache is quantized, as in mlx_lm (5000 with "
             "--kv-bits, 0 with --kv-quant); without --l1 every token is quantized as it is stored"},
    {.name = "max-kv-size",
     .kind = QN_OPT_INT,
     .min = QN_KV_KEEP + 1,
     .max = 1e9,
     .arg = "TOKENS",
     .help = "keep no more than this of a sequence: its first 4 tokens and the last ones; without it: "
             "everything"},
    {.name = "paged-kv-block-size",
     .kind = QN_OPT_ENUM,
     .choices = "16|32|64|128|256",
     .dflt = "64",
     .help = "tokens of a block of the KV cache"},
    {.name = "paged-kv",
     .kind = QN_OPT_BOOL,
     .ignored = "the KV cache always lies in blocks",
     .hidden = true},
    {0},
};

const qn_opt qn_opts_sampling[] = {
    {.name = "temperature",
     .kind = QN_OPT_FLOAT,
     .min = 0,
     .max = 5,
     .help = "0 takes the most likely token; larger is more varied"},
    {.name = "temp", .kind = QN_OPT_FLOAT, .min = 0, .max = 5, .same_as = "temperature"},
    {.name = "top-p",
     .kind = QN_OPT_FLOAT,
     .min = 0,
     .max = 1,
     .help = "keep the most likely tokens that together have this probability; 0 and 1: off"},
    {.name = "top-k",
     .kind = QN_OPT_INT,
     .min = 0,
     .max = 1e6,
     .help = "keep this many tokens; 0: off"},
    {.name = "min-p",
     .kind = QN_OPT_FLOAT,
     .min = 0,
     .max = 1,
     .help = "drop tokens below this share of the best one's probability; 0: off"},
    {.name = "min-tokens-to-keep",
     .kind = QN_OPT_INT,
     .min = 1,
     .max = 1e6,
     .dflt = "1",
     .help = "min-p never keeps fewer than this"},
    {.name = "xtc-probability",
     .kind = QN_OPT_FLOAT,
     .min = 0,
     .max = 1,
     .dflt = "0",
     .help = "how often to drop the most likely choices; 0: off"},
    {.name = "xtc-threshold",
     .kind = QN_OPT_FLOAT,
     .min = 0,
     .max = 0.5,
     .dflt = "0.1",
     .help = "what counts as a choice for xtc"},
    {.name = "hlg-sampling",
     .kind = QN_OPT_SWITCH,
     .dflt = "off",
     .help = "bend log-probabilities with a tone curve, in place of the filters above"},
    {.name = "hlg-width",
     .kind = QN_OPT_FLOAT,
     .min = 0,
     .max = 100,
     .dflt = "4",
     .help = "half-width of the curve's linear part, in nats"},
    {.name = "hlg-shoulder",
     .kind = QN_OPT_FLOAT,
     .min = 0,
     .max = 100,
     .dflt = "4",
     .help = "length of the roll-off of likely tokens, in nats; 0: none"},
    {.name = "hlg-toe",
     .kind = QN_OPT_FLOAT,
     .min = 0,
     .max = 100,
     .dflt = "6",
     .help = "length of the roll-off of unlikely tokens, in nats; 0: none"},
    {.name = "hlg-pivot-offset",
     .kind = QN_OPT_FLOAT,
     .min = 0,
     .max = 100,
     .dflt = "6",
     .help = "how far the middle of the linear part lies below the most likely token, in nats"},
    {.name = "repetition-penalty",
     .kind = QN_OPT_FLOAT,
     .min = 0.01,
     .max = 100,
     .help = "divide the logits of tokens that were there before; 1: off"},
    {.name = "seed",
     .kind = QN_OPT_INT,
     .min = 0,
     .max = NO_LIMIT,
     .help = "same seed, same answer; without it every run draws anew"},
    {0},
};

const qn_opt qn_opts_refused[] = {
    {.name = "adapter-path", .kind = QN_OPT_STR, .refused = "adapters", .hidden = true},
    {.name = "adapter", .kind = QN_OPT_STR, .refused = "adapters", .hidden = true},
    {.name = "draft-model", .kind = QN_OPT_STR, .refused = "speculation", .hidden = true},
    {.name = "draft-kind", .kind = QN_OPT_STR, .refused = "speculation", .hidden = true},
    {.name = "num-draft-tokens", .kind = QN_OPT_INT, .refused = "speculation", .hidden = true},
    {.name = "use-default-chat-template",
     .kind = QN_OPT_BOOL,
     .ignored = "a model without a template gets the plain one anyway",
     .hidden = true},
    {.name = "image", .kind = QN_OPT_LIST, .refused = "images", .hidden = true},
    {.name = "pipeline", .kind = QN_OPT_BOOL, .refused = "several hosts", .hidden = true},
    {.name = "trust-remote-code",
     .kind = QN_OPT_BOOL,
     .ignored = "nothing from a model is ever executed",
     .hidden = true},
    {.name = "quantize-activations",
     .brief = "qa",
     .kind = QN_OPT_BOOL,
     .ignored = "--act says how activations are treated",
     .hidden = true},
    {0},
};

/* ---- opening ---- */

qn_device_opts qn_device_opts_read(const qn_args *args)
{
    const char *act = qn_arg_str(args, "act");
    qn_device_opts o = {.name = qn_arg_str(args, "device"),
                        .n_threads = (uint32_t)qn_arg_int(args, "threads"),
                        .isa = qn_arg_str(args, "isa")};
    if (qn_arg_bool(args, "l1") && !qn_arg_bool(args, "l2")) o.name = "ref";
    if (act) o.act = !strcmp(act, "int8") ? QN_ACT_INT8 : QN_ACT_INT16;
    return o;
}

enum { MLX_KV_START = 5000 }; /* mlx_lm's default for --quantized-kv-start */

/* A number of an option with choices. */
static uint32_t choice(const qn_args *args, const char *name)
{
    const char *text = qn_arg_str(args, name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

uint32_t qn_block_tokens_read(const qn_args *args) { return choice(args, "paged-kv-block-size"); }

qn_kv_scheme qn_kv_scheme_read(const qn_args *args)
{
    qn_kv_scheme s = {0};
    qn_err err = {0};
    if (qn_arg_given(args, "kv-group-size")) s.group = choice(args, "kv-group-size");
    const char *words = qn_arg_str(args, "kv-quant");
    uint32_t bits = choice(args, "kv-bits");
    if (words) qn_check(qn_kv_scheme_parse(&s, words, &err) == QN_OK); /* the parser asked */
    if (bits) s.k_bits = s.v_bits = bits, s.start = MLX_KV_START;
    if (!words && !bits && qn_arg_bool(args, "l2")) s.config = true;
    if (qn_arg_given(args, "max-kv-size")) s.max_size = (uint32_t)qn_arg_int(args, "max-kv-size");
    if (qn_arg_given(args, "quantized-kv-start"))
        s.start = (uint32_t)qn_arg_int(args, "quantized-kv-start");
    return s;
}

static void on_load(void *user, const char *what, uint64_t done, uint64_t total)
{
    char a[32], b[32], detail[160];
    snprintf(detail, sizeof detail, "%s: %s of %s", what, qn_bytes_text(a, done),
             qn_bytes_text(b, total));
    qn_progress_update(user, total ? (double)done / (double)total : -1, detail);
}

/* Is this model the one that the file names? Files without a name are judged by their shapes. */
static qn_code check_model(const qn_model_entry *e, const char *cache_file, qn_err *err)
{
    char a[PATH_MAX], b[PATH_MAX];
    qn_buf of = {0};
    qn_code rc = qn_mlx_cache_model(cache_file, &of, err);
    bool same_folder = of.len && realpath(of.data, a) && realpath(e->path, b) && !strcmp(a, b);
    if (!rc && of.len && !same_folder && strcmp(of.data, e->id))
        rc = qn_err_set(err, QN_INVALID, "the cache file was made for the model %.100s, not for %.60s",
                        of.data, e->id);
    qn_buf_release(&of);
    return rc;
}

static qn_code open_parts(qn_session *s, const qn_args *args, const char *positional,
                          const char *cache_file, const qn_engine_opts *limits, qn_progress *p,
                          qn_err *err)
{
    qn_code rc;
    qn_kv_scheme kv = qn_kv_scheme_read(args);
    kv.config_required = !limits; /* comparisons want what they ask for */
    kv.cache_file = cache_file;
    if ((rc = qn_pick_model(&s->store, args, positional, &s->entry, err))) return rc;
    if (cache_file && (rc = check_model(s->entry, cache_file, err))) return rc;
    qn_loaded_opts lo = {.device = qn_device_opts_read(args), .progress = on_load, .user = p,
                         .no_panel_cache = qn_arg_bool(args, "no-panel-cache"), .kv = kv};
    if ((rc = qn_loaded_open(&s->loaded, s->entry->path, s->entry->id, &lo, err))) return rc;
    if (!limits) return QN_OK;
    qn_engine_opts eo = *limits;
    eo.max_positions = (uint32_t)qn_arg_int(args, "context-length");
    eo.block_tokens = qn_block_tokens_read(args);
    eo.step_tokens = eo.mlx_prefill = (uint32_t)qn_arg_int(args, "prefill-step-size");
    return qn_engine_new(&s->engine, s->loaded->model, &eo, err);
}

qn_code qn_session_open(qn_session *s, const qn_args *args, const char *positional,
                        const char *cache_file, const qn_engine_opts *limits, qn_err *err)
{
    *s = (qn_session){0};
    double start = qn_now_ms();
    qn_progress p = {0};
    qn_progress_start(&p, "opening the model");
    qn_code rc = open_parts(s, args, positional, cache_file, limits, &p, err);
    qn_progress_end(&p, !rc, NULL);
    s->load_ms = qn_now_ms() - start;
    if (rc) qn_session_close(s);
    return rc;
}

void qn_session_close(qn_session *s)
{
    if (s->engine) qn_engine_free(s->engine);
    if (s->loaded) qn_loaded_close(s->loaded);
    qn_store_close(s->store);
    *s = (qn_session){0};
}

/* ---- sampling ---- */

/* The command line's number; else the model's own; else `dflt`. */
static double number_of(const qn_args *args, const char *flag, bool is_int, const qn_folder *folder,
                        const char *key, double dflt)
{
    if (qn_arg_given(args, flag))
        return is_int ? (double)qn_arg_int(args, flag) : qn_arg_float(args, flag);
    const json_t *own = folder ? json_object_get(qn_folder_generation(folder), key) : NULL;
    double v = json_is_number(own) ? json_number_value(own) : dflt;
    return v >= 0 && v <= 1e6 ? v : dflt;
}

static qn_tone read_tone(const qn_args *args)
{
    qn_tone t = qn_tone_default(qn_arg_bool(args, "hlg-sampling") ? QN_TONE_CURVE : QN_TONE_OFF);
    t.width = (float)qn_arg_float(args, "hlg-width");
    t.shoulder = (float)qn_arg_float(args, "hlg-shoulder");
    t.toe = (float)qn_arg_float(args, "hlg-toe");
    t.pivot_offset = (float)qn_arg_float(args, "hlg-pivot-offset");
    return t;
}

qn_sampling qn_sampling_read(const qn_args *args, const qn_folder *folder)
{
    double penalty = qn_arg_float(args, "repetition-penalty");
    return (qn_sampling){
        .temperature = (float)number_of(args, "temperature", false, folder, "temperature", 0),
        .top_p = (float)number_of(args, "top-p", false, folder, "top_p", 0),
        .top_k = (uint32_t)number_of(args, "top-k", true, folder, "top_k", 0),
        .min_p = (float)qn_arg_float(args, "min-p"),
        .min_tokens_to_keep = (uint32_t)qn_arg_int(args, "min-tokens-to-keep"),
        .xtc_probability = (float)qn_arg_float(args, "xtc-probability"),
        .xtc_threshold = (float)qn_arg_float(args, "xtc-threshold"),
        .tone = read_tone(args),
        .repetition_penalty = penalty > 0 ? (float)penalty : 1,
        .has_seed = qn_arg_given(args, "seed"),
        .seed = (uint64_t)qn_arg_int(args, "seed"),
    };
}

qn_code qn_xtc_special(const qn_session *s, const qn_ids *eos, qn_ids *out, qn_err *err)
{
    qn_ids_put(out, eos->data, eos->len);
    return qn_tokenizer_encode(s->loaded->tok, "\n", 1, QN_ENCODE_ADD_SPECIAL, out, err);
}

/* ---- one request ---- */

typedef struct run {
    qn_reply *reply;
    qn_buf fresh; /* text of the last token */
    bool (*show)(void *ctx, const char *text, size_t n);
    void *ctx;
    bool keep, stopped;
    qn_answer *out;
} run;

static void pass_on(run *r)
{
    if (!r->fresh.len) return;
    if (r->keep) qn_buf_put(&r->out->text, r->fresh.data, r->fresh.len);
    if (r->show && !r->stopped && !r->show(r->ctx, r->fresh.data, r->fresh.len)) r->stopped = true;
    qn_buf_clear(&r->fresh);
}

static qn_code follow(run *r, qn_gen *g, qn_err *err)
{
    qn_event ev;
    for (bool cancelled = false;;) {
        if (!cancelled && (r->stopped || qn_stop_asked())) {
            qn_gen_cancel(g);
            cancelled = true;
        }
        if (!qn_gen_wait(g, &ev, WAIT_MS)) continue;
        if (ev.kind == QN_EV_TOKEN && !ev.is_eos)
            qn_reply_push(r->reply, ev.sample.token, &r->fresh);
        if (ev.kind == QN_EV_DONE) break;
        pass_on(r);
    }
    qn_reply_finish(r->reply, &r->fresh);
    pass_on(r);
    r->out->finish = ev.finish;
    r->out->stats = ev.stats;
    if (ev.finish == QN_FINISH_ERROR) return *err = ev.err, ev.err.code;
    if (r->fresh.failed || r->out->text.failed)
        return qn_err_set(err, QN_NOMEM, "reply: out of memory");
    return QN_OK;
}

qn_code qn_generate(const qn_session *s, const qn_request *req,
                    bool (*show)(void *ctx, const char *text, size_t n), void *ctx, bool keep,
                    qn_answer *out, qn_err *err)
{
    *out = (qn_answer){0};
    run r = {.show = show, .ctx = ctx, .keep = keep, .out = out};
    qn_gen *g = NULL;
    qn_code rc = qn_reply_new(&r.reply, s->loaded->tok, NULL, 0, err);
    if (rc) return rc;
    rc = qn_engine_submit(s->engine, req, &g, err);
    if (!rc) rc = follow(&r, g, err);
    if (g) qn_gen_free(g);
    qn_reply_free(r.reply);
    qn_buf_release(&r.fresh);
    return rc;
}

uint64_t qn_peak_bytes(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (uint64_t)use.ru_maxrss * 1024;
}

static double rate(double n, double ms) { return ms > 0 ? n * 1000 / ms : 0; }

void qn_stats_line(FILE *f, const qn_answer *a, double first_token_ms)
{
    const qn_style st = qn_style_of(f);
    const qn_gen_stats *s = &a->stats;
    uint32_t computed = s->prompt_tokens - s->cached_tokens;
    uint32_t decoded =
        s->generated_tokens ? s->generated_tokens - 1 : 0; /* token 0 belongs to prefill */
    fprintf(f, "%sprompt %u tokens, %.1f tok/s; reply %u tokens, %.1f tok/s", st.dim,
            s->prompt_tokens, rate(computed, s->prefill_ms), s->generated_tokens,
            rate(decoded, s->decode_ms));
    if (first_token_ms > 0) fprintf(f, "; first token after %.2f s", first_token_ms / 1000);
    fprintf(f, "; peak memory %.2f GB%s\n", (double)qn_peak_bytes() / 1e9, st.reset);
}
