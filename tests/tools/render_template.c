/* render_template - a chat template on the command line, for comparing with jinja2.
 *
 *   render_template TEMPLATE        variables as one JSON object on stdin; the text on stdout
 *   render_template --batch         one JSON object {"source" or "file", "vars"} a line on stdin;
 * one JSON object {"out"} or {"error"} a line on stdout render_template --dir FOLDER    as the
 * first form, through the chat template of a model folder
 *
 * The clock of strftime_now is fixed at $QUERN_TEST_CLOCK (seconds since 1970) if that is set.
 * Exit 1 with the message on stderr when the template fails.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "text/template.h"

enum { MAX_BYTES = 64 << 20 };

static int64_t fixed_clock(void *arg) { return strtoll(arg, NULL, 10); }

static qn_code render_source(const char *source, size_t size, const char *name, const json_t *vars,
                             qn_buf *out, qn_err *err)
{
    qn_template *t;
    qn_code rc = qn_template_compile(&t, source, size, name, err);
    if (rc) return rc;
    char *clock = getenv("QUERN_TEST_CLOCK");
    if (clock) qn_template_set_clock(t, fixed_clock, clock);
    rc = qn_template_render(t, vars, out, err);
    qn_template_free(t);
    return rc;
}

static qn_code render_file(const char *path, const json_t *vars, qn_buf *out, qn_err *err)
{
    char *text = NULL;
    size_t size;
    qn_code rc = qn_file_read(path, MAX_BYTES, &text, &size, err);
    if (!rc) rc = render_source(text, size, "template", vars, out, err);
    free(text);
    return rc;
}

static qn_code render_dir(const char *dir, const json_t *vars, qn_buf *out, qn_err *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    json_t *config = qn_is_file(path) ? json_load_file(path, 0, NULL) : NULL;
    qn_chat_template *ct;
    qn_code rc = qn_chat_template_open(&ct, dir, config, err);
    json_decref(config);
    if (rc) return rc;
    char *clock = getenv("QUERN_TEST_CLOCK");
    if (clock) qn_chat_template_set_clock(ct, fixed_clock, clock);
    rc = qn_chat_template_render(ct, vars, out, err);
    qn_chat_template_free(ct);
    return rc;
}

static void batch_line(const char *line, size_t n)
{
    json_t *job = json_loadb(line, n, JSON_ALLOW_NUL, NULL), *reply = json_object();
    const json_t *source = json_object_get(job, "source");
    const char *file = json_string_value(json_object_get(job, "file"));
    const char *dir = json_string_value(json_object_get(job, "dir"));
    const json_t *vars = json_object_get(job, "vars");
    qn_buf out = {0};
    qn_err err = {0};
    qn_code rc = !job   ? qn_err_set(&err, QN_INVALID, "harness: the line is not JSON")
                 : file ? render_file(file, vars, &out, &err)
                 : dir  ? render_dir(dir, vars, &out, &err)
                        : render_source(json_string_value(source), json_string_length(source),
                                        "template", vars, &out, &err);
    json_t *text =
        rc ? json_string(err.text) : json_stringn_nocheck(out.data ? out.data : "", out.len);
    json_object_set_new(reply, rc ? "error" : "out", text ? text : json_string("(not UTF-8)"));
    char *s = json_dumps(reply, 0);
    puts(s ? s : "{\"error\": \"harness: no reply\"}");
    free(s);
    qn_buf_release(&out);
    json_decref(reply);
    json_decref(job);
}

static int batch(void)
{
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        batch_line(line, (size_t)n);
        fflush(stdout);
    }
    free(line);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--batch") == 0) return batch();
    bool dir = argc == 3 && strcmp(argv[1], "--dir") == 0;
    if (argc != 2 && !dir) {
        fprintf(stderr, "usage: render_template TEMPLATE | --batch | --dir FOLDER\n");
        return 2;
    }
    json_error_t why;
    json_t *vars = json_loadf(stdin, JSON_ALLOW_NUL, &why);
    qn_buf out = {0};
    qn_err err = {0};
    qn_code rc =
        vars ? QN_OK : qn_err_set(&err, QN_INVALID, "stdin: line %d: %s", why.line, why.text);
    if (!rc)
        rc = dir ? render_dir(argv[2], vars, &out, &err) : render_file(argv[1], vars, &out, &err);
    if (rc) fprintf(stderr, "%s\n", err.text);
    else if (out.len) fwrite(out.data, 1, out.len, stdout);
    qn_buf_release(&out);
    json_decref(vars);
    return rc ? 1 : 0;
}
