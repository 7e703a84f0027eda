"""peers.py QUERN MODEL_FOLDER GGUF [-r ROUNDS] [-o FILE] - Quern beside llama.cpp and mlx-lm, in one run.

All three run the same weights (the GGUF and the folder that `quern convert` makes of it) on the same machine, in
turns, so that a change of the machine's speed meets all of them: prefill of 512 tokens, decode of 128 tokens after
it, peak memory, and the time from the start of a process to the first text of a reply. llama.cpp comes from the
Python package llama-cpp-python (tests/requirements-peers.txt), mlx-lm from its own (tests/requirements.txt). mlx-lm's
CPU backend is slow: it computes fewer tokens, and its rates are per token as well. Rates are medians over the rounds.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

N_PROMPT, N_REPLY = 512, 128
N_PROMPT_MLX, N_REPLY_MLX = 16, 4
QUESTION = "What is the capital of France?"

LLAMA = """
import sys, time, json, random, resource
import llama_cpp
llm = llama_cpp.Llama(sys.argv[1], n_ctx=1024, n_batch=512, n_threads=int(sys.argv[2]), n_threads_batch=int(sys.argv[2]), verbose=False)
random.seed(0)
ids = [random.randrange(1000, 40000) for _ in range({n_prompt})]
llm.eval(ids[:32]); llm.reset()
t = time.perf_counter(); llm.eval(ids); pp = {n_prompt} / (time.perf_counter() - t)
t = time.perf_counter()
for i in range({n_reply}):
    llm.eval([ids[i]])
tg = {n_reply} / (time.perf_counter() - t)
print(json.dumps(dict(prefill=pp, decode=tg, peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)))
"""
LLAMA_FIRST = """
import sys, llama_cpp
llm = llama_cpp.Llama(sys.argv[1], n_ctx=1024, n_threads=int(sys.argv[2]), verbose=False)
for c in llm.create_chat_completion(messages=[dict(role="user", content=sys.argv[3])], temperature=0, stream=True, max_tokens=8):
    if c["choices"][0]["delta"].get("content"):
        sys.stdout.write("x"); sys.stdout.flush(); break
"""
MLX = """
import os, sys, time, json, random, resource
import mlx.core as mx
mx.set_default_device(mx.cpu)
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache
model, tok = load(sys.argv[1])
random.seed(0)
ids = [random.randrange(1000, 40000) for _ in range({n_prompt})]
cache = make_prompt_cache(model)
t = time.perf_counter(); mx.eval(model(mx.array(ids)[None], cache=cache)[:, -1]); pp = {n_prompt} / (time.perf_counter() - t)
t = time.perf_counter()
for i in range({n_reply}):
    mx.eval(model(mx.array([[ids[i]]]), cache=cache))
tg = {n_reply} / (time.perf_counter() - t)
print(json.dumps(dict(prefill=pp, decode=tg, peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)))
"""
MLX_FIRST = """
import sys
import mlx.core as mx
mx.set_default_device(mx.cpu)
from mlx_lm import load, stream_generate
model, tok = load(sys.argv[1])
ids = tok.apply_chat_template([dict(role="user", content=sys.argv[3])], add_generation_prompt=True)
for r in stream_generate(model, tok, ids, max_tokens=8):
    if r.text:
        sys.stdout.write("x"); sys.stdout.flush(); break
"""


def python(code, *argv):
    return [sys.executable, "-c", code, *map(str, argv)]


def first_text_s(command):
    """Seconds from the start of the process to its first byte on stdout."""
    start = time.perf_counter()
    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    first = p.stdout.read(1)
    took = time.perf_counter() - start
    p.stdout.read()
    if p.wait() or not first:
        raise SystemExit(f"no text from {command[0]}")
    return took


def run_json(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout)


def quern_rates(quern, model, threads):
    data = run_json([quern, "benchmark", model, "--pp", str(N_PROMPT), "--tg", str(N_REPLY), "-r", "1", "-o", "json",
                     "--threads", str(threads)])
    by_name = {t["test"]: t for t in data["tests"]}
    tg = by_name[f"tg{N_REPLY}"]
    return {"prefill": by_name[f"pp{N_PROMPT}"]["tok_s"]["median"], "decode": tg["tok_s"]["median"], "peak_bytes": data["peak_bytes"],
            "share_of_read_bandwidth": tg.get("bandwidth_share")}


def summary(rows):
    return {k: statistics.median(r[k] for r in rows) for k in rows[0] if rows[0][k] is not None}


def main():
    args = argparse.ArgumentParser()
    args.add_argument("quern")
    args.add_argument("model")
    args.add_argument("gguf")
    args.add_argument("-r", "--rounds", type=int, default=5)
    args.add_argument("-o", "--out")
    args.add_argument("--skip", action="append", default=[], help="leave a peer out")
    a = args.parse_args()
    threads = len(os.sched_getaffinity(0))
    peers = {
        "quern": (lambda: quern_rates(a.quern, a.model, threads),
                  [a.quern, "generate", a.model, QUESTION, "--max-tokens", "8"]),
        "llama.cpp": (lambda: run_json(python(LLAMA.format(n_prompt=N_PROMPT, n_reply=N_REPLY), a.gguf, threads)),
                      python(LLAMA_FIRST, a.gguf, threads, QUESTION)),
        "mlx-lm": (lambda: run_json(python(MLX.format(n_prompt=N_PROMPT_MLX, n_reply=N_REPLY_MLX), a.model)),
                   python(MLX_FIRST, a.model, threads, QUESTION)),
    }
    peers = {name: p for name, p in peers.items() if name not in a.skip}
    rows = {name: [] for name in peers}
    for i in range(a.rounds):
        for name, (rates, first) in peers.items():
            rows[name].append({**rates(), "first_text_s": first_text_s(first)})
            print(f"round {i + 1} {name}: " + ", ".join(f"{k} {v:.4g}" for k, v in rows[name][-1].items() if v),
                  file=sys.stderr, flush=True)
    result = {
        "command": "bench/peers.py QUERN MODEL GGUF -r %d" % a.rounds,
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip(),
        "machine": {"processor": platform.processor() or platform.machine(), "threads": threads},
        "model": "SmolLM2-135M-Instruct, Q4_1 as published", "unit": "tokens per second, bytes, seconds; medians",
        "versions": {n: __import__("importlib.metadata").metadata.version(n) for n in ("llama-cpp-python", "mlx", "mlx-lm")},
        "results": {name: summary(r) for name, r in rows.items()}, "rounds": rows,
    }
    text = json.dumps(result, indent=1) + "\n"
    if a.out:
        with open(a.out, "w") as f:
            f.write(text)
    print(json.dumps(result["results"], indent=1))


if __name__ == "__main__":
    main()
