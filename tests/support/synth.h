/* synth.h - synthetic checkpoints in C: the generator of tests/golden/synth.py, bit for bit.
 *
 * A recipe (JSON: config, seed, tensors, quant) gives a model folder that needs no Python.
 */
#ifndef QN_TESTS_SYNTH_H
#define QN_TESTS_SYNTH_H

#include <jansson.h>

#include "core/err.h"

/* Write the checkpoint of a recipe into an existing folder. Errors: QN_FORMAT (a recipe field),
 * QN_IO, QN_NOMEM. */
qn_code qn_synth_write(const json_t *recipe, const char *dir, qn_err *err);

#endif
