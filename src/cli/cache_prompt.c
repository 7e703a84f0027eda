/* cache_prompt.c - "quern cache-prompt": compute a prompt once and keep it in a file. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/mlx_cache.h"
#include "cli/input.h"
#include "cli/pick.h"
#include "cli/session.h"
#include "cli/stop.h"
#include "cli/verbs.h"
#include "text/chat.h"

/* The prompt as a user's message that is still open: what follows goes on in it. */
static qn_code render(const qn_session *s, const qn_buf *prompt, qn_buf *text, qn_err *err)
{
    json_t *messages =
        json_pack("[{s:s, s:s%}]", "role", "user", "content", prompt->data, prompt->len);
    if (!messages) return qn_err_set(err, QN_INVALID, "the prompt is not valid UTF-8");
    qn_code rc = qn_chat_render(s->loaded->chat, messages, NULL, NULL, false, true, text, err);
    json_decref(messages);
    return rc;
}

static qn_code encode(const qn_args *args, const qn_session *s, qn_buf *prompt, qn_ids *ids,
                      qn_err *err)
{
    qn_buf text = {0};
    if (qn_arg_bool(args, "raw"))
        return qn_tokenizer_encode(s->loaded->tok, prompt->data, prompt->len, QN_ENCODE_ADD_SPECIAL,
                                   ids, err);
    qn_code rc = render(s, prompt, &text, err);
    if (!rc) rc = qn_chat_encode(s->loaded->encoder, s->loaded->chat, NULL, &text, ids, err);
    qn_buf_release(&text);
    return rc;
}

/* Prefill and write the file. */
static qn_code compute(const qn_session *s, const qn_ids *ids, const char *path, qn_err *err)
{
    const qn_kv_spec *spec = &s->loaded->model->kv;
    qn_image *img;
    qn_answer a = {0};
    bool coded = qn_image_is_coded(spec, (uint32_t)ids->len);
    qn_code rc = qn_mlx_cache_check(spec, coded, err);
    if (rc || (rc = qn_image_new(&img, spec, (uint32_t)ids->len, coded, err))) return rc;
    qn_request req = {.prompt = ids->data, .n_prompt = ids->len, .keep = img};
    rc = qn_generate(s, &req, NULL, NULL, false, &a, err);
    if (!rc && a.finish != QN_FINISH_LENGTH) rc = qn_err_set(err, QN_CANCELLED, "interrupted");
    char *whole = realpath(s->entry->path, NULL); /* mlx-lm opens the model by this name */
    if (!rc) rc = qn_mlx_cache_write(path, img, spec, whole ? whole : s->entry->path, "{}", err);
    free(whole);
    double seconds = a.stats.prefill_ms / 1000;
    if (!rc)
        printf("Processed %zu tokens (%.2f tok/s)\n%s\n", ids->len,
               seconds > 0 ? (double)ids->len / seconds : 0, path);
    qn_image_free(img);
    return rc;
}

static qn_code read_prompt(const char *text, qn_buf *out, qn_err *err)
{
    if (!strcmp(text, "-")) return qn_read_stdin(out, err);
    qn_buf_puts(out, text);
    return out->failed ? qn_err_set(err, QN_NOMEM, "prompt: out of memory") : QN_OK;
}

static qn_code run(const qn_args *args, qn_session *s, qn_buf *prompt, qn_err *err)
{
    char path[PATH_MAX];
    qn_ids ids = {0};
    qn_code rc =
        qn_mlx_cache_path(path, sizeof path, qn_arg_str(args, "prompt-cache-file"), err);
    if (!rc) rc = encode(args, s, prompt, &ids, err);
    if (!rc) rc = compute(s, &ids, path, err);
    qn_ids_release(&ids);
    return rc;
}

static int run_cache_prompt(const qn_args *args)
{
    qn_err err = {0};
    qn_session s = {0};
    qn_buf prompt = {0};
    if (!qn_arg_given(args, "prompt") || !qn_arg_given(args, "prompt-cache-file")) {
        qn_err_set(&err, QN_INVALID,
                   "--prompt and --prompt-cache-file are needed; right would be: quern cache-prompt "
                   "MODEL --prompt \"...\" --prompt-cache-file FILE");
        return qn_fail_usage(&err);
    }
    qn_stop_catch();
    int status = QN_EXIT_OK;
    if (read_prompt(qn_arg_str(args, "prompt"), &prompt, &err) ||
        qn_session_open(&s, args, qn_arg_pos(args, 0), NULL, &(qn_engine_opts){.max_rows = 1}, &err) ||
        run(args, &s, &prompt, &err))
        status = qn_fail(&err);
    if (qn_stop_asked()) status = qn_stop_status();
    qn_buf_release(&prompt);
    qn_session_close(&s);
    return status;
}

static const qn_opt opts[] = {
    {.name = "prompt", .kind = QN_OPT_STR, .help = "the prompt; - reads standard input"},
    {.name = "prompt-cache-file",
     .kind = QN_OPT_STR,
     .arg = "FILE",
     .help = "the file to write; .safetensors is added if it is missing"},
    {.name = "raw",
     .kind = QN_OPT_BOOL,
     .help = "take the prompt as it is, without the chat template"},
    {.name = "adapter-path", .kind = QN_OPT_STR, .refused = "adapters", .hidden = true},
    {.name = "eos-token",
     .kind = QN_OPT_STR,
     .ignored = "nothing is generated",
     .hidden = true},
    {.name = "trust-remote-code",
     .kind = QN_OPT_BOOL,
     .ignored = "nothing from a model is ever executed",
     .hidden = true},
    {0},
};
static const qn_opt_group groups[] = {
    {"Prompt and file", opts}, {"Model", qn_opts_model}, {"Device", qn_opts_device},
    {"Steps", qn_opts_step},
    {"KV cache", qn_opts_kv}, {0}};
static const qn_pos pos[] = {
    {"MODEL", "a folder, or a part of the name of a model on this machine", false}, {0}};
const qn_verb qn_verb_cache_prompt = {
    .name = "cache-prompt",
    .summary = "compute a prompt once and keep it in a file",
    .pos = pos,
    .groups = groups,
    .about =
        "Computes the prompt, as a user's message that is still open, and writes what the model\n"
        "has to remember of it: mlx_lm's file, which mlx_lm reads as well. \"quern generate\n"
        "--prompt-cache-file\" goes on from there.\n",
    .examples = "  quern cache-prompt smollm2 --prompt - --prompt-cache-file book < book.txt\n"
                "  quern generate smollm2 --prompt-cache-file book \"Who is the narrator?\"\n",
    .run = run_cache_prompt,
};
