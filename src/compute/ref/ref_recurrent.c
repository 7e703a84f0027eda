/* ref_recurrent.c - layers that keep a state: the short convolution and the gated delta rule, as
 * mlx-lm computes them on a CPU: one array operation after the other, float32 states.
 *
 * A slot holds, per recurrent layer, the last K-1 inputs of the convolution [K-1, C] and the state
 * of the delta rule, transposed to [Hv][Dk][Dv]: sums run over Dk, so neighbours are different
 * sums.
 */
#include <string.h>

#include "compute/ref/ref_kv.h"

/* ---- slots ---- */

static size_t conv_floats(const qn_state_layer *s)
{
    return (size_t)s->conv_width * s->conv_channels;
}
static size_t delta_floats(const qn_state_layer *s) { return (size_t)s->n_heads * s->d_v * s->d_k; }

/* Floats of the first n layers. */
static size_t layers_floats(const qn_kv_spec *spec, uint32_t n)
{
    size_t floats = 0;
    for (uint32_t i = 0; i < n; i++)
        floats += conv_floats(&spec->layers[i].state) + delta_floats(&spec->layers[i].state);
    return floats;
}

size_t qn_ref_state_bytes(const qn_device *d, const qn_kv_spec *spec)
{
    (void)d;
    return layers_floats(spec, spec->n_layers) * sizeof(float);
}

static float *slot_at(const qn_kv *kv, uint32_t slot)
{
    qn_check(slot < kv->spec.n_states && kv->states);
    return kv->states + slot * kv->state_floats;
}

/* The convolution's inputs of a layer in a slot; the delta state follows them. */
static float *state_of(const qn_kv *kv, uint32_t layer, uint32_t slot)
{
    return slot_at(kv, slot) + layers_floats(&kv->spec, layer);
}

void qn_ref_state_clear(qn_kv *kv, uint32_t slot)
{
    memset(slot_at(kv, slot), 0, kv->state_floats * sizeof(float));
}

void qn_ref_state_copy(qn_kv *kv, uint32_t dst, uint32_t src)
{
    if (dst != src) memcpy(slot_at(kv, dst), slot_at(kv, src), kv->state_floats * sizeof(float));
}

void qn_ref_state_get(const qn_kv *kv, uint32_t layer, uint32_t slot, float *conv, float *s)
{
    const qn_state_layer *l = &kv->spec.layers[layer].state;
    const float *from = state_of(kv, layer, slot);
    memcpy(conv, from, conv_floats(l) * sizeof *conv);
    qn_transpose_heads(s, from + conv_floats(l), l->n_heads, l->d_k, l->d_v);
}

void qn_ref_state_put(qn_kv *kv, uint32_t layer, uint32_t slot, const float *conv, const float *s)
{
    const qn_state_layer *l = &kv->spec.layers[layer].state;
    float *to = state_of(kv, layer, slot);
    memcpy(to, conv, conv_floats(l) * sizeof *conv);
    qn_transpose_heads(to + conv_floats(l), s, l->n_heads, l->d_v, l->d_k);
}

/* ---- convolution ---- */

typedef struct conv_job {
    qn_ref_run *run;
    uint32_t layer, width; /* inputs kept before a row */
    qn_tensor x, w, y;
} conv_job;

/* Input t of an item for channel c: its own row, or one that the slot kept (t < 0). */
static float conv_input(const conv_job *j, const qn_item *it, const float *kept, int64_t t,
                        uint32_t c)
{
    if (t < 0) return kept[(size_t)(t + j->width) * j->x.cols + c];
    float v;
    j->run->ref->k->widen(&v, qn_ref_at(j->x, it->row0 + (uint32_t)t, c), j->x.dtype, 1);
    return v;
}

/* One channel of an item: taps ascending in float32, one rounding, then silu in the result's type.
 */
static void conv_channel(const conv_job *j, const qn_item *it, const float *kept, uint32_t c)
{
    const qn_ref_kernels *k = j->run->ref->k;
    float w[QN_REF_MAX_TAPS];
    k->widen(w, qn_ref_at(j->w, c, 0), j->w.dtype, j->width + 1);
    for (uint32_t t = 0; t < it->n_new; t++) {
        float sum = 0.0f;
        for (uint32_t i = 0; i <= j->width; i++)
            sum = sum + conv_input(j, it, kept, (int64_t)t + i - j->width, c) * w[i];
        float y = qn_ref_act_of(qn_ref_round(sum, j->y.dtype), QN_SILU, j->y.dtype);
        k->narrow(qn_ref_at(j->y, it->row0 + t, c), j->y.dtype, &y, 1);
    }
}

/* Keep the last `width` inputs, oldest first; a short item shifts the older ones. */
static void keep_inputs(const conv_job *j, const qn_item *it, float *kept, uint32_t c)
{
    for (uint32_t i = 0; i < j->width; i++)
        kept[(size_t)i * j->x.cols + c] = conv_input(j, it, kept, (int64_t)it->n_new - j->width + i,
                                                     c);
}

/* "Rows" of this task are channels. */
static void conv_channels(const void *arg, uint32_t c0, uint32_t c1)
{
    const conv_job *j = arg;
    const qn_batch *b = j->run->base.batch;
    for (uint32_t i = 0; i < b->n_items; i++) {
        float *kept = state_of(j->run->base.kv, j->layer, b->items[i].state);
        for (uint32_t c = c0; c < c1; c++) {
            conv_channel(j, &b->items[i], kept, c);
            keep_inputs(j, &b->items[i], kept, c);
        }
    }
}

qn_tensor qn_ref_conv(qn_run *r, uint32_t layer, qn_tensor x, qn_tensor w)
{
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    const qn_state_layer *s = &r->kv->spec.layers[layer].state;
    qn_check(x.cols == s->conv_channels && w.rows == x.cols && w.cols == s->conv_width + 1);
    qn_check(w.cols <= QN_REF_MAX_TAPS);
    qn_tensor y = qn_ref_take(c, x.rows, x.cols, qn_ref_promote(x.dtype, w.dtype));
    conv_job j = {c, layer, s->conv_width, x, w, y};
    qn_ref_rows(c, conv_channels, &j, x.cols, x.rows * w.cols);
    return y;
}

/* ---- gated delta rule ---- */

/* exp(-exp(a_log) * softplus(a + dt_bias)): the softplus in the promoted type, the rest in float32.
 */
qn_tensor qn_ref_decay(qn_run *r, qn_tensor a, qn_tensor a_log, qn_tensor dt_bias)
{
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    qn_tensor y = qn_ref_take(c, a.rows, a.cols, QN_F32);
    size_t to = c->used;
    const float *log_decay = qn_ref_vector(c, a_log, a.cols),
                *bias = qn_ref_vector(c, dt_bias, a.cols);
    qn_dtype t = qn_ref_promote(a.dtype, dt_bias.dtype);
    for (uint32_t row = 0; row < a.rows && !c->measures; row++) {
        float *out = (float *)(void *)qn_ref_at(y, row, 0);
        c->ref->k->widen(out, qn_ref_at(a, row, 0), a.dtype, a.cols);
        for (uint32_t i = 0; i < a.cols; i++) {
            float softplus = qn_ref_logaddexp(qn_ref_round(out[i] + bias[i], t), 0.0f, t);
            out[i] = qn_ref_expf(-qn_ref_expf(log_decay[i]) * softplus);
        }
    }
    c->used = to;
    return y;
}

typedef struct delta_job {
    qn_ref_run *run;
    uint32_t layer;
    qn_tensor q, k, v, g, beta, y;
} delta_job;

/* The vectors of one token and head, widened. */
typedef struct delta_row {
    float *q, *k, *v, *delta; /* [Dk], [Dk], [Dv] (then the result), [Dv] */
    float g, beta;
} delta_row;

/* One token of one value head: state S [Dk][Dv]. Products and sums are operations of their own. */
static void delta_step(float *S, const qn_state_layer *s, const delta_row *x)
{
    uint32_t d_v = s->d_v;
    memset(x->delta, 0, d_v * sizeof(float));
    for (uint32_t i = 0; i < s->d_k; i++) {
        float *row = S + (size_t)i * d_v;
        for (uint32_t j = 0; j < d_v; j++) {
            row[j] = row[j] * x->g;
            x->delta[j] = x->delta[j] + row[j] * x->k[i];
        }
    }
    for (uint32_t j = 0; j < d_v; j++) {
        x->delta[j] = (x->v[j] - x->delta[j]) * x->beta;
        x->v[j] = 0.0f;
    }
    for (uint32_t i = 0; i < s->d_k; i++) {
        float *row = S + (size_t)i * d_v;
        for (uint32_t j = 0; j < d_v; j++) {
            row[j] = row[j] + x->k[i] * x->delta[j];
            x->v[j] = x->v[j] + row[j] * x->q[i];
        }
    }
}

/* Part: one value head of one item, all its rows in order. */
static void delta_part(void *arg, uint32_t part, uint32_t thread)
{
    const delta_job *j = arg;
    const qn_ref_kernels *k = j->run->ref->k;
    const qn_run *r = &j->run->base;
    const qn_state_layer *s = &r->kv->spec.layers[j->layer].state;
    const qn_item *it = &r->batch->items[part / s->n_heads];
    uint32_t h = part % s->n_heads, kh = h * (j->k.cols / s->d_k) / s->n_heads;
    float *S = state_of(r->kv, j->layer, it->state) + conv_floats(s) + (size_t)h * s->d_v * s->d_k;
    float *p = qn_ref_thread(j->run, thread);
    delta_row x = {p, p + QN_REF_MAX_HEAD, p + 2 * QN_REF_MAX_HEAD, p + 3 * QN_REF_MAX_HEAD, 0, 0};
    for (uint32_t t = it->row0; t < it->row0 + it->n_new; t++) {
        k->widen(x.q, qn_ref_at(j->q, t, kh * s->d_k), j->q.dtype, s->d_k);
        k->widen(x.k, qn_ref_at(j->k, t, kh * s->d_k), j->k.dtype, s->d_k);
        k->widen(x.v, qn_ref_at(j->v, t, h * s->d_v), j->v.dtype, s->d_v);
        k->widen(&x.g, qn_ref_at(j->g, t, h), j->g.dtype, 1);
        k->widen(&x.beta, qn_ref_at(j->beta, t, h), j->beta.dtype, 1);
        delta_step(S, s, &x);
        k->narrow(qn_ref_at(j->y, t, h * s->d_v), j->y.dtype, x.v, s->d_v);
    }
}

qn_tensor qn_ref_delta(qn_run *r, uint32_t layer, qn_tensor q, qn_tensor k, qn_tensor v,
                       qn_tensor g, qn_tensor beta)
{
    qn_ref_run *c = (qn_ref_run *)(void *)r;
    const qn_state_layer *s = &r->kv->spec.layers[layer].state;
    qn_check(s->n_heads && v.cols == s->n_heads * s->d_v && q.cols == k.cols &&
             k.cols % s->d_k == 0);
    qn_check(s->d_v <= QN_REF_MAX_HEAD && s->d_k <= QN_REF_MAX_HEAD);
    delta_job j = {c, layer, q, k, v, g, beta, qn_ref_take(c, v.rows, v.cols, q.dtype)};
    qn_ref_parts(c, delta_part, &j, r->batch->n_items * s->n_heads);
    return j.y;
}
