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

static qn_tensor head_norm(const qn_dense *m, qn_run *r, qn_tensor x, const qn_norm *n, uint32_t d_head)
{
    if (m->d.qk_norm == QN_QK_NONE) return x;
    return r->ops->rms_norm(r, x, n->w, m->d.qk_norm == QN_QK_HEAD ? d_head : x.cols, m->d.norm_eps);
}

static void rotate(const qn_dense *m, qn_run *r, const qn_layer *l, qn_tensor q, qn_tensor k)
{
    if (l->d->rope == QN_NO_ROPE) return;
    const qn_rope *rope = m->ropes[l->d->rope];
    r->ops->rope(r, q, l->d->d_head, rope);
    r->ops->rope(r, k, l->d->d_head, rope);
}

/* Attention block of layer i: x [T, E] -> [T, E]. K and V of the batch are stored first; attention
 * reads storage only (spec engine R4). */
static qn_tensor attention(const qn_dense *m, qn_run *r, uint32_t i, qn_tensor x)
{
    const qn_layer *l = &m->layers[i];
    qn_tensor y[3];
    project_qkv(l, r, x, y);
    if (m->d.rope_before_norm) rotate(m, r, l, y[0], y[1]);
    y[0] = head_norm(m, r, y[0], &l->q_norm, l->d->d_head);
    y[1] = head_norm(m, r, y[1], &l->k_norm, l->d->d_head);
    if (!m->d.rope_before_norm) rotate(m, r, l, y[0], y[1]);
    r->ops->kv_write(r, i, y[1], y[2]);
    qn_attend a = {
        .layer = i,
        .n_heads = l->d->n_heads,
        .scale = m->d.attn_scale > 0 ? m->d.attn_scale : (float)pow(l->d->d_head, -0.5),
        .softcap = m->d.attn_softcap,
    };
    return linear(r, r->ops->attend(r, y[0], &a), &l->o);
}

/* MLP block: x [T, E] -> [T, E]. */
static qn_tensor mlp(const qn_dense *m, qn_run *r, const qn_layer *l, qn_tensor x)
{
    if (m->d.mlp == QN_MLP_TWO) return linear(r, r->ops->act(r, linear(r, x, &l->up), m->d.act), &l->down);
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
        add_branch(m, r, x, attention(m, r, i, norm(m, r, *x, &l->n1, e)));
        add_branch(m, r, x, mlp(m, r, l, norm(m, r, *x, &l->n2, e)));
        break;
    case QN_LAYOUT_POST:
        add_branch(m, r, x, norm(m, r, attention(m, r, i, *x), &l->n1, e));
        add_branch(m, r, x, norm(m, r, mlp(m, r, l, *x), &l->n2, e));
        break;
    case QN_LAYOUT_SANDWICH:
        h = attention(m, r, i, norm(m, r, *x, &l->n1, e));
        add_branch(m, r, x, norm(m, r, h, &l->n2, e));
        h = mlp(m, r, l, norm(m, r, *x, &l->n3, e));
        add_branch(m, r, x, norm(m, r, h, &l->n4, e));
        break;
    case QN_LAYOUT_PARALLEL:
        h = norm(m, r, *x, &l->n1, e);
        h = r->ops->add(r, attention(m, r, i, h), mlp(m, r, l, h));
        add_branch(m, r, x, h);
        break;
    }
    r->ops->reset(r, mark);
}

qn_tensor qn_dense_forward(qn_model *base, qn_run *r)
{
    const qn_dense *m = (const qn_dense *)base;
    qn_tensor x = r->ops->embed(r, m->embed.w);
    if (m->d.embed_scale != 1) x = r->ops->scale(r, x, m->d.embed_scale);
    for (uint32_t i = 0; i < m->d.n_layers; i++) layer(m, r, i, &x);
    if (r->batch->n_out == 0) return (qn_tensor){0};
    x = norm(m, r, r->ops->out_rows(r, x), &m->final_norm, m->d.d_model);
    if (m->d.head_in_scale != 1) x = r->ops->scale(r, x, m->d.head_in_scale);
    qn_tensor logits = linear(r, x, &m->head);
    if (m->d.logits_scale != 1) logits = r->ops->scale(r, logits, m->d.logits_scale);
    if (m->d.logits_softcap > 0) logits = r->ops->softcap(r, logits, m->d.logits_softcap);
    return logits;
}

size_t qn_dense_scratch(const qn_model *base, uint32_t max_tokens, uint32_t max_out)
{
    const qn_dense *m = (const qn_dense *)base;
    size_t widest = 0, e = m->d.d_model;
    for (uint32_t i = 0; i < m->d.n_layers; i++) {
        const qn_layer_desc *l = &m->d.layers[i];
        size_t heads = (size_t)l->d_head * (l->n_heads + 2u * l->n_kv_heads);
        /* Each product's result, the norms and rotations beside it, and as much again for the
         * prepared form of its input. */
        size_t width = 6 * e + 3 * heads + 6 * (size_t)l->d_ff;
        if (width > widest) widest = width;
    }
    size_t rows = (size_t)max_tokens + 16;
    return 4 * (rows * (2 * e + 2 * widest) + ((size_t)max_out + 1) * (4 * e + 3 * (size_t)m->d.n_vocab)) + (1u << 20);
}
