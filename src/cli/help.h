/* help.h - what is derived from the option tables: help text, JSON, Markdown, shell completion.
 *
 * Threads: one thread at a time; everything is written to the given stream.
 */
#ifndef QN_CLI_HELP_H
#define QN_CLI_HELP_H

#include <stdio.h>

#include "cli/opt.h"

/* The list of verbs, for "quern help" (no failure). */
void qn_help_overview(FILE *f, const qn_verb *const *verbs);

/* One verb's usage, positionals, options and examples (no failure). */
void qn_help_verb(FILE *f, const qn_verb *verb);

/* The same as Markdown tables, for docs/verbs/VERB.md (no failure). */
void qn_help_markdown(FILE *f, const qn_verb *verb);

/* All tables as one JSON object {"verbs": [...]}, hidden options included.
 * Errors: QN_NOMEM, QN_IO. */
qn_code qn_help_json(FILE *f, const qn_verb *const *verbs, qn_err *err);

/* A completion script for "bash", "zsh" or "fish". Errors: QN_INVALID for another shell. */
qn_code qn_complete(FILE *f, const qn_verb *const *verbs, const char *shell, qn_err *err);

/* What help calls the value of an option: "N", "PATH", "on|off"; NULL if it takes none (no
 * failure). */
const char *qn_opt_arg(const qn_opt *o);

#endif
