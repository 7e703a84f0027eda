/* scripted_server.c - the whole server over a model whose replies the test chooses.
 *
 * The reply is in the request. Any message may hold blocks
 *     <|say|>text of a reply<|said|>
 * (outside of them it may say anything). Reply number t of a conversation, counted from 0 by its
 * assistant messages, is the t-th block, or the last one if there are fewer; without a block it is
 * "ok". So a tool loop puts two blocks into the user's message: the call, then the answer. The text
 * may hold any markers; a stream gives it one token at a time (a byte, or an added token), and it
 * ends with <|end|>, which counts as a token too.
 *
 * usage: scripted_server [--name VALUE]...
 *     --token TEXT       an added token (a marker such as <think>), shown in text; may be repeated
 *     --special TEXT     the same, marked special: not shown unless the server asks for it
 *     --parser NAME      tool_parser_type, as tokenizer_config.json has it; default json_tools
 *     --template FILE    chat template; default: below, made for the blocks. Every assistant turn must
 *                        begin with <|assistant|>
 *     --port N           default 0: any
 *     --step-us N        sleep in every step of the model, microseconds
 *     --batch N          requests at once; default 8
 *     --positions N      the context; default 65536
 *     --ping-ms N        silence before a comment in a stream
 *     --api-key KEY
 *     --response-ttl-ms N    age of stored responses
 *     --response-bytes N     room for them
 *     --reasoning-field both|reasoning|reasoning_content
 * With the default template, chat_template_kwargs {"enable_thinking": true} opens a think block in
 * the prompt, and tools are shown as JSON. Tokens <think>, </think>, <tool_call> and </tool_call>
 * exist unless --bare is given.
 *
 * One line on stdout says when requests are taken: "listening on URL model=scripted". SIGTERM ends
 * it as it ends `quern serve`.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "byte_tokenizer.h"
#include "core/file.h"
#include "core/log.h"
#include "fake_model.h"
#include "serve/server.h"

enum { END = QN_BYTE_TOKENS, SAY, SAID, ASSISTANT, N_OWN = 4, MAX_ADDED = 64, DRAIN_MS = 20000 };

/* What the template leaves between <|assistant|> and the reply when a think block is open. No reply
 * begins like this. */
#define OPEN_THINK "<think>\t\n"

static const char default_template[] =
    "{%- if tools %}TOOLS:{{ tools | tojson }}\n{% endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}<|assistant|>{% else %}{{ m.role | upper }}: {% endif %}"
    "{%- if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{%- for c in m.tool_calls or [] %} CALL {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}{% endfor %}\n"
    "{% endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>"
    "{%- if enable_thinking is defined and enable_thinking %}" OPEN_THINK "{% endif %}{% endif %}";

typedef struct script {
    qn_byte_token added[MAX_ADDED];
    size_t n_added;
    uint32_t think; /* id of <think>, or 0 */
} script;

/* ---- the model ---- */

/* Where the t-th block (or the last one) begins, behind <|say|>; n if there is none. */
static uint32_t find_block(const uint32_t *h, uint32_t n, uint32_t t)
{
    uint32_t at = n, seen = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (h[i] != SAY || seen > t) continue;
        at = i + 1;
        seen++;
    }
    return at;
}

/* The token after history [n]: token number k of the reply is token k of its block. */
static uint32_t next_token(const void *user, const uint32_t *h, uint32_t n)
{
    static const uint32_t ok[] = {'o', 'k', END};
    const script *s = user;
    uint32_t turns = 0, begin = n;
    for (uint32_t i = 0; i < n; i++) {
        if (h[i] != ASSISTANT) continue;
        turns++;
        begin = i + 1;
    }
    bool open = s->think && n >= begin + 3 && h[begin] == s->think && h[begin + 1] == '\t' &&
                h[begin + 2] == '\n';
    uint32_t k = n - begin - (open ? 3 : 0);
    uint32_t limit = begin > 0 ? begin - 1 : 0; /* blocks in the reply itself do not count */
    uint32_t at = find_block(h, limit, turns ? turns - 1 : 0);
    if (at == limit) return ok[k < 2 ? k : 2];
    for (uint32_t i = 0; i <= k; i++) {
        if (at + i >= limit || h[at + i] == SAID) return END;
    }
    return h[at + k];
}

/* ---- options ---- */

typedef struct options {
    script s;
    qn_fake_opts fake;
    qn_engine_opts engine;
    qn_server_opts server;
    const char *parser, *template_file, *keys[2];
    bool is_bare;
} options;

static void add_token(script *s, const char *text, bool is_special)
{
    if (s->n_added == MAX_ADDED) {
        fputs("scripted_server: too many tokens\n", stderr);
        exit(2);
    }
    if (!strcmp(text, "<think>")) s->think = QN_BYTE_TOKENS + (uint32_t)s->n_added;
    s->added[s->n_added++] = (qn_byte_token){text, is_special};
}

static void set_reasoning(options *o, const char *v)
{
    if (!strcmp(v, "reasoning")) o->server.reasoning_field = QN_REASONING_PLAIN;
    else if (!strcmp(v, "reasoning_content")) o->server.reasoning_field = QN_REASONING_CONTENT;
}

static bool set_option(options *o, const char *name, const char *v)
{
    uint32_t n = (uint32_t)strtoul(v, NULL, 10);
    if (!strcmp(name, "--token")) add_token(&o->s, v, false);
    else if (!strcmp(name, "--special")) add_token(&o->s, v, true);
    else if (!strcmp(name, "--parser")) o->parser = v;
    else if (!strcmp(name, "--template")) o->template_file = v;
    else if (!strcmp(name, "--port")) o->server.port = (uint16_t)n;
    else if (!strcmp(name, "--step-us")) o->fake.step_us = n;
    else if (!strcmp(name, "--batch")) o->engine.max_rows = n;
    else if (!strcmp(name, "--positions")) o->fake.max_positions = n;
    else if (!strcmp(name, "--ping-ms")) o->server.ping_ms = n;
    else if (!strcmp(name, "--response-ttl-ms")) o->server.store_ttl_ms = n;
    else if (!strcmp(name, "--response-bytes")) o->server.store_bytes = n;
    else if (!strcmp(name, "--api-key")) o->keys[0] = v;
    else if (!strcmp(name, "--reasoning-field")) set_reasoning(o, v);
    else return false;
    return true;
}

static void read_options(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) o->is_bare |= !strcmp(argv[i], "--bare");
    add_token(&o->s, "<|end|>", true);
    add_token(&o->s, "<|say|>", true);
    add_token(&o->s, "<|said|>", true);
    add_token(&o->s, "<|assistant|>", true);
    for (size_t i = 0; i < 4 && !o->is_bare; i++) {
        static const char *const usual[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
        add_token(&o->s, usual[i], false);
    }
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--bare")) continue;
        if (i + 1 < argc && set_option(o, argv[i], argv[i + 1])) {
            i++;
            continue;
        }
        fprintf(stderr, "scripted_server: unknown option or no value: %s\n", argv[i]);
        exit(2);
    }
}

/* ---- the server ---- */

static void must(qn_code rc, const qn_err *err)
{
    if (!rc) return;
    fprintf(stderr, "scripted_server: %s\n", err->text);
    exit(1);
}

static qn_chat_template *read_template(const options *o)
{
    qn_err err = {0};
    qn_chat_template *t;
    char *text = NULL;
    size_t n = sizeof default_template - 1;
    if (o->template_file) must(qn_file_read(o->template_file, 1 << 20, &text, &n, &err), &err);
    json_t *specials = json_pack("{s:s, s:s}", "bos_token", "", "eos_token", "");
    must(qn_chat_template_from_source(&t, text ? text : default_template, n, specials, &err), &err);
    json_decref(specials);
    free(text);
    return t;
}

static void run(options *o, qn_loaded *loaded)
{
    qn_err err = {0};
    qn_server *server;
    sigset_t ends;
    int number;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); /* before any thread starts */
    must(qn_engine_new(&o->server.engine, loaded->model, &o->engine, &err), &err);
    o->server.loaded = loaded;
    o->server.defaults.max_tokens = -1;
    if (o->keys[0]) o->server.api_keys = o->keys;
    must(qn_server_start(&server, &o->server, &err), &err);
    printf("listening on %s model=%s\n", qn_server_url(server), loaded->id);
    fflush(stdout);
    sigwait(&ends, &number);
    qn_server_stop(server, DRAIN_MS);
    qn_engine_free(o->server.engine);
}

int main(int argc, char **argv)
{
    static options o = {.parser = "json_tools", .fake.max_positions = 65536};
    char config[128];
    qn_err err = {0};
    read_options(&o, argc, argv);
    snprintf(config, sizeof config, "{\"tool_parser_type\": \"%s\"}", o.parser);
    o.fake.n_vocab = QN_BYTE_TOKENS + (uint32_t)o.s.n_added;
    o.fake.next = next_token;
    o.fake.user = &o.s;
    qn_loaded loaded = {.id = (char *)(uintptr_t)"scripted", .eos = {END}, .n_eos = 1};
    loaded.model = qn_fake_model(&o.fake);
    loaded.dev = loaded.model->dev;
    loaded.tok = qn_byte_tokenizer(o.s.added, o.s.n_added, config);
    if (qn_encoder_new(&loaded.encoder, loaded.tok, 0, 0, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    loaded.chat = read_template(&o);
    qn_log_set_level(QN_INFO);
    run(&o, &loaded);
    qn_model_close(loaded.model);
    qn_encoder_free(loaded.encoder);
    qn_tokenizer_close(loaded.tok);
    qn_chat_template_free(loaded.chat);
    return 0;
}
