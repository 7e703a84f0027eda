/* job.h - one conversion: what will be written, as the importers describe it.
 *
 * An importer (gguf_import.c, folder_import.c) opens the source, fills the items and the config,
 * and chooses each item's form with plan.h; job.c writes the folder. A job owns its items' names
 * and keeps the source open, since the items point into its mapping.
 * Threads: one at a time.
 */
#ifndef QN_TUNE_JOB_H
#define QN_TUNE_JOB_H

#include <jansson.h>
#include <stdbool.h>

#include "core/arena.h"
#include "core/buf.h"
#include "format/folder.h"
#include "format/gguf.h"
#include "tune/convert.h"
#include "tune/rows.h"

typedef struct qn_item {        /* one tensor, or one quantizable module, of the output */
    const char *name;           /* tensor name; for a module without ".weight" */
    bool is_module;             /* a linear, an embedding or an expert stack */
    bool is_raw_gate;           /* a router that its family holds as a plain tensor */
    uint32_t rank;
    uint64_t dims[QN_MAX_RANK]; /* logical shape, outermost first */
    qn_rows rows;
    qn_qspec spec;  /* form in the output; mode NONE: dense */
    bool keep;      /* spec is the source's own: codes are taken over */
    qn_dtype dtype; /* of dense elements or of affine scales and biases */
} qn_item;

typedef struct qn_job {
    const qn_convert_opts *opts;
    qn_arena arena;
    qn_item *items;
    size_t n_items, cap_items;
    qn_gguf *gguf;     /* source, or NULL */
    qn_folder *folder; /* source, or NULL */
    json_t *config;    /* config.json without its quantization blocks */
    qn_qspec top;      /* the quantization block's top level; mode NONE: no block */
    char model_type[64], name[128];
} qn_job;

/* Free everything and close the source (no failure). */
void qn_job_release(qn_job *job);

/* Tell the user one line, printf style (no failure). */
__attribute__((format(printf, 2, 3)))
void qn_job_note(const qn_job *job, const char *fmt, ...);

/* Append a zeroed item with a copied name; the pointer is valid until the next call.
 * Errors: NULL when memory is exhausted. */
qn_item *qn_job_add(qn_job *job, const char *name);

/* Rows of an item from its dims: all but the last dimension, rank 1 is one row (no failure). */
size_t qn_item_rows(const qn_item *it);

/* Write all tensors into `dir`, in name order, and fill the sizes of *result.
 * Errors: QN_IO, QN_NOMEM, QN_CANCELLED, QN_LIMIT (a value too large for its type), QN_INVALID. */
qn_code qn_job_write_tensors(qn_job *job, const char *dir, qn_convert_result *result, qn_err *err);

/* Write config.json: the job's config and, if something is quantized, the quantization blocks.
 * Errors: QN_IO, QN_NOMEM. */
qn_code qn_job_write_config(qn_job *job, const char *dir, qn_err *err);

/* Write README.md, the model card; licence and language come from the source card `source_card`
 * (its text, or NULL) or from `license` (or NULL). Errors: QN_IO, QN_NOMEM. */
qn_code qn_job_write_card(qn_job *job, const char *dir, const qn_convert_result *r,
                          const char *source_card, const char *license, qn_err *err);

/* Open a GGUF file and describe its conversion. Errors: QN_FORMAT, QN_UNSUPPORTED, QN_LIMIT,
 * QN_IO, QN_NOT_FOUND, QN_NOMEM. */
qn_code qn_import_gguf(qn_job *job, qn_err *err);

/* Open a model folder and describe its conversion. Errors: as qn_import_gguf. */
qn_code qn_import_folder(qn_job *job, qn_err *err);

/* Write tokenizer.json, tokenizer_config.json and generation_config.json from the keys of the job's
 * GGUF file. Errors: QN_UNSUPPORTED (names the tokenizer), QN_FORMAT, QN_IO, QN_NOMEM. */
qn_code qn_write_gguf_tokenizer(qn_job *job, const char *dir, qn_err *err);

/* Copy the files that belong beside the tensors (A6) from `from` to `dir`: the tokenizer's, and
 * with `all` generation_config.json, code and processor files too. Errors: QN_IO, QN_LIMIT,
 * QN_NOT_FOUND when there is no tokenizer file and `all` is false. */
qn_code qn_copy_side_files(const char *from, const char *dir, bool all, qn_err *err);

/* Append v as JSON with 2 spaces of indent, doubles in their shortest exact form, short arrays of
 * scalars on one line. Errors: sets b->failed. */
void qn_json_put(qn_buf *b, const json_t *v);

/* Write v as a file "DIR/name", durably. Errors: QN_IO, QN_NOMEM. */
qn_code qn_json_file(const json_t *v, const char *dir, const char *name, qn_err *err);

#endif
