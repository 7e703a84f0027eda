"""`quern generate --l1` writes what `mlx_lm.generate` writes, from the same command line."""
import json
import os
import subprocess

import pytest

from conftest import QUERN_BIN, QUERN_MODEL, ROOT

with open(os.path.join(ROOT, "tests", "golden", "l1_real.json"), encoding="utf-8") as f:
    SEEDED = json.load(f)["seeded"]


def quern(*argv):
    return subprocess.run([QUERN_BIN, *argv], capture_output=True, check=True, timeout=300, text=True).stdout


@pytest.fixture(scope="module")
def bfloat16(need_model, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("l1") / "bfloat16")
    quern("convert", QUERN_MODEL, "--dtype", "bfloat16", "--mlx-path", folder)
    return folder


@pytest.mark.parametrize("run", SEEDED, ids=[r["flags"] for r in SEEDED])
def test_text(bfloat16, run):
    got = quern("generate", "--model", bfloat16, "--prompt", run["text"], "--max-tokens", "64", "--l1", *run["flags"].split())
    assert got.rstrip("\n") == run["reply"].rstrip("\n")


def test_help_says_what_it_costs():
    text = " ".join(quern("help", "generate").split())
    assert "--l1" in text and "bfloat16" in text and "comparisons" in text


def test_l2_is_refused():
    done = subprocess.run([QUERN_BIN, "generate", "--l2", "x", "y"], capture_output=True, check=False, text=True)
    assert done.returncode == 2 and "not supported yet" in done.stderr
