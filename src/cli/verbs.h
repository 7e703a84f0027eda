/* verbs.h - the list of verbs. One file per verb holds its table and its function.
 *
 * Verbs return the exit status: 0 done, 1 failed, 2 wrong usage, 130 or 143 interrupted. Results go
 * to stdout, everything else to stderr.
 * Threads: the main thread.
 */
#ifndef QN_CLI_VERBS_H
#define QN_CLI_VERBS_H

#include "cli/opt.h"

enum { QN_EXIT_OK = 0, QN_EXIT_FAILED = 1, QN_EXIT_USAGE = 2 };

/* All verbs in the order of the overview; ends with NULL. */
extern const qn_verb *const qn_verbs[];

extern const qn_verb qn_verb_generate;
extern const qn_verb qn_verb_chat;
extern const qn_verb qn_verb_serve;
extern const qn_verb qn_verb_benchmark;
extern const qn_verb qn_verb_ls;
extern const qn_verb qn_verb_convert;
extern const qn_verb qn_verb_logits;
extern const qn_verb qn_verb_cache_prompt;
extern const qn_verb qn_verb_tokenize;
extern const qn_verb qn_verb_template;
extern const qn_verb qn_verb_completion;
extern const qn_verb qn_verb_help;
extern const qn_verb qn_verb_version;

/* The verb with this name or alias, or NULL (no failure). */
const qn_verb *qn_verb_find(const char *name);

/* Print "quern: TEXT" and return the exit status that fits the code: QN_EXIT_USAGE for QN_INVALID
 * out of parsing, else QN_EXIT_FAILED (no failure). */
int qn_fail_usage(const qn_err *err);
int qn_fail(const qn_err *err);

#endif
