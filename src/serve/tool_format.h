/* tool_format.h - how model families write tool calls in their text (spec server 12).
 *
 * A format is one table entry: the markers around a block of calls, and a parser of what is between
 * them. Parsers see foreign bytes: they fail with a sentence, never crash, and have limits.
 * Threads: any; formats are constant.
 */
#ifndef QN_SERVE_TOOL_FORMAT_H
#define QN_SERVE_TOOL_FORMAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "text/template.h"
#include "text/tokenizer.h"

enum { QN_MAX_TOOL_MARKS = 2, QN_MAX_SILENT = 3 };

/* The markers of a block. */
typedef struct qn_tool_marks {
    const char *start;
    const char *end;  /* "": the block goes on to the end of the reply */
} qn_tool_marks;

typedef struct qn_tool_format {
    const char *name;                       /* as mlx-lm's tool_parser_type */
    qn_tool_marks marks[QN_MAX_TOOL_MARKS]; /* alternatives; start NULL: none */
    const char *quote_open, *quote_close;   /* the end marker does not count in between; or NULL */
    const char *const *tokens;              /* further special tokens of its text, up to NULL; or NULL */
    const char *const *silent;              /* marks around the answer, which are no text of it, up to
                                             * QN_MAX_SILENT and NULL; with tools or without; or NULL */
    bool short_ids;                         /* ids are nine letters and digits */
    bool is_harmony;                        /* no blocks: messages with channels (harmony.h) */
    /* Parse a block's body [n], NUL terminated, and append {"name", "arguments": object, "id"?} for
     * each call to `calls` (array). `mark` says which of `marks` it stood in. `tools` are the
     * request's, for the types of arguments; NULL: none. Errors: QN_FORMAT (what is wrong),
     * QN_NOMEM. */
    qn_code (*parse)(const char *body, size_t n, unsigned mark, const json_t *tools, json_t *calls,
                     qn_err *err);
} qn_tool_format;

/* The format that a model writes: by tool_parser_type of tokenizer_config.json, else by what its
 * template says, else by its vocabulary; NULL if it knows no tools (no failure). */
const qn_tool_format *qn_tool_format_of(const qn_chat_template *chat, const qn_tokenizer *tok);

/* The format with a name, or NULL (no failure). */
const qn_tool_format *qn_tool_format_named(const char *name);

/* Call the parser with the body [n] of a block, and check and complete what it gives: at least one
 * call, every one with a name and an object of arguments. Errors: as parse. */
qn_code qn_tool_format_parse(const qn_tool_format *f, const char *body, size_t n, unsigned mark,
                             const json_t *tools, json_t *calls, qn_err *err);

#endif
