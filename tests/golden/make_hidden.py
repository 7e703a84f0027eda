"""Golden data of hidden states: what mlx-lm's models give after their final norm, from ids and from given embeddings.

Writes hidden.json: for some cases of models/*.json the states [17, d_model] of the case's prompt, and embeddings of
the same shape with the states that they lead to. All as base64 of little-endian float32 words.
"""
import base64
import importlib.metadata
import json
import os
import tempfile
from pathlib import Path

os.environ["MLX_DISABLE_COMPILE"] = "1"
import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

import synth  # noqa: E402

mx.set_default_device(mx.cpu)
HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [("llama", "base-f32"), ("llama", "base-bf16"), ("qwen3", "base-f32"), ("gemma3_text", "base-f32"),
         ("gemma3_text", "base-bf16"), ("qwen3_moe", "base-f32")]


def b64(x):
    return base64.b64encode(np.array(x.astype(mx.float32)).astype("<f4").tobytes()).decode()


def main():
    cases = []
    for family, name in CASES:
        with open(os.path.join(HERE, "models", family + ".json"), encoding="utf-8") as f:
            case = next(c for c in json.load(f)["cases"] if c["name"] == name)
        with tempfile.TemporaryDirectory() as folder:
            synth.write(case["recipe"], folder)
            model, _ = load_model(Path(folder), lazy=False, strict=True)
        ids = mx.array(case["ids"])[None]
        table = model.model.embed_tokens(ids)
        given = (table + table[:, ::-1]) * 0.5  # between two tokens: no row of the table
        kept = b64(given)  # some models scale their input in place
        states = model.model(ids, cache=make_prompt_cache(model))
        led = model.model(ids, cache=make_prompt_cache(model), input_embeddings=given)
        cases.append({"family": family, "case": name, "d_model": states.shape[-1], "hidden": b64(states),
                      "given": kept, "hidden_given": b64(led)})
    versions = {p: importlib.metadata.version(p) for p in ("mlx", "mlx-lm")}
    with open(os.path.join(HERE, "hidden.json"), "w", encoding="ascii") as f:
        json.dump({"made_by": versions, "cases": cases}, f, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main()
