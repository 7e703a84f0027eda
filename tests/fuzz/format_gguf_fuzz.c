/* format_gguf_fuzz.c - any bytes as a GGUF file: an error, or keys and tensors whose every byte can
 * be read, rows that can be evaluated and packed included. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "core/hash.h"
#include "format/gguf.h"
#include "format/gguf_blocks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_keys(const qn_gguf *g)
{
    static const char *const keys[] = {"general.alignment", "general.architecture", "a", "b",
                                       "tokenizer.ggml.tokens", "tokenizer.ggml.scores"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint64_t u;
        double d;
        bool flag;
        qn_gguf_str s;
        qn_gguf_array a;
        (void)qn_gguf_u64(g, keys[i], &u, NULL);
        (void)qn_gguf_f64(g, keys[i], &d, NULL);
        (void)qn_gguf_bool_or(g, keys[i], false, &flag, NULL);
        if (!qn_gguf_text(g, keys[i], &s, NULL)) (void)qn_hash64(s.p, s.n, 0);
        if (qn_gguf_list(g, keys[i], &a, NULL) || !a.n) continue;
        if (a.kind != QN_GGUF_STRING) {
            for (size_t j = 0; j < a.n; j++) (void)qn_gguf_number(&a, j);
            continue;
        }
        qn_gguf_str *all = malloc(a.n * sizeof *all);
        qn_check(all && !qn_gguf_strings(&a, keys[i], all, NULL));
        for (size_t j = 0; j < a.n; j++) (void)qn_hash64(all[j].p, all[j].n, 0);
        free(all);
    }
}

static void read_row(const qn_gguf_tensor *t)
{
    const qn_gguf_layout *l = qn_gguf_layout_of(t->type);
    size_t n_in = (size_t)t->dims[t->rank - 1];
    if (!l || !l->readable) return;
    float *y = malloc(2 * n_in * sizeof *y);
    uint8_t *words = malloc(2 * n_in);
    qn_check(y && words);
    qn_gguf_row_values(l, t->data, n_in, y);
    if (l->spec.mode != QN_Q_NONE)
        qn_gguf_row_pack(l, t->data, n_in, words, y, y + n_in, words + n_in);
    free(words);
    free(y);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_err err = {0};
    qn_gguf *g;
    qn_code rc = qn_gguf_parse(&g, data, size, "fuzz", &err);
    qn_check((rc == QN_OK) == (g != NULL) && rc == err.code);
    if (rc) return 0;
    read_keys(g);
    for (size_t i = 0; i < qn_gguf_count(g); i++) {
        const qn_gguf_tensor *t = qn_gguf_at(g, i);
        qn_check(qn_gguf_find(g, t->name) == t);
        if (t->data) (void)qn_hash64(t->data, (size_t)t->bytes, 0);
        if (t->data) read_row(t);
    }
    qn_gguf_close(g);
    return 0;
}
