/* tokenize.c - "quern tokenize": text to token ids and back, for looking and for comparing. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "cli/verbs.h"
#include "text/detok.h"
#include "text/tokenizer.h"

typedef struct job {
    const qn_tokenizer *tok;
    unsigned flags; /* QN_ENCODE_* */
    bool decode, stream, pieces, no_special;
    size_t line; /* of --jsonl, 1-based; 0: the input is one whole */
    qn_ids ids;
    qn_buf text; /* decoded */
} job;

static qn_code bad_input(const job *j, const char *want, qn_err *err)
{
    if (!j->line) return qn_err_set(err, QN_INVALID, "standard input is not %s", want);
    return qn_err_set(err, QN_INVALID, "line %zu of standard input is not %s", j->line, want);
}

/* ---- text to ids ---- */

static void print_pieces(const job *j)
{
    json_t *list = json_array();
    for (size_t i = 0; i < j->ids.len; i++) {
        size_t n;
        const char *s = qn_tokenizer_token(j->tok, j->ids.data[i], &n);
        json_array_append_new(list, s ? json_stringn(s, n) : json_null());
    }
    json_dumpf(list, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(list);
}

static qn_code encode(job *j, const char *text, size_t n, qn_err *err)
{
    j->ids.len = 0;
    qn_code rc = qn_tokenizer_encode(j->tok, text, n, j->flags, &j->ids, err);
    if (rc) return rc;
    if (j->pieces)
        print_pieces(j);
    else
        qn_print_ids(&j->ids);
    return QN_OK;
}

/* ---- ids to text ---- */

static qn_code read_ids(job *j, const json_t *list, qn_err *err)
{
    static const char want[] = "a JSON array of token ids";
    j->ids.len = 0;
    if (!json_is_array(list)) return bad_input(j, want, err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= QN_NO_TOKEN) return bad_input(j, want, err);
        qn_ids_put(&j->ids, &(uint32_t){(uint32_t)id}, 1);
    }
    return j->ids.failed ? qn_err_set(err, QN_NOMEM, "tokenize: out of memory") : QN_OK;
}

static qn_code decode_stream(job *j, qn_err *err)
{
    qn_detok *d;
    qn_code rc = qn_detok_new(&d, j->tok, j->no_special ? QN_DETOK_SKIP_SPECIAL : 0, err);
    for (size_t i = 0; i < j->ids.len && !rc; i++)
        rc = qn_detok_push(d, j->ids.data[i], &j->text, err);
    if (!rc) rc = qn_detok_finish(d, &j->text, err);
    qn_detok_free(d);
    return rc;
}

static qn_code decode(job *j, const json_t *list, qn_err *err)
{
    qn_code rc = read_ids(j, list, err);
    qn_buf_clear(&j->text);
    qn_buf_put(&j->text, "", 0);
    if (!rc && j->stream)
        rc = decode_stream(j, err);
    else if (!rc)
        rc = qn_tokenizer_decode(j->tok, j->ids.data, j->ids.len, j->no_special, &j->text, err);
    if (rc) return rc;
    if (!j->line) {
        fwrite(j->text.data, 1, j->text.len, stdout);
        return QN_OK;
    }
    json_t *s = json_stringn(j->text.data, j->text.len);
    json_dumpf(s, stdout, JSON_ENCODE_ANY);
    putchar('\n');
    json_decref(s);
    return QN_OK;
}

/* ---- input ---- */

static qn_code run_whole(job *j, qn_err *err)
{
    qn_buf in = {0};
    qn_code rc = qn_read_stdin(&in, err);
    if (!rc && j->decode) {
        json_t *list = json_loadb(in.data, in.len, 0, NULL);
        rc = decode(j, list, err);
        json_decref(list);
    } else if (!rc) {
        rc = encode(j, in.data, in.len, err);
    }
    qn_buf_release(&in);
    return rc;
}

static qn_code run_line(job *j, const char *line, size_t n, qn_err *err)
{
    json_t *v = json_loadb(line, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    qn_code rc;
    if (j->decode)
        rc = decode(j, v, err);
    else if (json_is_string(v))
        rc = encode(j, json_string_value(v), json_string_length(v), err);
    else
        rc = bad_input(j, "a JSON string", err);
    json_decref(v);
    return rc;
}

static qn_code run_lines(job *j, qn_err *err)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    qn_code rc = QN_OK;
    while (!rc && (n = getline(&line, &cap, stdin)) > 0) {
        j->line++;
        rc = run_line(j, line, (size_t)n, err);
    }
    free(line);
    if (!rc && ferror(stdin)) rc = qn_err_set(err, QN_IO, "standard input cannot be read: %m");
    return rc;
}

static int run_tokenize(const qn_args *args)
{
    qn_err err = {0};
    char path[PATH_MAX];
    qn_tokenizer *tok = NULL;
    job j = {
        .decode = qn_arg_bool(args, "decode"),
        .stream = qn_arg_bool(args, "stream"),
        .pieces = qn_arg_bool(args, "pieces"),
        .no_special = qn_arg_bool(args, "no-special"),
    };
    if (!j.no_special) j.flags |= QN_ENCODE_ADD_SPECIAL;
    if (qn_arg_bool(args, "plain")) j.flags |= QN_ENCODE_PLAIN;
    qn_code rc = qn_find_text_folder(qn_arg_pos(args, 0), path, sizeof path, &err);
    if (!rc) rc = qn_tokenizer_open(&tok, path, &err);
    j.tok = tok;
    if (!rc) rc = qn_arg_bool(args, "jsonl") ? run_lines(&j, &err) : run_whole(&j, &err);
    qn_ids_release(&j.ids);
    qn_buf_release(&j.text);
    qn_tokenizer_close(tok);
    return rc ? qn_fail(&err) : QN_EXIT_OK;
}

static const qn_opt opts[] = {
    {.name = "jsonl",
     .kind = QN_OPT_BOOL,
     .help = "one JSON string a line in, one array a line out; with --decode one array in, one "
             "string out"},
    {.name = "decode",
     .kind = QN_OPT_BOOL,
     .help = "the other way round: an array of ids in, its text out"},
    {.name = "no-special",
     .kind = QN_OPT_BOOL,
     .help = "add no begin or end tokens; with --decode leave special tokens out of the text"},
    {.name = "plain",
     .kind = QN_OPT_BOOL,
     .help = "special tokens written in the text are ordinary characters"},
    {.name = "pieces",
     .kind = QN_OPT_BOOL,
     .help = "print each token as the vocabulary spells it instead of its id"},
    {.name = "stream",
     .kind = QN_OPT_BOOL,
     .help = "with --decode: one id at a time, as a generation does; the text is the same"},
    {0},
};
static const qn_opt_group groups[] = {{"Input and output", opts}, {0}};
static const qn_pos pos[] = {{"MODEL",
                              "a folder with tokenizer files, a tokenizer.json, or a part of the "
                              "name of a model on this machine",
                              true},
                             {0}};
const qn_verb qn_verb_tokenize = {
    .name = "tokenize",
    .summary = "turn text into token ids, or ids into text",
    .pos = pos,
    .groups = groups,
    .about = "Reads standard input and prints a JSON array of token ids. The folder needs no "
             "weights and no\n"
             "config.json.\n",
    .examples = "  echo -n 'Hello world' | quern tokenize smollm2\n"
                "  echo '[19556, 905]' | quern tokenize smollm2 --decode\n"
                "  quern tokenize ./folder --jsonl --no-special < texts.jsonl > ids.jsonl\n",
    .run = run_tokenize,
};
