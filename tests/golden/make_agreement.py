"""Golden data of the real model: mlx-lm in float32, teacher-forced along its own greedy replies.

    python make_agreement.py MODEL_FOLDER [GGUF]

MODEL_FOLDER is the folder that `quern convert` makes of SmolLM2's GGUF. Writes agreement.json: 20 prompts, 64 greedy
tokens each, and for every step mlx-lm's two best ids and the gap of their logits. With the GGUF, llama.cpp (the
Python package llama-cpp-python) is run over the same ids and its agreement is stored beside it.
"""
import json
import os
import sys

os.environ["MLX_DISABLE_COMPILE"] = "1"
import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from mlx.utils import tree_map  # noqa: E402
from mlx_lm import load  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402

mx.set_default_device(mx.cpu)
N_TOKENS = 64
CHAT = [
    "What is the capital of France?", "Write a haiku about the sea.", "Explain photosynthesis in two sentences.",
    "List five prime numbers.", "Translate 'good morning' to Spanish.", "Who wrote Hamlet?",
    "Give me a recipe for pancakes.", "What is 17 times 23?", "Name three planets.", "Tell me a short story about a fox.",
]
TEXT = [
    "Once upon a time, there was a", "The quick brown fox", "def fibonacci(n):\n", "In 1969, humans first",
    "Water boils at", "# Shopping list\n- milk\n-", "The theory of relativity states that", "SELECT name, age FROM",
    "Dear Sir or Madam,\n\n", "Les enfants jouent dans le",
]


def greedy(model, ids):
    cache = make_prompt_cache(model)
    steps, feed = [], ids
    for _ in range(N_TOKENS):
        last = np.array(model(mx.array(feed)[None], cache=cache)[0, -1])
        a, b = (int(i) for i in np.argsort(-last, kind="stable")[:2])
        steps.append([a, b, round(float(last[a] - last[b]), 6)])
        feed = [a]
    return steps


def llama_agreement(gguf, cases):
    import llama_cpp

    llm = llama_cpp.Llama(gguf, n_ctx=1024, logits_all=True, verbose=False, n_threads=2)
    same = total = 0
    worst = 0.0
    for c in cases:
        llm.reset()
        ids = c["prompt"] + [s[0] for s in c["steps"][:-1]]
        llm.eval(ids)
        rows = np.array(llm.scores[len(c["prompt"]) - 1 : len(ids)])
        for row, (a, _, gap) in zip(rows, c["steps"]):
            total += 1
            if int(row.argmax()) == a:
                same += 1
            else:
                worst = max(worst, gap)
    return {"package": "llama-cpp-python " + llama_cpp.__version__, "agree": same, "of": total,
            "largest_gap_of_a_disagreement": worst}


def main():
    model, tok = load(sys.argv[1])
    model.update(tree_map(lambda p: p.astype(mx.float32) if p.dtype in (mx.float16, mx.bfloat16) else p,
                          model.parameters()))
    prompts = [list(tok.apply_chat_template([{"role": "user", "content": t}], add_generation_prompt=True)) for t in CHAT]
    prompts += [tok.encode(t) for t in TEXT]
    cases = []
    for p in prompts:
        cases.append({"prompt": p, "steps": greedy(model, p)})
        print(len(cases), "of", len(prompts), file=sys.stderr, flush=True)
    data = {"model": "SmolLM2-135M-Instruct Q4_1, float32", "cases": cases}
    if len(sys.argv) > 2:
        data["llama_cpp"] = llama_agreement(sys.argv[2], cases)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "agreement.json"), "w") as f:
        json.dump(data, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
