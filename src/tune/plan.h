/* plan.h - which modules are quantized, and how (spec quantize-eval A3).
 *
 * Works on the items of a job: the importer has set names, shapes and rows; this sets spec, keep
 * and the job's top-level spec. Threads: one at a time.
 */
#ifndef QN_TUNE_PLAN_H
#define QN_TUNE_PLAN_H

#include "tune/job.h"

/* True if tensor `name` of this rank is the weight of a module that has a quantized form: rank 2,
 * or an expert stack of rank 3, named *.weight, not a norm and not a convolution (no failure). */
bool qn_is_module_weight(const char *name, uint32_t rank);

/* True if the family keeps this router as a plain tensor, never quantized (no failure). */
bool qn_is_raw_gate(const char *model_type, const char *path);

/* Set every item's form from the options: -q, -d, or what the source has. n_layers serves the
 * recipes. Errors: QN_INVALID (a recipe without down_proj), QN_UNSUPPORTED. */
qn_code qn_plan(qn_job *job, uint32_t n_layers, qn_err *err);

/* The spec that most quantized items have; mode NONE if none is quantized (no failure). */
qn_qspec qn_plan_common(const qn_job *job);

/* True if `name` is a recipe (no failure). */
bool qn_is_recipe(const char *name);

#endif
