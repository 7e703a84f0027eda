/* model.h - a loaded model: its shape, its KV needs, and its forward pass.
 *
 * A model is opened from a folder onto a device and belongs to whoever opened it. Families fill in
 * qn_model_ops; everything above (cache, engine) sees only this header, so that tests can drive the
 * engine with a model of their own.
 * Threads: open and close from one thread; forward from the engine thread only; info from any.
 */
#ifndef QN_MODEL_MODEL_H
#define QN_MODEL_MODEL_H

#include "compute/ops.h"
#include "core/err.h"
#include "format/folder.h"

typedef struct qn_model qn_model;

typedef struct qn_model_info {
    char model_type[64];     /* config.json model_type, the alias resolved */
    qn_dtype dtype;          /* the checkpoint's float type */
    uint32_t n_vocab;        /* rows of the head: ids are below this */
    uint32_t n_layers, d_model;
    uint32_t max_positions;  /* context length the checkpoint was made for; 0: not stated */
    uint64_t n_params;       /* weights, biases and norms, quantized ones counted unpacked */
    uint64_t
        step_bytes; /* weight bytes read to decode one token (the whole head, one embedding row) */
    uint32_t n_init_draws;   /* splits of MLX's generator while mlx-lm builds this model */
} qn_model_info;

typedef struct qn_model_ops {
    /* Run the batch of `r` and return the logits [n_out - n_hidden, n_vocab] of its first out rows;
     * *hidden becomes [n_hidden, d_model], the last ones' residual stream after the final norm
     * (no failure). */
    qn_tensor (*forward)(qn_model *m, qn_run *r, qn_tensor *hidden);

    /* Free the model; the device and what was loaded onto it stay (no failure). */
    void (*close)(qn_model *m);
} qn_model_ops;

struct qn_model {
    const qn_model_ops *ops;
    qn_device *dev;     /* borrowed: outlives the model */
    qn_model_info info;
    qn_kv_spec kv;      /* block_tokens 0: the engine chooses; codecs: the model's float type */
};

typedef struct qn_model_opts {
    const char *cache_dir; /* for the device's derived layouts; NULL: memory only */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user;
    uint32_t max_positions; /* rotary tables reach at least this far; 0: the checkpoint's own */
} qn_model_opts;

/* Open the model in a folder on a device. Errors: those of the folder, QN_UNSUPPORTED (names the
 * architecture and the supported ones), QN_FORMAT (a tensor missing, extra, or of the wrong shape),
 * QN_NOMEM. */
qn_code qn_model_open(qn_model **out, qn_folder *folder, qn_device *dev, const qn_model_opts *opts,
                      qn_err *err);
void qn_model_close(qn_model *m);

/* A run of the model's device for batches within the limits (scratch_bytes 0) over pools of this
 * spec. It has measured, by the forward pass itself, what the largest batch needs, and gets its memory
 * from run_open. Errors: QN_NOMEM, those of kv_new. */
qn_code qn_model_run_new(qn_run **out, qn_model *m, const qn_kv_spec *kv,
                         const qn_run_limits *limits, qn_err *err);

/* QN_OK if a model_type can be loaded. Errors: QN_UNSUPPORTED, naming the supported ones. */
qn_code qn_model_check_type(const char *model_type, qn_err *err);

/* True if a model_type can be loaded (no failure). */
bool qn_model_supported(const char *model_type);

/* The supported model types, NULL terminated, in alphabetical order (no failure). */
const char *const *qn_model_types(void);

#endif
