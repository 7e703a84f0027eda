"""Make all golden data again that needs no real model, and say whether it is what the tree has.

    python make_all.py        with the pinned packages of tests/requirements.txt

Runs probe.py first: another build of mlx than the one whose bits are meant ends it. The data of real models
(make_agreement.py, make_l1_real.py) need a folder and an hour, and are made by hand. Exits 1 if a file changed.
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SCRIPTS = [  # and the file that takes what it prints; make.py comes before those that read models/*.json
    ("make_quant.py", None),
    ("make_ops.py", None),
    ("make.py", None),
    ("make_draws.py", None),
    ("make_hidden.py", None),
    ("make_maxkv.py", None),
    ("make_sample.py", None),
    ("make_exact_sample.py", None),
    ("make_jinja.py", None),
    ("make_tokenizer.py", None),
    ("make_scripts.py", "src/text/unicode_scripts.inc"),
    ("make_unicode.py", "src/text/unicode_data.inc"),
]


def run(script, out=None):
    print(script, flush=True)
    env = os.environ | {"MLX_DISABLE_COMPILE": "1"}
    done = subprocess.run([sys.executable, os.path.join(HERE, script)], env=env, check=True, stdout=subprocess.PIPE)
    if out:
        with open(os.path.join(ROOT, out), "wb") as f:
            f.write(done.stdout)


def main():
    run("probe.py")
    for script, out in SCRIPTS:
        run(script, out)
    paths = ["tests/golden", "tests/unit/data", "src/text"]
    return subprocess.run(["git", "-C", ROOT, "diff", "--stat", "--exit-code", "--", *paths]).returncode


if __name__ == "__main__":
    sys.exit(main())
