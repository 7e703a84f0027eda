/* recurrent.c - layers that keep a state instead of keys and values: the short convolution and the
 * gated delta rule.
 *
 * A slot holds, per recurrent layer, the last K-1 inputs of the convolution [K-1, C] and the state
 * of the delta rule, transposed to [Hv][Dk][Dv] so that lanes are outputs and every sum runs over
 * ascending k. Rows of an item are taken in order (rule R7 of spec engine 5.6); heads and channels
 * are independent of each other.
 */
#include <math.h>
#include <string.h>

#include "compute/cpu/kernels.h"
#include "compute/cpu/kv_layout.h"

static size_t conv_floats(const qn_state_layer *s)
{
    return (size_t)s->conv_width * s->conv_channels;
}

static size_t delta_floats(const qn_state_layer *s)
{
    return (size_t)s->n_heads * s->d_v * s->d_k;
}

size_t qn_cpu_state_bytes(const qn_device *d, const qn_kv_spec *spec)
{
    (void)d;
    size_t n = 0;
    for (uint32_t i = 0; i < spec->n_layers; i++) {
        n += conv_floats(&spec->layers[i].state) + delta_floats(&spec->layers[i].state);
    }
    return n * sizeof(float);
}

/* The convolution's inputs of a layer in a slot; the delta state follows them. */
static float *state_of(const qn_kv *kv, uint32_t layer, uint32_t slot)
{
    qn_check(slot < kv->spec.n_states);
    size_t at = 0;
    for (uint32_t i = 0; i < layer; i++) {
        at += conv_floats(&kv->spec.layers[i].state) + delta_floats(&kv->spec.layers[i].state);
    }
    return (float *)(void *)(kv->states + slot * kv->state_bytes) + at;
}

void qn_cpu_state_clear(qn_kv *kv, uint32_t slot)
{
    qn_check(slot < kv->spec.n_states);
    memset(kv->states + slot * kv->state_bytes, 0, kv->state_bytes);
}

void qn_cpu_state_copy(qn_kv *kv, uint32_t dst, uint32_t src)
{
    qn_check(dst < kv->spec.n_states && src < kv->spec.n_states);
    if (dst != src)
        memcpy(kv->states + dst * kv->state_bytes, kv->states + src * kv->state_bytes,
               kv->state_bytes);
}

void qn_cpu_state_get(const qn_kv *kv, uint32_t layer, uint32_t slot, float *conv, float *s)
{
    const qn_state_layer *l = &kv->spec.layers[layer].state;
    const float *from = state_of(kv, layer, slot);
    memcpy(conv, from, conv_floats(l) * sizeof *conv);
    qn_transpose_heads(s, from + conv_floats(l), l->n_heads, l->d_k, l->d_v);
}

void qn_cpu_state_put(qn_kv *kv, uint32_t layer, uint32_t slot, const float *conv, const float *s)
{
    const qn_state_layer *l = &kv->spec.layers[layer].state;
    float *to = state_of(kv, layer, slot);
    memcpy(to, conv, conv_floats(l) * sizeof *conv);
    qn_transpose_heads(to + conv_floats(l), s, l->n_heads, l->d_v, l->d_k);
}

/* ---- convolution ---- */

static float silu(float x)
{
    return x / (1 + expf(-x));
}

/* Input t of an item: its own row, or one that the slot kept (t < 0). */
static const float *conv_input(qn_tensor x, const qn_item *it, const float *kept, int64_t t,
                               uint32_t width)
{
    return t >= 0 ? qn_cpu_row(x, it->row0 + (uint32_t)t) : kept + (size_t)(t + width) * x.cols;
}

static void conv_item(qn_tensor y, qn_tensor x, qn_tensor w, const qn_item *it, float *kept,
                      uint32_t width)
{
    for (uint32_t t = 0; t < it->n_new; t++) {
        float *out = qn_cpu_row(y, it->row0 + t);
        memset(out, 0, x.cols * sizeof *out);
        for (uint32_t j = 0; j <= width; j++) {
            const float *in = conv_input(x, it, kept, (int64_t)t + j - width, width);
            for (uint32_t c = 0; c < x.cols; c++) out[c] += in[c] * qn_cpu_row(w, c)[j];
        }
        for (uint32_t c = 0; c < x.cols; c++) out[c] = silu(out[c]);
    }
}

/* Keep the last `width` inputs, oldest first; a short item shifts the older ones. */
static void keep_inputs(qn_tensor x, const qn_item *it, float *kept, uint32_t width)
{
    for (uint32_t i = 0; i < width; i++) {
        const float *in = conv_input(x, it, kept, (int64_t)it->n_new - width + i, width);
        memmove(kept + (size_t)i * x.cols, in, x.cols * sizeof *kept);
    }
}

qn_tensor qn_cpu_conv(qn_run *r, uint32_t layer, qn_tensor x, qn_tensor w)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    const qn_state_layer *s = &r->kv->spec.layers[layer].state;
    qn_check(x.cols == s->conv_channels && w.rows == x.cols && w.cols == s->conv_width + 1);
    qn_tensor y = qn_cpu_take(c, x.rows, x.cols);
    for (uint32_t i = 0; i < r->batch->n_items; i++) {
        const qn_item *it = &r->batch->items[i];
        float *kept = state_of(r->kv, layer, it->state);
        conv_item(y, x, w, it, kept, s->conv_width);
        keep_inputs(x, it, kept, s->conv_width);
    }
    return y;
}

/* ---- gated delta rule ---- */

qn_tensor qn_cpu_decay(qn_run *r, qn_tensor a, qn_tensor a_log, qn_tensor dt_bias)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    qn_tensor y = qn_cpu_take(c, a.rows, a.cols);
    for (uint32_t t = 0; t < a.rows && !c->measures; t++) {
        for (uint32_t i = 0; i < a.cols; i++) {
            float x = qn_cpu_row(a, t)[i] + qn_cpu_row(dt_bias, 0)[i];
            float softplus = fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
            qn_cpu_row(y, t)[i] = expf(-expf(qn_cpu_row(a_log, 0)[i]) * softplus);
        }
    }
    return y;
}

typedef struct delta_job {
    qn_cpu_run *run;
    uint32_t layer;
    qn_tensor q, k, v, g, beta, y;
} delta_job;

/* One token of one value head: state S [Dk][Dv], tmp [Dv]. */
static void delta_step(float *S, float *tmp, const qn_state_layer *s, const float *q,
                       const float *k, const float *v, float g, float beta, float *y)
{
    memset(tmp, 0, s->d_v * sizeof *tmp);
    for (uint32_t i = 0; i < s->d_k; i++) {
        float *row = S + (size_t)i * s->d_v;
        for (uint32_t j = 0; j < s->d_v; j++) {
            row[j] *= g;
            tmp[j] += row[j] * k[i];
        }
    }
    for (uint32_t j = 0; j < s->d_v; j++) tmp[j] = (v[j] - tmp[j]) * beta;
    memset(y, 0, s->d_v * sizeof *y);
    for (uint32_t i = 0; i < s->d_k; i++) {
        float *row = S + (size_t)i * s->d_v;
        for (uint32_t j = 0; j < s->d_v; j++) {
            row[j] += tmp[j] * k[i];
            y[j] += row[j] * q[i];
        }
    }
}

/* Part: one value head of one item, all its rows in order. */
static void delta_part(void *arg, uint32_t part, uint32_t thread)
{
    const delta_job *j = arg;
    const qn_run *r = &j->run->base;
    const qn_state_layer *s = &r->kv->spec.layers[j->layer].state;
    const qn_item *it = &r->batch->items[part / s->n_heads];
    uint32_t h = part % s->n_heads, n_key_heads = j->k.cols / s->d_k,
             kh = h * n_key_heads / s->n_heads;
    float *S = state_of(r->kv, j->layer, it->state) + conv_floats(s) + (size_t)h * s->d_v * s->d_k;
    float *tmp = qn_cpu_thread(j->run, thread);
    for (uint32_t t = it->row0; t < it->row0 + it->n_new; t++) {
        delta_step(S, tmp, s, qn_cpu_row(j->q, t) + (size_t)kh * s->d_k,
                   qn_cpu_row(j->k, t) + (size_t)kh * s->d_k,
                   qn_cpu_row(j->v, t) + (size_t)h * s->d_v, qn_cpu_row(j->g, t)[h],
                   qn_cpu_row(j->beta, t)[h], qn_cpu_row(j->y, t) + (size_t)h * s->d_v);
    }
}

qn_tensor qn_cpu_delta(qn_run *r, uint32_t layer, qn_tensor q, qn_tensor k, qn_tensor v,
                       qn_tensor g, qn_tensor beta)
{
    qn_cpu_run *c = (qn_cpu_run *)r;
    const qn_state_layer *s = &r->kv->spec.layers[layer].state;
    qn_check(s->n_heads && v.cols == s->n_heads * s->d_v && q.cols == k.cols &&
             k.cols % s->d_k == 0);
    qn_check(s->d_v * sizeof(float) <= c->need.thread);
    delta_job j = {c, layer, q, k, v, g, beta, qn_cpu_take(c, v.rows, v.cols)};
    qn_cpu_parts(c, delta_part, &j, r->batch->n_items * s->n_heads);
    return j.y;
}
