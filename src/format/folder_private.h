/* folder_private.h - the fields of a model folder, shared by folder.c and folder_matrix.c. Threads:
 * as folder.h says.
 */
#ifndef QN_FORMAT_FOLDER_PRIVATE_H
#define QN_FORMAT_FOLDER_PRIVATE_H

#include "format/folder.h"
#include "format/shard_private.h"

enum { QN_MAX_TENSOR_NAME = 512 }; /* bytes of MODULE.PART with the NUL */

struct qn_folder {
    char *dir;
    json_t *config, *generation;
    qn_shards *shards;       /* NULL if config_only */
    bool *touched;           /* per tensor of shards: bound or dropped */
    qn_qspec top;            /* the folder-wide quantization; NONE if there is no block */
    const json_t *overrides; /* MLX's quantization block with its per-module entries, or NULL */
};

#endif
