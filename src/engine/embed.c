/* embed.c - a prompt's last hidden state, normalized. */
#include "engine/embed.h"

#include <math.h>
#include <string.h>

#include "engine/internal.h"

enum { POLL_MS = 50 };

uint32_t qn_engine_embed_width(const qn_engine *e)
{
    return e->model->info.d_model;
}

static void normalize(float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    if (!(sum > 0)) return;
    double length = sqrt(sum);
    for (uint32_t i = 0; i < n; i++) x[i] = (float)(x[i] / length);
}

qn_code qn_engine_embed(qn_engine *e, const uint32_t *ids, size_t n, bool (*cancel)(void *user),
                        void *user, float *out, qn_err *err)
{
    qn_gen *g;
    qn_request req = {.prompt = ids, .n_prompt = n, .hidden = QN_HIDDEN_LAST};
    qn_code rc = qn_engine_submit(e, &req, &g, err);
    if (rc) return rc;
    qn_event ev = {0};
    while (ev.kind != QN_EV_DONE && !(cancel && cancel(user)))
        qn_gen_wait(g, &ev, cancel ? POLL_MS : -1);
    if (ev.kind != QN_EV_DONE || ev.finish == QN_FINISH_CANCELLED) {
        rc = qn_err_set(err, QN_CANCELLED, "embedding: cancelled");
    } else if (ev.finish == QN_FINISH_ERROR) {
        rc = qn_err_set(err, ev.err.code, "%s", ev.err.text);
    } else {
        uint32_t width = qn_engine_embed_width(e);
        memcpy(out, qn_gen_hidden(g), width * sizeof *out);
        normalize(out, width);
    }
    qn_gen_free(g);
    return rc;
}
