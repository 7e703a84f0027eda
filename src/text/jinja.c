/* jinja.c - compiling and rendering one template. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/utf8.h"
#include "text/jinja_run.h"
#include "text/template.h"

enum { MAX_TREE_BYTES = 512 << 20 };

struct qn_template {
    qn_jtree tree;
    int64_t (*clock)(void *arg);
    void *clock_arg;
    int64_t max_steps;
    size_t max_memory;
};

static int64_t system_clock(void *arg)
{
    (void)arg;
    return (int64_t)time(NULL);
}

/* Copy the source with every line end as "\n"; one at the very end is dropped, as jinja2 does. */
static bool copy_source(qn_jtree *t, const char *source, size_t size)
{
    t->source = qn_arena_take(&t->arena, size + 1, 1);
    if (!t->source) return false;
    for (size_t i = 0; i < size; i++) {
        if (source[i] == '\r') {
            t->source[t->size++] = '\n';
            if (i + 1 < size && source[i + 1] == '\n') i++;
        } else {
            t->source[t->size++] = source[i];
        }
    }
    if (t->size && t->source[t->size - 1] == '\n') t->size--;
    return true;
}

qn_code qn_template_compile(qn_template **out, const char *source, size_t size, const char *name,
                            qn_err *err)
{
    *out = NULL;
    if (size > QN_J_MAX_SOURCE)
        return qn_err_set(err, QN_LIMIT, "%s: a template may have %d bytes, this one has %zu", name,
                          QN_J_MAX_SOURCE, size);
    if (!qn_utf8_valid(source, size))
        return qn_err_set(err, QN_INVALID, "%s: the template is not UTF-8", name);
    qn_template *t = calloc(1, sizeof *t);
    if (!t) return qn_err_set(err, QN_NOMEM, "template: out of memory");
    t->clock = system_clock;
    qn_template_set_limits(t, 0, 0);
    t->tree.arena.limit_bytes = MAX_TREE_BYTES;
    t->tree.name = qn_arena_dup(&t->tree.arena, name, strlen(name));
    qn_code rc = QN_OK;
    if (!t->tree.name || !copy_source(&t->tree, source, size))
        rc = qn_err_set(err, QN_NOMEM, "template: out of memory");
    if (!rc) rc = qn_jparse(&t->tree, err);
    if (!rc) rc = qn_jresolve(&t->tree, err);
    if (rc) {
        qn_template_free(t);
        return rc;
    }
    *out = t;
    return QN_OK;
}

void qn_template_free(qn_template *t)
{
    if (!t) return;
    qn_arena_release(&t->tree.arena);
    free(t);
}

bool qn_template_writes(const qn_template *t, const char *s, size_t n)
{
    for (size_t i = 0; i < t->tree.literals.n; i++) {
        const qn_jstr *text = t->tree.literals.v[i]->value.s;
        if (text->n >= n && memmem(text->p, text->n, s, n)) return true;
    }
    return false;
}

void qn_template_set_limits(qn_template *t, int64_t steps, size_t memory_bytes)
{
    t->max_steps = steps ? steps : QN_J_MAX_STEPS;
    t->max_memory = memory_bytes ? memory_bytes : QN_J_MAX_MEMORY;
}

void qn_template_set_clock(qn_template *t, int64_t (*clock)(void *arg), void *arg)
{
    t->clock = clock ? clock : system_clock;
    t->clock_arg = arg;
}

qn_code qn_template_render(const qn_template *t, const json_t *vars, qn_buf *out, qn_err *err)
{
    qn_err local = {0};
    qn_buf text = {0};
    qn_jrun run = {
        .tree = &t->tree, .err = &local, .line = 1, .out = &text,
        .clock = t->clock, .clock_arg = t->clock_arg,
        .max_steps = t->max_steps, .max_memory = t->max_memory,
    };
    run.arena.limit_bytes = run.max_memory;
    qn_jval context = qn_jdict_new(&run), given = qn_jdict_new(&run);
    if (vars && !run.failed) given = qn_jfrom_json(&run, vars, 0);
    if (!run.failed && given.type != QN_J_DICT)
        qn_jfail(&run, "the variables must be a JSON object");
    if (!run.failed) {
        run.context = context.dict;
        run.vars = given.dict;
        qn_jexec_template(&run);
    }
    if (!run.failed && text.failed) qn_jfail(&run, "out of memory");
    qn_code rc = QN_OK;
    if (run.failed) rc = qn_err_set(err, local.code, "%s", local.text);
    else if (text.len) qn_buf_put(out, text.data, text.len);
    if (!rc && out->failed) rc = qn_err_set(err, QN_NOMEM, "template: out of memory");
    qn_buf_release(&text);
    qn_arena_release(&run.arena);
    return rc;
}
