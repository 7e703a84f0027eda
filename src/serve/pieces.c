/* pieces.c - see pieces.h. */
#include "serve/pieces.h"

#include <stdlib.h>

qn_code qn_pieces_init(qn_pieces *p, const qn_tokenizer *tok, const char *const *stops,
                       size_t n_stops, bool keep_samples, qn_err *err)
{
    p->keep_samples = keep_samples;
    return qn_reply_new(&p->reply, tok, stops, n_stops, err);
}

void qn_pieces_release(qn_pieces *p)
{
    qn_reply_free(p->reply);
    qn_buf_release(&p->text);
    free(p->samples);
}

static void keep_sample(qn_pieces *p, const qn_sample *s)
{
    if (p->n_samples == p->cap_samples) {
        size_t cap = p->cap_samples ? p->cap_samples * 2 : 16;
        qn_sample *grown = realloc(p->samples, cap * sizeof *grown);
        if (!grown) {
            p->failed = true;
            return;
        }
        p->samples = grown;
        p->cap_samples = cap;
    }
    p->samples[p->n_samples++] = *s;
}

void qn_pieces_token(qn_pieces *p, const qn_event *ev)
{
    if (p->stopped) return;
    p->n_tokens++;
    if (p->keep_samples) keep_sample(p, &ev->sample);
    if (!ev->is_eos) p->stopped = qn_reply_push(p->reply, ev->sample.token, &p->text);
    p->failed |= p->text.failed;
}

void qn_pieces_finish(qn_pieces *p)
{
    p->stopped = qn_reply_finish(p->reply, &p->text);
    p->failed |= p->text.failed;
}

void qn_pieces_rest(qn_pieces *p, qn_piece *out)
{
    out->text = "";
    out->n = 0;
    out->samples = p->samples ? p->samples + p->n_samples_given : NULL;
    out->n_samples = p->n_samples - p->n_samples_given;
    p->n_samples_given = p->n_samples;
}

bool qn_pieces_next(qn_pieces *p, qn_piece *out)
{
    if (p->text.len == p->n_given) return false;
    qn_pieces_rest(p, out);
    out->text = p->text.data + p->n_given;
    out->n = p->text.len - p->n_given;
    p->n_given = p->text.len;
    return true;
}
