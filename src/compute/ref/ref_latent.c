/* ref_latent.c - latent attention (MLA) as mlx-lm's graph computes it.
 *
 * mlx-lm has two forms. A call of one token brings the query to the latent and attends to the
 * latents themselves, as one key head that all query heads share. A call of more tokens makes every
 * head's keys and values from all stored latents. Which calls a position was computed in is a
 * sequence's own (qn_item.decode_from), so that bits do not depend on how a step is cut. In both
 * forms scores of the rotated parts are a product of their own, rounded to T, and reach MLX's
 * attention as its additive mask; masked positions are left out, since they add exact zeros
 * (ref_attend.c).
 */
#include <string.h>

#include "compute/ref/ref_kv.h"

enum { ONE, MORE }; /* tokens of the call: the forms */

typedef struct job {
    qn_ref_run *run;
    const qn_latent *a;
    const qn_kv_layer *layer;
    const qn_ref_place *place;
    const qn_kv_group *group;
    const qn_item *item;
    qn_tensor q, y;
    qn_dtype rotated;   /* type of the rotated parts' scores */
    qn_dtype type[2];   /* T of attention, by form */
    uint32_t n_more;    /* rows of the item in the form MORE, the rest in the form ONE */
    uint32_t keep, gap; /* what is gathered: positions [0, keep), and those from keep+gap on */
    uint32_t n, n_tiles;
    float *rows;        /* [n, Dk] latents */
    float *tiles;       /* the same in tiles of [Dk, 16] */
    float *turned;      /* rotated parts in tiles of [Dv, 16] */
    float *areas;       /* of all threads */
    size_t area_floats;
} job;

/* What one thread works in. */
typedef struct bench {
    float *q, *turned_q, *acc;  /* [QN_REF_MAX_HEAD] */
    float *s, *all, *turned_s;  /* [n] scores: in the order of their sum; of gathered rows */
    float *keys, *values;       /* a head's: tiles of [N, 16], and [n, v_ld] */
    float *matrix;              /* [Dk, n_ld] the head's part of `embed` */
    void *mm;
} bench;

static uint32_t up16(uint32_t n) { return (n + 15) & ~15u; }

static const qn_matrix *embed_of(const job *j) { return &j->a->embed->m; }
static const qn_matrix *unembed_of(const job *j) { return &j->a->unembed->m; }

static bench thread_bench(const job *j, uint32_t thread, uint32_t n)
{
    const size_t n16 = up16(n);
    bench w = {.mm = qn_ref_thread(j->run, thread)};
    float *f = j->areas + thread * j->area_floats;
    w.q = f, f += QN_REF_MAX_HEAD;
    w.turned_q = f, f += QN_REF_MAX_HEAD;
    w.acc = f, f += QN_REF_MAX_HEAD;
    w.s = f, f += n16;
    w.all = f, f += n16;
    w.turned_s = f, f += n16;
    w.keys = f, f += n16 * embed_of(j)->n_in;
    w.values = f, f += n16 * up16(unembed_of(j)->n_out);
    w.matrix = f;
    return w;
}

static size_t bench_floats(const job *j, uint32_t n)
{
    const size_t n16 = up16(n);
    return 3 * QN_REF_MAX_HEAD + n16 * (3 + embed_of(j)->n_in + up16(unembed_of(j)->n_out)) +
           (size_t)j->layer->d_k * up16(embed_of(j)->n_in);
}

/* ---- gathering ---- */

static uint32_t gathered(const job *j, uint32_t pos) { return pos < j->keep ? pos : pos - j->gap; }

/* The rows that some query of the item sees: what its first one does, and all later ones. */
static void choose_rows(job *j)
{
    const qn_item *item = j->item;
    const qn_ref_visible see = qn_ref_visible_to(j->group, item, item->n_past);
    uint32_t lo = item->n_past;
    j->keep = j->group->keep;
    for (uint32_t i = 0; i < QN_REF_RUNS; i++) {
        uint32_t first = see.first[i] > j->keep ? see.first[i] : j->keep;
        if (first < see.end[i] && first < lo) lo = first;
    }
    j->gap = lo > j->keep ? lo - j->keep : 0;
    j->n = item->n_past + item->n_new - j->gap;
    j->n_tiles = (j->n + QN_REF_KEY_TILE - 1) / QN_REF_KEY_TILE;
}

static void gather_rows(const void *arg, uint32_t r0, uint32_t r1)
{
    const job *j = arg;
    const qn_kv *kv = j->run->base.kv;
    const uint32_t dk = j->layer->d_k, dv = j->layer->d_v;
    for (uint32_t i = r0; i < r1; i++) {
        uint32_t pos = i < j->keep ? i : i + j->gap, at = pos % kv->spec.block_tokens;
        const float *block = qn_ref_kv_block(kv, j->item, j->layer->group, pos);
        const float *key = block + j->place->k + (size_t)(at / QN_REF_KEY_TILE) * QN_REF_KEY_TILE * dk +
                           at % QN_REF_KEY_TILE;
        const float *value = block + j->place->v + (size_t)at * j->place->v_ld;
        size_t tile = i / QN_REF_KEY_TILE * QN_REF_KEY_TILE, lane = i % QN_REF_KEY_TILE;
        for (uint32_t d = 0; d < dk; d++) {
            float x = key[(size_t)d * QN_REF_KEY_TILE];
            j->rows[(size_t)i * dk + d] = x;
            j->tiles[tile * dk + (size_t)d * QN_REF_KEY_TILE + lane] = x;
        }
        for (uint32_t d = 0; d < dv; d++)
            j->turned[tile * dv + (size_t)d * QN_REF_KEY_TILE + lane] = value[d];
    }
}

/* ---- parts of the graph ---- */

/* y [n_rows, y_ld] = x W^T in float32, rounded to the product's type. */
static void product(const job *j, const qn_matrix *stack, uint32_t h, const float *x, uint32_t n_rows,
                    qn_dtype type, float *y, uint32_t y_ld, void *scratch)
{
    const qn_ref_kernels *k = j->run->ref->k;
    qn_matrix m = qn_ref_matrix_of(stack, h);
    qn_ref_mm mm = {.m = &m, .x = x, .round_first = true, .n_rows = n_rows, .type = type,
                    .y_type = QN_F32, .y = (uint8_t *)y, .y_ld = y_ld};
    for (uint32_t n0 = 0; n0 < m.n_out; n0 += k->block) k->mm(&mm, n0, scratch);
}

static void scale_query(const job *j, float *q, uint32_t n, qn_dtype t)
{
    float scale = qn_ref_round(j->a->scale, t);
    for (uint32_t i = 0; i < n; i++) q[i] = q[i] * scale;
    j->run->ref->k->round(q, t, n);
}

/* The rotated part of a query, scaled. */
static void take_turned(const job *j, const bench *w, uint32_t row, uint32_t h)
{
    const uint32_t n = embed_of(j)->n_in, dv = j->layer->d_v;
    j->run->ref->k->widen(w->turned_q, qn_ref_at(j->q, row, h * (n + dv) + n), j->q.dtype, dv);
    scale_query(j, w->turned_q, dv, j->q.dtype);
}

static void take_query(const job *j, float *q, uint32_t row, uint32_t h)
{
    const uint32_t n = embed_of(j)->n_in;
    j->run->ref->k->widen(q, qn_ref_at(j->q, row, h * (n + j->layer->d_v)), j->q.dtype, n);
}

/* Probabilities of what the query w->q [d] sees, whose keys are `tiles`, to w->s. */
static void probabilities(const job *j, const bench *w, const float *tiles, uint32_t d, uint32_t pos,
                          const qn_ref_visible *see, qn_dtype t)
{
    const qn_ref_kernels *k = j->run->ref->k;
    const uint32_t n = gathered(j, pos) + 1, n_tiles = (n + QN_REF_KEY_TILE - 1) / QN_REF_KEY_TILE;
    k->scores(w->all, w->q, tiles, d, n_tiles, QN_F32);
    k->scores(w->turned_s, w->turned_q, j->turned, j->layer->d_v, n_tiles, QN_F32);
    k->round(w->all, t, n);
    k->round(w->turned_s, j->rotated, n);
    for (uint32_t i = 0; i < n; i++) w->all[i] = w->all[i] + w->turned_s[i];
    k->round(w->all, t, n);
    float *s = w->s;
    for (uint32_t i = 0; i < QN_REF_RUNS; i++) {
        uint32_t m = see->end[i] - see->first[i];
        if (m) memcpy(s, w->all + gathered(j, see->first[i]), m * sizeof *s);
        s += m;
    }
    qn_ref_softmax(k, w->s, see->n, NULL, t);
}

/* w->acc [ld] = the values' sum, rounded to T. */
static void weigh(const job *j, const bench *w, const float *values, uint32_t ld,
                  const qn_ref_visible *see, qn_dtype t)
{
    const qn_ref_kernels *k = j->run->ref->k;
    const float *s = w->s;
    memset(w->acc, 0, ld * sizeof *w->acc);
    for (uint32_t i = 0; i < QN_REF_RUNS; i++) {
        uint32_t m = see->end[i] - see->first[i];
        if (m)
            k->add_values(w->acc, s, values + (size_t)gathered(j, see->first[i]) * ld, m, ld, QN_F32);
        s += m;
    }
    k->round(w->acc, t, ld);
}

/* ---- a head, in both forms ---- */

static void one_token(const job *j, const bench *w, uint32_t i, uint32_t h)
{
    const uint32_t row = j->item->row0 + i, pos = j->item->n_past + i, dk = j->layer->d_k;
    const qn_ref_visible see = qn_ref_visible_to(j->group, j->item, pos);
    const qn_dtype t = j->type[ONE];
    float *query = w->acc; /* free until the values are summed */
    take_turned(j, w, row, h);
    take_query(j, query, row, h);
    product(j, embed_of(j), h, query, 1, qn_ref_chain_type(embed_of(j), j->q.dtype), w->q, dk, w->mm);
    scale_query(j, w->q, dk, t);
    probabilities(j, w, j->tiles, dk, pos, &see, t);
    weigh(j, w, j->rows, dk, &see, t);
    const uint32_t m = unembed_of(j)->n_out;
    product(j, unembed_of(j), h, w->acc, 1, qn_ref_chain_type(unembed_of(j), t), w->q, m, w->mm);
    j->run->ref->k->narrow(qn_ref_at(j->y, row, h * m), j->y.dtype, w->q, m);
}

/* nvfp4 [Dk, n]: values without their scales, a column of 16 for each group: [n/16][Dk][16]. */
static void unpack_nvfp4(const qn_matrix *m, float *out)
{
    const uint32_t n = m->n_in, dk = m->n_out;
    for (uint32_t i = 0; i < dk; i++) {
        const uint8_t *row = (const uint8_t *)m->weight + i * qn_qrow_bytes(&m->spec, n);
        for (uint32_t c = 0; c < n; c++)
            out[((size_t)(c / 16) * dk + i) * 16 + c % 16] =
                qn_qvalue(m->spec.mode, qn_qcode(row, m->spec.bits, c));
    }
}

/* acc += x times it: MLX multiplies by the scale before the value. */
static void add_nvfp4(const job *j, const bench *w, const qn_matrix *m, const float *x, qn_dtype t)
{
    const qn_ref_kernels *k = j->run->ref->k;
    const uint32_t dk = m->n_out;
    for (uint32_t g = 0; g < m->n_in / 16; g++) {
        for (uint32_t i = 0; i < dk; i++) w->q[i] = x[i] * qn_qscale(m, i, g);
        k->round(w->q, t, dk);
        k->add_values(w->acc + g * 16, w->q, w->matrix + (size_t)g * dk * 16, dk, 16, t);
    }
}

/* The head's keys: every latent times `embed`, not transposed. MLX goes along the latent and adds a
 * row of the matrix at a time; with codes it rounds at every step. */
static void make_keys(const job *j, const bench *w, uint32_t h)
{
    const qn_ref_kernels *k = j->run->ref->k;
    const uint32_t dk = j->layer->d_k, n = embed_of(j)->n_in, n_ld = up16(n);
    const qn_matrix m = qn_ref_matrix_of(embed_of(j), h);
    const qn_dtype type = qn_ref_chain_type(&m, j->place->k_type);
    const bool nvfp4 = m.spec.mode == QN_Q_NVFP4;
    memset(w->matrix, 0, (size_t)dk * n_ld * sizeof *w->matrix);
    if (nvfp4) unpack_nvfp4(&m, w->matrix);
    for (uint32_t i = 0; !nvfp4 && i < dk; i++)
        qn_matrix_row(&m, i, type == m.dtype, w->matrix + (size_t)i * n_ld);
    for (uint32_t i = 0; i < j->n; i++) {
        const float *latent = j->rows + (size_t)i * dk;
        memset(w->acc, 0, n_ld * sizeof *w->acc);
        if (nvfp4) add_nvfp4(j, w, &m, latent, type);
        else k->add_values(w->acc, latent, w->matrix, dk, n_ld,
                           m.spec.mode == QN_Q_NONE ? QN_F32 : type);
        k->round(w->acc, type, n);
        float *tile = w->keys + (size_t)(i / QN_REF_KEY_TILE) * QN_REF_KEY_TILE * n;
        for (uint32_t d = 0; d < n; d++)
            tile[(size_t)d * QN_REF_KEY_TILE + i % QN_REF_KEY_TILE] = w->acc[d];
    }
}

static void make_values(const job *j, const bench *w, uint32_t h)
{
    product(j, unembed_of(j), h, j->rows, j->n, qn_ref_chain_type(unembed_of(j), j->place->k_type),
            w->values, up16(unembed_of(j)->n_out), w->mm);
}

static void more_tokens(const job *j, const bench *w, uint32_t i, uint32_t h)
{
    const uint32_t row = j->item->row0 + i, pos = j->item->n_past + i;
    const uint32_t n = embed_of(j)->n_in, m = unembed_of(j)->n_out;
    const qn_ref_visible see = qn_ref_visible_to(j->group, j->item, pos);
    const qn_dtype t = j->type[MORE];
    take_turned(j, w, row, h);
    take_query(j, w->q, row, h);
    scale_query(j, w->q, n, t);
    probabilities(j, w, w->keys, n, pos, &see, t);
    weigh(j, w, w->values, up16(m), &see, t);
    j->run->ref->k->narrow(qn_ref_at(j->y, row, h * m), j->y.dtype, w->acc, m);
}

static void head_part(void *arg, uint32_t h, uint32_t thread)
{
    const job *j = arg;
    bench w = thread_bench(j, thread, j->n);
    if (j->n_more) make_keys(j, &w, h), make_values(j, &w, h);
    for (uint32_t i = 0; i < j->item->n_new; i++) {
        if (i < j->n_more) more_tokens(j, &w, i, h);
        else one_token(j, &w, i, h);
    }
}

/* ---- the operation ---- */

/* Scratch for n gathered rows. */
static void take_memory(job *j, uint32_t n)
{
    const size_t n16 = up16(n);
    j->rows = qn_ref_bytes(j->run, n16 * j->layer->d_k * sizeof(float));
    j->tiles = qn_ref_bytes(j->run, n16 * j->layer->d_k * sizeof(float));
    j->turned = qn_ref_bytes(j->run, n16 * j->layer->d_v * sizeof(float));
    j->area_floats = (bench_floats(j, n) + 15) / 16 * 16;
    j->areas = qn_ref_bytes(j->run, qn_pool_threads(j->run->ref->pool) * j->area_floats * sizeof(float));
}

/* T of attention by form, and of the result: of both, should they differ. */
static qn_dtype choose_types(job *j)
{
    const qn_dtype q = j->q.dtype, k = j->place->k_type;
    j->rotated = qn_ref_promote(q, j->place->v_type);
    j->type[ONE] = qn_ref_promote(qn_ref_chain_type(embed_of(j), q), k);
    j->type[MORE] = qn_ref_promote(q, qn_ref_promote(qn_ref_chain_type(embed_of(j), k),
                                                     qn_ref_chain_type(unembed_of(j), k)));
    return qn_ref_promote(qn_ref_chain_type(unembed_of(j), j->type[ONE]), j->type[MORE]);
}

static uint32_t rows_of_more(const qn_item *item)
{
    const uint32_t from = item->decode_from, n_past = item->n_past;
    if (from == 1 || (from && from <= n_past)) return 0;
    return from && from - n_past < item->n_new ? from - n_past : item->n_new;
}

static void check_shapes(const job *j)
{
    const qn_matrix *e = embed_of(j), *u = unembed_of(j);
    qn_check(j->layer->latent && e->n_experts == j->a->n_heads && u->n_experts == j->a->n_heads);
    qn_check(e->n_out == j->layer->d_k && u->n_in == j->layer->d_k);
    qn_check(e->n_in <= QN_REF_MAX_HEAD && u->n_out <= QN_REF_MAX_HEAD);
    qn_check(j->q.rows == j->run->base.batch->n_tokens);
    qn_check(j->q.cols == j->a->n_heads * (e->n_in + j->layer->d_v));
}

qn_tensor qn_ref_attend_latent(qn_run *r, qn_tensor q, const qn_latent *a)
{
    qn_ref_run *run = (qn_ref_run *)(void *)r;
    const qn_kv *kv = r->kv;
    qn_check(a->layer < kv->spec.n_layers);
    job j = {.run = run, .a = a, .layer = &kv->spec.layers[a->layer], .place = &kv->place[a->layer],
             .q = q};
    check_shapes(&j);
    j.group = &kv->spec.groups[j.layer->group];
    j.y = qn_ref_take(run, q.rows, a->n_heads * a->unembed->m.n_out, choose_types(&j));
    const size_t to = run->used;
    if (run->measures) take_memory(&j, run->limits.max_positions);
    for (uint32_t i = 0; i < r->batch->n_items; i++, run->used = to) {
        j.item = &r->batch->items[i];
        j.n_more = rows_of_more(j.item);
        choose_rows(&j);
        qn_check(j.n <= run->limits.max_positions);
        take_memory(&j, j.n);
        qn_ref_rows(run, gather_rows, &j, j.n, j.layer->d_k);
        qn_ref_parts(run, head_part, &j, a->n_heads);
    }
    run->used = to;
    return j.y;
}
