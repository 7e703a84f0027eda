/* loaded.c - opening a model folder with all its parts, in the order in which errors are cheapest.
 */
#include "engine/loaded.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"

enum { PATH_BYTES = 4096 };

static char *name_of(const char *dir, const char *id)
{
    if (id) return strdup(id);
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    size_t start = n;
    while (start > 0 && dir[start - 1] != '/') start--;
    return strndup(dir + start, n - start);
}

static void add_eos(qn_loaded *l, uint32_t id)
{
    if (id == QN_NO_TOKEN || l->n_eos == QN_MAX_EOS) return;
    for (size_t i = 0; i < l->n_eos; i++) {
        if (l->eos[i] == id) return;
    }
    l->eos[l->n_eos++] = id;
}

/* The checkpoint's list and the tokenizer's own end token. */
static void read_eos(qn_loaded *l)
{
    uint32_t ids[QN_MAX_EOS];
    size_t n = qn_folder_eos(l->folder, ids, QN_MAX_EOS);
    for (size_t i = 0; i < n && i < QN_MAX_EOS; i++) add_eos(l, ids[i]);
    add_eos(l, qn_tokenizer_eos(l->tok));
}

static void on_weights(void *user, uint64_t done, uint64_t total)
{
    const qn_loaded_opts *o = user;
    if (o->progress) o->progress(o->user, "preparing weights", done, total);
}

static qn_code open_parts(qn_loaded *l, const char *dir, const qn_loaded_opts *o, qn_err *err)
{
    char cache[PATH_BYTES];
    qn_code rc;
    if ((rc = qn_folder_open(&l->folder, dir, false, err))) return rc;
    const json_t *type = json_object_get(qn_folder_config(l->folder), "model_type");
    if (json_is_string(type) && (rc = qn_model_check_type(json_string_value(type), err))) return rc;
    if ((rc = qn_tokenizer_open(&l->tok, dir, err))) return rc;
    if ((rc = qn_encoder_new(&l->encoder, l->tok, 0, 0, err))) return rc;
    if ((rc = qn_chat_template_open(&l->chat, dir, qn_tokenizer_config(l->tok), err))) return rc;
    read_eos(l);
    if ((rc = qn_device_open(&l->dev, &o->device, err))) return rc;
    qn_err no_home = {0}; /* without a home folder the panels stay in memory */
    bool cached = !o->no_panel_cache && !qn_state_path(cache, sizeof cache, "panels", &no_home);
    qn_model_opts mo = {.cache_dir = cached ? cache : NULL, .progress = on_weights, .user = (void *)(uintptr_t)o};
    if ((rc = qn_model_open(&l->model, l->folder, l->dev, &mo, err))) return rc;
    rc = qn_kv_scheme_apply(&o->kv, dir, &l->model->kv, err);
    if (!l->dev->exact) l->model->kv.quantized_start = 0;
    return rc;
}

/* Step 2 of the data path. */
qn_code qn_loaded_open(qn_loaded **out, const char *dir, const char *id, const qn_loaded_opts *opts,
                       qn_err *err)
{
    static const qn_loaded_opts none;
    *out = NULL;
    qn_loaded *l = calloc(1, sizeof *l);
    if (!l) return qn_err_set(err, QN_NOMEM, "model: out of memory");
    l->id = name_of(dir, id);
    qn_code rc = l->id ? open_parts(l, dir, opts ? opts : &none, err)
                       : qn_err_set(err, QN_NOMEM, "model: out of memory");
    if (rc) {
        qn_loaded_close(l);
        return rc;
    }
    *out = l;
    return QN_OK;
}

void qn_loaded_close(qn_loaded *l)
{
    if (!l) return;
    qn_model_close(l->model);
    if (l->dev) l->dev->ops->close(l->dev);
    qn_chat_template_free(l->chat);
    qn_encoder_free(l->encoder);
    qn_tokenizer_close(l->tok);
    qn_folder_close(l->folder);
    free(l->id);
    free(l);
}
