/* input.c - see input.h. */
#include "cli/input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "store/models.h"

enum { MAX_INPUT = 1 << 30, MAX_JSON = 256 << 20 };

static qn_code put_path(const char *found, char *path, size_t cap, qn_err *err)
{
    int n = snprintf(path, cap, "%s", found);
    return n >= 0 && (size_t)n < cap ? QN_OK
                                     : qn_err_set(err, QN_LIMIT, "path too long: %s", found);
}

qn_code qn_find_text_folder(const char *model, char *path, size_t cap, qn_err *err)
{
    if (qn_is_dir(model) || qn_is_file(model)) return put_path(model, path, cap, err);
    qn_store *store;
    const qn_model_entry *entry;
    const qn_store_opts opts = {0};
    qn_code rc = qn_store_open(&store, &opts, err);
    if (rc) return rc;
    rc = qn_store_find(store, model, &entry, err);
    if (!rc) rc = put_path(entry->path, path, cap, err);
    qn_store_close(store);
    return rc;
}

qn_code qn_read_stdin(qn_buf *out, qn_err *err)
{
    char chunk[1 << 16];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) && out->len <= MAX_INPUT)
        qn_buf_put(out, chunk, n);
    qn_buf_put(out, "", 0);
    if (out->failed) return qn_err_set(err, QN_NOMEM, "standard input: out of memory");
    if (out->len > MAX_INPUT)
        return qn_err_set(err, QN_LIMIT, "standard input: more than %d bytes", MAX_INPUT);
    return ferror(stdin) ? qn_err_set(err, QN_IO, "standard input cannot be read: %m") : QN_OK;
}

qn_code qn_read_json(const char *path, const char *what, json_t **out, qn_err *err)
{
    qn_buf text = {0};
    qn_code rc;
    *out = NULL;
    if (strcmp(path, "-")) {
        rc = qn_file_read(path, MAX_JSON, &text.data, &text.len, err);
    } else {
        rc = qn_read_stdin(&text, err);
    }
    json_error_t e;
    if (!rc && !(*out = json_loadb(text.data, text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e))) {
        rc = qn_err_set(err, QN_INVALID, "%s: not valid JSON at line %d, column %d: %s", what,
                        e.line, e.column, e.text);
    }
    qn_buf_release(&text);
    return rc;
}

void qn_print_ids(const qn_ids *ids)
{
    putchar('[');
    for (size_t i = 0; i < ids->len; i++) printf(i ? ",%u" : "%u", ids->data[i]);
    puts("]");
}
