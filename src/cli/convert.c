/* convert.c - "quern convert": turn a GGUF file or a model folder into a model folder in MLX layout. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/stop.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "core/file.h"
#include "model/model.h"
#include "store/models.h"
#include "tune/convert.h"

enum { PATH_CAP = 4096 };

typedef struct job {
    char source[PATH_CAP], out[PATH_CAP];
    const char *source_id;  /* NULL for a file or a folder outside of the cache */
    bool in_store;          /* the output lies in Quern's models folder */
    qn_progress progress;
} job;

/* ---- what and where ---- */

/* Set job->source from a file, a folder, or a query. Entries live in *store. */
static qn_code resolve_source(job *j, const qn_args *args, qn_store **store, qn_err *err)
{
    const char *text = qn_arg_str(args, "hf-path");
    if (!text) text = qn_arg_pos(args, 0);
    if (!text) {
        return qn_err_set(err, QN_INVALID, "SOURCE is missing; right would be: quern convert model.gguf, or a folder");
    }
    const qn_model_entry *e = NULL;
    if (!qn_is_file(text)) {
        const qn_store_opts opts = {.supports = qn_model_supported};
        qn_code rc = qn_store_open(store, &opts, err);
        if (!rc) rc = qn_store_find(*store, text, &e, err);
        if (rc) return rc;
        text = e->path;
        if (strchr(e->id, '/')) j->source_id = e->id;
    }
    if (snprintf(j->source, sizeof j->source, "%s", text) >= (int)sizeof j->source) {
        return qn_err_set(err, QN_LIMIT, "the source's path is longer than %zu bytes", sizeof j->source);
    }
    return QN_OK;
}

/* The source's own name: the part of the id or path behind the last "/", without ".gguf". */
static void source_name(const job *j, char *out, size_t cap)
{
    char whole[PATH_CAP];
    snprintf(whole, sizeof whole, "%s", j->source_id ? j->source_id : j->source);
    size_t n = strlen(whole);
    while (n > 1 && whole[n - 1] == '/') whole[--n] = '\0';
    const char *slash = strrchr(whole, '/');
    const char *base = slash && slash[1] ? slash + 1 : whole;
    n = strlen(base);
    if (n > 5 && !strcmp(base + n - 5, ".gguf")) n -= 5;
    snprintf(out, cap, "%.*s", (int)n, base);
}

static qn_code resolve_output(job *j, const qn_args *args, qn_err *err)
{
    const char *given = qn_arg_str(args, "mlx-path");
    int n;
    if (given) {
        n = snprintf(j->out, sizeof j->out, "%s", given);
    } else {
        char models[PATH_CAP], name[256];
        qn_code rc = qn_store_own_dir(models, sizeof models, err);
        if (!rc) rc = qn_mkdirs(models, err);
        if (rc) return rc;
        source_name(j, name, sizeof name);
        j->in_store = true;
        n = snprintf(j->out, sizeof j->out, "%s/%s", models, name);
    }
    if (n >= (int)sizeof j->out) return qn_err_set(err, QN_LIMIT, "the output's path is too long");
    return QN_OK;
}

static qn_code read_options(qn_convert_opts *o, const qn_args *args, qn_err *err)
{
    const char *mode = qn_arg_str(args, "q-mode");
    o->quantize = qn_arg_bool(args, "quantize");
    o->dequantize = qn_arg_bool(args, "dequantize");
    if (mode && qn_qmode_parse(mode, &o->mode)) return qn_err_set(err, QN_INVALID, "--q-mode: \"%s\" is unknown", mode);
    o->bits = (uint32_t)qn_arg_int(args, "q-bits");
    o->group_size = (uint32_t)qn_arg_int(args, "q-group-size");
    o->recipe = qn_arg_str(args, "quant-predicate");
    o->dtype = qn_arg_str(args, "dtype");
    o->requant_bits = (uint32_t)qn_arg_int(args, "requant-bits");
    o->tokenizer_dir = qn_arg_str(args, "tokenizer");
    o->n_threads = (uint32_t)qn_arg_int(args, "threads");
    if (!o->quantize && (qn_arg_given(args, "q-bits") || qn_arg_given(args, "q-group-size") ||
                         qn_arg_given(args, "q-mode") || o->recipe)) {
        return qn_err_set(err, QN_INVALID, "--q-bits, --q-group-size, --q-mode and --quant-predicate need -q");
    }
    return QN_OK;
}

/* ---- showing ---- */

static bool on_progress(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    job *j = ctx;
    char a[32], b[32], detail[256];
    snprintf(detail, sizeof detail, "%s of %s  %s", qn_bytes_text(a, done), qn_bytes_text(b, total), what);
    qn_progress_update(&j->progress, total ? (double)done / (double)total : -1, detail);
    return !qn_stop_asked();
}

static void on_note(void *ctx, const char *text)
{
    job *j = ctx;
    const qn_style st = qn_style_of(stderr);
    if (j->progress.live) fputs("\r\033[2K", stderr);
    fprintf(stderr, "  %snote: %s%s\n", st.dim, text, st.reset);
}

static void show_result(const job *j, const qn_convert_result *r)
{
    char size[32], count[32], lines[4][PATH_CAP + 64];
    char name[256];
    source_name(j, name, sizeof name);
    snprintf(lines[0], sizeof lines[0], "source  %s", j->source);
    snprintf(lines[1], sizeof lines[1], "output  %s  (%s, %s parameters)", j->out, qn_bytes_text(size, r->bytes),
             qn_count_text(count, r->n_parameters));
    snprintf(lines[2], sizeof lines[2], "weights %s, %.3f bits per weight", r->quantization, r->bpw_total);
    snprintf(lines[3], sizeof lines[3], "next    quern serve %s", j->in_store ? name : j->out);
    const char *const shown[] = {lines[0], lines[1], lines[2], lines[3]};
    qn_box(stderr, shown, 4);
    puts(j->out);
}

/* ---- running ---- */

static qn_code convert(job *j, const qn_args *args, qn_convert_opts *o, qn_convert_result *r, qn_store **store,
                       qn_err *err)
{
    qn_code rc;
    if ((rc = read_options(o, args, err))) return rc;
    if ((rc = resolve_source(j, args, store, err))) return rc;
    if ((rc = resolve_output(j, args, err))) return rc;
    o->source = j->source;
    o->source_id = j->source_id;
    o->out_dir = j->out;
    if ((rc = qn_convert_check(o, err))) return rc;
    qn_stop_catch();
    o->progress = on_progress;
    o->note = on_note;
    o->ctx = j;
    qn_progress_start(&j->progress, "converting");
    rc = qn_convert(o, r, err);
    qn_progress_end(&j->progress, !rc, NULL);
    return rc;
}

static int run_convert(const qn_args *args)
{
    qn_err err = {0};
    qn_store *store = NULL;
    job *j = calloc(1, sizeof *j);
    if (!j) return QN_EXIT_FAILED;
    qn_convert_opts o = {0};
    qn_convert_result r = {0};
    int status = QN_EXIT_OK;
    qn_code rc = convert(j, args, &o, &r, &store, &err);
    if (!rc) show_result(j, &r);
    else if (rc == QN_INVALID) status = qn_fail_usage(&err);
    else status = qn_fail(&err);
    if (qn_stop_asked()) status = qn_stop_status();
    qn_store_close(store);
    free(j);
    return status;
}

static const qn_opt what_opts[] = {
    {.name = "hf-path", .kind = QN_OPT_STR, .arg = "SOURCE", .help = "the source, in mlx_lm's spelling"},
    {.name = "model", .kind = QN_OPT_STR, .arg = "SOURCE", .same_as = "hf-path"},
    {.name = "mlx-path", .kind = QN_OPT_STR, .arg = "DIR",
     .help = "the new folder, which must not exist; without it: Quern's models folder and the source's name"},
    {.name = "tokenizer", .kind = QN_OPT_STR, .arg = "DIR",
     .help = "take the tokenizer files from this folder instead of the source"},
    {.name = "dtype", .kind = QN_OPT_ENUM, .choices = "float16|bfloat16|float32",
     .help = "type of weights that are not quantized; without it: as in the source"},
    {.name = "dequantize", .brief = "d", .kind = QN_OPT_BOOL, .help = "write plain weights; not together with -q"},
    {.name = "requant-bits", .kind = QN_OPT_INT, .min = 4, .max = 8,
     .help = "for GGUF types that have no exact form: bits to quantize them to"},
    {.name = "threads", .kind = QN_OPT_INT, .min = 1, .max = 1024, .env = "THREADS", .help = "worker threads"},
    {.name = "trust-remote-code", .kind = QN_OPT_BOOL, .ignored = "nothing from a model is ever executed"},
    {.name = "upload-repo", .kind = QN_OPT_STR, .arg = "ID", .refused = "uploading"},
    {0},
};
static const qn_opt quant_opts[] = {
    {.name = "quantize", .brief = "q", .kind = QN_OPT_BOOL, .help = "quantize the weights"},
    {.name = "q-bits", .kind = QN_OPT_INT, .min = 2, .max = 8, .help = "bits per weight; without it: the mode's own"},
    {.name = "q-group-size", .kind = QN_OPT_INT, .min = 16, .max = 128,
     .help = "weights per scale; without it: the mode's own"},
    {.name = "q-mode", .kind = QN_OPT_ENUM, .choices = "affine|mxfp4|nvfp4|mxfp8",
     .help = "affine (4 bits, groups of 64), mxfp4 (4, 32), nvfp4 (4, 16), mxfp8 (8, 32); without it: affine"},
    {.name = "quant-predicate", .kind = QN_OPT_ENUM, .choices = "mixed_2_6|mixed_3_4|mixed_3_6|mixed_4_6",
     .help = "two widths, the larger one where it counts most; affine only"},
    {.name = "target-bpw", .kind = QN_OPT_FLOAT, .refused = "choosing bits per layer by sensitivity"},
    {.name = "candidate-bits", .kind = QN_OPT_INTS, .refused = "choosing bits per layer by sensitivity"},
    {.name = "calibration-mix", .kind = QN_OPT_STR, .refused = "choosing bits per layer by sensitivity"},
    {.name = "n-calibration", .kind = QN_OPT_INT, .refused = "choosing bits per layer by sensitivity"},
    {.name = "rotate-weights", .kind = QN_OPT_BOOL, .refused = "rotating weights"},
    {.name = "rotation-seed", .kind = QN_OPT_INT, .refused = "rotating weights"},
    {0},
};
static const qn_opt_group groups[] = {{"Source and output", what_opts}, {"Quantization", quant_opts}, {0}};
static const qn_pos pos[] = {
    {"SOURCE", "a .gguf file, a model folder, or a part of the name of a model on this machine", false}, {0}};
const qn_verb qn_verb_convert = {
    .name = "convert", .summary = "import or quantize a model", .pos = pos, .groups = groups,
    .about = "The result is a folder that mlx_lm, transformers and Quern open. Its path is printed on\n"
             "stdout. Without --mlx-path it lies in Quern's models folder, where every verb finds it\n"
             "by name. GGUF blocks that MLX can hold exactly are taken over without any loss.\n",
    .examples = "  quern convert SmolLM2-135M-Instruct.Q4_1.gguf\n"
                "  quern convert ./Qwen3-0.6B --mlx-path ./Qwen3-0.6B-4bit -q --q-bits 4\n",
    .run = run_convert,
};
