/* The marker machine and every parser of tool calls on any bytes. The first byte chooses the format,
 * the second how the text is cut and whether the prompt opened a think block; the parts must be the
 * same however it is cut. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/utf8.h"
#include "serve/json.h"
#include "serve/markers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const formats[] = {
    "minimax_m2", "gemma4",   "function_gemma", "longcat",    "glm47",      "qwen3_coder", "pythonic",
    "kimi_k2",    "minicpm5", "mistral",        "muse_spark", "json_tools", "harmony",
    "kimi_k3",
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static const char tools_text[] =
    "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": \"string\"},"
    "\"i\": {\"type\": \"integer\"}, \"n\": {\"type\": [\"number\", \"null\"]}, \"b\": {\"type\": \"boolean\"},"
    "\"o\": {\"anyOf\": [{\"type\": \"object\"}, {\"type\": \"string\"}]}, \"e\": {\"enum\": [1, \"x\"]}}}}}]";

/* What the parts say, ids apart, which are random. */
static void describe(const qn_parts *p, bool is_harmony, qn_buf *out)
{
    for (size_t i = 0; i < p->n; i++) {
        const qn_part *part = &p->list[i];
        qn_buf_printf(out, "%d%s(", part->kind, part->call_name ? part->call_name : "");
        qn_buf_put(out, part->text.data, part->text.len);
        if (part->kind != QN_PART_CALL) continue;
        if (!part->is_closed || !part->call_id[0] || !part->call_name[0]) abort();
        json_t *args = qn_json_value(part->text.data, part->text.len);
        if (!is_harmony && !json_is_object(args)) abort();
        json_decref(args);
    }
}

static void run(const qn_output *o, const char *text, size_t n, size_t step, bool was_cut, qn_buf *out)
{
    static const char *const stops[] = {"stop", "\n\n"};
    qn_parts parts = {0};
    qn_markers *m;
    qn_err err = {0};
    if (qn_markers_new(&m, o, stops, 2, &parts, &err)) abort();
    for (size_t at = 0; at < n; at += step) qn_markers_push(m, text + at, n - at < step ? n - at : step);
    qn_markers_finish(m, was_cut);
    describe(&parts, o->format->is_harmony, out);
    if (parts.failed) abort();
    qn_markers_free(m);
    qn_parts_release(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    qn_log_set_level(QN_CRITICAL);
    const char *text = (const char *)data + 2;
    size_t n = size - 2;
    if (!qn_utf8_valid(text, n)) return 0; /* the detokenizer gives nothing else */
    json_t *tools = json_loads(tools_text, 0, NULL);
    const qn_tool_format *format = qn_tool_format_named(formats[data[0] % N_FORMATS]);
    const qn_output o = {.think_start = "<think>",
                         .think_end = "</think>",
                         .starts_in_reasoning = data[1] & 1,
                         .one_call = data[1] & 2,
                         .tools = data[1] & 4 ? tools : NULL,
                         .format = format,
                         .silent = format->silent};
    bool was_cut = data[1] & 8;
    qn_buf once = {0}, bytes = {0}, some = {0};
    run(&o, text, n, n ? n : 1, was_cut, &once);
    run(&o, text, n, 1, was_cut, &bytes);
    run(&o, text, n, 2 + (data[1] >> 4), was_cut, &some);
    if (once.len != bytes.len || once.len != some.len) abort();
    if (once.len && (memcmp(once.data, bytes.data, once.len) || memcmp(once.data, some.data, once.len))) abort();
    qn_buf_release(&once);
    qn_buf_release(&bytes);
    qn_buf_release(&some);

    if (!o.format->is_harmony) { /* the parser alone, in the block's second form as well */
        for (unsigned mark = 0; mark < QN_MAX_TOOL_MARKS && o.format->marks[mark].start; mark++) {
            json_t *calls = json_array();
            qn_err err = {0};
            char *body = strndup(text, n);
            qn_tool_format_parse(o.format, body, strlen(body), mark, o.tools, calls, &err);
            json_decref(calls);
            free(body);
        }
    }
    json_decref(tools);
    return 0;
}
