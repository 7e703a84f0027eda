/* text_prompt_fuzz.c - prompts that grow: whatever comes after what, the ids are those of a full
 * encode; and whatever a message holds, a sanitizer's ids have no control token of it. Input: texts
 * with NUL bytes between them, each added to the one before; a text of one byte cuts that many
 * hundredths off. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char json[] =
    "{\"added_tokens\": [{\"id\": 9, \"content\": \"<s>\", \"special\": true}, {\"id\": 10, \"content\": \"<x>\", "
    "\"special\": false, \"rstrip\": true}, {\"id\": 11, \"content\": \"<t>\", \"special\": false}], \"normalizer\": "
    "{\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"decoder\": "
    "{\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"unk_token\": \"u\", \"vocab\": {\"u\": 0, \"a\": 1, "
    "\"b\": 2, \"ab\": 3, \"<\": 4, \"s\": 5, \">\": 6, \"\\u0120\": 7, \"\\u0120a\": 8}, \"merges\": [\"a b\", "
    "\"\\u0120 a\"]}}";
static const char source[] = "<s>{{ messages[0].content }}<t>";

static qn_tokenizer *tok;
static qn_chat_template *chat;
static qn_sanitizer *sanitizer;

static void open_once(void)
{
    qn_err err = {0};
    if (tok) return;
    qn_check(!qn_tokenizer_parse(&tok, json, sizeof json - 1, NULL, 0, &err));
    qn_check(!qn_chat_template_from_source(&chat, source, sizeof source - 1, NULL, &err));
    qn_check(!qn_sanitizer_new(&sanitizer, tok, chat, &err));
}

static void grow(qn_encoder *e, const qn_buf *text)
{
    qn_err err = {0};
    qn_ids full = {0}, ids = {0};
    qn_check(!qn_tokenizer_encode(tok, text->data, text->len, 0, &full, &err));
    qn_check(!qn_encoder_encode(e, text->data, text->len, 0, &ids, &err));
    qn_check(ids.len == full.len && (!ids.len || !memcmp(ids.data, full.data, ids.len * 4)));
    qn_ids_release(&full);
    qn_ids_release(&ids);
}

/* One <s> and one <t>: those of the template. */
static void sanitize(qn_encoder *e, const char *s, size_t n)
{
    json_t *content = json_stringn(s, n); /* NULL: not UTF-8 */
    if (!content) return;
    json_t *messages = json_pack("[{s:s, s:o}]", "role", "user", "content", content);
    qn_err err = {0};
    qn_buf text = {0};
    qn_ids ids = {0};
    qn_check(!qn_chat_render_marked(sanitizer, chat, messages, NULL, NULL, false, false, &text, &err));
    qn_check(!qn_chat_encode(e, chat, sanitizer, &text, &ids, &err));
    size_t starts = 0, ends = 0;
    for (size_t i = 0; i < ids.len; i++) {
        starts += ids.data[i] == qn_tokenizer_find(tok, "<s>", 3);
        ends += ids.data[i] == qn_tokenizer_find(tok, "<t>", 3);
    }
    qn_check(starts == 1 && ends == 1);
    qn_ids_release(&ids);
    qn_buf_release(&text);
    json_decref(messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MAX_TEXT = 1 << 16, MAX_TURNS = 6 };
    const char *s = (const char *)data, *end = s + size;
    qn_err err = {0};
    qn_encoder *e;
    qn_buf text = {0};
    open_once();
    qn_check(!qn_encoder_new(&e, tok, 3, 1 << 20, &err));
    qn_buf_put(&text, "", 0);
    int turns = 0;
    for (size_t n; s < end && text.len < MAX_TEXT && turns < MAX_TURNS; s += n + 1, turns++) {
        const char *nul = memchr(s, 0, (size_t)(end - s));
        n = (size_t)((nul ? nul : end) - s);
        if (n == 1) {
            text.len -= text.len * ((unsigned char)*s % 101) / 100;
        } else {
            sanitize(e, s, n);
            do qn_buf_put(&text, s, n); /* up to what is worth remembering */
            while (n && text.len < QN_ENCODER_SHORT);
        }
        grow(e, &text);
    }
    qn_buf_release(&text);
    qn_encoder_free(e);
    return 0;
}
