/* embed.c - how alike texts are: the cosine of each text's vector with the first one's.
 *
 *     cc -o embed embed.c $(pkg-config --cflags --libs quern)
 *     ./embed FOLDER "a text" "another" ...
 *
 * Made for embedding models; any model gives vectors.
 */
#include <quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The vector of a text, of length 1, freed with free; NULL and a sentence in err. */
static float *vector_of(quern_model *m, const char *text, char *err, size_t err_bytes)
{
    size_t n;
    uint32_t *ids = quern_tokenize(m, text, strlen(text), 1, &n, err, err_bytes);
    float *v = ids ? malloc(quern_state_width(m) * sizeof *v) : NULL;
    if (v && quern_embed(m, ids, n, v, err, err_bytes)) {
        free(v);
        v = NULL;
    }
    quern_free(ids);
    return v;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s FOLDER TEXT...\n", argv[0]);
        return 2;
    }
    char err[512] = "";
    quern_model *m = quern_open(argv[1], NULL, err, sizeof err);
    float *first = m ? vector_of(m, argv[2], err, sizeof err) : NULL;
    int status = first ? 0 : 1;
    for (int i = 2; i < argc && !status; i++) {
        float *v = vector_of(m, argv[i], err, sizeof err);
        double cosine = 0;
        for (size_t k = 0; v && k < quern_state_width(m); k++) cosine += (double)first[k] * v[k];
        if (v) printf("%.4f  %s\n", cosine, argv[i]);
        else status = 1;
        free(v);
    }
    if (status) fprintf(stderr, "%s\n", err[0] ? err : "out of memory");
    free(first);
    quern_close(m);
    return status;
}
