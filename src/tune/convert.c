/* convert.c - checks, the partial folder, and the order of work; see convert.h. */
#include "tune/convert.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "tune/job.h"
#include "tune/plan.h"

enum { MAX_CARD = 1 << 22 };

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static qn_code check_spec(const qn_convert_opts *o, qn_err *err)
{
    qn_qspec s = qn_qspec_default(o->mode == QN_Q_NONE ? QN_Q_AFFINE : o->mode);
    if (o->bits) s.bits = o->bits;
    if (o->group_size) s.group_size = o->group_size;
    return qn_qspec_check(&s, 0, err);
}

qn_code qn_convert_check(const qn_convert_opts *o, qn_err *err)
{
    qn_dtype dtype;
    if (!o->out_dir || !*o->out_dir)
        return qn_err_set(err, QN_INVALID, "an output folder is needed");
    if (o->quantize && o->dequantize)
        return qn_err_set(err, QN_INVALID, "quantize and dequantize exclude each other");
    if (o->recipe && !qn_is_recipe(o->recipe))
        return qn_err_set(err, QN_INVALID, "no recipe \"%s\"; there are mixed_2_6, mixed_3_4, "
                          "mixed_3_6 and mixed_4_6", o->recipe);
    if (o->recipe && o->mode != QN_Q_NONE && o->mode != QN_Q_AFFINE)
        return qn_err_set(err, QN_INVALID, "recipe %s is for mode affine, not %s", o->recipe,
                          qn_qmode_name(o->mode));
    if (o->recipe && !o->quantize)
        return qn_err_set(err, QN_INVALID, "recipe %s needs quantize", o->recipe);
    if (o->dtype && (qn_dtype_parse(o->dtype, &dtype) || !qn_dtype_config_name(dtype)))
        return qn_err_set(err, QN_INVALID, "no dtype \"%s\"; there are float16, bfloat16 and "
                          "float32", o->dtype);
    uint32_t again = o->requant_bits;
    if (again && again != 4 && again != 5 && again != 6 && again != 8)
        return qn_err_set(err, QN_INVALID, "re-quantizing to %u bits; 4, 5, 6 and 8 are possible",
                          again);
    qn_code rc = check_spec(o, err);
    if (rc) return rc;
    if (exists(o->out_dir))
        return qn_err_set(err, QN_INVALID, "%s exists already; name a new folder", o->out_dir);
    return QN_OK;
}

/* ---- publishing ---- */

static qn_code sync_folder(const char *path, qn_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int bad = fd < 0 || fsync(fd);
    int e = errno;
    if (fd >= 0) close(fd);
    return bad ? qn_err_set(err, QN_IO, "cannot sync folder %s: %s", path, strerror(e)) : QN_OK;
}

static qn_code sync_parent(const char *path, qn_err *err)
{
    char *copy = strdup(path);
    if (!copy) return qn_err_set(err, QN_NOMEM, "%s: out of memory", path);
    char *slash = strrchr(copy, '/');
    if (slash) slash[slash == copy] = '\0';
    qn_code rc = sync_folder(slash ? copy : ".", err);
    free(copy);
    return rc;
}

/* The folder appears whole or not at all, and never replaces something. File systems that cannot
 * rename without replacing get a check before a plain rename. */
static qn_code publish(const char *partial, const char *target, qn_err *err)
{
    qn_code rc = sync_folder(partial, err);
    if (rc) return rc;
    int bad = renameat2(AT_FDCWD, partial, AT_FDCWD, target, RENAME_NOREPLACE);
    if (bad && (errno == EINVAL || errno == ENOSYS)) {
        errno = EEXIST;
        bad = exists(target) || rename(partial, target);
    }
    if (bad && errno == EEXIST)
        return qn_err_set(err, QN_INVALID, "%s exists already; name a new folder", target);
    if (bad) return qn_err_set(err, QN_IO, "cannot rename to %s: %s", target, strerror(errno));
    return sync_parent(target, err);
}

/* ---- the work ---- */

static qn_code import(qn_job *job, qn_err *err)
{
    const char *source = job->opts->source;
    if (!exists(source)) return qn_err_set(err, QN_NOT_FOUND, "%s does not exist", source);
    if (qn_is_dir(source)) return qn_import_folder(job, err);
    return qn_import_gguf(job, err);
}

static qn_code write_side_files(qn_job *job, const char *dir, qn_err *err)
{
    const qn_convert_opts *o = job->opts;
    qn_code rc = QN_OK;
    if (job->folder) rc = qn_copy_side_files(o->source, dir, true, err);
    else if (!o->tokenizer_dir) rc = qn_write_gguf_tokenizer(job, dir, err);
    if (!rc && o->tokenizer_dir) rc = qn_copy_side_files(o->tokenizer_dir, dir, false, err);
    return rc;
}

/* "4-bit g32 affine, 1 module differs, 2 not quantized". */
static void describe(const qn_job *job, qn_convert_result *r)
{
    size_t n_other = 0, n_dense = 0, cap = sizeof r->quantization;
    qn_qspec top = job->top.mode != QN_Q_NONE ? job->top : qn_plan_common(job);
    if (top.mode == QN_Q_NONE) {
        snprintf(r->quantization, cap, "none");
        return;
    }
    for (size_t i = 0; i < job->n_items; i++) {
        const qn_item *it = &job->items[i];
        const qn_qspec *s = &it->spec;
        if (s->mode == QN_Q_NONE) n_dense += it->is_module && !it->is_raw_gate;
        else n_other += s->mode != top.mode || s->bits != top.bits ||
                        s->group_size != top.group_size;
    }
    int n = snprintf(r->quantization, cap, "%u-bit g%u %s", top.bits, top.group_size,
                     qn_qmode_name(top.mode));
    if (n_other)
        n += snprintf(r->quantization + n, cap - (size_t)n, ", %zu module%s differ%s", n_other,
                      n_other > 1 ? "s" : "", n_other > 1 ? "" : "s");
    if (n_dense)
        snprintf(r->quantization + n, cap - (size_t)n, ", %zu not quantized", n_dense);
}

static qn_code write_card(qn_job *job, const char *dir, const qn_convert_result *r, qn_err *err)
{
    char *card = NULL, *path = NULL;
    char license[64] = "";
    size_t size;
    qn_gguf_str text;
    if (job->folder && asprintf(&path, "%s/README.md", job->opts->source) >= 0)
        qn_file_read(path, MAX_CARD, &card, &size, NULL); /* a source without a card is fine */
    if (job->gguf && !qn_gguf_text(job->gguf, "general.license", &text, NULL) &&
        text.n < sizeof license)
        memcpy(license, text.p, text.n);
    qn_code rc = qn_job_write_card(job, dir, r, card, license, err);
    free(card);
    free(path);
    return rc;
}

static qn_code write_folder(qn_job *job, const char *dir, qn_convert_result *r, qn_err *err)
{
    /* Small files first: a tokenizer that cannot be built should not cost the tensors' time. */
    qn_code rc = write_side_files(job, dir, err);
    if (!rc) rc = qn_job_write_config(job, dir, err);
    if (!rc) rc = qn_job_write_tensors(job, dir, r, err);
    if (rc) return rc;
    describe(job, r);
    snprintf(r->model_type, sizeof r->model_type, "%s", job->model_type);
    snprintf(r->name, sizeof r->name, "%s", job->name);
    return write_card(job, dir, r, err);
}

/* "DIR" without slashes at its end. */
static char *trimmed(const char *path)
{
    char *copy = strdup(path);
    size_t n = copy ? strlen(copy) : 0;
    while (n > 1 && copy[n - 1] == '/') copy[--n] = '\0';
    return copy;
}

static qn_code write_and_publish(qn_job *job, const char *target, qn_convert_result *r, qn_err *err)
{
    char *partial = NULL;
    if (asprintf(&partial, "%s.partial-%ld", target, (long)getpid()) < 0)
        return qn_err_set(err, QN_NOMEM, "%s: out of memory", target);
    qn_code rc = qn_mkdirs(partial, err);
    if (!rc) rc = write_folder(job, partial, r, err);
    if (!rc) rc = publish(partial, target, err);
    if (rc) qn_remove_tree(partial, NULL);
    free(partial);
    return rc;
}

qn_code qn_convert(const qn_convert_opts *o, qn_convert_result *result, qn_err *err)
{
    *result = (qn_convert_result){0};
    if (!o->source) return qn_err_set(err, QN_INVALID, "a source is needed");
    qn_code rc = qn_convert_check(o, err);
    if (rc) return rc;
    char *target = trimmed(o->out_dir);
    if (!target) return qn_err_set(err, QN_NOMEM, "convert: out of memory");
    qn_job job = {.opts = o};
    rc = import(&job, err);
    if (!rc) rc = write_and_publish(&job, target, result, err);
    qn_job_release(&job);
    free(target);
    return rc;
}
