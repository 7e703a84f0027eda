/* text_scan_fuzz.c - the hand-written splitters against PCRE2: the same first piece at every place of
 * any text. Input: a byte that picks the pattern, the text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/tok_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_PATTERNS = 64, MAX_TEXT = 2000 };

/* Compiled once; they stay reachable until the program ends. */
static tok_regex compiled[MAX_PATTERNS];
static tok_scratch *scratch;

static const tok_known_pattern *pick(uint8_t byte, const tok_regex **re)
{
    size_t n = 0;
    while (tok_known_patterns[n].pattern) n++;
    size_t i = byte % n;
    const tok_known_pattern *p = &tok_known_patterns[i];
    qn_err err = {0};
    qn_check(n <= MAX_PATTERNS);
    if (!scratch) {
        scratch = calloc(1, sizeof *scratch);
        qn_check(scratch != NULL);
        scratch->match = pcre2_match_data_create(1, NULL);
    }
    if (!compiled[i].code) {
        tok_str pattern = {p->pattern, strlen(p->pattern)};
        qn_check(!tok_regex_compile(&compiled[i], pattern, &err));
    }
    *re = &compiled[i];
    return p;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > MAX_TEXT) return 0;
    const char *s = (const char *)data + 1;
    size_t n = size - 1;
    qn_buf clean = {0};
    qn_err err = {0};
    const tok_regex *re;
    const tok_known_pattern *p = pick(data[0], &re);
    qn_check(!tok_clean(&s, &n, &clean, &err));
    for (size_t at = 0; at < n;) {
        size_t start = 0, end = 0, got = p->scan(s + at, n - at);
        int found = tok_regex_next(re, scratch, s + at, n - at, 0, &start, &end, &err);
        if (p->gaps && (!found || start)) { /* the piece is the text before the match */
            end = found ? start : n - at;
            start = 0;
            found = 1;
        }
        qn_check(found == 1 && start == 0 && end == got);
        at += got;
    }
    qn_buf_release(&clean);
    return 0;
}
