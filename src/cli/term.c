/* term.c - drawing on a terminal; see term.h. */
#include "cli/term.h"

#include <inttypes.h>
#include <langinfo.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "core/clock.h"
#include "core/utf8.h"

enum { REDRAW_NS = 100000000, PLAIN_NS = 1000000000 };

static bool env_set(const char *key)
{
    const char *v = getenv(key);
    return v && *v;
}

bool qn_is_terminal(FILE *f)
{
    const char *term = getenv("TERM");
    return isatty(fileno(f)) && !(term && !strcmp(term, "dumb"));
}

qn_style qn_style_of(FILE *f)
{
    static const qn_style plain = {"", "", "", "", "", ""};
    static const qn_style colour = {"\033[0m", "\033[1m", "\033[2m", "\033[34m", "\033[32m", "\033[31m"};
    const char *force = getenv("CLICOLOR_FORCE");
    if (env_set("NO_COLOR")) return plain;
    if (force && *force && strcmp(force, "0")) return colour;
    return qn_is_terminal(f) ? colour : plain;
}

bool qn_has_utf8(void) { return !strcmp(nl_langinfo(CODESET), "UTF-8"); }

unsigned qn_columns(FILE *f)
{
    struct winsize size;
    if (!ioctl(fileno(f), TIOCGWINSZ, &size) && size.ws_col) return size.ws_col;
    const char *columns = getenv("COLUMNS");
    long n = columns ? strtol(columns, NULL, 10) : 0;
    return n >= 20 && n <= 10000 ? (unsigned)n : 80;
}

/* Bytes of the escape sequence at s, 0 if there is none. */
static size_t escape_length(const char *s)
{
    if (s[0] != '\033' || s[1] != '[') return 0;
    size_t n = 2;
    while (s[n] && (s[n] < '@' || s[n] > '~')) n++;
    return s[n] ? n + 1 : n;
}

/* Columns of the first character of s; *len gets its bytes. */
static size_t char_width(const char *s, size_t *len)
{
    *len = escape_length(s);
    if (*len) return 0;
    unsigned cp;
    *len = qn_utf8_decode(s, strlen(s), &cp);
    int w = wcwidth((wchar_t)cp);
    return w < 0 ? 1 : (size_t)w;
}

size_t qn_text_width(const char *s)
{
    size_t width = 0, len;
    for (; *s; s += len) width += char_width(s, &len);
    return width;
}

/* Write s, cut to `room` columns with a mark at the cut. */
static void put_cut(FILE *f, const char *s, size_t room)
{
    const char *mark = qn_has_utf8() ? "\xe2\x80\xa6" : "~";
    bool cut = qn_text_width(s) > room;
    size_t used = 0, len;
    for (; *s; s += len) {
        size_t w = char_width(s, &len);
        if (cut && used + w + 1 > room) break;
        fwrite(s, 1, len, f);
        used += w;
    }
    if (cut) fputs(mark, f);
}

/* ---- progress ---- */

void qn_progress_start(qn_progress *p, const char *label)
{
    *p = (qn_progress){.label = label, .live = qn_is_terminal(stderr), .started_ns = qn_now_ns()};
    p->drawn_ns = p->started_ns; /* a step that is over at once is not drawn */
}

void qn_progress_update(qn_progress *p, double fraction, const char *detail)
{
    uint64_t now = qn_now_ns();
    if (now - p->drawn_ns < (p->live ? REDRAW_NS : PLAIN_NS)) return;
    p->drawn_ns = now;
    p->shown = true;
    char line[512], percent[16] = "";
    if (fraction >= 0) snprintf(percent, sizeof percent, " %3d%%", (int)(fraction * 100));
    snprintf(line, sizeof line, "  %s%s%s%s", p->label, percent, detail ? "  " : "", detail ? detail : "");
    if (p->live) fputs("\r\033[2K", stderr);
    put_cut(stderr, line, p->live ? qn_columns(stderr) - 1 : sizeof line);
    if (!p->live) fputc('\n', stderr);
    fflush(stderr);
}

void qn_progress_end(qn_progress *p, bool good, const char *text)
{
    const qn_style st = qn_style_of(stderr);
    if (!p->shown) return;
    if (p->live) fputs("\r\033[2K", stderr);
    const char *mark = good ? "+" : "x";
    if (qn_has_utf8()) mark = good ? "\xe2\x9c\x93" : "\xe2\x9c\x97";
    fprintf(stderr, "  %s%s%s %s\n", good ? st.good : st.bad, mark, st.reset, text ? text : p->label);
}

/* ---- boxes and tables ---- */

typedef struct frame {
    const char *tl, *tr, *bl, *br, *h, *v;
} frame;

static void repeat(FILE *f, const char *s, size_t n)
{
    while (n--) fputs(s, f);
}

void qn_box(FILE *f, const char *const *lines, size_t n)
{
    static const frame fancy = {"\u256d", "\u256e", "\u2570", "\u256f", "\u2500", "\u2502"};
    static const frame ascii = {"+", "+", "+", "+", "-", "|"};
    const frame *fr = qn_has_utf8() ? &fancy : &ascii;
    const qn_style st = qn_style_of(f);
    size_t width = 0;
    for (size_t i = 0; i < n; i++) {
        size_t w = qn_text_width(lines[i]);
        if (w > width) width = w;
    }
    fprintf(f, "  %s%s", st.dim, fr->tl);
    repeat(f, fr->h, width + 2);
    fprintf(f, "%s%s\n", fr->tr, st.reset);
    for (size_t i = 0; i < n; i++) {
        fprintf(f, "  %s%s%s %s%*s %s%s%s\n", st.dim, fr->v, st.reset, lines[i],
                (int)(width - qn_text_width(lines[i])), "", st.dim, fr->v, st.reset);
    }
    fprintf(f, "  %s%s", st.dim, fr->bl);
    repeat(f, fr->h, width + 2);
    fprintf(f, "%s%s\n", fr->br, st.reset);
}

static void put_row(FILE *f, const qn_column *columns, size_t n, const char *const *cells, const size_t *widths)
{
    fputs("  ", f);
    for (size_t c = 0; c < n; c++) {
        const char *cell = cells[c] ? cells[c] : "?";
        int pad = (int)(widths[c] - qn_text_width(cell));
        bool last = c + 1 == n;
        if (columns[c].right) fprintf(f, "%*s%s%s", pad, "", cell, last ? "" : "  ");
        else if (last) fputs(cell, f);
        else fprintf(f, "%s%*s  ", cell, pad, "");
    }
}

void qn_table(FILE *f, const qn_column *columns, size_t n_columns, const char *const *cells, size_t n_rows)
{
    const qn_style st = qn_style_of(f);
    size_t widths[QN_TABLE_COLUMNS] = {0};
    const char *titles[QN_TABLE_COLUMNS];
    for (size_t c = 0; c < n_columns; c++) {
        titles[c] = columns[c].title;
        widths[c] = qn_text_width(titles[c]);
        for (size_t r = 0; r < n_rows; r++) {
            const char *cell = cells[r * n_columns + c];
            size_t w = cell ? qn_text_width(cell) : 1;
            if (w > widths[c]) widths[c] = w;
        }
    }
    fputs(st.dim, f);
    put_row(f, columns, n_columns, titles, widths);
    fprintf(f, "%s\n", st.reset);
    for (size_t r = 0; r < n_rows; r++) {
        put_row(f, columns, n_columns, cells + r * n_columns, widths);
        fputc('\n', f);
    }
}

const char *qn_bytes_text(char out[32], uint64_t bytes)
{
    if (bytes >= 1ull << 30) snprintf(out, 32, "%.2f GiB", (double)bytes / (1ull << 30));
    else if (bytes >= 1ull << 20) snprintf(out, 32, "%.1f MiB", (double)bytes / (1ull << 20));
    else snprintf(out, 32, "%" PRIu64 " B", bytes);
    return out;
}

const char *qn_count_text(char out[32], uint64_t n)
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%" PRIu64, n);
    size_t at = 0;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}
