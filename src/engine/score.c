/* score.c - one sequence, all logits. */
#include "engine/score.h"

#include <stdlib.h>
#include <string.h>

#include "cache/blocks.h"

enum { DEFAULT_CHUNK = 128, DEFAULT_BLOCK = 64 };

typedef struct scorer {
    qn_model *m;
    qn_blocks *blocks;
    qn_table table;
    qn_run *run;
    uint32_t *pos, *out_rows; /* [n], [max_chunk] */
    uint32_t decode_from;     /* of the item (qn_item); 0: the last chunk was of several tokens */
} scorer;

static qn_code check(const qn_model *m, const uint32_t *ids, uint32_t n, const qn_score_opts *o,
                     qn_err *err)
{
    if (n == 0) return qn_err_set(err, QN_INVALID, "no token ids; at least one is needed");
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= m->info.n_vocab) {
            return qn_err_set(err, QN_INVALID, "token id %u at position %u; ids must be below %u",
                              ids[i], i, m->info.n_vocab);
        }
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < o->n_chunks; i++) {
        sum += o->chunks[i];
        if (o->chunks[i] == 0 || sum > n) {
            return qn_err_set(err, QN_INVALID,
                              "chunks must be positive and add up to at most the %u ids", n);
        }
    }
    return QN_OK;
}

static qn_code open_scorer(scorer *s, uint32_t n, uint32_t max_chunk, uint32_t block_tokens,
                           qn_err *err)
{
    qn_kv_spec kv = s->m->kv;
    kv.block_tokens = block_tokens;
    uint32_t n_blocks[QN_MAX_KV_GROUPS];
    for (uint32_t g = 0; g < kv.n_groups; g++) n_blocks[g] = n / block_tokens + 2;
    qn_code rc = qn_blocks_new(&s->blocks, s->m->dev, &kv, n_blocks, err);
    if (rc) return rc;
    if (kv.n_states) s->m->dev->ops->state_clear(qn_blocks_kv(s->blocks), 0);
    if ((rc = qn_table_init(&s->table, s->blocks, n, err))) return rc;
    s->pos = malloc(n * sizeof *s->pos);
    s->out_rows = malloc(max_chunk * sizeof *s->out_rows);
    if (!s->pos || !s->out_rows) return qn_err_set(err, QN_NOMEM, "scoring: out of memory");
    for (uint32_t i = 0; i < n; i++) s->pos[i] = i;
    for (uint32_t i = 0; i < max_chunk; i++) s->out_rows[i] = i;
    const qn_run_limits limits = {
        .max_tokens = max_chunk, .max_items = 1, .max_out = max_chunk, .max_positions = n,
    };
    if ((rc = qn_model_run_new(&s->run, s->m, &kv, &limits, err))) return rc;
    return s->m->dev->ops->run_open(s->run, err);
}

static void close_scorer(scorer *s)
{
    if (s->run) s->m->dev->ops->run_free(s->run);
    if (s->blocks) qn_table_release(&s->table, s->blocks);
    qn_blocks_free(s->blocks);
    free(s->pos);
    free(s->out_rows);
}

static qn_code run_chunk(scorer *s, const uint32_t *ids, uint32_t first, uint32_t n, qn_score_fn fn,
                         void *user, qn_err *err)
{
    const qn_ops *ops = s->m->dev->ops;
    if (!qn_table_extend(&s->table, s->blocks, first, n)) QN_UNREACHABLE();
    qn_item item = {.row0 = 0, .n_new = n, .n_past = first, .decode_from = s->decode_from};
    qn_table_view(&s->table, s->blocks, &item);
    qn_batch b = {.n_tokens = n,
                  .n_items = 1,
                  .n_out = n,
                  .ids = ids + first,
                  .pos = s->pos + first,
                  .items = &item,
                  .out_rows = s->out_rows};
    ops->begin(s->run, &b, qn_blocks_kv(s->blocks));
    qn_tensor hidden, logits = s->m->ops->forward(s->m, s->run, &hidden);
    const float *rows = ops->fetch(s->run, logits);
    qn_code rc = ops->end(s->run, err);
    return rc ? rc : fn(user, first, n, rows, err);
}

qn_code qn_score(qn_model *m, const uint32_t *ids, uint32_t n, const qn_score_opts *opts,
                 qn_score_fn fn, void *user, qn_err *err)
{
    static const qn_score_opts none;
    const qn_score_opts *o = opts ? opts : &none;
    qn_code rc = check(m, ids, n, o, err);
    if (rc) return rc;
    uint32_t max_chunk = o->max_chunk ? o->max_chunk : DEFAULT_CHUNK, largest = max_chunk;
    for (size_t i = 0; i < o->n_chunks; i++)
        largest = o->chunks[i] > largest ? o->chunks[i] : largest;
    scorer s = {.m = m};
    rc = open_scorer(&s, n, largest, o->block_tokens ? o->block_tokens : DEFAULT_BLOCK, err);
    uint32_t done = 0;
    for (size_t i = 0; !rc && done < n; i++) {
        uint32_t take = i < o->n_chunks ? o->chunks[i] : max_chunk;
        bool single = take == 1 || n == 1; /* not the rest of a larger one */
        if (take > n - done) take = n - done;
        if (!single) s.decode_from = 0;
        else if (!s.decode_from) s.decode_from = done ? done : 1;
        rc = run_chunk(&s, ids, done, take, fn, user, err);
        done += take;
    }
    close_scorer(&s);
    return rc;
}
