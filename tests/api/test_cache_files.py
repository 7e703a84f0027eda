"""Prompt cache files: what `quern cache-prompt` writes mlx-lm reads, and the other way round.

Tiny models with every kind of cache (keys and values, windows, recurrent states) under --l1, where the
stored values are mlx-lm's own bits; then the real model through both command lines.
"""
import json
import os
import subprocess
import sys

import pytest

from conftest import QUERN_BIN, QUERN_MODEL, ROOT

mx = pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")
from mlx_lm.generate import generate_step  # noqa: E402
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402
from pathlib import Path  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))
import synth  # noqa: E402

mx.set_default_device(mx.cpu)
PROMPT, REST = "The quick brown fox jumps over 13 lazy dogs (twice).", "And then?"
N_REPLY = 12


def write_tokenizer(folder):
    """One token per printable character; ids 95 is the end of text."""
    vocab = {chr(c) if c > 32 else "Ġ": c - 32 for c in range(32, 127)}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast"}, f)


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "qwen3_5"])
def family(request):
    return request.param


def make_model(family, case, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp(family) / case)
    with open(os.path.join(ROOT, "tests", "golden", "models", family + ".json"), encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    synth.write(next(c["recipe"] for c in cases if c["name"] == case), folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    return make_model(family, "base-bf16", tmp_path_factory)


@pytest.fixture(scope="module")
def model(folder):
    return load_model(Path(folder))[0]


def quern(*argv, check=True):
    done = subprocess.run([QUERN_BIN, *argv], capture_output=True, check=False, timeout=300, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done


def ids_of(text):
    return mx.array([ord(c) - 32 for c in text])


def prefill(model, text):
    cache = make_prompt_cache(model)
    for _ in generate_step(ids_of(text), model, max_tokens=0, prompt_cache=cache):
        pass
    return cache


def go_on(model, cache, text, n=N_REPLY):
    out = [t for t, _ in generate_step(ids_of(text), model, max_tokens=n, prompt_cache=cache)]
    return "".join(chr(t + 32) if t < 95 else "" for t in out)


def bits(a):
    return a.dtype, a.shape, bytes(memoryview(a.view(mx.uint8)))


def in_order(cache):
    """A cache's arrays in the order of positions, the last ones that a window needs."""
    kind = type(cache).__name__
    if kind == "ArraysCache":
        return list(cache.cache)
    if kind == "RotatingKVCache":
        n = min(cache.offset, cache.max_size)
        return [mx.contiguous(cache._temporal_order(a)[..., -n:, :]) for a in (cache.keys, cache.values)]
    return [mx.contiguous(a[..., : cache.offset, :]) for a in (cache.keys, cache.values)]


def test_written(folder, model, tmp_path):
    path = str(tmp_path / "written")
    done = quern("cache-prompt", folder, "--prompt", PROMPT, "--raw", "--l1", "--prompt-cache-file", path)
    assert f"Processed {len(PROMPT)} tokens" in done.stdout
    got, meta = load_prompt_cache(path + ".safetensors", return_metadata=True)
    want = prefill(model, PROMPT)
    assert meta == {"model": os.path.realpath(folder), "tokenizer_config": "{}"}
    assert [type(c).__name__ for c in got] == [type(c).__name__ for c in want]
    for g, w in zip(got, want):
        for a, b in zip(in_order(g), in_order(w), strict=True):
            assert bits(a) == bits(b)
    assert go_on(model, got, REST) == go_on(model, want, REST)


@pytest.mark.parametrize("n_more", [0, 1, 9], ids=lambda n: f"{n}-more")
def test_read(folder, model, tmp_path, n_more):
    """After a prefill, and after single tokens, which turn the rings of windows."""
    path = str(tmp_path / "read.safetensors")
    cache = prefill(model, PROMPT)
    for token in ids_of("0123456789"[:n_more]):
        model(token[None, None], cache=cache)
    save_prompt_cache(path, cache, {"model": folder, "tokenizer_config": "{}"})
    want = go_on(model, cache, REST)
    got = quern("generate", "--prompt-cache-file", path, "--prompt", REST, "--raw", "--l1", "--max-tokens", str(N_REPLY))
    assert got.stdout.rstrip("\n") == want.rstrip("\n")


def test_round_trip(family, tmp_path_factory, tmp_path):
    """In float32 nothing is lost: the default device goes on as if it had never stopped."""
    folder = make_model(family, "base-f32", tmp_path_factory)
    path = str(tmp_path / "trip.safetensors")
    quern("cache-prompt", folder, "--prompt", PROMPT, "--raw", "--prompt-cache-file", path)
    args = ["--raw", "--max-tokens", "40", "--repetition-penalty", "1"]
    got = quern("generate", folder, "--prompt-cache-file", path, "--prompt", REST, *args).stdout
    assert got == quern("generate", folder, "--prompt", PROMPT + REST, *args).stdout


def test_short(folder, model, tmp_path):
    """Fewer tokens than a window has, and than a convolution looks back."""
    path = str(tmp_path / "short.safetensors")
    cache = prefill(model, "ab")
    save_prompt_cache(path, cache, {"model": folder, "tokenizer_config": "{}"})
    want = go_on(model, cache, REST)
    got = quern("generate", "--prompt-cache-file", path, "--prompt", REST, "--raw", "--l1", "--max-tokens", str(N_REPLY))
    assert got.stdout.rstrip("\n") == want.rstrip("\n")


def test_old_form(tmp_path_factory, tmp_path):
    """Before mlx-lm 0.32 numbers were metadata: K and V are cut to the length, class names come third."""
    folder = make_model("llama", "base-bf16", tmp_path_factory)
    model = load_model(Path(folder))[0]
    cache = prefill(model, PROMPT)
    path = str(tmp_path / "old.safetensors")
    arrays, meta = {}, {"1.model": folder, "1.tokenizer_config": "{}"}
    for i, c in enumerate(cache):
        arrays[f"{i}.0"], arrays[f"{i}.1"] = in_order(c)
        meta[f"0.{i}"], meta[f"2.{i}"] = "", "KVCache"
    mx.save_safetensors(path, arrays, meta)
    got = quern("generate", "--prompt-cache-file", path, "--prompt", REST, "--raw", "--l1", "--max-tokens", str(N_REPLY))
    assert got.stdout.rstrip("\n") == go_on(model, cache, REST).rstrip("\n")


def test_refusals(tmp_path_factory, tmp_path):
    llama, other = (make_model(f, "base-bf16", tmp_path_factory) for f in ("llama", "qwen3_5"))
    path = str(tmp_path / "x.safetensors")
    model = load_model(Path(llama))[0]
    save_prompt_cache(path, prefill(model, PROMPT), {"model": llama, "tokenizer_config": "{}"})
    args = ["--prompt", REST, "--raw", "--prompt-cache-file", path]
    done = quern("generate", other, *args, check=False)
    assert done.returncode == 1 and "was made for the model" in done.stderr
    save_prompt_cache(path, prefill(model, PROMPT), {})
    done = quern("generate", other, *args, check=False)
    assert done.returncode == 1 and "made for another model" in done.stderr
    arrays, meta = mx.load(path, return_metadata=True)
    mx.save_safetensors(path, arrays, {**meta, "1.0": "QuantizedKVCache"})
    done = quern("generate", llama, *args, check=False)
    assert done.returncode == 1 and "not supported yet: cache files with a QuantizedKVCache" in done.stderr
    done = quern("cache-prompt", llama, "--prompt", "x", check=False)
    assert done.returncode == 2 and "--prompt-cache-file" in done.stderr


def test_command_lines(need_model, tmp_path):
    """The chat template: the message stays open, and the rest of it goes on."""
    text = "Rome is the capital of Italy."
    question = " Which is it?"
    folder, path, theirs = str(tmp_path / "m"), str(tmp_path / "ours"), str(tmp_path / "theirs.safetensors")
    quern("convert", QUERN_MODEL, "--dtype", "float32", "--mlx-path", folder)
    quern("cache-prompt", folder, "--prompt", text, "--prompt-cache-file", path, "--l1")

    def mlx(command, *argv):
        program = ("import mlx.core as mx; mx.set_default_device(mx.cpu); import sys;"
                   f"from mlx_lm.{command} import main; sys.argv[0] = 'x'; main()")
        done = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, timeout=300, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    mlx("cache_prompt", "--model", folder, "--prompt", text, "--prompt-cache-file", theirs)
    want = mlx("generate", "--prompt-cache-file", theirs, "--prompt", question, "--max-tokens", "5", "--temp", "0")
    want = want.split("==========")[1].strip()
    for file in (path, theirs):
        got = quern("generate", "--prompt-cache-file", file, "--prompt", question, "--max-tokens", "5", "--l1").stdout
        assert got.strip() == want
    ours = mlx("generate", "--prompt-cache-file", path + ".safetensors", "--prompt", question, "--max-tokens", "5", "--temp", "0")
    assert ours.split("==========")[1].strip() == want
