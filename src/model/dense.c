/* dense.c - the forward pass of every family that a qn_desc describes.
 *
 * T rows of the batch, E model width, H query heads, Hk KV heads, D head size, F inner width.
 * Results of a layer live in scratch and are given back at its end; only the residual stream x
 * [T, E] lasts from layer to layer.
 */
#include <math.h>

#include "model/dense.h"

static qn_tensor norm(const qn_dense *m, qn_run *r, qn_tensor x, const qn_norm *n, uint32_t width)
{
    if (m->d.norm == QN_NORM_LAYER) return r->ops->layer_norm(r, x, n->w, n->b, m->d.norm_eps);
    return r->ops->rms_norm(r, x, n->w, width, m->d.norm_eps);
}

static qn_tensor linear(qn_run *r, qn_tensor x, const qn_linear *w)
{
    qn_tensor y;
    r->ops->linear(r, 1, &y, x, &w);
    return y;
}

/* q [T, H*D], k and v [T, Hk*D] before norm and rotation. */
static void project_qkv(const qn_layer *l, qn_run *r, qn_tensor x, qn_tensor y[3])
{
    if (!l->qkv.w) {
        const qn_linear *w[3] = {&l->q, &l->k, &l->v};
        r->ops->linear(r, 3, y, x, w);
        return;
    }
    qn_tensor all = linear(r, x, &l->qkv);
    uint32_t nq = l->d->n_heads * l->d->d_head, nk = l->d->n_kv_heads * l->d->d_head;
    y[0] = qn_cols(all, 0, nq);
    y[1] = qn_cols(all, nq, nk);
    y[2] = qn_cols(all, nq + nk, nk);
}

static bool rotates(const qn_layer *l) { return l->d->rope != QN_NO_ROPE; }

static qn_tensor head_norm(const qn_dense *m, qn_run *r, const qn_layer *l, qn_tensor x,
                           const qn_norm *n)
{
    if (m->d.qk_norm == QN_QK_NONE || (m->d.qk_norm_rotated && !rotates(l))) return x;
    return r->ops->rms_norm(r, x, n->w, m->d.qk_norm == QN_QK_HEAD ? l->d->d_head : x.cols,
                            m->d.qk_norm_eps > 0 ? m->d.qk_norm_eps : m->d.norm_eps);
}

static void rotate(const qn_dense *m, qn_run *r, const qn_layer *l, qn_tensor q, qn_tensor k)
{
    if (!rotates(l)) return;
    const qn_rope *rope = m->ropes[l->d->rope];
    r->ops->rope(r, q, l->d->d_head, rope);
    r->ops->rope(r, k, l->d->d_head, rope);
}

/* q and, with an output gate, the gate beside every head: both [T, H*D]. */
static qn_tensor split_gate(const qn_dense *m, qn_run *r, const qn_layer *l, qn_tensor *q)
{
    if (!m->d.attn_gate) return (qn_tensor){0};
    const uint32_t d = l->d->d_head;
    qn_tensor gate = r->ops->head_part(r, *q, 2 * d, d, d, (qn_tensor){0});
    *q = r->ops->head_part(r, *q, 2 * d, 0, d, (qn_tensor){0});
    return r->ops->act(r, gate, QN_SIGMOID);
}

/* Attention block of layer i: x [T, E] -> [T, E]. K and V of the batch are stored first; attention
 * reads storage only (spec engine R4). */
static qn_tensor attention(const qn_dense *m, qn_run *r, uint32_t i, qn_tensor x)
{
    const qn_layer *l = &m->layers[i];
    qn_tensor y[3];
    project_qkv(l, r, x, y);
    qn_tensor gate = split_gate(m, r, l, &y[0]);
    if (m->d.rope_before_norm) rotate(m, r, l, y[0], y[1]);
    y[0] = head_norm(m, r, l, y[0], &l->q_norm);
    y[1] = head_norm(m, r, l, y[1], &l->k_norm);
    if (!m->d.rope_before_norm) rotate(m, r, l, y[0], y[1]);
    if (m->d.query_scale.step > 0 && !rotates(l))
        y[0] = r->ops->scale_by_pos(r, y[0], &m->d.query_scale);
    r->ops->kv_write(r, i, y[1], y[2]);
    qn_attend a = {
        .layer = i,
        .n_heads = l->d->n_heads,
        .scale = m->d.attn_scale > 0 ? m->d.attn_scale : (float)pow(l->d->d_head, -0.5),
        .softcap = m->d.attn_softcap,
    };
    qn_tensor h = r->ops->attend(r, m->d.attn_f32 ? r->ops->widen(r, y[0]) : y[0], &a);
    if (m->d.attn_f32) h = r->ops->cast_like(r, h, y[2]);
    if (gate.addr) h = r->ops->mul(r, h, gate);
    return linear(r, h, &l->o);
}

/* Attention to the keys and values that the heads make of latents [T, L] and the rotated parts k_pe,
 * which all heads share. */
static qn_tensor expanded(const qn_dense *m, qn_run *r, uint32_t i, qn_tensor q, qn_tensor latent,
                          qn_tensor k_pe)
{
    const qn_layer *l = &m->layers[i];
    const qn_mla *d = &m->d.mla;
    const uint32_t width = d->d_nope + d->d_v;
    qn_tensor kv = linear(r, latent, &l->kv_b);
    qn_tensor v = r->ops->head_part(r, kv, width, d->d_nope, d->d_v, (qn_tensor){0});
    r->ops->kv_write(r, i, r->ops->head_part(r, kv, width, 0, d->d_nope, k_pe), v);
    const qn_attend a = {.layer = i, .n_heads = l->d->n_heads, .scale = m->d.attn_scale};
    return r->ops->attend(r, q, &a);
}

/* Latent attention block of layer i (spec models 3.10): x [T, E] -> [T, E]. Heads of q are [without
 * position | rotated]; of every token the latent and the rotated part of the key are stored. */
static qn_tensor latent_attention(const qn_dense *m, qn_run *r, uint32_t i, qn_tensor x)
{
    const qn_layer *l = &m->layers[i];
    const qn_mla *d = &m->d.mla;
    const qn_ops *o = r->ops;
    const qn_rope *rope = m->ropes[l->d->rope];
    const qn_linear *w[2] = {l->q_a.w ? &l->q_a : &l->q, &l->kv_a};
    qn_tensor y[2];
    o->linear(r, 2, y, x, w);
    qn_tensor q = y[0], k_pe = qn_cols(y[1], d->kv_lora, d->d_rope);
    if (l->q_a.w) q = linear(r, o->rms_norm(r, q, l->q_norm.w, d->q_lora, d->eps), &l->q);
    qn_tensor latent = qn_cols(y[1], 0, d->kv_lora);
    latent = o->rms_norm(r, latent, l->k_norm.w, d->kv_lora, d->eps);
    o->rope(r, qn_cols(q, d->d_nope, q.cols - d->d_nope), l->d->d_head, rope);
    o->rope(r, k_pe, d->d_rope, rope);
    if (d->expands) return linear(r, expanded(m, r, i, q, latent, k_pe), &l->o);
    o->kv_write(r, i, latent, k_pe);
    const qn_latent a = {i, l->d->n_heads, m->d.attn_scale, l->embed_q.w, l->unembed.w};
    return linear(r, o->attend_latent(r, q, &a), &l->o);
}

/* Gated DeltaNet block of layer i (spec models 3.8): x [T, E] -> [T, E]. */
static qn_tensor gated_delta(const qn_dense *m, qn_run *r, uint32_t i, qn_tensor x)
{
    const qn_layer *l = &m->layers[i];
    const qn_gdn *g = &m->d.gdn;
    const qn_ops *o = r->ops;
    uint32_t n_k = g->n_k_heads * g->d_k, n_v = g->n_v_heads * g->d_v;
    qn_tensor y[4]; /* qkv, z, b, a */
    const qn_linear *w[4] = {&l->g_qkv, &l->g_z, &l->g_b, &l->g_a};
    o->linear(r, 4, y, x, w);
    qn_tensor c = o->conv(r, i, y[0], l->g_conv), none = {0};
    /* An L2 norm written as an RMS norm: its eps of 1e-6 belongs to the sum of squares, not to
     * their mean. */
    double inv = pow(g->d_k, -0.5);
    float eps = (float)(1e-6 * (inv * inv));
    qn_tensor q = o->rms_norm(r, qn_cols(c, 0, n_k), none, g->d_k, eps);
    qn_tensor k = o->rms_norm(r, qn_cols(c, n_k, n_k), none, g->d_k, eps);
    q = o->scale(r, q, (float)(inv * inv));
    k = o->scale(r, k, (float)inv);
    qn_tensor beta = o->act(r, y[2], QN_SIGMOID),
              decay = o->decay(r, y[3], l->g_a_log, l->g_dt_bias);
    qn_tensor h = o->delta(r, i, q, k, qn_cols(c, 2 * n_k, n_v), decay, beta);
    qn_tensor n = o->rms_norm(r, h, l->g_norm, g->d_v, m->d.norm_eps);
    n = o->glu(r, o->widen(r, y[1]), o->widen(r, n), QN_SILU);
    return linear(r, o->cast_like(r, n, h), &l->g_out);
}

static qn_tensor mixer(const qn_dense *m, qn_run *r, uint32_t i, qn_tensor x)
{
    const qn_layer_desc *l = m->layers[i].d;
    return l->recurrent ? gated_delta(m, r, i, x)
           : l->latent  ? latent_attention(m, r, i, x)
                        : attention(m, r, i, x);
}

/* Experts (spec models 3.6): each row goes through its k experts, and through the shared one if
 * there is one. Weights are for the experts' results, or with R5 for what they read. */
static qn_tensor experts(const qn_dense *m, qn_run *r, const qn_layer *l, qn_tensor x)
{
    const qn_ops *o = r->ops;
    qn_router how = m->d.moe.router;
    how.bias = l->router_bias;
    qn_routing to = o->route(r, linear(r, x, &l->router), &how);
    qn_tensor y[2], h;
    const qn_linear *w[2] = {&l->e_gate, &l->e_up}, *down = &l->e_down;
    const bool of_input = how.kind == QN_ROUTE_SIGMOID_INPUT;
    qn_tensor in = of_input ? o->mul_rows(r, x, o->cast_like(r, to.weights, x)) : x;
    o->expert_linear(r, 2, y, in, to.ids, w);
    o->expert_linear(r, 1, &h, o->glu(r, y[0], y[1], m->d.act), to.ids, &down);
    if (!of_input) h = o->combine(r, h, to.weights);
    if (!l->s_up.w) return h;
    const qn_linear *s[3] = {&l->s_gate, &l->s_up, &l->s_mix};
    qn_tensor z[3];
    o->linear(r, l->s_mix.w ? 3 : 2, z, x, s);
    qn_tensor shared = linear(r, o->glu(r, z[0], z[1], m->d.act), &l->s_down);
    if (!l->s_mix.w) return o->add(r, h, shared);
    return o->add(r, h, o->mul_rows(r, shared, o->act(r, z[2], QN_SIGMOID)));
}

/* MLP block: x [T, E] -> [T, E]. */
static qn_tensor mlp(const qn_dense *m, qn_run *r, const qn_layer *l, qn_tensor x)
{
    if (l->d->sparse) return experts(m, r, l, x);
    if (m->d.mlp == QN_MLP_TWO)
        return linear(r, r->ops->act(r, linear(r, x, &l->up), m->d.act), &l->down);
    qn_tensor y[2];
    if (m->d.mlp == QN_MLP_GLU_FUSED) {
        qn_tensor both = linear(r, x, &l->gate_up);
        y[0] = qn_cols(both, 0, l->d->d_ff);
        y[1] = qn_cols(both, l->d->d_ff, l->d->d_ff);
    } else {
        const qn_linear *w[2] = {&l->gate, &l->up};
        r->ops->linear(r, 2, y, x, w);
    }
    return linear(r, r->ops->glu(r, y[0], y[1], m->d.act), &l->down);
}

static void add_branch(const qn_dense *m, qn_run *r, qn_tensor *x, qn_tensor branch)
{
    if (m->d.residual_scale != 1) branch = r->ops->scale(r, branch, m->d.residual_scale);
    r->ops->accumulate(r, x, branch);
}

static void layer(const qn_dense *m, qn_run *r, uint32_t i, qn_tensor *x)
{
    const qn_layer *l = &m->layers[i];
    uint32_t e = m->d.d_model;
    size_t mark = r->ops->mark(r);
    qn_tensor h;
    switch (m->d.layout) {
    case QN_LAYOUT_PRE:
        add_branch(m, r, x, mixer(m, r, i, norm(m, r, *x, &l->n1, e)));
        add_branch(m, r, x, mlp(m, r, l, norm(m, r, *x, &l->n2, e)));
        break;
    case QN_LAYOUT_POST:
        add_branch(m, r, x, norm(m, r, mixer(m, r, i, *x), &l->n1, e));
        add_branch(m, r, x, norm(m, r, mlp(m, r, l, *x), &l->n2, e));
        break;
    case QN_LAYOUT_SANDWICH:
        h = mixer(m, r, i, norm(m, r, *x, &l->n1, e));
        add_branch(m, r, x, norm(m, r, h, &l->n2, e));
        h = mlp(m, r, l, norm(m, r, *x, &l->n3, e));
        add_branch(m, r, x, norm(m, r, h, &l->n4, e));
        break;
    case QN_LAYOUT_PARALLEL:
        h = norm(m, r, *x, &l->n1, e);
        h = r->ops->add(r, mixer(m, r, i, h), mlp(m, r, l, h));
        add_branch(m, r, x, h);
        break;
    }
    r->ops->reset(r, mark);
}

qn_tensor qn_dense_forward(qn_model *base, qn_run *r, qn_tensor *hidden)
{
    const qn_dense *m = (const qn_dense *)base;
    qn_tensor x = r->ops->embed(r, m->embed.w);
    if (m->d.embed_scale != 1) x = r->ops->scale(r, x, m->d.embed_scale);
    for (uint32_t i = 0; i < m->d.n_layers; i++) layer(m, r, i, &x);
    const uint32_t n_out = r->batch->n_out, n_logits = n_out - r->batch->n_hidden;
    *hidden = (qn_tensor){0};
    if (n_out == 0) return (qn_tensor){0};
    x = norm(m, r, r->ops->out_rows(r, x), &m->final_norm, m->d.d_model);
    if (n_logits < n_out) *hidden = qn_rows(x, n_logits, n_out - n_logits);
    if (n_logits == 0) return (qn_tensor){0};
    x = qn_rows(x, 0, n_logits);
    if (m->d.head_in_scale != 1) x = r->ops->scale(r, x, m->d.head_in_scale);
    qn_tensor logits = linear(r, x, &m->head);
    if (m->d.logits_scale != 1) logits = r->ops->scale(r, logits, m->d.logits_scale);
    if (m->d.logits_softcap > 0) logits = r->ops->softcap(r, logits, m->d.logits_softcap);
    return logits;
}
