"""Golden data of exact sampling: mlx-lm's processors, filters and draws on bfloat16, float16 and float32 logits.

Run with the pinned packages of tests/requirements.txt; writes exact_sample.json beside this file. Running it again
reproduces the file. Rows and results are float32 in base64; a set of kept ids is a bit mask, lowest id first.
"""
import base64
import json
import os
import random

os.environ["MLX_DISABLE_COMPILE"] = "1"
import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from mlx_lm import sample_utils as su  # noqa: E402

mx.set_default_device(mx.cpu)
N_DRAWS, N_PROMPT = 12, 25
TYPES = {"bfloat16": mx.bfloat16, "float16": mx.float16, "float32": mx.float32}


def f32(a):
    return base64.b64encode(np.array(a.astype(mx.float32)).reshape(-1).astype("<f4").tobytes()).decode()


def mask(a):
    kept = np.array(a.astype(mx.float32)).reshape(-1) > -np.inf
    return base64.b64encode(np.packbits(kept, bitorder="little").tobytes()).decode()


def rows(rng, t):
    yield "short", mx.array([rng.gauss(0, 2) for _ in range(37)]).astype(t)[None]
    yield "long", mx.array([rng.gauss(0, 3) for _ in range(1500)]).astype(t)[None]
    yield "ties", mx.array([round(rng.gauss(0, 2)) / 2 for _ in range(700)]).astype(t)[None]
    # Logits of one sharp peak and of values far below it, whose weights are 0.
    yield "peak", mx.array([rng.gauss(0, 1) - (0 if i % 7 else 120) + (9 if i == 81 else 0) for i in range(300)]).astype(t)[None]


def normalize(x):
    return x - mx.logsumexp(x, keepdims=True)


FILTERS = [
    dict(top_p=0.9), dict(top_p=0.5), dict(top_p=0.999), dict(top_p=1e-9), dict(min_p=0.05), dict(min_p=0.3, min_tokens_to_keep=5),
    dict(min_p=1.0, min_tokens_to_keep=9), dict(top_k=1), dict(top_k=7), dict(top_k=36), dict(xtc_probability=1.0),
    dict(xtc_probability=1.0, xtc_threshold=0.02), dict(xtc_probability=1.0, xtc_threshold=0.0),
    dict(xtc_probability=0.5, xtc_threshold=0.01, special=[3, 11, 20]),
]


def apply(lp, o):
    """One filter alone; xtc first takes its number from a generator seeded with 9."""
    if "top_p" in o:
        return su.apply_top_p(lp, o["top_p"])
    if "min_p" in o:
        return su.apply_min_p(lp, o["min_p"], o.get("min_tokens_to_keep", 1))
    if "top_k" in o:
        return su.apply_top_k(lp, o["top_k"])
    mx.random.seed(9)
    return su.apply_xtc(lp, o["xtc_probability"], o.get("xtc_threshold", 0.1), o.get("special", []))


PROCESSORS = [
    dict(repetition_penalty=1.3), dict(repetition_penalty=0.7, repetition_context_size=5),
    dict(presence_penalty=0.3), dict(presence_penalty=-0.25, presence_context_size=7),
    dict(frequency_penalty=0.2, frequency_context_size=60), dict(logit_bias={3: 2.6, 7: -100.0}),
    dict(logit_bias={5: 1.1}, repetition_penalty=1.1, presence_penalty=0.7, frequency_penalty=0.15),
]


def process(x, history, o):
    for p in su.make_logits_processors(**o):
        x = p(mx.array(history), x)
    return x


CHAINS = [
    dict(temp=0.0), dict(temp=1.0), dict(temp=0.7), dict(temp=1.9), dict(temp=0.05), dict(temp=0.8, top_p=0.95),
    dict(temp=1.1, min_p=0.05), dict(temp=1.3, min_p=0.2, min_tokens_to_keep=8), dict(temp=0.6, top_k=20),
    dict(temp=1.0, xtc_probability=0.5, xtc_threshold=0.02), dict(temp=1.0, xtc_probability=1.0, xtc_threshold=0.1, special=[1, 30]),
    dict(temp=0.9, top_p=0.9, min_p=0.01, xtc_probability=0.6, xtc_threshold=0.03, top_k=12, special=[2]),
    dict(temp=0.0, repetition_penalty=1.4), dict(temp=0.9, repetition_penalty=1.2, frequency_penalty=0.5),
    dict(temp=1.2, top_p=0.8, presence_penalty=1.5, logit_bias={4: 3.0, 9: -2.0}),
]
OF_SAMPLER = {"temp", "top_p", "min_p", "min_tokens_to_keep", "top_k", "xtc_probability", "xtc_threshold"}


def draws(x, prompt, o, seed, splits):
    """What generate_step does with logits that stay the same."""
    sampler = su.make_sampler(**{k: v for k, v in o.items() if k in OF_SAMPLER}, xtc_special_tokens=o.get("special"))
    processors = su.make_logits_processors(**{k: v for k, v in o.items() if k not in OF_SAMPLER and k != "special"})
    history, tokens = list(prompt), []
    mx.random.seed(seed)
    for _ in range(splits):
        mx.random.uniform(shape=(3, 2))
    for _ in range(N_DRAWS):
        row = mx.array(x)
        for p in processors:
            row = p(mx.array(history), row)
        tokens.append(int(sampler(normalize(row)).item()))
        history.append(tokens[-1])
    return tokens


def main():
    rng = random.Random(11)
    cases = []
    for type_name, t in TYPES.items():
        for name, x in rows(rng, t):
            n = x.shape[-1]
            prompt = [rng.randrange(min(n, 40)) for _ in range(N_PROMPT)]
            lp = normalize(x)
            case = {"type": type_name, "name": name, "n": n, "logits": f32(x), "logprobs": f32(lp), "prompt": prompt}
            case["filters"] = [{"o": o, "kept": mask(apply(lp, o))} for o in FILTERS]
            case["processors"] = [{"o": o | {"logit_bias": sorted(o.get("logit_bias", {}).items())},
                                   "out": f32(process(mx.array(x), prompt, o))} for o in PROCESSORS]
            case["chains"] = []
            for i, o in enumerate(CHAINS):
                for seed, splits in ((0, 0), (42, 3), (2 ** 40 + 5 + i, 0)):
                    case["chains"].append({"o": o | {"logit_bias": sorted(o.get("logit_bias", {}).items())}, "seed": seed,
                                           "splits": splits, "tokens": draws(x, prompt, o, seed, splits)})
            cases.append(case)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exact_sample.json")
    with open(path, "w", encoding="ascii") as f:
        json.dump({"mlx": mx.__version__, "cases": cases}, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
