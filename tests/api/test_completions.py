"""/v1/completions: echo with the prompt's log-probabilities, and the fields of other servers."""
import json
import math

import pytest

PATH = "/v1/completions"


def complete(http, **body):
    reply = http.post(PATH, json={"temperature": 0, "max_tokens": 6, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def stream(http, path=PATH, **body):
    with http.stream("POST", path, json={"temperature": 0, "max_tokens": 6, "stream": True, **body}) as reply:
        assert reply.status_code == 200
        data = [line[6:] for line in reply.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(d) for d in data[:-1]]


def joined(chunks, key):
    return [v for c in chunks if c["choices"] and c["choices"][0]["logprobs"] for v in c["choices"][0]["logprobs"][key]]


@pytest.mark.parametrize("prompt", ["The capital of France is", "Grüße 😀 <|im_start|>user\nÜ"])
def test_echo(http, prompt):
    plain = complete(http, prompt=prompt, logprobs=2)["choices"][0]
    both = complete(http, prompt=prompt, logprobs=2, echo=True)
    choice, lp = both["choices"][0], both["choices"][0]["logprobs"]
    n = both["usage"]["prompt_tokens"]
    ids = http.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
    assert choice["text"].startswith(prompt) and choice["text"][len(prompt):].lstrip(" ") == plain["text"].lstrip(" ")
    assert len(ids) == n and {len(v) for v in lp.values()} == {n + both["usage"]["completion_tokens"]}
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
    assert all(-9999 <= p <= 0 for p in lp["token_logprobs"][1:])
    assert lp["tokens"][n:] == plain["logprobs"]["tokens"]
    assert lp["token_logprobs"][n:] == plain["logprobs"]["token_logprobs"]
    assert lp["text_offset"][0] == 0 and lp["text_offset"] == sorted(lp["text_offset"])
    assert lp["text_offset"][n] == len(prompt)
    for tops in lp["top_logprobs"][1:]:
        assert len(tops) == 2
    from_ids = complete(http, prompt=ids, logprobs=2, echo=True)["choices"][0]
    assert from_ids["text"] == choice["text"] and from_ids["logprobs"] == lp
    chunks = stream(http, prompt=prompt, logprobs=2, echo=True)
    assert "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]
    for key in lp:
        assert joined(chunks, key) == lp[key]


def test_echo_equals_what_was_generated(http):
    """Scoring a greedy continuation gives the log-probabilities that generating it gave."""
    said = complete(http, prompt="Once upon a time", logprobs=0, max_tokens=12)["choices"][0]
    ids = http.post("/tokenize", json={"prompt": "Once upon a time"}).json()["tokens"]
    tokens = [t["id"] for t in complete(http, prompt="Once upon a time", logprobs=True, max_tokens=12)
              ["choices"][0]["logprobs"]["content"]]
    scored = complete(http, prompt=ids + tokens, echo=True, logprobs=0, max_tokens=0)["choices"][0]
    assert scored["finish_reason"] == "length"
    assert scored["logprobs"]["token_logprobs"][len(ids):] == said["logprobs"]["token_logprobs"]


def test_echo_without_logprobs(http):
    choice = complete(http, prompt="One two", echo=True)["choices"][0]
    assert choice["text"].startswith("One two") and choice["logprobs"] is None
    assert complete(http, prompt="One two", echo=True, max_tokens=0)["choices"][0]["text"] == "One two"
    assert "".join(c["choices"][0]["text"] for c in stream(http, prompt="One two", echo=True)) == choice["text"]


@pytest.mark.parametrize("field,value", [("echo", 1), ("suffix", "x"), ("best_of", 2), ("best_of", 0), ("logprobs", 6),
                                         ("logprobs", -1), ("min_tokens", -1), ("ignore_eos", "no"), ("n", 2),
                                         ("return_progress", 1), ("hlg", 1),
                                         ("hlg", {"enabled": 1}), ("hlg", {"enabled": True, "width": 101}),
                                         ("hlg", {"toe": "6"})])
def test_refused(http, field, value):
    reply = http.post(PATH, json={"prompt": "a", field: value})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == field


def test_echo_wants_the_old_logprobs(http):
    reply = http.post(PATH, json={"prompt": "a", "echo": True, "logprobs": True})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "logprobs"


def test_hlg(http):
    def draw(**more):
        return complete(http, prompt="Once upon a time", temperature=1.0, seed=5, max_tokens=24, **more)["choices"][0]
    plain, curve = draw(), draw(hlg={"enabled": True})
    assert draw(hlg={"enabled": False})["text"] == draw(hlg=None)["text"] == draw(hlg={})["text"] == plain["text"]
    assert curve["text"] == draw(hlg={"enabled": True, "width": 4, "shoulder": 4, "toe": 6, "pivot_offset": 6})["text"]
    assert len({plain["text"], curve["text"], draw(hlg={"enabled": True, "width": 0.5, "toe": 0})["text"]}) == 3
    assert complete(http, prompt="a", hlg={"enabled": True})["choices"] == complete(http, prompt="a")["choices"]


def test_min_tokens_and_ignore_eos(http):
    short = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}

    def chat(**more):
        return http.post("/v1/chat/completions", json={**short, "max_tokens": 40, **more}).json()
    n = chat()["usage"]["completion_tokens"]
    assert n < 30
    longer = chat(min_tokens=n + 5)["usage"]["completion_tokens"]
    assert longer > n + 5 or longer == 40
    assert chat(ignore_eos=True)["usage"]["completion_tokens"] == 40
    assert chat(min_tokens=0, ignore_eos=False)["usage"]["completion_tokens"] == n


@pytest.mark.parametrize("path,body", [(PATH, {"prompt": "Hello there"}),
                                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})])
def test_timings(http, path, body):
    reply = http.post(path, json={**body, "max_tokens": 8, "temperature": 0}).json()
    last = [c for c in stream(http, path, **body, max_tokens=8) if "timings" in c]
    assert len(last) == 1 and last[0]["choices"][0]["finish_reason"]
    for source in (reply, last[0]):
        t = source["timings"]
        assert t["cache_n"] + t["prompt_n"] == reply["usage"]["prompt_tokens"]
        assert t["predicted_n"] == reply["usage"]["completion_tokens"]
        assert all(math.isfinite(v) and v >= 0 for v in t.values())


def test_return_progress(http):
    prompt = "a b c d " * 400
    chunks = [c for c in stream(http, prompt=prompt, return_progress=True) if "prompt_progress" in c]
    steps = [c["prompt_progress"] for c in chunks]
    assert len(steps) > 1 and all(c["choices"] == [] for c in chunks)
    assert steps[-1]["processed"] == steps[-1]["total"] > 1000
    assert [s["processed"] for s in steps] == sorted(s["processed"] for s in steps)
    assert all(s["cache"] <= s["processed"] for s in steps)
