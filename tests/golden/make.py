"""Golden data of model families: what mlx-lm computes on synthetic checkpoints.

    python make.py            writes models/FAMILY.json for every family; running it again reproduces them
    python make.py llama      only that one

Each file holds cases; a case is a recipe (config, tensors, quantization, seed) and mlx-lm's results on it: the
logits of a 17-token prompt as float32 bits (base64 of little-endian words) and 16 greedy tokens after it, and hashes
of the bits of other calls: the prompt in chunks of 7 and 10, the prompt token by token, and each decode step after the
prompt (the ones that give greedy tokens 1 to 15), and mlx_lm.generate's tokens with a hash of their log-probabilities:
its last prompt token is a call of its own. 16-bit cases also hold the logits of the same weights with float32
activations, logits_f32.
"""
import base64
import hashlib
import importlib
import json
import os
import sys
import tempfile

os.environ["MLX_DISABLE_COMPILE"] = "1"
import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
import numpy as np  # noqa: E402
from families import FAMILIES  # noqa: E402
from mlx.utils import tree_flatten, tree_map  # noqa: E402
from mlx_lm.generate import generate_step  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402
from mlx_lm.utils import _get_classes, load_model  # noqa: E402

import synth  # noqa: E402

mx.set_default_device(mx.cpu)
HERE = os.path.dirname(os.path.abspath(__file__))
N_PROMPT, N_GREEDY = 17, 16

VARIANTS = [
    ("f32", "float32", None),
    ("bf16", "bfloat16", None),
    ("f32-q4", "float32", {"group_size": 64, "bits": 4}),
    ("bf16-q4", "bfloat16", {"group_size": 64, "bits": 4}),
    ("bf16-q8", "bfloat16", {"group_size": 32, "bits": 8}),
    ("bf16-mixed", "bfloat16", {"group_size": 32, "bits": 4, "mixed": True}),
]

# Products with codes that are not transposed have rules of their own in MLX; only latent attention has them.
MORE_VARIANTS = {"deepseek_v3": [("bf16-nvfp4", "bfloat16", {"group_size": 16, "bits": 4, "mode": "nvfp4"}),
                                 ("bf16-mxfp4", "bfloat16", {"group_size": 32, "bits": 4, "mode": "mxfp4"})]}


def quantizable(config):
    """Paths of the modules that mlx-lm would quantize, from a model built for the config."""
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    paths = [p for p, m in tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module) if hasattr(m, "to_quantized")]
    return model, set(paths)


def raw_names(tensors, config):
    """The tensors as their authors release them: keys and values of all heads from one matrix, experts apart, and
    what no graph uses."""
    out = [{**tensors[0], "name": "model.layers.61.eh_proj.weight", "shape": [8, 16], "quantize": False},
           {**tensors[0], "name": "model.layers.0.self_attn.rotary_emb.inv_freq", "shape": [8], "quantize": False}]
    for t in tensors:
        if ".switch_mlp." in t["name"]:
            out += [{**t, "name": t["name"].replace("switch_mlp", f"experts.{e}"), "shape": t["shape"][1:]}
                    for e in range(t["shape"][0])]
        elif ".embed_q." in t["name"]:
            heads, latent, nope = t["shape"]
            out.append({**t, "name": t["name"].replace("embed_q", "kv_b_proj"),
                        "shape": [heads * (nope + config["v_head_dim"]), latent]})
        elif ".unembed_out." not in t["name"]:
            out.append(t)
    return sorted(out, key=lambda t: t["name"])


def raw_llama4(tensors):
    """The tensors as their authors release them: experts' matrices transposed, gate and up in one; and what no text
    model uses."""
    out = [{**tensors[0], "name": name, "shape": [8, 16], "quantize": False}
           for name in ("vision_model.patch_embedding.linear.weight", "multi_modal_projector.linear_1.weight")]
    for t in tensors:
        if not is_expert(t["name"]):
            out.append(t)
        elif ".up_proj." not in t["name"]:
            n, rows, cols = t["shape"]
            both = ".gate_proj." in t["name"]
            name = t["name"].replace(".weight", "").replace("gate_proj", "gate_up_proj")
            out.append({**t, "name": name, "shape": [n, cols, 2 * rows if both else rows]})
    return sorted(out, key=lambda t: t["name"])


def recipe_of(family, config, dtype, quant, seed):
    model, paths = quantizable(config)
    tensors = synth.tensors_of(model, dtype)
    for t in tensors:
        path = t["name"][: -len(".weight")] if t["name"].endswith(".weight") else None
        group = quant["group_size"] if quant else 0
        if quant and path in paths and t["shape"][-1] % group == 0:
            t["quantize"] = True
    recipe = {"config": config, "seed": seed, "tensors": tensors}
    if quant:
        q = {k: v for k, v in quant.items() if k != "mixed"}
        if quant.get("mixed"):
            q["overrides"] = {t["name"][:-7]: {"group_size": 64, "bits": 8} for t in tensors
                              if t.get("quantize") and "down_proj" in t["name"]}
        recipe["quant"] = q
    return recipe


def logits_of(model, ids, cache):
    return np.array(model(mx.array(ids)[None], cache=cache)[0].astype(mx.float32))


def b64(logits):
    return base64.b64encode(logits.astype("<f4").tobytes()).decode()


def hashed(logits):
    return hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()[:16]


def prompt_in(model, ids, sizes):
    """The prompt's logits from calls of these sizes."""
    cache, parts, at = make_prompt_cache(model), [], 0
    for n in sizes:
        parts.append(logits_of(model, ids[at:at + n], cache))
        at += n
    return np.concatenate(parts)


def generated(model, ids):
    steps = list(generate_step(mx.array(ids), model, max_tokens=N_GREEDY))
    chosen = np.array([logprobs[token].astype(mx.float32).item() for token, logprobs in steps])
    return {"tokens": [token for token, _ in steps], "logprobs": hashed(chosen)}


def run(recipe, dtype, n_vocab):
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        synth.write(recipe, folder)
        from pathlib import Path

        model, _ = load_model(Path(folder), lazy=False, strict=True)
        ids = [(7 * i * i + 3 * i + recipe["seed"]) % n_vocab for i in range(N_PROMPT)]
        cache = make_prompt_cache(model)
        logits = logits_of(model, ids, cache)
        tokens, decode = [int(np.argmax(logits[-1]))], []
        while len(tokens) < N_GREEDY:
            last = logits_of(model, tokens[-1:], cache)
            decode.append(hashed(last))
            tokens.append(int(np.argmax(last)))
        out["hashes"] = {"chunked": hashed(prompt_in(model, ids, [7, 10])),
                         "single": hashed(prompt_in(model, ids, [1] * N_PROMPT)), "decode": decode}
        out["generated"] = generated(model, ids)
        if dtype != "float32":  # the same weights, everything after them in float32
            model.update(tree_map(lambda p: p.astype(mx.float32) if p.dtype == mx.bfloat16 else p, model.parameters()))
            out["logits_f32"] = b64(logits_of(model, ids, make_prompt_cache(model)))
    return {"ids": ids, "logits": b64(logits), "greedy": tokens, **out}


def is_expert(name):
    return ".switch_mlp." in name or ".experts." in name


def make(family):
    cases = []
    for config_name, config in FAMILIES[family].items():
        for label, dtype, quant in VARIANTS + MORE_VARIANTS.get(family, []):
            if config_name != "base" and label not in ("f32", "bf16-q4"):
                continue
            seed = int(hashlib.sha256(f"{family}/{config_name}/{label}".encode()).hexdigest()[:6], 16)
            recipe = recipe_of(family, config, dtype, quant, seed)
            if label == "bf16" and any(is_expert(t["name"]) for t in recipe["tensors"]):
                continue  # the oracle cannot multiply unquantized 16-bit experts on the CPU
            if config_name == "raw" and family == "llama4":
                if quant:
                    continue  # experts are not, and the same holds
                recipe["tensors"] = raw_llama4(recipe["tensors"])
            elif config_name == "raw":
                recipe["tensors"] = raw_names(recipe["tensors"], config)
            cases.append({"name": f"{config_name}-{label}", "dtype": dtype, "recipe": recipe,
                          **run(recipe, dtype, config.get("vocab_size", config.get("text_config", {}).get("vocab_size")))})
    versions = {"mlx": importlib.metadata.version("mlx"), "mlx-lm": importlib.metadata.version("mlx-lm")}
    return {"family": family, "made_by": versions, "cases": cases}


def main():
    import importlib.metadata  # noqa: F401

    os.makedirs(os.path.join(HERE, "models"), exist_ok=True)
    for family in sys.argv[1:] or sorted(FAMILIES):
        data = make(family)
        with open(os.path.join(HERE, "models", family + ".json"), "w") as f:
            json.dump(data, f, separators=(",", ":"))
            f.write("\n")
        print(family, len(data["cases"]), "cases", flush=True)


if __name__ == "__main__":
    main()
