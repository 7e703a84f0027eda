"""Logits of the reference device against mlx-lm's, bit for bit, on a model folder.

Run: MLX_DISABLE_COMPILE=1 python tests/golden/compare_logits.py TOOL MODEL [ISA] [N_IDS]
TOOL is the built tests/tools/model_logits. Compares prefill in one chunk, in two, and token by token.
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


def ours(tool, folder, isa, ids, chunks, vocab):
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "logits")
        subprocess.run([tool, folder, "ref", isa, path, ",".join(map(str, ids)),
                        ",".join(map(str, chunks))], check=True)
        return np.fromfile(path, dtype=np.float32).reshape(-1, vocab)


def main():
    tool, folder = sys.argv[1:3]
    isa = sys.argv[3] if len(sys.argv) > 3 else "-"
    n = int(sys.argv[4]) if len(sys.argv) > 4 else 17
    mx.set_default_device(mx.cpu)
    model, _ = load_model(Path(folder))
    ids = [(7919 * i + 13) % 30000 + 20 for i in range(n)]
    failed = 0
    for chunks in ([n], [7, n - 7], [n - 3, 1, 1, 1], [1] * min(n, 8) + [n - 8] * (n > 8)):
        want = oracle(model, ids, chunks)
        got = ours(tool, folder, isa, ids, chunks, want.shape[1])
        differ = int((want.view(np.uint32) != got.view(np.uint32)).sum())
        failed += differ != 0
        print(f"chunks {chunks}: {differ} of {want.size} differ",
              "" if not differ else f"first row {np.argwhere(want != got)[0]}, "
              f"largest {np.abs(want - got).max()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
