"""/v1/messages with the official Anthropic client: a real model, and a scripted one for every order of events."""
import json
import random
import signal

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from sse import check_model, events

EVENT, MESSAGE = TypeAdapter(RawMessageStreamEvent), TypeAdapter(Message)
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {"name": "get_weather", "description": "The weather.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


def say(*replies):
    return "".join(f"<|say|>{r}<|said|>" for r in replies)


@pytest.fixture(scope="module")
def http(scripted):
    with httpx.Client(base_url=scripted.url, timeout=60) as c:
        yield c


def body(*replies, **kwargs):
    return {"model": "any", "max_tokens": 1000, "messages": [{"role": "user", "content": say(*replies)}], **kwargs}


# ---- the grammar of a stream ----

def rebuild(stream):
    """The message that a stream's events add up to, with every rule of their order checked."""
    while stream[0][0] == "ping":
        stream = stream[1:]
    names = [name for name, _ in stream]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    message, open_block = stream[0][1]["message"], None
    assert message["content"] == [] and message["stop_reason"] is None and message["usage"]["output_tokens"] == 0
    starts = {"text": {"type": "text", "text": ""}, "thinking": {"type": "thinking", "thinking": "", "signature": ""}}
    for name, e in stream[1:-2]:
        check_model(EVENT, e) if name != "ping" else None
        if name == "ping":
            assert e == {"type": "ping"}
        elif name == "content_block_start":
            assert open_block is None and e["index"] == len(message["content"])
            open_block = e["content_block"]
            if open_block["type"] == "tool_use":
                assert open_block["input"] == {} and open_block["id"].startswith("toolu_")
                open_block["json"] = ""
            else:
                assert open_block == starts[open_block["type"]]
            message["content"].append(open_block)
            last = None
        elif name == "content_block_delta":
            assert e["index"] == len(message["content"]) - 1
            key, kind = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking"),
                         "signature_delta": ("signature", "thinking"),
                         "input_json_delta": ("partial_json", "tool_use")}[e["delta"]["type"]]
            assert open_block["type"] == kind and last != "signature_delta"
            last = e["delta"]["type"]
            open_block["json" if kind == "tool_use" else key] += e["delta"][key]
        else:
            assert name == "content_block_stop" and e["index"] == len(message["content"]) - 1
            assert open_block["type"] != "thinking" or last == "signature_delta"
            if open_block["type"] == "tool_use":
                open_block["input"] = json.loads(open_block.pop("json"))
            open_block = None
    assert open_block is None and message["content"]
    for e in (stream[0][1], stream[-2][1], stream[-1][1]):
        check_model(EVENT, e)
    message.update(stream[-2][1]["delta"])
    message["usage"] = stream[-2][1]["usage"]
    return message


def same(a, b):
    """Are two messages equal but for ids and what the prefix cache held?"""
    def strip(m):
        content = [{k: v for k, v in c.items() if k != "id"} for c in m["content"]]
        u = m["usage"]
        total = u["input_tokens"] + u["cache_creation_input_tokens"] + u["cache_read_input_tokens"]
        return content, m["stop_reason"], m["stop_sequence"], m["model"], m["role"], total, u["output_tokens"]
    return strip(a) == strip(b)


REPLIES = {
    "text": ("Hello.", ["text"], "end_turn"),
    "empty": ("", ["text"], "end_turn"),
    "thinking": ("<think>hm\n</think>\n\nHi €", ["thinking", "text"], "end_turn"),
    "only thinking": ("<think>hm", ["thinking"], "end_turn"),
    "call": (CALL, ["tool_use"], "tool_use"),
    "calls": (f"<think>a</think>Let me look.{CALL}{CALL}", ["thinking", "text", "tool_use", "tool_use"], "tool_use"),
    "text behind a call": (f"a{CALL}b", ["text", "tool_use", "text"], "tool_use"),
    "thinking again": (f"<think>a</think>b<think>c</think>{CALL}", ["thinking", "text", "thinking", "tool_use"],
                       "tool_use"),
    "no arguments": ('<tool_call>{"name": "get_weather"}</tool_call>', ["tool_use"], "tool_use"),
    "broken call": ('<tool_call>{"name": </tool_call>', ["text"], "end_turn"),
}


@pytest.mark.parametrize("name", REPLIES)
def test_stream_and_reply(http, name):
    text, kinds, reason = REPLIES[name]
    request = body(text, tools=[TOOL])
    whole = http.post("/v1/messages", json=request)
    assert whole.status_code == 200, whole.text
    message = whole.json()
    check_model(MESSAGE, message)
    assert [c["type"] for c in message["content"]] == kinds and message["stop_reason"] == reason
    assert message["id"].startswith("msg_") and len(message["id"]) == 28
    assert same(rebuild(events(http, "/v1/messages", request)), message)


def test_random_replies(http):
    """Every mix of blocks: a stream adds up to the reply."""
    rng = random.Random(1)
    bits = ["<think>x y</think>", "<think>", "</think>", CALL, "text ", "\n\n", "<tool_", "é€😀", "<", "{}", "stop"]
    for _ in range(60):
        text = "".join(rng.choice(bits) for _ in range(rng.randrange(8)))
        request = body(text, tools=[TOOL], stop_sequences=["stop"], max_tokens=rng.choice([1, 5, 40, 1000]))
        message = http.post("/v1/messages", json=request).json()
        check_model(MESSAGE, message)
        assert same(rebuild(events(http, "/v1/messages", request)), message), text


# ---- why it ended ----

def test_stop_reasons(http, start_scripted):
    def ask(text, **kwargs):
        return http.post("/v1/messages", json=body(text, **kwargs)).json()
    m = ask("one STOP two", stop_sequences=["nope", "STOP"])
    assert m["content"][0]["text"] == "one " and (m["stop_reason"], m["stop_sequence"]) == ("stop_sequence", "STOP")
    assert ask("abcdef", max_tokens=3)["stop_reason"] == "max_tokens"
    m = ask(f"{CALL}STOP", tools=[TOOL], stop_sequences=["STOP"])
    assert (m["stop_reason"], m["stop_sequence"]) == ("tool_use", None)
    small = start_scripted("--positions", "64")
    request = body("x" * 30)
    del request["max_tokens"]
    with httpx.Client(base_url=small.url) as c:
        m = c.post("/v1/messages", json=request).json()
        assert m["stop_reason"] == "model_context_window_exceeded"
        assert m["usage"]["input_tokens"] + m["usage"]["output_tokens"] == 64
        e = c.post("/v1/messages", json=body("x" * 100))
    assert e.status_code == 400 and e.json()["error"]["type"] == "invalid_request_error"
    assert "prompt is too long: " in e.json()["error"]["message"] and "> 64 maximum" in e.json()["error"]["message"]
    assert "maximum context length" in e.json()["error"]["message"]


def test_one_call_only(http):
    request = body(f"{CALL}{CALL}", tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    message = http.post("/v1/messages", json=request).json()
    assert [c["type"] for c in message["content"]] == ["tool_use"]
    hidden = http.post("/v1/messages", json=body(CALL, tools=[TOOL], tool_choice={"type": "none"})).json()
    assert [c["type"] for c in hidden["content"]] == ["text"]


def test_thinking_on_and_off(http):
    on = http.post("/v1/messages", json=body("hm</think>yes", thinking={"type": "enabled", "budget_tokens": 1024})).json()
    assert [c["type"] for c in on["content"]] == ["thinking", "text"]
    off = http.post("/v1/messages", json=body("hm</think>yes", thinking={"type": "disabled"})).json()
    assert [c["type"] for c in off["content"]] == ["text"]


def test_thinking_budget(http):
    """The end of the reasoning is forced when its tokens are spent; the script then goes on behind it."""
    def ask(text, n, **kwargs):
        thinking = {"type": "enabled", "budget_tokens": n}
        return http.post("/v1/messages", json=body(text, thinking=thinking, **kwargs)).json()["content"]
    assert [list(c.values())[-1] for c in ask("abcdef", 3)] == ["abc", "ef"]
    assert [list(c.values())[-1] for c in ask("abc</think>def", 3)] == ["abc", "def"]
    assert [list(c.values())[-1] for c in ask("abc</think>def", 4)] == ["abc", "def"]
    both = ask("a</think>b<think>cdefg", 3)
    assert [list(c.values())[-1] for c in both] == ["a", "b", "cd", "fg"]
    request = body("abcdef", thinking={"type": "enabled", "budget_tokens": 3})
    assert [c["type"] for c in rebuild(events(http, "/v1/messages", request))["content"]] == ["thinking", "text"]
    chat = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": say("<think>abcdef")}],
                                                   "thinking_budget": 2}).json()["choices"][0]["message"]
    assert (chat["reasoning"], chat["content"]) == ("ab", "def")


def test_schema_is_asked_for_in_words(http):
    output = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    reply = http.post("/v1/messages", json=body("{}", output_config=output))
    assert reply.status_code == 200 and "grammar not enforced" in reply.headers["warning"]
    assert http.post("/v1/messages", json=body("a")).headers.get("warning") is None


# ---- with the client ----

def test_tools_loop(scripted):
    client = scripted.anthropic()
    messages = [{"role": "user", "content": "Weather?" + say(f"<think>a</think>Looking.{CALL}", "It rains.")}]
    with client.messages.stream(model="any", max_tokens=500, messages=messages, tools=[TOOL]) as stream:
        first = stream.get_final_message()
    assert [c.type for c in first.content] == ["thinking", "text", "tool_use"] and first.stop_reason == "tool_use"
    call = first.content[-1]
    assert call.input == {"city": "Paris"}
    messages += [{"role": "assistant", "content": [c.model_dump() for c in first.content]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}]
    second = client.messages.create(model="any", max_tokens=500, messages=messages, tools=[TOOL])
    assert second.content[0].text == "It rains." and second.stop_reason == "end_turn"
    assert second.usage.cache_read_input_tokens > 0
    with client.messages.stream(model="any", max_tokens=500, messages=messages, tools=[TOOL]) as stream:
        assert "".join(stream.text_stream) == "It rains."


@pytest.mark.parametrize("extra", [{}, {"system": "Be brief."}, {"tools": [TOOL]}, {"thinking": {"type": "disabled"}}])
def test_count_tokens_is_usage(scripted, extra):
    client = scripted.anthropic()
    messages = [{"role": "user", "content": say("a")}]
    counted = client.messages.count_tokens(model="any", messages=messages, **extra).input_tokens
    usage = client.messages.create(model="any", max_tokens=5, messages=messages, **extra).usage
    total = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    assert counted == total
    assert client.beta.messages.count_tokens(model="any", messages=messages, **extra).input_tokens == total


def test_billing_line_does_not_defeat_the_prefix(scripted):
    client = scripted.anthropic()

    def ask(value):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={value};"},
                  {"type": "text", "text": "You are the one assistant of this very test. " * 8}]
        return client.messages.create(model="any", max_tokens=5, system=system,
                                      messages=[{"role": "user", "content": say("a")}]).usage
    first, second = ask("1f2a3"), ask("98c7d6")
    assert second.cache_read_input_tokens > 300 and first.input_tokens > second.input_tokens


# ---- errors ----

def test_errors(scripted, http, start_scripted):
    client = scripted.anthropic()
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(model="any", max_tokens=5, messages=[])
    assert bad.value.body["error"] == {"type": "invalid_request_error",
                                       "message": "messages: at least one message is required"}
    assert bad.value.body["request_id"] == bad.value.request_id
    for method, path, status, kind in [("GET", "/v1/messages", 405, "invalid_request_error"),
                                       ("POST", "/v1/messages/nothing", 404, "not_found_error")]:
        reply = http.request(method, path)
        assert reply.status_code == status
        assert reply.json()["type"] == "error" and reply.json()["error"]["type"] == kind
        assert reply.headers["request-id"] == reply.headers["x-request-id"] == reply.json()["request_id"]
    reply = http.post("/v1/messages", content=b"{")
    assert reply.status_code == 400 and "invalid JSON body" in reply.json()["error"]["message"]
    locked = start_scripted("--api-key", "right")
    with httpx.Client(base_url=locked.url) as c:
        for path, shape in [("/v1/messages", True), ("/v1/messages/count_tokens", True), ("/v1/responses", False),
                            ("/v1/chat/completions", False)]:
            reply = c.post(path, json={})
            assert reply.status_code == 401 and reply.json()["error"]["type"] == "authentication_error"
            assert (reply.json().get("type") == "error") == shape
            assert c.options(path).status_code == 204
            assert c.post(path, json={}, headers={"x-api-key": "right"}).status_code == 400


def test_error_in_a_stream(start):
    """The server is told to end while it writes: an error event, and nothing behind it."""
    one = start(env={"QUERN_SHUTDOWN_TIMEOUT_MS": "1"})
    messages = [{"role": "user", "content": "Write a long story."}]
    with pytest.raises(anthropic.APIStatusError, match="shutting down"):
        with one.anthropic().messages.stream(model="any", max_tokens=4000, messages=messages,
                                             extra_body={"temperature": 0}) as stream:
            for i, event in enumerate(stream):
                if i == 5:
                    one.process.send_signal(signal.SIGTERM)
                assert event.type not in ("message_delta", "message_stop")


def test_pings_while_silent(start_scripted):
    slow = start_scripted("--step-us", "150000", "--ping-ms", "100")
    with httpx.Client(base_url=slow.url, timeout=60) as c:
        stream = events(c, "/v1/messages", body("abc"))
    assert ("ping", {"type": "ping"}) in stream
    assert rebuild(stream)["content"][0]["text"] == "abc"


def test_start_counts_what_the_cache_gave(http):
    request = body("hello", system="A system prompt that is only this test's. " * 8)
    counts = []
    for _ in range(2):
        stream = events(http, "/v1/messages", request)
        first = next(e for name, e in stream if name == "message_start")["message"]["usage"]
        last = next(e for name, e in stream if name == "message_delta")["usage"]
        assert first["output_tokens"] == 0 and {**first, "output_tokens": last["output_tokens"]} == last
        counts.append(first)
    (a, b) = counts
    assert b["cache_read_input_tokens"] > 300 and a["input_tokens"] > b["input_tokens"] > 0
    assert sum(a.values()) == sum(b.values())


def test_silence_before_admission(start_scripted):
    """With one row at work the next request waits: pings, then a start, and the client follows."""
    one = start_scripted("--step-us", "20000", "--ping-ms", "100", "--batch", "1")
    with httpx.Client(base_url=one.url, timeout=60) as c, c.stream("POST", "/v1/messages", json={
            **body("x" * 60), "stream": True}) as busy:
        lines = busy.iter_lines()
        assert "event: message_start" in lines  # reads up to it; pings may come before
        stream = events(c, "/v1/messages", body("abc"))
        assert stream[0] == ("ping", {"type": "ping"}) and rebuild(stream)["content"][0]["text"] == "abc"
        with one.anthropic().messages.stream(**body("abc")) as helped:
            assert helped.get_final_text() == "abc"


# ---- the real model ----

def test_real_model(server):
    client = server.anthropic()
    request = {"model": "any", "max_tokens": 24, "extra_body": {"temperature": 0}, "messages": CAPITAL, "system": "You are helpful."}
    whole = client.messages.create(**request)
    assert "Paris" in whole.content[0].text and whole.stop_reason == "end_turn"
    assert whole._request_id
    with client.messages.stream(**request) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text and final.stop_reason == whole.stop_reason
    counted = client.messages.count_tokens(model="any", messages=CAPITAL, system="You are helpful.").input_tokens
    assert counted == final.usage.input_tokens + final.usage.cache_read_input_tokens
    cut = client.messages.create(**{**request, "stop_sequences": ["Paris"]})
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", "Paris")
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**request, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}]}]})
