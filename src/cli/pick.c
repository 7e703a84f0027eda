/* pick.c - see pick.h. */
#include "cli/pick.h"

#include "core/buf.h"
#include "model/model.h"

const qn_opt qn_opts_model[] = {
    {.name = "model", .kind = QN_OPT_STR, .arg = "PATH|QUERY",
     .help = "the model: a folder, or a part of a model's name; goes before the argument"},
    {.name = "query", .kind = QN_OPT_STR, .hidden = true, .help = "the same; used when nothing else names a model"},
    {0},
};

static qn_code refuse_type(const qn_model_entry *e, qn_err *err)
{
    qn_buf types = {0};
    for (const char *const *t = qn_model_types(); *t; t++) qn_buf_printf(&types, "%s%s", types.len ? ", " : "", *t);
    qn_err_set(err, QN_UNSUPPORTED, "%s: not supported yet: model type \"%s\"; supported: %s", e->id, e->model_type,
               types.data ? types.data : "");
    qn_buf_release(&types);
    return QN_UNSUPPORTED;
}

qn_code qn_pick_model(qn_store **store, const qn_args *args, const char *positional, const qn_model_entry **out,
                      qn_err *err)
{
    const char *query = qn_arg_str(args, "model");
    if (!query) query = positional;
    if (!query) query = qn_arg_str(args, "query");
    const qn_store_opts opts = {.supports = qn_model_supported};
    qn_code rc = qn_store_open(store, &opts, err);
    if (rc) return rc;
    rc = qn_store_find(*store, query, out, err);
    if (!rc && !(*out)->supported) rc = refuse_type(*out, err);
    if (rc) {
        qn_store_close(*store);
        *store = NULL;
    }
    return rc;
}
