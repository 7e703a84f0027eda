"""kl.py ENGINE_GOLDEN_TEST [-o FILE] - how far the cpu device is from mlx-lm on the synthetic checkpoints of all
families, and the gates that follow from it.

Runs the test of the golden data with QUERN_TEST_MEASURE for every instruction set and keeps the worst. float32
checkpoints: the largest difference of a logit, relative to the largest logit. 16-bit checkpoints: the mean KL
divergence from mlx-lm's logits with the same weights and float32 activations. A gate is the worst value of its kind
of family, rounded up to two digits; the test reads the gates from the file that is in the tree.
"""
import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ISAS = ["portable", "avx2", "avx512"]


def measure(program, isa):
    """{(family, what): worst value over the family's cases}."""
    worst = {}
    with tempfile.NamedTemporaryFile("r") as f:
        subprocess.run([program], env=os.environ | {"QUERN_TEST_MEASURE": f.name, "QUERN_TEST_ISA": isa}, check=True,
                       stdout=subprocess.DEVNULL)
        for line in f:
            family, _, what, value = line.rstrip("\n").split("\t")
            worst[family, what] = max(worst.get((family, what), 0), float(value))
    return worst


def two_digits_up(x):
    unit = 10.0 ** (math.floor(math.log10(x)) - 1)
    return float(f"{math.ceil(x / unit - 1e-9) * unit:.2g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("-i", "--isas", default=",".join(ISAS), help="instruction sets that this machine has")
    parser.add_argument("-o", "--out")
    args = parser.parse_args()
    families = {}
    for isa in args.isas.split(","):
        for (family, what), value in measure(args.program, isa).items():
            entry = families.setdefault(family, {})
            entry[what] = max(entry.get(what, 0), float(f"{value:.3g}"))
    kinds = {"dense": [f for f in families if "moe" not in f], "experts": [f for f in families if "moe" in f]}
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    result = {
        "command": "bench/kl.py ENGINE_GOLDEN_TEST",
        "commit": commit.stdout.strip(),
        "machine": platform.machine(),
        "isas": args.isas.split(","),
        "what": {"relative": "float32 checkpoints: largest difference of a logit / largest logit",
                 "kl": "16-bit checkpoints: mean KL divergence in nats, worst case of the family"},
        "gates": {kind: two_digits_up(max(families[f]["kl"] for f in names)) for kind, names in kinds.items()},
        "families": {f: families[f] for f in sorted(families)},
    }
    text = json.dumps(result, indent=1) + "\n"
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            f.write(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
