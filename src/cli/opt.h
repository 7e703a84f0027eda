/* opt.h - declared options: one table per verb, from which the parser, the help text, the shell
 * completion and the pages under docs/ are derived.
 *
 * A verb is a qn_verb: names, one line, positionals, groups of options, and a function. Tables are
 * constants; a table that two verbs share (sampling, model choice) is written once. Values are asked
 * for by name: `qn_arg_int(args, "max-tokens")`. Asking for a name the verb did not declare, or with
 * the wrong type, is a bug and stops the process.
 *
 * Ownership: qn_args owns every string it returns, until qn_args_free; argv is borrowed for as long.
 * Threads: one thread at a time while parsing; reads from any thread after that.
 */
#ifndef QN_CLI_OPT_H
#define QN_CLI_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

typedef enum qn_opt_kind {
    QN_OPT_END = 0, /* ends a table */
    QN_OPT_BOOL,    /* takes no token; --name=on|off|1|0|true|false is allowed */
    QN_OPT_SWITCH,  /* takes one token: on|off|1|0|true|false */
    QN_OPT_STR,
    QN_OPT_INT,     /* whole number within [min, max] */
    QN_OPT_FLOAT,   /* finite number within [min, max] */
    QN_OPT_SIZE,    /* bytes, read by `size_rule`, within [min, max] */
    QN_OPT_ENUM,    /* one of `choices` */
    QN_OPT_LIST,    /* comma list of strings */
    QN_OPT_INTS,    /* comma list of whole numbers, each within [min, max] */
    QN_OPT_WORDS    /* every following token up to the next flag */
} qn_opt_kind;

typedef enum qn_size_rule {
    QN_SIZE_GB = 0, /* bare number: 10^9; GB GiB MB MiB */
    QN_SIZE_GIB,    /* bare number: 2^30; GB GiB MB MiB */
    QN_SIZE_LS,     /* bare number: 2^30; GB G = 2^30, MB M = 2^20 */
    QN_SIZE_BYTES   /* bare number: bytes; M MB = 10^6, G GB = 10^9 */
} qn_size_rule;

typedef struct qn_opt {
    const char *name;       /* long name without dashes */
    const char *brief;      /* short name without its dash, "m", "qa"; NULL: none */
    qn_opt_kind kind;
    double min, max;        /* of INT, FLOAT, SIZE, INTS; both 0: no limits */
    const char *dflt;       /* default, in the words a user would type; NULL: none */
    const char *env;        /* key of the environment variable QUERN_<env>; NULL: none */
    const char *choices;    /* ENUM: "a|b|c" */
    const char *arg;        /* what help calls the value; NULL: derived from the kind */
    qn_code (*check)(const char *text, qn_err *err); /* STR: fails for text that is wrong; NULL: none is */
    const char *not_with;   /* an option that must not be given beside this one; NULL: none */
    const char *same_as;    /* another spelling of that option; the option's own name beats it */
    const char *ignored;    /* accepted without effect: the reason, given as a warning */
    const char *refused;    /* known, not supported: the reason, given as an error */
    qn_size_rule size_rule;
    bool adds;              /* LIST: given again it adds to the list; each time at least one entry */
    bool hidden;            /* not shown in help and completion */
    const char *help;       /* one line */
} qn_opt;

typedef struct qn_opt_group {
    const char *title;      /* heading in help; NULL ends the list of groups */
    const qn_opt *opts;     /* ends with a zeroed entry */
} qn_opt_group;

typedef struct qn_pos {
    const char *name;       /* "MODEL"; NULL ends the list */
    const char *help;
    bool required;
} qn_pos;

typedef struct qn_args qn_args;

typedef struct qn_verb {
    const char *name, *alias;   /* alias may be NULL */
    const char *summary;        /* one line, no full stop */
    const char *about;          /* a paragraph for help, or NULL; lines end with \n */
    const char *examples;       /* lines for help, or NULL */
    const qn_pos *pos;          /* NULL: takes no positional */
    const qn_opt_group *groups; /* NULL: takes no option */
    int (*run)(const qn_args *args);
} qn_verb;

/* Parse the tokens behind the verb. `--help` or `-h` before `--` sets qn_args_wants_help and stops
 * everything else. On failure *out is NULL. Warnings about ignored options go to stderr.
 * Errors: QN_INVALID with a sentence for the user, QN_UNSUPPORTED for a refused option, QN_NOMEM. */
qn_code qn_args_parse(qn_args **out, const qn_verb *verb, int argc, char **argv, qn_err *err);

/* NULL is allowed (no failure). */
void qn_args_free(qn_args *args);

/* Whether help was asked for (no failure). */
bool qn_args_wants_help(const qn_args *args);

/* The i-th positional, or NULL (no failure). */
const char *qn_arg_pos(const qn_args *args, size_t i);

/* True if the flag (or another spelling of it, or its environment key) was given (no failure). */
bool qn_arg_given(const qn_args *args, const char *name);

/* Values; an option without default that was not given is false, 0, NULL or an empty list (no
 * failure). Lists are NULL terminated arrays [n + 1]. */
bool qn_arg_bool(const qn_args *args, const char *name);
const char *qn_arg_str(const qn_args *args, const char *name);
int64_t qn_arg_int(const qn_args *args, const char *name);
double qn_arg_float(const qn_args *args, const char *name);
uint64_t qn_arg_bytes(const qn_args *args, const char *name);
const char *const *qn_arg_words(const qn_args *args, const char *name, size_t *n);
const int64_t *qn_arg_ints(const qn_args *args, const char *name, size_t *n);

/* The candidate nearest to `word` with an edit distance of at most 2, or NULL (no failure). */
const char *qn_nearest(const char *word, const char *const *candidates, size_t n);

/* Parse a size by one of the rules; false if the text is not a size (no failure otherwise). */
bool qn_size_parse(const char *text, qn_size_rule rule, uint64_t *bytes);

#endif
