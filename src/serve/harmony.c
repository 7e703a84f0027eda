/* harmony.c - the marker machine for gpt-oss: a reply is a sequence of messages (spec server 12.1).
 *
 *     <|start|>ROLE [to=RECIPIENT] <|channel|>NAME [to=RECIPIENT] [<|constrain|>json] <|message|>TEXT
 *
 * and then <|end|>, <|return|> or <|call|>. The prompt ends behind "<|start|>assistant". analysis is
 * reasoning, a recipient makes a call whose arguments are given out as they come, the rest is text. */
#include <ctype.h>
#include <string.h>

#include "core/log.h"
#include "serve/markers_impl.h"
#include "serve/tool_formats.h"
#include "serve/tool_value.h"

enum { START = 0, CHANNEL, MESSAGE, END, RETURN, CALL, N_MARKS };
enum { MAX_HEADER = 512 };

static const char *const marks[N_MARKS] = {"<|start|>", "<|channel|>", "<|message|>",
                                           "<|end|>",   "<|return|>",  "<|call|>"};
static const char *const tokens[] = {"<|start|>",  "<|channel|>", "<|message|>",   "<|end|>",
                                     "<|return|>", "<|call|>",    "<|constrain|>", NULL};

const qn_tool_format qn_tool_harmony = {.name = "harmony", .tokens = tokens, .is_harmony = true};

static void enter(qn_markers *m, marker_state next)
{
    m->now = next;
    qn_buf_clear(&m->block);
}

void qn_harmony_begin(qn_markers *m)
{
    qn_finder_set(&m->finder, marks, N_MARKS);
    enter(m, IN_HEADER);
    m->is_first = true;
}

/* ---- headers ---- */

/* The word behind `key` in a header, in `out`; "" if there is none. */
static void word_after(const char *header, const char *key, char *out, size_t cap)
{
    size_t n = 0;
    const char *s = strstr(header, key);
    for (s = s ? s + strlen(key) : ""; *s && *s != '<' && !isspace((unsigned char)*s); s++) {
        if (n + 1 < cap) out[n++] = *s;
    }
    out[n] = '\0';
}

/* The name of the tool that a header calls; "" for none. */
static void recipient_of(const char *header, char *out, size_t cap)
{
    word_after(header, "to=functions.", out, cap);
    if (!out[0]) word_after(header, "to=", out, cap);
    if (!strcmp(out, "all") || !strcmp(out, "user") || !strcmp(out, "assistant")) out[0] = '\0';
}

/* The header is complete: its message begins. */
static void open_message(qn_markers *m)
{
    char channel[32], name[128];
    const char *header = m->block.data ? m->block.data : "";
    word_after(header, marks[CHANNEL], channel, sizeof channel);
    recipient_of(header, name, sizeof name);
    if (name[0] && m->o.tools) {
        qn_markers_check_name(m, name);
        qn_parts_open_call(m->parts, name, NULL, false);
        enter(m, IN_CALL);
    } else {
        enter(m, strcmp(channel, "analysis") ? IN_TEXT : IN_REASONING);
    }
}

static bool begins_like(const qn_markers *m, const char *what)
{
    size_t n = strlen(what);
    return !strncmp(m->block.data, what, m->block.len < n ? m->block.len : n);
}

/* True if the header cannot become one: its text is the message itself. */
static bool is_malformed(const qn_markers *m)
{
    if (!m->block.len) return false;
    if (m->block.len > MAX_HEADER || strchr(m->block.data, '\n')) return true;
    return m->is_first && !begins_like(m, " to=") && !begins_like(m, "to=") &&
           !begins_like(m, "<|constrain|>");
}

/* A needle behind a header's text. */
static void end_header(qn_markers *m, int needle)
{
    if (needle == MESSAGE) {
        open_message(m);
    } else if (needle == CHANNEL) {
        qn_buf_puts(&m->block, marks[CHANNEL]);
    } else if (needle == START) {
        enter(m, IN_HEADER);
    } else {
        enter(m, IN_TEXT);
    }
    m->is_first = false;
}

/* ---- messages ---- */

static void close_message(qn_markers *m)
{
    if (m->now != IN_CALL) {
        qn_markers_break(m);
        return;
    }
    qn_part *call = &m->parts->list[m->parts->n - 1];
    if (!call->text.len) qn_parts_call_args(m->parts, "{}", 2);
    json_t *args = qn_json_value(call->text.data, call->text.len);
    if (!json_is_object(args)) {
        qn_log(QN_WARNING, "the arguments of %.64s are not a JSON object", call->call_name);
    }
    json_decref(args);
    qn_parts_close_call(m->parts);
    if (m->o.one_call) m->over = true;
}

void qn_harmony_take(qn_markers *m, const qn_found *found)
{
    if (m->parts->failed) return;
    if (m->now == IN_HEADER) {
        qn_buf_put(&m->block, found->text, found->n);
        if (!is_malformed(m)) {
            if (found->needle != QN_NO_NEEDLE) end_header(m, found->needle);
            return;
        }
        m->now = IN_TEXT;
        qn_markers_give(m, m->block.data, m->block.len);
        qn_buf_clear(&m->block);
    } else if (m->now == IN_CALL) {
        qn_parts_call_args(m->parts, found->text, found->n);
    } else {
        qn_markers_give(m, found->text, found->n);
    }
    if (m->over || m->parts->failed || found->needle == QN_NO_NEEDLE) return;
    close_message(m);
    /* Behind an end comes <|start|>; text without it is shown. */
    enter(m, found->needle == START || found->needle == CHANNEL ? IN_HEADER : IN_TEXT);
    if (found->needle == CHANNEL) qn_buf_puts(&m->block, marks[CHANNEL]);
}

void qn_harmony_finish(qn_markers *m)
{
    /* What never became a header is text; a header without its message is nothing. */
    if (m->now == IN_HEADER && m->is_first) {
        m->now = IN_TEXT;
        qn_markers_give(m, m->block.data, m->block.len);
    }
    if (m->now != IN_HEADER && !m->parts->failed && !m->over) close_message(m);
}
