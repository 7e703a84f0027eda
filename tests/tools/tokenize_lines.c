/* tokenize_lines.c - a test tool: JSON strings in, id arrays out, for comparison with an oracle.
 *
 * usage: tokenize_lines TOKENIZER [special] [plain] [decode] [stream] [bench N] < lines
 *   each input line is one JSON string; each output line an array of ids
 *   special  run the post-processor       plain   special tokens in text are ordinary
 *   decode   print [ids, text] instead    stream  the text comes from the streaming detokenizer
 *   bench N  encode all lines N times and print MB/s of processor time
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/detok.h"
#include "text/tokenizer.h"

typedef struct options {
    unsigned flags;
    bool decode, stream;
    int bench;
} options;

/* Processor time of this process in milliseconds: other load on the machine does not count. */
static double cpu_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static void fail(const qn_err *err)
{
    fprintf(stderr, "tokenize_lines: %s\n", err->text);
    exit(1);
}

static void decode_stream(const qn_tokenizer *t, const qn_ids *ids, qn_buf *out)
{
    qn_err err = {0};
    qn_detok *d;
    if (qn_detok_new(&d, t, 0, &err)) fail(&err);
    for (size_t i = 0; i < ids->len; i++) {
        if (qn_detok_push(d, ids->data[i], out, &err)) fail(&err);
    }
    if (qn_detok_finish(d, out, &err)) fail(&err);
    qn_detok_free(d);
}

static void print_line(const qn_tokenizer *t, const options *o, const qn_ids *ids)
{
    json_t *list = json_array();
    for (size_t i = 0; i < ids->len; i++) json_array_append_new(list, json_integer(ids->data[i]));
    if (o->decode) {
        qn_buf text = {0};
        qn_err err = {0};
        qn_buf_puts(&text, "");
        if (o->stream) {
            decode_stream(t, ids, &text);
        } else if (qn_tokenizer_decode(t, ids->data, ids->len, false, &text, &err)) {
            fail(&err);
        }
        json_t *pair = json_array();
        json_array_append_new(pair, list);
        json_array_append_new(pair, json_stringn(text.data, text.len));
        list = pair;
        qn_buf_release(&text);
    }
    json_dumpf(list, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(list);
}

static void run_line(const qn_tokenizer *t, const options *o, const json_t *s, double *bytes)
{
    qn_ids ids = {0};
    qn_err err = {0};
    for (int i = 0; i < (o->bench ? o->bench : 1); i++) {
        ids.len = 0;
        if (qn_tokenizer_encode(t, json_string_value(s), json_string_length(s), o->flags, &ids,
                                &err))
            fail(&err);
        *bytes += (double)json_string_length(s);
    }
    if (!o->bench) print_line(t, o, &ids);
    qn_ids_release(&ids);
}

static options parse_options(int argc, char **argv)
{
    options o = {0};
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "special")) o.flags |= QN_ENCODE_ADD_SPECIAL;
        if (!strcmp(argv[i], "plain")) o.flags |= QN_ENCODE_PLAIN;
        if (!strcmp(argv[i], "decode")) o.decode = true;
        if (!strcmp(argv[i], "stream")) o.decode = o.stream = true;
        if (!strcmp(argv[i], "bench") && i + 1 < argc) o.bench = atoi(argv[++i]);
    }
    return o;
}

int main(int argc, char **argv)
{
    qn_err err = {0};
    qn_tokenizer *t;
    if (argc < 2) {
        fprintf(stderr, "usage: tokenize_lines TOKENIZER [special] [plain] [decode] [stream] "
                        "[bench N] < lines\n");
        return 2;
    }
    options o = parse_options(argc, argv);
    double start = cpu_ms(), bytes = 0, busy = 0;
    if (qn_tokenizer_open(&t, argv[1], &err)) fail(&err);
    double opened = cpu_ms() - start;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_t *s = json_loadb(line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (!json_is_string(s)) {
            fprintf(stderr, "tokenize_lines: not a JSON string: %.80s\n", line);
            return 1;
        }
        double t0 = cpu_ms();
        run_line(t, &o, s, &bytes);
        busy += cpu_ms() - t0;
        json_decref(s);
    }
    if (o.bench) {
        printf("open %.1f ms, %.0f bytes in %.1f ms: %.1f MB/s\n", opened, bytes, busy,
               bytes / busy / 1000);
    }
    free(line);
    qn_tokenizer_close(t);
    return 0;
}
