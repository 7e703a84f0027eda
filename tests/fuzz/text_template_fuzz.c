/* text_template_fuzz.c - chat templates from anywhere with messages from anywhere: they compile and
 * render within their limits or say why not. Input: a template, a NUL byte, the variables as JSON
 * (a fixed conversation if that is no JSON object). */
#include <stdint.h>
#include <string.h>

#include "text/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char plain[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": null,"
    " \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, true]}}}]}],"
    " \"tools\": null, \"l\": [3, 1, 2], \"s\": \"Hello \\u00e9\", \"d\": {\"k\": 1}, \"i\": 7}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *s = (const char *)data, *nul = size ? memchr(s, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - s) : size;
    qn_err err = {0};
    qn_template *t;
    if (qn_template_compile(&t, s, n, "fuzz", &err)) {
        qn_check(err.code && err.text[0] && !t);
        return 0;
    }
    qn_template_set_limits(t, 100000, 16 << 20);
    json_t *vars = nul ? json_loadb(nul + 1, size - n - 1, JSON_ALLOW_NUL, NULL) : NULL;
    if (!vars) vars = json_loads(plain, 0, NULL);
    qn_buf out = {0};
    qn_code rc = qn_template_render(t, vars, &out, &err);
    qn_check(rc ? err.text[0] && out.len == 0 : !err.code);
    qn_buf_release(&out);
    json_decref(vars);
    qn_template_free(t);
    return 0;
}
