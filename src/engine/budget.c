/* budget.c - what the engine's memory is made of: the plan, and what is used of it. */
#include <string.h>

#include "core/memory.h"
#include "engine/internal.h"

void qn_engine_note_base(qn_engine *e)
{
    uint64_t now, peak, weights;
    qn_memory_used(&now, &peak);
    e->model->dev->ops->weights_bytes(e->model->dev, &weights);
    e->base_bytes = (now > weights ? now - weights : 0) + e->o.beside_bytes;
}

/* The arrays of a step's plan. */
static uint64_t plan_arrays(const qn_engine *e)
{
    const uint64_t outs = e->o.max_rows + QN_WIDE_OUT;
    return e->o.max_rows * (sizeof(qn_item) + 2 * sizeof(qn_gen *)) +
           outs * (sizeof(qn_gen *) + 2 * sizeof(uint32_t)) +
           2 * (uint64_t)e->o.step_tokens * sizeof(uint32_t);
}

static uint64_t planned_rows(const qn_engine *e)
{
    return e->o.max_rows * (uint64_t)qn_gen_bytes(e, e->o.max_positions) +
           e->o.max_queue * (uint64_t)qn_gen_bytes(e, 0) + plan_arrays(e) +
           qn_desk_bytes(e->model->info.n_vocab);
}

qn_code qn_engine_kv_budget(const qn_engine *e, uint64_t *bytes, qn_err *err)
{
    const uint64_t limit = e->o.memory_bytes;
    const double gb = 1e9;
    *bytes = e->o.kv_bytes ? e->o.kv_bytes : qn_memory_available() / 2;
    if (!limit) return QN_OK;
    const uint64_t weights = e->model->dev->ops->weights_bytes(e->model->dev, NULL),
                   arena = e->arena_bytes, rows = planned_rows(e),
                   fixed = e->base_bytes + weights + arena + rows;
    if (limit <= fixed) {
        return qn_err_set(err, QN_LIMIT,
                          "the memory budget of %.3f GB leaves nothing for the KV cache: weights take "
                          "%.3f GB, the program %.3f, a step's work %.3f, requests %.3f",
                          (double)limit / gb, (double)weights / gb, (double)e->base_bytes / gb,
                          (double)arena / gb, (double)rows / gb);
    }
    if (!e->o.kv_bytes || *bytes > limit - fixed) *bytes = limit - fixed;
    return QN_OK;
}

void qn_engine_count_row(qn_engine *e, int64_t bytes)
{
    const uint64_t now = atomic_fetch_add(&e->row_bytes, (uint64_t)bytes) + (uint64_t)bytes;
    uint64_t peak = atomic_load(&e->row_peak);
    while (bytes > 0 && now > peak && !atomic_compare_exchange_weak(&e->row_peak, &peak, now)) {}
}

static uint64_t sum(const qn_memory_terms *t)
{
    return t->base + t->weights + t->kv + t->states + t->arena + t->rows;
}

void qn_engine_memory(const qn_engine *e, qn_memory *out)
{
    qn_device *dev = e->model->dev;
    qn_memory_terms *plan = &out->planned, *used = &out->used;
    *out = (qn_memory){.planned.base = e->base_bytes, .used.base = e->base_bytes};
    plan->weights = dev->ops->weights_bytes(dev, &used->weights);
    for (uint32_t g = 0; g < e->kv.n_groups; g++)
        plan->kv += qn_blocks_total(e->blocks, g) * (uint64_t)qn_blocks_bytes(e->blocks, g);
    used->kv = atomic_load(&e->kv_touched);
    if (e->states)
        plan->states = qn_states_total(e->states) * (uint64_t)qn_states_bytes(e->states);
    used->states = atomic_load(&e->states_touched);
    plan->arena = e->arena_bytes;
    used->arena = atomic_load(&e->arena_used);
    plan->rows = planned_rows(e);
    used->rows = atomic_load(&e->row_peak) + plan_arrays(e) +
                 qn_desk_used(e->desk, e->model->info.n_vocab);
    out->planned_sum = sum(plan);
    out->used_sum = sum(used);
    qn_memory_used(&out->resident, &out->resident_peak);
}
