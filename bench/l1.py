"""l1.py QUERN [-m NAME] [-r ROUNDS] [-o FILE] - the decode speed of --l1 beside mlx-lm's on the same CPU.

Both compute the same bits from the same checkpoint, which `quern benchmark --synthetic` makes (random weights of a
real shape, 4 bits, bfloat16 scales). They take turns, so that a change of the machine's speed meets both; the rates
are medians over the rounds. mlx-lm's CPU backend computes on one thread; quern uses the cores there are.
"""
import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
N_QUERN, N_MLX = 32, 3
MLX = """
import json, os, sys, time
os.environ["MLX_DISABLE_COMPILE"] = "1"
from pathlib import Path
import mlx.core as mx
mx.set_default_device(mx.cpu)
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
model, _ = load_model(Path(sys.argv[1]))
cache = make_prompt_cache(model)
step = lambda i: mx.eval(model(mx.array([[i]]), cache=cache))
step(1)
start, cpu = time.perf_counter(), time.process_time()
for i in range({n}):
    step(100 + i)
print(json.dumps(dict(tok_s={n} / (time.perf_counter() - start), cpu_s_per_token=(time.process_time() - cpu) / {n})))
"""


def run_json(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout)


def quern(program, name):
    return run_json(program, "benchmark", "--synthetic", name, "--l1", "--pp", "0", "--tg", str(N_QUERN), "-r", "1", "-o",
                    "json")


def machine():
    with open("/proc/cpuinfo", encoding="ascii") as f:
        model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "")
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2)}


def main():
    args = argparse.ArgumentParser()
    args.add_argument("quern")
    args.add_argument("-m", "--model", default="llama-3.2-1b")
    args.add_argument("-r", "--rounds", type=int, default=3)
    args.add_argument("-o", "--out")
    a = args.parse_args()
    home = os.environ.setdefault("QUERN_HOME", os.path.join(ROOT, "build", "bench"))
    rounds, start = [], machine()
    for i in range(a.rounds):
        ours = quern(a.quern, a.model)
        folder = os.path.join(home, "synthetic", a.model + "-4bit-g64")
        theirs = run_json(sys.executable, "-c", MLX.format(n=N_MLX), folder)
        rounds.append({"quern_tok_s": ours["tests"][0]["tok_s"]["median"], "mlx_lm_tok_s": theirs["tok_s"],
                       "mlx_lm_cpu_s_per_token": theirs["cpu_s_per_token"]})
        print(f"round {i + 1}: " + ", ".join(f"{k} {v:.3g}" for k, v in rounds[-1].items()), file=sys.stderr, flush=True)
    ratio = statistics.median(r["quern_tok_s"] / r["mlx_lm_tok_s"] for r in rounds)
    result = {
        "command": f"bench/l1.py QUERN -m {a.model} -r {a.rounds}", "commit": ours["git"], "machine": start,
        "model": f"{a.model}, random weights, 4 bits in groups of 64, bfloat16", "isa": ours["isa"],
        "threads": ours["threads"], "unit": "tokens per second of decode",
        "versions": {n: importlib.metadata.version(n) for n in ("mlx", "mlx-lm")},
        "median": {k: statistics.median(r[k] for r in rounds) for k in rounds[0]}, "ratio": ratio, "rounds": rounds,
    }
    if a.out:
        with open(a.out, "w", encoding="ascii") as f:
            f.write(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["median"] | {"ratio": ratio}, indent=1))


if __name__ == "__main__":
    main()
