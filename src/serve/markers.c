/* markers.c - see markers.h. */
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "serve/markers_impl.h"
#include "serve/tool_value.h"

/* ---- states ---- */

/* Needles of text and reasoning: the think marker, then the starts of blocks; in text then the silent
 * marks. */
enum {
    THINK_NEEDLE = 0,
    FIRST_TOOL_NEEDLE = 1,
    FIRST_SILENT_NEEDLE = FIRST_TOOL_NEEDLE + QN_MAX_TOOL_MARKS,
    N_NEEDLES = FIRST_SILENT_NEEDLE + QN_MAX_SILENT
};

/* Needles of a block. */
enum { END_NEEDLE = 0, QUOTE_NEEDLE = 1 };

static void enter(qn_markers *m, marker_state next)
{
    const char *needles[N_NEEDLES] = {"", "", "", "", "", ""};
    m->now = next;
    if (m->o.think_start) {
        needles[THINK_NEEDLE] = next == IN_TEXT ? m->o.think_start : m->o.think_end;
    }
    for (unsigned i = 0; m->o.format && i < QN_MAX_TOOL_MARKS; i++) {
        const char *start = m->o.format->marks[i].start;
        if (start) needles[FIRST_TOOL_NEEDLE + i] = start;
    }
    bool is_text = next == IN_TEXT && m->o.silent;
    for (unsigned i = 0; is_text && i < QN_MAX_SILENT && m->o.silent[i]; i++) {
        needles[FIRST_SILENT_NEEDLE + i] = m->o.silent[i];
    }
    qn_finder_set(&m->finder, needles, N_NEEDLES);
}

/* Look for the end of the open block and its quotes, or in a quote for the quote's end. */
static void look_in_block(qn_markers *m)
{
    const qn_tool_format *f = m->o.format;
    const char *open = f->quote_open ? f->quote_open : "";
    const char *needles[] = {m->in_quote ? "" : f->marks[m->i_tool].end,
                             m->in_quote ? f->quote_close : open};
    qn_finder_set(&m->finder, needles, 2);
}

/* ---- giving out ---- */

static void give_sure(qn_markers *m)
{
    m->parts->failed |= m->sure.failed;
    qn_parts_text(m->parts, m->now == IN_REASONING ? QN_PART_REASONING : QN_PART_TEXT, m->sure.data,
                  m->sure.len);
    qn_buf_clear(&m->sure);
}

void qn_markers_give(qn_markers *m, const char *text, size_t n)
{
    if (qn_stops_push(m->stops, text, n, &m->sure)) m->over = true;
    give_sure(m);
}

void qn_markers_break(qn_markers *m)
{
    qn_stops_flush(m->stops, &m->sure);
    give_sure(m);
}

/* ---- blocks of calls ---- */

void qn_markers_check_name(const qn_markers *m, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach(m->o.tools, i, tool) {
        const json_t *known = json_object_get(json_object_get(tool, "function"), "name");
        if (json_is_string(known) && !strcmp(json_string_value(known), name)) return;
    }
    qn_log(QN_WARNING, "the model calls a tool that was not offered: %.64s", name);
}

static void give_call(qn_markers *m, const json_t *call)
{
    const char *name = json_string_value(json_object_get(call, "name"));
    const char *id = json_string_value(json_object_get(call, "id"));
    qn_buf args = {0};
    qn_markers_check_name(m, name);
    qn_tool_write_args(&args, json_object_get(call, "arguments"));
    m->parts->failed |= args.failed;
    qn_parts_open_call(m->parts, name, id, m->o.format->short_ids);
    qn_parts_call_args(m->parts, args.data, args.len);
    qn_parts_close_call(m->parts);
    qn_buf_release(&args);
    if (m->o.one_call) m->over = true;
}

/* The block is complete; `end` is its end marker, or "" when the reply ended it. */
static void close_block(qn_markers *m, const char *end)
{
    size_t n_start = strlen(m->o.format->marks[m->i_tool].start);
    size_t n_body = m->block.len - n_start;
    json_t *calls = json_array(), *call;
    qn_err err = {0};
    enter(m, IN_TEXT);
    if (m->block.failed) {
        m->parts->failed = true;
    } else if (qn_tool_format_parse(m->o.format, m->block.data + n_start, n_body, m->i_tool,
                                    m->o.tools, calls, &err)) {
        qn_log(QN_WARNING, "a tool call does not parse and is shown as text: %s", err.text);
        qn_parts_text(m->parts, QN_PART_TEXT, m->block.data, m->block.len);
        qn_parts_text(m->parts, QN_PART_TEXT, end, strlen(end));
    }
    size_t i;
    json_array_foreach(calls, i, call) {
        if (!m->over) give_call(m, call);
    }
    json_decref(calls);
    qn_buf_clear(&m->block);
}

static void open_block(qn_markers *m, unsigned i_tool)
{
    qn_buf_clear(&m->block);
    qn_buf_puts(&m->block, m->o.format->marks[i_tool].start);
    m->now = IN_BLOCK;
    m->i_tool = i_tool;
    m->in_quote = false;
    look_in_block(m);
}

static void take_in_block(qn_markers *m, const qn_found *found)
{
    const qn_tool_format *f = m->o.format;
    qn_buf_put(&m->block, found->text, found->n);
    if (found->needle == END_NEEDLE) {
        close_block(m, f->marks[m->i_tool].end);
    } else if (found->needle == QUOTE_NEEDLE) {
        qn_buf_puts(&m->block, m->in_quote ? f->quote_close : f->quote_open);
        m->in_quote = !m->in_quote;
        look_in_block(m);
    }
}

/* ---- text and reasoning ---- */

static void take(qn_markers *m, const qn_found *found)
{
    qn_markers_give(m, found->text, found->n);
    if (m->over || found->needle == QN_NO_NEEDLE) return;
    qn_markers_break(m);
    if (found->needle == THINK_NEEDLE) enter(m, m->now == IN_TEXT ? IN_REASONING : IN_TEXT);
    else if (found->needle < FIRST_SILENT_NEEDLE) open_block(m, (unsigned)found->needle - FIRST_TOOL_NEEDLE);
}

static bool is_harmony(const qn_markers *m)
{
    return m->o.format && m->o.format->is_harmony;
}

bool qn_markers_push(qn_markers *m, const char *text, size_t n)
{
    if (m->over) return true;
    qn_found found;
    qn_finder_push(&m->finder, text, n);
    while (!m->over && qn_finder_next(&m->finder, &found)) {
        if (is_harmony(m)) qn_harmony_take(m, &found);
        else if (m->now == IN_BLOCK) take_in_block(m, &found);
        else take(m, &found);
    }
    m->parts->failed |= m->finder.held.failed || m->block.failed;
    return m->over;
}

void qn_markers_finish(qn_markers *m, bool was_cut)
{
    if (m->over) return;
    qn_found found;
    qn_finder_rest(&m->finder, &found);
    if (is_harmony(m)) {
        qn_harmony_take(m, &found);
        if (!m->over) qn_harmony_finish(m);
    } else if (m->now == IN_BLOCK) {
        take_in_block(m, &found);
        if (!was_cut) close_block(m, "");
    } else {
        take(m, &found);
        if (!m->over) qn_markers_break(m);
    }
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
    if (is_harmony(m)) qn_harmony_begin(m);
    else enter(m, o->starts_in_reasoning && o->think_start ? IN_REASONING : IN_TEXT);
    *out = m;
    return QN_OK;
}

void qn_markers_free(qn_markers *m)
{
    if (!m) return;
    qn_stops_free(m->stops);
    qn_finder_release(&m->finder);
    qn_buf_release(&m->block);
    qn_buf_release(&m->sure);
    free(m);
}

bool qn_markers_in_reasoning(const qn_markers *m)
{
    return m->now == IN_REASONING;
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
    for (size_t i = 0; o->silent && o->silent[i] && n_texts < 32; i++) texts[n_texts++] = o->silent[i];
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
