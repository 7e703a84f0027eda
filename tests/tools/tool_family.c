/* tool_family.c - print the tool format that each chat template file belongs to, one line each. */
#include <stdio.h>
#include <stdlib.h>

#include "byte_tokenizer.h"
#include "core/file.h"
#include "serve/tool_format.h"

int main(int argc, char **argv)
{
    qn_tokenizer *tok = qn_byte_tokenizer(NULL, 0, NULL);
    for (int i = 1; i < argc; i++) {
        qn_err err = {0};
        qn_chat_template *t;
        char *text;
        size_t n;
        if (qn_file_read(argv[i], 4 << 20, &text, &n, &err) ||
            qn_chat_template_from_source(&t, text, n, NULL, &err)) {
            fprintf(stderr, "tool_family: %s\n", err.text);
            return 1;
        }
        const qn_tool_format *f = qn_tool_format_of(t, tok);
        printf("%s\n", f ? f->name : "none");
        qn_chat_template_free(t);
        free(text);
    }
    qn_tokenizer_close(tok);
    return 0;
}
