/* out_files.c - what stands beside the tensors: config.json, the model card, copied files. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "tune/job.h"

enum { MAX_SIDE_FILE = 1 << 29 }; /* bytes; tokenizer.json of the largest vocabularies has 40 MB */

/* ---- config.json ---- */

static json_t *spec_object(const qn_qspec *s)
{
    json_t *o = json_object();
    json_object_set_new(o, "group_size", json_integer(s->group_size));
    json_object_set_new(o, "bits", json_integer(s->bits));
    json_object_set_new(o, "mode", json_string(qn_qmode_name(s->mode)));
    return o;
}

static bool same_spec(const qn_qspec *a, const qn_qspec *b)
{
    return a->mode == b->mode && a->bits == b->bits && a->group_size == b->group_size;
}

/* The top level, and an entry for every module that differs from it. */
static json_t *quantization_block(const qn_job *job)
{
    json_t *q = spec_object(&job->top);
    for (size_t i = 0; i < job->n_items; i++) {
        const qn_item *it = &job->items[i];
        if (!it->is_module || it->is_raw_gate || same_spec(&it->spec, &job->top)) continue;
        bool dense = it->spec.mode == QN_Q_NONE;
        json_object_set_new(q, it->name, dense ? json_false() : spec_object(&it->spec));
    }
    return q;
}

qn_code qn_job_write_config(qn_job *job, const char *dir, qn_err *err)
{
    if (job->top.mode != QN_Q_NONE) {
        json_t *q = quantization_block(job);
        if (!q) return qn_err_set(err, QN_NOMEM, "config.json: out of memory");
        json_object_set(job->config, "quantization", q);
        json_object_set_new(job->config, "quantization_config", q);
    }
    return qn_json_file(job->config, dir, "config.json", err);
}

/* ---- copied files ---- */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n > m && !strcmp(s + n - m, tail);
}

static bool in_list(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(name, *list)) return true;
    return false;
}

static bool is_tokenizer_file(const char *name)
{
    static const char *const names[] = {
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", NULL};
    return in_list(name, names) || ends_with(name, ".model");
}

static bool is_other_file(const char *name)
{
    static const char *const names[] = {
        "generation_config.json", "kv_config.json", "preprocessor_config.json",
        "processor_config.json", "video_preprocessor_config.json", NULL};
    return in_list(name, names) || ends_with(name, ".py");
}

static qn_code copy_file(const char *from, const char *dir, const char *name, qn_err *err)
{
    char *src = NULL, *dst = NULL, *data = NULL;
    size_t size;
    qn_code rc = QN_OK;
    if (asprintf(&src, "%s/%s", from, name) < 0 || asprintf(&dst, "%s/%s", dir, name) < 0)
        rc = qn_err_set(err, QN_NOMEM, "%s: out of memory", name);
    if (!rc) rc = qn_file_read(src, MAX_SIDE_FILE, &data, &size, err);
    if (!rc) rc = qn_file_write(dst, data, size, err);
    free(src);
    free(dst);
    free(data);
    return rc;
}

qn_code qn_copy_side_files(const char *from, const char *dir, bool all, qn_err *err)
{
    DIR *d = opendir(from);
    if (!d) return qn_err_set(err, QN_NOT_FOUND, "cannot open folder %s", from);
    qn_code rc = QN_OK;
    size_t n_tokenizer = 0;
    for (const struct dirent *e; !rc && (e = readdir(d));) {
        bool is_tokenizer = is_tokenizer_file(e->d_name);
        n_tokenizer += is_tokenizer;
        if (is_tokenizer || (all && is_other_file(e->d_name)))
            rc = copy_file(from, dir, e->d_name, err);
    }
    closedir(d);
    if (!rc && !all && !n_tokenizer)
        rc = qn_err_set(err, QN_NOT_FOUND, "folder %s holds no tokenizer file", from);
    return rc;
}

/* ---- the model card ---- */

/* Take the licence and language entries over from a card's front matter: the key's line and the
 * indented or dashed lines below it. */
static void put_kept_lines(qn_buf *b, const char *card)
{
    static const char *const keys[] = {"license:", "license_name:", "license_link:", "language:"};
    if (strncmp(card, "---\n", 4)) return;
    bool keep = false;
    for (const char *line = card + 4; *line;) {
        size_t n = strcspn(line, "\n");
        if (n >= 3 && !strncmp(line, "---", 3)) return;
        if (*line != ' ' && *line != '-') {
            keep = false;
            for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
                keep |= !strncmp(line, keys[i], strlen(keys[i]));
        }
        if (keep) {
            qn_buf_put(b, line, n);
            qn_buf_putc(b, '\n');
        }
        line += n + (line[n] == '\n');
    }
}

/* A licence from a GGUF key goes in only when it cannot break the front matter. */
static bool is_plain_word(const char *s)
{
    return *s && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") ==
                 strlen(s);
}

static void put_front_matter(qn_buf *b, const qn_job *job, const char *card, const char *license)
{
    qn_buf_puts(b, "---\nlibrary_name: mlx\npipeline_tag: text-generation\n");
    if (job->opts->source_id) qn_buf_printf(b, "base_model: %s\n", job->opts->source_id);
    if (card) put_kept_lines(b, card);
    else if (license && is_plain_word(license)) qn_buf_printf(b, "license: %s\n", license);
    qn_buf_puts(b, "tags:\n- mlx\n---\n\n");
}

qn_code qn_job_write_card(qn_job *job, const char *dir, const qn_convert_result *r,
                          const char *source_card, const char *license, qn_err *err)
{
    qn_buf b = {0}, path = {0};
    put_front_matter(&b, job, source_card, license);
    qn_buf_printf(&b, "# %s, MLX layout\n\n", job->name[0] ? job->name : "Model");
    qn_buf_printf(&b, "Made by quern %s from %s. Quantization: %s. %.3f bits per weight over all "
                  "tensors.\n", QN_VERSION, job->gguf ? "a GGUF file" : "a safetensors folder",
                  r->quantization, r->bpw_total);
    if (job->opts->command) qn_buf_printf(&b, "\n```\n%s\n```\n", job->opts->command);
    qn_buf_printf(&path, "%s/README.md", dir);
    qn_code rc = QN_OK;
    if (b.failed || path.failed) rc = qn_err_set(err, QN_NOMEM, "README.md: out of memory");
    else rc = qn_file_write(path.data, b.data, b.len, err);
    qn_buf_release(&b);
    qn_buf_release(&path);
    return rc;
}
