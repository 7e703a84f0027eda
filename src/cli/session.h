/* session.h - one opened model with its engine, as generate, chat and serve need it, and the
 * options that go with it.
 *
 * Ownership: a session owns store, model and engine until qn_session_close.
 * Threads: the main thread; qn_generate's callback runs on it too.
 */
#ifndef QN_CLI_SESSION_H
#define QN_CLI_SESSION_H

#include "cli/opt.h"
#include "cli/term.h"
#include "engine/engine.h"
#include "engine/loaded.h"
#include "store/models.h"

/* --threads, --device, --l1, --context-length and what belongs to opening a model. */
extern const qn_opt qn_opts_device[];

/* How much a step of the engine computes: for verbs that have one. */
extern const qn_opt qn_opts_step[];

/* --kv-quant and the other options of the KV cache. */
extern const qn_opt qn_opts_kv[];

/* --temperature, --top-p and the other sampling options. */
extern const qn_opt qn_opts_sampling[];

/* Options of mlx_lm that are known and not supported. */
extern const qn_opt qn_opts_refused[];

typedef struct qn_session {
    qn_store *store;
    const qn_model_entry *entry; /* in the store */
    qn_loaded *loaded;
    qn_engine *engine;
    double load_ms;              /* from the start of opening to the engine being ready */
} qn_session;

/* Find the model (pick.h), open it with progress on stderr, start an engine within `limits` (NULL:
 * no engine), its KV cache fit for a request that starts from `cache_file`, which must be one of this
 * model (NULL: none will). On failure everything is closed again and the session is zeroed. Errors:
 * those of qn_pick_model, qn_mlx_cache_model, qn_loaded_open, qn_engine_new, QN_INVALID (another
 * model's file). */
qn_code qn_session_open(qn_session *s, const qn_args *args, const char *positional,
                        const char *cache_file, const qn_engine_opts *limits, qn_err *err);

/* A zeroed session is allowed (no failure). */
void qn_session_close(qn_session *s);

/* The device options out of qn_opts_device (no failure). */
qn_device_opts qn_device_opts_read(const qn_args *args);

/* The KV options out of qn_opts_kv: the scheme. config_required is the caller's to set (no failure).
 */
qn_kv_scheme qn_kv_scheme_read(const qn_args *args);

/* Tokens of a KV block, from the same options (no failure). */
uint32_t qn_block_tokens_read(const qn_args *args);

/* The sampling options of the command line over those of generation_config.json (`folder`; NULL:
 * not asked). top_p of 0, or 1 and more, is off (no failure). */
qn_sampling qn_sampling_read(const qn_args *args, const qn_folder *folder);

/* The ids that xtc never removes, as in mlx_lm: end-of-text ids and those of a newline, appended to
 * `out` (released by the caller). Errors: QN_NOMEM. */
qn_code qn_xtc_special(const qn_session *s, const qn_ids *eos, qn_ids *out, qn_err *err);

/* What a generation left behind. */
typedef struct qn_answer {
    qn_buf text;        /* the reply; the caller releases it */
    qn_finish finish;
    qn_gen_stats stats;
} qn_answer;

/* Run one request to its end. `show` gets each piece of text as it becomes certain and returns
 * false to stop (NULL: nothing is shown); SIGINT and SIGTERM stop it too (stop.h). With `keep` the
 * text is also collected in out->text. Errors: those of qn_engine_submit, of the step, QN_NOMEM. */
qn_code qn_generate(const qn_session *s, const qn_request *req,
                    bool (*show)(void *ctx, const char *text, size_t n), void *ctx, bool keep,
                    qn_answer *out, qn_err *err);

/* One line of speeds: tokens and rates of prompt and reply, time to the first token, peak memory
 * (no failure). */
void qn_stats_line(FILE *f, const qn_answer *a, double first_token_ms);

/* Peak memory of the process in bytes (no failure). */
uint64_t qn_peak_bytes(void);

#endif
