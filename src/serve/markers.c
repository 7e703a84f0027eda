/* markers.c - see markers.h. */
#include "serve/markers.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "serve/tool_value.h"

typedef enum state { NORMAL = 0, REASONING, TOOL } state;

enum { MAX_MARKS = 1 + QN_MAX_TOOL_MARKS };

/* A marker that is looked for in the present state. */
typedef struct mark {
    const char *text;
    size_t n;
    state next;
    unsigned i_tool; /* of a tool start: which of the format's marks */
} mark;

struct qn_markers {
    qn_output o;
    qn_parts *parts;
    qn_stops *stops;
    state now;
    mark marks[MAX_MARKS];  /* [n_marks], of the present state */
    size_t n_marks;
    qn_buf held;            /* text that may be the start of a marker */
    size_t n_checked;       /* bytes of `held` in which no marker ends */
    qn_buf block;           /* an open block with its start marker */
    unsigned i_tool;        /* its marks */
    bool in_quote;          /* inside the format's quotes */
    bool over;              /* nothing counts any more */
    qn_buf sure;            /* text behind the stop strings */
};

/* ---- markers of a state ---- */

static void add_mark(qn_markers *m, const char *text, state next, unsigned i_tool)
{
    m->marks[m->n_marks++] =
        (mark){.text = text, .n = strlen(text), .next = next, .i_tool = i_tool};
}

static void enter(qn_markers *m, state next)
{
    m->now = next;
    m->n_marks = 0;
    if (next == TOOL) return;
    if (m->o.think_start && next == NORMAL) add_mark(m, m->o.think_start, REASONING, 0);
    if (m->o.think_start && next == REASONING) add_mark(m, m->o.think_end, NORMAL, 0);
    for (unsigned i = 0; m->o.format && i < QN_MAX_TOOL_MARKS; i++) {
        const char *start = m->o.format->marks[i].start;
        if (start) add_mark(m, start, TOOL, i);
    }
}

/* The longest marker that ends at byte `end` of the held text, or NULL. */
static const mark *ending_at(const qn_markers *m, size_t end)
{
    const mark *best = NULL;
    for (size_t i = 0; i < m->n_marks; i++) {
        const mark *k = &m->marks[i];
        if (k->n > end || memcmp(m->held.data + end - k->n, k->text, k->n)) continue;
        if (!best || k->n > best->n) best = k;
    }
    return best;
}

/* Bytes at the end of the held text that begin some marker. */
static size_t hidden_tail(const qn_markers *m)
{
    size_t best = 0;
    for (size_t i = 0; i < m->n_marks; i++) {
        const mark *k = &m->marks[i];
        size_t n = k->n - 1 < m->held.len ? k->n - 1 : m->held.len;
        while (n > best && memcmp(m->held.data + m->held.len - n, k->text, n)) n--;
        if (n > best) best = n;
    }
    return best;
}

/* ---- giving out ---- */

static qn_part_kind kind_now(const qn_markers *m)
{
    return m->now == REASONING ? QN_PART_REASONING : QN_PART_TEXT;
}

static void give_sure(qn_markers *m)
{
    m->parts->failed |= m->sure.failed;
    qn_parts_text(m->parts, kind_now(m), m->sure.data, m->sure.len);
    qn_buf_clear(&m->sure);
}

/* Text of the present state, through the stop strings. */
static void give(qn_markers *m, const char *text, size_t n)
{
    if (qn_stops_push(m->stops, text, n, &m->sure)) m->over = true;
    give_sure(m);
}

/* The state's text ends here: no stop string goes on behind it. */
static void give_held_stops(qn_markers *m)
{
    qn_stops_flush(m->stops, &m->sure);
    give_sure(m);
}

/* ---- blocks of calls ---- */

static const char *tool_name(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static bool is_known(const qn_markers *m, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach(m->o.tools, i, tool) {
        const char *known = tool_name(tool);
        if (known && !strcmp(known, name)) return true;
    }
    return false;
}

static void give_call(qn_markers *m, const json_t *call)
{
    const char *name = json_string_value(json_object_get(call, "name"));
    const char *id = json_string_value(json_object_get(call, "id"));
    qn_buf args = {0};
    if (!is_known(m, name)) qn_log(QN_WARNING, "the model calls a tool not offered: %.64s", name);
    qn_tool_write_args(&args, json_object_get(call, "arguments"));
    m->parts->failed |= args.failed;
    qn_parts_open_call(m->parts, name, id, m->o.format->short_ids);
    qn_parts_call_args(m->parts, args.data, args.len);
    qn_parts_close_call(m->parts);
    qn_buf_release(&args);
    if (m->o.one_call) m->over = true;
}

/* The block is complete; its body ends `n_end` bytes before the block does. */
static void close_block(qn_markers *m, size_t n_end)
{
    size_t n_start = strlen(m->o.format->marks[m->i_tool].start);
    size_t n_body = m->block.len - n_start - n_end;
    char *body = strndup(m->block.data + n_start, n_body);
    json_t *calls = json_array(), *call;
    qn_err err = {0};
    enter(m, NORMAL);
    if (!body || m->block.failed) {
        m->parts->failed = true;
    } else if (qn_tool_format_parse(m->o.format, body, n_body, m->i_tool, m->o.tools, calls,
                                    &err)) {
        qn_log(QN_WARNING, "a tool call does not parse and is shown as text: %s", err.text);
        qn_parts_text(m->parts, QN_PART_TEXT, m->block.data, m->block.len);
    }
    size_t i;
    json_array_foreach(calls, i, call) {
        if (!m->over) give_call(m, call);
    }
    json_decref(calls);
    free(body);
    qn_buf_clear(&m->block);
}

static void open_block(qn_markers *m, const mark *k)
{
    qn_buf_clear(&m->block);
    qn_buf_put(&m->block, k->text, k->n);
    m->i_tool = k->i_tool;
    m->in_quote = false;
}

static bool block_ends_with(const qn_markers *m, const char *text)
{
    size_t n = strlen(text), n_start = strlen(m->o.format->marks[m->i_tool].start);
    return n && m->block.len >= n_start + n &&
           !memcmp(m->block.data + m->block.len - n, text, n);
}

/* One byte of an open block. */
static void block_byte(qn_markers *m, char c)
{
    const qn_tool_format *f = m->o.format;
    const char *end = f->marks[m->i_tool].end;
    qn_buf_putc(&m->block, c);
    if (m->block.failed) {
        m->parts->failed = m->over = true;
    } else if (f->quote_open && m->in_quote) {
        m->in_quote = !block_ends_with(m, f->quote_close);
    } else if (f->quote_open && block_ends_with(m, f->quote_open)) {
        m->in_quote = true;
    } else if (block_ends_with(m, end)) {
        close_block(m, strlen(end));
    }
}

/* ---- text and reasoning ---- */

/* A marker ends at byte `end` of the held text: the text before it, then the new state. */
static void take_mark(qn_markers *m, const mark *k, size_t end)
{
    mark met = *k;
    give(m, m->held.data, end - met.n);
    qn_buf_drop(&m->held, end);
    m->n_checked = 0;
    if (m->over) return;
    give_held_stops(m);
    if (met.next == TOOL) open_block(m, &met);
    enter(m, met.next);
}

/* Look through the held text up to a marker. Returns true if there was one. */
static bool scan(qn_markers *m)
{
    for (size_t end = m->n_checked + 1; end <= m->held.len; end++) {
        const mark *k = ending_at(m, end);
        if (!k) continue;
        take_mark(m, k, end);
        return true;
    }
    size_t n = m->held.len - hidden_tail(m);
    if (n) {
        give(m, m->held.data, n);
        qn_buf_drop(&m->held, n);
    }
    m->n_checked = m->held.len;
    return false;
}

/* Text behind a marker waits in `held`; what belongs to a block leaves it. */
static void feed_block(qn_markers *m)
{
    size_t i = 0;
    while (i < m->held.len && m->now == TOOL && !m->over) block_byte(m, m->held.data[i++]);
    qn_buf_drop(&m->held, i);
}

bool qn_markers_push(qn_markers *m, const char *text, size_t n)
{
    if (m->over) return true;
    qn_buf_put(&m->held, text, n);
    m->parts->failed |= m->held.failed;
    while (!m->over && m->held.len) {
        if (m->now == TOOL) feed_block(m);
        else if (!scan(m)) break;
    }
    return m->over;
}

void qn_markers_finish(qn_markers *m, bool was_cut)
{
    if (m->over) return;
    if (m->now != TOOL) {
        give(m, m->held.data, m->held.len);
        if (!m->over) give_held_stops(m);
    } else if (!was_cut) {
        close_block(m, 0);
    }
    qn_buf_clear(&m->held);
    m->over = true;
}

/* ---- the rest ---- */

qn_code qn_markers_new(qn_markers **out, const qn_output *o, const char *const *stops,
                       size_t n_stops, qn_parts *parts, qn_err *err)
{
    *out = NULL;
    qn_markers *m = calloc(1, sizeof *m);
    if (!m) return qn_err_set(err, QN_NOMEM, "reply: out of memory");
    m->o = *o;
    m->parts = parts;
    qn_code rc = qn_stops_new(&m->stops, stops, n_stops, err);
    if (rc) {
        qn_markers_free(m);
        return rc;
    }
    enter(m, o->starts_in_reasoning && o->think_start ? REASONING : NORMAL);
    *out = m;
    return QN_OK;
}

void qn_markers_free(qn_markers *m)
{
    if (!m) return;
    qn_stops_free(m->stops);
    qn_buf_release(&m->held);
    qn_buf_release(&m->block);
    qn_buf_release(&m->sure);
    free(m);
}

bool qn_markers_in_reasoning(const qn_markers *m)
{
    return m->now == REASONING;
}

const char *qn_markers_stop(const qn_markers *m)
{
    return qn_stops_met(m->stops);
}

size_t qn_output_tokens(const qn_output *o, const qn_tokenizer *tok, uint32_t *ids, size_t cap)
{
    /* Markers may be several tokens ("<|channel>thought"): every special token in them counts. */
    const char *texts[32];
    size_t n_texts = 0, n = 0;
    if (o->think_start) texts[n_texts++] = o->think_start;
    if (o->think_end) texts[n_texts++] = o->think_end;
    const qn_tool_format *f = o->format;
    for (unsigned i = 0; f && i < QN_MAX_TOOL_MARKS && f->marks[i].start; i++) {
        texts[n_texts++] = f->marks[i].start;
        texts[n_texts++] = f->marks[i].end;
    }
    for (size_t i = 0; f && f->tokens && f->tokens[i] && n_texts < 32; i++) {
        texts[n_texts++] = f->tokens[i];
    }
    for (size_t i = 0; i < n_texts; i++) {
        qn_ids in_text = {0};
        qn_err err = {0};
        if (!qn_tokenizer_encode(tok, texts[i], strlen(texts[i]), 0, &in_text, &err)) {
            for (size_t k = 0; k < in_text.len && n < cap; k++) {
                if (qn_tokenizer_is_special(tok, in_text.data[k])) ids[n++] = in_text.data[k];
            }
        }
        qn_ids_release(&in_text);
    }
    return n;
}
