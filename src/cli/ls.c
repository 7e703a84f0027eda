/* ls.c - "quern ls": list the models on this machine. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/term.h"
#include "cli/verbs.h"
#include "core/arena.h"
#include "model/model.h"
#include "store/models.h"

static bool is_listed(const qn_args *args, const qn_model_entry *e)
{
    if (!e->canonical && !qn_arg_bool(args, "all-revisions")) return false;
    if (qn_arg_bool(args, "vision") && !e->has_vision) return false;
    if (qn_arg_given(args, "max-size") && e->size_bytes > qn_arg_bytes(args, "max-size")) return false;
    return qn_entry_matches(e, qn_arg_pos(args, 0));
}

/* ---- JSON ---- */

static json_t *capabilities_json(const qn_model_entry *e)
{
    const struct { bool has; const char *name; } all[] = {
        {e->has_vision, "vision"}, {e->has_audio, "audio"}, {e->has_tools, "tools"},
        {e->has_kv_config, "kv-quant"}, {e->is_moe, "moe"}, {e->has_mtp, "draft:mtp"},
    };
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].has) json_array_append_new(list, json_string(all[i].name));
    }
    return list;
}

static json_t *entry_json(const qn_model_entry *e)
{
    json_t *j = json_pack("{s:s, s:s, s:s?, s:b, s:s, s:b, s:I, s:s?, s:o}", "id", e->id, "path", e->path, "revision",
                          e->revision, "canonical", e->canonical, "model_type", e->model_type, "supported",
                          e->supported, "size_bytes", (json_int_t)e->size_bytes, "license", e->license,
                          "capabilities", capabilities_json(e));
    json_object_set_new(j, "params", e->n_params ? json_integer((json_int_t)e->n_params) : json_null());
    json_t *quant = json_null();
    if (e->quant_bits) {
        quant = json_pack("{s:i, s:i, s:s?}", "bits", (int)e->quant_bits, "group_size", (int)e->quant_group, "mode",
                          e->quant_mode);
    }
    json_object_set_new(j, "quantization", quant);
    return j;
}

static int print_json(const qn_args *args, const qn_store *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < qn_store_count(s); i++) {
        if (is_listed(args, qn_store_at(s, i))) json_array_append_new(list, entry_json(qn_store_at(s, i)));
    }
    json_dumpf(list, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(list);
    return QN_EXIT_OK;
}

/* ---- the table ---- */

static char *capabilities_text(qn_arena *a, const qn_model_entry *e)
{
    const char *dot = qn_has_utf8() ? " \u00b7 " : ", ";
    char *text = e->supported ? qn_arena_printf(a, "supported")
                              : qn_arena_printf(a, "unsupported (%s)", e->model_type);
    json_t *list = capabilities_json(e), *name;
    size_t i;
    json_array_foreach(list, i, name) {
        if (text) text = qn_arena_printf(a, "%s%s%s", text, dot, json_string_value(name));
    }
    json_decref(list);
    return text;
}

static char *params_text(qn_arena *a, uint64_t n)
{
    if (!n) return qn_arena_printf(a, "?");
    if (n < 1000000000) return qn_arena_printf(a, "%.0fM", (double)n / 1e6);
    return qn_arena_printf(a, "%.1fB", (double)n / 1e9);
}

static char *quant_text(qn_arena *a, const qn_model_entry *e)
{
    if (!e->quant_bits) return qn_arena_printf(a, "full");
    const char *mode = !e->quant_mode || !strcmp(e->quant_mode, "affine") ? "" : e->quant_mode;
    return qn_arena_printf(a, "%u-bit g%u%s%s", e->quant_bits, e->quant_group, *mode ? " " : "", mode);
}

static void fill_row(qn_arena *a, const char **cells, const qn_model_entry *e, bool revisions)
{
    char size[32];
    size_t c = 0;
    cells[c++] = e->id;
    if (revisions) {
        const char *mark = e->canonical && e->revision ? "*" : "";
        cells[c++] = qn_arena_printf(a, "%.12s%s", e->revision ? e->revision : "-", mark);
    }
    cells[c++] = qn_arena_printf(a, "%s", qn_bytes_text(size, e->size_bytes));
    cells[c++] = params_text(a, e->n_params);
    cells[c++] = quant_text(a, e);
    cells[c++] = e->license;
    cells[c++] = capabilities_text(a, e);
}

static int print_table(const qn_args *args, const qn_store *s)
{
    static const qn_column all[] = {{"MODEL", false}, {"REVISION", false}, {"SIZE", true}, {"PARAMS", true},
                                    {"QUANT", false}, {"LICENSE", false}, {"CAPABILITIES", false}};
    bool revisions = qn_arg_bool(args, "all-revisions");
    qn_column columns[7];
    size_t n_columns = 0, n_rows = 0;
    for (size_t i = 0; i < 7; i++) {
        if (i != 1 || revisions) columns[n_columns++] = all[i];
    }
    qn_arena a = {0};
    const char **cells = qn_arena_take(&a, (qn_store_count(s) + 1) * n_columns, sizeof *cells);
    for (size_t i = 0; cells && i < qn_store_count(s); i++) {
        if (!is_listed(args, qn_store_at(s, i))) continue;
        fill_row(&a, cells + n_rows++ * n_columns, qn_store_at(s, i), revisions);
    }
    if (n_rows) qn_table(stdout, columns, n_columns, cells, n_rows);
    else fputs("no models; \"quern convert SOURCE\" adds one\n", stderr);
    qn_arena_release(&a);
    return QN_EXIT_OK;
}

static int print_ids(const qn_args *args, const qn_store *s)
{
    for (size_t i = 0; i < qn_store_count(s); i++) {
        if (is_listed(args, qn_store_at(s, i))) puts(qn_store_at(s, i)->id);
    }
    return QN_EXIT_OK;
}

static int run_ls(const qn_args *args)
{
    qn_err err = {0};
    qn_store *s;
    bool ids = qn_arg_bool(args, "ids");
    const qn_store_opts opts = {.supports = qn_model_supported, .details = !ids};
    if (qn_store_open(&s, &opts, &err)) return qn_fail(&err);
    int status;
    if (qn_store_scan(s, &err)) status = qn_fail(&err);
    else if (ids) status = print_ids(args, s);
    else if (qn_arg_bool(args, "json")) status = print_json(args, s);
    else status = print_table(args, s);
    qn_store_close(s);
    return status;
}

static const qn_opt opts[] = {
    {.name = "vision", .kind = QN_OPT_BOOL, .help = "only models that see images"},
    {.name = "max-size", .kind = QN_OPT_SIZE, .size_rule = QN_SIZE_LS,
     .help = "only models up to this size; a bare number is GiB"},
    {.name = "all-revisions", .kind = QN_OPT_BOOL, .help = "every snapshot in the cache, the one in use marked *"},
    {.name = "json", .kind = QN_OPT_BOOL, .help = "print a JSON array"},
    {.name = "ids", .kind = QN_OPT_BOOL, .hidden = true, .help = "print names only, for shell completion"},
    {0},
};
static const qn_opt_group groups[] = {{"Options", opts}, {0}};
static const qn_pos pos[] = {{"QUERY", "only models with this in their name or type", false}, {0}};
const qn_verb qn_verb_ls = {
    .name = "ls", .alias = "list", .summary = "list the models on this machine", .pos = pos, .groups = groups,
    .about = "Models are looked for in Quern's own folder and in the Hugging Face cache.\n",
    .examples = "  quern ls\n  quern ls qwen --max-size 8G\n  quern ls --json\n",
    .run = run_ls,
};
