/* synth.h - synthetic checkpoints in C: the generator of tests/golden/synth.py, bit for bit.
 *
 * A recipe (JSON: config, seed, tensors, quant) gives a model folder that needs no Python.
 */
#ifndef QN_TESTS_SYNTH_H
#define QN_TESTS_SYNTH_H

#include <jansson.h>

#include "compute/device.h"
#include "core/err.h"
#include "model/model.h"

/* Write the checkpoint of a recipe into an existing folder. Errors: QN_FORMAT (a recipe field),
 * QN_IO, QN_NOMEM. */
qn_code qn_synth_write(const json_t *recipe, const char *dir, qn_err *err);

/* A recipe's checkpoint, opened. */
typedef struct qn_synth_model {
    char dir[64];
    qn_folder *folder;
    qn_device *dev;
    qn_model *model;
} qn_synth_model;

/* Write the checkpoint of a recipe into a folder of its own and open it. On failure nothing is left
 * open, but the folder may stay. Errors: as of the parts. */
qn_code qn_synth_open(qn_synth_model *m, const json_t *recipe, const qn_device_opts *device,
                      qn_err *err);

/* Close and remove the folder. Errors: QN_IO. */
qn_code qn_synth_close(qn_synth_model *m, qn_err *err);

#endif
