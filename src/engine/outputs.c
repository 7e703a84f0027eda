/* outputs.c - what becomes of a step's results: tokens, log-probabilities of prompts, hidden states.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "engine/internal.h"

static bool is_eos(const qn_gen *g, uint32_t id)
{
    for (size_t i = 0; i < g->n_eos; i++) {
        if (g->eos[i] == id) return true;
    }
    return false;
}

/* Follow the markers of reasoning. */
static void count_thought(qn_gen *g, uint32_t token)
{
    qn_think_limit *t = &g->think;
    if (token == t->end) t->is_open = false;
    else if (t->is_open) g->n_thought++;
    else if (token == t->start) t->is_open = true;
}

/* Leave nothing possible but the end of the reasoning once its tokens are spent. */
static void limit_thought(const qn_gen *g, float *logits, uint32_t n_vocab)
{
    const qn_think_limit *t = &g->think;
    if (!t->is_open || g->n_thought < t->n_tokens || t->end >= n_vocab) return;
    for (uint32_t i = 0; i < n_vocab; i++) logits[i] = i == t->end ? 0.0f : -INFINITY;
}

/* Step 9 of the data path. Append a sampled token, tell the caller, and decide whether the row
 * ends. */
static qn_finish commit(qn_engine *e, qn_gen *g, const qn_sample *s)
{
    g->last_ms = qn_now_ms();
    if (g->n_generated == 0) {
        g->first_ms = g->last_ms;
        if (g->trace) {
            qn_trace_add(g->trace, &(qn_span){"token_zero.total", g->prompt_ms, g->first_ms, NULL,
                                              -1, -1, -1, -1, false});
        }
    }
    qn_event ev = {.kind = QN_EV_TOKEN, .index = g->n_generated, .sample = *s};
    ev.is_eos = !g->ignore_eos && is_eos(g, s->token);
    g->tokens[g->len++] = s->token;
    g->n_generated++;
    if (g->think.n_tokens) count_thought(g, s->token);
    assert(g->computed == g->len - 1); /* the new token is all that is not stored (I5) */
    atomic_fetch_add(&e->generated_tokens, 1);
    qn_gen_emit(g, &ev);
    if (ev.is_eos) return QN_FINISH_STOP;
    return g->n_generated >= g->max_tokens ? QN_FINISH_LENGTH : QN_FINISH_NONE;
}

static void end_without_token(qn_engine *e, qn_gen *g)
{
    qn_err why = {0};
    qn_err_set(&why, QN_DEVICE,
               "the model gives no token that could follow position %u: every logit is -inf or no number",
               g->len - 1);
    qn_log(QN_ERROR, "%s", why.text);
    qn_engine_end_row(e, g, QN_FINISH_ERROR, &why);
}

/* Step 8 of the data path. Sample a row from its logits [V], which hold values of `type`. */
static void sample_row(qn_engine *e, qn_gen *g, float *logits, qn_dtype type)
{
    qn_sample s;
    for (size_t i = 0; g->n_generated < g->min_tokens && i < g->n_eos; i++) {
        if (g->eos[i] < e->model->info.n_vocab) logits[g->eos[i]] = -INFINITY;
    }
    if (g->think.n_tokens) limit_thought(g, logits, e->model->info.n_vocab);
    uint32_t before = g->start ? g->start->n_tokens : 0; /* tokens that nobody knows */
    if (!qn_sampler_draw(g->sampler, logits, type, g->tokens + before, g->len - before,
                         g->n_generated, &s)) {
        end_without_token(e, g);
        return;
    }
    qn_finish f = commit(e, g, &s);
    if (f) qn_engine_end_row(e, g, f, NULL);
}

/* The prompt token after position pos, as likely as the model found it. */
static void report_prompt(qn_gen *g, float *logits, qn_dtype type, uint32_t pos)
{
    qn_event ev = {.kind = QN_EV_PROMPT, .index = pos + 1};
    qn_sampler_score(g->sampler, logits, type, g->tokens[pos + 1], &ev.sample);
    g->n_scored = pos + 1;
    qn_gen_emit(g, &ev);
}

void qn_engine_outputs(qn_engine *e, float *logits, qn_dtype type, const float *states)
{
    const qn_plan *p = &e->plan;
    uint32_t n_logits = p->batch.n_out - p->batch.n_hidden;
    size_t n_vocab = e->model->info.n_vocab, width = e->model->info.d_model;
    for (uint32_t i = 0; i < p->batch.n_hidden; i++) {
        const qn_gen *g = p->out_gen[n_logits + i];
        size_t at = g->hidden_kind == QN_HIDDEN_ALL ? p->out_pos[n_logits + i] : 0;
        memcpy(g->hidden + at * width, states + i * width, width * sizeof *states);
    }
    for (uint32_t i = 0; i < n_logits; i++) {
        qn_gen *g = p->out_gen[i];
        if (p->out_pos[i] + 1 < g->len)
            report_prompt(g, logits + i * n_vocab, type, p->out_pos[i]);
        else sample_row(e, g, logits + i * n_vocab, type);
    }
}
