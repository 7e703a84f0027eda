/* fake_model.h - a device and a model for engine tests, thousands of steps per second.
 *
 * The fake device keeps token ids in its KV blocks. The fake model's next token is a hash of every
 * token of the sequence, read back through the block table: a wrong block, position or order gives
 * a wrong token. With a script, the reply is the script's tokens instead, whatever the prompt.
 * A bounded model sees, and hashes, only what its window and kept positions let it see.
 */
#ifndef QN_TESTS_FAKE_MODEL_H
#define QN_TESTS_FAKE_MODEL_H

#include "model/model.h"

enum { QN_FAKE_VOCAB = 1000 };

typedef struct qn_fake qn_fake;

typedef struct qn_fake_opts {
    uint32_t n_vocab;         /* 0: QN_FAKE_VOCAB */
    bool recurrent;           /* a state slot per row too: a hash of its tokens, checked as well */
    uint32_t window;          /* > 0: a second KV group with this window, checked as well */
    uint32_t keep;            /* first positions that the window's group sees besides */
    bool chunked;             /* the window is a chunk: it does not slide */
    bool bounded;             /* the window's group is the only one */
    uint32_t step_us;         /* how long a step takes at least: it sleeps for the rest */
    const uint32_t *script;   /* reply tokens, borrowed; NULL: the hash */
    uint32_t n_script;
    uint32_t script_prompt;   /* prompt length that the script starts after */
    uint32_t max_positions;   /* 0: 4096 */
    uint32_t fail_step;       /* the device fails in this step, counted from 1; 0: never */
    /* The token after history [n], instead of the hash; NULL: none. */
    uint32_t (*next)(const void *user, const uint32_t *history, uint32_t n);
    const void *user;         /* of `next`, borrowed */
} qn_fake_opts;

/* The model; close with qn_model_close, which frees the device as well (no failure; aborts without
 * memory). */
qn_model *qn_fake_model(const qn_fake_opts *o);

/* The token that follows history [n] (no failure). */
uint32_t qn_fake_next(const qn_model *m, const uint32_t *history, uint32_t n);

/* The hidden state (one number) at the end of history [n] (no failure). */
float qn_fake_hidden(const uint32_t *history, uint32_t n);

/* Steps run so far, and the largest batch (tokens) seen (no failure). */
uint64_t qn_fake_steps(const qn_model *m);
uint32_t qn_fake_largest(const qn_model *m);

#endif
