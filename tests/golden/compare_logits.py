"""Logits of the reference device against mlx-lm's, bit for bit, on a model folder.

Run: MLX_DISABLE_COMPILE=1 python tests/golden/compare_logits.py QUERN MODEL [ISA] [N_IDS]
Compares prefill in one chunk, in two, and token by token.
"""
import os
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from pathlib import Path


def oracle(model, ids, chunks):
    cache, out, at = make_prompt_cache(model), [], 0
    for n in chunks:
        y = model(mx.array(ids[at:at + n])[None], cache=cache)
        mx.eval(y)
        out.append(np.array(y[0].astype(mx.float32)))
        at += n
    return np.concatenate(out)


def ours(quern, folder, isa, ids, chunks):
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "logits.safetensors")
        subprocess.run([quern, "logits", "--model", folder, "--l1", "--out", path, "--ids", ",".join(map(str, ids)),
                        "--chunks", ",".join(map(str, chunks)), *(["--isa", isa] if isa else [])], check=True)
        return np.array(mx.load(path)["logits"])


def main():
    quern, folder = sys.argv[1:3]
    isa = sys.argv[3] if len(sys.argv) > 3 else None
    n = int(sys.argv[4]) if len(sys.argv) > 4 else 17
    mx.set_default_device(mx.cpu)
    model, _ = load_model(Path(folder))
    ids = [(7919 * i + 13) % 30000 + 20 for i in range(n)]
    failed = 0
    for chunks in ([n], [7, n - 7], [n - 3, 1, 1, 1], [1] * min(n, 8) + [n - 8] * (n > 8)):
        want = oracle(model, ids, chunks)
        got = ours(quern, folder, isa, ids, chunks)
        differ = int((want.view(np.uint32) != got.view(np.uint32)).sum())
        failed += differ != 0
        print(f"chunks {chunks}: {differ} of {want.size} differ",
              "" if not differ else f"first row {np.argwhere(want != got)[0]}, "
              f"largest {np.abs(want - got).max()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
