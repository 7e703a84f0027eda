"""Golden data of seeding: how many random numbers mlx-lm draws while it builds a model.

`mlx_lm.generate --seed` seeds MLX's generator before it loads the model, and every layer that is built draws its
initial weights, so that sampling starts that many splits later. Writes draws.json: for every case of models/*.json
the number of splits between seeding and the loaded model.
"""
import glob
import json
import os
import tempfile
from pathlib import Path

os.environ["MLX_DISABLE_COMPILE"] = "1"
import mlx.core as mx  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

import synth  # noqa: E402

mx.set_default_device(mx.cpu)
HERE = os.path.dirname(os.path.abspath(__file__))
MAX_DRAWS = 1000


def state():
    return tuple(mx.random.state[0].tolist())


def states():
    """The generator's state after seeding with 0 and n splits: {state: n}."""
    mx.random.seed(0)
    out = {}
    for n in range(MAX_DRAWS):
        out[state()] = n
        mx.random.uniform()
    return out


def main():
    after = states()
    data = {}
    for path in sorted(glob.glob(os.path.join(HERE, "models", "*.json"))):
        with open(path, encoding="utf-8") as f:
            golden = json.load(f)
        data[golden["family"]] = {}
        for case in golden["cases"]:
            with tempfile.TemporaryDirectory() as folder:
                synth.write(case["recipe"], folder)
                mx.random.seed(0)
                load_model(Path(folder))
                data[golden["family"]][case["name"]] = after[state()]
    with open(os.path.join(HERE, "draws.json"), "w", encoding="ascii") as f:
        json.dump(data, f, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main()
