/* mlx_lm.h - mlx_lm's command lines: what "mlx_lm.CMD" and "quern.CMD" take as the program's name.
 *
 * A command becomes one of our verbs with mlx_lm's defaults before the user's own words, which win.
 * Ownership: the words are owned by the translation until qn_mlx_lm_free; argv is borrowed.
 * Threads: one thread at a time.
 */
#ifndef QN_CLI_MLX_LM_H
#define QN_CLI_MLX_LM_H

#include "core/arena.h"
#include "cli/opt.h"

typedef struct qn_mlx_lm {
    const qn_verb *verb;
    int argc;
    char **argv; /* the words behind the verb */
    qn_arena arena;
} qn_mlx_lm;

/* The CMD of a program name "mlx_lm.CMD" or "quern.CMD", or NULL (no failure). */
const char *qn_mlx_lm_command(const char *argv0);

/* Translate `command` with its words argv [argc]. Long flags may be cut where that stays
 * unambiguous. Errors: QN_UNSUPPORTED (a command that there is no verb for), QN_INVALID (an
 * ambiguous flag: names the candidates), QN_NOMEM. */
qn_code qn_mlx_lm_translate(qn_mlx_lm *out, const char *command, int argc, char **argv,
                            qn_err *err);

/* A zeroed translation is allowed (no failure). */
void qn_mlx_lm_free(qn_mlx_lm *t);

#endif
