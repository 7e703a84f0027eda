/* tok_tiktoken.c - tiktoken.model: a list of byte strings with their ranks.
 *
 * One line for each token: its bytes in base64, a space, its rank, which is its id and says when a
 * merge that makes it happens. The pattern is code beside the file; here it is that of the one
 * family that ships such files (Kimi). Special tokens follow the ranks: those that
 * tokenizer_config.json names, the ids between them as <|reserved_token_ID|>.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tok_impl.h"

enum { N_SPECIAL = 256, MAX_LINE = 2 * TOK_MAX_TOKEN };

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define CAPS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
static const char pattern[] =
    "[\\p{Han}]+|" LEAD CAPS "*" SMALL "+" CONTRACTIONS "|" LEAD CAPS "+" SMALL "*" CONTRACTIONS
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static qn_code bad_line(size_t line, const char *why, qn_err *err)
{
    return qn_err_set(err, QN_FORMAT, "tiktoken.model: line %zu %s", line, why);
}

/* "BASE64 RANK" to an entry whose token is written in the byte alphabet. */
static qn_code read_line(qn_tokenizer *t, tok_str s, size_t line, tok_entry *entry, qn_err *err)
{
    const char *space = memchr(s.s, ' ', s.n);
    if (s.n > MAX_LINE) return bad_line(line, "is too long", err);
    if (!space) return bad_line(line, "is not a token and its rank", err);
    uint64_t rank = 0;
    const char *p = space + 1;
    if (p == s.s + s.n) return bad_line(line, "has no rank", err);
    for (; p < s.s + s.n; p++) {
        if (*p < '0' || *p > '9') return bad_line(line, "has a rank that is no number", err);
        rank = rank * 10 + (uint64_t)(*p - '0');
        if (rank >= TOK_MAX_IDS) return bad_line(line, "has a rank over the limit", err);
    }
    qn_buf bytes = {0}, text = {0};
    bool ok = tok_base64(s.s, (size_t)(space - s.s), &bytes) && bytes.len;
    if (ok) tok_bytes_to_alphabet(bytes.data, bytes.len, &text);
    char *copy = ok && !text.failed ? qn_arena_dup(&t->arena, text.data, text.len) : NULL;
    *entry = (tok_entry){{copy, text.len}, (uint32_t)rank};
    qn_buf_release(&bytes);
    qn_buf_release(&text);
    if (!ok) return bad_line(line, "has a token that is not base64", err);
    return copy ? QN_OK : qn_err_set(err, QN_NOMEM, "tiktoken.model: out of memory");
}

static qn_code read_lines(qn_tokenizer *t, tok_str s, qn_err *err)
{
    size_t n = 0, cap = 1, line = 0;
    for (size_t i = 0; i < s.n; i++) cap += s.s[i] == '\n';
    if (cap > TOK_MAX_IDS) {
        return qn_err_set(err, QN_LIMIT, "tiktoken.model: more than %d lines", TOK_MAX_IDS);
    }
    tok_entry *entries = malloc(cap * sizeof *entries);
    qn_code rc = entries ? QN_OK : qn_err_set(err, QN_NOMEM, "tiktoken.model: out of memory");
    for (size_t i = 0; i < s.n && !rc;) {
        const char *nl = memchr(s.s + i, '\n', s.n - i);
        size_t end = nl ? (size_t)(nl - s.s) : s.n;
        line++;
        if (end > i) rc = read_line(t, (tok_str){s.s + i, end - i}, line, &entries[n], err);
        n += end > i;
        i = end + 1;
    }
    if (!rc) rc = tok_vocab_build(t, entries, n, err);
    free(entries);
    return rc;
}

/* Ranks and tokens must pair up, and every byte must be a token. */
static qn_code check_vocab(const qn_tokenizer *t, qn_err *err)
{
    const tok_vocab *v = &t->model.vocab;
    for (uint32_t id = 0; id < v->n_ids; id++) {
        tok_str s = tok_vocab_token(v, id);
        if (s.s && tok_vocab_find(v, s.s, s.n) == id) continue;
        return qn_err_set(err, QN_FORMAT, "tiktoken.model: rank %u is missing or there twice", id);
    }
    for (unsigned b = 0; b < 256; b++) {
        qn_buf c = {0};
        tok_bytes_to_alphabet(&(char){(char)b}, 1, &c);
        bool known = !c.failed && tok_vocab_find(v, c.data, c.len) != QN_NO_TOKEN;
        qn_buf_release(&c);
        if (!known) return qn_err_set(err, QN_FORMAT, "tiktoken.model: no token for byte %u", b);
    }
    return QN_OK;
}

/* The special tokens as "added_tokens" of a tokenizer.json. */
static json_t *special_tokens(const qn_tokenizer *t)
{
    const json_t *named = json_object_get(t->config, "added_tokens_decoder");
    json_t *list = json_array();
    for (uint32_t i = 0; named && i < N_SPECIAL; i++) {
        char key[16], reserved[48];
        uint32_t id = t->model.vocab.n_ids + i;
        snprintf(key, sizeof key, "%u", id);
        snprintf(reserved, sizeof reserved, "<|reserved_token_%u|>", id);
        const json_t *token = json_object_get(named, key);
        const char *text = json_string_value(json_object_get(token, "content"));
        json_array_append_new(list, json_pack("{s:s, s:b, s:b}", "content", text ? text : reserved,
                                              "special", 1, "normalized", 0));
    }
    return list;
}

qn_code tok_tiktoken_read(qn_tokenizer *t, const void *data, size_t n, json_t **root, qn_err *err)
{
    qn_code rc = read_lines(t, (tok_str){data, n}, err);
    if (!rc) rc = check_vocab(t, err);
    if (!rc) rc = tok_bpe_merges_of_vocab(t, NULL, NULL, err);
    if (rc) return rc;
    *root = json_pack(
        "{s:{s:s, s:b}, s:{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b}]}, s:{s:s}, s:o}",
        "model", "type", "BPE", "ignore_merges", 1, "pre_tokenizer", "type", "Sequence",
        "pretokenizers", "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated",
        "invert", 0, "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0, "decoder", "type",
        "ByteLevel", "added_tokens", special_tokens(t));
    return *root ? QN_OK : qn_err_set(err, QN_NOMEM, "tiktoken.model: out of memory");
}
