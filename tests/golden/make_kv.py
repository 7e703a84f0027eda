"""Golden data of quantized KV caches: what mlx-lm computes with them on synthetic checkpoints.

    python make_kv.py         writes kv.json; running it again reproduces it

A case holds a recipe (see make.py), how the cache is quantized (`kv_bits`, `kv_group_size`, `quantized_kv_start` of
mlx-lm, or `map`, a kv_config.json), the ids and the sizes of the forward passes, the logits of every position as
float32 bits (base64), and what mlx_lm.generate.generate_step makes of the first N_PROMPT ids: tokens and their
logprobs. mlx-lm knows no per-layer map; here the listed layers are converted by the same rule at the same moments.
`after_cache` and `after_plain` are replies to the same ids when the first N_CACHED lie in a prompt cache, which was
made with the same rule, or without any: then the first pass that goes on from it still attends to floats.
"""
import hashlib
import importlib
import importlib.metadata
import json
import os
import tempfile
from pathlib import Path

from families import FAMILIES
from make import b64, logits_of, recipe_of

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

import synth

generate = importlib.import_module("mlx_lm.generate")  # the name in mlx_lm is the function
HERE = os.path.dirname(os.path.abspath(__file__))
N_PROMPT, N_REPLY, N_CACHED = 29, 12, 17
TWO_64 = {"head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
ONE_32 = {"head_dim": 32, "num_attention_heads": 3, "num_key_value_heads": 1}
Q4, Q8 = {"group_size": 64, "bits": 4}, {"group_size": 32, "bits": 8}


def kv(bits, group, start):
    return {"kv_bits": bits, "kv_group_size": group, "quantized_kv_start": start}


def layer(i, bits, group):
    return {"layer_idx": i, "bits": bits, "group_size": group}


CASES = [
    ("llama-kv8-g64", "llama", TWO_64, "bfloat16", Q4, kv(8, 64, 0), [5, 13, 11, 1, 1, 1, 1]),
    ("llama-kv4-g64", "llama", TWO_64, "bfloat16", Q4, kv(4, 64, 0), [7, 7, 7, 7, 1, 1, 2, 1]),
    ("llama-kv4-g32", "llama", ONE_32, "bfloat16", None, kv(4, 32, 0), [1, 20, 8, 1, 1, 2]),
    ("llama-kv8-g32-later", "llama", TWO_64, "bfloat16", Q8, kv(8, 32, 12), [5, 7, 9, 4, 4, 1, 1, 1, 1]),
    ("llama-kv4-g64-later", "llama", TWO_64, "bfloat16", Q4, kv(4, 64, 31), [28, 1, 1, 1, 1, 1]),
    ("llama-kv4-f32", "llama", TWO_64, "float32", Q4, kv(4, 64, 0), [9, 19, 1, 1, 1, 1]),
    ("llama-kv8-f16", "llama", TWO_64, "float16", None, kv(8, 64, 0), [9, 19, 1, 1, 1, 1]),
    ("qwen3-kv8-g32", "qwen3", {}, "bfloat16", Q4, kv(8, 32, 3), [2, 2, 2, 22, 1, 1, 1]),
    ("llama-map", "llama", {**TWO_64, "num_hidden_layers": 4}, "bfloat16", Q4,
     {"map": [layer(0, 8, 64), layer(1, 4, 32), layer(3, 4, 64)]}, [9, 19, 1, 1, 1, 1]),
    ("gemma3-map-of-global-layers", "gemma3_text", {}, "bfloat16", Q4,
     {"map": [layer(1, 4, 32), layer(3, 8, 32)]}, [9, 19, 1, 1, 1, 1]),
    ("qwen3_5-kv8", "qwen3_5", {}, "bfloat16", Q4, {"map": [layer(1, 8, 32), layer(3, 4, 32)]}, [9, 19, 1, 1, 1, 1]),
]


def converter(how):
    """The rule of mlx-lm's maybe_quantize_kv_cache, or the same for the layers of a map."""
    if "map" not in how:
        return lambda cache: generate.maybe_quantize_kv_cache(
            cache, how["quantized_kv_start"], how["kv_group_size"], how["kv_bits"])

    def convert(cache):
        for e in how["map"]:
            c = cache[e["layer_idx"]]
            if hasattr(c, "to_quantized"):
                cache[e["layer_idx"]] = c.to_quantized(group_size=e["group_size"], bits=e["bits"])

    return convert


def in_chunks(model, ids, chunks, convert):
    cache, rows, at = make_prompt_cache(model), [], 0
    for n in chunks:
        rows.append(logits_of(model, ids[at:at + n], cache))
        convert(cache)
        at += n
    assert at == len(ids)
    return np.concatenate(rows)


def run(model, ids, how, convert, n_reply, cache):
    plain, args = generate.maybe_quantize_kv_cache, dict(how)
    if args.pop("map", None):
        args["kv_bits"] = 8  # any: the map's rule takes its place
        generate.maybe_quantize_kv_cache = lambda prompt_cache, **_: convert(prompt_cache)
    try:
        return list(generate.generate_step(mx.array(ids), model, max_tokens=n_reply, prompt_cache=cache, **args))
    finally:
        generate.maybe_quantize_kv_cache = plain


def cached(model, ids, how, convert):
    """As mlx_lm.cache_prompt leaves it."""
    cache = make_prompt_cache(model)
    run(model, ids, how, convert, 0, cache)
    return cache


def reply(model, ids, how, convert, cache=None):
    steps = run(model, ids, how, convert, N_REPLY, cache)
    tokens = [int(t) for t, _ in steps]
    picked = [float(lp[t].astype(mx.float32)) for t, (_, lp) in zip(tokens, steps)]
    return {"tokens": tokens, "logprobs": picked}


def make(name, family, changes, dtype, quant, how, chunks):
    config = {**FAMILIES[family]["base"], **changes}
    seed = int(hashlib.sha256(f"kv/{name}".encode()).hexdigest()[:6], 16)
    recipe = recipe_of(family, config, dtype, quant, seed)
    with tempfile.TemporaryDirectory() as folder:
        synth.write(recipe, folder)
        model, _ = load_model(Path(folder), lazy=False, strict=True)
        ids = [(7 * i * i + 3 * i + seed) % config["vocab_size"] for i in range(sum(chunks))]
        convert = converter(how)
        first, rest = ids[:N_CACHED], ids[N_CACHED:N_PROMPT]
        quantized, plain = cached(model, first, how, convert), cached(model, first, {}, None)
        return {"name": name, "recipe": recipe, "how": how, "ids": ids, "chunks": chunks,
                "logits": b64(in_chunks(model, ids, chunks, convert)), "n_prompt": N_PROMPT,
                **reply(model, ids[:N_PROMPT], how, convert), "n_cached": N_CACHED,
                "after_cache": reply(model, rest, how, convert, quantized),
                "after_plain": reply(model, rest, how, convert, plain)}


def main():
    versions = {"mlx": importlib.metadata.version("mlx"), "mlx-lm": importlib.metadata.version("mlx-lm")}
    data = {"made_by": versions, "cases": [make(*c) for c in CASES]}
    with open(os.path.join(HERE, "kv.json"), "w") as f:
        json.dump(data, f, separators=(",", ":"))
        f.write("\n")
    print(len(data["cases"]), "cases")


if __name__ == "__main__":
    main()
