/* tokenizer.c - how fast one tokenizer encodes texts on one thread, as JSON on stdout.
 *
 * usage: tokenizer_bench TOKENIZER SECONDS FILE...
 *   Every file is encoded again and again as one text for about SECONDS; the best round counts.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/file.h"
#include "text/tokenizer.h"

enum { MAX_TEXT = 256 << 20 };

/* Processor time: other load on the machine counts less. */
static double cpu_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void stop(const qn_err *err)
{
    fprintf(stderr, "tokenizer_bench: %s\n", err->text);
    exit(1);
}

/* Best MB/s of the rounds. */
static double measure(const qn_tokenizer *t, const char *text, size_t n, double seconds,
                      size_t *n_ids)
{
    qn_ids ids = {0};
    double best = 1e9, total = 0;
    for (int round = 0; round < 2 || total < seconds; round++) {
        qn_err err = {0};
        ids.len = 0;
        double start = cpu_seconds();
        if (qn_tokenizer_encode(t, text, n, 0, &ids, &err)) stop(&err);
        double took = cpu_seconds() - start;
        if (took < best) best = took;
        total += took;
        if (round == 0 && took > seconds) break;
    }
    *n_ids = ids.len;
    qn_ids_release(&ids);
    return (double)n / 1e6 / best;
}

int main(int argc, char **argv)
{
    qn_err err = {0};
    qn_tokenizer *t;
    if (argc < 4) {
        fputs("usage: tokenizer_bench TOKENIZER SECONDS FILE...\n", stderr);
        return 2;
    }
    double start = cpu_seconds();
    if (qn_tokenizer_open(&t, argv[1], &err)) stop(&err);
    double open_ms = (cpu_seconds() - start) * 1e3;
    json_t *rates = json_array();
    for (int i = 3; i < argc; i++) {
        char *text;
        size_t n, n_ids;
        if (qn_file_read(argv[i], MAX_TEXT, &text, &n, &err)) stop(&err);
        double rate = measure(t, text, n, strtod(argv[2], NULL), &n_ids);
        json_array_append_new(rates,
                              json_pack("{s:f, s:I}", "mb_s", rate, "ids", (json_int_t)n_ids));
        free(text);
    }
    json_t *out = json_pack("{s:f, s:o}", "open_ms", open_ms, "texts", rates);
    json_dumpf(out, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(out);
    qn_tokenizer_close(t);
    return 0;
}
