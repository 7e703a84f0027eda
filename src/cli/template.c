/* template.c - "quern template": messages to the prompt that the model would see. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "cli/verbs.h"
#include "core/file.h"
#include "text/chat.h"
#include "text/tokenizer.h"

enum { MAX_TEMPLATE = 16 << 20, MAX_CONFIG = 64 << 20 };

/* What the template is given. */
typedef struct inputs {
    json_t *messages, *tools, *kwargs;
    json_t *config; /* tokenizer_config.json; NULL without one */
} inputs;

/* What --ids needs; all NULL without it. */
typedef struct parts {
    qn_tokenizer *tok;
    qn_encoder *encoder;
    qn_sanitizer *sanitizer; /* NULL without --sanitize-control-tokens */
} parts;

static void inputs_release(inputs *in)
{
    json_decref(in->messages);
    json_decref(in->tools);
    json_decref(in->kwargs);
    json_decref(in->config);
}

/* The list itself, or an object that has it as a member: the body of a chat request. */
static qn_code take_list(json_t **v, const char *key, const char *flag, qn_err *err)
{
    json_t *inner = json_object_get(*v, key);
    if (inner) {
        json_incref(inner);
        json_decref(*v);
        *v = inner;
    }
    if (json_is_array(*v)) return QN_OK;
    return qn_err_set(err, QN_INVALID, "%s expects a JSON array, or an object with \"%s\"", flag,
                      key);
}

static qn_code read_kwargs(const char *text, json_t **out, qn_err *err)
{
    json_error_t e;
    if (!text) return QN_OK;
    *out = json_loads(text, JSON_ALLOW_NUL, &e);
    if (json_is_object(*out)) return QN_OK;
    return qn_err_set(err, QN_INVALID, "--kwargs expects a JSON object, not %.60s", text);
}

static qn_code read_config(const char *folder, json_t **out, qn_err *err)
{
    char path[PATH_MAX];
    json_error_t e;
    char *text;
    size_t n;
    if (snprintf(path, sizeof path, "%s/tokenizer_config.json", folder) >= (int)sizeof path) {
        return qn_err_set(err, QN_LIMIT, "path too long: %s", folder);
    }
    if (!qn_is_file(path)) return QN_OK;
    qn_code rc = qn_file_read(path, MAX_CONFIG, &text, &n, err);
    if (rc) return rc;
    /* transformers writes a model_max_length of 1e30 without a point where it knows no limit */
    *out = json_loadb(text, n, JSON_ALLOW_NUL, &e);
    if (!*out) *out = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    free(text);
    if (json_is_object(*out)) return QN_OK;
    return qn_err_set(err, QN_FORMAT, "%s: not a JSON object (line %d)", path, *out ? 1 : e.line);
}

static qn_code inputs_read(inputs *in, const qn_args *args, const char *folder, qn_err *err)
{
    const char *tools = qn_arg_str(args, "tools");
    qn_code rc = qn_read_json(qn_arg_str(args, "messages"), "--messages", &in->messages, err);
    if (!rc) rc = take_list(&in->messages, "messages", "--messages", err);
    if (!rc && tools) rc = qn_read_json(tools, "--tools", &in->tools, err);
    if (!rc && tools) rc = take_list(&in->tools, "tools", "--tools", err);
    if (!rc) rc = read_kwargs(qn_arg_str(args, "kwargs"), &in->kwargs, err);
    return rc ? rc : read_config(folder, &in->config, err);
}

static qn_code open_template(const qn_args *args, const char *folder, const json_t *config,
                             qn_chat_template **out, qn_err *err)
{
    const char *file = qn_arg_str(args, "template");
    char *source;
    size_t n;
    if (!file) return qn_chat_template_open(out, folder, config, err);
    qn_code rc = qn_file_read(file, MAX_TEMPLATE, &source, &n, err);
    if (rc) return rc;
    rc = qn_chat_template_from_source(out, source, n, config, err);
    if (rc) qn_err_prefix(err, "%s", file);
    free(source);
    return rc;
}

/* Print the prompt, or with --ids its ids. */
static qn_code print(const qn_args *args, const inputs *in, const qn_chat_template *ct,
                     const parts *p, qn_err *err)
{
    qn_buf out = {0};
    qn_ids ids = {0};
    qn_code rc = qn_chat_render_marked(p->sanitizer, ct, in->messages, in->tools, in->kwargs,
                                       !qn_arg_bool(args, "no-generation-prompt"), false, &out,
                                       err);
    if (!rc && p->encoder) rc = qn_chat_encode(p->encoder, ct, p->sanitizer, &out, &ids, err);
    if (!rc && p->encoder) qn_print_ids(&ids);
    else if (!rc && out.len) fwrite(out.data, 1, out.len, stdout);
    qn_buf_release(&out);
    qn_ids_release(&ids);
    return rc;
}

static qn_code open_parts(parts *p, const qn_args *args, const char *folder,
                          const qn_chat_template *ct, qn_err *err)
{
    if (!qn_arg_bool(args, "ids")) return QN_OK;
    qn_code rc = qn_tokenizer_open(&p->tok, folder, err);
    if (!rc) rc = qn_encoder_new(&p->encoder, p->tok, 0, 0, err);
    if (rc || !qn_arg_bool(args, "sanitize-control-tokens")) return rc;
    return qn_sanitizer_new(&p->sanitizer, p->tok, ct, err);
}

static void parts_release(parts *p)
{
    qn_sanitizer_free(p->sanitizer);
    qn_encoder_free(p->encoder);
    qn_tokenizer_close(p->tok);
}

static qn_code render(const qn_args *args, qn_err *err)
{
    char folder[PATH_MAX];
    inputs in = {0};
    parts p = {0};
    qn_chat_template *ct = NULL;
    qn_code rc = qn_find_text_folder(qn_arg_pos(args, 0), folder, sizeof folder, err);
    if (!rc) rc = inputs_read(&in, args, folder, err);
    if (!rc) rc = open_template(args, folder, in.config, &ct, err);
    if (!rc) rc = open_parts(&p, args, folder, ct, err);
    if (!rc) rc = print(args, &in, ct, &p, err);
    parts_release(&p);
    qn_chat_template_free(ct);
    inputs_release(&in);
    return rc;
}

static int run_template(const qn_args *args)
{
    qn_err err = {0};
    if (!qn_arg_given(args, "messages")) {
        qn_err_set(&err, QN_INVALID,
                   "no messages; right would be: quern template MODEL --messages FILE");
        return qn_fail_usage(&err);
    }
    if (qn_arg_bool(args, "sanitize-control-tokens") && !qn_arg_bool(args, "ids")) {
        qn_err_set(&err, QN_INVALID,
                   "--sanitize-control-tokens decides how the prompt is encoded; it needs --ids");
        return qn_fail_usage(&err);
    }
    return render(args, &err) ? qn_fail(&err) : QN_EXIT_OK;
}

static const qn_opt opts[] = {
    {.name = "messages",
     .kind = QN_OPT_STR,
     .arg = "FILE",
     .help = "a JSON array of messages, or an object with \"messages\"; - is standard input"},
    {.name = "tools",
     .kind = QN_OPT_STR,
     .arg = "FILE",
     .help = "a JSON array of tools, or an object with \"tools\"; - is standard input"},
    {.name = "kwargs",
     .kind = QN_OPT_STR,
     .arg = "JSON",
     .help = "an object whose members become variables of the template, as {\"enable_thinking\": "
             "false}"},
    {.name = "no-generation-prompt",
     .kind = QN_OPT_BOOL,
     .help = "end after the last message, without the start of a reply"},
    {.name = "template",
     .kind = QN_OPT_STR,
     .arg = "FILE",
     .help = "this Jinja template instead of the model's own"},
    {.name = "ids",
     .kind = QN_OPT_BOOL,
     .help = "print the prompt's token ids as a JSON array instead of its text"},
    {.name = "sanitize-control-tokens",
     .kind = QN_OPT_BOOL,
     .help = "with --ids: control tokens that messages, tools or variables spell stay text"},
    {0},
};
static const qn_opt_group groups[] = {{"Input", opts}, {0}};
static const qn_pos pos[] = {
    {"MODEL", "a folder with tokenizer files, or a part of the name of a model on this machine",
     true},
    {0}};
const qn_verb qn_verb_template = {
    .name = "template",
    .summary = "turn messages into the prompt that the model sees",
    .pos = pos,
    .groups = groups,
    .about = "Renders the model's chat template and prints the prompt, byte for byte. The folder "
             "needs no\n"
             "weights and no config.json.\n",
    .examples =
        "  quern template smollm2 --messages chat.json\n"
        "  echo '[{\"role\":\"user\",\"content\":\"hi\"}]' | quern template smollm2 --messages -\n"
        "  quern template smollm2 --messages chat.json | quern tokenize smollm2 --no-special\n",
    .run = run_template,
};
