/* text_boundary_test.c - the boundary is what this prompt and the next turn's really share.
 *
 * Templates of its own always; with QUERN_TEST_SHARED (or ../shared beside the repository) published
 * ones too, each with several tokenizers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/file.h"
#include "text/boundary.h"

/* Reasoning is shown behind the last question only, as Qwen 3 and 3.5 do. */
static const char thinking[] =
    "{%- set ns = namespace(last=-1) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}"
    "{%- endfor %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and loop.index0 > ns.last %}"
    "{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{- m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{- '\\n</think>\\n\\n' }}"
    "{%- endif %}{%- endif %}";
static const char plain[] =
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";
static const char refusing[] =
    "{%- if messages|length > 1 %}{{- raise_exception('one message') }}{%- endif %}"
    "{{- messages[0].content }}";
static const char long_primer[] =
    "{%- for m in messages %}{{- m.content + '<|im_end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{%- for i in range(80) %}{{- '<|im_start|>' }}{%- endfor %}"
    "{%- endif %}";

static const char *const tokenizers[] = {"qwen2", "llama3", "smollm", "gemma"};
static const char *const published[] = {
    "Qwen-Qwen3-0.6B",       "Qwen3.5-4B",          "Qwen3-Coder", "meta-llama-Llama-3.2-3B-Instruct",
    "google-gemma-2-2b-it",  "openai-gpt-oss-120b", "GLM-4.6",     "LFM2.5-Instruct",
    "Qwen-Qwen2.5-7B-Instruct", "microsoft-Phi-3.5-mini-instruct"};

typedef struct rig {
    qn_tokenizer *tok;
    qn_encoder *encoder;
    qn_chat_template *chat;
    qn_boundary boundary;
} rig;

static rig rig_open(const char *tokenizer, const char *source, size_t n)
{
    rig g = {0};
    char path[512];
    qn_err err = {0};
    json_t *config = json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>");
    snprintf(path, sizeof path, QN_TEST_DIR "/unit/data/tok_%s.json", tokenizer);
    if (qn_tokenizer_open(&g.tok, path, &err) || qn_encoder_new(&g.encoder, g.tok, 0, 0, &err) ||
        qn_chat_template_from_source(&g.chat, source, n, config, &err)) {
        fail_msg("%s", err.text);
    }
    json_decref(config);
    return g;
}

static void rig_close(rig *g)
{
    qn_chat_template_free(g->chat);
    qn_encoder_free(g->encoder);
    qn_tokenizer_close(g->tok);
}

static bool prompt(const rig *g, const json_t *messages, const json_t *tools, const json_t *vars,
                   qn_buf *text, qn_ids *ids)
{
    qn_err err = {0};
    qn_buf_clear(text);
    ids->len = 0;
    return !qn_chat_render(g->chat, messages, tools, vars, true, false, text, &err) &&
           !qn_chat_encode(g->encoder, g->chat, NULL, text, ids, &err);
}

static uint32_t find(rig *g, const json_t *messages, const json_t *tools, const json_t *vars,
                     const qn_buf *text, const qn_ids *ids)
{
    return qn_boundary_find(&g->boundary, &(qn_chat_turn){.encoder = g->encoder, .chat = g->chat,
                                                          .messages = messages, .tools = tools,
                                                          .vars = vars, .text = text, .ids = ids});
}

static void add(json_t *messages, const char *role, const char *content)
{
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", role, "content", content));
}

/* Several turns with real replies: every boundary is the common prefix with the prompt after it. */
static uint32_t check_turns(rig *g, const json_t *vars, uint32_t seed)
{
    static const char *const replies[] = {"Yes.", "The answer is 42:\n\n1. one\n2. two", "I do not know",
                                          "No, 漢字 it is.", "Sure! `code`\n"};
    static const char *const questions[] = {"Hello", "And then?\nTell me more", "42 + 1 = ?", "漢字"};
    qn_buf text[2] = {0};
    qn_ids ids[2] = {0};
    uint32_t checked = 0;
    json_t *messages = json_array();
    if (seed % 2) add(messages, "system", "Be brief.");
    add(messages, "user", questions[seed % 4]);
    bool ok = prompt(g, messages, NULL, vars, &text[0], &ids[0]);
    for (uint32_t turn = 0; ok && turn < 4; turn++) {
        uint32_t now = turn % 2, then = !now, same = 0;
        uint32_t at = find(g, messages, NULL, vars, &text[now], &ids[now]);
        add(messages, "assistant", replies[(seed + turn) % 5]);
        json_t *reply = json_array_get(messages, json_array_size(messages) - 1);
        json_object_set_new(reply, "reasoning_content", json_string("Let me see."));
        add(messages, "user", questions[(seed / 4 + turn) % 4]);
        ok = prompt(g, messages, NULL, vars, &text[then], &ids[then]);
        while (same < ids[now].len && same < ids[then].len &&
               ids[now].data[same] == ids[then].data[same]) {
            same++;
        }
        if (ok && ids[now].len - same <= QN_TAIL_MAX) assert_int_equal(at, same);
        else if (ok) assert_int_equal(at, 0);
        checked += ok;
    }
    json_decref(messages);
    for (int i = 0; i < 2; i++) {
        qn_buf_release(&text[i]);
        qn_ids_release(&ids[i]);
    }
    return checked;
}

static uint32_t check_template(const char *tokenizer, const char *source, size_t n)
{
    static const char *const vars[] = {"{}", "{\"enable_thinking\":true}", "{\"enable_thinking\":false}",
                                       "{\"reasoning_effort\":\"low\"}"};
    uint32_t checked = 0;
    rig g = rig_open(tokenizer, source, n);
    for (uint32_t i = 0; i < 4; i++) {
        json_t *v = json_loads(vars[i], 0, NULL);
        for (uint32_t seed = 0; seed < 16; seed++) checked += check_turns(&g, v, seed);
        json_decref(v);
    }
    assert_true(g.boundary.n_probed <= 4);
    rig_close(&g);
    return checked;
}

static void test_own_templates(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) {
        assert_int_equal(check_template(tokenizers[i], thinking, sizeof thinking - 1), 4 * 16 * 4);
        assert_int_equal(check_template(tokenizers[i], plain, sizeof plain - 1), 4 * 16 * 4);
    }
}

/* The source of a published template [n]; without it the test is skipped. */
static char *read_published(const char *name, size_t *n)
{
    char path[512], *source;
    qn_err err = {0};
    const char *shared = getenv("QUERN_TEST_SHARED");
    snprintf(path, sizeof path, "%s/data/templates/%s.jinja",
             shared ? shared : QN_TEST_DIR "/../../shared", name);
    if (qn_file_read(path, 1 << 20, &source, n, &err)) {
        print_message("%s\n", err.text);
        skip();
    }
    return source;
}

static void test_published(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        size_t n;
        char *source = read_published(published[i], &n);
        for (size_t k = 0; k < sizeof tokenizers / sizeof *tokenizers; k++) {
            print_message("%s, %s\n", published[i], tokenizers[k]);
            assert_true(check_template(tokenizers[k], source, n) > 0);
        }
        free(source);
    }
}

/* Add a call with reasoning before it (or none), and its result. */
static void add_call(json_t *messages, const char *reasoning)
{
    json_t *call = json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:{s:s}}}]}", "role", "assistant",
                             "content", "", "tool_calls", "type", "function", "id", "call00001",
                             "function", "name", "find", "arguments", "what", "a thing");
    assert_non_null(call);
    if (reasoning) {
        json_object_set_new(call, "reasoning_content", json_string(reasoning));
        json_object_set_new(call, "thinking", json_string(reasoning));
    }
    json_array_append_new(messages, call);
    json_array_append_new(messages, json_pack("{s:s, s:s, s:s, s:s}", "role", "tool", "name", "find",
                                              "tool_call_id", "call00001", "content", "Found."));
}

/* One call after the other: the boundary is in what both prompts share, and at most the reasoning's
 * opening marker before its end. */
static void check_loop(rig *g, const char *reasoning)
{
    enum { OPENING = 8 };
    qn_buf text[2] = {0};
    qn_ids ids[2] = {0};
    json_t *messages = json_array();
    json_t *tools = json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"find\",\"description\":\"Find it.\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"what\":{\"type\":\"string\","
        "\"description\":\"the thing\"}},\"required\":[\"what\"]}}}]", 0, NULL);
    add(messages, "user", "Find all things.");
    assert_true(prompt(g, messages, tools, NULL, &text[0], &ids[0]));
    for (uint32_t round = 0; round < 4; round++) {
        uint32_t now = round % 2, then = !now, same = 0;
        uint32_t at = find(g, messages, tools, NULL, &text[now], &ids[now]);
        add_call(messages, reasoning);
        assert_true(prompt(g, messages, tools, NULL, &text[then], &ids[then]));
        while (same < ids[now].len && ids[now].data[same] == ids[then].data[same]) same++;
        if (!at || at > same || same - at > OPENING) {
            fail_msg("round %u: %u, not %u of %zu", round, at, same, ids[now].len);
        }
    }
    json_decref(messages);
    json_decref(tools);
    for (int i = 0; i < 2; i++) {
        qn_buf_release(&text[i]);
        qn_ids_release(&ids[i]);
    }
}

static void test_published_loops(void **state)
{
    (void)state;
    static const char *const names[] = {"Qwen-Qwen3-0.6B", "Qwen3.5-4B", "Qwen3-Coder", "GLM-4.6",
                                        "openai-gpt-oss-120b", "LFM2.5-Instruct"};
    const char *long_thought = "First I look here. Then I look there, and there, and there again. "
                               "Then I look here. Then I look there, and there, and there again. "
                               "Then I look here. Then I look there, and there, and there again. "
                               "Then I look here. Then I look there, and there, and there again.";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n;
        char *source = read_published(names[i], &n);
        for (uint32_t k = 0; k < 4; k++) {
            rig g = rig_open(k % 2 ? "llama3" : "qwen2", source, n);
            print_message("%s %u\n", names[i], k);
            check_loop(&g, k < 2 ? NULL : long_thought);
            rig_close(&g);
        }
        free(source);
    }
}

/* A refusal, and a tail that is too long, are no boundary; asked once only. */
static void test_none(void **state)
{
    (void)state;
    const char *const sources[] = {refusing, long_primer};
    for (size_t i = 0; i < 2; i++) {
        rig g = rig_open("qwen2", sources[i], strlen(sources[i]));
        qn_buf text = {0};
        qn_ids ids = {0};
        json_t *messages = json_array();
        add(messages, "user", "Hello there");
        assert_true(prompt(&g, messages, NULL, NULL, &text, &ids));
        for (int k = 0; k < 3; k++) {
            assert_int_equal(find(&g, messages, NULL, NULL, &text, &ids), 0);
            assert_int_equal(g.boundary.n_probed, 1);
        }
        json_decref(messages);
        qn_buf_release(&text);
        qn_ids_release(&ids);
        rig_close(&g);
    }
}

/* Between calls the reasoning stays in the prompt: the next one has the tool's result. A new question
 * would drop it, far before the boundary. */
static void test_tool_loop(void **state)
{
    (void)state;
    rig g = rig_open("qwen2", thinking, sizeof thinking - 1);
    qn_buf text = {0};
    qn_ids ids = {0};
    json_t *tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", 0, NULL);
    json_t *messages = json_array();
    char thought[2000];
    memset(thought, 'x', sizeof thought);
    for (size_t i = 0; i < sizeof thought; i += 2) thought[i] = ' ';
    thought[sizeof thought - 1] = '\0';
    add(messages, "user", "Hello there");
    add(messages, "assistant", "");
    json_object_set_new(json_array_get(messages, 1), "reasoning_content", json_string(thought));
    add(messages, "tool", "42");
    assert_true(prompt(&g, messages, tools, NULL, &text, &ids));
    uint32_t at = find(&g, messages, tools, NULL, &text, &ids);
    assert_true(at > 900 && at < ids.len && ids.len - at <= 2);
    assert_int_equal(find(&g, messages, NULL, NULL, &text, &ids), 0);
    assert_int_equal(g.boundary.n_probed, 2);
    json_decref(messages);
    json_decref(tools);
    qn_buf_release(&text);
    qn_ids_release(&ids);
    rig_close(&g);
}

/* More kinds of prompts than are remembered: the oldest is asked for again. */
static void test_many_kinds(void **state)
{
    (void)state;
    rig g = rig_open("qwen2", plain, sizeof plain - 1);
    qn_buf text = {0};
    qn_ids ids = {0};
    json_t *messages = json_array();
    add(messages, "user", "Hello there");
    assert_true(prompt(&g, messages, NULL, NULL, &text, &ids));
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i <= QN_TAILS_KNOWN; i++) {
            json_t *vars = json_pack("{s:i}", "kind", (int)i);
            assert_int_equal(find(&g, messages, NULL, vars, &text, &ids), ids.len);
            assert_int_equal(find(&g, messages, NULL, vars, &text, &ids), ids.len);
            json_decref(vars);
            assert_int_equal(g.boundary.n_probed, round * (QN_TAILS_KNOWN + 1) + i + 1);
        }
    }
    json_decref(messages);
    qn_buf_release(&text);
    qn_ids_release(&ids);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_templates), cmocka_unit_test(test_published),
        cmocka_unit_test(test_none),          cmocka_unit_test(test_tool_loop),
        cmocka_unit_test(test_many_kinds),    cmocka_unit_test(test_published_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
