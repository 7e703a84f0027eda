"""The next turn of a conversation starts where this one's prompt is left, on a model with recurrent layers.

A tiny qwen3_5 with a template that opens the reasoning and shows it no more afterwards, so that the last tokens of
a prompt are never those of the next one. What two prompts share is computed with jinja2 and the package tokenizers.
"""
import json
import os

import httpx
import jinja2
import pytest

from conftest import QUERN_BIN, Server

pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")
from test_cache_files import make_model  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

TEMPLATE = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}"
    "{%- endif %}{%- endfor %}{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and loop.index0 > ns.last %}"
    "{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{- m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}")
SPECIAL = {"`": "<|im_start|>", "~": "<|im_end|>", "^": "<think>", "\\": "</think>", "|": "Ċ"}
QUESTION = "Which of these is the odd one out, and why is it so? " * 6
REPLY, NEXT = "It is the third one.", "And the fourth?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One token per printable character but five, which are the markers and the newline."""
    path = make_model("models/qwen3_5", "base-f32", tmp_path_factory)
    vocab = {}
    for code in range(32, 127):
        vocab[SPECIAL.get(chr(code)) or (chr(code) if code > 32 else "Ġ")] = code - 32
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([s for s in SPECIAL.values() if s != "Ċ"])
    tok.save(os.path.join(path, "tokenizer.json"))
    with open(os.path.join(path, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}, f)
    return path


def ids_of(folder, messages):
    text = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE).render(
        messages=messages, add_generation_prompt=True)
    return Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def servers(folder):
    """With a prefix cache, and without."""
    pair = [Server(command=[QUERN_BIN, "serve", folder, "--port", "0", "--prompt-cache", size]) for size in ("64MB", "0")]
    yield pair
    for one in pair:
        assert one.stop() == 0


def chat(url, messages):
    j = httpx.post(url + "/v1/chat/completions", timeout=60, json={
        "messages": messages, "max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 3}).json()
    usage = j["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], j["choices"][0]["logprobs"]


def anthropic(url, messages):
    j = httpx.post(url + "/v1/messages", timeout=60, json={
        "model": "m", "messages": messages, "max_tokens": 12, "temperature": 0}).json()
    cached = j["usage"]["cache_read_input_tokens"]
    return j["usage"]["input_tokens"] + cached, cached, j["content"]


def responses(url, messages):
    j = httpx.post(url + "/v1/responses", timeout=60, json={"input": messages, "max_output_tokens": 12, "temperature": 0}).json()
    text = [part["text"] for item in j["output"] for part in item.get("content") or item["summary"]]
    return j["usage"]["input_tokens"], j["usage"]["input_tokens_details"]["cached_tokens"], text


@pytest.mark.parametrize("ask", [chat, anthropic, responses])
def test_next_turn(folder, servers, ask):
    first = [{"role": "user", "content": f"{ask.__name__}: {QUESTION}"}]
    second = first + [{"role": "assistant", "content": REPLY}, {"role": "user", "content": NEXT}]
    a, b = ids_of(folder, first), ids_of(folder, second)
    shared = next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)
    assert 256 < shared < len(a) - 1  # neither the whole prompt nor all but its last token
    warm, cold = servers
    replies = []
    for messages, n, cached in ((first, len(a), None), (second, len(b), shared)):
        got, want = ask(warm.url, messages), ask(cold.url, messages)
        assert got[0] == want[0] == n and want[1] == 0
        assert cached is None or got[1] == cached
        assert got[2] and got[2] == want[2]
        replies.append(got[2])
    assert replies[0] != replies[1]


def test_refusing_template(folder):
    """A template that takes one message only: no boundary, and nothing else changes."""
    template = "{%- if messages|length > 1 %}{{- raise_exception('one message') }}{%- endif %}" + TEMPLATE
    server = Server(command=[QUERN_BIN, "serve", folder, "--port", "0", "--chat-template", template])
    n, cached, logprobs = chat(server.url, [{"role": "user", "content": QUESTION}])
    assert n > 256 and cached == 0 and logprobs["content"]
    assert chat(server.url, [{"role": "user", "content": QUESTION}]) == (n, n - 1, logprobs)
    assert server.stop() == 0
