/* logits.c - "quern logits": the logits of every position, for comparisons with anything else. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/pick.h"
#include "cli/session.h"
#include "cli/verbs.h"
#include "engine/score.h"

enum { MAX_IDS = 1 << 20 };

/* One safetensors file with the tensor `logits`, written as the rows come. */
typedef struct sink {
    FILE *f;
    const char *path;
    char tmp[PATH_MAX];
    uint32_t n_vocab;
} sink;

static qn_code sink_open(sink *s, const char *path, uint32_t n, uint32_t n_vocab, qn_err *err)
{
    s->path = path;
    s->n_vocab = n_vocab;
    if (snprintf(s->tmp, sizeof s->tmp, "%s.tmp-%ld", path, (long)getpid()) >= (int)sizeof s->tmp) {
        return qn_err_set(err, QN_LIMIT, "--out: the path is too long");
    }
    s->f = fopen(s->tmp, "wb");
    if (!s->f) return qn_err_set(err, QN_IO, "cannot write %s: %m", s->tmp);
    char head[256];
    unsigned long long bytes = 4ull * n * n_vocab;
    int len =
        snprintf(head, sizeof head,
                 "{\"__metadata__\":{\"format\":\"pt\"},\"logits\":{\"dtype\":\"F32\",\"shape\":"
                 "[%u,%u],\"data_offsets\":[0,%llu]}}",
                 n, n_vocab, bytes);
    while (len % 8) head[len++] = ' ';
    uint64_t size = (uint64_t)len;
    uint8_t le[8];
    for (int i = 0; i < 8; i++) le[i] = (uint8_t)(size >> 8 * i);
    fwrite(le, 1, 8, s->f);
    fwrite(head, 1, (size_t)len, s->f);
    return QN_OK;
}

static qn_code sink_put(void *user, uint32_t first, uint32_t n, const float *logits, qn_err *err)
{
    (void)first;
    sink *s = user;
    size_t count = (size_t)n * s->n_vocab;
    if (fwrite(logits, sizeof *logits, count, s->f) == count) return QN_OK;
    return qn_err_set(err, QN_IO, "cannot write %s: %m", s->tmp);
}

static qn_code sink_close(sink *s, qn_code rc, qn_err *err)
{
    if (!s->f) return rc;
    if (fclose(s->f) && !rc) rc = qn_err_set(err, QN_IO, "cannot write %s: %m", s->tmp);
    if (!rc && rename(s->tmp, s->path))
        rc = qn_err_set(err, QN_IO, "cannot rename to %s: %m", s->path);
    if (rc) unlink(s->tmp);
    return rc;
}

/* Without --out: one line a position, its most likely ids with their logits. */
static qn_code print_top(void *user, uint32_t first, uint32_t n, const float *logits, qn_err *err)
{
    enum { TOP = 5 };
    (void)err;
    uint32_t n_vocab = *(const uint32_t *)user;
    for (uint32_t i = 0; i < n; i++) {
        const float *row = logits + (size_t)i * n_vocab;
        uint32_t best[TOP], n_best = 0;
        for (uint32_t v = 0; v < n_vocab; v++) {
            uint32_t j = n_best;
            while (j > 0 && row[v] > row[best[j - 1]]) j--;
            if (j == TOP) continue;
            if (n_best < TOP) n_best++;
            memmove(best + j + 1, best + j, (n_best - 1 - j) * sizeof *best);
            best[j] = v;
        }
        printf("%u", first + i);
        for (uint32_t j = 0; j < n_best; j++) printf("\t%u %.6g", best[j], (double)row[best[j]]);
        putchar('\n');
    }
    return QN_OK;
}

static uint32_t *list_of(const qn_args *args, const char *name, size_t *n)
{
    const int64_t *v = qn_arg_ints(args, name, n);
    uint32_t *out = malloc((*n ? *n : 1) * sizeof *out);
    for (size_t i = 0; out && i < *n; i++) out[i] = (uint32_t)v[i];
    return out;
}

static qn_code score(const qn_args *args, const qn_session *s, qn_err *err)
{
    size_t n, n_chunks;
    uint32_t *ids = list_of(args, "ids", &n), *chunks = list_of(args, "chunks", &n_chunks);
    const char *path = qn_arg_str(args, "out");
    uint32_t n_vocab = s->loaded->model->info.n_vocab;
    sink out = {0};
    qn_code rc = ids && chunks ? QN_OK : qn_err_set(err, QN_NOMEM, "logits: out of memory");
    if (!rc && n > MAX_IDS) rc = qn_err_set(err, QN_LIMIT, "--ids: more than %d ids", MAX_IDS);
    if (!rc && path) rc = sink_open(&out, path, (uint32_t)n, n_vocab, err);
    if (!rc) {
        qn_score_opts o = {.chunks = chunks, .n_chunks = n_chunks};
        rc = qn_score(s->loaded->model, ids, (uint32_t)n, &o, path ? sink_put : print_top,
                      path ? (void *)&out : (void *)&n_vocab, err);
    }
    rc = sink_close(&out, rc, err);
    free(ids);
    free(chunks);
    return rc;
}

static int run_logits(const qn_args *args)
{
    qn_err err = {0};
    qn_session s = {0};
    if (!qn_arg_given(args, "ids")) {
        qn_err_set(&err, QN_INVALID,
                   "no token ids; right would be: quern logits MODEL --ids 1,2,3");
        return qn_fail_usage(&err);
    }
    qn_code rc = qn_session_open(&s, args, qn_arg_pos(args, 0), NULL, NULL, &err);
    if (!rc) rc = score(args, &s, &err);
    qn_session_close(&s);
    return rc ? qn_fail(&err) : QN_EXIT_OK;
}

static const qn_opt opts[] = {
    {.name = "ids",
     .kind = QN_OPT_INTS,
     .min = 0,
     .max = 4294967294.0,
     .help = "token ids, separated by commas"},
    {.name = "chunks",
     .kind = QN_OPT_INTS,
     .min = 1,
     .max = 1e6,
     .help = "sizes of the first forward passes; the logits do not depend on them"},
    {.name = "out",
     .kind = QN_OPT_STR,
     .arg = "FILE",
     .help = "write float32 [positions, vocabulary] as the tensor `logits` of a safetensors file"},
    {0},
};
static const qn_opt_group groups[] = {
    {"Input and output", opts}, {"Model", qn_opts_model}, {"Device", qn_opts_device},
    {"KV cache", qn_opts_kv}, {0}};
static const qn_pos pos[] = {
    {"MODEL", "a folder, or a part of the name of a model on this machine", false}, {0}};
const qn_verb qn_verb_logits = {
    .name = "logits",
    .summary = "compute the logits of given token ids",
    .pos = pos,
    .groups = groups,
    .about =
        "Runs the ids through the model and gives the logits of every position. Without --out one\n"
        "line a position is printed: the position and its five most likely ids with their "
        "logits.\n",
    .examples = "  quern logits smollm2 --ids 504,3575,282,4649\n"
                "  quern logits smollm2 --ids 504,3575,282 --chunks 2,1 --out logits.safetensors\n",
    .run = run_logits,
};
