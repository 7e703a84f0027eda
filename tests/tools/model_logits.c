/* model_logits.c - a test tool: the logits of a prompt's positions as raw float32, for comparison
 * with an oracle. Drives the model directly, without the engine: a forward pass per chunk, every
 * row's logits.
 *
 * usage: model_logits MODEL DEVICE ISA OUT IDS CHUNKS
 *   IDS and CHUNKS are numbers separated by commas; the chunks' sum is the number of ids. OUT gets
 *   float32 [ids, vocabulary]. ISA "-": the best. Prints tokens per second to stderr.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/device.h"
#include "core/clock.h"
#include "model/model.h"

enum { MAX_IDS = 4096, BLOCK = 64 };

static void check(qn_code rc, const qn_err *err)
{
    if (!rc) return;
    fprintf(stderr, "model_logits: %s\n", err->text);
    exit(1);
}

static uint32_t parse(const char *s, uint32_t *out)
{
    uint32_t n = 0;
    char *end;
    for (; *s && n < MAX_IDS; s = *end ? end + 1 : end) out[n++] = (uint32_t)strtoul(s, &end, 10);
    return n;
}

typedef struct pass {
    qn_model *m;
    qn_run *run;
    qn_kv *kv;
    uint32_t blocks[MAX_IDS / BLOCK + 1];
} pass;

static void open_pass(pass *p, uint32_t n_ids, uint32_t max_chunk)
{
    qn_err err = {0};
    const qn_ops *ops = p->m->dev->ops;
    uint32_t n_blocks[QN_MAX_KV_GROUPS];
    for (uint32_t i = 0; i < MAX_IDS / BLOCK + 1; i++) p->blocks[i] = i;
    for (int g = 0; g < QN_MAX_KV_GROUPS; g++) n_blocks[g] = n_ids / BLOCK + 1;
    p->m->kv.block_tokens = BLOCK;
    check(ops->kv_new(p->m->dev, &p->m->kv, n_blocks, &p->kv, &err), &err);
    qn_run_limits limits = {max_chunk, 1, max_chunk, n_ids,
                            p->m->ops->scratch(p->m, max_chunk, max_chunk)};
    check(ops->run_new(p->m->dev, &limits, &p->run, &err), &err);
}

static void forward(pass *p, const uint32_t *ids, uint32_t past, uint32_t n, FILE *out)
{
    qn_err err = {0};
    const qn_ops *ops = p->m->dev->ops;
    static uint32_t pos[MAX_IDS], rows[MAX_IDS];
    for (uint32_t i = 0; i < n; i++) pos[i] = past + i, rows[i] = i;
    qn_item item = {.row0 = 0, .n_new = n, .n_past = past};
    for (int g = 0; g < QN_MAX_KV_GROUPS; g++) item.blocks[g] = p->blocks;
    qn_batch b = {.n_tokens = n,
                  .n_items = 1,
                  .n_out = n,
                  .ids = ids,
                  .pos = pos,
                  .items = &item,
                  .out_rows = rows};
    ops->begin(p->run, &b, p->kv);
    qn_tensor y = p->m->ops->forward(p->m, p->run);
    const float *v = ops->fetch(p->run, y);
    if (fwrite(v, sizeof *v, (size_t)y.rows * y.cols, out) != (size_t)y.rows * y.cols) exit(1);
    check(ops->end(p->run, &err), &err);
}

int main(int argc, char **argv)
{
    if (argc != 7) return 2;
    qn_err err = {0};
    static uint32_t ids[MAX_IDS], chunks[MAX_IDS];
    uint32_t n_ids = parse(argv[5], ids), n_chunks = parse(argv[6], chunks), max_chunk = 0, at = 0;
    for (uint32_t i = 0; i < n_chunks; i++)
        max_chunk = chunks[i] > max_chunk ? chunks[i] : max_chunk;
    qn_device *dev;
    qn_folder *folder;
    pass p = {0};
    qn_device_opts opts = {.name = argv[2], .isa = strcmp(argv[3], "-") ? argv[3] : NULL};
    qn_model_opts mopts = {.max_positions = MAX_IDS};
    check(qn_device_open(&dev, &opts, &err), &err);
    check(qn_folder_open(&folder, argv[1], false, &err), &err);
    check(qn_model_open(&p.m, folder, dev, &mopts, &err), &err);
    open_pass(&p, n_ids, max_chunk);
    FILE *out = fopen(argv[4], "wb");
    if (!out) return 1;
    uint64_t start = qn_now_ns();
    for (uint32_t i = 0; i < n_chunks && at + chunks[i] <= n_ids; at += chunks[i], i++)
        forward(&p, ids + at, at, chunks[i], out);
    fprintf(stderr, "%s: %.2f tokens/s\n", argv[2], at / ((double)(qn_now_ns() - start) * 1e-9));
    fclose(out);
    dev->ops->run_free(p.run);
    dev->ops->kv_free(p.kv);
    qn_model_close(p.m);
    qn_folder_close(folder);
    dev->ops->close(dev);
    return at == n_ids ? 0 : 1;
}
