/* models.h - the models on this machine, and finding one by what the user typed.
 *
 * Two places are looked at: Quern's own models folder (NAME or ORG/NAME, made by `quern convert`),
 * and the Hugging Face cache in the layout that every other client reads and writes
 * (models--ORG--NAME/snapshots/COMMIT). Nothing is written. A scan reads config.json files; with
 * details it also reads headers, README and template, never tensor bytes.
 *
 * Ownership: the store owns all entries and their strings until qn_store_close.
 * Threads: one thread at a time.
 */
#ifndef QN_STORE_MODELS_H
#define QN_STORE_MODELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

typedef struct qn_store qn_store;

typedef struct qn_model_entry {
    const char *id;          /* ORG/NAME, or NAME */
    const char *path;        /* the folder with config.json */
    const char *revision;    /* commit of a snapshot in the cache; NULL elsewhere */
    bool canonical;          /* the snapshot a query means; true outside of the cache */
    bool own;                /* in Quern's models folder */
    const char *model_type;  /* config.json, "unknown" without */
    bool supported;          /* as the caller's predicate says */
    bool drafter;            /* a companion for speculation: never found by a query */
    uint64_t size_bytes;     /* of the safetensors files that the model uses */
    uint32_t quant_bits, quant_group; /* 0: not quantized */
    const char *quant_mode;  /* "affine", ...; NULL: not quantized */
    bool has_vision, has_audio, has_kv_config, is_moe, has_mtp;
    /* Only after a scan with details: */
    uint64_t n_params;       /* 0: unknown */
    const char *license;     /* NULL: unknown */
    bool has_tools;          /* the template knows tool calls */
} qn_model_entry;

typedef struct qn_store_opts {
    const char *own_dir;     /* NULL: qn_store_own_dir */
    const char *hub_dir;     /* NULL: qn_store_hub_dir */
    bool (*supports)(const char *model_type); /* NULL: everything is supported */
    bool details;
} qn_store_opts;

/* An empty store; the strings in *opts are borrowed until close. Errors: QN_NOMEM. */
qn_code qn_store_open(qn_store **out, const qn_store_opts *opts, qn_err *err);
void qn_store_close(qn_store *s); /* NULL is allowed (no failure) */

/* Look at both places, once; later calls do nothing. A place that does not exist is empty; a folder
 * that is not a model (no config.json, no weights, broken JSON) is passed over.
 * Errors: QN_NOMEM, QN_NOT_FOUND (no home). */
qn_code qn_store_scan(qn_store *s, qn_err *err);

/* Number of scanned entries, and the i-th by size, then id; all snapshots are in the list (no
 * failure). */
size_t qn_store_count(const qn_store *s);
const qn_model_entry *qn_store_at(const qn_store *s, size_t i);

/* The model meant by `query`: a folder with config.json; else, among canonical entries that are not
 * drafters, the first rule that matches: the id, the name behind the last "/", the end of the name, a
 * part of the id or the model type (letters in any case from the second rule on). NULL: the only
 * supported model there is. Scans unless the query is a folder. The entry stays valid until close.
 * Errors: QN_NOT_FOUND (with near names), QN_INVALID (ambiguous: lists the ids; a file instead of a
 * folder), QN_FORMAT (a folder with config.json but without weights). */
qn_code qn_store_find(qn_store *s, const char *query, const qn_model_entry **out, qn_err *err);

/* True if the entry answers to `query` in a listing: a part of its id or of its model type, letters in any
 * case; NULL matches all (no failure). */
bool qn_entry_matches(const qn_model_entry *e, const char *query);

/* Quern's own models folder, and the Hugging Face cache (HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE,
 * HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub; a leading ~ and $NAME are
 * expanded). Errors: QN_NOT_FOUND (no home), QN_LIMIT (longer than cap). */
qn_code qn_store_own_dir(char *out, size_t cap, qn_err *err);
qn_code qn_store_hub_dir(char *out, size_t cap, qn_err *err);

#endif
