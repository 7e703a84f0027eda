/* private.h - what the files of the store share: the list under construction.
 * Threads: as models.h. */
#ifndef QN_STORE_PRIVATE_H
#define QN_STORE_PRIVATE_H

#include "core/arena.h"
#include "store/models.h"

enum { QN_PATH_CAP = 4096 };

struct qn_store {
    qn_arena arena;
    qn_model_entry **entries; /* malloc, [n]; the entries themselves are in the arena */
    size_t n, cap;
    qn_store_opts opts;
    bool scanned;
};

/* Read the model folder `path` into a new entry. *out is NULL, without an error, if it is not a model
 * folder. Errors: QN_NOMEM. */
qn_code qn_entry_read(qn_store *s, const char *path, const char *id, qn_model_entry **out, qn_err *err);

/* Add an entry to the list. Errors: QN_NOMEM. */
qn_code qn_store_add(qn_store *s, qn_model_entry *e, qn_err *err);

/* The repository id in a path ".../models--ORG--NAME/snapshots/COMMIT", in the arena; NULL if the
 * path has another form (no failure). */
const char *qn_hub_id_of(qn_store *s, const char *path);

/* Turn "models--ORG--NAME" into "ORG/NAME", in the arena; NULL if it has another form or memory is
 * out (no failure). */
const char *qn_hub_id(qn_store *s, const char *folder, size_t len);

#endif
