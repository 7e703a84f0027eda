/* tokenizer.h - text to token ids and back, as Hugging Face's `tokenizers` does from
 * tokenizer.json.
 *
 * A tokenizer is read once and never changes; it owns everything that it returns pointers to, until
 * qn_tokenizer_close. Input text is UTF-8; bytes that are not are taken as U+FFFD, one for each
 * maximal invalid part. The file's truncation and padding settings are ignored, as transformers
 * ignores them.
 * Threads: every function may be called from any thread on one open tokenizer.
 */
#ifndef QN_TEXT_TOKENIZER_H
#define QN_TEXT_TOKENIZER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

typedef struct qn_tokenizer qn_tokenizer;

/* A growable array of token ids. Zero-initialise to start; release with qn_ids_release. */
typedef struct qn_ids {
    uint32_t *data; /* [len] */
    size_t len, cap;
    bool failed; /* an append could not get memory */
} qn_ids;

/* Append n ids. Errors: sets v->failed. */
void qn_ids_put(qn_ids *v, const uint32_t *ids, size_t n);

/* Free the array and re-initialise (no failure). */
void qn_ids_release(qn_ids *v);

enum {
    QN_ENCODE_ADD_SPECIAL =
        1,              /* run the post-processor: adds bos and the like where the file says so */
    QN_ENCODE_PLAIN = 2,   /* special tokens inside the text are ordinary characters */
    QN_ENCODE_NO_ADDED = 4 /* so are all added tokens */
};

enum { QN_NO_TOKEN = 0xFFFFFFFFu };

/* Read the tokenizer of a folder (tokenizer.json, else tokenizer.model, else tiktoken.model, and
 * tokenizer_config.json where it exists) or one such file. *out is NULL on failure; the caller
 * closes it. Files from 256 KiB on leave a cache in Quern's state folder ("tokenizers/HASH.tok"),
 * which later opens map instead of parsing. Errors: QN_NOT_FOUND, QN_IO, QN_FORMAT (names the
 * field), QN_UNSUPPORTED (names the component), QN_LIMIT, QN_NOMEM. */
qn_code qn_tokenizer_open(qn_tokenizer **out, const char *path, qn_err *err);

/* The same from a tokenizer.json in memory (borrows `json`), and a tokenizer_config.json or NULL.
 * Errors: as qn_tokenizer_open without the file errors. */
qn_code qn_tokenizer_parse(qn_tokenizer **out, const char *json, size_t n, const char *config,
                           size_t n_config, qn_err *err);

/* The same from the bytes of a SentencePiece tokenizer.model of kind unigram or bpe, or of a
 * tiktoken.model; borrowed for the call. Errors: as qn_tokenizer_parse. */
qn_code qn_tokenizer_parse_spm(qn_tokenizer **out, const void *model, size_t n, const char *config,
                               size_t n_config, qn_err *err);
qn_code qn_tokenizer_parse_tiktoken(qn_tokenizer **out, const void *model, size_t n,
                                    const char *config, size_t n_config, qn_err *err);

/* Free a tokenizer; NULL is allowed (no failure). */
void qn_tokenizer_close(qn_tokenizer *t);

/* Append the ids of text [n bytes] to out. `flags` are QN_ENCODE_*; 0 encodes without the
 * post-processor and lets special tokens in the text become their ids, as a rendered chat prompt
 * needs. Errors: QN_LIMIT (text over 1 GiB), QN_FORMAT (the unknown token is not in the
 * vocabulary), QN_NOMEM. */
qn_code qn_tokenizer_encode(const qn_tokenizer *t, const char *text, size_t n, unsigned flags,
                            qn_ids *out, qn_err *err);

/* Append the text of ids [n] to out through the file's decoder; always valid UTF-8. Ids without a
 * token are skipped; with skip_special, special tokens too. Errors: QN_NOMEM. */
qn_code qn_tokenizer_decode(const qn_tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                            qn_buf *out, qn_err *err);

/* The token string of an id as the vocabulary spells it, an added token that matches normalised
 * text in its normalised form (UTF-8, NUL terminated, *n bytes without the NUL; n may be NULL);
 * NULL if there is none. Kept until close (no failure). */
const char *qn_tokenizer_token(const qn_tokenizer *t, uint32_t id, size_t *n);

/* The bytes that one token stands for: the byte alphabet and <0xNN> resolved, and the decoder's
 * space mark replaced. Appends to out; may be part of a character. What a grammar engine or a
 * logprobs "bytes" field needs. Errors: sets out->failed. */
void qn_tokenizer_token_bytes(const qn_tokenizer *t, uint32_t id, qn_buf *out);

/* The id of a token string, added tokens first; QN_NO_TOKEN if there is none (no failure). */
uint32_t qn_tokenizer_find(const qn_tokenizer *t, const char *token, size_t n);

/* One more than the largest id, added tokens included (no failure). */
uint32_t qn_tokenizer_n_vocab(const qn_tokenizer *t);

/* True if the id is an added token marked special: skipped by decode with skip_special (no
 * failure). */
bool qn_tokenizer_is_special(const qn_tokenizer *t, uint32_t id);

/* The ids of bos_token and eos_token of tokenizer_config.json; QN_NO_TOKEN if the file does not
 * name one or the vocabulary lacks it (no failure). */
uint32_t qn_tokenizer_bos(const qn_tokenizer *t);
uint32_t qn_tokenizer_eos(const qn_tokenizer *t);

/* A special token's text by its name in tokenizer_config.json ("bos_token", "eos_token",
 * "pad_token", "unk_token", ...); NULL if absent. Kept until close (no failure). */
const char *qn_tokenizer_special(const qn_tokenizer *t, const char *name);

/* tokenizer_config.json, parsed; NULL if the folder has none. Borrowed until close (no failure). */
const json_t *qn_tokenizer_config(const qn_tokenizer *t);

#endif
