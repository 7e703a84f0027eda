/* boundary.c - see boundary.h. */
#include "text/boundary.h"

#include <stdlib.h>
#include <string.h>

#include "core/hash.h"

enum {
    NO_TAIL = QN_TAIL_MAX + 1,
    KEY_BYTES = 4 /* of the text's end: a piece of the primer, nothing of the last message */
};

static json_t *unconst(const json_t *j)
{
    return (json_t *)(uintptr_t)j;
}

static const char *last_role(const qn_chat_turn *t)
{
    const json_t *last = json_array_get(t->messages, json_array_size(t->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    return role ? role : "";
}

/* What the tail's length depends on: variables (thinking, effort, ...), whether there are tools, who
 * spoke last, and which primer it is. Returns false without memory. */
static bool key_of(const qn_chat_turn *t, uint64_t *key)
{
    char *vars = json_dumps(t->vars, JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY);
    if (t->vars && !vars) return false;
    const char *role = last_role(t);
    size_t n = t->text->len < KEY_BYTES ? t->text->len : KEY_BYTES;
    uint64_t h = vars ? qn_hash64(vars, strlen(vars), 0) : 0;
    h = qn_hash64(role, strlen(role), h + (json_array_size(t->tools) > 0));
    *key = qn_hash64(t->text->data + t->text->len - n, n, h);
    free(vars);
    return true;
}

/* ---- what may come next ---- */

/* An answer, and a question: the user's turn decides whether earlier reasoning is shown. */
static json_t *answered(void)
{
    return json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "assistant", "content", "Quite so.",
                     "role", "user", "content", "Why?");
}

/* A call of the first tool, and its result. */
static json_t *called(const json_t *tools)
{
    json_t *f = json_object_get(json_array_get(tools, 0), "function");
    const char *name = json_string_value(json_object_get(f, "name"));
    return json_pack("[{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:{}}}]}, {s:s, s:s, s:s, s:s}]", "role",
                     "assistant", "content", "", "tool_calls", "type", "function", "id",
                     "call00000", "function", "name", name ? name : "f", "arguments", "role",
                     "tool", "name", name ? name : "f", "tool_call_id", "call00000", "content",
                     "Quite so.");
}

/* The tokens of the prompt that the one with `more` messages does not begin with; NO_TAIL if there
 * are too many or it cannot be rendered. Takes `more`. */
static uint32_t tail_before(const qn_chat_turn *t, json_t *more)
{
    qn_err err = {0};
    qn_buf text = {0};
    qn_ids ids = {0};
    json_t *all = json_copy(unconst(t->messages));
    size_t same = 0;
    bool ok = all && more && !json_array_extend(all, more) &&
              !qn_chat_render_marked(t->sanitizer, t->chat, all, t->tools, t->vars, true, false,
                                     &text, &err) &&
              !qn_chat_encode(t->encoder, t->chat, t->sanitizer, &text, &ids, &err);
    while (ok && same < ids.len && same < t->ids->len && ids.data[same] == t->ids->data[same]) same++;
    size_t tail = ok ? t->ids->len - same : NO_TAIL;
    json_decref(all);
    json_decref(more);
    qn_buf_release(&text);
    qn_ids_release(&ids);
    return tail < NO_TAIL ? (uint32_t)tail : NO_TAIL;
}

/* The longest tail: what is before it is shared by all that may come. A tail that is too long says
 * nothing: a new question may drop the reasoning between earlier calls. */
static uint32_t probe(const qn_chat_turn *t)
{
    uint32_t a = tail_before(t, answered());
    uint32_t b = json_array_size(t->tools) ? tail_before(t, called(t->tools)) : NO_TAIL;
    if (a == NO_TAIL || b == NO_TAIL) return a < b ? a : b;
    return a > b ? a : b;
}

static uint32_t tail_of(qn_boundary *b, const qn_chat_turn *t)
{
    uint64_t key;
    if (!key_of(t, &key)) return NO_TAIL;
    for (uint32_t i = 0; i < b->n; i++) {
        if (b->known[i].key == key) return b->known[i].tail;
    }
    uint32_t tail = probe(t);
    b->n_probed++;
    b->known[b->next].key = key;
    b->known[b->next].tail = (uint8_t)tail;
    b->next = (b->next + 1) % QN_TAILS_KNOWN;
    if (b->n < QN_TAILS_KNOWN) b->n++;
    return tail;
}

uint32_t qn_boundary_find(qn_boundary *b, const qn_chat_turn *t)
{
    uint32_t tail = tail_of(b, t);
    return tail < NO_TAIL && tail < t->ids->len ? (uint32_t)t->ids->len - tail : 0;
}
