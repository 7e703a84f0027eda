/* input.h - what the verbs that work on text alone share: the folder of a tokenizer, and whole
 * inputs.
 *
 * Threads: the main thread.
 */
#ifndef QN_CLI_INPUT_H
#define QN_CLI_INPUT_H

#include <jansson.h>

#include "core/buf.h"
#include "core/err.h"
#include "text/tokenizer.h"

/* Where the tokenizer files of `model` are: the path itself if it is a folder or a file, else the
 * folder of the model on this machine that the query means, whatever its architecture. Writes it to
 * path [cap]. Errors: those of qn_store_find, QN_LIMIT (longer than cap). */
qn_code qn_find_text_folder(const char *model, char *path, size_t cap, qn_err *err);

/* Append all of standard input, at most 1 GiB, to out. Errors: QN_IO, QN_LIMIT, QN_NOMEM. */
qn_code qn_read_stdin(qn_buf *out, qn_err *err);

/* Read a file, or standard input for "-", as JSON of any type; the caller releases *out. `what`
 * names the source in errors. Errors: QN_IO, QN_NOT_FOUND, QN_LIMIT, QN_INVALID (not JSON: line and
 * column), QN_NOMEM. */
qn_code qn_read_json(const char *path, const char *what, json_t **out, qn_err *err);

/* Print ids as a JSON array and a newline on standard output (no failure). */
void qn_print_ids(const qn_ids *ids);

#endif
