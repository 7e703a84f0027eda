"""`quern serve` with the official OpenAI client, and with requests that no client would send."""
import concurrent.futures
import json
import math
import re
import select
import shutil
import signal
import socket
import subprocess
import time
from http.client import HTTPResponse

import httpx
import openai
import pytest

from conftest import QUERN_BIN, QUERN_MODEL, Server

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
LONG = [{"role": "user", "content": "Write a long story about a fox."}]


def chat(client, messages=None, **kwargs):
    kwargs = {"temperature": 0, "max_tokens": 24, **kwargs}
    return client.chat.completions.create(model="any", messages=messages or CAPITAL, **kwargs)


def text_of(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def counts(usage):
    """The counts that do not depend on what the server saw before."""
    assert 0 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def sse(http, path, body):
    """The frames of a stream as (kind, payload), checked byte by byte against the format."""
    with http.stream("POST", path, json=body) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "text/event-stream"
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.headers["x-accel-buffering"] == "no"
        raw = b"".join(reply.iter_bytes())
    assert raw.endswith(b"\n\n") and b"\r" not in raw
    frames = []
    for frame in raw[:-2].split(b"\n\n"):
        assert b"\n" not in frame
        kind, payload = frame.split(b": " if frame.startswith(b"data") else b" ", 1)
        frames.append((kind.decode(), payload.decode("utf-8")))
    return frames


def data_of(frames):
    return [p for kind, p in frames if kind == "data"]


# ---- chat ----

def test_chat(client, server):
    reply = chat(client)
    assert "Paris" in reply.choices[0].message.content
    assert reply.object == "chat.completion" and reply.model == server.model
    assert reply.id.startswith("chatcmpl-") and abs(reply.created - time.time()) < 60
    assert re.fullmatch(r"quern-[\d.]+-cpu", reply.system_fingerprint)
    choice = reply.choices[0]
    assert choice.index == 0 and choice.message.role == "assistant" and choice.finish_reason == "stop"
    prompt, completion, total = counts(reply.usage)
    assert prompt > 0 and completion > 0 and total == prompt + completion


def test_chat_stream_equals_reply(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert all(c.object == "chat.completion.chunk" for c in chunks)
    assert chunks[-1].choices == [] and counts(chunks[-1].usage) == counts(whole.usage)
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == ["stop"]
    assert all(c.usage is None for c in chunks[:-1])


@pytest.mark.parametrize("options,place", [(None, "finish"), ({}, "finish"), ({"include_usage": None}, "finish"),
                                           ({"include_usage": True}, "own"), ({"include_usage": False}, "none")])
def test_usage_is_sent_once(http, options, place):
    body = {"messages": CAPITAL, "stream": True, "max_tokens": 3, "stream_options": options}
    data = data_of(sse(http, "/v1/chat/completions", body))
    assert data[-1] == "[DONE]"
    chunks = [json.loads(d) for d in data[:-1]]
    with_usage = [c for c in chunks if "usage" in c]
    assert len(with_usage) == (place != "none")
    if place == "own":
        assert with_usage[0] is chunks[-1] and chunks[-1]["choices"] == []
    if place == "finish":
        assert with_usage[0]["choices"][0]["finish_reason"] == "length"


def test_chunk_shape(http, server):
    frames = sse(http, "/v1/chat/completions", {"messages": CAPITAL, "stream": True, "max_tokens": 2, "temperature": 0})
    chunks = [json.loads(d) for d in data_of(frames)[:-1]]
    assert list(chunks[0]) == ["id", "object", "created", "model", "system_fingerprint", "choices"]
    assert chunks[0]["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
                                     "finish_reason": None}]
    assert list(chunks[1]["choices"][0]["delta"]) == ["content"]
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert all(re.fullmatch(r"keepalive( \d+/\d+)?", p) for kind, p in frames if kind == ":")


def test_max_tokens(client):
    for n in (0, 1, 5):
        reply = chat(client, LONG, max_tokens=n)
        assert reply.choices[0].finish_reason == "length" and reply.usage.completion_tokens == n
        assert (reply.choices[0].message.content == "") == (n == 0)
    reply = chat(client, LONG, max_tokens=9, max_completion_tokens=2)
    assert reply.usage.completion_tokens == 2


def test_stop_strings(client):
    whole = chat(client, LONG, max_tokens=40).choices[0].message.content
    for stop in (whole[10:14], whole[7:20], ["never there", whole[12:15], whole[20:22]]):
        cut = min(whole.find(s) for s in ([stop] if isinstance(stop, str) else stop) if s in whole)
        reply = chat(client, LONG, max_tokens=40, stop=stop)
        assert reply.choices[0].message.content == whole[:cut]
        assert reply.choices[0].finish_reason == "stop"
        chunks = list(chat(client, LONG, max_tokens=40, stop=stop, stream=True))
        assert text_of(chunks) == whole[:cut]
    assert chat(client, LONG, max_tokens=40, stop="never there").choices[0].message.content == whole


def test_seed(client):
    kwargs = {"temperature": 1.0, "max_tokens": 30, "seed": 7}
    a, b = (chat(client, LONG, **kwargs).choices[0].message.content for _ in range(2))
    assert a == b
    assert chat(client, LONG, **{**kwargs, "seed": 8}).choices[0].message.content != a
    free = {chat(client, LONG, temperature=1.0, max_tokens=30).choices[0].message.content for _ in range(3)}
    assert len(free) == 3


def test_messages_in_every_form(client):
    base = chat(client).choices[0].message.content
    parts = [{"role": "user", "content": [{"type": "text", "text": "What is the "},
                                          {"type": "text", "text": "capital of France?"}]}]
    assert chat(client, parts).choices[0].message.content == base
    system = [{"role": "system", "content": "Answer in one word."}, *CAPITAL]
    developer = [{"role": "developer", "content": "Answer in one word."}, *CAPITAL]
    assert chat(client, system).choices[0].message.content == chat(client, developer).choices[0].message.content


# ---- completions ----

def test_completions(client, server):
    kwargs = {"model": "any", "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
    reply = client.completions.create(**kwargs)
    assert "Paris" in reply.choices[0].text and reply.id.startswith("cmpl-")
    assert reply.object == "text_completion" and reply.model == server.model
    assert reply.choices[0].finish_reason == "length" and reply.usage.completion_tokens == 8
    chunks = list(client.completions.create(**kwargs, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == reply.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert counts(chunks[-1].usage) == counts(reply.usage)


def test_same_prompt_again_is_cached(client):
    kwargs = {"model": "any", "prompt": "count: " + " ".join(map(str, range(200))), "temperature": 0, "max_tokens": 8}
    first, second = (client.completions.create(**kwargs) for _ in range(2))
    assert second.usage.prompt_tokens_details.cached_tokens > 0
    assert counts(first.usage) == counts(second.usage) and first.choices[0].text == second.choices[0].text


def test_completions_from_ids(client):
    reply = client.completions.create(model="any", prompt=[1, 2, 3], temperature=0, max_tokens=4)
    nested = client.completions.create(model="any", prompt=[[1, 2, 3]], temperature=0, max_tokens=4)
    assert reply.usage.prompt_tokens == 3 and reply.choices[0].text == nested.choices[0].text
    text = client.completions.create(model="any", prompt=["Hello"], temperature=0, max_tokens=4)
    assert text.choices[0].text == client.completions.create(model="any", prompt="Hello", temperature=0,
                                                            max_tokens=4).choices[0].text


# ---- logprobs ----

def check_entry(entry):
    assert math.isfinite(entry["logprob"]) and entry["logprob"] <= 0
    assert isinstance(entry["token"], str) and all(0 <= b < 256 for b in entry["bytes"])


def test_chat_logprobs(http):
    body = {"messages": CAPITAL, "temperature": 0, "max_tokens": 20, "logprobs": True, "top_logprobs": 3}
    reply = http.post("/v1/chat/completions", json=body).json()
    content = reply["choices"][0]["logprobs"]["content"]
    assert len(content) == reply["usage"]["completion_tokens"]  # the end token included
    for entry in content:
        check_entry(entry)
        top = entry["top_logprobs"]
        assert len(top) == 3 and top[0]["id"] == entry["id"]  # greedy
        assert [t["logprob"] for t in top] == sorted((t["logprob"] for t in top), reverse=True)
        for t in top:
            check_entry(t)
    said = bytes(b for e in content[:-1] for b in e["bytes"]).decode()
    assert said.removeprefix(" ") == reply["choices"][0]["message"]["content"]

    chunks = [json.loads(d) for d in data_of(sse(http, "/v1/chat/completions", {**body, "stream": True}))[:-1]]
    streamed = [e for c in chunks if c["choices"] and c["choices"][0]["logprobs"]
                for e in c["choices"][0]["logprobs"]["content"]]
    assert streamed == content


def test_completions_legacy_logprobs(client):
    reply = client.completions.create(model="any", prompt="The capital of France is", temperature=0, max_tokens=6,
                                      logprobs=2)
    lp = reply.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == 6
    assert all(len(t) == 2 and lp.tokens[i] in t for i, t in enumerate(lp.top_logprobs))
    assert lp.text_offset[0] == 0 and lp.text_offset == sorted(lp.text_offset)


# ---- the server's other pages ----

def test_models(client, http, server):
    rows = list(client.models.list())
    assert [r.id for r in rows] == [server.model]
    row = http.get("/v1/models").json()["data"][0]
    assert row["context_window"] == row["max_model_len"] == row["meta"]["n_ctx"] > 0
    assert row["batch_mode"] == "batch" and row["training"] is row["dsa"] is row["mtp"] is False
    assert row["meta"]["n_vocab"] > 0 and row["capabilities"]["chat_completions"] is True
    assert client.models.retrieve(server.model).id == server.model
    assert http.get("/v1/models/none").json() == {"object": "list", "data": []}


def test_role_mapping(tiny, tmp_path):
    """A model without a chat template has mlx-lm's prefixes, or the request's."""
    convert = pytest.importorskip("mlx_lm.server").convert_chat
    folder = tmp_path / "plain"
    shutil.copytree(tiny, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    plain = Server(command=[QUERN_BIN, "serve", str(folder), "--port", "0"])
    try:
        for roles in (None, {}, {"user": "<u>", "assistant": "<a>", "stop": "<s>"}, {"user": "U:"}):
            body = {"messages": messages, "role_mapping": roles, "max_tokens": 1}
            assert httpx.post(plain.url + "/apply-template", json=body).json()["prompt"] == convert(messages, roles)
            assert httpx.post(plain.url + "/v1/chat/completions", json=body).status_code == 200
        for bad in (5, {"user": 1}):
            reply = httpx.post(plain.url + "/v1/chat/completions", json={"messages": messages, "role_mapping": bad})
            assert reply.status_code == 400 and reply.json()["error"]["param"] == "role_mapping"
    finally:
        plain.stop()


def test_small_pages(http, server):
    assert http.get("/health").content == b'{"status": "ok"}'
    assert http.get("/v1").json()["model"] == server.model
    head = http.head("/v1/models")
    assert head.status_code == 200 and head.content == b"" and int(head.headers["content-length"]) > 0
    assert http.get("/v1/models/").json() == http.get("/v1/models?x=1").json()


def test_cors(http):
    reply = http.options("/v1/chat/completions", headers={"Origin": "http://page", "Access-Control-Request-Method": "POST",
                                                          "Access-Control-Request-Headers": "authorization, x-a"})
    assert reply.status_code == 204 and reply.content == b""
    assert reply.headers["access-control-allow-origin"] == "*"
    assert reply.headers["access-control-allow-headers"] == "authorization, x-a"
    assert reply.headers["access-control-max-age"] == "600"
    assert http.get("/health", headers={"Origin": "http://page"}).headers["access-control-allow-origin"] == "*"


def test_request_id(http):
    assert http.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {http.get("/health").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    assert len(http.get("/health", headers={"x-request-id": "a" * 129}).headers["x-request-id"]) == 36


def test_host_check(http):
    reply = http.get("/v1/models", headers={"Host": "evil.example"})
    assert reply.status_code == 403 and reply.json()["error"]["type"] == "permission_error"
    for host in ("localhost:1", "127.0.0.1", "[::1]:80"):
        assert http.get("/v1/models", headers={"Host": host}).status_code == 200


# ---- bad requests ----

def error_of(reply, status):
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    return error


BODIES = [b"", b"[]", b'"x"', b"{", b'{"messages":[{"role":"user","content":"\xff"}]}', b"{" * 5000,
          b'{"a":' + b"[" * 513 + b"]" * 513 + b"}", b"\x00", b"not json"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/chat/completions"])
def test_malformed_bodies(http, path):
    for body in BODIES:
        error = error_of(http.post(path, content=body), 400)
        assert "JSON" in error["message"] and error["type"] == "invalid_request_error"


@pytest.mark.parametrize("field,value,words", [
    ("temperature", "0", "temperature must be of type number"), ("temperature", -1, "at least 0"),
    ("top_p", 2, "at most 1"), ("top_k", 1.5, "must be of type int"), ("stream", 1, "must be of type bool"),
    ("max_tokens", -1, "at least 0"), ("max_tokens", "9", "must be of type int"), ("n", 2, "n must be 1"),
    ("logprobs", 1, "logprobs must be of type bool"), ("top_logprobs", 12, "at most 11"),
    ("logit_bias", {"abc": 1}, "must be a dict of int to float"), ("logit_bias", {"999999999": 1}, "vocabulary"),
    ("seed", "x", "must be of type int"), ("stop", 5, "stop must be of type"), ("messages", [], "messages required"),
    ("messages", "hi", "messages required"), ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
    ("tools", [{"type": "function", "function": {"name": "a b"}}], "the name a b must have"),
    ("response_format", {"type": "xml"}, "must be text, json_object"), ("reasoning_effort", "huge", "must be one of"),
    ("chat_template_kwargs", [], "must be of type object"),
])
def test_wrong_fields(client, http, field, value, words):
    error = error_of(http.post("/v1/chat/completions", json={"messages": CAPITAL, "max_tokens": 1, field: value}), 400)
    assert words in error["message"] and error["param"].startswith(field)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="any", messages=CAPITAL, max_tokens=1, extra_body={field: value})


def test_null_means_absent(http):
    names = ["temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "logprobs", "top_logprobs", "logit_bias",
             "stream", "stream_options", "tools", "tool_choice", "response_format", "max_completion_tokens", "model",
             "reasoning_effort", "chat_template_kwargs", "user", "presence_penalty", "adapter"]
    body = {"messages": CAPITAL, "max_tokens": 1, **{n: None for n in names}}
    assert http.post("/v1/chat/completions", json=body).status_code == 200


def test_paths_and_methods(http):
    assert error_of(http.get("/nothing"), 404)["message"] == "not found"
    reply = http.get("/v1/chat/completions")
    error_of(reply, 405)
    assert "POST" in reply.headers["allow"]
    reply = http.post("/v1/models", json={})
    error_of(reply, 405)
    assert "GET" in reply.headers["allow"] and reply.headers["x-should-retry"] == "false"


def test_prompt_longer_than_the_context(start):
    n_ctx = 300
    server = start("--context-length", str(n_ctx))
    url = server.url + "/v1/"
    assert httpx.get(url + "models").json()["data"][0]["context_window"] == n_ctx
    for n, status in ((n_ctx - 2, 200), (n_ctx - 1, 200), (n_ctx, 400), (n_ctx + 1, 400)):
        reply = httpx.post(url + "completions", json={"prompt": [5] * n, "max_tokens": 5}, timeout=60)
        assert reply.status_code == status
        if status == 200:
            assert reply.json()["usage"]["completion_tokens"] <= n_ctx - n
            assert reply.json()["choices"][0]["finish_reason"] in ("length", "stop")
            continue
        error = reply.json()["error"]
        assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
        assert "maximum context length" in error["message"]
        assert "exceeds the available context size" in error["message"]
        assert error["n_prompt_tokens"] == n and error["n_ctx"] == n_ctx
    long = [{"role": "user", "content": "word " * n_ctx}]
    error = error_of(httpx.post(url + "chat/completions", json={"messages": long}), 400)
    assert error["code"] == "context_length_exceeded" and error["param"] == "messages"


def raw(server, payload, half_close=False):
    """Send bytes, return all that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        s.sendall(payload)
        if half_close:
            s.shutdown(socket.SHUT_WR)
        got = b""
        while piece := s.recv(65536):
            got += piece
    return got


def request_bytes(body, extra="", version="1.1"):
    data = json.dumps(body).encode()
    return (f"POST /v1/chat/completions HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n{extra}"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def test_raw_http(server):
    body = {"messages": CAPITAL, "max_tokens": 2}
    assert raw(server, request_bytes(body)).startswith(b"HTTP/1.1 200")
    assert raw(server, request_bytes(body), half_close=True).split(b"\r\n\r\n")[-2].startswith(b"HTTP/1.1 200")
    assert b" 200 " in raw(server, request_bytes(body, version="1.0"))
    stream = raw(server, request_bytes({**body, "stream": True}, version="1.0"))
    assert stream.endswith(b"data: [DONE]\n\n") and b"chunked" not in stream
    assert raw(server, request_bytes({**body, "stream": True})).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    data = json.dumps(body).encode()
    chunked = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
               b"Transfer-Encoding: chunked\r\n\r\n" + f"{len(data):x}\r\n".encode() + data + b"\r\n0\r\n\r\n")
    assert raw(server, chunked).startswith(b"HTTP/1.1 200")
    assert raw(server, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 70000 +
               b"\r\n\r\n").startswith(b"HTTP/1.1 431")
    huge = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000000\r\n\r\n"
    assert raw(server, huge).startswith(b"HTTP/1.1 413")


# ---- many at once ----

def test_eight_at_once_equal_alone(client):
    asked = [[{"role": "user", "content": f"Tell me {n} facts about {what}."}]
             for n, what in enumerate(["the sea", "trains", "Rome", "cats", "gold", "tea", "Mars", "bread"], 2)]
    options = [{"max_tokens": 20 + 3 * i, "temperature": 0.8 * (i % 2), "seed": i} for i in range(8)]

    def ask(i):
        if i % 2:
            return text_of(chat(client, asked[i], stream=True, **options[i]))
        return chat(client, asked[i], **options[i]).choices[0].message.content

    alone = [ask(i) for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == alone


def wait_for_log(server, words, seconds=20):
    end = time.time() + seconds
    while time.time() < end:
        if words in server.log:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves(client, server, stream):
    body = {"messages": LONG, "max_tokens": 2000, "stream": stream, "ignore_eos": True}
    name = f"leaver-{stream}-{time.time()}"
    s = socket.create_connection(("127.0.0.1", server.port))
    s.sendall(request_bytes(body, f"x-request-id: {name}\r\n"))
    if stream:
        while b"content" not in s.recv(65536):
            pass
    else:
        time.sleep(0.3)
    s.close()
    assert wait_for_log(server, f"{name} /v1/chat/completions status=499"), server.log[-2000:]
    assert "Paris" in chat(client).choices[0].message.content


def test_client_library_that_leaves(client):
    with chat(client, LONG, max_tokens=2000, stream=True) as stream:
        for _, chunk in zip(range(4), stream):
            assert chunk.choices
    assert "Paris" in chat(client).choices[0].message.content


def test_queue_is_limited(start):
    server = start("--batch", "1")
    data = request_bytes({"messages": LONG, "max_tokens": 2000, "temperature": 1, "stream": True})
    waiting, refused = [], None
    try:
        # One runs and some wait; which one is refused depends on how many end meanwhile.
        until = time.monotonic() + 60
        while not refused and time.monotonic() < until:
            if len(waiting) < 200:
                s = socket.create_connection(("127.0.0.1", server.port), timeout=60)
                s.sendall(data)
                waiting.append(s)
            for ready in select.select(waiting, [], [], 0.01)[0]:
                if ready.recv(13, socket.MSG_PEEK).startswith(b"HTTP/1.1 429"):
                    refused = ready
        assert refused, "nobody was refused"
        reply = HTTPResponse(refused)
        reply.begin()
        error = json.loads(reply.read())["error"]
        assert error["code"] == "queue_full" and reply.headers["retry-after"] == "1"
        assert len(waiting) > 64
    finally:
        for s in waiting:
            s.close()


# ---- start and end ----

def test_port_in_use(server):
    done = subprocess.run([QUERN_BIN, "serve", QUERN_MODEL, "--port", str(server.port)], capture_output=True,
                          timeout=60, check=False)
    assert done.returncode == 1 and done.stdout == b""
    text = done.stderr.decode()
    assert f"port {server.port} is in use: it serves {server.model} already" in text and text.count("\n") == 1


def test_kv_budget(http, start):
    """The operator's budget is shown, and a request that is longer than it alone is refused, not left waiting."""
    assert http.get("/stats").json()["batch"]["kv_budget_bytes"] is None
    small = start("--kv-budget", "0.01")
    stats = httpx.get(small.url + "/stats").json()
    assert stats["batch"]["kv_budget_bytes"] == 10 ** 7
    n_ctx = stats["admission"]["max_safe_context"]
    ask = {"messages": CAPITAL, "max_tokens": 10 ** 6, "ignore_eos": True, "temperature": 0}
    reply = httpx.post(small.url + "/v1/chat/completions", json=ask, timeout=60).json()
    assert reply["choices"][0]["finish_reason"] == "length" and reply["usage"]["total_tokens"] <= n_ctx
    long = {"messages": [{"role": "user", "content": "word " * (n_ctx + 10)}]}
    error = error_of(httpx.post(small.url + "/v1/chat/completions", json=long, timeout=60), 400)
    assert (error["type"], error["code"]) == ("memory_admission", "context_over_budget")


def test_lane(http, start):
    """How the request ran, in usage and in the log."""
    ask = {"messages": CAPITAL, "max_tokens": 2}
    assert http.post("/v1/chat/completions", json=ask).json()["usage"]["lane"] == "batched"
    alone = start("--batch", "1")
    stream = httpx.post(alone.url + "/v1/completions", json={"prompt": "a", "max_tokens": 1, "stream": True}).text
    assert '"lane":"serial"' in stream and stream.count('"lane"') == 1
    assert httpx.get(alone.url + "/v1/models").json()["data"][0]["batch_mode"] == "serial"
    time.sleep(0.2)
    assert "lane=serial" in alone.log


def test_api_key(start):
    server = start("--api-key", "one,two")
    url = server.url + "/v1/models"
    assert error_of(httpx.get(url), 401)["type"] == "authentication_error"
    assert error_of(httpx.get(url, headers={"Authorization": "Bearer on"}), 401)
    assert httpx.get(url, headers={"Authorization": "Bearer two"}).status_code == 200
    assert httpx.get(url, headers={"x-api-key": "one"}).status_code == 200
    assert httpx.options(url).status_code == 204
    assert httpx.get(server.url + "/health").status_code == 200
    assert "one" not in server.log and "two" not in server.log


def test_api_keys_add_up(start):
    url = start("--api-key", "one", "--api-key", "two", env={"QUERN_API_KEY": "three"}).url + "/v1/models"
    assert [httpx.get(url, headers={"x-api-key": k}).status_code for k in ("one", "two", "three")] == [200, 200, 401]
    url = start(env={"QUERN_API_KEY": "three,four"}).url + "/v1/models"
    assert [httpx.get(url, headers={"x-api-key": k}).status_code for k in ("one", "three", "four")] == [401, 200, 200]


@pytest.mark.parametrize("given", ["", ","])
def test_no_key_is_no_key(given):
    """An unset variable in a script must not open the server to everybody."""
    done = subprocess.run([QUERN_BIN, "serve", QUERN_MODEL, "--port", "0", "--api-key", given], capture_output=True,
                          timeout=60, check=False)
    assert done.returncode == 2 and b"--api-key expects a value" in done.stderr


def test_signal_lets_requests_finish(start):
    server = start()
    stream = chat(server.client(), LONG, stream=True, max_tokens=60)
    first = next(stream)
    server.process.send_signal(signal.SIGTERM)
    rest = list(stream)
    assert first.choices and rest[-1].choices[0].finish_reason in ("stop", "length")
    assert server.process.wait(timeout=30) == 0


def test_signal_with_a_short_timeout(start):
    server = start(env={"QUERN_SHUTDOWN_TIMEOUT_MS": "1"})
    stream = chat(server.client(), LONG, stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
    next(stream)
    server.process.send_signal(signal.SIGINT)
    with pytest.raises(openai.APIError, match="shutting down"):
        list(stream)
    assert server.process.wait(timeout=30) == 0


def test_silent_streams_get_comments(start):
    server = start("--batch", "1", "--sse-ping-interval", "0.2")
    blocker = chat(server.client(), LONG, stream=True, max_tokens=3000, extra_body={"ignore_eos": True})
    next(blocker)
    with httpx.stream("POST", server.url + "/v1/chat/completions", timeout=60,
                      json={"messages": CAPITAL, "stream": True, "max_tokens": 1}) as reply:
        lines = []
        for line in reply.iter_lines():
            lines.append(line)
            if line == ": keepalive":
                break
    assert lines[-1] == ": keepalive"
    blocker.close()
