/* open.c - a stranger's program: a folder that is none is an error with a sentence. */
#include <quern.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    char err[512] = "";
    quern_model *m = quern_open("/no/such/folder", NULL, err, sizeof err);
    if (m || !strstr(err, "/no/such/folder")) {
        printf("unexpected: %s\n", err);
        return 1;
    }
    puts(err);
    return 0;
}
