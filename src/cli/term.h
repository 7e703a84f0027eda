/* term.h - drawing on a terminal: styles, a progress line, boxes, tables, sizes in words.
 *
 * Decoration follows the stream that is written: colours only on a terminal (not TERM=dumb, not with
 * NO_COLOR; CLICOLOR_FORCE=1 forces them), glyphs outside ASCII only if the locale is UTF-8. Data
 * goes to stdout, everything drawn for people to stderr; tables are data.
 * Threads: one thread at a time per stream.
 */
#ifndef QN_CLI_TERM_H
#define QN_CLI_TERM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Escape sequences, or empty strings where the stream is plain. */
typedef struct qn_style {
    const char *reset, *bold, *dim, *accent, *good, *bad;
} qn_style;

/* The styles of a stream (no failure). */
qn_style qn_style_of(FILE *f);

/* True if the stream is a terminal that can move its cursor (no failure). */
bool qn_is_terminal(FILE *f);

/* True if the locale writes UTF-8; needs setlocale before (no failure). */
bool qn_has_utf8(void);

/* Columns of the terminal behind the stream: its size, else COLUMNS, else 80 (no failure). */
unsigned qn_columns(FILE *f);

/* How many columns n bytes of UTF-8 take; escape sequences take none (no failure). */
size_t qn_text_width(const char *s);

/* A step with progress on stderr. On a terminal one line is redrawn at most ten times a second;
 * elsewhere a line is printed at most once a second. Nothing is drawn for a step that ends before
 * that. Zeroed before start. */
typedef struct qn_progress {
    const char *label;   /* borrowed until end */
    bool live;           /* redraws one line */
    bool shown;          /* something was drawn */
    uint64_t started_ns, drawn_ns;
} qn_progress;

/* Begin a step (no failure). */
void qn_progress_start(qn_progress *p, const char *label);

/* Report progress: fraction 0..1, or negative if unknown; `detail` may be NULL (no failure). */
void qn_progress_update(qn_progress *p, double fraction, const char *detail);

/* End the step: writes a line with a tick or a cross and `text` (NULL: the label), unless
 * nothing was drawn before (no failure). */
void qn_progress_end(qn_progress *p, bool good, const char *text);

/* A box around n lines (no failure). */
void qn_box(FILE *f, const char *const *lines, size_t n);

enum { QN_TABLE_COLUMNS = 12 };

typedef struct qn_column {
    const char *title;
    bool right;          /* numbers */
} qn_column;

/* A table: `cells` holds n_rows times n_columns strings, row by row [n_rows, n_columns]; NULL prints
 * as "?" (no failure). */
void qn_table(FILE *f, const qn_column *columns, size_t n_columns, const char *const *cells, size_t n_rows);

/* "1.52 GiB", "310.4 MiB", "12 B" into out (no failure). */
const char *qn_bytes_text(char out[32], uint64_t bytes);

/* A whole number with commas between thousands (no failure). */
const char *qn_count_text(char out[32], uint64_t n);

#endif
