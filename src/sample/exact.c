/* exact.c - mlx-lm's processors, filters and draw, bit for bit (docs/numerics.md, "Sampling").
 *
 * A row goes through the steps as float32 values of its type T; round_to(T) stands wherever MLX
 * ends an operation. Sums over the vocabulary are one serial chain each, as in MLX.
 */
#include "sample/exact.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mlx_exp.h"
#include "sample/desk.h"
#include "sample/random.h"

struct qn_exact {
    qn_sampling o;
    uint32_t n_vocab;
    qn_key first;       /* state of the generator before draw 0 */
    qn_key state;       /* and before draw `next` */
    uint64_t next;
    uint32_t *seen;     /* [n_vocab] zeros between draws; only with penalties */
    float *work;        /* [n_vocab] weights or probabilities; only if not greedy */
    uint32_t *keys;     /* [2, n_vocab] values in ascending order; only with filters that sort */
};

/* ---- construction ---- */

static bool has_penalties(const qn_sampling *o)
{
    return (o->repetition_penalty > 0 && o->repetition_penalty != 1) || o->presence_penalty != 0 ||
           o->frequency_penalty != 0;
}

static bool sorts(const qn_sampling *o)
{
    return (o->top_p > 0 && o->top_p < 1) || (o->min_p > 0 && o->min_tokens_to_keep > 1) ||
           o->top_k > 0;
}

static qn_key split(qn_key *state)
{
    qn_key two[2];
    qn_key_split(*state, two);
    *state = two[0];
    return two[1];
}

qn_code qn_exact_new(qn_exact **out, const qn_sampling *o, uint64_t seed, uint32_t n_vocab,
                     qn_err *err)
{
    *out = NULL;
    qn_exact *s = calloc(1, sizeof *s);
    if (!s) return qn_err_set(err, QN_NOMEM, "sampler: out of memory");
    s->o = *o;
    s->n_vocab = n_vocab;
    s->first = (qn_key){{(uint32_t)(seed >> 32), (uint32_t)seed}};
    for (uint32_t i = 0; i < o->exact_splits; i++) split(&s->first);
    s->state = s->first;
    const qn_desk *d = o->desk;
    _Static_assert(sizeof *d->cand == 2 * sizeof *s->keys, "the candidates' memory holds the keys");
    if (has_penalties(o)) s->seen = d->counts;
    if (o->temperature > 0) s->work = d->w;
    if (o->temperature > 0 && sorts(o)) s->keys = (uint32_t *)(void *)d->cand;
    *out = s;
    return QN_OK;
}

void qn_exact_free(qn_exact *s)
{
    free(s);
}

/* ---- numbers ---- */

static float round_to(qn_dtype t, float v)
{
    if (t == QN_BF16) return qn_bf16_f32(qn_f32_bf16(v));
    return t == QN_F16 ? qn_f16_f32(qn_f32_f16(v)) : v;
}

/* The decimal number that v was written as: the shortest one that gives v. Options travel as
 * float32, mlx-lm computes with the user's number as a double. */
static double as_written(float v)
{
    char text[40];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) break;
    }
    return strtod(text, NULL);
}

static float max_of(const float *x, uint32_t n)
{
    float max = x[0];
    for (uint32_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

/* The first of the largest; NaN only wins at element 0, as in MLX. */
static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    return best;
}

/* ---- processors ---- */

typedef struct window {
    const uint32_t *ids;
    size_t n;
} window;

static window last(const uint32_t *history, size_t n, uint32_t context)
{
    size_t take = context && context < n ? context : n;
    return (window){history + (n - take), take};
}

/* Each distinct id of the window once: a factor p towards less likely (repetition), or minus p
 * (presence). */
static void penalize_distinct(qn_exact *s, float *x, qn_dtype t, window w, float p, bool repetition)
{
    for (size_t i = 0; i < w.n; i++) {
        float *v = &x[w.ids[i]];
        if (s->seen[w.ids[i]]) continue;
        s->seen[w.ids[i]] = 1;
        *v = round_to(t, !repetition ? *v - p : *v < 0 ? *v * p : *v / p);
    }
    for (size_t i = 0; i < w.n; i++) s->seen[w.ids[i]] = 0;
}

static void process(qn_exact *s, float *x, qn_dtype t, const uint32_t *history, size_t n)
{
    const qn_sampling *o = &s->o;
    for (size_t i = 0; i < o->n_bias; i++) {
        float *v = &x[o->bias[i].id];
        *v = round_to(t, *v + round_to(t, o->bias[i].bias));
    }
    if (!s->seen) return;
    if (o->repetition_penalty > 0 && o->repetition_penalty != 1) {
        penalize_distinct(s, x, t, last(history, n, o->repetition_context),
                          round_to(t, o->repetition_penalty), true);
    }
    if (o->presence_penalty != 0) {
        penalize_distinct(s, x, t, last(history, n, o->presence_context),
                          round_to(t, o->presence_penalty), false);
    }
    if (o->frequency_penalty != 0) {
        window w = last(history, n, o->frequency_context);
        float p = round_to(t, o->frequency_penalty);
        for (size_t i = 0; i < w.n; i++) x[w.ids[i]] = round_to(t, x[w.ids[i]] - p);
    }
}

/* x becomes its log-probabilities. */
static void normalize(float *x, uint32_t n, qn_dtype t)
{
    float max = max_of(x, n), sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += qn_mlx_expf(x[i] - max);
    float lse = isinf(max) ? max : round_to(t, logf(sum) + max);
    for (uint32_t i = 0; i < n; i++) x[i] = round_to(t, x[i] - lse);
}

/* ---- filters ---- */

/* Order-preserving integers of float32 values, and back. */
static uint32_t key_of(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static float value_of(uint32_t key)
{
    uint32_t u = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

/* s->keys[0..n) = the values of x in ascending order: a radix sort by bytes. */
static void sort_keys(qn_exact *s, const float *x)
{
    uint32_t n = s->n_vocab, *from = s->keys, *to = s->keys + n;
    for (uint32_t i = 0; i < n; i++) from[i] = key_of(x[i]);
    for (int shift = 0; shift < 32; shift += 8) {
        uint32_t at[257] = {0};
        for (uint32_t i = 0; i < n; i++) at[(from[i] >> shift & 255) + 1]++;
        for (int b = 0; b < 256; b++) at[b + 1] += at[b];
        for (uint32_t i = 0; i < n; i++) to[at[from[i] >> shift & 255]++] = from[i];
        uint32_t *t = from;
        from = to;
        to = t;
    }
}

/* Keep the most likely tokens that hold top_p of the total probability; those equal to the last
 * kept one stay. */
static void apply_top_p(qn_exact *s, float *x)
{
    uint32_t n = s->n_vocab, kept = 0;
    sort_keys(s, x);
    float total = 0, above = 0;
    for (uint32_t i = n; i-- > 0;) total += s->work[i] = qn_mlx_expf(value_of(s->keys[i]));
    while (kept < n && !(above >= s->o.top_p * total)) above += s->work[n - 1 - kept++];
    float threshold = value_of(s->keys[kept ? n - kept : n - 1]);
    for (uint32_t i = 0; i < n; i++) x[i] = x[i] < threshold ? -INFINITY : x[i];
}

/* Where the `keep` largest values end: those above `value`, and n_equal of those equal to it. */
typedef struct edge {
    float value;
    uint32_t n_equal;
} edge;

static edge largest(qn_exact *s, const float *x, uint32_t keep)
{
    uint32_t n = s->n_vocab, above = 0;
    sort_keys(s, x);
    edge e = {value_of(s->keys[n - keep]), 0};
    for (uint32_t i = 0; i < n; i++) above += x[i] > e.value;
    e.n_equal = keep - above;
    return e;
}

static void apply_min_p(qn_exact *s, float *x, qn_dtype t)
{
    uint32_t n = s->n_vocab, keep = s->o.min_tokens_to_keep;
    float limit = round_to(t, max_of(x, n) + round_to(t, (float)log(as_written(s->o.min_p))));
    edge e = {INFINITY, 0};
    if (keep > 1) e = largest(s, x, keep < n ? keep : n);
    for (uint32_t i = n; i-- > 0;) { /* of equal ones the highest ids are kept */
        if (x[i] > e.value) continue;
        if (x[i] == e.value && e.n_equal) {
            e.n_equal--;
            continue;
        }
        if (x[i] < limit) x[i] = -INFINITY;
    }
}

static void apply_top_k(qn_exact *s, float *x)
{
    if (s->o.top_k >= s->n_vocab) return;
    edge e = largest(s, x, s->o.top_k);
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (x[i] > e.value) continue;
        if (x[i] == e.value && e.n_equal) e.n_equal--;
        else x[i] = -INFINITY;
    }
}

/* Softmax whose every operation rounds to t: MLX's, when it is not asked to be precise. */
static void softmax(float *p, const float *x, uint32_t n, qn_dtype t)
{
    float max = max_of(x, n), sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        p[i] = round_to(t, qn_mlx_expf(round_to(t, x[i] - max)));
        sum = round_to(t, sum + p[i]);
    }
    float inverse = round_to(t, 1.0f / sum);
    for (uint32_t i = 0; i < n; i++) p[i] = round_to(t, p[i] * inverse);
}

static void apply_xtc(qn_exact *s, float *x, qn_dtype t)
{
    const qn_sampling *o = &s->o;
    if (qn_uniform(split(&s->state)) > o->xtc_probability) return;
    float threshold = round_to(t, o->xtc_threshold), least = INFINITY;
    softmax(s->work, x, s->n_vocab, t);
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (s->work[i] > threshold && s->work[i] < least) least = s->work[i];
    }
    for (size_t i = 0; i < o->n_special; i++) {
        if (o->special[i] < s->n_vocab) s->work[o->special[i]] = 0;
    }
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (s->work[i] > least) x[i] = -INFINITY;
    }
}

static void filter(qn_exact *s, float *x, qn_dtype t)
{
    const qn_sampling *o = &s->o;
    if (o->top_p > 0 && o->top_p < 1) apply_top_p(s, x);
    if (o->min_p > 0) apply_min_p(s, x, t);
    if (o->xtc_probability > 0) apply_xtc(s, x, t);
    if (o->top_k > 0) apply_top_k(s, x);
}

/* ---- the draw ---- */

/* Bring the generator to the state before draw k. */
static void seek(qn_exact *s, uint64_t k)
{
    if (k < s->next) {
        s->state = s->first;
        s->next = 0;
    }
    for (; s->next < k; s->next++) {
        if (s->o.xtc_probability > 0) split(&s->state);
        split(&s->state);
    }
}

/* Inverse CDF of exp(x / temperature): one uniform number, the last id whose exclusive running sum
 * does not exceed it. */
static uint32_t categorical(qn_exact *s, const float *x, qn_dtype t)
{
    uint32_t n = s->n_vocab, token = 0;
    float *w = s->work, total = 0, before = 0;
    float factor = round_to(t, (float)(1.0 / as_written(s->o.temperature)));
    for (uint32_t i = 0; i < n; i++) w[i] = round_to(t, x[i] * factor);
    float max = max_of(w, n);
    for (uint32_t i = 0; i < n; i++) {
        w[i] = isinf(max) ? w[i] == max : qn_mlx_expf(w[i] - max);
        total += w[i];
    }
    float u = qn_uniform(split(&s->state)) * total;
    for (uint32_t i = 0; i < n && before <= u; i++) {
        token = i;
        before += w[i];
    }
    return token;
}

/* ---- what a request asked to see ---- */

static void report(const qn_exact *s, const float *logprobs, qn_sample *out)
{
    uint32_t want = s->o.n_top < s->n_vocab ? s->o.n_top : s->n_vocab;
    for (uint32_t i = 0; want && i < s->n_vocab; i++) {
        if (out->n_top == want && !(logprobs[i] > out->top[want - 1].logprob)) continue;
        uint32_t j = out->n_top < want ? out->n_top++ : want - 1;
        for (; j > 0 && logprobs[i] > out->top[j - 1].logprob; j--) out->top[j] = out->top[j - 1];
        out->top[j] = (qn_top){i, logprobs[i]};
    }
}

void qn_exact_draw(qn_exact *s, float *logits, qn_dtype type, const uint32_t *history,
                   size_t n_history, uint64_t k, qn_sample *out)
{
    *out = (qn_sample){0};
    process(s, logits, type, history, n_history);
    normalize(logits, s->n_vocab, type);
    report(s, logits, out);
    if (s->o.temperature > 0) {
        seek(s, k);
        filter(s, logits, type);
        out->token = categorical(s, logits, type);
        s->next = k + 1;
    } else {
        out->token = argmax(logits, s->n_vocab);
    }
    if (s->o.logprobs || s->o.n_top) out->logprob = logits[out->token];
}

void qn_exact_score(qn_exact *s, float *logits, qn_dtype type, uint32_t token, qn_sample *out)
{
    *out = (qn_sample){.token = token};
    normalize(logits, s->n_vocab, type);
    report(s, logits, out);
    out->logprob = logits[token];
}
