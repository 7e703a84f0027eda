/* chat.c - ask a model one question: render the conversation, read the reply while it comes, print
 * what it cost.
 *
 *     cc -o chat chat.c $(pkg-config --cflags --libs quern)
 *     ./chat FOLDER "Why is the sky blue?"
 */
#include <quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* [{"role": "user", "content": question}] as JSON; freed with free. */
static char *conversation(const char *question)
{
    static const char head[] = "[{\"role\":\"user\",\"content\":\"", tail[] = "\"}]";
    char *json = malloc(sizeof head + 6 * strlen(question) + sizeof tail), *to = json;
    if (!json) return NULL;
    to += sprintf(to, "%s", head);
    for (const char *c = question; *c; c++) {
        if (*c == '"' || *c == '\\') to += sprintf(to, "\\%c", *c);
        else if ((unsigned char)*c < 32) to += sprintf(to, "\\u%04x", (unsigned)*c);
        else *to++ = *c;
    }
    strcpy(to, tail);
    return json;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s FOLDER QUESTION\n", argv[0]);
        return 2;
    }
    char err[512] = "";
    quern_model *m = quern_open(argv[1], NULL, err, sizeof err);
    char *messages = conversation(argv[2]);
    char *prompt = m && messages ? quern_render(m, messages, NULL, err, sizeof err) : NULL;
    const quern_options options = {.max_tokens = 200, .temperature = 0.7f, .top_p = 0.95f,
                                   .has_seed = 1, .seed = 1};
    quern_gen *g = prompt ? quern_start(m, prompt, &options, err, sizeof err) : NULL;
    int status = g ? 0 : 1;
    quern_event ev;
    while (g && quern_next(g, &ev, -1)) {
        fwrite(ev.text, 1, ev.n_text, stdout);
        fflush(stdout);
        if (ev.kind != QUERN_DONE) continue;
        printf("\n");
        fprintf(stderr, "%u prompt tokens, %.1f per second; %u generated, %.1f per second\n",
                ev.prompt_tokens, ev.prefill_tok_s, ev.generated_tokens, ev.decode_tok_s);
        if (ev.error) snprintf(err, sizeof err, "%s", ev.error);
        status = ev.finish == QUERN_ERROR;
    }
    if (status) fprintf(stderr, "%s\n", err[0] ? err : "out of memory");
    quern_gen_free(g);
    quern_free(prompt);
    free(messages);
    quern_close(m);
    return status;
}
