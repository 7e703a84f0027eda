/* pieces.c - see pieces.h. */
#include "serve/pieces.h"

#include <stdlib.h>

qn_code qn_pieces_init(qn_pieces *p, const qn_tokenizer *tok, const qn_output *o,
                       const char *const *stops, size_t n_stops, bool keep_samples, qn_err *err)
{
    uint32_t shown[QN_DETOK_MAX_SHOWN];
    p->keep_samples = keep_samples;
    unsigned flags = QN_DETOK_SKIP_SPECIAL | (o->keeps_space ? 0u : (unsigned)QN_DETOK_TRIM);
    qn_code rc = qn_detok_new(&p->detok, tok, flags, err);
    if (rc) return rc;
    qn_detok_show(p->detok, shown, qn_output_tokens(o, tok, shown, QN_DETOK_MAX_SHOWN));
    return qn_markers_new(&p->markers, o, stops, n_stops, &p->parts, err);
}

void qn_pieces_release(qn_pieces *p)
{
    qn_detok_free(p->detok);
    qn_markers_free(p->markers);
    qn_parts_release(&p->parts);
    qn_buf_release(&p->fresh);
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

static void pass_on(qn_pieces *p)
{
    p->stopped = qn_markers_push(p->markers, p->fresh.data, p->fresh.len);
    p->failed |= p->fresh.failed || p->parts.failed;
    qn_buf_clear(&p->fresh);
}

/* Step 11 of the data path. */
void qn_pieces_token(qn_pieces *p, const qn_event *ev)
{
    if (p->stopped) return;
    p->n_tokens++;
    p->n_reasoning += qn_markers_in_reasoning(p->markers) && !ev->is_eos;
    if (p->keep_samples) keep_sample(p, &ev->sample);
    if (ev->is_eos) return;
    if (qn_detok_push(p->detok, ev->sample.token, &p->fresh, NULL)) p->failed = true;
    pass_on(p);
}

void qn_pieces_finish(qn_pieces *p, bool was_cut)
{
    if (p->stopped) return;
    if (qn_detok_finish(p->detok, &p->fresh, NULL)) p->failed = true;
    pass_on(p);
    qn_markers_finish(p->markers, was_cut);
    p->stopped = p->stopped || qn_markers_stop(p->markers);
    p->failed |= p->parts.failed;
}

void qn_pieces_rest(qn_pieces *p, qn_piece *out)
{
    *out = (qn_piece){.text = "",
                      .samples = p->samples ? p->samples + p->n_samples_given : NULL,
                      .n_samples = p->n_samples - p->n_samples_given};
    p->n_samples_given = p->n_samples;
}

/* A piece of the part under the cursor. */
static bool give(qn_pieces *p, const qn_part *part, qn_piece_kind kind, qn_piece *out)
{
    qn_pieces_rest(p, out);
    out->kind = kind;
    if (part->kind == QN_PART_CALL) {
        out->call_index = part->call_index;
        out->call_id = part->call_id;
        out->call_name = part->call_name;
    }
    if (kind == QN_PIECE_CALL || kind == QN_PIECE_CALL_END) return true;
    out->text = part->text.data + p->at_byte;
    out->n = part->text.len - p->at_byte;
    p->at_byte = part->text.len;
    return true;
}

static void next_part(qn_pieces *p)
{
    p->at_part++;
    p->at_byte = 0;
    p->at_args = false;
}

bool qn_pieces_next(qn_pieces *p, qn_piece *out)
{
    while (!p->failed && p->at_part < p->parts.n) {
        const qn_part *part = &p->parts.list[p->at_part];
        if (part->kind == QN_PART_CALL && !p->at_args) {
            p->at_args = true;
            return give(p, part, QN_PIECE_CALL, out);
        }
        if (p->at_byte < part->text.len) {
            qn_piece_kind kind = part->kind == QN_PART_CALL     ? QN_PIECE_ARGS
                                 : part->kind == QN_PART_TEXT ? QN_PIECE_TEXT
                                                                : QN_PIECE_REASONING;
            return give(p, part, kind, out);
        }
        if (part->kind == QN_PART_CALL) {
            if (!part->is_closed) return false;
            next_part(p);
            return give(p, part, QN_PIECE_CALL_END, out);
        }
        if (p->at_part + 1 == p->parts.n) return false; /* may grow */
        next_part(p);
    }
    return false;
}

const char *qn_pieces_stop(const qn_pieces *p)
{
    return qn_markers_stop(p->markers);
}
