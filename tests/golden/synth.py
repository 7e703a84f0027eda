"""Synthetic checkpoints: a recipe gives a model folder whose weights come from a counter-based generator.

The same generator stands in tests/support/synth.c; both give the same bits. A tensor's element i is
    u = splitmix64(key + i) >> 40            (24 bits), key = fnv1a64(name) ^ seed * odd constant
    v = mean + amp * (u * 2^-23 - 1)         in float32, two roundings
rounded to the checkpoint's dtype. Matrices marked for quantization are then quantized by mx.quantize.
"""
import json
import os

import mlx.core as mx
import numpy as np

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
M64 = (1 << 64) - 1


def fnv1a64(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = ((h ^ b) * 0x100000001B3) & M64
    return h


def uniform(name, seed, n):
    key = (fnv1a64(name) ^ (seed * 0x9E3779B97F4A7C15)) & M64
    with np.errstate(over="ignore"):
        z = (np.arange(1, n + 1, dtype=np.uint64) + np.uint64(key)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float32)


def values(name, seed, shape, amp, mean):
    n = int(np.prod(shape))
    u = uniform(name, seed, n) * np.float32(2.0**-23) - np.float32(1)
    return (np.float32(mean) + np.float32(amp) * u).astype(np.float32).reshape(shape)


def tensors_of(model, dtype):
    """Names, shapes and distributions of a freshly built mlx-lm model's parameters."""
    from mlx.utils import tree_flatten

    plan = []
    for name, p in sorted(tree_flatten(model.parameters())):
        shape = list(p.shape)
        if len(shape) >= 2:
            amp, mean = float(np.float32(1.7 / np.sqrt(shape[-1]))), 0.0
        elif name.endswith(".bias"):
            amp, mean = 0.125, 0.0
        else:
            amp, mean = 0.25, 1.0
        plan.append({"name": name, "shape": shape, "amp": amp, "mean": mean, "dtype": dtype})
    return plan


def spec_for(recipe, path):
    """The quantization of a module path, or None: recipe["quant"] with its overrides."""
    q = recipe.get("quant")
    if not q:
        return None
    for key, override in q.get("overrides", {}).items():
        if path == key:
            return override
    return {"group_size": q["group_size"], "bits": q["bits"], "mode": q.get("mode", "affine")}


def build(recipe):
    """All tensors of a recipe, by name, as mlx arrays."""
    out = {}
    for t in recipe["tensors"]:
        v = mx.array(values(t["name"], recipe["seed"], t["shape"], t["amp"], t["mean"])).astype(DTYPES[t["dtype"]])
        path = t["name"][: -len(".weight")] if t["name"].endswith(".weight") else None
        spec = spec_for(recipe, path) if t.get("quantize") else None
        if not spec:
            out[t["name"]] = v
            continue
        parts = mx.quantize(v, group_size=spec["group_size"], bits=spec["bits"], mode=spec.get("mode", "affine"))
        for suffix, part in zip(("weight", "scales", "biases"), parts):
            out[f"{path}.{suffix}"] = part
    return out


def config_of(recipe):
    config = dict(recipe["config"])
    q = recipe.get("quant")
    if q:
        config["quantization"] = {"group_size": q["group_size"], "bits": q["bits"], "mode": q.get("mode", "affine"),
                                  **q.get("overrides", {})}
    return config


def write(recipe, folder):
    os.makedirs(folder, exist_ok=True)
    mx.save_safetensors(os.path.join(folder, "model.safetensors"), build(recipe), metadata={"format": "mlx"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config_of(recipe), f, indent=1)
