/* convert.h - the library side of `quern convert`: a GGUF file or a safetensors model folder
 * becomes a model folder in MLX layout.
 *
 * Owns everything between the source and the published folder: names, quantization, config.json,
 * the tokenizer files, the model card. It does not download, and it knows no command line.
 * Tensors are streamed one module at a time, so memory stays near the size of the largest module.
 * The output is written into "DIR.partial-<pid>" beside the target and renamed into place when it
 * is complete and synced; after a failure or a cancellation no partial folder stays.
 * Threads: one conversion per call; it starts short-lived threads of its own for quantizing. The
 * callbacks are called from the calling thread only.
 */
#ifndef QN_TUNE_CONVERT_H
#define QN_TUNE_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "format/dtype.h"
#include "format/quant.h"

typedef struct qn_convert_opts { /* zero-initialise; all strings are borrowed for the call */
    const char *source;          /* a .gguf file, or a folder with config.json and safetensors */
    const char *out_dir;         /* the new folder; must not exist */
    const char *tokenizer_dir;   /* copy the tokenizer files from here; NULL: the source's */
    const char *source_id;       /* hub id for the model card's base_model; NULL: none */
    const char *command;         /* command line for the model card; NULL: not mentioned */
    bool quantize;               /* -q */
    bool dequantize;             /* -d */
    qn_qmode mode;               /* QN_Q_NONE: affine */
    uint32_t bits, group_size;   /* 0: the default of the mode */
    const char *recipe;          /* mixed_2_6, mixed_3_4, mixed_3_6, mixed_4_6; NULL: uniform */
    const char *dtype;           /* float16, bfloat16, float32; NULL: as the source says */
    uint32_t requant_bits;       /* for GGUF types without an MLX form: 4, 5, 6, 8; 0: 8 */
    uint64_t shard_bytes;        /* largest shard; 0: 5*2^30 */
    uint32_t n_threads;          /* 0: the number of processors */
    /* Called between pieces with bytes written and to write, and the tensor's name. Return false
     * to cancel. NULL: none. */
    bool (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes, const char *what);
    /* One line the user should see (a lossy step, an unknown family). NULL: dropped. */
    void (*note)(void *ctx, const char *text);
    void *ctx; /* first argument of both callbacks */
} qn_convert_opts;

typedef struct qn_convert_result {
    uint64_t bytes;         /* tensor bytes written */
    uint64_t n_parameters;  /* of the model, packed weights counted as their elements */
    size_t n_tensors;       /* tensors written */
    size_t n_quantized;     /* modules in quantized form */
    double bpw_total;       /* mlx-lm's figure: 8 * bytes / parameters */
    double bpw_quantized;   /* mlx-bun's: codes + 32 bits per group, quantized modules; 0: none */
    char quantization[96];  /* "4-bit g32 affine, 1 module differs", or "none" */
    char model_type[64];    /* config.json's model_type */
    char name[128];         /* the model's name for headings */
} qn_convert_result;

/* Check everything that can be refused before any work or download: contradicting options, a mode,
 * bits, group size, recipe or dtype that does not exist, an output path that exists. `source` may
 * be NULL here. Errors: QN_INVALID, naming the option's value and the choices. */
qn_code qn_convert_check(const qn_convert_opts *o, qn_err *err);

/* Convert. On success the folder `out_dir` is complete and durable and *result is filled; on
 * failure nothing new exists. Errors: those of qn_convert_check, QN_NOT_FOUND (source), QN_FORMAT
 * (foreign bytes), QN_UNSUPPORTED (architecture, tensor type, tokenizer; names it), QN_LIMIT,
 * QN_CANCELLED, QN_IO, QN_NOMEM. */
qn_code qn_convert(const qn_convert_opts *o, qn_convert_result *result, qn_err *err);

#endif
