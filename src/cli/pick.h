/* pick.h - the options that name a model, and the way from them to one model on this machine.
 *
 * Threads: the main thread.
 */
#ifndef QN_CLI_PICK_H
#define QN_CLI_PICK_H

#include "cli/opt.h"
#include "store/models.h"

/* --model and --query; every verb that opens a model has this group. */
extern const qn_opt qn_opts_model[];

/* Find the model: --model, else `positional` (may be NULL), else --query, else the only one there is.
 * The entry belongs to *store, which the caller closes; on failure *store is NULL. An unsupported
 * architecture is an error that names the supported ones.
 * Errors: those of qn_store_find, QN_UNSUPPORTED. */
qn_code qn_pick_model(qn_store **store, const qn_args *args, const char *positional, const qn_model_entry **out,
                      qn_err *err);

#endif
