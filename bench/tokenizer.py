"""tokenizer.py TOKENIZER_BENCH [NAME...] - encoding speed beside Hugging Face's `tokenizers`, one thread
each, in one run; writes bench/results/tokenizer.json.

TOKENIZER_BENCH is the program of that name in a build folder. The tokenizer files come from
.cache/tokenizers (scripts/fetch-tokenizers). Texts: English and code of about 1 MB, and inputs that
are the worst for some algorithm, 1 MB each. Times are processor time, the best of the rounds.
"""
import datetime
import glob
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402  (reads the variable when it is loaded)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAMES = ["llama3", "qwen3", "gemma3", "deepseek_v3", "gptoss", "claude"]
SECONDS = 1.0


def joined(names, size):
    text = ""
    for name in names:
        with open(name, encoding="utf-8", errors="replace") as f:
            text += f.read()
        if len(text) > size:
            break
    return text[:size]


def texts():
    mb = 1000000
    english = joined(sorted(glob.glob(f"{ROOT}/**/*.md", recursive=True) +
                            glob.glob("/usr/share/common-licenses/*") + glob.glob("/usr/share/perl/*/pod/*.pod")), mb)
    code = joined(sorted(glob.glob(f"{ROOT}/src/**/*.[ch]", recursive=True)) +
                  sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/*.py")), mb)
    return {"english": english, "code": code, "one letter": "a" * mb, "one digit": "7" * mb, "one space": " " * mb,
            "one emoji": "\U0001f600" * (mb // 4), "newlines": "\n" * mb, "letters and spaces": "a " * (mb // 2)}


def oracle_rate(tok, text):
    best = 0
    for _ in range(3):
        start = time.process_time()
        tok.encode(text, add_special_tokens=False)
        best = max(best, len(text.encode()) / 1e6 / (time.process_time() - start))
    return best


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="ascii") if "model name" in line), "")
    return {"cpu": model, "cores": os.cpu_count(), "load": os.getloadavg()[0], "system": platform.platform()}


def main(program, names):
    result = {"what": "tokenizer encoding, MB/s of one thread's processor time", "machine": machine(),
              "date": datetime.date.today().isoformat(), "tokenizers": tokenizers.__version__,
              "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                                       check=False).stdout.strip(),
              "command": "bench/tokenizer.py BUILD/bench/tokenizer_bench " + " ".join(names), "families": {}}
    inputs = texts()
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for i, text in enumerate(inputs.values()):
            files.append(os.path.join(folder, str(i)))
            with open(files[-1], "w", encoding="utf-8") as f:
                f.write(text)
        for name in names:
            path = f"{ROOT}/.cache/tokenizers/{name}"
            done = subprocess.run([program, path, str(SECONDS), *files], stdout=subprocess.PIPE, check=True)
            ours = json.loads(done.stdout)
            tok = tokenizers.Tokenizer.from_file(path + "/tokenizer.json")
            rows = {}
            for (what, text), row in zip(inputs.items(), ours["texts"]):
                rate = row["mb_s"]
                rows[what] = {"quern": round(rate, 2)}
                if what in ("english", "code"):
                    theirs = oracle_rate(tok, text)
                    rows[what].update(tokenizers=round(theirs, 2), ratio=round(rate / theirs, 1))
                print(f"{name:12} {what:20} {rows[what]}", flush=True)
            result["families"][name] = {"open_ms": round(ours["open_ms"], 1), "texts": rows}
    os.makedirs(f"{ROOT}/bench/results", exist_ok=True)
    with open(f"{ROOT}/bench/results/tokenizer.json", "w", encoding="utf-8") as f:
        json.dump(result, f, indent=1)
        f.write("\n")


main(os.path.abspath(sys.argv[1]), sys.argv[2:] or NAMES)
