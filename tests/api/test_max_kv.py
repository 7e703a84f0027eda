"""`--max-kv-size`: the first four tokens of a sequence and the last ones, as mlx-lm's rotating cache has them.

Under --l1 the logits of every call of one token, and of chunks within the size, are mlx-lm's bits. In longer chunks
mlx-lm forgets the first tokens while the chunk lasts, which Quern does not (docs/numerics.md): there the rule is checked
against token by token, on both devices.
"""
import os
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from test_cache_files import PROMPT, REST, go_on, ids_of, make_model, quern

mx = pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")
from mlx_lm.generate import generate_step  # noqa: E402
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))
FAMILIES = {"qwen3": "base-bf16", "qwen3_moe": "base-bf16-q4", "phi3": "base-bf16"}  # mlx-lm gives none of them caches of its own
SIZE, N_REPLY = 24, 40


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return make_model("models/" + request.param, FAMILIES[request.param], tmp_path_factory)


@pytest.fixture(scope="module")
def model(folder):
    return load_model(Path(folder))[0]


def rotating(model, text, size=SIZE):
    """mlx-lm's cache after a prompt."""
    cache = make_prompt_cache(model, size)
    for _ in generate_step(ids_of(text), model, max_tokens=0, prompt_cache=cache):
        pass
    return cache


def logits(folder, ids, chunks, path, *args):
    path = str(path)
    quern("logits", folder, "--ids", ",".join(str(i) for i in ids), "--chunks", ",".join(str(c) for c in chunks), "--out", path,
          "--max-kv-size", str(SIZE), *args)
    return mx.load(path)["logits"]


@pytest.mark.parametrize("chunks", [[17], [24], [7, 10], [1]], ids=str)
def test_logits(folder, model, tmp_path, chunks):
    """Single tokens far beyond the size, after chunks that fit."""
    ids = [int(i) for i in ids_of(PROMPT + REST + PROMPT)]
    chunks = chunks + [1] * (len(ids) - sum(chunks))
    cache, want, at = make_prompt_cache(model, SIZE), [], 0
    for n in chunks:
        want.append(model(mx.array(ids[at:at + n])[None], cache=cache)[0].astype(mx.float32))
        at += n
    got = logits(folder, ids, chunks, tmp_path / "l.safetensors", "--l1")
    assert mx.array_equal(got, mx.concatenate(want))


def test_chunks_do_not_matter(folder, tmp_path):
    ids = [int(i) for i in ids_of(PROMPT + REST + PROMPT)]
    for device in ([], ["--l1"]):
        by_one = logits(folder, ids, [1] * len(ids), tmp_path / "1.safetensors", *device)
        for chunks in ([len(ids)], [30, 1, 40], [3, 25, 25]):
            got = logits(folder, ids, chunks, tmp_path / "n.safetensors", *device)
            if not device:
                assert mx.array_equal(got, by_one)
            else:  # single tokens are summed in the order of the ring, chunks in that of positions
                assert mx.allclose(got, by_one, rtol=0, atol=0.05 * mx.abs(by_one).max().item())


def test_text(folder, model):
    """A prompt that fits, and a reply that does not."""
    prompt = PROMPT[:SIZE]
    want = "".join(chr(t + 32) if t < 95 else "" for t, _ in
                   generate_step(ids_of(prompt), model, max_tokens=N_REPLY, max_kv_size=SIZE))
    args = ["--prompt", prompt, "--raw", "--max-tokens", str(N_REPLY)]
    got = quern("generate", folder, "--l1", "--max-kv-size", str(SIZE), *args).stdout
    assert got.rstrip("\n") == want.rstrip("\n")


@pytest.mark.parametrize("n_more", [0, 3, 9, 40], ids=lambda n: f"{n}-more")
def test_file_read(folder, model, tmp_path, n_more):
    """Before the ring is full, at its edge, and turned; the file says its size."""
    path, prompt = str(tmp_path / "read.safetensors"), PROMPT[:20]
    cache = rotating(model, prompt)
    for token in ids_of((PROMPT + REST)[:n_more]):
        model(token[None, None], cache=cache)
    save_prompt_cache(path, cache, {"model": folder, "tokenizer_config": "{}"})
    want = go_on(model, cache, "A", N_REPLY)  # one token a call, as the rest of it
    args = ["--prompt-cache-file", path, "--prompt", "A", "--raw", "--l1", "--max-tokens", str(N_REPLY)]
    assert quern("generate", *args).stdout.rstrip("\n") == want.rstrip("\n")
    assert quern("generate", *args, "--max-kv-size", str(SIZE)).stdout.rstrip("\n") == want.rstrip("\n")
    done = quern("generate", *args, "--max-kv-size", str(SIZE + 1), check=False)
    assert done.returncode == 1 and f"limited to {SIZE} positions, --max-kv-size says {SIZE + 1}" in done.stderr


@pytest.mark.parametrize("n", [20, SIZE, SIZE + 1, 50])
def test_file_written(folder, model, tmp_path, n):
    path, prompt = str(tmp_path / "written"), (PROMPT + REST)[:n]
    quern("cache-prompt", folder, "--prompt", prompt, "--raw", "--l1", "--max-kv-size", str(SIZE), "--prompt-cache-file", path)
    got = load_prompt_cache(path + ".safetensors")
    assert all(type(c).__name__ == "RotatingKVCache" for c in got)
    assert all((c.keep, c.max_size, c.offset) == (4, SIZE, n) for c in got)
    text = go_on(model, got, "A", N_REPLY)
    args = ["--prompt-cache-file", path, "--prompt", "A", "--raw", "--l1", "--max-tokens", str(N_REPLY)]
    assert quern("generate", *args).stdout.rstrip("\n") == text.rstrip("\n")
    if n <= SIZE:
        assert text == go_on(model, rotating(model, prompt), "A", N_REPLY)


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_5"])
def test_other_layers(family, tmp_path_factory, tmp_path):
    """Windows stay as they are, states too; the layers that attend to everything are limited, and a file says so."""
    folder = make_model("models/" + family, "base-f32", tmp_path_factory)
    ids = [int(i) for i in ids_of(PROMPT + REST + PROMPT)]
    limited = logits(folder, ids, [len(ids)], tmp_path / "a.safetensors")
    free = logits(folder, ids[:SIZE], [SIZE], tmp_path / "b.safetensors")
    assert mx.array_equal(limited[:SIZE], free) and mx.array_equal(limited, logits(folder, ids, [1] * len(ids), tmp_path / "c.safetensors"))
    path, rest = str(tmp_path / "file"), ["--raw", "--max-tokens", "20", "--repetition-penalty", "1"]
    quern("cache-prompt", folder, "--prompt", PROMPT, "--raw", "--max-kv-size", str(SIZE), "--prompt-cache-file", path)
    assert {c.max_size for c in load_prompt_cache(path + ".safetensors") if getattr(c, "keep", 0)} == {SIZE}
    got = quern("generate", folder, "--prompt-cache-file", path, "--prompt", REST, *rest).stdout
    assert got == quern("generate", folder, "--prompt", PROMPT + REST, "--max-kv-size", str(SIZE), *rest).stdout


def test_bad_input(folder, model, tmp_path):
    done = quern("generate", "x", "--max-kv-size", "4", check=False)
    assert done.returncode == 2 and "--max-kv-size" in done.stderr
    path = str(tmp_path / "short.safetensors")
    cache = make_prompt_cache(model)
    model(ids_of(PROMPT[:30])[None], cache=cache)
    save_prompt_cache(path, cache, {"model": folder, "tokenizer_config": "{}"})
    arrays, meta = mx.load(path, return_metadata=True)
    mx.save_safetensors(path, {k: mx.array(300, a.dtype) if k.endswith(".2") else a for k, a in arrays.items()}, meta)
    for limit in ([], ["--max-kv-size", "20"]):
        done = quern("generate", "--prompt-cache-file", path, "--prompt", "x", "--raw", *limit, check=False)
        assert done.returncode == 1 and " positions, 300 are needed" in done.stderr
