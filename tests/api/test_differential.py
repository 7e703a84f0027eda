"""The same requests to a running mlx_lm.server and to quern under its name: replies differ exactly where
docs/differences.md says so.

A difference is named by what an observer sees ("status 404 -> 400", "key +timings", "text"); every case lists the names
that it shows, and the table explains each of them.
"""
import json
import os
import re
import socket
import subprocess
import sys
import time

import httpx
import pytest

from conftest import QUERN_BIN, ROOT

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "Hello! How are you today?"}]}
FOX = {"prompt": "The quick brown fox"}
SPECIAL = re.compile(r"<\|(endoftext|im_start|im_end)\|>")
LONG = 600  # more tokens than the model says by itself
USAGE = {"key +usage.completion_tokens_details", "key +usage.lane"}
WHOLE = USAGE | {"key +choices.logprobs", "key +timings"}
STREAM = {"key +choices.logprobs", "key +timings"}
SCORED = USAGE | {"key +choices.logprobs.content.bytes", "key +timings"}
ERROR, WORDS = {"error shape"}, {"error shape", "error text"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Program:
    def __init__(self, argv, port):
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env=dict(os.environ, HF_HUB_OFFLINE="1"))
        for _ in range(600):
            try:
                if httpx.get(self.url + "/health", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.1)
        raise AssertionError(f"{argv[0]} does not answer")

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def servers(tiny, tmp_path_factory):
    port = free_port()
    theirs = Program([sys.executable, "-m", "mlx_lm.server", "--model", str(tiny), "--port", str(port)], port)
    name = tmp_path_factory.mktemp("bin") / "mlx_lm.server"
    name.symlink_to(os.path.abspath(QUERN_BIN))
    port = free_port()
    ours = Program([str(name), "--model", str(tiny), "--port", str(port), "--l1"], port)
    yield theirs, ours
    theirs.stop()
    ours.stop()


# ---- what an observer sees ----

def keys(value, path=""):
    """Every key of a JSON tree as a dotted path, lists looked through."""
    found = set()
    if isinstance(value, dict):
        for k, v in value.items():
            found.add(f"{path}{k}")
            found |= keys(v, f"{path}{k}.")
    elif isinstance(value, list):
        for v in value:
            found |= keys(v, path)
    return found


def topmost(paths):
    """Without the keys inside of keys that are there themselves."""
    return {p for p in paths if not any(p.startswith(q + ".") for q in paths)}


def parse_stream(text):
    frames = [f for f in text.split("\n\n") if f]
    data = [f[6:] for f in frames if f.startswith("data: ")]
    return {"comments": any(f.startswith(":") for f in frames), "done": bool(data) and data[-1] == "[DONE]",
            "chunks": [json.loads(d) for d in data if d != "[DONE]"]}


def see(url, method, path, body, raw=None):
    """One reply, as {status, type, keys, text, finish, usage, ...}; a dropped connection has status "dropped"."""
    try:
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        r = httpx.request(method, url + path, content=content, timeout=60)
    except httpx.HTTPError:
        return {"status": "dropped"}
    seen = {"status": str(r.status_code), "type": r.headers.get("content-type", "")}
    if seen["type"].startswith("text/event-stream"):
        s = parse_stream(r.text)
        chunks = [c for c in s["chunks"] if c["choices"]]
        bodies = [c["choices"][0] for c in chunks]
        seen["done"] = s["done"]
        seen["keys"] = set().union(*(keys(c) for c in s["chunks"]))
        seen["text"] = "".join(b.get("delta", {}).get("content") or b.get("text") or "" for b in bodies)
        seen["finish"] = [b["finish_reason"] for b in bodies if b.get("finish_reason")]
        seen["role first"] = bool(bodies) and not (bodies[0].get("delta", {}).get("content") or bodies[0].get("text"))
        seen["finish alone"] = bool(bodies) and not (bodies[-1].get("delta", {}).get("content") or bodies[-1].get("text"))
        seen["usage chunk"] = any(not c["choices"] for c in s["chunks"])
        seen["usage"] = [c["usage"] for c in s["chunks"] if c.get("usage")]
        return seen
    try:
        tree = r.json()
    except ValueError:
        return {**seen, "body": r.text}
    if r.status_code >= 400:
        error = tree.get("error") or str(tree)
        return {**seen, "error": "text" if isinstance(error, str) else "object",
                "message": error if isinstance(error, str) else error["message"]}
    seen["keys"] = keys(tree)
    if "choices" in tree:
        c = tree["choices"][0]
        seen["text"] = c.get("message", {}).get("content") or c.get("text") or ""
        seen["finish"] = [c["finish_reason"]]
        seen["usage"] = [tree["usage"]]
        seen["logprobs"] = c.get("logprobs")
    else:
        seen["tree"] = tree
    return seen


def counts(usages):
    return [(u["prompt_tokens"], u["completion_tokens"], u["total_tokens"]) for u in usages]


def plain(text):
    """Without special tokens; a NUL as mlx-lm writes it; without an unfinished character at the end."""
    return SPECIAL.sub("", text).replace("\0", "\u0100").rstrip("\ufffd")


def logprob_ids(lp):
    return [e["id"] for e in lp["content"]] if lp and "content" in lp else None


def differences(a, b):
    """What is different in b, seen from a."""
    found = set()
    if a["status"] != b["status"]:
        found.add(f"status {a['status']} -> {b['status']}")
    if "dropped" in (a["status"], b["status"]):
        return found
    if a.get("error") != b.get("error") and a["status"] == b["status"]:
        found.add("error shape")
    if a.get("message") != b.get("message") and a["status"] == b["status"]:
        found.add("error text")
    if a["status"][0] != b["status"][0] or "error" in a or "error" in b:
        return found
    if "body" in a or "body" in b:
        return found if a.get("body") == b.get("body") else found | {"body"}
    found |= {f"key +{k}" for k in topmost(b["keys"] - a["keys"])}
    found |= {f"key -{k}" for k in topmost(a["keys"] - b["keys"])}
    if a.get("finish") == ["length"] and b.get("finish") == ["stop"]:
        return found | {"stop on text"}
    if a.get("text") != b.get("text"):
        found.add("odd tokens" if plain(a.get("text", "")) == plain(b.get("text", "")) else "text")
    for what in ("finish", "done"):
        if a.get(what) != b.get(what):
            found.add(what)
    for what in ("role first", "finish alone", "usage chunk"):
        if a.get(what) != b.get(what):
            found.add("stream " + what)
    if a.get("usage") and b.get("usage") and counts(a["usage"]) != counts(b["usage"]):
        found.add("usage")
    if logprob_ids(a.get("logprobs")) != logprob_ids(b.get("logprobs")):
        found.add("logprobs")
    return found


CASES = []


def case(name, path, body, *expected, method="POST", raw=None):
    CASES.append(pytest.param(path, body, set().union(*expected), method, raw, id=name))


def chat(name, *expected, **fields):
    case("chat " + name, CHAT, {**HI, "max_tokens": 20, **fields}, *expected)


def text(name, *expected, **fields):
    case("completion " + name, TEXT, {**FOX, "max_tokens": 20, **fields}, *expected)


chat("short", WHOLE)
case("chat alias", "/chat/completions", {**HI, "max_tokens": 20}, WHOLE)
chat("to its end", WHOLE, {"odd tokens"}, max_tokens=LONG)
chat("default length", WHOLE, {"odd tokens"}, max_tokens=512)
chat("max_completion_tokens", WHOLE, max_tokens=9, max_completion_tokens=4)
chat("one token", WHOLE, max_tokens=1)
chat("system", WHOLE, messages=[{"role": "system", "content": "Be brief."}, *HI["messages"]])
chat("turns", WHOLE, messages=[*HI["messages"], {"role": "assistant", "content": "Fine."},
                               {"role": "user", "content": "Good."}])
chat("parts", WHOLE, messages=[{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}])
chat("model", WHOLE, model="default_model")
chat("another model", {"status 404 -> 200"}, model="nowhere/else")
chat("kwargs", WHOLE, chat_template_kwargs={"x": 1})
chat("no tools", WHOLE, tools=[])
chat("unknown field", WHOLE, nonsense={"a": 1})
chat("repetition", WHOLE, repetition_penalty=1.5, repetition_context_size=10)
chat("presence", WHOLE, presence_penalty=1.5)
chat("frequency", WHOLE, frequency_penalty=1.5, frequency_context_size=5)
chat("bias", WHOLE, logit_bias={"40": 100})
chat("seed", WHOLE, temperature=1.0, seed=7)
chat("seed and top_k", WHOLE, temperature=0.8, top_k=5, seed=7)
chat("null seed", WHOLE, seed=None)
chat("greedy with top_p", WHOLE, top_p=0.5)
chat("logprobs", SCORED, {"key +choices.logprobs.content.token", "key +choices.logprobs.content.top_logprobs"},
     logprobs=True)
chat("top_logprobs", SCORED, {"key +choices.logprobs.content.top_logprobs.bytes", "logprobs"}, logprobs=True,
     top_logprobs=3)
chat("stop in one token", WHOLE, stop=" an")
chat("stop that never comes", WHOLE, stop="QQQQ")
chat("stream", STREAM, {"key +usage", "stream role first"}, stream=True)
chat("stream with usage", WHOLE, {"stream role first"}, stream=True, stream_options={"include_usage": True})
chat("stream without usage", STREAM, {"stream role first"}, stream=True, stream_options={"include_usage": False})
chat("stream with empty options", STREAM, {"key +usage", "stream role first", "done"}, stream=True, stream_options={})
chat("stream with logprobs", STREAM, {"key +usage", "stream role first"}, stream=True, logprobs=True)
text("short", WHOLE)
text("long prompt", WHOLE, prompt="one two three four " * 20)
text("unicode", WHOLE, prompt="Grüße 😀")
text("stream", STREAM, {"key +usage"}, stream=True)
text("unicode stream", STREAM, {"key +usage"}, prompt="Grüße 😀", stream=True)
text("stream with usage", WHOLE, stream=True, stream_options={"include_usage": True})
text("logprobs", SCORED, {"key +choices.logprobs.content.token", "key +choices.logprobs.content.top_logprobs"},
     logprobs=True)
text("old logprobs", {"status 400 -> 200"}, logprobs=2)
text("token ids", {"status 404 -> 200"}, prompt=[40, 41, 42])
text("no tokens", {"status 400 -> 200"}, max_tokens=0)
text("null prompt", {"status 404 -> 400"}, prompt=None)
for field, value, *expected in [
        ("stream", 1, ERROR), ("max_tokens", -1, WORDS), ("max_tokens", "5", ERROR), ("max_tokens", 5.5, ERROR),
        ("max_tokens", 20.0, {"status 400 -> 200"}), ("temperature", -1, ERROR), ("temperature", "0", WORDS),
        ("temperature", None, {"status 400 -> 200"}), ("top_p", 1.5, ERROR), ("top_p", -0.1, ERROR),
        ("top_k", -1, ERROR), ("top_k", 1.5, ERROR), ("min_p", 2, ERROR), ("repetition_penalty", -1, ERROR),
        ("repetition_context_size", -1, ERROR), ("logprobs", "yes", ERROR), ("top_logprobs", 12, ERROR),
        ("top_logprobs", -2, ERROR), ("xtc_probability", 1.5, ERROR), ("xtc_probability", 0, {"status 400 -> 200"}),
        ("xtc_threshold", 0.7, {"status 200 -> 400"}), ("logit_bias", [1], WORDS), ("logit_bias", {"a": 1}, ERROR),
        ("seed", "x", ERROR), ("model", 5, WORDS), ("adapters", 5, WORDS), ("adapters", "nowhere", {"status 200 -> 400"}),
        ("n", 2, {"status 200 -> 400"})]:
    chat(f"{field} {value!r}", *expected, **{field: value})
case("no messages", CHAT, {}, WORDS)
case("messages not a list", CHAT, {"messages": 5}, WORDS)
case("empty messages", CHAT, {"messages": []}, {"status 404 -> 400"})
case("image", CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     {"status 404 -> 400"})
case("no prompt", TEXT, {}, WORDS)
case("broken JSON", CHAT, None, WORDS, raw=b"{")
case("JSON list", CHAT, None, WORDS, raw=b"[]")
case("no body", CHAT, None, WORDS, raw=b"")
case("broken UTF-8", CHAT, None, {"status dropped -> 400"}, raw=b'{"a":"\xff"}')
case("health", "/health", None, method="GET")
case("models", "/v1/models", None, {"body"}, method="GET")
case("unknown page", "/nothing", None, WORDS, method="GET")
case("unknown post", "/nothing", {}, WORDS)
case("query", CHAT + "?a=1", {**HI, "max_tokens": 3}, {"status 404 -> 200"})
case("options", "/anything", None, method="OPTIONS")
case("wrong method", CHAT, None, {"status 501 -> 405"}, method="PUT")


@pytest.mark.parametrize("path,body,expected,method,raw", CASES)
def test_request(servers, path, body, expected, method, raw):
    theirs, ours = (see(s.url, method, path, body, raw) for s in servers)
    assert differences(theirs, ours) == expected, f"{theirs}\n{ours}"


def test_stop_on_text(servers):
    """A stop string that lies across tokens ends our reply and not mlx-lm's."""
    said = see(servers[0].url, "POST", TEXT, {**FOX, "max_tokens": 40})["text"]
    stop = said[1:4]
    assert "\ufffd" not in stop
    for stream in (False, True):
        body = {**FOX, "max_tokens": 40, "stop": stop, "stream": stream}
        theirs, ours = (see(s.url, "POST", TEXT, body) for s in servers)
        assert "stop on text" in differences(theirs, ours)
        assert ours["text"] == said[:said.index(stop)]


def test_every_difference_is_explained():
    with open(os.path.join(ROOT, "docs", "differences.md"), encoding="utf-8") as f:
        explained = set(re.findall(r"^\| `([^`]+)` \|", f.read(), re.M))
    assert explained == set().union(*(c.values[2] for c in CASES)) | {"stop on text"}
    assert len(CASES) >= 60
