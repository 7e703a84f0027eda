"""Golden data of --l1 on the real model: what mlx_lm.generate computes with SmolLM2 in bfloat16.

    python make_l1_real.py MODEL_FOLDER [PARTS_FOLDER]

MODEL_FOLDER is SmolLM2's converted folder after `quern convert FOLDER --dtype bfloat16`. Writes l1_real.json: 20
prompts with 64 greedy tokens each (an end of text does not end them), and runs of `mlx_lm.generate --seed` with
their command line and text; for every step of all of them a hash of the logits, widened to float32.

It takes an hour: with PARTS_FOLDER every case is kept there when it is done and is not computed again, and several of
these programs may share the work.
"""
import contextlib
import hashlib
import importlib
import io
import json
import os
import sys
import tempfile

os.environ["MLX_DISABLE_COMPILE"] = "1"
import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from make_agreement import CHAT, TEXT  # noqa: E402

mx.set_default_device(mx.cpu)
lm = importlib.import_module("mlx_lm.generate")  # the package hides the module behind a function of its name
N_TOKENS = 64
SEEDED = [
    ("What is the capital of France?", "--seed 0 --temp 0.8"),
    ("Write a haiku about the sea.", "--seed 1 --temp 1.0 --top-p 0.95"),
    ("Give me a recipe for pancakes.", "--seed 2 --temp 0.7 --top-k 40"),
    ("Tell me a short story about a fox.", "--seed 42 --temp 1.3 --min-p 0.05 --min-tokens-to-keep 3"),
    ("Explain photosynthesis in two sentences.",
     "--seed 7 --temp 0.9 --top-p 0.9 --min-p 0.02 --xtc-probability 0.5 --xtc-threshold 0.1 --top-k 30"),
]


def logits_hash(logits):
    row = np.array(logits.astype(mx.float32)).reshape(-1)
    return hashlib.sha256(row.astype("<f4").tobytes()).hexdigest()[:16]


class Recorder:
    """Stands in for stream_generate: the same replies, with prompt, tokens and logits written down."""

    def __init__(self):
        self.real = lm.stream_generate
        self.case = None

    def __call__(self, model, tokenizer, prompt, **kwargs):
        hashes = []

        def look(_, logits):
            hashes.append(logits_hash(logits))
            return logits

        tokens = []
        for response in self.real(model, tokenizer, prompt, logits_processors=[look], **kwargs):
            tokens.append(response.token)
            yield response
        self.case = {"prompt": list(prompt), "tokens": tokens, "logits": hashes[:len(tokens)]}


def greedy(path, n):
    model, tok = lm.load(path)
    tok.eos_token_ids = []  # go on after an end of text
    if n < len(CHAT):
        prompt = list(tok.apply_chat_template([{"role": "user", "content": CHAT[n]}], add_generation_prompt=True))
    else:
        prompt = tok.encode(TEXT[n - len(CHAT)])
    lm.generate(model, tok, prompt, max_tokens=N_TOKENS)
    return lm.stream_generate.case


def seeded(path, n):
    text, flags = SEEDED[n]
    sys.argv = ["mlx_lm.generate", "--model", path, "--prompt", text, "--max-tokens", str(N_TOKENS), "--verbose", "False",
                *flags.split()]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        lm.main()
    return {"text": text, "flags": flags, "reply": out.getvalue()} | lm.stream_generate.case


def case(parts, name, compute):
    """The part of that name, computed if nobody has taken it; None if another program is at it."""
    path = os.path.join(parts, name)
    try:
        os.mkdir(path + ".taken")
    except FileExistsError:
        if not os.path.exists(path + ".json"):
            return None
    else:
        data = compute()
        with open(path + ".new", "w", encoding="utf-8") as f:
            json.dump(data, f)
        os.rename(path + ".new", path + ".json")
        print(name, file=sys.stderr, flush=True)
    with open(path + ".json", encoding="utf-8") as f:
        return json.load(f)


def main():
    model = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        parts = sys.argv[2] if len(sys.argv) > 2 else scratch
        lm.stream_generate = Recorder()
        data = {"model": "SmolLM2-135M-Instruct Q4_1, bfloat16", "mlx": mx.__version__,
                "seeded": [case(parts, f"seeded{i}", lambda i=i: seeded(model, i)) for i in range(len(SEEDED))],
                "greedy": [case(parts, f"greedy{i}", lambda i=i: greedy(model, i)) for i in range(len(CHAT + TEXT))]}
    if None in data["seeded"] + data["greedy"]:
        sys.exit("parts are missing; run this again when the other programs are done")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "l1_real.json"), "w", encoding="utf-8") as f:
        json.dump(data, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
