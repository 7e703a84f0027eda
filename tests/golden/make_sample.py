"""Golden data for the sampler: which ids mlx-lm's filters keep, and what its processors make of logits.

Run with the pinned packages of tests/requirements.txt; writes sample.json beside this file. Running it again
reproduces the file.
"""
import json
import os
import random
import struct

os.environ["MLX_DISABLE_COMPILE"] = "1"
import mlx.core as mx  # noqa: E402
from mlx_lm import sample_utils as su  # noqa: E402

mx.set_default_device(mx.cpu)


def bits(values):
    return [struct.unpack("<I", struct.pack("<f", v))[0] for v in values]


def row(rng, n, spread):
    return [struct.unpack("<f", struct.pack("<f", rng.gauss(0, spread)))[0] for _ in range(n)]


def kept(logits, top_p, min_p, keep, top_k):
    lp = mx.array(logits, dtype=mx.float32)[None]
    lp = lp - mx.logsumexp(lp, axis=-1, keepdims=True)
    if 0 < top_p < 1:
        lp = su.apply_top_p(lp, top_p)
    if min_p:
        lp = su.apply_min_p(lp, min_p, keep)
    if top_k:
        lp = su.apply_top_k(lp, top_k)
    return [i for i, v in enumerate(lp[0].tolist()) if v != float("-inf")]


def filters(rng):
    cases = []
    for n in (17, 1000, 2500):
        for spread in (0.5, 3.0, 8.0):
            logits = row(rng, n, spread)
            for top_p, min_p, keep, top_k in [
                (0.9, 0, 1, 0), (0.5, 0, 1, 0), (0.999, 0, 1, 0), (1e-9, 0, 1, 0), (0, 0.05, 1, 0), (0, 0.3, 3, 0),
                (0, 1.0, 3, 0), (0, 0, 1, 1), (0, 0, 1, 5), (0, 0, 1, 16), (0.9, 0.02, 1, 8), (0.95, 0, 1, 40 % n),
            ]:
                cases.append({"logits": bits(logits) if not cases or cases[-1]["_l"] is not logits else None,
                              "_l": logits, "top_p": top_p, "min_p": min_p, "keep": keep, "top_k": top_k,
                              "kept": kept(logits, top_p, min_p, keep, top_k)})
    for c in cases:
        del c["_l"]
    return cases


def processors(rng):
    cases = []
    logits = row(rng, 40, 2.0)
    history = [rng.randrange(40) for _ in range(60)]
    for kw in [
        dict(repetition_penalty=1.3, repetition_context_size=20), dict(repetition_penalty=0.7, repetition_context_size=5),
        dict(presence_penalty=0.5, presence_context_size=20), dict(presence_penalty=-0.25, presence_context_size=7),
        dict(frequency_penalty=0.25, frequency_context_size=30),
        dict(repetition_penalty=1.5, repetition_context_size=0), dict(frequency_penalty=-0.5, frequency_context_size=0),
        dict(logit_bias={3: 2.5, 7: -100.0}),
        dict(logit_bias={3: 2.5}, repetition_penalty=1.1, repetition_context_size=20, presence_penalty=0.25,
             presence_context_size=10, frequency_penalty=0.125, frequency_context_size=20),
    ]:
        x = mx.array(logits, dtype=mx.float32)[None]
        for p in su.make_logits_processors(**kw):
            x = p(mx.array(history), x)
        named = {k: v for k, v in kw.items() if k != "logit_bias"}
        named["logit_bias"] = sorted(kw.get("logit_bias", {}).items())
        cases.append({"options": named, "out": bits(x[0].tolist())})
    return {"logits": bits(logits), "history": history, "cases": cases}


def main():
    rng = random.Random(7)
    data = {"filters": filters(rng), "processors": processors(rng)}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sample.json")
    with open(path, "w") as f:
        json.dump(data, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
