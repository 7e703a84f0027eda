/* loaded.h - everything that belongs to one opened model: folder, device, weights, tokenizer,
 * template.
 *
 * Verbs and the server open one of these, then start an engine over `model`.
 * Threads: open and close from one thread; the members are safe to read from any thread.
 */
#ifndef QN_ENGINE_LOADED_H
#define QN_ENGINE_LOADED_H

#include "cache/kv_scheme.h"
#include "compute/device.h"
#include "model/model.h"
#include "text/encoder.h"
#include "text/template.h"
#include "text/tokenizer.h"

enum { QN_MAX_EOS = 16 };

typedef struct qn_loaded {
    char *id;               /* name shown to clients */
    qn_folder *folder;
    qn_device *dev;
    qn_model *model;
    qn_tokenizer *tok;
    qn_encoder *encoder;    /* encodes prompts, remembering the last ones */
    qn_chat_template *chat; /* never NULL: a model without a template gets the plain fallback */
    uint32_t eos[QN_MAX_EOS];
    size_t n_eos;
} qn_loaded;

typedef struct qn_loaded_opts {
    qn_device_opts device;
    bool no_panel_cache; /* keep derived layouts in memory */
    qn_kv_scheme kv;     /* zeroed: KV in the model's float type */
    void (*progress)(void *user, const char *what, uint64_t done_bytes, uint64_t total_bytes);
    void *user;
} qn_loaded_opts;

/* Open the model in folder `dir`; `id` NULL: the folder's name. Errors: as of the parts. */
qn_code qn_loaded_open(qn_loaded **out, const char *dir, const char *id, const qn_loaded_opts *opts,
                       qn_err *err);
void qn_loaded_close(qn_loaded *l);

#endif
