"""kv.py QUERN MODEL [-n CASES] [-o FILE] - what quantizing the KV cache costs in quality, and what it saves.

Teacher-forced along the prompts and replies of tests/golden/agreement.json (SmolLM2; another model needs its own ids):
the mean and the 99th percentile of the KL divergence of each scheme's next-token distribution from that of the same
device without it, in nats, and how often the most likely token stays the same. `l1` rows are the reference device,
where mlx-lm's bits come from: what mlx-lm's own quantized cache does to the same model from the second token on.
Bytes are those of a token in all layers.
"""
import argparse
import json
import os
import platform
import struct
import subprocess
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCHEMES = [("8", 64), ("8", 32), ("k8v4", 64), ("k8v4", 32), ("4", 64), ("4", 32)]
ON_L1 = [("8", 64), ("4", 64), ("4", 32)]


def logits(program, model, ids, *options):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "logits")
        subprocess.run([program, "logits", model, "--ids", ",".join(map(str, ids)), "--out", path, *options], check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    shape = json.loads(data[8:8 + n])["logits"]["shape"]
    return np.frombuffer(data[8 + n:], "<f4").reshape(shape).astype(np.float64)


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def compare(want, got):
    """KL of every position, and whether the most likely token is the same."""
    p, q = log_softmax(want), log_softmax(got)
    return (np.exp(p) * (p - q)).sum(axis=-1), want.argmax(-1) == got.argmax(-1)


def bytes_per_token(config, scheme, group):
    """Spec engine 3.12: bits/8 + 4/group an element, float types 2."""
    def element(bits):
        return bits / 8 + 4 / group if bits < 16 else 2

    k, v = (scheme[1:].split("v") if scheme[0] == "k" else (scheme, scheme))
    heads = config["num_attention_heads"]
    d = config.get("head_dim") or config["hidden_size"] // heads
    each = config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * d
    return round(each * (element(int(k)) + element(int(v))))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("model", help="a folder")
    parser.add_argument("-n", "--cases", type=int, default=20)
    parser.add_argument("-o", "--out")
    args = parser.parse_args()
    with open(os.path.join(ROOT, "tests/golden/agreement.json"), encoding="utf-8") as f:
        cases = json.load(f)["cases"][:args.cases]
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    rows = {}
    for case in cases:
        ids = case["prompt"] + [step[0] for step in case["steps"]]
        for device, schemes in (("cpu", SCHEMES), ("l1", ON_L1)):
            options = ["--l1", "--chunks", "1"] if device == "l1" else []
            plain = logits(args.program, args.model, ids, *options)
            for scheme, group in schemes:
                got = logits(args.program, args.model, ids, "--kv-quant", scheme, "--kv-group-size", str(group), *options)
                rows.setdefault((device, scheme, group), []).append(compare(plain, got))
    results = []
    for (device, scheme, group), parts in rows.items():
        kl = np.concatenate([part[0] for part in parts])
        same = np.concatenate([part[1] for part in parts])
        results.append({"device": device, "scheme": scheme, "group": group, "kl_mean": float(f"{kl.mean():.3g}"),
                        "kl_p99": float(f"{np.quantile(kl, 0.99):.3g}"), "same_top1": round(float(same.mean()), 4),
                        "bytes_per_token": bytes_per_token(config, scheme, group)})
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    out = {"command": f"bench/kv.py QUERN MODEL -n {len(cases)}", "commit": commit.stdout.strip(),
           "machine": platform.machine(), "model": f"SmolLM2-135M-Instruct, 4 bits, {config.get('torch_dtype')}",
           "positions": int(sum(len(c["prompt"]) + len(c["steps"]) for c in cases)),
           "unit": "KL in nats from the same device with the KV cache in the model's type",
           "bytes_per_token_unquantized": bytes_per_token(config, "16", 64), "results": results}
    text = json.dumps(out, indent=1) + "\n"
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            f.write(text)
    print(text, end="")


if __name__ == "__main__":
    main()
