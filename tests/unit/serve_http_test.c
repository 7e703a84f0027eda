/* The whole server over sockets, with a scripted model: routes, shapes, streams, clients that leave. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "byte_tokenizer.h"
#include "core/clock.h"
#include "core/log.h"
#include "fake_model.h"
#include "serve/server.h"
#include "serve/sse.h"

enum { EOS = QN_BYTE_TOKENS, N_VOCAB = 257, REPLY_CAP = 1 << 22, MAX_SCRIPT = 512 };

static qn_chat_template *test_template(void)
{
    static const char source[] = "{%- for m in messages %}{{ m.role[0]|upper }}:{{ m.content }}\n{% endfor %}"
                                 "{%- if add_generation_prompt %}A: {% endif %}";
    qn_chat_template *t;
    qn_err err = {0};
    if (qn_chat_template_from_source(&t, source, strlen(source), NULL, &err)) fail_msg("template: %s", err.text);
    return t;
}

/* ---- one server ---- */

typedef struct rig {
    qn_loaded loaded;
    qn_engine *engine;
    qn_server *server;
    uint32_t script[MAX_SCRIPT];
} rig;

/* Start a server whose replies are `text`, whatever is asked; NULL: a hash of the history. The prompt
 * of every test has `n_prompt` tokens then. */
static void rig_start(rig *r, const char *text, uint32_t n_prompt, uint32_t step_us, uint32_t max_positions,
                      const qn_server_opts *opts)
{
    static const qn_byte_token end = {"<|end|>", true};
    qn_err err = {0};
    memset(r, 0, sizeof *r);
    qn_fake_opts fo = {.n_vocab = N_VOCAB, .step_us = step_us, .script_prompt = n_prompt,
                       .max_positions = max_positions};
    if (text) {
        size_t n = strlen(text);
        assert_true(n < MAX_SCRIPT);
        for (size_t i = 0; i < n; i++) r->script[i] = (unsigned char)text[i];
        r->script[n] = EOS;
        fo.script = r->script;
        fo.n_script = (uint32_t)n + 1;
    }
    r->loaded.id = (char *)(uintptr_t)"org/fake";
    r->loaded.model = qn_fake_model(&fo);
    r->loaded.dev = r->loaded.model->dev;
    r->loaded.tok = qn_byte_tokenizer(&end, 1, NULL);
    if (qn_encoder_new(&r->loaded.encoder, r->loaded.tok, 0, 0, &err)) fail_msg("%s", err.text);
    r->loaded.chat = test_template();
    r->loaded.eos[0] = EOS;
    r->loaded.n_eos = 1;
    const qn_engine_opts eo = {.max_rows = 8};
    if (qn_engine_new(&r->engine, r->loaded.model, &eo, &err)) fail_msg("engine: %s", err.text);
    qn_server_opts so = opts ? *opts : (qn_server_opts){0};
    so.engine = r->engine;
    so.loaded = &r->loaded;
    so.defaults.max_tokens = -1;
    if (qn_server_start(&r->server, &so, &err)) fail_msg("server: %s", err.text);
}

static void rig_stop(rig *r)
{
    assert_int_equal(qn_server_stop(r->server, 20000), 0);
    qn_engine_free(r->engine);
    qn_model_close(r->loaded.model);
    qn_encoder_free(r->loaded.encoder);
    qn_tokenizer_close(r->loaded.tok);
    qn_chat_template_free(r->loaded.chat);
}

/* ---- a client ---- */

static int dial(const rig *r)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(qn_server_port(r->server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void send_all(int fd, const char *s, size_t n)
{
    while (n) {
        ssize_t k = send(fd, s, n, MSG_NOSIGNAL);
        if (k <= 0) return; /* the server may close early: the reply says why */
        s += k;
        n -= (size_t)k;
    }
}

static void send_request(int fd, const char *method, const char *path, const char *headers, const char *body)
{
    char head[1024];
    int n = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s"
                     "Content-Length: %zu\r\n\r\n", method, path, headers, strlen(body));
    send_all(fd, head, (size_t)n);
    send_all(fd, body, strlen(body));
}

/* Everything until the server closes, chunked coding undone; status in *status. malloc memory. */
static char *receive(int fd, int *status, char **headers)
{
    char *raw = calloc(1, REPLY_CAP);
    size_t n = 0;
    ssize_t k;
    while (n + 1 < REPLY_CAP && (k = recv(fd, raw + n, REPLY_CAP - 1 - n, 0)) > 0) n += (size_t)k;
    close(fd);
    char *start = raw;
    if (!strncmp(raw, "HTTP/1.1 100", 12)) start = strstr(raw, "\r\n\r\n") + 4; /* is the client still there? */
    char *end = strstr(start, "\r\n\r\n");
    assert_non_null(end);
    *status = atoi(start + strlen("HTTP/1.1 "));
    if (headers) *headers = strndup(start, (size_t)(end - start));
    char *body = calloc(1, REPLY_CAP), *at = end + 4, *to = body;
    if (!strstr(raw, "Transfer-Encoding: chunked")) {
        memcpy(body, at, n - (size_t)(at - raw));
    } else {
        for (size_t size; (size = strtoul(at, &at, 16)) > 0;) {
            memcpy(to, at + 2, size);
            to += size;
            at += 2 + size + 2;
        }
    }
    free(raw);
    return body;
}

static char *call(const rig *r, const char *method, const char *path, const char *body, int want_status)
{
    int status, fd = dial(r);
    send_request(fd, method, path, "", body);
    char *reply = receive(fd, &status, NULL);
    if (status != want_status) fail_msg("%s %s %.200s: %d, not %d: %s", method, path, body, status, want_status, reply);
    return reply;
}

static json_t *call_json(const rig *r, const char *path, const char *body, int want_status)
{
    char *text = call(r, body ? "POST" : "GET", path, body ? body : "", want_status);
    json_t *j = json_loads(text, 0, NULL);
    if (!j) fail_msg("%s: not JSON: %s", path, text);
    free(text);
    return j;
}

static const char *str_at(const json_t *j, const char *a, const char *b)
{
    const json_t *choice = json_array_get(json_object_get(j, "choices"), 0);
    const json_t *v = json_object_get(choice, a);
    return json_string_value(b ? json_object_get(v, b) : v);
}

#define CHAT "/v1/chat/completions"
#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"abc\"}],\"temperature\":0"
enum { N_ASK = 9 }; /* "U:abc\nA: " */

/* ---- tests ---- */

static void test_chat_and_stream(void **state)
{
    (void)state;
    rig r;
    rig_start(&r, "Gr\xC3\xBC\xC3\x9F" "e \xF0\x9F\x98\x80!", N_ASK, 0, 0, NULL);
    json_t *j = call_json(&r, CHAT, "{" ASK "}", 200);
    assert_string_equal(str_at(j, "message", "content"), "Gr\xC3\xBC\xC3\x9F" "e \xF0\x9F\x98\x80!");
    assert_string_equal(str_at(j, "finish_reason", NULL), "stop");
    const json_t *usage = json_object_get(j, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), N_ASK);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 14); /* bytes and the end */
    json_decref(j);

    char *text = call(&r, "POST", CHAT, "{" ASK ",\"stream\":true}", 200);
    qn_buf said = {0};
    size_t n_roles = 0, n_finished = 0, n_usage = 0;
    bool done = false;
    for (char *at = text; *at;) {
        size_t n = qn_sse_frame_bytes(at, strlen(at));
        assert_true(!strncmp(at, "data: ", 6) || at[0] == ':');
        if (!strncmp(at, "data: [DONE]\n\n", 14)) {
            done = true;
            assert_int_equal(at[n], '\0');
        } else if (at[0] == 'd') {
            j = json_loadb(at + 6, n - 8, 0, NULL);
            assert_non_null(j); /* a split character would not parse */
            const json_t *choice = json_array_get(json_object_get(j, "choices"), 0);
            const json_t *delta = json_object_get(choice, "delta");
            n_roles += json_object_get(delta, "role") != NULL;
            n_finished += json_is_string(json_object_get(choice, "finish_reason"));
            n_usage += json_object_get(j, "usage") != NULL;
            const char *piece = json_string_value(json_object_get(delta, "content"));
            qn_buf_puts(&said, piece ? piece : "");
            json_decref(j);
        }
        at += n;
    }
    assert_true(done && n_roles == 1 && n_finished == 1 && n_usage == 1);
    assert_string_equal(said.data, "Gr\xC3\xBC\xC3\x9F" "e \xF0\x9F\x98\x80!");
    qn_buf_release(&said);
    free(text);
    rig_stop(&r);
}

static void test_stop_strings_and_length(void **state)
{
    (void)state;
    static const struct { const char *more, *text, *finish; int n_tokens; } cases[] = {
        {"", "one two three", "stop", 14},
        {",\"stop\":\"two\"", "one ", "stop", 7},
        {",\"stop\":[\"three\",\"o t\"]", "one tw", "stop", 9},
        {",\"max_tokens\":3", "one", "length", 3},
        {",\"max_tokens\":0", "", "length", 0},
        {",\"stop\":\"x\"", "one two three", "stop", 14},
        {",\"stop\":\"threes\"", "one two three", "stop", 14},
        {",\"stop\":\"threes\",\"max_tokens\":10", "one two th", "length", 10},
    };
    rig r;
    rig_start(&r, "one two three", N_ASK, 0, 0, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[256];
        snprintf(body, sizeof body, "{" ASK "%s}", cases[i].more);
        json_t *j = call_json(&r, CHAT, body, 200);
        assert_string_equal(str_at(j, "message", "content"), cases[i].text);
        assert_string_equal(str_at(j, "finish_reason", NULL), cases[i].finish);
        const json_t *usage = json_object_get(j, "usage");
        assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), cases[i].n_tokens);
        json_decref(j);
    }
    rig_stop(&r);
}

static void test_completions(void **state)
{
    (void)state;
    rig r;
    rig_start(&r, "xyz", 3, 0, 0, NULL);
    static const char *const prompts[] = {"\"abc\"", "[97,98,99]", "[\"abc\"]", "[[97,98,99]]"};
    for (size_t i = 0; i < 4; i++) {
        char body[128];
        snprintf(body, sizeof body, "{\"prompt\":%s,\"temperature\":0,\"logprobs\":1}", prompts[i]);
        json_t *j = call_json(&r, "/v1/completions", body, 200);
        assert_string_equal(str_at(j, "text", NULL), "xyz");
        assert_string_equal(json_string_value(json_object_get(j, "object")), "text_completion");
        const json_t *lp = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "logprobs");
        assert_int_equal(json_array_size(json_object_get(lp, "tokens")), 4);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(json_integer_value(json_array_get(json_object_get(lp, "text_offset"), (size_t)k)), k);
        }
        json_decref(j);
    }
    static const char *const bad[] = {"{}", "{\"prompt\":\"\"}", "{\"prompt\":[]}", "{\"prompt\":[\"a\",\"b\"]}",
                                      "{\"prompt\":7}", "{\"prompt\":[257]}", "{\"prompt\":[-1]}", "{\"prompt\":[1.5]}",
                                      "{\"prompt\":[null]}", "{\"prompt\":[[]]}", "{\"prompt\":[[1],[2]]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *j = call_json(&r, "/v1/completions", bad[i], 400);
        assert_string_equal(json_string_value(json_object_get(json_object_get(j, "error"), "param")), "prompt");
        json_decref(j);
    }
    rig_stop(&r);
}

/* Count the frames of a stream whose event has this name. */
static size_t count_events(const char *stream, const char *name)
{
    char line[96];
    size_t n = 0;
    snprintf(line, sizeof line, "event: %s\n", name);
    for (const char *at = stream; (at = strstr(at, line)); at++) n++;
    return n;
}

static void test_messages(void **state)
{
    (void)state;
    rig r;
    rig_start(&r, "one two three", N_ASK, 0, 0, NULL);
    json_t *j = call_json(&r, "/v1/messages", "{" ASK ",\"stop_sequences\":[\"two\"]}", 200);
    const json_t *block = json_array_get(json_object_get(j, "content"), 0);
    assert_string_equal(json_string_value(json_object_get(block, "text")), "one ");
    assert_string_equal(json_string_value(json_object_get(j, "stop_reason")), "stop_sequence");
    assert_string_equal(json_string_value(json_object_get(j, "stop_sequence")), "two");
    json_decref(j);
    char *text = call(&r, "POST", "/v1/messages", "{" ASK ",\"stream\":true}", 200);
    qn_buf said = {0};
    static const char delta[] = "\"text_delta\",\"text\":\"";
    for (const char *at = text; (at = strstr(at, delta));) {
        at += sizeof delta - 1;
        qn_buf_put(&said, at, strcspn(at, "\""));
    }
    assert_string_equal(said.data, "one two three");
    qn_buf_release(&said);
    static const char *const once[] = {"message_start", "content_block_start", "content_block_stop", "message_delta",
                                       "message_stop"};
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) assert_int_equal(count_events(text, once[i]), 1);
    free(text);
    j = call_json(&r, "/v1/messages/count_tokens", "{" ASK "}", 200);
    assert_int_equal(json_integer_value(json_object_get(j, "input_tokens")), N_ASK);
    json_decref(j);
    j = call_json(&r, "/v1/messages", "{}", 400);
    assert_string_equal(json_string_value(json_object_get(j, "type")), "error");
    json_decref(j);
    rig_stop(&r);
}

static void test_responses(void **state)
{
    (void)state;
    rig r;
    char body[256], path[96];
    rig_start(&r, NULL, 0, 0, 0, NULL);
    json_t *a = call_json(&r, "/v1/responses", "{\"input\":\"abc\",\"max_output_tokens\":4}", 200);
    const char *id = json_string_value(json_object_get(a, "id"));
    assert_string_equal(json_string_value(json_object_get(a, "status")), "incomplete");
    snprintf(body, sizeof body, "{\"input\":\"d\",\"max_output_tokens\":4,\"previous_response_id\":\"%s\","
             "\"stream\":true}", id);
    char *text = call(&r, "POST", "/v1/responses", body, 200);
    assert_int_equal(count_events(text, "response.created"), 1);
    assert_int_equal(count_events(text, "response.incomplete"), 1);
    assert_int_equal(count_events(text, "response.output_item.added"), count_events(text, "response.output_item.done"));
    free(text);
    snprintf(path, sizeof path, "/v1/responses/%s", id);
    json_t *b = call_json(&r, path, NULL, 200);
    assert_true(json_equal(a, b));
    json_decref(b);
    free(call(&r, "POST", path, "{}", 405));
    free(call(&r, "DELETE", path, "", 200));
    free(call(&r, "DELETE", path, "", 404));
    free(call(&r, "GET", path, "", 404));
    free(call(&r, "POST", "/v1/responses", body, 404));
    json_decref(a);
    b = call_json(&r, "/v1/responses/input_tokens", "{\"input\":\"abc\"}", 200);
    assert_int_equal(json_integer_value(json_object_get(b, "input_tokens")), N_ASK);
    json_decref(b);
    rig_stop(&r);

    const qn_server_opts none = {.no_store = true};
    rig_start(&r, "x", N_ASK, 0, 0, &none);
    a = call_json(&r, "/v1/responses", "{\"input\":\"abc\"}", 200);
    assert_true(json_is_false(json_object_get(a, "store")));
    snprintf(path, sizeof path, "/v1/responses/%s", json_string_value(json_object_get(a, "id")));
    free(call(&r, "GET", path, "", 404));
    json_decref(a);
    rig_stop(&r);
}

static void test_pages(void **state)
{
    (void)state;
    rig r;
    rig_start(&r, "x", N_ASK, 0, 0, NULL);
    char *text = call(&r, "GET", "/health", "", 200);
    assert_string_equal(text, "{\"status\": \"ok\"}");
    free(text);
    static const struct { const char *method, *path; int status; } cases[] = {
        {"GET", "/v1/models", 200}, {"GET", "/v1/models/", 200}, {"GET", "/v1/models?a=b", 200},
        {"GET", "/v1/models/org/fake", 200}, {"GET", "/v1/models/org%2Ffake", 200}, {"GET", "/v1/models/x", 200},
        {"GET", "/v1", 200}, {"GET", "/v1/health", 200}, {"HEAD", "/v1", 200}, {"GET", "/", 200}, {"HEAD", "/", 200},
        {"GET", "/v2", 404}, {"GET", "/stats", 200}, {"GET", "/metrics", 200}, {"GET", "/props", 200},
        {"GET", "/slots?fail_on_no_slot=1", 200}, {"POST", "/admin/cache/flush", 415}, {"GET", "/tokenize", 405},
        {"POST", "/v1/models", 405}, {"GET", CHAT, 405}, {"DELETE", "/v1/completions", 405}, {"PUT", "/health", 405},
        {"OPTIONS", "/anything", 204}, {"OPTIONS", CHAT, 204}, {"POST", "/chat/completions", 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        free(call(&r, cases[i].method, cases[i].path, "", cases[i].status));
    }
    json_t *j = call_json(&r, "/v1/models/org%2Ffake", NULL, 200);
    assert_string_equal(json_string_value(json_object_get(j, "id")), "org/fake");
    assert_int_equal(json_array_size(json_object_get(j, "data")), 1);
    json_decref(j);
    rig_stop(&r);
}

/* The value behind "name{...} " in a Prometheus text. */
static double sample(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    if (!at) fail_msg("no %s in %s", name, text);
    return atof(strchr(at, ' '));
}

static void test_metrics(void **state)
{
    (void)state;
    const qn_server_opts named = {.metrics_prefix = "a_"};
    rig r;
    rig_start(&r, "one two", N_ASK, 0, 0, &named);
    for (int i = 0; i < 2; i++) json_decref(call_json(&r, CHAT, "{" ASK "}", 200));
    json_decref(call_json(&r, CHAT, "{" ASK ",\"max_tokens\":1}", 200));
    for (int i = 0; i < 3; i++) json_decref(call_json(&r, CHAT, "{}", 400));
    char *text = call(&r, "GET", "/metrics", "", 200);
    static const struct { const char *name; double want; } cases[] = {
        {"\na_num_requests_running{model_name=\"org/fake\"} ", 0},
        {"\na_prompt_tokens_total{", 3 * N_ASK}, {"\na_generation_tokens_total{", 2 * 8 + 1},
        {"finished_reason=\"stop\"} ", 2}, {"finished_reason=\"length\"} ", 1}, {"code=\"400\"} ", 3},
        {"\na_request_generation_tokens_sum{", 17},
        {"\na_request_generation_tokens_bucket{model_name=\"org/fake\",le=\"5\"} ", 1},
        {"\na_inter_token_latency_seconds_count{", 14}, {"\na_e2e_request_latency_seconds_count{", 3},
        {"\na_time_to_first_token_seconds_bucket{model_name=\"org/fake\",le=\"+Inf\"} ", 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double got = sample(text, cases[i].name);
        if (got != cases[i].want) fail_msg("%s: %g, not %g", cases[i].name, got, cases[i].want);
    }
    assert_true(sample(text, "\nprocess_resident_memory_bytes ") > 1e6);
    free(text);
    rig_stop(&r);
}

static void test_texts(void **state)
{
    (void)state;
    static const struct { const char *path, *body, *want; } cases[] = {
        {"/tokenize", "{\"content\":\"ab\"}", "{\"tokens\":[97,98],\"count\":2,\"max_model_len\":4096}"},
        {"/tokenize", "{\"prompt\":\"a\",\"return_token_strs\":true}",
         "{\"tokens\":[97],\"count\":1,\"max_model_len\":4096,\"token_strs\":[\"a\"]}"},
        {"/tokenize", "{\"content\":\"<|end|>\"}", "{\"tokens\":[256],\"count\":1,\"max_model_len\":4096}"},
        {"/tokenize", "{\"content\":\"<|e\",\"parse_special\":false}",
         "{\"tokens\":[60,124,101],\"count\":3,\"max_model_len\":4096}"},
        {"/tokenize", "{\"content\":\"\xC3\xA9\",\"with_pieces\":true}",
         "{\"tokens\":[{\"id\":195,\"piece\":[195]},{\"id\":169,\"piece\":[169]}],\"count\":2,\"max_model_len\":4096}"},
        {"/tokenize", "{" ASK "}",
         "{\"tokens\":[85,58,97,98,99,10,65,58,32],\"count\":9,\"max_model_len\":4096}"},
        {"/detokenize", "{\"tokens\":[97,256,98]}", "{\"prompt\":\"a<|end|>b\",\"content\":\"a<|end|>b\"}"},
        {"/detokenize", "{\"tokens\":[]}", "{\"prompt\":\"\",\"content\":\"\"}"},
        {"/apply-template", "{" ASK "}", "{\"prompt\":\"U:abc\\nA: \"}"},
        {CHAT "/input_tokens", "{" ASK "}", "{\"object\":\"response.input_tokens\",\"input_tokens\":9}"},
    };
    static const struct { const char *path, *body, *param; } bad[] = {
        {"/tokenize", "{}", "content"}, {"/tokenize", "{\"content\":1}", "content"},
        {"/tokenize", "{\"prompt\":[1]}", "prompt"}, {"/tokenize", "{\"messages\":3}", "messages"},
        {"/tokenize", "{\"content\":\"\",\"with_pieces\":1}", "with_pieces"}, {"/detokenize", "{}", "tokens"},
        {"/detokenize", "{\"tokens\":[\"a\"]}", "tokens"}, {"/detokenize", "{\"tokens\":[257]}", "tokens"},
        {"/detokenize", "{\"tokens\":[-1]}", "tokens"}, {"/apply-template", "{}", "messages"},
    };
    rig r;
    rig_start(&r, "x", N_ASK, 0, 0, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = call(&r, "POST", cases[i].path, cases[i].body, 200);
        assert_string_equal(text, cases[i].want);
        free(text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *j = call_json(&r, bad[i].path, bad[i].body, 400);
        assert_string_equal(json_string_value(json_object_get(json_object_get(j, "error"), "param")), bad[i].param);
        json_decref(j);
    }
    rig_stop(&r);
}

static void test_guards(void **state)
{
    (void)state;
    static const char *const keys[] = {"sesame", NULL}, *const origins[] = {"http://page", NULL};
    const qn_server_opts locked = {.api_keys = keys, .allowed_origins = origins, .body_limit_bytes = 1000};
    static const struct { const char *headers; int status; } cases[] = {
        {"", 401}, {"Transfer-Encoding: gzip\r\n", 400}, {"Authorization: Bearer sesam\r\n", 401},
        {"Authorization: Basic sesame\r\n", 401},
        {"Authorization: Bearer sesame\r\n", 200}, {"x-api-key: sesame\r\n", 200}, {"x-api-key: sesame!\r\n", 401},
    };
    rig r;
    rig_start(&r, "x", N_ASK, 0, 0, &locked);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status, fd = dial(&r);
        send_request(fd, "GET", "/v1/models", cases[i].headers, "");
        free(receive(fd, &status, NULL));
        assert_int_equal(status, cases[i].status);
    }
    int status, fd = dial(&r);
    char *headers;
    send_request(fd, "OPTIONS", CHAT, "Origin: http://page\r\nAccess-Control-Request-Headers: x-a\r\n"
                 "Access-Control-Request-Private-Network: true\r\n", "");
    free(receive(fd, &status, &headers));
    assert_int_equal(status, 204);
    assert_non_null(strstr(headers, "Access-Control-Allow-Origin: http://page"));
    assert_non_null(strstr(headers, "Access-Control-Allow-Headers: x-a"));
    assert_non_null(strstr(headers, "Access-Control-Allow-Private-Network: true"));
    assert_non_null(strstr(headers, "Vary: Origin"));
    free(headers);
    fd = dial(&r);
    send_request(fd, "GET", "/health", "Origin: http://other\r\n", "");
    free(receive(fd, &status, &headers));
    assert_int_equal(status, 200);
    assert_null(strstr(headers, "Access-Control"));
    free(headers);

    /* bodies over the limit: told by length before reading, or found out while reading */
    char big[2001];
    memset(big, ' ', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    fd = dial(&r);
    send_request(fd, "POST", CHAT, "x-api-key: sesame\r\n", big);
    free(receive(fd, &status, NULL));
    assert_int_equal(status, 413);
    fd = dial(&r);
    static const char chunked[] = "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                                  "x-api-key: sesame\r\nTransfer-Encoding: chunked\r\n\r\n5dc\r\n";
    send_all(fd, chunked, sizeof chunked - 1);
    send_all(fd, big, 1500);
    send_all(fd, "\r\n0\r\n\r\n", 7);
    free(receive(fd, &status, NULL));
    assert_int_equal(status, 413);
    rig_stop(&r);
}

/* A body that stops coming is answered, within keep-alive too. */
static void test_silent_body(void **state)
{
    (void)state;
    const qn_server_opts hasty = {.body_timeout_ms = 200, .ping_ms = 100};
    static const char half[] = "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\n"
                               "Content-Length: 100\r\n\r\n{";
    rig r;
    rig_start(&r, "x", N_ASK, 0, 0, &hasty);
    int status, fd = dial(&r);
    double start = qn_now_ms();
    send_all(fd, half, sizeof half - 1);
    char *headers, *body = receive(fd, &status, &headers);
    assert_int_equal(status, 408);
    assert_true(qn_now_ms() - start < 5000);
    assert_non_null(strstr(body, "\"code\":\"request_timeout\""));
    assert_null(strstr(headers, "x-should-retry"));
    free(body);
    free(headers);
    rig_stop(&r);
}

static uint32_t active_rows(const rig *r)
{
    qn_engine_stats s;
    qn_engine_stats_get(r->engine, &s);
    return s.active_rows + s.waiting_rows;
}

static bool becomes(const rig *r, uint32_t rows, double limit_ms)
{
    double end = qn_now_ms() + limit_ms;
    while (active_rows(r) != rows && qn_now_ms() < end) usleep(1000);
    return active_rows(r) == rows;
}

/* A client that closes must free its row: before the first byte, while streaming, not streaming. */
static void test_clients_that_leave(void **state)
{
    (void)state;
    rig r;
    rig_start(&r, NULL, 0, 2000, 100000, NULL);
    for (int stream = 0; stream < 2; stream++) {
        for (int reads = 0; reads <= stream; reads++) {
            int fd = dial(&r);
            char body[256], some[4096];
            snprintf(body, sizeof body, "{" ASK ",\"seed\":1,\"max_tokens\":50000,\"stream\":%s}",
                     stream ? "true" : "false");
            send_request(fd, "POST", CHAT, "", body);
            assert_true(becomes(&r, 1, 5000));
            if (reads) assert_true(recv(fd, some, sizeof some, 0) > 0);
            close(fd);
            assert_true(becomes(&r, 0, 5000));
        }
    }
    rig_stop(&r);
}

/* A client that has only finished sending still gets its answer. */
static void test_half_close(void **state)
{
    (void)state;
    rig r;
    rig_start(&r, "fine", N_ASK, 20000, 0, NULL);
    /* Another connection that stays open changes the order in which the library looks at sockets. */
    int idle = dial(&r);
    char some[4096];
    static const char keep[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    send_all(idle, keep, sizeof keep - 1);
    assert_true(recv(idle, some, sizeof some, 0) > 0);
    for (int stream = 0; stream < 2; stream++) {
        int fd = dial(&r), status;
        send_request(fd, "POST", CHAT, "", stream ? "{" ASK ",\"stream\":true}" : "{" ASK "}");
        shutdown(fd, SHUT_WR);
        char *body = receive(fd, &status, NULL);
        assert_int_equal(status, 200);
        assert_non_null(strstr(body, stream ? "[DONE]" : "\"fine\""));
        free(body);
    }
    close(idle);
    rig_stop(&r);
}

/* A client that does not read is given up once a mebibyte waits for it. */
static void test_slow_reader(void **state)
{
    (void)state;
    rig r;
    rig_start(&r, NULL, 0, 0, 400000, NULL);
    int fd = dial(&r), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    send_request(fd, "POST", CHAT, "", "{" ASK ",\"stream\":true,\"max_tokens\":300000,\"logprobs\":true,"
                 "\"logit_bias\":{\"256\":-100}}");
    assert_true(becomes(&r, 1, 5000));
    assert_true(becomes(&r, 0, 60000));
    /* Whatever can still be read (through a wide window, or it takes minutes), the end never comes. */
    int large = 4 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &large, sizeof large);
    char *rest = calloc(1, REPLY_CAP);
    size_t n = 0;
    ssize_t k;
    while (n + 1 < REPLY_CAP && (k = recv(fd, rest + n, REPLY_CAP - 1 - n, 0)) > 0) n += (size_t)k;
    assert_null(strstr(rest, "[DONE]"));
    free(rest);
    close(fd);
    rig_stop(&r);
}

static uint64_t n_finished(const rig *r)
{
    qn_engine_stats s;
    qn_engine_stats_get(r->engine, &s);
    return s.finished;
}

/* What the frames of a stream say, without what differs from one reply to the next. */
static void said_in(const char *stream, qn_buf *out)
{
    for (const char *at = stream; *at;) {
        const char *end = at + qn_sse_frame_bytes(at, strlen(at));
        const char *from = memmem(at, (size_t)(end - at), "\"choices\"", 9);
        const char *to = memmem(at, (size_t)(end - at), "\"usage\"", 7);
        if (from) qn_buf_put(out, from, (size_t)((to ? to : end) - from));
        at = end;
    }
}

/* A client that reads nothing for a while, until the socket is full, loses nothing. */
static void test_late_reader(void **state)
{
    (void)state;
    rig r;
    struct sockaddr_un at = {.sun_family = AF_UNIX}; /* its buffer is small, and stays so */
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/quern-late-%d", (int)getpid());
    rig_start(&r, NULL, 0, 0, 400000, &(qn_server_opts){.unix_path = at.sun_path});
    char *streams[2];
    qn_buf said[2] = {{0}, {0}};
    for (int late = 0; late < 2; late++) {
        int status, fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
        send_request(fd, "POST", CHAT, "", "{" ASK ",\"stream\":true,\"max_tokens\":1000,\"logprobs\":true,"
                     "\"top_logprobs\":3,\"logit_bias\":{\"256\":-100}}");
        while (late && n_finished(&r) < 2) usleep(1000);
        streams[late] = receive(fd, &status, NULL);
        assert_int_equal(status, 200);
        said_in(streams[late], &said[late]);
    }
    assert_true(strlen(streams[1]) > 400000); /* twice what the socket holds */
    assert_non_null(strstr(streams[1], "[DONE]"));
    assert_string_equal(said[0].data, said[1].data);
    for (int i = 0; i < 2; i++) {
        qn_buf_release(&said[i]);
        free(streams[i]);
    }
    rig_stop(&r);
}

/* Without chunks the end of a stream is the end of the connection. */
static void test_http_1_0(void **state)
{
    (void)state;
    static const char body[] = "{" ASK ",\"stream\":true}";
    rig r;
    rig_start(&r, "fine", N_ASK, 0, 0, NULL);
    int status, fd = dial(&r);
    char head[256], *headers;
    int n = snprintf(head, sizeof head, "POST " CHAT " HTTP/1.0\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
                     sizeof body - 1);
    send_all(fd, head, (size_t)n);
    send_all(fd, body, sizeof body - 1);
    char *stream = receive(fd, &status, &headers);
    assert_int_equal(status, 200);
    assert_null(strstr(headers, "chunked"));
    assert_memory_equal(stream, "data: {", 7);
    assert_string_equal(stream + strlen(stream) - strlen("}\n\ndata: [DONE]\n\n"), "}\n\ndata: [DONE]\n\n");
    free(headers);
    free(stream);
    rig_stop(&r);
}

static void test_draining(void **state)
{
    (void)state;
    rig r;
    rig_start(&r, NULL, 0, 2000, 100000, NULL);
    int fd = dial(&r), status;
    send_request(fd, "POST", CHAT, "", "{" ASK ",\"stream\":true,\"max_tokens\":90000,\"logit_bias\":{\"256\":-100}}");
    assert_true(becomes(&r, 1, 5000));
    assert_int_equal(qn_server_stop(r.server, 50), 1);
    char *body = receive(fd, &status, NULL);
    assert_int_equal(status, 200);
    assert_non_null(strstr(body, "\"error\":{\"message\":\"the server is shutting down\""));
    assert_null(strstr(body, "[DONE]"));
    free(body);
    r.server = NULL;
    rig_stop(&r);
}

static void test_context_limit(void **state)
{
    (void)state;
    rig r;
    rig_start(&r, NULL, 0, 0, 100, NULL);
    for (int n = 98; n <= 101; n++) {
        char body[1024] = "{\"max_tokens\":50,\"logit_bias\":{\"256\":-100},\"prompt\":[5";
        for (int i = 1; i < n; i++) strcat(body, ",5");
        strcat(body, "]}");
        json_t *j = call_json(&r, "/v1/completions", body, n < 100 ? 200 : 400);
        if (n < 100) {
            assert_string_equal(str_at(j, "finish_reason", NULL), "length");
            const json_t *usage = json_object_get(j, "usage");
            assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 100 - n);
        } else {
            const json_t *e = json_object_get(j, "error");
            assert_string_equal(json_string_value(json_object_get(e, "code")), "context_length_exceeded");
            assert_int_equal(json_integer_value(json_object_get(e, "n_prompt_tokens")), n);
        }
        json_decref(j);
    }
    rig_stop(&r);
}

static void test_port_in_use(void **state)
{
    (void)state;
    rig r;
    rig_start(&r, "x", N_ASK, 0, 0, NULL);
    qn_server_opts o = {.port = qn_server_port(r.server), .engine = r.engine, .loaded = &r.loaded};
    qn_server *second;
    qn_err err = {0};
    assert_int_equal(qn_server_check_address(&o, &err), QN_IO);
    assert_non_null(strstr(err.text, "in use"));
    assert_non_null(strstr(err.text, "it serves org/fake already"));
    qn_err_clear(&err);
    o.host = "::1"; /* another address, but localhost would find the other server there */
    assert_int_equal(qn_server_check_address(&o, &err), QN_IO);
    assert_non_null(strstr(err.text, "it serves org/fake already"));
    o.host = NULL;
    qn_err_clear(&err);
    assert_int_equal(qn_server_start(&second, &o, &err), QN_IO);
    assert_null(second);
    qn_err_clear(&err);

    /* Something else that listens, and never answers. */
    int mute = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    assert_int_equal(bind(mute, (struct sockaddr *)&at, n), 0);
    assert_int_equal(listen(mute, 1), 0);
    getsockname(mute, (struct sockaddr *)&at, &n);
    o.port = ntohs(at.sin_port);
    assert_int_equal(qn_server_check_address(&o, &err), QN_IO);
    assert_non_null(strstr(err.text, "in use; choose another"));
    qn_err_clear(&err);
    close(mute);
    o.port = 0;
    o.host = "no.such.host.invalid";
    assert_int_equal(qn_server_check_address(&o, &err), QN_IO);
    assert_non_null(strstr(err.text, "no.such.host.invalid"));
    rig_stop(&r);
}

/* A loopback address in other words is a loopback address: the Host header counts all the same. */
static void test_loopback_by_another_name(void **state)
{
    (void)state;
    static const struct { const char *host; int status; } cases[] = {
        {"127.1", 200}, {"127.1:80", 200}, {"localhost", 200}, {"127.0.0.1:1", 200}, {"[::1]", 200},
        {"evil.example", 403}, {"127.1.evil.example", 403}, {"", 403}};
    rig r;
    rig_start(&r, "x", N_ASK, 0, 0, &(qn_server_opts){.host = "127.1"});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char head[128];
        int status, fd = dial(&r);
        int n = snprintf(head, sizeof head, "GET /v1/models HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                         cases[i].host);
        send_all(fd, head, (size_t)n);
        free(receive(fd, &status, NULL));
        if (status != cases[i].status) fail_msg("%s: %d", cases[i].host, status);
    }
    rig_stop(&r);
}

static bool unix_dials(const struct sockaddr_un *at)
{
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    bool ok = !connect(fd, (const struct sockaddr *)at, sizeof *at);
    close(fd);
    return ok;
}

/* A socket left behind is replaced; one that a server listens on stays that server's. */
static void test_unix_socket_in_use(void **state)
{
    (void)state;
    rig r;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/quern-used-%d", (int)getpid());
    int left = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(left, (struct sockaddr *)&at, sizeof at), 0);
    close(left);
    assert_false(unix_dials(&at));

    rig_start(&r, "x", N_ASK, 0, 0, &(qn_server_opts){.unix_path = at.sun_path});
    assert_true(unix_dials(&at));
    qn_server_opts o = {.unix_path = at.sun_path, .engine = r.engine, .loaded = &r.loaded};
    qn_server *second;
    qn_err err = {0};
    assert_int_equal(qn_server_check_address(&o, &err), QN_IO);
    assert_non_null(strstr(err.text, "in use"));
    qn_err_clear(&err);
    assert_int_equal(qn_server_start(&second, &o, &err), QN_IO);
    assert_null(second);
    assert_true(unix_dials(&at));

    /* Somebody took the path away and listens there now: his socket is not removed. */
    unlink(at.sun_path);
    int theirs = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(theirs, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(theirs, 1), 0);
    rig_stop(&r);
    assert_true(unix_dials(&at));
    close(theirs);
    unlink(at.sun_path);

    rig_start(&r, "x", N_ASK, 0, 0, &(qn_server_opts){.unix_path = at.sun_path});
    rig_stop(&r);
    assert_int_equal(access(at.sun_path, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_and_stream),
        cmocka_unit_test(test_stop_strings_and_length),
        cmocka_unit_test(test_completions),
        cmocka_unit_test(test_silent_body), cmocka_unit_test(test_metrics), cmocka_unit_test(test_texts),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_responses),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_guards),
        cmocka_unit_test(test_clients_that_leave),
        cmocka_unit_test(test_half_close),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_late_reader),
        cmocka_unit_test(test_http_1_0),
        cmocka_unit_test(test_draining),
        cmocka_unit_test(test_context_limit),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_loopback_by_another_name),
        cmocka_unit_test(test_unix_socket_in_use),
    };
    qn_log_set_level(QN_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
