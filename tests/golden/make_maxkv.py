"""Golden data of KV caches of limited size: what mlx-lm's RotatingKVCache(max_size, keep=4) lets each query attend to,
and what models compute with it on synthetic checkpoints.

    python make_maxkv.py      writes maxkv.json; running it again reproduces it

`sets`: a size, the sizes of the forward passes, and per position the positions that its query attends to.
`cases` are those of make_kv.py, with `how` holding max_kv_size.

In a pass of several tokens mlx-lm builds its mask on the buffer's indices: a query of the last rows sees as many keys,
but older ones in place of the first four. Quern keeps those visible, so that what a query sees depends on its position
alone. Cases with `positions` say so to mlx-lm too, by a mask; the others are mlx-lm as it is, where both agree.
Models that make their own caches would not get one of limited size from mlx-lm: here they are given them in place of
their caches without a window.
"""
import hashlib
import importlib.metadata
import json
import os
import tempfile
from pathlib import Path

from families import FAMILIES
from make import b64, logits_of, recipe_of

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.utils import load_model

import synth

HERE = os.path.dirname(os.path.abspath(__file__))
KEEP, N_REPLY = 4, 12
Q4 = {"group_size": 64, "bits": 4}

SETS = [
    (16, [1] * 60), (5, [1] * 20), (6, [1] * 20), (9, [3, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1]),
    (16, [16] + [1] * 30), (16, [12] + [1] * 40), (16, [40] + [1] * 20), (16, [17, 1, 1, 9, 2, 1, 1, 1, 20, 1, 1]),
    (32, [31, 1, 1, 1, 25, 1, 1]), (7, [30, 30]),
]

# name, family, changes, dtype, quantization, size, chunks, tokens of the prompt, by positions
CASES = [
    ("qwen3-shorter-prompt", "qwen3", {}, "bfloat16", Q4, 24, [20] + [1] * 40, 20, False),
    ("qwen3-longer-prompt", "qwen3", {}, "bfloat16", Q4, 16, [40] + [1] * 20, 41, True),
    ("qwen2-chunks", "qwen2", {}, "bfloat16", None, 16, [11, 9, 13, 1, 1, 1, 6, 1, 1, 1], 30, True),
    ("glm4-one-by-one", "glm4", {}, "bfloat16", Q4, 9, [1] * 40, 9, False),
    ("granite-f32", "granite", {}, "float32", None, 16, [30, 14] + [1] * 8, 33, True),
    ("qwen2-f32-one-by-one", "qwen2", {}, "float32", Q4, 12, [1] * 40, 12, False),
    ("phi3-f16", "phi3", {}, "float16", None, 5, [1] * 10 + [20, 1, 1, 1], 5, True),
    ("llama", "llama", {}, "bfloat16", Q4, 16, [29] + [1] * 20, 29, True),
    ("deepseek-chunks", "deepseek_v3", {}, "bfloat16", Q4, 16, [11, 9, 13, 1, 1, 1, 6, 1, 1, 1], 30, True),
    ("deepseek-shorter-prompt", "deepseek_v3", {}, "bfloat16", None, 24, [20] + [1] * 30, 20, False),
    ("deepseek-f32", "deepseek_v3", {}, "float32", None, 16, [30, 14] + [1] * 8, 33, True),
    ("gemma3-global-layers", "gemma3_text", {}, "bfloat16", Q4, 24, [34] + [1] * 10, 30, True),
]


MLX_MASK = RotatingKVCache.make_mask


def by_position(cache, N, **how):
    """RotatingKVCache.make_mask with a mask by absolute positions for passes of several tokens."""
    if N == 1:
        return MLX_MASK(cache, N, **how)
    pos = held(cache, N)
    query = np.arange(cache.offset, cache.offset + N)[:, None]
    return mx.array((pos <= query) & ((pos < cache.keep) | (pos > query - (cache.max_size - cache.keep))))


class ByPosition(RotatingKVCache):
    make_mask = by_position


def held(cache, n):
    """Positions of the keys that a pass of n > 1 tokens is handed, in the buffer's order."""
    before = np.arange(cache.offset)
    if cache.offset >= cache.max_size:
        before = np.concatenate([before[:cache.keep], before[cache.offset - (cache.max_size - 1 - cache.keep):]])
    return np.concatenate([before, np.arange(cache.offset, cache.offset + n)])


def attended(size, chunks):
    cache, sets, at = RotatingKVCache(max_size=size, keep=KEEP), [], 0
    for n in chunks:
        mask = cache.make_mask(n)
        new = mx.arange(at, at + n, dtype=mx.float32).reshape(1, 1, n, 1)
        keys = np.array(cache.update_and_fetch(new, new)[0]).reshape(-1).astype(int)
        for i in range(n):
            if mask is None:
                seen = np.ones(len(keys), bool)
            elif isinstance(mask, str):
                seen = np.arange(len(keys)) <= len(keys) - n + i
            else:
                seen = np.array(mask)[i]
            sets.append(sorted(int(k) for k in keys[seen]))
        at += n
    return {"size": size, "chunks": chunks, "sets": sets}


def caches(model, size, by_position):
    kind = ByPosition if by_position else RotatingKVCache
    if not hasattr(model, "make_cache"):
        assert all(type(c) is RotatingKVCache and c.keep == KEEP for c in make_prompt_cache(model, size))
    return [kind(max_size=size, keep=KEEP) if type(c) is KVCache else c for c in make_prompt_cache(model)]


def in_chunks(model, ids, chunks, cache):
    rows, at = [], 0
    for n in chunks:
        rows.append(logits_of(model, ids[at:at + n], cache))
        at += n
    return np.concatenate(rows)


def make(name, family, changes, dtype, quant, size, chunks, n_prompt, by_position):
    config = {**FAMILIES[family]["base"], **changes}
    seed = int(hashlib.sha256(f"maxkv/{name}".encode()).hexdigest()[:6], 16)
    recipe = recipe_of(family, config, dtype, quant, seed)
    with tempfile.TemporaryDirectory() as folder:
        synth.write(recipe, folder)
        model, _ = load_model(Path(folder), lazy=False, strict=True)
        ids = [(7 * i * i + 3 * i + seed) % config["vocab_size"] for i in range(sum(chunks))]
        logits = in_chunks(model, ids, chunks, caches(model, size, by_position))
        steps = list(generate_step(mx.array(ids[:n_prompt]), model, max_tokens=N_REPLY,
                                   prompt_cache=caches(model, size, by_position)))
    tokens = [int(t) for t, _ in steps]
    picked = [float(lp[t].astype(mx.float32)) for t, (_, lp) in zip(tokens, steps)]
    return {"name": name, "recipe": recipe, "dtype": dtype, "how": {"max_kv_size": size}, "positions": by_position,
            "ids": ids, "chunks": chunks, "logits": b64(logits), "n_prompt": n_prompt, "tokens": tokens,
            "logprobs": picked}


def main():
    versions = {"mlx": importlib.metadata.version("mlx"), "mlx-lm": importlib.metadata.version("mlx-lm")}
    data = {"made_by": versions, "sets": [attended(*s) for s in SETS], "cases": [make(*c) for c in CASES]}
    with open(os.path.join(HERE, "maxkv.json"), "w") as f:
        json.dump(data, f, separators=(",", ":"))
        f.write("\n")
    print(len(data["sets"]), "sets,", len(data["cases"]), "cases")


if __name__ == "__main__":
    main()
