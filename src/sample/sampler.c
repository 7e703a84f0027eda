/* sampler.c - processors, filters and the draw (spec engine 2).
 *
 * The vocabulary is never sorted as a whole: filters work on unordered candidates. Only where a
 * filter ends in a rank (top-k), a heap gives the first ones; where it ends in a mass (top-p), the
 * candidates are counted by distance from the top and only those at the edge are put in order.
 * Sums over the vocabulary run in ascending ids inside segments of 1024, then over the segments.
 */
#include "sample/sampler.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "sample/desk.h"
#include "sample/exact.h"
#include "sample/random.h"

enum { SEGMENT = 1024, LANES = 8, N_BUCKETS = QN_DESK_BUCKETS, BUCKETS_PER_NAT = 16, NEAR = 16 };

struct qn_sampler {
    qn_sampling o;       /* bias and special point into this object's memory */
    uint32_t n_vocab;
    uint64_t seed;
    qn_logit_bias *bias;
    uint32_t *special;
    qn_desk *own;        /* NULL: the caller's desk is used */
    /* Parts of the desk: */
    uint32_t *counts;    /* [n_vocab] zeros between draws; only with penalties */
    float *w;            /* [n_vocab] weights of the draw */
    qn_top *cand;        /* [n_vocab] candidates; only with filters */
    float *mass;         /* [N_BUCKETS] their probability by distance from the top; only with top-p */
    float *order;        /* [n_vocab] scratch of a tone curve around the median */
    float *segments;     /* [n_vocab / SEGMENT + 1] */

    qn_curve curve;      /* n 0: none */
    qn_exact *exact;     /* does the work instead of what follows; NULL: not asked for */
};

/* ---- construction ---- */

static qn_code range(qn_err *err, const char *name, float v, float lo, float hi)
{
    if (v >= lo && v <= hi) return QN_OK;
    return qn_err_set(err, QN_INVALID, "%s is %g, must be from %g to %g", name, (double)v,
                      (double)lo, (double)hi);
}

static qn_code check(const qn_sampling *o, uint32_t n_vocab, qn_err *err)
{
    qn_code rc;
    if ((rc = range(err, "temperature", o->temperature, 0, 1e6f))) return rc;
    if ((rc = range(err, "top_p", o->top_p, 0, 1))) return rc;
    if ((rc = range(err, "min_p", o->min_p, 0, 1))) return rc;
    if ((rc = range(err, "xtc_probability", o->xtc_probability, 0, 1))) return rc;
    if ((rc = range(err, "xtc_threshold", o->xtc_threshold, 0, 0.5f))) return rc;
    if ((rc = range(err, "repetition_penalty", o->repetition_penalty, 0, 1e6f))) return rc;
    if ((rc = range(err, "presence_penalty", o->presence_penalty, -1e6f, 1e6f))) return rc;
    if ((rc = range(err, "frequency_penalty", o->frequency_penalty, -1e6f, 1e6f))) return rc;
    if (o->n_top > QN_MAX_TOP_LOGPROBS) {
        return qn_err_set(err, QN_INVALID, "top_logprobs is %u, must be at most %d", o->n_top,
                          QN_MAX_TOP_LOGPROBS);
    }
    if (o->n_bias > QN_MAX_LOGIT_BIAS) {
        return qn_err_set(err, QN_INVALID, "logit_bias has %zu entries, must be at most %d",
                          o->n_bias, QN_MAX_LOGIT_BIAS);
    }
    for (size_t i = 0; i < o->n_bias; i++) {
        if (o->bias[i].id >= n_vocab) {
            return qn_err_set(err, QN_INVALID, "logit_bias names token %u, the vocabulary has %u",
                              o->bias[i].id, n_vocab);
        }
    }
    return QN_OK;
}

static bool has_penalties(const qn_sampling *o)
{
    return (o->repetition_penalty > 0 && o->repetition_penalty != 1) || o->presence_penalty != 0 ||
           o->frequency_penalty != 0;
}

static bool has_top_p(const qn_sampling *o)
{
    return o->top_p > 0 && o->top_p < 1;
}

static bool has_filters(const qn_sampling *o, uint32_t n_vocab)
{
    return has_top_p(o) || o->min_p > 0 || o->xtc_probability > 0 ||
           (o->top_k > 0 && o->top_k < n_vocab);
}

/* The curves that replace filters; they have no counterpart in mlx-lm. */
static qn_code make_curves(qn_sampler *s, qn_err *err)
{
    const qn_sampling *o = &s->o;
    if (!o->tone.kind && !o->n_curve) return QN_OK;
    if (o->exact)
        return qn_err_set(err, QN_INVALID, "mlx-lm has no tone curves: not with its exact bits");
    qn_code rc = qn_tone_check(&o->tone, err);
    return rc || !o->n_curve ? rc : qn_curve_make(&s->curve, o->curve, o->n_curve, err);
}

/* True if a tone or point curve decides the draw. */
static bool bends(const qn_sampler *s)
{
    return s->curve.n || (s->o.tone.kind && s->o.temperature > 0);
}

void qn_desk_free(qn_desk *d)
{
    if (!d) return;
    free(d->counts);
    free(d->w);
    free(d->cand);
    free(d->order);
    free(d->mass);
    free(d->segments);
    free(d);
}

/* Bytes for each token of the vocabulary. */
enum {
    COUNTS = sizeof(uint32_t),
    WEIGHTS = sizeof(float),
    CANDIDATES = sizeof(qn_top),
    ORDER = sizeof(float),
    ALL_PARTS = COUNTS + WEIGHTS + CANDIDATES + ORDER
};

static size_t desk_bytes(uint32_t n_vocab, uint32_t per_token)
{
    return sizeof(qn_desk) + N_BUCKETS * sizeof(float) + (n_vocab / SEGMENT + 1) * sizeof(float) +
           (size_t)n_vocab * per_token;
}

size_t qn_desk_bytes(uint32_t n_vocab)
{
    return desk_bytes(n_vocab, ALL_PARTS);
}

size_t qn_desk_used(const qn_desk *d, uint32_t n_vocab)
{
    return desk_bytes(n_vocab, atomic_load(&d->per_token));
}

qn_code qn_desk_new(qn_desk **out, uint32_t n_vocab, qn_err *err)
{
    const size_t n = n_vocab ? n_vocab : 1;
    qn_desk *d = *out = calloc(1, sizeof *d);
    if (d) {
        d->counts = calloc(n, sizeof *d->counts);
        d->w = malloc(n * sizeof *d->w);
        d->cand = malloc(n * sizeof *d->cand);
        d->order = malloc(n * sizeof *d->order);
        d->mass = malloc(N_BUCKETS * sizeof *d->mass);
        d->segments = malloc((n / SEGMENT + 1) * sizeof *d->segments);
        if (d->counts && d->w && d->cand && d->order && d->mass && d->segments) return QN_OK;
    }
    qn_desk_free(d);
    *out = NULL;
    return qn_err_set(err, QN_NOMEM, "sampler: out of memory");
}

/* The parts of the desk that these options need. */
static void take_desk(qn_sampler *s, qn_desk *d)
{
    const qn_sampling *o = &s->o;
    if (has_penalties(o)) s->counts = d->counts;
    s->segments = d->segments;
    s->w = d->w;
    if (bends(s) && !s->curve.n && o->tone.pivot == QN_PIVOT_MEDIAN) s->order = d->order;
    if (!bends(s) && o->temperature > 0 && has_filters(o, s->n_vocab)) s->cand = d->cand;
    if (s->cand && has_top_p(o)) s->mass = d->mass;
    const uint32_t mine = (s->counts ? COUNTS : 0) + WEIGHTS + (s->order ? ORDER : 0) +
                          (s->cand ? CANDIDATES : 0);
    uint32_t most = atomic_load(&d->per_token);
    while (mine > most && !atomic_compare_exchange_weak(&d->per_token, &most, mine)) {}
}

static bool allocate(qn_sampler *s)
{
    if (s->o.n_bias && !(s->bias = malloc(s->o.n_bias * sizeof *s->bias))) return false;
    if (s->o.n_special && !(s->special = malloc(s->o.n_special * sizeof *s->special))) return false;
    if (!s->o.desk && qn_desk_new(&s->own, s->n_vocab, NULL)) return false;
    if (s->own) s->o.desk = s->own;
    take_desk(s, s->o.desk);
    return true;
}

qn_code qn_sampler_new(qn_sampler **out, const qn_sampling *o, uint32_t n_vocab, qn_err *err)
{
    *out = NULL;
    qn_code rc = check(o, n_vocab, err);
    if (rc) return rc;
    qn_sampler *s = calloc(1, sizeof *s);
    if (!s) return qn_err_set(err, QN_NOMEM, "sampler: out of memory");
    s->o = *o;
    s->n_vocab = n_vocab;
    s->seed = o->seed;
    if ((rc = make_curves(s, err))) {
        qn_sampler_free(s);
        return rc;
    }
    if (!allocate(s)) {
        qn_sampler_free(s);
        return qn_err_set(err, QN_NOMEM, "sampler: out of memory");
    }
    if (s->bias) memcpy(s->bias, o->bias, o->n_bias * sizeof *s->bias);
    if (s->special) memcpy(s->special, o->special, o->n_special * sizeof *s->special);
    if (!o->has_seed && getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed) {
        qn_sampler_free(s);
        return qn_err_set(err, QN_IO, "sampler: the system gave no random seed");
    }
    s->o.curve = NULL;
    s->o.bias = s->bias;
    s->o.special = s->special;
    if (o->exact && (rc = qn_exact_new(&s->exact, &s->o, s->seed, n_vocab, err))) {
        qn_sampler_free(s);
        return rc;
    }
    *out = s;
    return QN_OK;
}

void qn_sampler_free(qn_sampler *s)
{
    if (!s) return;
    free(s->bias);
    free(s->special);
    qn_exact_free(s->exact);
    qn_desk_free(s->own);
    free(s);
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

/* Call fn once per distinct id of the window with its count. */
static void each_distinct(qn_sampler *s, float *x, window win, float p,
                          void (*fn)(float *x, float p, uint32_t count))
{
    for (size_t i = 0; i < win.n; i++) s->counts[win.ids[i]]++;
    for (size_t i = 0; i < win.n; i++) {
        uint32_t id = win.ids[i];
        if (!s->counts[id]) continue;
        fn(&x[id], p, s->counts[id]);
        s->counts[id] = 0;
    }
}

static void repetition(float *x, float p, uint32_t count)
{
    (void)count;
    *x = *x < 0 ? *x * p : *x / p;
}

static void presence(float *x, float p, uint32_t count)
{
    (void)count;
    *x -= p;
}

static void frequency(float *x, float p, uint32_t count)
{
    *x -= p * (float)count;
}

static void process(qn_sampler *s, float *x, const uint32_t *history, size_t n)
{
    const qn_sampling *o = &s->o;
    for (size_t i = 0; i < o->n_bias; i++) x[s->bias[i].id] += s->bias[i].bias;
    if (!s->counts) return;
    if (o->repetition_penalty > 0 && o->repetition_penalty != 1) {
        each_distinct(s, x, last(history, n, o->repetition_context), o->repetition_penalty,
                      repetition);
    }
    if (o->presence_penalty != 0) {
        each_distinct(s, x, last(history, n, o->presence_context), o->presence_penalty, presence);
    }
    if (o->frequency_penalty != 0) {
        each_distinct(s, x, last(history, n, o->frequency_context), o->frequency_penalty,
                      frequency);
    }
}

/* ---- sums over the vocabulary ---- */

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i]))) best = i;
    }
    return best;
}

/* exp(t) for t <= 0 by 2^i * polynomial; below -87 it is 0. Branch-free so that the compiler can
 * use vectors; relative error under 3e-7. */
static float exp_neg(float t)
{
    float y = t * 1.44269504f;
    y = y < -126.0f ? -126.0f : y;
    float fi = y + 12582912.0f; /* round to nearest integer by the float's own rounding */
    fi -= 12582912.0f;
    float f = y - fi;
    float p = 1.535336188319500e-4f;
    p = p * f + 1.339887440266574e-3f;
    p = p * f + 9.618437357674640e-3f;
    p = p * f + 5.550332471162809e-2f;
    p = p * f + 2.402264791363012e-1f;
    p = p * f + 6.931472028550421e-1f;
    p = p * f + 1.0f;
    union { int32_t i; float f; } scale = {.i = ((int32_t)fi + 127) << 23};
    return t < -87.0f ? 0.0f : p * scale.f;
}

/* w[i] = exp((x[i] - max) * inv_temp). */
static void weights(float *w, const float *x, uint32_t n, float max, float inv_temp)
{
    for (uint32_t i = 0; i < n; i++) w[i] = exp_neg((x[i] - max) * inv_temp);
}

static float segment_sum(const float *w, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += w[i];
    return sum;
}

/* Sums of whole segments, LANES of them side by side: each keeps its own ascending order. */
static void segment_sums(const float *w, float *out)
{
    float acc[LANES] = {0};
    for (uint32_t i = 0; i < SEGMENT; i++) {
        for (uint32_t j = 0; j < LANES; j++) acc[j] += w[(size_t)j * SEGMENT + i];
    }
    memcpy(out, acc, sizeof acc);
}

/* Fills s->segments and returns the total. */
static float sum_all(qn_sampler *s, const float *w)
{
    uint32_t n_full = s->n_vocab / SEGMENT, i = 0;
    for (; i + LANES <= n_full; i += LANES) segment_sums(w + (size_t)i * SEGMENT, s->segments + i);
    for (; i < n_full; i++) s->segments[i] = segment_sum(w + (size_t)i * SEGMENT, SEGMENT);
    s->segments[n_full] = segment_sum(w + (size_t)n_full * SEGMENT, s->n_vocab % SEGMENT);
    float total = 0;
    for (uint32_t k = 0; k <= n_full; k++) total += s->segments[k];
    return total;
}

/* ---- the draw ---- */

/* Inverse CDF over w with its segment sums: the id whose stretch of the running sum holds u*total.
 * Never an id of weight 0. */
static uint32_t pick(const qn_sampler *s, const float *w, float total, float u)
{
    float target = u * total, before = 0;
    uint32_t n_seg = s->n_vocab / SEGMENT + 1, seg = 0, last_positive = 0;
    while (seg + 1 < n_seg && target >= before + s->segments[seg]) before += s->segments[seg++];
    for (uint32_t k = seg + 1; k-- > 0;) { /* rounding may point past the last weight: step back */
        uint32_t lo = k * SEGMENT, hi = lo + SEGMENT < s->n_vocab ? lo + SEGMENT : s->n_vocab;
        float sum = 0;
        bool found = false;
        for (uint32_t i = lo; i < hi; i++) {
            if (!(w[i] > 0)) continue;
            sum += w[i];
            last_positive = i;
            found = true;
            if (k == seg && target < before + sum) return i;
        }
        if (found) return last_positive;
    }
    return 0;
}

static bool above(qn_top a, qn_top b)
{
    return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
}

static void sift_down(qn_top *h, size_t n, size_t i)
{
    qn_top v = h[i];
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n) break;
        if (c + 1 < n && above(h[c + 1], h[c])) c++;
        if (!above(h[c], v)) break;
        h[i] = h[c];
        i = c;
    }
    h[i] = v;
}

/* Candidates: every id whose logit is at least `cut`, in ascending ids. */
static size_t collect(const qn_sampler *s, const float *x, float cut)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (x[i] >= cut) s->cand[n++] = (qn_top){i, x[i]};
    }
    return n;
}

/* The same where only the likely ones matter: if those within NEAR of the top hold `mass` (> 0) of
 * the probability and are `least` at least, others need not be looked at. */
static size_t collect_near(const qn_sampler *s, const float *x, float max, float lse, float mass,
                           size_t least)
{
    size_t n = collect(s, x, max - NEAR);
    float sum = 0;
    for (size_t i = 0; mass > 0 && i < n; i++) sum += exp_neg(s->cand[i].logprob - lse);
    bool enough = n >= least && (mass <= 0 || sum > mass * 1.0001f);
    return enough ? n : collect(s, x, -INFINITY);
}

static void swap(qn_top *a, qn_top *b)
{
    qn_top t = *a;
    *a = *b;
    *b = t;
}

/* Reorder c [n] so that its first ones are the most likely, in order, until they are `most` or hold
 * `mass` of the probability; gives their number. A heap of which only so many are taken. */
static size_t take_top(qn_top *c, size_t n, size_t most, float mass, float lse)
{
    for (size_t i = n / 2; i-- > 0;) sift_down(c, n, i);
    size_t kept = 0;
    float sum = 0;
    while (kept < n && kept < most && sum < mass) {
        sum += exp_neg(c[0].logprob - lse);
        swap(&c[0], &c[n - 1 - kept++]); /* taken ones pile up at the end */
        sift_down(c, n - kept, 0);
    }
    for (size_t i = 0; i < kept && i < n - 1 - i; i++) swap(&c[i], &c[n - 1 - i]);
    return kept;
}

static uint32_t bucket_of(float below_max)
{
    float b = below_max * BUCKETS_PER_NAT;
    return b < N_BUCKETS - 1 ? (uint32_t)b : N_BUCKETS - 1;
}

/* Top-p over n candidates: those in the buckets above the one where the mass is reached stay as they
 * are, only that one is put in order. */
static size_t top_p(qn_sampler *s, size_t n, float max, float lse)
{
    float sum = 0, p = s->o.top_p;
    memset(s->mass, 0, N_BUCKETS * sizeof *s->mass);
    for (size_t i = 0; i < n; i++)
        s->mass[bucket_of(max - s->cand[i].logprob)] += exp_neg(s->cand[i].logprob - lse);
    uint32_t last = 0;
    while (last + 1 < N_BUCKETS && sum + s->mass[last] < p) sum += s->mass[last++];
    size_t n_above = 0, n_last;
    for (size_t i = 0; i < n; i++) {
        if (bucket_of(max - s->cand[i].logprob) < last) swap(&s->cand[n_above++], &s->cand[i]);
    }
    n_last = n_above;
    for (size_t i = n_above; i < n; i++) {
        if (bucket_of(max - s->cand[i].logprob) == last) swap(&s->cand[n_last++], &s->cand[i]);
    }
    return n_above + take_top(s->cand + n_above, n_last - n_above, n, p - sum, lse);
}

/* Min-p over n candidates: those at `floor` or above, and at least `keep` in any case. */
static size_t min_p(qn_sampler *s, size_t n, float floor, size_t keep)
{
    size_t n_above = 0;
    for (size_t i = 0; i < n; i++) n_above += s->cand[i].logprob >= floor;
    if (n_above < keep) return take_top(s->cand, n, keep, INFINITY, 0);
    n_above = 0;
    for (size_t i = 0; i < n; i++) {
        if (s->cand[i].logprob >= floor) s->cand[n_above++] = s->cand[i];
    }
    return n_above;
}

static bool is_special(const qn_sampler *s, uint32_t id)
{
    for (size_t i = 0; i < s->o.n_special; i++) {
        if (s->special[i] == id) return true;
    }
    return false;
}

/* Drop every candidate more likely than the least likely one above the threshold. */
static size_t xtc(qn_sampler *s, size_t n, float max)
{
    float total = 0, limit = INFINITY;
    for (size_t i = 0; i < n; i++) total += exp_neg(s->cand[i].logprob - max);
    for (size_t i = 0; i < n; i++) {
        float p = exp_neg(s->cand[i].logprob - max) / total;
        if (p > s->o.xtc_threshold && p < limit) limit = p;
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        float p = exp_neg(s->cand[i].logprob - max) / total;
        if (p > limit && !is_special(s, s->cand[i].id)) continue;
        s->cand[kept++] = s->cand[i];
    }
    return kept;
}

/* The candidates that all filters leave, in no order; returns how many. x are logits; lse turns them
 * into log-probabilities. */
static size_t filter(qn_sampler *s, const float *x, float max, float lse, qn_key key)
{
    const qn_sampling *o = &s->o;
    size_t top_k = o->top_k && o->top_k < s->n_vocab ? o->top_k : s->n_vocab, n;
    size_t keep = o->min_tokens_to_keep > 1 ? o->min_tokens_to_keep : 1;
    float floor = o->min_p > 0 ? max + logf(o->min_p) : -INFINITY;
    if (has_top_p(o)) n = collect_near(s, x, max, lse, o->top_p, keep);
    else if (o->min_p > 0 || o->xtc_probability > 0) n = collect(s, x, keep > 1 ? -INFINITY : floor);
    else n = collect_near(s, x, max, lse, 0, top_k);
    if (has_top_p(o)) n = top_p(s, n, max, lse);
    if (o->min_p > 0) n = min_p(s, n, floor, keep);
    if (o->xtc_probability > 0 && qn_uniform(key) <= o->xtc_probability) n = xtc(s, n, max);
    return n > top_k ? take_top(s->cand, n, top_k, INFINITY, 0) : n;
}

/* A draw after a curve: from its values as they are, without filters. */
static uint32_t draw_bent(qn_sampler *s, const float *x, float max, float lse, uint64_t k)
{
    uint32_t n = s->n_vocab;
    if (s->curve.n) qn_curve_apply(&s->curve, s->w, x, n, lse);
    else qn_tone_apply(&s->o.tone, s->o.temperature, s->w, x, n, max, lse, s->order);
    float top = s->w[argmax(s->w, n)];
    weights(s->w, s->w, n, top, 1);
    float total = sum_all(s, s->w);
    return pick(s, s->w, total, qn_uniform(qn_step_key(s->seed, k)));
}

static uint32_t draw(qn_sampler *s, const float *x, float max, float lse, uint64_t k)
{
    qn_key keys[2];
    keys[1] = qn_step_key(s->seed, k);
    if (s->o.xtc_probability > 0) qn_key_split(keys[1], keys);
    float inv_temp = 1.0f / s->o.temperature;
    if (!s->cand) {
        weights(s->w, x, s->n_vocab, max, inv_temp);
    } else {
        size_t n = filter(s, x, max, lse, keys[0]);
        float top = -INFINITY;
        for (size_t i = 0; i < n; i++) top = s->cand[i].logprob > top ? s->cand[i].logprob : top;
        memset(s->w, 0, s->n_vocab * sizeof *s->w);
        for (size_t i = 0; i < n; i++)
            s->w[s->cand[i].id] = exp_neg((s->cand[i].logprob - top) * inv_temp);
    }
    float total = sum_all(s, s->w);
    return pick(s, s->w, total, qn_uniform(keys[1]));
}

/* The n most likely ids by insertion into a short sorted list. */
static void top_logprobs(const qn_sampler *s, const float *x, float lse, qn_sample *out)
{
    uint32_t want = s->o.n_top < s->n_vocab ? s->o.n_top : s->n_vocab;
    out->n_top = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        qn_top c = {i, x[i]};
        if (out->n_top == want && !above(c, out->top[want - 1])) continue;
        uint32_t j = out->n_top < want ? out->n_top++ : want - 1;
        for (; j > 0 && above(c, out->top[j - 1]); j--) out->top[j] = out->top[j - 1];
        out->top[j] = c;
    }
    for (uint32_t i = 0; i < out->n_top; i++) out->top[i].logprob -= lse;
}

/* log(sum(exp(x))). */
static float log_sum(qn_sampler *s, const float *x, float max)
{
    weights(s->w, x, s->n_vocab, max, 1);
    return logf(sum_all(s, s->w)) + max;
}

void qn_sampler_score(qn_sampler *s, float *logits, qn_dtype type, uint32_t token, qn_sample *out)
{
    if (s->exact) {
        qn_exact_score(s->exact, logits, type, token, out);
        return;
    }
    *out = (qn_sample){.token = token};
    float max = logits[argmax(logits, s->n_vocab)], lse = isfinite(max) ? log_sum(s, logits, max) : 0;
    out->logprob = logits[token] - lse;
    if (s->o.n_top) top_logprobs(s, logits, lse, out);
}

/* The largest logit is +inf: those that have it share all the probability. */
static uint32_t draw_infinite(qn_sampler *s, const float *x, uint32_t best, uint64_t k)
{
    if (s->o.temperature == 0 && !s->curve.n) return best;
    for (uint32_t i = 0; i < s->n_vocab; i++) s->w[i] = x[i] == x[best] ? 1 : 0;
    float total = sum_all(s, s->w);
    return pick(s, s->w, total, qn_uniform(qn_step_key(s->seed, k)));
}

bool qn_sampler_draw(qn_sampler *s, float *logits, qn_dtype type, const uint32_t *history,
                     size_t n_history, uint64_t k, qn_sample *out)
{
    if (s->exact) {
        qn_exact_draw(s->exact, logits, type, history, n_history, k, out);
        return true;
    }
    *out = (qn_sample){0};
    process(s, logits, history, n_history);
    uint32_t best = argmax(logits, s->n_vocab);
    float max = logits[best];
    if (!isfinite(max)) {
        out->token = max > 0 ? draw_infinite(s, logits, best, k) : best;
        return max > 0;
    }
    bool report = s->o.logprobs || s->o.n_top;
    float lse = report || s->cand || bends(s) ? log_sum(s, logits, max) : 0;
    if (bends(s)) out->token = draw_bent(s, logits, max, lse, k);
    else out->token = s->o.temperature > 0 ? draw(s, logits, max, lse, k) : best;
    if (!report) return true;
    out->logprob = logits[out->token] - lse;
    if (s->o.n_top) top_logprobs(s, logits, lse, out);
    return true;
}
