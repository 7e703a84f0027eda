"""What a reply is made of, over HTTP with a scripted model: reasoning, tool calls of every family, stop
strings, structured output; streamed and whole, and cut at every token.

tests/tools/scripted_server.c takes the reply from the request; tool_family tells a template's family.
"""
import glob
import json
import os
import subprocess

import httpx
import pydantic
import pytest

from conftest import SCRIPTED_BIN, Server

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = os.environ.get("QUERN_TEST_SHARED") or os.path.join(ROOT, "..", "shared")
TEMPLATES = sorted(glob.glob(os.path.join(SHARED, "data", "templates", "*.jinja")))
FAMILY_BIN = os.path.join(os.path.dirname(SCRIPTED_BIN), "tool_family")
CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {
    "s": {"type": "string"}, "n": {"type": "integer"}}}}} for n in ("f", "g")]

if not os.path.exists(SCRIPTED_BIN):
    pytest.skip(f"no server at {SCRIPTED_BIN}: build scripted_server or set QUERN_SCRIPTED", allow_module_level=True)


def ask(reply, **fields):
    return {"messages": [{"role": "user", "content": f"<|say|>{reply}<|said|>"}], **fields}


class Reply:
    """A choice: the same for a whole reply and a stream put together."""

    def __init__(self):
        self.content = self.reasoning = ""
        self.calls, self.finish, self.usage, self.samples, self.order = [], None, None, [], []

    def seen(self):
        """What both forms must have alike."""
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in self.calls]
        return {"content": self.content, "reasoning": self.reasoning, "calls": calls, "finish": self.finish,
                "tokens": [s["id"] for s in self.samples]}


def whole(http, body):
    reply = http.post(CHAT, json=body)
    assert reply.status_code == 200, reply.text
    j = reply.json()
    (choice,) = j["choices"]
    message, r = choice["message"], Reply()
    assert message["role"] == "assistant"
    assert message["content"] is not None or message["tool_calls"]
    assert "tool_calls" not in message or message["tool_calls"]
    r.content, r.reasoning = message["content"] or "", message.get("reasoning", "")
    assert message.get("reasoning_content", "") == r.reasoning
    r.calls, r.finish, r.usage = message.get("tool_calls", []), choice["finish_reason"], j["usage"]
    r.samples = (choice["logprobs"] or {}).get("content", [])
    r.headers = reply.headers
    return r


def add_call_delta(calls, delta):
    """One entry of delta.tool_calls: index always; id, type and name once; arguments to be joined."""
    assert set(delta) <= {"index", "id", "type", "function"}
    if delta["index"] == len(calls):
        assert delta["type"] == "function" and delta["id"] and delta["function"]["arguments"] == ""
        calls.append({"id": delta["id"], "type": "function", "function": dict(delta["function"])})
        return
    assert delta["index"] == len(calls) - 1 and set(delta) == {"index", "function"}
    assert set(delta["function"]) == {"arguments"}
    calls[-1]["function"]["arguments"] += delta["function"]["arguments"]


def streamed(http, body):
    r, done = Reply(), False
    with http.stream("POST", CHAT, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200
        r.headers = reply.headers
        for line in reply.iter_lines():
            if not line.startswith("data: "):
                assert line == "" or line.startswith(": ")
                continue
            assert not done
            if line == "data: [DONE]":
                done = True
                continue
            chunk = json.loads(line[6:])
            (choice,) = chunk["choices"]
            assert r.finish is None, "nothing follows the finish"
            delta, r.finish, r.usage = choice["delta"], choice["finish_reason"], chunk.get("usage")
            r.samples += (choice["logprobs"] or {}).get("content", [])
            r.content += delta.get("content", "")
            r.reasoning += delta.get("reasoning", "")
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for call in delta.get("tool_calls", []):
                add_call_delta(r.calls, call)
            r.order += [k for k in ("content", "reasoning", "tool_calls") if delta.get(k)]
    assert done and r.finish
    return r


def both(http, body):
    """The whole reply, after checking that the stream says the same."""
    a, b = whole(http, body), streamed(http, body)
    assert a.seen() == b.seen()
    assert a.usage["completion_tokens"] == b.usage["completion_tokens"]
    assert a.usage["completion_tokens_details"] == b.usage["completion_tokens_details"]
    for call in a.calls:
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
    return a


def calls_of(reply):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in reply.calls]


# ---- the families

TWO = [("f", {"s": "a < b", "n": 5}), ("g", {})]
GEMMA = '<|tool_call>call:f{s:<|"|>a < b<|"|>,n:5}<tool_call|>'
KIMI = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\":\"a < b\",\"n\":5}<|tool_call_end|>"
KIMI_G = "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
HARMONY = ("--special", "<|start|>", "--special", "<|channel|>", "--special", "<|message|>", "--special", "<|constrain|>",
           "--special", "<|call|>", "--special", "<|return|>")


def specials(*texts):
    return ("--bare",) + tuple(a for t in texts for a in ("--special", t))


# name: (options of the server, the texts of two calls, text between them, text behind them)
FAMILIES = {
    "json_tools": ((), '<tool_call>\n{"name": "f", "arguments": {"s": "a < b", "n": 5}}\n</tool_call>',
                   '<tool_call>{"name": "g"}</tool_call>', "\n", " end"),
    "qwen3_coder": ((), "<tool_call>\n<function=f>\n<parameter=s>\na < b\n</parameter>\n<parameter=n>\n5\n</parameter>\n"
                    "</function>\n</tool_call>", "<function=g>\n</function>", "\n", " end"),
    "glm47": ((), "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a < b</arg_value>\n<arg_key>n</arg_key>\n"
              "<arg_value>5</arg_value>\n</tool_call>", "<tool_call>g</tool_call>", "\n", " end"),
    "longcat": (specials("<longcat_tool_call>", "</longcat_tool_call>", "<longcat_arg_key>", "</longcat_arg_value>"),
                "<longcat_tool_call>f\n<longcat_arg_key>s</longcat_arg_key>\n<longcat_arg_value>a < b</longcat_arg_value>\n"
                "<longcat_arg_key>n</longcat_arg_key>\n<longcat_arg_value>5</longcat_arg_value></longcat_tool_call>",
                "<longcat_tool_call>g</longcat_tool_call>", "\n", " end"),
    "minimax_m2": (specials("<minimax:tool_call>", "</minimax:tool_call>"),
                   "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">a < b</parameter>\n"
                   "<parameter name=\"n\">5</parameter>\n</invoke>\n", "<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>", "",
                   " end"),
    "gemma4": (specials("<|tool_call>", "<tool_call|>", '<|"|>'), GEMMA, "<|tool_call>call:g{}<tool_call|>", " and ", " end"),
    "function_gemma": (specials("<start_function_call>", "<end_function_call>", "<escape>"),
                       "<start_function_call>call:f{s:<escape>a < b<escape>,n:5}<end_function_call>",
                       "<start_function_call>call:g{}<end_function_call>", "", " end"),
    "kimi_k2": (specials("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                         "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
                "<|tool_calls_section_begin|>" + KIMI, KIMI_G + "<|tool_calls_section_end|>", "", " end"),
    "mistral": (specials("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), '[TOOL_CALLS]f[ARGS]{"s": "a < b", "n": 5}', "[TOOL_CALLS]g[ARGS]{}",
                "", ""),
    "pythonic": (specials("<|tool_call_start|>", "<|tool_call_end|>"), '<|tool_call_start|>[f(s="a < b", n=5)',
                 ", g()]<|tool_call_end|>", "", " end"),
    "minicpm5": ((), '<function name="f"><param name="s"><![CDATA[a < b]]></param><param name="n">5</param></function>',
                 '<function name="g"></function>', "\n", " end"),
    "kimi_k3": (specials("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
                '<|open|>tools<|sep|>\n<|open|>call tool="f" index="1"<|sep|><|open|>argument key="s" type="string"<|sep|>a < b'
                '<|close|>argument<|sep|><|open|>argument key="n" type="number"<|sep|>5<|close|>argument<|sep|><|close|>call<|sep|>',
                '<|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>', "", " end"),
    "muse_spark": ((), '<atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="s">a < b</atem:parameter>\n'
                   '<atem:parameter name="n">5</atem:parameter>\n</atem:invoke>', '<atem:invoke name="g">\n</atem:invoke>\n'
                   '</atem:function_calls>', "\n", " end"),
}


@pytest.fixture(scope="module", params=[*FAMILIES])
def family(request):
    options, *texts = FAMILIES[request.param]
    server = Server("--parser", request.param, *options, command=[SCRIPTED_BIN])
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield request.param, http, texts
    assert server.stop() == 0


def test_two_calls(family):
    name, http, (first, second, between, behind) = family
    r = both(http, ask("Let me see. " + first + between + second + behind, tools=TOOLS, logprobs=True))
    assert calls_of(r) == TWO and r.finish == "tool_calls"
    split = between if between and name not in ("minimax_m2", "muse_spark") else ""
    assert r.content == "Let me see. " + split + behind
    assert len(r.samples) == r.usage["completion_tokens"]
    assert len({c["id"] for c in r.calls}) == 2
    for c in r.calls:
        made = len(c["id"]) == 9 if name == "mistral" else c["id"].startswith("call_") and len(c["id"]) == 29
        assert c["id"].startswith("functions.") if name == "kimi_k2" else made


def test_text_before_a_call_streams_at_once(family):
    _, http, (first, second, between, behind) = family
    r = streamed(http, ask("Hello. " + first + between + second + behind, tools=TOOLS))
    assert r.order[:7] == ["content"] * 7


def test_cut_at_every_token(family):
    name, http, (first, second, between, behind) = family
    text = "Hi. " + first + between + second
    n = whole(http, ask(text, tools=TOOLS)).usage["completion_tokens"]
    n_calls = set()
    for k in range(n + 1):
        r = both(http, ask(text, tools=TOOLS, max_tokens=k))
        assert r.usage["completion_tokens"] == k
        assert r.finish == ("length" if k < n else "tool_calls")
        # The beginning of a marker is text when the length cuts it; a block is nothing.
        assert r.content.startswith("Hi. "[:k]) and "a <" not in r.content and "5" not in r.content
        assert calls_of(r) == TWO[:len(r.calls)]
        n_calls.add(len(r.calls))
    assert n_calls >= {0, 2}


def test_without_tools_it_is_text(family):
    _, http, (first, second, between, behind) = family
    text = "x" + first + between + second + behind
    for extra in ({}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}):
        r = both(http, ask(text, **extra))
        assert r.calls == [] and r.finish == "stop" and r.content.startswith("x")


def test_one_call_only(family):
    name, http, (first, second, between, behind) = family
    r = both(http, ask("a" + first + between + second + behind, tools=TOOLS, parallel_tool_calls=False))
    assert calls_of(r) == TWO[:1] and r.finish == "tool_calls" and r.content == "a"


def test_a_stop_string_does_not_count_in_a_call(family):
    _, http, (first, second, between, behind) = family
    r = both(http, ask("a" + first + between + second + behind, tools=TOOLS, stop=["a < b", "5"]))
    assert calls_of(r) == TWO and r.finish == "tool_calls"


def test_a_broken_block_is_text(family):
    name, http, (first, *_) = family
    broken = first[:-1] if name == "mistral" else first.replace("f", "", 1).replace("{", "", 1)
    r = both(http, ask("a" + broken, tools=TOOLS))
    assert r.finish in ("stop", "tool_calls") and (r.calls or r.content.startswith("a"))


def test_kimi_k3_marks(start_scripted):
    """What stands around thinking and the answer is not shown, with tools and without (mlx-lm's structural markers)."""
    server = start_scripted(*specials("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"), "--parser", "kimi_k3")
    o, c, sep = "<|open|>", "<|close|>", "<|sep|>"
    text = f"{o}think{sep}why{c}think{sep}{o}response{sep}Hello{c}response{sep}"
    call = f'{o}tools{sep}{o}call tool="g"{sep}{c}call{sep}{c}tools{sep}'
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for tools in ({}, {"tools": TOOLS}):
            r = both(http, ask(text + f"{c}message{sep}", thinking_budget=1, **tools))
            assert (r.reasoning, r.content, r.finish) == ("why", "Hello", "stop")
        r = both(http, ask(text + call + f"{c}message{sep}", tools=TOOLS))
        assert (r.reasoning, r.content, calls_of(r), r.finish) == ("why", "Hello", [("g", {})], "tool_calls")


# ---- gpt-oss

@pytest.fixture(scope="module")
def harmony():
    server = Server("--parser", "harmony", "--bare", *HARMONY, command=[SCRIPTED_BIN])
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http
    assert server.stop() == 0


def messages(*items):
    """The text of a reply: the prompt ends behind the first message's start."""
    return "<|start|>assistant".join(f"{head}<|message|>{text}" for head, text in items)


def test_harmony(harmony):
    text = messages(("<|channel|>analysis", "hm"), ("<|channel|>final", "hello"))
    for extra in ({}, {"tools": TOOLS}):
        r = both(harmony, ask(text, logprobs=True, **extra))
        assert (r.reasoning, r.content, r.calls, r.finish) == ("hm", "hello", [], "stop")
        assert r.usage["completion_tokens_details"]["reasoning_tokens"] == 3  # h, m, <|start|>
    text = messages(("<|channel|>analysis", "hm"), ("<|channel|>commentary", "I look."),
                    ("<|channel|>commentary to=functions.f <|constrain|>json", '{"s": "a < b", "n": 5}<|call|>'),
                    (" to=functions.g<|channel|>commentary", "{}<|call|>"))
    r = both(harmony, ask(text, tools=TOOLS, stop=["a < b"]))
    assert (r.reasoning, r.content, r.finish) == ("hm", "I look.", "tool_calls") and calls_of(r) == TWO
    r = both(harmony, ask(text, tools=TOOLS, parallel_tool_calls=False))
    assert calls_of(r) == TWO[:1] and r.finish == "tool_calls"
    r = both(harmony, ask(messages(("<|channel|>analysis", "only this")), tools=TOOLS))
    assert (r.reasoning, r.content, r.finish) == ("only this", "", "stop")
    assert both(harmony, ask("no header", tools=TOOLS)).content == "no header"


def test_harmony_arguments_stream_as_they_come(harmony):
    text = messages(("<|channel|>commentary to=functions.f<|constrain|>json", '{"s": "long text", "n": 5}<|call|>'))
    r = streamed(harmony, ask(text, tools=TOOLS))
    assert r.order.count("tool_calls") > 20
    n = whole(harmony, ask(text, tools=TOOLS)).usage["completion_tokens"]
    for k in range(n):
        a, b = (f(harmony, ask(text, tools=TOOLS, max_tokens=k)) for f in (whole, streamed))
        assert a.seen() == b.seen() and a.finish == "length"


# ---- reasoning

@pytest.fixture(scope="module")
def http(scripted):
    with httpx.Client(base_url=scripted.url, timeout=60) as c:
        yield c


def test_reasoning(http):
    r = both(http, ask("<think>hm</think>\n\nhello", logprobs=True))
    assert (r.reasoning, r.content, r.finish) == ("hm", "\n\nhello", "stop")
    assert r.usage["completion_tokens_details"]["reasoning_tokens"] == 3
    assert len(r.samples) == r.usage["completion_tokens"]
    r = both(http, ask("hm</think>hello", chat_template_kwargs={"enable_thinking": True}))
    assert (r.reasoning, r.content) == ("hm", "hello")
    r = both(http, ask("hm</think>hello"))
    assert (r.reasoning, r.content) == ("", "hm</think>hello")
    r = both(http, ask("a<think>b</think>c<think>d</think>e"))
    assert (r.reasoning, r.content) == ("bd", "ace")
    r = both(http, ask("<think>b<think>c</think>d"))
    assert (r.reasoning, r.content) == ("b<think>c", "d")
    r = both(http, ask("<think>never ends"))
    assert (r.reasoning, r.content, r.finish) == ("never ends", "", "stop")


def test_what_a_user_writes_opens_no_block(http):
    body = ask("hello")
    body["messages"][0]["content"] += " what does <think> mean?"
    assert both(http, body).content == "hello"


def test_a_call_while_thinking(http):
    r = both(http, ask('<think>a<tool_call>{"name": "f"}</tool_call>b', tools=TOOLS))
    assert (r.reasoning, calls_of(r), r.content) == ("a", [("f", {})], "b")


@pytest.mark.parametrize("text,stop,reasoning,content", [
    ("<think>ab STOP c</think>d", "STOP", "ab ", ""), ("<think>ab</think>cd STOP", "STOP", "ab", "cd "),
    ("<think>a</think>b", "ab", "a", "b"), ("one\n\nUser: x", "\n\nUser", "", "one"), ("one\n\nUse", "\n\nUser", "", "one\n\nUse"),
    ("gr\u00fc\u00df 😀 STOP", "😀 S", "", "gr\u00fc\u00df "), ("xxabcd", ["abc", "ab"], "", "xx"), ("a<think>b", "<think>", "b", "a"),
])
def test_stop_strings(http, text, stop, reasoning, content):
    r = both(http, ask(text, stop=stop, logprobs=True))
    assert (r.reasoning, r.content, r.finish) == (reasoning, content, "stop")


@pytest.mark.parametrize("text", ["x<", "x</t", "<thi", "<tool_cal", "half 😀", " ", "a ", "<think>x</thin", ""])
def test_ends(http, text):
    said = text.replace("<think>", "") if text.startswith("<think>") else text
    r = both(http, ask(text, tools=TOOLS))
    assert (r.content or r.reasoning) == (said if text != " " else "")  # one leading space is dropped
    n = r.usage["completion_tokens"]
    r = both(http, ask(text, tools=TOOLS, max_tokens=max(n - 1, 0)))
    assert r.finish == "length" and (r.content or r.reasoning) == (said if text != " " else "")


@pytest.mark.parametrize("k", range(5))
def test_a_cut_character(http, k):
    r = both(http, ask("a😀b", max_tokens=1 + k))
    assert r.content == "a" + ("\ufffd" if 0 < k < 4 else "😀" if k == 4 else "")


@pytest.mark.parametrize("choice,names", [("both", {"reasoning", "reasoning_content"}), ("reasoning", {"reasoning"}),
                                          ("reasoning_content", {"reasoning_content"})])
def test_reasoning_field(start_scripted, choice, names):
    with httpx.Client(base_url=start_scripted("--reasoning-field", choice).url, timeout=60) as http:
        message = http.post(CHAT, json=ask("<think>a</think>b")).json()["choices"][0]["message"]
        assert {k for k in message if k.startswith("reasoning")} == names
        with http.stream("POST", CHAT, json=ask("<think>a</think>b", stream=True)) as reply:
            deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in reply.iter_lines() if line.startswith("data: {")]
        assert {k for d in deltas for k in d if k.startswith("reasoning")} == names


# ---- tools, choice, structured output

def test_a_call_to_an_unknown_tool_is_passed_on(http, scripted):
    r = both(http, ask('<tool_call>{"name": "nobody", "arguments": {"a": 0.1}}</tool_call>', tools=TOOLS))
    assert r.calls[0]["function"] == {"name": "nobody", "arguments": '{"a":0.1}'} and r.finish == "tool_calls"
    assert "a tool that was not offered: nobody" in scripted.log


def test_broken_blocks(http):
    text = 'a<tool_call>{"name": </tool_call>b<tool_call>{"name": "g"}</tool_call>'
    r = both(http, ask(text, tools=TOOLS))
    assert r.content == 'a<tool_call>{"name": </tool_call>b' and calls_of(r) == [("g", {})]
    r = both(http, ask("a<tool_call>oops</tool_call>", tools=TOOLS))
    assert r.finish == "stop" and r.content == "a<tool_call>oops</tool_call>"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_forced_choice_warns(http, choice):
    body = ask('<tool_call>{"name": "f"}</tool_call>', tools=TOOLS, tool_choice=choice)
    for r in (whole(http, body), streamed(http, body)):
        assert r.headers["warning"] == "tool_choice not enforced: no grammar engine - treated as auto"
        assert r.finish == "tool_calls"
    assert "warning" not in whole(http, ask("x", tools=TOOLS)).headers


def test_allowed_tools(http):
    """The template shows the tools that the choice names, and no others."""
    named = [{"type": "function", "function": {"name": "g"}}]
    chat = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    text = prompt(http, **ask("x", tools=TOOLS, tool_choice=chat))
    assert '"name": "g"' in text and '"name": "f"' not in text
    flat = [{"type": "function", "name": n, "parameters": {}} for n in ("f", "g")]
    body = {"input": "x", "tools": flat, "tool_choice": {"type": "allowed_tools", "mode": "required",
                                                         "tools": [{"type": "function", "name": "g"}]}}
    count = [http.post("/v1/responses/input_tokens", json=b).json()["input_tokens"]
             for b in (body, {"input": "x", "tools": flat[1:]}, {"input": "x", "tools": flat})]
    assert count[0] == count[1] < count[2]
    reply = http.post("/v1/responses", json=body)
    assert reply.headers["warning"] == "tool_choice not enforced: no grammar engine - treated as auto"


@pytest.mark.parametrize("path,body,param,words", [
    ("/v1/responses", {"input": "x", "max_output_tokens": -1}, "max_output_tokens", "max_output_tokens must be at least 0"),
    ("/v1/responses", {"input": "x", "reasoning": {"effort": "much"}}, "reasoning.effort", "reasoning.effort must be one of"),
    ("/v1/responses", {"input": "x", "text": {"format": {"type": "xml"}}}, "text.format", "text.format.type must be"),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}]}, "input",
     "takes text only, not input_file"),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "odd"}]}]}, "input", "input has a part without text"),
    ("/v1/responses/input_tokens", {"input": "x", "reasoning": {"effort": "much"}}, "reasoning.effort", "reasoning.effort"),
    ("/v1/messages", {"output_config": {"effort": "much"}}, None, "output_config.effort must be one of"),
    ("/v1/messages", {"stop_sequences": ["x" * 300]}, None, "stop_sequences: a string has 300 bytes"),
    ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 0}}, None, "thinking.budget_tokens must be at least 1"),
    ("/v1/messages/count_tokens", {"output_config": {"effort": "much"}}, None, "output_config.effort must be one of")])
def test_errors_name_the_clients_fields(http, path, body, param, words):
    if path.startswith("/v1/messages"):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, **body}
    reply = http.post(path, json=body)
    assert reply.status_code == 400 and words in reply.json()["error"]["message"], reply.text
    assert reply.json()["error"].get("param") == param


def prompt(http, **body):
    reply = http.post("/apply-template", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["prompt"]


def test_what_the_template_sees(http):
    user = [{"role": "user", "content": "hi"}]
    shown = json.loads(prompt(http, messages=user, tools=[{"type": "function", "function": {"name": "f", "parameters": {
        "properties": {"x": {"anyOf": [{"type": "integer"}]}}}}}, {"type": "web_search"}])[len("TOOLS:"):].split("\n")[0])
    assert len(shown) == 1
    assert shown[0]["function"]["parameters"] == {"properties": {"x": {"anyOf": [{"type": "integer"}], "type": "integer"}},
                                                  "type": "object"}
    assert "TOOLS" not in prompt(http, messages=user, tools=TOOLS, tool_choice="none")
    assert "TOOLS" in prompt(http, messages=user, functions=[{"name": "f"}])
    text = prompt(http, messages=user + [
        {"role": "assistant", "content": None, "reasoning": "why", "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "content": [{"type": "text", "text": "5"}, {"type": "text", "text": "6"}]}])
    assert '(why) CALL f {"a": 1}TOOL: 56' in text
    # reasoning_effort, and what wins over it
    assert prompt(http, messages=user, reasoning_effort="high").endswith("<think>\t\n")
    assert prompt(http, messages=user, reasoning_effort="none").endswith("<|assistant|>")
    assert prompt(http, messages=user, reasoning_effort="high", chat_template_kwargs={"enable_thinking": False}).endswith("<|assistant|>")


def test_templates_that_refuse(start_scripted, tmp_path):
    """A template that takes one system message only, and no content beside thinking and calls."""
    source = tmp_path / "strict.jinja"
    source.write_text("{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}{{ raise_exception('one system') }}{% endif %}"
                      "{%- if m.tool_calls and m.thinking and m.content %}{{ raise_exception('content and thinking') }}{% endif %}"
                      "{{ m.role }}:{{ m.content }};{% endfor %}<|assistant|>")
    with httpx.Client(base_url=start_scripted("--template", str(source)).url, timeout=60) as http:
        said = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, {"role": "user", "content": "c"}]
        call = {"role": "assistant", "content": "d", "thinking": "e", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
        assert prompt(http, messages=said) == "system:a\n\nb;user:c;<|assistant|>"
        assert prompt(http, messages=said + [call]) == "system:a\n\nb;user:c;assistant:;<|assistant|>"
        reply = http.post(CHAT, json={"messages": [said[2], said[0]]})
        assert reply.status_code == 400
        assert reply.json()["error"]["message"] == "prompt build failed: one system"


@pytest.mark.parametrize("name,words", [
    ("openai-gpt-oss-120b", ["# Instructions\n\nbe kind", "type f = (_: {", "<|channel|>analysis<|message|>why<|end|>",
                             'to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>']),
    ("mistralai-Mistral-Nemo-Instruct-2407", ['[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}', '[TOOL_RESULTS]{"content": 5']),
    ("Qwen3-Coder", ["<function=f>\n<parameter=a>\n1\n</parameter>"]), ("GLM-4.6", ["<arg_key>a</arg_key>\n<arg_value>1</arg_value>"]),
    ("google-gemma-4-31B-it", ["call:f{a:1}"]), ("LFM2.5-Instruct", ["be kind"]),
])
def test_a_tools_loop_in_published_templates(start_scripted, name, words):
    """Text beside thinking and calls, no ids, no description: what clients send must render."""
    path = os.path.join(SHARED, "data", "templates", name + ".jinja")
    if not os.path.exists(path):
        pytest.skip(f"no {name} here")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    with httpx.Client(base_url=start_scripted("--template", path, "--bare").url, timeout=60) as http:
        text = prompt(http, tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}], messages=[
            {"role": "developer", "content": "be kind"}, {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "let me", "reasoning": "why", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]}, {"role": "tool", "content": "5"}])
    for w in words:
        assert w in text


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize("fields,words", [
    ({"response_format": {"type": "json_object"}}, "one JSON object"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}, json.dumps(SCHEMA, separators=(",", ":"))),
    ({"guided_regex": "[ab]+"}, "[ab]+"), ({"guided_choice": ["x", "y"]}, '["x","y"]'), ({"guided_json": SCHEMA}, '"integer"'),
    ({"structured_outputs": {"regex": "z+"}}, "z+"), ({"guided_grammar": "root ::= x"}, "root ::= x"),
])
def test_structured_output_is_asked_for(http, fields, words):
    r = whole(http, ask("x", **fields))
    assert r.headers["warning"] == "grammar not enforced: no grammar engine - falling back to prompt injection"
    text = prompt(http, messages=[{"role": "user", "content": "hi"}], **fields)
    assert text.startswith("SYSTEM: Reply with") and words in text
    text = prompt(http, messages=[{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}], **fields)
    assert text.count("SYSTEM") == 1 and "\n\nbe kindUSER: hi" in text
    reply = http.post("/v1/completions", json={"prompt": "hi", **fields})
    assert reply.status_code == 200 and reply.headers["warning"].startswith("grammar not enforced")
    assert reply.json()["usage"]["prompt_tokens"] == 2


def test_schemas_that_are_none(http):
    for schema in (7, [], "{", None):
        strict = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
        reply = http.post(CHAT, json=ask("x", response_format=strict))
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "response_format"
        assert reply.json()["error"]["code"] == (None if schema is None else "unsupported_schema")
    assert http.post(CHAT, json=ask("x", response_format={"type": "text"})).headers.get("warning") is None


# ---- the official client

def test_client_stream_helper(scripted):
    client = scripted.client()
    body = ask('<think>hm</think>look<tool_call>{"name": "f", "arguments": {"s": "x"}}</tool_call>', tools=TOOLS, model="any")
    with client.chat.completions.stream(**body) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == "look" and final.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls[0].function.name == "f" and json.loads(message.tool_calls[0].function.arguments) == {"s": "x"}


class Place(pydantic.BaseModel):
    city: str
    inhabitants: int


def test_client_parses(scripted):
    """parse() sends strict: true, always: the schema is asked for in words, and a Warning says so."""
    client = scripted.client()
    body = ask('<think>hm</think>{"city": "Paris", "inhabitants": 2}', model="any", response_format=Place)
    place = Place(city="Paris", inhabitants=2)
    raw = client.chat.completions.with_raw_response.parse(**body)
    assert raw.headers["warning"].startswith("grammar not enforced")
    message = raw.parse().choices[0].message
    assert message.parsed == place and message.reasoning == "hm"
    with client.chat.completions.stream(**body) as stream:
        assert stream.until_done().get_final_completion().choices[0].message.parsed == place
    with pytest.raises(pydantic.ValidationError):
        client.chat.completions.parse(**ask('{"city": "Paris"}', model="any", response_format=Place))


def test_tools_loop(scripted):
    """Two rounds as a client makes them: the call, its result, the answer."""
    client = scripted.client()
    messages_ = [{"role": "user", "content": '<|say|><tool_call>{"name": "f", "arguments": {"n": 2}}</tool_call><|said|>'
                                             "<|say|>It is four.<|said|>"}]
    first = client.chat.completions.create(model="any", messages=messages_, tools=TOOLS).choices[0]
    assert first.finish_reason == "tool_calls"
    messages_.append(first.message.model_dump(exclude_none=True))
    messages_.append({"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "4"})
    second = client.chat.completions.create(model="any", messages=messages_, tools=TOOLS).choices[0]
    assert second.finish_reason == "stop" and second.message.content == "It is four."


# ---- families of published templates

@pytest.mark.skipif(not TEMPLATES or not os.path.exists(FAMILY_BIN), reason="no published templates here, or no tool_family")
def test_family_of_published_templates():
    utils = pytest.importorskip("mlx_lm.tokenizer_utils")

    class Tokenizer:
        def __init__(self, template):
            self.chat_template = template

        def get_vocab(self):
            return {}

    ours = subprocess.run([FAMILY_BIN, *TEMPLATES], capture_output=True, check=True, timeout=60).stdout.decode().split()
    assert len(ours) == len(TEMPLATES)
    known = set()
    for path, got in zip(TEMPLATES, ours):
        source = open(path, encoding="utf-8", newline="").read()
        want = utils._infer_tool_parser(Tokenizer(source)) or "none"
        if want == "none" and got == "harmony":  # ours alone
            assert "<|channel|>" in source and "<|call|>" in source
            continue
        assert got == want, path
        known.add(got)
    assert len(known) > 5
