"""Golden data of chunked attention: what the llama4 model of mlx-lm lets each query of a chunked layer attend to.

    python make_chunked.py      writes chunked.json; running it again reproduces it

`sets`: a chunk size, the sizes of the forward passes, and per position the positions that its query attends to. The
model's own code makes the masks and trims the caches; its layers are replaced by ones that write positions as keys and
look at what they are handed.
"""
import importlib.metadata
import json
import os

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ChunkedKVCache, KVCache
from mlx_lm.models.llama4 import LlamaModel, TextArgs

HERE = os.path.dirname(os.path.abspath(__file__))
MOST = 64

SETS = [
    (8, [1] * 40), (8, [40]), (8, [7, 10, 1, 1, 1, 9, 3, 1]), (8, [8, 8, 16, 1, 1]), (8, [9] + [1] * 20),
    (8, [23, 1, 1, 1, 20]), (5, [1] * 21), (5, [17, 13]), (16, [20, 20, 1, 1]), (16, [16] + [1] * 20),
    (24, [30, 1, 1, 20, 1]), (32, [64]), (48, [47, 1, 1, 1, 14]), (1, [1, 1, 5, 1]), (60, [50, 1, 12]), (64, [64]),
]


class Looker:
    """A layer that notes which positions its queries are shown."""

    def __init__(self, sets):
        self.sets = sets

    def __call__(self, h, mask, cache):
        n = h.shape[1]
        new = mx.arange(cache.offset, cache.offset + n, dtype=mx.float32).reshape(1, 1, n, 1)
        keys = np.array(cache.update_and_fetch(new, new)[0]).reshape(-1).astype(int)
        if isinstance(cache, ChunkedKVCache):
            self.sets += [[int(k) for k in keys[row]] for row in np.array(mask)]
        return h


def attended(chunk, calls):
    assert sum(calls) <= MOST
    args = TextArgs(attention_bias=False, attention_chunk_size=chunk, head_dim=8, hidden_size=8,
                    interleave_moe_layer_step=2, intermediate_size=8, intermediate_size_mlp=8,
                    max_position_embeddings=64, model_type="llama4_text", num_attention_heads=1, num_experts_per_tok=1,
                    num_hidden_layers=4, num_key_value_heads=1, num_local_experts=2, rms_norm_eps=1e-5,
                    rope_scaling=None, rope_theta=1e4, use_qk_norm=True, vocab_size=8)
    model, layers = LlamaModel(args), [[] for _ in range(4)]
    model.layers = [Looker(s) for s in layers]
    caches = [ChunkedKVCache(chunk), ChunkedKVCache(chunk), ChunkedKVCache(chunk), KVCache()]
    for n in calls:
        mx.eval(model(mx.zeros((1, n), mx.int32), caches))
    assert layers[0] == layers[1] == layers[2] and len(layers[0]) == sum(calls)
    return {"chunk": chunk, "calls": calls, "sets": layers[0]}


def main():
    versions = {"mlx": importlib.metadata.version("mlx"), "mlx-lm": importlib.metadata.version("mlx-lm")}
    data = {"made_by": versions, "sets": [attended(*s) for s in SETS]}
    with open(os.path.join(HERE, "chunked.json"), "w") as f:
        json.dump(data, f, separators=(",", ":"))
        f.write("\n")
    print(len(data["sets"]), "sets")


if __name__ == "__main__":
    main()
