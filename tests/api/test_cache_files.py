"""Prompt cache files: what `quern cache-prompt` writes mlx-lm reads, and the other way round.

Tiny models with every kind of cache (keys and values, windows, recurrent states, latents, chunks) under --l1, where the
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


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "qwen3_5", "deepseek_v3", "llama4"])
def family(request):
    return request.param


def make_model(family, case, tmp_path_factory):
    """A case of one of the golden files: models/llama, ... or kv."""
    folder = str(tmp_path_factory.mktemp(os.path.basename(family)) / case)
    with open(os.path.join(ROOT, "tests", "golden", family + ".json"), encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    synth.write(next(c["recipe"] for c in cases if c["name"] == case), folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    return make_model("models/" + family, "base-bf16", tmp_path_factory)


@pytest.fixture(scope="module")
def model(folder):
    return load_model(Path(folder))[0]


def quern(*argv, check=True):
    done = subprocess.run([QUERN_BIN, *argv], capture_output=True, check=False, timeout=300, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done


def ids_of(text):
    return mx.array([ord(c) - 32 for c in text])


def prefill(model, text, **kv):
    cache = make_prompt_cache(model)
    for _ in generate_step(ids_of(text), model, max_tokens=0, prompt_cache=cache, **kv):
        pass
    return cache


def go_on(model, cache, text, n=N_REPLY, **kv):
    out = [t for t, _ in generate_step(ids_of(text), model, max_tokens=n, prompt_cache=cache, **kv)]
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
    if kind == "ChunkedKVCache":
        first, end = cache.offset // cache.chunk_size * cache.chunk_size, cache.offset
        return [mx.contiguous(a[..., first - cache.start_position : end - cache.start_position, :])
                for a in (cache.keys, cache.values)]
    parts = [*cache.keys, *cache.values] if kind == "QuantizedKVCache" else [cache.keys, cache.values]
    return [mx.contiguous(a[..., : cache.offset, :]) for a in parts]


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
    folder = make_model("models/" + family, "base-f32", tmp_path_factory)
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
    folder = make_model("models/llama", "base-bf16", tmp_path_factory)
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


@pytest.mark.parametrize("case", ["base-bf16", "experts-bf16-q4"])  # chunks of 8 and of 5
def test_chunks(tmp_path_factory, tmp_path, case):
    """Wherever in a chunk a prompt ends, where one begins included; both ways."""
    folder = make_model("models/llama4", case, tmp_path_factory)
    model, path = load_model(Path(folder))[0], str(tmp_path / "chunks.safetensors")
    chunk = model.args.text_config.attention_chunk_size
    for n in [*range(3 * chunk - 1, 4 * chunk + 2), 1, chunk]:
        quern("cache-prompt", folder, "--prompt", PROMPT[:n], "--raw", "--l1", "--prompt-cache-file", path)
        got, want = load_prompt_cache(path), prefill(model, PROMPT[:n])
        for g, w in zip(got, want):
            assert type(g) is type(w) and g.offset == w.offset == n
            assert getattr(g, "start_position", 0) in (0, n // chunk * chunk)
            for a, b in zip(in_order(g), in_order(w), strict=True):
                assert bits(a) == bits(b)
        reply = go_on(model, got, REST)
        assert reply == go_on(model, prefill(model, PROMPT[:n]), REST)
        save(path, want, folder)
        assert reply_after(path) == reply.rstrip("\n")


def test_chunks_beside_quantized(tmp_path_factory, tmp_path):
    """mlx-lm quantizes the layers that have everything, and no others; kv_config.json says the same."""
    folder = make_model("models/llama4", "all-experts-bf16-q4", tmp_path_factory)
    with open(os.path.join(folder, "kv_config.json"), "w", encoding="utf-8") as f:
        json.dump([{"layer_idx": 3, "bits": 8, "group_size": 32}], f)
    model, path = load_model(Path(folder))[0], str(tmp_path / "mixed.safetensors")
    kv = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0}
    quern("cache-prompt", folder, "--prompt", PROMPT, "--raw", "--l1", "--kv-quant", "config", "--prompt-cache-file", path)
    got, want = load_prompt_cache(path), prefill(model, PROMPT, **kv)
    assert [type(c).__name__ for c in got] == ["ChunkedKVCache"] * 3 + ["QuantizedKVCache"]
    for g, w in zip(got, want):
        for a, b in zip(in_order(g), in_order(w), strict=True):
            assert bits(a) == bits(b)
    assert reply_after(path) == go_on(model, want, REST, **kv).rstrip("\n")


def test_other_chunks(tmp_path_factory, tmp_path):
    """A file whose chunks are not the model's, or that lacks what the next token sees."""
    folder = make_model("models/llama4", "base-f32", tmp_path_factory)
    model, path = load_model(Path(folder))[0], str(tmp_path / "x.safetensors")
    save(path, prefill(model, PROMPT[:20]), folder)
    arrays, meta = mx.load(path, return_metadata=True)
    args = [folder, "--prompt", REST, "--raw", "--prompt-cache-file", path]
    for name, value, said in (("1.3", 7, "chunks of 7"), ("1.4", 17, "from 17 of 20"), ("1.4", 21, "from 21 of 20"),
                              ("1.4", -1, "-1")):
        mx.save_safetensors(path, {**arrays, name: mx.array(value)}, meta)
        done = quern("generate", *args, check=False)
        assert done.returncode == 1 and said in done.stderr, done.stderr
    mx.save_safetensors(path, arrays, {**meta, "1.0": "KVCache"})
    done = quern("generate", *args, check=False)
    assert done.returncode == 1 and "made for another model" in done.stderr
    wide = make_model("models/llama4", "all-experts-f32", tmp_path_factory)
    done = quern("cache-prompt", wide, *args[1:], "--kv-bits", "8", "--kv-group-size", "32", check=False)
    assert done.returncode == 1 and "not supported yet: cache files of quantized windows" in done.stderr


def test_refusals(tmp_path_factory, tmp_path):
    llama, other = (make_model("models/" + f, "base-bf16", tmp_path_factory) for f in ("llama", "qwen3_5"))
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
    mx.save_safetensors(path, arrays, {**meta, "1.0": "ChunkedKVCache"})
    done = quern("generate", llama, *args, check=False)
    assert done.returncode == 1 and "layer 0 has a ChunkedKVCache; the file was made for another model" in done.stderr
    mx.save_safetensors(path, arrays, {**meta, "1.0": "CacheList"})
    done = quern("generate", llama, *args, check=False)
    assert done.returncode == 1 and "not supported yet: cache files with a CacheList" in done.stderr
    done = quern("cache-prompt", llama, "--prompt", "x", check=False)
    assert done.returncode == 2 and "--prompt-cache-file" in done.stderr


# ---- quantized caches ----

QUANTIZED = {  # a case of kv.json: bits, group size, where mlx-lm starts to quantize
    "llama-kv8-g64": (8, 64, 0),
    "llama-kv4-g64": (4, 64, len(PROMPT)),
    "llama-kv4-g32": (4, 32, 20),
    "llama-kv4-g64-later": (4, 64, len(PROMPT) + 1),  # the file is not quantized yet
    "llama-kv8-f16": (8, 64, 0),
    "qwen3-kv8-g32": (8, 32, 3),
    "qwen3_5-kv8": (4, 32, 0),
}


@pytest.fixture(scope="module", params=QUANTIZED)
def quantized(request, tmp_path_factory):
    """A model, how its cache is quantized in mlx-lm's words and in ours."""
    bits, group, start = QUANTIZED[request.param]
    folder = make_model("kv", request.param, tmp_path_factory)
    return (folder, load_model(Path(folder))[0], {"kv_bits": bits, "kv_group_size": group, "quantized_kv_start": start},
            ["--kv-bits", str(bits), "--kv-group-size", str(group), "--quantized-kv-start", str(start)])


def reply_after(path, *args, device="--l1"):
    return quern("generate", "--prompt-cache-file", path, "--prompt", REST, "--raw", device, "--max-tokens", str(N_REPLY),
                 *args).stdout.rstrip("\n")


def save(path, cache, folder):
    save_prompt_cache(path, cache, {"model": folder, "tokenizer_config": "{}"})


@pytest.mark.parametrize("step", [2048, 1, 2, 5, 25, len(PROMPT) - 1])
def test_quantized_written(quantized, tmp_path, step):
    """What is stored depends on where mlx-lm cuts the prompt; so it does here."""
    folder, model, kv, flags = quantized
    path = str(tmp_path / "written.safetensors")
    quern("cache-prompt", folder, "--prompt", PROMPT, "--raw", "--l1", "--prompt-cache-file", path,
          "--prefill-step-size", str(step), *flags)
    got, want = load_prompt_cache(path), prefill(model, PROMPT, prefill_step_size=step, **kv)
    assert [type(c).__name__ for c in got] == [type(c).__name__ for c in want]
    for g, w in zip(got, want):
        if type(w).__name__ == "QuantizedKVCache":
            assert (g.offset, g.group_size, g.bits) == (w.offset, w.group_size, w.bits)
        for a, b in zip(in_order(g), in_order(w), strict=True):
            assert bits(a) == bits(b)
    assert go_on(model, got, REST, **kv) == go_on(model, want, REST, **kv)


@pytest.mark.parametrize("n_more", [0, 9], ids=lambda n: f"{n}-more")
def test_quantized_read(quantized, tmp_path, n_more):
    """The file decides, with or without the flags that it was made with."""
    folder, model, kv, flags = quantized
    path = str(tmp_path / "read.safetensors")
    cache = prefill(model, PROMPT, **kv)
    if n_more:
        go_on(model, cache, "0", n_more - 1, **kv)
    save(path, cache, folder)
    coded = any(type(c).__name__ == "QuantizedKVCache" for c in cache)
    want = go_on(model, cache, REST, **kv).rstrip("\n")
    assert reply_after(path, *flags) == want
    if coded:
        assert reply_after(path) == want


def test_plain_file_quantized_later(quantized, tmp_path):
    folder, model, kv, flags = quantized
    path = str(tmp_path / "plain.safetensors")
    cache = prefill(model, PROMPT)
    save(path, cache, folder)
    assert reply_after(path, *flags) == go_on(model, cache, REST, **kv).rstrip("\n")


def test_quantized_round_trip(quantized, tmp_path):
    """The default device encodes as it stores: the file has its codes, from any length on."""
    folder, model, _, flags = quantized
    path = str(tmp_path / "trip.safetensors")
    quern("cache-prompt", folder, "--prompt", PROMPT, "--raw", "--prompt-cache-file", path, *flags)
    assert any(type(c).__name__ == "QuantizedKVCache" for c in load_prompt_cache(path))
    again = str(tmp_path / "again.safetensors")
    quern("cache-prompt", folder, "--prompt", PROMPT, "--raw", "--prompt-cache-file", again, *flags, "--threads", "1")
    with open(path, "rb") as a, open(again, "rb") as b:
        assert a.read() == b.read()
    if "qwen3_5" not in folder:  # its convolution inputs are stored in the model's type
        args = ["--raw", "--max-tokens", "40", "--repetition-penalty", "1"]
        got = quern("generate", folder, "--prompt-cache-file", path, "--prompt", REST, *args).stdout
        assert got == quern("generate", folder, "--prompt", PROMPT + REST, *args, *flags).stdout


def test_kv_config_file(tmp_path_factory, tmp_path):
    """Layers with forms of their own, and some with none; mlx-lm goes on with them."""
    folder = make_model("kv", "llama-map", tmp_path_factory)
    layers = [(0, 8, 64), (1, 4, 32), (3, 4, 64)]
    with open(os.path.join(folder, "kv_config.json"), "w", encoding="utf-8") as f:
        json.dump([{"layer_idx": i, "bits": b, "group_size": g} for i, b, g in layers], f)
    model, path = load_model(Path(folder))[0], str(tmp_path / "map.safetensors")
    quern("cache-prompt", folder, "--prompt", PROMPT, "--raw", "--l1", "--kv-quant", "config", "--prompt-cache-file", path)
    cache = load_prompt_cache(path)
    assert [getattr(c, "bits", 0) for c in cache] == [8, 4, 0, 4]
    want = go_on(model, cache, REST).rstrip("\n")
    assert reply_after(path) == want and reply_after(path, "--kv-quant", "config") == want
    for wrong in (["--kv-bits", "8"], ["--kv-group-size", "64"]):
        done = quern("generate", folder, "--prompt-cache-file", path, "--prompt", "x", *wrong, check=False)
        assert done.returncode == 1 and "layer 1" in done.stderr


def test_old_quantized_form(tmp_path_factory, tmp_path):
    folder = make_model("kv", "llama-kv8-g64", tmp_path_factory)
    model = load_model(Path(folder))[0]
    cache = prefill(model, PROMPT, kv_bits=8, quantized_kv_start=0)
    path = str(tmp_path / "old.safetensors")
    arrays, meta = {}, {"1.model": folder, "1.tokenizer_config": "{}"}
    for i, c in enumerate(cache):
        for j, a in enumerate(in_order(c)):
            arrays[f"{i}.{j // 3}.{j % 3}"] = a
        for j, n in enumerate((c.offset, c.group_size, c.bits)):
            meta[f"0.{i}.{j}"] = str(n)
        meta[f"2.{i}"] = "QuantizedKVCache"
    mx.save_safetensors(path, arrays, meta)
    assert reply_after(path) == go_on(model, cache, REST).rstrip("\n")


def test_quantized_refusals(tmp_path_factory, tmp_path):
    folder, gemma = (make_model("kv", c, tmp_path_factory) for c in ("llama-kv8-g64", "gemma3-map-of-global-layers"))
    model, path = load_model(Path(folder))[0], str(tmp_path / "q.safetensors")
    args = [folder, "--prompt", "x", "--prompt-cache-file", path]
    save(path, prefill(model, PROMPT, kv_bits=8, kv_group_size=32, quantized_kv_start=0), folder)
    for wrong in (["--kv-bits", "4"], ["--kv-quant", "k8v4"], ["--kv-group-size", "64"], ["--kv-bits", "8", "--kv-group-size", "64"]):
        done = quern("generate", *args, *wrong, check=False)
        assert done.returncode == 1 and "8 bits in groups of 32" in done.stderr, wrong
    quern("generate", *args, "--kv-bits", "8", "--max-tokens", "1")
    save(path, prefill(model, PROMPT, kv_bits=3, quantized_kv_start=0), folder)
    done = quern("generate", *args, check=False)
    assert done.returncode == 1 and "not supported yet: cache files with keys and values of 3 bits" in done.stderr
    done = quern("cache-prompt", *args, "--kv-quant", "k8v4", check=False)
    assert done.returncode == 1 and "not supported yet: cache files with keys and values quantized apart" in done.stderr
    done = quern("cache-prompt", gemma, *args[1:], "--kv-bits", "8", "--kv-group-size", "32", check=False)
    assert done.returncode == 1 and "not supported yet: cache files of quantized windows" in done.stderr


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
